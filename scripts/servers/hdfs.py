"""HDFS on loopback: a NameNode and a DataNode in one process, for any number of restarts over the same data.

What is tested against comes with Hadoop's own tests. The jars that every Hadoop client has are those of PySpark.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from scripts.servers.archives import Artifact, Bundle, ServerUnavailableError, fetch, java
from scripts.servers.process import Process, free_ports
from scripts.servers.server import FolderServer, try_ports

#: In the order of the class path.
_OF_SPARK = ("hadoop-client-api-*", "hadoop-client-runtime-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*")
#: Options of Java for small servers.
HEAP = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_DETAILS = "details.json"


class Hdfs(FolderServer):
    """HDFS whose data and log are in a folder. It runs between `start` and `stop` or `kill`, after which what it
    acknowledged is there.
    """

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Hdfs:
        """A new HDFS in a new folder, which answers.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its parts can't be had, ServerFailedError
        if it does not start.
        """
        hadoop_jars(say)
        say("starting HDFS")
        folder.mkdir(parents=True)
        server = cls(folder, *free_ports(1))
        try_ports(lambda: server.start("-format", owner=owner, remove_folder=remove_folder), server.choose_port)
        return server

    @property
    def url(self) -> str:
        """The URL of its root."""
        return f"hdfs://127.0.0.1:{self.port}"

    def start(self, *options: str, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over the data that it has, at the same port, and waits until it answers."""
        details = self.folder / _DETAILS
        details.unlink(missing_ok=True)
        command = [java(), *HEAP, f"-Dtest.build.data={self.folder / 'data'}", "-cp", ":".join(map(str, hadoop_jars()))]
        command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-datanodes", "1", "-nnport", str(self.port)]
        command += ["-writeDetails", str(details), *options]
        self._process = Process(command, self.folder / "hdfs.log", owner, self.folder if remove_folder else None)
        # It writes them when the DataNode has come.
        self._process.wait_until(lambda: details.exists() and details.stat().st_size > 0, "HDFS")


def hadoop_jars(say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """The class path of Hadoop's servers, of the version of Hadoop that PySpark has."""
    spark = find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    found = [jar for folder in folders or () for name in _OF_SPARK for jar in sorted(Path(folder, "jars").glob(name))]
    version = next((jar.stem.rpartition("-")[2] for jar in found if jar.name.startswith("hadoop-client-api-")), None)
    if version is None:
        raise ServerUnavailableError("this PySpark comes without Hadoop's client")
    bundle = Bundle(
        f"hdfs-{version}",
        (
            Artifact("org.apache.hadoop", "hadoop-client-minicluster", version, with_dependencies=False),
            Artifact("junit", "junit", "4.13.2"),  # these two: what Hadoop's tests are made with
            Artifact("org.mockito", "mockito-core", "4.11.0"),
        ),
        size_mb=45,
    )
    return [*sorted(fetch(bundle, say).glob("*.jar")), *found]
