"""Queries that run until they are stopped: each is a hidden view, whose changes are returned. SUBSCRIBE TO, RECOVER
FROM and UNSUBSCRIBE TO are for running queries that persist without a reader; KILL QUERY ends any running query.

Timeplus, "Multi-JOINs and ASOF JOINs"; Proton's smoke tests of query states.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.binder.context.emissions import Request
from watersmeet.binder.emission import request_of
from watersmeet.catalog import DELTA_COLUMN, QuerySource, Relation, Subscription, turned_into
from watersmeet.database.definitions import remove
from watersmeet.database.reading import failure_of, runs_on
from watersmeet.database.sessions.context import Session, check_followed, check_named, error_at
from watersmeet.database.sessions.cursors import Acknowledgements
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.statements import KillQuery, Name, Recover, Select, Subscribe, Unsubscribe
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.maintenance.views import bind_running, make
from watersmeet.sinkwriters.changes import Changes, Emitter, part
from watersmeet.store.positions import Emitted, Position
from watersmeet.store.retention import KEPT_BYTES, KEPT_COMMITS
from watersmeet.values.types import BIGINT, Field, Schema, arrow_schema

_NUMBERS: Final = itertools.count(1)

Diff = npt.NDArray[np.int64]

#: The interval at which a query that waits for rows checks for a new commit.
_POLL_S: Final = 0.01

#: The column that is 1 for inserted and -1 for deleted rows.
DELTA: Final = Field(DELTA_COLUMN, BIGINT, nullable=False)


class _Resources:
    """The resources of a running query in the database: its view, once created, and the commits not returned yet.

    acknowledgements: the record of the rows that a subscription has returned; it stays usable after `release`.
    """

    def __init__(self, session: Session, changes: Changes) -> None:
        self.changes = changes
        self.relation_id = ""
        self.acknowledgements: Acknowledgements | None = None
        self._session = session
        self._lock = threading.Lock()
        self._released = False

    def release(self) -> None:
        """Releases everything. May be called again, and from any thread."""
        with self._lock:
            released, self._released = self._released, True
        if released:
            return
        self.changes.close()
        database = self._session.database
        with database.ddl:
            if database.is_closed:
                return
            view = database.catalog.relations.get(self.relation_id)
            stays = isinstance(view, Subscription)
            if self.acknowledgements is not None and stays and not self.acknowledgements.finished:
                self.acknowledgements.end_reading()
            elif self.relation_id in self._session.catalog.relations:
                remove(self._session, {self.relation_id})

    def abandon(self) -> None:
        """Releases everything in another thread: called when the query is garbage-collected, in a thread that may hold
        any lock.
        """
        thread = threading.Thread(target=self._release_quietly, name="watersmeet-abandoned", daemon=True)
        with contextlib.suppress(RuntimeError):  # at the end of the process, threads can't be started
            thread.start()
            self._session.stopping.add(thread)

    def _release_quietly(self) -> None:
        with contextlib.suppress(Error, OSError):  # the database is being closed: its next start removes the view
            self.release()


class RunningQuery:
    """A running query. `take` returns the changes since the last call; `close` ends it.

    It pins its commits until they are taken. A query that is garbage-collected is ended; for a subscription (SUBSCRIBE
    TO) that ends only the reading, and RECOVER FROM continues after the last returned row.

    name: its id, which is also the name of the hidden view. text: its SQL text. started_us: its start, in microseconds
    since 1970 (UTC). columns: those of its rows, without the sign of a change. append_only: it never deletes a row.
    signed: the column `delta_at` shows the sign of each change. ended: LIMIT was reached; no more rows follow.

    Rows of a query over streams are in the order of their rowtime.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        relation: Relation,
        changes: Changes,
        *,
        text: str,
        started_us: int,
        rowtime: str | None = None,
        hidden: bool = False,
        position: Position | None = None,
    ) -> None:
        """relation: the query's view, which exists. changes: those of the view. rowtime, hidden: see `BoundQuery`.

        position: the position at which a subscription continues; `changes` contains the commits after `position.since`.
        """
        self._session = session
        self.text = text
        self.name = relation.name
        self.started_us = started_us
        self._resources = _Resources(session, changes)
        self._state = threading.Lock()  # guards the next two attributes, and `take`
        self._closed = self._killed = False
        self._rest: tuple[pa.Table, Diff] | None = None
        self.id = self._resources.relation_id = relation.id
        known = session.catalog.relations
        self._strict = tuple(
            r.id for r in known.values() if isinstance(r, QuerySource) and r.owner == relation.id and r.strict
        )
        self._read = [i for i in relation.depends_on if known[i].owner != relation.id]
        self._complete = False
        self._reads_nothing = not relation.depends_on
        self.append_only = relation.append_only
        empty = arrow_schema(relation.columns, positional=False).empty_table()
        emitted = None if position is None else position.emitted
        self._emitter = Emitter(request, empty, started_us, rowtime, emitted)
        self._place(request, relation.columns, 1 if hidden else 0)
        if position is not None:
            self._go_on(position)
        self._forgotten = weakref.finalize(self, self._resources.abandon)
        self._forgotten.atexit = False
        session.running.add(self)
        if session.transaction is not None:
            session.transaction.running.add(self)
        if self.ended and position is None:
            self.close()

    def _place(self, request: Request, columns: Schema, first: int) -> None:
        """Sets for each column of the result the index of its column in the view. The view's first columns are hidden;
        the index after its last column means `emit_version()`.
        """
        width = len(columns) - first + len(request.computed)
        special = {p.index(width): p for p in request.computed}
        own = iter([*enumerate(columns)][first:])
        shown = [
            (len(columns), Field(special[i].name, BIGINT, nullable=False)) if i in special else next(own)
            for i in range(width)
        ]
        deltas = [i for i, p in special.items() if p.kind == "delta"]
        mode = request.emission.mode
        whole = mode == "updates" or request.emission.repeats  # such rows are never deleted
        self.signed = not whole and (bool(deltas) or mode == "changelog" or not self.append_only)
        self.delta_at = min(deltas, default=width)
        self.delta = shown[self.delta_at][1] if deltas else DELTA
        kept = [s for i, s in enumerate(shown) if i not in deltas]
        self._sources = [n for n, _ in kept]
        self.columns: Schema = tuple(f for _, f in kept)

    @property
    def ended(self) -> bool:
        """True once no more rows follow: LIMIT was reached, or the query reads no relation and has returned all
        rows.
        """
        return self._emitter.ended or self._complete

    @property
    def closed(self) -> bool:
        """Whether it was closed: by its reader, by KILL QUERY, or because no more rows follow."""
        return self._closed

    @property
    def position(self) -> Position:
        """The position up to which its changes were taken and returned."""
        taken, first = self._resources.changes.taken, self._emitter.waits_from
        return Position(taken if first is None else first - 1, taken, self._emitter.so_far)

    def take(self) -> tuple[pa.Table, Diff]:
        """The changes since the last call, and how often each row was inserted (above 0) or deleted (below 0); never
        waits.

        When all are returned, raises the error that stopped the query, if any. Raises QUERY_CANCELED after KILL QUERY,
        PERMISSION_DENIED if its inputs may no longer be read.
        """
        return self._take(kept=False)

    def take_kept(self) -> tuple[pa.Table, Diff]:
        """Like `take`, for a caller that buffers rows and reports with `unread` how many of them are left."""
        return self._take(kept=True)

    def _take(self, *, kept: bool) -> tuple[pa.Table, Diff]:
        if self._session.database.is_closed:
            raise error("CONNECTION_CLOSED", "the connection is closed")
        with self._state:
            if not self._closed and self._resources.acknowledgements is not None:
                self._resources.acknowledgements.acknowledge()
            rows, diff = self._given()
            if not kept and self._resources.acknowledgements is not None:
                self._resources.acknowledgements.unread(0)
        if self.ended and self._resources.acknowledgements is None:
            self.close()
        names = [c.name for c in self.columns]
        return pa.Table.from_arrays([rows.column(n) for n in self._sources], names=names), diff

    def unread(self, rows: int) -> None:
        """Records that of the rows from `take_kept`, as shown, only the last `rows` are not returned yet.

        Raises QUERY_CANCELED or NO_RESULT if the subscription was ended meanwhile: the caller must not return further
        rows.
        """
        acknowledgements = self._resources.acknowledgements
        if acknowledgements is not None:
            with self._state:
                if self._closed:
                    raise self._ended_error()
                acknowledgements.unread(rows)

    def _given(self) -> tuple[pa.Table, Diff]:
        """The next rows. They are recorded as returned."""
        if self._killed or (self._closed and not self.ended):
            raise self._ended_error()
        check_followed(self._session, self._read)
        acknowledgements, begin = self._resources.acknowledgements, self.position
        try:
            now_us = self._session.database.clock.now_us()
            found = [] if self._closed else self._resources.changes.take(self.id)
            rows, diff = self._emitter.emit(found, now_us)
        except BaseException:
            if acknowledgements is not None:
                acknowledgements.lose()
            raise
        if not found and not self._closed:
            self._check()
        self._complete = self._reads_nothing
        if acknowledgements is not None:
            after = self.position
            acknowledgements.gave(replace(begin, upto=after.taken, asked_us=now_us), shown_rows(diff), after)
            acknowledgements.ended = self.ended
        rest, self._rest = self._rest, None
        if rest is not None:
            rows, diff = pa.concat_tables([rest[0], rows]), np.concatenate([rest[1], diff])
        return rows, diff

    def _check(self) -> None:
        """Raises the error that stopped the query or a source that only this query reads."""
        if (failure := failure_of(self._session, self.id)) is not None:
            raise failure
        if self._strict:
            sources = self._session.database.engine.sources()
            for status in (sources[i] for i in self._strict if i in sources):
                if status["state"] == "stalled":
                    raise error("SOURCE_STOPPED", f"the query can't continue: {status['reason']}")

    def _ended_error(self) -> Error:
        if self._killed:
            return error("QUERY_CANCELED", f'query "{self.name}" was killed')
        return error("NO_RESULT", "the query has been stopped")

    def _go_on(self, position: Position) -> None:
        """Continues a subscription after its last returned row: first with the rest of a partly returned change, then
        with changes that were taken but not returned.
        """
        session, changes = self._session, self._resources.changes
        if position.since < position.taken:
            self._emitter.take_back(changes.take(self.id, position.taken))
        given = Acknowledgements(session.database.positions, self.id, position)
        if position.upto is not None:
            rows, diff = self._emitter.emit(changes.take(self.id, position.upto), position.asked_us)
            self._rest = part(rows, diff, position.given, shown_rows(diff))
            given.gave(position, shown_rows(self._rest[1]), self.position)
        given.ended = self.ended
        self._resources.acknowledgements = session.acknowledgements[self.id] = given
        session.database.at_close(given.end_reading)

    def wait(self, seconds: float) -> None:
        """Returns when `take` may have changes to return, or after that many seconds.

        Meanwhile the in-process runtime runs epochs. Raises the error that made the engine stop.
        """
        database = self._session.database
        until_s = time.monotonic() + seconds
        if database.runtime == "inprocess" and not database.is_closed:
            database.flush()
        while not self._resources.changes.any and not self._closed and not database.is_closed:
            if database.engine.failure is not None:
                raise database.engine.failure
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _POLL_S))

    def kill(self) -> None:
        """Ends the query. Changes that were not taken are lost, and `take` raises QUERY_CANCELED."""
        with self._state:
            self._killed = self._killed or not self._closed
        self.close()

    def close(self) -> None:
        """Ends the query. May be called again."""
        with self._state:
            self._closed = True
        self._forgotten.detach()
        self._resources.release()


