"""VERIFY: computes views again from their inputs at a commit, by DuckDB instead of the operators, and compares.

The query of a view is written as SQL for DuckDB, which runs in a separate process over the content that the inputs had
at the commit. Contents are compared by hash; if these differ, the different rows are counted. A view whose content
depends on more than the content of its inputs, such as the order of arrival, is `not provable`, with the reason.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, LateRows, MaterializedView, Relation
from watersmeet.database.filling import producers_of
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.reading import conformed, readable
from watersmeet.database.rebuild import tree_of
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Error, Span, error
from watersmeet.kernel.evaluation.isolated import Budget, quoted, run_isolated
from watersmeet.session.handlers import handles
from watersmeet.store.checkpoints import Moment, PastContent, check_there, commit_at, pin_past
from watersmeet.store.inplace import content_hash
from watersmeet.store.manifests import Progress
from watersmeet.store.positions import Outcome, Verification, Verifications, manifest_digest
from watersmeet.store.readers import Reader, low_water_number
from watersmeet.system.threads import Worker
from watersmeet.unparsing.provable import INPUT, Computation, begun_with, computation, unknown_late_rows
from watersmeet.values.types import BIGINT, DOUBLE, TIMESTAMPTZ, VARCHAR, Field, arrow_schema

#: The memory of the process that computes a view again, unless the session sets another one.
_MEMORY_BYTES: Final = 1 << 30

#: The interval at which a waiting thread checks whether it should end.
_LOOK_S: Final = 0.2

_LOG: Final = logging.getLogger(__name__)

_EXPECTED: Final = "_watersmeet_expected"
_VIEW: Final = "_watersmeet_verified"


@dataclass(frozen=True, kw_only=True)
class Verify(Statement):
    """`VERIFY [VIEW view] [AT COMMIT commit]`: all materialized views without a name, the newest commit by default."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    view: Name | None
    commit: int | None
    commit_span: Span | None


@dataclass(frozen=True, kw_only=True)
class ShowVerifications(Statement):
    """`SHOW VERIFICATIONS [FROM view]`: the results of VERIFY, the newest first."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    view: Name | None


@reads("VERIFY")
def read_verify(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after VERIFY."""
    view = None
    if cursor.take("VIEW") or cursor.take("MATERIALIZED", "VIEW"):
        view = cursor.relation_name()
    commit = span = None
    if cursor.take("AT"):
        cursor.expect("COMMIT")
        commit = cursor.integer()
        span = span_of([cursor.tokens[cursor.index - 1]])
    if not cursor.done:
        raise cursor.error(hint="Write VERIFY [VIEW name] [AT COMMIT number].")
    return Verify(**base, view=view, commit=commit, commit_span=span)


