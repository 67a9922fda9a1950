"""Watersmeet and DuckDB side by side over TPC-H's tables: every change goes to both, every view is compared."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

import duckdb
import pyarrow as pa

import watersmeet
from tests.harness import Harness
from tests.property.oracle import AVERAGE
from tests.tpch.changes import Change
from tests.tpch.data import QUERIES, TABLES
from watersmeet.testing import written

#: Columns that are the quotient of two numerics, by query: DuckDB divides those as doubles, so it is no judge of
#: the last digits. Everything else is compared digit for digit.
_QUOTIENTS = {8: 1, 14: 0, 17: 0}


class Live:
    """The judge and the database. numbers: of the queries that are views so far."""

    def __init__(self, connection: watersmeet.Connection, judge: duckdb.DuckDBPyConnection) -> None:
        self.connection, self.judge = connection, judge
        self.numbers: list[int] = []
        self.answered: set[int] = set()
        judge.execute(AVERAGE)

    def create(self, numbers: Iterable[int]) -> None:
        """Makes the views."""
        for number in numbers:
            self.connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}")
            self.numbers.append(number)

    def drop(self, number: int) -> None:
        """Drops a view."""
        self.connection.execute(f"DROP MATERIALIZED VIEW q{number:02d}")
        self.numbers.remove(number)

    def load(self, tables: dict[str, pa.Table], batches: int = 1) -> None:
        """Fills Watersmeet's tables with what the judge has already, in so many steps."""
        for batch in range(batches):
            for name in TABLES:
                rows = tables[name]
                first, last = (rows.num_rows * b // batches for b in (batch, batch + 1))
                if last > first:
                    Harness(self.connection).inject(name, rows.slice(first, last - first))
            if batches > 1:
                self.connection.execute("FLUSH")

    def apply(self, changes: Iterable[Change]) -> None:
        """Changes both."""
        for change in changes:
            if isinstance(change, str):
                self.judge.execute(change)
                self.connection.execute(change)
            else:
                table, rows = change
                self.insert(table, rows)

    def insert(self, table: str, rows: pa.Table) -> None:
        """Adds rows to both."""
        self.judge.register("incoming", rows)
        self.judge.execute(f"INSERT INTO {table} SELECT * FROM incoming")
        self.judge.unregister("incoming")
        Harness(self.connection).inject(table, rows)

    def check(self, where: str) -> None:
        """Compares every view with the judge's answer."""
        self.connection.execute("FLUSH")
        for number in self.numbers:
            expected = self._answer(number)
            real = self.connection.execute(f"SELECT * FROM q{number:02d}").fetchall()
            if expected:
                self.answered.add(number)
            missing, surplus = _difference(number, expected, real)
            assert not missing and not surplus, f"{where}: Q{number}\nmissing {missing}\nsurplus {surplus}"

    def _answer(self, number: int) -> list[tuple]:
        query = re.sub(r"avg\((\w+)\)", r"exact_avg(sum(\1), count(\1))", QUERIES[number])
        return self.judge.execute(query).fetchall()


def _difference(number: int, expected: list[tuple], real: list[tuple]) -> tuple[Counter, Counter]:
    """(rows that are missing, rows that are too much)."""
    quotient = _QUOTIENTS.get(number)
    if quotient is not None:
        near = {tuple(row[:quotient]): row[quotient] for row in expected}
        real = [_as(near.get(tuple(row[:quotient])), row, quotient) for row in real]
    wanted, found = (Counter(tuple(map(written, row)) for row in rows) for rows in (expected, real))
    return wanted - found, found - wanted


def _as(other: object, row: tuple, place: int) -> tuple:
    """The row with `other` in its place if the two are as good as equal."""
    value = row[place]
    if other is None or value is None or not math.isclose(float(value), float(other), rel_tol=1e-13, abs_tol=1e-10):
        return row
    return (*row[:place], other, *row[place + 1 :])
