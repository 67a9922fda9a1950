"""Process-time temporal joins as views: backfill, restart, views above, refusals, plans.

RW-49 to RW-64, RA-17 to RA-21.
"""

from __future__ import annotations

import functools

import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime import coordinator
from watersmeet.runtime.workers import Budget

SETUP = """
CREATE TABLE clicks (id int, k int) APPEND ONLY;
CREATE TABLE orders (id int PRIMARY KEY, k int);
CREATE TABLE dim (k int PRIMARY KEY, name varchar);
CREATE TABLE plain (k int, name varchar);
"""


@pytest.fixture(params=[1, 3])
def connection(request, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=request.param) as found:
        found.execute(SETUP)
        yield found


def rows(connection, name):
    connection.execute("FLUSH")
    return sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=str)


def view(connection, name, sql):
    connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")


LEFT = "SELECT o.id, d.name FROM orders o LEFT JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON o.k = d.k"


def test_rows_that_are_there_meet_what_is_there(connection):
    """On creation all stored rows look up the right side as it is then, however large either of them is."""
    connection.execute("INSERT INTO clicks SELECT i, i % 50 FROM generate_series(1, 500) AS g(i)")
    connection.execute("INSERT INTO dim SELECT i, 'n' || i FROM generate_series(0, 2000) AS g(i)")
    connection.execute("UPDATE dim SET name = 'new' WHERE k = 7; FLUSH")
    view(
        connection, "v", "SELECT c.id, d.name FROM clicks c JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON c.k = d.k"
    )
    found = rows(connection, "v")
    assert len(found) == 500
    assert sum(name == "new" for _, name in found) == 10
    connection.execute("DELETE FROM dim")
    assert len(rows(connection, "v")) == 500


def test_a_transaction_of_both_sides_changes_the_right_side_first(connection):
    view(connection, "v", LEFT)
    connection.execute("BEGIN; INSERT INTO orders VALUES (1, 5); INSERT INTO dim VALUES (5, 'five'); COMMIT")
    assert rows(connection, "v") == [(1, "five")]


def test_views_above_follow_what_is_taken_back(connection):
    view(connection, "v", LEFT)
    view(connection, "counted", "SELECT name, count(*) AS n FROM v GROUP BY name")
    connection.execute("INSERT INTO dim VALUES (1, 'a'); INSERT INTO orders VALUES (1, 1), (2, 1), (3, 9)")
    assert rows(connection, "counted") == [("a", 2), (None, 1)]
    connection.execute("UPDATE dim SET name = 'b' WHERE k = 1; FLUSH")
    connection.execute("UPDATE orders SET k = 1 WHERE id = 3; DELETE FROM orders WHERE id = 1")
    assert rows(connection, "counted") == [("a", 1), ("b", 1)]
    # a view that comes late is filled from what the first one shows, not by looking up anew
    view(connection, "late", "SELECT name FROM v WHERE name <> 'b'")
    assert rows(connection, "late") == [("a",)]
    connection.execute("DELETE FROM orders")
    assert rows(connection, "counted") == rows(connection, "late") == rows(connection, "v") == []


def test_two_views_with_the_same_join_have_histories_of_their_own(connection):
    connection.execute("INSERT INTO dim VALUES (1, 'a'); INSERT INTO orders VALUES (1, 1)")
    view(connection, "v", f"SELECT count(name) AS n FROM ({LEFT}) x")
    connection.execute("FLUSH; DELETE FROM dim; FLUSH")
    view(connection, "w", f"SELECT count(*) AS c, count(name) AS n FROM ({LEFT}) x")
    assert (rows(connection, "v"), rows(connection, "w")) == ([(1,)], [(1, 0)])
    connection.execute("DELETE FROM orders")
    assert (rows(connection, "v"), rows(connection, "w")) == ([(0,)], [(0, 0)])