def shown_rows(diff: Diff) -> int:
    """The number of shown rows of changes: each row counts as often as it was inserted or deleted."""
    return int(np.abs(diff).sum())


class ShownQuery:
    """A running query as a cursor shows it: rows in the order of commits, a changelog with its signs."""

    def __init__(self, query: RunningQuery) -> None:
        self.query = query
        columns, at = list(query.columns), query.delta_at
        self.columns: Schema = (*columns[:at], query.delta, *columns[at:]) if query.signed else query.columns

    def rows(self) -> pa.Table:
        """See `result.Running`. Each change is repeated as often as it was inserted or deleted."""
        rows, diff = self.query.take_kept()
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

    def unread(self, rows: int) -> None:
        """See `result.Running`."""
        self.query.unread(rows)

    def wait(self, seconds: float) -> None:
        """See `result.Running`."""
        self.query.wait(seconds)

    def settle(self, most_s: float) -> None:
        """See `result.Running`. This query reads all commits itself."""
        del most_s
        self.query.wait(0)

    def close(self) -> None:
        """See `result.Running`."""
        self.query.close()


def start(session: Session, statement: Select | Subscribe, *, log: bool = False) -> RunningQuery:
    """Starts a running query. When this returns, it reflects its inputs.

    Raises errors of the binder and the planner. log: return the changes of a table of records as its topic contains
    them.
    """
    session.require_writer("a query that runs until it is stopped")
    database, transaction = session.database, session.transaction
    request = request_of(statement.query, statement.text, session.dialect)
    name = _free_id(session, request, statement.text)
    bound = bind_running(session, request, statement, name, log=log)
    check_named(session, bound.relation.depends_on, statement.text)
    followed = Changes(database)
    started_us = database.clock.now_us()
    begin = None
    if isinstance(statement, Subscribe):
        begin = Position(followed.taken, followed.taken, Emitted(left=request.limit, offset=request.offset))
        if transaction is None:
            bound = replace(bound, relation=turned_into(Subscription, bound.relation, subscribed_us=started_us))
    try:
        if begin is not None:
            database.positions.begin(bound.relation.id, begin)
        make(session, bound)
    except BaseException:
        followed.close()
        database.positions.forget([bound.relation.id])
        raise
    relation = session.catalog.relations[bound.relation.id]
    if begin is not None and transaction is not None:
        transaction.definitions.subscribe(turned_into(Subscription, relation, subscribed_us=started_us))
    return RunningQuery(
        session,
        request,
        relation,
        followed,
        text=statement.sql,
        started_us=started_us,
        rowtime=bound.rowtime,
        hidden=bound.hidden,
        position=begin,
    )


