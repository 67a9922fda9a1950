"""TUMBLE and HOP over tables that change: views equal what follows from the windows' definition, in plain Python.

RW-29 to RW-34, RA-10, RA-12. The rows with their windows are made here, row by row; DuckDB then joins and groups them.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import duckdb
import pytest

import watersmeet
from tests.property.oracle import rows
from tests.thorough import mostly_slow

EPOCH = dt.datetime(1970, 1, 1)
KINDS = {"ts": "TIMESTAMP", "tz": "TIMESTAMPTZ", "d": "DATE"}
#: (size, slide, offset) in seconds; TUMBLE where the slide is 0.
SHAPES = (
    (60, 0, 0),
    (60, 0, 25),
    (90, 0, -35),
    (60, 20, 0),
    (60, 60, 7),
    (120, 30, -45),
    (86_400, 0, 3600),
    (172_800, 86_400, 0),
)


def windows(time: dt.datetime | dt.date | None, size: int, slide: int, offset: int) -> list[tuple]:
    """All windows that hold `time`, by the definition alone: aligned, start included, end excluded."""
    if time is None:
        return [] if slide else [(None, None)]
    zone = time.tzinfo if isinstance(time, dt.datetime) else None
    moment = (
        time.replace(tzinfo=None) if isinstance(time, dt.datetime) else dt.datetime(time.year, time.month, time.day)
    )
    seconds, step = (moment - EPOCH) // dt.timedelta(seconds=1), slide or size
    starts = [
        s for s in range(seconds - size - step, seconds + step) if (s - offset) % step == 0 and s <= seconds < s + size
    ]
    return [tuple((EPOCH + dt.timedelta(seconds=s + more)).replace(tzinfo=zone) for more in (0, size)) for s in starts]


class Case:
    """Two tables l and r of (id, k, v, ts, tz, d), views over their windows, and the same in DuckDB."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables: dict[str, dict[int, tuple]] = {"l": {}, "r": {}}
        self.size, self.slide, self.offset = self.random.choice(SHAPES)
        self.columns = {name: self.random.choice(list(KINDS)) for name in self.tables}
        if self.columns["l"] != self.columns["r"] and "tz" in self.columns.values():
            self.columns = dict.fromkeys(self.tables, "tz")

    def call(self, table: str, *, alias: str) -> str:
        lengths = [f"INTERVAL '{n} seconds'" for n in ([self.slide] if self.slide else []) + [self.size]]
        if self.offset or self.random.random() < 0.3:
            lengths.append(f"INTERVAL '{self.offset}' SECOND")
        function = "HOP" if self.slide else "TUMBLE"
        return f"{function}({table}, {self.columns[table]}, {', '.join(lengths)}) AS {alias}"

    def queries(self) -> list[tuple[str, str]]:
        """Each for the engine, and for DuckDB over tables lw and rw that have the windows."""
        side = self.random.choice(["", "LEFT", "RIGHT", "FULL"])
        on = self.random.choice(["window_start", "window_end"])
        texts = [
            "SELECT * FROM {l} ",
            (
                f"SELECT a.id, a.v, b.id AS other, b.v AS w, coalesce(a.{on}, b.{on}) AS s FROM {{l}} {side} "
                f"JOIN {{r}} "
                f"ON a.k = b.k AND a.{on} = b.{on}"
            ),
            (
                "SELECT a.id AS i, b.id AS j, b.window_end AS e FROM {l} JOIN {r} ON a.window_end = "
                "b.window_start AND a.v <= b.v"
            ),
            (
                f"SELECT id, window_start FROM {{l}} WHERE {self.random.choice(['', 'NOT '])}EXISTS "
                f"(SELECT 1 FROM {{r}} WHERE a.k = b.k AND a.{on} = b.{on} AND b.v > a.v)"
            ),
            "SELECT window_start, k, count(*) AS n, sum(v) AS s, max(v) AS m FROM {l} GROUP BY window_start, k",
            (
                "SELECT x.window_end, x.n, y.n AS o FROM (SELECT window_end, count(*) AS n FROM {l} GROUP BY 1) AS x "
                "FULL JOIN (SELECT window_end, count(DISTINCT k) AS n FROM {r} GROUP BY 1) AS y ON "
                "x.window_end = y.window_end"
            ),
            "SELECT k, v FROM {r} WHERE window_start IS NOT NULL",
        ]
        return [
            (t.format(l=self.call("l", alias="a"), r=self.call("r", alias="b")), t.format(l="lw AS a", r="rw AS b"))
            for t in texts
        ]

    def change(self) -> list[str]:
        """Some INSERTs, UPDATEs and DELETEs."""
        statements = []
        for _ in range(self.random.randrange(1, 6)):
            table = self.random.choice("lr")
            content = self.tables[table]
            action = self.random.random()
            if content and action < 0.2:
                gone = self.random.choice(list(content))
                del content[gone]
                statements.append(f"DELETE FROM {table} WHERE id = {gone}")
            elif content and action < 0.45:
                changed = self.random.choice(list(content))
                content[changed] = self.row(changed)
                _, k, v, ts, tz, d = map(text, content[changed])
                statements.append(
                    f"UPDATE {table} SET k = {k}, v = {v}, ts = {ts}, tz = {tz}, d = {d} WHERE id = {changed}"
                )
            else:
                made = [self.row(max(content, default=0) + 1 + i) for i in range(self.random.randrange(1, 12))]
                content.update({row[0]: row for row in made})
                statements.append(
                    f"INSERT INTO {table} VALUES {', '.join('(' + ', '.join(map(text, r)) + ')' for r in made)}"
                )
        return statements

    def row(self, number: int) -> tuple:
        moment = EPOCH + dt.timedelta(
            seconds=self.random.choice([0, 1_700_000_000]) + self.random.randrange(-200, 200),
            microseconds=self.random.choice([0, 0, 1, 999_999]),
        )
        times = (moment, moment.replace(tzinfo=dt.UTC), moment.date())
        return (
            number,
            self.random.choice([1, 2, None]),
            self.random.randrange(5),
            *[None if self.random.random() < 0.1 else t for t in times],
        )

    def judge(self) -> duckdb.DuckDBPyConnection:
        """DuckDB with the rows in their windows."""
        connection = duckdb.connect(config={"threads": 1})
        connection.execute("SET TimeZone = 'UTC'")
        for table, content in self.tables.items():
            kind = "TIMESTAMPTZ" if self.columns[table] == "tz" else "TIMESTAMP"
            connection.execute(
                f"CREATE TABLE {table}w (id INT, k INT, v INT, ts TIMESTAMP, tz TIMESTAMPTZ, d DATE, "
                f"window_start {kind}, window_end {kind})"
            )
            place = 3 + list(KINDS).index(self.columns[table])
            made = [
                (*row, *window)
                for row in content.values()
                for window in windows(row[place], self.size, self.slide, self.offset)
            ]
            if made:
                connection.execute(
                    f"INSERT INTO {table}w VALUES " + ", ".join("(" + ", ".join(map(text, row)) + ")" for row in made)
                )
        return connection


