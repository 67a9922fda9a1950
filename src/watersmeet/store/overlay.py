"""What lies on top of a table's content: commits that no epoch has reflected yet, and an open transaction's changes; or
what undoes the newest changes.

The table itself stays as it is: hidden rows are a list of row ids, added rows a second table.
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from watersmeet.duckdbs import ARRIVAL
from watersmeet.errors import error
from watersmeet.store.changes import Diff
from watersmeet.store.merging import quoted
from watersmeet.store.tables import GONE, ContentTable

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
