"""Late rows, end to end: what a view shows equals the rule applied by hand, delivery by delivery (RW-37, RA-08)."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import watersmeet
from tests.harness import connect_without_connectors
from tests.thorough import examples
from watersmeet.planner import compile_view

START = dt.datetime(2024, 1, 1)
DELAY = 20

ROWS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-100, 100))), max_size=6)


class Rule:
    """The rule, in plain Python."""

    def __init__(self):
        self.number = None
        self.kept = []

    def epoch(self, rows):
        self.kept += [(k, t) for k, t in rows if t is None or self.number is None or t >= self.number]
        times = [t for _, t in rows if t is not None]
        if times:
            greatest = max(times) - DELAY
            self.number = greatest if self.number is None else max(self.number, greatest)

    def content(self):
        return [(k, None if t is None else START + dt.timedelta(seconds=t)) for k, t in self.kept]


def order(rows):
    return sorted(rows, key=repr)


@pytest.mark.parametrize("parallelism", [1, 2])
@examples(48)
@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=6))
def test_views_show_what_was_not_late(tmp_path_factory, parallelism, deliveries):
    path = tmp_path_factory.mktemp("db")

    def connect():
        return connect_without_connectors(path, runtime="inprocess", parallelism=parallelism)

    connection = connect()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE e (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY")
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT k, ts FROM e")
    cursor.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")
    rule = Rule()
    for rows, restart in deliveries:
        for k, t in rows:
            # one statement a row, one epoch a delivery: how rows come together decides which are late
            cursor.execute("INSERT INTO e VALUES (?, ?)", (k, None if t is None else START + dt.timedelta(seconds=t)))
        cursor.execute("FLUSH")
        rule.epoch(rows)
        if restart:
            connection.close()
            connection = connect()
            cursor = connection.cursor()
        assert order(cursor.execute("SELECT k, ts FROM v").fetchall()) == order(rule.content())
    counts = {k: sum(1 for key, _ in rule.kept if key == k) for k, _ in rule.kept}
    assert dict(cursor.execute("SELECT k, n FROM n").fetchall()) == counts
    connection.close()


def test_views_with_late_rows_are_not_made_anew(tmp_path):
    """History has the late rows, the content has not: state made of history would take back what was never shown."""
    with watersmeet.connect(tmp_path, runtime="inprocess", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE e (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY"
        )
        cursor.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")
        for second in (59, 0):
            cursor.execute("INSERT INTO e VALUES (1, ?)", (START + dt.timedelta(seconds=second),))
            cursor.execute("FLUSH")
        assert cursor.execute("SELECT n FROM n").fetchall() == [(1,)]
        cursor.execute("CREATE MATERIALIZED VIEW late AS SELECT k, sum(k) AS n FROM e GROUP BY k")
        assert cursor.execute("SELECT n FROM late").fetchall() == [(2,)]
    with pytest.raises(watersmeet.Error, match='views over "e" can\'t be rebuilt') as refused:
        watersmeet.connect(tmp_path, runtime="inprocess", parallelism=2, rebuild=True)
    assert "1 of its rows arrived late" in str(refused.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) * {} AS n FROM e GROUP BY k",
        (
            "SELECT k + {} AS k, v FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS r "
            "FROM e) AS x WHERE r <= 1"
        ),
        "SELECT f.k + {} AS k, e.v FROM f LEFT JOIN e ON e.k = f.k",
        "SELECT f.k + {} AS k FROM f WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.k = f.k AND e.v > 3)",
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_view_made_later_does_not_use_state_without_late_rows(query, parallelism):
    """It shows rows that were late for the older view: what takes them back must know them."""
    with watersmeet.connect(runtime="inprocess", parallelism=parallelism) as connection:

        def run(sql):
            cursor = connection.cursor().execute(sql)
            return None if cursor.description is None else sorted(cursor.fetchall(), key=repr)

        run("CREATE TABLE f (k INT); INSERT INTO f VALUES (1), (2), (3)")
        run("CREATE TABLE e (k INT, ts TIMESTAMP, v INT, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY")
        run(f"CREATE MATERIALIZED VIEW early AS {query.format(1)}")
        run("INSERT INTO e VALUES (1, '2024-01-01 00:00:59', 1); FLUSH")
        run("INSERT INTO e VALUES (1, '2024-01-01 00:00:00', 9), (2, '2024-01-01 00:00:00', 9); FLUSH")
        run(f"CREATE MATERIALIZED VIEW later AS {query.format(2)}")
        run(
            "INSERT INTO e VALUES (1, '2024-01-01 00:01:00', 20), (2, '2024-01-01 00:01:00', 20), (3, "
            "'2024-01-01 00:01:00', 2); FLUSH"
        )
        if "f.k" in query:  # it reads what the older view keeps of `e`, which is all that this one shows
            assert run("SELECT * FROM later") == sorted(((k + 1, *v) for k, *v in run("SELECT * FROM early")), key=repr)
        else:
            assert run("SELECT * FROM later") == run(query.format(2))


def test_a_row_that_is_late_while_a_view_is_made(monkeypatch):
    """It was compiled to read what the older view keeps, which now lacks a row: it is compiled again."""
    compiled = []
    with (
        watersmeet.connect(runtime="inprocess", parallelism=2) as connection,
        ThreadPoolExecutor(1) as other_thread,
    ):
        connection.execute(
            "CREATE TABLE e (k INT, ts TIMESTAMP, v INT, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY"
        )
        connection.execute("CREATE MATERIALIZED VIEW early AS SELECT k, count(*) * 2 AS n FROM e GROUP BY k")
        connection.execute("INSERT INTO e VALUES (1, '2024-01-01 00:00:59', 1); FLUSH")

        def then_late(*args, **kwargs):
            made = compile_view(*args, **kwargs)
            if not compiled:
                late = "INSERT INTO e VALUES (1, '2024-01-01 00:00:00', 9); FLUSH"
                other_thread.submit(connection.execute, late).result()
            compiled.append(made)
            return made

        monkeypatch.setattr("watersmeet.maintenance.views.compile_view", then_late)
        connection.execute("CREATE MATERIALIZED VIEW later AS SELECT k, count(*) * 10 AS n FROM e GROUP BY k")
        connection.execute("INSERT INTO e VALUES (1, '2024-01-01 00:01:00', 3); FLUSH")
        assert connection.execute("SELECT early.n, later.n FROM early JOIN later ON early.k = later.k").fetchall() == [
            (4, 30)
        ]
        assert [len(made) > 0 for made in compiled] == [True, True]


_COUNTED = "SELECT k, count(*) AS n, sum(v) AS s FROM early GROUP BY k"


@pytest.mark.parametrize(
    ("early", "later"),
    [
        ("SELECT * FROM e", _COUNTED),
        ("SELECT k + 1 AS k, v FROM e", _COUNTED),
        ("SELECT e.k, v, f.k AS fk FROM e FULL JOIN f ON e.k = f.k", _COUNTED),
        (
            "SELECT e.k, v, f.k AS fk FROM e FULL JOIN f ON e.k = f.k",
            "SELECT coalesce(k, fk) AS x, count(v) AS n FROM early GROUP BY coalesce(k, fk)",
        ),
        (
            "SELECT e.k, v, f.k AS fk FROM e FULL JOIN f ON e.k = f.k",
            "SELECT early.k, v FROM f JOIN early ON f.k = early.fk",
        ),
        ("SELECT e.k, v FROM f LEFT JOIN e ON e.k = f.k", _COUNTED),
        (
            "SELECT k, v FROM e WHERE NOT EXISTS (SELECT 1 FROM f WHERE f.k = e.k + 1)",
            "SELECT k + 1 AS x, count(*) AS n FROM early GROUP BY k + 1",
        ),
        ("SELECT g.k, w, v FROM e LEFT JOIN g FOR SYSTEM_TIME AS OF PROCTIME() ON e.k = g.k", _COUNTED),
    ],
)
def test_a_view_of_a_view_is_filled_with_what_that_one_shows(early, later):
    """Not with what its inputs would give now: they have the rows that were late for it, and what look-ups find has
    changed.
    """
    with watersmeet.connect(runtime="inprocess", parallelism=2) as connection:

        def run(sql):
            cursor = connection.cursor().execute(sql)
            return None if cursor.description is None else sorted(cursor.fetchall(), key=repr)

        run("CREATE TABLE f (k INT); INSERT INTO f VALUES (1), (2), (3); CREATE TABLE g (k INT PRIMARY KEY, w INT)")
        run("CREATE TABLE e (k INT, ts TIMESTAMP, v INT, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY")
        run(f"CREATE MATERIALIZED VIEW early AS {early}")
        run("INSERT INTO e VALUES (1, '2024-01-01 00:00:59', 1), (4, '2024-01-01 00:00:59', 2); FLUSH")
        run("INSERT INTO g VALUES (1, 100)")
        run("INSERT INTO e VALUES (1, '2024-01-01 00:00:00', 9), (2, '2024-01-01 00:00:00', 9); FLUSH")
        run(f"CREATE MATERIALIZED VIEW later AS {later}")
        assert run("SELECT * FROM later") == run(later)
        run(
            "INSERT INTO e VALUES (1, '2024-01-01 00:01:00', 20), (2, '2024-01-01 00:01:00', 20), (3, "
            "'2024-01-01 00:01:00', 2); FLUSH"
        )
        run("DELETE FROM f WHERE k = 1; INSERT INTO f VALUES (4), (5); FLUSH")
        assert run("SELECT * FROM later") == run(later)
