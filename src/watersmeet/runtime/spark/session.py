"""The SparkSession, which is created with the settings that the engine needs, or adopted from the caller; and its
SPARK_HOME.

Spark's Python processes look for pyspark in `$SPARK_HOME/python/lib/pyspark.zip` first, and compile each module of a
zip when they load it. That takes 0.5 s of processor time in the process that each query starts. If this interpreter has
PySpark installed as files, a local Spark therefore gets a SPARK_HOME without zips.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from watersmeet.errors import error
from watersmeet.runtime.spark.shipping import DAEMON, ENGINE, is_remote, make_zip, python_path
from watersmeet.runtime.workers import workers_here
from watersmeet.system.process import cores, make_folder, remove_folder


def link_home(directory: Path) -> Path | None:
    """Create `directory`/home, with links to Spark's scripts and Java; it must exist as long as Spark runs.

    Returns None if SPARK_HOME is set, or PySpark is installed without its own Spark: then the user's Spark is used
    unchanged.
    """
    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (installed / "jars").is_dir() or not (installed / "bin").is_dir():
        return None
    home = directory / "home"
    home.mkdir()
    for entry in installed.iterdir():
        if entry.is_dir() and entry.name != "python" and not (entry / "__init__.py").exists():
            (home / entry.name).symlink_to(entry)
    return home


MIN_JAVA: Final = 17

#: The attempts of a task in this process (on a cluster: spark.task.maxFailures).
_ATTEMPTS: Final = 3

_JAVA_HINT: Final = (
    "Install a Java runtime of version 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and set JAVA_HOME if it is not on PATH; or use runtime='inprocess'."
)

_logger = logging.getLogger(__name__)
_lock = threading.RLock()

#: Settings of the session, also in adopted contexts.
_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    "spark.sql.streaming.metricsEnabled": "false",
    # A frame has up to 16 MiB, so many frames would not fit in one Arrow batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.execution.arrow.maxBytesPerBatch": "33554432",
}

_CONTEXT: Final = {
    "spark.app.name": "watersmeet",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.driver.memory": "2g",
    "spark.cleaner.periodicGC.interval": "10min",
    # Each epoch is a job, so the application must not keep a history of all jobs.
    "spark.ui.retainedJobs": "16",
    "spark.ui.retainedStages": "16",
    "spark.ui.retainedTasks": "64",
    "spark.ui.retainedDeadExecutors": "4",
    "spark.sql.ui.retainedExecutions": "8",
    "spark.sql.streaming.ui.enabled": "false",
}

#: The time that a task waits for the executor that has the state of its bucket, and then for one on the same machine:
#: about as long as a start without that state takes. Spark's default of 3 s is longer than most epochs.
LOCALITY_WAIT: Final = ("spark.locality.wait", "200ms")

#: Environment variable of glibc's allocator. Small workers return freed memory; getting it again in large pages costs
#: half as much.
_TUNABLES: Final = "GLIBC_TUNABLES"

#: The JVM only moves bytes. Full compilation and parallel garbage collection would cost 7 s of processor time at each
#: start.
_JVM: Final = "-Xss4m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{3}
"""


@dataclass
class Shared:
    """The session that the engines of this process share. made: whether this module created it, so that the last engine
    stops it.

    directory: that of its temporary files. shipped: the zip of the package, if one was created.
    """

    spark: SparkSession
    made: bool
    users: int = 0
    directory: Path | None = None
    shipped: Path | None = None


_shared: list[Shared] = []


def acquire(spark: SparkSession | None, parallelism: int) -> SparkSession:
    """A session for one engine; return it with `release`. Raises RUNTIME_UNAVAILABLE if Spark can't run,
    FEATURE_NOT_SUPPORTED for Spark Connect.

    spark: the session to use; by default the active one. If there is none, this creates one, which all engines of the
    process share: with the master of WATERSMEET_MASTER or spark-submit, else local with as many threads as buckets or
    cores. A stopped session is not used again.
    """
    if is_remote(spark):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "views can't run in a session of Spark Connect",
            detail="Its client has no SparkContext, whose tasks views are.",
            hint="Give a classic session, SparkSession.builder.master(…) without .remote(…), in the driver itself.",
        )
    with _lock:
        if _shared and _is_stopped(_shared[0].spark):
            _end(_shared.pop())
        if not _shared:
            active = spark or SparkSession.getActiveSession()
            _shared.append(_adopt(active) if active is not None else _make(parallelism))
        shared = _shared[0]
        if spark is not None and spark.sparkContext is not shared.spark.sparkContext:
            raise error("RUNTIME_UNAVAILABLE", "this process uses another SparkSession already")
        shared.users += 1
        try:
            return _new_session(shared.spark, parallelism)
        except BaseException:
            release(shared.spark)
            raise


