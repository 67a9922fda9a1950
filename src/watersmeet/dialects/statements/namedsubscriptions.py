"""RisingWave's subscriptions: CREATE SUBSCRIPTION, ALTER SUBSCRIPTION, and where a cursor over one begins.

RisingWave, "Subscribe to real-time updates".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from watersmeet.catalog import NamedSubscription, Relation
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_options, read_value, span_of
from watersmeet.errors import Span


@dataclass(frozen=True, kw_only=True)
class CreateSubscription(Create):
    """`CREATE SUBSCRIPTION name FROM source WITH (retention = '1D')`. options: names in lower case."""

    makes: ClassVar[type[Relation]] = NamedSubscription

    source: Name
    options: Mapping[str, str]
    options_span: Span


@dataclass(frozen=True, kw_only=True)
class AlterRetention(Statement):
    """`ALTER SUBSCRIPTION name SET retention = value`. place: of the setting."""

    name: Name
    retention: str
    place: Span
    if_exists: bool = False


@dataclass(frozen=True)
class Beginning:
    """Where a cursor over a subscription begins: with the content, with what comes from now on, with the oldest change
    there is, or with the changes from a time on (milliseconds since 1970, UTC).
    """

    kind: Literal["full", "now", "begin", "since"]
    since_ms: int = 0


def read_create(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind CREATE SUBSCRIPTION."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("FROM")
    source = cursor.relation_name()
    start = cursor.index
    options = read_options(cursor) if cursor.take("WITH") else {}
    cursor.end()
    place = span_of(cursor.tokens[start:]) if options else name.span
    return CreateSubscription(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        source=source,
        options=options,
        options_span=place,
    )


def read_retention(cursor: Cursor, base: dict[str, Any], name: Name, *, if_exists: bool) -> Statement | None:
    """`SET retention = value`, or None if something else follows ALTER SUBSCRIPTION name."""
    start = cursor.index
    if not cursor.take("SET", "RETENTION"):
        return None
    if not cursor.take("TO"):
        cursor.expect("=")
    value = read_value(cursor)
    place = span_of(cursor.tokens[start + 1 : cursor.index])
    cursor.end()
    return AlterRetention(**base, name=name, retention=value, place=place, if_exists=if_exists)


def read_beginning(cursor: Cursor) -> Beginning:
    """`FULL`, `SINCE now()`, `SINCE proctime()`, `SINCE begin()`, `SINCE 1715669376304`, or nothing; to the end."""
    found = Beginning("now")
    if cursor.take("FULL"):
        found = Beginning("full")
    elif cursor.take("SINCE"):
        if cursor.take("NOW", "(", ")") or cursor.take("PROCTIME", "(", ")"):
            pass
        elif cursor.take("BEGIN", "(", ")"):
            found = Beginning("begin")
        else:
            found = Beginning("since", cursor.integer())
    cursor.end()
    return found
