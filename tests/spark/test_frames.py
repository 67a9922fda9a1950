"""Joins of streaming DataFrames on Spark: what users write, restarts, and what can stand before and behind a join."""

from __future__ import annotations

import inspect
import os
import random
import re
from collections import Counter
from datetime import datetime

import pandas as pd
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.streams import Result, Stream
from tests.unit.frames.query import COLUMNS, START, at
from tests.unit.frames.test_regular import joined, nearest, rows

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime.spark import session
from watersmeet.runtime.spark.shipping import spark_hash
from watersmeet.values import types as t

pytestmark = pytest.mark.spark
DDL = "k int, ts timestamp_ntz, v string"


#: The URL of a Connect server; without it the session is classic. Functions of Spark are of one of the two for a whole
#: process, so `test_connect.py` runs this file again in another one.
REMOTE = os.environ.get("WATERSMEET_TEST_REMOTE")
#: Whether the state of joins is in files, not in Spark's state store.
FILES = os.environ.get("WATERSMEET_TEST_STATE") == "files"

needs_this_process = pytest.mark.skipif(REMOTE is not None, reason="foreachBatch is called in the server's process")


@pytest.fixture(scope="module", autouse=True)
def spark():
    """A session as a user would have it, with two shuffle partitions."""
    kept = SparkSession.builder.remote(REMOTE).getOrCreate() if REMOTE else session.acquire(None, 2)
    if not FILES:
        kept.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        kept.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
        kept.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    kept.conf.set("spark.sql.shuffle.partitions", "2")
    kept.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100")
    for name in ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.streaming.noDataMicroBatches.enabled"):
        kept.conf.unset(name)
    yield kept
    if REMOTE:
        kept.stop()
    else:
        session.release(kept)


@pytest.fixture(autouse=True)
def state_of_joins(monkeypatch, tmp_path):
    """Joins that name no state have theirs in files, if this run is about files: each join in a folder of its own."""
    if FILES:
        joined_by = watersmeet.join

        def join(*args, **options):
            where = inspect.stack()[1]
            folder = tmp_path / "state" / f"{where.lineno}"
            return joined_by(*args, **{"state": str(folder), **options})

        run_by = watersmeet.sql

        def sql(*args, **options):
            return run_by(*args, **{"state": str(tmp_path / "state" / "sql"), **options})

        monkeypatch.setattr(watersmeet, "join", join)
        monkeypatch.setattr(watersmeet, "sql", sql)


@pytest.fixture(autouse=True)
def no_query_stays(spark):
    """Nor does what a failed test left running."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def sides(spark, tmp_path):
    return [Stream(spark, tmp_path / name, COLUMNS, DDL) for name in ("left", "right")]


def timed(frame):
    """The frame with a time that Spark's own withWatermark takes."""
    return frame.withColumn("ts", f.col("ts").cast("timestamp"))


def test_left_join_follows_both_sides_through_a_restart(spark, sides, tmp_path):
    """The session of the restart has another number of partitions."""
    left, right = sides

    def start():
        join = watersmeet.join(left.frame, right.frame, on="k", how="left", buckets=3)
        assert join.columns == ["k", "ts", "v", "ts_right", "v_right", "diff"]
        return Result(join, tmp_path / "checkpoint")

    rng = random.Random(1)
    old: tuple[list, list] = ([], [])
    run = start()
    for epoch in range(3):
        if epoch == 1:
            run.query.stop()
        for stream, kept, tag in ((left, old[0], "l"), (right, old[1], "r")):
            new = rows(rng, 30, tag)
            stream.add(new)
            kept.extend(new)
        if epoch == 1:
            spark.conf.set("spark.sql.shuffle.partitions", "3")
            try:
                run = start()
            finally:
                spark.conf.set("spark.sql.shuffle.partitions", "2")
        assert run.drain() == joined(*old, "left", lambda a, b: True)
    distinct = {r for r in old[0] if r[0] is not None}, {r for r in old[1] if r[0] is not None}
    assert run.figures()[-1]["state_rows"] >= sum(len(d) for d in distinct)
    run.query.stop()


