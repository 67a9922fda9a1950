"""EXPLAIN ROW, EXPLAIN MISSING ROW: where rows come from, and why there are none."""

from __future__ import annotations

from typing import Final

import duckdb

from watersmeet.algebra.nodes import Filter, Node, Project
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.binder.bounded import bind_bounded
from watersmeet.database.reading import Bounded, check_running, failed_query, readable, reading
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.database.sessions.rights import check_named
from watersmeet.dialects.statements.explaining import ROW_COLUMNS, ExplainRow
from watersmeet.errors import DataError, Error, error
from watersmeet.kernel.evaluation.duck import VALUE_ERRORS
from watersmeet.lineage.absences import Search, origins_of
from watersmeet.lineage.asking import Asker
from watersmeet.lineage.steps import Step, drawn
from watersmeet.lineage.subqueries import has_single_values, inlined
from watersmeet.lineage.views import Views
from watersmeet.store.manifests import Commit

#: So often it begins again because a new epoch has come meanwhile.
_TRIES: Final = 20


def explain_row(session: Session, statement: ExplainRow) -> Result:
    """Runs the query again, for the rows in question alone, at one moment.

    Errors of the query; PERMISSION_DENIED for who may not read all that its views read; FEATURE_NOT_SUPPORTED for
    results that can't be computed again; HISTORY_GONE for those of which rows are no longer kept.
    """
    if session.transaction is not None and not session.transaction.read_only:
        session.notice("EXPLAIN ROW shows what is committed, without the changes of this transaction.")
    try:
        try:
            # DuckDB's optimizer removes some errors: n + 1 > 10 becomes n > 9.
            steps = _found(session, statement, tolerant=_has_failed(session))
        except VALUE_ERRORS:  # where an expression of a view fails, the view has NULL
            steps = _found(session, statement, tolerant=True)
    except duckdb.Error as cause:
        failed = failed_query(cause, statement.text)
        if not isinstance(failed, DataError):
            raise failed from cause
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the row can't be explained, because an expression fails",
            sql=statement.text,
            detail=f"{failed.message[:1].upper()}{failed.message[1:]}.",
        ) from cause
    except Error as err:
        err.sql = err.sql or statement.text
        raise
    return typed_result("EXPLAIN", ROW_COLUMNS, [tuple(line) for line in drawn(steps)])


def _has_failed(session: Session) -> bool:
    """Whether an expression of a view has failed so far."""
    epoch = session.database.log.last_epoch()
    return epoch is not None and bool(epoch.metrics.errors)


def _found(session: Session, statement: ExplainRow, *, tolerant: bool) -> list[Step]:
    """The answer. tolerant: views have NULL where an expression fails; else that is an error of DuckDB."""
    for _ in range(_TRIES):
        steps = _steps(session, statement, tolerant)
        if steps is not None:
            return steps
    raise error("SNAPSHOT_TOO_OLD", "new epochs came all the time while the row was looked for", sql=statement.text)


def _steps(session: Session, statement: ExplainRow, tolerant: bool) -> list[Step] | None:
    """The answer; None if the watermarks and the rows that were read are not of one epoch."""
    catalog = readable(session.catalog)
    found = bind_bounded(statement.query, catalog, statement.text, session.dialect, files=False)
    check_named(session, found.named, statement.text)
    if found.topics:
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", "a topic's messages are not stored here")
    tree, conditions = _searched(found.bound.relation) if statement.missing else (found.bound.relation, [])
    epoch = session.database.log.last_epoch()
    views = Views(session, catalog, statement, epoch or Commit("epoch"), tolerant)
    root = views.explained("the query", tree)
    views.follow(root.tree)
    while True:
        ids = tuple(dict.fromkeys([*found.read, *views.read]))
        check_running(session, ids)
        past = tuple({s.name: s for s in (*found.past, *views.past)}.values())
        query = Bounded("", (), ids, catalog, statement.text, system=found.system, past=past)
        with reading(session, query, newest=False) as connection:
            if session.database.log.last_epoch() != epoch:
                return None
            asker = Asker(connection, lambda i: catalog.relations[i].shown)
            if has_single_values(found.bound.relation):
                asker.rows(inlined(found.bound.relation), 1)  # which fails where the query does
            try:
                with views.answering(connection, asker, {s.name for s in past}, root):
                    origins = origins_of(asker, views.what, views.names, statement.limit)
                    rows = origins.found(root, root.tree, conditions)
                    missing = statement.missing and not rows.total
                    steps = Search(origins, root).steps(root.tree, conditions) if missing else rows.steps
            except Error as err:
                if err.condition == "STATE_DAMAGED" and session.database.log.last_epoch() != epoch:
                    return None  # only the state of the newest epoch is kept
                raise
            if views.lacks_past:  # rows came at moments that are known only now
                continue
        if statement.missing and not missing:
            session.notice("The row is not missing.")
        return steps


def _searched(tree: Node) -> tuple[Node, list[Scalar]]:
    """What EXPLAIN MISSING ROW searches, and for what: the query's relation, and its conditions there."""
    while isinstance(tree, Project):
        tree = tree.input
    return (tree.input, conjuncts(tree.predicate)) if isinstance(tree, Filter) else (tree, [])