@reads("SHOW VERIFICATIONS")
def read_show_verifications(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after SHOW VERIFICATIONS."""
    view = cursor.relation_name() if cursor.take("FROM") else None
    cursor.end()
    return ShowVerifications(**base, view=view)


_SHOWN: Final = (
    Field("view", VARCHAR),
    Field("commit", BIGINT),
    Field("result", VARCHAR),
    Field("missing", BIGINT),
    Field("extra", BIGINT),
    Field("reason", VARCHAR),
    Field("rows", BIGINT),
    Field("hash", VARCHAR),
    Field("verified", TIMESTAMPTZ),
    Field("seconds", DOUBLE),
    Field("statement", VARCHAR),
    Field("digest", VARCHAR),
    Field("signature", VARCHAR),
    Field("signed_by", VARCHAR),
)

#: The columns of VERIFY, which are the first ones of SHOW VERIFICATIONS and fit into a terminal.
_SHORT: Final = _SHOWN[:7]

_UNSIGNED: Final = "nobody"


def _row(one: Verification) -> tuple[Any, ...]:
    """The values of `_SHOWN`."""
    differs = (one.missing, one.extra) if one.compared else (None, None)
    return (
        one.view, one.commit, one.outcome, *differs, one.reason or None, one.rows, one.hash or None, one.verified_us,
        one.took_s, one.statement or None, one.digest or None, one.signature or None,
        (one.signed_by or _UNSIGNED) if one.statement else None,
    )  # fmt: skip


@handles(Verify)
def verify(session: Session, statement: Verify) -> Result:
    """VERIFY. Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, HISTORY_GONE, and INVALID_PARAMETER for a future
    commit.
    """
    session.require_no_transaction("VERIFY")
    if statement.view is None:
        views = [r for r in session.catalog.shown if isinstance(r, MaterializedView) and not r.hidden and r.ready]
    else:
        found = session.relation(statement.view, statement)
        if not isinstance(found, MaterializedView):
            raise error(
                "CATALOG_TYPE_MISMATCH",
                f"{found.title} can't be verified",
                sql=statement.text,
                span=statement.view.span,
                hint="VERIFY computes materialized views again.",
            )
        views = [found]
    for view in views:
        session.require("SELECT", view, statement.text)
    with located(statement, statement.commit_span or statement.span):
        made = [verified(session, view, statement.commit) for view in views]
    for view, one in zip(views, made, strict=True):
        _keep(session.database, view, one)
    return typed_result("VERIFY", _SHORT, [_row(one)[: len(_SHORT)] for one in made])


@handles(ShowVerifications)
def show_verifications(session: Session, statement: ShowVerifications) -> Result:
    """SHOW VERIFICATIONS."""
    known, kept = session.catalog.relations, Verifications(session.database.layout)
    if statement.view is not None:
        wanted = [session.relation(statement.view, statement)]
    else:
        wanted = [r for r in known.values() if isinstance(r, MaterializedView) and session.catalog.shows(r)]
    rows = [_row(one) for view in wanted for one in kept.read(view.id)]
    return typed_result("SHOW", _SHOWN, sorted(rows, key=lambda row: row[8], reverse=True))


def _keep(database: OpenDatabase, view: Relation, made: Verification) -> None:
    """Stores a result, unless this process only reads."""
    service = database.service(Verifying)
    if service is not None:
        service.add(view, made)


def newest_verifications(database: OpenDatabase) -> Mapping[str, Verification]:
    """The newest verification of each view that has one, by its id. A read-only process reads a file for each."""
    service = database.service(Verifying)
    if service is not None:
        return service.newest
    return Verifications(database.layout).newest(_view_ids(database.catalog))


def _view_ids(catalog: Catalog) -> list[str]:
    return [r.id for r in catalog.relations.values() if isinstance(r, MaterializedView)]


def verified(session: Session, view: MaterializedView, number: int | None = None) -> Verification:
    """Computes a view again as of a commit, by default the newest, and compares. Raises HISTORY_GONE."""
    database, began = session.database, time.perf_counter()
    log = database.log
    with closing(Reader(database.layout)) as hold:
        number = log.head() if number is None else number
        moment = pin_past(database.layout, log, hold, number)
        check_there(log, [view], number)
        made = Verification(view.shown, number, "not provable", verified_us=database.clock.now_us())
        try:
            epoch = log.last_epoch(number)
            progress = Progress() if epoch is None else epoch.progress
            found = _computation(session, view, number, progress)
            made, proof = (
                (replace(made, reason=found), "")
                if isinstance(found, str)
                else _compared(session, view, found, moment, made)
            )
        except (Error, duckdb.Error) as cause:
            if isinstance(cause, Error) and cause.condition in _RAISED:
                raise
            text = cause.message if isinstance(cause, Error) else str(cause).splitlines()[0]
            made, proof = replace(made, reason=f"DuckDB can't compute it: {text}"), ""
    if proof:
        made = made.stating(proof, database.layout, database.catalog.verify_key)
    return replace(made, took_s=round(time.perf_counter() - began, 3))


def _computation(session: Session, view: MaterializedView, number: int, progress: Progress) -> Computation | str:
    """The computation that proves a view at a commit, or why there is none. Raises HISTORY_GONE."""
    log, catalog = session.database.log, readable(session.catalog)
    if view.defined > (log.read(number).catalog_version if number else 0):
        return "it had another query at this commit"
    if view.id in progress.failed:
        return "it was stopped or paused before this commit"
    tree = tree_of(view, catalog, 0)
    plan = producers_of(session).get(view.id, ())
    begun = begun_with(view, tree, plan, catalog, progress.late, progress.watermarks, progress.time_us)
    made = begun if isinstance(begun, str) else computation(tree, catalog, begun)
    if not isinstance(made, str):
        check_there(log, [catalog.relations[i] for i in made.inputs], number)
    return made


def _compared(
    session: Session, view: MaterializedView, wanted: Computation, moment: Moment, made: Verification
) -> tuple[Verification, str]:
    """The result of a computation at a moment, and its statement."""
    database, catalog, content = session.database, readable(session.catalog), session.database.content
    inputs = [catalog.relations[i] for i in wanted.inputs]
    past = [PastContent(f"{INPUT}{r.id}", r.id, moment.upto(r)) for r in inputs]
    past.append(PastContent(_VIEW, view.id, moment.upto(view)))
    names, columns = [f"v{i}" for i in wanted.positions], [view.columns[i] for i in wanted.positions]
    memory = session.memory_bytes or _MEMORY_BYTES
    budget = Budget(memory, 0, session.cancellation.within, session.cancellation.check, yields=True)
    with content.reader(catalog, [one.relation_id for one in past], past=past) as (connection, _):
        if (lost := _lost(connection, inputs, wanted, catalog)) is not None:
            return replace(made, reason=lost), ""
        sql = wanted.sql
        found = run_isolated(connection, sql, budget).select(range(len(columns)))
        expected = conformed(found, arrow_schema(tuple(columns), positional=False))
        computed = content_hash(expected.columns, np.ones(expected.num_rows, np.int64))
        hashed = content.content_hash(view, moment.upto(view))
        same = computed == hashed and len(columns) == len(view.columns)
        missing, extra = (0, 0) if same else _different(connection, expected.rename_columns(names), columns)
        missing = 0 if wanted.subset else missing
        if (missing or extra) and (doubtful := _doubtful(database, connection, view, wanted)) is not None:
            return replace(made, reason=doubtful), ""
    hashes = {r.shown: content.content_hash(r, moment.upto(r)) for r in inputs}
    value = {
        "database": database.layout.id,
        "view": view.shown,
        "commit": made.commit,
        "manifest": manifest_digest(database.layout, made.commit),
        "sql": sql,
        "columns": [c.name for c in columns],
        "subset": wanted.subset,
        "inputs": {name: {"rows": h.rows, "hash": str(h)} for name, h in sorted(hashes.items())},
        "computed": {"rows": computed.rows, "hash": str(computed)},
        "content": {"rows": hashed.rows, "hash": str(hashed)},
    }
    outcome: Outcome = "differs" if missing or extra else "partly proven" if wanted.caveat else "proven"
    found_out = replace(
        made,
        outcome=outcome,
        missing=missing,
        extra=extra,
        reason=wanted.caveat,
        rows=hashed.rows,
        hash=str(hashed),
    )
    return found_out, json.dumps(value, ensure_ascii=False)


def _lost(
    connection: duckdb.DuckDBPyConnection, inputs: Sequence[Relation], wanted: Computation, catalog: Catalog
) -> str | None:
    """The reason if late rows that the view lacks are no longer kept."""
    for late in inputs:
        if isinstance(late, LateRows):
            row = connection.execute(f"SELECT count(*) FROM {quoted(INPUT + late.id)}").fetchone()
            assert row is not None
            if row[0] < wanted.kept[late.id]:
                return unknown_late_rows(catalog.relations[late.owner], wanted.kept[late.id])
    return None


def _doubtful(
    database: OpenDatabase, connection: duckdb.DuckDBPyConnection, view: Relation, wanted: Computation
) -> str | None:
    """The reason if rows of an input became late while the view was created, so that it may have read some of them as
    history.
    """
    for owner, (late, _) in wanted.late.items():
        at = quoted(late.columns[0].name)
        row = connection.execute(f"SELECT epoch_us(min({at})) FROM {quoted(INPUT + late.id)}").fetchone()
        assert row is not None
        commit = database.log.find(commit_at(database.log, row[0], low_water_number(database.layout)))
        if commit is None or view.since > commit.catalog_version:
            return unknown_late_rows(database.catalog.relations[owner], wanted.late[owner][1])
    return None


#: Errors that do not depend on the view.
_RAISED: Final = (
    "HISTORY_GONE",
    "QUERY_CANCELED",
    "STATEMENT_TIMEOUT",
    "OUT_OF_MEMORY",
    "DATABASE_DAMAGED",
    "DISK_FULL",
)


def _different(connection: duckdb.DuckDBPyConnection, expected: pa.Table, columns: Sequence[Field]) -> tuple[int, int]:
    """The number of rows that a view lacks in these columns, and that it should not have."""
    names = expected.column_names
    connection.register(f"{_EXPECTED}_rows", expected)
    casts = ", ".join(f"CAST({n} AS {c.type.duckdb}) AS {n}" for n, c in zip(names, columns, strict=True))
    listed = ", ".join(f"{quoted(c.name)} AS {n}" for n, c in zip(names, columns, strict=True))
    one, other = f"SELECT {casts} FROM {_EXPECTED}_rows", f"SELECT {listed} FROM {_VIEW}"
    try:
        rows = [
            connection.execute(f"SELECT count(*) FROM (({a}) EXCEPT ALL ({b}))").fetchone()
            for a, b in ((one, other), (other, one))
        ]
    finally:
        connection.unregister(f"{_EXPECTED}_rows")
    missing, extra = (int(row[0]) if row else 0 for row in rows)
    return missing, extra


class Verifying(Service):
    """Keeps the results of verifications, and verifies views sequentially in a thread, while `verify_rate` is
    set.
    """

    def __init__(self, session: Session) -> None:
        """session: a separate session, without transactions."""
        self._session = session
        self._worker: _Rounds | None = None
        self._lock = threading.Lock()
        self._kept = Verifications(session.database.layout)
        self._newest: Mapping[str, Verification] | None = None

    @property
    def newest(self) -> Mapping[str, Verification]:
        """The newest result of each view, which the first call reads."""
        with self._lock:
            if self._newest is None:
                self._newest = self._kept.newest(_view_ids(self._session.database.catalog))
            return self._newest

    def add(self, view: Relation, made: Verification) -> None:
        """Stores a result. Raises DISK_FULL."""
        self._kept.add(view.id, made)
        found = self.newest
        with self._lock:
            self._newest = {**found, view.id: made}

    def start(self) -> None:
        """Starts the thread if the setting is above 0."""
        self._session.database.at_close(self._end)
        self.follow()

    def follow(self) -> None:
        """Starts or ends the thread after the setting has changed."""
        wanted = self._session.database.catalog.verify_rate > 0
        if not wanted:
            self._end()
            return
        with self._lock:
            if self._worker is None:
                self._worker = _Rounds(self._session)
                self._worker.start()

    def _end(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
            worker.join(_END_S)


#: The maximum time that closing a database waits for a verification, which is then abandoned.
_END_S: Final = 5.0


class _Rounds(Worker):
    """The thread of continuous verification: `verify_rate` views an hour, the least recently verified first."""

    def __init__(self, session: Session) -> None:
        super().__init__("verifying", session.database.clock)
        self._session = session
        self._turns: dict[str, int] = {}
        self._due_s = time.monotonic()

    def work(self) -> None:
        database = self._session.database
        rate = database.catalog.verify_rate
        self.show("running")
        if not rate or time.monotonic() < self._due_s or database.is_closed:
            self.stopping.wait(_LOOK_S)
            return
        views = [
            r for r in database.catalog.relations.values()
            if isinstance(r, MaterializedView) and not r.hidden and r.is_there
        ]  # fmt: skip
        self._due_s = time.monotonic() + 3600 / rate
        if not views:
            return
        view = min(views, key=lambda v: self._turns.get(v.id, -1))
        self._turns[view.id] = max(self._turns.values(), default=0) + 1
        try:
            _keep(database, view, verified(self._session, view))
        except (Error, duckdb.Error, OSError) as cause:
            if view.id in database.catalog.relations and not database.is_closed:
                _LOG.warning("%s was not verified: %s", view.title, cause, extra={"relation": view.shown})
