"""SUBSCRIBE TO, RECOVER FROM and UNSUBSCRIBE TO: running queries that stay when nobody reads them.

Source: Proton's smoke tests of query states.
"""

from __future__ import annotations

from typing import Final

from watersmeet.binder.emission import request_of
from watersmeet.catalog import Subscription
from watersmeet.database.definitions import remove
from watersmeet.database.reading import runs_on
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.statements import Name, Recover, Subscribe, Unsubscribe
from watersmeet.errors import did_you_mean
from watersmeet.session.services.running import RunningQuery, ShownQuery
from watersmeet.session.statements.select import start
from watersmeet.sinkwriters.changes import Changes
from watersmeet.store.retention import KEPT_BYTES, KEPT_COMMITS

#: Proton's numbers for errors of RECOVER FROM: an unknown id, and one that is running.
_NOT_FOUND: Final = 2003
_RUNS: Final = 216


def subscribe(session: Session, statement: Subscribe) -> Result:
    """SUBSCRIBE TO: starts a query that stays when its cursor is closed."""
    shown = ShownQuery(start_subscription(session, statement))
    session.notice(f"RECOVER FROM '{shown.query.name}' continues this query, UNSUBSCRIBE TO ends it")
    return Result("SUBSCRIBE", shown.columns, running=shown)


def start_subscription(session: Session, statement: Subscribe) -> RunningQuery:
    """Like `select.start`. In a transaction, it is a subscription from COMMIT on.

    FEATURE_NOT_SUPPORTED for a query that ends by itself.
    """
    session.require_definer("SUBSCRIBE TO")
    if not runs_on(session, statement.query):
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "SUBSCRIBE TO a bounded query is not supported",
            hint="Write the SELECT alone.",
        )
    return start(session, statement)


def recover_query(session: Session, statement: Recover) -> Result:
    """RECOVER FROM: continues the query on this cursor."""
    shown = ShownQuery(recover(session, statement))
    return Result("RECOVER", shown.columns, running=shown)


def recover(session: Session, statement: Recover) -> RunningQuery:
    """Continues a subscription that nobody reads.

    UNDEFINED_OBJECT, DUPLICATE_OBJECT if somebody reads it, SUBSCRIPTION_LOST.
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
        before.rest()  # of a query that was forgotten, and is not released yet
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
        database.positions.rest(relation.id)
        raise


def unsubscribe(session: Session, statement: Unsubscribe) -> Result:
    """UNSUBSCRIBE TO: ends a subscription for good. Its reader gets QUERY_CANCELED. UNDEFINED_OBJECT."""
    session.require_definer("UNSUBSCRIBE TO")
    relation = _subscription(session, statement, statement.id)
    for query in session.queries():
        if query.name == relation.name:
            query.kill()
    if relation.id in session.catalog.relations:  # in a transaction of its own it went with its query
        remove(session, {relation.id})
    return Result("UNSUBSCRIBE")


def _subscription(
    session: Session, statement: Recover | Unsubscribe, name: Name, code: int | None = None
) -> Subscription:
    """The view of a subscription. UNDEFINED_OBJECT."""
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
