"""Which rows a join and an aggregate with watermarks may forget.

With `lo <= l.t - r.t <= hi` for every pair, and watermarks Wl and Wr on the times, a left row below Wr + lo meets no
later right row. An earlier right row may still be needed: where left rows come out alone as well (left, full, semi,
anti), a left row is revised as long as it is not below Wr + lo, and its partners, none of them below l.t - hi, say how
(unless it is decided on arrival). Only times with watermarks on both sides count, as in RisingWave: without one a side
is no stream in time, and keeps its rows. Source: RisingWave, "Joins", "State cleaning" of window and interval joins
(RW-40, RW-47). What goes beyond it: both sides are cleaned, whichever is the larger one, and whether or not rows of the
key come; and rows that only what stands still can meet are of no use once they have met it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from watersmeet.algebra.relations import Aggregate, AsofJoin, Join, Partitioned, Relation, Window
from watersmeet.algebra.revisions import stands_still
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timebounds import TimeBound, time_bounds
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import Watermarks, of_scalar, watermarks
from watersmeet.watermarks import Watermark, both, shifted


@dataclass(frozen=True)
class Retention:
    """Rows are of use while `time` is not below `bound`. key: it is the side's part of the key with that number."""

    time: Scalar
    bound: Watermark
    key: int | None = None


def of_join(node: Join) -> tuple[Retention | None, Retention | None]:
    """What is of use of the left and of the right input of `node` after an epoch; None: all rows."""
    bounds = time_bounds(node)
    if not bounds:
        still = [node.kind == "inner" and stands_still(s) for s in (node.right, node.left)]
        left_kept, right_kept = (
            _unmet(s) if met else None for s, met in zip((node.left, node.right), still, strict=True)
        )
        return left_kept, right_kept
    left, right = _Side(watermarks(node.left), bounds), _Side(watermarks(node.right), [b.mirrored for b in bounds])
    # Until when a row may be revised that comes out alone: as long as one of the pairs that decide about it may come.
    lefts, rights = left, right
    if node.partners is not None:
        decided = [
            time_bounds(replace(node, residual=conjunction([*conjuncts(node.residual), p]))) for p in node.partners
        ]
        lefts, rights = replace(left, bounds=decided[0]), replace(right, bounds=[b.mirrored for b in decided[1]])
    return (
        left.kept(right, rights if node.kind in ("right", "full") and not node.arrival else None),
        right.kept(left, lefts if node.kind in ("left", "full", "semi", "anti") and not node.arrival else None),
    )


def _unmet(side: Relation) -> Retention | None:
    """Of use are, of rows that only what stands still can meet, none that a watermark has passed: they have met it."""
    marks = watermarks(side)
    return next((Retention(read(c), marks[c.id]) for c in side.columns if c.id in marks), None)


def of_asof(node: AsofJoin, *, grows: bool) -> tuple[Watermark, Watermark]:
    """Below which value left rows change no more, and below which right rows only the newest of a key are asked for;
    none: never.

    grows: no right row ever goes, or gives way to one before it.

    A left row meets the newest of the right rows before it, so later right rows change none that is below their
    watermark.
    With `<` and `<=` it waits for the next one, however long; then any right row behind both watermarks and not before
    it
    says as well as its partner that later ones change nothing. What is decided on arrival is asked for by new left rows
    only; but where the newest row may go, the one before it is asked for in its place.
    """
    left, right = of_scalar(node.left_value, watermarks(node.left)), of_scalar(node.right_value, watermarks(node.right))
    return right if node.comparison in (">=", ">") else (), left if node.arrival and grows else both(left, right)


def of_aggregate(node: Aggregate) -> tuple[int, Watermark] | None:
    """The number of a group key with a watermark, and that; None if there is none. Groups below it change no more."""
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.keys) if (w := of_scalar(k, below))), None)


def of_partition(node: Partitioned) -> tuple[int, Watermark] | None:
    """The number of a key of the partition with a watermark, and that; None if there is none.

    Partitions below it change no more.
    """
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.partition) if (w := of_scalar(k, below))), None)


def of_order(node: Window) -> tuple[Scalar, Watermark, int] | None:
    """The time that orders the rows of a window, its watermark, and how many of the rows below that are still asked
    for.

    None if they all are: functions that look further than a fixed number of rows ask for the first one, however old it
    is. Of windows
    without a partition only: rows of a partition that sees no new ones would stay anyway.
    """
    first = {c.order[0] if c.order else None for c in node.calls}
    if node.partition or len(first) != 1 or not all(c.function in ("lag", "lead") for c in node.calls):
        return None
    key = first.pop()
    if key is None or key.descending or key.value.nullable:
        return None
    mark = of_scalar(key.value, watermarks(node.input))
    if not mark:
        return None
    # The last rows still change with those that come, and then all their values are asked for again.
    distances = [c.number if c.function == "lead" else -c.number for c in node.calls]
    return key.value, mark, max(1, max(0, *distances) - min(0, *distances))


@dataclass(frozen=True)
class _Side:
    """One side of a join. bounds: between its times and those of the other side."""

    marks: Watermarks
    bounds: Sequence[TimeBound]

    def kept(self, other: _Side, alone: _Side | None) -> Retention | None:
        """What is of use of this side; alone: the other side, if rows of it come out alone too that meet none of this
        one.
        """
        for bound, passed in self._met(other):
            if alone is None:
                return Retention(bound.left, passed, bound.key)
            assert bound.lo_us is not None
            for met, revised in alone._met(self):
                if met.left == bound.right:
                    return Retention(bound.left, both(passed, shifted(revised, bound.lo_us)), bound.key)
        return None

    def _met(self, other: _Side) -> Iterator[tuple[TimeBound, Watermark]]:
        """Bounds, and below which times rows of this side meet no later rows of the other one; those of keys come
        first.
        """
        for bound in self.bounds:
            mark = of_scalar(bound.right, other.marks)
            if mark and bound.lo_us is not None and of_scalar(bound.left, self.marks):
                yield bound, shifted(mark, bound.lo_us)
