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


def test_late_rows_of_a_join(tmp_path):
    def connect():
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="spark", parallelism=2)

    with connect() as connection:
        connection.execute("CREATE STREAM l(n int, k int); CREATE STREAM r(n int, k int)")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k AND "
            "date_diff_within(20s)"
        )
        for name in "lr":
            connection.execute(f"INSERT INTO {name}(n, k, _tp_time) VALUES (1, 1, '2024-01-01 10:05:00'); FLUSH")
        connection.execute("INSERT INTO l(n, k, _tp_time) VALUES (2, 1, '2024-01-01 10:00:00'); FLUSH")
    with connect() as connection:
        connection.execute("INSERT INTO r(n, k, _tp_time) VALUES (3, 1, '2024-01-01 10:00:00'); FLUSH")
        assert connection.execute("SELECT n FROM late_rows(v, 1)").fetchall() == [(2,)]
        assert connection.execute("SELECT n FROM late_rows(v, 2)").fetchall() == [(3,)]
        assert [row[:3] for row in connection.execute("SHOW LATE ROWS FROM v").fetchall()] == [("v", 1, 1)] * 2
        assert connection.execute("VERIFY VIEW v").fetchall()[0][2] == "proven"
