"""Spark's data source: the content of relations, and the stream of their changes."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import watersmeet
from watersmeet.runtime.spark import session
from watersmeet.server.service import BackgroundServer, Endpoint

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "SPARK-SOURCE.md"


@pytest.fixture(scope="module", autouse=True)
def spark():
    kept = session.acquire(None, 2)
    watersmeet.register(kept)
    yield kept
    session.release(kept)


@pytest.fixture
def database(tmp_path):
    """A database that this process writes while Spark reads it."""
    with watersmeet.connect(tmp_path / "shop", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar, n numeric(10, 2))")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS orders FROM t GROUP BY name")
        yield connection


def read(spark, tmp_path, relation, **options):
    return spark.read.format("watersmeet").option("database", str(tmp_path / "shop")).options(**options).load(relation)


def stream(spark, tmp_path, relation, **options):
    reader = spark.readStream.format("watersmeet").option("database", str(tmp_path / "shop"))
    return reader.options(**options).load(relation)


def run(frame, folder):
    """Runs a stream up to now, and returns all rows that it has ever written."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "written"))
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    return frame.sparkSession.read.schema(frame.schema).parquet(str(folder / "written")).collect()


def test_a_stream_of_changes_adds_up_to_the_view(spark, database, tmp_path):
    """Between runs the view changes at random; each run goes on where the last one ended."""
    rng = random.Random(7)
    changes = stream(spark, tmp_path, "v", readChanges="true", numPartitions="3")
    assert changes.columns == ["name", "orders", "_change_type", "_commit_version", "_commit_timestamp"]
    for _ in range(3):
        for _ in range(4):
            key = rng.randrange(6)
            if rng.random() < 0.3:
                database.execute("DELETE FROM t WHERE id = ?", [key])
            else:
                database.execute("INSERT INTO t VALUES (?, ?, 1)", [key, rng.choice("abc")])
        database.execute("FLUSH")
        rows = run(changes, tmp_path)
        content: Counter = Counter()
        for row in rows:
            content[row.name, row.orders] += 1 if row._change_type == "insert" else -1
        assert {row for row, n in content.items() if n} == set(database.execute("SELECT * FROM v").fetchall())
        assert set(content.values()) <= {0, 1}
    assert len({row._commit_version for row in rows}) > 1