@pytest.mark.slow
@needs_this_process
def test_spark_compiles_its_code_once(spark, sides, tmp_path):
    """Spark writes constants into its code, so one that differs by micro-batch makes it compile the code again."""
    left, right = sides
    join = watersmeet.join(left.frame, right.frame, on="k", buckets=2, state=str(tmp_path / "state"))
    run = Result(join, tmp_path / "checkpoint")
    compiled = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    numbers = []
    for n in range(4):
        for stream in sides:
            stream.add([(k, at(n), f"{k}") for k in range(20)])
        run.query.processAllAvailable()
        numbers.append(compiled.getCount())
    run.query.stop()
    assert numbers[3] == numbers[1]


@pytest.mark.parametrize("buckets", [3, 1])
def test_asof_join(sides, tmp_path, buckets):
    left, right = sides
    result = watersmeet.join(
        left.frame, right.frame, on="k", how="left", match=watersmeet.asof("ts", "ts"), buckets=buckets
    )
    rng = random.Random(2)
    old: tuple[list, list] = ([], [])
    run = Result(result, tmp_path / "checkpoint")
    for _ in range(2):
        for stream, kept, tag in ((left, old[0], "l"), (right, old[1], "r")):
            new = rows(rng, 40, tag)
            stream.add(new)
            kept.extend(new)
        assert run.drain() == nearest(*old, "left", "backward", True, None)
    run.query.stop()


def test_one_task_with_state_in_files_needs_no_exchange(sides, tmp_path, capsys):
    left, right = sides
    for buckets, has_exchange in ((1, False), (2, True)):
        watersmeet.join(left.frame, right.frame, on="k", buckets=buckets, state=str(tmp_path / "state")).explain()
        plan = capsys.readouterr().out
        assert "MapInArrow" in plan
        assert ("Exchange" in plan) == has_exchange


@pytest.mark.slow
def test_another_number_of_buckets_is_refused_by_every_task(spark, sides, tmp_path):
    """Also where no bucket of the first run gets rows in the second: each would be taken for a new one."""
    left, right = sides

    def start(**options):
        join = watersmeet.join(
            left.frame.select("k", "v"), right.frame.select("k", f.col("v").alias("w")), "k", **options
        )
        return Result(join, tmp_path / "checkpoint")

    left.add([(n, at(0), "l") for n in range(10)])
    run = start(how="left", buckets=2)
    first = run.drain()
    assert first == Counter((n, "l", None) for n in range(10))
    run.query.stop()
    right.add([(n, at(0), "r") for n in range(0, 10, 2)])
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        run = start(how="left", buckets=3)
        with pytest.raises(PySparkException, match="STATE_MISMATCH") as caught:
            run.drain()
        assert "buckets=2, this is 3" in str(caught.value).partition("Traceback")[0]
        assert run.content == first
        run = start(how="left", buckets=2)
        assert run.drain() == Counter((n, "l", None if n % 2 else "r") for n in range(10))
        run.query.stop()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.mark.slow
@needs_this_process
def test_a_repeated_batch_is_written_once(sides, tmp_path):
    """The target has the rows and the number of a batch when the sink fails; Spark repeats the batch."""
    left, right = sides
    target: dict[int, list[tuple]] = {}
    looked: list[int] = []
    down = False

    def write(batch, number):
        looked.append(number)
        assert number not in target
        batch.head(1)  # not all of the batch: once_per_batch has computed it
        target[number] = [tuple(r) for r in batch.collect()]
        if down:
            raise RuntimeError("the sink is down")

    def start():
        writer = watersmeet.once_per_batch(write, lambda: max(target, default=None))
        result = watersmeet.join(left.frame, right.frame, on="k", how="left")
        return (
            result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(writer).start()
        )

    rng = random.Random(8)
    old: tuple[list, list] = ([], [])

    def add(stream, kept, tag):
        new = rows(rng, 20, tag)
        stream.add(new)
        kept.extend(new)

    query = start()
    add(left, old[0], "l")
    query.processAllAvailable()
    down = True
    add(right, old[1], "r")
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.processAllAvailable()
    down = False
    query = start()
    add(left, old[0], "l")
    query.processAllAvailable()
    query.stop()
    assert looked == sorted(set(looked))
    content: Counter[tuple] = Counter()
    for written in target.values():
        for row in written:
            content[row[:-1]] += row[-1]
    assert Counter({r: n for r, n in content.items() if n}) == joined(*old, "left", lambda a, b: True)


