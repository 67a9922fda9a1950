"""Functions of SQL outlive their session, and views keep the bodies that they were made with."""

from __future__ import annotations

import pytest

import watersmeet


def test_functions_and_the_old_bodies_of_views_survive_restart_and_rebuild(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x + 1")
        connection.execute("CREATE FUNCTION two(x int) RETURNS int LANGUAGE SQL AS $$ SELECT one(one(x)) $$")
        connection.execute("CREATE TABLE t (k int); CREATE VIEW p AS SELECT one(k) AS a, two(k) AS b FROM t")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT a, b, two(a) AS c FROM p")
        connection.execute("CREATE OR REPLACE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x * 100")
        connection.execute("CREATE OR REPLACE FUNCTION two(x int) RETURNS int LANGUAGE SQL RETURN one(x) + 7")
        connection.execute("INSERT INTO t VALUES (1)")
    with watersmeet.connect(path, runtime="inprocess", parallelism=2, rebuild=True) as connection:
        connection.execute("INSERT INTO t VALUES (10); FLUSH")
        expected = [(2, 3, 4), (11, 12, 13)]
        assert sorted(connection.execute("SELECT a, b, c FROM m").fetchall()) == expected
        assert sorted(connection.execute("SELECT a, b, a + 2 FROM p").fetchall()) == expected
        assert connection.execute("SELECT one(1), two(1)").fetchall() == [(100, 107)]


def test_a_body_that_nothing_calls_any_more_is_not_kept(tmp_path):
    path = tmp_path / "db"

    def stored() -> set[str]:
        with watersmeet.connect(path, read_only=True) as reader:
            return {f.body for f in reader._session.catalog.functions.values()}

    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 1'")
        connection.execute("CREATE TABLE t (k int); CREATE VIEW v AS SELECT f(k) AS a FROM t")
        connection.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 2'")
        assert stored() == {"select 1", "select 2"}
        connection.execute("DROP VIEW v")
        assert stored() == {"select 2"}
        connection.execute("DROP FUNCTION f")
        assert stored() == set()


@pytest.mark.slow
def test_what_a_call_stands_for_is_bounded(run, fails):
    run("CREATE FUNCTION f0(x int) RETURNS int LANGUAGE SQL RETURN x + x")
    for n in range(1, 7):
        run(f"CREATE FUNCTION f{n}(x int) RETURNS int LANGUAGE SQL RETURN f{n - 1}(x) + f{n - 1}(x)")
    assert run("SELECT f6(1)") == [(128,)]
    refused = fails("SELECT f6(f6(1))")
    assert (refused.condition, "too large" in str(refused)) == ("FEATURE_NOT_SUPPORTED", True)