def _free_id(session: Session, request: Request, text: str) -> str:
    """The id of a new query: the requested one, or a new number. Raises DUPLICATE_OBJECT if another query has it."""
    runs = {q.name for q in session.queries()}
    kept = {r.name for r in session.catalog.relations.values() if isinstance(r, Subscription)}
    wanted = request.query_id
    if wanted is None:
        return next(name for n in _NUMBERS if (name := f"query {n}") not in runs | kept)
    if wanted in runs | kept:
        raise error(
            "DUPLICATE_OBJECT",
            f'a query with id "{wanted}" runs already' if wanted in runs else f'subscription "{wanted}" exists',
            sql=text,
            hint=f"RECOVER FROM '{wanted}' continues it, UNSUBSCRIBE TO '{wanted}' ends it."
            if wanted in kept
            else "Choose another query_id, or end that query: KILL QUERY.",
            code=216,
        )
    return wanted


def kill_query(session: Session, statement: KillQuery) -> Result:
    """KILL QUERY: ends running queries of any cursor of the connection. If one of them does not run, raises
    UNDEFINED_OBJECT and ends none.
    """
    running = {q.name: q for q in session.queries()}
    for name in statement.ids:
        if name.name not in running:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_OBJECT",
                f'no query with id "{name.name}" runs',
                hint=did_you_mean(name.name, running) or "SHOW QUERIES lists those that run.",
            )
    killed = [running[i] for i in dict.fromkeys(n.name for n in statement.ids)]
    for query in killed:
        query.kill()
    rows = [("finished", q.name, q.text) for q in killed]
    return text_result("KILL QUERY", ("kill_status", "query_id", "query"), rows)


