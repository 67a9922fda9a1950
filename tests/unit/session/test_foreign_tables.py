"""SQLstream's foreign tables over a real PostgreSQL: read by queries and joins, written by INSERT and by pumps."""

from __future__ import annotations

import pytest
from scripts.servers import mariadb
from scripts.servers.postgres import PASSWORD, USER

import watersmeet
from watersmeet import Error


def server(postgres, **more):
    options = {
        "DRIVER_CLASS": "org.postgresql.Driver",
        "URL": f"jdbc:postgresql://127.0.0.1:{postgres.server.port}/{postgres.name}",
        "USER_NAME": USER,
        "PASSWORD": PASSWORD,
        **more,
    }
    given = ", ".join(f"{n} '{v}'" for n, v in options.items() if v is not None)
    return f'CREATE SERVER "db" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS ({given})'


def content(postgres, query):
    with postgres.connect() as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def connection(tmp_path, postgres):
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess", parallelism=2) as opened:
        opened.execute(server(postgres))
        yield opened


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


def delivered(connection):
    connection.execute("FLUSH")
    session = connection._session
    for relation in session.catalog.relations.values():
        assert session.database.deliveries.wait(relation.id, 60)


def test_a_stream_is_joined_to_the_table_as_it_is_when_the_query_begins(connection, postgres):
    postgres.execute("CREATE TABLE animals (key int PRIMARY KEY, name text); INSERT INTO animals VALUES (1, 'cat')")
    connection.execute(
        'CREATE FOREIGN TABLE animals ("key" INTEGER, name VARCHAR(20)) SERVER "db" '
        "OPTIONS (SCHEMA_NAME 'public', TABLE_NAME 'animals')"
    )
    assert connection.execute('SELECT "key", name FROM animals').fetchall() == [(1, "cat")]
    connection.execute('CREATE STREAM "seen" ("animal" INTEGER)')
    join = 'SELECT STREAM s."animal", a.name FROM "seen" s LEFT JOIN animals a ON s."animal" = a."key"'
    connection.execute(f'CREATE MATERIALIZED VIEW "before" AS {join}')
    postgres.execute("INSERT INTO animals VALUES (2, 'dog'); UPDATE animals SET name = 'lion' WHERE key = 1")
    connection.execute(f'CREATE MATERIALIZED VIEW "after" AS {join}')
    connection.execute('INSERT INTO "seen" ("animal") VALUES (1), (2); FLUSH')
    assert connection.execute('SELECT "animal", name FROM "before" ORDER BY 1').fetchall() == [(1, "cat"), (2, None)]
    assert connection.execute('SELECT "animal", name FROM "after" ORDER BY 1').fetchall() == [(1, "lion"), (2, "dog")]
    assert connection.execute("SELECT name FROM animals ORDER BY name").fetchall() == [("dog",), ("lion",)]


def test_rows_are_written_by_insert_and_by_pumps(connection, postgres):
    postgres.execute('CREATE TABLE "Totals" (id int, "Name" text, note text DEFAULT \'new\')')
    connection.execute('CREATE FOREIGN TABLE totals (ID INTEGER, name VARCHAR(9)) SERVER "db" '
                       "OPTIONS (TABLE_NAME 'Totals')")  # fmt: skip
    connection.execute("INSERT INTO totals VALUES (1, 'one'), (2, 'two'); INSERT INTO totals (name) VALUES ('none')")
    connection.execute('CREATE STREAM "s" ("n" INTEGER, "x" VARCHAR(9))')
    connection.execute(
        'CREATE PUMP "p" STOPPED AS INSERT INTO totals (name, id) SELECT STREAM "x", "n" FROM "s" WHERE "n" > 10'
    )
    connection.execute('INSERT INTO "s" VALUES (11, \'before\'); ALTER PUMP "p" START')
    connection.execute("INSERT INTO \"s\" VALUES (12, 'a'), (9, 'b'), (13, 'c')")
    connection.execute('FLUSH; ALTER PUMP "p" STOP')
    connection.execute('INSERT INTO "s" VALUES (14, \'stopped\'); ALTER PUMP "p" START')
    connection.execute("INSERT INTO \"s\" VALUES (15, 'd')")
    delivered(connection)
    assert content(postgres, 'SELECT * FROM "Totals" ORDER BY id') == [
        (1, "one", "new"),
        (2, "two", "new"),
        (12, "a", "new"),
        (13, "c", "new"),
        (15, "d", "new"),
        (None, "none", "new"),
    ]
    assert connection.execute("SELECT count(*) FROM totals").fetchall() == [(6,)]


