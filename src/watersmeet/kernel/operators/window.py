"""Window functions: the values of changed keys are computed as of before and after the epoch; the output is the
difference.

The only state is the input's arrangement by key. A function's values depend only on the rows of its key: rows have a
total order, and sums are exact. Frames are stretches of positions ("places") in the order of a window. Aggregates over
them are differences of running sums of integer accumulators, so a sum depends only on the rows of its frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Aggregate, AggregateSpec, SortKey, Window, WindowFrame, WindowSpec
from watersmeet.errors import error
from watersmeet.kernel.accumulators import Part, accumulators_of, floats_of, result
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import exact_sum
from watersmeet.kernel.arrays import stretches as over
from watersmeet.kernel.arrays.hashing import hash_columns, order_keys
from watersmeet.kernel.arrays.stretches import Stretch, pick
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Counters, too_large
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.groups import Groups, Ints, Touched, group, key_form, rank, touched
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State
from watersmeet.values.types import Schema


@dataclass(frozen=True, eq=False)
class Places:
    """The places of rows in the order of a window, partition after partition.

    partition: that of each place, ascending. leads: the mask of places that are the first of their peers.
    """

    partition: Ints
    leads: col.Mask

    @property
    def count(self) -> int:
        """The number of places."""
        return len(self.partition)

    @cached_property
    def here(self) -> Ints:
        """The numbers of all places."""
        return np.arange(self.count)

    @cached_property
    def bounds(self) -> Stretch:
        """The stretch of each place's partition."""
        return _stretches(np.flatnonzero(np.diff(self.partition, prepend=-1)), self.count)

    @cached_property
    def peers(self) -> Stretch:
        """The stretch of each place's peers, which includes the place itself."""
        return _stretches(np.flatnonzero(self.leads), self.count)

    @cached_property
    def peer_number(self) -> Ints:
        """The number of each place's group of peers, over all partitions."""
        return np.cumsum(self.leads) - 1


def _stretches(starts: Ints, count: int) -> Stretch:
    lengths = np.diff(starts, append=count)
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)


