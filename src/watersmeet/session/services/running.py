"""Queries that run until they are stopped: a hidden view, and what it gave since it was last asked.

Timeplus, "Multi-JOINs and ASOF JOINs", ruling D-003-17.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.binder.emission_request import Request
from watersmeet.catalog import DELTA_COLUMN
from watersmeet.errors import Error, error
from watersmeet.session.access.context import Session
from watersmeet.session.access.definitions import remove
from watersmeet.session.access.filling import Bound
from watersmeet.session.access.reading import failure_of
from watersmeet.session.services.changes import Changes
from watersmeet.session.services.emissions import Change, Emitter
from watersmeet.types import BIGINT, Field, Schema, arrow_schema

Diff = npt.NDArray[np.int64]


#: While a query waits for its next rows, it looks so often whether there is a commit.
_LOOK_S: Final = 0.01

#: The column that tells a row that came (1) from one that went (-1); ruling D-003-09.
DELTA: Final = Field(DELTA_COLUMN, BIGINT, nullable=False)


class _Hold:
    """What a running query has of the database: its view, once that is made, and the commits that were not taken."""

    def __init__(self, session: Session, changes: Changes) -> None:
        self.changes = changes
        self.relation_id: str | None = None
        self._session = session
        self._lock = threading.Lock()
        self._released = False

    def release(self) -> None:
        """Gives everything back. May be called again, and from any thread."""
        with self._lock:
            released, self._released = self._released, True
        if released:
            return
        self.changes.close()
        database = self._session.database
        with database.ddl:
            if not database.is_closed and self.relation_id in self._session.catalog.relations:
                remove(self._session, {self.relation_id})

    def abandon(self) -> None:
        """The query was forgotten: releases it in a thread, as the one that notices may hold any lock."""
        thread = threading.Thread(target=self._release_quietly, name="watersmeet-abandoned", daemon=True)
        with contextlib.suppress(RuntimeError):  # at the end of the process, where everything goes
            thread.start()
            self._session.stopping.add(thread)

    def _release_quietly(self) -> None:
        with contextlib.suppress(Error):  # of a database that is being closed: its next start removes the view
            self.release()


class RunningQuery:
    """A query that runs. `take` gives what it gave since the last call; `close` ends it.

    Holds its commits until they are taken.

    One that is forgotten is ended.

    name: its id, and of the hidden view. text: as it was written. started_us: when, in microseconds since 1970 (UTC).
    columns: without the sign of a change. append_only: it never takes a row back. Rows of a query over streams come in
    the order of their rowtime. signed: changes are shown with their sign, as column `delta_at`. ended: LIMIT was
    reached; nothing more comes.
    """

    def __init__(
        self, session: Session, request: Request, bound: Bound, changes: Changes, *, text: str, started_us: int
    ) -> None:
        """bound: its view, which was made. changes: what that gave since."""
        self._session = session
        self.text = text
        self.name = bound.relation.name
        self.started_us = started_us
        self._hold = _Hold(session, changes)
        self._state = threading.Lock()  # of the next two, and of what is taken as they are
        self._closed = self._killed = False
        self.id = self._hold.relation_id = bound.relation.id
        self._forgotten = weakref.finalize(self, self._hold.abandon)
        self._forgotten.atexit = False
        session.running.add(self)
        if session.transaction is not None:
            session.transaction.running.add(self)
        self._complete = False
        self._reads_nothing = not bound.relation.depends_on
        self.append_only = session.catalog.relations[self.id].append_only
        self._emitter = Emitter(
            request,
            arrow_schema(bound.relation.columns, positional=False).empty_table(),
            self.started_us,
            bound.rowtime,
        )
        self._place(request, bound.relation.columns, 1 if bound.hidden else 0)
        if self._emitter.ended:
            self.close()

    def _place(self, request: Request, columns: Schema, first: int) -> None:
        """Where each column comes from: a number of the view's, whose first ones are not shown; behind them is that of
        `emit_version()`.
        """
        width = len(columns) - first + len(request.places)
        special = {p.index(width): p for p in request.places}
        own = iter([*enumerate(columns)][first:])
        shown = [
            (len(columns), Field(special[i].name, BIGINT, nullable=False)) if i in special else next(own)
            for i in range(width)
        ]
        deltas = [i for i, p in special.items() if p.kind == "delta"]
        mode = request.emission.mode
        self.signed = mode != "updates" and (bool(deltas) or mode == "changelog" or not self.append_only)
        self.delta_at = min(deltas, default=width)
        self.delta = shown[self.delta_at][1] if deltas else DELTA
        kept = [s for i, s in enumerate(shown) if i not in deltas]
        self._sources = [n for n, _ in kept]
        self.columns: Schema = tuple(f for _, f in kept)

    @property
    def ended(self) -> bool:
        """True once nothing more comes: LIMIT has been given, or all rows of a query that reads no relation."""
        return self._emitter.ended or self._complete

    @property
    def closed(self) -> bool:
        """Whether it was closed: by its reader, by KILL QUERY, or because nothing more comes."""
        return self._closed

    def take(self) -> tuple[pa.Table, Diff]:
        """The changes since the last call and how often each row came (above 0) or went; never waits.

        Once all were given, the error that stopped the query, if one did. QUERY_CANCELED after KILL QUERY.
        """
        if self._session.database.is_closed:
            raise error("CONNECTION_CLOSED", "the connection is closed")
        changes = self._new()
        rows, diff = self._emitter.emit(changes, self._session.database.clock.now_us())
        self._complete = self._reads_nothing
        if self.ended:
            self.close()
        names = [c.name for c in self.columns]
        return pa.Table.from_arrays([rows.column(n) for n in self._sources], names=names), diff

    def _new(self) -> list[Change]:
        """What commits changed since the last call; nothing once all was given."""
        with self._state:
            if self._killed:
                raise error("QUERY_CANCELED", f'query "{self.name}" was killed')
            if self._closed and not self.ended:
                raise error("NO_RESULT", "the query has been stopped")
            if self._closed:
                return []
            found = self._hold.changes.take(self.id)
        if not found and (failure := failure_of(self._session, self.id)) is not None:
            raise failure
        return found

    def wait(self, seconds: float) -> None:
        """Returns when there may be something to take, at the latest after so many seconds.

        The in-process runtime works meanwhile.

        Raises the error that made the engine stop.
        """
        database = self._session.database
        until_s = time.monotonic() + seconds
        if database.runtime == "inprocess" and not database.is_closed:
            database.flush()
        while not self._hold.changes.any and not self._closed and not database.is_closed:
            if database.engine.failure is not None:
                raise database.engine.failure
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _LOOK_S))

    def kill(self) -> None:
        """Ends it: what was not taken is gone, and who asks for it gets QUERY_CANCELED."""
        with self._state:
            self._killed = self._killed or not self._closed
        self.close()

    def close(self) -> None:
        """Ends it. May be called again."""
        with self._state:
            self._closed = True
        self._forgotten.detach()
        self._hold.release()


class ShownQuery:
    """A running query as a cursor shows it: rows in the order of the commits, a changelog with its signs."""

    def __init__(self, query: RunningQuery) -> None:
        self.query = query
        columns, at = list(query.columns), query.delta_at
        self.columns: Schema = (*columns[:at], query.delta, *columns[at:]) if query.signed else query.columns

    def rows(self) -> pa.Table:
        """See `result.Running`: each change as often as it came or went."""
        rows, diff = self.query.take()
        repeated = rows.take(pa.array(np.repeat(np.arange(len(diff)), np.abs(diff))))
        if not self.query.signed:
            return repeated
        signs = pa.array(np.repeat(np.sign(diff), np.abs(diff)), pa.int64())
        return repeated.add_column(min(self.query.delta_at, repeated.num_columns), self.query.delta.name, signs)

    @property
    def ended(self) -> bool:
        """See `result.Running`."""
        return self.query.ended

    @property
    def sign(self) -> int | None:
        """See `result.Running`."""
        return min(self.query.delta_at, len(self.columns) - 1) if self.query.signed else None

    def wait(self, seconds: float) -> None:
        """See `result.Running`."""
        self.query.wait(seconds)

    def close(self) -> None:
        """See `result.Running`."""
        self.query.close()
