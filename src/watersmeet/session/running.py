"""Queries that run until they are stopped: a hidden view, and what it gave since it was last asked.

Document 003, ruling D-003-17; issue 6, "Streaming SELECT".
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.statements import Select
from watersmeet.errors import error
from watersmeet.session.context import Session
from watersmeet.session.ddl import remove
from watersmeet.session.failures import failure_of
from watersmeet.session.materialize import bind_running, make
from watersmeet.session.result import Result
from watersmeet.store.changes import decode_change
from watersmeet.store.readers import Reader
from watersmeet.types import BIGINT, Field, Schema, arrow_schema

Diff = npt.NDArray[np.int64]

_NUMBERS: Final = itertools.count(1)

#: The column that tells a row that came (1) from one that went (-1); ruling D-003-09.
DELTA: Final = Field(DELTA_COLUMN, BIGINT, nullable=False)


class RunningQuery:
    """A query that runs. `take` gives what it gave since the last call; `close` ends it. Holds its commits until they are taken.

    name: of the hidden view. columns: without the sign of a change. append_only: it never takes a row back. Rows of a query over streams
    come in the order of their rowtime.
    """

    def __init__(self, session: Session, query: exp.Expression, text: str) -> None:
        """Start it: when this returns it shows what its inputs have. Errors of the binder and the planner."""
        session.require_writer("a query that runs until it is stopped")
        session.require_no_transaction("a query that runs until it is stopped")
        database = session.database
        self._session = session
        self._log, self._packs = database.log, database.packs
        bound = bind_running(session, query, text, f"?{next(_NUMBERS)}")
        self._reader: Reader | None = Reader(database.layout)
        self._taken = database.log.head()
        self._reader.hold(self._taken)
        database.at_close(self._reader.close)
        try:
            make(session, bound)
        except BaseException:
            self._reader.close()
            raise
        self.id = bound.relation.id
        self.name = bound.relation.name
        self._stored: Schema = bound.relation.columns
        self._rowtime = bound.rowtime
        self.columns: Schema = self._stored[1:] if bound.hidden else self._stored
        self.append_only = session.catalog.relations[self.id].append_only

    def take(self) -> tuple[pa.Table, Diff]:
        """The changes since the last call and how often each row came (above 0) or went; never waits.

        Once all were given, the error that stopped the query, if one did.
        """
        if self._reader is None:
            raise error("NO_RESULT", "the query has been stopped")
        head = self._log.head()
        blobs = [b for n in range(self._taken + 1, head + 1) if self.id in (found := self._log.read(n).relations)
                 for b in found[self.id].blobs]
        parts = [decode_change(self._packs.read_blob(b, "DATABASE_DAMAGED")) for b in blobs]
        self._taken = head
        self._reader.hold(head)
        if not blobs and (failure := failure_of(self._session, self.id)) is not None:
            raise failure
        empty = arrow_schema(self._stored, positional=False).empty_table()
        rows = pa.concat_tables([empty, *(t.rename_columns(empty.column_names) for t, _ in parts)])
        diff = np.concatenate([np.zeros(0, np.int64), *(d for _, d in parts)])
        if self._rowtime is not None:
            order = np.argsort(rows.column(self._rowtime).cast(pa.int64()).to_numpy(), kind="stable")
            rows, diff = rows.take(pa.array(order)), diff[order]
        return rows.select(range(len(self._stored) - len(self.columns), len(self._stored))), diff

    def close(self) -> None:
        """Ends it. May be called again."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        reader.close()
        database = self._session.database
        with database.ddl:
            if not database.is_closed and self.id in self._session.catalog.relations:
                remove(self._session, {self.id})


def _with_delta(rows: pa.Table, diff: Diff) -> pa.Table:
    """Changes as rows: each as often as it changed, with the sign in the last column."""
    repeated = rows.take(pa.array(np.repeat(np.arange(len(diff)), np.abs(diff))))
    return repeated.append_column(DELTA.name, pa.array(np.repeat(np.sign(diff), np.abs(diff)), pa.int64()))


class ShownQuery:
    """A running query as a cursor shows it: rows in the order of the commits, a changelog with its signs."""

    def __init__(self, query: RunningQuery) -> None:
        self.query = query
        self.columns = query.columns if query.append_only else (*query.columns, DELTA)

    def rows(self) -> pa.Table:
        """See `result.Running`."""
        rows, diff = self.query.take()
        shown = _with_delta(rows, diff)
        return shown.select(range(len(self.columns)))

    def close(self) -> None:
        """See `result.Running`."""
        self.query.close()


def run_select(session: Session, statement: Select) -> Result:
    """Start a SELECT that runs until its cursor is closed."""
    shown = ShownQuery(RunningQuery(session, statement.query, statement.text))
    return Result("SELECT", shown.columns, running=shown)
