"""Late rows, end to end: what a view shows equals the rule applied by hand, delivery by delivery (RW-37, RA-08, D-002-05)."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watersmeet

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
@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=6))
def test_views_show_what_was_not_late(tmp_path_factory, parallelism, deliveries):
    path = tmp_path_factory.mktemp("db")

    def connect():
        return watersmeet.connect(path, runtime="inprocess", parallelism=parallelism, replace_connectors=True)

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
        cursor.execute("CREATE TABLE e (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY")
        cursor.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")
        for second in (59, 0):
            cursor.execute("INSERT INTO e VALUES (1, ?)", (START + dt.timedelta(seconds=second),))
            cursor.execute("FLUSH")
        assert cursor.execute("SELECT n FROM n").fetchall() == [(1,)]
        cursor.execute("CREATE MATERIALIZED VIEW late AS SELECT k, sum(k) AS n FROM e GROUP BY k")
        assert cursor.execute("SELECT n FROM late").fetchall() == [(2,)]
    with pytest.raises(watersmeet.Error, match="views over \"e\" can't be made anew") as refused:
        watersmeet.connect(tmp_path, runtime="inprocess", parallelism=2, rebuild=True)
    assert "1 of its rows came late" in str(refused.value)
