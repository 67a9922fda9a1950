"""The memory of an epoch is freed when it ends, without a garbage collection."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

import watersmeet
from watersmeet.runtime.inprocess import InProcessEngine

TABLES = """
CREATE TABLE a (id bigint, k bigint, at timestamp, WATERMARK FOR at AS at - INTERVAL '1 minute') APPEND ONLY;
CREATE TABLE b (id bigint, k bigint, at timestamp, WATERMARK FOR at AS at - INTERVAL '1 minute') APPEND ONLY;
"""
ROWS = """
INSERT INTO {} SELECT g, g % 1000, TIMESTAMP '2026-01-01' + (g + {}) * INTERVAL '1 second'
    FROM generate_series(1, 20000) AS t(g);
"""
JOINS = {
    "regular": "SELECT a.id, b.id AS other FROM a JOIN b ON a.id = b.id",
    "left": "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.id = b.id AND b.k > 500",
    "groups": "SELECT a.k, count(*) AS n, max(b.at) AS at FROM a JOIN b ON a.id = b.id GROUP BY a.k",
    "window": "SELECT a.id, b.id AS other FROM TUMBLE(a, at, INTERVAL '1 minute') AS a "
    "JOIN TUMBLE(b, at, INTERVAL '1 minute') AS b ON a.k = b.k AND a.window_start = b.window_start",
    "interval": "SELECT a.id, b.id AS other FROM a JOIN b ON a.k = b.k "
    "AND a.at BETWEEN b.at AND b.at + INTERVAL '1 hour'",
    "asof": "SELECT a.id, b.id AS other FROM a ASOF LEFT JOIN b ON a.k = b.k AND a.at >= b.at",
}


@pytest.mark.parametrize("join", JOINS)
def test_no_cycle_keeps_columns(tmp_path, monkeypatch, join):
    kept = []
    run = InProcessEngine._run

    def measured(engine, planner, intent):
        gc.collect()
        gc.disable()
        try:
            run(engine, planner, intent)
            before = pa.total_allocated_bytes()
            gc.collect()
            kept.append(before - pa.total_allocated_bytes())
        finally:
            gc.enable()

    monkeypatch.setattr(InProcessEngine, "_run", measured)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="risingwave", parallelism=2) as connection:
        connection.execute(f"{TABLES} CREATE MATERIALIZED VIEW v AS {JOINS[join]};")
        connection.execute(ROWS.format("a", 0) + ROWS.format("b", 0) + "FLUSH")
        connection.execute(ROWS.format("a", 20000) + ROWS.format("b", 20000) + "FLUSH")
        assert connection.execute("SELECT count(*) > 0 FROM v").fetchall() == [(True,)]
    assert len(kept) > 1
    assert max(kept) < 1000
