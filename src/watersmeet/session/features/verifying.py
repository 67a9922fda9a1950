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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.algebra import nodes
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import walk
from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.reading import conformed, readable
from watersmeet.database.rebuild import tree_of
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.isolated import Budget, quoted, run_isolated
from watersmeet.session.handlers import handles
from watersmeet.store.checkpoints import PastContent, check_there, pin_past
from watersmeet.store.inplace import ContentHash, content_hash
from watersmeet.store.positions import Verification, Verifications, manifest_digest
from watersmeet.store.readers import Reader
from watersmeet.system.threads import Worker
from watersmeet.unparsing.relations import Writer
from watersmeet.values.calledfunctions import called_in
from watersmeet.values.types import BIGINT, DOUBLE, TIMESTAMPTZ, VARCHAR, Field, arrow_schema

#: The memory of the process that computes a view again, unless the session sets another one.
_MEMORY_BYTES: Final = 1 << 30

#: The interval at which a thread that waits looks whether it should end.
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
    commit = None
    if cursor.take("AT"):
        cursor.expect("COMMIT")
        commit = cursor.integer()
    cursor.end()
    return Verify(**base, view=view, commit=commit)


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
    made = [verified(session, view, statement.commit) for view in views]
    for view, one in zip(views, made, strict=True):
        _keep(session.database, view, one)
    return typed_result("VERIFY", _SHOWN, [_row(one) for one in made])


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
    """The newest verification of each view that has one, by its id. A process that only reads reads a file for each."""
    service = database.service(Verifying)
    if service is not None:
        return service.newest
    return Verifications(database.layout).newest(_view_ids(database.catalog))


def _view_ids(catalog: Catalog) -> list[str]:
    return [r.id for r in catalog.relations.values() if isinstance(r, MaterializedView)]


def verified(session: Session, view: MaterializedView, number: int | None = None) -> Verification:
    """Computes a view again as of a commit, by default the newest, and compares. Raises HISTORY_GONE."""
    database, began = session.database, time.perf_counter()
    log, catalog = database.log, readable(session.catalog)
    with closing(Reader(database.layout)) as hold:
        number = log.head() if number is None else number
        moment = pin_past(database.layout, log, hold, number)
        check_there(log, [view], number)
        made = Verification(view.shown, number, "not provable", verified_us=database.clock.now_us())
        epoch = log.last_epoch(number)
        try:
            tree = tree_of(view, catalog, 0)
            late = {} if epoch is None else epoch.progress.late
            stopped = epoch is not None and view.id in epoch.progress.failed
            if view.defined > (log.read(number).catalog_version if number else 0):
                return replace(made, reason="it had another query at this commit", took_s=_since(began))
            why = "it was stopped or paused before this commit" if stopped else obstacle(tree, catalog, late)
            if why is not None:
                return replace(made, reason=why, took_s=_since(began))
            inputs = [
                catalog.relations[i] for i in sorted({n.relation_id for n in walk(tree) if isinstance(n, nodes.Scan)})
            ]
            check_there(log, inputs, number)
            writer = Writer(lambda i: f"_watersmeet_input_{i}")
            sql = writer.query(tree, [f"v{i}" for i in range(len(tree.columns))])
            if "epoch_time(" in sql.lower():
                return replace(made, reason=_REASONS[nodes.Clock], took_s=_since(began))
            if any(called_in(sql)):
                return replace(made, reason=_LANGUAGES, took_s=_since(began))
            past = [PastContent(f"_watersmeet_input_{r.id}", r.id, moment.upto(r)) for r in inputs]
            own = PastContent(_VIEW, view.id, moment.upto(view))
            content = database.content
            with content.reader(catalog, [*(r.id for r in inputs), view.id], past=[*past, own]) as (connection, _):
                memory = session.memory_bytes or _MEMORY_BYTES
                budget = Budget(memory, 0, session.cancellation.within, session.cancellation.check, yields=True)
                found = run_isolated(connection, sql, budget).select(range(len(view.columns)))
                expected = conformed(found, arrow_schema(view.columns, positional=False))
                wanted = content_hash(expected.columns, np.ones(expected.num_rows, np.int64))
                hashed = content.content_hash(view, own.upto)
                missing, extra = (0, 0) if wanted == hashed else _different(connection, expected, view)
            hashes = {r.shown: content.content_hash(r, moment.upto(r)) for r in inputs}
            proof = _statement(database, view, number, sql, hashes, wanted, hashed)
        except (Error, duckdb.Error) as cause:
            if isinstance(cause, Error) and cause.condition in _RAISED:
                raise
            text = cause.message if isinstance(cause, Error) else str(cause).splitlines()[0]
            return replace(made, reason=f"DuckDB can't compute it: {text}", took_s=_since(began))
    made = replace(
        made,
        outcome="differs" if missing or extra else "proven",
        missing=missing,
        extra=extra,
        rows=hashed.rows,
        hash=str(hashed),
        took_s=_since(began),
    )
    return made.stating(proof, database.layout, database.catalog.verify_key)


