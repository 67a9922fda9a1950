"""JSON messages: which values become which, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats import jsonpayloads
from watersmeet.values import types as t
from watersmeet.values.types import SqlType

PLAIN = MessageFormat()
NULLS = MessageFormat(bad_field="null")
STRUCT = SqlType("struct", fields=(("x", t.INTEGER), ("y", t.VARCHAR)))
ARRAY = SqlType("array", element=t.INTEGER)

BAD = object()
VALUES: list[tuple[SqlType, str, Any]] = [
    (t.BIGINT, "7", 7),
    (t.BIGINT, '"7"', 7),
    (t.BIGINT, "null", None),
    (t.BIGINT, "1.5", BAD),
    (t.BIGINT, "true", BAD),
    (t.BIGINT, "9223372036854775807", 9223372036854775807),
    (t.BIGINT, "9223372036854775808", BAD),
    (t.SMALLINT, "32768", BAD),
    (t.BIGINT, "{}", BAD),
    (t.SqlType("numeric", 16, 2), "99999999999999.99", Decimal("99999999999999.99")),
    (t.SqlType("numeric", 16, 2), '"99999999999999.99"', Decimal("99999999999999.99")),
    (t.SqlType("numeric", 16, 2), "1e2", Decimal("100.00")),
    (t.SqlType("numeric", 16, 2), "1.005", Decimal("1.01")),
    (t.SqlType("numeric", 4, 2), "100", BAD),
    (t.NUMERIC, "9" * 38, BAD),
    *((t.NUMERIC, form % "12345678901234567890123456789012345678", BAD) for form in ("%s", '"%s"', "-%s", '"-%s"')),
    (
        t.SqlType("numeric", 38, 0),
        "12345678901234567890123456789012345678",
        Decimal(12345678901234567890123456789012345678),
    ),
    (t.SqlType("numeric", 38, 2), "99999999999999999999999999999999999999", BAD),
    *((t.SqlType("numeric", 38, 30), form % "1e29", BAD) for form in ("%s", '"%s"')),
    (t.SqlType("numeric", 38, 30), "1e35", BAD),
    (t.SqlType("numeric", 38, 30), "1.2E1", Decimal(12)),
    (t.SqlType("numeric", 38, 38), "0.5", Decimal("0.5")),
    (t.NUMERIC, "123456789012345678901234567890", BAD),
    (t.NUMERIC, "9" * 28 + "." + "9" * 10, Decimal("9" * 28 + "." + "9" * 10)),
    (t.DOUBLE, "1.5", 1.5),
    (t.DOUBLE, "1", 1.0),
    (t.DOUBLE, "1e999", BAD),
    (t.BOOLEAN, "true", True),
    (t.BOOLEAN, "false", False),
    (t.BOOLEAN, '"true"', BAD),
    (t.BOOLEAN, "1", BAD),
    (t.VARCHAR, '"a\\u00e9\\n"', "aé\n"),
    (t.VARCHAR, "1.50", "1.50"),
    (t.VARCHAR, "true", "true"),
    (t.VARCHAR, '"null"', "null"),
    (t.VARCHAR, '{"a": [1, 2]}', '{"a":[1,2]}'),
    (t.BYTEA, '"\\\\x00ff"', b"\x00\xff"),
    (t.BYTEA, '"ab"', b"ab"),
    (t.DATE, '"2024-02-29"', date(2024, 2, 29)),
    (t.DATE, "19782", date(2024, 2, 29)),
    (t.DATE, "1.5", BAD),
    (t.DATE, "2932896", date(9999, 12, 31)),
    (t.DATE, "2932897", BAD),
    (t.DATE, "-9223372036854775808", BAD),
    (t.TIME, '"10:20:30.5"', time(10, 20, 30, 500000)),
    (t.TIME, "1000000", time(0, 0, 1)),
    (t.TIME, "86400000000", BAD),
    (t.TIMESTAMP, '"2024-02-29 10:20:30"', datetime(2024, 2, 29, 10, 20, 30)),
    (t.TIMESTAMP, "1712800800123", datetime(2024, 4, 11, 2, 0, 0, 123000)),
    (t.TIMESTAMPTZ, "100", datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC)),
    (t.TIMESTAMPTZ, "1712800800123", datetime(2024, 4, 11, 2, 0, 0, 123000, tzinfo=UTC)),
    (t.TIMESTAMPTZ, "1712800800123456", datetime(2024, 4, 11, 2, 0, 0, 123456, tzinfo=UTC)),
    (t.TIMESTAMPTZ, "1712800800123456789", datetime(2024, 4, 11, 2, 0, 0, 123456, tzinfo=UTC)),
    (t.TIMESTAMPTZ, "-1", BAD),
    (t.TIMESTAMPTZ, "1.5", BAD),
    (t.TIMESTAMPTZ, '"2024-04-11T02:00:00Z"', datetime(2024, 4, 11, 2, tzinfo=UTC)),
    (t.TIMESTAMPTZ, '"2024-04-11 02:00:00+02:00"', datetime(2024, 4, 11, tzinfo=UTC)),
    (t.TIMESTAMPTZ, '"2024-04-11 02:00:00"', BAD),
    (t.TIMESTAMPTZ, '"2024-04-11"', BAD),
    (t.JSONB, '{"b": 1, "a": [1.10, null]}', '{"a":[1.10,null],"b":1}'),
    (t.JSONB, '"text"', '"text"'),
    (STRUCT, '{"x": 1, "Y": "b"}', {"x": 1, "y": "b"}),
    (STRUCT, '"{\\"x\\": 1}"', {"x": 1, "y": None}),
    (STRUCT, '"no object"', BAD),
    (STRUCT, "[1]", BAD),
    (STRUCT, '{"x": 1.5}', BAD),
    (SqlType("struct", fields=(("b", t.BOOLEAN),)), '{"b": "true"}', BAD),
    (ARRAY, "[1, 2, null]", [1, 2, None]),
    (ARRAY, "[]", []),
    (ARRAY, "{}", BAD),
]


@pytest.mark.parametrize(("kind", "written", "expected"), VALUES)
@pytest.mark.parametrize("slow", [False, True])
def test_values(kind: SqlType, written: str, expected: Any, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if slow:
        monkeypatch.setattr(jsonpayloads, "_by_arrow", lambda *_: None)
    batch = messages([f'{{"c": {written}}}', '{"c": null}'])
    strict = decode(batch, columns(c=kind), PLAIN)
    lax = decode(batch, columns(c=kind), NULLS)
    if expected is BAD:
        assert reasons(strict) == {0: f'value: column "c" is not {kind.sql}'}
        assert (rows(strict), strict.places.tolist()) == ([(None,)], [1])
        assert (rows(lax), reasons(lax)) == ([(None,), (None,)], {})
    else:
        assert (rows(strict), reasons(strict)) == ([(expected,), (None,)], {})
        assert rows(lax) == rows(strict)


@pytest.mark.parametrize(
    ("mode", "number", "naive"),
    [
        ("guess_number_unit", datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC), None),
        ("milli", datetime(1970, 1, 1, 0, 0, 0, 100000, tzinfo=UTC), None),
        ("micro", datetime(1970, 1, 1, 0, 0, 0, 100, tzinfo=UTC), None),
        ("utc_string", None, None),
        ("utc_without_suffix", None, datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_modes_of_timestamptz(mode: str, number: datetime | None, naive: datetime | None) -> None:
    form = MessageFormat(options={"timestamptz.handling.mode": mode}, bad_field="null")
    found = decode(messages(['{"c": 100}', '{"c": "2024-01-01 00:00:00"}']), columns(c=t.TIMESTAMPTZ), form)
    assert rows(found) == [(number,), (naive,)]


def test_an_unknown_mode_of_timestamptz_is_refused() -> None:
    with pytest.raises(Error, match="there is no mode"):
        decode(messages([]), columns(c=t.TIMESTAMPTZ), MessageFormat(options={"timestamptz.handling.mode": "x"}))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"Name": "a"}', "a"),
        ('{"NAME": "a", "name": "b"}', "b"),
        ('{"name": "b", "NAME": "a"}', "b"),
        ('{"NAME": "a", "Name": "b"}', "b"),
        ('{"name": "a", "name": "b"}', "b"),
        ('{"n\\u0061me": "a"}', "a"),
        ('{"N\\u0061ME": "a"}', "a"),
        ('{"x": {"name": "a"}}', None),
        ('{"x": "\\"NAME\\""}', None),
        ('{"name": null, "NAME": "a"}', None),
    ],
)
def test_keys_match_without_case_and_the_last_of_equal_ones_counts(written: str, expected: str | None) -> None:
    found = decode(messages(['{"name": "z"}', written, '{"NAME": "y"}']), columns(name=t.VARCHAR), PLAIN)
    assert rows(found) == [("z",), (expected,), ("y",)]


@pytest.mark.parametrize("odd", ['{"name": "b", "Name": "a"}', '{"NAME": "b"}', '{"n\\u0061me": "b", "Name": "a"}'])
def test_one_message_spells_its_keys_unlike_the_others(odd: str) -> None:
    found = decode(messages(['{"Name": "z"}', odd, '{"Name": null}']), columns(name=t.VARCHAR), PLAIN)
    assert rows(found) == [("z",), ("b",), (None,)]


def test_a_message_without_a_value_is_a_row_of_nulls() -> None:
    found = decode(messages([None, '{"a": 1}', None]), columns(a=t.BIGINT), PLAIN)
    assert (rows(found), found.places.tolist()) == ([(None,), (1,), (None,)], [0, 1, 2])
    assert found.diff is None


@pytest.mark.parametrize(
    "garbage",
    ["", " ", "1", '"a"', "null", "{", '{"a": 1,}', '{"a": NaN}', "{}{}", '{"a": 1} x', '{"a": 01}', b"\xff{}", '{"}'],
)
def test_what_is_no_object_is_unreadable(garbage: str | bytes) -> None:
    found = decode(messages(['{"a": 1}', garbage, '{"a": 2}']), columns(a=t.BIGINT), PLAIN)
    assert (rows(found), found.places.tolist()) == ([(1,), (2,)], [0, 2])
    assert list(reasons(found)) == [1]
    assert next(iter(reasons(found).values())).startswith(("json: ", "encoding: "))


def test_two_messages_that_are_objects_only_together_are_unreadable() -> None:
    found = decode(messages(["{}{}", "", '{"a": "}', '{"}']), columns(a=t.VARCHAR), PLAIN)
    assert (rows(found), list(reasons(found))) == ([], [0, 1, 2, 3])


def test_an_array_has_a_row_for_each_object() -> None:
    found = decode(messages(['[{"a": 1}, {"A": 2}]', "[]", '{"a": 3}', '[{"a": 4}, 5]']), columns(a=t.BIGINT), PLAIN)
    assert (rows(found), found.places.tolist()) == ([(1,), (2,), (3,)], [0, 0, 2])
    assert reasons(found) == {3: "json: an element of the array is not an object"}


def test_many_rows_in_a_message() -> None:
    values = ['{"a": 1}\n{"a": 2}\n', '{"a":\n3}{"a": 4},\n{"a": 5}', '{"a": 6}', '{"a": 7}\n{"a"', "", '{"a": 1}\nx']
    found = decode(messages(values), columns(a=t.BIGINT), MessageFormat(many_rows=True))
    assert (rows(found), found.places.tolist()) == ([(1,), (2,), (3,), (4,), (5,), (6,)], [0, 0, 1, 1, 1, 2])
    assert list(reasons(found)) == [3, 4, 5]
    assert list(reasons(decode(messages(values), columns(a=t.BIGINT), PLAIN))) == [0, 1, 3, 4, 5]


def test_a_bad_row_of_several_sets_the_message_aside() -> None:
    found = decode(messages(['{"a": 1}\n{"a": true}', '{"a": 3}']), columns(a=t.BIGINT), MessageFormat(many_rows=True))
    assert (rows(found), list(reasons(found))) == ([(3,)], [0])


def test_defaults_stand_for_fields_that_cannot_be_read() -> None:
    kinds = [t.BIGINT, t.DOUBLE, t.BOOLEAN, t.DATE, t.TIMESTAMPTZ, SqlType("numeric", 4, 1), ARRAY]
    fields = columns(**{f"c{i}": kind for i, kind in enumerate(kinds)})
    bad = ", ".join(f'"c{i}": "?"' for i in range(len(kinds)))
    found = decode(messages([f"{{{bad}}}"]), fields, MessageFormat(bad_field="default"))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows(found) == [(0, 0.0, False, date(1970, 1, 1), epoch, Decimal("0.0"), [])]


def test_a_column_that_cannot_be_null_wants_a_value() -> None:
    fields = (t.Field("a", t.BIGINT, nullable=False),)
    found = decode(messages(['{"a": 1}', "{}", None]), fields, PLAIN)
    assert rows(found) == [(1,)]
    assert reasons(found) == dict.fromkeys([1, 2], 'null: column "a" is NULL')
    assert rows(decode(messages(["{}"]), fields, MessageFormat(bad_field="default"))) == [(0,)]


def test_a_bad_value_of_the_primary_key_is_unreadable_whatever_becomes_of_other_fields() -> None:
    found = decode(
        messages(['{"a": "x", "b": 1}', '{"a": 1, "b": "x"}']), columns(a=t.BIGINT, b=t.BIGINT), NULLS, ["a"]
    )
    assert (rows(found), list(reasons(found))) == ([(1, None)], [0])


def test_a_schema_id_before_the_text_is_skipped() -> None:
    form = MessageFormat(options={"schema.registry": "http://127.0.0.1:1"})
    found = decode(messages([b'\x00\x00\x00\x00\x07{"a": 1}', '{"a": 2}']), columns(a=t.BIGINT), form)
    assert rows(found) == [(1,), (2,)]


def test_deep_nesting_is_read_where_nobody_wants_it() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    found = decode(messages([f'{{"x": {deep}, "a": 1}}']), columns(a=t.BIGINT), PLAIN)
    assert rows(found) == [(1,)]


def test_upsert_deletes_without_a_value() -> None:
    form = MessageFormat(rows="upsert")
    batch = messages(['{"v": 1}', None, "", '{"v": 2}', "x"], ["a", "a", "b", None, "c"])
    found = decode(batch, columns(k=t.BYTEA, v=t.BIGINT), form, ["k"], {"k": "key"})
    assert rows(found) == [(1, b"a", 1), (-1, b"a", None), (-1, b"b", None)]
    assert reasons(found) == {3: "key: the message has none", 4: "json: not a JSON object"}


def test_upsert_takes_the_primary_key_from_the_key() -> None:
    form = MessageFormat(rows="upsert", key_encoding="json")
    batch = messages(
        ['{"id": 9, "v": 1}', None, None, '{"v": 3}', None], ['{"id": 1}', '{"ID": 2}', "3", "nonsense", "[1]"]
    )
    found = decode(batch, columns(id=t.BIGINT, v=t.BIGINT), form, ["id"])
    assert rows(found) == [(1, 1, 1), (-1, 2, None), (-1, 3, None)]
    assert reasons(found) == {3: "key: json: not JSON", 4: 'value: column "id" is not bigint'}


def test_a_key_that_a_column_shows_is_decoded_as_a_whole() -> None:
    form = MessageFormat(key_encoding="json")
    fields = columns(k=STRUCT, v=t.BIGINT)
    found = decode(messages(['{"v": 1}', '{"v": 2}'], ['{"x": 1}', None]), fields, form, (), {"k": "key"})
    assert rows(found) == [({"x": 1, "y": None}, 1), (None, 2)]
    one = decode(messages(['{"v": 1}', '{"v": 2}'], ['"a"', "7"]), columns(k=t.VARCHAR), form, (), {"k": "key"})
    assert rows(one) == [("a",), ("7",)]


def test_parts_of_messages() -> None:
    pair = SqlType("struct", fields=(("key", t.VARCHAR), ("value", t.BYTEA)))
    fields = columns(
        v=t.BIGINT,
        k=t.BYTEA,
        p=t.VARCHAR,
        o=t.BIGINT,
        ot=t.VARCHAR,
        ts=t.TIMESTAMPTZ,
        body=t.JSONB,
        hs=SqlType("array", element=pair),
        h=t.VARCHAR,
        topic=t.VARCHAR,
    )
    parts = {"k": "key", "p": "partition", "o": "offset", "ot": "offset", "ts": "timestamp", "body": "payload"}
    parts |= {"hs": "headers", "h": "header:a", "topic": "topic"}
    batch = messages(
        ['{"v": 1}', "x", '[{"v": 2}, {"v": 3}]'],
        ["k1", None, None],
        headers=[[("a", b"1"), ("b", None), ("a", b"2")], None, None],
        times_ms=__import__("numpy").array([5, -1, -1]),
    )
    found = decode(batch, fields, PLAIN, (), parts)
    pairs = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"2"}]
    moment = datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)
    whole = '[{"v":2},{"v":3}]'
    assert rows(found) == [
        (1, b"k1", "3", 100, "100", moment, '{"v":1}', pairs, "2", "t"),
        (2, None, "3", 104, "104", None, whole, None, None, "t"),
        (3, None, "3", 104, "104", None, whole, None, None, "t"),
    ]


@pytest.mark.parametrize(
    ("encoding", "kind", "good", "bad"),
    [
        ("bytes", t.BYTEA, [(b"\xff\x00", b"\xff\x00"), (b"", b"")], []),
        ("string", t.VARCHAR, [("é", "é"), ("", "")], [b"\xff"]),
        ("int", t.INTEGER, [(b"\x00\x00\x01\x00", 256), (b"\xff\xff\xff\xff", -1)], [b"", b"\x00" * 8]),
        ("long", t.BIGINT, [(b"\x00" * 6 + b"\x01\x00", 256), (b"\xff" * 8, -1)], [b"\x00" * 4]),
        ("long", t.INTEGER, [(b"\x00" * 7 + b"\x05", 5)], [b"\x7f" * 8]),
    ],
)
def test_messages_of_one_value(encoding: Any, kind: SqlType, good: list[Any], bad: list[Any]) -> None:
    batch = messages([*(wire for wire, _ in good), *bad, None])
    found = decode(batch, columns(c=kind), MessageFormat(encoding=encoding))
    assert rows(found) == [*((value,) for _, value in good), (None,)]
    assert list(reasons(found)) == list(range(len(good), len(good) + len(bad)))


def test_a_message_of_one_value_has_one_column() -> None:
    with pytest.raises(Error, match="is one value, and there are 2 columns"):
        decode(messages([]), columns(a=t.BYTEA, b=t.BYTEA), MessageFormat(encoding="bytes"))


def test_an_error_that_nobody_thought_of_sets_aside_the_message_that_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = jsonpayloads.JsonReader.read

    def fails(self: Any, payloads: Any) -> Any:
        if any(b"poison" in value.as_py() for value in payloads):
            raise ZeroDivisionError("of the test")
        return real(self, payloads)

    monkeypatch.setattr(jsonpayloads.JsonReader, "read", fails)
    values = ['{"a": "poison"}' if i in (0, 5, 6) else f'{{"a": "{i}"}}' for i in range(9)]
    found = decode(messages(values), columns(a=t.VARCHAR), PLAIN)
    assert (rows(found), found.places.tolist()) == ([(str(i),) for i in (1, 2, 3, 4, 7, 8)], [1, 2, 3, 4, 7, 8])
    assert reasons(found) == dict.fromkeys([0, 5, 6], "unexpected: ZeroDivisionError: of the test")


def test_a_message_without_a_value_is_a_tombstone() -> None:
    fields = columns(k=t.INTEGER, v=t.BIGINT, gone=t.BOOLEAN)
    batch = messages(['{"v": 1}', None], keys=[b"\0\0\0\1", b"\0\0\0\2"])
    form = MessageFormat(key_encoding="int")
    found = decode(batch, fields, form, parts={"k": "key", "gone": "tombstone"})
    assert found.table.to_pylist() == [{"k": 1, "v": 1, "gone": False}, {"k": 2, "v": None, "gone": True}]
    with pytest.raises(Error, match='column "v" is bigint, which can\'t show tombstone'):
        decode(batch, columns(v=t.BIGINT), form, parts={"v": "tombstone"})


def test_white_space_around_a_key_is_none_of_it() -> None:
    form = MessageFormat(rows="upsert", key_encoding="json")
    found = decode(messages([None, None], [" 3\n", '\t"a" ']), columns(id=t.VARCHAR), form, ["id"])
    assert rows(found) == [(-1, "3"), (-1, "a")]


@pytest.mark.parametrize("value", ["[]", '[{"v": 1}, {"v": 2}]'])
def test_a_message_of_upsert_has_one_row(value: str) -> None:
    form = MessageFormat(rows="upsert")
    found = decode(messages([value], ["a"]), columns(k=t.BYTEA, v=t.BIGINT), form, ["k"], {"k": "key"})
    assert (rows(found), list(reasons(found))) == ([], [0])


def test_large_batches_with_some_garbage() -> None:
    """A batch is read in pieces if not all of it is plain."""
    values = [f'{{"a": {i}, "t": {1_700_000_000_000 + i}, "s": "x{i}"}}' for i in range(9000)]
    bad = {17: "x", 5000: '{"a": true}', 5001: "", 8999: '{"A": 7, "t": "2024-01-01T00:00:00Z"}'}
    for i, text in bad.items():
        values[i] = text
    found = decode(messages(values), columns(a=t.BIGINT, t=t.TIMESTAMPTZ, s=t.VARCHAR), PLAIN)
    assert list(reasons(found)) == [17, 5000, 5001]
    kept = [i for i in range(9000) if i not in (17, 5000, 5001)]
    assert found.places.tolist() == kept
    assert found.table["a"].to_pylist() == [*kept[:-1], 7]
    assert found.table["s"].to_pylist() == [*(f"x{i}" for i in kept[:-1]), None]
    moments = found.table["t"].cast("int64").to_pylist()
    assert moments == [*((1_700_000_000_000 + i) * 1000 for i in kept[:-1]), 1_704_067_200_000_000]


def test_a_topic_in_which_nothing_is_plain() -> None:
    values = [f'{{"a": {"true" if i % 1000 == 500 else i}}}' for i in range(9000)]
    found = decode(messages(values), columns(a=t.BIGINT), PLAIN)
    assert found.table["a"].to_pylist() == [i for i in range(9000) if i % 1000 != 500]
