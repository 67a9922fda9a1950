"""Tables of a database written by Spark, on a classic session and on a server of Spark Connect.

`test_a_server_of_spark_connect` runs this file again in another process, because functions of Spark are of one of the
two for a whole process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.cluster import connect_server

import watersmeet
from watersmeet.runtime.spark import session
from watersmeet.server.service import BackgroundServer, Endpoint

pytestmark = pytest.mark.spark
REMOTE = os.environ.get("WATERSMEET_TEST_REMOTE")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def spark():
    kept = SparkSession.builder.remote(REMOTE).getOrCreate() if REMOTE else session.acquire(None, 2)
    if not REMOTE:  # df.write looks for the source in the active session
        kept._jvm.SparkSession.setActiveSession(kept._jsparkSession)
    watersmeet.register(kept)
    yield kept
    if REMOTE:
        kept.stop()
    else:
        session.release(kept)


class Shop:
    def __init__(self, connection, server, folder):
        self.connection, self.server, self.folder = connection, server, folder

    def read(self, sql):
        self.connection.flush()
        return self.connection.execute(sql).fetchall()

    def arrive(self, name, rows):
        """A file of the stream of changes arrives."""
        columns = dict(zip(("id", "name", "kind"), map(list, zip(*rows, strict=True)), strict=True))
        table = pa.table({**columns, "id": pa.array(columns["id"], pa.int32())})
        pq.write_table(table, self.folder / f".{name}")
        (self.folder / f".{name}").rename(self.folder / "in" / f"{name}.parquet")

    def options(self, writer):
        return writer.format("watersmeet").option("server", f"127.0.0.1:{self.server.port}").option("user", "ann")

    def run(self, frame, **options):
        """Writes what has arrived since the last run."""
        writer = self.options(frame.writeStream).option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.options(changes="kind", **options).trigger(availableNow=True).start("orders")
        query.awaitTermination()
        assert query.exception() is None

    def forget(self):
        """Spark loses its note that the last micro-batch is done, as if the driver had died before it."""
        notes = self.folder / "checkpoint" / "commits"
        last = max((p for p in notes.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
        last.unlink()
        (notes / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def shop(tmp_path):
    with watersmeet.connect(tmp_path / "shop", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, name varchar)")
        connection.execute("CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS n FROM orders GROUP BY name")
        (tmp_path / "in").mkdir()
        with BackgroundServer(connection.opened, Endpoint(port=0)) as server:
            yield Shop(connection, server, tmp_path)


def test_a_stream_of_changes_with_a_repeated_micro_batch(spark, shop):
    changes = spark.readStream.schema("id int, name string, kind string").parquet(str(shop.folder / "in"))
    shop.arrive("a", [(1, "a", "insert"), (2, "b", "insert"), (3, "b", "insert")])
    shop.run(changes)
    assert sorted(shop.read("SELECT * FROM orders")) == [(1, "a"), (2, "b"), (3, "b")]
    shop.arrive("b", [(1, "a", "delete"), (2, "b", "delete"), (2, "c", "insert"), (4, "a", "insert")])
    shop.run(changes)
    shop.forget()
    shop.connection.execute("DELETE FROM orders WHERE id = 4")  # to be seen: no repeated micro-batch writes it again
    shop.arrive("c", [(5, "a", "insert")])
    shop.run(changes)
    assert sorted(shop.read("SELECT * FROM orders")) == [(2, "c"), (3, "b"), (5, "a")]
    assert sorted(shop.read("SELECT * FROM names")) == [("a", 1), ("b", 1), ("c", 1)]
    ((batch, count),) = shop.read("SELECT max(batch), count(*) FROM watersmeet_spark")
    assert (batch >= 2, count) == (True, 1)


@pytest.mark.slow
@pytest.mark.skipif(REMOTE is not None, reason="the server of the tests runs each task once")
def test_tasks_that_fail_and_run_again(spark, shop):
    """Both tasks of a micro-batch return their rows, then their first attempts fail."""
    marks = shop.folder / "marks"
    marks.mkdir()

    def failing(batches):
        yield from batches
        mark = marks / str(TaskContext.get().partitionId())
        if not mark.exists():
            mark.touch()
            raise OSError("the executor is gone")

    changes = spark.readStream.schema("id int, name string, kind string").parquet(str(shop.folder / "in"))
    shop.arrive("a", [(n, "a", "insert") for n in range(100)])
    shop.run(changes.repartition(2).mapInArrow(failing, changes.schema))
    assert len(list(marks.iterdir())) == 2
    assert shop.read("SELECT count(*), sum(id) FROM orders") == [(100, 4950)]


@pytest.mark.slow
def test_dataframes_and_replaced_content(spark, shop):
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string")
    for _ in range(2):
        shop.options(frame.write).mode("append").save("orders")
    assert sorted(shop.read("SELECT * FROM orders")) == [(1, "a"), (2, "b")]
    shop.options(frame.where("id = 2").write).mode("overwrite").save("orders")
    assert shop.read("SELECT * FROM orders") == [(2, "b")]
    shop.connection.execute("CREATE TABLE counts (name varchar PRIMARY KEY, n bigint)")
    counts = (
        spark.readStream.schema("id int, name string, kind string")
        .parquet(str(shop.folder / "in"))
        .groupBy("name")
        .count()
        .withColumnRenamed("count", "n")
    )
    for name, rows in (("a", [(1, "a", ""), (2, "a", "")]), ("b", [(3, "a", ""), (4, "b", "")])):
        shop.arrive(name, rows)
        writer = shop.options(counts.writeStream).outputMode("complete").trigger(availableNow=True)
        writer.option("checkpointLocation", str(shop.folder / "complete")).start("counts").awaitTermination()
    assert sorted(shop.read("SELECT * FROM counts")) == [("a", 3), ("b", 1)]
    with pytest.raises(PySparkException, match='has no column "nam"'):
        shop.options(frame.withColumnRenamed("name", "nam").write).mode("append").save("orders")


@pytest.mark.slow
@pytest.mark.skipif(REMOTE is not None, reason="it starts the server")
def test_a_server_of_spark_connect(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", __file__]
    with connect_server(tmp_path, has_package=True) as url:
        found = subprocess.run(
            command,
            env={**environment, "WATERSMEET_TEST_REMOTE": url},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "2 passed" in found.stdout
