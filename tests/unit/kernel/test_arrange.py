"""Arrangements whose new readers get what they keep."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.unit.kernel.kernel_tools import delta_of, rows_of

from watersmeet.circuit.operators import Arrange
from watersmeet.kernel.arrays.hashing import bucket_of, hash_columns
from watersmeet.kernel.operators.arrange import ROWS, replay
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.values.types import BIGINT, Field

BUCKETS = 3
SCHEMA = (Field("a", BIGINT), Field("b", BIGINT))
TABLE = [(a, b) for a in range(200) for b in range(5)]


def sent(keys):
    """An arrangement by `keys` and its state in each bucket, to which the rows were sent by column 0, in two runs."""
    op = Arrange(("scan",), SCHEMA, True, keys, (False,) * len(keys), 1)
    states = []
    for bucket in range(BUCKETS):
        state = StageState(None, BlobDict())
        for half in (TABLE[::2], TABLE[1::2]):
            rows = delta_of(SCHEMA, half)
            mine = rows.take(np.flatnonzero(bucket_of(hash_columns(rows.arrays[:1]), BUCKETS) == bucket))
            state.trace(op.id, ROWS).replace([*state.trace(op.id, ROWS).runs, arrange(mine, keys)])
        states.append(state)
    return op, states


@pytest.mark.parametrize("keys", [(0,), (0, 1), (1,)])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_each_bucket_replays_what_it_keeps_in_equal_parts(keys, parts):
    op, states = sent(keys)
    part_of = {}
    shown = Counter()
    for state in states:
        all_rows = Counter(r for run in state.trace(op.id, ROWS).runs for r in rows_of(run.delta()))
        earlier = Counter()
        sizes = []
        for part in range(parts):
            made = replay(op, state, (part, part + 1), parts, BUCKETS)
            assert Counter(r for run in made.old for r in rows_of(run.delta())) == earlier
            now = rows_of(made.change.delta())
            earlier.update(now)
            sizes.append(len(now))
            for row in now:  # a key comes in one epoch, in whatever bucket
                assert part_of.setdefault(tuple(row[k] for k in keys), part) == part
        after = replay(op, state, (parts, parts), parts, BUCKETS)
        assert not after.change.num_rows
        assert Counter(r for run in after.old for r in rows_of(run.delta())) == earlier == all_rows
        if keys != (1,):
            assert min(sizes) > 0
        shown += earlier
    assert shown == Counter(TABLE)


def test_a_bucket_of_its_own_key_is_cut_without_a_copy():
    op, states = sent((0,))
    for state in states:
        assert len(replay(op, state, (3, 4), 7, BUCKETS).old) == len(state.trace(op.id, ROWS).runs)
