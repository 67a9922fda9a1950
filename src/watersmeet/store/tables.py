"""One relation's content as a DuckDB table, with overlays. Rows are appended, and retracted by their hash.

n equal rows are n rows, so a plain SELECT costs nothing extra. Columns are c0, c1, …; `_h` is the hash of the row,
absent for insert-only relations.

An overlay contains commits that no epoch has reflected yet and an open transaction's changes, or the inverse of the
newest changes. It does not change the table: hidden rows are a list of row ids, added rows a second table.

Creating a DuckDB takes 11 ms, more than the rest of opening a small database, so this process keeps an emptied DuckDB
for its next content.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.columns import fixed
from watersmeet.store.changes import Diff, key_sql, quoted, sum_sql
from watersmeet.store.layout import check_id
from watersmeet.system import duckdbs
from watersmeet.system.duckdbs import ARRIVAL
from watersmeet.values.types import arrow_schema

#: The DuckDB schema of the tables.
SPACE: Final = "_watersmeet"

#: The rows found by `ContentTable.find`.
DELETED: Final = f"{SPACE}.deleted"

_STAGED: Final = f"{SPACE}.staged"
_HITS: Final = f"{SPACE}.hits"
_CANDIDATES: Final = f"{SPACE}.candidates"
_INPUT: Final = "_watersmeet_input"

#: So many rows are read by one thread, without Arrow's data sets, whose import takes a quarter of a second.
_FEW_ROWS: Final = 1 << 16

#: A table is rewritten when the rows deleted from it had more bytes than it has now, and at least these.
_WASTE_BYTES: Final = 1 << 18

#: The size of the hash of a row, and of DuckDB's mark of a deleted row.
_ROW_BYTES: Final = 16

#: The estimated size of a text or nested value.
_TEXT_BYTES: Final = 24

#: In smaller tables, rows are looked up by reading all, in half a millisecond. An index takes 50 bytes a row.
_INDEXED_ROWS: Final = 1 << 18

_MOST_INDEXES: Final = 2

#: An index is used if it finds at most this many rows on average: for more, DuckDB reads all.
_FOUND_ROWS: Final = 1 << 10

#: Types for which DuckDB's index and SQL agree on equal values.
_INDEXED_TYPES: Final = ("smallint", "integer", "bigint", "varchar", "date", "timestamp", "timestamptz")

#: In tables up to this size, rows are found by one statement that reads everything.
_SMALL_ROWS: Final = 1 << 16


class ContentTable:
    """The rows of `relation` up to commit `applied`. For one thread, inside a DuckDB transaction of the caller.

    rows: their number, counting duplicates. version: different after every change, which makes older row ids void.
    waste_bytes: the limit of bytes for deleted rows, if the others take less.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, relation: Relation, *, waste_bytes: int | None = None
    ) -> None:
        self.relation = relation
        self.applied = 0
        self.rows = 0
        self.version = 0
        self._connection = connection
        self._deleted_rows = 0
        self._waste_bytes = _WASTE_BYTES if waste_bytes is None else waste_bytes
        self._given_rows = 0
        self._given_bytes = 0
        """The totals of all changes so far; they determine the average width of a row."""
        self._looked_up: dict[int, int] = {}
        """The number of look-ups by each column, by the column's index."""
        self._indexed: list[int] = []
        self.schema = arrow_schema(relation.columns, positional=True)
        self.names = [f.name for f in relation.columns]
        self._hashed = not relation.only_grows
        self.table = f"{SPACE}.{check_id(relation.id)}"
        self.create(self.table)

    def create(self, table: str) -> None:
        """Creates an empty table with these columns."""
        columns = [f"c{i} {f.type.duckdb}" for i, f in enumerate(self.relation.columns)]
        if self._hashed:
            columns.append("_h UBIGINT")
        self._connection.execute(f"CREATE OR REPLACE TABLE {table} ({', '.join(columns)})")

    def look_up(self, column: str) -> None:
        """Records that a query looks up rows by a column (its stored name). At the second time, a large table gets an
        index, if that finds few rows. Must not be called within a transaction of DuckDB.
        """
        if self.rows < _INDEXED_ROWS:
            return
        place = self._place_of(column)
        if self.relation.columns[place].type.name not in _INDEXED_TYPES:
            return
        known = self._looked_up.setdefault(place, 0)
        self._looked_up[place] += 1
        if known == 1 and len(self._indexed) < _MOST_INDEXES and self._is_selective(place):
            self._indexed.append(place)
            self._index(place)

    def finds(self, column: str) -> bool:
        """Whether rows are found by a column without reading a large table."""
        return self.rows < _INDEXED_ROWS or self._place_of(column) in self._indexed

    def _place_of(self, column: str) -> int:
        """The position of a column, given by its stored name."""
        return [c.name for c in self.relation.as_stored.columns].index(column)

    def _is_selective(self, place: int) -> bool:
        found = self._connection.execute(f"SELECT approx_count_distinct(c{place}) FROM {self.table}").fetchone()
        return found is not None and found[0] * _FOUND_ROWS >= self.rows

    def _index(self, place: int) -> None:
        """Creates an index. If memory is short, there is none, and rows are found by reading all."""
        with contextlib.suppress(duckdb.OutOfMemoryException):
            self._connection.execute(f"CREATE INDEX {self.relation.id}_c{place} ON {self.table} (c{place})")

    def drop(self) -> None:
        """Drops the table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self.table}")

    def mark(self) -> tuple[int, int, int, int]:
        """The state for `restore` after a rollback."""
        return self.applied, self.rows, self.version, self._deleted_rows

    def restore(self, mark: tuple[int, int, int, int]) -> None:
        """Restores the counters from `mark`."""
        self.applied, self.rows, self.version, self._deleted_rows = mark

    @property
    def select(self) -> str:
        """The SELECT list with the columns' names."""
        return ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(self.names))

    @property
    def arrival(self) -> str:
        """A SELECT of the rows with their order of arrival, if the relation is insert-only."""
        return f"SELECT {self.select}, rowid AS {quoted(ARRIVAL)} FROM {self.table}"

    def append(self, table: pa.Table, diff: Diff) -> None:
        """Adds rows, each `diff` times (none negative)."""
        rows = self.insert(self.table, table, diff)
        self.rows += rows
        self.version += bool(rows)

    def insert(self, into: str, table: pa.Table, diff: Diff) -> int:
        """Inserts rows into a table with these columns, in their order. Returns their number."""
        if bool((diff != 1).any()):
            table = table.take(fixed(np.repeat(np.arange(len(diff)), diff), pa.int64()))
        if table.num_rows:
            with self._input(table, None):
                self._connection.execute(f"INSERT INTO {into} {self._typed(_INPUT)}")
        return int(table.num_rows)

    def apply(self, table: pa.Table, diff: Diff) -> None:
        """Adds a change with retractions. Raises INTERNAL_ERROR if it deletes a row that does not exist."""
        if not bool((diff < 0).any()):
            self.append(table, diff)
            return
        inserted, deleted = self.stage(table, diff)
        if deleted:
            self.find(deleted)
            self._connection.execute(f"DELETE FROM {self.table} WHERE rowid IN (SELECT r FROM {DELETED})")
        if inserted:
            self.insert_staged(self.table)
        self.rows += inserted - deleted
        self._deleted_rows += deleted
        self.version += 1
        self._rebuild()

    def stage(self, table: pa.Table, diff: Diff) -> tuple[int, int]:
        """Sums a change into the table _STAGED (c0.., _h, _n). Returns (number of rows to insert, number of rows to
        delete).
        """
        if not self._hashed and bool((diff < 0).any()):
            raise error("INTERNAL_ERROR", f'"{self.relation.name}" only grows, but a change deletes rows of it')
        with self._input(table, diff):
            total = sum_sql(self.schema, _INPUT, "_n")
            self._connection.execute(f"CREATE OR REPLACE TABLE {_STAGED} AS {self._typed(f'({total})', ', _n')}")
        row = self._connection.execute(
            f"SELECT coalesce(sum(_n) FILTER (_n > 0), 0), coalesce(-sum(_n) FILTER (_n < 0), 0) FROM {_STAGED}"
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def insert_staged(self, table: str) -> None:
        """Inserts the positive rows of _STAGED into `table`."""
        columns = ", ".join(self._columns)
        self._connection.execute(
            f"INSERT INTO {table} SELECT {columns} FROM "
            f"(SELECT {columns}, unnest(range(_n)) FROM {_STAGED} WHERE _n > 0)"
        )

    def find(self, deleted: int, *, added: str | None = None, hidden: str | None = None) -> None:
        """Puts the row ids of the rows that _STAGED deletes into the table DELETED (r BIGINT).

        deleted: the required number of rows. added: a table with further rows, which are selected first; row id n
        becomes -1 - n. hidden: a table (r) of row ids that do not count.
        """
        visible = f" WHERE rowid NOT IN (SELECT r FROM {hidden})" if hidden else ""
        sources = [(self.table, "rowid", visible)]
        if added:
            sources.append((added, "-1 - rowid", ""))
        wanted = f"SELECT rowid AS s, -_n AS wanted, * FROM {_STAGED} WHERE _n < 0"
        same = " AND ".join(
            f"{key_sql(f't.c{i}', f.type)} IS NOT DISTINCT FROM {key_sql(f'w.c{i}', f.type)}"
            for i, f in enumerate(self.schema)
        )
        if self.rows <= _SMALL_ROWS:
            rows = " UNION ALL ".join(f"SELECT {r} AS r, * FROM {table}{where}" for table, r, where in sources)
            matches = f"SELECT t.r, w.s, w.wanted FROM ({rows}) t JOIN ({wanted}) w ON t._h = w._h AND {same}"
            found = self._keep_wanted(matches)
        else:
            found = self._find_in_large(sources, wanted, same)
        if found != deleted:
            raise self._not_there()

    def _find_in_large(self, sources: list[tuple[str, str, str]], wanted: str, same: str) -> int:
        """Finds rows by hash only; then fetches the few found rows by row id and compares them as a whole.

        A single statement would read all columns of all rows.
        """
        execute = self._connection.execute
        # As a filter on the scan, a list of hashes is slower than the join itself; a list of row ids is much faster.
        execute("SET dynamic_or_filter_threshold = 0")
        hashes = " UNION ALL ".join(f"SELECT {r} AS r, _h FROM {table}{where}" for table, r, where in sources)
        execute(
            f"CREATE OR REPLACE TABLE {_HITS} AS SELECT t.r, w.s, w.wanted FROM ({hashes}) t "
            f"JOIN ({wanted}) w ON t._h = w._h"
        )
        execute("SET dynamic_or_filter_threshold = 2000")
        columns = ", ".join(f"t.c{i}" for i in range(len(self.schema)))
        rows = " UNION ALL ".join(
            f"SELECT h.*, {columns} FROM {table} t JOIN {_HITS} h ON {r.replace('rowid', 't.rowid')} = h.r"
            for table, r, _ in sources
        )
        execute(f"CREATE OR REPLACE TABLE {_CANDIDATES} AS {rows}")
        found = self._keep_wanted(
            f"SELECT t.r, t.s, t.wanted FROM {_CANDIDATES} t JOIN {_STAGED} w ON w.rowid = t.s WHERE {same}"
        )
        execute("RESET dynamic_or_filter_threshold")
        return found

    def _keep_wanted(self, matches: str) -> int:
        """Fills DELETED from rows (r, s, wanted), of which the first `wanted` by `s` count. Returns their number."""
        # This does not use a window function, for which DuckDB would keep 14 KB of its blocks each time, up to 20 MB.
        found = self._connection.execute(
            f"CREATE OR REPLACE TABLE {DELETED} AS SELECT unnest(list_sort(list(r))[:any_value(wanted)]) AS r "
            f"FROM ({matches}) GROUP BY s"
        ).fetchone()
        assert found is not None
        return int(found[0])

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
        self._given_rows += table.num_rows
        self._given_bytes += table.nbytes
        columns = {f.name: c for f, c in zip(self.schema, table.columns, strict=True)}
        if diff is not None:
            columns["_n"] = fixed(np.asarray(diff, np.int64), pa.int64())
        return _Registered(self._connection, pa.table(columns))

    def _rebuild(self) -> None:
        row_bytes = _ROW_BYTES + self._given_bytes / max(1, self._given_rows)
        if self._deleted_rows * row_bytes <= max(self.rows * row_bytes, self._waste_bytes):
            return
        # DuckDB keeps the space of a table's deleted rows in memory.
        self._connection.execute(f"CREATE OR REPLACE TABLE {self.table}_new AS SELECT * FROM {self.table}")
        self._connection.execute(f"DROP TABLE {self.table}")
        self._connection.execute(f"ALTER TABLE {self.table}_new RENAME TO {self.relation.id}")
        self._deleted_rows = 0
        for place in self._indexed:
            self._index(place)

    def _not_there(self) -> Error:
        return error(
            "INTERNAL_ERROR",
            f'a change of "{self.relation.name}" deletes rows that are not there',
            hint="Drop the view and create it again, and please report this.",
        )


def copied_bytes(relation: Relation, rows: int) -> int:
    """The approximate memory of rows of a relation as a DuckDB table."""
    kinds = [c.type.arrow for c in relation.columns]
    width = sum(k.bit_width // 8 if pa.types.is_primitive(k) else _TEXT_BYTES for k in kinds)
    return rows * (width + _ROW_BYTES)


class _Registered:
    """A context in which DuckDB knows an Arrow table by a name."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: pa.Table) -> None:
        self._connection = connection
        self._table = table

    def __enter__(self) -> None:
        few = self._table.num_rows <= _FEW_ROWS
        self._connection.register(_INPUT, self._table.__arrow_c_stream__() if few else self._table)

    def __exit__(self, *_: object) -> None:
        self._connection.unregister(_INPUT)


#: Above all row ids.
_LATER: Final = 1 << 62


class Overlay:
    """Changes on top of `base`.

    upto: the last commit in it. own: the number of changes of the open transaction `owner` in it. It is void
    (`is_valid` is False) once the base has changed. For one thread, inside a DuckDB transaction of the caller.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, base: ContentTable, suffix: str = "") -> None:
        """suffix: that of its tables' names, unique among the overlays of `base`."""
        self.base = base
        self.upto = base.applied
        self.own = 0
        self.owner = 0
        self._version = base.version
        self._connection = connection
        self._added = f"{base.table}_added{suffix}"
        self._hidden = f"{base.table}_hidden{suffix}"
        self._is_empty = True
        self._shown_rows: int | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the base is unchanged."""
        return self._version == self.base.version

    def apply(self, table: pa.Table, diff: Diff) -> None:
        """Adds a change. Raises INTERNAL_ERROR if it deletes a row that does not exist."""
        if not bool((diff < 0).any()):
            self._begin()
            self.base.insert(self._added, table, diff)
            return
        inserted, deleted = self.base.stage(table, diff)
        if inserted or deleted:
            self._begin()
        if deleted:
            self.base.find(deleted, added=self._added, hidden=self._hidden)
            self._connection.execute(f"INSERT INTO {self._hidden} SELECT r FROM {DELETED} WHERE r >= 0")
            self._connection.execute(
                f"DELETE FROM {self._added} WHERE rowid IN (SELECT -1 - r FROM {DELETED} WHERE r < 0)"
            )
        if inserted:
            self.base.insert_staged(self._added)

    def cut(self, rows: int) -> None:
        """Hides the last rows of an insert-only table."""
        self._shown_rows = self.base.rows - rows
        found = self._connection.execute(
            f"SELECT count(*) FROM {self.base.table} WHERE rowid < {self._shown_rows}"
        ).fetchone()
        if found is None or found[0] != self._shown_rows:
            raise error("INTERNAL_ERROR", f'the rows of "{self.base.relation.name}" are not numbered by arrival')

    def _begin(self) -> None:
        if self._is_empty:
            self.base.create(self._added)
            self._connection.execute(f"CREATE OR REPLACE TABLE {self._hidden} (r BIGINT)")
            self._is_empty = False

    def drop(self) -> None:
        """Drops its tables."""
        if not self._is_empty:
            self._connection.execute(f"DROP TABLE IF EXISTS {self._added}")
            self._connection.execute(f"DROP TABLE IF EXISTS {self._hidden}")

    @property
    def select(self) -> str:
        """The content with the overlay, as a SELECT with the columns' names."""
        return self._select("", "")

    @property
    def arrival(self) -> str:
        """The content with the order of arrival: rows of the overlay are later."""
        return self._select(f", rowid AS {quoted(ARRIVAL)}", f", rowid + {_LATER}")

    def _select(self, of_base: str, of_added: str) -> str:
        base = f"SELECT {self.base.select}{of_base} FROM {self.base.table}"
        if self._shown_rows is not None:
            return f"{base} WHERE rowid < {self._shown_rows}"
        if self._is_empty:
            return base
        return (
            f"{base} WHERE rowid NOT IN (SELECT r FROM {self._hidden}) "
            f"UNION ALL SELECT {self.base.select}{of_added} FROM {self._added}"
        )


#: The DuckDB schema whose views show tables as of the newest transaction and the open one.
NEWEST: Final = "newest"

#: The table that readers read to begin a transaction of DuckDB.
MOMENT: Final = f"{SPACE}.moment"

#: The setting for how much DuckDB writes before it removes deleted rows, which would change the ids of other rows. This
#: value prevents that, because overlays refer to rows by their ids; `ContentTable` frees the space of deleted rows.
_NEVER: Final = "8000000TB"

#: A DuckDB that still has more bytes than this after all was dropped is not kept.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Settings:
    """The settings of a DuckDB. external_access: whether queries may read files and the network."""

    threads: int
    memory_limit: str
    external_access: bool


_guard: Final = threading.Lock()

#: At most one empty connection for each process id and settings. A fork can't use that of its parent, because it lacks
#: its threads.
_spares: Final[dict[tuple[int, Settings], duckdb.DuckDBPyConnection]] = {}


def connect(directory: str, settings: Settings) -> duckdb.DuckDBPyConnection:
    """A connection to an empty DuckDB with the schemas of a `Content`. directory: for spilling."""
    with _guard:
        connection = _spares.pop((os.getpid(), settings), None)
    if connection is not None:
        connection.execute("SET temp_directory = $1", [directory])
    else:
        connection = duckdbs.connect(
            memory_limit=settings.memory_limit,
            threads=settings.threads,
            spill_directory=directory,
            external_access=settings.external_access,
            locked=False,  # each query sets its search path
        )
        connection.execute(f"SET checkpoint_threshold = '{_NEVER}'")
    connection.execute(f"CREATE SCHEMA {SPACE}; CREATE SCHEMA {NEWEST}; CREATE TABLE {MOMENT} (n INTEGER)")
    return connection


def give_back(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    """Ends a connection of `connect`. Keeps its DuckDB if it can be used again."""
    spare = (os.getpid(), settings)
    # Without access to files, the directory for spilling can't be changed.
    if settings.external_access and _emptied(connection):
        with _guard:
            if spare not in _spares:
                _spares[spare] = connection
                return
    connection.close()


def _emptied(connection: duckdb.DuckDBPyConnection) -> bool:
    """Restores the state before `connect`; False if that is not possible, as after spilling."""
    views = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' AND NOT temporary"
    try:
        connection.execute("SET search_path = 'main'; SET temp_directory = ''")
        drops = [f"DROP VIEW main.{quoted(name)}" for (name,) in connection.execute(views).fetchall()]
        connection.execute("; ".join([*drops, f"DROP SCHEMA {NEWEST} CASCADE", f"DROP SCHEMA {SPACE} CASCADE"]))
        held = connection.execute(
            "SELECT (SELECT count(*) FROM duckdb_tables()) + (SELECT count(*) FROM duckdb_views() WHERE NOT internal), "
            "(SELECT sum(memory_usage_bytes) FROM duckdb_memory())"
        ).fetchone()
    except duckdb.Error:
        return False
    return held is not None and held[0] == 0 and held[1] <= _MOST_BYTES
