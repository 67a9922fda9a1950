"""CREATE FUNCTION and CREATE AGGREGATE in Python: statements, rights, views, queries and restarts."""

from __future__ import annotations

import functools
import sys
import threading

import pandas as pd
import pytest
from pyspark.sql.functions import pandas_udf, udf
from pyspark.sql.types import LongType, StringType

import watersmeet

GCD = """CREATE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE python AS $$
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a
$$"""
PARTS = """CREATE FUNCTION parts(s varchar) RETURNS TABLE (i int, part varchar) LANGUAGE python AS $$
def parts(s):
    for i, part in enumerate((s or '').split()):
        yield i, part
$$"""
SERIES = """CREATE FUNCTION series(n int) RETURNS TABLE (x int) LANGUAGE python AS $$
def series(n):
    for i in range(n):
        yield i
$$"""
WMEAN = """CREATE AGGREGATE wmean(value int, weight int) RETURNS float8 LANGUAGE python AS $$
def create_state():
    return (0, 0)

def accumulate(state, value, weight):
    if value is None or weight is None:
        return state
    (s, w) = state
    return (s + value * weight, w + weight)

def retract(state, value, weight):
    raise AssertionError

def finish(state):
    (sum, weight) = state
    return None if weight == 0 else sum / weight
$$"""


def test_views_follow_and_queries_agree(run):
    run(f"{GCD}; CREATE TABLE t (a int, b int); INSERT INTO t VALUES (4, 6), (9, 6), (5, 7)")
    query = "SELECT a, gcd(a, b) AS g FROM t WHERE gcd(a, b) > 1"
    run(f"CREATE MATERIALIZED VIEW m AS {query}")
    run("DELETE FROM t WHERE a = 4; INSERT INTO t VALUES (12, 18); FLUSH")
    assert sorted(run("SELECT * FROM m")) == sorted(run(query)) == [(9, 3), (12, 6)]
    run("CREATE MATERIALIZED VIEW j AS SELECT x.a, y.b FROM t x JOIN t y ON gcd(x.a, 100) = y.b - 5")
    assert run("SELECT * FROM j") == [(9, 6)]
    assert run("SELECT gcd(12, NULLIF(a, a)) FROM t LIMIT 0") == []
    run("CREATE TABLE g (a int, b int AS gcd(a, 6)); INSERT INTO g (a) VALUES (4); FLUSH")
    assert run("SELECT b FROM g") == [(2,)]


def test_a_row_that_fails_is_null_in_a_view_and_an_error_in_a_query(run, fails):
    run(f"{GCD}; CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT a, gcd(a, 6) AS g FROM t")
    run("INSERT INTO t VALUES (4), (NULL); FLUSH")
    assert sorted(run("SELECT * FROM m"), key=repr) == [(4, 2), (None, None)]
    ((_, kind, _, _, message),) = run("SHOW ERRORS")
    assert kind == "expression"
    assert "TypeError: unsupported operand" in message
    refused = fails("SELECT gcd(a, 6) FROM t")
    assert refused.condition == "INVALID_VALUE"
    assert refused.message.startswith("function gcd: TypeError: ")
    assert run("SELECT gcd(a, 6) FROM t WHERE a = 4") == [(2,)]


def test_a_body_that_ends_its_process_stops_the_view_alone(run, fails):
    run("CREATE FUNCTION dies(a int) RETURNS int LANGUAGE python AS $$\nimport os\ndef dies(a): os._exit(1)\n$$")
    run("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW other AS SELECT a FROM t")
    run("CREATE MATERIALIZED VIEW m AS SELECT dies(a) AS d FROM t; INSERT INTO t VALUES (1)")
    run("FLUSH")
    assert fails("SELECT * FROM m").condition == "VIEW_FAILED"
    assert run("SELECT * FROM other") == [(1,)]
    assert fails("SELECT dies(a) FROM t").condition == "FUNCTION_STOPPED"


