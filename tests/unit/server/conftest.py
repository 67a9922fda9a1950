"""A server in process, over a database without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

import watersmeet
from watersmeet.server.service import BackgroundServer, Endpoint


class Served:
    """A server, and a connection of Python to the same database."""

    def __init__(self, connection: watersmeet.Connection, server: BackgroundServer) -> None:
        self.python = connection
        self.server = server

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.server.port} user=someone dbname=shop"

    def connect(self, **options) -> psycopg.Connection:
        return psycopg.connect(self.dsn, **options)


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """Makes servers: of a new database, with the options of `Endpoint`."""
    opened: list = []

    def make(script: str = "", **options) -> Served:
        connection = watersmeet.connect(runtime="inprocess")
        opened.append(connection)
        for _ in connection.execute_script(script):
            pass
        server = BackgroundServer(connection.opened, Endpoint(port=0, **options))
        server.__enter__()
        opened.append(server)
        return Served(connection, server)

    yield make
    for one in reversed(opened):
        one.__exit__(None, None, None)
