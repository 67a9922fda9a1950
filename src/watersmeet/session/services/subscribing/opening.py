"""Subscribers by the names of relations."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.catalog import Relation, View
from watersmeet.dialects.schemas import near_relations, relation_written
from watersmeet.errors import Error, error
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import check_running
from watersmeet.session.access.rights import check_named
from watersmeet.session.services.subscribing.subscriber import BUFFER_BYTES, Subscriber


def subscribe(
    session: Session,
    names: Sequence[str],
    *,
    after: int | None = None,
    up_to: int | None = None,
    snapshot: bool = True,
    progress: bool = False,
    buffer_bytes: int | None = None,
) -> Subscriber:
    """See `Connection.subscribe`."""
    relations = [_named(session, name) for name in names]
    return subscriber_of(
        session,
        relations,
        after=after,
        up_to=up_to,
        snapshot=snapshot,
        progress=progress,
        buffer_bytes=buffer_bytes,
    )


def subscriber_of(
    session: Session,
    relations: Sequence[Relation],
    *,
    after: int | None = None,
    up_to: int | None = None,
    snapshot: bool = True,
    progress: bool = False,
    buffer_bytes: int | None = None,
) -> Subscriber:
    """A subscriber of relations that the session's catalog has. Errors as of `Connection.subscribe`."""
    if not relations:
        raise error("INVALID_PARAMETER", "name at least one relation to subscribe to")
    if len({r.id for r in relations}) < len(relations):
        raise error("INVALID_PARAMETER", "a relation can be named once in a subscription")
    for relation in relations:
        # As all see it: what the open transaction made is staged.
        if (refused := refusal(session.database.catalog.relations.get(relation.id, relation))) is not None:
            raise refused
    check_named(session, [r.id for r in relations])
    check_running(session, [r.id for r in relations])
    return Subscriber(
        session.database,
        relations,
        after=after,
        up_to=up_to,
        snapshot=snapshot,
        progress=progress,
        buffer_bytes=BUFFER_BYTES if buffer_bytes is None else buffer_bytes,
    )


def refusal(relation: Relation) -> Error | None:
    """Why a relation can't be subscribed to."""
    if relation.is_stored and relation.is_there:
        return None
    if relation.is_stored and not relation.ready:
        return error("FEATURE_NOT_SUPPORTED", f"{relation.title} is being filled", hint="FLUSH waits for it.")
    if relation.is_stored:
        return error(
            "FEATURE_NOT_SUPPORTED",
            f"{relation.title} can't be subscribed to in the transaction that made it",
            hint="COMMIT first.",
        )
    kind = "a view is a text" if isinstance(relation, View) else "it has no rows that are stored"
    return error(
        "FEATURE_NOT_SUPPORTED",
        f"{relation.title} can't be subscribed to",
        detail=f"Subscribers follow stored rows, and {kind}.",
        hint="CREATE MATERIALIZED VIEW … AS SELECT … FROM it, and subscribe to that.",
    )


def _named(session: Session, name: str) -> Relation:
    found = relation_written(session.catalog, name)
    if found is None:
        hint = near_relations(session.catalog, name, None)
        raise error("UNDEFINED_RELATION", f'relation "{name}" does not exist', hint=hint)
    return found
