"""Functions of SQL outlive their session, and views keep the bodies that they were made with."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error


def test_functions_and_the_old_bodies_of_views_survive_restart_and_rebuild(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x + 1")
        connection.execute("CREATE FUNCTION two(x int) RETURNS int LANGUAGE SQL AS $$ SELECT one(one(x)) $$")
        connection.execute("CREATE TABLE t (k int); CREATE VIEW p AS SELECT one(k) AS a, two(k) AS b FROM t")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT a, b, two(a) AS c FROM p")
        connection.execute("CREATE OR REPLACE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x * 100")
        connection.execute("CREATE OR REPLACE FUNCTION two(x int) RETURNS int LANGUAGE SQL RETURN one(x) + 7")
        connection.execute("INSERT INTO t VALUES (1)")
    with watersmeet.connect(path, runtime="inprocess", parallelism=2, rebuild=True) as connection:
        connection.execute("INSERT INTO t VALUES (10); FLUSH")
        expected = [(2, 3, 4), (11, 12, 13)]
        assert sorted(connection.execute("SELECT a, b, c FROM m").fetchall()) == expected
        assert sorted(connection.execute("SELECT a, b, a + 2 FROM p").fetchall()) == expected
        assert connection.execute("SELECT one(1), two(1)").fetchall() == [(100, 107)]


def test_a_body_that_nothing_calls_any_more_is_not_kept(tmp_path):
    path = tmp_path / "db"

    def stored() -> set[str]:
        with watersmeet.connect(path, read_only=True) as reader:
            return {f.body for f in reader._session.catalog.functions.values()}

    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 1'")
        connection.execute("CREATE TABLE t (k int); CREATE VIEW v AS SELECT f(k) AS a FROM t")
        connection.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 2'")
        assert stored() == {"select 1", "select 2"}
        connection.execute("DROP VIEW v")
        assert stored() == {"select 2"}
        connection.execute("DROP FUNCTION f")
        assert stored() == set()


@pytest.mark.slow
def test_what_a_call_stands_for_is_bounded(run, fails):
    run("CREATE FUNCTION f0(x int) RETURNS int LANGUAGE SQL RETURN x + x")
    for n in range(1, 7):
        run(f"CREATE FUNCTION f{n}(x int) RETURNS int LANGUAGE SQL RETURN f{n - 1}(x) + f{n - 1}(x)")
    assert run("SELECT f6(1)") == [(128,)]
    refused = fails("SELECT f6(f6(1))")
    assert (refused.condition, "too large" in str(refused)) == ("FEATURE_NOT_SUPPORTED", True)


def test_functions_without_types_have_those_of_each_call(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", dialect="timeplus") as connection:
        connection.execute("CREATE FUNCTION twice AS (x) -> x || x; CREATE FUNCTION more AS (x, y) -> x + y * 2")
        connection.execute("CREATE STREAM s (a int, b float64, c string)")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT more(a, 1) AS n, more(b, a) AS f, twice(c) AS t FROM s"
        )
        connection.execute("CREATE OR REPLACE FUNCTION more AS (x, y) -> x")
        connection.execute("INSERT INTO s (a, b, c) VALUES (3, 0.5, 'z'); FLUSH")
        assert connection.execute("SELECT n, f, t FROM table(v)").fetchall() == [(5, 6.5, "zz")]
        assert connection.execute("SHOW FUNCTIONS").fetchall()[0][:4] == ("more", "x any, y any", "any", "sql")
    with watersmeet.connect(path, runtime="inprocess", dialect="timeplus") as connection:
        assert connection.execute("SELECT more(1, 2), twice('a')").fetchall() == [(1, "aa")]


@pytest.mark.parametrize(
    ("text", "condition", "message"),
    [
        ("CREATE FUNCTION f AS (x) -> x + y", "UNDEFINED_COLUMN", "there is no parameter y"),
        ("CREATE FUNCTION f AS (x, x) -> x", "DUPLICATE_COLUMN", 'parameter name "x" used more than once'),
        ("CREATE FUNCTION f AS (x) -> f(x)", "FEATURE_NOT_SUPPORTED", "a function that calls itself"),
        ("CREATE FUNCTION f AS (x) ->", "SYNTAX_ERROR", "syntax error"),
        ("CREATE FUNCTION f AS (x) -> x; SELECT f(1, 2)", "UNDEFINED_FUNCTION", "function f takes 1 argument"),
    ],
)
def test_what_a_function_without_types_can_not_be(tmp_path, text, condition, message):
    with (
        watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection,
        pytest.raises(Error, match=message) as refused,
    ):
        connection.execute(text)
    assert refused.value.condition == condition


def test_do_runs_statements_and_handles_their_errors(run, fails):
    made = "DO $$ BEGIN CREATE TYPE mood AS ENUM ('a', 'b'); EXCEPTION WHEN {} THEN null; END $$"
    run(made.format("duplicate_object"))
    run(made.format("undefined_table or duplicate_object"))
    run(made.format("others"))
    assert fails(made.format("undefined_table")).condition == "DUPLICATE_TYPE"
    run("CREATE TABLE t (a int, m mood); BEGIN; INSERT INTO t VALUES (1, 'a')")
    run(made.format("duplicate_object"))
    run("DO LANGUAGE plpgsql 'BEGIN INSERT INTO t VALUES (2, ''b''); DELETE FROM t WHERE a = 1; END'; COMMIT")
    assert run("SELECT * FROM t") == [(2, "b")]
    run("DO $$ BEGIN INSERT INTO t VALUES (3, 'a'); INSERT INTO gone VALUES (1); EXCEPTION WHEN others THEN END $$")
    assert fails("DO $$ BEGIN INSERT INTO t VALUES (4, 'a'); INSERT INTO gone VALUES (1); END $$").condition == (
        "UNDEFINED_RELATION"
    )
    assert run("SELECT a FROM t") == [(2,)]
    for program in ("IF true THEN DELETE FROM t; END IF;", "x := 1;", "DECLARE x int;", "RAISE NOTICE 'x';"):
        assert fails(f"DO $$ BEGIN {program} END $$").message == "DO of a program in PL/pgSQL is not supported"
    for program in ("DECLARE x int; BEGIN END", "BEGIN EXCEPTION WHEN nothing THEN NULL; END"):
        assert fails(f"DO $$ {program} $$").condition == "FEATURE_NOT_SUPPORTED"
    assert fails("DO $$ BEGIN COMMIT; END $$").condition == "TRANSACTION_STATE"
    assert run("SELECT a FROM t") == [(2,)]
