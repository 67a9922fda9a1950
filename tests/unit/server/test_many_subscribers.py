"""Clients that subscribe while others write and the server is killed: each sees every commit once, in order, and all of
it. Where they go on they know from their tokens alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[3]
SHOP = """
CREATE TABLE t (k int PRIMARY KEY, v int);
CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n, sum(k) AS s FROM t GROUP BY v;
CREATE SUBSCRIPTION kept FROM t WITH (retention = '1 day');
"""
#: The relations that a client follows, by its number.
FOLLOWED = (("m",), ("t",), ("t", "m"))


class Server:
    """`watersmeet serve` as a process that is killed and started again on the same port."""

    def __init__(self, path, clients):
        self.path, self.clients = path, clients
        self.port = 0

    async def start(self, *scripts):
        command = [sys.executable, "-m", "watersmeet", "serve", "--port", str(self.port), "--path", str(self.path)]
        command += ["--runtime", "inprocess", "--connections", str(self.clients + 10), *map(str, scripts)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
        async with asyncio.timeout(300):
            while not (line := (await self.process.stderr.readline()).decode()).startswith("listening on"):
                assert line, "the server has ended"
        self.port = int(line.rsplit(":", 1)[1])
        self.reading = asyncio.create_task(self.process.stderr.read())

    async def end(self):
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.reading.cancel()

    async def connect(self):
        return await psycopg.AsyncConnection.connect(
            f"host=127.0.0.1 port={self.port} user=u dbname=d connect_timeout=60", autocommit=True
        )


class Client:
    """Follows relations and keeps their content. What came of a commit that was not finished counts for nothing."""

    def __init__(self, server, number):
        self.server, self.number = server, number
        self.relations = FOLLOWED[number % len(FOLLOWED)]
        self.state = {r: Counter() for r in self.relations}
        self.token = None
        self.seen = []
        self.breaks = 0

    async def follow(self, wanted):
        """Until all up to the commit that `wanted` gives, once it is known, was seen."""
        while not self.has_seen(wanted):
            try:
                async with await self.server.connect() as connection:
                    await (self.copy if self.number % 2 else self.fetch)(connection, wanted)
            except psycopg.OperationalError:
                self.breaks += 1
                await asyncio.sleep(0.2)

    @property
    def statement(self):
        after = "" if self.token is None else f" AFTER {self.token}"
        return f"SUBSCRIBE {', '.join(self.relations)}{after} WITH (PROGRESS)"

    async def fetch(self, connection, wanted):
        await connection.execute(f"DECLARE c CURSOR FOR {self.statement}")
        pending = []
        while not self.has_seen(wanted):
            for row in await (await connection.execute("FETCH 1000 c WITH (timeout = '100ms')")).fetchall():
                self.take(row, pending)

    async def copy(self, connection, wanted):
        pending = []
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            async with connection.cursor().copy(f"COPY ({self.statement}) TO STDOUT") as out:
                kinds = ["int8", "bool", "int8"]
                out.set_types([*kinds, *(["text", "jsonb"] if len(self.relations) > 1 else ["int8"] * self.width)])
                ending = asyncio.create_task(self.cancel(connection, wanted))
                try:
                    async for row in out.rows():
                        self.take(row, pending)
                finally:
                    ending.cancel()

    async def cancel(self, connection, wanted):
        """Ends COPY, which ends by nothing else, once all was seen."""
        while not self.has_seen(wanted):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await connection.cancel_safe()

    def has_seen(self, wanted):
        return wanted() and (self.token or 0) >= wanted()

    @property
    def width(self):
        return {"t": 2, "m": 3}[self.relations[0]]

    def take(self, row, pending):
        commit, progressed, diff, *values = row
        if not progressed:
            name, row = (
                (values[0], tuple(values[1].values())) if len(self.relations) > 1 else (self.relations[0], values)
            )
            pending.append((commit, name, tuple(row), diff))
            return
        assert self.token is None or commit > self.token
        assert {p[0] for p in pending} <= {commit}
        for _, name, values, diff in pending:
            self.state[name][values] += diff
            assert self.state[name][values] >= 0
        if pending:
            self.seen.append(commit)
        pending.clear()
        self.token = commit


async def write(server, seed, goes_on, done):
    """Changes rows. A statement that fails may have been done or not."""
    chance = random.Random(seed)
    while goes_on():
        with contextlib.suppress(psycopg.OperationalError):
            async with await server.connect() as connection:
                while goes_on():
                    rows = {chance.randint(1, 500): chance.randint(1, 20) for _ in range(5)}
                    await connection.execute(f"INSERT INTO t VALUES {', '.join(map(str, rows.items()))}")
                    await connection.execute(f"DELETE FROM t WHERE k % 17 = {chance.randint(0, 16)}")
                    done.append(seed)
        await asyncio.sleep(0.2)


async def run(path, clients, writers, changes, kills, seconds=0.0):
    script = path / "shop.sql"
    script.write_text(SHOP)
    server = Server(path / "db", clients + writers)
    await server.start(script)
    last, done, begin_s = [], [], time.monotonic()

    def progress():
        """How much of the work is done."""
        return min(len(done) / changes, (time.monotonic() - begin_s) / seconds if seconds else 1.0)

    async def kill():
        chance = random.Random(clients)
        for number in range(kills):
            while progress() < (number + 1) / (kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.random() * 0.2)
            await server.end()
            await server.start()

    following = [Client(server, n) for n in range(clients)]
    try:
        async with asyncio.timeout(600 + 4 * seconds), asyncio.TaskGroup() as reading:
            for client in following:
                reading.create_task(client.follow(lambda: last and last[0]))
            async with asyncio.TaskGroup() as writing:
                for number in range(writers):
                    writing.create_task(write(server, number, lambda: progress() < 1, done))
                writing.create_task(kill())
            async with await server.connect() as connection:
                await connection.execute("FLUSH")
                (number, *_) = await (await connection.execute("SHOW COMMITS LIMIT 1")).fetchone()
                content = {}
                for name in ("t", "m"):
                    past = f"SELECT * FROM {name} FOR SYSTEM_TIME AS OF COMMIT {number}"
                    content[name] = Counter(await (await connection.execute(past)).fetchall())
            last.append(number)
    finally:
        await server.end()
    for client in following:
        assert client.seen == sorted(set(client.seen))
        assert client.breaks >= kills
        for name, state in client.state.items():
            assert +state == content[name], f"client {client.number}, {name}"
    assert content["m"]
    return following


@pytest.mark.slow
def test_some_clients_and_a_kill(tmp_path):
    asyncio.run(run(tmp_path, clients=6, writers=1, changes=8, kills=1))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_many_kills(tmp_path, seed):
    asyncio.run(run(tmp_path, clients=20 + seed, writers=3, changes=200, kills=8))


@pytest.mark.thorough
def test_two_hundred_clients_for_five_minutes(tmp_path):
    """All of them see the same commits of what they follow, from where they began."""
    following = asyncio.run(run(tmp_path, clients=200, writers=4, changes=100, kills=2, seconds=300))
    for relations in FOLLOWED:
        seen = [c.seen for c in following if c.relations == relations]
        latest = max(s[0] for s in seen)
        assert len({tuple(n for n in s if n > latest) for s in seen}) == 1
