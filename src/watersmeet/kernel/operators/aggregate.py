"""GROUP BY over changes: aggregate functions with FILTER and DISTINCT, and distinct rows.

Aggregates that add up are kept in accumulators: the trace `groups` has a row for each group, and the newest row of a
key counts. An epoch adds its changes to the rows of its groups; where a result changes, the output contains the old row
with diff -1 and the new one with diff 1. All accumulators are integers, so results never depend on the order of the
input or on deleted values. Per epoch and group, sums are exact while the diffs' absolute values add up to less than
2^31.

Aggregates that need all values of a group (lists, texts, first and last values, modes, percentiles, bits, jsonb) are
computed again for the groups that the epoch changes. Their arguments are arranged by group, and sorted before and after
the epoch by the call's order, then by the arguments themselves, so that the order of arrival never has an effect.

min and max: a group keeps its extremes. If the input can retract, all values are kept as well, in runs sorted by a word
of the top half of the group's hash, followed by 32 bits that increase with the value. When an extreme is deleted, the
next one is searched from that end of the group, only as far as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Aggregate, AggregateSpec, SortKey
from watersmeet.formats.jsonscan import unquoted
from watersmeet.kernel.accumulators import (
    Accumulators,
    Feed,
    Feeder,
    Part,
    accumulators_of,
    add,
    result,
    summing,
    true_rows,
)
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import pieces
from watersmeet.kernel.arrays.hashing import EMPTY_HASH, extremes, order_keys, order_prefixes
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Counters, too_large
from watersmeet.kernel.operators.arrange import ranges
from watersmeet.kernel.runs.cleaning import Retention
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, Sliced, canonical_rows, consolidate, ones, slices_of
from watersmeet.kernel.runs.groups import Groups, Ints, Touched, group_rows, key_form, rank, touched
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import LARGE_FAN_IN, Trace, append_latest, latest_rows
from watersmeet.values import watermarks
from watersmeet.values.types import Schema

Sides = tuple[pa.Array, pa.Array]


@dataclass(frozen=True)
class _Source:
    """The input rows of a call: the given columns where `filter` is true; each row once if `distinct`."""

    columns: tuple[int, ...]
    filter: int | None
    distinct: bool

    @property
    def trace(self) -> str:
        """The name of their trace."""
        return f"rows-{'-'.join(map(str, self.columns))}-{self.filter}{'-distinct' if self.distinct else ''}"


def collect(op: Aggregate, feeder: Feeder) -> dict[AggregateSpec, Sides]:
    """The results of the collected calls of `op` for each group, before and after the epoch; changes the state."""
    sources: dict[_Source, list[AggregateSpec]] = {}
    for call in dict.fromkeys(op.calls):
        if call.function in COLLECTED:
            sources.setdefault(_source(call), []).append(call)
    found: dict[AggregateSpec, Sides] = {}
    for source, calls in sources.items():
        rows = _touched(source, feeder)
        place = {column: len(feeder.keys) + i for i, column in enumerate(source.columns)}
        orders = {c: _order(c, place, rows) for c in calls}
        for order in dict.fromkeys(orders.values()):
            ranked = rank(rows.groups, rows.arrays, order).order
            sides = [
                _Members(rows, np.repeat(ranked, _times(counts, source)[ranked]), feeder.groups.count, place)
                for counts in (rows.before, rows.after)
            ]
            for call in calls:
                if orders[call] == order:
                    found[call] = (COLLECTED[call.function](sides[0], call), COLLECTED[call.function](sides[1], call))
    return found


def _source(call: AggregateSpec) -> _Source:
    assert call.argument is not None
    columns = {call.argument, *call.extra, *(key.column for key in call.order)}
    return _Source(tuple(sorted(columns)), call.filter, call.distinct)


def _times(counts: Ints, source: _Source) -> Ints:
    return np.minimum(counts, 1) if source.distinct else counts


def _order(call: AggregateSpec, place: dict[int, int], rows: Touched) -> tuple[SortKey, ...]:
    """The call's order over the columns of `rows`, extended so that only rows with the same arguments are peers."""
    assert call.argument is not None
    wanted = [*call.order, *(SortKey(c) for c in (call.argument, *call.extra))]
    keys = {place[k.column]: SortKey(place[k.column], k.descending, k.nulls_first) for k in reversed(wanted)}
    ordered = dict.fromkeys(place[k.column] for k in wanted)
    return tuple(keys[c] for c in ordered if not rows.arrays[c].type.num_fields)  # lists and structs have no order


