"""ASOF joins as views: random histories against the reference, shapes of conditions, plans.

RW-20 to RW-28.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests import reference
from tests.thorough import mostly_slow

import watersmeet
from watersmeet.errors import Error

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, k varchar, x int);
CREATE TABLE b (id int PRIMARY KEY, k varchar, y bigint, v int);
"""


def view(kind, comparison):
    return (
        f"CREATE MATERIALIZED VIEW m AS SELECT a.id, a.k, a.x, b.id AS bid, b.y, b.v FROM a ASOF {kind} JOIN b "
        f"ON a.k = b.k AND a.x {comparison} b.y"
    )


def changes(connection, rng, name, width, content):
    for _ in range(rng.randrange(1, 6)):
        key = rng.randrange(12)
        if content and rng.random() < 0.3:
            key = rng.choice(sorted(content))
            connection.execute(f"DELETE FROM {name} WHERE id = {key}")
            del content[key]
            continue
        row = (key, rng.choice(["p", "q", None]), *(rng.choice([None, *range(6)]) for _ in range(width)))
        values = ", ".join("NULL" if v is None else repr(v) for v in row)
        connection.execute(f"INSERT INTO {name} VALUES ({values})")
        content[key] = row


@pytest.mark.parametrize("seed", mostly_slow(range(12), 2))
def test_random_histories(seed):
    rng = random.Random(seed)
    kind, comparison = rng.choice(["", "LEFT"]), rng.choice(["<", "<=", ">", ">="])
    left: dict = {}
    right: dict = {}
    with watersmeet.connect(runtime="inprocess", parallelism=1 + seed % 3) as connection:
        connection.execute(SETUP)
        late = rng.random() < 0.5
        if not late:
            connection.execute(view(kind, comparison))
        for step in range(5):
            changes(connection, rng, "a", 1, left)
            changes(connection, rng, "b", 2, right)
            if late and step == 2:
                connection.execute(view(kind, comparison))
                late = False
            if late:
                continue
            connection.execute("FLUSH")
            expected = reference.asof(
                kind.lower() or "inner",
                Counter(left.values()),
                Counter(right.values()),
                left_keys=(1,),
                right_keys=(1,),
                null_safe=(False,),
                comparison=comparison,
                left_value=2,
                right_value=2,
                ties=(0,),
                output=reference.columns("l0", "l1", "l2", "r0", "r2", "r3"),
                right_width=4,
            )
            assert Counter(connection.execute("SELECT * FROM m").fetchall()) == expected


@pytest.fixture
def connection():
    with watersmeet.connect(runtime="inprocess", parallelism=2) as found:
        found.execute(SETUP)
        yield found


def rows(connection, sql):
    connection.execute(f"CREATE MATERIALIZED VIEW w AS {sql}")
    found = sorted(connection.execute("SELECT * FROM w").fetchall(), key=str)
    connection.execute("DROP MATERIALIZED VIEW w")
    return found


def test_conditions_on_one_side(connection):
    connection.execute(
        "INSERT INTO a VALUES (1, 'p', 5), (2, 'p', 9); INSERT INTO b VALUES (1, 'p', 4, 0), (2, 'p', 5, 1)"
    )
    on = "a.k = b.k AND a.x >= b.y"
    assert rows(connection, f"SELECT a.id, b.id AS b FROM a ASOF JOIN b ON {on} AND b.v = 0") == [(1, 1), (2, 1)]
    assert rows(connection, f"SELECT a.id, b.id AS b FROM a ASOF JOIN b ON {on} AND a.x > 6") == [(2, 2)]
    assert rows(connection, f"SELECT a.id, b.id AS b FROM a ASOF LEFT JOIN b ON {on} AND a.x > 6") == [
        (1, None),
        (2, 2),
    ]
    # above the join a condition drops rows, it does not make other records the nearest
    assert rows(connection, f"SELECT a.id, b.id AS b FROM a ASOF LEFT JOIN b ON {on} WHERE b.v = 0") == []
    assert rows(connection, f"SELECT a.id, b.id AS b FROM a ASOF LEFT JOIN b ON {on} WHERE a.x > 6") == [(2, 2)]


def test_expressions_aggregates_and_views_above(connection):
    connection.execute(
        "INSERT INTO a VALUES (1, 'p', 5), (2, 'p', 9); INSERT INTO b VALUES (1, 'P', 4, 7), (2, 'P', 12, 8)"
    )
    assert rows(
        connection, "SELECT b.v, count(*) AS n FROM a ASOF JOIN b ON upper(a.k) = b.k AND a.x * 2 > b.y GROUP BY b.v"
    ) == [(7, 1), (8, 1)]
    assert rows(
        connection,
        "SELECT n.v FROM (SELECT b.v, a.x FROM a ASOF LEFT JOIN b ON upper(a.k) = b.k AND b.y <= a.x) n "
        "JOIN a ON n.x = a.x",
    ) == [(7,), (7,)]


