"""The stateful operator of Spark that runs the buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from watersmeet.frames.buckets import Step, check_identity, repeated, run_bucket
from watersmeet.frames.pieces import Piece, bodies
from watersmeet.frames.shapes import JoinShape
from watersmeet.frames.stores import LocalRuns, SparkStore
from watersmeet.watermarks import Watermark, value

#: What travels to the stateful operator.
PIECE: Final = "bucket int, channel int, body binary"

#: What it gives: frames of changes, each in a row, and one row of figures (without a frame) for each bucket.
FIGURES: Final = ("left_rows", "right_rows", "late_left_rows", "late_right_rows", "state_rows", "state_bytes")
#: The row of figures also has the watermark of the result, in microseconds.
MARK: Final = "mark"
CHANGES: Final = "frame binary, " + ", ".join(f"{name} bigint" for name in (*FIGURES, MARK))


class Buckets(StatefulProcessor):  # type: ignore[misc]
    """Runs each bucket of `shape` on the pieces that came for it."""

    def __init__(self, shape: JoinShape, ids: tuple[int, ...], mark: Watermark) -> None:
        """ids: the key of each bucket in Spark. mark: the watermark of the result."""
        self._shape = shape
        self._mark = mark
        self._numbers = {key: number for number, key in enumerate(ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._texts = handle.getMapState("texts", "name string", "text string")
        self._chunks = handle.getMapState("chunks", "run string, number int", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
        store = SparkStore(self._texts, self._chunks, LocalRuns.of_worker())
        bucket = self._numbers.get(int(key[0]))
        if bucket is None:  # the key of this partition, before all buckets
            check_identity(self._shape, store)
            return
        pieces = [
            Piece(bucket, int(channel), bytes(body))
            for frame in rows
            for channel, body in zip(frame["channel"], frame["body"], strict=True)
        ]
        yield from frames(run_bucket(self._shape, bucket, pieces, store), self._mark)

    def close(self) -> None:
        pass


def frames(step: Step, mark: Watermark) -> Iterator[pd.DataFrame]:
    """A step as rows of `CHANGES`."""
    names = ["frame", *FIGURES, MARK]
    for body in bodies(repeated(step.delta)):
        yield pd.DataFrame([[body, *(0 for _ in FIGURES), None]], columns=names)
    time_us = value(mark, step.watermarks)
    # Spark takes rows at its watermark for late, ours only those below it.
    last_us = None if time_us is None else time_us - 1
    yield pd.DataFrame([[None, *step.rows, *step.late, *step.state, last_us]], columns=names)
