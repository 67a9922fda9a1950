"""A script that is given again runs only what the database lacks."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.session.connections.scripts import check_definitions, steps_of

#: By dialect: a script, its rows, and a spelling of it that means the same.
SCRIPTS = {
    "risingwave": (
        """
        CREATE TABLE a (id int PRIMARY KEY, v varchar);
        CREATE TABLE b (id int PRIMARY KEY, w varchar);
        CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a LEFT JOIN b ON a.id = b.id;
        CREATE VIEW p AS SELECT * FROM j;
        INSERT INTO a VALUES (1, 'x');
        INSERT INTO a SELECT 2, 'X';
        """,
        "SELECT * FROM p ORDER BY id",
        [(1, "x", None), (2, "X", None)],
    ),
    "sqlstream": (
        """
        CREATE SCHEMA shop;
        SET SCHEMA '"SHOP"';
        CREATE STREAM a (id int, v varchar(9));
        CREATE OR REPLACE STREAM b (id int, v varchar(9));
        CREATE PUMP p STARTED AS INSERT INTO b SELECT STREAM id, v FROM a;
        INSERT INTO a (id, v) VALUES (1, 'x');
        """,
        'SELECT id, v FROM "SHOP".b ORDER BY id',
        [(1, "x")],
    ),
    "timeplus": (
        """
        CREATE MUTABLE STREAM a (id int32, v string) PRIMARY KEY id;
        CREATE MUTABLE STREAM b (id int32, w string) PRIMARY KEY id;
        CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a INNER JOIN b ON a.id = b.id;
        INSERT INTO a (id, v) VALUES (1, 'x');
        INSERT INTO b (id, w) VALUES (1, 'y');
        """,
        "SELECT id, v, w FROM table(j)",
        [(1, "x", "y")],
    ),
    "lenses": (
        """
        SET defaults.topic.autocreate = true;
        CREATE TABLE a (_key int, v string) FORMAT (INT, AVRO) PROPERTIES (partitions = 1);
        CREATE TABLE target (_key int, v string) FORMAT (INT, AVRO) PROPERTIES (partitions = 1);
        INSERT INTO target SELECT STREAM v FROM a;
        INSERT INTO a (_key, v) VALUES (1, 'x');
        """,
        "SELECT v FROM target",
        [("x",)],
    ),
}


@pytest.fixture
def given(connection):
    """A function that runs a script as the command line does, and returns the notices."""

    def given(text, name="shop.sql", *, transaction=True, **options):
        with connection.settings_kept():
            found = list(connection.execute_script(text, transaction=transaction, name=name, **options))
        return [notice for cursor in found for notice in cursor.notices]

    return given


def check(connection, text, name="shop.sql"):
    check_definitions(Session(connection.opened, Variables(connection.dialect)), name, text, name, "db")


@pytest.mark.parametrize("transaction", [True, False])
@pytest.mark.parametrize("dialect", SCRIPTS)
def test_a_script_again_changes_nothing_in_any_dialect(tmp_path, dialect, transaction):
    script, query, rows = SCRIPTS[dialect]
    spelled = "-- again\n" + script.replace("CREATE ", "create  /* x */\n").replace(" AS ", "\tas ")
    for text in (script, script, spelled):
        with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect=dialect) as connection:
            check(connection, text)
            before = connection.opened.log.head()
            with connection.settings_kept():
                list(connection.execute_script(text, transaction=transaction, name="shop.sql"))
            if text is not script or before > 10:
                assert connection.opened.log.head() == before
            connection.execute("FLUSH")
            assert connection.execute(query).fetchall() == rows


def test_only_new_statements_run(connection, given):
    given("CREATE TABLE t (a int); INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)")
    notices = given(
        "CREATE TABLE t (a int); INSERT INTO t VALUES (1); INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)"
    )
    assert notices == ["shop.sql: 3 statements skipped, because the database has their effect"]
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
    given("INSERT INTO t VALUES (1)", "other.sql")
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(4,)], "a script is known by its name"


def test_what_is_dropped_by_hand_is_created_again_with_its_rows(connection, given):
    script = "CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; INSERT INTO t VALUES (1)"
    given(script)
    connection.execute("DROP TABLE t CASCADE")
    given(script)
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM v").fetchall() == [(1,)]


def test_what_a_script_drops_and_renames_itself_stays_so(connection, given):
    script = """
        DROP TABLE IF EXISTS t;
        CREATE TABLE t (a int);
        CREATE TABLE scratch (a int);
        INSERT INTO scratch VALUES (1);
        INSERT INTO t SELECT a FROM scratch;
        DROP TABLE scratch;
        ALTER TABLE t ADD COLUMN b int;
        CREATE TABLE old (a int);
        ALTER TABLE old RENAME TO new;
        CREATE USER ann PASSWORD 'x';
        GRANT SELECT ON t TO ann;
        ALTER USER ann PASSWORD 'y';
    """
    given(script)
    head = connection.opened.log.head()
    check(connection, script)
    assert given(script) == ["shop.sql: 12 statements skipped, because the database has their effect"]
    assert connection.opened.log.head() == head
    assert connection.execute("SHOW TABLES").fetchall() == [("t",), ("new",)]


def test_another_definition_is_refused_before_anything_runs(connection, given):
    given("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS\nSELECT a\nFROM t")
    text = (
        "CREATE TABLE u (a int);\nCREATE TABLE t (a int);\nCREATE MATERIALIZED VIEW v AS\n  SELECT a + 1 AS a\nFROM t"
    )
    with pytest.raises(watersmeet.Error) as refused:
        check(connection, text)
    err = refused.value
    assert (err.condition, err.line) == ("DUPLICATE_OBJECT", 3)
    assert err.detail is not None
    assert err.detail.splitlines() == [
        'materialized view "v", in the database and in the script:',
        "  CREATE MATERIALIZED VIEW v AS",
        "- SELECT a",
        "+   SELECT a + 1 AS a",
        "  FROM t",
        "Nothing of the script was done.",
    ]
    assert "watersmeet migrate shop.sql --path db" in (err.hint or "")


def test_a_definition_that_was_changed_since_does_not_stop_a_restart(connection, given):
    script = "CREATE TABLE t (a int); CREATE VIEW v AS SELECT a FROM t; CREATE VIEW IF NOT EXISTS w AS SELECT a FROM t"
    given(script)
    connection.execute("CREATE OR REPLACE VIEW v AS SELECT a, 1 AS b FROM t")
    connection.execute("CREATE OR REPLACE VIEW w AS SELECT a, 2 AS b FROM t")
    check(connection, script)
    stays = "is defined in another way than in shop.sql, and stays as it is"
    assert given(script)[:2] == [f'view "v" {stays}', f'view "w" {stays}']
    assert connection.execute("SHOW COLUMNS FROM v").fetchall()[1][0] == "b"


def test_replacing_shows_and_makes_changes_but_loses_no_rows(connection, given):
    given("CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    new = "CREATE TABLE t (a bigint); CREATE MATERIALIZED VIEW v AS SELECT a, a + 1 AS b FROM t"
    steps = steps_of(Session(connection.opened, Variables("risingwave")), "shop.sql", new, replaces=True)
    assert [(s.action, s.problem and s.problem.condition) for s in steps] == [
        ("differs", "FEATURE_NOT_SUPPORTED"),
        ("differs", None),
    ]
    given(new.replace("bigint", "int"), replaces=True)
    assert connection.execute("SELECT * FROM v").fetchall() == [(1, 2)]


def test_a_failed_script_is_forgotten(connection, given):
    given("CREATE TABLE t (a int)")
    for _ in range(2):
        with pytest.raises(watersmeet.Error, match="int"):
            given("INSERT INTO t VALUES (1); INSERT INTO t SELECT 'x'::int")
    given("INSERT INTO t VALUES (1); INSERT INTO t SELECT 1")
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    with pytest.raises(watersmeet.Error, match="int"):
        given("INSERT INTO t VALUES (5); INSERT INTO t SELECT 'x'::int", transaction=False)
    given("INSERT INTO t VALUES (5)", transaction=False)
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)], "statements that ran alone are known"


def test_what_can_not_be_undone_commits_what_precedes_it(connection, given):
    script = """
        CREATE TABLE t (a int);
        CREATE SECRET s WITH (backend = 'meta') AS 'x';
        ALTER SYSTEM SET retention = '1 hour';
        INSERT INTO t VALUES (1);
    """
    with pytest.raises(watersmeet.Error, match="nope") as failed:
        given(script + "SELECT nope;")
    assert failed.value.detail == "The statements up to line 4 took effect, those after it did not."
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    given(script)
    given(script)
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(1,)]


def test_secrets_are_neither_shown_nor_compared(connection, given):
    script = """
        CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = 'h',
            properties.sasl.password = '{}');
    """
    given(script.format("first-secret"))
    check(connection, script.format("second-secret"), "other.sql")
    with pytest.raises(watersmeet.Error) as refused:
        check(connection, script.replace("'h'", "'g'").format("third-secret"), "other.sql")
    assert "secret" not in str(refused.value).replace("sasl.password", "")