#: Errors that say nothing about the view.
_RAISED: Final = (
    "HISTORY_GONE",
    "QUERY_CANCELED",
    "STATEMENT_TIMEOUT",
    "OUT_OF_MEMORY",
    "DATABASE_DAMAGED",
    "DISK_FULL",
)


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)


def _statement(
    database: OpenDatabase,
    view: Relation,
    number: int,
    sql: str,
    inputs: Mapping[str, ContentHash],
    wanted: ContentHash,
    found: ContentHash,
) -> str:
    """What was compared, as JSON."""
    value = {
        "database": database.layout.id,
        "view": view.shown,
        "commit": number,
        "manifest": manifest_digest(database.layout, number),
        "sql": sql,
        "inputs": {name: {"rows": h.rows, "hash": str(h)} for name, h in sorted(inputs.items())},
        "computed": {"rows": wanted.rows, "hash": str(wanted)},
        "content": {"rows": found.rows, "hash": str(found)},
    }
    return json.dumps(value, ensure_ascii=False)


def _different(connection: duckdb.DuckDBPyConnection, expected: pa.Table, view: Relation) -> tuple[int, int]:
    """The number of rows that a view lacks, and that it should not have."""
    names = [f"v{i}" for i in range(len(view.columns))]
    connection.register(f"{_EXPECTED}_rows", expected.rename_columns(names))
    casts = ", ".join(f"CAST({n} AS {c.type.duckdb}) AS {n}" for n, c in zip(names, view.columns, strict=True))
    columns = ", ".join(f"{quoted(c.name)} AS {n}" for n, c in zip(names, view.columns, strict=True))
    one, other = f"SELECT {casts} FROM {_EXPECTED}_rows", f"SELECT {columns} FROM {_VIEW}"
    try:
        rows = [
            connection.execute(f"SELECT count(*) FROM (({a}) EXCEPT ALL ({b}))").fetchone()
            for a, b in ((one, other), (other, one))
        ]
    finally:
        connection.unregister(f"{_EXPECTED}_rows")
    missing, extra = (int(row[0]) if row else 0 for row in rows)
    return missing, extra


#: The nodes whose rows depend on the content of their inputs alone.
_PLAIN: Final = (nodes.Values, nodes.Filter, nodes.Project, nodes.Union, nodes.Repeat, nodes.Expand, nodes.Unnest)

#: Aggregates whose value does not depend on the order of rows.
_AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")

#: Window functions whose value is the same for rows that are equal in the order.
_OF_PEERS: Final = ("rank", "dense_rank", "percent_rank", "cume_dist")

_LANGUAGES: Final = "it calls functions in other languages, which may return something else each time"

_REASONS: Final[dict[type[nodes.Node], str]] = {
    nodes.TimeFilter: "it depends on the time of epochs, or on watermarks",
    nodes.TemporalJoin: "it looks rows up when others arrive",
    nodes.Clock: "it depends on the time of epochs",
    nodes.Arrivals: "it depends on the order in which rows arrived",
    nodes.Cut: "it depends on when the query was started",
    nodes.LateRowFilter: "it drops rows that are late",
    nodes.AsofJoin: "DuckDB's ASOF join has other rules",
}