def release(session: SparkSession) -> None:
    """Return one engine's session; the last one ends Spark and its processes, if this module created them."""
    with _lock:
        if not _shared or _shared[0].spark.sparkContext is not session.sparkContext:
            return  # Other code stopped this session, and the next engine created another one.
        _shared[0].users -= 1
        if _shared[0].users == 0:
            _end(_shared.pop())


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run on this machine, in the driver's process tree."""
    return str(spark.sparkContext.master).startswith("local[") or spark.sparkContext.master == "local"


def spare_slots(spark: SparkSession) -> int:
    """The number of tasks of one engine that may stay on this machine: all slots of a session that this module created,
    because engines ask each other for room; in a user's session one, if it has others.
    """
    if not is_local(spark):
        return 0
    with _lock:
        made = bool(_shared) and _shared[0].made
        is_alone = made and _shared[0].users == 1
    slots = int(spark.sparkContext.defaultParallelism)
    if slots == 1:
        return 1 if is_alone else 0
    return slots if made else 1


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


def _new_session(spark: SparkSession, parallelism: int) -> SparkSession:
    session = spark.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(parallelism))
    return session


def _is_stopped(spark: SparkSession) -> bool:
    """Whether the context was stopped, or the JVM has ended."""
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except Exception:
        return True


def _adopt(spark: SparkSession) -> Shared:
    """The caller's session. The package is shipped to it; its settings stay unchanged."""
    zipped = make_zip()
    spark.sparkContext.addPyFile(str(zipped))
    if spark.sparkContext.getConf().get("spark.python.daemon.module", "") != DAEMON:
        _logger.warning(
            "this SparkSession uses its own Python daemon: each worker needs two seconds to start; "
            "spark.python.daemon.module = %s avoids that",
            DAEMON,
        )
    if not is_local(spark) and not spark.sparkContext.getConf().contains(LOCALITY_WAIT[0]):
        _logger.warning(
            "tasks of this SparkSession wait 3 s for an executor that has their state but is busy; %s = %s avoids that",
            *LOCALITY_WAIT,
        )
    return Shared(spark, made=False, shipped=zipped)


def _make(parallelism: int) -> Shared:
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # A process on the driver's machine calls `python3` by name.
    own = os.path.dirname(sys.executable)
    if own not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", "")
    shared = _start(parallelism, own_daemon=True)
    if not is_local(shared.spark) and not _can_run(shared.spark):
        _logger.warning(
            "executors can't load %s: Spark's own Python daemon is used, each worker needs two seconds to start", DAEMON
        )
        _end(shared)
        shared = _start(parallelism, own_daemon=False)
    return shared


def _can_run(spark: SparkSession) -> bool:
    """Whether Python tasks run at all."""
    try:
        return bool(spark.sparkContext.parallelize([0], 1).map(bool).collect() == [False])
    except Exception:
        return False


