"""Windows over streams with watermarks: rows that come late are left out, all others count, and state does not stay.

RW-37, RW-40, RW-41, RA-11, RA-13. Rows come out of order; which of them are late is decided here, in plain Python.
"""

from __future__ import annotations

import datetime as dt

import pytest

import watersmeet
from tests.property.oracle import rows
from tests.property.test_timewindows import KINDS, Case, content, text
from tests.thorough import mostly_slow

DELAY = dt.timedelta(seconds=20)


class Streams(Case):
    """Tables that only grow, with a watermark on the column that the windows are of."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        if "d" in self.columns.values():
            self.columns = dict.fromkeys(self.tables, "ts")
        self.numbers: dict[str, dt.datetime | None] = dict.fromkeys(self.tables)
        self.clock = dt.datetime(2024, 1, 1)
        self.next_id = 1

    def ddl(self, table: str) -> str:
        column = self.columns[table]
        return (
            f"CREATE TABLE {table} (id INT, k INT, v INT, "
            + ", ".join(f"{n} {k}" for n, k in KINDS.items())
            + f", WATERMARK FOR {column} AS {column} - INTERVAL '20 seconds') APPEND ONLY"
        )

    def row(self, number: int) -> tuple:
        moment = self.clock + dt.timedelta(
            seconds=self.random.randrange(-60, 30), microseconds=self.random.choice([0, 0, 1, 999_999])
        )
        times = (moment, moment.replace(tzinfo=dt.UTC), moment.date())
        return (
            number,
            self.random.choice([1, 2, None]),
            self.random.randrange(5),
            *[None if self.random.random() < 0.1 else t for t in times],
        )

    def epoch(self) -> list[str]:
        """A delivery to one side or both; later ones are later, but for some of their rows."""
        self.clock += dt.timedelta(seconds=self.random.choice([0, 10, 40, 150]))
        return [
            s
            for t in self.tables
            if self.random.random() < 0.8
            for s in self.deliver(t, [self.row(self.number()) for _ in range(self.random.randrange(1, 10))])
        ]

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    def deliver(self, table: str, made: list[tuple]) -> list[str]:
        place = 3 + list(KINDS).index(self.columns[table])
        before = self.numbers[table]
        for row in made:
            time = row[place]
            if time is None or before is None or time >= before:
                self.tables[table][row[0]] = row
            if time is not None:
                self.numbers[table] = max(self.numbers[table] or time - DELAY, time - DELAY)
        return [f"INSERT INTO {table} VALUES {', '.join('(' + ', '.join(map(text, r)) + ')' for r in made)}"]


def run(seed: int) -> None:
    case = Streams(seed)
    queries = case.queries()
    with watersmeet.connect(runtime="inprocess", parallelism=1 + seed % 3) as connection:
        for table in case.tables:
            connection.execute(case.ddl(table))
        for i, (ours, _) in enumerate(queries):
            connection.execute(f"CREATE MATERIALIZED VIEW v{i} AS {ours}")
        for _ in range(6):
            step(connection, case, case.epoch(), queries)
        for month in (3, 6, 9):  # one row a side: all windows before its own are over
            case.clock = dt.datetime(2024, month, 1)
            step(connection, case, [s for t in case.tables for s in case.deliver(t, [far(case)])], queries)
        # Left are what has the last rows, and what is known of rows without a time, which no watermark passes.
        for view in connection.status()["views"]:
            assert view["state_rows"] <= 12 * (case.size // (case.slide or case.size)), view


def far(case: Streams) -> tuple:
    return (case.number(), 1, 1, case.clock, case.clock.replace(tzinfo=dt.UTC), case.clock.date())


def step(connection, case: Streams, statements: list[str], queries: list[tuple[str, str]]) -> None:
    for statement in statements:
        connection.execute(statement)
    connection.execute("FLUSH")
    judge = case.judge()
    for i, (ours, theirs) in enumerate(queries):
        assert content(connection, f"SELECT * FROM v{i}") == rows(judge.execute(theirs).fetchall()), ours


@pytest.mark.parametrize("seed", mostly_slow(range(3), 0))
def test_views(seed: int) -> None:
    run(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_more(block: int) -> None:
    for seed in range(1000 + 8 * block, 1008 + 8 * block):
        run(seed)
