"""Clauses of a query about its output (EMIT, LIMIT, computed columns), and the ways in which rows of a relation
change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Arrivals, AsofJoin, Cut, Join, Node, Scan, TemporalJoin, TimeFilter, Values, Window
from watersmeet.algebra.properties import is_by_arrival
from watersmeet.errors import Span

EmitMode = Literal["stream", "changelog", "updates", "periodic"]


@dataclass(frozen=True)
class Closing:
    """The end of time windows: the clock of their stream has passed their end by `delay_us`, or no row has arrived for
    `idle_us`; None: only the clock ends them.

    final: whether the rows or groups of the SELECT are output once they are final, and never before.
    """

    delay_us: int = 0
    idle_us: int | None = None
    final: bool = True


@dataclass(frozen=True)
class Emission:
    """An EMIT clause. length_us: the period (0: immediate output).

    repeats: whether each period outputs the whole result, even if nothing has changed.
    """

    mode: EmitMode = "stream"
    length_us: int = 0
    span: Span | None = None
    repeats: bool = False


@dataclass(frozen=True)
class ComputedColumn:
    """An output column that no relation has. It follows `number` columns, or precedes that many if `from_end` is
    set.
    """

    kind: Literal["delta", "version"]
    name: str
    number: int
    from_end: bool
    span: Span | None

    def index(self, width: int) -> int:
        """Its index in an output of `width` columns, which includes this one."""
        return width - 1 - self.number if self.from_end else self.number


@dataclass(frozen=True)
class Request:
    """A query without its clauses about output, and these clauses.

    limit: None if the query runs until it is stopped. computed: the computed columns in the order of the select list.
    query_id: the id that the query sets for itself.
    """

    query: exp.Expression
    emission: Emission = Emission()
    limit: int | None = None
    offset: int = 0
    computed: tuple[ComputedColumn, ...] = ()
    query_id: str | None = None


def with_limit(query: exp.Expression) -> tuple[exp.Expression, int | None, int]:
    """The query without LIMIT and OFFSET, and these numbers, or None if it runs until it is stopped."""
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


#: `append`: rows are only inserted. `changelog`: rows are inserted and deleted. `static`: the content never changes.
ChangeKind = Literal["append", "changelog", "static"]


def change_kind(node: Node) -> ChangeKind:
    """The kind of changes that the rows of a relation have."""
    if isinstance(node, Cut):
        return "static" if node.keeps == "before" else change_kind(node.input)
    if isinstance(node, Scan):
        return "append" if node.append_only else "changelog"
    if isinstance(node, Values):
        return "static"
    if isinstance(node, TemporalJoin) or (isinstance(node, AsofJoin) and node.arrival):
        return change_kind(node.left)
    if isinstance(node, Arrivals):
        return change_kind(node.scan)
    if isinstance(node, TimeFilter) and node.final and node.comparison[0] == "<":
        return "append"
    kinds = {change_kind(i) for i in node.inputs}
    if kinds == {"static"}:
        return "static"
    grows = node.grows or (isinstance(node, Join) and node.kind == "inner")
    grows = grows or (isinstance(node, Window) and is_by_arrival(node))
    return "append" if grows and "changelog" not in kinds else "changelog"


#: The limit of rows that each join of a view may output in one epoch; 0: no limit.
JOIN_ROWS_SETTING: Final = "max_join_amplification_rows"
