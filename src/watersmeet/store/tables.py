"""One relation's content as a DuckDB table: appended to, and retracted from by the hash of whole rows.

A row that is there n times is n rows, so that a plain SELECT costs nothing extra. Columns are c0, c1, …;
`_h` is the hash of the row, absent for relations that only grow.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.errors import Error, error
from watersmeet.store.changes import Diff
from watersmeet.store.layout import check_id
from watersmeet.store.merging import key_sql, quoted, sum_sql
from watersmeet.types import arrow_schema

#: The DuckDB schema that holds the tables.
SPACE: Final = "_watersmeet"
#: The rows that `ContentTable.find` found.
GONE: Final = f"{SPACE}.gone"
_STAGED: Final = f"{SPACE}.staged"
_HITS: Final = f"{SPACE}.hits"
_CANDIDATES: Final = f"{SPACE}.candidates"
_INPUT: Final = "_watersmeet_input"

#: A table is written anew when more rows than it has were deleted from it, but at least these.
_REBUILD_ROWS: Final = 1 << 17


class ContentTable:
    """The rows of `relation` up to commit `applied`. One thread, inside a DuckDB transaction of the caller.

    rows: duplicates counted. version: changes with every change, so that row ids of an older one are void.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, relation: Relation) -> None:
        self.relation = relation
        self.applied = 0
        self.rows = 0
        self.version = 0
        self._connection = connection
        self._deleted_rows = 0
        self.schema = arrow_schema(relation.columns, positional=True)
        self.names = [f.name for f in relation.columns]
        self._hashed = not relation.append_only
        self.table = f"{SPACE}.{check_id(relation.id)}"
        self.create(self.table)

    def create(self, table: str) -> None:
        """Makes an empty table of this form."""
        columns = [f"c{i} {f.type.duckdb}" for i, f in enumerate(self.relation.columns)]
        if self._hashed:
            columns.append("_h UBIGINT")
        self._connection.execute(f"CREATE OR REPLACE TABLE {table} ({', '.join(columns)})")

    def drop(self) -> None:
        """Takes the table away."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self.table}")

    def mark(self) -> tuple[int, int, int, int]:
        """What `restore` needs if the transaction is rolled back."""
        return self.applied, self.rows, self.version, self._deleted_rows

    def restore(self, mark: tuple[int, int, int, int]) -> None:
        """Takes back what was counted since `mark`."""
        self.applied, self.rows, self.version, self._deleted_rows = mark

    @property
    def select(self) -> str:
        """SELECT list that gives the columns their names."""
        return ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(self.names))

    def append(self, table: pa.Table, diff: Diff) -> None:
        """Adds rows, as often as `diff` says (none negative)."""
        if bool((diff != 1).any()):
            table = table.take(pa.array(np.repeat(np.arange(len(diff)), diff)))
        if not table.num_rows:
            return
        with self._input(table, None):
            self._connection.execute(f"INSERT INTO {self.table} {self._typed(_INPUT)}")
        self.rows += table.num_rows
        self.version += 1

    def apply(self, table: pa.Table, diff: Diff) -> None:
        """Adds a change with retractions. INTERNAL_ERROR if it deletes a row that is not there."""
        if not bool((diff < 0).any()):
            self.append(table, diff)
            return
        inserted, deleted = self.stage(table, diff)
        if deleted:
            self.find(deleted)
            self._connection.execute(
                f"DELETE FROM {self.table} WHERE rowid IN (SELECT r FROM {GONE})")
        if inserted:
            self.insert_staged(self.table)
        self.rows += inserted - deleted
        self._deleted_rows += deleted
        self.version += 1
        self._rebuild()

    def stage(self, table: pa.Table, diff: Diff) -> tuple[int, int]:
        """Adds a change up into the table _STAGED (c0.., _h, _n); (rows to insert, rows to delete)."""
        if not self._hashed and bool((diff < 0).any()):
            raise error("INTERNAL_ERROR", f'"{self.relation.name}" only grows, but a change deletes rows of it')
        with self._input(table, diff):
            total = sum_sql(self.schema, _INPUT, "_n")
            self._connection.execute(
                f"CREATE OR REPLACE TABLE {_STAGED} AS {self._typed(f'({total})', ', _n')}")
        row = self._connection.execute(
            f"SELECT coalesce(sum(_n) FILTER (_n > 0), 0), coalesce(-sum(_n) FILTER (_n < 0), 0) FROM {_STAGED}").fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def insert_staged(self, table: str) -> None:
        """Inserts the positive rows of _STAGED into `table`."""
        columns = ", ".join(self._columns)
        self._connection.execute(
            f"INSERT INTO {table} SELECT {columns} FROM "
            f"(SELECT {columns}, unnest(range(_n)) FROM {_STAGED} WHERE _n > 0)")

    def find(self, deleted: int, *, added: str | None = None, hidden: str | None = None) -> None:
        """Puts the row ids of those rows that _STAGED deletes into the table GONE (r BIGINT).

        added: a table with more rows, whose row id n is given as -1 - n and which are taken first.
        hidden: a table (r) of row ids that do not count. `deleted`: how many there must be.
        """
        visible = f" WHERE rowid NOT IN (SELECT r FROM {hidden})" if hidden else ""
        hashes = f"SELECT rowid AS r, _h FROM {self.table}{visible}"
        if added:
            hashes += f" UNION ALL SELECT -1 - rowid AS r, _h FROM {added}"
        execute = self._connection.execute
        # First by the hashes alone, then the few rows found are fetched by row id and compared as a whole: in one
        # statement DuckDB would read all columns of all rows. A list of hashes to look for is slow, of row ids fast.
        execute("SET dynamic_or_filter_threshold = 0")
        execute(f"CREATE OR REPLACE TABLE {_HITS} AS SELECT t.r, s.rowid AS s, -s._n AS wanted FROM ({hashes}) t "
                f"JOIN (SELECT rowid, _h, _n FROM {_STAGED} WHERE _n < 0) s ON t._h = s._h")
        execute("SET dynamic_or_filter_threshold = 2000")
        columns = ", ".join(f"t.c{i}" for i in range(len(self.schema)))
        rows = f"SELECT h.*, {columns} FROM {self.table} t JOIN {_HITS} h ON t.rowid = h.r"
        if added:
            rows += f" UNION ALL SELECT h.*, {columns} FROM {added} t JOIN {_HITS} h ON -1 - t.rowid = h.r"
        execute(f"CREATE OR REPLACE TABLE {_CANDIDATES} AS {rows}")
        same = " AND ".join(
            f"{key_sql(f't.c{i}', f.type)} IS NOT DISTINCT FROM {key_sql(f's.c{i}', f.type)}"
            for i, f in enumerate(self.schema))
        found = execute(
            f"CREATE OR REPLACE TABLE {GONE} AS SELECT r FROM (SELECT t.r, t.wanted, row_number() OVER "
            f"(PARTITION BY t.s ORDER BY t.r) AS place FROM {_CANDIDATES} t JOIN {_STAGED} s ON s.rowid = t.s "
            f"WHERE {same}) WHERE place <= wanted").fetchone()
        execute("RESET dynamic_or_filter_threshold")
        if found is None or found[0] != deleted:
            raise self._not_there()

    @property
    def _columns(self) -> list[str]:
        columns = [f"c{i}" for i in range(len(self.schema))]
        return [*columns, "_h"] if self._hashed else columns

    def _typed(self, source: str, more: str = "") -> str:
        """SELECT of c0.. as the columns' types, the hash if there is one, and `more`, from `source`."""
        columns = [f"CAST(c{i} AS {f.type.duckdb}) AS c{i}" for i, f in enumerate(self.relation.columns)]
        if not self._hashed:
            return f"SELECT {', '.join(columns)}{more} FROM {source}"
        keys = ", ".join(key_sql(f"c{i}", f.type) for i, f in enumerate(self.schema))
        names = ", ".join(f"c{i}" for i in range(len(self.schema)))
        return f"SELECT {names}, hash({keys}) AS _h{more} FROM (SELECT {', '.join(columns)}{more} FROM {source})"

    def _input(self, table: pa.Table, diff: Diff | None) -> _Registered:
        columns = {f.name: c for f, c in zip(self.schema, table.columns, strict=True)}
        if diff is not None:
            columns["_n"] = pa.array(np.ascontiguousarray(diff), pa.int64())
        return _Registered(self._connection, pa.table(columns))

    def _rebuild(self) -> None:
        if self._deleted_rows <= max(self.rows, _REBUILD_ROWS):
            return
        # DuckDB keeps the space of deleted rows of a table in memory.
        self._connection.execute(f"CREATE OR REPLACE TABLE {self.table}_new AS SELECT * FROM {self.table}")
        self._connection.execute(f"DROP TABLE {self.table}")
        self._connection.execute(f"ALTER TABLE {self.table}_new RENAME TO {self.relation.id}")
        self._deleted_rows = 0

    def _not_there(self) -> Error:
        return error("INTERNAL_ERROR", f'a change of "{self.relation.name}" deletes rows that are not there',
                     hint="Drop the view and create it again, and please report this.")


class _Registered:
    """An Arrow table under a name that DuckDB knows, inside a with block."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: pa.Table) -> None:
        self._connection = connection
        self._table = table

    def __enter__(self) -> None:
        self._connection.register(_INPUT, self._table)

    def __exit__(self, *_: object) -> None:
        self._connection.unregister(_INPUT)
