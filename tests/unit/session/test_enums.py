"""Enums: labels with an order, in columns, casts, comparisons and views."""

from __future__ import annotations

import random

import pytest

import watersmeet

LABELS = ("sad", "ok", "happy", "calm")


@pytest.fixture
def moods(run):
    run("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'calm')")
    run("CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[])")
    run("INSERT INTO t VALUES (1, 'happy', '{sad,ok}'), (2, 'sad', ARRAY['calm']), (3, 'ok', NULL), (4, NULL, NULL)")


@pytest.mark.usefixtures("moods")
def test_written_rows_have_labels(run, fails):
    for sql in (
        "INSERT INTO t VALUES (5, 'angry', NULL)",
        "INSERT INTO t VALUES (5, NULL, ARRAY['angry'])",
        "INSERT INTO t SELECT id + 10, 'ang' || 'ry', NULL FROM t",
        "UPDATE t SET m = 'angry'",
        "SELECT 'angry'::mood",
        "SELECT id FROM t WHERE m = 'angry'",
    ):
        refused = fails(sql)
        assert (refused.condition, refused.sqlstate) == ("INVALID_VALUE", "22P02")
        assert refused.message == 'invalid input value for enum mood: "angry"'
    assert "angry" in fails("SELECT ('ang' || 'ry')::mood").message
    assert run("UPDATE t SET m = 'calm' WHERE id = 4 RETURNING m, ms") == [("calm", None)]


def test_types_that_do_not_exist(fails):
    refused = fails("CREATE TABLE t (a interger)")
    assert (refused.condition, refused.message) == ("UNDEFINED_OBJECT", 'type "interger" does not exist')
    assert refused.hint == 'Did you mean "integer" or "interval"?'
    assert fails("CREATE TABLE t (a foo[])").message == 'type "foo" does not exist'


@pytest.mark.usefixtures("moods")
def test_order(run, fails):
    assert run("SELECT id FROM t ORDER BY m") == [(2,), (3,), (1,), (4,)]
    assert run("SELECT id FROM t ORDER BY m DESC NULLS LAST") == [(1,), (3,), (2,), (4,)]
    assert run("SELECT id FROM t WHERE m > 'sad' ORDER BY id") == [(1,), (3,)]
    assert run("SELECT id FROM t WHERE m BETWEEN 'sad' AND 'ok' ORDER BY id") == [(2,), (3,)]
    assert run("SELECT 'ok'::mood < 'calm'::mood, 'happy'::mood < 'ok', 'ok'::mood::text < 'calm'") == [
        (True, False, False)
    ]
    assert run("SELECT DISTINCT m FROM t WHERE m IS NOT NULL ORDER BY m") == [("sad",), ("ok",), ("happy",)]
    assert run("SELECT DISTINCT ON (m) m FROM t ORDER BY m, id") == [("sad",), ("ok",), ("happy",), (None,)]
    assert run("SELECT id, rank() OVER (ORDER BY m DESC NULLS LAST) FROM t ORDER BY 2") == [
        (1, 1),
        (3, 2),
        (2, 3),
        (4, 4),
    ]
    assert run("SELECT min(m), max(m) FILTER (WHERE id > 1), count(DISTINCT m) FROM t") == [("sad", "ok", 3)]
    assert run("SELECT greatest(m, 'ok'), least(m, 'ok'::mood, NULL) FROM t ORDER BY id") == [
        ("happy", "ok"),
        ("ok", "sad"),
        ("ok", "ok"),
        ("ok", "ok"),
    ]
    assert run("SELECT array_agg(m ORDER BY m) FROM t") == [(["sad", "ok", "happy", None],)]
    assert fails("SELECT max(m) OVER (ORDER BY id) FROM t").condition == "FEATURE_NOT_SUPPORTED"
    run("CREATE TYPE other AS ENUM ('ok')")
    assert fails("SELECT greatest('ok'::mood, 'ok'::other)").condition == "DATATYPE_MISMATCH"


@pytest.mark.usefixtures("moods")
def test_functions(run, fails):
    """PostgreSQL 17, 9.10 "Enum Support Functions"."""
    assert run("SELECT enum_first(NULL::mood), enum_last('ok'::mood)") == [("sad", "calm")]
    assert run("SELECT enum_range(NULL::mood)") == [(["sad", "ok", "happy", "calm"],)]
    assert run("SELECT enum_range('ok'::mood, NULL), enum_range(NULL, 'ok'::mood), enum_range('ok'::mood, 'sad')") == [
        (["ok", "happy", "calm"], ["sad", "ok"], [])
    ]
    assert run("SELECT id FROM t WHERE m = ANY (enum_range('ok'::mood, NULL)) ORDER BY id") == [(1,), (3,)]
    assert fails("SELECT enum_first(1)").condition == "DATATYPE_MISMATCH"
    assert fails("CREATE TYPE timestamp AS ENUM ('a')").condition == "INVALID_NAME"


@pytest.mark.usefixtures("moods")
def test_types(run, fails):
    assert run("SELECT '{ok,sad}'::mood[], ('ok'::text)::mood") == [(["ok", "sad"], "ok")]
    assert run("DESCRIBE t")[1][1] == "mood"
    run("CREATE TYPE other AS ENUM ('ok'); CREATE TABLE k (m mood PRIMARY KEY DEFAULT 'ok', o other)")
    assert run("INSERT INTO k DEFAULT VALUES RETURNING *") == [("ok", None)]
    assert fails("SELECT m < o FROM k").condition == "DATATYPE_MISMATCH"
    assert fails("CREATE TABLE u (x nosuch)").condition == "UNDEFINED_OBJECT"
    assert fails("CREATE TYPE mood AS ENUM ('a')").condition == "DUPLICATE_TYPE"
    assert fails("CREATE TYPE x AS ENUM ('a', 'a')").condition == "DUPLICATE_TYPE"
    assert fails("CREATE TYPE x AS (a int)").condition == "FEATURE_NOT_SUPPORTED"
    assert fails("DROP TYPE mood CASCADE").condition == "DEPENDENT_OBJECTS"
    run("DROP TABLE t; DROP TABLE k; DROP TYPE mood, other")
    assert run("SHOW TYPES") == []


