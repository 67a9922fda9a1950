"""SQLstream's foreign tables over a real PostgreSQL: read by queries and joins, written by INSERT and by pumps."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripts.servers import mariadb
from scripts.servers.postgres import PASSWORD, USER, Postgres
from tests.thorough import mostly_slow
from tests.unit.sinks.databasetargets import selected, wait_for_a_waiting_one
from tests.unit.sinks.processes import killed_twice

import watersmeet
from watersmeet import Error
from watersmeet.sinkwriters.writers import SinkWriters


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
        assert session.database.service(SinkWriters).wait(relation.id, 60)


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
    wrong = refused(connection, 'UPDATE "t" SET "id" = 1')
    assert wrong.condition == "FEATURE_NOT_SUPPORTED"
    assert "whose columns have no key" in str(wrong)
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


MERGED = "CREATE TABLE counts (id int PRIMARY KEY, n int, first int, note varchar(9) DEFAULT 'new')"
MERGE = (
    'MERGE INTO "t" AS c USING ({source}) AS s ON c."id" = s."key" '
    'WHEN MATCHED THEN UPDATE SET "n" = s."n" '
    'WHEN NOT MATCHED THEN INSERT ("id", "n", "first") VALUES (s."key", s."n", s."n")'
)
STREAMED = 'SELECT STREAM "key", "n" FROM "s" WHERE "n" > 0'


@pytest.fixture(
    params=[pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mysql", marks=pytest.mark.mysql)]
)
def there(request):
    """A database of each system, with the table `counts`."""
    database = request.getfixturevalue(request.param)
    database.execute(MERGED)
    return database


def opened(path, there, runtime="inprocess"):
    """A database whose foreign table `t` is `counts` there."""
    scheme, user, password = (
        ("postgresql", USER, PASSWORD)
        if isinstance(there.server, Postgres)
        else ("mariadb", mariadb.USER, mariadb.PASSWORD)
    )
    connection = watersmeet.connect(path, "sqlstream", runtime=runtime, parallelism=2)
    if not connection.execute("SHOW TABLES").fetchall():
        connection.execute(
            'CREATE SERVER "db" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS ('
            f"URL 'jdbc:{scheme}://127.0.0.1:{there.server.port}/{there.name}', USER_NAME '{user}', "
            f"PASSWORD '{password}'); "
            'CREATE FOREIGN TABLE "t" SERVER "db" OPTIONS (TABLE_NAME \'counts\')'
        )
    return connection


def test_merge_changes_the_rows_that_are_there_and_inserts_the_others(tmp_path, there):
    there.execute("INSERT INTO counts VALUES (1, 10, 10, 'old')")
    with opened(tmp_path / "db", there) as connection:
        merged = connection.execute(MERGE.format(source="VALUES (2, 1), (1, 2), (2, 3)").replace(
            "VALUES (2, 1), (1, 2), (2, 3)", 'SELECT * FROM (VALUES (2, 1), (1, 2), (2, 3)) AS v("key", "n")'
        ))  # fmt: skip
        assert merged.rowcount == 3
        assert connection.execute('SELECT * FROM "t" ORDER BY 1').fetchall() == [(1, 2, 10, "old"), (2, 3, 1, "new")]
        connection.execute(
            'MERGE INTO "t" USING (SELECT 1 AS k UNION ALL SELECT 3 AS k) AS s ON ("t"."id" = s.k) '
            "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 0, 0, 'more')"
        )
        assert sorted(selected(there, "SELECT * FROM counts")) == [
            (1, 2, 10, "old"),
            (2, 3, 1, "new"),
            (3, 0, 0, "more"),
        ]


def test_a_pump_merges_each_row_once_in_its_order(tmp_path, there):
    with opened(tmp_path / "db", there) as connection:
        connection.execute('CREATE STREAM "s" ("key" INTEGER, "n" INTEGER)')
        connection.execute(f'CREATE PUMP "p" STOPPED AS {MERGE.format(source=STREAMED)}')
        connection.execute('INSERT INTO "s" ("key", "n") VALUES (9, 9); ALTER PUMP "p" START')
        connection.execute('INSERT INTO "s" ("key", "n") VALUES (1, 5), (2, 1), (1, 4), (1, 3), (3, -1)')
        connection.execute('FLUSH; INSERT INTO "s" ("key", "n") VALUES (2, 8), (1, 7), (4, 2), (4, 1)')
        delivered(connection)
        assert sorted(selected(there, "SELECT * FROM counts")) == [
            (1, 7, 5, "new"), (2, 8, 1, "new"), (4, 1, 2, "new"),
        ]  # fmt: skip
    with opened(tmp_path / "db", there) as connection:
        connection.execute('INSERT INTO "s" ("key", "n") VALUES (2, 9)')
        delivered(connection)
        connection.execute('ALTER PUMP "p" STOP; INSERT INTO "s" ("key", "n") VALUES (1, 100); ALTER PUMP "p" START')
        connection.execute('INSERT INTO "s" ("key", "n") VALUES (5, 6)')
        delivered(connection)
        assert sorted(selected(there, "SELECT id, n FROM counts")) == [(1, 7), (2, 9), (4, 1), (5, 6)]


#: Sources of a MERGE: by what `n` a row comes out last is told by its number alone, also if it met two rows.
JOINED = {
    "table": 'SELECT STREAM x."key", x."n" FROM "s" x LEFT JOIN "names" t ON x."n" = t."id"',
    "filtered": 'SELECT STREAM v."key", v."n" FROM (SELECT STREAM x."key", x."n" FROM "s" x JOIN "names" t '
    'ON x."n" = t."id" WHERE t."id" > 3) AS v WHERE v."n" < 95',
    "two tables": 'SELECT STREAM x."key", x."n" FROM "s" x JOIN "names" t ON x."n" = t."id" '
    'LEFT JOIN "kinds" k ON k."kind" = t."kind"',
}


@pytest.mark.parametrize("seed", mostly_slow(range(9), 3))
def test_a_pump_of_a_join_merges_rows_in_the_order_in_which_they_came(tmp_path, postgres, seed):
    """Also those of one statement and one ROWTIME, and if the key of the target is not the key of the join."""
    rng = random.Random(seed)
    kind = list(JOINED)[seed % 3]
    postgres.execute(MERGED)
    with opened(tmp_path / "db", postgres) as connection:
        connection.execute('CREATE STREAM "s" ("key" INTEGER, "n" INTEGER)')
        for name, rows in (
            ("names", "generate_series(0, 99)"),
            ("kinds", "generate_series(0, 1), generate_series(1, 2)"),
        ):
            postgres.execute(
                f"CREATE TABLE {name} (id serial PRIMARY KEY, i int, kind int); INSERT INTO {name} SELECT row_number() "
                f"OVER () - 1, g, g % 2 FROM {rows.replace(')', ') AS g(g)', 1)}"
            )
            connection.execute(f'CREATE FOREIGN TABLE "{name}" SERVER "db" OPTIONS (TABLE_NAME \'{name}\')')
        connection.execute(f'CREATE PUMP "p" STARTED AS {MERGE.format(source=JOINED[kind])}')
        first, last = {}, {}
        numbers = iter(rng.sample(range(100), 100))
        for _ in range(6):
            rows = [(rng.randint(1, 4), next(numbers)) for _ in range(rng.randint(1, 8))]
            connection.execute(f'INSERT INTO "s" ("key", "n") VALUES {", ".join(map(str, rows))}')
            for key, n in rows:
                if kind != "filtered" or 3 < n < 95:
                    first.setdefault(key, n)
                    last[key] = n
            if rng.random() < 0.4:
                connection.execute("FLUSH")
        delivered(connection)
        wanted = [(key, last[key], first[key], "new") for key in sorted(last)]
        assert sorted(selected(postgres, "SELECT * FROM counts")) == wanted


def test_a_pump_of_a_join_of_streams_merges_rows_by_rowtime(tmp_path, postgres):
    postgres.execute(MERGED)
    with opened(tmp_path / "db", postgres) as connection:
        connection.execute('CREATE STREAM "s" ("key" INTEGER, "n" INTEGER); CREATE STREAM "o" ("n" INTEGER)')
        source = (
            'SELECT STREAM x."key", x."n" FROM "s" OVER (RANGE INTERVAL \'1\' HOUR PRECEDING) AS x '
            'JOIN "o" OVER (RANGE INTERVAL \'1\' HOUR PRECEDING) AS y ON x."n" = y."n"'
        )
        connection.execute(f'CREATE PUMP "p" STARTED AS {MERGE.format(source=source)}')
        given = "TIMESTAMP '2026-01-01 00:00:{at:02}'"
        for at, (key, n) in enumerate([(1, 9), (1, 3), (2, 5), (1, 7), (2, 6)]):
            connection.execute(f'INSERT INTO "s" (ROWTIME, "key", "n") VALUES ({given.format(at=at)}, {key}, {n})')
        for at, n in enumerate([3, 7, 9, 6, 5]):
            connection.execute(f'INSERT INTO "o" (ROWTIME, "n") VALUES ({given.format(at=10 * at)}, {n})')
        connection.execute("INSERT INTO \"s\" (ROWTIME) VALUES (TIMESTAMP '2026-01-01 00:01:00')")
        connection.execute("INSERT INTO \"o\" (ROWTIME) VALUES (TIMESTAMP '2026-01-01 00:01:00')")
        delivered(connection)
        assert sorted(selected(postgres, "SELECT id, n, first FROM counts")) == [(1, 9, 3), (2, 5, 6)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (MERGE.format(source=STREAMED).replace('SET "n" = s."n"', 'SET "n" = c."n" + s."n"'), "a value of the table"),
        (MERGE.format(source=STREAMED).replace('SET "n" = s."n"', 'SET "note" = \'x\''), '"note"'),
        (MERGE.format(source=STREAMED).replace('"id" = s', '"id" > s'), "list of C.column"),
        (MERGE.format(source=STREAMED).replace("WHEN MATCHED THEN UPDATE", 'WHEN MATCHED AND s."n" > 1 THEN UPDATE'),
         "condition"),
        (MERGE.format(source=STREAMED).replace('UPDATE SET "n" = s."n"', "DELETE"), "DELETE in MERGE"),
        (MERGE.format(source=STREAMED).split("WHEN NOT")[0], "without WHEN NOT MATCHED"),
        (MERGE.format(source=STREAMED).replace('"t"', '"other"'), "MERGE into"),
        (MERGE.format(source='SELECT "key", "n" FROM "s"'), "SELECT STREAM"),
        (MERGE.format(source=STREAMED).replace('c."id" = s."key"', 'c."first" = s."n"'), "MERGE needs"),
    ],
)  # fmt: skip
def test_a_merge_that_can_not_be_one_is_refused(tmp_path, postgres, sql, said):
    postgres.execute(MERGED)
    with opened(tmp_path / "db", postgres) as connection:
        connection.execute('CREATE STREAM "s" ("key" INTEGER, "n" INTEGER)')
        connection.execute('CREATE STREAM "other" ("id" INTEGER, "n" INTEGER, "first" INTEGER)')
        wrong = refused(connection, f'CREATE PUMP "p" STOPPED AS {sql}')
        assert wrong.condition in ("FEATURE_NOT_SUPPORTED", "SYNTAX_ERROR", "CONNECTOR_OPTION")
        assert said in str(wrong)


def test_mysql_compares_all_unique_keys(tmp_path, mysql):
    mysql.execute(MERGED)
    mysql.execute("CREATE UNIQUE INDEX of_n ON counts (n)")
    with opened(tmp_path / "db", mysql) as connection:
        source = 'SELECT 1 AS "key", 2 AS "n"'
        assert "MySQL would compare (n)" in str(refused(connection, MERGE.format(source=source)))


def test_rows_are_updated_and_deleted(tmp_path, there):
    there.execute("INSERT INTO counts VALUES (1, 10, 0, 'a'), (2, 20, 0, 'b'), (3, NULL, 0, NULL), (4, 40, 0, 'd')")
    with opened(tmp_path / "db", there) as connection:
        connection.execute(
            'DROP FOREIGN TABLE "t"; CREATE FOREIGN TABLE "t" (ID INTEGER, "n" INTEGER, "note" VARCHAR(9)) '
            "SERVER \"db\" OPTIONS (TABLE_NAME 'counts'); "
            'CREATE TABLE "more" ("of" INTEGER PRIMARY KEY, "by" INTEGER); INSERT INTO "more" VALUES (1, 5), (4, 7)'
        )
        changed = connection.execute(
            'UPDATE "t" AS x SET "n" = x."n" + (SELECT max("by") FROM "more"), "note" = \'it\'\'s \' || "note" '
            'WHERE EXISTS (SELECT 1 FROM "more" WHERE "of" = x.id)'
        )
        assert changed.rowcount == 2
        assert connection.execute('SELECT * FROM "t" ORDER BY 1').fetchall() == [
            (1, 17, "it's a"), (2, 20, "b"), (3, None, None), (4, 47, "it's d"),
        ]  # fmt: skip
        assert connection.execute('UPDATE "t" SET id = id * 10, "note" = NULL WHERE id IN (1, 3)').rowcount == 2
        assert connection.execute('DELETE FROM "t" WHERE "n" > 19').rowcount == 2
        assert connection.execute('DELETE FROM "t" WHERE id = 99').rowcount == 0
        assert sorted(selected(there, "SELECT * FROM counts")) == [(10, 17, 0, None), (30, None, 0, None)]


def test_a_statement_that_fails_there_changes_nothing(tmp_path, there):
    there.execute("ALTER TABLE counts ADD CHECK (n < 100); INSERT INTO counts VALUES (1, 1, 1, 'a'), (2, 99, 1, 'b')")
    with opened(tmp_path / "db", there) as connection:
        wrong = refused(connection, 'UPDATE "t" SET "n" = "n" + 1')
        assert wrong.condition == "DELIVERY_REFUSED"
        assert sorted(selected(there, "SELECT id, n FROM counts")) == [(1, 1), (2, 99)]
        connection.execute("BEGIN")
        assert refused(connection, 'DELETE FROM "t"').condition == "TRANSACTION_STATE"


def test_no_change_of_others_is_lost(tmp_path, there):
    """A transaction of another user that is not done yet is waited for."""
    there.execute("INSERT INTO counts VALUES (1, 10, 0, 'a')")
    with opened(tmp_path / "db", there) as connection, there.connect() as other, ThreadPoolExecutor(1) as pool:
        statement(other, "BEGIN")
        statement(other, "UPDATE counts SET n = n + 5 WHERE id = 1")
        done = pool.submit(connection.execute, 'UPDATE "t" SET "n" = "n" * 2')
        wait_for_a_waiting_one(there, done.done)
        statement(other, "COMMIT")
        assert done.result(60).rowcount == 1
        assert selected(there, "SELECT n FROM counts") == [(30,)]


def statement(connection, sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.mark.mysql
def test_keys_that_differ_in_case_alone_are_two(tmp_path, mysql):
    mysql.execute(
        "CREATE TABLE counts (id varchar(9) COLLATE utf8mb4_bin PRIMARY KEY, n int); "
        "INSERT INTO counts VALUES ('a', 1), ('A', 2), ('b', 3)"
    )
    with opened(tmp_path / "db", mysql) as connection:
        connection.execute('UPDATE "t" SET "n" = 5 WHERE "id" = \'A\'; DELETE FROM "t" WHERE "id" = \'a\'')
        assert sorted(selected(mysql, "SELECT * FROM counts")) == [("A", 5), ("b", 3)]


@pytest.mark.parametrize("point", mostly_slow(["database.written", "database.committed", "database.begun"], 0, 2))
def test_pumps_go_on_where_a_killed_process_was(tmp_path, postgres, point):
    """One merges, one adds rows: each row once, whatever was killed, and the last one of each key."""
    postgres.execute(f"{MERGED}; CREATE TABLE added (k int, n int)")
    with opened(tmp_path / "db", postgres) as connection:
        connection.execute(f"""
            CREATE FOREIGN TABLE "added" SERVER "db";
            CREATE STREAM "s" ("key" INTEGER, "n" INTEGER);
            CREATE PUMP "merging" STARTED AS {MERGE.format(source=STREAMED)};
            CREATE PUMP "adding" STARTED AS INSERT INTO "added" ("k", "n") SELECT STREAM "key", "n" FROM "s";
            SET dialect = 'risingwave';
            CREATE TABLE turns (v int PRIMARY KEY); INSERT INTO turns VALUES (0); FLUSH
        """)
    keys = "SELECT {0} * 1000 + i, {0} FROM generate_series(1, 300) AS g(i)"
    turn = f"INSERT INTO turns VALUES ({{0}}); INSERT INTO s (key, n) {keys}; INSERT INTO s (key, n) VALUES (1, {{0}})"
    killed = killed_twice(tmp_path / "db", point, turn, "turns")
    assert killed == 2
    with opened(tmp_path / "db", postgres) as connection:
        (last,) = connection.execute('SELECT max("v") FROM "turns"').fetchone()
        connection.execute(f'INSERT INTO "s" ("key", "n") VALUES (1, {last + 1})')
        delivered(connection)
        assert connection.execute("SHOW ERRORS").fetchall() == []
    once = [(turn * 1000 + i, turn) for turn in range(1, last + 1) for i in range(1, 301)]
    assert sorted(selected(postgres, "SELECT * FROM added")) == sorted([*once, *((1, n) for n in range(1, last + 2))])
    wanted = sorted([*((k, n, n, "new") for k, n in once), (1, last + 1, 1, "new")])
    assert sorted(selected(postgres, "SELECT * FROM counts")) == wanted