def _touched(source: _Source, feeder: Feeder) -> Touched:
    """The rows of the changed groups, with the keys first. Adds the epoch's rows to the trace."""
    delta, groups = feeder.delta, feeder.groups
    wanted = delta.diff != 0
    if source.filter is not None:
        wanted &= true_rows(col.flat(delta.columns.column(source.filter)))
    rows = np.flatnonzero(wanted)
    form = key_form if source.distinct else col.one_form
    arrays = col.gather_all([*feeder.keys, *(form(delta.columns.column(c)) for c in source.columns)], rows)
    owner = groups.of_row[rows]
    places, diff = canonical_rows(arrays, delta.diff[rows], groups.hashes[owner], whole_row=False)
    arrays, owner = col.gather_all(arrays, places), owner[places]
    trace = feeder.state.trace(feeder.operator_id, source.trace)
    old = []
    for run in near(trace.runs, lambda: groups.hashes):
        for number, row in groups.find(run.hash):
            same = groups.same(number, run.key_arrays, row)
            kept = row[same]
            old.append((number[same], Delta(col.positional(col.gather_all(run.arrays, kept)), run.diff[kept])))
    trace.append(make_run(groups.hashes[owner], arrays, diff, tuple(range(len(feeder.keys)))))
    return touched(old, (owner, Delta(col.positional(arrays), diff)), groups.hashes)


@dataclass(frozen=True, eq=False)
class _Members:
    """The members of all groups, in order.

    places: their indices in `rows`, group by group. Column c of the input is column place[c] of `rows`.
    """

    rows: Touched
    places: Ints
    num_groups: int
    place: dict[int, int]

    @cached_property
    def owner(self) -> Ints:
        """The group of each member."""
        return self.rows.groups[self.places]

    @cached_property
    def bounds(self) -> Ints:
        """Members of group g are [bounds[g], bounds[g + 1])."""
        return np.searchsorted(self.owner, np.arange(self.num_groups + 1))

    def values(self, column: int | None) -> pa.Array:
        """A column of the members."""
        assert column is not None
        return col.gather(self.rows.arrays[self.place[column]], self.places)

    def present(self, column: int | None) -> _Members:
        """The members that are not NULL in `column`."""
        assert column is not None
        valid = col.validity(self.rows.arrays[self.place[column]])
        return self if valid is None else self.only(valid[self.places])

    def only(self, kept: col.Mask) -> _Members:
        """The members at the given indices."""
        return _Members(self.rows, self.places[kept], self.num_groups, self.place)

    def at(self, column: int | None, offset: Ints) -> pa.Array:
        """For each group the value of its member number `offset` (in range); NULL for groups without members."""
        assert column is not None
        filled = self.filled
        index = np.full(self.num_groups, -1, np.int64)
        index[filled] = self.places[(self.bounds[:-1] + offset)[filled]]
        return self.rows.arrays[self.place[column]].take(pa.array(index, mask=index < 0))

    @cached_property
    def counts(self) -> Ints:
        """Members by group."""
        return np.diff(self.bounds)

    @cached_property
    def filled(self) -> col.Mask:
        """The mask of groups that have members."""
        return self.counts > 0

    def lists(self, values: pa.Array, counts: Ints) -> pa.Array:
        """`values` as one list for each group, of `counts` values; NULL for groups without members."""
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~self.filled))

    def leads(self, values: pa.Array) -> col.Mask:
        """The mask of members whose group or value differs from that of the previous member."""
        found = np.ones(len(self.places), np.bool_)
        later = np.arange(1, len(self.places))
        same = col.equal(col.gather(values, later - 1), col.gather(values, later), as_key=True)
        found[1:] = ~same | (self.owner[1:] != self.owner[:-1])
        return found


def _array_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    return members.lists(members.values(call.argument), members.counts)


