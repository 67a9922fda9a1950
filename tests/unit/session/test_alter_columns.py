"""ALTER COLUMN: older rows have the values of the new type in every reader, and what could lose values is refused."""

from __future__ import annotations

import pytest
from tests.unit.session.test_altering import compact

import watersmeet

MADE = """
    CREATE TABLE t (id int PRIMARY KEY, n smallint DEFAULT 3 NOT NULL, v varchar, r real);
    INSERT INTO t VALUES (1, 7, 'a', 0.5);
    INSERT INTO t (id) VALUES (2);
    CREATE MATERIALIZED VIEW names AS SELECT id, v FROM t;
    FLUSH"""
ALTERED = """
    ALTER TABLE t ALTER COLUMN n TYPE bigint;
    ALTER TABLE t ALTER r SET DATA TYPE double precision;
    ALTER TABLE t ALTER COLUMN v SET DEFAULT 'x' || 'y';
    INSERT INTO t (id, n) VALUES (3, 3000000000);
    UPDATE t SET r = 0.1 WHERE id = 2;
    CREATE MATERIALIZED VIEW sums AS SELECT id, n + 1 AS n, r FROM t;
    INSERT INTO t VALUES (4, -5, NULL, 1.5);
    DELETE FROM t WHERE id = 1;
    FLUSH"""
CONTENT = {
    "t": [(2, 3, None, 0.1), (3, 3000000000, "xy", None), (4, -5, None, 1.5)],
    "names": [(2, None), (3, "xy"), (4, None)],
    "sums": [(2, 4, 0.1), (3, 3000000001, None), (4, -4, 1.5)],
}


def content(connection):
    return {n: sorted(connection.execute(f"SELECT * FROM {n}").fetchall()) for n in CONTENT}


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_before_have_the_values_of_the_new_type(tmp_path, compacted):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(MADE)
        assert connection.execute("SELECT sum(n) FROM t").fetchall() == [(10,)]
        if compacted:
            compact(connection)
        connection.execute(ALTERED)
        assert content(connection) == CONTENT
        if compacted:
            compact(connection)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=True) as connection:
        assert content(connection) == CONTENT
        assert [k.sql for _, k, *_ in connection.execute("SELECT n, r FROM t").description] == [
            "bigint",
            "double precision",
        ]


def test_an_index_follows_its_columns(run, fails):
    run("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, u int UNIQUE); INSERT INTO t VALUES (1, 1, 1)")
    run("CREATE INDEX i ON t (n); ALTER TABLE t ALTER n DROP NOT NULL, ALTER n TYPE bigint; FLUSH")
    run("INSERT INTO t VALUES (2, NULL, NULL), (3, 5000000000, 3); FLUSH")
    assert run("SELECT id FROM t WHERE n = 5000000000") == [(3,)]
    assert run("SELECT id FROM i WHERE n = 1") == [(1,)]
    run("CREATE UNIQUE INDEX w ON t (n); ALTER TABLE t ALTER u TYPE bigint, ALTER n TYPE numeric")
    for row in ("(4, 7, 1)", "(5, 5000000000, 7)"):
        assert fails(f"INSERT INTO t VALUES {row}").condition == "UNIQUE_VIOLATION"


