"""JSON lines: values of every type, and each way a line can be wrong."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sources.helpers import AB, Driver, file_source, put

from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType


def read(tmp_path: Path, text: str | bytes, columns: Any = AB, **options: str) -> tuple[list[Any], Driver]:
    put(tmp_path / "a.json", text)
    driver = Driver(file_source(tmp_path, columns, **{"format": "json"} | options))
    return driver.all(), driver


POINT = SqlType("struct", fields=(("x", t.INTEGER), ("tags", SqlType("array", element=t.VARCHAR))))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (t.INTEGER, "12", 12),
        (t.INTEGER, '"12"', 12),
        (t.INTEGER, "1.5", "bad"),
        (t.INTEGER, "true", "bad"),
        (t.BIGINT, "9223372036854775807", 2**63 - 1),
        (t.BIGINT, "9223372036854775808", "bad"),
        (t.INTEGER, "[1]", "bad"),
        (t.BIGINT, "1.5", "bad"),
        (t.BIGINT, "1e3", "bad"),
        (t.NUMERIC, "true", "bad"),
        (t.NUMERIC, "{}", "bad"),
        (t.DOUBLE, "0.1234567890123456789", 0.12345678901234568),
        (t.VARCHAR, "99999999999999.99", "99999999999999.99"),
        (t.VARCHAR, "1.10", "1.10"),
        (t.VARCHAR, '{"k": 99999999999999.99 }', '{"k":99999999999999.99}'),
        (t.JSONB, "0.12345678901234567890", "0.12345678901234567890"),
        (t.JSONB, '{"k": [99999999999999.99, "\\u00e9 \\n"]}', '{"k":[99999999999999.99,"é \\n"]}'),
        (t.JSONB, '{"k": 1, "l": {"m": 1, "m": [2, {"n": 1, "n": 3}]}, "k": 4}', '{"k":4,"l":{"m":[2,{"n":3}]}}'),
        (t.JSONB, '{"k": {"l": 1}, "\\u006b": "\\\\"}', '{"k":"\\\\"}'),
        (SqlType("array", element=t.JSONB), "[0.12345678901234567890]", ["0.12345678901234567890"]),
        (SqlType("array", element=t.VARCHAR), '[1.10, "a,]\\"b", [ 1 ]]', ["1.10", 'a,]"b', "[1]"]),
        (SqlType("array", element=t.INTEGER), "[ ]", []),
        (POINT, '{"x": 1, "x": 2, "tags": [], "tags": ["b"]}', {"x": 2, "tags": ["b"]}),
        (t.DOUBLE, "1.5", 1.5),
        (t.DOUBLE, "1E400", "bad"),
        (t.DOUBLE, '"-Infinity"', float("-inf")),
        (t.NUMERIC, "0.1", Decimal("0.1000000000")),
        (
            SqlType("numeric", 38, 20),
            "123456789012345678.12345678901234567890",
            Decimal("123456789012345678.12345678901234567890"),
        ),
        (
            SqlType("array", element=SqlType("numeric", 38, 20)),
            "[0.12345678901234567890]",
            [Decimal("0.12345678901234567890")],
        ),
        (t.VARCHAR, '"x\\n\\u00e9"', "x\né"),
        (t.VARCHAR, "12", "12"),
        (t.VARCHAR, '{"k":1}', '{"k":1}'),
        (t.BOOLEAN, "false", False),
        (t.BOOLEAN, '"nope"', "bad"),
        (t.DATE, '"2024-02-29"', dt.date(2024, 2, 29)),
        (t.TIMESTAMP, '"2024-01-01T10:00:00"', dt.datetime(2024, 1, 1, 10)),
        (t.TIMESTAMP, "12", "bad"),
        (t.TIMESTAMPTZ, '"2024-01-01T10:00:00+02:00"', dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC)),
        (t.BYTEA, '"\\\\x0a"', b"\x0a"),
        (t.JSONB, '{"k": [1, null]}', '{"k":[1,null]}'),
        (t.JSONB, '"s"', '"s"'),
        (SqlType("array", element=t.INTEGER), "[1, null]", [1, None]),
        (SqlType("array", element=t.INTEGER), "5", "bad"),
        (SqlType("array", element=t.INTEGER), '[1, "x"]', "bad"),
        (SqlType("array", element=t.JSONB), '[{"k": 1}, null, 2]', ['{"k":1}', None, "2"]),
        (POINT, '{"x": 1, "tags": ["a"], "more": 2}', {"x": 1, "tags": ["a"]}),
        (POINT, "[]", "bad"),
        (POINT, '{"x": "q"}', "bad"),
        (POINT, '{"tags": {}}', "bad"),
        (POINT, "{}", {"x": None, "tags": None}),
        (SqlType("array", element=POINT), '[{"x": 1}, null]', [{"x": 1, "tags": None}, None]),
    ],
)
def test_value(tmp_path: Path, kind: SqlType, text: str, value: Any) -> None:
    columns = (Field("n", t.INTEGER), Field("v", kind))
    rows, driver = read(tmp_path, f'{{"n": 1, "v": {text}}}\n{{"n": 2, "v": null}}\n{{"n": 3}}\n', columns)
    rest = [(2, None), (3, None)]
    if value == "bad":
        assert rows == rest
        assert driver.reasons() == [("a.json", 1, "value")]
    else:
        assert rows == [(1, value), *rest]
        assert driver.dead == []


def test_an_array_around_the_objects_is_named(tmp_path: Path) -> None:
    _, driver = read(tmp_path, '[{"a": 1},\n{"a": 2}]\n{"a": 3}\n')
    first, *_ = driver.dead
    assert "json: an array" in str(first)


@pytest.mark.parametrize("text", ["12345678901234567890123456789012345678", "123456789012345678901234567890", "1e29"])
@pytest.mark.parametrize("form", ["%s", '"%s"', "-%s"])
def test_numbers_of_too_many_digits_are_no_value(tmp_path: Path, text: str, form: str) -> None:
    columns = (Field("n", t.INTEGER), Field("v", t.NUMERIC))
    rows, driver = read(tmp_path, f'{{"n": 1, "v": {form % text}}}\n', columns)
    assert (rows, driver.reasons()) == ([], [("a.json", 1, "value")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1, ', "json"),
        (b"[1]", "json"),
        (b"5", "json"),
        (b"null", "json"),
        (b"{'a': 1}", "json"),
        (b'{"a": "x"}', "value"),
        (b'{"a": 1, "b": "\xff"}', "encoding"),
        (b'{"a": 1} {"a": 2}', "json"),
        (b'{"a": 1,}', "json"),
        (b'{"a": NaN}', "json"),
        (b'{"a": [-Infinity]}', "json"),
        (b"\x0b", "json"),
        (b'{"a": 1, "b": "\\ud800", "c": 1.234567890123456}', "json"),
    ],
)
def test_a_malformed_line_is_set_aside_with_its_number(tmp_path: Path, line: bytes, reason: str) -> None:
    rows, driver = read(tmp_path, b'{"a": 1, "b": "x"}\n\n' + line + b'\r\n  \n{"a": 2, "other": [1]}\n')
    assert rows == [(1, "x"), (2, None)]
    assert driver.reasons() == [("a.json", 3, reason)]
    assert driver.dead[0]["text"] == line.decode(errors="replace")


def test_line_numbers_are_right_in_later_slices(tmp_path: Path) -> None:
    put(tmp_path / "a.json", "".join(f'{{"a": {i}}}\n' if i % 10 else "{\n" for i in range(100)))
    driver = Driver(file_source(tmp_path, format="json"), budget_rows=7)
    assert len(driver.all()) == 90
    assert [d["line"] for d in driver.dead] == [1 + 10 * k for k in range(10)]


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    rows, driver = read(tmp_path, '{"a": 1}\n{"a": ', settle_ms="3600000")
    assert rows == [(1, None)]
    put(tmp_path / "a.json", "2}\n", append=True)
    assert driver.all() == [(2, None)]


def test_jsonb_keeps_its_numbers_beside_exact_decimals(tmp_path: Path) -> None:
    columns = (Field("d", SqlType("numeric", 38, 20)), Field("j", t.JSONB))
    rows, _ = read(tmp_path, '{"d": 0.12345678901234567890, "j": {"k": 0.5}}\n', columns)
    assert rows == [(Decimal("0.12345678901234567890"), '{"k":0.5}')]


def test_names_with_quotes(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, '{"it\'s": 1, "a\\"b": "x"}\n', (Field("it's", t.INTEGER), Field('a"b', t.VARCHAR)))
    assert rows == [(1, "x")]


@pytest.mark.parametrize("kind", [SqlType("numeric", 38, 20), t.DOUBLE, t.VARCHAR, t.JSONB])
def test_long_numbers_beside_deep_nesting(tmp_path: Path, kind: SqlType) -> None:
    deep = "[" * 5000 + "]" * 5000
    columns = (Field("n", t.INTEGER), Field("v", kind))
    rows, driver = read(tmp_path, f'{{"n": 1, "x": {deep}, "v": 1.234567890123456}}\n{{"n": 2}}\n', columns)
    assert [str(v) for _, v in rows] == [
        str(Decimal("1.234567890123456").quantize(Decimal(10) ** -20))
        if kind.name == "numeric"
        else "1.234567890123456",
        "None",
    ]
    assert driver.dead == []


@pytest.mark.parametrize("rest", ["", ', "d": 1.234567890123456'])
def test_of_equal_keys_the_last_one_wins(tmp_path: Path, rest: str) -> None:
    columns = (*AB, Field("d", SqlType("numeric", 38, 20)))
    rows, _ = read(tmp_path, f'{{"a": 1, "\\u0061": "x", "b": "y", "a": 2{rest}, "b": null}}\n{{"a": 3}}\n', columns)
    assert [row[:2] for row in rows] == [(2, None), (3, None)]


def test_what_looks_like_json_in_strings_is_text(tmp_path: Path) -> None:
    lines = [
        {"a": 1, "b": 'NaN,] "a": 2'},
        {"a": 2, "b": '\\",}'},
        {"a": 3, "b": "\\\\"},
        {"a": 4, "b": "Infinity [,]"},
    ]
    rows, driver = read(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    assert rows == [(line["a"], line["b"]) for line in lines]
    assert driver.dead == []
