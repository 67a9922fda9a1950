"""SQLstream's joins on random histories, against the rules in plain Python; SQLstream, "JOIN clause", SS-18 to SS-37,
SS-47 to SS-71.

Rows come in random transactions, and some are earlier than what was before them: these are rejected and counted. After
each FLUSH what came out so far is what the rules say of the rows so far: how rows were cut into epochs changes nothing.
Running queries give their rows by rowtime.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections import Counter

import pytest

import watersmeet
from tests.harness import Harness
from tests.property.small import small
from tests.property.sqlstream_cases import MAKERS, Case
from tests.property.sqlstream_rules import Stream
from tests.thorough import mostly_slow

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(24)]
_START = dt.datetime(2019, 3, 30, 5, 0)


def _time(seconds: int) -> dt.datetime:
    return _START + dt.timedelta(seconds=seconds)


def key(rng: random.Random) -> int | None:
    return None if rng.random() < 0.08 else rng.randrange(4)


def sql(value: int | None) -> str:
    return "NULL" if value is None else str(value)


class Database:
    """Watersmeet and the rules, side by side.

    Views are opened again now and then; queries that run give their rows in order.
    """

    def __init__(self, path, rng: random.Random, *, views: bool) -> None:
        self.path, self.views = path, views
        self.connection = watersmeet.connect(path, "sqlstream", runtime="inprocess", parallelism=rng.choice([1, 3]))
        for name in "abc":
            self.connection.execute(f"CREATE STREAM {name} (k INTEGER, n INTEGER)")
        self.connection.execute("CREATE TABLE d (k INTEGER, n INTEGER)")
        self.table = [(key(rng), rng.randrange(9)) for _ in range(rng.randint(0, 5))]
        for k, n in self.table:
            self.connection.execute(f"INSERT INTO d VALUES ({sql(k)}, {n})")
        self.connection.execute("FLUSH")
        self.streams = {name: Stream() for name in "abc"}
        self.cases: dict[str, Case] = {}
        self.running = {}
        self.found: dict[str, Counter] = {}
        self.most: dict[str, Counter] = {}

    def start(self, name: str, case: Case) -> None:
        self.cases[name] = case
        self.found[name], self.most[name] = Counter(), Counter()
        if self.views:
            self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {case.sql}")
        else:
            self.running[name] = (self.connection.start(case.sql), [])

    def insert(self, name: str, rows: list[tuple[int, int, int]]) -> None:
        values = ", ".join(f"(TIMESTAMP '{_time(t)}', {sql(k)}, {n})" for t, k, n in rows)
        self.connection.execute(f"INSERT INTO {name} (ROWTIME, k, n) VALUES {values}")
        for time, *columns in rows:
            self.streams[name].insert(time, tuple(columns))
        self.remember()

    def bound(self, name: str, time: int) -> None:
        """What was written before is there first: a clock that is moved by hand is that of the next epoch."""
        self.connection.execute("FLUSH")
        Harness(self.connection).set_watermark(
            name, int((_time(time) - dt.datetime(1970, 1, 1)).total_seconds()) * 1_000_000
        )
        self.connection.execute("FLUSH")
        self.streams[name].bound(time)
        self.remember()

    def expected(self, case: Case) -> Counter:
        return Counter((_time(t), *values[1::2]) for t, values in case.meaning(self.streams, self.table).rows)

    def remember(self) -> None:
        """Windows by rows at the current moment: what was right at some time may have come out, and stays."""
        for name, case in self.cases.items():
            if not case.exact:
                self.most[name] |= self.expected(case)

    def check(self) -> None:
        self.connection.execute("FLUSH")
        for name, case in self.cases.items():
            expected, found = self.expected(case), self.content(name)
            if case.exact:
                assert found == expected, f"{case.sql}\nmissing {expected - found}\nsurplus {found - expected}"
            else:
                assert not expected - found, f"{case.sql}\nmissing {expected - found}"
                surplus = found.keys() - (self.most[name] | expected).keys()  # of rows that look alike more may stay
                assert not surplus, f"{case.sql}\nsurplus {surplus}"

    def content(self, name: str) -> Counter:
        if self.views:
            columns = ", ".join(["t", "n1", "n2", "n3"][: 3 + (" AS n3" in self.cases[name].sql)])
            return Counter(self.connection.execute(f"SELECT {columns} FROM {name}").fetchall())
        query, rows = self.running[name]
        table, diff = query.take()
        assert (diff > 0).all(), self.cases[name].sql
        new = [
            tuple(r.values()) for r, times in zip(table.to_pylist(), diff.tolist(), strict=True) for _ in range(times)
        ]
        times = [r[0] for r in rows[-1:] + new]
        assert times == sorted(times), f"{self.cases[name].sql}\n{times}"
        rows += new
        return Counter(rows)

    def close(self) -> None:
        self.connection.close()

    def reopen(self) -> None:
        if self.views:
            self.connection.close()
            self.connection = watersmeet.connect(self.path, "sqlstream", runtime="inprocess")


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 2))
def test_joins(seed, tmp_path):
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        if seed % 3 == 2:
            stack.enter_context(small())
        database = Database(tmp_path / "db", rng, views=bool(seed % 2))
        stack.callback(database.close)
        distinct = rng.random() < 0.3
        for i in range(4):
            database.start(f"q{i}", rng.choice(MAKERS)(rng, distinct))
        now = dict.fromkeys("abc", 0)
        for _ in range(rng.randint(10, 25)):
            name = rng.choice("abc")
            rows = []
            for _ in range(rng.randint(1, 4)):
                now[name] += rng.choice((1, 2, 3, 7, 20) if distinct else (0, 0, 1, 3, 7, 20))
                late = rng.randint(1, 5) if rng.random() < 0.08 else 0
                rows.append((now[name] - late, key(rng), rng.randrange(9)))
            database.insert(name, rows)
            if rng.random() < 0.1:
                now[name] += rng.randint(0, 80)
                database.bound(name, now[name])
            if rng.random() < 0.15:
                database.connection.execute(f"INSERT INTO d VALUES ({rng.randrange(4)}, 99)")
            if rng.random() < 0.7:
                database.check()
            if rng.random() < 0.1:
                database.reopen()
        for name in "abc":
            database.bound(name, max(now.values()) + 200)
        database.check()
        counts = {s["name"]: s["late"] for s in database.connection.status()["sources"]}
        assert counts == {
            n.upper(): s.rejected for n, s in database.streams.items() if n.upper() in counts
        }  # of streams that a query reads