def _start(parallelism: int, *, own_daemon: bool) -> Shared:
    directory = make_folder("spark")
    (directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    master = _master(parallelism)
    zipped = None if master is not None and master.startswith("local") else make_zip()
    builder: Any = SparkSession.builder
    for name, value in _context_settings(master, directory, zipped, own_daemon=own_daemon).items():
        builder = builder.config(name, value)
    log = directory / "spark.log"
    # A failed call to the JVM raises its error. py4j would also print it, for an interrupted call with the traceback.
    logging.getLogger().addFilter(_not_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with _output_to(log):
            spark = _get_or_create(builder, link_home(directory) if zipped is None else None)
    except BaseException as cause:
        tail = log.read_text(errors="replace", encoding="utf-8")[-2000:].strip() if log.exists() else ""
        remove_folder(directory)
        if not isinstance(cause, Exception):
            raise
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"Spark did not start: {_first_line(cause)}",
            detail=tail or None,
            hint="Check the Java installation and the memory that is free, or use runtime='inprocess'.",
        ) from cause
    # Settings of the user, for example in spark-defaults.conf, stay unchanged. Spark reads this setting for each set of
    # tasks.
    spark.sparkContext._jsc.sc().conf().setIfMissing(*LOCALITY_WAIT)
    return Shared(spark, made=True, directory=directory, shipped=zipped)


def _master(parallelism: int) -> str | None:
    """The master to request; None if spark-submit has set it."""
    if "WATERSMEET_MASTER" in os.environ:
        return os.environ["WATERSMEET_MASTER"]
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    return f"local[{max(1, min(parallelism, cores()))},{_ATTEMPTS}]"


def _context_settings(master: str | None, directory: Path, zipped: Path | None, *, own_daemon: bool) -> dict[str, str]:
    logging_uri = (directory / "log4j2.properties").as_uri()  # the directory of temporary files may have spaces
    settings = {
        **_CONTEXT,
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.executorEnv.PYTHONPATH": python_path(local=zipped is None),
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={logging_uri}" {_JVM}',
    }
    if own_daemon:
        settings |= {"spark.python.daemon.module": DAEMON, f"spark.executorEnv.{ENGINE}": "1"}
    if workers_here(cores()).are_small and _TUNABLES not in os.environ:
        settings[f"spark.executorEnv.{_TUNABLES}"] = "glibc.malloc.hugetlb=1"
    if master is not None:
        settings["spark.master"] = master
    if zipped is None:
        # On one machine, shuffled frames stay in the page cache, so compressing them would only cost time.
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.shuffle.compress": "false",
            # Not on YARN: the folders of its containers are too long for the path of a socket.
            "spark.python.unix.domain.socket.enabled": "true",
        }
    else:
        settings["spark.submit.pyFiles"] = str(zipped)
    return settings


def _get_or_create(builder: Any, home: Path | None) -> SparkSession:
    """The session. If this fails or is interrupted, the launched JVM is killed, because PySpark would forget it and
    leave it running.

    Spark starts in another thread. So an interrupt reaches this thread at once, never within a call to the JVM, and
    PySpark does not change the handler of SIGINT.

    home: Spark's SPARK_HOME, None for PySpark's default.
    """
    launched: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            launched.append(self)
            if home is not None:
                options["env"] = {**(options.get("env") or os.environ), "SPARK_HOME": str(home)}
            super().__init__(*args, **options)

    before = java_gateway.Popen
    java_gateway.Popen = Recorded
    starter = ThreadPoolExecutor(1, "watersmeet-spark")
    started: Future[SparkSession] = starter.submit(builder.getOrCreate)
    try:
        spark = started.result()
        # Sets what Spark would have set in this thread.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        return spark  # noqa: TRY300 - an interrupt until here ends the JVM
    except BaseException:
        while True:  # also processes launched meanwhile
            for process in launched:
                if getattr(process, "pid", None) is not None:
                    process.kill()
            if started.done():
                break
            wait([started], timeout=0.05)
        for process in launched:
            process.wait()
        _forget_context()
        raise
    finally:
        java_gateway.Popen = before
        starter.shutdown(wait=False)


def _not_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not py4j's."""
    return record.module != "java_gateway"


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """A context in which new processes write their standard error to a file, because the JVM starts with useless
    warnings.

    These processes keep writing to that file. The output of this process is unchanged.
    """
    sys.stderr.flush()
    own = os.dup(2)
    before = sys.stderr
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with os.fdopen(os.dup(own), "w", buffering=1, encoding="locale", errors="backslashreplace") as printed:
            sys.stderr = printed
            os.dup2(handle, 2)
            try:
                yield
            finally:
                os.dup2(own, 2)
                sys.stderr = before
    finally:
        os.close(handle)
        os.close(own)


def _end(shared: Shared) -> None:
    """Delete the session's files; end Spark if this module created it and it was not replaced since."""
    if shared.made and SparkContext._active_spark_context in (None, shared.spark.sparkContext):
        _stop_java(shared.spark)
    for directory in (shared.directory, shared.shipped.parent if shared.shipped else None):
        if directory is not None:
            remove_folder(directory)


def _stop_java(spark: SparkSession) -> None:
    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        spark.stop()
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        if gateway is not None:
            gateway.shutdown()
    if process is not None:
        # The JVM ends when its input does.
        with contextlib.suppress(Exception):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)
    _forget_context()


def _forget_context() -> None:
    """Clears PySpark's state for the next session, even if the JVM has died and `stop` fails."""
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _first_line(cause: Exception) -> str:
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:300]
