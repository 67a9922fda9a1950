"""Fills of the background on Spark: paused, resumed, and canceled, while live views go on."""

from __future__ import annotations

import pytest

import watersmeet

pytestmark = pytest.mark.spark

SUMS = "SELECT n, sum(k) AS s FROM t GROUP BY n"


def test_a_paused_fill_holds_up_no_other_view(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="risingwave") as connection:
        connection.execute(
            """
            CREATE TABLE t (k int PRIMARY KEY, n int);
            CREATE MATERIALIZED VIEW live AS SELECT n, count(*) AS c FROM t GROUP BY n;
            INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 300) AS g;
            FLUSH;
            SET background_ddl = true;
            SET backfill_rate_limit = 0
            """
        )
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k FROM t")
        connection.execute("INSERT INTO t VALUES (1000, 7); DELETE FROM t WHERE k < 10; FLUSH")
        assert connection.execute("SELECT c FROM live WHERE n = 7").fetchall() == [(1,)]
        found = {row[0]: row[-2] for row in connection.execute("SHOW JOBS").fetchall()}
        connection.execute(f"CANCEL JOBS {found['w']}")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []
        assert sorted(row[0] for row in connection.execute("SHOW JOBS").fetchall()) == ["live", "v"]
