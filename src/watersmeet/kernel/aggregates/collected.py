"""Aggregates that need all values of a group: lists, texts, first and last values, modes, percentiles, bits, jsonb.

Their arguments are arranged by group. Of a touched group the rows before and after the epoch are put in the call's
order (`ranking`: ORDER BY, then the arguments themselves, so that no order of arrival shows), and its two results
computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Aggregate, AggregateSpec, SortKey
from watersmeet.kernel.aggregates.feeds import Feeder, true_rows
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.ordering import order_keys
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Ints, key_form
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.ranking import rank
from watersmeet.kernel.runs.run import make_run
from watersmeet.kernel.runs.touched import Touched, touched

Sides = tuple[pa.Array, pa.Array]


@dataclass(frozen=True)
class _Source:
    """Which rows a call sees: these columns, where `filter` is true; each row once if `distinct`."""

    columns: tuple[int, ...]
    filter: int | None
    distinct: bool

    @property
    def trace(self) -> str:
        """The name of the trace that keeps them."""
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
    """The call's order over the columns of `rows`, in which only rows with the same arguments are peers."""
    assert call.argument is not None
    wanted = [*call.order, *(SortKey(c) for c in (call.argument, *call.extra))]
    keys = {place[k.column]: SortKey(place[k.column], k.descending, k.nulls_first) for k in reversed(wanted)}
    ordered = dict.fromkeys(place[k.column] for k in wanted)
    return tuple(keys[c] for c in ordered if not rows.arrays[c].type.num_fields)  # lists and structs have no order


def _touched(source: _Source, feeder: Feeder) -> Touched:
    """The rows of the touched groups, keys first; adds the epoch's to the trace."""
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
        for group, row in groups.find(run.hash):
            same = groups.same(group, run.key_arrays, row)
            kept = row[same]
            old.append((group[same], Delta(col.positional(col.gather_all(run.arrays, kept)), run.diff[kept])))
    trace.append(make_run(groups.hashes[owner], arrays, diff, tuple(range(len(feeder.keys)))))
    return touched(old, (owner, Delta(col.positional(arrays), diff)), groups.hashes)


@dataclass(frozen=True, eq=False)
class _Members:
    """The members of all groups, in order.

    places: rows of `rows`, group by group; column c of the input is at place[c].
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
        """Only the members that are not NULL in `column`."""
        assert column is not None
        valid = col.validity(self.rows.arrays[self.place[column]])
        return self if valid is None else self.only(valid[self.places])

    def only(self, kept: col.Mask) -> _Members:
        """Some of the members."""
        return _Members(self.rows, self.places[kept], self.num_groups, self.place)

    def at(self, column: int | None, offset: Ints) -> pa.Array:
        """Per group the value of its member number `offset` (in range); NULL for groups without members."""
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
        """Which groups have members."""
        return self.counts > 0

    def lists(self, values: pa.Array, counts: Ints) -> pa.Array:
        """`values` as one list for each group, of `counts` values; NULL for groups without members."""
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~self.filled))

    def leads(self, values: pa.Array) -> col.Mask:
        """Where a member's group or value differs from that of the member before."""
        found = np.ones(len(self.places), np.bool_)
        later = np.arange(1, len(self.places))
        same = col.equal(col.gather(values, later - 1), col.gather(values, later), as_key=True)
        found[1:] = ~same | (self.owner[1:] != self.owner[:-1])
        return found


def _array_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    return members.lists(members.values(call.argument), members.counts)


def _string_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    """Each value but the first of a group after the delimiter in its own row; a NULL delimiter is none."""
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
    """The argument is jsonb; SQL's NULL becomes JSON's."""
    return _joined(members, members.values(call.argument).fill_null("null"), "[", "]")


def _jsonb_object_agg(members: _Members, call: AggregateSpec) -> pa.Array:
    """The argument is the key as jsonb text, `extra` the value as jsonb.

    Keys ascend; of equal ones the last in order counts.
    """
    members = members.present(call.argument)
    keys = members.values(call.argument)
    sorted_places = np.lexsort((order_keys(keys), members.owner))
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
    """The most frequent value; of several the first in the call's order."""
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
    """The value at place fraction * (n - 1), between two values in proportion. The argument is a float64."""
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


#: By function.
COLLECTED: Final[dict[str, Callable[[_Members, AggregateSpec], pa.Array]]] = {
    "array_agg": _array_agg, "bit_and": _bits(np.bitwise_and), "bit_or": _bits(np.bitwise_or),
    "bit_xor": _bits(np.bitwise_xor), "first_value": _first_value, "jsonb_agg": _jsonb_agg,
    "jsonb_object_agg": _jsonb_object_agg, "last_value": _last_value, "mode": _mode,
    "percentile_cont": _percentile_cont, "percentile_disc": _percentile_disc, "string_agg": _string_agg,
}  # fmt: skip
