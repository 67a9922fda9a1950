"""Arrangements: one trace of a relation by a key, for any number of joins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from watersmeet.circuit.operators import Arrange, Versions
from watersmeet.kernel.arrays.columns import no_rows
from watersmeet.kernel.arrays.hashing import bucket_of, bucket_start, hash_columns, is_bijective
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.cleaning import Best, Newest, Retention
from watersmeet.kernel.runs.delta import Delta, Sliced, Slicing
from watersmeet.kernel.runs.frames import consolidated, contiguous
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.run import Run, arrange, make_run
from watersmeet.kernel.runs.shares import busiest_of
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import merge_runs
from watersmeet.values import watermarks

#: The trace of an arrangement.
ROWS: Final = "rows"


def step(op: Arrange, inputs: Sequence[Delta | Sliced], state: State, ctx: StepContext) -> Arranged:
    """The change and the content before it. When this returns, the state contains the change, except for rows that are
    not needed.

    If nothing changes, the state is only loaded when a join requests it. The output contains all rows of the change,
    including those not needed after the epoch, because they may be later than the watermarks before it.
    """
    change, null_keys = _taken(op, inputs[0], ctx.slicing)
    ctx.counters.busiest = busiest_of(change)
    exact = is_exact(op)
    bound = watermarks.value(op.retain, ctx.watermarks)
    whole = op.keeps_all
    if not change.num_rows and bound is None:
        return Arranged(change, null_keys, lambda: state.trace(op.id, ROWS).runs, exact=exact, complete=whole)
    trace = state.trace(op.id, ROWS)
    before = trace.runs
    if op.order:
        Best(op.order, op.depth).take_in(trace, change)
    elif bound is None or op.time is None:
        _ = change.columns  # all of them are stored
        trace.append(change)
    elif op.newest:
        Newest(op.time, bound, op.depth).take_in(trace, change)
    else:
        Retention(op.time, bound, nulls=op.keeps_null_times).take_in(trace, change)
    return Arranged(change, null_keys, lambda: before, exact=exact, complete=whole)


def split(delta: Delta, keys: Sequence[int], null_safe: Sequence[bool]) -> tuple[Run, Delta]:
    """(the changes of rows that can match, as a run; the changes of rows with a NULL in the key)."""
    matching, null_keys = _parted(delta, keys, null_safe)
    return arrange(matching, tuple(keys)), null_keys


def _parted(delta: Delta, keys: Sequence[int], null_safe: Sequence[bool]) -> tuple[Delta, Delta]:
    """(the changes of rows that can match, the changes of rows with a NULL in the key)."""
    null_keys = np.zeros(delta.num_rows, np.bool_)
    for position, safe in zip(keys, null_safe, strict=True):
        column = delta.columns.column(position)
        if not safe and column.null_count:
            null_keys |= ~column.is_valid().to_numpy()
    if not null_keys.any():
        return delta, Delta(no_rows(delta.columns.schema), np.zeros(0, np.int64))
    return delta.take(np.flatnonzero(~null_keys)), delta.take(np.flatnonzero(null_keys))


def _taken(op: Arrange, changes: Delta | Sliced, slicing: Slicing) -> tuple[Run, Delta]:
    """Like `split`, but slices are sorted in a file, which then is the run of the rows that can match."""
    if isinstance(changes, Delta):
        return split(changes, op.keys, op.null_safe)
    none = Delta.none(op.schema)
    all_null_keys = [none]

    def matching() -> Iterator[Delta]:
        for piece in changes:
            kept, null_keys = _parted(piece, op.keys, op.null_safe)
            all_null_keys.append(null_keys)
            yield kept

    found = contiguous(consolidated(matching(), op.keys, slicing), none.columns.schema, slicing)
    arrays = found.arrays
    hashes = hash_columns([arrays[i] for i in op.keys], found.num_rows)
    return make_run(hashes, arrays, found.diff, op.keys), Delta.concat(all_null_keys)


def unkept(delta: Delta, keys: Sequence[int], null_safe: Sequence[bool], other: Arranged) -> tuple[Arranged, Arranged]:
    """One side of a join whose rows are not kept, and the `other` side, whose changes all precede these rows."""
    change, null_keys = split(delta, keys, null_safe)
    nothing = other.null_keys.take(np.zeros(0, np.int64))
    return (
        Arranged(change, null_keys, lambda: (), exact=other.exact),
        Arranged(
            other.change.slice(0, 0),
            nothing,
            lambda: (*other.runs_before, *other.changes),
            exact=other.exact,
            complete=other.complete,
        ),
    )


def replay(op: Arrange | Versions, state: State, which: tuple[int, int], parts: int, buckets: int) -> Arranged:
    """Snapshot replay: outputs the content to new readers in several epochs, as if it were new. The state is unchanged.

    The hashes of each of the `buckets` are cut into `parts` equal ranges. The change of an epoch is all rows whose key
    hash is in the ranges number [which[0], which[1]) of a bucket. So all arrangements output all rows of a key in the
    same epoch, and epochs have similar sizes. After the last range, all rows are earlier content. Rows with a NULL in
    the key are not kept, and not replayed.
    """
    none = Delta.none(op.schema)
    runs = state.trace(op.id, ROWS).runs
    if which[0] >= parts:
        return Arranged(arrange(none, op.keys), none, lambda: runs, exact=is_exact(op))
    before = tuple(piece for r in runs for piece in ranges(r, (0, which[0]), parts, buckets))
    pieces = [piece for r in runs for piece in ranges(r, which, parts, buckets)]
    change = merge_runs(pieces, whole=True) if pieces else arrange(none, op.keys)
    return Arranged(change, none, lambda: before, exact=is_exact(op))


def ranges(run: Run, which: tuple[int, int], parts: int, buckets: int) -> list[Run]:
    """For each bucket, the rows in the ranges of hashes number [which[0], which[1]) of its `parts` ranges. Empty ranges
    are omitted.

    The hashes of a run are those of one bucket if it is sorted by the key that determines the bucket, else of several.
    """
    if not run.num_rows:
        return []
    first, last = bucket_of(run.hash[[0, -1]], buckets).tolist()
    starts = [b * parts + which[0] for b in range(first, last + 1)]
    stops = [b * parts + which[1] for b in range(first, last + 1)]
    pairs = zip(_places(run, starts, parts * buckets), _places(run, stops, parts * buckets), strict=True)
    return [run.slice(start, stop) for start, stop in pairs if start < stop]


def _places(run: Run, parts: Sequence[int], count: int) -> list[int]:
    """The first row of each range of hashes with these numbers, out of `count` ranges; number `count` is the end."""
    starts = np.array([bucket_start(p, count) for p in parts if p < count], np.uint64)
    found: list[int] = np.searchsorted(run.hash, starts).tolist()
    return [*found, *[run.num_rows for p in parts if p >= count]]


def is_exact(op: Arrange | Versions) -> bool:
    """True if equal hashes mean equal keys: there are no NULLs, and the hash of the only key is a bijection."""
    if not op.keys:
        return True
    return len(op.keys) == 1 and not op.null_safe[0] and is_bijective(op.schema[op.keys[0]].type.arrow)
