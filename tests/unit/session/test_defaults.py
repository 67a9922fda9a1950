"""DEFAULT in INSERT and UPDATE, and SET of several columns at once."""

from __future__ import annotations

import pytest


def test_default_in_some_rows_of_values(run):
    run("CREATE TABLE t (id serial PRIMARY KEY, n int DEFAULT 7, s varchar DEFAULT 'x', b boolean)")
    run("INSERT INTO t VALUES (DEFAULT, 1, DEFAULT), (10, DEFAULT, 'y'), (DEFAULT, DEFAULT, DEFAULT)")
    run("INSERT INTO t (s, n) VALUES (DEFAULT, DEFAULT), ('z', DEFAULT)")
    assert run("SELECT * FROM t ORDER BY id") == [
        (1, 1, "x", None), (2, 7, "x", None), (3, 7, "x", None), (4, 7, "z", None), (10, 7, "y", None),
    ]  # fmt: skip


def test_default_values(run, fails):
    run("CREATE TABLE t (id bigserial, n int DEFAULT 2 + 3, w varchar DEFAULT current_user, z int)")
    assert run("INSERT INTO t DEFAULT VALUES RETURNING *") == [(1, 5, "watersmeet", None)]
    run("INSERT INTO t VALUES (DEFAULT, DEFAULT, DEFAULT, DEFAULT), (DEFAULT, DEFAULT, DEFAULT, DEFAULT)")
    assert run("SELECT id, n FROM t ORDER BY id") == [(1, 5), (2, 5), (3, 5)]
    assert fails("INSERT INTO t (n) DEFAULT VALUES").condition == "SYNTAX_ERROR"
    run("CREATE TABLE r (n int NOT NULL)")
    assert fails("INSERT INTO r DEFAULT VALUES").condition == "NOT_NULL_VIOLATION"


def test_a_null_is_no_default(run, fails):
    run("CREATE TABLE t (id serial, n int DEFAULT 7)")
    run("INSERT INTO t (n) VALUES (NULL), (DEFAULT)")
    assert run("SELECT n FROM t ORDER BY id") == [(None,), (7,)]
    assert fails("INSERT INTO t VALUES (NULL, 1), (DEFAULT, 2)").condition == "NOT_NULL_VIOLATION"


def test_volatile_defaults_have_a_value_for_each_row(run):
    run("CREATE TABLE t (n int, u uuid DEFAULT gen_random_uuid(), r double precision DEFAULT random())")
    run("INSERT INTO t (n) SELECT * FROM generate_series(1, 50)")
    run("UPDATE t SET u = DEFAULT, r = DEFAULT WHERE n > 25")
    assert run("SELECT count(DISTINCT u), count(DISTINCT r) FROM t") == [(50, 50)]


@pytest.mark.parametrize("now", ["now()", "current_timestamp", "CURRENT_TIMESTAMP + INTERVAL '0 days'"])
def test_the_time_of_the_statement(run, now):
    run(f"CREATE TABLE t (n int, at timestamptz DEFAULT {now}, on_day date DEFAULT current_date)")
    run("INSERT INTO t VALUES (1, DEFAULT), (2, '2000-01-01 00:00:00+00')")
    run("INSERT INTO t (n) VALUES (3), (4)")
    found = run("SELECT n, at > '2001-01-01', at <= now(), on_day IS NOT NULL FROM t ORDER BY n")
    assert found == [(1, True, True, True), (2, False, True, True), (3, True, True, True), (4, True, True, True)]
    assert run("SELECT count(DISTINCT at) FROM t WHERE n > 2") == [(1,)]


def test_update_to_default(run, fails):
    run("CREATE TABLE t (id serial PRIMARY KEY, n int DEFAULT 7, s varchar, m int AS (n + 1))")
    run("INSERT INTO t (n, s) VALUES (1, 'a'), (2, 'b')")
    run("UPDATE t SET n = DEFAULT, s = DEFAULT, m = DEFAULT WHERE n = 1")
    assert run("UPDATE t SET id = DEFAULT WHERE id = 2 RETURNING id") == [(3,)]
    assert run("SELECT * FROM t ORDER BY id") == [(1, 7, None, 8), (3, 2, "b", 3)]
    assert fails("UPDATE t SET nothing = DEFAULT").condition == "UNDEFINED_COLUMN"
    run("CREATE TABLE r (n int NOT NULL); INSERT INTO r VALUES (1)")
    assert fails("UPDATE r SET n = DEFAULT").condition == "NOT_NULL_VIOLATION"


def test_an_identity_column_is_only_updated_to_default(run, fails):
    run("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, n int); INSERT INTO t (n) VALUES (1)")
    refused = fails("UPDATE t SET id = 5")
    assert (refused.condition, refused.message) == ("GENERATED_ALWAYS", 'column "id" can only be updated to DEFAULT')
    run("UPDATE t SET id = DEFAULT")
    assert run("SELECT * FROM t") == [(2, 1)]
    assert fails("INSERT INTO t VALUES (DEFAULT, 1), (4, 2)").condition == "GENERATED_ALWAYS"


def test_several_columns_at_once(run, fails):
    run("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar DEFAULT 'd')")
    run("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    run("UPDATE t SET (a, b) = (10, DEFAULT) WHERE id = 1; UPDATE t SET (a, b) = ROW(20, 'q') WHERE id = 2")
    run("UPDATE t SET (a) = (30) WHERE id = 3")
    assert run("SELECT * FROM t ORDER BY id") == [(1, 10, "d"), (2, 20, "q"), (3, 30, "c")]
    run("UPDATE t SET (a, b) = (SELECT o.a + 1, o.b FROM t o WHERE o.id = t.id + 1)")
    assert run("SELECT * FROM t ORDER BY id") == [(1, 21, "q"), (2, 31, "c"), (3, None, None)]
    for sql in ("UPDATE t SET (a, b) = (1, 2, 3)", "UPDATE t SET (a, b) = (SELECT 1)"):
        assert fails(sql).condition == "FEATURE_NOT_SUPPORTED"
