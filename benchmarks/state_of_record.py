"""Where state lives: Spark's state store (transformWithState, RocksDB) against run files in the commit.

Two figures for each: the time of a micro-batch with one row, and MB/s of new state written through
it. This is the measurement behind decision 1 (docs/decisions); it uses no part of Watersmeet
but its worker daemon. Needs the packages protobuf and googleapis-common-protos.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa

from benchmarks.processes import median
from benchmarks.spark import OWN_OPERATORS, spark_session

CHUNK_BYTES = 8_000_000


def session():
    return spark_session(
        {
            **OWN_OPERATORS,
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.streaming.pollingDelay": "20ms",
        }
    )


def rows_at(folder: Path, n: int) -> None:
    part = folder / f".{n}"
    part.write_text(f"{n}\n", encoding="utf-8")
    part.rename(folder / f"{n:06d}.txt")


def state_store(spark, folder: Path, chunk_bytes: int):
    """A query that keeps one value of `chunk_bytes` per micro-batch in Spark's state store."""
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Keep(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.state = handle.getMapState("runs", "name string", "body binary")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803
            for frame in rows:
                name = str(frame["value"].iloc[0])
                self.state.updateValue((name,), (os.urandom(chunk_bytes),))
                yield pd.DataFrame({"name": [name]})

        def close(self) -> None:
            pass

    stream = spark.readStream.text(str(folder / "in")).selectExpr("value", "0 AS bucket")
    out = stream.groupBy("bucket").transformWithStateInPandas(Keep(), "name string", "Append", "None")
    return out.writeStream.foreachBatch(lambda frame, _: frame.collect())


def run_files(spark, folder: Path, chunk_bytes: int):
    """A query whose task writes its new state to a file, named by its content."""
    target = str(folder / "state")
    os.makedirs(target)

    def keep(batches):
        for batch in batches:
            for name in batch.column(0).to_pylist():
                body = os.urandom(chunk_bytes)
                path = f"{target}/{hashlib.blake2b(body, digest_size=16).hexdigest()}"
                with open(path, "wb") as file:
                    file.write(body)
                    os.fsync(file.fileno())
                yield pa.RecordBatch.from_pydict({"name": [name]})

    stream = spark.readStream.text(str(folder / "in"))
    return stream.writeStream.foreachBatch(
        lambda frame, _: frame.repartition(1).mapInArrow(keep, "name string").collect()
    )


def measure(make, spark, chunk_bytes: int, batches: int) -> float:
    """Median seconds of a micro-batch (Spark's own triggerExecution) after a warm-up of four."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        query = make(spark, folder, chunk_bytes).option("checkpointLocation", str(folder / "ck")).start()
        times = []
        for n in range(batches + 4):
            rows_at(folder / "in", n)
            while not (progress := [p for p in query.recentProgress if p.numInputRows]) or len(progress) <= n:
                if query.exception():
                    raise query.exception()
                time.sleep(0.01)
            times.append(progress[-1].durationMs["triggerExecution"] / 1000)
        query.stop()
    return median(times[4:])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="state_of_record", description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    options = parser.parse_args(arguments)
    spark = session()
    print(f"{'':34}{'micro-batch, 10 B':>20}{'with 8 MB of state':>20}{'state':>12}")
    for name, make in (("Spark's state store", state_store), ("run files in the commit", run_files)):
        small = measure(make, spark, 10, options.batches)
        large = measure(make, spark, CHUNK_BYTES, options.batches)
        rate = CHUNK_BYTES / 1e6 / max(large - small, 1e-3)
        print(f"{name:34}{small * 1000:>17.0f} ms{large * 1000:>17.0f} ms{rate:>7.0f} MB/s")
    return 0
