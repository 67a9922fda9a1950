"""What was decided once, as content: all rows that came out, from what came in each commit and what was there then.

So it may stand below anything: groups, windows, LIMIT, other joins. It takes the history since the first of its rows.
A row carries the commit in which it came; what is looked up has all that was ever there, with the commits as of which
it was (`MOMENT` begins the ids of these columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final, Protocol

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Arrivals,
    AsofJoin,
    Column,
    Cut,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Repartition,
    Scan,
    TemporalJoin,
    TopN,
    Union,
    Unnest,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction, conjuncts, null_of
from watersmeet.algebra.trees import exactly, read, walk, with_inputs
from watersmeet.lineage.lookups import decision, gives_candidates, stands_still, untold
from watersmeet.values.types import BIGINT, BOOLEAN

#: So begin the ids of columns with commits.
MOMENT: Final = "#moment"
_PASSING: Final = (Expand, Filter, Repartition, Unnest)

_Numbered = tuple[Node, Column]


class CantTellError(Exception):
    """Why it can't be told what was decided once, as a sentence without its point."""


class Ever(Protocol):
    """All commits up to one, as scans see them."""

    def came(self, scan: Scan, began: int | None, number: Column) -> Node:
        """All that came to a relation that only grows, with the commit in which it was read. began: as in
        `lookups.Moment`.
        """
        ...

    def stayed(self, scan: Scan, number: Column) -> Node:
        """The rows of a scan that are present, with the commit in which each looked up, as in `lookups.Moment`."""
        ...

    def there(self, scan: Scan, since: Column, until: Column) -> Node:
        """All rows that a relation ever had, with the first commit as of which each was there, and the first as of
        which it no longer was.
        """
        ...

    def newest(self, rows: Arrivals, began: int, keys: Sequence[Column], since: Column, until: Column) -> Node:
        """The same of what came to a relation that only grows, each row until a newer one with equal keys came."""
        ...


def with_what_was_decided(tree: Node, ever: Ever) -> Node:
    """The same rows as those that came out of the tree, as a query over content alone. CantTellError."""
    return _Teller(ever).content(tree)


