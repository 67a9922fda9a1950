"""The JVM of a session: which Java and which SPARK_HOME, and its launch, also before PySpark is imported.

Spark's Python processes look for pyspark in `$SPARK_HOME/python/lib/pyspark.zip` first, and compile each module of a
zip when they load it. That takes 0.5 s of processor time in the process that each query starts. If this interpreter has
PySpark installed as files, a local Spark therefore gets a SPARK_HOME without zips.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.system.process import make_folder, remove_folder

MIN_JAVA: Final = 17

_JAVA_HINT: Final = (
    "Install a Java runtime of version 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and set JAVA_HOME if it is not on PATH; or use runtime='inprocess'."
)

#: The JVM only moves bytes. Full compilation and parallel garbage collection would cost 7 s of processor time at each
#: start.
_JVM: Final = "-Xss4m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

_MEMORY: Final = "2g"

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{3}
"""

#: The variable with the path of the file in which the JVM writes its port.
_CONNECTION: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"

#: Variables that choose another JVM or kind of session than the one that is launched ahead.
_OTHERS: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_TESTING")

_POLL_S: Final = 0.005


class Java:
    """A JVM in a folder of its own. It ends when this process does.

    directory: the folder, which the owner removes. home: its SPARK_HOME; None for PySpark's default.
    """

    def __init__(self, *, is_local: bool) -> None:
        self.directory = make_folder("spark")
        (self.directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        self.home = link_home(self.directory) if is_local else None
        self._log = self.directory / "spark.log"
        self._ahead: subprocess.Popen[bytes] | None = None
        self._launched: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of Spark with which it is launched."""
        logging_uri = (self.directory / "log4j2.properties").as_uri()  # the folder of temporary files may have spaces
        return {
            "spark.driver.memory": _MEMORY,
            "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={logging_uri}" {_JVM}',
        }

    @property
    def log(self) -> str:
        """The end of its output."""
        if not self._log.exists():
            return ""
        return self._log.read_text(errors="replace", encoding="utf-8")[-2000:].strip()

    def launch_ahead(self, home: Path | str) -> None:
        """Launch it before PySpark does so."""
        command = [os.path.join(home, "bin", "spark-submit")]
        for name, value in {"spark.master": "local", **self.settings}.items():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _CONNECTION: str(self._connection)}
        self._ahead = self._opened(command, environment)

    def popen(self, command: list[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """The process for `command`, with which PySpark launches a JVM: the one that was launched ahead, or a new
        one if there is none or it has ended. PySpark waits for the file with its port.
        """
        ahead, self._ahead = self._ahead, None
        while ahead is not None and ahead.poll() is None:
            if self._connection.exists():
                shutil.copyfile(self._connection, env[_CONNECTION])
                return ahead
            time.sleep(_POLL_S)
        return self._opened(command, env, **options)

    def kill(self) -> None:
        """Kill the launched processes."""
        for process in list(self._launched):
            process.kill()

    def end(self) -> None:
        """Kill the launched processes, and delete the folder."""
        self.kill()
        for process in self._launched:
            process.wait()
        remove_folder(self.directory)

    @property
    def _connection(self) -> Path:
        return self.directory / "connection"

    def _opened(self, command: list[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """A process that writes its errors to the log, because the JVM starts with useless warnings, and that ends
        with this one, not by Ctrl-C.
        """
        environment = dict(env) if self.home is None else {**env, "SPARK_HOME": str(self.home)}
        options |= {"stdin": subprocess.PIPE, "env": environment, "preexec_fn": _ignore_interrupts}
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stderr=log, **options)
        self._launched.append(process)
        return process


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_lock = threading.Lock()
_ahead: list[Java] = []


@contextlib.contextmanager
def launched_ahead() -> Iterator[None]:
    """A context in which a local JVM starts for the session that the block creates; it is killed if no session takes
    it. Without effect if this process has a session, or the environment chooses another master.
    """
    java = _launched_ahead()
    try:
        yield
    finally:
        left = None
        with _lock:
            if java is not None and java in _ahead:
                _ahead.remove(java)
                left = java
        if left is not None:
            left.end()


def take() -> Java | None:
    """The JVM that was launched ahead, for one session; None if no JVM was."""
    with _lock:
        return _ahead.pop() if _ahead else None


def _launched_ahead() -> Java | None:
    if not os.environ.get("WATERSMEET_MASTER", "local").startswith("local") or any(n in os.environ for n in _OTHERS):
        return None
    context = sys.modules.get("pyspark.core.context")
    if context is not None and context.SparkContext._gateway is not None:
        return None
    with _lock:
        if _ahead or importlib.util.find_spec("pyspark") is None:
            return None
        set_python()
        java = Java(is_local=True)
        try:
            home = java.home or os.environ.get("SPARK_HOME")
            if home is not None and os.access(os.path.join(home, "bin", "spark-submit"), os.X_OK):
                java.launch_ahead(home)
                _ahead.append(java)
                return java
        except OSError:
            pass  # the session launches one, and reports its error
        except BaseException:
            java.end()
            raise
        java.end()
        return None


def set_python() -> None:
    """Let Spark start its Python processes by the interpreter of this process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # A process on the driver's machine calls `python3` by name.
    own = os.path.dirname(sys.executable)
    if own not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", "")


def link_home(directory: Path) -> Path | None:
    """Create `directory`/home, with links to Spark's scripts and Java; it must exist as long as Spark runs.

    Returns None if SPARK_HOME is set, or PySpark is installed without its own Spark: then the user's Spark is used
    unchanged.
    """
    found = importlib.util.find_spec("pyspark")
    if "SPARK_HOME" in os.environ or found is None or found.origin is None:
        return None
    installed = Path(found.origin).parent
    if not (installed / "jars").is_dir() or not (installed / "bin").is_dir():
        return None
    home = directory / "home"
    home.mkdir()
    for entry in installed.iterdir():
        if entry.is_dir() and entry.name != "python" and not (entry / "__init__.py").exists():
            (home / entry.name).symlink_to(entry)
    return home


def check_java() -> None:
    """Raises RUNTIME_UNAVAILABLE, with installation hints, if Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, where there is none." if home else "There is no java on PATH."
        raise error("RUNTIME_UNAVAILABLE", "Spark needs Java, which was not found", detail=where, hint=_JAVA_HINT)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise error("RUNTIME_UNAVAILABLE", f"Java can't be run: {cause}", hint=_JAVA_HINT) from cause
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found.group(1)) < MIN_JAVA:
        version = found.group(1) if found else "of unknown version"
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"Spark needs Java {MIN_JAVA} or newer, this one is {version}",
            detail=f"It is {java}.",
            hint=_JAVA_HINT,
        )