def _string_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    """The concatenated values. Before each value except the first of a group stands the delimiter of its row; a NULL
    delimiter is empty.
    """
    members = members.present(call.argument)
    values = members.values(call.argument)
    empty = pa.scalar("" if pa.types.is_string(values.type) else b"", values.type)
    if call.extra:
        delimiters = members.values(call.extra[0]).fill_null(empty)
    else:
        delimiters = pa.repeat(pa.scalar(call.constant, values.type), len(values))
    count = len(values)
    first = np.zeros(count, np.bool_)
    first[members.bounds[:-1][members.filled]] = True
    pairs = np.stack([np.arange(count), np.arange(count, 2 * count)], axis=1).ravel()
    kept = pairs[~np.stack([first, np.zeros(count, np.bool_)], axis=1).ravel()]
    pieces = col.gather(pa.concat_arrays([delimiters, values]), kept)
    return pc.binary_join(members.lists(pieces, np.maximum(2 * members.counts - 1, 0)), empty)


def _jsonb_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    """The argument is jsonb; SQL NULL becomes JSON null."""
    return _joined(members, members.values(call.argument).fill_null("null"), "[", "]")


def _jsonb_object_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    """The argument is the key as jsonb text, `extra` the value as jsonb.

    Keys ascend; of equal keys the last in order counts.
    """
    members = members.present(call.argument)
    keys = members.values(call.argument)
    sorted_places = np.lexsort((order_keys(unquoted(keys)), members.owner))
    members = _Members(members.rows, members.places[sorted_places], members.num_groups, members.place)
    leads = members.leads(members.values(call.argument))
    members = members.only(np.append(leads[1:], True)[: len(leads)])
    values = members.values(call.extra[0]).fill_null("null")
    return _joined(members, pc.binary_join_element_wise(members.values(call.argument), values, ":"), "{", "}")


def _joined(members: _Members, parts: pa.Array, start: str, end: str) -> pa.Array:
    whole = pc.binary_join(members.lists(parts, members.counts), ",")
    return pc.binary_join_element_wise(start, whole, end, "")


def _first_value(members: _Members, call: AggregateSpec) -> pa.Array:
    return members.at(call.argument, np.zeros(members.num_groups, np.int64))


def _last_value(members: _Members, call: AggregateSpec) -> pa.Array:
    return members.at(call.argument, members.counts - 1)


def _mode(members: _Members, call: AggregateSpec) -> pa.Array:
    """The most frequent value; if several are, the first in the call's order."""
    members = members.present(call.argument)
    starts = np.flatnonzero(members.leads(members.values(call.argument)))
    lengths = np.diff(starts, append=len(members.places))
    best = starts[np.lexsort((starts, -lengths, members.owner[starts]))]
    chosen = best[np.diff(members.owner[best], prepend=-1) != 0]
    offset = np.zeros(members.num_groups, np.int64)
    offset[members.owner[chosen]] = chosen - members.bounds[:-1][members.owner[chosen]]
    return members.at(call.argument, offset)


def _percentile_disc(members: _Members, call: AggregateSpec) -> pa.Array:
    """The first value with at least `fraction` of the values up to it (PostgreSQL, 9.21, ordered-set aggregates)."""
    assert isinstance(call.constant, float)
    members = members.present(call.argument)
    rank_of = np.ceil(call.constant * members.counts).astype(np.int64)
    return members.at(call.argument, np.maximum(rank_of, 1) - 1)


def _percentile_cont(members: _Members, call: AggregateSpec) -> pa.Array:
    """The value at position fraction * (n - 1), interpolated between two values. The argument is a float64."""
    assert isinstance(call.constant, float)
    members = members.present(call.argument)
    place = call.constant * np.maximum(members.counts - 1, 0)
    low, high = np.floor(place), np.ceil(place)
    below, above = (members.at(call.argument, at.astype(np.int64)).fill_null(0.0).to_numpy() for at in (low, high))
    with np.errstate(invalid="ignore"):
        between = np.where(low == high, below, below + (place - low) * (above - below))
    return pa.array(between, mask=~members.filled)


def _bits(combine: np.ufunc) -> Callable[[_Members, AggregateSpec], pa.Array]:
    def combined(members: _Members, call: AggregateSpec) -> pa.Array:
        members = members.present(call.argument)
        array = members.values(call.argument)
        result = np.zeros(members.num_groups, np.int64)
        if len(array):
            result[members.filled] = combine.reduceat(
                col.words(array).astype(np.int64), members.bounds[:-1][members.filled]
            )
        return pa.array(result, mask=~members.filled).cast(array.type)

    return combined


