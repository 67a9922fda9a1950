"""Look-ups of a connection, which keep a plan from the second one on: the same rows as without, after any change."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.session.connections import execute

SETUP = """
CREATE TABLE t (k bigint PRIMARY KEY, v int, name varchar);
CREATE MATERIALIZED VIEW w AS SELECT k, v, name FROM t;
INSERT INTO t SELECT i, i % 7, 'n' || i FROM generate_series(1, 3000) g(i);
"""


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.show_own_writes()
        for _ in connection.execute_script(SETUP):
            pass
        yield connection


@pytest.fixture
def parsed(monkeypatch):
    """The texts that are parsed."""
    found = []
    read = execute._parsed
    monkeypatch.setattr(
        execute, "_parsed", lambda session, text, given: found.append(text) or read(session, text, given)
    )
    return found


def test_a_look_up_is_parsed_twice_at_most(connection, parsed):
    for key in range(1, 10):
        cursor = connection.execute(f"SELECT name, v FROM w WHERE k = {key}")
        assert cursor.fetchall() == [(f"n{key}", key % 7)]
        assert [d[0] for d in cursor.description] == ["name", "v"]
        assert (cursor.statusmessage, cursor.rowcount) == ("SELECT", 1)
    assert len(parsed) <= 3, "the first one loads the view, the next one makes the plan"
    assert connection.execute("SELECT name, v FROM w WHERE k = 5000").fetchall() == []
    assert connection.execute("SELECT name, v FROM w WHERE k = 7").fetchall() == [("n7", 0)]
    with pytest.raises(Error, match="column"):
        connection.execute("SELECT name, absent FROM w WHERE k = 7")


def test_a_look_up_with_a_parameter_is_parsed_twice_at_most(connection, parsed):
    connection.execute("INSERT INTO t VALUES (-4, -1, 'below''s')")
    for key in range(1, 10):
        assert connection.execute("SELECT name, v FROM w WHERE k = ?", (key,)).fetchall() == [(f"n{key}", key % 7)]
    assert len(parsed) <= 4
    for key, name in ((-4, "below's"), (5, "n5"), (-4, "below's"), (-4, "below's")):
        assert connection.execute("SELECT name FROM w WHERE k = ?", [key]).fetchall() == [(name,)]
        assert connection.execute("SELECT k FROM w WHERE name = ?", [name]).fetchall() == [(key,)]
    parsed.clear()
    assert connection.execute("SELECT name FROM w WHERE k = ?", [-4]).fetchall() == [("below's",)]
    assert connection.execute("SELECT k FROM w WHERE name = ?", ["below's"]).fetchall() == [(-4,)]
    assert parsed == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((2.0,), [("n2",)]),
        (("2",), [("n2",)]),
        ((None,), []),
        ((True,), "operator does not exist"),
        ((2, 3), "1 parameters"),
        ((), "no value"),
        ("2", "sequence"),
        ((2**70,), []),
        ({"a": 2}, "no value"),
        (("a\ud800",), "surrogate"),
    ],
)
def test_other_parameters_are_read_as_before(connection, parsed, given, found):
    query = "SELECT name FROM w WHERE k = ?"
    for key in (1, 2, 3):
        connection.execute(query, (key,))
    parsed.clear()
    if isinstance(found, list):
        assert connection.execute(query, given).fetchall() == found
    else:
        with pytest.raises(Error, match=found):
            connection.execute(query, given)
    assert parsed


def test_look_ups_follow_changes_and_definitions(connection, parsed):
    def look_up(key=3):
        return connection.execute(f"SELECT * FROM w WHERE k = {key}").fetchall()

    for _ in range(4):
        assert look_up() == [(3, 3, "n3")]
    connection.execute("UPDATE t SET name = 'new' WHERE k = 3")
    assert look_up() == [(3, 3, "new")]
    connection.execute("DELETE FROM t WHERE k = 3")
    assert look_up() == []
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (3, 1, 'own')")
    assert connection.execute("SELECT * FROM t WHERE k = 3").fetchall() == [(3, 1, "own")]
    connection.execute("ROLLBACK")
    assert look_up() == []
    connection.execute("DROP MATERIALIZED VIEW w")
    with pytest.raises(Error, match="w"):
        look_up()
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k, v + 1 AS v FROM t")
    for _ in range(4):
        assert look_up(4) == [(4, 5)]