def text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dt.datetime):
        return f"{'TIMESTAMPTZ' if value.tzinfo else 'TIMESTAMP'} '{value.isoformat(sep=' ')}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def run(seed: int) -> None:
    case = Case(seed)
    queries = case.queries()
    with watersmeet.connect(runtime="inprocess", parallelism=1 + seed % 3) as connection:
        for table in case.tables:
            connection.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, k INT, v INT, "
                + ", ".join(f"{n} {k}" for n, k in KINDS.items())
                + ")"
            )
        late = case.random.randrange(4)
        for batch in range(4):
            if batch == late:
                for i, (ours, _) in enumerate(queries):
                    connection.execute(f"CREATE MATERIALIZED VIEW v{i} AS {ours}")
            for statement in case.change():
                connection.execute(statement)
            connection.execute("FLUSH")
            judge = case.judge()
            for i, (ours, theirs) in enumerate(queries):
                expected = rows(judge.execute(theirs).fetchall())
                assert content(connection, ours) == expected, ours
                if batch >= late:
                    assert content(connection, f"SELECT * FROM v{i}") == expected, ours


def content(connection, query: str) -> Counter:
    return rows(connection.execute(query).fetchall())


@pytest.mark.parametrize("seed", mostly_slow(range(3), 0))
def test_views_and_queries(seed: int) -> None:
    run(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_more(block: int) -> None:
    for seed in range(1000 + 8 * block, 1008 + 8 * block):
        run(seed)