def test_table_functions(run):
    run(f"{PARTS}; {SERIES}; CREATE TABLE t (k int, s varchar); INSERT INTO t VALUES (1, 'a b'), (2, NULL)")
    assert run("SELECT * FROM series(3)") == [(0,), (1,), (2,)]
    assert run("SELECT series(2)") == [(0,), (1,)]
    assert run("SELECT p.part, x FROM parts('a b') AS p, series(1) WHERE p.i = 1") == [("b", 0)]
    run("CREATE MATERIALIZED VIEW m AS SELECT k, p.* FROM t, parts(t.s) AS p")
    run("INSERT INTO t VALUES (3, 'c'); DELETE FROM t WHERE k = 1; FLUSH")
    assert run("SELECT * FROM m") == [(3, 0, "c")]
    assert run("SELECT k, part FROM t LEFT JOIN LATERAL parts(s) AS p ON true ORDER BY k") == [(2, None), (3, "c")]


def test_aggregates(run, fails):
    run(f"{WMEAN}; CREATE TABLE t (k int, v int, w int); INSERT INTO t VALUES (1, 10, 1), (1, 20, 3), (2, 5, 0)")
    query = "SELECT k, wmean(v, w) AS a, wmean(v, w) FILTER (WHERE v < 20) AS f FROM t GROUP BY k"
    run(f"CREATE MATERIALIZED VIEW m AS {query}; CREATE MATERIALIZED VIEW e AS SELECT wmean(v, w) AS a FROM t")
    assert sorted(run("SELECT * FROM m")) == sorted(run(query)) == [(1, 17.5, 10.0), (2, None, None)]
    run("DELETE FROM t WHERE v = 10; INSERT INTO t VALUES (2, 7, 2); FLUSH")
    assert sorted(run("SELECT * FROM m")) == sorted(run(query)) == [(1, 20.0, None), (2, 7.0, 7.0)]
    run("DELETE FROM t; FLUSH")
    assert run("SELECT * FROM e") == run("SELECT wmean(v, w) FROM t") == [(None,)]
    run("INSERT INTO t VALUES (1, 10, 1), (2, 20, 1); FLUSH")
    assert sorted(run("SELECT k, wmean(v, w) OVER (ORDER BY k) FROM t")) == [(1, 10.0), (2, 15.0)]
    assert fails("SELECT wmean(v) FROM t").condition == "UNDEFINED_FUNCTION"
    run(
        "CREATE AGGREGATE joined(s int) RETURNS varchar LANGUAGE python AS $$\n"
        "def create_state(): return ''\ndef accumulate(state, s): return state + str(s)\n$$"
    )
    assert run("SELECT joined(v), joined(v ORDER BY v DESC), joined(DISTINCT w) FROM t") == [("1020", "2010", "1")]