#: The functions of collected aggregates, by name.
COLLECTED: Final[dict[str, Callable[[_Members, AggregateSpec], pa.Array]]] = {
    "array_agg": _array_agg, "bit_and": _bits(np.bitwise_and), "bit_or": _bits(np.bitwise_or),
    "bit_xor": _bits(np.bitwise_xor), "first_value": _first_value, "jsonb_agg": _jsonb_agg,
    "jsonb_object_agg": _jsonb_object_agg, "last_value": _last_value, "mode": _mode,
    "percentile_cont": _percentile_cont, "percentile_disc": _percentile_disc, "string_agg": _string_agg,
}  # fmt: skip

#: The number of entries of a run that are read first, and the factor by which it grows if they are not enough.
FIRST_ROWS: Final = 16

#: The trace with the accumulators of parts of a history.
_GATHERED: Final = "gathered"

_FURTHER: Final = 8
_LOW: Final = np.uint64(0xFFFFFFFF)
_PIECE_ROWS: Final = 1 << 20


def update_extremes(
    feed: Feed, parts: Sequence[Part], old: Sequence[pa.Array], feeder: Feeder, *, append_only: bool
) -> list[pa.Array]:
    """The new extremes of one feed: for each of `parts` (min, max) the value of each group. old: the values before the
    epoch.
    """
    assert feed.argument is not None
    groups = feeder.groups
    rows, diff = feeder.rows(feed)
    column = key_form(feeder.delta.columns.column(feed.argument))
    arrays = col.gather_all((*feeder.keys, column), rows)
    owner = groups.of_row[rows]
    everyone = np.arange(groups.count)
    if append_only:
        return [
            _best(part, groups.count, [(everyone, before), (owner, arrays[-1])])
            for part, before in zip(parts, old, strict=True)
        ]
    trace = feeder.state.trace(feeder.operator_id, f"values-{feed.argument}-{feed.filter}")
    words = groups.hashes[owner] & ~_LOW | order_prefixes(arrays[-1])
    places, diff = canonical_rows(arrays, diff, words, whole_row=False)
    arrays, owner = col.gather_all(arrays, places), owner[places]
    trace.append(make_run(words[places], arrays, diff, ()))
    removed, added = np.flatnonzero(diff < 0), np.flatnonzero(diff > 0)
    fresh = (owner[added], col.gather(arrays[-1], added))
    result = []
    for part, before in zip(parts, old, strict=True):
        at = owner[removed]
        lost = np.zeros(groups.count, np.bool_)
        lost[at[col.equal(col.gather(before, at), col.gather(arrays[-1], removed))]] = True
        kept = np.flatnonzero(~lost)
        candidates = [(kept, col.gather(before, kept))]
        if lost.any():
            new = np.flatnonzero(~lost[fresh[0]])
            runs = near(trace.runs, lambda: groups.hashes[lost] & ~_LOW, int(_LOW))  # noqa: B023 - asked at once
            candidates += [
                (fresh[0][new], col.gather(fresh[1], new)),
                *_Search(runs, groups, largest=part.kind == "max").nearest(np.flatnonzero(lost)),
            ]
        else:
            candidates.append(fresh)
        result.append(_best(part, groups.count, candidates))
    return result


def _best(part: Part, num_groups: int, candidates: Sequence[tuple[Ints, pa.Array]]) -> pa.Array:
    owner = np.concatenate([o for o, _ in candidates])
    return extremes(owner, pa.concat_arrays([v for _, v in candidates]), num_groups, largest=part.kind == "max")


