"""Which rows a join or aggregate with watermarks may forget.

Suppose `lo <= l.t - r.t <= hi` holds for every pair, and Wl and Wr are the watermarks of the two times. A left row
below Wr + lo meets no later right row. An earlier right row may still be needed: if left rows also come out alone
(left, full, semi, anti), a left row can be revised until it is below Wr + lo, and the result depends on its partners,
none of which is below l.t - hi (unless it is decided on arrival).

As in RisingWave, both times need watermarks. A side without one is no stream in time and keeps its rows. Source:
RisingWave, "Joins", "State cleaning" of window and interval joins (RW-40, RW-47). Watermarks do more here: both sides
are cleaned, not only the larger one, and also for keys that get no new rows. If one side never changes, rows of the
other side are forgotten once they have met it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from watersmeet.algebra.nodes import Aggregate, AsofJoin, Join, Node, Partitioned, Window
from watersmeet.algebra.revisions import stands_still
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timebounds import TimeBound, time_bounds
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import Watermarks, of_scalar, watermarks
from watersmeet.watermarks import Watermark, both, shifted


@dataclass(frozen=True)
class Retention:
    """Rows are needed until `time` is below `bound`. key: the number of the side's key that equals `time`, if any."""

    time: Scalar
    bound: Watermark
    key: int | None = None


def of_join(node: Join) -> tuple[Retention | None, Retention | None]:
    """Which rows of the left and of the right input are still needed after an epoch; None: all rows."""
    bounds = time_bounds(node)
    if not bounds:
        still = [node.kind == "inner" and stands_still(s) for s in (node.right, node.left)]
        left_kept, right_kept = (
            _unmet(s) if met else None for s, met in zip((node.left, node.right), still, strict=True)
        )
        return left_kept, right_kept
    left, right = _Side(watermarks(node.left), bounds), _Side(watermarks(node.right), [b.mirrored for b in bounds])
    # A row that was output alone may be revised as long as a pair that counts as its match may still come.
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


def _unmet(side: Node) -> Retention | None:
    """For rows that are joined with a side that never changes: they have met it once a watermark has passed them."""
    marks = watermarks(side)
    return next((Retention(read(c), marks[c.id]) for c in side.columns if c.id in marks), None)


def of_asof(node: AsofJoin, *, grows: bool) -> tuple[Watermark, Watermark]:
    """Two bounds: left rows below the first never change again; of the right rows below the second, only the newest of
    each key is still needed. An empty bound: never.

    grows: the right side never deletes a row or replaces the newest one by an older one.

    A left row meets the newest right row before it, so later right rows don't change left rows below their watermark.
    With `<` and `<=` a left row waits for the next right row for any length of time; then any right row behind both
    watermarks and not before the left row shows, as well as its partner does, that later rows change nothing. A join
    decided on arrival is read by new left rows only; but if the newest row may be deleted, the one before it takes its
    place.
    """
    left, right = of_scalar(node.left_value, watermarks(node.left)), of_scalar(node.right_value, watermarks(node.right))
    return right if node.comparison in (">=", ">") else (), left if node.arrival and grows else both(left, right)


def of_aggregate(node: Aggregate) -> tuple[int, Watermark] | None:
    """The number of a group key with a watermark, and the watermark; None without one. Groups below it never change
    again.
    """
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.keys) if (w := of_scalar(k, below))), None)


def of_partition(node: Partitioned) -> tuple[int, Watermark] | None:
    """The number of a partition key with a watermark, and the watermark; None without one. Partitions below it never
    change again.
    """
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.partition) if (w := of_scalar(k, below))), None)


def of_order(node: Window) -> tuple[Scalar, Watermark, int] | None:
    """The time that orders the rows of a window, its watermark, and how many rows below the watermark are still needed.

    None if all are needed: a function that looks further than a fixed number of rows needs the first row, however old
    it is. None as well for a window with partitions: the rows of a partition that gets no new ones would stay anyway.
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
    # The last rows still change with new rows, and then all their values are read again.
    distances = [c.number if c.function == "lead" else -c.number for c in node.calls]
    return key.value, mark, max(1, max(0, *distances) - min(0, *distances))


@dataclass(frozen=True)
class _Side:
    """One side of a join. bounds: between its times and those of the other side."""

    marks: Watermarks
    bounds: Sequence[TimeBound]

    def kept(self, other: _Side, alone: _Side | None) -> Retention | None:
        """Which rows of this side are still needed. alone: the other side, if its rows without a match come out as
        well.
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
        """The bounds, each with the time below which rows of this side meet no later row of the other one; bounds of
        keys first.
        """
        for bound in self.bounds:
            mark = of_scalar(bound.right, other.marks)
            if mark and bound.lo_us is not None and of_scalar(bound.left, self.marks):
                yield bound, shifted(mark, bound.lo_us)