def test_groups_of_two_views_with_the_same_join_are_of_what_each_met(connection):
    """They are not shared: the rows of the first one met an earlier name."""
    counted = (
        "SELECT d.name, count(*) * {} AS n FROM clicks c JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON c.k = "
        "d.k GROUP BY d.name"
    )
    connection.execute("INSERT INTO dim VALUES (1, 'one')")
    view(connection, "early", counted.format(1))
    connection.execute("INSERT INTO clicks VALUES (1, 1), (2, 1); FLUSH; INSERT INTO dim VALUES (1, 'other'); FLUSH")
    view(connection, "later", counted.format(2))
    connection.execute("INSERT INTO clicks VALUES (3, 1)")
    assert (rows(connection, "early"), rows(connection, "later")) == ([("one", 2), ("other", 1)], [("other", 6)])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_restart_remembers_what_rows_met(tmp_path, parallelism):
    path = tmp_path / "again"
    with watersmeet.connect(path, runtime="inprocess", parallelism=parallelism) as connection:
        connection.execute(SETUP)
        view(connection, "v", LEFT)
        connection.execute("INSERT INTO dim VALUES (1, 'a'); INSERT INTO orders VALUES (1, 1), (2, 1); FLUSH")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("UPDATE dim SET name = 'b' WHERE k = 1; FLUSH; DELETE FROM orders WHERE id = 2; FLUSH")
        assert rows(connection, "v") == [(1, "a")]
    with pytest.raises(Error) as raised:
        watersmeet.connect(path, runtime="inprocess", parallelism=3, rebuild=True)
    assert raised.value.condition == "FEATURE_NOT_SUPPORTED"


def test_a_join_without_equality_reads_the_whole_right_side(connection):
    view(
        connection,
        "v",
        "SELECT c.id, p.name FROM clicks c JOIN plain FOR SYSTEM_TIME AS OF PROCTIME() AS p ON c.k < p.k",
    )
    connection.execute(
        "INSERT INTO plain VALUES (5, 'five'), (9, 'nine'); FLUSH; INSERT INTO clicks VALUES (1, 6), (2, 1), (3, 9)"
    )
    assert rows(connection, "v") == [(1, "nine"), (2, "five"), (2, "nine")]
    connection.execute("DELETE FROM plain")
    assert len(rows(connection, "v")) == 3


def test_indexes_prefixes_and_materialized_views(connection):
    connection.execute("CREATE INDEX by_name ON plain (name, k)")
    view(
        connection,
        "v",
        "SELECT c.id, p.k FROM clicks c JOIN plain FOR SYSTEM_TIME AS OF PROCTIME() AS p ON c.id::varchar = p.name",
    )
    view(connection, "totals", "SELECT k, count(*) AS n FROM plain GROUP BY k")
    view(
        connection, "w", "SELECT c.id, t.n FROM clicks c JOIN totals FOR SYSTEM_TIME AS OF PROCTIME() AS t ON c.k = t.k"
    )
    connection.execute("INSERT INTO plain VALUES (4, '7'), (4, '8'); FLUSH; INSERT INTO clicks VALUES (7, 4)")
    assert rows(connection, "v") == [(7, 4)]
    assert rows(connection, "w") == [(7, 2)]


@pytest.mark.parametrize(
    ("condition", "sql", "message"),
    [
        (
            "TEMPORAL_KIND",
            "SELECT 1 AS x FROM clicks c RIGHT JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() d ON c.k = d.k",
            "dangling",
        ),
        ("TEMPORAL_KIND", "SELECT 1 AS x FROM dim FOR SYSTEM_TIME AS OF PROCTIME()", "dangling"),
        (
            "TEMPORAL_KIND",
            "SELECT 1 AS x FROM clicks c LEFT JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() d ON c.k < d.k",
            "inner join",
        ),
        (
            "TEMPORAL_KIND",
            "SELECT 1 AS x FROM orders o JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() d ON o.k < d.k",
            "append only",
        ),
        (
            "TEMPORAL_KEY",
            "SELECT 1 AS x FROM clicks c JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() d ON c.id::varchar = d.name",
            "key columns",
        ),
        (
            "TEMPORAL_KEY",
            "SELECT 1 AS x FROM clicks c JOIN plain FOR SYSTEM_TIME AS OF PROCTIME() d ON c.k = d.k",
            "key columns",
        ),
        (
            "TEMPORAL_RIGHT_SIDE",
            (
                "WITH d AS (SELECT * FROM dim) SELECT 1 AS x FROM clicks c JOIN d FOR SYSTEM_TIME AS OF "
                "PROCTIME() ON c.k = d.k"
            ),
            "CTE",
        ),
        (
            "FEATURE_NOT_SUPPORTED",
            "SELECT 1 AS x FROM clicks c JOIN dim FOR SYSTEM_TIME AS OF now() d ON c.k = d.k",
            "PROCTIME",
        ),
    ],
)
def test_refused(connection, condition, sql, message):
    with pytest.raises(Error, match=message) as raised:
        view(connection, "v", sql)
    assert raised.value.condition == condition
    assert raised.value.span is not None


