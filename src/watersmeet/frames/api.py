"""`watersmeet.join` joins streaming DataFrames; `once_per_batch` writes each micro-batch once in `foreachBatch`."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.streaming.listener import StreamingQueryProgress

from watersmeet.errors import error
from watersmeet.frames import sessions
from watersmeet.frames.building import (
    AsofMatch,
    Bounds,
    Duration,
    Given,
    LatestMatch,
    Options,
    asof,
    build,
    check_options,
    check_side,
    check_text,
    check_watermark,
    column_of,
    latest,
    linked,
    refused,
)
from watersmeet.frames.circuits import appends, duration_us, result_watermark
from watersmeet.frames.sessions import carried_processor, placed
from watersmeet.frames.shapes import SIDES, JoinShape, ResultColumn, incomparable, result_schema, sql_type, widest
from watersmeet.frames.tasks import (
    CHANGES,
    FIGURES,
    MARK,
    METRICS,
    PIECE,
    QUERY_FIGURES,
    Buckets,
    BucketsAt,
    Decoder,
    Encoder,
    JoinStep,
    LookUp,
    static_rows,
)
from watersmeet.runtime.spark.shipping import bucket_keys
from watersmeet.values.types import Field
from watersmeet.values.watermarks import Watermark


def once_per_batch(
    write: Callable[[DataFrame, int], object], last_batch: Callable[[], int | None] | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that computes each micro-batch once, in full, and calls `write(batch, number)`.

    last_batch: returns the number of the last micro-batch in the target, or None. A micro-batch that Spark repeats is
    not written again, exactly if `write` stores the number in the transaction of the rows. Raises INVALID_PARAMETER if
    an argument can't be called.
    """
    for argument, function in (("write", write), ("last_batch", last_batch)):
        if not callable(function) and (argument == "write" or function is not None):
            raise error(
                "INVALID_PARAMETER", f"{argument} of once_per_batch is a {type(function).__name__}, not a function"
            )
    return _OncePerBatch(write, last_batch)


@dataclass(frozen=True)
class _OncePerBatch:
    write: Callable[[DataFrame, int], object]
    last_batch: Callable[[], int | None] | None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """The function for `DataStreamWriter.foreachBatch`.

        It computes all partitions: otherwise the join's state would lack the next version of a partition, and Spark
        would end the query.
        """
        last = None if self.last_batch is None else self.last_batch()
        if last is not None and number <= last:
            batch.write.format("noop").mode("overwrite").save()
            return
        batch.persist()
        try:
            batch.count()
            self.write(batch, number)
        finally:
            batch.unpersist()


def join_metrics(progress: StreamingQueryProgress | None) -> dict[str, dict[str, int]]:
    """The metrics of each join and of each `sql` in one micro-batch of a query, by name. progress:
    `query.lastProgress`.

    The metrics of a join are left_rows, right_rows, late_left_rows, late_right_rows, state_rows and state_bytes; those
    of `sql` are input_rows, late_rows, state_rows and state_bytes.
    """
    found: dict[str, dict[str, int]] = {}
    for name, row in ((progress and progress.observedMetrics) or {}).items():
        values = row.asDict()
        if values.keys() == {"values", "schema"}:  # Spark Connect does not decode the row (Spark 4.1)
            values = {f["name"]: v for f, v in zip(values["schema"]["fields"], values["values"], strict=True)}
        if values.keys() in (set(FIGURES), set(QUERY_FIGURES)):
            found[name] = {metric: number or 0 for metric, number in values.items()}
    return found


__all__ = ["asof", "join", "join_metrics", "latest", "once_per_batch"]

#: Spark's metadata of a column with the delay of its watermark in milliseconds.
_DELAY_MS: Final = "spark.watermarkDelayMs"

#: Marks a column of a result with the join's watermark, which is not a delay after the greatest time.
_OF_JOIN: Final = "watersmeet.watermark"

