"""Parquet: pruning, types that differ from the declared ones, rows that don't fit."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sources.helpers import AB, T0, Driver, file_source

from watersmeet import types as t
from watersmeet.types import Field, SqlType


def read(tmp_path: Path, table: pa.Table, columns: Any = AB, **write: Any) -> tuple[list[Any], Driver]:
    pq.write_table(table, tmp_path / "a.parquet", **write)
    driver = Driver(file_source(tmp_path, columns, format="parquet"))
    return driver.all(T0), driver


@pytest.mark.parametrize(("kind", "array", "values"), [
    (t.BIGINT, pa.array([1, None], pa.int32()), [1, None]), (t.DOUBLE, pa.array([1], pa.int64()), [1.0]),
    (t.DOUBLE, pa.array([1.5], pa.float32()), [1.5]), (t.NUMERIC, pa.array([3], pa.int64()), [Decimal(3)]),
    (SqlType("numeric", 10, 4), pa.array([Decimal("1.25")]), [Decimal("1.2500")]),
    (t.VARCHAR, pa.array(["x"], pa.large_string()), ["x"]), (t.VARCHAR, pa.array(["x"]).dictionary_encode(), ["x"]),
    (t.TIMESTAMP, pa.array([1_000_000_001], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 1)]),
    (t.TIMESTAMPTZ, pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ms", "Europe/Berlin")),
     [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    (t.BYTEA, pa.array([b"x"], pa.large_binary()), [b"x"]), (t.INTEGER, pa.nulls(2), [None, None]),
    (SqlType("array", element=t.BIGINT), pa.array([[1, None], None], pa.list_(pa.int32())), [[1, None], None]),
    (SqlType("struct", fields=(("x", t.BIGINT),)), pa.array([{"x": 1, "y": 2}, None]), [{"x": 1}, None]),
])
def test_types_that_can_be_read(tmp_path: Path, kind: SqlType, array: pa.Array, values: list[Any]) -> None:
    rows, driver = read(tmp_path, pa.table({"v": array}), (Field("v", kind),))
    assert ([v for (v,) in rows], driver.dead) == (values, [])


@pytest.mark.parametrize(("kind", "array"), [
    (t.INTEGER, pa.array(["1"])), (t.VARCHAR, pa.array([1])), (t.INTEGER, pa.array([1.0])), (t.DATE, pa.array(["x"])),
    (t.NUMERIC, pa.array([1.5])), (t.TIMESTAMP, pa.array([0], pa.timestamp("us", "UTC"))),
    (t.BOOLEAN, pa.array([1])), (SqlType("array", element=t.INTEGER), pa.array([["x"]])),
    (SqlType("struct", fields=(("x", t.INTEGER),)), pa.array([{"y": 1}])),
])
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
def test_values_that_do_not_fit_are_set_aside_whatever_is_asked_for(tmp_path: Path, statistics: bool,
                                                                    columns: Any) -> None:
    table = pa.table({"a": [1, 2**40, None, -5, -2**40], "b": list("vwxyz")})
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


def test_only_what_is_asked_for_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64()), "b": ["x", "y"]}), tmp_path / "a.parquet")
    asked: list[Any] = []
    original = pq.ParquetFile.read_row_groups

    def spy(self: Any, groups: Any, columns: Any = None, **more: Any) -> Any:
        asked.append(columns)
        return original(self, groups, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", spy)
    driver = Driver(file_source(tmp_path, format="parquet"))
    driver.once(T0, columns=AB[1:])
    assert asked == [["b"]]


def test_a_file_without_rows(tmp_path: Path) -> None:
    rows, driver = read(tmp_path, pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())}))
    assert (rows, driver.all(), driver.last.pending) == ([], [], 0)


def test_a_damaged_page_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array(range(50000), pa.int32()), "b": [str(i) for i in range(50000)]}), path,
                   compression="gzip")
    data = bytearray(path.read_bytes())
    data[5000:9000] = b"\xff" * 4000
    path.write_bytes(data)
    driver = Driver(file_source(tmp_path, format="parquet"))
    assert driver.all(T0) == []
    assert driver.reasons() == [("a.parquet", None, "damaged")]
    assert driver.dead[0]["rows"] == 50000
