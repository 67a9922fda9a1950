"""The values of window functions, from the rows in the order of their window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import WindowSpec
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.groups import Ints
from watersmeet.kernel.windows.windowframes import Places, Stretch


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
    """Buckets of equal size; the first ones have a row more where it does not divide."""
    first, last = rows.places.bounds
    place = rows.places.here - first
    size, larger = np.divmod(last - first, spec.number)
    edge = larger * (size + 1)
    small = larger + (place - edge) // np.maximum(size, 1)
    return pa.array(np.where(place < edge, place // (size + 1), small) + 1)


def _neighbour(direction: int) -> Callable[[WindowSpec, Rows], pa.Array]:
    def value(spec: WindowSpec, rows: Rows) -> pa.Array:
        first, last = rows.places.bounds
        at = rows.places.here + direction * spec.number
        found = pick(rows.arrays[spec.arguments[0]], at, (first <= at) & (at < last))
        if len(spec.arguments) == 1:
            return found
        # Rows without a neighbour take the default, also where the neighbour's value would be NULL.
        both = pa.concat_arrays([found, rows.arrays[spec.arguments[1]]])
        inside = (first <= at) & (at < last)
        return col.gather(both, np.where(inside, rows.places.here, rows.places.here + rows.places.count))

    return value


#: Functions that need no frame.
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


def pick(values: pa.Array, at: Ints, there: col.Mask) -> pa.Array:
    """The values at places `at`; NULL where not `there`."""
    if there.all():
        return col.gather(values, at)
    return values.take(pa.array(np.where(there, at, 0), mask=~there))


def nth(values: pa.Array, frame: Sequence[Stretch], number: int, *, backwards: bool = False) -> pa.Array:
    """The value of the row that is number `number` (from 1) of each frame, counted from its end if `backwards`."""
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
    """first_value, last_value and nth_value."""
    if spec.function == "nth_value":
        return nth(values, frame, spec.number)
    if spec.function in ("first_value", "last_value"):
        return nth(values, frame, 1, backwards=spec.function == "last_value")
    raise error("FEATURE_NOT_SUPPORTED", f"{spec.function} as a window function is not supported")
