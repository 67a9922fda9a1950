"""What Spark's processes use is shown apart."""

from __future__ import annotations

import os

import pytest

import watersmeet

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="Linux counts it"),
]


def test_java_and_workers_are_told_apart(tmp_path):
    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n FROM t GROUP BY k"
        )
        cursor.execute("INSERT INTO t VALUES (1), (2); FLUSH")
        memory = connection.status()["memory"]
        shown = {part: found for part, *found in cursor.execute("SHOW MEMORY").fetchall()}
    assert memory["java_bytes"] > 100_000_000
    assert memory["workers"] >= 2
    assert memory["workers_bytes"] > 30_000_000
    assert memory["workers_mapped_bytes"] > 1_000_000
    assert memory["main_bytes"] > 10_000_000
    assert shown["java"][0] > 100_000_000
