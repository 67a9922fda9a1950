"""Temporal filters: at every time a view has what its query gives with now() at that time.

Random tables and changes, a clock that moves in between, views of all allowed shapes; DuckDB answers the queries with
the time written into them. Covers the temporal filters of RisingWave's documents ("Temporal filters").
"""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow

START = datetime(2024, 5, 17, 21, 40)
TABLES = {
    "t": "(k INT PRIMARY KEY, g INT, ts TIMESTAMP, tz TIMESTAMPTZ, d DATE)",
    "u": "(k INT PRIMARY KEY, g INT, ts TIMESTAMP, wait INTERVAL)",
}
HOUR = "INTERVAL '1 hour'"
QUERIES = (
    f"SELECT k, ts FROM t WHERE ts > now() - {HOUR}",
    "SELECT k, g FROM t WHERE now() - INTERVAL '30 minutes' > ts",
    "SELECT k, ts FROM t WHERE now() - INTERVAL '2 hours' <= ts AND ts < now() - INTERVAL '30' MINUTE AND g > 0",
    f"SELECT k, tz FROM t WHERE tz BETWEEN now() - {HOUR} AND now() + {HOUR}",
    f"SELECT k FROM t WHERE NOT (ts + {HOUR} <= current_timestamp)",
    f"SELECT g, count(*) AS n, max(ts) AS m FROM t WHERE ts >= now() - {HOUR} GROUP BY g",
    f"SELECT count(*) AS n FROM t WHERE tz > now() - {HOUR}",
    f"SELECT g, max(ts) AS m FROM t GROUP BY g HAVING max(ts) < now() - {HOUR}",
    "SELECT g, count(*) AS n FROM t GROUP BY g HAVING min(ts) >= now() - INTERVAL '90 minutes' AND count(*) > 1",
    f"SELECT t.k, u.k AS j FROM t JOIN u ON t.g = u.g AND u.ts > now() - {HOUR}",
    f"SELECT t.k, u.k AS j FROM t LEFT JOIN u ON t.g = u.g AND u.ts > now() - {HOUR} AND u.ts < now()",
    f"SELECT t.k, u.k AS j FROM t RIGHT JOIN u ON t.g = u.g AND now() - {HOUR} < t.ts",
    "SELECT t.k, u.k AS j FROM t JOIN u ON t.g = u.g AND t.ts + u.wait > now()",
    f"SELECT t.k, u.k AS j FROM t FULL JOIN u ON t.g = u.g WHERE t.ts > now() - {HOUR} OR u.k IS NULL",
    f"SELECT k, ts FROM t WHERE ts > now() - {HOUR} OR g = 1 OR ts IS NULL",
    f"SELECT k FROM t WHERE (ts > now() - {HOUR} OR g IS NULL) AND (ts < now() - INTERVAL '10 minutes' OR g = 2)",
    "SELECT k, ts FROM t WHERE date_trunc('hour', ts) = date_trunc('hour', now())",
    "SELECT k FROM t WHERE date_trunc('day', now()) - INTERVAL '3 hours' <= ts",
    "SELECT k, d FROM t WHERE d >= current_date - 1",
    "SELECT k FROM t WHERE d < now()::date",
    f"SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.ts > now() - {HOUR})",
    f"SELECT k FROM t WHERE g IN (SELECT g FROM u WHERE u.ts < now() - {HOUR})",
    f"SELECT k FROM t WHERE ts > now() - {HOUR} UNION ALL SELECT k FROM u WHERE ts <= now() - INTERVAL '2 hours'",
    (
        "SELECT k FROM (SELECT k, row_number() OVER (PARTITION BY g ORDER BY ts DESC, k) AS r FROM t WHERE ts < "
        "now()) q WHERE r = 1"
    ),
    f"SELECT DISTINCT g FROM t WHERE ts > now() - {HOUR}",
    # what a filter promises of its column lets those above it forget
    (
        f"SELECT t.k, u.k AS j FROM t JOIN u ON t.g = u.g AND t.ts BETWEEN u.ts - {HOUR} AND u.ts + {HOUR} "
        f"WHERE t.ts > now() - {HOUR} AND u.ts > now() - INTERVAL '2 hours'"
    ),
    (
        f"SELECT a.k, b.k AS j FROM (SELECT * FROM t WHERE ts >= now() - {HOUR}) a LEFT JOIN "
        f"(SELECT * FROM u WHERE ts >= now() - {HOUR}) b ON a.g = b.g AND a.ts - INTERVAL '20 minutes' <= b.ts"
    ),
    (
        f"SELECT a.ts, count(*) AS n FROM (SELECT * FROM t WHERE ts > now() - {HOUR}) a JOIN (SELECT * FROM "
        f"u WHERE ts > now() - {HOUR}) b "
        "ON a.ts = b.ts GROUP BY a.ts"
    ),
    (
        f"SELECT date_trunc('hour', ts) AS h, count(*) AS n FROM t WHERE ts >= now() - {HOUR} GROUP BY "
        f"date_trunc('hour', ts)"
    ),
    "SELECT k, ts FROM first WHERE ts < now() - INTERVAL '20 minutes'",
    "SELECT a.g, a.n, b.k FROM sums a JOIN t b ON a.g = b.g WHERE b.ts > now() - INTERVAL '40 minutes'",
)
BELOW = {"first": QUERIES[0], "sums": QUERIES[5]}


