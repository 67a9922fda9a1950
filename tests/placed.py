"""Every row that an operator keeps is in the bucket that its own columns show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pyarrow.compute as pc

from watersmeet.circuit.epochs import CLONE, COPY, OTHERS
from watersmeet.kernel.arrays.hashing import bucket_of, hash_columns
from watersmeet.planner.distribution import StateDistributions
from watersmeet.runtime import tasks


@contextmanager
def checked() -> Iterator[list[str]]:
    """Inside, tasks that keep a row in a wrong bucket fail. Gives a list of what was looked at: kinds of operators."""
    run_stage, known, seen = tasks.run_stage, {}, []

    def checking(circuit, stage, bucket, sources, frames, state, *rest):
        result = run_stage(circuit, stage, bucket, sources, frames, state, *rest)
        if stage > 0:
            traces = [(o, n, t) for o, loaded in state._loaded.items() for n, t in loaded.items()]
            for operator_id, name, trace in traces:
                if operator_id.startswith((COPY, CLONE)) or name.startswith("history"):
                    continue  # state of a fill, during which the number of buckets can't change
                op = circuit.by_id[operator_id]
                if op.id not in known:
                    known[op.id] = StateDistributions(circuit.by_id).of(op)
                distribution = known[op.id].get(name, known[op.id].get(OTHERS))
                assert distribution is not None, f"rows of {op} in {name!r} don't show where they belong"
                for run in trace.runs if distribution.how == "keyed" else ():
                    seen.append(op.kind)
                    assert in_bucket(run, distribution.keys, circuit.buckets, bucket), (
                        f"{op}, {name!r}, by {distribution.keys}"
                    )
        return result

    with mock.patch.object(tasks, "run_stage", checking):
        yield seen


def in_bucket(run, keys, buckets: int, bucket: int) -> bool:
    if not keys:
        return bucket == 0
    columns = [pc.coalesce(*[run.arrays[i] for i in key]) for key in keys]
    return bool(np.all(bucket_of(hash_columns(columns), buckets) == bucket))
