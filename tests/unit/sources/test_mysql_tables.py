"""External tables and dictionaries over a real MariaDB."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from scripts.servers.mariadb import PASSWORD, USER

import watersmeet
from watersmeet.catalog import External
from watersmeet.connectors.mysql.client import MysqlReader


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection:
        yield connection


def table(connection, mysql, name="t", columns=""):
    connection.execute(f"CREATE EXTERNAL TABLE {name} {columns} SETTINGS {mysql.settings}, table='{name}'")


def rows(connection, query):
    return connection.execute(query).fetchall()


def source(mysql, more):
    where = f"HOST '127.0.0.1' PORT {mysql.server.port} USER '{USER}' PASSWORD '{PASSWORD}' DB '{mysql.name}'"
    return f"SOURCE(MYSQL({where} {more}))"


def test_columns_and_values_are_those_of_the_table(opened, mysql):
    mysql.execute(
        r"""
        CREATE TABLE t (i int PRIMARY KEY, b bool, s smallint unsigned, l bigint unsigned, r float, d double,
            n decimal(38, 2), v varchar(20), c char(3), u uuid, y varbinary(9), a date, e time(3), p datetime(6),
            z timestamp(6) NULL, m enum('sad', 'ok'), x bit(1), w text CHARACTER SET latin1, o bit(64), h year);
        SET time_zone = '+02:00';
        INSERT INTO t VALUES (1, true, 65535, 18446744073709551615, 1.2345678, 0.1, 123456789012345678901234567890.12,
            'a "b", c\\', 'xy', '00000000-0000-0000-0000-00000000002a', x'00ff', '2024-02-29', '12:34:56.789',
            '2024-02-29 12:34:56.123456', '2024-02-29 12:00:00.5', 'ok', b'1', 'ü', 18446744073709551615, 2024);
        INSERT INTO t (i, v, w) VALUES (2, '', 'line\ntwo');
        """
    )
    table(opened, mysql)
    (first, second) = rows(opened, "SELECT * FROM t ORDER BY i")
    assert first[:5] == (1, 1, 65535, Decimal(18446744073709551615), pytest.approx(1.2345678, rel=1e-7))
    assert first[5:12] == (
        *(0.1, Decimal("123456789012345678901234567890.12"), 'a "b", c\\', "xy"),
        *("00000000-0000-0000-0000-00000000002a", b"\x00\xff", dt.date(2024, 2, 29)),
    )
    assert first[12:15] == (
        dt.time(12, 34, 56, 789000),
        dt.datetime(2024, 2, 29, 12, 34, 56, 123456),
        dt.datetime(2024, 2, 29, 10, 0, 0, 500_000, tzinfo=dt.UTC),
    )
    assert first[15:] == ("ok", True, "ü", Decimal(18446744073709551615), 2024)
    assert second == (2, *[None] * 6, "", *[None] * 9, "line\ntwo", None, None)


def test_columns_are_read_as_they_are_declared(opened, mysql):
    mysql.execute(
        "CREATE TABLE t (i int PRIMARY KEY, b tinyint(1), j longtext, d decimal(65, 30), g point, k varbinary(9));"
        "INSERT INTO t VALUES (1, 1, '{\"k\": [1, 2]}', 0.5, point(1, 2), 'bytes'), (2, 0, '[]', NULL, NULL, NULL)"
    )
    table(opened, mysql, columns="(i int, b bool, j json, d nullable(string), k nullable(string))")
    assert rows(opened, "SELECT b, d, k FROM t ORDER BY i") == [
        (True, "0.500000000000000000000000000000", "bytes"),
        (False, None, None),
    ]
    assert rows(opened, "SELECT j FROM t WHERE i = 1") == [({"k": [1, 2]},)]


def test_a_select_shows_what_was_changed_there(opened, mysql):
    mysql.execute("CREATE TABLE t (i int, v text); INSERT INTO t VALUES (1, 'a'), (1, 'a')")
    table(opened, mysql)
    assert rows(opened, "SELECT i, v FROM t") == [(1, "a"), (1, "a")]
    mysql.execute("INSERT INTO t VALUES (3, NULL)")
    assert rows(opened, "SELECT i, v FROM t ORDER BY i, v") == [(1, "a"), (1, "a"), (3, None)]
    mysql.execute("DELETE FROM t")
    assert rows(opened, "SELECT count() FROM t") == [(0,)]


def test_many_rows(opened, mysql):
    mysql.execute("CREATE TABLE t (i int, v text); INSERT INTO t SELECT seq, concat('v', seq) FROM seq_1_to_25000")
    table(opened, mysql)
    assert rows(opened, "SELECT count(), sum(i), max(v) FROM t") == [(25_000, 312_512_500, "v9999")]


def test_a_table_is_read_again_only_after_changes(own_mysql):
    own_mysql.execute(
        "CREATE TABLE t (i int); CREATE TABLE u (i int) ENGINE = MEMORY; CREATE VIEW v AS SELECT now() AS n"
    )
    options = {"address": f"127.0.0.1:{own_mysql.server.port}", "database": own_mysql.name, "user": USER,
        "password": PASSWORD}  # fmt: skip

    def version(name, **more):
        return MysqlReader(External("mysql", name, {**options, "table": name, **more})).version()

    before = version("t")
    assert version("t") == before
    assert version("t", invalidate_query="SELECT 1") == ((1,),)
    own_mysql.execute("INSERT INTO t VALUES (1)")
    assert version("t") != before
    assert version("u") != version("u")
    assert version("v") != version("v")
    assert version("t", where="i > 0") != version("t", where="i > 0")


def test_a_dictionary_follows_the_table(opened, mysql):
    mysql.execute("CREATE TABLE products (id int PRIMARY KEY, name text); INSERT INTO products VALUES (1, 'pen')")
    opened.execute("CREATE STREAM orders (id int, n int)")
    from_table = source(mysql, "TABLE 'products' BG_RECONNECT true")
    opened.execute(
        f"CREATE DICTIONARY products (id int, name string) PRIMARY KEY id {from_table} LAYOUT(HASHED()) "
        "LIFETIME(MIN 0 MAX 1)"
    )
    opened.execute(
        "CREATE MATERIALIZED VIEW joined AS SELECT o.n, p.name FROM orders AS o LEFT JOIN products AS p ON o.id = p.id"
    )
    opened.execute("INSERT INTO orders (id, n) VALUES (1, 10), (2, 20)")
    opened.execute("FLUSH")
    assert sorted(rows(opened, "SELECT n, name FROM table(joined)"), key=str) == [(10, "pen"), (20, None)]
    mysql.execute("INSERT INTO products VALUES (2, 'ink')")
    opened.execute("INSERT INTO orders (id, n) VALUES (2, 30)")
    opened.execute("FLUSH")
    assert (30, "ink") in rows(opened, "SELECT n, name FROM table(joined)")
    assert PASSWORD not in str(rows(opened, "SHOW CREATE DICTIONARY products"))


def test_a_dictionary_of_a_query_or_with_a_condition(opened, mysql):
    mysql.execute(
        "CREATE TABLE products (id int, name text, r float, z timestamp(6));"
        "INSERT INTO products VALUES (1, '100% pen', 0, now()), (2, 'ink', 0.1, '2024-01-01 00:00:00.5')"
    )
    query = source(mysql, "QUERY 'SELECT id, upper(name) AS name, r, z FROM products WHERE name NOT LIKE ''1%'''")
    opened.execute(
        f"CREATE DICTIONARY d (id int, name string, r float32, z datetime64(6)) PRIMARY KEY id {query} LAYOUT(HASHED())"
    )
    assert rows(opened, "SELECT id, name, r = 0.1::float32 FROM d") == [(2, "INK", True)]
    assert rows(opened, "SELECT z FROM d") == [(dt.datetime(2024, 1, 1, 0, 0, 0, 500_000),)]
    where = source(mysql, "TABLE 'products' WHERE 'name LIKE ''100%'''")
    opened.execute(f"CREATE DICTIONARY e (id int, name string) PRIMARY KEY id {where} LAYOUT(HASHED())")
    assert rows(opened, "SELECT id, name FROM e") == [(1, "100% pen")]


def refusal(connection, statement):
    with pytest.raises(watersmeet.Error) as caught:
        connection.execute(statement)
    found = caught.value
    assert found.span is not None
    assert PASSWORD not in str(found)
    assert PASSWORD not in str(found.to_json())
    return found


def test_what_is_wrong_is_named(opened, mysql):
    mysql.execute("CREATE TABLE t (i int, x point); CREATE TABLE n (v date); SET sql_mode = ''")
    mysql.execute("SET sql_mode = ''; INSERT INTO n VALUES ('0000-00-00')")
    reader_name = f"reader_{mysql.name}"
    mysql.execute(f"CREATE USER {reader_name} IDENTIFIED BY 'r'; GRANT CREATE ON {mysql.name}.* TO {reader_name}")
    create = "CREATE EXTERNAL TABLE e {} SETTINGS {}, table='{}'"

    def message(columns="", settings=mysql.settings, table="t"):
        found = refusal(opened, create.format(columns, settings, table))
        return found.condition, found.message, found.hint

    assert message() == (
        "CONNECTOR_OPTION",
        f'column "x" of table "{mysql.name}.t" has type point, which has no equivalent',
        "Declare the columns, that one as string.",
    )
    condition, text, hint = message(table="tt")
    assert (condition, hint) == ("UNDEFINED_OBJECT", 'Did you mean "t"?')
    assert text.startswith(f'there is no table "{mysql.name}.tt" in database')
    assert message("(i int, z int)")[1] == f'table "{mysql.name}.t" has no column "z"'
    wrong = mysql.settings.replace(PASSWORD, "wrong")
    assert message(settings=wrong)[0] == "CONNECTOR_OPTION"
    assert f'does not let user "{USER}" in' in message(settings=wrong)[1]
    assert message(settings=mysql.settings.replace(mysql.name, "nowhere"))[1].startswith("there is no database")
    away = mysql.settings.replace(str(mysql.server.port), "1")
    assert message(settings=away)[0] == "RUNTIME_UNAVAILABLE"
    assert "is not date: 0000-00-00" in message(table="n")[1]
    assert message(settings=mysql.settings + ", colour='red'")[1] == 'connector mysql has no option "colour"'
    missing = refusal(opened, "CREATE EXTERNAL TABLE e SETTINGS type='mysql', address='h', user='u'")
    assert missing.message == 'connector mysql needs the option "database"'
    mysql.execute(f"DROP USER {reader_name}")


def test_a_missing_right_is_named(opened, mysql):
    name = f"reader_{mysql.name}"
    mysql.execute(f"CREATE TABLE t (i int, k int); CREATE USER {name} IDENTIFIED BY 'r'; GRANT INSERT ON t TO {name}")
    settings = mysql.settings.replace(f"user='{USER}', password='{PASSWORD}'", f"user='{name}', password='r'")
    try:
        found = refusal(opened, f"CREATE EXTERNAL TABLE t (i int) SETTINGS {settings}, table='t'")
        assert found.condition == "CONNECTOR_OPTION"
        assert f"GRANT SELECT ON {mysql.name}.t TO {name}" in found.hint
    finally:
        mysql.execute(f"DROP USER {name}")


def test_a_server_that_is_away_leaves_the_content(opened, own_mysql):
    own_mysql.execute("CREATE TABLE p (id int PRIMARY KEY, name text); INSERT INTO p VALUES (1, 'pen')")
    opened.execute("CREATE STREAM o (id int)")
    from_table = source(own_mysql, "TABLE 'p'")
    opened.execute(f"CREATE DICTIONARY p (id int, name string) PRIMARY KEY id {from_table} LAYOUT(HASHED())")
    opened.execute("CREATE MATERIALIZED VIEW j AS SELECT o.id, p.name FROM o JOIN p ON o.id = p.id")
    own_mysql.server.kill()
    opened.execute("INSERT INTO o (id) VALUES (1)")
    opened.execute("FLUSH")
    assert rows(opened, "SELECT id, name FROM table(j)") == [(1, "pen")]
    assert "can't be reached" in str(rows(opened, "SHOW ERRORS"))
    own_mysql.server.start()
    own_mysql.execute("UPDATE p SET name = 'ink'")
    assert rows(opened, "SELECT name FROM p") == [("ink",)]
    opened.execute("FLUSH")
    assert rows(opened, "SHOW ERRORS") == []


def test_rows_are_looked_up_in_a_table_as_it_is_when_they_come(opened, mysql):
    mysql.execute("CREATE TABLE p (id int, name text); INSERT INTO p VALUES (1, 'pen')")
    table(opened, mysql, "p")
    opened.execute("SET dialect = 'sqlstream'")
    opened.execute(
        """CREATE STREAM "s" ("n" INTEGER, "id" INTEGER);
        CREATE MATERIALIZED VIEW "v" AS SELECT STREAM s."n", p."name" FROM "s" AS s
        JOIN "p" FOR SYSTEM_TIME AS OF PROCTIME() AS p ON s."id" = p."id" """
    )
    opened.execute('INSERT INTO "s" ("n", "id") VALUES (1, 1), (2, 2)')
    opened.execute("FLUSH")
    mysql.execute("UPDATE p SET name = 'ink'; INSERT INTO p VALUES (2, 'pad'), (2, 'pot')")
    opened.execute('INSERT INTO "s" ("n", "id") VALUES (3, 1), (4, 2)')
    opened.execute("FLUSH")
    found = rows(opened, 'SELECT "n", "name" FROM "v" ORDER BY "n", "name"')
    assert found == [(1, "pen"), (3, "ink"), (4, "pad"), (4, "pot")]
