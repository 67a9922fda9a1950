"""Orders through Kafka, joined with customers and prices that another process changes in PostgreSQL; results in
PostgreSQL, Delta Lake and Iceberg at once.

A real broker and a real PostgreSQL run on loopback. At the end the view and all three places are compared, row by row,
with DuckDB's answer over what the broker and PostgreSQL have acknowledged.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from changes import CUSTOMERS, DAY, ITEMS, TABLES
from confluent_kafka import Producer
from deltalake import DeltaTable
from examples.charts import draw_bars
from examples.screen import delivered, with_sinks
from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.live import Live
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.kafka import Broker
from scripts.servers.postgres import PASSWORD, USER, Postgres

import watersmeet

HERE = Path(__file__).parent
BATCH_ORDERS = 100
PAUSE_S = 0.02

ORDERS = pa.schema(
    [
        *(("id", pa.int64()), ("customer", pa.int32()), ("item", pa.string()), ("quantity", pa.int32())),
        ("ordered_at", pa.timestamp("us")),
    ]
)
#: DuckDB's answer.
ANSWER = """
CREATE TABLE answer AS
SELECT o.id, o.ordered_at, o.item, o.quantity, p.price, CAST(o.quantity * p.price AS DECIMAL(12, 2)) AS total,
    c.name AS customer, c.city
