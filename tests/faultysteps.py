"""Faults of operators that tests plant in place of their steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.kernel.operators import STEPS
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.run import Run

Step = Callable[..., Any]

#: The environment variable with the path of the file that names a kind of operator and a fault.
PLANTED = "WATERSMEET_TEST_PLANTED"


def raising(make: Callable[[], Exception], *_: Any) -> Any:
    raise make()


def wrong_type(step: Step, op: Any, *arguments: Any) -> Any:
    made = step(op, *arguments)
    if isinstance(made, Arranged):
        change = Run(made.change.hash, _other(made.change.columns), None, made.change.keys, pure=True)
        return Arranged(change, made.null_keys, lambda: made.runs_before, exact=made.exact)
    assert isinstance(made, Delta)
    return Delta(_other(made.columns), made.diff)


def _other(columns: pa.Table) -> pa.Table:
    return columns.set_column(0, columns.column_names[0], pa.nulls(columns.num_rows, pa.time32("s")))


def wrong_length(step: Step, op: Any, *arguments: Any) -> Any:
    made = step(op, *arguments)
    if isinstance(made, Arranged):
        hashes = np.append(made.change.hash, np.uint64(7))
        change = Run(hashes, made.change.columns, None, made.change.keys, pure=True)
        return Arranged(change, made.null_keys, lambda: made.runs_before, exact=made.exact)
    assert isinstance(made, Delta)
    return Delta(made.columns, np.ones(made.num_rows + 1, np.int64))


FAULTS: dict[str, Callable[[Step], Step]] = {
    "exception": lambda _: partial(raising, lambda: KeyError("planted")),
    "wrong type": lambda step: partial(wrong_type, step),
    "wrong length": lambda step: partial(wrong_length, step),
}


class Planting:
    """Work of a worker in which every step looks into the file first."""

    def __init__(self, work: Callable[[Any], Iterator[Any]]) -> None:
        self._work = work

    def __call__(self, batches: Any) -> Iterator[Any]:
        for kind, step in STEPS.items():
            if not (isinstance(step, partial) and step.func is _step):
                STEPS[kind] = partial(_step, kind, step)
        yield from self._work(batches)


def _step(kind: str, step: Step, *arguments: Any) -> Any:
    file = Path(os.environ[PLANTED])
    planted, _, fault = file.read_text().partition(" ") if file.exists() else ("", "", "")
    if planted != kind:
        return step(*arguments)
    if fault == "lack of memory":
        return raising(lambda: MemoryError("planted"))
    return FAULTS[fault](step)(*arguments)
