"""Views get other queries on Spark, while other views read them; and epochs that compute views again."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.property.test_recomputed_views import run as run_recomputing
from tests.property.test_redefined_views import run

import watersmeet
from watersmeet.runtime.spark import jobs

pytestmark = pytest.mark.spark


def test_views_have_the_rows_of_their_queries(tmp_path):
    run(1, tmp_path / "db", "spark")


def test_recomputed_views_have_the_rows_of_their_queries(tmp_path):
    assert run_recomputing(5, tmp_path / "db", "spark", steps=8) > 0


def test_a_rewritten_table_is_computed_again_in_stages(tmp_path, monkeypatch):
    """All tasks of an epoch that recomputes run where Spark places them."""
    monkeypatch.setattr(jobs, "SMALL_ROWS", 0)
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        for sql in (
            "CREATE TABLE t(k int, g int, x int)",
            "CREATE TABLE u(g int, y int)",
            "INSERT INTO t SELECT i, i % 100, i FROM generate_series(1, 30000) AS s(i)",
            "INSERT INTO u SELECT i, i FROM generate_series(0, 49) AS s(i)",
            "CREATE MATERIALIZED VIEW j AS SELECT t.k, u.y FROM t LEFT JOIN u ON t.g = u.g",
            "CREATE MATERIALIZED VIEW s AS SELECT g, count(*) AS n, max(x) AS x FROM t GROUP BY g",
        ):
            connection.execute(sql)
        for shift in (1, 2):
            for sql in (
                "BEGIN",
                f"DELETE FROM t WHERE k > {1000 * (shift - 1)}",
                f"INSERT INTO t SELECT i, i % 90, i + {shift} FROM generate_series(1, 29000) AS s(i)",
                "COMMIT",
                "FLUSH",
            ):
                connection.execute(sql)
            views = connection._session.database.engine.status().views
            assert {v.name: v.recomputed for v in views} == {"j": shift, "s": shift}
            for view, query in (
                ("j", "SELECT t.k, u.y FROM t LEFT JOIN u ON t.g = u.g"),
                ("s", "SELECT g, count(*), max(x) FROM t GROUP BY g"),
            ):
                found, expected = (connection.execute(sql).fetchall() for sql in (f"SELECT * FROM {view}", query))
                assert Counter(found) == Counter(expected)
