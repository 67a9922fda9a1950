"""What a sink writes to a topic of a real broker, a source reads as it was, in every format that can be written."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pytest

import watersmeet
from tests.kafkatopics import asked
from tests.thorough import mostly_slow
from watersmeet.sinkwriters.writers import SinkWriters

NUMBERS = {
    "flag": ("boolean", [True, False]),
    "small": ("smallint", [-(2**15), 2**15 - 1, 0]),
    "whole": ("int", [-(2**31), 2**31 - 1, 7]),
    "large": ("bigint", [-(2**63), 2**63 - 1, 2**53 + 1]),
    "approx": ("double precision", [0.1, -1e308, 5e-324, 1e15 + 0.3]),
    "exact": ("numeric", [Decimal("99999999999999999999.9999999999"), Decimal("-0.0000000001"), Decimal(10**20)]),
}
TEXTS = {
    "name": ("varchar", ["", "a,b;\"c\"'d'", "line\nline\ttab\r", "ünïcödé 💧 \u2028\u200b", "null", " \\N "]),
    "moment": (
        "timestamptz",
        [
            dt.datetime(1, 1, 1, tzinfo=dt.UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC),
        ],
    ),
}
#: Of Avro and Protobuf alone: JSON writes these as RisingWave does, in forms that read as something else.
TYPED = {
    "bytes": ("bytea", [b"", b"\0\xff\x80", b"text"]),
    "day": ("date", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "naive": ("timestamp", [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "hour": ("time", [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "listed": ("bigint[]", [[], [1, None, -(2**63)]]),
    "nested": ("struct<x int, y varchar>", [(1, "ü"), (None, ""), (-1, None)]),
}
ALL = {**NUMBERS, **TEXTS, **TYPED}
PLAIN = {**NUMBERS, **TEXTS}
OF_PROTOBUF = {name: ALL[name] for name in ("flag", "whole", "large", "approx", "name", "bytes")}
PROTOBUF = """syntax = "proto3";
message Row {
  optional int32 id = 1;
  optional bool flag = 2;
  optional int32 whole = 3;
  optional int64 large = 4;
  optional double approx = 5;
  optional string name = 6;
  optional bytes bytes = 7;
}"""

JSON, CSV = "ENCODE JSON", "ENCODE CSV"
AVRO = "ENCODE AVRO (schema.registry = '{registry}')"
MESSAGE = "ENCODE PROTOBUF (schema.registry = '{registry}', message = 'Row')"
#: By name: columns, the form, the encoding, that of keys.
CASES = {
    "json": (PLAIN, "PLAIN", JSON, ""),
    "csv": (PLAIN, "PLAIN", CSV, ""),
    "avro": (ALL, "PLAIN", AVRO, ""),
    "protobuf": (OF_PROTOBUF, "PLAIN", MESSAGE, "KEY ENCODE TEXT"),
    "debezium_json": (PLAIN, "DEBEZIUM", JSON, ""),
    "debezium_avro": (ALL, "DEBEZIUM", AVRO, ""),
    "upsert_json": (PLAIN, "UPSERT", JSON, ""),
    "upsert_json_text": (PLAIN, "UPSERT", JSON, "KEY ENCODE TEXT"),
    "upsert_json_bytes": (PLAIN, "UPSERT", JSON, "KEY ENCODE BYTES"),
    "upsert_avro": (ALL, "UPSERT", AVRO, ""),
    "upsert_avro_text": (ALL, "UPSERT", AVRO, "KEY ENCODE TEXT"),
    "upsert_protobuf": (OF_PROTOBUF, "UPSERT", MESSAGE, "KEY ENCODE TEXT"),
}


def literal(kind, value):
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, list):
        return f"ARRAY[{', '.join(literal('bigint', v) for v in value)}]::{kind}"
    if isinstance(value, tuple):
        return f"ROW({', '.join(literal('', v) for v in value)})::{kind}"
    text = str(value).replace("'", "''")
    return f"'{text}'::{kind}" if kind else f"'{text}'" if isinstance(value, str) else text


def rows(connection, query):
    return sorted(connection.execute(query).fetchall(), key=repr)


@pytest.mark.parametrize("case", mostly_slow([*CASES], 3))
def test_what_a_sink_writes_is_read_as_it_was(tmp_path, broker, topic, registry, case):
    columns, form, encoding, keyed = CASES[case]
    chance, name = random.Random(case), topic(partitions=2)
    if "PROTOBUF" in encoding:
        asked(registry, f"/subjects/{name}-value/versions", {"schema": PROTOBUF, "schemaType": "PROTOBUF"})
    place = f"connector = 'kafka', topic = '{name}', properties.bootstrap.server = '{broker.bootstrap}'"
    encoding = encoding.format(registry=registry.url)
    of_id = "varchar" if "BYTES" in keyed else "int"
    listed = ", ".join(f"{c} {kind}" for c, (kind, _) in columns.items())
    names = ", ".join(columns)

    def insert(keys):
        made = [[literal(kind, chance.choice([None, *values])) for kind, values in columns.values()] for _ in keys]
        values = ", ".join(f"({k}, {', '.join(row)})" for k, row in zip(keys, made, strict=True))
        connection.execute(f"INSERT INTO t VALUES {values}")

    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"CREATE TABLE t (id {of_id} PRIMARY KEY, {listed})")
        insert(range(40))
        forced = ", force_append_only = 'true'" if form == "PLAIN" else ", primary_key = 'id'"
        connection.execute(f"CREATE SINK s FROM t WITH ({place}{forced}) FORMAT {form} {encoding} {keyed}")
        settle(connection)
        if form != "PLAIN":
            connection.execute("DELETE FROM t WHERE id::int % 5 = 0")
            insert(range(3, 40, 4))
        insert(range(40, 60))
        settle(connection)
        made = {
            "PLAIN": f"SOURCE back (id {of_id}, {listed}) INCLUDE key AS k",
            "DEBEZIUM": f"TABLE back (id {of_id}, {listed}, PRIMARY KEY (id))",
            "UPSERT": f"TABLE back (id {of_id}, {listed}, PRIMARY KEY (k)) INCLUDE key AS k",
        }
        if encoding == CSV:
            encoding += " (without_header = 'true')"
        connection.execute(f"CREATE {made[form]} WITH ({place}) FORMAT {form} {encoding}")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM back")
        assert not connection.flush()
        assert connection.execute("SELECT reason FROM watersmeet.dead_letters").fetchall() == []
        wanted = rows(connection, f"SELECT id, {names} FROM t")
        assert len(wanted) >= 50
        assert rows(connection, f"SELECT id, {names} FROM v") == wanted
        if keyed:
            keys = rows(connection, "SELECT k, id FROM v")
            assert keys == sorted([(str(row[0]).encode(), row[0]) for row in wanted], key=repr)


def test_bytes_are_messages_as_they_are(tmp_path, broker, topic):
    name = topic()
    place = f"connector = 'kafka', topic = '{name}', properties.bootstrap.server = '{broker.bootstrap}'"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (b bytea) APPEND ONLY")
        connection.execute("INSERT INTO t VALUES ('\\x00ff80'), ('\\x'), ('text')")
        connection.execute(f"CREATE SINK s FROM t WITH ({place}) FORMAT PLAIN ENCODE BYTES")
        settle(connection)
        connection.execute(f"CREATE SOURCE back (b bytea) WITH ({place}) FORMAT PLAIN ENCODE BYTES")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT b FROM back")
        assert not connection.flush()
        assert rows(connection, "SELECT b FROM v") == [(b"",), (b"\0\xff\x80",), (b"text",)]


def settle(connection):
    connection.flush()
    session = connection._session
    sink = session.catalog.by_name("s")
    assert session.database.service(SinkWriters).wait(sink.id, 60)
    status = session.database.service(SinkWriters).status(sink.id)
    assert status.state == "running", status.problem
