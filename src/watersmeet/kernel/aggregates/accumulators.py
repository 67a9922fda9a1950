"""What an aggregate remembers of a group: one row of accumulators, from which all its results follow.

A layout lists the accumulators of an `Aggregate`; equal ones are kept once. All are integers that
add up, so that the order and the cutting of the input can't show: counts, limbs of exact sums,
digits of exact float sums. Extremes are the exception (`extremes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import COLLECTED, DEVIATIONS, Aggregate, AggregateSpec
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import deviation, exact_sum, wide
from watersmeet.types import Schema

Ints = npt.NDArray[np.int64]
Kind = Literal["count", "true", "sum", "float", "squares", "min", "max"]

#: First bin and digits of an exact float sum.
_DIGITS: Final = (pa.int16(), pa.list_(pa.int32()))
_FLOAT_TYPES: Final = (pa.int64(), pa.int64(), pa.int64(), *_DIGITS)


@dataclass(frozen=True)
class Feed:
    """The values that an accumulator takes: column `argument` (None: the rows) where `filter` is true, maybe each
    once.
    """

    argument: int | None = None
    filter: int | None = None
    distinct: bool = False


@dataclass(frozen=True)
class Part:
    """An accumulator: columns [start, start + len(types)) of the state, the keys not counted."""

    kind: Kind
    feed: Feed
    start: int
    types: tuple[pa.DataType, ...]

    @property
    def columns(self) -> slice:
        """Its columns."""
        return slice(self.start, self.start + len(self.types))


@dataclass(frozen=True)
class Accumulators:
    """All accumulators. The first one counts the rows of the group."""

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
    """The feed of a call's values; DISTINCT changes nothing for min, max, bool_and and bool_or."""
    return Feed(call.argument, call.filter, call.distinct and call.function in ("count", "sum", "avg", *DEVIATIONS))


@lru_cache(maxsize=256)
def accumulators_of(op: Aggregate, schema: Schema) -> Accumulators:
    """The accumulators of `op` over an input of `schema`.

    Raises Error FEATURE_NOT_SUPPORTED for an unknown function or an argument it does not take.
    """
    wanted: dict[tuple[Kind, Feed], tuple[pa.DataType, ...]] = {("count", Feed()): (pa.int64(),)}
    for call in op.calls:
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
            limbs = 0 if kind.is_float else wide.limb_count(kind.arrow)
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
    """What a feed brings in one epoch: values with weights (0 where they do not count), group by group, ascending.

    groups: of each row. starts: where the group of a row differs from the row before. num_groups: of the epoch.
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
    """The accumulator's columns after the epoch; `old` are those before, without NULLs where they are integers."""
    if part.kind == "count":
        return [_plus(old[0], fed.sums(fed.weights))]
    assert fed.values is not None
    if part.kind == "true":
        return [_plus(old[0], fed.sums(fed.weights * col.words(fed.values)))]
    if part.kind == "sum":
        return _add_limbs(wide.split(fed.values), old, fed)
    if part.kind == "squares" and not pa.types.is_floating(fed.values.type):
        return _add_limbs(deviation.wide_squares(fed.values), old, fed)
    return _add_floats(old, fed) if part.kind == "float" else _add_float_squares(old, fed)


def _add_limbs(limbs: wide.Limbs, old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    before = np.stack([a.to_numpy() for a in old])
    change = np.stack([fed.sums(limb * fed.weights) for limb in limbs])
    return [pa.array(limb) for limb in wide.carry(before + change)]


def _plus(old: pa.Array, change: Ints) -> pa.Array:
    return pa.array(old.to_numpy() + change)


def _add_floats(old: Sequence[pa.Array], fed: Fed) -> list[pa.Array]:
    """Columns: how many NaN, infinities and negative infinities; first bin and digits of the sum of the others."""
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
    """Columns: first bin and digits of the sum of the squares of finite values."""
    assert fed.values is not None
    values = col.words(fed.values).astype(np.float64)
    rows = np.flatnonzero(np.isfinite(values) & (fed.weights != 0) & (values != 0))
    change = deviation.split_squares(fed.groups[rows], values[rows], fed.weights[rows])
    return _add_digits(change, old, fed, deviation.SQUARE_BINS)


def _add_digits(change: exact_sum.Digits, old: Sequence[pa.Array], fed: Fed, bins: int) -> list[pa.Array]:
    before = exact_sum.stored(old[0], old[1])
    lists = [after.lists() for _, after in exact_sum.tables(fed.num_groups, [before, change], bins)]
    return [pa.concat_arrays(list(pieces)) for pieces in zip(*lists, strict=True)]