#: Proton's error numbers for RECOVER FROM: an unknown id, and a query that is running.
_NOT_FOUND: Final = 2003

_RUNS: Final = 216


def subscribe(session: Session, statement: Subscribe) -> Result:
    """SUBSCRIBE TO: starts a query that persists when its cursor is closed."""
    shown = ShownQuery(start_subscription(session, statement))
    session.notice(f"RECOVER FROM '{shown.query.name}' continues this query, UNSUBSCRIBE TO ends it")
    return Result("SUBSCRIBE", shown.columns, running=shown)


def start_subscription(session: Session, statement: Subscribe) -> RunningQuery:
    """Like `start`. In a transaction, the query becomes a subscription at COMMIT.

    Raises FEATURE_NOT_SUPPORTED for a query that ends by itself.
    """
    session.require_definer("SUBSCRIBE TO")
    emission = request_of(statement.query, statement.text, session.dialect).emission
    if emission.repeats:
        raise not_supported(
            "SUBSCRIBE TO with EMIT PERIODIC … REPEAT", statement.text, emission.span, hint="Leave REPEAT out."
        )
    if not runs_on(session, statement.query):
        raise not_supported(
            "SUBSCRIBE TO a batch query", statement.text, statement.span, hint="Write the SELECT alone."
        )
    return start(session, statement)


