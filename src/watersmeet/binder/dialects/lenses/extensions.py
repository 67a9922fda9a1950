"""What Lenses knows of relations and queries over records beyond SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.binder.binding import Bound, BoundQuery
from watersmeet.binder.scope import Extension, Scope
from watersmeet.expressions.values import Value

#: How the records of a topic are read: each for itself, or the last of each key.
RecordKind = Literal["stream", "table"]


@dataclass(frozen=True)
class RecordLayout:
    """How records are kept. key_format: None for a key that is computed.

    partitions: None for what comes from no topic.
    """

    key_format: str | None = None
    partitions: int | None = None


#: Of what is no topic's.
PLAIN: Final = RecordLayout()


@dataclass(frozen=True)
class RecordMetadata(Extension):
    """Of a scope: what its records have beside the columns. key: None where there is none."""

    nature: RecordKind
    key: Value | None
    time: Value
    layout: RecordLayout = PLAIN


@dataclass(frozen=True)
class QueryRecords(Extension):
    """Of a query: the records that it gives. Its last columns (`beside`) are their metadata."""

    nature: RecordKind
    layout: RecordLayout


def metadata_in(scope: Scope) -> RecordMetadata | None:
    """The metadata of the records of a scope; None if it has none."""
    return scope.extension if isinstance(scope.extension, RecordMetadata) else None


def records_in(query: Bound | BoundQuery) -> QueryRecords | None:
    """The records that a query gives; None if it reads none."""
    return query.extension if isinstance(query.extension, QueryRecords) else None
