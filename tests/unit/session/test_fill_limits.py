"""Fills of new views that are limited, paused, and canceled by statements of other sessions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import until

import watersmeet
from watersmeet.errors import Error

TABLE = """
CREATE TABLE t (k int PRIMARY KEY, n int);
CREATE MATERIALIZED VIEW live AS SELECT n, count(*) AS c FROM t GROUP BY n;
INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 300) AS g;
FLUSH
"""
SUMS = "SELECT n, sum(k) AS s FROM t GROUP BY n"


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="risingwave") as connection:
        connection.execute(TABLE)
        yield connection


def jobs(connection):
    cursor = connection.execute("SHOW JOBS")
    names = [c[0] for c in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


def begun(connection, other, sql):
    """A thread that runs a statement, once the fill of a view has begun."""
    made = other.submit(connection.cursor().execute, sql)
    until(lambda: made.done() or any(job["job"] is not None for job in jobs(connection).values()))
    assert not made.done(), made.result()
    return made


def test_a_paused_fill_holds_up_no_other_view_and_resumes(connection):
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS {SUMS}")
        job = jobs(connection)["v"]
        assert (job["state"], job["detail"], job["progress"]) == ("filling", "paused: backfill_rate_limit is 0", 0.0)
        assert jobs(connection)["live"]["job"] is None
        connection.execute("INSERT INTO t VALUES (1000, 7); DELETE FROM t WHERE k < 10; FLUSH")
        assert connection.execute("SELECT c FROM live WHERE n = 7").fetchall() == [(1,)]
        with pytest.raises(Error, match="v") as caught:
            connection.execute("SELECT * FROM v")
        assert caught.value.condition == "UNDEFINED_RELATION"
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO 1000000")
        made.result(60)
    connection.execute("FLUSH")
    assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []
    assert (jobs(connection)["v"]["job"], jobs(connection)["v"]["progress"]) == (None, None)


def test_the_variable_is_for_views_created_later(connection):
    connection.execute("SET backfill_rate_limit = 0")
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v AS {SUMS}")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = DEFAULT")
        made.result(60)
    connection.execute(f"CREATE MATERIALIZED VIEW own WITH (backfill_rate_limit = default) AS {SUMS}")
    assert connection.execute("SELECT count(*) FROM own").fetchall() == [(3,)]


def test_a_canceled_fill_leaves_no_view(connection):
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS {SUMS}")
        job = jobs(connection)["v"]["job"]
        cursor = connection.execute(f"CANCEL JOBS {job}, 999999")
        assert cursor.fetchall() == [(str(job),)]
        assert cursor.notices == ("no view with id 999999 is being filled",)
        with pytest.raises(Error) as caught:
            made.result(60)
        assert caught.value.condition == "QUERY_CANCELED"
    assert sorted(jobs(connection)) == ["live"]
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert connection.execute("SELECT count(*) FROM v").fetchall() == [(3,)]


def test_views_of_a_script_are_canceled_together(connection):
    with ThreadPoolExecutor(1) as other:
        limit = "WITH (backfill_rate_limit = 0)"
        script = f"CREATE MATERIALIZED VIEW a {limit} AS {SUMS}; CREATE MATERIALIZED VIEW b AS SELECT s FROM a"
        made = begun(connection, other, script)
        shown = jobs(connection)
        assert sorted(n for n in shown if shown[n]["job"] is not None) == ["a", "b"]
        connection.execute(f"CANCEL JOB {shown['b']['job']}")
        with pytest.raises(Error, match="canceled"):
            made.result(60)
    assert sorted(jobs(connection)) == ["live"]


def test_a_wrong_limit_is_refused_where_it_stands(connection):
    with pytest.raises(Error, match='backfill_rate_limit can\'t be "fast"') as caught:
        connection.execute("ALTER MATERIALIZED VIEW live SET BACKFILL_RATE_LIMIT TO fast")
    assert caught.value.sql[caught.value.span.start : caught.value.span.end] == "BACKFILL_RATE_LIMIT TO fast"
    with pytest.raises(Error, match='backfill_rate_limit can\'t be "-5"'):
        connection.execute(f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = -5) AS {SUMS}")
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW t SET BACKFILL_RATE_LIMIT TO 5")
    assert caught.value.condition == "CATALOG_TYPE_MISMATCH"
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW lives SET BACKFILL_RATE_LIMIT TO 5")
    assert (caught.value.condition, caught.value.hint) == ("UNDEFINED_RELATION", 'Did you mean "live"?')
    connection.execute("ALTER MATERIALIZED VIEW IF EXISTS lives SET BACKFILL_RATE_LIMIT TO 5")
