"""CSV: values of every type, and each way a line can be wrong."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sources.helpers import AB, T0, Driver, file_source, put

from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType


def read(tmp_path: Path, text: str | bytes, columns: Any = AB, **options: str) -> Driver:
    put(tmp_path / "a.csv", text)
    driver = Driver(file_source(tmp_path, columns, **options))
    driver.rows = driver.all()  # type: ignore[attr-defined]
    return driver


ONE = SqlType("struct", fields=(("x", t.INTEGER), ("y", t.VARCHAR)))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (t.INTEGER, "12", 12),
        (t.INTEGER, "-12", -12),
        (t.INTEGER, " +7 ", 7),
        (t.BIGINT, str(2**63 - 1), 2**63 - 1),
        (t.INTEGER, str(2**31), "bad"),
        (t.INTEGER, "1.5", "bad"),
        (t.INTEGER, "0x1F", "bad"),
        (t.INTEGER, "1_0", "bad"),
        (t.INTEGER, "1e3", "bad"),
        (t.INTEGER, "abc", "bad"),
        (t.INTEGER, "1-2", "bad"),
        (t.SMALLINT, "40000", "bad"),
        (t.DOUBLE, "1.5e3", 1500.0),
        (t.DOUBLE, "-0.0", -0.0),
        (t.DOUBLE, "Infinity", float("inf")),
        (t.DOUBLE, "1e400", "bad"),
        (t.REAL, "1e39", "bad"),
        (t.REAL, "-inf", float("-inf")),
        (t.DOUBLE, "1_0", "bad"),
        (
            SqlType("numeric", 38, 20),
            "123456789012345678.12345678901234567890",
            Decimal("123456789012345678.12345678901234567890"),
        ),
        (SqlType("numeric", 10, 2), "0.1", Decimal("0.10")),
        (SqlType("numeric", 4, 2), "123.4", "bad"),
        (t.NUMERIC, "1e-30", Decimal("0E-10")),
        (SqlType("numeric", 10, 2), "-1.2345e3", Decimal("-1234.50")),
        (SqlType("numeric", 10, 2), "1e9", "bad"),
        (SqlType("numeric", 10, 2), "1e", "bad"),
        (t.NUMERIC, "9" * 50, "bad"),
        (SqlType("numeric", 10, 2), "1.005", Decimal("1.01")),
        (t.NUMERIC, "NaN", "bad"),
        (t.NUMERIC, "1_0", "bad"),
        (t.BOOLEAN, "true", True),
        (t.BOOLEAN, "f", False),
        (t.BOOLEAN, "maybe", "bad"),
        (t.DATE, "2024-02-29", dt.date(2024, 2, 29)),
        (t.DATE, "2023-02-29", "bad"),
        (t.DATE, "infinity", "bad"),
        (t.TIME, "10:11:12.5", dt.time(10, 11, 12, 500000)),
        (t.TIME, "24:00:00", "bad"),
        (t.TIMESTAMP, "2024-01-01 10:00:00.123456", dt.datetime(2024, 1, 1, 10, 0, 0, 123456)),
        (t.TIMESTAMP, "2024-01-01T10:00:00Z", dt.datetime(2024, 1, 1, 10)),
        (t.TIMESTAMP, "infinity", "bad"),
        (t.TIMESTAMPTZ, "2024-01-01 10:00:00+02", dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC)),
        (t.TIMESTAMPTZ, "2024-01-01 10:00:00", dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)),
        (t.BYTEA, "\\x0aFF", b"\x0a\xff"),
        (t.BYTEA, "\\x", b""),
        (t.BYTEA, "\\x0", "bad"),
        (t.BYTEA, "\\xzz", "bad"),
        (t.BYTEA, "plain", b"plain"),
        (t.JSONB, '"{""k"": [1, null]}"', '{"k":[1,null]}'),
        (t.JSONB, '"{""k"":1,""k"":2.50}"', '{"k":2.50}'),
        (t.JSONB, '"[1,]"', "bad"),
        (t.JSONB, "NaN", "bad"),
        (t.JSONB, "{k", "bad"),
        (SqlType("array", element=t.INTEGER), '"[1, null, 3]"', [1, None, 3]),
        (SqlType("array", element=t.INTEGER), '"[1, ""x""]"', "bad"),
        (SqlType("array", element=t.INTEGER), "[]", []),
        (
            SqlType("array", element=SqlType("array", element=t.VARCHAR)),
            '"[[""a"", null], null, []]"',
            [["a", None], None, []],
        ),
        (SqlType("array", element=t.INTEGER), '"{""x"": 1}"', "bad"),
        (ONE, '"{""x"": 1, ""y"": ""z""}"', {"x": 1, "y": "z"}),
        (ONE, '"{""x"": ""q""}"', "bad"),
        (ONE, "\"{'x': 1}\"", "bad"),
        (ONE, "{}", {"x": None, "y": None}),
        (SqlType("array", element=ONE), '"[{""x"": 1}, {""x"": ""bad""}]"', "bad"),
        (SqlType("array", element=ONE), '"[{""x"": 1}, null]"', [{"x": 1, "y": None}, None]),
        (t.VARCHAR, '""', ""),
        (t.VARCHAR, '"a ""b"""', 'a "b"'),
        (t.VARCHAR, " a ", " a "),
        (t.INTERVAL, "1 day 02:00:00", (0, 1, 7_200_000_000_000)),
        (t.INTERVAL, "soon", "bad"),
    ],
)
def test_value(tmp_path: Path, kind: SqlType, text: str, value: Any) -> None:
    driver = read(tmp_path, f"n,v\n1,{text}\n2,\n", (Field("n", t.INTEGER), Field("v", kind)))
    rows = driver.rows  # type: ignore[attr-defined]
    if value == "bad":
        assert rows == [(2, None)]
        assert driver.reasons() == [("a.csv", 2, "value")]
    else:
        assert rows == [(1, value), (2, None)]
        assert str(rows[0][1]) == str(value) or kind.name == "interval"
        assert driver.dead == []