@pytest.mark.slow
def test_the_watermark_of_a_result_is_true(sides, tmp_path):
    """Rows of the last seconds that are not late for the join are not late behind it."""
    left, right = sides
    result = watersmeet.join(
        timed(left.frame),
        timed(right.frame),
        on="k",
        how="left",
        within=("-5 seconds", "5 seconds"),
        emit="final",
        left_watermark=("ts", "10 seconds"),
        right_watermark=("ts", "10 seconds"),
        watermark="TS",
    )
    counted = result.groupBy(f.window("ts", "10 seconds")).agg(f.count("ts").alias("n")).select("window.start", "n")
    run = Result(counted, tmp_path / "checkpoint")
    left.add([(1, at(25), "a"), (2, at(12), "b")])
    right.add([(1, at(24), "x"), (1, at(28), "y")])
    run.drain()
    right.add([(2, at(19), "too far"), (2, at(16), "late in the join's own time")])
    left.add([(1, at(19), "c")])
    run.drain()
    for stream in (left, right):
        stream.add([(9, at(100), "end")])
    run.drain()
    left.add([(9, at(101), "end")])
    assert run.drain() == Counter({(at(10).replace(tzinfo=None), 2): 1, (at(20), 2): 1})
    run.query.stop()


@pytest.mark.slow
def test_an_append_join_composes(sides, tmp_path):
    """Filters and projections on both sides and behind, and a windowed count in append mode."""
    left, right = sides
    result = watersmeet.join(
        timed(left.frame).where("v <> 'no'"), right.frame.select("k", f.upper("v").alias("name")), on="k"
    )
    assert not {"diff"} & set(result.columns)
    counted = (
        result.where("name <> 'C'")
        .withWatermark("ts", "0 seconds")
        .groupBy(f.window("ts", "10 seconds"), "name")
        .count()
        .select("window.start", "name", "count")
    )
    run = Result(counted, tmp_path / "checkpoint")
    left.add([(1, at(1), "a"), (1, at(2), "no"), (2, at(3), "b")])
    right.add([(1, None, "a"), (2, None, "b"), (2, None, "c")])
    run.drain()
    left.add([(1, at(25), "later")])
    run.drain()
    left.add([(1, at(50), "latest")])
    assert run.drain() == Counter({(START, "A", 1): 1, (START, "B", 1): 1, (at(20), "A", 1): 1})
    run.query.stop()


@pytest.mark.slow
def test_final_rows_of_an_interval_join(sides, tmp_path):
    left, right = sides
    result = watersmeet.join(
        left.frame,
        right.frame,
        on="k",
        how="left",
        within=("0 seconds", "10 seconds"),
        emit="final",
        left_watermark=("ts", "5 seconds"),
        right_watermark=("ts", "0 seconds"),
        name="joined",
    )
    assert result.columns == ["k", "ts", "v", "ts_right", "v_right"]
    run = Result(result, tmp_path / "checkpoint")
    left.add([(1, at(10), "a"), (2, at(11), "b"), (None, at(12), "c"), (3, at(30), "d")])
    right.add([(1, at(15), "x"), (1, at(21), "too late"), (9, at(21), "y")])
    assert run.drain() == Counter({(1, at(10), "a", at(15), "x"): 1})
    right.add([(9, at(22.5), "y")])
    run.drain()
    assert run.content == Counter(
        {(1, at(10), "a", at(15), "x"): 1, (2, at(11), "b", None, None): 1, (None, at(12), "c", None, None): 1}
    )
    left.add([(2, at(24), "late")])
    right.add([(2, at(22), "late"), (3, at(60), "z")])
    run.drain()
    assert run.content[3, at(30), "d", None, None] == 1
    assert sum(run.content.values()) == 4
    all_of_them = run.figures()
    figures = {name: sum(one[name] for one in all_of_them) for name in all_of_them[0]}
    assert (figures["late_left_rows"], figures["late_right_rows"], figures["left_rows"]) == (1, 1, 5)
    assert all_of_them[-1]["state_rows"] <= 1
    run.query.stop()


