"""Records: changes as a log, for topics that a query writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Records
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Ints, group, key_form
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.state import State


def step(op: Records, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's records: those with a value, then those without."""
    delta = without_cancelling(inputs[0])
    arrays = [col.flat(c) for c in delta.columns.columns]
    came = np.flatnonzero(delta.diff > 0)
    gone = _gone(op, arrays, delta.diff)
    columns = [pa.concat_arrays([col.gather(a, came), col.gather(a, gone) if i in op.kept else pa.nulls(len(gone), a.type)])
               for i, a in enumerate(arrays)]
    deleted = pa.array(np.repeat([False, True], [len(came), len(gone)]))
    numbers = pa.array(np.full(len(came) + len(gone), ctx.epoch, np.int64))
    return Delta(col.positional([*columns, deleted, numbers]), np.concatenate([delta.diff[came], np.ones(len(gone), np.int64)]))


def _gone(op: Records, arrays: Sequence[pa.Array], diff: Ints) -> Ints:
    """A row of each key of which rows only went."""
    if op.keys is None or not (diff < 0).any():
        return np.zeros(0, np.int64)
    keys = [key_form(arrays[k]) for k in op.keys]
    groups = group(keys, hash_columns(keys, len(diff)))
    stays = np.zeros(groups.count, np.bool_)
    stays[groups.of_row[diff > 0]] = True
    rows = np.flatnonzero((diff < 0) & ~stays[groups.of_row])
    kept = [col.gather(col.one_form(arrays[k]), rows) for k in op.kept]
    order, _ = canonical_rows(kept, np.ones(len(rows), np.int64), groups.hashes[groups.of_row[rows]], whole_row=False)
    _, first = np.unique(groups.of_row[rows[order]], return_index=True)
    return rows[order[first]]
