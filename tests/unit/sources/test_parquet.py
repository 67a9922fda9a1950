"""Parquet: pruning, types that differ from the declared ones, rows that don't fit."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sources.helpers import AB, T0, Driver, file_source

from watersmeet.connectors.files import cutting, parquet
from watersmeet.connectors.files.parquet import Footer, checked_footer
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType


def read(tmp_path: Path, table: pa.Table, columns: Any = AB, **write: Any) -> tuple[list[Any], Driver]:
    pq.write_table(table, tmp_path / "a.parquet", **write)
    driver = Driver(file_source(tmp_path, columns, format="parquet"))
    return driver.all(T0), driver


@pytest.mark.parametrize(
    ("kind", "array", "values"),
    [
        (t.BIGINT, pa.array([1, None], pa.int32()), [1, None]),
        (t.DOUBLE, pa.array([1], pa.int64()), [1.0]),
        (t.DOUBLE, pa.array([1.5], pa.float32()), [1.5]),
        (t.NUMERIC, pa.array([3], pa.int64()), [Decimal(3)]),
        (SqlType("numeric", 10, 4), pa.array([Decimal("1.25")]), [Decimal("1.2500")]),
        (t.VARCHAR, pa.array(["x"], pa.large_string()), ["x"]),
        (t.VARCHAR, pa.array(["x"]).dictionary_encode(), ["x"]),
        (t.TIMESTAMP, pa.array([1_000_000_001], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 1)]),
        (
            t.TIMESTAMPTZ,
            pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ms", "Europe/Berlin")),
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
        ),
        (t.BYTEA, pa.array([b"x"], pa.large_binary()), [b"x"]),
        (t.INTEGER, pa.nulls(2), [None, None]),
        (SqlType("array", element=t.BIGINT), pa.array([[1, None], None], pa.list_(pa.int32())), [[1, None], None]),
        (SqlType("struct", fields=(("x", t.BIGINT),)), pa.array([{"x": 1, "y": 2}, None]), [{"x": 1}, None]),
    ],
)
def test_types_that_can_be_read(tmp_path: Path, kind: SqlType, array: pa.Array, values: list[Any]) -> None:
    rows, driver = read(tmp_path, pa.table({"v": array}), (Field("v", kind),))
    assert ([v for (v,) in rows], driver.dead) == (values, [])


def test_int96_is_exact_in_all_years(tmp_path: Path) -> None:
    values = [
        dt.datetime(1, 1, 1),
        dt.datetime(1677, 1, 1),
        dt.datetime(2024, 1, 1, 1, 1, 1, 123456),
        dt.datetime(2263, 1, 1, 0, 0, 0, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ]
    table = pa.table({"v": pa.array([*values, None], pa.timestamp("us"))})
    rows, driver = read(tmp_path, table, (Field("v", t.TIMESTAMP),), use_deprecated_int96_timestamps=True)
    assert ([v for (v,) in rows], driver.dead) == ([*values, None], [])


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (t.INTEGER, pa.array(["1"])),
        (t.VARCHAR, pa.array([1])),
        (t.INTEGER, pa.array([1.0])),
        (t.DATE, pa.array(["x"])),
        (t.NUMERIC, pa.array([1.5])),
        (t.TIMESTAMP, pa.array([0], pa.timestamp("us", "UTC"))),
        (t.BOOLEAN, pa.array([1])),
        (SqlType("array", element=t.INTEGER), pa.array([["x"]])),
        (SqlType("struct", fields=(("x", t.INTEGER),)), pa.array([{"y": 1}])),
    ],
)
def test_a_file_with_another_type_is_set_aside(tmp_path: Path, kind: SqlType, array: pa.Array) -> None:
    rows, driver = read(tmp_path, pa.table({"v": array, "w": [1]}), (Field("v", kind), Field("w", t.BIGINT)))
    assert rows == []
    assert driver.reasons() == [("a.parquet", None, "schema")]


def test_missing_columns_are_null_and_none_at_all_is_another_schema(tmp_path: Path) -> None:
    rows, driver = read(tmp_path, pa.table({"A": [1, 2], "z": [0, 0]}))
    assert (rows, driver.dead) == ([(1, None), (2, None)], [])
    rows, driver = read(tmp_path, pa.table({"z": [0]}))
    assert driver.reasons() == [("a.parquet", None, "schema")]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("columns", [AB, AB[1:], ()])
def test_values_that_do_not_fit_are_set_aside_whatever_is_asked_for(
    tmp_path: Path, statistics: bool, columns: Any
) -> None:
    table = pa.table({"a": [1, 2**40, None, -5, -(2**40)], "b": list("vwxyz")})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=statistics, row_group_size=2)
    driver = Driver(file_source(tmp_path, format="parquet"))
    rows = driver.once(T0, columns=columns)
    expected = {AB: [(1, "v"), (None, "x"), (-5, "y")], AB[1:]: [("v",), ("x",), ("y",)], (): []}
    assert rows == expected[columns]
    assert driver.reasons() == [("a.parquet", 2, "value"), ("a.parquet", 5, "value")]


def test_nulls_where_they_can_not_be(tmp_path: Path) -> None:
    columns = (Field("a", t.BIGINT, nullable=False), AB[1])
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), tmp_path / "a.parquet")
    driver = Driver(file_source(tmp_path, columns, format="parquet"))
    assert driver.once(T0, columns=columns[1:]) == [("x",)]
    assert driver.reasons() == [("a.parquet", 2, "null")]


def test_columns_that_are_not_declared_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": pa.array([1, 2]), "b": ["x", "y"], "c": [0, 0]}), tmp_path / "a.parquet")
    asked: list[Any] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: Any, rows: int, columns: Any = None, **more: Any) -> Any:
        asked.append(columns)
        return original(self, rows, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    driver = Driver(file_source(tmp_path, format="parquet"))
    driver.once(T0, columns=AB[1:])
    assert asked == [["a", "b"]]


def text(*values: bytes | None) -> pa.Array:
    """Text as it may stand in a file: Parquet's writers and readers don't check it."""
    return pa.array(values, pa.binary()).cast(pa.string(), safe=False)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("columns", [AB, AB[:1], AB[1:], ()])
def test_text_that_is_no_utf8_is_set_aside_whatever_is_asked_for(
    tmp_path: Path, dictionary: bool, columns: Any
) -> None:
    table = pa.table({"a": pa.array(range(5), pa.int32()), "b": text(b"x", b"caf\xe9", None, b"", b"\xed\xa0\x80")})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=dictionary, row_group_size=3)
    driver = Driver(file_source(tmp_path, format="parquet"))
    rows = driver.once(T0, columns=columns)
    expected = {
        AB: [(0, "x"), (2, None), (3, "")],
        AB[:1]: [(0,), (2,), (3,)],
        AB[1:]: [("x",), (None,), ("",)],
        (): [],
    }
    assert rows == expected[columns]
    assert [(d["line"], d["reason"]) for d in driver.dead] == [
        (2, 'value: column "b" is not character varying'),
        (5, 'value: column "b" is not character varying'),
    ]
    assert r"b'caf\xe9'" in driver.dead[0]["text"].replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (SqlType("array", element=t.VARCHAR), pa.ListArray.from_arrays([0, 1, 2, 3], text(b"x", b"\xff", b"y"))),
        (SqlType("struct", fields=(("x", t.VARCHAR),)), pa.StructArray.from_arrays([text(b"x", b"\xff", b"y")], ["x"])),
        (t.JSONB, text(b"1", b'"\xff"', b"2")),
        (t.JSONB, text(b"1", b"nonsense", b"2")),
        (t.VARCHAR, text(b"x", b"\xff", b"y").cast(pa.large_string(), safe=False)),
        (t.TIME, pa.array([0, 86_400_000_000, 5], pa.time64("us"))),
        (t.TIME, pa.array([0, -1, 5], pa.time32("ms"))),
        (t.TIMESTAMP, pa.array([0, 2**62, 5], pa.timestamp("ms"))),
        (SqlType("array", element=t.SMALLINT), pa.array([[1], [70_000], [2]])),
        (t.NUMERIC, pa.array([Decimal(1), Decimal(10) ** 40, Decimal(2)], pa.decimal256(60, 2))),
    ],
)
def test_a_value_that_is_none_of_its_type_is_set_aside_alone(tmp_path: Path, kind: SqlType, array: pa.Array) -> None:
    columns = (Field("i", t.INTEGER), Field("v", kind))
    rows, driver = read(tmp_path, pa.table({"i": pa.array([1, 2, 3], pa.int32()), "v": array}), columns)
    assert [row[0] for row in rows] == [1, 3]
    assert [(d["line"], d["reason"].split(" is not ")[0]) for d in driver.dead] == [(2, 'value: column "v"')]


def test_a_damaged_row_group_is_set_aside_alone_however_the_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": pa.array(range(30), pa.int32()), "b": [f"{i}" * 9 for i in range(30)]})
    pq.write_table(table, path, row_group_size=10, compression="gzip", use_dictionary=False)
    data = bytearray(path.read_bytes())
    page = pq.read_metadata(path).row_group(1).column(1).data_page_offset
    data[page + 40 : page + 60] = b"\xff" * 20
    path.write_bytes(data)
    expected = [(i,) for i in range(30) if not 10 <= i < 20]
    for budget in (1, 20, 1000):
        driver = Driver(file_source(tmp_path, format="parquet"), budget_rows=budget)
        rows = driver.once(T0, columns=AB[:1])
        while driver.last.more:
            rows += driver.once(T0, columns=AB[:1])
        assert rows == expected
        [letter] = driver.dead
        assert (letter["line"], letter["text"], letter["rows"]) == (None, "rows 11 to 20", 10)
        assert letter["reason"].startswith("damaged: row group 1: ")
        assert [a for a, _ in driver.history(budget_rows=7)] == [a for (a,) in expected]


def test_numbers_of_a_footer_that_can_not_be_true(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array(range(300), pa.int32())}), path)
    metadata = pq.read_metadata(path)
    size = path.stat().st_size
    assert checked_footer(metadata, size) is not None
    assert checked_footer(metadata, 0) is None, "so many rows in so few bytes"
    group = SimpleNamespace(num_rows=300, total_byte_size=10)
    lying = SimpleNamespace(num_row_groups=1, num_rows=300, row_group=lambda _: group, schema=metadata.schema)
    assert checked_footer(lying, size) is not None
    lying.num_rows = 2**62
    assert checked_footer(lying, size) is None
    group.num_rows = 2**62
    assert checked_footer(lying, size) is None
    lying.num_rows = group.num_rows = -1
    assert checked_footer(lying, size) is None
    lying.num_rows, group.num_rows, group.total_byte_size = 300, 300, -1
    assert checked_footer(lying, size) is None


def test_a_row_group_that_says_it_has_more_rows_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": pa.array(range(30), pa.int32()), "b": ["x"] * 30}), tmp_path / "a.parquet")
    lying = Footer((2**20 + 30,), (10,), ("a", "b"))
    for module in (cutting, parquet):
        name = "read_footer" if module is cutting else "checked_footer"
        monkeypatch.setattr(module, name, lambda *_: lying)
    driver = Driver(file_source(tmp_path, format="parquet"))
    assert driver.all(T0) == []
    assert [(d["reason"], d["rows"]) for d in driver.dead] == [
        ("damaged: row group 0: 30 rows instead of 1048606", 2**20 + 30)
    ]


@pytest.mark.parametrize("dictionary", [True, False])
def test_row_groups_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dictionary: bool) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    words = pa.array([f"w{i % 5}" for i in range(30)])
    table = pa.table({"a": pa.array(range(30), pa.int32()), "b": words.dictionary_encode() if dictionary else words})
    rows, driver = read(tmp_path, table)
    assert rows == [(i, f"w{i % 5}") for i in range(30)]
    assert driver.dead == []


def test_a_file_without_rows(tmp_path: Path) -> None:
    rows, driver = read(tmp_path, pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())}))
    assert (rows, driver.all(), driver.last.pending) == ([], [], 0)


def test_a_damaged_page_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"a": pa.array(range(50000), pa.int32()), "b": [str(i) for i in range(50000)]}),
        path,
        compression="gzip",
    )
    data = bytearray(path.read_bytes())
    data[5000:9000] = b"\xff" * 4000
    path.write_bytes(data)
    driver = Driver(file_source(tmp_path, format="parquet"))
    assert driver.all(T0) == []
    assert driver.reasons() == [("a.parquet", None, "damaged")]
    assert driver.dead[0]["rows"] == 50000
