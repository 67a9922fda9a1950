"""A Kafka broker of one node (KRaft) on loopback, for any number of restarts over the same data.

It has the settings that tests want: internal topics of one partition, no topics made by a typing error, and short waits
wherever the defaults are made for clusters. ANONYMOUS, who comes without credentials, may do everything.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from scripts.servers import certificates
from scripts.servers.archives import Artifact, Bundle, fetch, java
from scripts.servers.process import Process, free_ports
from scripts.servers.server import Server, try_ports

KAFKA = Bundle(
    "kafka-4.1.1",
    (
        Artifact("org.apache.kafka", "kafka_2.13", "4.1.1"),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),  # what it has to say goes to its log
    ),
    size_mb=43,
)
USER, PASSWORD = "alice", "alice-secret"
HEAP = [
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
]  # it starts in half the time, and takes a third of the memory

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
log.dirs={folder}/data

sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.tls.ssl.keystore.type=PKCS12
listener.name.tls.ssl.keystore.location={folder}/server.p12
listener.name.tls.ssl.keystore.password={key_password}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true

auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0

# Transactions past their time are aborted, and what retention and compaction remove goes, within a second.
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=500
# A broker that was killed is back without the wait for its old session.
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=2
background.threads=2
"""


@dataclass(frozen=True)
class Ports:
    """The ports of a broker's listeners."""

    plain: int
    sasl: int
    tls: int
    controller: int


class Broker(Server):
    """A broker whose data, log and settings are in a folder. It runs between `start` and `stop` or `kill`, after which
    what it acknowledged is there.
    """

    def __init__(self, folder: Path, ports: Ports, process: Process | None = None) -> None:
        super().__init__(process)
        self.folder = folder
        self.ports = ports

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Broker:
        """A new broker in a new folder, which answers.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its parts can't be had, ServerFailedError
        if it does not start.
        """
        jars = fetch(KAFKA, say)
        say("starting the broker")
        folder.mkdir(parents=True)
        key_password = token_hex(16)
        broker = cls(folder, Ports(*free_ports(4)))
        broker._write_settings(key_password)
        with ThreadPoolExecutor() as threads:  # each starts a Java
            for step in (
                threads.submit(certificates.create, folder, key_password),
                threads.submit(broker._format, jars),
            ):
                step.result()

        def choose() -> None:
            broker.ports = Ports(*free_ports(4))
            broker._write_settings(key_password)

        try_ports(lambda: broker.start(owner=owner, remove_folder=remove_folder), choose)
        return broker

    @property
    def bootstrap(self) -> str:
        """host:port for clients without credentials, who may do everything."""
        return f"127.0.0.1:{self.ports.plain}"

    def sasl(self, mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, str]:
        """Settings of a client with the credentials of `USER`. mechanism: PLAIN or SCRAM-SHA-256."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports.sasl}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
        }

    def tls(self) -> dict[str, str]:
        """Settings of a client over TLS, which trusts the broker's certificate. It is for 127.0.0.1 and localhost."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports.tls}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / certificates.CERTIFICATE),
        }

    def admin(self) -> AdminClient:
        """A new client for topics, configurations and access rights. Its futures live as long as it does."""
        # What it logs goes to standard error otherwise, also that a broker that was killed does not answer.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1, **config: str | int) -> None:
        """Makes a topic. Waits until the broker shows it. config: its settings, with _ for the dots:
        cleanup_policy="compact".
        """
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        _wait_until(lambda: name in admin.list_topics(timeout=30).topics, f"topic {name} is shown")

    def add_partitions(self, name: str, partitions: int) -> None:
        """Makes it a topic of so many partitions. Waits until the broker shows them."""
        admin = self.admin()
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)

        def has_them() -> bool:
            return len(admin.list_topics(name, timeout=30).topics[name].partitions) >= partitions

        _wait_until(has_them, f"topic {name} has {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        """Deletes a topic. Waits until the broker has none of that name, so that it can be made anew."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(30)
        _wait_until(lambda: name not in admin.list_topics(timeout=30).topics, f"topic {name} is gone")

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """Lets a partition begin at the offset `before`, as retention does."""
        admin = self.admin()
        for deleted in admin.delete_records([TopicPartition(name, partition, before)]).values():
            deleted.result(30)

    def producer(self, **settings: str | int) -> Producer:
        """A new producer, which sends at once. settings: of the client, by their names."""
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0, **settings})

    def consumer(self, **settings: str | int) -> Consumer:
        """A new consumer, which begins at the first message and commits nothing. settings: of the client."""
        defaults = {"group.id": "tests", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
        return Consumer({"bootstrap.servers": self.bootstrap, **defaults, **settings})

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over the data that it has, at the same ports, and waits until it answers."""
        jars = fetch(KAFKA)
        command = [java(), *HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*", "kafka.Kafka"]
        self._process = Process(
            [*command, str(self.folder / "server.properties")],
            self.folder / "broker.log",
            owner,
            self.folder if remove_folder else None,
        )
        self._process.wait_until(self.answers, "the Kafka broker")

    def answers(self) -> bool:
        """Whether it has topics to say, and so takes part in its cluster."""
        try:
            return bool(self.admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def to_json(self) -> str:
        """What another process needs to use this broker, for `from_json`."""
        return json.dumps({"folder": str(self.folder), "ports": asdict(self.ports)})

    @classmethod
    def from_json(cls, text: str) -> Broker:
        """A broker of another process: it can be used, but neither stopped nor started."""
        stored = json.loads(text)
        return cls(Path(stored["folder"]), Ports(**stored["ports"]))

    def _write_settings(self, key_password: str) -> None:
        (self.folder / "server.properties").write_text(
            _SETTINGS.format(
                **asdict(self.ports),
                folder=self.folder,
                login="org.apache.kafka.common.security",
                user=USER,
                password=PASSWORD,
                key_password=key_password,
            )
        )

    def _format(self, jars: Path) -> None:
        # The first character is never "-", which the tool would take for an option.
        cluster = urlsafe_b64encode(b"w" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        subprocess.run(
            [
                *(java(), *HEAP, "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster),
                *("-c", str(self.folder / "server.properties")),
                *("--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"),
            ],
            check=True,
            capture_output=True,
        )


def _wait_until(done: Callable[[], bool], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"it is not so after {seconds:g} s that {what}")
        time.sleep(0.02)