@pytest.mark.slow
def test_a_join_of_a_join(spark, sides, tmp_path):
    """The changes of a left join are the left side of an ASOF join: what one takes back, the other takes back, too."""
    left, right = sides
    named = watersmeet.join(
        left.frame, right.frame.select("k", f.col("v").alias("name")), on="k", how="left", diff="change"
    )
    rates = Stream(
        spark,
        tmp_path / "rates",
        (t.Field("name", t.VARCHAR), t.Field("since", t.TIMESTAMP), t.Field("rate", t.INTEGER)),
        "name string, since timestamp_ntz, rate int",
    )
    result = watersmeet.join(
        named, rates.frame, on="name", how="left", match=watersmeet.asof("ts", "since"), left_diff="change"
    )
    assert result.columns == ["k", "ts", "v", "name", "since", "rate", "diff"]
    run = Result(result, tmp_path / "checkpoint")
    left.add([(1, at(5), "a")])
    assert run.drain() == Counter([(1, at(5), "a", None, None, None)])
    right.add([(1, None, "x")])
    rates.add([("x", at(1), 10)])
    assert run.drain() == Counter([(1, at(5), "a", "x", at(1), 10)])
    rates.add([("x", at(3), 30)])
    assert run.drain() == Counter([(1, at(5), "a", "x", at(3), 30)])
    run.query.stop()


@pytest.mark.slow
@needs_this_process
def test_a_batch_that_failed_comes_again_with_the_same_rows(sides, tmp_path):
    """The sink fails when the state of the batch is written already; the next attempt starts from the state before."""
    left, right = sides
    seen: dict[int, list[list[tuple]]] = {}
    failing: list[int] = []  # Spark may take the files of the two sides in one batch or in two.
    down = False

    def take(batch, number):
        seen.setdefault(number, []).append([tuple(r) for r in batch.collect()])
        if down:
            failing.append(number)
            raise RuntimeError("the sink is down")

    def start():
        result = watersmeet.join(left.frame, right.frame, on="k", how="full")
        return result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take).start()

    rng = random.Random(3)
    old: tuple[list, list] = ([], [])
    query = start()
    for number in range(2):
        for stream, kept, tag in ((left, old[0], "l"), (right, old[1], "r")):
            new = rows(rng, 30, tag)
            stream.add(new)
            kept.extend(new)
        if number == 0:
            query.processAllAvailable()
            down = True
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.processAllAvailable()
    down = False
    query = start()
    query.processAllAvailable()
    query.stop()
    first, again = seen[failing[0]]
    assert len(first) > 10
    assert first == again
    content: Counter[tuple] = Counter()
    for attempts in seen.values():
        for row in attempts[-1]:
            content[row[:-1]] += row[-1]
    assert Counter({r: n for r, n in content.items() if n}) == joined(*old, "full", lambda a, b: True)


@pytest.mark.slow
def test_a_static_side_needs_no_state(spark, sides, tmp_path):
    still = spark.createDataFrame([(1, datetime(2026, 1, 1), "x"), (1, datetime(2026, 1, 1, 0, 0, 5), "y")], DDL)
    result = watersmeet.join(sides[0].frame, still, on="k", how="left", match=watersmeet.asof("ts", "ts"))
    run = Result(result, tmp_path / "checkpoint")
    sides[0].add([(1, at(3), "a"), (1, at(7), "b"), (2, at(7), "c")])
    assert run.drain() == Counter(
        [(1, at(3), "a", at(0), "x"), (1, at(7), "b", at(5), "y"), (2, at(7), "c", None, None)]
    )
    assert not run.query.lastProgress.stateOperators
    run.query.stop()


