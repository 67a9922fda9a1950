"""A sink of upserts: the content of a table with a primary key goes to a topic, each row once.

2 M rows of four columns, delivered in transactions in JSON, to a topic of two partitions, from CREATE SINK until all
are acknowledged; then an update of every second row, from its commit on. A reader of committed messages has the newest
row of each key: the number of keys and a checksum are compared with the table's. The broker runs on the same cores.
Peer: Spark's own Kafka sink, at least once, of the same rows from a Parquet file. Target: 200 k rows/s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Message
from scripts.servers.kafka import Broker

import watersmeet
from benchmarks.processes import cpu_seconds, wait_until
from benchmarks.spark import in_own_process, kafka_session

PARTITIONS = 2
FILL = """
CREATE TABLE t (id bigint PRIMARY KEY, ts timestamp, amount bigint, note varchar);
INSERT INTO t SELECT i, TIMESTAMP '2026-01-01' + i * INTERVAL '1 millisecond', i * 37 % 100003,
    'note ' || lpad((i % 997)::varchar, 30, '.') FROM generate_series(0, {last}) AS g(i);
FLUSH;
"""
SINK = """
CREATE SINK s FROM t WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{servers}',
    primary_key = 'id') FORMAT UPSERT ENCODE JSON
"""
UPDATE = "UPDATE t SET amount = amount + 1 WHERE id % 2 = 0"
CHECK = "SELECT count(*), CAST(sum((id + 1) * (amount + 7)) AS BIGINT) FROM t"


def content(broker: Broker, topic: str, messages: int) -> tuple[int, int]:
    """What a reader of committed messages finds, as CHECK; it must find just so many messages."""
    consumer = broker.consumer(**{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.subscribe([topic])
    newest: dict[bytes, bytes] = {}
    ended: set[int] = set()
    count = 0
    while len(ended) < PARTITIONS:
        found = consumer.consume(2000, 0.1)
        ended |= {m.partition() for m in found if m.error() is not None}
        found = [m for m in found if m.error() is None]
        count += len(found)
        newest.update(zip(map(Message.key, found), map(Message.value, found), strict=True))
    consumer.close()
    assert count == messages, f"{count} messages in place of {messages}"
    rows = [json.loads(value) for value in newest.values()]
    return len(rows), sum((row["id"] + 1) * (row["amount"] + 7) for row in rows)


def ours(broker: Broker, rows: int, parallelism: int) -> None:
    broker.create_topic("ours", PARTITIONS)
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        connection.execute(FILL.format(last=rows - 1))
        create = SINK.format(topic="ours", servers=broker.bootstrap)
        for name, statement, count in (("content", create, rows), ("updates", UPDATE, rows // 2)):
            head = delivered(connection)
            before, brokers = cpu_seconds(os.getpid()), cpu_seconds(broker.pid)
            began = time.perf_counter()
            connection.execute(statement)
            if name == "updates":
                began = time.perf_counter()  # what the statement itself takes is not the sink's
            wait_until(lambda: (delivered(connection) or -1) > (head or -1), 300, 0.01)  # noqa: B023
            seconds = time.perf_counter() - began
            used = cpu_seconds(broker.pid) - brokers
            _print(f"watersmeet, {name}", count, seconds, cpu_seconds(os.getpid()) - before - used, used)
        right = tuple(int(v) for v in connection.execute(CHECK).fetchone())
    found = content(broker, "ours", rows + rows // 2)
    assert found == right, (found, right)
    print(f"keys {found[0]:,}, checksum {found[1]:,}: as the table has it")


def delivered(connection: watersmeet.Connection) -> int | None:
    """The commit up to which the target has acknowledged all; None while something is on its way."""
    cursor = connection.execute("SHOW SINKS")
    names = [column[0] for column in cursor.description]
    shown = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    if not shown or shown[0]["state"] != "running" or shown[0]["commits_behind"]:
        return None
    return shown[0]["delivered_commit"]


def spark_own(broker: Broker, rows: int) -> None:
    """Prints how Spark's own sink does, in a process of its own."""
    broker.create_topic("peer", PARTITIONS)
    before = cpu_seconds(broker.pid)
    found = in_own_process("benchmarks.kafka_sink", "--peer", broker.bootstrap, rows)
    _print("spark's own, content", rows, found["seconds"], found["cpu"], cpu_seconds(broker.pid) - before)
    assert content(broker, "peer", rows) == tuple(found["check"])


def peer(servers: str, rows: int) -> None:
    spark = kafka_session()
    with tempfile.TemporaryDirectory() as folder:
        made = spark.range(rows).selectExpr(
            "id",
            "timestamp_micros(1767225600000000 + id * 1000) AS ts",
            "id * 37 % 100003 AS amount",
            "concat('note ', lpad(CAST(id % 997 AS string), 30, '.')) AS note",
        )
        made.write.parquet(f"{folder}/rows")
        stored = spark.read.parquet(f"{folder}/rows")
        check = stored.selectExpr("count(*)", "sum((id + 1) * (amount + 7))").first()
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        (
            stored.selectExpr("CAST(id AS string) AS key", "to_json(struct(*)) AS value")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", "peer")
            .save()
        )
        seconds, used = time.perf_counter() - began, cpu_seconds(os.getpid()) - before
    print(json.dumps({"seconds": seconds, "cpu": used, "check": [int(v) for v in check]}))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kafka_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--no-spark", action="store_true", help="leave Spark's own sink out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.started(Path(folder) / "kafka")
        try:
            ours(broker, options.rows, options.parallelism)
            if not options.no_spark:
                spark_own(broker, options.rows)
        finally:
            broker.stop()
    return 0


def _print(name: str, rows: int, seconds: float, used: float, brokers: float) -> None:
    print(
        f"{name:22} {rows / seconds:>10,.0f} rows/s  {seconds:6.1f} s  processor {used:.1f} s, broker {brokers:.1f} s"
    )


if __name__ == "__main__":
    peer(sys.argv[2], int(sys.argv[3]))
