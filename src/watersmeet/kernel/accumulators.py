"""Accumulators: the state of a group, one row from which all its aggregates are computed.

A layout lists the accumulators of an `Aggregate`; equal ones are kept once. Except for extremes
(`operators.aggregate`), all are integers that add up: counts, limbs of exact sums, digits of exact float sums. So
results never depend on the order or grouping of the input.

`Feeder` adds an epoch's changes to the accumulators of their groups; `result` computes the results of aggregate calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import COLLECTED, DEVIATIONS, AggregateSpec
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import exact_sum
from watersmeet.kernel.arrays.hashing import extremes, hash_columns
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, canonical_rows, ones
from watersmeet.kernel.runs.groups import Groups, group, key_form
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import MergeRuns
from watersmeet.values.types import Schema

Ints = npt.NDArray[np.int64]
Kind = Literal["count", "true", "sum", "float", "squares", "min", "max"]

#: The types of an exact float sum's first bin and digits.
_DIGITS: Final = (pa.int16(), pa.list_(pa.int32()))

_FLOAT_TYPES: Final = (pa.int64(), pa.int64(), pa.int64(), *_DIGITS)


@dataclass(frozen=True)
class Feed:
    """The input values of an accumulator: column `argument` where `filter` is true, each value once if `distinct`.
    Without `argument`, rows are counted.
    """

    argument: int | None = None
    filter: int | None = None
    distinct: bool = False


@dataclass(frozen=True)
class Part:
    """An accumulator: columns [start, start + len(types)) of the state, not counting the keys."""

    kind: Kind
    feed: Feed
    start: int
    types: tuple[pa.DataType, ...]

    @property
    def columns(self) -> slice:
        """Its columns in the state."""
        return slice(self.start, self.start + len(self.types))


@dataclass(frozen=True)
class Accumulators:
    """The accumulators of an aggregate. The first one counts the rows of the group."""

    parts: tuple[Part, ...]

    def find(self, kind: Kind, feed: Feed) -> Part:
        """The accumulator of `kind` for `feed`."""
        return next(p for p in self.parts if (p.kind, p.feed) == (kind, feed))

    def feeds(self) -> tuple[Feed, ...]:
        """The distinct feeds, in order."""
        return tuple(dict.fromkeys(p.feed for p in self.parts))

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The types of the columns."""
        return tuple(t for p in self.parts for t in p.types)


def feed_of(call: AggregateSpec) -> Feed:
    """The feed of a call's values; min, max, bool_and and bool_or ignore DISTINCT."""
    return Feed(call.argument, call.filter, call.distinct and call.function in ("count", "sum", "avg", *DEVIATIONS))


@lru_cache(maxsize=256)
def accumulators_of(calls: tuple[AggregateSpec, ...], schema: Schema) -> Accumulators:
    """The accumulators of some calls over an input of `schema`.

    Raises Error FEATURE_NOT_SUPPORTED for an unknown function or an unsupported argument.
    """
    wanted: dict[tuple[Kind, Feed], tuple[pa.DataType, ...]] = {("count", Feed()): (pa.int64(),)}
    for call in calls:
        if call.function in COLLECTED:
            continue
        feed = feed_of(call)
        kind = None if call.argument is None else schema[call.argument].type
        if call.function in ("min", "max") and kind is not None and not kind.is_nested and kind.name != "jsonb":
            wanted[("min" if call.function == "min" else "max"), feed] = (kind.arrow,)
            continue
        wanted["count", feed] = (pa.int64(),)
        if call.function in ("bool_and", "bool_or") and kind is not None and kind.name == "boolean":
            wanted["true", feed] = (pa.int64(),)
        elif call.function in ("sum", "avg", *DEVIATIONS) and kind is not None and kind.is_numeric:
            limbs = 0 if kind.is_float else exact_sum.limb_count(kind.arrow)
            wanted["float" if kind.is_float else "sum", feed] = _FLOAT_TYPES if kind.is_float else (pa.int64(),) * limbs
            if call.function in DEVIATIONS:
                wanted["squares", feed] = _DIGITS if kind.is_float else (pa.int64(),) * (2 * limbs)
        elif call.function != "count":
            of = "rows" if kind is None else f"values of type {kind.sql}"
            raise error("FEATURE_NOT_SUPPORTED", f"{call.function} of {of} is not supported")
    parts: list[Part] = []
    start = 0
    for (kind_name, feed), types in wanted.items():
        parts.append(Part(kind_name, feed, start, types))
        start += len(types)
    return Accumulators(tuple(parts))