def recover_query(session: Session, statement: Recover) -> Result:
    """RECOVER FROM: continues the query on this cursor."""
    shown = ShownQuery(recover(session, statement))
    return Result("RECOVER", shown.columns, running=shown)


def recover(session: Session, statement: Recover) -> RunningQuery:
    """Continues a subscription without a reader.

    Raises UNDEFINED_OBJECT, DUPLICATE_OBJECT if it has a reader, SUBSCRIPTION_LOST.
    """
    session.require_writer("RECOVER FROM")
    database = session.database
    relation = _subscription(session, statement, statement.id, code=_NOT_FOUND)
    name = relation.name
    if any(q.name == name for q in session.queries()):
        raise error_at(
            statement,
            statement.id.span,
            "DUPLICATE_OBJECT",
            f'subscription "{name}" is being read',
            hint=f"KILL QUERY '{name}' ends that; then RECOVER FROM continues after the rows that were read.",
            code=_RUNS,
        )
    if (before := session.acknowledgements.pop(relation.id, None)) is not None:
        before.end_reading()  # a garbage-collected reader may not be released yet
    position = database.positions.resume(relation.id)
    if position is None:
        raise error_at(
            statement,
            statement.id.span,
            "SUBSCRIPTION_LOST",
            f'subscription "{name}" can\'t go on: the changes since it was last read are no longer kept',
            detail=f"{KEPT_COMMITS} commits and {KEPT_BYTES >> 20} MB of changes are kept without a reader.",
            hint=f"UNSUBSCRIBE TO '{name}', and subscribe again.",
        )
    made = parse(relation.sql, relation.dialect)[-1]
    assert isinstance(made, Subscribe), f"subscription {name} is stored as {relation.sql}"
    changes = Changes(database, position.since)
    try:
        return RunningQuery(
            session,
            request_of(made.query, made.text, relation.dialect),
            relation,
            changes,
            text=relation.sql,
            started_us=relation.subscribed_us,
            position=position,
        )
    except BaseException:
        changes.close()
        database.positions.idle(relation.id)
        raise


def unsubscribe(session: Session, statement: Unsubscribe) -> Result:
    """UNSUBSCRIBE TO: ends a subscription for good. Its reader receives QUERY_CANCELED. Raises UNDEFINED_OBJECT."""
    session.require_definer("UNSUBSCRIBE TO")
    relation = _subscription(session, statement, statement.id)
    for query in session.queries():
        if query.name == relation.name:
            query.kill()
    if relation.id in session.catalog.relations:  # a transaction may have removed it together with its query
        remove(session, {relation.id})
    return Result("UNSUBSCRIBE")


def _subscription(
    session: Session, statement: Recover | Unsubscribe, name: Name, code: int | None = None
) -> Subscription:
    """The view of a subscription. Raises UNDEFINED_OBJECT."""
    known = {r.name: r for r in session.catalog.relations.values() if isinstance(r, Subscription)}
    if name.name in known:
        return known[name.name]
    raise error_at(
        statement,
        name.span,
        "UNDEFINED_OBJECT",
        f'there is no subscription "{name.name}"',
        hint=did_you_mean(name.name, known) or "SHOW QUERIES lists them. SUBSCRIBE TO makes one.",
        code=code,
    )
