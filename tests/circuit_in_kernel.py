"""A circuit run by the kernel over the two moments of `tests.moments`: history that is read for a new view, then one
epoch with what changed.

It gives what `tests.circuit_to_sql` says of the second moment, whatever the number of buckets and tasks and however
rows are cut and shuffled. Each stage runs twice, once in slices of a few rows: it publishes the same, byte for byte.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import duckdb
import numpy as np

from tests import reference
from tests.moments import EPOCHS, KEYED, NUMBERS, START, changes, table
from tests.unit.kernel.kernel_tools import Stored, rows_of
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Role
from watersmeet.circuit.operators import Scan
from watersmeet.kernel.executor import EpochContext, StageResult, run_stage
from watersmeet.kernel.runs.delta import Delta, Slicing
from watersmeet.kernel.runs.frames import Frame
from watersmeet.values.types import arrow_schema


def run(circuit: Circuit, connection: duckdb.DuckDBPyConnection, relation_id: str, rng: random.Random) -> Counter:
    """The content of `relation_id`. Afterwards an epoch without changes gives nothing."""
    runner = _Runner(circuit, rng)
    every: dict[str, Role] = dict.fromkeys(circuit.by_id, "new")
    first = EpochContext(EPOCHS[START], Fill(first=True, roles=every), watermarks=NUMBERS[START])
    runner.epoch({s.id: _read(s, connection, START) for s in circuit.scans}, first)
    second = EpochContext(EPOCHS["main"], watermarks=NUMBERS["main"], before=NUMBERS[START])
    runner.epoch({s.id: _read(s, connection, "main") for s in circuit.scans}, second)
    found = dict(runner.content)
    runner.epoch({}, EpochContext(EPOCHS["main"] + 1, watermarks=NUMBERS["main"], before=NUMBERS["main"]))
    assert found == runner.content, "an epoch without changes changes something"
    return runner.content[relation_id]


def _read(op: Scan, connection: duckdb.DuckDBPyConnection, moment: str) -> Delta:
    """What comes in the epoch of the moment."""
    names = [f'"{n}"' for n in op.names]
    listed = ", ".join(names)
    some = f"{listed}, " if names else ""
    then = f"{START}.{op.relation_id}"
    if not op.ordered:
        before = f"SELECT {listed} FROM {table(then)}"
        now = f"SELECT {listed} FROM {table(op.relation_id)}"
        text = (
            f"SELECT *, 1 FROM ({before})"
            if moment == START
            else (
                f"SELECT *, 1 FROM ({now} EXCEPT ALL {before}) UNION ALL SELECT *, -1 FROM ({before} EXCEPT ALL {now})"
            )
        )
    elif op.relation_id in KEYED:
        text = (
            f"SELECT {some}_seq, _diff FROM ({changes(op.relation_id, names, moment=moment)})"
            + " WHERE _seq >= 0" * (moment != START)
        )
    else:
        text = f"SELECT {some}-_seq, 1 FROM {table(op.relation_id, came=True)} WHERE _epoch = {-EPOCHS[moment]}"
    found = connection.execute(text).fetch_arrow_table()
    diff = found.column(found.num_columns - 1).to_numpy().astype(np.int64)
    columns = found.select(range(found.num_columns - 1)).rename_columns([f"c{i}" for i in range(len(op.schema))])
    return Delta(columns.cast(arrow_schema(op.schema, positional=True)), diff)


def published(result: StageResult) -> dict[str, tuple[Counter, bool]]:
    """The published changes by relation: their rows with diffs, whose order may depend on the slices, and whether no
    row has diffs of both signs.
    """
    found: dict[str, tuple[Counter, bool]] = {}
    for relation, delta in result.published.items():
        signs: dict[str, set[bool]] = {}
        sums: Counter = Counter()
        for row, diff in zip(map(repr, rows_of(delta)), delta.diff.tolist(), strict=True):
            signs.setdefault(row, set()).add(diff > 0)
            sums[row] += diff
        found[relation] = sums, all(len(s) == 1 for s in signs.values())
    return found


class _Runner:
    """State, stored and loaded in each epoch, and what the sinks gave so far."""

    def __init__(self, circuit: Circuit, rng: random.Random) -> None:
        self._circuit, self._rng = circuit, rng
        self._states: dict[tuple[int, int], Stored] = {}
        self.content: dict[str, Counter] = {s.relation_id: Counter() for s in circuit.sinks}

    def epoch(self, sources: dict[str, Delta], context: EpochContext) -> None:
        """The rows of each source go to some task in some piece; frames go on shuffled."""
        tasks = 1 if self._circuit.buckets == 1 else self._rng.randint(1, 2)
        pieces: list[dict[str, list[Delta]]] = [{} for _ in range(tasks)]
        for scan, delta in sources.items():
            places = self._rng.choices(range(2 * tasks), k=delta.num_rows)
            for place in set(places):
                rows = np.array([i for i, p in enumerate(places) if p == place])
                self._rng.shuffle(rows)
                pieces[place % tasks].setdefault(scan, []).append(delta.take(rows))
        moving = [f for task in range(tasks) for f in self._stage(0, task, pieces[task], [], context)]
        for stage in range(1, self._circuit.last_stage + 1):
            self._rng.shuffle(moving)
            moving = [
                f
                for bucket in range(self._circuit.buckets)
                for f in self._stage(stage, bucket, {}, [f for f in moving if f.bucket == bucket], context)
            ]
        assert not moving

    def _stage(
        self, stage: int, bucket: int, sources: dict[str, list[Delta]], frames: list[Frame], context: EpochContext
    ) -> list[Frame]:
        stored = self._states.setdefault((stage, bucket), Stored())
        tiny = replace(context, slicing=Slicing(rows=self._rng.randint(1, 5)))
        runs = []
        for how in (tiny, context):
            state = stored.load()
            runs.append((run_stage(self._circuit, stage, bucket, sources, frames, state, how), state))
        assert published(runs[0][0]) == published(runs[1][0]), "slices give something else"
        assert all(netted for _, netted in published(runs[0][0]).values()), "a row has diffs of both signs"
        result, state = self._rng.choice(runs)
        stored.save(state)
        for relation, delta in result.published.items():
            rows = [reference.row(r) for r in rows_of(delta)]
            for row, diff in zip(rows, delta.diff.tolist(), strict=True):
                self.content[relation][row] += diff
        return result.frames