_DAY: Final = "__watersmeet_day"
_numbers: Final = itertools.count(1)


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    match: AsofMatch | LatestMatch | None = None,
    within: Bounds | None = None,
    window: Duration | None = None,
    time: str | tuple[str, str] | None = None,
    as_of: str | tuple[str, str] | None = None,
    emit: Literal["changes", "final", "arrival"] | None = None,
    left_watermark: tuple[str, Duration] | None = None,
    right_watermark: tuple[str, Duration] | None = None,
    left_diff: str | None = None,
    right_diff: str | None = None,
    buckets: int = 16,
    suffix: str = "_right",
    diff: str = "diff",
    name: str | None = None,
    watermark: str | None = None,
    state: str = sessions.STORE,
    checkpoint: str | None = None,
) -> DataFrame:
    """The join of two DataFrames, one of which may be static, as a streaming DataFrame.

    on: columns that must be equal: names, or pairs (left name, right name). how: inner, left, right, full, semi, anti.
    match: `asof(…)` or `latest()`; without it every pair counts. within: bounds of right time - left time, a pair
    (lower, upper) or one length for both directions. window: pairs must be in the same tumbling window. time: the
    columns with the times, (left, right) or one name. as_of: right rows are versions by time; each left row is joined
    with the version at its time. left_watermark, right_watermark: (column, delay), where rows may be late by the delay;
    by default that of `withWatermark`. left_diff, right_diff: the column of +1 and -1 of a side whose rows may be
    retracted, such as the result of another join. emit: "changes", "final" or "arrival". buckets: the number of parts
    of the state, fixed for a checkpoint; the most cores that can work on it. suffix: appended to right columns
    with the name of a left one. name: the name of the metrics in the query's `observedMetrics`. watermark: the result's
    column with the time of a side that gets a watermark, so that no later row has a lower time. state: "store" for
    Spark's state store, which must be RocksDB; otherwise a folder or URL for files, which all workers reach.
    checkpoint: the query's checkpointLocation; the call then raises STATE_MISMATCH if it belongs to another join.

    If no row can be retracted, the result has only the joined columns, otherwise also `diff` (int): +1 for an inserted
    row and -1 for a retracted one. Raises Error; docs/DATAFRAMES.md has the rules.
    """
    for frame, delay, side in ((left, left_watermark, "left"), (right, right_watermark, "right")):
        check_side(frame, side)
        check_watermark(delay, side)
    options = Options(on, how, match, within, window, time, as_of, emit, suffix, diff)
    check_options(options)
    if name is not None:
        check_text(name, "name")
    sessions.check_state(state)
    spark = left.sparkSession
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    sides = [signed(left, left_diff, "left"), signed(right, right_diff, "right")]
    shape = build(
        given(sides[0], left_watermark, left_diff), given(sides[1], right_watermark, right_diff), options, buckets
    )
    mark = None if watermark is None else _result_watermark(shape, watermark, (left, right))
    schema = _schema(shape, sides, diff)
    decoder = Decoder(shape, result_schema(schema), diff=not appends(shape))
    if shape.static is None:
        sessions.check_store(spark, state)
        if checkpoint is not None:
            sessions.kept_plan(spark, checkpoint, name, shape, {})
    carries = sessions.prepare(spark)
    carry = partial(sessions.task, carries=carries)
    if shape.static is not None:
        static, stream = sides if shape.static == "left" else reversed(sides)
        rows = static_rows(shape, static.toArrow())
        sessions.check_static(spark, len(rows))
        return stream.mapInArrow(carry(LookUp(shape, rows, uuid.uuid4().hex, decoder)), schema)
    in_store = state == sessions.STORE
    keys = bucket_keys(shape.buckets) if in_store else tuple(range(shape.buckets))
    encoders = [Encoder(shape, index, keys, partitions if in_store else None) for index in range(len(SIDES))]
    # Spark writes constants into generated code: a time would make it compile the code again in every micro-batch.
    day = f.current_date().alias(_DAY)
    cut = [x.select("*", day).mapInArrow(carry(encoder), PIECE) for x, encoder in zip(sides, encoders, strict=True)]
    pieces = cut[0].union(cut[1])
    has_rows = not in_store and watermark is None
    if in_store:
        buckets_in_store = Buckets(JoinStep(shape, mark or ()), keys)
        processor = carried_processor(buckets_in_store) if carries else buckets_in_store
        changes = pieces.groupBy("bucket").transformWithStateInPandas(processor, CHANGES, "Append", "None")
    else:
        at_path = BucketsAt(JoinStep(shape, mark or ()), state, decoder if has_rows else None)
        output = with_metrics(schema) if has_rows else CHANGES
        changes = placed(pieces, shape.buckets).mapInArrow(carry(at_path), output)
    observed = changes.observe(name or f"watersmeet-{next(_numbers)}", *sums(FIGURES, in_one=has_rows))
    if watermark is None:
        return observed.mapInArrow(carry(decoder), schema) if in_store else without_metrics(observed, schema)
    marked = observed.select("frame", f.timestamp_micros(MARK).alias(MARK)).withWatermark(MARK, "0 seconds")
    columns = {name: f.col("`" + name.replace("`", "``") + "`") for name in schema.names}
    timed = schema.names[column_of(schema.names, watermark, "the result")]
    columns[timed] = columns[timed].alias(timed, metadata={_DELAY_MS: 0, _OF_JOIN: True})
    return marked.mapInArrow(carry(decoder), schema).select(*columns.values())


def with_metrics(schema: t.StructType) -> t.StructType:
    """The schema of rows with metrics: see `tasks.rows_schema`."""
    own = [t.StructField(f"c{i}", x.dataType) for i, x in enumerate(schema.fields)]
    return t.StructType([*own, t.StructField(METRICS, t.ArrayType(t.LongType()))])


def sums(figures: Sequence[str], *, in_one: bool) -> list[Column]:
    """The sum of each metric. in_one: over rows with metrics in one column (`with_metrics`)."""
    return [f.sum(f.col(METRICS)[i] if in_one else name).alias(name) for i, name in enumerate(figures)]