@dataclass(frozen=True, eq=False)
class _Search:
    """Finds the smallest (largest) value that groups have now in `runs`, which hold all changes of their values."""

    runs: Sequence[Run]
    groups: Groups
    largest: bool

    def nearest(self, wanted: Ints) -> list[tuple[Ints, pa.Array]]:
        """Pairs (group, value) of the groups `wanted`, including the extreme of each group that has values."""
        found: list[tuple[Ints, pa.Array]] = []
        most = FIRST_ROWS
        while self.runs and len(wanted):
            owner, values, done = self._outermost(wanted, most)
            found.append((wanted[owner], values))
            wanted = wanted[~done]
            most *= _FURTHER
        return found

    def _outermost(self, wanted: Ints, most: int) -> tuple[Ints, pa.Array, col.Mask]:
        """Reads the outermost `most` entries of each run. Returns the present values, by index in `wanted`, and which
        groups are done.
        """
        base = self.groups.hashes[wanted] & ~_LOW
        # Beyond the horizon some run has not been read, so those values may have further changes.
        horizon = np.zeros(len(wanted), np.uint64) if self.largest else np.full(len(wanted), ~np.uint64(0))
        complete = np.ones(len(wanted), np.bool_)
        taken = []
        for run in self.runs:
            low, high = np.searchsorted(run.hash, base), np.searchsorted(run.hash, base | _LOW, side="right")
            more = np.flatnonzero(high - low > most)
            complete[more] = False
            if self.largest:
                low = np.maximum(low, high - most)
                horizon[more] = np.maximum(horizon[more], run.hash[low[more] - 1])
            else:
                high = np.minimum(high, low + most)
                horizon[more] = np.minimum(horizon[more], run.hash[high[more]])
            taken += [(run, index, row) for index, row in pieces(low, high - low, _PIECE_ROWS)]
        owners, values, diffs = [np.zeros(0, np.int64)], [], [np.zeros(0, np.int64)]
        for run, index, row in taken:
            words = run.hash[row]
            inside = (words > horizon[index] if self.largest else words < horizon[index]) | complete[index]
            index, row = index[inside], row[inside]  # noqa: PLW2901
            same = self.groups.same(wanted[index], run.arrays[:-1], row, hashes_agree=False)
            owners.append(index[same])
            values.append(col.gather(run.arrays[-1], row[same]))
            diffs.append(run.diff[row[same]])
        if not values:
            return owners[0], self.runs[0].arrays[-1].slice(0, 0), complete
        owner, column = _present(np.concatenate(owners), pa.concat_arrays(values), np.concatenate(diffs))
        done = complete
        done[owner] = True
        return owner, column, done


def _present(owner: Ints, values: pa.Array, diff: Ints) -> tuple[Ints, pa.Array]:
    """The distinct (owner, value) pairs whose diffs add up to more than 0."""
    ranks = order_keys(values)
    order = np.lexsort((ranks, owner))
    ranks, ordered = ranks[order], owner[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ranks[1:] != ranks[:-1]) | (ordered[1:] != ordered[:-1])
    starts = np.flatnonzero(first)
    if not len(starts):
        return owner, values
    there = order[starts[np.add.reduceat(diff[order], starts) > 0]]
    return owner[there], col.gather(values, there)


@dataclass(frozen=True, eq=False)
class Side:
    """The changed groups before or after the epoch. exists: whether each group has a row in the result."""

    state: list[pa.Array]
    exists: col.Mask


def step(op: Aggregate, inputs: Sequence[Delta | Sliced], state: State, ctx: StepContext) -> Delta:
    """The changes of the groups' results; no row has diffs of both signs. Groups that can't change any more are
    deleted.

    Slices are processed as if each were an epoch; the intermediate results cancel. If the output is append-only, each
    group has all its rows in one epoch, and nothing is kept.
    """
    if op.append_only and op.calls:
        state = _Forgotten()
    changes = [_changed(op, delta, state, ctx) for delta in slices_of(inputs[0])]
    changes = [c for c in changes if c.num_rows]
    out = next(iter(changes), _nothing(op))
    if len(changes) > 1:
        out = consolidate(Delta.concat(changes), tuple(range(len(op.keys))))
        out = replace(out.take(np.argsort(out.diff > 0, kind="stable")), net=True)  # the order of changes in one piece
    bound = watermarks.value(op.retain, ctx.watermarks)
    if bound is not None and op.time is not None:
        retention = Retention(op.time, bound, nulls=True)  # the keys come first in all traces
        for name in state.names(op.id):
            retention.clean(state.trace(op.id, name))
    return out


class _Forgotten:
    """State for one epoch."""

    def __init__(self) -> None:
        self._traces: dict[str, Trace] = {}

    def trace(self, operator_id: str, name: str) -> Trace:
        """See `State`."""
        return self._traces.setdefault(f"{operator_id} {name}", Trace())

    def names(self, operator_id: str) -> list[str]:
        """See `State`."""
        return sorted(n.split(" ", 1)[1] for n in self._traces if n.startswith(f"{operator_id} "))