def test_equally_near_records(connection):
    """The one with the smallest primary key, whatever came first; without a key, the first by the columns that are
    read.
    """
    connection.execute("INSERT INTO a VALUES (1, 'p', 5); INSERT INTO b VALUES (7, 'p', 4, 70)")
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT a.id, b.v FROM a ASOF JOIN b ON a.k = b.k AND a.x >= b.y")
    connection.execute("INSERT INTO b VALUES (3, 'p', 4, 99); FLUSH")
    assert connection.execute("SELECT * FROM m").fetchall() == [(1, 99)]
    connection.execute("DELETE FROM b WHERE id = 3; FLUSH")
    assert connection.execute("SELECT * FROM m").fetchall() == [(1, 70)]
    connection.execute(
        "CREATE TABLE c (k varchar, y int, v int); INSERT INTO c VALUES ('p', 4, 9), ('p', 4, 2), ('p', 4, NULL); FLUSH"
    )
    assert rows(connection, "SELECT a.id, c.v FROM a ASOF JOIN c ON a.k = c.k AND a.x >= c.y") == [(1, 2)]


@pytest.mark.parametrize(
    ("condition", "condition_name", "place"),
    [
        ("ASOF JOIN b ON a.k = b.k", "ASOF_WITHOUT_INEQUALITY", "a.k = b.k"),
        ("ASOF JOIN b ON a.x >= b.y", "ASOF_WITHOUT_EQUALITY", "a.x >= b.y"),
        ("ASOF JOIN b ON a.k = b.k AND a.x >= b.y AND a.id < b.id", "ASOF_WITHOUT_INEQUALITY", "a.id < b.id"),
        ("ASOF JOIN b ON a.k = b.k AND a.x >= b.y AND a.id + b.id > 3", "ASOF_WITHOUT_INEQUALITY", "a.id + b.id > 3"),
        ("ASOF JOIN b USING (k)", "ASOF_WITHOUT_INEQUALITY", "b"),
        ("ASOF RIGHT JOIN b ON a.k = b.k AND a.x >= b.y", "ASOF_KIND", "b"),
        ("ASOF FULL JOIN b ON a.k = b.k AND a.x >= b.y", "ASOF_KIND", "b"),
    ],
)
def test_refused(connection, condition, condition_name, place):
    sql = f"CREATE MATERIALIZED VIEW m AS SELECT a.id FROM a {condition}"
    with pytest.raises(Error) as raised:
        connection.execute(sql)
    assert raised.value.condition == condition_name
    assert raised.value.hint
    assert sql[raised.value.span.start : raised.value.span.end] == place


def test_values_without_nearness_are_refused(connection):
    connection.execute("CREATE TABLE c (k varchar, l int[]); CREATE TABLE d (k varchar, l int[])")
    sql = "CREATE MATERIALIZED VIEW m AS SELECT c.k FROM c ASOF JOIN d ON c.k = d.k AND c.l >= d.l"
    with pytest.raises(Error) as raised:
        connection.execute(sql)
    assert raised.value.condition == "DATATYPE_MISMATCH"
    assert sql[raised.value.span.start : raised.value.span.end] == "c.l >= d.l"


def test_the_plan_names_it(connection):
    text = "\n".join(
        r[0]
        for r in connection.execute(
            "EXPLAIN CREATE MATERIALIZED VIEW m AS SELECT a.id, b.v FROM a ASOF LEFT JOIN b ON a.k = b.k AND b.y <= a.x"
        ).fetchall()
    )
    assert "StreamAsOfJoin { type: AsofLeftOuter, predicate: a.k = b.k AND (a.x" in text
    assert ">= b.y)" in text


def test_a_second_view_reads_live_arrangements_and_still_shows_rows_with_a_null_key(connection):
    connection.execute("INSERT INTO a VALUES (1, 'p', 5), (2, NULL, 9); INSERT INTO b VALUES (1, 'p', 4, 0)")
    inner = "SELECT a.id, a.x, b.id AS bid, b.y, b.v FROM a ASOF JOIN b ON a.k = b.k AND a.x >= b.y"
    connection.execute(f"CREATE MATERIALIZED VIEW m AS {inner}; FLUSH")
    connection.execute(f"CREATE MATERIALIZED VIEW n AS {inner.replace('ASOF', 'ASOF LEFT')}")
    assert sorted(connection.execute("SELECT id, bid FROM n").fetchall()) == [(1, 1), (2, None)]
    connection.execute("DELETE FROM b WHERE id = 1; DELETE FROM a WHERE id = 2; FLUSH")
    assert connection.execute("SELECT id, bid FROM n").fetchall() == [(1, None)]
