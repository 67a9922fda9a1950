"""What a running SELECT says about its output rather than its rows: when it comes, where it ends, and its extra
columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from watersmeet.errors import Span

EmitMode = Literal["stream", "changelog", "updates", "periodic", "window close"]


@dataclass(frozen=True)
class Emission:
    """An EMIT clause. length_us: the period (0: output at once), or the delay of `window close`.

    is_default: the dialect's default for a query without the clause, which applies only where it is possible.
    """

    mode: EmitMode = "stream"
    length_us: int = 0
    span: Span | None = None
    is_default: bool = False


@dataclass(frozen=True)
class Place:
    """An output column that no relation has: `number` columns stand before it, or after it if `from_end`."""

    kind: Literal["delta", "version"]
    name: str
    number: int
    from_end: bool
    span: Span | None

    def index(self, width: int) -> int:
        """Its index in an output of `width` columns, itself included."""
        return width - 1 - self.number if self.from_end else self.number


@dataclass(frozen=True)
class Request:
    """A query without its words about output, and what these said.

    limit: None: it runs until it is stopped. places: in the order of the select list. query_id: its own name.
    """

    query: exp.Expression
    emission: Emission = Emission()
    limit: int | None = None
    offset: int = 0
    places: tuple[Place, ...] = ()
    query_id: str | None = None


def with_limit(query: exp.Expression) -> tuple[exp.Expression, int | None, int]:
    """The query without the LIMIT that ends it and OFFSET, and what these say; None: it runs until it is stopped."""
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
