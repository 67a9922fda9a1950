"""Which rows a window function sees: frames as stretches of places in the order of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import SortKey, WindowFrame
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.ordering import order_keys
from watersmeet.kernel.runs.groups import Ints

#: Stretches of places: [low, high) of each row, not empty where low < high.
Stretch = tuple[Ints, Ints]


@dataclass(frozen=True, eq=False)
class Places:
    """Rows in the order of a window, partition after partition.

    partition: of each place, ascending. leads: places where the peers of a row begin.
    """

    partition: Ints
    leads: col.Mask

    @property
    def count(self) -> int:
        """The number of places."""
        return len(self.partition)

    @cached_property
    def here(self) -> Ints:
        """Each place."""
        return np.arange(self.count)

    @cached_property
    def bounds(self) -> Stretch:
        """The partition of each place."""
        return _stretches(np.flatnonzero(np.diff(self.partition, prepend=-1)), self.count)

    @cached_property
    def peers(self) -> Stretch:
        """The peers of each place, itself among them."""
        return _stretches(np.flatnonzero(self.leads), self.count)

    @cached_property
    def peer_number(self) -> Ints:
        """The number of each place's group of peers, over all partitions."""
        return np.cumsum(self.leads) - 1


def _stretches(starts: Ints, count: int) -> Stretch:
    lengths = np.diff(starts, append=count)
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)


def frame_of(frame: WindowFrame, places: Places, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> list[Stretch]:
    """The frame of each place as disjoint stretches in ascending order; each may be empty.

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
    """The group of peers so many groups further on, as an empty stretch at the partition's end if there is none."""
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
    """Of each place, where the values of its partition reach its target, or (not `low`) where they have passed it."""
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
    # Values that are not NULL lie in one stretch of each partition; `passed` counts them over all partitions.
    begin, end = _known_stretch(places, known)
    counted = np.cumsum(known) - known
    result = np.array(places.peers[0 if low else 1])
    lost = np.flatnonzero(known & ~aimed)  # the target is beyond its type: everything on that side
    result[lost] = (begin if low else end)[lost]
    at = aims[order[~is_value] - len(rows)]
    result[at] = begin[at] + passed - counted[begin[at]]
    return result


def _known_stretch(places: Places, known: col.Mask) -> Stretch:
    """Where in its partition the values that are not NULL begin and end."""
    first, last = places.bounds
    total = np.concatenate(([0], np.cumsum(known)))
    nulls_first = ~known[first]
    number = total[last] - total[first]
    begin = np.where(nulls_first, last - number, first)
    return begin, begin + number
