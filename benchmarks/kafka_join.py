"""Two topics of messages joined by key: from broker to view. Peer: Spark's own Kafka source into its own join.

2 M + 2 M messages, in JSON of about 120 bytes and then in Avro, in topics of two partitions; every key is once on each
side. The broker runs on the same cores. Watersmeet is measured from CREATE SOURCE to the end of FLUSH, Spark's own
join, of the JSON, from the start of its query to its end; both with the session started. Processor seconds are those of
all processes, with the broker's apart. Target: 250 k messages/s, 4 times Spark's own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import duckdb
import fastavro
import pyarrow as pa
from confluent_kafka import Producer
from scripts.servers.kafka import Broker

import watersmeet
from benchmarks.frame import Measured
from benchmarks.processes import cpu_seconds
from benchmarks.spark import in_own_process, kafka_session, written

SIDES = ("l", "r")
ENCODINGS = ("json", "avro")
#: Messages of Avro have no id of a schema before them: they need no registry.
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "k", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "amount", "type": "long"},
        {"name": "note", "type": "string"},
    ],
}
PARTITIONS = 2
CHECK = "count(*), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"
SCRIPT = """
CREATE SOURCE {side} (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'kafka', topic = '{side}-{encoding}', properties.bootstrap.server = '{servers}')
    FORMAT PLAIN ENCODE {encoding} {options};
"""
JOIN = """
CREATE MATERIALIZED VIEW joined AS
    SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, r.amount AS r_amount, r.note AS r_note
    FROM l JOIN r ON l.k = r.k;
