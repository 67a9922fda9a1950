"""The origins of rows of views that look up each row once: such rows are re-evaluated as of their own commit.

Such a view outputs a row in the epoch in which its left row arrives, with the right rows as of the end of that epoch.
So the row is explained as of that commit: the left rows inserted in it are joined with the right rows present then.
This requires the history since that commit.

Deleting a left row also deletes its output. An update of any column is a new look-up (`whole_rows`), so a row has met
the right rows as of the commit in which it was inserted or last updated.

Where rows wait, earlier rows are candidates as of each commit. If there are as many candidates as inserted rows, they
are the inserted rows.

If the right side has not changed since the view began, the view is an ordinary join with the current right rows.

Other views decide about a row once: on its arrival, by clocks, or by the moment at which the view began. Run again now,
such a query returns candidates: all rows of the view, and possibly others that were rejected then. If there are as many
candidates with the values of a row as the view has such rows, the candidates are these rows. That holds if no input row
of a candidate is ever deleted, and every operator above processes each row separately.

Past decisions can also be computed as content: all output rows, from the rows inserted in each commit and the rows
present then. So the view may be the input of any operator: groups, windows, LIMIT, other joins. That requires the
history since its first row. Each row has the commit in which it was inserted; the relation looked up has every row that
it ever had, with the commits as of which it was present (the ids of these columns begin with `MOMENT`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple, Protocol

from sqlglot import exp

from watersmeet.algebra.bounded import PastScan
from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    AsofJoin,
    Column,
    Cut,
    Expand,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Records,
    Repartition,
    Scan,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Versions,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction, conjuncts, null_of
from watersmeet.algebra.trees import Rule, exactly, filtered, read, transform_up, walk, with_inputs
from watersmeet.values.types import BIGINT, BOOLEAN
from watersmeet.values.watermarks import NOW

_DECIDED_ALONE: Final = (Cut, Expand, Filter, LateRowFilter, Project, Repartition, TimeFilter, Union, Unnest)


def decision(node: Node) -> str | None:
    """The decision that a node makes once for each row, as the last part of a sentence; None if it makes none."""
    if isinstance(node, Cut) and node.keeps == "after":
        return "only rows that came after it began count"
    if isinstance(node, Cut):
        return "only rows that were there when it began count"
    if isinstance(node, LateRowFilter):
        return "rows that come too late for one another don't count"
    if isinstance(node, TemporalJoin):
        return "rows are looked up once, as they are when others arrive"
    if isinstance(node, (Join, AsofJoin)) and node.arrival:
        return "what comes out on arrival is never revised"
    if isinstance(node, Join) and node.partners is not None:
        return "clocks decide once which rows have no partner"
    return None


def decisions(tree: Node) -> list[str]:
    """All decisions that a tree makes once, without duplicates."""
    return list(dict.fromkeys(d for d in map(decision, walk(tree)) if d is not None))


def gives_candidates(node: Node) -> bool:
    """Whether the tree, if it ran now, might return rows that its view does not contain."""
    return decision(node) is not None or any(map(gives_candidates, node.inputs))


def undecidable(tree: Node) -> str | None:
    """The reason why candidates don't determine the rows of a tree, as a sentence without its period; None if they
    do.
    """
    for node in walk(tree):
        why = _undecidable(node) if gives_candidates(node) else None
        if why is not None:
            (said, *_) = decisions(node)
            return f"In it {said}, but {why}"
    return None


def _undecidable(node: Node) -> str | None:
    if isinstance(node, (Join, AsofJoin, TemporalJoin)):
        shown = [node.left] if node.kind == "anti" else [node.left, node.right]
        taken = next((t for t in map(revision, shown) if t is not None), None)
    elif isinstance(node, _DECIDED_ALONE):
        taken = revision(node.inputs[0]) if isinstance(node, (Cut, LateRowFilter)) else None
    else:
        return "it computes with many rows at once, and which of them counted is not kept"
    return None if taken is None else f"{taken}, and rows as they were then are not kept"


def on_arrival(tree: Node) -> Node:
    """The tree with its look-ups as joins on arrival, which have the same candidates."""

    def joined(node: Node) -> Node:
        if not isinstance(node, TemporalJoin):
            return node
        return Join(node.left, node.right, node.kind, node.keys, node.residual, arrival=True, span=node.span)

    return transform_up(tree, joined)


def pairs_and_rows_alone(node: Join) -> Node:
    """The candidates of a join: all pairs, and every row of the sides that it preserves as an outer join."""
    pairs = Join(node.left, node.right, "inner", node.keys, node.residual)
    sides = [node.left] * (node.kind in ("left", "full")) + [node.right] * (node.kind in ("right", "full"))
    if not sides:
        return pairs
    return Union((pairs, *(_alone(node, side) for side in sides)), node.columns)


def _alone(node: Join, side: Node) -> Project:
    """The rows of one side, with NULLs for the other."""
    return Project(side, node.columns, tuple(read(c) if c.id in side.ids else null_of(c.type) for c in node.columns))


_ROW_BY_ROW: Final = (Expand, Filter, Project, Repartition, Union, Unnest)


def standing_still(tree: Node, began: Rule) -> Node:
    """The tree in which content that has not changed since its query began is replaced by the content of that moment.

    began: replaces a `Cut` by the rows present when the query began, if they are known.
    """

    def joined(node: Node) -> Node:
        node = began(node)
        if not _looks_up(node) or not stands_still(node.inputs[1]):
            return node
        if isinstance(node, TemporalJoin):
            return Join(node.left, node.right, node.kind, node.keys, node.residual, span=node.span)
        assert isinstance(node, (AsofJoin, Join))
        return replace(node, arrival=False)

    return transform_up(tree, joined)


def stands_still(node: Node) -> bool:
    """Whether a tree of `standing_still` has the same rows at every moment."""
    if not node.inputs:
        return isinstance(node, (PastScan, Values))
    return not isinstance(node, TimeFilter) and all(map(stands_still, node.inputs))


def unknown_then(tree: Node) -> bool:
    """Whether the content of a tree as of an earlier moment is unknown."""
    return _unknown(tree) is not None


def undecidable_then(tree: Node) -> str | None:
    """The reason why the rows of a tree can't be re-evaluated as of their commits, as a sentence without its period.

    None if they can be, "" if the reason is not in the relation looked up.
    """
    if isinstance(tree, Scan):
        taken = revision(tree)
        return None if taken is None else f"{taken}, and what it looked up when its rows came is not kept"
    if isinstance(tree, TimeFilter) and tree.final and isinstance(tree.inputs[0], Aggregate):
        return "Its groups came out once the clocks of their streams had passed them, and when that was is not kept"
    if isinstance(tree, TemporalJoin) and tree.waits and any(map(_looks_up, walk(tree.left))):
        return "Rows that find nothing wait in it, and what was looked up for them before is not kept"
    if isinstance(tree, TemporalJoin) and tree.ttl_us is not None:
        return "What it finds serves later rows of the same key, and when it was found is not kept"
    if _looks_up(tree):
        left, right = tree.inputs
        if isinstance(tree, TemporalJoin) and revision(left) is not None:
            return untold(tree) or _unknown(right)
        return undecidable_then(left) or _unknown(right)
    if isinstance(tree, _ROW_BY_ROW) or (isinstance(tree, Cut) and tree.keeps == "after"):
        return next((why for why in map(undecidable_then, tree.inputs) if why is not None), None)
    return ""


def untold(join: TemporalJoin) -> str | None:
    """The reason why the commit in which a deletable left row was looked up is unknown; None if it is known."""
    node = join.left
    while isinstance(node, (Filter, Project, Repartition)):
        node = node.input
    if isinstance(node, TemporalJoin):
        return untold(node) or _unknown(node.right)
    if not isinstance(node, Scan):
        return f"{revision(join.left)}, and when its rows came is not known"
    return None if node.key else f"{revision(node)}, and without a primary key its rows can't be told apart"


def _looks_up(node: Node) -> bool:
    """Whether each left row is matched when it arrives, with the right rows present then, or with constant ones."""
    if not isinstance(node, (AsofJoin, Join)):
        return isinstance(node, TemporalJoin)
    if isinstance(node, Join) and (node.keeps_right or node.partners is not None):
        return False
    decides = node.arrival and (isinstance(node, AsofJoin) or node.kind in ("semi", "anti"))
    return decides or stands_still(node.right)


def _unknown(looked_up: Node) -> str | None:
    """The reason why earlier content of the relation looked up is unknown; None if it is known."""
    if isinstance(looked_up, TimeFilter) and any(term.source != NOW for term in looked_up.bound):
        return "What it looks up depends on watermarks, and how far they had come when it was looked up is not told"
    if _since(looked_up) is not None:
        return None
    if isinstance(looked_up, TopN) and not _orders_what_was_there(looked_up):
        return "Which of the rows that were there when it began had come first is not kept"
    if isinstance(looked_up, (Records, Versions)) or decision(looked_up) is not None:
        return "What it looks up was itself decided once, or are versions of rows, which only its own state keeps"
    return next((why for why in map(_unknown, looked_up.inputs) if why is not None), None)


def _orders_what_was_there(node: TopN) -> bool:
    """Whether the rows with which a query began can be ordered by age: its relation has one row for each key."""
    replaced = [n for n in walk(node.input) if isinstance(n, Arrivals) and not n.scan.append_only]
    partition = {p.column for p in node.partition}
    return all(n.scan.key and partition.issuperset(n.scan.key) for n in replaced)


def _since(node: Node) -> Since | None:
    """The rows inserted since the query began, if a node reads exactly these; otherwise None."""
    if isinstance(node, Arrivals):
        return Since(node.scan, node.moment, node.age, replaced=True)
    if not isinstance(node, Cut) or node.keeps != "after":
        return None
    scan, age = (node.input.scan, node.input.age) if isinstance(node.input, Arrivals) else (node.input, ())
    return Since(scan, node.moment, age) if isinstance(scan, Scan) and scan.append_only else None


class Since(NamedTuple):
    """The rows inserted into a relation after a commit. age: the columns that order them, if any.

    replaced: also include rows present at that commit, and rows replaced since. For an append-only relation, these are
    all rows.
    """

    scan: Scan
    commit: int
    age: tuple[Column, ...] = ()
    replaced: bool = False


class Moment(Protocol):
    """A commit, as the scans of a view read it."""

    @property
    def times(self) -> Mapping[str, int]:
        """The watermarks as of the commit, by source, for `watermarks.value`."""
        ...

    def inserted(self, scan: Scan, began: int | None) -> Node:
        """The rows inserted into a relation in this commit. began: the commit after which the query began, if only
        later rows count.
        """
        ...

    def present(self, scan: Scan) -> Node:
        """The present rows of a scan that were looked up in this commit: those inserted or last updated in it."""
        ...

    def before(self, node: Node) -> Node:
        """For a scan whose earlier rows may still wait, the scan of these rows; other nodes unchanged."""
        ...

    def then(self, node: Node) -> Node:
        """For a scan, the scan of the rows present as of the commit; other nodes unchanged."""
        ...

    def since(self, rows: Since) -> Node:
        """The rows inserted up to the commit."""
        ...


def reevaluated(tree: Node, moment: Moment, began: int | None = None) -> Node:
    """The tree as of a commit, with its decisions as a query that only reads content. began: as in `Moment`."""
    if isinstance(tree, Scan):
        return moment.inserted(tree, began)
    if isinstance(tree, Cut):
        return reevaluated(tree.input, moment, tree.moment)
    if not _looks_up(tree):
        return with_inputs(tree, [reevaluated(i, moment, began) for i in tree.inputs])
    left, right = tree.inputs[0], as_of(tree.inputs[1], moment)
    if isinstance(tree, TemporalJoin) and tree.waits:
        return _with_those_that_waited(tree, right, moment, began)
    if isinstance(tree, TemporalJoin) and revision(left) is not None and not any(map(_looks_up, walk(left))):
        left = transform_up(left, lambda n: moment.present(n) if isinstance(n, Scan) else n)
    else:
        left = reevaluated(left, moment, began)
    if isinstance(tree, TemporalJoin):
        return Join(left, right, tree.kind, tree.keys, tree.residual, span=tree.span)
    assert isinstance(tree, (AsofJoin, Join))
    return replace(tree, left=left, right=right, arrival=False)


def _with_those_that_waited(join: TemporalJoin, right: Node, moment: Moment, began: int | None) -> Node:
    """The output of a look-up in which rows wait. All earlier rows that match now are candidates, because some may have
    matched earlier.
    """
    left = reevaluated(join.left, moment, began)
    now = Join(left, right, join.kind, join.keys, join.residual, span=join.span)
    before = transform_up(join.left, moment.before)
    if before == join.left:
        return now
    return Union((now, Join(before, right, "inner", join.keys, join.residual, span=join.span)), join.columns)


def as_of(node: Node, moment: Moment) -> Node:
    """The content of a tree as of a commit."""
    rows = _since(node)
    if rows is not None:
        return moment.since(rows)
    return moment.then(with_inputs(node, [as_of(i, moment) for i in node.inputs]))


def looking_up(tree: Node, conditions: Sequence[Scalar]) -> list[Node]:
    """The inputs of a tree of `reevaluated` in which rows are looked up, filtered by the conditions that apply to
    them.
    """
    return _first_inputs(push_filters(filtered(tree, conditions)))


def _first_inputs(tree: Node) -> list[Node]:
    if isinstance(tree, Union):
        return [part for i in tree.inputs for part in _first_inputs(i)]
    if not any(isinstance(n, (AsofJoin, Join, Union)) for n in walk(tree)):
        return [tree]
    return _first_inputs(tree.inputs[0])


#: The prefix of the ids of columns with commits.
MOMENT: Final = "#moment"

_NUMBER_KEEPING: Final = (Expand, Filter, Repartition, Unnest)
_Numbered = tuple[Node, Column]


class CantTellError(Exception):
    """The reason why an earlier decision can't be reconstructed, as a sentence without its period."""


