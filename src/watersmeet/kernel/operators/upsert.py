"""Upsert: last row per key wins; a retracting changelog comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Upsert
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.matching import Probe, parts, probes
from watersmeet.kernel.runs.run import Run, arrange, is_pure
from watersmeet.kernel.runs.state import State


def step(op: Upsert, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """Old rows out, new rows in, consolidated; a row that is written again unchanged gives nothing.

    The input's last column is `_seq`: of the rows of one key in this step the one with the highest
    counts; if its diff is negative, the key's row is deleted. NULL is a key like any other.
    """
    delta = inputs[0]
    if not delta.num_rows:
        return Delta.empty(pa.schema([(f.name, f.type.arrow) for f in op.schema]))
    trace = state.trace(op.id, "rows")
    old_runs = parts(trace.runs)
    width = len(op.schema)
    changes = []
    for winners in _last_by_key(delta, op.keys):
        rows = Delta(winners.columns, winners.diff).select(range(width))
        changes.append(rows.take(np.flatnonzero(rows.diff > 0)))
        for probe in probes([winners], exact=False):
            for run in old_runs:
                for _, found in probe.pairs(run):
                    changes.append(run.delta().take(found).negated())
    result = arrange(Delta.concat(changes), op.keys)
    trace.append(result)
    return result.delta()


def _last_by_key(delta: Delta, keys: tuple[int, ...]) -> list[Run]:
    """Of each key the row with the highest `_seq`, as pure runs."""
    return [probe.run.take(probe.starts + probe.lengths - 1) for probe in in_order(delta, keys)]


def in_order(delta: Delta, keys: tuple[int, ...]) -> list[Probe]:
    """The rows by key, those of one key in the order of the last column, `_seq`."""
    arrays = [col.one_form(c) for c in delta.columns.columns]
    hashes = hash_columns([arrays[i] for i in keys], delta.num_rows)
    by_seq = np.argsort(col.words(arrays[-1]), kind="stable")
    order = by_seq[np.argsort(hashes[by_seq], kind="stable")]
    table = col.positional(col.gather_all(arrays, order))
    pure = is_pure(hashes[order], [col.flat(table.column(i)) for i in keys])
    return probes([Run(hashes[order], table, delta.diff[order], keys, pure=pure)], exact=False)