class Case:
    """A database and the same tables in DuckDB, with a clock."""

    def __init__(self, seed: int, directory: str | None, parallelism: int, runtime: str) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.parallelism = parallelism
        self.runtime = runtime
        # An engine that runs by itself has been at the time of the machine when a test sets another one.
        self.now = START if runtime == "inprocess" else datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        self.views: dict[str, str] = {}
        self.oracle = duckdb.connect(config={"threads": 1})
        self.oracle.execute("SET TimeZone = 'UTC'")
        self.open()
        for name, columns in TABLES.items():
            self.connection.cursor().execute(f"CREATE TABLE {name} {columns}")
            self.oracle.execute(f"CREATE TABLE {name} {columns}")

    def open(self) -> None:
        self.connection = watersmeet.connect(self.directory, runtime=self.runtime, parallelism=self.parallelism)
        Harness(self.connection).set_clock(self.micros())

    def micros(self) -> int:
        return round(self.now.replace(tzinfo=UTC).timestamp() * 1e6)

    def view(self, name: str, query: str) -> None:
        self.connection.cursor().execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        self.views[name] = query

    def moment(self) -> str:
        """A time near now, often just on a bound."""
        if self.rng.random() < 0.1:
            return "NULL"
        if self.rng.random() < 0.3:
            before = [timedelta(0), timedelta(hours=1), timedelta(minutes=30), timedelta(hours=2)]
            return f"'{self.now - self.rng.choice(before)}'"
        return f"'{self.now + timedelta(minutes=self.rng.randrange(-240, 120), microseconds=self.rng.randrange(3))}'"

    def change(self) -> None:
        statements = []
        for _ in range(self.rng.randrange(1, 6)):
            table, key = self.rng.choice("tu"), self.rng.randrange(24)
            group = self.rng.choice(["NULL", "0", "1", "2"])
            if self.rng.random() < 0.2:
                statements.append((f"DELETE FROM {table} WHERE k = {key}", None))
            elif self.rng.random() < 0.2:
                statements.append(
                    (f"UPDATE {table} SET ts = {self.moment()}, g = {group} WHERE k >= {key} AND k < {key + 3}", None)
                )
            elif table == "t":
                day = self.rng.choice(["NULL", *(f"'{self.now.date() + timedelta(days=n)}'" for n in (-2, -1, 0, 1))])
                statements.append(
                    (f"INSERT INTO t VALUES ({key}, {group}, {self.moment()}, {self.moment()}, {day})", ("t", key))
                )
            else:
                wait = self.rng.choice(["NULL", "INTERVAL '10 minutes'", "INTERVAL '2 hours'"])
                statements.append((f"INSERT INTO u VALUES ({key}, {group}, {self.moment()}, {wait})", ("u", key)))
        for statement, replaced in statements:
            self.connection.cursor().execute(statement)
            if replaced is not None:
                self.oracle.execute(f"DELETE FROM {replaced[0]} WHERE k = {replaced[1]}")
            self.oracle.execute(statement)

    def pass_time(self) -> None:
        self.now += self.rng.choice(
            [timedelta(microseconds=1), timedelta(minutes=self.rng.randrange(1, 50)), timedelta(minutes=30)]
        )
        Harness(self.connection).set_clock(self.micros())

    def check(self) -> None:
        self.connection.cursor().execute("FLUSH")
        for name, query in self.views.items():
            ours = Counter(self.connection.cursor().execute(f"SELECT * FROM {name}").fetchall())
            theirs = Counter(self.oracle.execute(self.written(query)).fetchall())
            assert plain(ours) == plain(theirs), f"{name} at {self.now}: {query}"

    def written(self, query: str) -> str:
        for name, below in BELOW.items():
            query = re.sub(rf"\b(FROM|JOIN) {name}\b", rf"\1 ({below}) AS {name}", query)
        query = query.replace("AS sums a", "AS a")
        now = f"TIMESTAMPTZ '{self.now}+00'"
        query = query.replace("now()::date", f"({now})::date").replace("now()", f"({now})")
        return query.replace("current_timestamp", f"({now})").replace("current_date", f"({now})::date")


def plain(rows: Counter) -> Counter:
    return Counter(
        {tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row): n for row, n in rows.items()}
    )


def run(
    seed: int, directory: str | None = None, *, parallelism: int = 1, steps: int = 14, runtime: str = "inprocess"
) -> None:
    case = Case(seed, directory, parallelism, runtime)
    for name, query in BELOW.items():
        case.view(name, query)
    queries = case.rng.sample(QUERIES, 9)
    late = [f"v{i}" for i in range(6, 9)]
    for i, query in enumerate(queries[:6]):
        case.view(f"v{i}", query)
    for step in range(steps):
        if case.rng.random() < 0.7:
            case.change()
        if case.rng.random() < 0.6:
            case.pass_time()
        if step == steps // 2:
            for name, query in zip(late, queries[6:], strict=True):
                case.view(name, query)
            if directory is not None:
                case.connection.close()
                case.now += timedelta(minutes=30)
                case.open()
        case.check()
    case.now += timedelta(days=3)
    Harness(case.connection).set_clock(case.micros())
    case.check()
    case.connection.close()


#: Seeds that once failed: what was wrong is in the commit that added them.
REGRESSIONS: tuple[int, ...] = (6,)


@pytest.mark.parametrize("seed", mostly_slow([*REGRESSIONS, *range(5)], len(REGRESSIONS) + 1))
def test_in_process(seed: int, tmp_path) -> None:
    run(seed, str(tmp_path / "db") if seed % 2 else None, parallelism=1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_in_process(block: int, tmp_path) -> None:
    for seed in range(1000 + 5 * block, 1005 + 5 * block):
        run(seed, str(tmp_path / f"db{seed}") if seed % 3 == 0 else None, parallelism=1 + seed % 3, steps=20)
