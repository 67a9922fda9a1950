"""Functions of SQL outlive their session, and views follow functions that are replaced."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error


def test_functions_and_views_follow_a_replaced_function_across_restart_and_rebuild(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x + 1")
        connection.execute("CREATE FUNCTION two(x int) RETURNS int LANGUAGE SQL AS $$ SELECT one(one(x)) $$")
        connection.execute("CREATE TABLE t (k int); CREATE VIEW p AS SELECT one(k) AS a, two(k) AS b FROM t")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT a, b, two(a) AS c FROM p")
        connection.execute("INSERT INTO t VALUES (1); FLUSH")
        assert connection.execute("SELECT a, b, c FROM m").fetchall() == [(2, 3, 4)]
        connection.execute("CREATE OR REPLACE FUNCTION one(x int) RETURNS int LANGUAGE SQL RETURN x * 100")
        assert connection.execute("SELECT a, b, c FROM m").fetchall() == [(100, 10_000, 1_000_000)]
        connection.execute("CREATE OR REPLACE FUNCTION two(x int) RETURNS int LANGUAGE SQL RETURN one(x) + 7")
    with watersmeet.connect(path, runtime="inprocess", parallelism=2, rebuild=True) as connection:
        connection.execute("INSERT INTO t VALUES (2); FLUSH")
        expected = [(100, 107, 10_007), (200, 207, 20_007)]
        assert sorted(connection.execute("SELECT a, b, c FROM m").fetchall()) == expected
        assert sorted(connection.execute("SELECT a, b, two(a) FROM p").fetchall()) == expected
        assert connection.execute("SELECT one(1), two(1)").fetchall() == [(100, 107)]


def test_readers_receive_the_difference_in_one_commit(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute(
            "CREATE FUNCTION kind(x int) RETURNS varchar LANGUAGE SQL RETURN CASE WHEN x < 5 THEN 's' END"
        )
        connection.execute("CREATE TABLE t (k int); CREATE TABLE other (k int)")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT k, kind(k) AS kind FROM t")
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT kind, count(*) AS n FROM m GROUP BY kind")
        connection.execute("CREATE MATERIALIZED VIEW o AS SELECT k FROM other")
        connection.execute("INSERT INTO t VALUES (1), (7), (9); INSERT INTO other VALUES (1); FLUSH")
        before = connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
        made = connection.execute(
            "CREATE OR REPLACE FUNCTION kind(x int) RETURNS varchar LANGUAGE SQL RETURN CASE WHEN x < 8 THEN 's' END"
        )
        assert made.notices == ('materialized view "m" and materialized view "n" were computed again',)
        after = connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
        changes = {
            view: [
                (row["k" if view == "m" else "n"], row["kind"], int(diff))
                for update in connection.subscribe(view, after=before, up_to=after)
                for batch in update.batches
                for row, diff in zip(batch.rows.to_pylist(), batch.diffs.tolist(), strict=True)
            ]
            for view in ("m", "n")
        }
        assert sorted(changes["m"], key=repr) == [(7, "s", 1), (7, None, -1)]
        assert sorted(changes["n"], key=repr) == [(1, "s", -1), (1, None, 1), (2, "s", 1), (2, None, -1)]
        assert (
            len(
                {
                    row[0]
                    for view in ("m", "n")
                    for row in connection.execute(f"SHOW COMMITS FROM {view}")
                    if row[0] > before
                }
            )
            == 1
        )
        assert [row for row in connection.execute("SHOW COMMITS FROM o") if row[0] > before] == []


def test_objects_that_can_not_follow_are_named(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x + 1")
        connection.execute("CREATE TABLE t (k int, g int AS f(k)); CREATE TABLE o (k int) APPEND ONLY")
        connection.execute("INSERT INTO t VALUES (1); INSERT INTO o VALUES (1); FLUSH")
        notices = connection.execute(
            "CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x + 2"
        ).notices
        assert notices == ('table "t" keeps the earlier definition of f',)
        connection.execute("INSERT INTO t VALUES (1)")
        assert connection.execute("SELECT g FROM t").fetchall() == [(2,), (2,)]
        connection.execute("CREATE VIEW v AS SELECT f(k) AS a FROM t; CREATE MATERIALIZED VIEW m AS SELECT a FROM v")
        connection.execute("CREATE TABLE p (k int PRIMARY KEY, w int)")
        connection.execute(
            "CREATE MATERIALIZED VIEW j AS SELECT f(o.k) AS a, w FROM o "
            "LEFT JOIN p FOR SYSTEM_TIME AS OF PROCTIME() ON o.k = p.k"
        )
        for function, detail in (
            ("f(x int) RETURNS varchar LANGUAGE SQL RETURN 'x'", 'View "v" would get type character varying'),
            (
                "f(x int, y int) RETURNS int LANGUAGE SQL RETURN x",
                "can't be planned again: function f takes 2 arguments",
            ),
        ):
            with pytest.raises(Error) as refused:
                connection.execute(f"CREATE OR REPLACE FUNCTION {function}")
            assert refused.value.condition == "DEPENDENT_OBJECTS"
            assert detail in refused.value.detail
        with pytest.raises(Error, match="temporal join can't be rebuilt"):
            connection.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x")
        assert connection.execute("SELECT f(1)").fetchall() == [(3,)]
        assert connection.execute("SELECT a FROM m").fetchall() == [(3,), (3,)]
        connection.execute("DROP MATERIALIZED VIEW j")
        connection.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x")
        assert connection.execute("SELECT a FROM m").fetchall() == [(1,), (1,)]


def test_a_body_that_nothing_calls_any_more_is_not_kept(tmp_path):
    path = tmp_path / "db"

    def stored() -> set[str]:
        with watersmeet.connect(path, read_only=True) as reader:
            return {f.body for f in reader._session.catalog.functions.values()}

    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 1'")
        connection.execute("CREATE TABLE t (k int, a int AS f(k)); CREATE VIEW v AS SELECT f(k) AS a FROM t")
        connection.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'select 2'")
        assert stored() == {"select 1", "select 2"}
        connection.execute("DROP VIEW v; DROP TABLE t")
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
        with pytest.raises(Error) as refused:  # a query over a stream begins when it is created
            connection.execute("CREATE OR REPLACE FUNCTION more AS (x, y) -> x")
        assert refused.value.detail == (
            'Materialized view "v" has rows that depend on the moment at which its query began.'
        )
        connection.execute("INSERT INTO s (a, b, c) VALUES (3, 0.5, 'z'); FLUSH")
        assert connection.execute("SELECT n, f, t FROM table(v)").fetchall() == [(5, 6.5, "zz")]
        connection.execute("DROP VIEW v")
        connection.execute("CREATE OR REPLACE FUNCTION more AS (x, y) -> x")
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
