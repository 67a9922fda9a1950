"""Protobuf through a real broker and a real schema registry, out and in again."""

from __future__ import annotations

import json
import urllib.request

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters

SCHEMA = 'syntax = "proto3"; message Row { int32 k = 1; optional string v = 2; repeated int64 n = 3; }'


def register(registry, subject):
    request = urllib.request.Request(
        f"{registry.url}/subjects/{subject}/versions",
        json.dumps({"schemaType": "PROTOBUF", "schema": SCHEMA}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_a_sink_writes_what_a_table_reads(tmp_path, broker, topic, registry):
    name = topic()
    register(registry, f"{name}-value")
    offset = f"connector = 'kafka', topic = '{name}', properties.bootstrap.server = '{broker.bootstrap}'"
    form = f"ENCODE PROTOBUF (schema.registry = '{registry.url}', message = 'Row')"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar, n bigint[])")
        connection.execute("INSERT INTO t VALUES (1, 'a', ARRAY[1, 2]), (2, NULL, NULL), (3, '', ARRAY[]::bigint[])")
        connection.execute(
            f"CREATE SINK s FROM t WITH ({offset}, progress.topic = 'p_{name}') FORMAT UPSERT {form} KEY ENCODE TEXT"
        )
        connection.execute("DELETE FROM t WHERE k = 3")
        connection.execute("FLUSH")
        sink = connection._session.catalog.by_name("s", "public")
        assert connection._session.database.service(SinkWriters).wait(sink.id, 60)
        connection.execute(
            f"CREATE TABLE r (*, PRIMARY KEY (key)) INCLUDE KEY AS key WITH ({offset}) FORMAT UPSERT {form}"
        )
        connection.execute("FLUSH")
        found = connection.execute("SELECT key, k, v, n FROM r ORDER BY k").fetchall()
        assert found == [(b"1", 1, "a", [1, 2]), (b"2", 2, None, [])]
