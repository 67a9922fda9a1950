"""Peers measured beside Watersmeet: DuckDB's batch join of the same files, Spark's own stream-stream join.

`python -m benchmarks.peers spark LEFT RIGHT` runs Spark's in a process of its own and prints one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

#: Order-free: the sum over all rows of a product of both sides' numbers.
CHECK = "count(*) AS n, CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT) AS checksum"


def duckdb_join(left: Path, right: Path) -> dict:
    """Joins the whole input at once; the practical limit of this machine."""
    con = duckdb.connect()
    started = time.perf_counter()
    n, checksum = con.execute(
        f"SELECT {CHECK} FROM (SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, "
        f"r.ts AS r_ts, r.amount AS r_amount, r.note AS r_note FROM read_parquet('{left}/*.parquet') l "
        f"JOIN read_parquet('{right}/*.parquet') r ON l.k = r.k)").fetchone()
    return {"seconds": time.perf_counter() - started, "rows": n, "checksum": checksum}


def spark_join(left: Path, right: Path, files_per_trigger: int) -> dict:
    """Spark's own stream-stream inner join, RocksDB state, in a process of its own."""
    out = subprocess.run([sys.executable, "-m", "benchmarks.peers", "spark", str(left), str(right),
                          str(files_per_trigger)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout.strip().splitlines()[-1])


def _spark_main(left: str, right: str, files_per_trigger: int) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.driver.memory", "8g").config("spark.sql.shuffle.partitions", "2")
             .config("spark.sql.session.timeZone", "UTC")
             .config("spark.sql.streaming.stateStore.providerClass",
                     "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
             .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
             .getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    schema = "k long, ts timestamp_ntz, amount long, note string"

    def stream(path: str, prefix: str):
        frame = (spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_trigger).parquet(path))
        return frame.select(f.col("k").alias(f"{prefix}_k"), f.col("ts").alias(f"{prefix}_ts"),
                            f.col("amount").alias(f"{prefix}_amount"), f.col("note").alias(f"{prefix}_note"))

    joined = stream(left, "l").join(stream(right, "r"), f.expr("l_k = r_k"))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        query = (joined.writeStream.format("parquet").option("path", f"{folder}/out")
                 .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start())
        query.awaitTermination()
        seconds = time.perf_counter() - started
        n, checksum = duckdb.connect().execute(
            f"SELECT {CHECK} FROM read_parquet('{folder}/out/*.parquet')").fetchone()
    print(json.dumps({"seconds": seconds, "rows": n, "checksum": checksum}))


if __name__ == "__main__":
    _spark_main(sys.argv[2], sys.argv[3], int(sys.argv[4]))