def _written(frame, folder):
    """The rows of a stream that `availableNow` reads, written to Parquet."""
    options = {"path": str(folder / "written"), "checkpointLocation": str(folder / "checkpoint")}
    query = frame.writeStream.format("parquet").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    return frame.sparkSession.read.schema(frame.schema).parquet(options["path"]).collect()


@pytest.mark.slow
def test_types_survive(spark, tmp_path):
    kinds = (
        t.Field("k", t.SqlType("numeric", 12, 2)),
        t.Field("i", t.BIGINT),
        t.Field("b", t.BOOLEAN),
        t.Field("d", t.DATE),
        t.Field("x", t.BYTEA),
        t.Field("n", t.DOUBLE),
        t.Field("a", t.SqlType("array", element=t.INTEGER)),
        t.Field("s", t.SqlType("struct", fields=(("p", t.INTEGER), ("q", t.VARCHAR)))),
        t.Field("z", t.TIMESTAMPTZ),
    )
    ddl = (
        "k decimal(12,2), i bigint, b boolean, d date, x binary, n double, a array<int>, s struct<p int, q "
        "string>, z timestamp"
    )
    one = (
        12,
        2**62 + 1,
        True,
        datetime(2026, 1, 2).date(),
        b"\x00\xff",
        0.1,
        [1, None],
        {"p": None, "q": "y"},
        datetime(2026, 1, 1, 12),
    )
    none = (12, *([None] * 8))
    left, right = (Stream(spark, tmp_path / name, kinds, ddl) for name in ("left", "right"))
    small = left.frame.withColumn("tiny", f.lit(7).cast("tinyint"))
    result = watersmeet.join(small, right.frame, on="k", how="left")
    assert [x.dataType for x in result.schema][:10] == [x.dataType for x in small.schema]
    given = left.frame.schema
    assert [x.dataType for x in result.schema][10:18] == [x.dataType for x in given][1:]
    left.add([one])
    right.add([one, none])
    rows_of = [r.asDict(recursive=True) for r in _written(result, tmp_path)]
    assert len(rows_of) == 2
    for row in rows_of:
        assert (
            row["i"],
            row["b"],
            row["d"],
            bytes(row["x"]),
            row["n"],
            row["a"],
            row["s"],
            row["z"],
            row["tiny"],
            row["diff"],
        ) == (*one[1:], 7, 1)
    assert sorted((r["i_right"] is None, r["s_right"] is None, r["a_right"]) for r in rows_of) == [
        (False, False, [1, None]),
        (True, True, None),
    ]


@pytest.mark.slow
def test_maps_pass_through_and_keys_may_differ_in_width(spark, sides, tmp_path):
    inner = f.when(f.col("v") == "a", f.array(f.create_map("v", "k"))).when(f.col("v") == "b", f.array())
    left = sides[0].frame.select("k", f.create_map("v", inner).alias("m"))
    right = sides[1].frame.select(f.col("k").cast("bigint").alias("id"), f.create_map("v", "k").alias("n"))
    result = watersmeet.join(left, right, [("k", "id")])
    assert [x.dataType.simpleString() for x in result.schema] == [
        "bigint",
        "map<string,array<map<string,int>>>",
        "bigint",
        "map<string,int>",
    ]
    sides[0].add([(1, at(0), "a"), (2, at(0), "b"), (4, at(0), "c")])
    sides[1].add([(1, at(0), "x"), (2, at(0), "z"), (3, at(0), "y"), (4, at(0), "w")])
    found = [tuple(r) for r in _written(result, tmp_path)]
    assert sorted(found, key=lambda row: row[0]) == [
        (1, {"a": [{"a": 1}]}, 1, {"x": 1}),
        (2, {"b": []}, 2, {"z": 2}),
        (4, {"c": None}, 4, {"w": 4}),
    ]


