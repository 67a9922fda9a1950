"""Messages of Kafka at 200 a second: from produced to visible in SELECT, and to the consumer of a sink's topic.

The view joins a topic to a table of 1,000 rows; a sink delivers it to a second topic, where a reader of committed
messages waits. SELECT asks every 2 ms for the newest row. Also the use of the processor when idle, over ten topics with
a view each, and the time to ask for the ends of a topic of 1,000 partitions. The broker runs on the same cores. Peer:
Spark's own Kafka source and sink without any join, to the consumer. Targets: medians of 120 ms to SELECT and of 400 ms
to the consumer; idle under 5 % of a core; 50 ms for 1,000 partitions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.servers.kafka import Broker

import watersmeet
from benchmarks.processes import cpu_seconds, median, percentile, wait_until
from benchmarks.spark import kafka_session
from watersmeet.connectors.kafka.cluster import Cluster

NAMES = 1000
SETUP = f"""
CREATE TABLE names (k bigint PRIMARY KEY, name varchar);
INSERT INTO names SELECT i, 'name ' || i FROM generate_series(0, {NAMES - 1}) AS g(i);
CREATE SOURCE l (id bigint, k bigint, note varchar)
    WITH (connector = 'kafka', topic = '{{topic}}', properties.bootstrap.server = '{{servers}}')
    FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW v AS SELECT l.id, l.note, n.name FROM l JOIN names n ON l.k = n.k;
CREATE SINK s FROM v WITH (connector = 'kafka', topic = '{{topic}}-out', properties.bootstrap.server = '{{servers}}',
    primary_key = 'id') FORMAT UPSERT ENCODE JSON;
FLUSH;
"""
ONE = """
CREATE SOURCE s{number} (id bigint) WITH (connector = 'kafka', topic = 'idle{number}',
    properties.bootstrap.server = '{servers}') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW v{number} AS SELECT count(*) AS n FROM s{number};
