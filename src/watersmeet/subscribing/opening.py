"""Subscribers by the names of relations, and their updates as a cursor shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.catalog import Relation, View
from watersmeet.database.reading import check_running
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.rights import check_followed, check_named
from watersmeet.dialects.schemas import near_relations, relation_written
from watersmeet.errors import Error, error
from watersmeet.subscribing.subscriber import BUFFER_BYTES, Subscriber
from watersmeet.subscribing.updates import BATCH_ROWS, Update
from watersmeet.values.types import Schema, arrow_schema


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


class Form(Protocol):
    """How updates become rows."""

    @property
    def columns(self) -> Schema: ...

    @property
    def progress(self) -> bool:
        """Whether commits have a row of their own."""
        ...

    @property
    def title(self) -> tuple[Any, ...]:
        """Equal for forms of the same rows."""
        ...

    def rows(self, update: Update) -> pa.Table: ...

    def progress_row(self, commit: int) -> pa.Table: ...


class ShownUpdates:
    """The rows of a subscriber's updates (`result.Running`). The subscriber gives progress if the form has it.

    An update is shown as long as the session may read what is followed: PERMISSION_DENIED otherwise.
    """

    def __init__(self, session: Session, subscriber: Subscriber, form: Form) -> None:
        self.subscriber, self.form, self._session = subscriber, form, session
        self._followed = [f.relation.id for f in subscriber.followed]
        self.columns: Schema = form.columns

    def rows(self) -> pa.Table:
        """See `result.Running`."""
        found = [arrow_schema(self.columns, positional=False).empty_table()]
        count = 0
        while count < BATCH_ROWS and (update := self.subscriber.take()) is not None:
            found += self.tables(update)
            count += sum(t.num_rows for t in found[-2:])
        return pa.concat_tables(found)

    def encoded(self, update: Update, how: object, encode: Callable[[pa.Table], bytes]) -> tuple[bytes, int]:
        """The rows of one update in the form of `encode`, and how many they are. What a commit changed is encoded once
        for all whose `how` is equal.
        """
        tables = self.tables(update)
        parts = [encode(t) for t in tables[bool(update.batches) :]]
        if update.batches:
            rows = tables[0]
            key = (self.form.title, how)
            parts.insert(0, encode(rows) if update.is_snapshot else update.batches[0].made(key, lambda _: encode(rows)))
        return b"".join(parts), sum(t.num_rows for t in tables)

    def tables(self, update: Update) -> list[pa.Table]:
        """The rows of one update, and the row of its progress."""
        check_followed(self._session, self._followed)
        found = [self.form.rows(update)] if update.batches else []
        if self.form.progress and update.is_complete:
            found.append(self.form.progress_row(update.commit))
        return found

    @property
    def ended(self) -> bool:
        """See `result.Running`."""
        return self.subscriber.ended

    @property
    def sign(self) -> int | None:
        """None: changes are counted, and may count above 1."""
        return None

    def unread(self, rows: int) -> None:
        """Rows that are not handed out come again after the token of before."""

    def wait(self, seconds: float) -> None:
        """See `result.Running`."""
        self.subscriber.wait(seconds)

    def settle(self, most_s: float) -> None:
        """See `result.Running`."""
        self.subscriber.settle(most_s)

    def close(self) -> None:
        """See `result.Running`."""
        self.subscriber.close()