def frame_of(frame: WindowFrame, places: Places, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> list[Stretch]:
    """The frame of each row as disjoint stretches in ascending order; each may be empty.

    arrays: the columns of the rows at the places.
    """
    first, last = places.bounds
    low, high = _ends(frame, places, arrays, order)
    low = np.clip(low, first, last)
    high = np.maximum(np.clip(high, first, last), low)
    here = places.here
    if frame.exclude == "none":
        return [(low, high)]
    left_out, back = places.peers if frame.exclude in ("group", "ties") else (here, here + 1)
    before = (low, np.maximum(np.minimum(high, left_out), low))
    after = (np.minimum(np.maximum(low, back), high), high)
    if frame.exclude != "ties":
        return [before, after]
    inside = (low <= here) & (here < high)
    return [before, (here, np.where(inside, here + 1, here)), after]


def _ends(frame: WindowFrame, places: Places, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> Stretch:
    first, last = places.bounds
    if frame.mode == "rows":
        low = first if frame.start is None else places.here + frame.start
        high = last if frame.end is None else places.here + frame.end + 1
    elif frame.mode == "groups":
        low = first if frame.start is None else _of_peers(places, frame.start)[0]
        high = last if frame.end is None else _of_peers(places, frame.end)[1]
    else:
        low = first if frame.start is None else places.peers[0]
        high = last if frame.end is None else places.peers[1]
        if frame.value is not None:
            values = arrays[frame.value]
            if frame.low is not None:
                low = _reached(places, values, arrays[frame.low], order[0], low=True)
            if frame.high is not None:
                high = _reached(places, values, arrays[frame.high], order[0], low=False)
    return low, high


def _of_peers(places: Places, distance: int) -> Stretch:
    """For each place, the group of peers at the given distance; an empty stretch at the partition's end if there is
    none.
    """
    starts = np.flatnonzero(places.leads)
    ends = np.append(starts[1:], places.count)
    number = places.peer_number + distance
    inside = np.clip(number, 0, len(starts) - 1)
    first, last = places.bounds
    low, high = starts[inside], ends[inside]
    before = (number < 0) | (low < first)
    behind = (number >= len(starts)) | (low >= last)
    return np.where(before, first, np.where(behind, last, low)), np.where(before, first, np.where(behind, last, high))


def _reached(places: Places, values: pa.Array, targets: pa.Array, key: SortKey, *, low: bool) -> Ints:
    """For each place, the first position in its partition at which a value reaches the target of the place.

    low: whether a value equal to the target reaches it; otherwise the value must be beyond it.
    """
    count = places.count
    words = order_keys(pa.concat_arrays([values, targets]))
    if key.descending:
        words = ~words
    known, aimed = (np.ones(count, np.bool_) if v is None else v for v in (col.validity(values), col.validity(targets)))
    rows, aims = np.flatnonzero(known), np.flatnonzero(known & aimed)
    side = np.concatenate([np.full(len(rows), 1 if low else 0), np.full(len(aims), 0 if low else 1)])
    partition = np.concatenate([places.partition[rows], places.partition[aims]])
    order = np.lexsort((side, np.concatenate([words[:count][rows], words[count:][aims]]), partition))
    is_value = order < len(rows)
    passed = np.cumsum(is_value)[~is_value]
    # Non-NULL values form one contiguous stretch in each partition; `passed` counts them over all partitions.
    begin, end = _known_stretch(places, known)
    counted = np.cumsum(known) - known
    result = np.array(places.peers[0 if low else 1])
    lost = np.flatnonzero(known & ~aimed)  # the target exceeds its type, so all rows are on that side
    result[lost] = (begin if low else end)[lost]
    at = aims[order[~is_value] - len(rows)]
    result[at] = begin[at] + passed - counted[begin[at]]
    return result


def _known_stretch(places: Places, known: col.Mask) -> Stretch:
    """For each place, the stretch of the non-NULL values in its partition."""
    first, last = places.bounds
    total = np.concatenate(([0], np.cumsum(known)))
    nulls_first = ~known[first]
    number = total[last] - total[first]
    begin = np.where(nulls_first, last - number, first)
    return begin, begin + number


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of all partitions in the order of a window: their places and their columns."""

    places: Places
    arrays: Sequence[pa.Array]


def _row_number(_spec: WindowSpec, rows: Rows) -> pa.Array:
    return pa.array(rows.places.here - rows.places.bounds[0] + 1)


def _rank(_spec: WindowSpec, rows: Rows) -> pa.Array:
    return pa.array(rows.places.peers[0] - rows.places.bounds[0] + 1)


def _dense_rank(_spec: WindowSpec, rows: Rows) -> pa.Array:
    number = rows.places.peer_number
    return pa.array(number - number[rows.places.bounds[0]] + 1)


def _percent_rank(_spec: WindowSpec, rows: Rows) -> pa.Array:
    first, last = rows.places.bounds
    return pa.array((rows.places.peers[0] - first) / np.maximum(last - first - 1, 1))


def _cume_dist(_spec: WindowSpec, rows: Rows) -> pa.Array:
    first, last = rows.places.bounds
    return pa.array((rows.places.peers[1] - first) / np.maximum(last - first, 1))


def _ntile(spec: WindowSpec, rows: Rows) -> pa.Array:
    """The numbers of buckets of equal size; if the rows don't divide evenly, the first buckets have one more row."""
    first, last = rows.places.bounds
    place = rows.places.here - first
    size, larger = np.divmod(last - first, spec.number)
    edge = larger * (size + 1)
    small = larger + (place - edge) // np.maximum(size, 1)
    return pa.array(np.where(place < edge, place // (size + 1), small) + 1)


def _neighbour(direction: int) -> Callable[[WindowSpec, Rows], pa.Array]:
    def value(spec: WindowSpec, rows: Rows) -> pa.Array:
        (first, last), values = rows.places.bounds, rows.arrays[spec.arguments[0]]
        at = rows.places.here + direction * spec.number
        if spec.skips_nulls:  # the places are those of the other rows
            before, values = _without_nulls(values)
            first, last = before[first], before[last]
            here = rows.places.here
            at = before[here] - spec.number if direction < 0 else before[here + 1] + spec.number - 1
        inside = (first <= at) & (at < last)
        found = pick(values, at, inside)
        if len(spec.arguments) == 1:
            return found
        # Rows without a neighbor have the default, which differs from a neighbor with NULL.
        both = pa.concat_arrays([found, rows.arrays[spec.arguments[1]]])
        return col.gather(both, np.where(inside, rows.places.here, rows.places.here + rows.places.count))

    return value


def _without_nulls(values: pa.Array) -> tuple[Ints, pa.Array]:
    """For each place, and the end, the number of values before it that are not NULL; and these values."""
    valid = col.validity(values)
    if valid is None:
        return np.arange(len(values) + 1), values
    return np.concatenate(([0], np.cumsum(valid))), values.filter(pa.array(valid))


#: The functions without a frame.
UNFRAMED: Final[dict[str, Callable[[WindowSpec, Rows], pa.Array]]] = {
    "row_number": _row_number,
    "rank": _rank,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": _cume_dist,
    "ntile": _ntile,
    "lag": _neighbour(-1),
    "lead": _neighbour(1),
}


def nth(values: pa.Array, frame: Sequence[Stretch], number: int, *, backwards: bool = False) -> pa.Array:
    """The value of row number `number` (from 1) of each frame, counted from its end if `backwards`."""
    count = len(frame[0][0])
    at, there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    left = np.full(count, number - 1, np.int64)
    for low, high in reversed(frame) if backwards else frame:
        size = np.maximum(high - low, 0)
        inside = ~there & (left < size)
        at = np.where(inside, high - 1 - left if backwards else low + left, at)
        left = np.where(there, left, left - size)
        there |= inside
    return pick(values, at, there)


def positional_value(spec: WindowSpec, values: pa.Array, frame: Sequence[Stretch]) -> pa.Array:
    """The values of first_value, last_value and nth_value."""
    if spec.function == "nth_value":
        return nth(values, frame, spec.number)
    if spec.function in ("first_value", "last_value"):
        return nth(values, frame, 1, backwards=spec.function == "last_value")
    raise error("FEATURE_NOT_SUPPORTED", f"{spec.function} as a window function is not supported")


def framed(
    op: Aggregate, arrays: Sequence[pa.Array], schema: Schema, frame: Sequence[Stretch], kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    """The values of the single call of `op` over each frame as `kind`, and the mask of values that are NULL because
    they are too large.

    arrays, schema: those of the rows in the order of the window.
    """
    (call,) = op.calls
    plan = accumulators_of(op.calls, schema)
    count = len(arrays[0])
    weights = np.ones(count, np.bool_)
    if call.filter is not None:
        weights &= np.asarray(arrays[call.filter].fill_null(fill_value=False).to_numpy(zero_copy_only=False))
    values = None if call.argument is None else arrays[call.argument]
    valid = None if values is None else col.validity(values)
    if valid is not None:
        weights &= valid
    if values is not None and call.function in ("sum", "avg") and pa.types.is_floating(values.type):
        found = over.float_sums(
            col.words(values).astype(np.float64), weights, frame, 53 if kind == pa.float64() else 24
        )
        if found is not None:
            return floats_of(call, found, over.counts(weights, frame), kind), np.zeros(len(found), np.bool_)
    state: list[pa.Array] = []
    for part in plan.parts:
        counts_rows = part.feed.argument is None and part.feed.filter is None
        state += _accumulated(part, values, np.ones(count, np.bool_) if counts_rows else weights, frame)
    return result(call, plan, state, None if values is None else values.type, kind)


def _accumulated(part: Part, values: pa.Array | None, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    """The accumulator's columns, with a row for each frame."""
    if part.kind == "count":
        return [pa.array(over.counts(weights, frame))]
    assert values is not None
    if part.kind == "true":
        return [pa.array(over.counts(weights & (col.words(values) != 0), frame))]
    if part.kind == "sum":
        return over.limb_sums(exact_sum.limbs_of(values), weights, frame)
    if part.kind == "squares" and not pa.types.is_floating(values.type):
        return over.limb_sums(exact_sum.wide_squares(values), weights, frame)
    if part.kind in ("float", "squares"):
        return over.digit_sums(part.kind, col.words(values).astype(np.float64), weights, frame)
    if part.kind in ("min", "max"):
        return [over.extremes(key_form(values), weights, frame, largest=part.kind == "max")]
    raise error("FEATURE_NOT_SUPPORTED", f"{part.kind} as a window function is not supported")


def aggregate_of(function: str, argument: int | None, condition: int | None) -> Aggregate:
    """The aggregate operator that has the accumulators of a window aggregate."""
    return Aggregate(
        (), (), append_only=False, keys=(), calls=(AggregateSpec(function, argument, condition, distinct=False),)
    )


_POSITIONAL = ("first_value", "last_value", "nth_value")


def step(op: Window, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the touched keys' rows with their window values; no row has both signs."""
    (arranged,) = inputs
    change = arranged.change
    if not change.num_rows:
        return Delta.none(op.schema)
    keys = [key_form(change.arrays[i]) for i in op.keys]
    groups = group(keys, hash_columns(keys, change.num_rows))
    rows = touched(
        entries(near(arranged.runs_before, lambda: groups.hashes), groups, op.keys),
        (groups.of_row, change.delta()),
        groups.hashes,
    )
    return _difference(op, rows, _values(op, rows, ctx), ctx.counters)


def entries(runs: Sequence[Run], groups: Groups, keys: tuple[int, ...]) -> list[tuple[Ints, Delta]]:
    """All entries of the groups, as (groups, rows)."""
    found = []
    for run in runs:
        for owner, row in groups.find(run.hash):
            same = np.flatnonzero(groups.same(owner, [run.arrays[k] for k in keys], row))
            rows = row[same]
            found.append((owner[same], Delta(col.positional(col.gather_all(run.arrays, rows)), run.diff[rows])))
    return found


@dataclass(frozen=True, eq=False)
class _Values:
    """The values of window functions for each copy of each row, first as of the start and then as of the end of the
    epoch.

    A row that occurs n times has n copies. split: the number of values as of the start. rows: the row of each copy; the
    copies of a row are adjacent. numbers: the number of each copy of its row. columns: one for each function. large:
    for each function, the mask of values that are too large, and therefore NULL.
    """

    rows: Ints
    numbers: Ints
    split: int
    columns: list[pa.Array]
    large: list[col.Mask]


def _values(op: Window, rows: Touched, ctx: StepContext) -> _Values:
    copies = [_copies(np.arange(len(counts)), counts) for counts in (rows.before, rows.after)]
    starts = [np.cumsum(counts) - counts for counts in (rows.before, rows.after)]
    split = len(copies[0][0])
    columns: list[pa.Array | None] = [None] * len(op.functions)
    large = [np.zeros(split + len(copies[1][0]), np.bool_) for _ in op.functions]
    for order in dict.fromkeys(f.order for f in op.functions):
        ranking = rank(rows.groups, rows.arrays, order)
        sides = [_copies(ranking.order, counts[ranking.order]) for counts in (rows.before, rows.after)]
        # The first copy of the first existing row among peers is their lead.
        peers = np.cumsum(ranking.leads)
        of_place = np.empty(len(peers), np.int64)
        of_place[ranking.order] = peers
        at = np.concatenate(
            [start[r] + n + offset for start, (r, n), offset in zip(starts, sides, (0, split), strict=True)]
        )
        members = np.concatenate([r for r, _ in sides])
        groups = rows.groups[members]
        partition = np.concatenate([groups[:split], groups[split:] + (int(rows.groups.max(initial=-1)) + 1)])
        leads = np.ones(len(members), np.bool_)
        leads[1:] = (np.diff(of_place[members]) != 0) | (np.diff(partition) != 0)
        placed = Rows(Places(partition, leads), col.gather_all(rows.arrays, members))
        back = np.empty(len(at), np.int64)
        back[at] = np.arange(len(at))
        for i, function in enumerate(op.functions):
            if function.order == order:
                kind = op.schema[len(rows.arrays) + i].type.arrow
                found, is_large = _value(function, placed, order, ctx.schemas[0], kind)
                columns[i] = col.gather(found, back)
                large[i] = is_large[back]
    found_columns = [c for c in columns if c is not None]
    return _Values(
        np.concatenate([r for r, _ in copies]), np.concatenate([n for _, n in copies]), split, found_columns, large
    )


def _copies(order: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each row of `order` repeated `counts` times, as (row, number of the copy)."""
    starts = np.cumsum(counts) - counts
    return np.repeat(order, counts), np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _value(
    function: WindowSpec, rows: Rows, order: Sequence[SortKey], schema: Schema, kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    none = np.zeros(rows.places.count, np.bool_)
    if function.function in UNFRAMED:
        return UNFRAMED[function.function](function, rows).cast(kind), none
    frame = frame_of(function.frame, rows.places, rows.arrays, order)
    if function.function in _POSITIONAL:
        values = rows.arrays[function.arguments[0]]
        if function.skips_nulls:
            before, values = _without_nulls(values)
            frame = [(before[low], before[high]) for low, high in frame]
        return positional_value(function, values, frame), none
    argument = function.arguments[0] if function.arguments else None
    op = aggregate_of(function.function, argument, function.filter)
    return framed(op, rows.arrays, schema, frame, kind)


def _difference(op: Window, rows: Touched, values: _Values, counters: Counters) -> Delta:
    """The copies that differ before and after the epoch. Copy k before is compared with copy k after."""
    split, count = values.split, len(values.rows)
    pairs = np.minimum(rows.before, rows.after)
    paired = np.flatnonzero(values.numbers < pairs[values.rows])
    old, new = paired[paired < split], paired[paired >= split]
    same = col.rows_equal(
        [col.gather(c, old) for c in values.columns], [col.gather(c, new) for c in values.columns], len(old)
    )
    moved = np.ones(count, np.bool_)
    moved[old[same]] = moved[new[same]] = False
    places = np.flatnonzero(moved)
    for position, large in enumerate(values.large, len(rows.arrays)):
        if failed := int(large[places[places >= split]].sum()):
            counters.failed(position, "", too_large(op.schema[position].type), failed)
    arrays = [*col.gather_all(rows.arrays, values.rows[places]), *col.gather_all(values.columns, places)]
    delta = Delta(col.positional(arrays), np.where(places < split, -1, 1))
    several = (rows.before > 1) | (rows.after > 1)
    return consolidate(delta) if several.any() else delta
