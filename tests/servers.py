"""Fixtures with real servers: one Kafka broker, one schema registry, one server of PostgreSQL, of MariaDB, of
ClickHouse, of S3, of Azure's blobs and of HDFS for the whole run, with topics, databases, buckets and containers of
each test's own.

The first test that needs a server starts it, in whichever process of xdist it is. It ends with the run: with the
process that pytest was started as, however that one ends. Where a server can't be had, the tests that need it are
skipped, and the run says at its end how many.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import psycopg
import pymysql
import pytest
from confluent_kafka import KafkaException
from scripts.servers.archives import ServerUnavailableError, locked
from scripts.servers.azurite import ACCOUNT, KEY, Azurite
from scripts.servers.brokers import Mosquitto, Nats, Redis
from scripts.servers.clickhouse import PASSWORD as CLICKHOUSE_PASSWORD
from scripts.servers.clickhouse import USER as CLICKHOUSE_USER
from scripts.servers.clickhouse import ClickHouse
from scripts.servers.hdfs import Hdfs
from scripts.servers.kafka import Broker
from scripts.servers.mariadb import PASSWORD as MYSQL_PASSWORD
from scripts.servers.mariadb import USER as MYSQL_USER
from scripts.servers.mariadb import MariaDB
from scripts.servers.postgres import PASSWORD, USER, Postgres
from scripts.servers.registry import Registry
from scripts.servers.s3 import ACCESS_KEY, REGION, S3, SECRET_KEY

UNAVAILABLE = "can't be had here: "
#: Who may do everything in HDFS: who runs it.
HADOOP_USER = getpass.getuser()
#: By marker: the fixtures of servers.
FIXTURES = {
    "browser": {"browser", "chromium", "axe"},
    "kafka": {"broker", "own_broker", "topic", "registry", "own_registry"},
    "postgres": {"postgres", "own_postgres"},
    "mysql": {"mysql", "own_mysql"},
    "clickhouse": {"clickhouse", "own_clickhouse"},
    "brokers": {"redis", "own_redis", "nats", "own_nats", "mosquitto", "own_mosquitto"},
    "objectstores": {
        "bucket",
        "own_bucket",
        "container",
        "database_url",
        "azure_url",
        "hdfs",
        "own_hdfs",
        "hdfs_url",
        "any_url",
    },
}


Started = TypeVar("Started", Broker, Registry, Postgres, MariaDB, ClickHouse, S3, Azurite, Hdfs, Redis, Nats, Mosquitto)


class SharedServers:
    """The servers of a run, which all its processes share by a folder.

    It has a FIFO that the process of the run alone holds open and nobody writes to: servers read from it, and so learn
    that the run is over.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = folder / "owner"

    def get(self, kind: type[Started], name: str) -> Started:
        """The server of that kind, which is started if no process has done so yet.

        Raises ServerUnavailableError if it can't be had; then no other process tries again.
        """
        stored, unavailable = self.folder / f"{name}.json", self.folder / f"{name}.unavailable"
        with locked(self.folder / f"{name}.lock"):
            if unavailable.exists():
                raise ServerUnavailableError(unavailable.read_text())
            if not stored.exists():
                try:
                    with self.owner.open("rb", buffering=0) as owner:
                        server = kind.started(self.folder / name, owner=owner, remove_folder=True)
                except ServerUnavailableError as error:
                    unavailable.write_text(str(error))
                    raise
                stored.write_text(server.to_json())
            return kind.from_json(stored.read_text())

    def wait_for_end(self) -> None:
        """Waits until the servers are gone, once nobody holds the FIFO. They remove their folders last."""
        end = time.monotonic() + 15
        while any(path.with_suffix("").exists() for path in self.folder.glob("*.json")) and time.monotonic() < end:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


