"""DuckDB as oracle: the same tables, the same statements, the query run from scratch."""

from __future__ import annotations

import re
from collections import Counter

import duckdb

from tests.property.generator import Case, Table
from watersmeet.testing.comparison import written


class Oracle:
    """Keeps the tables of a case in DuckDB. A primary key is last write wins, as RisingWave has it."""

    def __init__(self, case: Case) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        self.tables = {t.name: t for t in case.tables}
        for table in case.tables:
            self.connection.execute(_ddl(table))

    def execute(self, statement: str) -> None:
        statement = _bytes(statement)
        if m := re.match(r"INSERT INTO (\w+) VALUES", statement):
            if self.tables[m[1]].primary_key:
                statement = statement.replace("INSERT INTO", "INSERT OR REPLACE INTO", 1)
        self.connection.execute(statement)

    def content(self, query: str) -> Counter:
        return rows(self.connection.execute(query).fetchall())


def rows(values: list[tuple]) -> Counter:
    """Rows as a multiset of their spellings, in which 1, 1.0 and 1.00 are the same."""
    return Counter(tuple(written(v) for v in row) for row in values)


def _ddl(table: Table) -> str:
    return table.ddl.replace("bytea", "blob")


def _bytes(statement: str) -> str:
    statement = statement.replace("CAST('\\x01' AS bytea)", "'\\x01'::BLOB").replace("CAST('\\x' AS bytea)", "''::BLOB")
    return statement