FROM orders o ASOF JOIN prices p ON o.item = p.item AND o.ordered_at >= p.valid_from
LEFT JOIN customers c ON o.customer = c.id
"""
BY_CITY = "SELECT city, count(*), sum(total) FROM answer GROUP BY city ORDER BY city NULLS LAST"


class Feeder:
    """Sends orders to the topic, and keeps those that the broker has acknowledged."""

    def __init__(self, broker: Broker, count: int) -> None:
        self.count = count
        self.acknowledged: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as failure:
            self.failure = failure

    def _send(self) -> None:
        r, start = random.Random(1), dt.datetime.fromisoformat(DAY)
        for number in range(self.count):
            order = {
                "id": number,
                "customer": r.randint(1, CUSTOMERS),
                "item": r.choice(ITEMS),
                "quantity": r.randint(1, 5),
                "ordered_at": (start + dt.timedelta(days=1) * number / self.count).isoformat(sep=" "),
            }

            def told(error: Any, _: Any, order: dict[str, Any] = order) -> None:
                if error is None:
                    self.acknowledged.append(order)

            self._producer.produce("orders", json.dumps(order), key=str(number), on_delivery=told)
            if number % BATCH_ORDERS == BATCH_ORDERS - 1:
                self._producer.flush(60)
                time.sleep(PAUSE_S)
        self._producer.flush(60)


def main() -> int:
    parser = argparse.ArgumentParser(description="Orders, customers and prices of a shop, joined while they change.")
    parser.add_argument("--quick", action="store_true", help="3,000 orders instead of 100,000")
    parser.add_argument("--parallelism", type=int, default=None)
    parser.add_argument("--chart", type=Path, default=Path("shop-by-city.png"))
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="watersmeet-shop-demo-") as scratch:
        folder = Path(scratch)
        servers: list[Broker | Postgres] = []
        try:
            broker = Broker.started(folder / "kafka", say=console.print)
            servers.append(broker)
            postgres = Postgres.started(folder / "postgres", say=console.print)
            servers.append(postgres)
            broker.create_topic("orders", 2)
            with postgres.connect() as there:
                for name in ("shop", "lake"):
                    there.execute(f"CREATE DATABASE {name}")
            with postgres.connect("shop") as there:
                there.execute(TABLES)
            console.print("starting Spark …")
            feeder = Feeder(broker, 3_000 if options.quick else 100_000)
            with watersmeet.connect(folder / "db", parallelism=options.parallelism) as connection:
                run(console, connection, feeder, broker, postgres, folder, 100 if options.quick else 2_000)
                return check(console, connection, feeder, postgres, folder, options.chart)
        except ServerUnavailableError as problem:
            console.print(f"[red]shop-demo: a server can't be had: {problem}[/red]")
            return 1
        finally:
            for server in servers:
                server.remove() if isinstance(server, Postgres) else server.stop()


def run(
    console: Console,
    connection: Any,
    feeder: Feeder,
    broker: Broker,
    postgres: Postgres,
    folder: Path,
    changes: int,
) -> None:
    """Creates sources, views and sinks, then lets orders come and PostgreSQL change while showing progress."""
    script = (HERE / "shop.sql").read_text(encoding="utf-8")
    known = {"broker": broker.bootstrap, "port": postgres.port, "user": USER, "password": PASSWORD, "folder": folder}
    for name, value in known.items():
        script = script.replace(f"{{{name}}}", str(value))
    cursor = connection.cursor()
    cursor.execute(script)
    said: list[str] = []
    command = [sys.executable, "-u", str(HERE / "changes.py"), postgres.url("shop"), str(changes), str(PAUSE_S)]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as changing:
        reader = threading.Thread(target=lambda: said.extend(map(str.strip, changing.stdout)), daemon=True)
        reader.start()
        feeder.thread.start()
        with Live(console=console, refresh_per_second=4) as live:

            def show() -> None:
                orders = f"{len(feeder.acknowledged):,} of {feeder.count:,} orders"
                title = f"{orders}, {len(said):,} of {changes:,} changes, {time.monotonic() - started:.0f} s"
                live.update(with_sinks(connection, title, f"last change: {said[-1] if said else 'none yet'}"))

            while feeder.thread.is_alive() or reader.is_alive():
                show()
                time.sleep(0.25)
            if feeder.failure is not None:
                raise feeder.failure
            if changing.wait() != 0:
                raise SystemExit("shop-demo: the changes in PostgreSQL stopped")
            cursor.execute("FLUSH")
            until = time.monotonic() + 300
            while not delivered(cursor) and time.monotonic() < until:
                show()
                time.sleep(0.25)
            show()
    console.print(
        f"{len(feeder.acknowledged):,} orders and {changes:,} changes joined and delivered "
        f"in {time.monotonic() - started:.1f} s\n"
    )


def check(console: Console, connection: Any, feeder: Feeder, postgres: Postgres, folder: Path, chart: Path) -> int:
    """Compares the view and the three places with DuckDB's answer; draws the chart."""
    data = duckdb.connect()
    orders = [{**order, "ordered_at": dt.datetime.fromisoformat(order["ordered_at"])} for order in feeder.acknowledged]
    catalog = load_catalog(
        "watersmeet", type="sql", uri=postgres.url("lake").replace("postgresql:", "postgresql+psycopg:")
    )
    columns = "id, ordered_at, item, quantity, price, total, customer, city"
    tables = {"orders": pa.Table.from_pylist(orders, ORDERS)}
    with postgres.connect("shop") as there:
        for name in ("customers", "prices", "sold"):
            tables[f"{name}_there"] = _table(there.execute(f"SELECT * FROM {name}"))
    tables["delta_there"] = DeltaTable(folder / "delta").to_pyarrow_table()
    tables["iceberg_there"] = catalog.load_table("shop.sold").scan().to_arrow()
    tables["view_there"] = _table(connection.cursor().execute(f"SELECT {columns} FROM sold"))
    for name, table in tables.items():
        data.register(name, table)
    data.execute("CREATE VIEW customers AS FROM customers_there; CREATE VIEW prices AS FROM prices_there")
    data.execute(ANSWER)
    (wanted,) = data.execute("SELECT count(*) FROM answer").fetchone()
    console.print(f"DuckDB's answer has {wanted:,} rows.")
    wrong = int(wanted == 0)
    for what, name in (("view", "view"), ("PostgreSQL", "sold"), ("Delta Lake", "delta"), ("Iceberg", "iceberg")):
        there, answer = f"SELECT {columns} FROM {name}_there", f"SELECT {columns} FROM answer"
        more, less = (
            data.execute(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchone()[0]
            for a, b in ((there, answer), (answer, there))
        )
        wrong += more + less
        same = f"{more:,} rows too many and {less:,} too few against" if more or less else "equal to"
        console.print(f"[{'red' if more or less else 'green'}]{what}: {same} the batch answer")
    cursor = connection.cursor().execute("SELECT * FROM by_city ORDER BY city NULLS LAST")
    found, batch = [(a, int(b), c) for a, b, c in cursor.fetchall()], data.execute(BY_CITY).fetchall()
    wrong += found != batch
    same = "equal to" if found == batch else "different from"
    console.print(f"[{'green' if found == batch else 'red'}]view by_city: {same} the batch answer")
    bars = [(city or "unknown", count, total / count) for city, count, total in found]
    draw_bars(bars, ("Orders by city of the customer", "What an order is worth"), ("orders", "mean total"), chart)
    console.print(f"drawn: {chart}")
    return 1 if wrong else 0


def _table(cursor: Any) -> pa.Table:
    names, rows = [column[0] for column in cursor.description], cursor.fetchall()
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names)


if __name__ == "__main__":
    raise SystemExit(main())
