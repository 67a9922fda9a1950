"""Everything that depends on size, made to depend on a few rows: pieces, segments, levels, budgets, files, compactions.

What otherwise happens beyond a million rows, or after hundreds of commits, so happens in every small case. Hashes of
texts, bytes, decimals, intervals and lists collide all the time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import numpy as np

from watersmeet.database import opened
from watersmeet.kernel import joins
from watersmeet.kernel.arrays import exact_sum, hashing
from watersmeet.kernel.evaluation import expressions
from watersmeet.kernel.operators import aggregate
from watersmeet.kernel.runs import delta, frames, groups, matching, trace
from watersmeet.runtime import coordinator, taskcontract
from watersmeet.runtime.workers import Budget
from watersmeet.store import changes, commits, compaction, content, retention, segments, tables
from watersmeet.system import files

_SIZES = {
    (delta, "_MOST_BITS"): 3,
    (exact_sum, "_CELLS"): 200,
    (expressions, "_PLANS"): 4,
    (aggregate, "FIRST_ROWS"): 1,
    (aggregate, "_FURTHER"): 2,
    (aggregate, "_PIECE_ROWS"): 3,
    (frames, "FRAME_BYTES"): 300,
    (groups, "_MANY_GROUPS"): 1,
    (groups, "_PIECE_ROWS"): 3,
    (hashing, "_PIECE_ROWS"): 3,
    (hashing, "_PIECE_WORDS"): 2,
    (joins, "EMPTIED_ROWS"): 1,
    (matching, "PIECE_ROWS"): 3,
    (trace, "PIECE_ROWS"): 3,
    (trace, "LEVEL_0_ROWS"): 2,
    (trace, "MERGED_BYTES"): 400,
    (trace, "CHUNK_BYTES"): 200,
    (trace, "_SAMPLES"): 8,
    (taskcontract, "_TASK_BYTES"): 1000,
    (opened, "_INPROCESS_COMPACTION"): 3,
    (commits, "_CACHE_BYTES"): 5000,
    (changes, "BLOB_ROWS"): 3,
    (compaction, "SMALL_ROWS"): 4,
    (compaction, "_LARGE_ROWS"): 3,
    (compaction, "_OWN_FILE_BYTES"): 500,
    (content, "_LAG_COMMITS"): 2,
    (content, "_PIECE_ROWS"): 4,
    (files, "_WRITEV_BUFFERS"): 2,
    (changes, "_BATCH_ROWS"): 4,
    (segments, "OWN_FILE_BYTES"): 700,
    (retention, "IDLE_COMMITS"): 3,
    (tables, "_WASTE_BYTES"): 100,
    (tables, "_SMALL_ROWS"): 3,
}
_COLLIDING = ("_hash_bytes", "_hash_words", "_hash_lists")


@contextlib.contextmanager
def small() -> Iterator[None]:
    """For databases that are made inside of it: their state is of no use outside."""
    with contextlib.ExitStack() as patches:
        for (module, name), value in _SIZES.items():
            assert isinstance(getattr(module, name), int), name
            patches.enter_context(mock.patch.object(module, name, value))
        for name in _COLLIDING:
            patches.enter_context(mock.patch.object(hashing, name, _colliding(getattr(hashing, name))))
        patches.enter_context(
            mock.patch.object(coordinator, "Budget", functools.partial(Budget, first_rows=4, max_rows=16))
        )
        yield


def _colliding(function):
    def hashes(*arguments, **options):
        return hashing.mix(function(*arguments, **options) % np.uint64(3))

    return hashes