def test_plans_and_notices(connection):
    cursor = connection.cursor()
    cursor.execute(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {LEFT}")
    text = "\n".join(r[0] for r in cursor.fetchall())
    assert "StreamTemporalJoin { type: LeftOuter, append_only: false, predicate: orders.k = dim.k" in text
    cursor.execute(f"CREATE MATERIALIZED VIEW v AS {LEFT}")
    assert any("memo" in notice for notice in cursor.notices)
    cursor.execute(
        "CREATE MATERIALIZED VIEW w AS SELECT c.id FROM clicks c JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() d "
        "ON c.k = d.k"
    )
    assert not cursor.notices


def test_a_backlog_of_files_is_looked_up_in_a_complete_right_side(tmp_path, monkeypatch):
    """However many epochs the right side takes, rows that look it up wait: sources of both sides began with a
    backlog.
    """
    for name, count in (("rows", 30), ("dim", 200)):
        (tmp_path / name).mkdir()
        for part in range(10):
            text = "".join(f'{{"k": {i}, "v": "{name}{i}"}}\n' for i in range(part, count, 10))
            (tmp_path / name / f"{part}.json").write_text(text)
    monkeypatch.setattr(coordinator, "Budget", functools.partial(Budget, first_rows=4, max_rows=16))
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE dim (k int PRIMARY KEY, v varchar) WITH (connector = 'file', path = '{tmp_path / "dim"}',
            format = 'json');
            CREATE SOURCE items (k int, v varchar) WITH (connector = 'file', path = '{tmp_path / "rows"}',
            format = 'json');
            CREATE MATERIALIZED VIEW m AS SELECT i.k, d.v FROM items i LEFT
            JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON i.k = d.k;
        """)
        assert rows(connection, "m") == sorted([(k, f"dim{k}") for k in range(30)], key=str)


def test_groups_of_two_views_with_the_same_asof_join_on_arrival_are_of_what_each_met():
    counted = (
        "SELECT r.label AS label, count() * {} AS n FROM s ASOF JOIN r ON s.k = r.k AND s.t >= r.t GROUP BY r.label "
        "SETTINGS seek_to = 'earliest'"
    )
    with watersmeet.connect(runtime="inprocess", parallelism=1, dialect="timeplus") as connection:
        for sql in (
            "CREATE STREAM s (k int, t int)",
            "CREATE STREAM r (k int, t int, label string)",
            "CREATE MATERIALIZED VIEW early AS " + counted.format(1),
            "INSERT INTO r (k, t, label) VALUES (1, 1, 'one')",
            "INSERT INTO s (k, t) VALUES (1, 5), (1, 5)",
            "INSERT INTO r (k, t, label) VALUES (1, 2, 'other')",
            "CREATE MATERIALIZED VIEW later AS " + counted.format(2),
            "INSERT INTO s (k, t) VALUES (1, 6)",
        ):
            connection.execute(sql)
            connection.flush()
        found = [sorted(connection.execute(f"SELECT label, n FROM table({v})").fetchall()) for v in ("early", "later")]
        assert found == [[("one", 2), ("other", 1)], [("other", 6)]]


def test_only_left_rows_that_may_be_deleted_are_read_whole(connection):
    """The memo keeps their key, the columns that come out and the key of the join."""
    connection.execute("CREATE TABLE wide (id int PRIMARY KEY, k int, x int, y int, z int)")
    connection.execute("CREATE TABLE grows (id int, k int, x int, y int, z int) APPEND ONLY")

    def plan(left):
        sql = f"SELECT l.x, d.name FROM {left} l JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON l.k = d.k"
        found = connection.execute(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {sql}").fetchall()
        return "\n".join(r[0] for r in found)

    assert "StreamTableScan { table: grows, columns: [k, x, _row_id] }" in plan("grows")
    assert "StreamTableScan { table: wide, columns: [id, k, x, y, z] }" in plan("wide")
    kept = "key [wide.id, wide.k, wide.x], columns [wide.id, wide.k, wide.x, dim.name]; unbounded: keeps what every"
    assert kept in plan("wide")
    assert plan("(SELECT k, x FROM wide)") == plan("wide")
    assert plan("(SELECT k, x FROM grows)") == plan("grows")