_shared, _owned = pytest.StashKey[SharedServers](), pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_shared] = SharedServers(Path(worker["servers"]))
        return
    shared = config.stash[_shared] = SharedServers(Path(tempfile.mkdtemp(prefix="watersmeet-servers-")))
    os.mkfifo(shared.owner)
    config.stash[_owned] = os.open(
        shared.owner, os.O_RDWR
    )  # a FIFO that nobody reads yet can't be opened for writing alone


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["servers"] = str(node.config.stash[_shared].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _owned in config.stash:
        os.close(config.stash[_owned])
        config.stash[_shared].wait_for_end()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, fixtures in FIXTURES.items():
            if fixtures.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(marker)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())]
    counts = Counter(reason.removeprefix("Skipped: ") for reason in skipped if UNAVAILABLE in reason)
    if counts:
        terminalreporter.section("NOT TESTED HERE", sep="!", red=True, bold=True)
        for reason, count in counts.items():
            terminalreporter.line(f"{count} tests skipped: {reason}", red=True, bold=True)


def _or_skip(start: Callable[[], Started], what: str) -> Started:
    try:
        return start()
    except ServerUnavailableError as error:
        pytest.skip(f"{what} {UNAVAILABLE}{error}")


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker that nobody ends answers at last, however busy the machine is: nothing gives it up before. Sinks try
    again by themselves. Consumers end with their test: those of all tests would ask the broker for more all the time.
    """
    if not request.node.get_closest_marker("kafka"):
        yield
        return
    if "own_broker" not in request.fixturenames:
        for name in ("connectors.kafka.cluster._TIMEOUT_S", "connectors.kafka.reading._PATIENCE_S"):
            monkeypatch.setattr(f"watersmeet.{name}", 60.0)
        monkeypatch.setattr("watersmeet.database.producing._TIMEOUT_S", 240.0)
        monkeypatch.setattr("watersmeet.database.producing._VISIBLE_S", 60.0)
    yield
    from watersmeet.connectors.kafka.reading import forget_readers  # noqa: PLC0415

    forget_readers()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """The broker of the run. Tests leave it running: what stops one uses `own_broker`."""
    return _or_skip(lambda: request.config.stash[_shared].get(Broker, "kafka"), "a Kafka broker")


@pytest.fixture(scope="session")
def registry(request: pytest.FixtureRequest) -> Registry:
    """The schema registry of the run. Tests use subjects of their own, as those of their topics are."""
    return _or_skip(lambda: request.config.stash[_shared].get(Registry, "registry"), "a schema registry")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test alone, to be killed, stopped, paused and started again."""
    own = _or_skip(lambda: Broker.started(tmp_path / "own-broker"), "a Kafka broker")
    yield own
    if own.is_running:
        own.kill()


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[Registry]:
    """A schema registry of this test alone, to be killed and started again."""
    own = _or_skip(lambda: Registry.started(tmp_path / "own-registry"), "a schema registry")
    yield own
    if own.is_running:
        own.kill()


@pytest.fixture
def topic(broker: Broker) -> Iterator[Callable[..., str]]:
    """Makes topics of names that no other test has: topic(partitions, cleanup_policy="compact", …) gives the name."""
    made = []

    def make(partitions: int = 1, **config: str | int) -> str:
        name = f"t_{secrets.token_hex(6)}"
        broker.create_topic(name, partitions, **config)
        made.append(name)
        return name

    yield make
    if made:
        admin = broker.admin()
        for deleted in admin.delete_topics(made).values():
            with suppress(KafkaException):  # the test did
                deleted.result(30)


@pytest.fixture
def named(broker: Broker) -> Iterator[Callable[..., str]]:
    """Names of topics that are deleted at the end."""
    made = []

    def name(text: str = "t") -> str:
        made.append(f"{text}_{secrets.token_hex(4)}")
        return made[-1]

    yield name
    admin = broker.admin()
    for future in admin.delete_topics(made).values() if made else ():
        future.exception(30)


