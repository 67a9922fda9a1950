"""Faults of operators that tests plant in place of their steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.run import Run

Step = Callable[..., Any]


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