def obstacle(tree: nodes.Node, catalog: Catalog, late: Mapping[str, int]) -> str | None:
    """Why a query can't be proven; None if its result is a function of the content of its inputs. late: the number of
    late rows of relations.
    """
    return next(_obstacles(tree, catalog, late), None)


def _obstacles(tree: nodes.Node, catalog: Catalog, late: Mapping[str, int]) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, nodes.Scan):
            yield from _of_input(catalog.relations[node.relation_id], late.get(node.relation_id, 0))
        elif isinstance(node, (nodes.Join, nodes.Apply)):
            if node.arrival:
                yield "partners are determined when rows arrive"
            elif isinstance(node, nodes.Join) and node.partners is not None:
                yield "its outer join outputs rows without partners in addition to their pairs"
        elif isinstance(node, nodes.Aggregate):
            yield from _of_aggregate(node)
        elif isinstance(node, nodes.Window):
            yield from _of_window(node)
        elif isinstance(node, nodes.TopN):
            if not node.with_ties and not _is_ordered(node.input, (*node.partition, *(k.value for k in node.order))):
                yield "its first rows may be equal in ORDER BY, and no key of the query orders these"
        elif not isinstance(node, _PLAIN):
            found = next((why for kind, why in _REASONS.items() if isinstance(node, kind)), None)
            yield found or f"DuckDB has no equivalent of its {type(node).__name__}"


def _of_input(relation: Relation, late: int) -> Iterator[str]:
    if not relation.is_stored:
        yield f"{relation.title} stores no rows; a table with the same connector does"
    if late:
        yield f"{late} rows of {relation.title} were late, and are in no view that existed then"


def _of_aggregate(node: nodes.Aggregate) -> Iterator[str]:
    for call in node.calls:
        if call.function not in _AGGREGATES or call.order:
            yield f"{call.function} depends on the order of rows"
        elif call.function in ("sum", "avg") and call.argument is not None and _is_float(call.argument):
            yield f"{call.function} of floating-point numbers depends on the order of rows"


def _of_window(node: nodes.Window) -> Iterator[str]:
    if node.in_order or node.delays or node.gaps:
        yield "its windows depend on the order in which rows arrived"
        return
    for call in node.calls:
        if call.function in ("sum", "avg") and any(map(_is_float, call.arguments)):
            yield f"{call.function} of floating-point numbers depends on the order of rows"
        elif call.function not in _OF_PEERS and not _is_ordered(
            node.input, (*node.partition, *(k.value for k in call.order))
        ):
            yield f"rows may be equal in the order of {call.function}, and no key of the query orders these"


def _is_float(scalar: Scalar) -> bool:
    return scalar.type.name in ("real", "double precision")


def _is_ordered(node: nodes.Node, values: Sequence[Scalar]) -> bool:
    """Whether no two rows are equal in all of the values."""
    return is_single_row(node, frozenset(v.column for v in values if v.column is not None))


class Verifying(Service):
    """Keeps the results of verifications, and verifies one view after the other in a thread, while `verify_rate` is
    set.
    """

    def __init__(self, session: Session) -> None:
        """session: a separate session, without transactions."""
        self._session = session
        self._worker: _Rounds | None = None
        self._lock = threading.Lock()
        self._kept = Verifications(session.database.layout)
        known = _view_ids(session.database.catalog)
        self._kept.forget(known)
        self.newest: Mapping[str, Verification] = self._kept.newest(known)

    def add(self, view: Relation, made: Verification) -> None:
        """Stores a result. Raises DISK_FULL."""
        self._kept.add(view.id, made)
        with self._lock:
            self.newest = {**self.newest, view.id: made}

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
    """The thread of continuous verification: `verify_rate` views an hour, the one whose turn was longest ago first."""

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