@dataclass(frozen=True)
class PostgresDatabase:
    """A database of one test."""

    server: Postgres
    name: str

    def execute(self, statements: str) -> None:
        """Runs statements of the superuser, in one transaction."""
        with self.connect() as connection:
            connection.execute(statements)

    def connect(self) -> psycopg.Connection:
        """A connection of the superuser, which commits each statement."""
        return self.server.connect(self.name)

    @property
    def settings(self) -> str:
        """Where it is, as SETTINGS of an external table of Timeplus."""
        where = f"address='127.0.0.1:{self.server.port}', database='{self.name}'"
        return f"type='postgresql', {where}, user='{USER}', password='{PASSWORD}'"


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresDatabase]:
    """A database of this test alone, on the server of the run."""
    server = _or_skip(lambda: request.config.stash[_shared].get(Postgres, "postgres"), "PostgreSQL")
    name = f"t_{secrets.token_hex(6)}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield PostgresDatabase(server, name)
    with server.connect() as connection:
        # A reader that has gone is noticed late, and FORCE does not end those of slots.
        readers = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND database = %s"
        while connection.execute(readers, [name]).fetchall():
            time.sleep(0.05)
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresDatabase]:
    """A server of this test alone, to be killed, stopped, paused and started again."""
    server = _or_skip(lambda: Postgres.started(tmp_path / "own-postgres"), "PostgreSQL")
    yield PostgresDatabase(server, "postgres")
    server.remove()


