"""Spark as the peer of a benchmark: its session, and runs in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STORE = "spark.sql.streaming.stateStore"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "8g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
#: What Watersmeet's own operators in a user's session need, and what `docs/DATAFRAMES.md` advises.
OWN_OPERATORS = {
    "spark.python.daemon.module": "watersmeet.runtime.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    f"{_STORE}.checkpointFormatVersion": "2",
}


#: The columns of the inputs.
STREAM = "k long, ts timestamp_ntz, amount long, note string"


def spark_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Spark on two cores with its state in RocksDB. settings: further ones, or others."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def kafka_session() -> SparkSession:
    """A session with Spark's own Kafka source and sink."""
    from scripts.servers.archives import fetch
    from scripts.servers.spark import SPARK_KAFKA

    return spark_session({"spark.jars": ",".join(map(str, fetch(SPARK_KAFKA).glob("*.jar")))})


def written(frame: DataFrame, folder: str | Path) -> StreamingQuery:
    """Writes all that a stream has now as Parquet files to `folder`/out; the query, which has ended."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def warm_up(spark: SparkSession, data: str | Path) -> None:
    """A query without state over one file of a folder, as a user would have run before in the same session."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "one.parquet").symlink_to(min(Path(data).iterdir()))
        written(spark.readStream.schema(STREAM).parquet(f"{folder}/in"), folder)


def in_own_process(module: str, *arguments: object) -> dict[str, Any]:
    """What `python -m module arguments…` prints last: JSON."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.strip().splitlines()[-1])