def test_refusals_that_need_spark(spark, sides):
    left, right = sides
    left, right = left.frame, right.frame
    chained = watersmeet.join(left, right.select("k"), "k", "left")
    assert watersmeet.join(chained, right, "K", left_diff="DIFF").columns == [
        "k",
        "ts",
        "v",
        "ts_right",
        "v_right",
        "diff",
    ]
    folded = left.select("k", f.collate("v", "UTF8_LCASE").alias("v"))
    assert watersmeet.join(folded, folded, "k").columns == ["k", "v", "v_right"]
    mapped = left.select("k", f.create_map("v", "k").alias("m"))
    late = timed(left).withWatermark("ts", "1 second")
    marks = {"left_watermark": ("ts", "1 s"), "right_watermark": ("ts", "1 s")}
    bounded = watersmeet.join(left, right.select("k", "ts"), "k", within="1 s", watermark="ts", **marks)
    for wrong, condition, says in (
        (lambda: watersmeet.join(left, right, left.k == right.k), "INVALID_PARAMETER", 'on=["id"]'),
        (
            lambda: watersmeet.join(left, right, [(left.k, right.k)]),
            "INVALID_PARAMETER",
            'on=[("left_id", "right_id")]',
        ),
        (lambda: watersmeet.asof(left.ts, right.ts), "INVALID_PARAMETER", 'asof("left_ts", "right_ts")'),
        (lambda: watersmeet.join(left, pd.DataFrame({"k": [1]}), "k"), "INVALID_PARAMETER", "createDataFrame(right)"),
        (lambda: watersmeet.join([1], right, "k"), "INVALID_PARAMETER", "the left side is a list"),
        (lambda: watersmeet.join(left.withColumnRenamed("v", "a.b"), right, "k"), "INVALID_NAME", '"a.b", "a_b"'),
        (
            lambda: watersmeet.join(left, right, "k", left_watermark="ts"),
            "INVALID_PARAMETER",
            'left_watermark=("ts", "10 seconds")',
        ),
        (lambda: watersmeet.join(chained, right, "k"), "DUPLICATE_COLUMN", 'left_diff="diff"'),
        (lambda: watersmeet.join(left, right, "k", "sideways"), "INVALID_PARAMETER", "inner, left"),
        (lambda: watersmeet.join(left, right, "k", buckets="2"), "INVALID_PARAMETER", "buckets='2'"),
        (lambda: watersmeet.join(left, right, "k", name=5), "INVALID_PARAMETER", "name=5"),
        (lambda: watersmeet.join(chained, right, "k", left_diff=1), "INVALID_PARAMETER", "left_diff=1"),
        (lambda: watersmeet.join(left, right, "k", left_diff="v"), "DATATYPE_MISMATCH", "left_diff is string"),
        (lambda: watersmeet.join(left, right, "k", right_diff="dif"), "UNDEFINED_COLUMN", "the right side has no"),
        (lambda: watersmeet.join(folded, folded, ["k", "v"]), "FEATURE_NOT_SUPPORTED", "collation UTF8_LCASE"),
        (lambda: watersmeet.join(folded, folded, "k", match=watersmeet.latest("v")), "FEATURE_NOT_SUPPORTED", '"v"'),
        (lambda: watersmeet.join(mapped, mapped, "m"), "DATATYPE_MISMATCH", "map<string,int>"),
        (lambda: watersmeet.join(left, right, "k", watermark="v"), "INVALID_PARAMETER", "the time of a side"),
        (
            lambda: watersmeet.join(left, right, "k", watermark="ts", **marks),
            "INVALID_PARAMETER",
            "Rows with older times can be output at any time",
        ),
        (
            lambda: watersmeet.join(late, late, "k", within="1 s", watermark="ts"),
            "FEATURE_NOT_SUPPORTED",
            "left_watermark",
        ),
        (lambda: watersmeet.join(bounded, right, "k"), "FEATURE_NOT_SUPPORTED", "Leave watermark= out"),
        (lambda: watersmeet.once_per_batch(None), "INVALID_PARAMETER", "not a function"),
    ):
        with pytest.raises(Error) as caught:
            wrong()
        assert caught.value.condition == condition
        assert says in str(caught.value)
    for state, says in ((5, "state=5"), ("here", "an absolute path or URL"), ("ftp://a/b", "ftp://")):
        with pytest.raises(Error, match=says):
            watersmeet.join(left, right, on="k", state=state)
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    try:
        with pytest.raises(Error, match="RocksDB") as caught:
            watersmeet.join(left, right, on="k", state="store")
        assert caught.value.condition == "STATE_STORE"
    finally:
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )


