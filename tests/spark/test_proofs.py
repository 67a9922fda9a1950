"""Late rows, keys of sinks and VERIFY on Spark, where tasks write what this process reads."""

from __future__ import annotations

import pytest
from tests.waiting import until

import watersmeet

pytestmark = pytest.mark.spark


def test_late_rows_shared_keys_and_proofs(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        connection.execute(
            "CREATE TABLE e (k int, ts timestamp, v varchar, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY"
        )
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")
        connection.execute("CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 2), (1, 3), (2, 4)")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k, sum(v) AS s FROM t GROUP BY k")
        for second in (59, 0, 1):
            connection.execute(f"INSERT INTO e VALUES ({second}, '2024-01-01 00:00:{second:02}', 'v{second}')")
            connection.execute("FLUSH")
        assert connection.execute("SELECT k, v FROM late_rows(e) ORDER BY k").fetchall() == [(0, "v0"), (1, "v1")]
        assert [row[:3] for row in connection.execute("SHOW LATE ROWS").fetchall()] == [("e", 2, 2)]
        found = {row[0]: row[2] for row in connection.execute("VERIFY").fetchall()}
        assert found == {"n": "proven", "w": "proven"}
        sink = "CREATE SINK s FROM t WITH (connector = 'blackhole', type = 'upsert', primary_key = '{}')"
        with pytest.raises(watersmeet.Error, match=r'2 rows of sink "s" share its key: \(k\) = \(1\)'):
            connection.execute(sink.format("k"))
        connection.execute(sink.format("v"))
        connection.execute("INSERT INTO t VALUES (7, 2); FLUSH")
        until(lambda: connection.execute("SHOW SINKS").fetchall()[0][3] == "stopped")
