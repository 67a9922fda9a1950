"""The flights of 2013 as messages: planes in a compacted topic, flights day by day, both in Avro."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterable
from typing import Any

import duckdb
import fastavro
from confluent_kafka import Producer

FLIGHTS = "flights"
PLANES = "planes"
PARTITIONS = 2

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "flight_id", "type": "long"},
        {"name": "carrier", "type": "string"},
        {"name": "tailnum", "type": ["null", "string"], "default": None},
        {"name": "dest", "type": "string"},
        {"name": "arr_delay", "type": ["null", "int"], "default": None},
    ],
}
PLANE = {
    "type": "record",
    "name": "Plane",
    "fields": [
        {"name": "tailnum", "type": "string"},
        {"name": "manufacturer", "type": "string"},
        {"name": "seats", "type": "int"},
    ],
}


class AvroProducer:
    """Sends records of one schema to one topic, in the wire format of schema registries."""

    def __init__(self, servers: str, registry: str, topic: str, schema: dict[str, Any]) -> None:
        self._topic = topic
        self._schema = fastavro.parse_schema(schema)
        self._prefix = b"\0" + _register(registry, f"{topic}-value", schema).to_bytes(4, "big")
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )

    def send(self, records: Iterable[tuple[str | None, dict[str, Any] | None]]) -> None:
        """Sends (key, record), None for a tombstone; returns when all are acknowledged."""
        for key, record in records:
            value = None
            if record is not None:
                body = io.BytesIO()
                fastavro.schemaless_writer(body, self._schema, record)
                value = self._prefix + body.getvalue()
            self._producer.produce(self._topic, value, key=key)
        if self._producer.flush(60):
            raise SystemExit("kafka-demo: the broker does not take messages")


def flights(data: duckdb.DuckDBPyConnection, first: int, last: int) -> Iterable[tuple[None, dict[str, Any]]]:
    """The flights with these numbers."""
    names = [field["name"] for field in FLIGHT["fields"]]
    found = data.execute(
        f"SELECT {', '.join(names)} FROM flights WHERE flight_id BETWEEN ? AND ? ORDER BY flight_id", [first, last]
    ).fetchall()
    return ((None, dict(zip(names, row, strict=True))) for row in found)


def planes(data: duckdb.DuckDBPyConnection, where: str = "true") -> list[tuple[str, dict[str, Any]]]:
    """The planes for which that holds."""
    found = data.execute(f"SELECT tailnum, manufacturer, seats FROM planes WHERE {where} ORDER BY tailnum").fetchall()
    return [(row[0], dict(zip(("tailnum", "manufacturer", "seats"), row, strict=True))) for row in found]


def _register(registry: str, subject: str, schema: dict[str, Any]) -> int:
    request = urllib.request.Request(
        f"{registry}/subjects/{subject}/versions",
        json.dumps({"schema": json.dumps(schema)}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        number: int = json.load(answer)["id"]
    return number