@dataclass(frozen=True)
class MysqlDatabase:
    """A database of one test, on a server of MariaDB."""

    server: MariaDB
    name: str

    def execute(self, statements: str) -> tuple[tuple[Any, ...], ...]:
        """Runs statements of the user who may do everything, each in a transaction; the rows of the first one."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statements)
            rows = cursor.fetchall()
            while cursor.nextset():
                pass
            return rows

    def connect(self) -> pymysql.Connection[Any]:
        """A connection of the user who may do everything. It commits each statement, and takes several at once."""
        return self.server.connect(self.name)

    @property
    def settings(self) -> str:
        """Where it is, as SETTINGS of an external table of Timeplus."""
        where = f"address='127.0.0.1:{self.server.port}', database='{self.name}'"
        return f"type='mysql', {where}, user='{MYSQL_USER}', password='{MYSQL_PASSWORD}'"


def _new_mysql(server: MariaDB) -> MysqlDatabase:
    name = f"t_{secrets.token_hex(6)}"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return MysqlDatabase(server, name)


@pytest.fixture
def mysql(request: pytest.FixtureRequest) -> Iterator[MysqlDatabase]:
    """A database of this test alone, on the server of the run."""
    database = _new_mysql(_or_skip(lambda: request.config.stash[_shared].get(MariaDB, "mariadb"), "MariaDB"))
    yield database
    database.execute(f"DROP DATABASE {database.name}")


@pytest.fixture
def own_mysql(tmp_path: Path) -> Iterator[MysqlDatabase]:
    """A database on a server of this test alone, to be killed, stopped, paused and started again."""
    server = _or_skip(lambda: MariaDB.started(tmp_path / "own-mariadb"), "MariaDB")
    yield _new_mysql(server)
    server.remove()


@pytest.fixture
def there(request: pytest.FixtureRequest) -> PostgresDatabase | MysqlDatabase:
    """The database that a test is parametrized with (`tests.captures.on_each`)."""
    found: PostgresDatabase | MysqlDatabase = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class ClickhouseDatabase:
    """A database of one test, on a server of ClickHouse."""

    server: ClickHouse
    name: str

    def execute(self, statement: str) -> list[list[str]]:
        """Runs a statement of the user who may do everything; its rows, as texts."""
        return [line.split("\t") for line in self.server.run(statement, self.name).splitlines()]

    @property
    def settings(self) -> str:
        """Where it is, as SETTINGS of an external table of Timeplus."""
        where = f"address='127.0.0.1:{self.server.port}', database='{self.name}'"
        return f"type='clickhouse', {where}, user='{CLICKHOUSE_USER}', password='{CLICKHOUSE_PASSWORD}'"


def _new_clickhouse(server: ClickHouse) -> ClickhouseDatabase:
    name = f"t_{secrets.token_hex(6)}"
    server.run(f"CREATE DATABASE {name} ENGINE = Atomic")
    return ClickhouseDatabase(server, name)


@pytest.fixture
def clickhouse(request: pytest.FixtureRequest) -> Iterator[ClickhouseDatabase]:
    """A database of this test alone, on the ClickHouse of the run."""
    database = _new_clickhouse(
        _or_skip(lambda: request.config.stash[_shared].get(ClickHouse, "clickhouse"), "ClickHouse")
    )
    yield database
    database.server.run(f"DROP DATABASE {database.name}")


@pytest.fixture
def own_clickhouse(tmp_path: Path) -> Iterator[ClickhouseDatabase]:
    """A database on a ClickHouse of this test alone, to be killed, paused and started again."""
    server = _or_skip(lambda: ClickHouse.started(tmp_path / "own-clickhouse"), "ClickHouse")
    yield _new_clickhouse(server)
    if server.is_running:
        server.kill()


@dataclass(frozen=True)
class RedisDatabase:
    """A database of one test, on a Redis server."""

    server: Redis
    number: int

    @property
    def url(self) -> str:
        """Its URL."""
        return self.server.url(self.number)

    def connect(self) -> Any:
        """A client, whose answers are texts."""
        import redis  # noqa: PLC0415 - of an extra

        return redis.Redis.from_url(self.url, decode_responses=True)


@pytest.fixture
def redis(request: pytest.FixtureRequest) -> Iterator[RedisDatabase]:
    """A database of this test alone, on the Redis of the run."""
    server = _or_skip(lambda: request.config.stash[_shared].get(Redis, "redis"), "Redis")
    with RedisDatabase(server, 0).connect() as client:
        database = RedisDatabase(server, 1 + client.incr("tests") % 999)
    with database.connect() as client:
        client.flushdb()
        yield database
        client.flushdb()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisDatabase]:
    """A Redis of this test alone, to be killed, paused and started again."""
    server = _or_skip(lambda: Redis.started(tmp_path / "own-redis"), "Redis")
    yield RedisDatabase(server, 0)
    server.remove()


@pytest.fixture
def nats(request: pytest.FixtureRequest) -> Nats:
    """The NATS server of the run. Tests use streams and subjects of names that no other test has."""
    return _or_skip(lambda: request.config.stash[_shared].get(Nats, "nats"), "NATS")


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[Nats]:
    """A NATS server of this test alone, to be killed, paused and started again."""
    server = _or_skip(lambda: Nats.started(tmp_path / "own-nats"), "NATS")
    yield server
    server.remove()


@pytest.fixture
def mosquitto(request: pytest.FixtureRequest) -> Mosquitto:
    """The MQTT broker of the run. Tests use topics of names that no other test has."""
    return _or_skip(lambda: request.config.stash[_shared].get(Mosquitto, "mosquitto"), "an MQTT broker")


@pytest.fixture
def own_mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """An MQTT broker of this test alone, to be killed, paused and started again."""
    server = _or_skip(lambda: Mosquitto.started(tmp_path / "own-mosquitto"), "an MQTT broker")
    yield server
    server.remove()


@dataclass(frozen=True)
class Bucket:
    """A bucket of one test."""

    server: S3
    name: str
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY)

    @property
    def options(self) -> str:
        """Where it is, as options of connector s3."""
        return (
            f"s3.bucket_name = '{self.name}', s3.region_name = '{REGION}', s3.endpoint_url = '{self.server.url}', "
            f"s3.credentials.access = '{self.keys[0]}', s3.credentials.secret = '{self.keys[1]}'"
        )

    @property
    def environment(self) -> dict[str, str]:
        """How it is reached, as variables of the environment."""
        return {
            "AWS_ENDPOINT_URL": self.server.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.keys[0],
            "AWS_SECRET_ACCESS_KEY": self.keys[1],
        }

    @property
    def settings(self) -> str:
        """Where it is, as SETTINGS of an external table of Timeplus."""
        return (
            f"type='s3', bucket='{self.name}', region='{REGION}', endpoint='{self.server.url}', "
            f"access_key_id='{self.keys[0]}', secret_access_key='{self.keys[1]}'"
        )

    def put(self, name: str, content: bytes | str) -> None:
        """Writes an object, by another library than what is tested."""
        data = content.encode() if isinstance(content, str) else content
        self._client.put_object(Bucket=self.name, Key=name, Body=data)

    def get(self, name: str) -> bytes:
        """The content of an object."""
        return self._client.get_object(Bucket=self.name, Key=name)["Body"].read()

    def delete(self, name: str) -> None:
        """Deletes an object."""
        self._client.delete_object(Bucket=self.name, Key=name)

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin so."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    @cached_property
    def _client(self) -> Any:
        return self.server.client("s3", *self.keys)


def _new_bucket(server: S3) -> Bucket:
    name = f"t-{secrets.token_hex(6)}"
    server.client().create_bucket(Bucket=name)
    return Bucket(server, name)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """A bucket of this test alone, on the server of the run."""
    return _new_bucket(_or_skip(lambda: request.config.stash[_shared].get(S3, "s3"), "an S3 server"))


@pytest.fixture
def database_url(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database that is not there yet, in a bucket that the environment says how to reach."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "cache"))
    return f"s3://{bucket.name}/some/db"


@pytest.fixture
def own_bucket(tmp_path: Path) -> Iterator[Bucket]:
    """A bucket on a server of this test alone, to be stopped, paused or given credentials."""
    server = _or_skip(lambda: S3.started(tmp_path / "own-s3"), "an S3 server")
    yield _new_bucket(server)
    if server.is_running:
        server.kill()


@dataclass(frozen=True)
class Container:
    """A container of one test, which everybody may read."""

    server: Azurite
    name: str

    @property
    def options(self) -> str:
        """Where it is, as options of connector azblob."""
        return (
            f"azblob.container_name = '{self.name}', azblob.endpoint_url = '{self.server.url}', "
            f"azblob.credentials.account_name = '{ACCOUNT}', azblob.credentials.account_key = '{KEY}'"
        )

    @property
    def environment(self) -> dict[str, str]:
        """How it is reached, as variables of the environment."""
        return {
            "AZURE_STORAGE_ENDPOINT": self.server.url,
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def get(self, name: str) -> bytes:
        """The content of a blob, by another library than what is tested."""
        with urlopen(f"{self.server.url}/{self.name}/{name}") as answer:
            return answer.read()


@pytest.fixture
def container(request: pytest.FixtureRequest) -> Container:
    """A container of this test alone, on the server of the run."""
    server = _or_skip(lambda: request.config.stash[_shared].get(Azurite, "azurite"), "a server of Azure's blobs")
    name = f"t-{secrets.token_hex(6)}"
    server.create_container(name)
    return Container(server, name)


@pytest.fixture
def azure_url(container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `database_url`, in a container."""
    for name, value in container.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "cache"))
    return f"az://{container.name}/some/db"