"""


class Traffic:
    """Messages produced at a steady pace, and when each was produced and seen (seconds of the monotonic clock)."""

    def __init__(self, broker: Broker, topic: str, rate: int, count: int) -> None:
        self.produced: list[float] = []
        self._producer = broker.producer()
        self._topic, self._rate, self._count = topic, rate, count

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self._count):
            time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            value = json.dumps({"id": number, "k": number * 7919 % NAMES, "note": "." * 60}).encode()
            self.produced.append(time.monotonic())
            self._producer.produce(self._topic, value)
            self._producer.poll(0)
        self._producer.flush()


class Consumed(threading.Thread):
    """Reads a topic of rows with an `id`: when each came. Ends when all `count` have come once, or fails."""

    def __init__(self, broker: Broker, topic: str, count: int) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, float] = {}
        self._count = count
        self._consumer = broker.consumer(**{"isolation.level": "read_committed", "fetch.wait.max.ms": 500})
        self._consumer.subscribe([topic])
        self.stopping = threading.Event()

    def run(self) -> None:
        while len(self.seen) < self._count and not self.stopping.is_set():
            for message in self._consumer.consume(1000, 0.002):
                assert message.error() is None, message.error()
                number = json.loads(message.value())["id"]
                assert number not in self.seen, f"row {number} came twice"
                self.seen[number] = time.monotonic()
        self._consumer.close()


def steady(broker: Broker, topic: str, options: argparse.Namespace, visible: Callable[[], int] | None) -> dict:
    """The latencies in seconds of a run, by where rows are awaited. visible: how many rows are visible now."""
    count = options.rate * options.seconds
    traffic, consumed = Traffic(broker, topic, options.rate, count), Consumed(broker, f"{topic}-out", count)
    producing = threading.Thread(target=traffic.run, daemon=True)
    consumed.start()
    producing.start()
    shown: list[float] = []
    deadline = time.monotonic() + 2 * options.seconds + 60
    while visible is not None and len(shown) < count and time.monotonic() < deadline:
        found = visible()
        shown += [time.monotonic()] * (found - len(shown))
        time.sleep(0.002)
    producing.join()
    consumed.join(max(0.0, deadline - time.monotonic()))
    consumed.stopping.set()
    assert len(consumed.seen) == count, f"{len(consumed.seen)} of {count} rows came to the consumer"
    found = {"consumer": [consumed.seen[i] - at for i, at in enumerate(traffic.produced)]}
    if visible is not None:
        assert len(shown) == count, f"{len(shown)} of {count} rows are visible"
        found["SELECT"] = [b - a for a, b in zip(traffic.produced, shown, strict=True)]
    return found


@contextlib.contextmanager
def opened(parallelism: int, runtime: str) -> Iterator[watersmeet.Connection]:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism, runtime=runtime) as connection,
    ):
        yield connection


def ours(broker: Broker, runtime: str, options: argparse.Namespace) -> None:
    topic = f"rows-{runtime}"
    broker.create_topic(topic)
    broker.create_topic(f"{topic}-out")
    with opened(options.parallelism, runtime) as connection:
        connection.execute(SETUP.format(topic=topic, servers=broker.bootstrap))

        def sink_state() -> str:
            cursor = connection.execute("SHOW SINKS")
            return cursor.fetchone()[[name for name, *_ in cursor.description].index("state")]

        # The first transaction that a broker ever has takes a second.
        wait_until(lambda: sink_state() == "running", 60)

        def visible() -> int:
            if runtime == "inprocess":  # which works only when it is told to
                connection.execute("FLUSH")
            return connection.execute("SELECT coalesce(max(id) + 1, 0) FROM v").fetchone()[0]

        before, began = cpu_seconds(os.getpid()) - cpu_seconds(broker.pid), time.monotonic()
        found = steady(broker, topic, options, visible)
        used = cpu_seconds(os.getpid()) - cpu_seconds(broker.pid) - before
        _print(f"watersmeet, {runtime}", found, used / (time.monotonic() - began))


def idle(broker: Broker, options: argparse.Namespace) -> None:
    """Prints the processor time of a database with ten topics, none of which gets a message."""
    producer = broker.producer()
    for number in range(10):
        broker.create_topic(f"idle{number}", 2)
        producer.produce(f"idle{number}", b'{"id": 1}')
    producer.flush()
    with opened(options.parallelism, "spark") as connection:
        for number in range(10):
            connection.execute(ONE.format(number=number, servers=broker.bootstrap))
        connection.execute("FLUSH")
        time.sleep(5)
        before = cpu_seconds(os.getpid()), cpu_seconds(broker.pid)
        time.sleep(options.idle_seconds)
        brokers = cpu_seconds(broker.pid) - before[1]
        used = cpu_seconds(os.getpid()) - before[0] - brokers
    print(
        f"ten topics, idle for {options.idle_seconds} s: {used / options.idle_seconds:.1%} of a core, "
        f"the broker {brokers / options.idle_seconds:.1%}"
    )


def many_partitions(broker: Broker, partitions: int) -> None:
    """Prints what it takes to ask for the ends of a topic."""
    broker.create_topic("many", partitions)
    cluster = Cluster({"bootstrap.servers": broker.bootstrap})
    cluster.watch("many")
    wait_until(lambda: len(cluster.state("many").ends) == partitions, 60)
    time.sleep(5)  # until all is quiet
    took, used = [], []
    for _ in range(30):
        began, cpu = time.perf_counter(), time.process_time()
        cluster.look()
        took.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - cpu))
    cluster.leave("many")
    print(
        f"{partitions:,} partitions: an idle poll takes {median(took):.0f} ms, {median(used):.0f} ms of processor time"
    )


def spark_own(broker: Broker, options: argparse.Namespace) -> None:
    """Prints the same of Spark's own source and sink, in a process of its own, as fast as its micro-batches go."""
    topic = "rows-peer"
    broker.create_topic(topic)
    broker.create_topic(f"{topic}-out")
    command = [sys.executable, "-m", "benchmarks.kafka_latency", "--peer", broker.bootstrap, topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None, "Spark ended"
        before, began = cpu_seconds(process.pid), time.monotonic()
        found = steady(broker, topic, options, None)
        used = cpu_seconds(process.pid) - before
        _print("spark's own", found, used / (time.monotonic() - began))
        process.stdin.close()


def peer(servers: str, topic: str) -> None:
    spark = kafka_session()
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
        .selectExpr("CAST(value AS string) AS value")
    )
    with tempfile.TemporaryDirectory() as folder:
        query = (
            stream.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", f"{topic}-out")
            .option("checkpointLocation", folder)
            .start()
        )
        while not query.recentProgress:
            time.sleep(0.1)
        print("ready", flush=True)
        sys.stdin.read()
        query.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kafka_latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--idle-seconds", type=int, default=30)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--only", choices=("spark", "inprocess", "peer", "idle", "partitions"), action="append")
    options = parser.parse_args(arguments)
    wanted = options.only or ("spark", "inprocess", "peer", "idle", "partitions")
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.started(Path(folder) / "kafka")
        try:
            for runtime in ("spark", "inprocess"):
                if runtime in wanted:
                    ours(broker, runtime, options)
            if "peer" in wanted:
                spark_own(broker, options)
            if "idle" in wanted:
                idle(broker, options)
            if "partitions" in wanted:
                many_partitions(broker, options.partitions)
        finally:
            broker.stop()
    return 0


def _print(name: str, found: dict[str, list[float]], used: float) -> None:
    shown = "; ".join(
        f"to {where} median {1000 * median(times):.0f} ms, 99th percentile {1000 * percentile(times, 0.99):.0f} ms"
        for where, times in sorted(found.items(), reverse=True)
    )
    print(f"{name:22} {shown}; {used:.0%} of a core")


if __name__ == "__main__":
    peer(sys.argv[2], sys.argv[3])
