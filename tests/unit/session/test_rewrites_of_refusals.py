"""What a view can't keep is refused with the reason and a hint, and what the hint says works."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error

SETUP = (
    "CREATE TABLE t (k INT PRIMARY KEY, ts TIMESTAMP, x INT)",
    "CREATE TABLE u (k INT, y INT)",
    "INSERT INTO t VALUES (1, '2024-01-01', 5), (2, '2999-01-01', 1)",
    "INSERT INTO u VALUES (1, 3), (1, 4), (9, 9)",
    "FLUSH",
)
CLOCK = "Compare a column with it: WHERE ts > now() - INTERVAL '1 day'."


@pytest.fixture(scope="module")
def cursor(tmp_path_factory):
    connection = watersmeet.connect(str(tmp_path_factory.mktemp("db")), runtime="inprocess")
    cursor = connection.cursor()
    for statement in SETUP:
        cursor.execute(statement)
    yield cursor
    connection.close()


@pytest.mark.parametrize(
    ("refused", "reason", "hint", "rewrite", "rows"),
    [
        (
            "SELECT k FROM t WHERE now() - ts < INTERVAL '1 day'",
            "Conditions containing now must be in the form of",
            "WHERE ts > now() -",
            ["CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE ts > now() - INTERVAL '1 day'", "SELECT k FROM v"],
            [(2,)],
        ),
        (
            "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k OR u.y = t.x)",
            "streaming nested-loop join",
            "EXISTS (…) OR EXISTS (…)",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k) "
                    "OR EXISTS (SELECT 1 FROM u WHERE u.y = t.x)"
                ),
                "SELECT k FROM v",
            ],
            [(1,)],
        ),
        (
            "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE (u.k = t.k AND u.y > 0) OR u.y = t.x)",
            "streaming nested-loop join",
            "NOT EXISTS (…) AND NOT EXISTS (…)",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k "
                    "AND u.y > 0) AND NOT EXISTS (SELECT 1 FROM u WHERE u.y = t.x)"
                ),
                "SELECT k FROM v",
            ],
            [(2,)],
        ),
        (
            "SELECT t.k, y FROM t JOIN u ON u.k = t.k OR u.y = t.x",
            "streaming nested-loop join",
            "combine them with UNION",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT t.k, y FROM t JOIN u ON u.k = t.k "
                    "UNION SELECT t.k, y FROM t JOIN u ON u.y = t.x"
                ),
                "SELECT * FROM v ORDER BY y",
            ],
            [(1, 3), (1, 4)],
        ),
        (
            "SELECT t.k, y FROM t LEFT JOIN u ON t.k = 1",
            "streaming nested-loop join",
            "ON a.one = b.one",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT a.k, b.y FROM (SELECT *, 1 AS one FROM t) AS a "
                    "LEFT JOIN (SELECT *, 1 AS one FROM u) AS b ON a.one = b.one AND a.k = 1"
                ),
                "SELECT * FROM v ORDER BY k, y",
            ],
            [(1, 3), (1, 4), (1, 9), (2, None)],
        ),
        (
            "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u JOIN u AS w ON u.k = t.k)",
            "streaming nested-loop join",
            "belongs in WHERE",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT k FROM t "
                    "WHERE EXISTS (SELECT 1 FROM u JOIN u AS w ON u.y = w.y WHERE u.k = t.k)"
                ),
                "SELECT * FROM v",
            ],
            [(1,)],
        ),
        (
            "SELECT k, ARRAY(SELECT y FROM u WHERE u.k = t.k ORDER BY y DESC) AS ys FROM t",
            "ORDER BY in ARRAY (SELECT …) of a view is not supported",
            "array_agg(a ORDER BY b)",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS "
                    "SELECT k, (SELECT array_agg(y ORDER BY y DESC) FROM u WHERE u.k = t.k) AS ys FROM t"
                ),
                "SELECT * FROM v ORDER BY k",
            ],
            [(1, [4, 3]), (2, None)],
        ),
        (
            "SELECT k, CURRENT_DATE AS d FROM t",
            "`CURRENT_DATE()` function is only allowed in `WHERE`, `HAVING` and `ON`",
            CLOCK,
            ["CREATE MATERIALIZED VIEW v AS SELECT k, ts FROM t WHERE ts > CURRENT_DATE", "SELECT k FROM v"],
            [(2,)],
        ),
        (
            "SELECT age(ts) AS a FROM t",
            "age() is not supported in a view",
            "INSERT INTO t SELECT …, now()",
            [
                "CREATE TABLE w (k INT, at TIMESTAMP)",
                "INSERT INTO w SELECT k, now()::timestamp FROM t",
                "FLUSH",
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT k, age(at, TIMESTAMP '2000-01-01') > INTERVAL '1 day' "
                    "AS old FROM w"
                ),
                "SELECT k, old FROM v ORDER BY k",
            ],
            [(1, True), (2, True)],
        ),
        (
            "SELECT k, random() AS r FROM t",
            "random() is not supported in a view",
            "INSERT INTO t SELECT …, random()",
            [
                "CREATE TABLE w (k INT, r DOUBLE PRECISION)",
                "INSERT INTO w SELECT k, random() FROM t",
                "FLUSH",
                "CREATE MATERIALIZED VIEW v AS SELECT k, r BETWEEN 0 AND 1 AS ok FROM w",
                "SELECT * FROM v ORDER BY k",
            ],
            [(1, True), (2, True)],
        ),
        (
            "SELECT gen_random_uuid() AS g FROM t",
            "gen_random_uuid() is not supported in a view",
            "INSERT INTO t SELECT …, gen_random_uuid()",
            [
                "CREATE TABLE w (k INT, g VARCHAR)",
                "INSERT INTO w SELECT k, gen_random_uuid() FROM t",
                "FLUSH",
                "CREATE MATERIALIZED VIEW v AS SELECT count(DISTINCT g) AS n FROM w",
                "SELECT n FROM v",
            ],
            [(2,)],
        ),
        (
            "SELECT current_schema() AS s FROM t",
            "current_schema() is not supported in a view",
            "Ask for it in the query that reads the view",
            [
                "CREATE MATERIALIZED VIEW v AS SELECT k FROM t",
                "SELECT k, current_schema() IS NOT NULL AS s FROM v ORDER BY k",
            ],
            [(1, True), (2, True)],
        ),
        (
            "WITH RECURSIVE r AS (SELECT k FROM t UNION ALL SELECT r.k + 1 FROM r WHERE r.k < 3) SELECT k FROM r",
            "WITH RECURSIVE in a view is not supported",
            "A query can be recursive, also over a view",
            [
                "CREATE MATERIALIZED VIEW v AS SELECT k FROM t",
                (
                    "WITH RECURSIVE r AS (SELECT k FROM v UNION ALL SELECT r.k + 1 FROM r WHERE r.k < 3) SELECT "
                    "k FROM r ORDER BY k"
                ),
            ],
            [(1,), (2,), (2,), (3,), (3,)],
        ),
        (
            (
                "WITH RECURSIVE r AS (SELECT k, y FROM u UNION ALL SELECT u.k, r.y FROM r JOIN u ON r.k = u.y) "
                "SELECT * FROM r"
            ),
            "WITH RECURSIVE in a view is not supported",
            "In a view write the steps as joins, with UNION ALL",
            [
                (
                    "CREATE MATERIALIZED VIEW v AS SELECT k, y FROM u UNION ALL SELECT b.k, a.y FROM u AS a JOIN "
                    "u AS b ON a.k = b.y"
                ),
                "SELECT count(*) FROM v",
            ],
            [(4,)],
        ),
        (
            "SELECT t.k FROM t JOIN u ON t.x < u.y",
            "streaming nested-loop join",
            "dynamic filter",
            [
                "CREATE MATERIALIZED VIEW v AS SELECT t.k FROM t WHERE t.x < (SELECT max(u.y) - 5 FROM u)",
                "SELECT k FROM v",
            ],
            [(2,)],
        ),
        (
            "SELECT k FROM t WHERE unnest(ARRAY[x]) = 1",
            "set-returning functions are not allowed in WHERE",
            "FROM t, unnest(…) AS x",
            ["CREATE MATERIALIZED VIEW v AS SELECT k FROM t, unnest(ARRAY[t.x]) AS e WHERE e = 1", "SELECT k FROM v"],
            [(2,)],
        ),
        (
            "SELECT unnest(generate_series(1, k)) AS x FROM t",
            "function unnest(integer) does not exist",
            "",
            [
                "CREATE MATERIALIZED VIEW v AS SELECT g FROM t, generate_series(1, t.k) AS g",
                "SELECT g FROM v ORDER BY g",
            ],
            [(1,), (1,), (2,)],
        ),
    ],
)
def test_refusal_and_rewrite(cursor, refused, reason, hint, rewrite, rows):
    with pytest.raises(Error) as found:
        cursor.execute(f"CREATE MATERIALIZED VIEW v AS {refused}")
    text = str(found.value)
    assert reason in text
    assert hint in text
    assert "LINE 1: " in text
    try:
        for statement in rewrite[:-1]:
            cursor.execute(statement)
        assert cursor.execute(rewrite[-1]).fetchall() == rows
    finally:
        cursor.execute("DROP MATERIALIZED VIEW v")
        cursor.execute("DROP TABLE IF EXISTS w")


def test_recursive_is_a_word_where_nothing_is(cursor):
    cursor.execute("CREATE MATERIALIZED VIEW v AS WITH RECURSIVE r AS (SELECT k FROM t) SELECT k FROM r")
    assert sorted(cursor.execute("SELECT k FROM v").fetchall()) == [(1,), (2,)]
    cursor.execute("DROP MATERIALIZED VIEW v")


def test_a_function_without_parentheses_has_its_place(cursor):
    with pytest.raises(Error) as found:
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT current_date AS d FROM t")
    assert "\n                                             ^^^^^^^^^^^^\n" in str(found.value)