def _changed(op: Aggregate, delta: Delta, state: State, ctx: StepContext) -> Delta:
    only_row = not op.keys and bool(op.calls)
    if delta.num_rows == 0 and not (only_row and ctx.initial and ctx.bucket == 0):
        return _nothing(op)
    plan = accumulators_of(op.calls, ctx.schemas[0])
    keys = [key_form(delta.columns.column(i)) for i in op.keys]
    groups = group_rows(keys, delta.num_rows)
    if not groups.count:  # the single group exists even without rows
        nothing = np.zeros(0, np.int64)
        groups = Groups(nothing, np.zeros(1, np.int64), np.array([EMPTY_HASH]), ())
    trace = state.trace(op.id, "groups")
    found = latest_rows(trace, groups)
    known = np.zeros(groups.count, np.bool_) if found is None else np.asarray(found[len(keys)].is_valid())
    before = _before(plan, found, len(keys), groups.count)
    append_only = bool(ctx.append_only) and ctx.append_only[0]
    feeder = Feeder(delta, keys, groups, state, op.id)
    after = _after(plan, before, feeder, append_only=append_only)
    collected = collect(op, feeder)
    if only_row:
        old, new = Side(before, known), Side(after, np.ones(groups.count, np.bool_))
    else:
        old, new = (Side(columns, columns[0].to_numpy() > 0) for columns in (before, after))
    _remember(trace, groups, plan, before, after, known, always=only_row)
    return changed_results(op.calls, plan, op.schema, ctx.schemas[0], ctx.counters, groups.keys, (old, new), collected)


def gather(op: Aggregate, inputs: Sequence[Delta | Sliced], state: State, ctx: StepContext) -> Delta:
    """Store the accumulators of a part of the history, without reading those of earlier parts. Nothing is output before
    `gathered`. The calls add up: see `reach.waiting`.
    """
    plan = accumulators_of(op.calls, ctx.schemas[0])
    for delta in slices_of(inputs[0]):
        if not delta.num_rows:
            continue
        keys = [key_form(delta.columns.column(i)) for i in op.keys]
        groups = group_rows(keys, delta.num_rows)
        feeder = Feeder(delta, keys, groups, state, op.id)
        before = _before(plan, None, len(keys), groups.count)
        columns = [*groups.keys, *_after(plan, before, feeder, append_only=True)]
        run = make_run(groups.hashes, columns, ones(groups.count), tuple(range(len(keys))))
        state.trace(op.id, _GATHERED).append(run, summing(plan, len(keys)), replacing=True, fan_in=LARGE_FAN_IN)
    return _nothing(op)


def gathered(op: Aggregate, state: State, which: tuple[int, int], parts: int, buckets: int, ctx: StepContext) -> Delta:
    """Output groups that `gather` has stored, and move them to the trace `groups`. Each of the `buckets` has `parts`
    ranges of hashes; the groups are those of the ranges from number which[0] up to, not including, which[1].
    """
    trace = state.trace(op.id, _GATHERED)
    pieces = [piece for run in trace.runs for piece in ranges(run, which, parts, buckets)]
    if which[1] == parts:
        trace.replace(())
    if not pieces:
        return _nothing(op)
    plan, num_keys = accumulators_of(op.calls, ctx.schemas[0]), len(op.keys)
    run = summing(plan, num_keys)(pieces, whole=True)
    nothing, none = np.zeros(0, np.int64), np.zeros(run.num_rows, np.bool_)
    groups = Groups(nothing, np.zeros(run.num_rows, np.int64), run.hash, tuple(run.key_arrays))
    before, after = _before(plan, None, num_keys, run.num_rows), list(run.arrays[num_keys:])
    _remember(state.trace(op.id, "groups"), groups, plan, before, after, none, always=False)
    sides = Side(before, none), Side(after, after[0].to_numpy() > 0)
    return changed_results(op.calls, plan, op.schema, ctx.schemas[0], ctx.counters, groups.keys, sides, {})


def _nothing(op: Aggregate) -> Delta:
    return Delta.none(op.schema)