class _Teller:
    def __init__(self, ever: Ever) -> None:
        self._ever = ever
        self._numbers = count(1)
        self._stayed: dict[Scan, _Numbered] = {}

    def content(self, node: Node) -> Node:
        """A tree with what was decided in it as content."""
        if not gives_candidates(node):
            return node
        if decision(node) is None:
            return with_inputs(node, list(map(self.content, node.inputs)))
        return exactly(self.numbered(node)[0], node.columns)

    def numbered(self, node: Node) -> _Numbered:
        """The rows of a tree, with the commit in which each came out, or looked up."""
        if isinstance(node, Scan) and node in self._stayed:
            return self._stayed[node]
        if isinstance(node, Scan):
            return self._came(node, None)
        if isinstance(node, Cut) and node.keeps == "after" and isinstance(node.input, Scan):
            return self._came(node.input, node.moment)
        if isinstance(node, _PASSING):
            below, number = self.numbered(node.input)
            return with_inputs(node, [below]), number
        if isinstance(node, Project):
            below, number = self.numbered(node.input)
            return Project(below, (*node.outputs, number), (*node.exprs, read(number))), number
        if isinstance(node, Union):
            return self._together(list(map(self.numbered, node.parts)), node)
        if isinstance(node, Join) and node.arrival and node.kind not in ("semi", "anti"):
            return self._met(node)
        if isinstance(node, (Join, TemporalJoin)):
            return self._looked_up(node)
        raise CantTellError(_why(node))

    def _column(self) -> Column:
        return Column(f"{MOMENT}{next(self._numbers)}", "commit", BIGINT, False)

    def _came(self, scan: Scan, began: int | None) -> _Numbered:
        taken = revision(scan)
        if taken is not None:
            raise CantTellError(f"{taken}, and which of its rows were there when each was decided is not told")
        number = self._column()
        return self._ever.came(scan, began, number), number

    def _together(self, parts: Sequence[_Numbered], node: Node) -> _Numbered:
        """Rows of several parts, each with the columns of a node in their order."""
        number = self._column()
        made = []
        for (part, own), before in zip(parts, node.inputs, strict=True):
            made.append(exactly(part, (*before.columns, own)))
        return Union(tuple(made), (*node.columns, number)), number

    def _looked_up(self, node: Join | TemporalJoin) -> _Numbered:
        """Each left row with what was there as of the commit in which it came."""
        if isinstance(node, TemporalJoin) and (node.waits or node.ttl_us is not None):
            raise CantTellError(_why(node))
        if not isinstance(node, TemporalJoin) and (node.partners is not None or node.keeps_right):
            raise CantTellError(_why(node))
        if isinstance(node, TemporalJoin) and revision(node.left) is not None:
            self._stays(node)
        left, number = self.numbered(node.left)
        right, then = self._then(node.right, number)
        residual = conjunction([*conjuncts(node.residual), *then])
        return Join(left, right, node.kind, node.keys, residual, span=node.span), number

    def _stays(self, node: TemporalJoin) -> None:
        """Has the rows of the left side that are there read with the commit in which each looked up."""
        why = untold(node)
        if why is not None:
            raise CantTellError(why)
        if any(isinstance(n, TemporalJoin) for n in walk(node.left)):
            return  # its own left rows are read so
        (scan,) = [n for n in walk(node.left) if isinstance(n, Scan)]
        number = self._column()
        self._stayed[scan] = self._ever.stayed(scan, number), number

    def _then(self, node: Node, number: Column) -> tuple[Node, list[Scalar]]:
        """All that was ever in the right side of a look-up, and under which conditions it was as of a commit."""
        if stands_still(node):
            return node, []
        if revision(node) is None and not any(isinstance(n, Arrivals) for n in walk(node)):
            made, came = self.numbered(node)
            return made, [_compared(exp.LTE, came, number)]
        made, since, until = self._versions(node)
        return made, [_compared(exp.LTE, since, number), _compared(exp.LT, number, until)]

    def _versions(self, node: Node) -> tuple[Node, Column, Column]:
        if isinstance(node, Scan):
            since, until = self._column(), self._column()
            return self._ever.there(node, since, until), since, until
        if isinstance(node, _PASSING):
            below, since, until = self._versions(node.input)
            return with_inputs(node, [below]), since, until
        if isinstance(node, Project):
            below, since, until = self._versions(node.input)
            more = (since, until)
            return Project(below, (*node.outputs, *more), (*node.exprs, *map(read, more))), since, until
        if isinstance(node, TopN) and isinstance(node.input, Cut) and isinstance(node.input.input, Arrivals):
            return self._newest(node, node.input, node.input.input)
        raise CantTellError(
            "What it looks up is more than the rows of one table, which are told as of one commit alone"
        )

    def _newest(self, node: TopN, cut: Cut, rows: Arrivals) -> tuple[Node, Column, Column]:
        by_id = {c.id: c for c in rows.columns}
        keys = [by_id[p.column] for p in node.partition if p.column in by_id]
        in_order = [k.value.column for k in node.order if not k.descending] == [c.id for c in rows.age]
        if not (
            cut.keeps == "after"
            and rows.scan.append_only
            and in_order
            and node.limit == 1
            and not node.offset
            and len(keys) == len(node.partition)
        ):
            raise CantTellError("Which rows of a stream were the newest is told as of one commit alone")
        since, until = self._column(), self._column()
        return self._ever.newest(rows, cut.moment, keys, since, until), since, until

    def _met(self, node: Join) -> _Numbered:
        """Of a join on arrival: all pairs, which come with their second row, and rows that had no partner then."""
        (left, came), (right, other) = map(self.numbered, node.inputs)
        number = self._column()
        newest = exp.func("greatest", column_ref(came.id), column_ref(other.id))
        pairs = Join(left, right, "inner", node.keys, node.residual, span=node.span)
        exprs = (*map(read, node.columns), Scalar(newest, BIGINT, False))
        parts = [Project(pairs, (*node.columns, number), exprs)]
        if node.kind in ("left", "full"):
            parts.append(self._alone(node, (left, came), (right, other), number))
        if node.kind in ("right", "full"):
            parts.append(self._alone(node, (right, other), (left, came), number))
        if len(parts) == 1:
            return parts[0], number
        return Union(tuple(parts), parts[0].outputs), number

    def _alone(self, node: Join, side: _Numbered, other: _Numbered, number: Column) -> Project:
        """The rows of one side that had no partner when they came, with NULLs in the place of the other."""
        rows, came = side
        keys = (
            node.keys if rows.ids >= node.left.ids else tuple(replace(k, left=k.right, right=k.left) for k in node.keys)
        )
        before = conjunction([*conjuncts(node.residual), _compared(exp.LTE, other[1], came)])
        kept = Join(rows, other[0], "anti", keys, before, span=node.span)
        values = (read(c) if c.id in rows.ids else null_of(c.type) for c in node.columns)
        return Project(kept, (*node.columns, number), (*values, read(came)))


def _compared(kind: type[exp.Binary], left: Column, right: Column) -> Scalar:
    return Scalar(kind(this=column_ref(left.id), expression=column_ref(right.id)), BOOLEAN)


def _why(node: Node) -> str:
    """Why a node's rows can't be told."""
    if isinstance(node, AsofJoin):
        return "In it the nearest rows are looked up once, and which these were is told as of one commit alone"
    said = decision(node)
    if said is None:
        return "In it rows are decided once that come from many rows at once, and which of them counted is not kept"
    return f"In it {said}, and which of them came out is not kept"
