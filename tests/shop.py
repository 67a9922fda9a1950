"""A script of SQLstream from end to end: topics of Kafka in JSON and CSV, joined, into a topic and into files.

Rows have times of their own, one by the time of messages and one by a column, so that what comes out depends on nothing
else, however often the database is closed.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition

#: {bootstrap}, {orders}, {prices}, {sold}: topics; {folder}: of the files; {config}: a file of properties.
SCRIPT = """
CREATE OR REPLACE SCHEMA "shop";
SET SCHEMA '"shop"';

CREATE OR REPLACE SERVER "kafka" TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA
OPTIONS ("SEED_BROKERS" '{bootstrap}', "STARTING_TIME" 'EARLIEST');

CREATE OR REPLACE FOREIGN STREAM "orders" (
    "id" BIGINT, "product" VARCHAR(20), "amount" INTEGER, "customer" VARCHAR(20),
    SQLSTREAM_PROV_KAFKA_TIMESTAMP TIMESTAMP, SQLSTREAM_PROV_KAFKA_PARTITION INTEGER,
    SQLSTREAM_PROV_KAFKA_OFFSET BIGINT,
    WATERMARK FOR SQLSTREAM_PROV_KAFKA_TIMESTAMP AS SQLSTREAM_PROV_KAFKA_TIMESTAMP - INTERVAL '1' SECOND
) SERVER "kafka" OPTIONS (
    "PARSER" 'JSON', "ROW_PATH" '$.lines[*]', "customer_PATH" '$.by.name', "TOPIC" '{orders}',
    "MAX_POLL_RECORDS" '1000', "isolation.level" 'read_committed', "kafka.consumer.config" '{config}'
);

CREATE OR REPLACE FOREIGN STREAM "prices" (
    "at" TIMESTAMP, "product" VARCHAR(20), "price" DECIMAL(10, 2),
    WATERMARK FOR "at" AS "at" - INTERVAL '1' SECOND
) SERVER "kafka" OPTIONS ("PARSER" 'CSV', "SEPARATOR" ';', "TOPIC" '{prices}');

CREATE OR REPLACE FOREIGN STREAM "sold" ("id" BIGINT, "customer" VARCHAR(20), "total" DECIMAL(20, 2))
SERVER "kafka" OPTIONS (
    "FORMATTER" 'CSV', "SEPARATOR" '|', "TOPIC" '{sold}', "FORMATTER_INCLUDE_ROWTIME" 'false', "pump.name" 'p',
    "TRANSACTION_ROWTIME_LIMIT" '1000', "kafka.producer.config" '{config}'
);

CREATE OR REPLACE FOREIGN STREAM "archive" ("id" BIGINT, "customer" VARCHAR(20), "total" DECIMAL(20, 2))
SERVER FILE_SERVER OPTIONS (
    "DIRECTORY" '{folder}', "FORMATTER" 'JSON', "FILE_ROTATION_TIME" '10s', "FILENAME_PREFIX" 'sold-',
    "FILENAME_DATE_FORMAT" 'HHmmss', "FILENAME_SUFFIX" '.json', "FORMATTER_INCLUDE_ROWTIME" 'false'
);

CREATE OR REPLACE VIEW "totals" AS
SELECT STREAM "o"."id", "o"."customer", "o"."amount" * "p"."price" AS "total"
FROM "orders" AS "o" JOIN "prices" OVER (RANGE INTERVAL '5' SECOND PRECEDING) AS "p" ON "o"."product" = "p"."product";

CREATE OR REPLACE PUMP "to_kafka" STOPPED AS INSERT INTO "sold" SELECT STREAM "id", "customer", "total" FROM "totals";
CREATE OR REPLACE PUMP "to_files" STOPPED AS
INSERT INTO "archive" ("id", "customer", "total") SELECT STREAM * FROM "totals";
ALTER PUMP "shop".* START;
"""

START = dt.datetime(2024, 5, 1, 10, 0, 0, tzinfo=dt.UTC)
#: (second, id, product, amount): an order; and (second, product, price).
ORDERS = [(n, n, "ab"[n % 2], n) for n in range(40)]
PRICES = [(n, "ab"[n // 4 % 2], n + 0.25) for n in range(0, 44, 4)]


def expected() -> dict[int, list[list[str]]]:
    """By the span of ten seconds, the rows: id, customer, total. An order meets the prices of the last five seconds
    before it, and none that come later.
    """
    found: dict[int, list[list[str]]] = {}
    for second, number, product, amount in ORDERS:
        for since, priced, price in PRICES:
            if product == priced and second - 5 <= since <= second:
                row = [str(number), f"c{number}", f"{amount * price:.2f}"]
                found.setdefault(second // 10, []).append(row)
    return found


def run(connect: Callable[[], Any], broker: Any, topic: Callable[..., str], folder: Path) -> None:
    """Runs the script, with half of the messages before the database is closed and half after that, and checks what is
    there then.
    """
    names = {name: topic(retention_ms=-1) for name in ("orders", "prices", "sold")}
    config, archive = folder / "client.properties", folder / "archive"
    config.write_text("# of this script\nclient.id=shop\n")
    with connect() as session:
        for statement in SCRIPT.format(bootstrap=broker.bootstrap, folder=archive, config=config, **names).split(";\n"):
            if statement.strip():
                session.execute(statement)
        _produce(broker, names, 0, 20)
        session.flush()
    with connect() as session:
        _produce(broker, names, 20, 100)
        end = time.monotonic() + 60
        while len(found := _committed(broker, names["sold"])) < len(_flat(expected())) and time.monotonic() < end:
            session.flush()
        session.execute('ALTER PUMP "shop".* STOP')
    assert found == _flat(expected()), (found, _flat(expected()))
    spans = expected()
    files = {f.name: [json.loads(line) for line in f.read_text().splitlines()] for f in archive.glob("*.json")}
    rows = [[str(r["id"]), r["customer"], f"{r['total']:.2f}"] for name in sorted(files) for r in files[name]]
    assert sorted(rows) == sorted(_flat(spans))
    for name, lines in files.items():  # of one span each, of which one may have two files, as the database was closed
        assert {r["id"] // 10 for r in lines} == {int(name[9:11]) // 10}
    assert len(spans) <= len(files) <= len(spans) + 1


def _flat(spans: dict[int, list[list[str]]]) -> list[list[str]]:
    return [row for span in sorted(spans) for row in spans[span]]


def _produce(broker: Any, names: dict[str, str], begin: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for second, product, price in PRICES:
        if begin <= second < end:
            at = (START + dt.timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S")
            producer.produce(names["prices"], f"{at};{product};{price}".encode())
    for second, number, product, amount in ORDERS:
        if begin <= second < end:
            line = {"id": number, "product": product, "amount": amount, "by": {"name": f"c{number}"}}
            _order(producer, names["orders"], second, [line])
    if end > 60:  # nobody orders or sells these, but time goes on
        _order(producer, names["orders"], 60, [{"id": 99, "product": "x", "amount": 0}])
        producer.produce(names["prices"], b"2024-05-01 10:01:00;y;0")
    producer.flush(30)


def _order(producer: Producer, topic: str, second: int, lines: list[dict[str, Any]]) -> None:
    time_ms = int((START + dt.timedelta(seconds=second)).timestamp() * 1000)
    producer.produce(topic, json.dumps({"lines": lines}).encode(), timestamp=time_ms)


def _committed(broker: Any, topic: str) -> list[list[str]]:
    """The fields of all committed messages."""
    consumer = broker.consumer(**{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value().decode().split("|"))
    consumer.close()
    return found