def _before(plan: Accumulators, found: list[pa.Array] | None, num_keys: int, count: int) -> list[pa.Array]:
    """The accumulators before the epoch; 0 and NULL for new groups."""
    columns: list[pa.Array] = []
    for part in plan.parts:
        for i, kind in enumerate(part.types, num_keys + part.start):
            is_sum = kind == pa.int64() and part.kind not in ("min", "max")
            if found is None:
                columns.append(pa.array(np.zeros(count, np.int64)) if is_sum else pa.nulls(count, kind))
            else:
                columns.append(found[i].fill_null(0) if is_sum and found[i].null_count else found[i])
    return columns


def _after(plan: Accumulators, before: list[pa.Array], feeder: Feeder, *, append_only: bool) -> list[pa.Array]:
    """The accumulators after the epoch."""
    after = list(before)
    for feed in plan.feeds():
        parts = [p for p in plan.parts if p.feed == feed]
        ends = [p for p in parts if p.kind in ("min", "max")]
        if ends:
            values = update_extremes(feed, ends, [before[p.start] for p in ends], feeder, append_only=append_only)
            for part, value in zip(ends, values, strict=True):
                after[part.start] = value
        if len(ends) < len(parts):
            fed = feeder.feed(feed)
            for part in parts:
                if part not in ends:
                    after[part.columns] = add(part, before[part.columns], fed)
    return after


def _remember(
    trace: Trace,
    groups: Groups,
    plan: Accumulators,
    before: list[pa.Array],
    after: list[pa.Array],
    known: col.Mask,
    *,
    always: bool,
) -> None:
    """Writes the rows that changed; a group without rows gets a deletion."""
    changed = np.zeros(groups.count, np.bool_)
    alive = np.full(groups.count, always)
    if always:
        changed |= ~known
    for part in plan.parts:
        for old, new in zip(before[part.columns], after[part.columns], strict=True):
            changed |= ~col.equal(old, new)
            if part.kind not in ("min", "max") and new.type == pa.int64():
                alive |= new.to_numpy() != 0
    rows = np.flatnonzero(changed & (alive | known))
    hashes, keys = groups.take(rows)
    arrays = [*keys, *(col.gather(a, rows) for a in after)]
    append_latest(trace, make_run(hashes, arrays, np.where(alive[rows], 1, -1), tuple(range(len(keys)))))


def changed_results(
    calls: Sequence[AggregateSpec],
    plan: Accumulators,
    schema: Schema,
    arguments: Schema,
    counters: Counters,
    keys: Sequence[pa.Array],
    sides: tuple[Side, Side],
    collected: Mapping[AggregateSpec, Sides],
) -> Delta:
    """The changes of the results of groups with these keys; no row has diffs of both signs.

    schema: that of the output. arguments: the columns that the calls read. sides: the groups before and after the
    epoch.
    """
    old, new = sides
    count = len(new.exists)
    none = np.zeros(count, np.bool_)

    def results(side: Side, number: int) -> list[tuple[pa.Array, col.Mask]]:
        found = []
        for call, field in zip(calls, schema[len(keys) :], strict=True):
            if call in collected:
                found.append((collected[call][number].cast(field.type.arrow), none))
            else:
                argument = None if call.argument is None else arguments[call.argument].type.arrow
                found.append(result(call, plan, side.state, argument, field.type.arrow))
        return found

    before = results(old, 0) if old.exists.any() else None
    olds = None if before is None else [values for values, _ in before]
    news = results(new, 1)
    same = none
    if olds is not None:
        same = old.exists & new.exists & col.rows_equal(olds, [values for values, _ in news], count)
    retracted = np.flatnonzero(old.exists & ~same)
    inserted = np.flatnonzero(new.exists & ~same)
    for i, (_, large) in enumerate(news):
        was_large = none if before is None else before[i][1] & old.exists
        rows = int((large & new.exists & ~was_large).sum())
        if rows:
            position = len(keys) + i
            counters.failed(position, "", too_large(schema[position].type), rows)
    columns = [col.gather(k, np.concatenate([retracted, inserted])) for k in keys]
    for i, (values, _) in enumerate(news):
        column = col.gather(values, inserted)
        columns.append(column if olds is None else pa.chunked_array([col.gather(olds[i], retracted), column]))
    diff = np.concatenate([np.full(len(retracted), -1, np.int64), np.ones(len(inserted), np.int64)])
    return Delta(col.positional(columns), diff, net=True)
