"""Upsert: last row per key wins; a retracting changelog comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Upsert
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import Positions, distinct
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Orphan
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, empties
from watersmeet.kernel.runs.matching import Probe, parts, probes, shown
from watersmeet.kernel.runs.run import Run, arrange, is_pure
from watersmeet.kernel.runs.state import State


def step(op: Upsert, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """Old rows out, new rows in, consolidated; a row that is written again unchanged gives nothing.

    The input's last column is `_seq`: of the rows of one key in this step the one with the highest
    counts; if its diff is negative, the key's row is deleted. NULL is a key like any other. A partial upsert first
    makes whole rows of its changes.
    """
    delta = inputs[0]
    if not delta.num_rows:
        return Delta.none(op.schema)
    trace = state.trace(op.id, "rows")
    old_runs = parts(near(trace.runs, lambda: _hashes(delta, op.keys)))
    width = len(op.schema)
    changes: list[Delta] = []
    emptied = False
    if op.partial:
        delta, emptied = _whole_rows(op, delta, old_runs, ctx.counters.orphans)
    if emptied:
        changes += [run.delta().negated() for run in trace.runs]
        old_runs = []
    for winners in _last_by_key(delta, op.keys):
        rows = Delta(winners.columns, winners.diff).select(range(width))
        changes.append(rows.take(np.flatnonzero(rows.diff > 0)))
        for probe in probes([winners], exact=False):
            for run in old_runs:
                for _, found in probe.pairs(run):
                    changes.append(run.delta().take(found).negated())
    if not changes:
        return delta.select(range(width))
    result = arrange(Delta.concat(changes), op.keys)
    trace.append(result)
    return result.delta()


def _last_by_key(delta: Delta, keys: tuple[int, ...]) -> list[Run]:
    """Of each key the row with the highest `_seq`, as pure runs."""
    return [probe.run.take(probe.starts + probe.lengths - 1) for probe in in_order(delta, keys)]


def _hashes(delta: Delta, keys: tuple[int, ...]) -> Hashes:
    return hash_columns([col.one_form(delta.columns.column(i)) for i in keys], delta.num_rows)


def in_order(delta: Delta, keys: tuple[int, ...]) -> list[Probe]:
    """The rows by key, those of one key in the order of the last column, `_seq`."""
    arrays = [col.one_form(c) for c in delta.columns.columns]
    hashes = _hashes(delta, keys)
    by_seq = np.argsort(col.words(arrays[-1]), kind="stable")
    order = by_seq[np.argsort(hashes[by_seq], kind="stable")]
    table = col.positional(col.gather_all(arrays, order))
    pure = is_pure(hashes[order], [col.flat(table.column(i)) for i in keys])
    return probes([Run(hashes[order], table, delta.diff[order], keys, pure=pure)], exact=False)


def _whole_rows(op: Upsert, delta: Delta, old_runs: Sequence[Run], orphans: list[Orphan]) -> tuple[Delta, bool]:
    """(whole rows and deletions without `_kept`, whether the table was emptied before the first of them).

    Of what came before the table was emptied for the last time nothing is left, but updates without a row are orphans.
    """
    width = len(op.schema)
    kept = col.flat(delta.columns.column(width))
    if kept.null_count == len(kept):
        return delta.select([*range(width), width + 1]), False
    emptied = empties(delta)
    seqs = col.words(col.flat(delta.columns.column(width + 1)))
    moments = np.sort(seqs[emptied])
    none = delta.select([*range(width), width + 1]).take(np.zeros(0, np.int64))
    chains = in_order(delta.take(np.flatnonzero(~emptied)), op.keys)
    whole = Delta.concat([none, *(_completed(op, probe, moments, old_runs, orphans) for probe in chains)])
    if len(moments):
        whole = whole.take(np.flatnonzero(col.words(col.flat(whole.columns.column(width))) > moments[-1]))
    return whole, len(moments) > 0


def _completed(op: Upsert, probe: Probe, moments: Positions, old_runs: Sequence[Run], orphans: list[Orphan]) -> Delta:
    """The rows of a probe, in which updates have the values that they keep. moments: when the table was emptied."""
    run, width = probe.run, len(op.schema)
    arrays, rows = run.arrays, np.arange(run.num_rows)
    parents, places = (f(arrays[width]).to_numpy() for f in (pc.list_parent_indices, pc.list_flatten))
    update = np.bincount(parents, minlength=len(rows)) > 0
    groups = probe.of_rows(np.arange(probe.num_groups))
    eras = np.searchsorted(moments, col.words(arrays[-1]))
    # A chain: rows of one key between which the table is not emptied.
    first = np.ones(len(rows), np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (eras[1:] != eras[:-1])
    begins = np.maximum.accumulate(np.where(first, rows, 0))
    # What an update builds on: the last whole row or deletion before it in its chain, or else what is stored.
    base = np.maximum.accumulate(np.where(update, -1, rows))
    from_state = update & (base < begins) & (eras == 0)
    old, stored = _stored(probe, distinct(groups[from_state]), old_runs)
    there = np.where(base >= begins, run.diff[base] > 0, from_state & (stored[groups] >= 0))
    lost = update & ~there
    for row in np.flatnonzero(lost).tolist():
        key = tuple(shown(a[row]) for a in run.key_arrays)
        orphans.append(Orphan(int(arrays[-1][row].as_py()), key, tuple(np.unique(places[parents == row]).tolist())))
    made = list(arrays[:width])
    for column in np.unique(places).tolist():
        own = np.ones(len(rows), np.bool_)
        own[parents[places == column]] = False
        source = np.maximum.accumulate(np.where(own, rows, -1))
        source = np.where(source >= begins, source, len(rows) + stored[groups])
        known = pa.concat_arrays([made[column], *([] if old is None else [old[column]])])
        made[column] = col.gather(known, np.where(lost, rows, source))
    whole = Delta(col.positional([*made, arrays[-1]]), run.diff)
    return whole.take(np.flatnonzero(~lost)) if lost.any() else whole


def _stored(probe: Probe, groups: Positions, old_runs: Sequence[Run]) -> tuple[list[pa.Array] | None, Positions]:
    """(the rows that are stored of some groups, by group the place of its row among them or -1)."""
    place = np.full(probe.num_groups, -1, np.int64)
    content = Probe(probe.run.take(probe.starts[groups]), exact=False).content(old_runs) if len(groups) else None
    if content is None:
        return None, place
    found, arrays, _ = content
    place[groups[found]] = np.arange(len(found))
    return arrays, place
