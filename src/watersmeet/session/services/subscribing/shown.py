"""A subscriber as a cursor shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.session.access.context import Session
from watersmeet.session.access.rights import check_followed
from watersmeet.session.services.subscribing.subscriber import Subscriber
from watersmeet.session.services.subscribing.updates import BATCH_ROWS, Update
from watersmeet.types import Schema, arrow_schema


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