def test_columns_are_those_of_the_table_there(connection, postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, price numeric(8, 2)); INSERT INTO t VALUES (1, 2.5)")
    connection.execute('CREATE FOREIGN TABLE "t" SERVER "db" OPTIONS (TABLE_NAME \'t\')')
    assert [str(r[0]) for r in connection.execute('SELECT "price" FROM "t"').fetchall()] == ["2.50"]
    connection.execute('DROP FOREIGN TABLE "t"; DROP SERVER "db"')


def test_passwords_are_not_shown(connection):
    assert PASSWORD not in str(connection.execute('SHOW CREATE SERVER "db"').fetchall())


@pytest.mark.parametrize(
    ("changed", "options", "condition", "said"),
    [
        ({"URL": "jdbc:oracle:thin:@h:1/x"}, "", "FEATURE_NOT_SUPPORTED", "oracle"),
        ({"URL": None}, "", "CONNECTOR_OPTION", "URL"),
        ({"DRIVER_CLASS": "com.mysql.cj.jdbc.Driver"}, "", "CONNECTOR_OPTION", "not that of the URL"),
        ({"DRIVER_CLASS": "x.Y"}, "", "CONNECTOR_OPTION", "x.Y"),
        ({"PASSWORD": "wrong"}, "", "CONNECTOR_OPTION", "does not let user"),
        ({}, "TABLE_NAME 'x'", "UNDEFINED_OBJECT", "public.x"),
        ({}, "SCHEMA_NAME 'none', TABLE_NAME 't'", "UNDEFINED_OBJECT", "none.t"),
        ({}, "TABLE_NAME 't', TABEL 'x'", "CONNECTOR_OPTION", "tabel"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, postgres, changed, options, condition, said):
    postgres.execute("CREATE TABLE t (id int)")
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess") as connection:
        connection.execute(server(postgres, **changed))
        wrong = refused(connection, f'CREATE FOREIGN TABLE "t" ("id" INTEGER) SERVER "db" OPTIONS ({options})')
        assert wrong.condition == condition
        assert said in str(wrong)


def test_what_does_not_fit_is_refused(connection, postgres):
    postgres.execute("CREATE TABLE t (id int)")
    wrong = refused(connection, 'CREATE FOREIGN TABLE "t" ("id" INTEGER, "other" INTEGER) SERVER "db"')
    assert wrong.condition == "UNDEFINED_COLUMN"
    wrong = refused(connection, 'CREATE FOREIGN TABLE "t" ("id" INTEGER) SERVER KAFKA10_SERVER')
    assert wrong.condition == "UNDEFINED_RELATION"
    wrong = refused(connection, 'CREATE FOREIGN STREAM "t" ("id" INTEGER) SERVER "db"')
    assert wrong.condition == "CATALOG_TYPE_MISMATCH"
    connection.execute('CREATE FOREIGN TABLE "t" ("id" INTEGER) SERVER "db"')
    assert refused(connection, 'UPDATE "t" SET "id" = 1').condition == "READ_ONLY_RELATION"
    assert refused(connection, 'DROP SERVER "db"').condition == "DEPENDENT_OBJECTS"


def test_tables_of_mariadb(tmp_path, mysql):
    mysql.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar(9)); INSERT INTO t VALUES (1, 'one')")
    url = f"jdbc:mariadb://127.0.0.1:{mysql.server.port}/{mysql.name}"
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess", parallelism=2) as connection:
        connection.execute(
            f"CREATE SERVER \"db\" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (URL '{url}', USER_NAME '{mariadb.USER}', "
            f"PASSWORD '{mariadb.PASSWORD}', DRIVER_CLASS 'org.mariadb.jdbc.Driver')"
        )
        wrong = refused(connection, "CREATE FOREIGN TABLE t (ID INTEGER) SERVER \"db\" OPTIONS (SCHEMA_NAME 'other')")
        assert wrong.condition == "CONNECTOR_OPTION"
        connection.execute(
            "CREATE FOREIGN TABLE t (ID INTEGER, name VARCHAR(9)) SERVER \"db\" OPTIONS (TABLE_NAME 't')"
        )
        connection.execute('CREATE STREAM "s" ("n" INTEGER)')
        connection.execute('CREATE PUMP "p" STARTED AS INSERT INTO t (id) SELECT STREAM "n" FROM "s"')
        connection.execute('INSERT INTO "s" VALUES (2), (3)')
        delivered(connection)
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "one"), (2, None), (3, None)]