@dataclass(frozen=True, eq=False)
class Fed:
    """The input of a feed in one epoch: values with weights (0 where they do not count), by ascending group.

    groups: that of each row. starts: the first row of each group. num_groups: the number of groups of the epoch.
    """

    groups: Ints
    starts: Ints
    values: pa.Array | None
    weights: Ints
    num_groups: int

    def sums(self, values: Ints) -> Ints:
        """The sum of `values` per group."""
        if len(self.starts) == self.num_groups:
            return np.add.reduceat(values, self.starts) if self.num_groups else np.zeros(0, np.int64)
        result = np.zeros(self.num_groups, np.int64)
        if len(self.starts):
            result[self.groups[self.starts]] = np.add.reduceat(values, self.starts)
        return result


def add(part: Part, old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    """The accumulator's columns after the epoch; `old` are those before it, in which integers are not NULL."""
    if part.kind == "count":
        return [_plus(old[0], fed.sums(fed.weights))]
    assert fed.values is not None
    if part.kind == "true":
        return [_plus(old[0], fed.sums(fed.weights * col.words(fed.values)))]
    if part.kind == "sum":
        values = exact_sum.narrow(fed.values, fed.weights)
        if values is None:
            return _add_limbs(exact_sum.limbs_of(fed.values), old, fed)
        sums = fed.sums(values * fed.weights)
        return _carried(old, sums[np.newaxis, :] if len(old) == 1 else exact_sum.split_words(sums))
    if part.kind == "squares" and not pa.types.is_floating(fed.values.type):
        return _add_limbs(exact_sum.wide_squares(fed.values), old, fed)
    return _add_floats(old, fed) if part.kind == "float" else _add_float_squares(old, fed)


def _add_limbs(limbs: exact_sum.Limbs, old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    return _carried(old, np.stack([fed.sums(limb * fed.weights) for limb in limbs]))


def _carried(old: Sequence[pa.Array], change: exact_sum.Limbs) -> list[pa.Array]:
    before = np.stack([a.to_numpy() for a in old])
    return [pa.array(limb) for limb in exact_sum.carried(before + change)]


def _plus(old: pa.Array, change: Ints) -> pa.Array:
    return pa.array(old.to_numpy() + change)


def _add_floats(old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    """The columns of a float sum: the counts of NaN, infinity and negative infinity; the first bin and digits of the
    sum of other values.
    """
    assert fed.values is not None
    values = col.words(fed.values).astype(np.float64)
    weights = fed.weights
    finite = np.isfinite(values)
    special = list(old[:3])
    if not finite.all():
        tests = (np.isnan(values), np.isposinf(values), np.isneginf(values))
        special = [_plus(o, fed.sums(np.where(test, weights, 0))) for o, test in zip(old[:3], tests, strict=True)]
    rows = np.flatnonzero(finite & (weights != 0) & (values != 0))
    return [
        *special,
        *_add_digits(exact_sum.split(fed.groups[rows], values[rows], weights[rows]), old[3:], fed, exact_sum.BINS),
    ]


def _add_float_squares(old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    """The columns of a sum of squares of finite floats: its first bin and digits."""
    assert fed.values is not None
    values = col.words(fed.values).astype(np.float64)
    rows = np.flatnonzero(np.isfinite(values) & (fed.weights != 0) & (values != 0))
    change = exact_sum.split_squares(fed.groups[rows], values[rows], fed.weights[rows])
    return _add_digits(change, old, fed, exact_sum.SQUARE_BINS)


def _add_digits(change: exact_sum.Digits, old: Sequence[pa.Array], fed: Fed, bins: int) -> list[pa.Array]:
    before = exact_sum.stored(old[0], old[1])
    return _digit_columns(after for _, after in exact_sum.tables(fed.num_groups, [before, change], bins))


def _digit_columns(tables: Iterable[exact_sum.Table]) -> list[pa.Array]:
    """The columns of digits of successive groups."""
    return [pa.concat_arrays(list(lists)) for lists in zip(*(table.lists() for table in tables), strict=True)]


def summing(plan: Accumulators, num_keys: int) -> MergeRuns:
    """The merge of runs with the accumulators of parts of the input: keys, then the columns of `plan`. The result has
    one row for each key. Extremes are those of inserted rows only.
    """

    def merged(runs: Sequence[Run], /, *, whole: bool = False, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001
        arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
        groups = group(arrays[:num_keys], np.concatenate([r.hash for r in runs]))
        fed = Fed(groups.of_ordered, groups.starts, None, np.zeros(0, np.int64), groups.count)
        sums = [_summed(part, arrays[num_keys:][part.columns], groups, fed) for part in plan.parts]
        columns = [*groups.keys, *(a for some in sums for a in some)]
        return make_run(groups.hashes, columns, ones(groups.count), runs[0].keys)

    return merged


def _summed(part: Part, arrays: Sequence[pa.Array], groups: Groups, fed: Fed) -> list[pa.Array]:
    """The sums of an accumulator's columns for each group."""
    if part.kind in ("min", "max"):
        return [extremes(groups.of_row, arrays[0], groups.count, largest=part.kind == "max")]
    bins = {"float": exact_sum.BINS, "squares": exact_sum.SQUARE_BINS}.get(part.kind, 0)
    digits = arrays[-len(_DIGITS) :] if part.types[-1] == _DIGITS[-1] else []
    limbs = [fed.sums(a.to_numpy()[groups.order]) for a in arrays[: len(arrays) - len(digits)]]
    if not digits:
        return [pa.array(limb) for limb in (exact_sum.carried(np.stack(limbs)) if len(limbs) > 1 else limbs)]
    found = exact_sum.stored(digits[0], digits[1])
    found = replace(found, rows=groups.of_row[found.rows])
    return [*map(pa.array, limbs), *_digit_columns(table for (table,) in exact_sum.tables(groups.count, [found], bins))]


@dataclass(eq=False)
class Feeder:
    """Creates the feeds of an epoch. keys: the group columns in `key_form`. Traces of `operator_id` store the values
    for DISTINCT.
    """

    delta: Delta
    keys: list[pa.Array]
    groups: Groups
    state: State
    operator_id: str
    _ordered: dict[int, pa.Array] = field(default_factory=dict)

    def feed(self, wanted: Feed) -> Fed:
        """The values of a feed, in the order of their groups."""
        if wanted.distinct:
            return self._distinct(wanted)
        groups = self.groups
        values = None if wanted.argument is None else self._column(wanted.argument)
        weights = self.delta.diff[groups.order]
        valid = None if values is None else col.validity(values)
        if valid is not None:
            weights = weights * valid
        if wanted.filter is not None:
            weights = weights * true_rows(self._column(wanted.filter))
        starts = groups.starts if len(groups.order) else np.zeros(0, np.int64)
        return Fed(groups.of_ordered, starts, values, weights, groups.count)

    def rows(self, wanted: Feed) -> tuple[Ints, Ints]:
        """The rows of the changes that count for `wanted`, which has an argument, and their diffs."""
        assert wanted.argument is not None
        counts = self.delta.diff != 0
        valid = col.validity(col.flat(self.delta.columns.column(wanted.argument)))
        if valid is not None:
            counts &= valid
        if wanted.filter is not None:
            counts &= true_rows(col.flat(self.delta.columns.column(wanted.filter)))
        rows = np.flatnonzero(counts)
        return rows, self.delta.diff[rows]

    def _column(self, position: int) -> pa.Array:
        """A column in the order of the groups."""
        if position not in self._ordered:
            self._ordered[position] = col.gather(col.flat(self.delta.columns.column(position)), self.groups.order)
        return self._ordered[position]

    def _distinct(self, wanted: Feed) -> Fed:
        """Weight 1 for a value that is new in its group, -1 for one that is no longer in it."""
        assert wanted.argument is not None
        trace = self.state.trace(self.operator_id, f"distinct-{wanted.argument}-{wanted.filter}")
        rows, diff = self.rows(wanted)
        value = key_form(self.delta.columns.column(wanted.argument))
        arrays = [col.gather(a, rows) for a in (*self.keys, value)]
        hashes = hash_columns(arrays)
        places, diff = canonical_rows(arrays, diff, hashes, whole_row=False)
        arrays, hashes = [col.gather(a, places) for a in arrays], hashes[places]
        pairs = group(arrays, hashes)
        before = np.zeros(len(hashes), np.int64)
        for run in near(trace.runs, lambda: pairs.hashes):
            for pair, row in pairs.find(run.hash):
                same = pairs.same(pair, run.arrays, row)
                np.add.at(before, pairs.order[pair[same]], run.diff[row[same]])
        trace.append(make_run(hashes, arrays, diff, tuple(range(len(arrays)))))
        weights = (before + diff > 0).astype(np.int64) - (before > 0)
        moved = np.flatnonzero(weights)
        owner = self.groups.of_row[rows[places[moved]]]
        order = np.argsort(owner, kind="stable")
        owner, moved = owner[order], moved[order]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        return Fed(owner, starts, col.gather(arrays[-1], moved), weights[moved], self.groups.count)


def true_rows(column: pa.Array) -> col.Mask:
    """A mask of the rows where a boolean column is true."""
    return np.asarray(column.fill_null(fill_value=False).to_numpy(zero_copy_only=False))


Floats = npt.NDArray[np.float64]


def result(
    call: AggregateSpec, plan: Accumulators, state: Sequence[pa.Array], argument: pa.DataType | None, kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    """The call's values as `kind`, one per row of the accumulators `state`, and the mask of values that are NULL
    because they are too large.

    argument: the type of the call's argument, None for count(*).
    """
    feed = feed_of(call)
    none = np.zeros(len(state[0]), np.bool_)
    if call.function in ("min", "max"):
        return state[plan.find("min" if call.function == "min" else "max", feed).start].cast(kind), none
    count = _ints(state[plan.find("count", feed).start])
    if call.function == "count":
        return pa.array(count).cast(kind), none
    valid = count > 0
    if call.function in ("bool_and", "bool_or"):
        true = _ints(state[plan.find("true", feed).start])
        return pa.array(true == count if call.function == "bool_and" else true > 0, mask=~valid), none
    assert argument is not None
    if call.function in DEVIATIONS:
        return _deviation(call, plan, state, argument, kind, count)
    divisor = np.maximum(count, 1) if call.function == "avg" else None
    if pa.types.is_floating(argument):
        sums = _float_sums(state[plan.find("float", feed).columns], 53 if kind == pa.float64() else 24)
        return floats_of(call, sums, count, kind), none
    limbs = np.stack([_ints(a) for a in state[plan.find("sum", feed).columns]])
    scale = argument.scale if pa.types.is_decimal(argument) else 0
    if pa.types.is_floating(kind):
        return _floats(_nearly(limbs) / 10.0**scale / (1 if divisor is None else divisor), kind, valid), none
    if pa.types.is_integer(kind) and divisor is None and scale == 0 and len(limbs) <= 2:
        return exact_sum.to_integer(limbs, kind, valid)
    if not pa.types.is_decimal(kind):
        raise error("INTERNAL_ERROR", f"{call.function} of {argument} does not give {kind}")
    if divisor is None and kind.scale >= scale:
        small = exact_sum.small_decimal(limbs, kind, valid, kind.scale - scale)
        if small is not None:
            return small, none
    magnitude, negative = exact_sum.scaled(limbs, kind.scale - scale, *([] if divisor is None else [divisor]))
    return exact_sum.to_decimal(magnitude, negative, kind, valid)


def floats_of(call: AggregateSpec, sums: Floats, count: Ints, kind: pa.DataType) -> pa.Array:
    """The results of SUM or AVG of floats, from the sums and numbers of values."""
    return _floats(sums / np.maximum(count, 1) if call.function == "avg" else sums, kind, count > 0)


def _deviation(
    call: AggregateSpec,
    plan: Accumulators,
    state: Sequence[pa.Array],
    argument: pa.DataType,
    kind: pa.DataType,
    count: npt.NDArray[np.int64],
) -> tuple[pa.Array, col.Mask]:
    """The variance or deviation: of doubles a double; of integers and decimals a decimal, whose root has the precision
    of a double.
    """
    feed = feed_of(call)
    none = np.zeros(len(count), np.bool_)
    valid = count > (1 if call.function.endswith("samp") else 0)
    squares = state[plan.find("squares", feed).columns]
    if pa.types.is_floating(argument):
        part = state[plan.find("float", feed).columns]
        odd = np.logical_or.reduce([_ints(a) > 0 for a in part[:3]])
        numerators, powers = exact_sum.float_numerators(count, (part[3], part[4]), (squares[0], squares[1]))
        values = np.where(odd, np.nan, exact_sum.deviation(call.function, count, numerators, powers))
        return _floats(values, kind, valid), none
    exact = exact_sum.wide_numerators(count, state[plan.find("sum", feed).columns], squares)
    scale = 2 * (argument.scale if pa.types.is_decimal(argument) else 0)
    if call.function.startswith("var"):
        others = np.maximum(count - 1, 1) if call.function.endswith("samp") else np.maximum(count, 1)
        size, negative = exact_sum.scaled(exact, kind.scale - scale, np.maximum(count, 1), others)
        return exact_sum.to_decimal(size, negative, kind, valid)
    roots = exact_sum.deviation(call.function, count, exact_sum.nearest(exact) / 10.0**scale)
    large = valid & (roots >= 10.0 ** (kind.precision - kind.scale))
    valid &= ~large
    return pa.array(np.where(valid, roots, 0.0), mask=~valid).cast(kind), large


def _ints(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(array.to_numpy())


def _float_sums(state: Sequence[pa.Array], precision: int) -> Floats:
    nans, infinities, negatives = (_ints(a) > 0 for a in state[:3])
    digits = exact_sum.stored(state[3], state[4])
    pieces = [table.rounded(precision) for (table,) in exact_sum.tables(len(nans), [digits])]
    sums = np.concatenate(pieces) if pieces else np.zeros(0)
    sums[infinities] = np.inf
    sums[negatives] = -np.inf
    sums[nans | infinities & negatives] = np.nan
    return sums


def _floats(values: Floats, kind: pa.DataType, valid: col.Mask) -> pa.Array:
    with np.errstate(over="ignore"):
        return pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=None if valid.all() else ~valid)


def _nearly(limbs: exact_sum.Limbs) -> Floats:
    """The values as float64, summed from the highest limb down: equal values give equal floats."""
    total = np.zeros(limbs.shape[1])
    for limb in exact_sum.carried(limbs)[::-1]:
        total = total * 4294967296.0 + limb
    return total
