"""A trace whose newest row of a key replaces all older ones: what an operator remembers of each key.

Rows have diff 1; diff -1 says that the key is gone. A key's row is written once per change, and a
merge keeps the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.distinct import distinct
from watersmeet.kernel.arrays.hashing import Hashes, is_bijective
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.groups import Groups, Ints
from watersmeet.kernel.runs.order import stretches
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.trace import Trace

_UNKNOWN: Final = -1
_GONE: Final = -2


def newest(trace: Trace, groups: Groups) -> list[pa.Array] | None:
    """The newest row of each group, all columns; NULL in every column where the trace has none.

    None: has none at all.
    """
    place = np.full(groups.count, _UNKNOWN, np.int64)
    parts: list[list[pa.Array]] = []
    size = 0
    for run in reversed(near(trace.runs, lambda: groups.hashes)):
        for owner, row in groups.find(run.hash):
            fresh = np.flatnonzero(place[owner] == _UNKNOWN)
            fresh = fresh[groups.same(owner[fresh], run.key_arrays, row[fresh])]
            if not len(fresh):
                continue
            group, found = owner[fresh], row[fresh]
            place[group] = np.where(run.diff[found] < 0, _GONE, np.arange(size, size + len(group)))
            parts.append(col.gather_all(run.arrays, found))
            size += len(group)
    if not parts:
        return None
    positions = pa.array(place, mask=place < 0)
    return [pa.concat_arrays(pieces).take(positions) for pieces in zip(*parts, strict=True)]


def append(trace: Trace, run: Run) -> None:
    """Puts the rows of `run`, one per key, over all older ones of their keys."""
    trace.append(run, merge, replacing=True)


def merge(runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001 - see below
    """The newest row of each key of some runs, oldest first.

    whole: nothing lies below, so that keys that are gone go. What lies above replaces these rows anyway.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    diff = np.concatenate([r.diff for r in runs])
    keys = runs[0].keys
    kept = _last_of_key(hashes[order], order, [arrays[k] for k in keys])
    if whole:
        kept = kept[diff[kept] > 0]
    return make_run(hashes[kept], [col.gather(a, kept) for a in arrays], diff[kept], keys)


def _last_of_key(ordered: Hashes, order: Ints, keys: Sequence[pa.Array]) -> Ints:
    """The last row of each key among rows in hash order, of which later ones are newer."""
    starts, lengths = stretches(ordered)
    last: Ints = order[starts + lengths - 1]
    if len(keys) == 1 and is_bijective(keys[0].type) and keys[0].null_count == 0:
        return last
    later = np.ones(len(order), np.bool_)
    later[starts] = False
    places = np.flatnonzero(later)
    same = col.rows_equal(
        [col.gather(k, order[places - 1]) for k in keys],
        [col.gather(k, order[places]) for k in keys],
        len(places),
        as_key=True,
    )
    if same.all():
        return last
    # Different keys with one hash: about one in 2^64 pairs of keys comes here.
    mixed = distinct(np.searchsorted(starts, places[~same], side="right") - 1)
    kept = [last[i : i + 1] for i in range(len(last))]
    for g in mixed.tolist():
        rows = order[starts[g] : starts[g] + lengths[g]].tolist()
        kept[g] = np.array(list({repr([k[row].as_py() for k in keys]): row for row in rows}.values()), np.int64)
    return np.concatenate(kept)
