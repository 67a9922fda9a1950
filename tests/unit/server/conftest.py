"""A server in process, over a database without Spark."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}"

    def http(self, path: str, *, body=None, user: str | None = None, headers=(), method: str | None = None) -> Answer:
        """Asks the port of HTTP. body: a value that is sent as JSON. user: `name:password`."""
        sent = dict(headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        if user is not None:
            sent["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                return Answer(found.status, found.headers, found.read())
        except urllib.error.HTTPError as found:
            return Answer(found.code, found.headers, found.read())

    @contextmanager
    def events(self, path: str, headers=()) -> Iterator[Events]:
        """The server-sent events of a path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=30)
        try:
            connection.request("GET", path, headers=dict(headers))
            yield Events(connection.getresponse())
        finally:
            connection.close()


@dataclass
class Answer:
    status: int
    headers: object
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def condition(self) -> str:
        return self.json["error"]["condition"]


class Event(NamedTuple):
    name: str
    data: dict
    id: int | None


class Events:
    """Events one after the other. comments: lines that are none."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.status = response.status
        self.comments: list[str] = []

    def __iter__(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for raw in self.response:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                number = int(fields["id"]) if "id" in fields else None
                yield Event(fields["event"], json.loads(fields["data"]), number)
                fields = {}

    def next(self, name: str | None = None) -> Event:
        """The next one, or the next of that name."""
        return next(e for e in self if name in (None, e.name))


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """Makes servers: of a new database, with the options of `Endpoint`. connecting: those of `connect`."""
    opened: list = []

    def make(script: str = "", *, connecting=None, connect=watersmeet.connect, **options) -> Served:
        connection = connect(**{"runtime": "inprocess", **(connecting or {})})
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