def without_metrics(rows: DataFrame, schema: t.StructType) -> DataFrame:
    """The rows of the result, with its schema."""
    columns = [f.col(f"c{i}") for i in range(len(schema.fields))]
    columns = [c if x.nullable else f.coalesce(c, f.lit(0)) for c, x in zip(columns, schema.fields, strict=True)]
    names = [x.name for x in schema.fields]
    return rows.where(f.col(METRICS).isNull()).select(*(c.alias(name) for c, name in zip(columns, names, strict=True)))


def _result_watermark(shape: JoinShape, column: str, sides: Sequence[DataFrame]) -> Watermark:
    """The watermark of a column of the result. Raises Error if none is known, or Spark doesn't support it."""
    check_text(column, "watermark")
    output = shape.outputs[column_of([o.name for o in shape.outputs], column, "the result")]
    index = next((c.input for c in output.columns if c.column == shape.sides[c.input].time), None)
    if index is None or len(output.columns) > 1 or output.window:
        raise refused("watermark", column, "It must be the time of a side: that of its watermark.")
    for frame, side in zip(sides, SIDES, strict=True):
        if sessions.has_watermark(frame):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"watermark={column!r} with a {side} side that has a watermark of Spark's",
                detail="Spark defines one watermark between source and sink.",
                hint=f'Give the side\'s watermark to join: {side}_watermark=("{column}", "10 seconds").',
            )
    if shape.static is not None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"watermark={column!r} with a static side",
            detail="Rows come out at once.",
            hint="Use withWatermark on the result, with the delay that the stream has.",
        )
    mark = result_watermark(shape, index)
    if not mark:
        raise refused(
            "watermark",
            column,
            "Rows with older times can be output at any time. Give both sides a watermark, and within=…, window=… or "
            "match=asof(…) on these times.",
        )
    return mark


def signed(frame: DataFrame, diff: str | None, side: str) -> DataFrame:
    """The frame with its column `diff`, if it has one, as the last column."""
    if diff is None:
        return frame
    check_text(diff, f"{side}_diff")
    position = column_of(frame.columns, diff, f"the {side} side")
    kind = frame.schema[position].dataType
    if widest([kind]) is None:
        raise error(
            "DATATYPE_MISMATCH",
            f'the column "{diff}" of {side}_diff is {kind.simpleString()}',
            detail="It is 1 for an inserted row and -1 for a deleted one.",
            hint="Cast it to int.",
        )
    order = [*(i for i in range(len(frame.columns)) if i != position), position]
    numbered = frame.toDF(*(f"c{i}" for i in range(len(order))))  # names may be duplicates
    return numbered.select(*(f"c{i}" for i in order)).toDF(*(frame.columns[i] for i in order))


def given(frame: DataFrame, watermark: tuple[str, Duration] | None, diff: str | None = None) -> Given:
    """The columns of a side, and its watermark: by default that of `withWatermark`. diff: the last column, if it is the
    diff. Raises Error.
    """
    fields = frame.schema.fields[: None if diff is None else -1]
    if watermark is not None:
        delay: tuple[str, int] | None = (watermark[0], duration_us(watermark[1], "the delay of a watermark"))
    else:
        if any(_OF_JOIN in (x.metadata or {}) for x in fields):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "a side that is the result of a join with watermark=…",
                detail="Its watermark is not its greatest time minus a delay.",
                hint="Leave watermark= out of the first join; give the second one left_watermark= or right_watermark=.",
            )
        found = [(x.name, int(x.metadata[_DELAY_MS]) * 1000) for x in fields if _DELAY_MS in (x.metadata or {})]
        delay = found[0] if found else None
    problems = {i: incomparable(x.dataType, x.name) for i, x in enumerate(fields)}
    return Given(
        tuple(Field(x.name, sql_type(x.dataType, x.name)) for x in fields),
        frame.isStreaming,
        delay,
        diff is not None,
        {i: problem for i, problem in problems.items() if problem is not None},
    )


def _schema(shape: JoinShape, frames: Sequence[DataFrame], diff: str) -> t.StructType:
    """The result's schema."""
    kinds = {(i, n): x.dataType for i, frame in enumerate(frames) for n, x in enumerate(frame.schema.fields)}
    for group in linked(zip(shape.left.keys, shape.right.keys, strict=True)):
        wide = widest([kinds[column] for column in group if column in kinds])
        kinds.update({} if wide is None else dict.fromkeys(group, wide))

    def kind(output: ResultColumn) -> t.DataType:
        first = output.columns[0]
        if not output.window:
            return kinds[first.input, first.column]
        assert shape.left.time is not None
        time = kinds[0, shape.left.time]
        return t.StructType([t.StructField("start", time), t.StructField("end", time)])

    fields = [t.StructField(o.name, kind(o)) for o in shape.outputs]
    return t.StructType(fields if appends(shape) else [*fields, t.StructField(diff, t.IntegerType(), nullable=False)])