@pytest.fixture
def hdfs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a directory of this test alone, on the HDFS of the run."""
    server = _or_skip(lambda: request.config.stash[_shared].get(Hdfs, "hdfs"), "HDFS")
    monkeypatch.setenv("HADOOP_USER_NAME", HADOOP_USER)
    return f"{server.url}/t_{secrets.token_hex(6)}"


@pytest.fixture
def own_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs]:
    """HDFS of this test alone, to be killed and started again."""
    own = _or_skip(lambda: Hdfs.started(tmp_path / "own-hdfs"), "HDFS")
    monkeypatch.setenv("HADOOP_USER_NAME", HADOOP_USER)
    yield own
    if own.is_running:
        own.kill()


@pytest.fixture
def hdfs_url(hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `database_url`, in HDFS."""
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "cache"))
    return f"{hdfs}/some/db"


@pytest.fixture(
    params=[
        pytest.param("database_url", id="s3"),
        pytest.param("azure_url", id="az"),
        pytest.param(
            "hdfs_url", id="hdfs", marks=pytest.mark.slow
        ),  # it starts in ten seconds, and each file takes half a one
    ]
)
def any_url(request: pytest.FixtureRequest) -> str:
    """As `database_url`, on each kind of store."""
    return request.getfixturevalue(request.param)
