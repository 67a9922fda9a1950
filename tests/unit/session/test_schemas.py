"""Schemas: what tells relations of one name apart, in Python's calls and across restarts."""

from __future__ import annotations

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet.catalog import Catalog, Table
from watersmeet.values.types import INTEGER, Field

COLUMNS = (Field("a", INTEGER),)


def connected(*arguments, **options):
    return watersmeet.connect(*arguments, runtime="inprocess", parallelism=1, **options)


def test_names_are_looked_up_along_the_path():
    there = {i: Table(i, "t", COLUMNS, schema=s) for i, s in (("t1", "public"), ("t2", "s"))}
    assert [
        Catalog(relations=there, path=p).by_name("t").id for p in (("public", "s"), ("s", "public"), ("x", "s"))
    ] == ["t1", "t2", "t2"]
    assert Catalog(relations=there, path=()).by_name("t") is None


def test_a_view_keeps_its_path_and_all_is_there_after_a_restart(tmp_path):
    with connected(tmp_path / "db") as connection:
        cursor = connection.cursor()
        cursor.execute("""CREATE SCHEMA s; CREATE TABLE t (a int); CREATE TABLE s.t (b int); SET SCHEMA 's';
                          CREATE VIEW v AS SELECT b FROM t; CREATE MATERIALIZED VIEW m AS SELECT * FROM v""")
        Harness(connection).deliver("s.t", [["1"]])
        Harness(connection).deliver("public.t", [["2"]])
        Harness(connection).deliver("t", [["3"]])
        cursor.execute("FLUSH")
    for rebuild in (False, True):
        with connected(tmp_path / "db", rebuild=rebuild) as connection:
            cursor = connection.cursor()
            assert sorted(cursor.execute("SELECT * FROM s.m").fetchall()) == [(1,), (3,)]
            assert cursor.execute("SELECT * FROM t").fetchall() == [(2,)]
            assert [v["name"] for v in connection.status()["views"]] == ["s.m"]
            assert cursor.execute("SHOW SCHEMAS").fetchall() == [("public",), ("s",)]


def test_prepared_rows_returning_and_deletes_are_of_the_schema_that_is_named():
    with connected() as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE SCHEMA s; CREATE TABLE s.t (a int PRIMARY KEY, b int); CREATE TABLE t (a int PRIMARY KEY, b int)"
        )
        cursor.executemany("INSERT INTO s.t VALUES (?, ?)", [(1, 1), (2, 2)])
        assert cursor.execute("INSERT INTO s.t VALUES (1, 5) RETURNING s.t.b, t.a").fetchall() == [(5, 1)]
        assert cursor.execute("DELETE FROM s.t WHERE s.t.a = 2 RETURNING b").fetchall() == [(2,)]
        assert cursor.execute("SELECT * FROM s.t").fetchall() == [(1, 5)]
        assert cursor.execute("SELECT * FROM t").fetchall() == []


def test_every_dialect_has_its_name_of_the_common_schema(tmp_path):
    with connected(tmp_path / "db", dialect="timeplus") as connection:
        connection.cursor().execute("CREATE DATABASE d; CREATE STREAM default.s (a int); CREATE STREAM d.s (b int)")
    with connected(tmp_path / "db") as connection:
        cursor = connection.cursor()
        assert cursor.execute("SELECT * FROM public.s").description[0][0] == "a"
        assert cursor.execute("SELECT * FROM d.s").description[0][0] == "b"


def test_a_path_without_a_schema_that_exists():
    with connected() as connection:
        cursor = connection.cursor()
        cursor.execute("SET search_path TO nowhere")
        assert cursor.notices == ('schema "nowhere" does not exist',)
        with pytest.raises(watersmeet.Error, match="no schema has been selected to create in"):
            cursor.execute("CREATE TABLE t (a int)")


@pytest.mark.parametrize(
    ("dialect", "query", "expected"),
    [
        (
            "risingwave",
            "SELECT current_schema() AS s, current_schema, current_database(), current_catalog || '!'",
            ("s", "s", "dev", "dev!"),
        ),
        ("risingwave", "SELECT s FROM v WHERE s = 'public'", ("public",)),
        ("sqlstream", "SELECT current_schema", ("s",)),
        ("timeplus", "SELECT current_database()", ("s",)),
    ],
)
def test_the_names_of_where_one_is(dialect, query, expected):
    with connected() as connection:
        connection.execute("CREATE SCHEMA s; CREATE VIEW v AS SELECT current_schema() AS s; SET SCHEMA 's'")
        cursor = connection.execute(f"SET dialect = '{dialect}'; " + query.replace("FROM v", "FROM public.v"))
        assert cursor.fetchall() == [expected]
        if dialect == "risingwave" and len(expected) > 1:
            assert [d[0] for d in cursor.description] == ["s", "current_schema", "current_database", "?column?"]


