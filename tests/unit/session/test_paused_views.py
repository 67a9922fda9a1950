"""SYSTEM PAUSE and RESUME: a paused view stands still, with what it feeds and the views over it, and loses nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from watersmeet.errors import Error

VIEWS = """
CREATE STREAM s (k string, v int); CREATE MUTABLE STREAM rates (k string, r int) PRIMARY KEY k;
CREATE MUTABLE STREAM totals (k string, n int64) PRIMARY KEY k;
CREATE MATERIALIZED VIEW doubled AS SELECT k, v * 2 AS w FROM s;
CREATE MATERIALIZED VIEW over AS SELECT w + 1 AS x FROM doubled;
CREATE MATERIALIZED VIEW counted INTO totals AS SELECT k, count() AS n FROM s GROUP BY k;
CREATE MATERIALIZED VIEW joined AS SELECT s.v, rates.r FROM s JOIN rates ON s.k = rates.k;
CREATE MATERIALIZED VIEW twin AS SELECT k, v FROM s;
"""


def opened(path):
    return watersmeet.connect(path, dialect="timeplus", runtime="inprocess")


def rows(connection, view, columns="*"):
    return Counter(connection.execute(f"SELECT {columns} FROM table({view})").fetchall())


def states(connection):
    return {r[0]: r[2] for r in connection.execute("SHOW JOBS").fetchall()}


def test_a_paused_view_stands_still_until_it_is_resumed(tmp_path):
    connection = opened(tmp_path / "db")
    connection.execute(VIEWS)
    connection.execute("INSERT INTO rates VALUES ('x', 7); INSERT INTO s VALUES ('x', 1); FLUSH")
    connection.execute("SYSTEM PAUSE MATERIALIZED VIEW doubled")
    connection.execute("SYSTEM PAUSE MATERIALIZED VIEW counted")
    connection.execute("INSERT INTO s VALUES ('x', 2), ('y', 3); FLUSH")
    assert rows(connection, "doubled") == Counter([("x", 2)])
    assert rows(connection, "over") == Counter([(3,)])
    assert rows(connection, "totals", "k, n") == Counter([("x", 1)])
    assert rows(connection, "joined") == Counter([(1, 7), (2, 7)])
    found = states(connection)
    assert [found[v] for v in ("doubled", "over", "counted", "joined")] == ["paused", "paused", "paused", "running"]
    assert connection.execute("SHOW ERRORS").fetchall() == []
    connection.close()

    connection = opened(tmp_path / "db")
    connection.execute("INSERT INTO s VALUES ('y', 4); FLUSH")
    assert rows(connection, "over") == Counter([(3,)])
    connection.execute("SYSTEM RESUME MATERIALIZED VIEW doubled; SYSTEM UNPAUSE MATERIALIZED VIEW counted; FLUSH")
    assert rows(connection, "over") == Counter([(3,), (5,), (7,), (9,)])
    assert rows(connection, "totals", "k, n") == Counter([("x", 2), ("y", 2)])
    connection.execute("INSERT INTO s VALUES ('z', 5); FLUSH")
    assert rows(connection, "doubled") == Counter([("x", 2), ("x", 4), ("y", 6), ("y", 8), ("z", 10)])
    assert set(states(connection).values()) == {"running"}
    connection.close()


def test_what_can_t_be_paused_or_resumed(tmp_path):
    connection = opened(tmp_path / "db")
    connection.execute(VIEWS)
    connection.execute("CREATE MATERIALIZED VIEW later AS SELECT v FROM s SETTINGS pause_on_start = true")
    connection.execute("INSERT INTO s VALUES ('x', 1); FLUSH; SYSTEM PAUSE MATERIALIZED VIEW doubled")
    assert rows(connection, "later") == Counter()
    for statement, condition in (
        ("CREATE MATERIALIZED VIEW m AS SELECT * FROM doubled", "VIEW_PAUSED"),
        ("SYSTEM RESUME MATERIALIZED VIEW over", "DEPENDENT_OBJECTS"),
        ("SYSTEM PAUSE MATERIALIZED VIEW s", "CATALOG_TYPE_MISMATCH"),
        ("SYSTEM PAUSE MATERIALIZED VIEW missing", "UNDEFINED_RELATION"),
    ):
        with pytest.raises(Error) as found:
            connection.execute(statement)
        assert found.value.condition == condition
    query = connection.cursor().execute("SELECT v FROM joined")
    with pytest.raises(Error, match="running queries read it"):
        connection.execute("SYSTEM PAUSE MATERIALIZED VIEW joined")
    query.close()
    connection.execute("SYSTEM RESUME MATERIALIZED VIEW later; DROP VIEW over; DROP VIEW doubled; FLUSH")
    assert rows(connection, "later") == Counter([(1,)])
    assert [r.name for r in connection.opened.catalog.relations.values() if r.hidden] == []
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_pauses_in_random_histories_lose_nothing(seed, tmp_path):
    rng = random.Random(seed)
    connection = opened(tmp_path / "db")
    connection.execute(VIEWS)
    shown = {"doubled": None, "joined": None, "twin": None}
    number = 0
    for _ in range(14):
        act = rng.choice(["insert", "insert", "rate", "pause", "resume", "reopen"])
        view = rng.choice(list(shown))
        if act == "insert":
            number += 1
            connection.execute(f"INSERT INTO s VALUES ('{rng.choice('xy')}', {number}); FLUSH")
        elif act == "rate":
            connection.execute(f"INSERT INTO rates VALUES ('{rng.choice('xy')}', {rng.randrange(3)}); FLUSH")
        elif act == "pause" and shown[view] is None:
            connection.execute(f"SYSTEM PAUSE MATERIALIZED VIEW {view}")
            shown[view] = rows(connection, view)
        elif act == "resume" and shown[view] is not None:
            connection.execute(f"SYSTEM RESUME MATERIALIZED VIEW {view}; FLUSH")
            shown[view] = None
        elif act == "reopen":
            connection.close()
            connection = opened(tmp_path / "db")
        everything = rows(connection, "s", "k, v")
        assert rows(connection, "twin") == (everything if shown["twin"] is None else shown["twin"])
        doubled = Counter({(k, 2 * v): n for (k, v), n in everything.items()})
        assert rows(connection, "doubled") == (doubled if shown["doubled"] is None else shown["doubled"])
        if shown["joined"] is not None:
            assert rows(connection, "joined") == shown["joined"]
    connection.close()