def test_keys_of_buckets_go_where_spark_puts_them(spark):
    found = spark.range(100).select(f.hash(f.col("id").cast("int"))).collect()
    assert [r[0] for r in found] == [spark_hash(n) for n in range(100)]


def test_the_watermark_of_spark_is_taken(sides):
    from watersmeet.frames.api import given  # noqa: PLC0415

    frame = timed(sides[0].frame).withWatermark("ts", "90 seconds").where("k > 1").select("ts", f.col("k").alias("key"))
    assert given(frame, None).watermark == ("ts", 90_000_000)
    assert given(sides[0].frame, ("ts", "1 minute")).watermark == ("ts", 60_000_000)


def test_a_query_of_two_steps_through_a_restart(spark, sides, tmp_path):
    """Its joins need the key k, its aggregate the names of a static DataFrame."""
    left, right = sides
    names = spark.createDataFrame([(0, "zero"), (1, "one"), (2, "two"), (9, "nine")], "k int, name string")
    query = """
        SELECT names.name, count(*) AS n, max(r.v) AS top
        FROM l JOIN r ON l.k = r.k JOIN names ON names.k = l.k
        GROUP BY names.name
    """

    def start():
        frame = watersmeet.sql(spark, query, {"names": names}, l=left.frame, r=right.frame, name="by name", buckets=3)
        assert frame.columns == ["name", "n", "top", "diff"]
        return Result(frame, tmp_path / "checkpoint")

    rng = random.Random(7)
    old: tuple[list, list] = ([], [])
    run = start()
    for epoch in range(3):
        if epoch == 1:
            run.query.stop()
        for stream, kept, tag in ((left, old[0], "l"), (right, old[1], "r")):
            new = rows(rng, 20, tag)
            stream.add(new)
            kept.extend(new)
        if epoch == 1:
            run = start()
        joined_by_key: dict[int, list[str]] = {}
        for k, _, _ in old[0]:
            joined_by_key.setdefault(k, []).extend(r[2] for r in old[1] if r[0] == k and k is not None)
        named = {0: "zero", 1: "one", 2: "two"}
        expected = {
            (named[k], len(found), max(v for v in found if v is not None)): 1
            for k, found in joined_by_key.items()
            if found and k in named
        }
        assert run.drain() == Counter(expected)
    assert sum(f["input_rows"] for f in run.figures()) == 80
    run.query.stop()


def test_a_query_without_state(spark, sides, tmp_path):
    left, _ = sides
    plain = watersmeet.sql(spark, "SELECT upper(v) AS v, k + 1 AS k FROM l WHERE k > 0", l=left.frame)
    assert plain.columns == ["v", "k"]
    run = Result(plain, tmp_path / "plain")
    left.add([(1, at(0), "a"), (0, at(0), "b"), (None, None, None)])
    assert run.drain() == Counter({("A", 2): 1})
    run.query.stop()


