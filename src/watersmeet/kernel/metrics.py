"""Counters and times of operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.values.types import SqlType

#: The minimum number of rows of a step whose keys are reported, the maximum number of reported keys, and the minimum
#: number of rows of each.
LEAST_ROWS: Final = 256
_MOST_KEYS: Final = 8
_PART: Final = 64

#: The hashes of some keys, each with its number of rows.
RowsByKey = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Failure:
    """A part of an expression that failed for some rows and became NULL.

    column: the position of the output column that contains the part, None for a condition. sql: the part, over the
    columns of the operator's inputs; empty if the column has no expression. reason: the error of the first row.
    """

    column: int | None
    sql: str
    reason: str
    rows: int


def too_large(kind: SqlType) -> str:
    """The reason why an aggregate of this type is NULL."""
    return f"the result is out of range for type {kind.sql}"


@dataclass
class Counters:
    """The counters of one step of one operator.

    expression_errors: how often a part of an expression failed and became NULL. failures: these parts, by column and
    SQL. waits_for_us: for a time filter, the least time that its bound has not passed; None if no row waits. made_rows:
    the number of rows that a join outputs or would output; hottest_rows: that of the key with the most; hottest_key:
    returns this key as texts. busiest: the keys with the most output rows of a join, or the most input rows of an
    arrangement. orphans: for an upsert, the updates that found no row of their key. late: the rows that were dropped as
    late.
    """

    expression_errors: int = 0
    failures: dict[tuple[int | None, str], Failure] = field(default_factory=dict)
    waits_for_us: int | None = None
    made_rows: int = 0
    hottest_rows: int = 0
    hottest_key: Callable[[], tuple[str | None, ...]] = tuple
    busiest: RowsByKey = ()
    orphans: list[Orphan] = field(default_factory=list)
    late: list[DroppedRows] = field(default_factory=list)

    def failed(self, column: int | None, sql: str, reason: str, rows: int) -> None:
        """Counts rows for which a part of an expression failed. column, sql, reason: as in `Failure`."""
        self.expression_errors += rows
        before = self.failures.get((column, sql), Failure(column, sql, reason, 0))
        self.failures[column, sql] = replace(before, rows=before.rows + rows)


def busiest(
    hashes: npt.NDArray[np.uint64], rows: npt.NDArray[Any], starts: npt.NDArray[np.int64] | None = None
) -> RowsByKey:
    """The keys with the most rows, if they have a large part of all rows. rows: their number for each key. hashes: one
    for each key; with `starts`, those of all rows, where `starts` are the first rows of the keys.
    """
    total = int(rows.sum()) if len(rows) else 0
    if total < LEAST_ROWS:
        return ()
    places = np.flatnonzero(rows >= max(1, total // _PART))
    places = places[np.argsort(-rows[places], kind="stable")][:_MOST_KEYS]
    found = hashes[places if starts is None else starts[places]]
    return tuple(zip(found.tolist(), rows[places].astype(np.int64).tolist(), strict=True))


@dataclass(frozen=True)
class Orphan:
    """An update that found no row of its key. seq: its `_seq`. key: its values as texts, None for NULL. kept: the
    positions of the columns whose values are missing.
    """

    seq: int
    key: tuple[str | None, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class DroppedRows:
    """Late rows that an operator dropped, with all columns of its input. below_us: the watermark that each missed."""

    columns: pa.Table
    below_us: npt.NDArray[np.int64]


@dataclass(frozen=True)
class OperatorMetrics:
    """The metrics of one operator in one bucket in one epoch.

    waits_for_us, made_rows, busiest: as in `Counters`. took_ns: measured by `Stopwatch`.
    """

    rows_in: int = 0
    rows_out: int = 0
    expression_errors: int = 0
    waits_for_us: int | None = None
    made_rows: int = 0
    busiest: RowsByKey = ()
    took_ns: int = 0

    def __add__(self, other: OperatorMetrics) -> OperatorMetrics:
        """The metrics of several buckets together."""
        waiting = [w for w in (self.waits_for_us, other.waits_for_us) if w is not None]
        return OperatorMetrics(
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.expression_errors + other.expression_errors,
            min(waiting, default=None),
            self.made_rows + other.made_rows,
            self.busiest + other.busiest,
            self.took_ns + other.took_ns,
        )


class Stopwatch:
    """Divides time among nested workers: each moment counts for the worker that began last and has not ended.

    So an operator that computes slices is charged for them, although its reader requests them during its own work.
    """

    def __init__(self) -> None:
        self._at_work: list[Worker] = []
        self._since_ns = 0

    def begin(self, worker: Worker) -> None:
        """Starts a worker. Each call needs a later call of `end`."""
        now = time.perf_counter_ns()
        if self._at_work:
            self._at_work[-1].took_ns += now - self._since_ns
        self._at_work.append(worker)
        self._since_ns = now

    def end(self) -> None:
        """Ends the worker that began last."""
        now = time.perf_counter_ns()
        self._at_work.pop().took_ns += now - self._since_ns
        self._since_ns = now


class Worker:
    """A worker that a `Stopwatch` measures. took_ns: its time so far, without nested workers."""

    took_ns: int = 0
