"""Changes in WITH, and RETURNING of MERGE: all parts read one moment and are one commit."""

from __future__ import annotations

import random

import pytest


@pytest.fixture
def rows(run):
    run("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE log (id int, what varchar)")
    run("INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)")
    return lambda: run("SELECT id, n FROM t ORDER BY id")


def test_rows_are_moved(run, rows):
    moved = "WITH d AS (DELETE FROM t WHERE id < 3 RETURNING *) INSERT INTO log SELECT id, n || '!' FROM d RETURNING id"
    assert sorted(run(moved)) == [(1,), (2,)]
    assert rows() == [(3, 30)]
    assert run("SELECT * FROM log ORDER BY id") == [(1, "10!"), (2, "20!")]
    run("WITH d AS (DELETE FROM t RETURNING *) INSERT INTO t SELECT id, n + 1 FROM d")
    assert rows() == [(3, 31)]  # the key is free again


def test_all_parts_read_one_moment(run, rows):
    seen = run(
        "WITH u AS (UPDATE t SET n = n + 1 RETURNING n), i AS (INSERT INTO t SELECT 4, sum(n) FROM t RETURNING n) "
        "SELECT (SELECT sum(n) FROM t), (SELECT sum(n) FROM u), (SELECT n FROM i)"
    )
    assert seen == [(60, 63, 60)]
    assert rows() == [(1, 11), (2, 21), (3, 31), (4, 60)]


def test_parts_without_reader_run(run, rows):
    assert run("WITH a AS (INSERT INTO t VALUES (4, 1)), b AS (DELETE FROM t WHERE id = 1) SELECT 'done'") == [
        ("done",)
    ]
    assert [i for i, _ in rows()] == [2, 3, 4]


def test_queries_between_changes(run, rows):
    run(
        "WITH few(x) AS (SELECT max(id) FROM t), d AS (DELETE FROM t USING few WHERE id = few.x RETURNING t.id), "
        "next(y) AS (SELECT id + 1 FROM d) INSERT INTO t (id) SELECT y FROM next"
    )
    assert rows() == [(1, 10), (2, 20), (4, None)]
    assert run("WITH d(x) AS (DELETE FROM t WHERE id = 4 RETURNING id, n) SELECT x, n FROM d") == [(4, None)]
    assert run("WITH q AS (SELECT 9 AS id) MERGE INTO t USING q ON t.id = q.id WHEN NOT MATCHED THEN INSERT (id) "
               "VALUES (q.id) RETURNING t.id") == [(9,)]  # fmt: skip