def test_definitions_outlive_the_session(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute(f"{GCD}; {WMEAN}; CREATE TABLE t (a int, b int)")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT gcd(a, b) AS g, wmean(a, b) AS w FROM t GROUP BY 1")
        connection.execute("CREATE OR REPLACE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE SQL RETURN 0")
        connection.execute("INSERT INTO t VALUES (4, 6)")
    with watersmeet.connect(path, runtime="inprocess", parallelism=2, rebuild=True) as connection:
        connection.execute("INSERT INTO t VALUES (6, 9); FLUSH")
        assert sorted(connection.execute("SELECT * FROM m").fetchall()) == [(0, 5.2)]
        assert connection.execute("SELECT gcd(4, 6)").fetchall() == [(0,)]
        notices = connection.execute(f"{GCD.replace('CREATE', 'CREATE OR REPLACE')}").notices
        assert notices == ('materialized view "m" was computed again',)
        assert sorted(connection.execute("SELECT * FROM m").fetchall()) == [(2, 4.0), (3, 6.0)]
        connection.execute("DROP AGGREGATE wmean CASCADE; DROP FUNCTION gcd")
        assert connection.execute("SHOW MATERIALIZED VIEWS").fetchall() == []


def test_show_drop_and_dependents(run, fails):
    run(f"{GCD}; {PARTS}; CREATE TABLE t (a int); CREATE VIEW v AS SELECT gcd(a, 6) AS g FROM t")
    assert run("SHOW FUNCTIONS") == [
        ("gcd", "a integer, b integer", "integer", "python", None),
        ("parts", "s character varying", "TABLE (i integer, part character varying)", "python", None),
    ]
    assert run("SHOW CREATE FUNCTION gcd") == [("gcd", GCD)]
    assert fails("DROP FUNCTION gcd").condition == "DEPENDENT_OBJECTS"
    assert fails(GCD).condition == "DUPLICATE_OBJECT"
    shown = "\n".join(line for (line,) in run("EXPLAIN CREATE MATERIALIZED VIEW m AS SELECT gcd(a, 6) AS g FROM t"))
    assert "gcd(" in shown
    assert "watersmeet_" not in shown
    run("DROP FUNCTION gcd CASCADE; DROP FUNCTION parts(varchar)")
    assert run("SHOW FUNCTIONS") == run("SHOW VIEWS") == []


@pytest.mark.parametrize(
    ("clauses", "condition", "message"),
    [
        ("LANGUAGE python AS $$ x = 1 $$", "INVALID_FUNCTION", "the body has no function f"),
        ("LANGUAGE python AS $$ f = 1 $$", "INVALID_FUNCTION", "the body has no function f"),
        ("LANGUAGE python AS $$ def f(: $$", "INVALID_FUNCTION", "the body is not Python"),
        ("LANGUAGE python AS $$ import nowhere $$", "INVALID_FUNCTION", "no module nowhere in this environment"),
        ("LANGUAGE python AS $$ 1 / 0 $$", "INVALID_FUNCTION", "ZeroDivisionError: division by zero"),
        ("LANGUAGE python AS $$ import os; os._exit(0) $$", "FUNCTION_STOPPED", "it ended its process"),
        ("LANGUAGE python AS f USING LINK 'http://x'", "FEATURE_NOT_SUPPORTED", "USING LINK"),
        ("LANGUAGE rust AS $$ fn f() {} $$", "FEATURE_NOT_SUPPORTED", "a function in RUST"),
        ("LANGUAGE java AS $$ $$", "FEATURE_NOT_SUPPORTED", "a function in JAVA"),
        ("LANGUAGE python AS $$ $$ WITH (async = true)", "FEATURE_NOT_SUPPORTED", "the option async"),
    ],
)
def test_bodies_and_clauses_that_are_refused(fails, clauses, condition, message):
    found = fails(f"CREATE FUNCTION f(a int) RETURNS int {clauses}")
    assert (found.condition, message in found.message, found.span is not None) == (condition, True, True)


def test_volatile_functions_are_for_queries(run, fails):
    run("CREATE FUNCTION f() RETURNS float8 LANGUAGE python VOLATILE AS 'from random import random as f'")
    run("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2), (3); CREATE TABLE u (x float8)")
    run("INSERT INTO u SELECT f() FROM t")
    assert run("SELECT count(DISTINCT x) FROM u") == [(3,)]
    assert "the volatile function f" in fails("CREATE MATERIALIZED VIEW m AS SELECT f() AS x FROM t").message


def test_columns_of_many_rows_at_once(run):
    run(
        "CREATE FUNCTION plus(a int, b int) RETURNS int LANGUAGE python AS $$\n"
        "import pyarrow.compute as pc\ndef plus(a, b): return pc.add(a, b)\n$$ WITH (batch = true)"
    )
    run("CREATE TABLE t (a int, b int); INSERT INTO t VALUES (1, 2), (2147483647, NULL)")
    assert run("SELECT plus(a, b) FROM t") == [(3,), (None,)]


def test_constants_of_other_functions_are_not_computed_in_advance(run, fails):
    run(GCD)
    assert run("SELECT lpad('x', gcd(4, 6)), abs(gcd(4, 6)) + 1, gcd(4, 6) || 'x'") == [(" x", 3, "2x")]
    assert fails("SELECT 1 LIMIT gcd(4, 6)").condition == "INVALID_VALUE"


def test_only_roles_with_usage_create_them(run, fails, connection):
    run(f"{GCD}; CREATE ROLE w; GRANT writer TO w; CREATE ROLE r; GRANT reader TO r")
    made = "CREATE FUNCTION f(a int) RETURNS int LANGUAGE python AS 'def f(a): return a'"
    run("SET ROLE w")
    assert run("SELECT gcd(4, 6)") == [(2,)]
    assert (fails(made).condition, "language python" in fails(made).message) == ("PERMISSION_DENIED", True)
    run("CREATE FUNCTION s(a int) RETURNS int LANGUAGE SQL RETURN a")
    assert fails("GRANT USAGE ON LANGUAGE python TO w").condition == "PERMISSION_DENIED"
    run("RESET ROLE; GRANT USAGE ON LANGUAGE python TO w, r")
    assert run("SHOW GRANTS") == [("r", "language python", "USAGE"), ("w", "language python", "USAGE")]
    run("SET ROLE r")
    assert fails(made).condition == "PERMISSION_DENIED"
    run(f"SET ROLE w; {made}; RESET ROLE; REVOKE USAGE ON LANGUAGE python FROM w; SET ROLE w")
    assert fails(made.replace("CREATE", "CREATE OR REPLACE")).condition == "PERMISSION_DENIED"
    run("RESET ROLE")
    refused = fails("GRANT USAGE ON LANGUAGE perl TO w")
    assert (refused.condition, "python and javascript" in refused.hint) == ("FEATURE_NOT_SUPPORTED", True)


RATE = 3


def scaled(value: int, by: float | None) -> float | None:
    return None if by is None else value * by * RATE


def test_callables_and_objects_of_spark(tmp_path):
    @pandas_udf(LongType())
    def doubled(values: pd.Series) -> pd.Series:
        return values * 2

    @udf(StringType())
    def shown(value):
        return f"<{value}>"

    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.create_function("scaled", scaled)
        connection.create_function("doubled", doubled, ["bigint"])
        connection.create_function("shown", shown, ["int"])
        connection.create_function("root", lambda x: x**0.5, ["float8"], "float8", strict=True)
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (4)")
        query = "SELECT scaled(a, 1.5) AS s, doubled(a) AS d, shown(a) AS t, root(NULLIF(a, 9)) AS r FROM t"
        connection.execute(f"CREATE MATERIALIZED VIEW m AS {query}")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (9); FLUSH")
        expected = [(18.0, 8, "<4>", 2.0), (40.5, 18, "<9>", None)]
        assert sorted(connection.execute("SELECT * FROM m").fetchall()) == expected
        assert sorted(connection.execute(query).fetchall()) == expected
        ((_, text),) = connection.execute("SHOW CREATE FUNCTION scaled").fetchall()
        assert "CREATE FUNCTION scaled(bigint, double precision) RETURNS double precision LANGUAGE python" in text
        assert "value * by * RATE" in text


def test_callables_that_are_refused(connection):
    def of(condition, *arguments, **others):
        with pytest.raises(watersmeet.Error) as caught:
            connection.create_function("f", *arguments, **others)
        assert caught.value.condition == condition, caught.value

    of("INVALID_PARAMETER", lambda x: x)
    of("INVALID_PARAMETER", lambda x: x, ["int"])
    of("UNDEFINED_OBJECT", lambda x: x, ["nonsense"], "int")
    of("INVALID_FUNCTION", 7, ["int"], "int")
    of("INVALID_FUNCTION", functools.partial(threading.Lock().acquire), ["int"], "int")
    connection.create_function("f", lambda: 1, [], "int")
    of("DUPLICATE_OBJECT", lambda: 2, [], "int")
    connection.create_function("f", lambda: 2, [], "int", replace=True)
    assert connection.execute("SELECT f()").fetchall() == [(2,)]


def test_javascript_needs_its_extra_and_types_of_json(run, fails, monkeypatch):
    made = "CREATE FUNCTION f(a int) RETURNS int LANGUAGE javascript AS 'return a + 1'"
    run(f"{made}; CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT f(a) AS b FROM t")
    run("INSERT INTO t VALUES (1), (NULL); FLUSH")
    assert sorted(run("SELECT * FROM m")) == sorted(run("SELECT f(a) FROM t")) == [(1,), (2,)]
    refused = fails("CREATE FUNCTION g(a bytea) RETURNS int LANGUAGE javascript AS 'return 1'")
    assert (refused.condition, "bytea" in refused.message) == ("FEATURE_NOT_SUPPORTED", True)
    monkeypatch.setitem(sys.modules, "py_mini_racer", None)
    refused = fails(made.replace("f(", "g("))
    assert (refused.condition, "mini-racer" in refused.message) == ("LIBRARY_MISSING", True)
    assert "javascript" in refused.hint


def test_functions_over_cursors():
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess") as connection:
        connection.execute('CREATE STREAM "bids" ("ticker" VARCHAR(5), "price" INTEGER)')
        connection.execute(
            "CREATE FUNCTION steps(ticker VARCHAR(5), price INTEGER, n INTEGER) "
            'RETURNS TABLE ("t" VARCHAR(5), "k" INTEGER) LANGUAGE PYTHON AS $$\n'
            "def steps(ticker, price, n):\n    for k in range(n): yield ticker, price + k\n$$"
        )
        every = connection.execute('SELECT STREAM * FROM STREAM(steps(CURSOR(SELECT STREAM * FROM "bids"), 2))')
        some = connection.execute(
            'SELECT STREAM ROWTIME, u."k" FROM STREAM(steps(CURSOR(SELECT STREAM "ticker", "price" * 10 FROM "bids" '
            'WHERE "price" > 1), 2)) AS u WHERE u."k" <> 50'
        )
        connection.execute("""INSERT INTO "bids" ("ticker", "price") VALUES ('a', 1), ('b', 5)""")
        connection.flush()
        assert every.fetchall() == [("a", 1), ("a", 2), ("b", 5), ("b", 6)]
        assert [k for _, k in some.fetchall()] == [51]
        for cursor in ("SELECT STREAM * FROM (VALUES (1, 2)) AS v", 'SELECT STREAM "price" FROM "bids"'):
            with pytest.raises(watersmeet.Error):
                connection.execute(f"SELECT STREAM * FROM STREAM(steps(CURSOR({cursor}), 2))")


def test_connections_that_may_not_read_files_create_none():
    made = "CREATE FUNCTION f(a int) RETURNS int LANGUAGE python AS 'def f(a): return a'"
    with watersmeet.connect(runtime="inprocess", allow_files=False) as connection:
        with pytest.raises(watersmeet.Error, match="permission denied for language python"):
            connection.execute(made)
        with pytest.raises(watersmeet.Error, match="permission denied for language python"):
            connection.create_function("f", lambda: 1, [], "int")


def test_plans_show_names_and_lineage_refuses_calls(run, fails):
    run(f"{GCD}; CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT gcd(a, 6) AS g FROM t")
    run("INSERT INTO t VALUES (4); FLUSH")
    plan = "\n".join(line for (line,) in run("EXPLAIN SELECT gcd(a, 6) AS g FROM t WHERE gcd(a, 6) > 1"))
    assert "gcd__" in plan
    assert "watersmeet_calls" not in plan
    assert "functions of other languages" in fails("EXPLAIN ROW SELECT * FROM m").message
