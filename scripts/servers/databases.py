"""The databases and lakes that can be had on loopback, together: PostgreSQL, MariaDB, S3 and an Iceberg catalog.

The catalog is in PostgreSQL, and its tables are in a bucket. A server that can't be had is left out, with what needs
it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self, TypeVar

from scripts.servers import mariadb, postgres, s3
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.mariadb import MariaDB
from scripts.servers.postgres import Postgres
from scripts.servers.s3 import S3
from scripts.servers.server import Server

SHOP, LAKE = "shop", "lake"
_TABLE: Final = "CREATE TABLE items (id int PRIMARY KEY, name varchar(100))"
_ROWS: Final = "INSERT INTO items VALUES (1, 'lamp'), (2, 'chair')"

_FROM_POSTGRES: Final = """\
-- The table that is in PostgreSQL already. What changes there, changes here.
CREATE SECRET postgres_password WITH (backend = 'meta') AS '{password}';
CREATE SOURCE shop WITH (
    connector = 'postgres-cdc', hostname = '127.0.0.1', port = '{port}', username = '{user}',
    password = SECRET postgres_password, database.name = 'shop'
);
CREATE TABLE items (*) FROM shop TABLE 'public.items';"""
_FROM_HERE: Final = """\
CREATE TABLE items (id int PRIMARY KEY, name varchar);
INSERT INTO items VALUES (1, 'lamp'), (2, 'chair');"""
_TO_MARIADB: Final = """\
CREATE SECRET mariadb_password WITH (backend = 'meta') AS '{password}';
CREATE SINK to_mariadb FROM items WITH (
    connector = 'jdbc', jdbc.url = 'jdbc:mariadb://127.0.0.1:{port}/shop', user = '{user}',
    password = SECRET mariadb_password, table.name = 'items', type = 'upsert', primary_key = 'id'
);"""
_TO_DELTA: Final = """\
CREATE SECRET s3_key WITH (backend = 'meta') AS '{secret_key}';
CREATE SINK to_delta FROM items WITH (
    connector = 'deltalake', location = 's3://lake/delta/items',
    {store},
    type = 'upsert', primary_key = 'id', create_table_if_not_exists = 'true'
);"""
_TO_ICEBERG: Final = """\
CREATE SINK to_iceberg FROM items WITH (
    connector = 'iceberg', catalog.type = 'jdbc', catalog.uri = 'jdbc:postgresql://127.0.0.1:{port}/lake',
    catalog.jdbc.user = '{user}', catalog.jdbc.password = SECRET postgres_password,
    warehouse.path = 's3://lake/iceberg', database.name = 'shop', table.name = 'items',
    {store},
    type = 'upsert', primary_key = 'id', create_table_if_not_exists = 'true'
);"""
_STORE: Final = (
    "s3.endpoint = '{url}', s3.region = '{region}',\n    s3.access.key = '{access_key}', s3.secret.key = SECRET s3_key"
)

Started = TypeVar("Started", Postgres, MariaDB, S3)


class Databases:
    """Servers that run until this context ends; None for one that can't be had.

    PostgreSQL and MariaDB have a database `shop` with a table `items`, which has rows in PostgreSQL; PostgreSQL has a
    database `lake` for the catalog of Iceberg; S3 has a bucket `lake`.
    """

    def __init__(self, postgres: Postgres | None, mariadb: MariaDB | None, s3: S3 | None, servers: ExitStack) -> None:
        self.postgres = postgres
        self.mariadb = mariadb
        self.s3 = s3
        self._servers = servers

    @classmethod
    def started(cls, folder: Path, say: Callable[[str], None] = lambda _: None) -> Databases:
        """Starts all that can be had, and says what can't. Raises ServerUnavailableError if that is all of them."""
        with ExitStack() as servers:

            def start(kind: type[Started], name: str) -> Started | None:
                try:
                    server = kind.started(folder / name, say=say)
                except ServerUnavailableError as error:
                    say(f"{name} can't be had here: {error}")
                    return None
                servers.callback(server.remove if isinstance(server, Postgres) else server.kill)
                return server

            found = cls(start(Postgres, "postgres"), start(MariaDB, "mariadb"), start(S3, "s3"), servers)
            if found.postgres is found.mariadb is found.s3 is None:
                raise ServerUnavailableError("none of the servers can be had here")
            found._fill()
            found._servers = servers.pop_all()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def addresses(self) -> str:
        """A line for each server: where it is."""
        lines = []
        if self.postgres is not None:
            lines.append(f"PostgreSQL  {self.postgres.url(SHOP)}  (process {self.postgres.pid})")
        if self.mariadb is not None:
            where = f"mariadb://{mariadb.USER}:{mariadb.PASSWORD}@127.0.0.1:{self.mariadb.port}/{SHOP}"
            lines.append(f"MariaDB     {where}  (process {self.mariadb.pid})")
        if self.s3 is not None:
            keys = f"keys {s3.ACCESS_KEY} / {s3.SECRET_KEY}, region {s3.REGION}, bucket {LAKE}"
            lines.append(f"S3          {self.s3.url}  {keys}  (process {self.s3.pid})")
        if self.postgres is not None and self.s3 is not None:
            lines.append(f"Iceberg     catalog: {self.postgres.url(LAKE)}, tables: s3://{LAKE}/iceberg")
        return "\n".join(lines)

    def statements(self) -> str:
        """What connects a database with all of them: a script in RisingWave's SQL."""
        there = {"user": postgres.USER, "password": postgres.PASSWORD}
        parts = [_FROM_HERE if self.postgres is None else _FROM_POSTGRES.format(port=self.postgres.port, **there)]
        if self.mariadb is not None:
            names = {"user": mariadb.USER, "password": mariadb.PASSWORD}
            parts.append(_TO_MARIADB.format(port=self.mariadb.port, **names))
        if self.s3 is not None:
            store = _STORE.format(url=self.s3.url, region=s3.REGION, access_key=s3.ACCESS_KEY)
            parts.append(_TO_DELTA.format(store=store, secret_key=s3.SECRET_KEY))
            if self.postgres is not None:
                parts.append(_TO_ICEBERG.format(store=store, port=self.postgres.port, **there))
        return "\n".join(parts)

    def ended(self) -> str | None:
        """The name of a server that runs no more, if there is one."""
        servers: dict[str, Server | None] = {"PostgreSQL": self.postgres, "MariaDB": self.mariadb, "S3": self.s3}
        return next((name for name, server in servers.items() if server is not None and not server.is_running), None)

    def _fill(self) -> None:
        if self.postgres is not None:
            with self.postgres.connect() as connection:
                for name in (SHOP, LAKE):
                    connection.execute(f"CREATE DATABASE {name}")
            with self.postgres.connect(SHOP) as connection:
                connection.execute(f"{_TABLE}; {_ROWS}")
        if self.mariadb is not None:
            with self.mariadb.connect() as there, there.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {SHOP}; USE {SHOP}; {_TABLE}")
        if self.s3 is not None:
            self.s3.client().create_bucket(Bucket=LAKE)
