"""source_rate_limit in statements: WITH, SET and ALTER."""

import pytest

import watersmeet
from watersmeet.errors import Error


@pytest.fixture
def run(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f.csv").write_text("v\n1\n2\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:

        def run(text, rows=False):
            cursor = connection.execute(text.replace("WITH (", f"WITH (connector = 'file', path = '{tmp_path}/in', "))
            return cursor.fetchall() if rows else None

        yield run


def content(run, name="v"):
    run("FLUSH")
    return run(f"SELECT v FROM {name} ORDER BY v", rows=True)


def test_a_paused_source_goes_on_when_told_to(run):
    run("CREATE SOURCE s (v int) WITH (format = 'csv', source_rate_limit = 0)")
    run("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")
    assert content(run) == []
    assert '"state": "paused"' in run("SHOW JOBS LIKE 's'", rows=True)[0][11]
    run("ALTER SOURCE s SET SOURCE_RATE_LIMIT = DEFAULT")
    assert content(run) == [(1,), (2,)]
    run("ALTER SOURCE s SET source_rate_limit TO 0")
    assert content(run) == [(1,), (2,)]


def test_a_table_is_paused_too(run):
    run("CREATE TABLE t (v int) WITH (format = 'csv', source_rate_limit = 0)")
    assert content(run, "t") == []
    run("ALTER TABLE t SET SOURCE_RATE_LIMIT TO 1000")
    assert content(run, "t") == [(1,), (2,)]


def test_the_variable_is_for_sources_created_later(run):
    run("CREATE SOURCE before (v int) WITH (format = 'csv')")
    run("SET source_rate_limit = 0")
    run("CREATE SOURCE after (v int) WITH (format = 'csv')")
    run("CREATE SOURCE own (v int) WITH (format = 'csv', source_rate_limit = default)")
    for name in ("before", "after", "own"):
        run(f"CREATE MATERIALIZED VIEW of_{name} AS SELECT * FROM {name}")
    assert content(run, "of_before") == content(run, "of_own") == [(1,), (2,)]
    assert content(run, "of_after") == []


def test_a_wrong_limit_is_refused_at_its_place(run):
    run("CREATE SOURCE s (v int) WITH (format = 'csv')")
    with pytest.raises(Error, match='source_rate_limit can\'t be "fast"') as caught:
        run("ALTER SOURCE s SET SOURCE_RATE_LIMIT TO fast")
    assert caught.value.sql[caught.value.span.start : caught.value.span.end] == "SOURCE_RATE_LIMIT TO fast"
    run("CREATE TABLE plain (v int)")
    with pytest.raises(Error, match="has no connector") as caught:
        run("ALTER TABLE plain SET SOURCE_RATE_LIMIT TO 5")
    assert "SET SOURCE_RATE_LIMIT is for a table with a connector" in caught.value.detail