class Ever(Protocol):
    """All commits up to one, as the scans of a view read them."""

    def inserted(self, scan: Scan, began: int | None, number: Column) -> Node:
        """All rows of an append-only relation, with the commit in which each was read. began: as in `Moment`."""
        ...

    def present(self, scan: Scan, number: Column) -> Node:
        """The present rows of a scan, with the commit in which each was looked up, as in `Moment`."""
        ...

    def there(self, scan: Scan, since: Column, until: Column) -> Node:
        """All rows that a relation ever had, with the first commit as of which each was present, and the first later
        one as of which it was not.
        """
        ...

    def newest(self, rows: Arrivals, began: int, keys: Sequence[Column], since: Column, until: Column) -> Node:
        """The same for an append-only relation in which each row is valid until a newer row with equal keys arrives."""
        ...


def with_what_was_decided(tree: Node, ever: Ever) -> Node:
    """A tree with the rows of `tree` that only reads stored content, including matches that were decided on arrival.

    Raises CantTellError.
    """
    return _Teller(ever).content(tree)


class _Teller:
    def __init__(self, ever: Ever) -> None:
        self._ever = ever
        self._numbers = count(1)
        self._present: dict[Scan, _Numbered] = {}

    def content(self, node: Node) -> Node:
        """The tree with its decisions as content."""
        if not gives_candidates(node):
            return node
        if decision(node) is None:
            return with_inputs(node, list(map(self.content, node.inputs)))
        return exactly(self.numbered(node)[0], node.columns)

    def numbered(self, node: Node) -> _Numbered:
        """The rows of a tree, and the column with the commit in which each was output or looked up."""
        if isinstance(node, Scan) and node in self._present:
            return self._present[node]
        if isinstance(node, Scan):
            return self._inserted(node, None)
        if isinstance(node, Cut) and node.keeps == "after" and isinstance(node.input, Scan):
            return self._inserted(node.input, node.moment)
        if isinstance(node, _NUMBER_KEEPING):
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

    def _inserted(self, scan: Scan, began: int | None) -> _Numbered:
        taken = revision(scan)
        if taken is not None:
            raise CantTellError(f"{taken}, and which of its rows were there when each was decided is not told")
        number = self._column()
        return self._ever.inserted(scan, began, number), number

    def _together(self, parts: Sequence[_Numbered], node: Node) -> _Numbered:
        """The rows of several parts, with the columns of a node in their order."""
        number = self._column()
        made = []
        for (part, own), before in zip(parts, node.inputs, strict=True):
            made.append(exactly(part, (*before.columns, own)))
        return Union(tuple(made), (*node.columns, number)), number

    def _looked_up(self, node: Join | TemporalJoin) -> _Numbered:
        """The left rows, each joined with the right rows present as of its commit."""
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
        """Reads the present rows of the left side, each with the commit in which it was looked up."""
        why = untold(node)
        if why is not None:
            raise CantTellError(why)
        if any(isinstance(n, TemporalJoin) for n in walk(node.left)):
            return  # the left rows of that join are read this way
        (scan,) = [n for n in walk(node.left) if isinstance(n, Scan)]
        number = self._column()
        self._present[scan] = self._ever.present(scan, number), number

    def _then(self, node: Node, number: Column) -> tuple[Node, list[Scalar]]:
        """All rows that the right side of a look-up ever had, and the conditions under which each was present as of a
        commit.
        """
        if stands_still(node):
            return node, []
        if revision(node) is None and not any(isinstance(n, Arrivals) for n in walk(node)):
            made, inserted = self.numbered(node)
            return made, [_compared(exp.LTE, inserted, number)]
        made, since, until = self._versions(node)
        return made, [_compared(exp.LTE, since, number), _compared(exp.LT, number, until)]

    def _versions(self, node: Node) -> tuple[Node, Column, Column]:
        if isinstance(node, Scan):
            since, until = self._column(), self._column()
            return self._ever.there(node, since, until), since, until
        if isinstance(node, _NUMBER_KEEPING):
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
        """The rows of a join on arrival: all pairs, each in the commit of its second row, and rows that had no partner
        on arrival.
        """
        (left, inserted), (right, other) = map(self.numbered, node.inputs)
        number = self._column()
        newest = exp.func("greatest", column_ref(inserted.id), column_ref(other.id))
        pairs = Join(left, right, "inner", node.keys, node.residual, span=node.span)
        exprs = (*map(read, node.columns), Scalar(newest, BIGINT, False))
        parts = [Project(pairs, (*node.columns, number), exprs)]
        if node.kind in ("left", "full"):
            parts.append(self._alone(node, (left, inserted), (right, other), number))
        if node.kind in ("right", "full"):
            parts.append(self._alone(node, (right, other), (left, inserted), number))
        if len(parts) == 1:
            return parts[0], number
        return Union(tuple(parts), parts[0].outputs), number

    def _alone(self, node: Join, side: _Numbered, other: _Numbered, number: Column) -> Project:
        """The rows of one side that had no partner when they arrived, with NULLs for the other side."""
        rows, inserted = side
        keys = (
            node.keys if rows.ids >= node.left.ids else tuple(replace(k, left=k.right, right=k.left) for k in node.keys)
        )
        before = conjunction([*conjuncts(node.residual), _compared(exp.LTE, other[1], inserted)])
        kept = Join(rows, other[0], "anti", keys, before, span=node.span)
        values = (read(c) if c.id in rows.ids else null_of(c.type) for c in node.columns)
        return Project(kept, (*node.columns, number), (*values, read(inserted)))


def _compared(kind: type[exp.Binary], left: Column, right: Column) -> Scalar:
    return Scalar(kind(this=column_ref(left.id), expression=column_ref(right.id)), BOOLEAN)


def _why(node: Node) -> str:
    """The reason why the rows of a node can't be reconstructed."""
    if isinstance(node, AsofJoin):
        return "In it the nearest rows are looked up once, and which these were is told as of one commit alone"
    said = decision(node)
    if said is None:
        return "In it rows are decided once that come from many rows at once, and which of them counted is not kept"
    return f"In it {said}, and which of them came out is not kept"
