"""What Lenses knows about relations and queries over records, beyond SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.binder.context.binding import Bound, BoundQuery
from watersmeet.binder.context.scope import Extension, Scope
from watersmeet.expressions.values import Value

#: How the records of a topic are read: all of them, or the last one of each key.
RecordKind = Literal["stream", "table"]


@dataclass(frozen=True)
class RecordLayout:
    """How records are stored.

    key_format: None for a computed key. partitions, value_format: None if they come from no topic. by_hash: as of a
    `Topic`.
    """

    key_format: str | None = None
    partitions: int | None = None
    value_format: str | None = None
    by_hash: bool = True


#: The layout of records that come from no topic.
PLAIN: Final = RecordLayout()


@dataclass(frozen=True)
class RecordMetadata(Extension):
    """What the records of a scope have beside the columns. key: None without a key."""

    nature: RecordKind
    key: Value | None
    time: Value
    layout: RecordLayout = PLAIN


@dataclass(frozen=True)
class QueryRecords(Extension):
    """The records that a query gives. Its last columns (`beside`) are their metadata."""

    nature: RecordKind
    layout: RecordLayout


def metadata_in(scope: Scope) -> RecordMetadata | None:
    """The metadata of the records in a scope, or None."""
    return scope.extension if isinstance(scope.extension, RecordMetadata) else None


def records_in(query: Bound | BoundQuery) -> QueryRecords | None:
    """The records that a query gives; None if it reads none."""
    return query.extension if isinstance(query.extension, QueryRecords) else None