@pytest.mark.usefixtures("moods")
def test_alter(run, fails):
    run("ALTER TYPE mood ADD VALUE 'meh' BEFORE 'ok'; ALTER TYPE mood ADD VALUE IF NOT EXISTS 'meh'")
    run("ALTER TYPE mood ADD VALUE 'last'; INSERT INTO t VALUES (5, 'meh', '{last}')")
    assert run("SELECT m FROM t WHERE m IS NOT NULL ORDER BY m") == [("sad",), ("meh",), ("ok",), ("happy",)]
    run("CREATE VIEW plain AS SELECT m FROM t; ALTER TYPE mood ADD VALUE 'first' BEFORE 'sad'")
    run("INSERT INTO t VALUES (6, 'first', NULL)")
    assert run("SELECT m FROM plain WHERE m < 'meh' ORDER BY m") == [("first",), ("sad",)]
    for sql, condition in {
        "ALTER TYPE mood ADD VALUE 'meh'": "DUPLICATE_TYPE",
        "ALTER TYPE mood ADD VALUE 'x' AFTER 'none'": "INVALID_PARAMETER",
        "ALTER TYPE mood RENAME VALUE 'meh' TO 'x'": "FEATURE_NOT_SUPPORTED",
        "ALTER TYPE mood RENAME TO x": "FEATURE_NOT_SUPPORTED",
        "ALTER TYPE t ADD VALUE 'x'": "CATALOG_TYPE_MISMATCH",
    }.items():
        assert fails(sql).condition == condition, sql
    run("CREATE MATERIALIZED VIEW v AS SELECT m FROM t")
    assert fails("ALTER TYPE mood ADD VALUE 'x'").condition == "DEPENDENT_OBJECTS"
    run("CREATE TYPE free AS ENUM ('a', 'b'); ALTER TYPE free RENAME VALUE 'a' TO 'z'; ALTER TYPE free RENAME TO freed")
    assert run("SELECT 'z'::freed < 'b'::freed") == [(True,)]


@pytest.mark.parametrize("seed", range(4))
def test_views_follow_the_order(run, seed):
    """After random changes, views equal their queries."""
    choice = random.Random(seed)
    run("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'calm'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    queries = (
        "SELECT id, m FROM t WHERE m >= 'ok'",
        "SELECT id, m FROM t ORDER BY m DESC, id LIMIT 3",
        "SELECT m, count(*) AS c FROM t GROUP BY m",
        "SELECT id % 2 AS k, min(m) AS least, max(m) AS greatest FROM t GROUP BY id % 2",
        "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.id = b.id + 1 AND a.m < b.m",
        "SELECT id, row_number() OVER (PARTITION BY id % 2 ORDER BY m, id) AS r FROM t",
    )
    for number, query in enumerate(queries):
        run(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
    rows: dict[int, str | None] = {}
    for _ in range(12):
        key, label = choice.randrange(8), choice.choice([*LABELS, None])
        if choice.random() < 0.25:
            run(f"DELETE FROM t WHERE id = {key}")
            rows.pop(key, None)
        else:
            run(f"INSERT INTO t VALUES ({key}, {'NULL' if label is None else repr(label)})")
            rows[key] = label
    run("FLUSH")
    for number, query in enumerate(queries):
        assert sorted(run(f"SELECT * FROM v{number}"), key=str) == sorted(run(query), key=str), query
    place = {None: len(LABELS), **{label: n for n, label in enumerate(LABELS)}}
    ordered = sorted(rows.items(), key=lambda row: (place[row[1]], row[0]))
    assert run("SELECT * FROM t ORDER BY m, id") == ordered


def test_the_type_survives_a_restart(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (m mood)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT m FROM t; INSERT INTO t VALUES ('ok'), ('sad')")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("FLUSH")
        assert connection.execute("SELECT m FROM v ORDER BY m").fetchall() == [("sad",), ("ok",)]


@pytest.mark.usefixtures("moods")
def test_casts_between_enums_and_texts_exist(run, fails):
    """PostgreSQL 17, "CREATE CAST", which Hibernate sends for each enum."""
    run("CREATE CAST (varchar AS mood) WITH INOUT AS IMPLICIT; CREATE CAST (mood AS varchar) WITH INOUT AS ASSIGNMENT")
    run("CREATE TABLE texts (m varchar)")
    run("INSERT INTO texts SELECT m FROM t WHERE id = 3")
    assert run("INSERT INTO t (id, m) SELECT 9, m FROM texts RETURNING m = 'ok'::varchar") == [(True,)]
    run("DROP CAST IF EXISTS (varchar AS mood) RESTRICT")
    assert fails("CREATE CAST (varchar AS int) WITH INOUT").condition == "FEATURE_NOT_SUPPORTED"
    assert fails("CREATE CAST (mood AS varchar) WITH FUNCTION f(mood)").condition == "FEATURE_NOT_SUPPORTED"
    assert fails("CREATE CAST (mood AS varchar) WITH INOUT AS A").condition == "SYNTAX_ERROR"
    assert fails("CREATE CAST (nosuch AS varchar) WITH INOUT").condition == "UNDEFINED_OBJECT"
