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


def test_a_fill_with_look_ups_replays_the_epochs_beside_it(tmp_path):
    """Each row is joined with the name of its moment, in several buckets."""
    with watersmeet.connect(tmp_path / "db", dialect="risingwave", parallelism=2) as connection:
        connection.execute(
            """
            CREATE TABLE names (n int PRIMARY KEY, name int);
            CREATE TABLE t (k int, n int) APPEND ONLY;
            CREATE MATERIALIZED VIEW live AS SELECT count(*) AS c FROM t;
            INSERT INTO names SELECT g, 0 FROM generate_series(0, 4) AS g;
            INSERT INTO t SELECT g, g % 5 FROM generate_series(1, 300) AS g;
            FLUSH;
            SET background_ddl = true;
            SET backfill_rate_limit = 0
            """
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT t.k, name FROM t "
            "JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON t.n = names.n"
        )
        for step in range(1, 9):
            connection.execute(f"UPDATE names SET name = {step}")
            connection.execute(f"INSERT INTO t SELECT 1000 * {step} + g, g FROM generate_series(0, 4) AS g; FLUSH")
        assert connection.execute("SELECT c FROM live").fetchall() == [(340,)]
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        connection.execute("INSERT INTO t VALUES (9000, 1); FLUSH")
        found = connection.execute("SELECT k / 1000 AS step, name, count(*) AS n FROM v GROUP BY k / 1000, name")
        assert sorted(found.fetchall()) == [(0, 0, 300), *((s, s, 5) for s in range(1, 9)), (9, 8, 1)]