def test_without_a_schema_that_exists_there_is_no_current_one():
    with connected() as connection:
        assert connection.execute("SET search_path TO nowhere; SELECT current_schema()").fetchall() == [(None,)]


IN_A_SCHEMA = """
    CREATE SCHEMA s; CREATE SCHEMA other;
    CREATE TABLE s.t (a int PRIMARY KEY, b int);
    CREATE INDEX i ON s.t (b);
    CREATE VIEW s.w AS SELECT a, b FROM s.t;
    SET search_path TO s;
    CREATE MATERIALIZED VIEW m AS SELECT t.a, w.b FROM t JOIN w ON t.a = w.a;
    SET search_path TO public;
    CREATE TABLE other.t (a int);
    INSERT INTO s.t VALUES (1, 10);
    INSERT INTO other.t VALUES (7);
    FLUSH;
"""


@pytest.mark.parametrize("rebuild", [False, True])
def test_objects_of_a_renamed_schema_keep_their_rows_and_readers(tmp_path, rebuild):
    with connected(tmp_path / "db") as connection:
        connection.execute(IN_A_SCHEMA)
        connection.execute("ALTER SCHEMA s RENAME TO moved; INSERT INTO moved.t VALUES (2, 20); FLUSH")
        connection.execute("CREATE SCHEMA s; CREATE TABLE s.t (x varchar)")  # the view does not read this one
        with pytest.raises(watersmeet.Error, match=r's\.m" does not exist'):
            connection.execute("SELECT * FROM s.m")
    with connected(tmp_path / "db", rebuild=rebuild) as connection:
        connection.execute("INSERT INTO moved.t VALUES (3, 30); DELETE FROM moved.t WHERE a = 1; FLUSH")
        assert sorted(connection.execute("SELECT * FROM moved.m").fetchall()) == [(2, 20), (3, 30)]
        assert connection.execute("SHOW INDEXES FROM moved.t").fetchall() == [("i", "moved.t", "b")]


def test_two_schemas_exchange_their_names(tmp_path):
    with connected(tmp_path / "db") as connection:
        connection.execute(IN_A_SCHEMA + "ALTER SCHEMA s SWAP WITH other")
    with connected(tmp_path / "db") as connection:
        assert connection.execute("SELECT * FROM s.t").fetchall() == [(7,)]
        assert connection.execute("SELECT * FROM other.m").fetchall() == [(1, 10)]


def test_a_schema_is_renamed_with_its_transaction_or_not_at_all():
    with connected() as connection:
        connection.execute(IN_A_SCHEMA)
        connection.execute("BEGIN; ALTER SCHEMA s RENAME TO moved")
        assert connection.execute("SELECT * FROM moved.m").fetchall() == [(1, 10)]
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT * FROM s.m").fetchall() == [(1, 10)]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("ALTER SCHEMA nowhere RENAME TO x", "UNDEFINED_OBJECT"),
        ("ALTER SCHEMA public RENAME TO x", "DEPENDENT_OBJECTS"),
        ("ALTER SCHEMA s SWAP WITH public", "DEPENDENT_OBJECTS"),
        ("ALTER SCHEMA s RENAME TO other", "DUPLICATE_OBJECT"),
        ("ALTER SCHEMA s RENAME TO public", "DUPLICATE_OBJECT"),
        ("ALTER SCHEMA called RENAME TO x", "DEPENDENT_OBJECTS"),
        ("ALTER SCHEMA typed RENAME TO x", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_schemas_that_keep_their_names(sql, condition):
    with connected() as connection:
        connection.execute(IN_A_SCHEMA)
        connection.execute(
            "CREATE SCHEMA typed; CREATE TYPE typed.mood AS ENUM ('a'); CREATE TABLE felt (m typed.mood);"
            "CREATE SCHEMA called; CREATE FUNCTION called.f(a int) RETURNS int LANGUAGE sql AS 'SELECT a'"
        )
        with pytest.raises(watersmeet.Error) as refused:
            connection.execute(sql)
        assert refused.value.condition == condition