def test_using_may_only_be_the_cast_of_the_column(run, fails):
    run("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
    run('ALTER TABLE t ALTER n TYPE bigint USING "n"::bigint, ALTER n TYPE numeric USING (n)')
    run("ALTER TABLE t ALTER n TYPE numeric USING CAST(n AS numeric)")
    assert run("SELECT n FROM t") == [(1,)]
    for other in ("n + 1", "id::bigint", "n::int", "(n::bigint) + 1"):
        error = fails(f"ALTER TABLE t ALTER n TYPE bigint USING {other}")
        assert error.message == "ALTER COLUMN … TYPE … USING another expression is not supported"


def test_not_null_is_set_when_no_row_has_null(run, fails):
    run("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL); INSERT INTO t VALUES (1, 1)")
    run("ALTER TABLE t ALTER n DROP NOT NULL; INSERT INTO t VALUES (2, NULL)")
    assert fails("ALTER TABLE t ALTER n SET NOT NULL").message == 'column "n" of table "t" contains NULL'
    run("DELETE FROM t WHERE id = 2; ALTER TABLE t ALTER n SET NOT NULL")
    assert fails("INSERT INTO t VALUES (3, NULL)").condition == "NOT_NULL_VIOLATION"
    run("CREATE MATERIALIZED VIEW m AS SELECT id, n FROM t")
    assert fails("ALTER TABLE t ALTER n DROP NOT NULL").condition == "DEPENDENT_OBJECTS"


def test_a_transaction_undoes_it(connection, run):
    run("CREATE TABLE t (id int PRIMARY KEY, n smallint)")
    run("BEGIN; ALTER TABLE t ALTER n TYPE bigint; ALTER TABLE t ALTER n SET DEFAULT 4; ROLLBACK")
    assert run("SHOW CREATE TABLE t") == [("t", "CREATE TABLE t (id int PRIMARY KEY, n smallint)")]
    run("INSERT INTO t (id) VALUES (1)")
    assert run("SELECT * FROM t") == [(1, None)]


@pytest.mark.parametrize(
    ("altered", "condition"),
    [
        ("n TYPE smallint", "FEATURE_NOT_SUPPORTED"),
        ("n TYPE varchar", "FEATURE_NOT_SUPPORTED"),
        ("n TYPE bigint USING n + 1", "FEATURE_NOT_SUPPORTED"),
        ("id TYPE bigint", "FEATURE_NOT_SUPPORTED"),
        ("g SET DEFAULT 1", "FEATURE_NOT_SUPPORTED"),
        ("n SET STATISTICS 100", "FEATURE_NOT_SUPPORTED"),
        ("n SET DEFAULT id + 1", "FEATURE_NOT_SUPPORTED"),
        ("n SET DEFAULT 'a'", "INVALID_VALUE"),
        ("id DROP NOT NULL", "INVALID_PARAMETER"),
        ("m TYPE bigint", "UNDEFINED_COLUMN"),
        ("k TYPE bigint", "DEPENDENT_OBJECTS"),
    ],
)
def test_other_changes_are_refused(run, fails, altered, condition):
    run("CREATE TABLE t (id int PRIMARY KEY, n int, k int, g int AS n + 1)")
    run("CREATE MATERIALIZED VIEW m AS SELECT k FROM t")
    assert fails(f"ALTER TABLE t ALTER COLUMN {altered}").condition == condition


@pytest.mark.parametrize(
    ("made", "altered", "shown"),
    [
        ("n smallint DEFAULT 3 NOT NULL", "n TYPE bigint", "n bigint DEFAULT 3 NOT NULL"),
        ("n smallint DEFAULT 3 NOT NULL", "n DROP DEFAULT", "n smallint NOT NULL"),
        ("n smallint DEFAULT NULL", "n SET DEFAULT 4", "n smallint DEFAULT 4"),
        ("n smallint NOT NULL", "n DROP NOT NULL", "n smallint"),
        ("n smallint DEFAULT (1 + 2)", "n SET NOT NULL", "n smallint DEFAULT (1 + 2) NOT NULL"),
        ('"N" numeric(10, 2)', '"N" SET DEFAULT 0', '"N" numeric(10, 2) DEFAULT 0'),
        ("n smallint, m int", "n TYPE int", "n int, m int"),
    ],
)
def test_show_create_shows_the_column_as_it_is(run, made, altered, shown):
    run(f"CREATE TABLE t ({made}); ALTER TABLE t ALTER COLUMN {altered}")
    assert run("SHOW CREATE TABLE t") == [("t", f"CREATE TABLE t ({shown})")]


def test_identity_is_added_and_dropped(run, fails):
    run("CREATE TABLE t (a int NOT NULL, b int); INSERT INTO t VALUES (7, 1)")
    run("ALTER TABLE t ALTER COLUMN a ADD GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME numbers START WITH 8)")
    run("INSERT INTO t (b) VALUES (2)")
    assert run("SELECT a, b FROM t ORDER BY a") == [(7, 1), (8, 2)]
    assert "already an identity column" in fails("ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY").message
    assert "declared NOT NULL" in fails("ALTER TABLE t ALTER b ADD GENERATED ALWAYS AS IDENTITY").message
    run("ALTER TABLE t ALTER COLUMN a DROP IDENTITY")
    assert "is not an identity column" in fails("ALTER TABLE t ALTER a DROP IDENTITY").message
    run("ALTER TABLE t ALTER a DROP IDENTITY IF EXISTS")
    assert fails("INSERT INTO t (b) VALUES (3)").condition == "NOT_NULL_VIOLATION"
    assert fails("SELECT nextval('numbers')").condition == "UNDEFINED_RELATION"


def test_columns_with_numbers_and_enums_are_added(run, fails):
    run("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (a int); INSERT INTO t VALUES (10), (20)")
    run("CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
    run("ALTER TABLE t ADD m mood DEFAULT 'ok'::mood, ADD ms mood[], ADD COLUMN id serial PRIMARY KEY")
    run("INSERT INTO t (a) VALUES (30); FLUSH")
    assert sorted(run("SELECT id FROM t")) == [(1,), (2,), (3,)]
    assert run("SELECT a, m, ms FROM t ORDER BY a") == [(10, "ok", None), (20, "ok", None), (30, "ok", None)]
    assert run("SELECT a FROM v ORDER BY a") == [(10,), (20,), (30,)]
    assert fails("INSERT INTO t (a, m) VALUES (1, 'bad')").condition == "INVALID_VALUE"
    assert fails("INSERT INTO t (id) VALUES (NULL)").condition == "NOT_NULL_VIOLATION"
    assert fails("ALTER TABLE t ADD COLUMN n nothing").condition == "UNDEFINED_OBJECT"
