"""A standalone Spark cluster on this machine: one master, two workers of one core, which do not know Watersmeet.

`python -m tests.spark.cluster` runs one until it is interrupted and prints the master's address.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@dataclass(frozen=True)
class Cluster:
    """master: its address. processes: of the master and the workers, each of a session of its own."""

    master: str
    processes: list[subprocess.Popen]

    def executors(self) -> set[int]:
        """The process ids of its executors that run."""
        sessions = {process.pid for process in self.processes}
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


@contextlib.contextmanager
def cluster(workers=2):
    master = f"spark://127.0.0.1:{free_port()}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    processes = []
    with tempfile.TemporaryDirectory(prefix="watersmeet-cluster-") as scratch:

        def launch(name, *arguments):
            with open(Path(scratch) / f"{name}.log", "w") as log:
                processes.append(
                    subprocess.Popen(
                        [HOME / "bin" / "spark-class", *arguments],
                        env=environment,
                        cwd=scratch,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

        try:
            launch(
                "master",
                "org.apache.spark.deploy.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                master.rpartition(":")[2],
                "--webui-port",
                "0",
            )
            time.sleep(3)
            for i in range(workers):
                launch(
                    f"worker{i}",
                    "org.apache.spark.deploy.worker.Worker",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--host",
                    "127.0.0.1",
                    "--work-dir",
                    f"{scratch}/work{i}",
                    "--webui-port",
                    "0",
                    master,
                )
            yield Cluster(master, processes)
        finally:
            for process in reversed(processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


if __name__ == "__main__":
    with cluster() as made:
        print(made.master, flush=True)
        signal.pause()
