"""Debezium's messages in JSON."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

FORM = MessageFormat(rows="debezium")
COLUMNS = columns(id=t.INTEGER, v=t.VARCHAR)
UNSENT = "__debezium_unavailable_value"
JSON_NAME = "io.debezium.data.Json"
UNSENT_BYTES = base64.b64encode(UNSENT.encode()).decode()


NO_SCHEMA = object()


def change(op: str, before: Any = None, after: Any = None, schema: Any = None) -> str:
    """An envelope: bare, or within `payload` beside a schema, or without one (NO_SCHEMA)."""
    payload = {"before": before, "after": after, "op": op, "ts_ms": 1}
    if schema is None:
        return json.dumps(payload)
    return json.dumps({"payload": payload} if schema is NO_SCHEMA else {"schema": schema, "payload": payload})


@pytest.mark.parametrize("schema", [None, {"type": "struct", "fields": []}, NO_SCHEMA])
def test_changes(schema: Any) -> None:
    one, two = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    batch = messages(
        [
            change("r", None, one, schema),
            change("c", None, {"id": 2, "v": "x"}, schema),
            change("u", one, two, schema),
            change("u", None, {"id": 1, "v": "c"}, schema),
            change("d", two, None, schema),
            None,
            "",
            change("m", None, None, schema),
            change("u", {"id": 2, "v": "x"}, {"id": 3, "v": "y"}, schema),
        ]
    )
    found = decode(batch, COLUMNS, FORM, ["id"])
    expected = [(1, 1, "a"), (1, 2, "x"), (1, 1, "b"), (1, 1, "c"), (-1, 1, None), (-1, 2, None), (1, 3, "y")]
    assert (rows(found), found.places.tolist()) == (expected, [0, 1, 2, 3, 4, 8, 8])
    assert reasons(found) == {}


def test_what_cannot_be_followed() -> None:
    batch = messages(
        [
            change("u", {"id": 1}, {"id": 2, "v": UNSENT}),
            change("x", None, {"id": 1}),
            change("c", {"id": 1}, None),
            change("u", None, {"id": "?"}),
            '{"id": 1}',
            "[]",
            change("u", None, {"id": UNSENT, "v": ""}),
            change("d", None, None),
        ]
    )
    found = decode(batch, COLUMNS, FORM, ["id"])
    assert rows(found) == []
    assert reasons(found) == {
        0: 'debezium: the value of column "v" was not sent, but the primary key changed',
        1: 'debezium: there is no change "x"',
        2: 'debezium: a change "c" has no "after"',
        3: 'value: column "id" is not integer',
        4: 'debezium: no "op" says what the change is',
        5: "json: not a JSON object",
        6: 'debezium: the value of column "id", of the primary key, was not sent',
        7: "key: the message has none",
    }


def test_values_that_were_not_sent_are_kept() -> None:
    fields = (
        *columns(id=t.INTEGER, v=t.VARCHAR, raw=t.BYTEA, doc=t.JSONB, n=t.INTEGER),
        Field("words", SqlType("array", element=t.VARCHAR), nullable=False),
    )
    whole = {"id": 1, "v": "a", "raw": "AA==", "doc": "{}", "n": 2, "words": ["x"]}
    meant = {"field": "after", "fields": [{"field": "raw", "type": "bytes"}, {"field": "doc", "name": JSON_NAME}]}
    batch = messages(
        [
            change("c", None, whole),
            change("u", None, whole | {"v": UNSENT, "raw": UNSENT_BYTES}),
            change("u", None, {"V": UNSENT, **{k: v for k, v in whole.items() if k != "v"}}),
            change("u", whole, whole | {"doc": UNSENT, "raw": UNSENT_BYTES, "n": None}, {"fields": [meant]}),
            change("u", whole, whole | {"words": [UNSENT], "n": UNSENT}),
            change("d", whole | {"v": UNSENT}),
            change("u", None, whole | {"v": f"the text {UNSENT} in a text"}),
        ]
    )
    found = decode(batch, fields, FORM, ["id"])
    assert reasons(found) == {}
    assert found.kept is not None
    assert found.kept.to_pylist() == [None, ["v", "raw"], ["v"], ["raw", "doc"], ["n", "words"], None, None]
    after = (1, 1, "a", b"\0", "{}", 2, ["x"])
    assert rows(found) == [
        after,
        (1, 1, None, None, "{}", 2, ["x"]),
        (1, 1, None, b"\0", "{}", 2, ["x"]),
        (1, 1, "a", None, None, None, ["x"]),
        (1, 1, "a", b"\0", "{}", None, None),
        (-1, 1, None, None, None, None, None),
        (1, 1, f"the text {UNSENT} in a text", b"\0", "{}", 2, ["x"]),
    ]


def test_truncate_is_a_row_that_stands_for_all() -> None:
    batch = messages([change("c", None, {"id": 1, "v": "a"}), change("t"), change("u", None, {"id": 2, "v": UNSENT})])
    found = decode(batch, COLUMNS, FORM, ["id"])
    assert reasons(found) == {}
    assert found.kept is not None
    assert (rows(found), found.kept.to_pylist()) == (
        [(1, 1, "a"), (-1, None, None), (1, 2, None)],
        [None, [], ["v"]],
    )


@pytest.mark.parametrize(
    "key",
    [
        '{"id": 7}',
        '{"schema": {"type": "struct"}, "payload": {"id": 7}}',
        '{"payload": {"id": 7}}',
        '{"payload": 7}',
        "7",
    ],
)
def test_the_key_says_what_is_gone_if_nothing_else_does(key: str) -> None:
    found = decode(messages([change("d")], [key]), COLUMNS, FORM, ["id"])
    assert rows(found) == [(-1, 7, None)]
    ignored = MessageFormat(rows="debezium", options={"ignore_key": "true"})
    assert reasons(decode(messages([change("d")], [key]), COLUMNS, ignored, ["id"])) == {
        0: 'debezium: a change "d" has no "before", and no key is read'
    }


def test_payload_is_a_column_of_keys_and_values_that_have_it() -> None:
    fields = columns(payload=t.INTEGER)
    batch = [
        change("d"),
        change("d", schema=NO_SCHEMA),
        change("c", None, {"payload": 3}),
        change("c", None, {"payload": 4}, NO_SCHEMA),
    ]
    keys = ['{"payload": 1}', '{"schema": {}, "payload": {"payload": 2}}', None, None]
    found = decode(messages(batch, keys), fields, FORM, ["payload"])
    assert (rows(found), reasons(found)) == ([(-1, 1), (-1, 2), (1, 3), (1, 4)], {})


def test_what_else_of_a_row_is_gone_is_no_matter() -> None:
    fields = columns(id=t.INTEGER, n=t.INTEGER)
    found = decode(messages([change("d", {"id": 1, "n": "?"})]), fields, FORM, ["id"])
    assert (rows(found), reasons(found)) == ([(-1, 1, None)], {})


def binary(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def test_the_schema_of_a_message_says_what_values_mean() -> None:
    connect = "org.apache.kafka.connect.data."
    parts = [
        {"field": "id", "type": "int32"},
        {"field": "price", "type": "bytes", "name": connect + "Decimal", "parameters": {"scale": "2"}},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "ms", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "us", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "any", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
        {"field": "raw", "type": "bytes"},
        {"field": "doc", "type": "string", "name": "io.debezium.data.Json"},
    ]
    schema = {"type": "struct", "fields": [{"field": "before", "fields": parts}, {"field": "after", "fields": parts}]}
    after = {
        "id": 1,
        "price": binary(-9999999999999999),
        "day": -1,
        "ms": 1000,
        "us": 1,
        "any": {"scale": 3, "value": binary(1500)},
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "doc": '{"b": 1}',
    }
    fields = columns(
        id=t.INTEGER,
        price=SqlType("numeric", 16, 2),
        day=t.DATE,
        ms=t.TIMESTAMP,
        us=t.TIMESTAMPTZ,
        any=SqlType("numeric", 10, 2),
        raw=t.BYTEA,
        doc=t.JSONB,
    )
    other = {"id": 2, "price": "1.25", "ms": 1_712_800_800_000, "us": "2024-01-01T00:00:00Z"}
    found = decode(messages([change("c", None, after, schema), change("c", None, other)]), fields, FORM, ["id"])
    assert reasons(found) == {}
    assert rows(found) == [
        (
            1,
            1,
            Decimal("-99999999999999.99"),
            date(1969, 12, 31),
            datetime(1970, 1, 1, 0, 0, 1),
            datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            Decimal("1.50"),
            b"\x00\xff",
            '{"b":1}',
        ),
        (1, 2, Decimal("1.25"), None, datetime(2024, 4, 11, 2), datetime(2024, 1, 1, tzinfo=UTC), None, None, None),
    ]


CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}
BAD = object()


def decimal_of(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": str(scale)}}


def named(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name}


def array_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


NUMERIC = SqlType("numeric", 38, 10)
MICROS = named("int64", TIME + "MicroTimestamp")
MEANINGS: list[tuple[dict[str, Any], SqlType, Any, Any]] = [
    (named("int64", TIME + "MicroDuration"), t.INTERVAL, 3_723_000_001, (0, 0, 3_723_000_001_000)),
    (named("int64", TIME + "MicroDuration"), t.INTERVAL, -1, (0, 0, -1000)),
    (named("int64", TIME + "MicroDuration"), t.INTERVAL, 2**62, BAD),
    (named("int64", TIME + "MicroDuration"), t.BIGINT, 2**62, 2**62),
    (named("int64", TIME + "NanoDuration"), t.INTERVAL, -1_500_000_000, (0, 0, -1_500_000_000)),
    (named("int64", TIME + "NanoDuration"), t.INTERVAL, 1_500, BAD),
    (named("string", TIME + "Interval"), t.INTERVAL, "P1Y2M3DT4H5M6.7S", (14, 3, 14_706_700_000_000)),
    (named("string", TIME + "Interval"), t.INTERVAL, "P-1Y-1M-2DT0H0M-1.5S", (-13, -2, -1_500_000_000)),
    (named("string", TIME + "Interval"), t.INTERVAL, "P0Y5M-3DT1H0M0.000001S", (5, -3, 3_600_000_001_000)),
    (named("string", TIME + "Interval"), t.INTERVAL, "P1W", (0, 7, 0)),
    (named("string", TIME + "Interval"), t.INTERVAL, "PT0.0000001S", BAD),
    (named("string", TIME + "Interval"), t.INTERVAL, "P", BAD),
    ({"type": "string"}, t.INTERVAL, "1 year -2 days 00:00:01.5", (12, -2, 1_500_000_000)),
    (MICROS, t.TIMESTAMP, 1, datetime(1970, 1, 1, 0, 0, 0, 1)),
    (MICROS, t.DATE, 1, BAD),
    (named("int32", TIME + "Date"), t.TIMESTAMP, 1, BAD),
    (array_of(MICROS), SqlType("array", element=t.TIMESTAMP), [1, None], [datetime(1970, 1, 1, 0, 0, 0, 1), None]),
    (array_of(MICROS), SqlType("array", element=t.TIMESTAMP), [2**62], BAD),
    (array_of(decimal_of(2)), SqlType("array", element=NUMERIC), [binary(-125), None], [Decimal("-1.25"), None]),
    (array_of(decimal_of(2)), SqlType("array", element=t.VARCHAR), [binary(-125)], ["-1.25"]),
    (array_of(decimal_of(2)), SqlType("array", element=NUMERIC), ["?"], BAD),
    (array_of(VARIABLE), SqlType("array", element=NUMERIC), [{"scale": 1, "value": binary(5)}], [Decimal("0.5")]),
    (decimal_of(2), t.VARCHAR, binary(-1), "-0.01"),
    (decimal_of(10), t.VARCHAR, binary(1), "0.0000000001"),
    (decimal_of(2), t.DOUBLE, binary(-12345), -123.45),
    (decimal_of(30), t.DOUBLE, binary(10**29), 0.1),
    (decimal_of(0), t.BIGINT, binary(2**63 - 1), 2**63 - 1),
    (decimal_of(0), t.BIGINT, binary(2**63), BAD),
    (decimal_of(1), t.INTEGER, binary(20), 2),
    (decimal_of(1), t.INTEGER, binary(21), BAD),
    (decimal_of(2), t.JSONB, binary(150), "1.50"),
    (decimal_of(-3), NUMERIC, binary(-12), Decimal(-12000)),
    (decimal_of(-3), t.BIGINT, binary(0), 0),
    (decimal_of(-30), t.VARCHAR, binary(10**9), BAD),
    (decimal_of(2), t.BYTEA, binary(1), b"\x01"),
    (decimal_of(2), t.DATE, binary(1), BAD),
    (VARIABLE, t.VARCHAR, {"scale": 12, "value": binary(1)}, "0.000000000001"),
    (VARIABLE, t.DOUBLE, {"scale": -1, "value": binary(5)}, 50.0),
    (VARIABLE, NUMERIC, {"scale": 2, "value": None}, BAD),
    *(({"type": "int16"}, t.BOOLEAN, n, n == 1) for n in (0, 1)),
    ({"type": "int16"}, t.BOOLEAN, 2, BAD),
    ({"type": "boolean"}, t.BOOLEAN, True, True),
    (array_of({"type": "int16"}), SqlType("array", element=t.BOOLEAN), [1, 0, None], [True, False, None]),
    (
        {"type": "struct", "fields": [{"field": "x", **decimal_of(1)}, {"field": "y", "type": "string"}]},
        SqlType("struct", fields=(("x", NUMERIC), ("y", t.VARCHAR))),
        {"x": binary(-5), "y": "a"},
        {"x": Decimal("-0.5"), "y": "a"},
    ),
    (
        {"type": "struct", "fields": [{"field": "x", **MICROS}, {"field": "y", "type": "string"}]},
        SqlType("struct", fields=(("x", t.TIMESTAMP), ("y", t.DATE))),
        {"x": 1_709_164_800_000_000, "y": "2024-02-29"},
        {"x": datetime(2024, 2, 29), "y": date(2024, 2, 29)},
    ),
]


@pytest.mark.parametrize(("schema", "kind", "written", "expected"), MEANINGS)
def test_values_arrive_as_their_schema_says_or_not_at_all(
    schema: dict[str, Any], kind: SqlType, written: Any, expected: Any
) -> None:
    parts = [{"field": "id", "type": "int32"}, {"field": "v", **schema}]
    whole = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": parts}]}
    batch = messages([change("c", None, {"id": i, "v": v}, whole) for i, v in enumerate([written, None])])
    found = decode(batch, columns(id=t.INTEGER, v=kind), FORM, ["id"])
    assert list(reasons(found)) == ([0] if expected is BAD else [])
    wanted = [] if expected is BAD else [(1, 0, expected)]
    assert [(*row[:2], tuple(row[2]) if kind == t.INTERVAL and row[2] else row[2]) for row in rows(found)] == [
        *wanted,
        (1, 1, None),
    ]


MONGO = MessageFormat(rows="debezium_mongo")


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (t.VARCHAR, {"$oid": "5bc9"}, "5bc9"),
        (t.VARCHAR, "a", "a"),
        (t.BIGINT, {"$numberLong": "12345678901"}, 12345678901),
        (t.INTEGER, 5, 5),
        (t.JSONB, {"$oid": "5bc9"}, '{"$oid":"5bc9"}'),
    ],
)
def test_documents_of_mongodb(kind: SqlType, written: Any, expected: Any) -> None:
    document = json.dumps({"_id": written, "a": 1.10, "b": [None]})
    key = {"id": json.dumps(written)}
    batch = messages(
        [change("c", None, document), change("d"), change("u", None, document)], [None, json.dumps(key), None]
    )
    found = decode(batch, columns(_id=kind, payload=t.JSONB), MONGO, ["_id"])
    wrapped = messages(
        [change(op, None, None if op == "d" else document, NO_SCHEMA) for op in "cdu"],
        [None, json.dumps({"payload": key}), None],
    )
    assert rows(decode(wrapped, columns(_id=kind, payload=t.JSONB), MONGO, ["_id"])) == rows(found)
    text = document.replace(" ", "")
    assert reasons(found) == {}
    assert rows(found) == [(1, expected, text), (-1, expected, None), (1, expected, text)]


def test_documents_have_two_columns() -> None:
    with pytest.raises(Error, match="_id and payload"):
        decode(messages([]), columns(_id=t.VARCHAR, x=t.JSONB), MONGO, ["_id"])
