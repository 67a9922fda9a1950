"""DuckDB as oracle: the same tables, the same statements, views that are run from scratch when they are read."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable

import duckdb

from tests.property.generator import Table
from tests.property.values import theirs
from watersmeet.testing import written

_KEYED = re.compile(r"INSERT INTO (\w+) VALUES ")
#: Averages of numerics as views compute them: sum / count to ten digits behind the point, rounded half away from zero.
AVERAGE = """
CREATE OR REPLACE MACRO exact_avg(s, n) AS CASE WHEN n = 0 THEN NULL ELSE CAST(CAST(
    (CAST(CAST(s AS DECIMAL(38,10)) * 10000000000 AS HUGEINT) * 2 + sign(s) * n) // (n * 2)
    AS DECIMAL(38,0)) * 0.0000000001 AS DECIMAL(38,10)) END
"""


class UnanswerableError(Exception):
    """DuckDB fails on a query that is right: the case says nothing."""


class Oracle:
    """Keeps the tables of a case in DuckDB. A primary key is last write wins, as RisingWave has it."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.connection = duckdb.connect(config={"threads": 1, "order_by_non_integer_literal": True})
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
        self.connection.execute(AVERAGE)
        for name, average in (("float_sum", False), ("float_avg", True)):
            # As text: DuckDB takes a NaN from Python for NULL.
            self.connection.create_function(
                f"text_{name}",
                _float_function(average=average),
                ["DOUBLE[]", "VARCHAR"],
                "VARCHAR",
                null_handling="special",
            )
            self.connection.execute(f"CREATE MACRO {name}(v, kind) AS CAST(text_{name}(v, kind) AS DOUBLE)")
        self.tables = {t.name: t for t in tables}
        for table in tables:
            self.connection.execute(theirs(table.ddl))

    def execute(self, statement: str) -> None:
        """Changes a table, or BEGIN, COMMIT, ROLLBACK."""
        found = _KEYED.match(statement)
        if found and self.tables[found[1]].primary_key:
            keys = re.findall(r"(?:VALUES |\), )\((\d+),", statement)
            self.connection.execute(f"DELETE FROM {found[1]} WHERE id IN ({', '.join(keys)})")
        self.connection.execute(theirs(statement))

    def view(self, name: str, query: str) -> None:
        """Makes a view. UnanswerableError."""
        try:
            self.connection.execute(f"CREATE VIEW {name} AS {theirs(query)}")
        except duckdb.ConversionException as cause:  # when it folds constants, for an INT64 of its own
            if "Unimplemented type for cast" not in str(cause):
                raise
            raise UnanswerableError(str(cause)) from cause

    def drop(self, names: tuple[str, ...]) -> None:
        """Drops views."""
        for name in names:
            self.connection.execute(f"DROP VIEW {name}")

    def content(self, name: str) -> Counter:
        """The rows of a view or table."""
        return rows(self._fetch(f"SELECT * FROM {name}"))

    def size(self, name: str) -> int:
        """The number of rows of a view or table."""
        found = self.connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        return int(found[0])

    def _fetch(self, query: str) -> list[tuple]:
        cursor = self.connection.execute(query)
        documents = [i for i, d in enumerate(cursor.description) if str(d[1]) == "JSON"]
        found = cursor.fetchall()
        if documents:
            found = [
                tuple(json.loads(v) if i in documents and v is not None else v for i, v in enumerate(row))
                for row in found
            ]
        return found


def rows(values: list[tuple]) -> Counter:
    """Rows as a multiset of their spellings, in which 1, 1.0 and 1.00 are the same."""
    return Counter(tuple(written(v) for v in row) for row in values)


def _float_function(*, average: bool) -> Callable[[list[float | None] | None, str], str | None]:
    """The sum or average of doubles, exact and rounded once."""

    def compute(values: list[float | None] | None, kind: str) -> str | None:
        found = [v for v in values or () if v is not None]
        if not found:
            return None
        infinite = {v for v in found if math.isinf(v)}
        if any(math.isnan(v) for v in found) or len(infinite) > 1:
            return "NaN"
        total = infinite.pop() if infinite else math.fsum(found)
        if average:
            total /= len(found)
        elif kind == "real" and math.isfinite(total):
            total = struct.unpack("f", struct.pack("f", total))[0]
        return repr(total)

    return compute
