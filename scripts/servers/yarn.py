"""YARN on loopback: a ResourceManager and a NodeManager, whose containers are processes of this machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scripts.servers.archives import Artifact, Bundle, fetch, java
from scripts.servers.hdfs import HEAP, hadoop_jars
from scripts.servers.process import Process, free_ports
from scripts.servers.server import try_ports

_HOST: Final = "127.0.0.1"
_SERVERS: Final = {
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
#: The settings that have an address each; the first one is that of the REST interface.
_ADDRESSES: Final = (
    "resourcemanager.webapp.address",
    "resourcemanager.address",
    "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address",
    "resourcemanager.admin.address",
    "nodemanager.address",
    "nodemanager.localizer.address",
    "nodemanager.webapp.address",
)
#: The libraries that YARN's servers need and Hadoop's shaded jars lack.
_LIBRARIES: Final = Bundle(
    "yarn-libraries-1",
    (
        Artifact("org.bouncycastle", "bcprov-jdk18on", "1.78.1"),
        Artifact("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
        Artifact("javax.xml.bind", "jaxb-api", "2.3.1"),
        Artifact("com.sun.xml.bind", "jaxb-impl", "2.2.3-1"),
    ),
    size_mb=12,
)

#: The names of an attempt's first container, in which its driver runs.
_MASTER: Final = "container_*_000001"


class Yarn:
    """configuration: the folder that clients need as HADOOP_CONF_DIR. logs: the folder of the containers' output."""

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "conf"
        self.logs = folder / "logs"
        self._folder = folder
        self._url = ""
        self._processes: list[Process] = []

    @classmethod
    def started(cls, folder: Path, *, say: Callable[[str], None] = lambda _: None) -> Yarn:
        """A YARN with one node, which has registered. Its files are in a new folder.

        Raises ServerUnavailableError if its parts can't be had, ServerFailedError if it does not start.
        """
        jars = [*hadoop_jars(say), *sorted(fetch(_LIBRARIES, say).glob("*.jar"))]
        say("starting YARN")
        server = cls(folder)
        server.configuration.mkdir(parents=True)
        try_ports(lambda: server._start(jars), server._configure)
        return server

    def _configure(self) -> None:
        ports = free_ports(len(_ADDRESSES))
        self._url = f"http://{_HOST}:{ports[0]}/ws/v1/cluster"
        yarn = {name: f"{_HOST}:{port}" for name, port in zip(_ADDRESSES, ports, strict=True)}
        yarn |= {
            "resourcemanager.hostname": _HOST,
            "resourcemanager.am.max-attempts": "4",
            "nodemanager.hostname": _HOST,
            "nodemanager.bind-host": _HOST,
            "nodemanager.local-dirs": str(self._folder / "local"),
            "nodemanager.log-dirs": str(self.logs),
            "nodemanager.resource.memory-mb": "8192",
            "nodemanager.resource.cpu-vcores": "8",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.pmem-check-enabled": "false",
            "nodemanager.disk-health-checker.enable": "false",
            "scheduler.minimum-allocation-mb": "256",
        }
        queues = {
            "scheduler.capacity.root.queues": "default",
            "scheduler.capacity.root.default.capacity": "100",
            "scheduler.capacity.maximum-am-resource-percent": "0.9",
        }
        for file, settings in (
            ("yarn-site", {f"yarn.{n}": v for n, v in yarn.items()}),
            ("capacity-scheduler", {f"yarn.{n}": v for n, v in queues.items()}),
            ("core-site", {"fs.defaultFS": "file:///"}),
        ):
            entries = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in settings.items())
            (self.configuration / f"{file}.xml").write_text(f"<configuration>{entries}</configuration>")

    def _start(self, jars: list[Path]) -> None:
        if not self._url:
            self._configure()
        path = ":".join(map(str, (self.configuration, *jars)))
        opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        for name, main in _SERVERS.items():
            command = [java(), *HEAP, opened, f"-Dhadoop.home.dir={self._folder}", "-cp", path, main]
            self._processes.append(Process(command, self._folder / f"{name}.log"))
        self._processes[-1].wait_until(self._has_node, "YARN")

    def _has_node(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/nodes", timeout=30) as answer:
                nodes = json.load(answer)["nodes"]
        except (urllib.error.URLError, ValueError):
            return False
        return any(node["state"] == "RUNNING" for node in nodes)

    def masters(self) -> dict[str, int]:
        """The process groups of the containers in which drivers run, by the names of the containers, which differ from
        attempt to attempt.
        """
        found = sorted((self._folder / "local" / "nmPrivate").glob(f"*/*/{_MASTER}.pid"))
        return {file.stem: int(file.read_text()) for file in found}

    def stop(self) -> None:
        """Ends all containers, and then the servers."""
        for process in reversed(self._processes):  # the node ends its containers
            process.stop()
        self._processes = []