def test_nan_is_a_value(tmp_path: Path) -> None:
    driver = read(tmp_path, "a\nNaN\n", (Field("a", t.DOUBLE),))
    assert str(driver.rows) == "[(nan,)]"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "reason", "next_line"),
    [
        ("7", "fields", 4),
        ("7,x,y", "fields", 4),
        ("x,y", "value", 4),
        ('7,"open', "quotes", 4),
        ('7,"x"y', "quotes", 4),
        (b"7,\xff", "encoding", 4),
        (b"7,\xff,8", "encoding", 4),
        ("7,a\rb", "line end", 4),
        ('x,"a\nb"', "value", 5),
        ('7,"a\nb",8', "fields", 5),
    ],
)
def test_a_malformed_line_is_set_aside_with_its_number(
    tmp_path: Path, line: str | bytes, reason: str, next_line: int
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    driver = read(tmp_path, b'a,b\n1,"x\ny"\n' + raw + b"\n2,z\nbad,2\n3,w\n")
    assert driver.rows == [(1, "x\ny"), (2, "z"), (3, "w")]  # type: ignore[attr-defined]
    assert driver.reasons() == [("a.csv", 4, reason), ("a.csv", next_line + 2, "value")]
    assert driver.dead[0]["text"] == raw.decode(errors="replace")
    assert driver.dead[1]["reason"] == 'value: column "a" is not integer'


def test_line_numbers_are_right_in_later_slices(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "a,b\n" + "".join(f'{i},"x\ny"\n' if i % 10 else f"bad{i},x\n" for i in range(100)))
    driver = Driver(file_source(tmp_path), budget_rows=7)
    assert len(driver.all()) == 90
    assert [d["line"] for d in driver.dead] == [2 + 19 * k for k in range(10)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_empty_lines_are_no_rows(tmp_path: Path, end: str) -> None:
    driver = read(tmp_path, end.join(["a,b", "1,x", "", "", "2,y", ""]) + end)
    assert driver.rows == [(1, "x"), (2, "y")]  # type: ignore[attr-defined]
    assert driver.dead == []


def test_in_a_single_column_an_empty_line_is_null(tmp_path: Path) -> None:
    driver = read(tmp_path, 'a\n1\n\n""\n3\n', (Field("a", t.VARCHAR),))
    assert driver.rows == [("1",), (None,), ("",), ("3",)]  # type: ignore[attr-defined]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    driver = read(tmp_path, "\ufeffextra,B,a\nq,x,1\n")
    assert driver.rows == [(1, "x")]  # type: ignore[attr-defined]


def test_a_column_that_the_file_lacks_is_null(tmp_path: Path) -> None:
    driver = read(tmp_path, "c,a\nq,1\n")
    assert driver.rows == [(1, None)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("header", ["x,y", "a,a", "A,A,b"])
def test_a_file_of_another_schema_is_set_aside(tmp_path: Path, header: str) -> None:
    driver = read(tmp_path, header + "\n1,2\n3,4\n")
    assert driver.rows == []  # type: ignore[attr-defined]
    assert driver.reasons() == [("a.csv", None, "schema")]
    assert driver.dead[0]["rows"] == 2


def test_a_file_without_a_column_that_can_not_be_null_is_set_aside(tmp_path: Path) -> None:
    driver = read(tmp_path, "a\n1\n", (Field("a", t.INTEGER), Field("b", t.INTEGER, nullable=False)))
    assert driver.reasons() == [("a.csv", None, "schema")]


def test_null_where_it_can_not_be(tmp_path: Path) -> None:
    driver = read(tmp_path, "a,b\n,x\n1,y\n", (Field("a", t.INTEGER, nullable=False), AB[1]))
    assert driver.rows == [(1, "y")]  # type: ignore[attr-defined]
    assert driver.reasons() == [("a.csv", 2, "null")]


def test_what_is_set_aside_does_not_depend_on_the_columns_asked_for(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "a,b\n1,x\nbad,y\n3,z\n")
    for columns, rows in (
        (AB, [(1, "x"), (3, "z")]),
        (AB[1:], [("x",), ("z",)]),
        (AB[::-1], [("x", 1), ("z", 3)]),
        ((), []),
    ):
        driver = Driver(file_source(tmp_path))
        assert driver.once(T0, columns=columns) == rows
        assert len(driver.dead) == 1


def test_dialect(tmp_path: Path) -> None:
    text = "1|'a|b'|x\n2|NULL|'NULL'\n"
    columns = (*AB, Field("c", t.VARCHAR))
    driver = read(tmp_path, text, columns, delimiter="|", quote="'", null="NULL", csv__header="false")
    assert driver.rows == [(1, "a|b", "x"), (2, None, "NULL")]  # type: ignore[attr-defined]


def test_tab_separated_without_quotes(tmp_path: Path) -> None:
    driver = read(tmp_path, 'a\tb\n1\t"x\n', delimiter="\\t", quote="")
    assert driver.rows == [(1, '"x')]  # type: ignore[attr-defined]
