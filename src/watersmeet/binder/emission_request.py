"""What a SELECT that runs says of its output and not of its rows: when it comes, where it ends, what it is told
with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from watersmeet.errors import Span

EmitMode = Literal["stream", "changelog", "updates", "periodic", "window close"]


@dataclass(frozen=True)
class Emission:
    """An EMIT clause. length_us: of the period (0: as rows come), or of the delay of `window close`."""

    mode: EmitMode = "stream"
    length_us: int = 0
    span: Span | None = None


@dataclass(frozen=True)
class Place:
    """A column of the output that no relation has: so many columns stand before it, or behind it if `from_end`."""

    kind: Literal["delta", "version"]
    name: str
    number: int
    from_end: bool
    span: Span | None

    def index(self, width: int) -> int:
        """Its place among `width` columns, itself counted."""
        return width - 1 - self.number if self.from_end else self.number


@dataclass(frozen=True)
class Request:
    """query: without what is said of the output. limit: None: it runs until it is stopped.

    places: in the order of the list. query_id: what it calls itself.
    """

    query: exp.Expression
    emission: Emission = Emission()
    limit: int | None = None
    offset: int = 0
    places: tuple[Place, ...] = ()
    query_id: str | None = None


def with_limit(query: exp.Expression) -> tuple[exp.Expression, int | None, int]:
    """The query without a LIMIT that ends it, and OFFSET: what these say, None if it runs until it is stopped."""
    limit, offset = _number(query, "limit"), _number(query, "offset")
    if limit is None or query.args.get("order") or (offset is None and query.args.get("offset")):
        return query, None, 0
    query = query.copy()
    query.set("limit", None)
    query.set("offset", None)
    return query, limit, offset or 0


def _number(query: exp.Expression, part: str) -> int | None:
    node = query.args.get(part)
    value = node.expression if node is not None else None
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdecimal() else None