def test_a_query_that_waits_for_a_watermark(spark, sides, tmp_path):
    _, right = sides
    windows = watersmeet.sql(
        spark,
        "SELECT window_start, count(*) AS n FROM TUMBLE(r, ts, INTERVAL '10 seconds') GROUP BY window_start "
        "EMIT ON WINDOW CLOSE",
        r=right.frame,
        watermarks={"r": ("ts", "5 seconds")},
        name="windows",
    )
    assert windows.columns == ["window_start", "n"]
    run = Result(windows, tmp_path / "windows")
    right.add([(1, at(1), "a"), (1, at(9), "b"), (1, at(16), "c")])
    assert run.drain() == Counter({(START, 2): 1})
    right.add([(1, at(2), "late"), (1, at(30), "d")])
    assert run.drain() == Counter({(START, 2): 1, (at(10), 1): 1})
    assert run.figures()[-1]["late_rows"] == 1
    run.query.stop()


def test_another_query_over_the_same_checkpoint_is_an_error(spark, sides, tmp_path):
    left, _ = sides
    left.add([(1, at(0), "a")])
    run = Result(watersmeet.sql(spark, "SELECT k, count(*) AS n FROM l GROUP BY k", l=left.frame), tmp_path / "c")
    run.drain()
    run.query.stop()
    left.add([(1, at(0), "b")])
    other = Result(watersmeet.sql(spark, "SELECT k, max(v) AS n FROM l GROUP BY k", l=left.frame), tmp_path / "c")
    with pytest.raises(StreamingQueryException, match="the checkpoint was written by another query"):
        other.drain()


def test_arguments_of_a_query(spark, sides):
    left, right = sides
    for call, shown in [
        (lambda: watersmeet.sql(spark, "SELECT 1 AS a"), "the query has no DataFrames"),
        (lambda: watersmeet.sql(spark, "SELECT x FROM l", l=left.frame), 'column "x" does not exist'),
        (lambda: watersmeet.sql(spark, "SELECT k FROM l", l=left.frame, buckets=1), "buckets=1"),
        (lambda: watersmeet.sql(spark, "SELECT k FROM l", l=3), "the l side is a int"),
        (lambda: watersmeet.sql(spark, "SELECT k FROM l", {"l": right.frame}, l=left.frame), "frames='l'"),
        (lambda: watersmeet.sql(spark, "SELECT k FROM l", l=left.frame, diffs={"x": "d"}), "diffs='x'"),
        (
            lambda: watersmeet.sql(spark, "SELECT k FROM l", l=left.frame, watermarks={"l": ("k", "1s")}),
            "watermarks='k'",
        ),
        (lambda: watersmeet.sql(spark, "SELECT k, count(*) AS diff FROM l GROUP BY k", l=left.frame), '"diff"'),
    ]:
        with pytest.raises(Error, match=re.escape(shown)):
            call()


def test_another_join_or_query_is_an_error_when_it_is_called(spark, sides, tmp_path):
    """Before Spark has read a row; a query that never ran has no state."""
    left, right = sides
    folder = str(tmp_path / "checkpoint")

    def joined_by(how, **options):
        return watersmeet.join(left.frame, right.frame, on="k", how=how, checkpoint=folder, buckets=2, **options)

    joined_by("left")
    run = Result(joined_by("full"), tmp_path / "checkpoint")
    left.add([(1, at(0), "a")])
    run.drain()
    run.query.stop()
    joined_by("full")
    with pytest.raises(Error, match="the checkpoint was written by another join"):
        joined_by("left")
    with pytest.raises(Error, match=re.escape("the checkpoint was written with buckets=2, this is 3")):
        watersmeet.join(left.frame, right.frame, on="k", how="full", checkpoint=folder, buckets=3)

    def counted(query):
        return watersmeet.sql(spark, query, l=left.frame, checkpoint=str(tmp_path / "counted"), buckets=2)

    run = Result(counted("SELECT k, count(*) AS n FROM l GROUP BY k"), tmp_path / "counted")
    assert run.drain() == Counter({(1, 1): 1})
    run.query.stop()
    left.add([(1, at(0), "b")])
    with pytest.raises(Error, match="the checkpoint was written by another query"):
        counted("SELECT k, max(v) AS n FROM l GROUP BY k")
    run = Result(counted("SELECT k, count(*) AS n\nFROM l GROUP BY k"), tmp_path / "counted")
    assert run.drain() == Counter({(1, 2): 1})
    run.query.stop()
