"""A table's content in DuckDB, and what lies on top of it.

What lies on top of a table's content: commits that no epoch has reflected yet, and an open transaction's changes; or
what undoes the newest changes.

The table itself stays as it is: hidden rows are a list of row ids, added rows a second table.

The DuckDB of a content: its schemas, and one that a content gave back, for the next content of this process.

Making a DuckDB takes 11 ms, more than the rest of opening a small database. Who opens one after another, as tests do,
makes one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.store.changes import Diff, quoted
from watersmeet.store.tables import GONE, SPACE, ContentTable
from watersmeet.system import duckdbs
from watersmeet.system.duckdbs import ARRIVAL

#: Above all row ids.
_LATER: Final = 1 << 62


class Overlay:
    """Changes above `base`. upto: the last commit in it. own: how many changes of an open transaction are in it;
    owner: which.

    Void (`is_valid` False) once the base has changed. One thread, inside a DuckDB transaction of the caller.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, base: ContentTable, suffix: str = "") -> None:
        """suffix: of the names of its tables, which no other overlay of `base` has."""
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
        """True while the base is as it was."""
        return self._version == self.base.version

    def apply(self, table: pa.Table, diff: Diff) -> None:
        """Adds a change. INTERNAL_ERROR if it deletes a row that is not there."""
        if not bool((diff < 0).any()):
            self._begin()
            self.base.insert(self._added, table, diff)
            return
        inserted, deleted = self.base.stage(table, diff)
        if inserted or deleted:
            self._begin()
        if deleted:
            self.base.find(deleted, added=self._added, hidden=self._hidden)
            self._connection.execute(f"INSERT INTO {self._hidden} SELECT r FROM {GONE} WHERE r >= 0")
            self._connection.execute(
                f"DELETE FROM {self._added} WHERE rowid IN (SELECT -1 - r FROM {GONE} WHERE r < 0)"
            )
        if inserted:
            self.base.insert_staged(self._added)

    def cut(self, rows: int) -> None:
        """Hides the last rows that came to a table of rows that only come."""
        self._shown_rows = self.base.rows - rows
        found = self._connection.execute(
            f"SELECT count(*) FROM {self.base.table} WHERE rowid < {self._shown_rows}"
        ).fetchone()
        if found is None or found[0] != self._shown_rows:
            raise error("INTERNAL_ERROR", f'the rows of "{self.base.relation.name}" are not numbered as they came')

    def _begin(self) -> None:
        if self._is_empty:
            self.base.create(self._added)
            self._connection.execute(f"CREATE OR REPLACE TABLE {self._hidden} (r BIGINT)")
            self._is_empty = False

    def drop(self) -> None:
        """Takes its tables away."""
        if not self._is_empty:
            self._connection.execute(f"DROP TABLE IF EXISTS {self._added}")
            self._connection.execute(f"DROP TABLE IF EXISTS {self._hidden}")

    @property
    def select(self) -> str:
        """The content with the overlay, as a SELECT with the columns' names."""
        return self._select("", "")

    @property
    def arrival(self) -> str:
        """The same with the order of arrival: what is on top came later."""
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

#: A table that readers touch to begin a transaction of DuckDB.
MOMENT: Final = f"{SPACE}.moment"

#: So much DuckDB writes before it looks which rows are gone, and gives the others new row ids, at a commit of anybody.
#: It never does that here: overlays know rows by their ids, and `ContentTable` gives space back.
_NEVER: Final = "8000000TB"

#: One that holds more than this when all is dropped is not kept.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What a DuckDB is made with. external_access: whether queries may read files and the network."""

    threads: int
    memory_limit: str
    external_access: bool


_guard: Final = threading.Lock()

#: At most one of each settings, empty, by the process that may use it: a fork has none of its threads.
_spares: Final[dict[tuple[int, Settings], duckdb.DuckDBPyConnection]] = {}


def connect(directory: str, settings: Settings) -> duckdb.DuckDBPyConnection:
    """A connection to an empty DuckDB with the schemas of a content. directory: where it spills."""
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
    """Ends a connection of `connect` that nobody uses any more. Its DuckDB is kept if it can serve again."""
    spare = (os.getpid(), settings)
    # Without access to files its place for spilling can't be changed.
    if settings.external_access and _emptied(connection):
        with _guard:
            if spare not in _spares:
                _spares[spare] = connection
                return
    connection.close()


def _emptied(connection: duckdb.DuckDBPyConnection) -> bool:
    """Makes it as it was before `connect`; False if that is not possible, as after it has spilled."""
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
