"""A standalone Spark cluster on this machine: one master, some workers of one core, which do not know Watersmeet.

`python -m tests.spark.cluster` runs one until it is interrupted and prints the master's address.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from tests.waiting import until

HOME = Path(pyspark.__file__).parent
_SOURCE = Path(__file__).resolve().parents[2] / "src"
#: What Java compiles well pays off after minutes, and a cluster has many Javas that end before.
JAVA_OPTIONS = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """master: its address. workers: the processes of the workers, each of a session of its own, with its executors.
    folder: that of the directories in which executors work.
    """

    def __init__(self, scratch: Path) -> None:
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.workers: list[subprocess.Popen] = []
        self.folder = scratch
        self._environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._environment |= {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._environment |= JAVA_OPTIONS
        self._started = 0
        host, port = self.master.removeprefix("spark://").split(":")
        self._master = self._launch("master.Master", "--host", host, "--port", port)
        time.sleep(3)

    def start_worker(self, core: int | None = None) -> None:
        """Starts a worker of one core. core: the one that it and all that it starts may use, as in a container."""
        place = ("--host", "127.0.0.1", "--work-dir", f"{self.folder}/work{self._started}")
        offered = ("--cores", "1", "--memory", "1g")
        self.workers.append(self._launch("worker.Worker", *offered, *place, self.master, core=core))

    def kill_worker(self, worker: subprocess.Popen) -> None:
        """Kills a worker and its executors, as if its machine was gone."""
        self.workers.remove(worker)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def executors(self) -> set[int]:
        """The process ids of the executors that run."""
        sessions = {worker.pid for worker in self.workers}
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    runs = (
                        b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command and b"java" in command[0]
                    )
                    if runs and os.getsid(int(entry.name)) in sessions:
                        found.add(int(entry.name))
        return found

    def stop(self) -> None:
        """Ends all of its processes."""
        processes = [*self.workers, self._master]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _launch(self, name: str, *arguments: str, core: int | None = None) -> subprocess.Popen:
        self._started += 1
        command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        held = [] if core is None else ["taskset", "--cpu-list", str(core)]
        with open(self.folder / f"{name}{self._started}.log", "w") as log:
            return subprocess.Popen(
                [*held, *command],
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextlib.contextmanager
def cluster(workers=2, *, a_core_each=False):
    """a_core_each: each worker is held to one of the cores of this machine."""
    cores = sorted(os.sched_getaffinity(0)) if a_core_each else [None]
    with tempfile.TemporaryDirectory(prefix="watersmeet-cluster-") as scratch:
        made = Cluster(Path(scratch))
        try:
            for number in range(workers):
                made.start_worker(cores[number % len(cores)])
            yield made
        finally:
            made.stop()


if __name__ == "__main__":
    with cluster() as made:
        print(made.master, flush=True)
        signal.pause()


#: Takes the package from the workers' path, where an editable installation has put it.
_WITHOUT_PACKAGE = """
import os, sys
sys.path[:] = [p for p in sys.path if not os.path.exists(os.path.join(p, "watersmeet", "__init__.py"))]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f)]
"""


@contextmanager
def connect_server(folder: Path, *, has_package: bool = False, **more: str) -> Iterator[str]:
    """A server of Spark Connect on a free port of this machine; its URL.

    has_package: whether its workers have Watersmeet. more: further settings, with an underscore for each dot, and two
    for an underscore.
    """
    if not has_package:
        (folder / "sitecustomize.py").write_text(_WITHOUT_PACKAGE, encoding="utf-8")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
        **{name.replace("__", " ").replace("_", ".").replace(" ", "_"): value for name, value in more.items()},
    }
    log = folder / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [
                str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"),
                *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
                "spark-internal",
            ],
            env={**os.environ, "PYTHONPATH": str(_SOURCE if has_package else folder), "PYSPARK_PYTHON": sys.executable},
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def address() -> re.Match[str] | None:
        assert server.poll() is None, log.read_text()
        return re.search(r"Spark Connect server started at: (\S+:\d+)\n", log.read_text())

    try:
        until(address, 180)
        found = address()
        assert found is not None
        yield f"sc://{found[1]}"
    finally:
        server.terminate()
        server.wait(30)