"""
SCHEMA = "k long, ts timestamp_ntz, amount long, note string"


def rows(side: int, count: int) -> duckdb.DuckDBPyRelation:
    """The rows of a side as columns `partition` and `value`, in an order in which keys meet late and early."""
    return duckdb.sql(
        f"""SELECT i % {PARTITIONS} AS partition, to_json({{
                k: (i * {7919 if side else 104729} + {side}) % {count},
                ts: (TIMESTAMP '2026-01-01' + to_microseconds(i * 1000))::VARCHAR,
                amount: (i * 37 + {side}) % 100003,
                note: 'note ' || lpad((i % 997)::VARCHAR, 30, '.') }})::VARCHAR AS value
            FROM range({count}) AS g(i)"""
    )


def in_avro(values: list[bytes]) -> list[bytes]:
    """The same rows as bodies of Avro."""
    schema = fastavro.parse_schema(AVRO)
    found = []
    for value in values:
        row = json.loads(value)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {**row, "ts": datetime.fromisoformat(row["ts"])})
        found.append(out.getvalue())
    return found


def topic_of(side: int, encoding: str) -> str:
    return f"{SIDES[side]}-{encoding}"


def produce(broker: Broker, side: int, count: int, encoding: str) -> int:
    """Fills the topic of a side; the bytes of all values."""
    topic = topic_of(side, encoding)
    broker.create_topic(topic, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    total = 0
    for batch in rows(side, count).fetch_arrow_reader(100_000):
        values = batch.column(1).cast(pa.binary()).to_pylist()
        if encoding == "avro":
            values = in_avro(values)
        for partition, value in zip(batch.column(0).to_pylist(), values, strict=True):
            total += len(value)
            producer.produce(topic, value, partition=partition)
        producer.flush()
    return total


def ours(broker: Broker, parallelism: int, encoding: str = "json") -> tuple[Measured, float]:
    """(Watersmeet, processor seconds)."""
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        schema = Path(folder) / "row.avsc"
        schema.write_text(json.dumps(AVRO), encoding="utf-8")
        options = f"(schema.location = '{schema.as_uri()}')" if encoding == "avro" else ""
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (i int); CREATE MATERIALIZED VIEW m AS SELECT i FROM t; FLUSH;")
        before, started = cpu_seconds(os.getpid()), time.perf_counter()
        for side in SIDES:
            cursor.execute(SCRIPT.format(side=side, encoding=encoding, options=options, servers=broker.bootstrap))
        cursor.execute(JOIN)
        cursor.execute("FLUSH")
        seconds, cpu = time.perf_counter() - started, cpu_seconds(os.getpid()) - before
        cursor.execute(f"SELECT {CHECK} FROM joined")
        return Measured(seconds, tuple(int(v) for v in cursor.fetchone())), cpu


def expected(count: int) -> tuple[int, ...]:
    """The same by DuckDB, over the same values."""
    with duckdb.connect():
        for side, name in enumerate(SIDES):
            rows(side, count).create_view(f"raw_{name}")
            duckdb.sql(
                f"""CREATE OR REPLACE VIEW {name}_side AS
                    SELECT (value->>'k')::BIGINT AS k, (value->>'amount')::BIGINT AS {name}_amount FROM raw_{name}"""
            )
        return tuple(duckdb.sql(f"SELECT {CHECK} FROM l_side JOIN r_side USING (k)").fetchone())


def spark_own(broker: Broker) -> tuple[Measured, float]:
    """(Spark's own source and join in a process of its own, processor seconds)."""
    found = in_own_process("benchmarks.kafka_join", "--peer", broker.bootstrap)
    return Measured(found["seconds"], tuple(found["check"])), found["cpu"]


def peer(servers: str) -> None:
    from pyspark.sql import functions as f

    spark = kafka_session()

    def stream(side: str):
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", f"{side}-json")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 500_000)
            .load()
        )
        row = f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")
        return source.select(row).select(
            *(f.col(f"row.{c}").alias(f"{side}_{c}") for c in ("k", "ts", "amount", "note"))
        )

    spark.range(1).count()
    with tempfile.TemporaryDirectory() as folder:
        joined = stream("l").join(stream("r"), f.expr("l_k = r_k"))
        before, started = cpu_seconds(os.getpid()), time.perf_counter()
        written(joined, folder)
        seconds, cpu = time.perf_counter() - started, cpu_seconds(os.getpid()) - before
        found = duckdb.sql(f"SELECT {CHECK} FROM read_parquet('{folder}/out/*.parquet')").fetchone()
    print(json.dumps({"seconds": seconds, "cpu": cpu, "check": [int(v) for v in found]}))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kafka_join", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000, help="of each side")
    parser.add_argument("--encoding", choices=ENCODINGS, action="append", help="all, unless one is named")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--no-spark", action="store_true", help="leave Spark's own join out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.started(Path(folder) / "kafka")
        try:
            total = 2 * options.messages
            right = expected(options.messages)
            for encoding in options.encoding or ENCODINGS:
                size = sum(produce(broker, side, options.messages, encoding) for side in (0, 1))
                print(f"{total:,} messages in {encoding}, of {size / total:.0f} bytes")
                before = cpu_seconds(broker.pid)
                made, both = ours(broker, options.parallelism, encoding)
                used = cpu_seconds(broker.pid) - before  # the broker is a child of this process
                assert made.check == right, (made, right)
                print(f"rows out {made.check[0]:,}, checksum {made.check[1]:,}: as DuckDB has it")
                _print("watersmeet", total, made, both - used, used)
                if encoding == "json" and not options.no_spark:
                    before = cpu_seconds(broker.pid)
                    spark, cpu = spark_own(broker)
                    assert spark.check == right, (spark, right)
                    _print("spark's own", total, spark, cpu, cpu_seconds(broker.pid) - before)
                    print(f"watersmeet is {spark.seconds / made.seconds:.1f} times as fast")
        finally:
            broker.stop()
    return 0


def _print(name: str, total: int, made: Measured, cpu: float, broker_cpu: float) -> None:
    print(
        f"{name:12} {total / made.seconds:>10,.0f} messages/s  {made.seconds:6.1f} s  "
        f"processor {cpu:.1f} s, broker {broker_cpu:.1f} s"
    )


if __name__ == "__main__":
    peer(sys.argv[2])
