"""The examples of docs/DATAFRAMES.md, run in order."""

from __future__ import annotations

import re
from datetime import UTC
from pathlib import Path

import duckdb
import pytest
from tests.spark.streams import Result, Stream
from tests.unit.frames.query import at

from watersmeet.runtime.spark import session
from watersmeet.values import types as t
from watersmeet.values.types import Field

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "DATAFRAMES.md"


@pytest.fixture(scope="module", autouse=True)
def spark():
    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


def utc(seconds: float):
    return at(seconds).replace(tzinfo=UTC)


@pytest.mark.slow
def test_examples(spark, tmp_path):
    def stream(name: str, *fields: Field) -> Stream:
        return Stream(spark, tmp_path / name, fields, ", ".join(f"{f.name} string" for f in fields))

    symbol, ts = Field("symbol", t.VARCHAR), Field("ts", t.TIMESTAMPTZ)
    trades = stream("trades", symbol, ts, Field("price", t.DOUBLE))
    quotes = stream("quotes", symbol, ts, Field("bid", t.DOUBLE), Field("ask", t.DOUBLE))
    customers = stream("customers", Field("id", t.INTEGER), Field("name", t.VARCHAR))
    orders = stream("orders", Field("order_id", t.INTEGER), Field("id", t.INTEGER))
    trades.add([("A", utc(10), 101.0), ("A", utc(9), 100.0), ("B", utc(10), 50.0), ("A", utc(500), 105.0)])
    quotes.add([("A", utc(5), 99.0, 100.0), ("A", utc(10), 100.5, 101.5), ("C", utc(300), 1.0, 2.0)])
    orders.add([(1, 1), (2, 2)])
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 9
    blocks = [block for block in blocks if 'format("kafka")' not in block]  # test_frames_kafka runs that one
    assert len(blocks) == 8
    names: dict = {"folder": str(tmp_path)}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        for name in {"query", "following", "writing"} & set(names):
            names[name].processAllAvailable()
    spread = Result(names["spread"], tmp_path / "spread")
    marked = Result(names["marked"], tmp_path / "marked")
    assert {(r[0], *r[2:]) for r in marked.drain()} == {
        ("A", 100.0, 98.0, "support"),
        ("A", 101.0, None, None),
        ("A", 105.0, 104.0, "resistance"),
        ("B", 50.0, None, None),
    }
    marked.query.stop()
    by_region = Result(names["by_region"], tmp_path / "by_region")
    assert by_region.drain() == {("Asia", 3, 105.0): 1, ("Europe", 1, 50.0): 1}
    by_region.query.stop()
    assert names["content"] == {(1, None): 1, (2, None): 1}
    customers.add([(1, "Ann")])
    names["following"].processAllAvailable()
    assert {k: n for k, n in names["content"].items() if n} == {(1, "Ann"): 1, (2, None): 1}
    names["writing"].processAllAvailable()
    written = "SELECT order_id, name FROM named GROUP BY order_id, name HAVING sum(diff) = 1 ORDER BY order_id"
    assert names["database"].execute(written).fetchall() == [(1, "Ann"), (2, None)]
    assert names["last_batch"]() == 1
    found = duckdb.sql(
        f"SELECT symbol, price, bid FROM read_parquet('{tmp_path}/priced/*.parquet') ORDER BY ALL"
    ).fetchall()
    assert found == [("A", 100.0, 99.0), ("A", 101.0, 100.5), ("B", 50.0, None)]
    quotes.add([("C", utc(900), 1.0, 2.0)])
    assert {(r[1], round(r[2], 6)) for r in spread.drain()} == {("A", 0.75)}
    assert names["figures"]["left_rows"] == 4
    for query in spark.streams.active:
        query.stop()
    for name in ("query", "following", "watched", "writing"):
        names[name].stop()
    spread.query.stop()
