"""How long a changed row of a view takes to the last of 500 clients that subscribe to it.

Each client is a connection with `COPY (SUBSCRIBE v) TO STDOUT` to `watersmeet serve` (in process, without Spark). The
peer in the same run, in turns: as many connections to PostgreSQL that LISTEN, told by NOTIFY, which computes no view
and keeps nothing. Target: at most 150 ms from the commit to the last client. Checked: each client gets each change
once, in order. The processor time is that of the servers.
"""

from __future__ import annotations

import argparse
import os
import resource
import selectors
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

import psycopg
from scripts.servers.postgres import Postgres

from benchmarks.processes import cpu_seconds
from benchmarks.wire import PROCESSES, served

MADE = """
CREATE TABLE t (k int PRIMARY KEY, name varchar);
CREATE TABLE names (name varchar PRIMARY KEY, text varchar);
CREATE MATERIALIZED VIEW v AS SELECT t.k, n.text FROM t JOIN names AS n USING (name);
INSERT INTO names VALUES ('a', 'mark');
"""
SUBSCRIBE = "COPY (SUBSCRIBE v WITH (snapshot = false)) TO STDOUT"
PATIENCE_S = 60


class Listeners:
    """Connections on which lines come that end with numbers, the same on all of them."""

    def __init__(self, connections: list[psycopg.Connection]) -> None:
        self.connections = connections
        self.sockets = [socket.socket(fileno=os.dup(c.fileno())) for c in connections]
        self.selector = selectors.DefaultSelector()
        self.found = [b""] * len(self.sockets)
        for number, listening in enumerate(self.sockets):
            listening.setblocking(False)
            self.selector.register(listening, selectors.EVENT_READ, number)

    def send(self, statement: str) -> None:
        """Sends a statement on each connection, past its library."""
        body = statement.encode() + b"\0"
        for listening in self.sockets:
            listening.send(b"Q" + struct.pack(">i", len(body) + 4) + body)

    def wait(self, mark: bytes) -> float:
        """Until a mark has come on all connections: when it came on the last."""
        missing = {n for n, found in enumerate(self.found) if mark not in found}
        last = time.time()
        end = time.monotonic() + PATIENCE_S
        while missing:
            for key, _ in self.selector.select(1):
                self.found[key.data] += key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if key.data in missing and mark in self.found[key.data]:
                    missing.discard(key.data)
                    last = time.time()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(missing)} clients did not get {mark!r}")
        return last

    def check(self, marks: list[bytes]) -> None:
        """Each mark came once, in order, on each connection."""
        for found in self.found:
            places = [found.find(mark) for mark in marks]
            assert places == sorted(places)
            assert min(places) >= 0
            assert [found.count(mark) for mark in marks] == [1] * len(marks)

    def close(self) -> None:
        self.selector.close()
        for listening, connection in zip(self.sockets, self.connections, strict=True):
            listening.close()
            connection.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("subscriptions", description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    wanted = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8 * wanted.clients + 1024), most))
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres.started(Path(folder) / "postgres")
        try:
            with server.connect() as setting:
                setting.execute(f"ALTER SYSTEM SET max_connections = {wanted.clients + 50}")
            server.stop()
            server.start()
            with (
                served(Path(folder), MADE, "--connections", str(wanted.clients + 10)) as ours,
                server.connect() as peer,
            ):
                compare(ours, peer, server, wanted.clients, wanted.rounds)
        finally:
            server.stop()
    return 0


def compare(ours: psycopg.Connection, peer: psycopg.Connection, server: Postgres, clients: int, rounds: int) -> None:
    told = Listeners([server.connect() for _ in range(clients)])
    subscribed = Listeners(
        [psycopg.connect(host="127.0.0.1", port=ours.info.port, user=f"u{n}", autocommit=True) for n in range(clients)]
    )
    told.send("LISTEN changes")
    told.wait(b"LISTEN\0")
    subscribed.send(SUBSCRIBE)
    subscribed.wait(b"H")  # CopyOutResponse: it follows from here on
    after_statement, after_commit, after_notify, processor_s = [], [], [], 0.0
    for number in range(rounds):
        began = cpu_seconds(PROCESSES[ours])
        at = time.time()
        ours.execute("INSERT INTO t VALUES (%s, 'a')", (1_000_000 + number,))
        last = subscribed.wait(_mark(number))
        processor_s += cpu_seconds(PROCESSES[ours]) - began
        after_statement.append((last - at) * 1000)
        (_, committed), *_ = ((c[0], c[1]) for c in ours.execute("SHOW COMMITS FROM v LIMIT 1").fetchall())
        after_commit.append((last - committed.timestamp()) * 1000)
        at = time.time()
        peer.execute(f"NOTIFY changes, '{1_000_000 + number}'")
        after_notify.append((told.wait(str(1_000_000 + number).encode()) - at) * 1000)
        time.sleep(0.05)
    subscribed.check([_mark(n) for n in range(rounds)])
    told.check([str(1_000_000 + n).encode() for n in range(rounds)])
    rows = {
        "watersmeet, from INSERT": after_statement,
        "watersmeet, from the commit": after_commit,
        "PostgreSQL, from NOTIFY": after_notify,
    }
    for name, times in rows.items():
        ordered = sorted(times)
        print(f"{name:28} median {statistics.median(times):6.1f} ms, most {ordered[-1]:6.1f} ms", flush=True)
    print(f"processor time of the server: {processor_s / rounds * 1000:.1f} ms a change for {clients} clients")
    subscribed.close()
    told.close()


def _mark(number: int) -> bytes:
    return f"\t{1_000_000 + number}\tmark\n".encode()