@pytest.mark.slow
def test_the_content_with_its_types_and_at_a_commit(spark, database, tmp_path):
    database.execute(
        "CREATE TABLE typed (i bigint PRIMARY KEY, b boolean, d date, z timestamptz, p timestamp, x bytea, a int[],"
        " j jsonb, u uuid, r real, s struct<q int>)"
    )
    database.execute(
        "INSERT INTO typed VALUES (1, true, '2026-01-02', '2026-01-01 00:00:00+00', '2026-01-01', '\\x00ff',"
        " ARRAY[1, NULL], '{\"k\": 1}', '00000000-0000-0000-0000-000000000001', 0.5, ROW(1))"
    )
    database.execute("INSERT INTO typed (i) VALUES (2)")
    database.execute("INSERT INTO t VALUES (1, 'a', 1.5), (2, NULL, NULL)")
    database.execute("FLUSH")
    commit = database.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
    database.execute("DELETE FROM t")
    database.execute("FLUSH")
    one, none = read(spark, tmp_path, "typed").orderBy("i").collect()
    assert (one.b, one.d, one.p, bytes(one.x), one.a) == (
        True,
        date(2026, 1, 2),
        datetime(2026, 1, 1),
        b"\x00\xff",
        [1, None],
    )
    assert one.z.astimezone(UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert (one.u, one.r, one.s.q) == ("00000000-0000-0000-0000-000000000001", 0.5, 1)
    assert none.i == 2
    assert set(none[1:]) == {None}
    assert read(spark, tmp_path, "t").collect() == []
    past = read(spark, tmp_path, "t", commit=str(commit))
    assert sorted(map(tuple, past.collect())) == [(1, "a", Decimal("1.50")), (2, None, None)]
    assert past.count() == 2
    assert [r[0] for r in past.select(f.upper("name")).where("id = 1").collect()] == ["A"]
    narrow = spark.read.format("watersmeet").schema("name string").option("database", str(tmp_path / "shop"))
    assert [r.name for r in narrow.option("commit", str(commit)).load("t").orderBy("name").collect()] == [None, "a"]


@pytest.mark.slow
def test_tasks_share_the_content(spark, database, tmp_path):
    for n in range(5):
        database.execute(f"INSERT INTO t SELECT i, 'n' || i, i FROM generate_series({n * 100}, {n * 100 + 199}) g(i)")
    database.execute("DELETE FROM t WHERE id % 7 = 0")
    database.execute("FLUSH")
    shared = read(spark, tmp_path, "t", numPartitions="4")
    assert shared.rdd.getNumPartitions() == 4
    assert len([part for part in shared.select("id").rdd.glom().collect() if part]) > 1
    database.execute("DELETE FROM t WHERE id > 300")  # the commit was chosen before
    wanted = {(i, f"n{i}", Decimal(i)) for i in range(600) if i % 7}
    rows = shared.collect()
    assert (set(map(tuple, rows)), len(rows)) == (wanted, len(wanted))
    assert shared.select(f.count("*"), f.sum("id")).collect()[0] == (len(wanted), sum(i for i, _, _ in wanted))
    database.execute("FLUSH")
    left = run(stream(spark, tmp_path, "t", numPartitions="3", readChanges="true"), tmp_path)
    assert sorted(row.id for row in left) == sorted(i for i, _, _ in wanted if i <= 300)


@pytest.mark.slow
def test_errors_name_what_is_wrong(spark, database, tmp_path):
    database.execute("CREATE TABLE lasting (i int, how_long interval)")
    for wrong, says in (
        (lambda: read(spark, tmp_path, "gone"), 'relation "gone" does not exist'),
        (lambda: read(spark, tmp_path, "t", commt="1"), 'no option "commt"'),
        (lambda: read(spark, tmp_path, "t", commit="x"), "commit is 'x'"),
        (lambda: read(spark, tmp_path, "t", numPartitions="0"), "numpartitions is '0'"),
        (lambda: read(spark, tmp_path, "t", readChanges="true"), "readChanges=true in spark.read"),
        (lambda: stream(spark, tmp_path, "t", readChanges="yes"), "readChanges is 'yes'"),
        (lambda: read(spark, tmp_path, "lasting"), 'column "how_long" has type'),
        (lambda: spark.read.format("watersmeet").load("t"), "the option database is missing"),
        (lambda: spark.read.format("watersmeet").option("database", "/x").load(), "the option path is missing"),
    ):
        with pytest.raises(PySparkException, match=re.escape(says)):
            wrong().collect()
    database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    database.execute("FLUSH")
    growing = stream(spark, tmp_path, "t")
    assert [tuple(r) for r in run(growing, tmp_path)] == [(1, "a", Decimal("1.00"))]
    database.execute("DELETE FROM t")
    database.execute("FLUSH")
    with pytest.raises(PySparkException, match="was updated or deleted in commit"):
        run(growing, tmp_path)
    newest = database.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
    later = stream(spark, tmp_path, "t", startingCommit=str(newest))
    database.execute("INSERT INTO t VALUES (5, 'e', 5)")
    database.execute("FLUSH")
    assert [r.id for r in run(later, tmp_path / "later")] == [5]


@pytest.mark.slow
def test_the_examples_of_the_page(spark, database, tmp_path):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer varchar)")
    database.execute(
        "CREATE MATERIALIZED VIEW orders_by_customer AS"
        " SELECT customer, count(*) AS orders FROM orders GROUP BY customer"
    )
    database.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'a'), (3, 'b')")
    database.execute("FLUSH")
    names = {"spark": spark, "folder": str(tmp_path), "password": ""}
    spark.createDataFrame([(4, "d")], "id int, customer string").write.parquet(str(tmp_path / "new_orders"))
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    with BackgroundServer(database.opened, Endpoint(port=0)) as server:
        names["address"] = f"127.0.0.1:{server.port}"
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(block, str(PAGE), "exec"), names)
    database.execute("FLUSH")
    assert sorted(database.execute("SELECT * FROM orders").fetchall()) == [(1, "c"), (2, "a"), (3, "b"), (4, "d")]
    assert spark.sql("SELECT sum(orders) FROM by_customer").collect()[0][0] == 3
    assert spark.read.parquet(str(tmp_path / "changes")).count() == 2
