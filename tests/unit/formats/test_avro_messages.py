"""Avro messages: which values become which, schemas by id, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from tests.unit.formats.fake_registry import FakeRegistry, fake_registry
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats import avropayloads
from watersmeet.formats.decoders import registered_schema, schema_columns, taken_schema
from watersmeet.values import types as t
from watersmeet.values.types import SqlType


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as fake:
        yield fake


def form(registry: FakeRegistry, **more: Any) -> MessageFormat:
    return MessageFormat(encoding="avro", options={"schema.registry": registry.address}, **more)


def record(*fields: Any, name: str = "r") -> dict[str, Any]:
    parts = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    return {"type": "record", "name": name, "fields": parts}


def body(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


def framed(id_: int, schema: Any, value: Any) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big") + body(schema, value)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


MOMENT = datetime(2024, 2, 29, 10, 20, 30, 123000, tzinfo=UTC)
NAIVE = MOMENT.replace(tzinfo=None)
TEXT = "2024-02-29T10:20:30.123Z"
MICROS = int(MOMENT.timestamp()) * 1_000_000 + 123000
INNER = record(("x", ["null", "int"]), ("y", "string"), name="inner")
STRUCT = SqlType("struct", fields=(("x", t.INTEGER), ("y", t.VARCHAR)))
STRUCTS = SqlType("array", element=STRUCT)
PAIRS = SqlType("array", element=SqlType("struct", fields=(("key", t.VARCHAR), ("value", t.BIGINT))))
NUM = SqlType("numeric", 16, 2)
CENTS = logical("bytes", "decimal", precision=16, scale=2)
FIXED = {"type": "fixed", "name": "f", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 3}
UUID_FIXED = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
A_UUID = "12345678-1234-5678-1234-567812345678"
CONNECT = "org.apache.kafka.connect.data."
CASES: list[tuple[Any, Any, SqlType, Any]] = [
    ("boolean", True, t.BOOLEAN, True),
    ("int", -7, t.INTEGER, -7),
    ("int", -7, t.BIGINT, -7),
    ("int", 5, t.DOUBLE, 5.0),
    ("int", 5, NUM, Decimal("5.00")),
    ("int", 5, t.VARCHAR, "5"),
    ("long", -(2**63), t.BIGINT, -(2**63)),
    ("float", 1.5, t.DOUBLE, 1.5),
    ("double", 0.1, t.DOUBLE, 0.1),
    ("string", "é", t.VARCHAR, "é"),
    ("bytes", b"\xff", t.BYTEA, b"\xff"),
    ({"type": "fixed", "name": "f", "size": 2}, b"ab", t.BYTEA, b"ab"),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", t.VARCHAR, "B"),
    (["null", {"type": "enum", "name": "e", "symbols": ["A", "B"]}], "A", t.VARCHAR, "A"),
    (["null", "long"], None, t.BIGINT, None),
    (["long", "null"], 3, t.BIGINT, 3),
    (CENTS, Decimal("-99999999999999.99"), NUM, Decimal("-99999999999999.99")),
    (CENTS, Decimal("0.01"), t.NUMERIC, Decimal("0.0100000000")),
    (logical("bytes", "decimal", precision=6, scale=3), Decimal("1.005"), NUM, Decimal("1.01")),
    (FIXED, Decimal("-1.500"), SqlType("numeric", 9, 3), Decimal("-1.500")),
    (logical("int", "date"), date(2024, 2, 29), t.DATE, date(2024, 2, 29)),
    (logical("int", "time-millis"), time(10, 20, 30, 5000), t.TIME, time(10, 20, 30, 5000)),
    (logical("long", "time-micros"), time(10, 20, 30, 5), t.TIME, time(10, 20, 30, 5)),
    (logical("long", "timestamp-millis"), MOMENT, t.TIMESTAMPTZ, MOMENT),
    (logical("long", "timestamp-micros"), MOMENT, t.TIMESTAMPTZ, MOMENT),
    (logical("long", "timestamp-micros"), MOMENT, t.TIMESTAMP, MOMENT.replace(tzinfo=None)),
    (logical("long", "timestamp-nanos"), MICROS * 1000 + 7, t.TIMESTAMPTZ, MOMENT),
    (logical("long", "local-timestamp-millis"), MOMENT.replace(tzinfo=None), t.TIMESTAMP, MOMENT.replace(tzinfo=None)),
    (logical("long", "local-timestamp-micros"), MOMENT.replace(tzinfo=None), t.TIMESTAMP, MOMENT.replace(tzinfo=None)),
    (logical("string", "uuid"), UUID(A_UUID), t.VARCHAR, A_UUID),
    (UUID_FIXED, UUID(A_UUID).bytes, t.VARCHAR, A_UUID),
    ({"type": "long", "connect.name": CONNECT + "Timestamp"}, MICROS // 1000, t.TIMESTAMPTZ, MOMENT),
    ({"type": "int", "connect.name": CONNECT + "Date"}, 19782, t.DATE, date(2024, 2, 29)),
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, MICROS, t.TIMESTAMP, NAIVE),
    ({"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}, TEXT, t.TIMESTAMPTZ, MOMENT),
    ({"type": "string", "connect.name": "io.debezium.time.Interval"}, "P1Y-2D", t.INTERVAL, (12, -2, 0)),
    ({"type": "long", "connect.name": "io.debezium.time.MicroDuration"}, 1, t.INTERVAL, (0, 0, 1000)),
    ({"type": "long", "connect.name": "io.debezium.time.MicroDuration"}, 1, t.BIGINT, 1),
    ({"type": "int"}, 1, t.BOOLEAN, True),
    (INNER, {"x": None, "y": "b"}, STRUCT, {"x": None, "y": "b"}),
    (["null", INNER], None, STRUCT, None),
    (["null", INNER], {"x": 1, "y": "b"}, t.JSONB, '{"x":1,"y":"b"}'),
    ({"type": "array", "items": "long"}, [1, 2], SqlType("array", element=t.BIGINT), [1, 2]),
    ({"type": "array", "items": "long"}, [], SqlType("array", element=t.BIGINT), []),
    ({"type": "array", "items": ["null", INNER]}, [{"x": 1, "y": ""}, None], STRUCTS, [{"x": 1, "y": ""}, None]),
    ({"type": "map", "values": "long"}, {"a": 1}, t.JSONB, '{"a":1}'),
    ({"type": "map", "values": "long"}, {"a": 1}, PAIRS, [{"key": "a", "value": 1}]),
    (["null", "long", "string"], "a", t.JSONB, '"a"'),
    (["null", "long", "string"], 7, t.JSONB, "7"),
    (["null", "long", "string"], None, t.JSONB, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "declared", "expected"), CASES)
@pytest.mark.parametrize("slow", [False, True])
def test_values(
    kind: Any, value: Any, declared: SqlType, expected: Any, slow: bool, registry: FakeRegistry, monkeypatch: Any
) -> None:
    if slow:
        monkeypatch.setattr(avropayloads, "_by_block", lambda *_: None)
    schema = record(("before", "string"), ("c", kind), ("after", "int"))
    values = [{"before": "x", "c": value, "after": i} for i in range(3)]
    id_ = registry.add(schema)
    found = decode(
        messages([framed(id_, schema, v) for v in values]), columns(after=t.INTEGER, c=declared), form(registry)
    )
    assert (rows(found), reasons(found)) == ([(i, expected) for i in range(3)], {})


@pytest.mark.parametrize(
    ("kind", "value", "declared"),
    [
        ("long", 2**31, t.INTEGER),
        (logical("bytes", "decimal", precision=16, scale=2), Decimal("1000.00"), SqlType("numeric", 4, 2)),
        (logical("long", "time-micros"), 86_400_000_000, t.TIME),
    ],
)
def test_values_that_do_not_fit(kind: Any, value: Any, declared: SqlType, registry: FakeRegistry) -> None:
    schema = record(("c", kind))
    wire = framed(registry.add(schema), record(("c", kind if isinstance(value, Decimal) else "long")), {"c": value})
    found = decode(messages([wire]), columns(c=declared), form(registry))
    assert reasons(found) == {0: f'value: column "c" is not {declared.sql}'}
    assert rows(decode(messages([wire]), columns(c=declared), form(registry, bad_field="null"))) == [(None,)]


def test_fields_that_the_writer_does_not_have_are_defaults(
    registry: FakeRegistry,
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    state = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
    old = record(("id", "int"))
    new = record(
        ("id", "int"),
        {"name": "item", "type": "string", "default": "none"},
        {"name": "n", "type": ["int", "null"], "default": 7},
        {"name": "maybe", "type": ["null", "int"], "default": None},
        {"name": "price", "type": price, "default": "\u0001\u002c"},
        {"name": "state", "type": state, "default": "PAID"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["a"]},
        {"name": "at", "type": logical("long", "timestamp-millis"), "default": 1500},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
    )
    number = registry.add(old, "AVRO", "orders-value")
    registry.add(new, "AVRO", "orders-value")
    plain = form(registry)
    taken = MessageFormat(
        encoding="avro", options={**plain.options, **taken_schema(plain, registered_schema(plain, "orders"))}
    )
    fields = schema_columns(taken, registered_schema(taken, "orders"))
    found = decode(messages([framed(number, old, {"id": 1})]), fields, taken)
    assert rows(found) == [
        (1, "none", 7, None, Decimal("3.00"), "PAID", ["a"], datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), b"\xff")
    ]
    # Columns that are declared have no schema of their own.
    assert rows(decode(messages([framed(number, old, {"id": 1})]), fields, plain)) == [(1, *[None] * 8)]


def test_a_default_that_is_no_value_of_its_column(registry: FakeRegistry) -> None:
    schema = record({"name": "n", "type": "string", "default": "x"})
    wrong = MessageFormat(encoding="avro", options={**form(registry).options, "taken.schema": json.dumps(schema)})
    with pytest.raises(Error, match='the default of field "n" can\'t be a value of column "n"'):
        decode(messages([]), columns(n=t.INTEGER), wrong)


def test_the_schema_of_the_writer_is_resolved_by_names_and_aliases(registry: FakeRegistry) -> None:
    old = record(("id", "int"), ("gone", "string"))
    new = record(("extra", "double"), ("ID", "long"), {"name": "renamed", "aliases": ["name"], "type": "string"})
    first, second = registry.add(old), registry.add(new)
    batch = messages(
        [
            framed(first, old, {"id": 1, "gone": "x"}),
            framed(second, new, {"extra": 1.5, "ID": 2, "renamed": "b"}),
            framed(first, old, {"id": 3, "gone": "y"}),
        ]
    )
    found = decode(batch, columns(id=t.BIGINT, name=t.VARCHAR), form(registry))
    assert rows(found) == [(1, None), (2, "b"), (3, None)]


def test_a_named_type_can_be_used_again(registry: FakeRegistry) -> None:
    schema = record(("a", INNER), ("b", ["null", "inner"]))
    wire = framed(registry.add(schema), schema, {"a": {"x": 1, "y": "p"}, "b": {"x": 2, "y": "q"}})
    found = decode(messages([wire]), columns(b=STRUCT, a=STRUCT), form(registry))
    assert rows(found) == [({"x": 2, "y": "q"}, {"x": 1, "y": "p"})]


def test_a_schema_may_refer_to_others(registry: FakeRegistry) -> None:
    registry.add(INNER, subject="inner")
    reference = {"name": "inner", "subject": "inner", "version": 1}
    id_ = registry.add(record(("a", "inner")), references=[reference])
    wire = framed(id_, record(("a", INNER)), {"a": {"x": 1, "y": "p"}})
    assert rows(decode(messages([wire]), columns(a=STRUCT), form(registry))) == [({"x": 1, "y": "p"},)]


def test_garbage_sets_aside_its_message_alone(registry: FakeRegistry) -> None:
    schema = record(("a", "long"), ("b", ["null", "string"]))
    id_ = registry.add(schema)
    good = [framed(id_, schema, {"a": i, "b": "x" * i}) for i in range(5)]
    bad = [
        b"",
        b"\x01" + good[1][1:],
        good[1][:4],
        good[3][:-1],
        good[3] + b"\x00",
        good[1][:5] + b"\x02\x04",
        good[1][:5] + b"\x82\x80\x00\x00",  # a number that is longer than it needs to be
        b"\x00\x00\x00\x03\xe7" + good[1][5:],
        good[1][:5] + b"\x02\x02\x02\xff",
    ]
    batch = messages([*good[:3], *bad, *good[3:], None])
    found = decode(batch, columns(a=t.BIGINT, b=t.VARCHAR), form(registry))
    expected = [(i, "x" * i) for i in range(3)], [(i, "x" * i) for i in range(3, 5)]
    assert rows(found) == [*expected[0], (1, None), *expected[1], (None, None)]
    assert sorted(reasons(found)) == [3, 4, 5, 6, 7, 8, 10, 11]
    assert "no schema with the id 999" in reasons(found)[10]


@pytest.mark.parametrize("order", [["null", "long"], ["long", "null"]])
@pytest.mark.parametrize("inside", ["field", "array", "record"])
def test_a_type_that_a_union_does_not_have(order: Any, inside: str, registry: FakeRegistry) -> None:
    kinds = {"field": order, "array": {"type": "array", "items": order}, "record": record(("x", order), name="in")}
    schema = record(("a", "int"), ("c", kinds[inside]))
    plain = {"field": 5, "array": [5], "record": {"x": 5}}[inside]
    good = framed(registry.add(schema), schema, {"a": 1, "c": plain})
    place = len(good) - (2 if inside != "array" else 3)
    for wrong in (4, 44, 2 - good[place]):
        bad = good[:place] + bytes([wrong]) + good[place + 1 :]
        found = decode(messages([good, bad, good]), columns(a=t.INTEGER, c=t.JSONB), form(registry))
        assert (found.places.tolist(), list(reasons(found))) == ([0, 2], [1])


def test_two_bodies_of_wrong_lengths_do_not_pass_as_two_others(registry: FakeRegistry) -> None:
    schema = record(("a", "string"))
    id_ = registry.add(schema)
    whole = body(schema, {"a": "abcd"}) + body(schema, {"a": "efgh"})
    head = b"\x00" + id_.to_bytes(4, "big")
    found = decode(messages([head + whole[:3], head + whole[3:]]), columns(a=t.VARCHAR), form(registry))
    assert (rows(found), list(reasons(found))) == ([], [0, 1])


def test_a_schema_that_does_not_fit_the_columns_is_an_error_that_names_both(registry: FakeRegistry) -> None:
    schema = record(("a", "string"))
    wire = framed(registry.add(schema), schema, {"a": "x"})
    with pytest.raises(Error, match='column "a" is bigint, in schema 1 of the registry it is string'):
        decode(messages([wire]), columns(a=t.BIGINT), form(registry))


def test_a_registry_that_is_down_is_no_fault_of_messages(registry: FakeRegistry) -> None:
    schema = record(("a", "long"))
    wire = framed(registry.add(schema), schema, {"a": 1})
    registry.status = 503
    with pytest.raises(OSError, match="answers with the status 503"):
        decode(messages([wire]), columns(a=t.BIGINT), form(registry))
    registry.status = 0
    assert rows(decode(messages([wire]), columns(a=t.BIGINT), form(registry))) == [(1,)]
    registry.asked.clear()
    registry.status = 503
    assert rows(decode(messages([wire]), columns(a=t.BIGINT), form(registry))) == [(1,)]
    assert registry.asked == [], "the schema of an id is kept"


def test_nobody_listens_where_the_registry_should_be() -> None:
    down = MessageFormat(encoding="avro", options={"schema.registry": "http://127.0.0.1:9"})
    with pytest.raises(OSError, match="can't be reached"):
        decode(messages([b"\x00\x00\x00\x00\x01x"]), columns(a=t.BIGINT), down)


def test_wrong_credentials_are_not_shown(registry: FakeRegistry) -> None:
    registry.credentials = "me:right"
    schema = record(("a", "long"))
    wire = framed(registry.add(schema), schema, {"a": 1})
    options = {"schema.registry": registry.address, "schema.registry.username": "me"}
    wrong = MessageFormat(encoding="avro", options=options | {"schema.registry.password": "wrong-secret"})
    with pytest.raises(Error, match="refuses the credentials") as refused:
        decode(messages([wire]), columns(a=t.BIGINT), wrong)
    assert "wrong-secret" not in repr(refused.value.to_json())
    right = MessageFormat(encoding="avro", options=options | {"schema.registry.password": "right"})
    assert rows(decode(messages([wire]), columns(a=t.BIGINT), right)) == [(1,)]


@pytest.mark.parametrize("address", ["ftp://h", "http://", " , ", "http://me:secret@h"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(Error, match=r"schema\.registry") as refused:
        decode(messages([]), columns(a=t.BIGINT), MessageFormat(encoding="avro", options={"schema.registry": address}))
    assert "secret" not in repr(refused.value.to_json())


def test_a_schema_file_in_place_of_a_registry(tmp_path: Path) -> None:
    schema = record(("a", "long"))
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(schema))
    for options in ({"schema.location": f"file://{path}"}, {"schema": json.dumps(schema)}):
        found = decode(
            messages([body(schema, {"a": 5}), b"\xff"]),
            columns(a=t.BIGINT),
            MessageFormat(encoding="avro", options=options),
        )
        assert (rows(found), list(reasons(found))) == ([(5,)], [1])


def test_no_schema_at_all() -> None:
    with pytest.raises(Error, match="need a schema"):
        decode(messages([]), columns(a=t.BIGINT), MessageFormat(encoding="avro"))


def test_upsert_with_keys_in_avro(registry: FakeRegistry) -> None:
    key, value = record(("id", "int")), record(("v", "string"))
    key_id, value_id = registry.add(key), registry.add(value)
    batch = messages(
        [framed(value_id, value, {"v": "a"}), None, framed(value_id, value, {"v": "b"})],
        [framed(key_id, key, {"id": 1}), framed(key_id, key, {"id": 1}), None],
    )
    found = decode(
        batch, columns(id=t.INTEGER, v=t.VARCHAR), form(registry, rows="upsert", key_encoding="avro"), ["id"]
    )
    assert rows(found) == [(1, 1, "a"), (-1, 1, None)]
    assert reasons(found) == {2: "key: the message has none"}


def test_a_key_of_a_plain_type(registry: FakeRegistry) -> None:
    schema = record(("v", "long"))
    key_id, value_id = registry.add("string"), registry.add(schema)
    batch = messages([framed(value_id, schema, {"v": 1})], [framed(key_id, "string", "k1")])
    found = decode(batch, columns(k=t.VARCHAR, v=t.BIGINT), form(registry, key_encoding="avro"), (), {"k": "key"})
    assert rows(found) == [("k1", 1)]


def test_debezium_in_avro(registry: FakeRegistry) -> None:
    row = record(
        ("id", "int"), ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}), name="row"
    )
    envelope = record(("before", ["null", row]), ("after", ["null", "row"]), ("op", "string"), name="Envelope")
    id_ = registry.add(envelope)

    def change(op: str, before: Any, after: Any) -> bytes:
        return framed(id_, envelope, {"op": op, "before": before, "after": after})

    one, two = {"id": 1, "price": Decimal("1.50")}, {"id": 2, "price": Decimal("-2.00")}
    key = record(("id", "int"), name="Key")
    key_id = registry.add(key)
    batch = messages(
        [change("c", None, one), change("u", one, two), change("d", two, None), change("d", None, None), None],
        [None, None, None, framed(key_id, key, {"id": 7}), None],
    )
    found = decode(batch, columns(id=t.INTEGER, price=NUM), form(registry, rows="debezium"), ["id"])
    expected = [(1, 1, Decimal("1.50")), (-1, 1, None), (1, 2, Decimal("-2.00")), (-1, 2, None), (-1, 7, None)]
    assert (rows(found), found.places.tolist(), reasons(found)) == (expected, [0, 1, 1, 2, 3], {})


def test_what_debezium_did_not_send_in_avro_is_kept(registry: FakeRegistry) -> None:
    row = record(
        ("id", "int"),
        ("v", ["null", "string"]),
        ("raw", "bytes"),
        ("doc", {"type": "string", "connect.name": "io.debezium.data.Json"}),
        ("words", {"type": "array", "items": "string"}),
        name="row",
    )
    envelope = record(("before", ["null", row]), ("after", ["null", "row"]), ("op", "string"), name="Envelope")
    id_ = registry.add(envelope)
    unsent = "__debezium_unavailable_value"
    whole = {"id": 1, "v": "a", "raw": b"r", "doc": "{}", "words": ["x", unsent]}
    lacking = {"id": 1, "v": unsent, "raw": unsent.encode(), "doc": unsent, "words": [unsent]}
    batch = [
        {"op": "c", "before": None, "after": whole},
        {"op": "u", "before": whole, "after": lacking},
        {"op": "t", "before": None, "after": None},
        {"op": "u", "before": whole, "after": {**whole, "raw": unsent.encode()}},
    ]
    fields = columns(
        id=t.INTEGER, v=t.VARCHAR, raw=t.BYTEA, doc=t.JSONB, words=SqlType("array", element=t.VARCHAR), n=t.INTEGER
    )
    found = decode(
        messages([framed(id_, envelope, change) for change in batch]), fields, form(registry, rows="debezium"), ["id"]
    )
    assert reasons(found) == {}
    assert found.kept is not None
    assert found.kept.to_pylist() == [None, ["v", "raw", "doc", "words"], [], ["raw"]]
    assert rows(found) == [
        (1, 1, "a", b"r", "{}", ["x", unsent], None),
        (1, 1, None, None, None, None, None),
        (-1, None, None, None, None, None, None),
        (1, 1, "a", None, "{}", ["x", unsent], None),
    ]
