"""ALTER COLUMN: older rows have the values of the new type in every reader."""

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


@pytest.mark.parametrize("compacted", [False, True])
def test_values_are_computed_for_a_type_that_lacks_some(tmp_path, compacted):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute("""
            CREATE TABLE t (
                id int PRIMARY KEY, a varchar(10) UNIQUE, n numeric(10, 2) DEFAULT 1.5 CHECK (n >= 0), z int);
            INSERT INTO t VALUES (1, 'abc', 1.25, 7), (2, 'abcdefgh', 2, NULL);
            CREATE MATERIALIZED VIEW v AS SELECT id, z FROM t""")
        for count in (2, 3):
            if compacted:
                compact(connection)
            connection.execute(f"""
                ALTER TABLE t ALTER n TYPE numeric({12 - count}, 1);
                ALTER TABLE t ALTER a TYPE int USING length(a::varchar) * id * 100;
                INSERT INTO t (id, a) VALUES ({count + 1}, {count * 10}); UPDATE t SET z = 0 WHERE id = 2; FLUSH""")
        connection.execute("ALTER TABLE t ALTER a TYPE text, DROP CONSTRAINT t_n_check, ALTER n TYPE varchar(4)")
        connection.execute("DELETE FROM t WHERE id = 1; FLUSH")
        wanted = [(2, "800", "2.0", 0), (3, "600", "1.5", None), (4, "30", "1.5", None)]
        if compacted:
            compact(connection)
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == wanted
        assert connection.execute("SELECT * FROM v ORDER BY id").fetchall() == [(r[0], r[3]) for r in wanted]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=True) as connection:
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == wanted
        assert connection.execute("SELECT * FROM v ORDER BY id").fetchall() == [(r[0], r[3]) for r in wanted]


def test_a_narrower_length_is_checked_or_cast(run, fails):
    run(
        "CREATE TABLE t (id varchar(9) PRIMARY KEY, a varchar(10)); INSERT INTO t VALUES ('abc', 'abcdef'), ('x', NULL)"
    )
    assert fails("ALTER TABLE t ALTER a TYPE varchar(5)").condition == "VALUE_TOO_LONG"
    assert run("SELECT a FROM t WHERE id = 'abc'") == [("abcdef",)]
    run("ALTER TABLE t ALTER a TYPE varchar(5) USING a::varchar(5), ALTER id TYPE varchar(3)")
    assert run("SELECT a FROM t WHERE id = 'abc'") == [("abcde",)]
    assert fails("INSERT INTO t VALUES ('y', 'abcdef')").condition == "VALUE_TOO_LONG"
    assert fails("INSERT INTO t VALUES ('wxyz', 'a')").condition == "VALUE_TOO_LONG"


def test_constraints_hold_for_the_new_values(run, fails):
    run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(10, 2) UNIQUE CHECK (n < 2));"
        "INSERT INTO t VALUES (1, 1.1), (2, 1.2)"
    )
    assert fails("ALTER TABLE t ALTER n TYPE int").condition == "UNIQUE_VIOLATION"
    assert fails("ALTER TABLE t ALTER n TYPE int USING id + 1").condition == "CHECK_VIOLATION"
    run("ALTER TABLE t ALTER n TYPE int USING id - 1")
    assert run("SELECT * FROM t ORDER BY id") == [(1, 0), (2, 1)]
    assert fails("INSERT INTO t VALUES (3, 2)").condition == "CHECK_VIOLATION"
    assert fails("INSERT INTO t VALUES (3, 1)").condition == "UNIQUE_VIOLATION"
    assert fails("ALTER TABLE t ALTER n TYPE int USING").condition == "SYNTAX_ERROR"
    assert fails("ALTER TABLE t ALTER n TYPE varchar").message == "operator does not exist: character varying < integer"
    run("ALTER TABLE t DROP CONSTRAINT t_n_check, ALTER n TYPE varchar")
    assert fails("ALTER TABLE t ALTER n TYPE int").condition == "DATATYPE_MISMATCH"


def test_a_table_is_altered_in_the_transaction_that_wrote_it(connection, run, fails):
    run("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
    run("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
    run("BEGIN; INSERT INTO t VALUES (2, 2); DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (3, 3)")
    run("ALTER TABLE t ADD COLUMN d int DEFAULT 4, ALTER n TYPE varchar, RENAME COLUMN n TO m")
    run("ALTER TABLE t ADD CONSTRAINT long CHECK (length(m) > 0), DROP COLUMN d, ADD UNIQUE (m)")
    assert fails("INSERT INTO t VALUES (4, '3')").condition == "UNIQUE_VIOLATION"
    run("ROLLBACK")
    assert run("SELECT * FROM t") == [(1, 1)]
    run("BEGIN; INSERT INTO t VALUES (2, 2); UPDATE t SET n = 5 WHERE id = 1; ALTER TABLE t ADD COLUMN d int DEFAULT 4")
    run("ALTER TABLE t ALTER n TYPE varchar; ALTER TABLE t RENAME COLUMN n TO m; INSERT INTO t VALUES (3, 'x', 6)")
    rows = [(1, "5", 4), (2, "2", 4), (3, "x", 6)]
    assert run("SELECT * FROM t ORDER BY id") == rows
    run("COMMIT; FLUSH")
    assert run("SELECT * FROM t ORDER BY id") == rows
    assert run("SELECT * FROM v ORDER BY id") == [(1,), (2,), (3,)]


def test_a_table_is_altered_in_the_transaction_that_made_it(run):
    run("BEGIN; CREATE TABLE t (id int PRIMARY KEY, n varchar, z int); INSERT INTO t VALUES (1, '7', 3)")
    run("ALTER TABLE t ALTER n TYPE int USING n::int * 2; INSERT INTO t VALUES (2, 5, 4); COMMIT; FLUSH")
    assert run("SELECT * FROM t ORDER BY id") == [(1, 14, 3), (2, 5, 4)]


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
        ("n TYPE date", "FEATURE_NOT_SUPPORTED"),
        ("k TYPE bigint USING k + 1", "DEPENDENT_OBJECTS"),
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


def test_a_key_keeps_its_name_when_its_table_gets_another_one(run):
    run("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t RENAME TO u; ALTER TABLE u DROP CONSTRAINT t_pkey")
    run("INSERT INTO u VALUES (1), (1)")
    assert run("SELECT count(*) FROM u") == [(2,)]


def test_null_is_an_address(run):
    assert run("SELECT NULL::inet, NULL::cidr, NULL::oid, '{NULL,::1}'::inet[]") == [(None, None, None, [None, "::1"])]