def test_nothing_remains_of_a_failed_statement(run, rows, fails):
    run("CREATE TABLE positive (n int CHECK (n > 0))")
    before = rows()
    failed = fails("WITH d AS (DELETE FROM t RETURNING n) INSERT INTO positive SELECT n - 20 FROM d")
    assert failed.condition == "CHECK_VIOLATION"
    assert rows() == before
    run("BEGIN; WITH d AS (DELETE FROM t RETURNING n) INSERT INTO positive SELECT n FROM d")
    assert rows() == []
    run("ROLLBACK")
    assert rows() == before


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("WITH a AS (DELETE FROM t WHERE id = 1) UPDATE t SET n = 0", "CARDINALITY_VIOLATION"),
        ("WITH a AS (UPDATE t SET id = 9 WHERE id = 1) UPDATE t SET id = 9 WHERE id = 2", "UNIQUE_VIOLATION"),
        ("WITH a AS (DELETE FROM t) SELECT * FROM a", "FEATURE_NOT_SUPPORTED"),
        ("WITH a AS (DELETE FROM t RETURNING id), a AS (SELECT 1) SELECT 1", "DUPLICATE_OBJECT"),
        ("WITH a(x, y) AS (DELETE FROM t RETURNING id) SELECT * FROM a", "INVALID_COLUMN_REFERENCE"),
        ("SELECT * FROM (WITH a AS (DELETE FROM t RETURNING id) SELECT * FROM a) q", "FEATURE_NOT_SUPPORTED"),
        ("CREATE VIEW v AS WITH a AS (DELETE FROM t RETURNING id) SELECT * FROM a", "FEATURE_NOT_SUPPORTED"),
        ("WITH a AS (WITH b AS (DELETE FROM t) DELETE FROM log) SELECT 1", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_refusals(rows, fails, sql, condition):
    before = rows()
    assert fails(sql).condition == condition
    assert rows() == before


def test_merge_returns_rows(run, rows):
    merged = run(
        "MERGE INTO t USING (VALUES (1, 7), (5, 8)) AS s (id, v) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE RETURNING merge_action(), s.v + 1 AS w, t.*"
    )
    assert sorted(merged) == [("DELETE", None, 2, 20), ("INSERT", 9, 5, 8), ("UPDATE", 8, 1, 7)]
    assert rows() == [(1, 7), (3, 30), (5, 8)]
    none = "MERGE INTO t USING (SELECT 1 AS id) AS s ON false WHEN MATCHED THEN DELETE RETURNING merge_action(), *"
    assert run(none) == []
    changed = "WITH m AS (MERGE INTO t USING (SELECT 3 AS id) AS s ON t.id = s.id WHEN MATCHED THEN DELETE "
    assert run(changed + "RETURNING merge_action() AS a, n) SELECT a, n FROM m") == [("DELETE", 30)]


def test_merge_keeps_keys_unique(run, rows, fails):
    moved = "MERGE INTO t USING (SELECT 1 AS id) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 2"
    assert fails(moved).condition == "UNIQUE_VIOLATION"
    assert [i for i, _ in rows()] == [1, 2, 3]


def test_parameters(run, rows):
    run("PREPARE p AS WITH d AS (DELETE FROM t WHERE id = $1 RETURNING *) INSERT INTO t SELECT id + $2, n FROM d")
    run("EXECUTE p(1, 10)")
    run("PREPARE m(int, int) AS MERGE INTO t USING (VALUES ($1, $2)) AS s (id, v) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = $2 + 1 WHEN NOT MATCHED THEN INSERT VALUES (s.id, $2)")  # fmt: skip
    run("EXECUTE m(2, 5)")
    run("EXECUTE m(7, 5)")
    run("PREPARE o(int) AS INSERT INTO t VALUES (7, 0) ON CONFLICT (id) DO UPDATE SET n = $1")
    run("EXECUTE o(70)")
    assert rows() == [(2, 6), (3, 30), (7, 70), (11, 10)]


def test_identity_columns_are_overridden(run, fails):
    run("CREATE TABLE a (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)")
    run("CREATE TABLE d (id int GENERATED BY DEFAULT AS IDENTITY, s serial, n int)")
    assert fails("INSERT INTO a VALUES (7, 1)").hint == "Use OVERRIDING SYSTEM VALUE to override."
    run("INSERT INTO a OVERRIDING SYSTEM VALUE VALUES (7, 1)")
    assert run("INSERT INTO a (n, id) OVERRIDING USER VALUE SELECT 2, 7 RETURNING id, n") == [(1, 2)]
    assert run("INSERT INTO d OVERRIDING USER VALUE VALUES (70, 80, 90) RETURNING *") == [(1, 80, 90)]
    assert fails("INSERT INTO a OVERRIDING VALUE VALUES (1, 1)").condition == "SYNTAX_ERROR"


def test_subqueries_in_values(run, rows):
    run("INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), (SELECT count(*) FROM t)), (9, DEFAULT)")
    assert rows()[3:] == [(4, 3), (9, None)]
    assert run("VALUES ((SELECT 1), 'a'), (2, NULL)") == [(1, "a"), (2, None)]
    assert run("SELECT v.x FROM (VALUES ((SELECT max(n) FROM t)), (1.5)) AS v (x) ORDER BY 1") == [(1.5,), (30,)]


_PARTS = (
    "DELETE FROM t WHERE {few} RETURNING id, n",
    "UPDATE t SET n = n + {k} WHERE {few} RETURNING id, n",
    "INSERT INTO t SELECT id + {k}00, n FROM t WHERE {few} RETURNING id, n",
)

_MERGE = (
    "MERGE INTO t USING (SELECT id + {k} AS id, n FROM t WHERE {few}) AS s ON t.id = s.id WHEN MATCHED THEN "
    "UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT VALUES (s.id + {k}0000, s.n) RETURNING t.id, t.n"
)


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(6))
def test_same_as_postgresql(run, postgres, seed):
    """Random statements, whose parts change different rows."""
    random_ = random.Random(seed)
    tables = (
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT i, i * 7 FROM generate_series(1, 12) AS g (i)"
    )
    run(tables)
    postgres.execute(tables)
    with postgres.connect() as other:
        for _ in range(12):
            few = random_.sample(["id % 3 = 0", "id % 3 = 1", "id % 3 = 2"], 3)
            texts = [random_.choice(_PARTS).format(few=f, k=random_.randint(3, 9)) for f in few[:2]]
            merge = _MERGE.format(few="false" if random_.random() < 0.5 else few[2], k=3)
            reader = random_.choice(
                (
                    "SELECT (SELECT sum(n) FROM t), (SELECT count(*) FROM a), (SELECT sum(n) FROM b)",
                    f"DELETE FROM t USING a WHERE t.id = a.id + 1000 AND t.{few[2]} RETURNING t.id",
                    f"UPDATE t SET n = (SELECT sum(n) FROM b) WHERE {few[2]} RETURNING t.id, t.n",
                    f"{merge}",
                )
            )
            sql = f"WITH a AS ({texts[0]}), b AS ({texts[1]}) {reader}"
            try:
                wanted = other.execute(sql).fetchall()
            except Exception as refused:  # a key exists: rows that replace others are Watersmeet's own
                assert refused.sqlstate in ("23505", "21000"), sql
                continue
            assert sorted(run(sql), key=str) == sorted(wanted, key=str), sql
            everything = "SELECT id, n FROM t ORDER BY id"
            assert run(everything) == other.execute(everything).fetchall(), sql


def test_a_query_that_another_run_may_answer_otherwise_runs_once(run, rows, fails):
    run("CREATE SEQUENCE numbers")
    numbered = run(
        "WITH q AS (SELECT nextval('numbers') AS x, id FROM t), a AS (INSERT INTO log SELECT x, 'a' FROM q), "
        "b AS (INSERT INTO log SELECT x, 'b' FROM q) SELECT x FROM q ORDER BY x"
    )
    assert numbered == [(1,), (2,), (3,)]
    assert run("SELECT what, array_agg(id ORDER BY id) FROM log GROUP BY what ORDER BY what") == [
        ("a", [1, 2, 3]),
        ("b", [1, 2, 3]),
    ]
    moved = run(
        "WITH q AS (SELECT id FROM t LIMIT 1), d AS (DELETE FROM t USING q WHERE t.id = q.id RETURNING t.id) "
        "SELECT q.id = d.id FROM q, d"
    )
    assert moved == [(True,)]
    drawn = "WITH q AS MATERIALIZED (SELECT random() AS x), i AS (INSERT INTO log SELECT 9 FROM q WHERE x = 2) "
    assert run(drawn + "SELECT a.x = b.x FROM q a, q b") == [(True,)]
    twice = "WITH q AS (SELECT t.id, t.id FROM t), d AS (DELETE FROM t USING q) SELECT 1 FROM q"
    assert fails(twice).message == 'two columns "id" of "q" in WITH is not supported'
