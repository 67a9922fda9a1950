"""Tables that follow tables of a real server by its changes: the rules of every system."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.captures import (
    ask,
    create_again,
    is_postgres,
    left_over,
    of,
    on_each,
    options,
    own_options,
    rows,
    schema,
    series,
    source,
    until,
    user_of,
    where,
)
from tests.thorough import mostly_slow
from tests.waiting import until as wait_until

import watersmeet
from watersmeet import errors
from watersmeet.system import process


@pytest.fixture
def opened(tmp_path, there):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


@on_each()
def test_changes_of_rows(opened, there):
    there.execute(
        "CREATE TABLE t (a int, b varchar(9), v text, PRIMARY KEY (b, a)); INSERT INTO t VALUES (1, 'x', 'one')"
    )
    source(opened, there)
    opened.execute("CREATE TABLE t (a int, b varchar, v varchar, PRIMARY KEY (a, b)) FROM there TABLE 't'")
    opened.execute("CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS n, max(v) AS v FROM t")
    assert rows(opened, "SELECT * FROM seen") == [(1, "one")]
    there.execute("INSERT INTO t VALUES (2, 'y', 'two'), (3, 'z', NULL)")
    there.execute("UPDATE t SET v = 'three' WHERE a = 3; UPDATE t SET a = 4, v = 'four' WHERE a = 2")
    there.execute("DELETE FROM t WHERE a = 1; INSERT INTO t VALUES (1, 'x', 'new')")
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(1, "x", "new"), (3, "z", "three"), (4, "y", "four")]
    assert rows(opened, "SELECT * FROM seen") == [(3, "three")]
    there.execute("UPDATE t SET a = 7 - a")  # keys change places
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(3, "y", "four"), (4, "z", "three"), (6, "x", "new")]
    there.execute("TRUNCATE t; INSERT INTO t VALUES (9, 'n', 'nine')")
    assert rows(opened, "SELECT * FROM t") == [(9, "n", "nine")]
    there.execute("TRUNCATE TABLE t")
    assert rows(opened, "SELECT * FROM seen") == [(0, None)]


@on_each()
def test_tables_of_one_transaction_change_at_once(opened, there):
    there.execute("CREATE TABLE a (i int PRIMARY KEY, v int); CREATE TABLE b (i int PRIMARY KEY, v int)")
    source(opened, there)
    opened.execute("CREATE TABLE a (*) FROM there TABLE 'a'")
    opened.execute("CREATE TABLE b (*) FROM there TABLE 'b'")
    opened.execute("FLUSH")
    log = opened._session.database.log
    start = log.head()
    for i in range(50):
        there.execute(f"BEGIN; INSERT INTO a VALUES ({i}, {i}); INSERT INTO b VALUES ({i}, -{i}); COMMIT")
    opened.execute("FLUSH")
    changed = [c.relations for c in log.transactions(start, log.head()) if c.relations]
    assert changed
    assert all(len(c) == 2 for c in changed)
    assert all(len({r.inserted_rows for r in c.values()}) == 1 for c in changed)


@on_each()
def test_a_table_that_is_its_own_source(opened, there):
    there.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    more = {"table.name": "t", **({"schema.name": "public"} if is_postgres(there) else {})}
    opened.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v varchar) INCLUDE table_name AS t INCLUDE database_name AS d "
        f"INCLUDE timestamp AS at {own_options(there, **more)}"
    )
    assert rows(opened, "SELECT i, v, t, d, at FROM t") == [(1, "one", "t", there.name, None)]
    there.execute("UPDATE t SET v = 'two'")
    ((i, v, t, at),) = rows(opened, "SELECT i, v, t, at FROM t")
    assert (i, v, t) == (1, "two", "t")
    assert abs(at - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
    opened.execute("DROP TABLE t")
    assert opened.execute("SHOW SOURCES").fetchall() == left_over(there) == []


_KEYS = ["k varchar(20)", "k varchar(20) CHARACTER SET latin1", "k varbinary(20)", "k decimal(9, 3)", "k datetime(3)"]


@on_each(
    "there, key",
    [
        of("postgres", "k text", marks=[pytest.mark.slow]),
        *(of("mysql", key) if isinstance(key, str) else of("mysql", *key.values, marks=key.marks)
          for key in mostly_slow(_KEYS, 1, 2)),
    ],
)  # fmt: skip
def test_a_snapshot_in_pieces_while_rows_change(opened, there, key):
    value = {"de": "{0} + 0.5", "da": "'2024-01-01' + INTERVAL {0} HOUR"}.get(key[2:4], "CONCAT('k', {0})")
    there.execute(f"CREATE TABLE t ({key}, n int, v int, PRIMARY KEY (k, n))")
    there.execute(f"INSERT INTO t SELECT {value.format('FLOOR(seq / 2)')}, seq, 0 FROM {series(there, 500)}")
    source(opened, there)
    opened.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '7') FROM there TABLE 't'")
    for i in range(1, 60):
        there.execute(
            f"UPDATE t SET v = v + 1 WHERE n % 10 = {i % 10}; DELETE FROM t WHERE n = {i * 7};"
            f"INSERT INTO t VALUES ({value.format(i * 9)}, 1000 + {i}, {i}); UPDATE t SET n = -n WHERE n = {i * 8}"
        )
        if is_postgres(there):
            there.execute(f"UPDATE t SET k = k || 'y' WHERE n = {i * 9}")
    assert rows(opened, "SELECT * FROM t ORDER BY n") == ask(there, "SELECT * FROM t ORDER BY n")


@on_each(
    "there, change, reason",
    [
        of("postgres", "ALTER TABLE t ADD COLUMN r float8 DEFAULT random()", "a value of its own"),
        of("postgres", "ALTER TABLE t ADD COLUMN p point", "no equivalent"),
        of("postgres", "ALTER TABLE t DROP COLUMN v", '"v" of table "public.t" is gone'),
        of("postgres", "ALTER TABLE t RENAME COLUMN v TO w", '"v" of table "public.t" is gone'),
        of("postgres", "ALTER TABLE t ALTER COLUMN v TYPE int USING 1", "another type"),
        of(
            "postgres",
            "ALTER TABLE t RENAME TO renamed; CREATE TABLE t (i int PRIMARY KEY, v text, x int);"
            "ALTER PUBLICATION every ADD TABLE t",
            "created again",
        ),
        of("mysql", "ALTER TABLE t ADD COLUMN r double DEFAULT (rand())", "a value of its own"),
        of("mysql", "ALTER TABLE t ADD COLUMN p point", "no equivalent"),
        of("mysql", "ALTER TABLE t DROP COLUMN v", 'column "v" of table "{0}.t" is gone'),
        of("mysql", "ALTER TABLE t CHANGE v w varchar(9)", 'column "v" of table "{0}.t" was changed by ALTER TABLE'),
        of("mysql", "ALTER TABLE t RENAME COLUMN v TO w", 'column "v" of table "{0}.t" has another name'),
        of("mysql", "ALTER TABLE t MODIFY v int", 'column "v" of table "{0}.t" was changed by ALTER TABLE'),
        of("mysql", "ALTER TABLE t CONVERT TO CHARACTER SET latin1", "another charset"),
        of("mysql", "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (i, v)", "another primary key"),
        of("mysql", "RENAME TABLE t TO renamed", "was renamed"),
        of("mysql", "DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v varchar(9))", "was dropped"),
        of("mysql", "CREATE OR REPLACE TABLE t (i int PRIMARY KEY, v varchar(9))", "created again"),
        of(
            "mysql",
            "SET SESSION binlog_format = STATEMENT; UPDATE t SET v = 3; SET SESSION binlog_format = ROW",
            "not in the log as rows",
        ),
        of(
            "mysql",
            "SET SESSION binlog_row_image = MINIMAL; UPDATE t SET v = 3; SET SESSION binlog_row_image = FULL",
            "binlog_row_image = FULL",
        ),
        of(
            "mysql",
            "XA START 'x'; UPDATE t SET v = 3; XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'",
            "a transaction of XA",
        ),
    ],
)
def test_other_changes_of_a_table_stop_it_alone(opened, there, change, reason):
    there.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(9)); CREATE TABLE u (i int PRIMARY KEY)")
    source(opened, there, **{"auto.schema.change": "true"}, **_every(there))
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM there TABLE 'u'")
    there.execute("INSERT INTO t VALUES (1, '1')")
    assert rows(opened, "SELECT * FROM t") == [(1, "1")]
    there.execute(change)
    there.execute(("INSERT INTO t (i) VALUES (2);" if is_postgres(there) else "") + "INSERT INTO u VALUES (7)")
    assert rows(opened, "SELECT * FROM u", stops=True) == [(7,)]
    assert rows(opened, "SELECT * FROM t", stops=True) == [(1, "1")]
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    reason = reason.format(there.name)
    assert [n for n in cursor.notices if 'table "t" follows no more' in n and reason in n], cursor.notices
    state, why = where(opened)
    assert state == "stalled"
    assert reason in why
    if "COLUMN r" not in change and "COLUMN p" not in change:
        assert "RESET SOURCE t reads it anew" in why


def _every(there):
    return {"publication.name": "every"} if is_postgres(there) else {}


@on_each(own=True)
def test_a_server_that_is_killed_is_followed_again(opened, there):
    there.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, there)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    there.server.kill()
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert 'source "there" was not waited for' in cursor.notices[0]
    there.server.start()
    there.execute("INSERT INTO t VALUES (2)")
    wait_until(lambda: cursor.execute("FLUSH; SELECT count(*) FROM t").fetchall() == [(2,)])


@on_each(own=True)
def test_a_server_that_is_away_is_waited_for(tmp_path, there):
    """At CREATE it is refused; when the database is opened, its tables are there, and go on when the server is back."""
    there.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, there)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        assert rows(opened, "SELECT * FROM t") == [(1,)]
    there.server.kill()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        with pytest.raises(errors.Error, match="can't be reached") as refused:
            opened.execute(f"CREATE SOURCE other {options(there)}")
        assert refused.value.condition == "RUNTIME_UNAVAILABLE"
        assert opened.execute("SELECT * FROM t").fetchall() == [(1,)]
        assert "can't be reached" in until(opened, "waiting")
        there.server.start()
        there.execute("INSERT INTO t VALUES (2)")
        wait_until(lambda: opened.execute("FLUSH; SELECT count(*) FROM t").fetchall() == [(2,)])


@on_each()
def test_one_statement_lets_a_table_go_on_that_was_made_again_there(opened, there):
    there.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, there)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    create_again(there, "t", "i int PRIMARY KEY, v text")
    there.execute("INSERT INTO t VALUES (2, 'two')")
    assert rows(opened, "SELECT * FROM t", stops=True) == [(1,)]
    state, why = where(opened)
    assert state == "stalled"
    assert ("created again" if is_postgres(there) else 'table "t"') in why
    assert "RESET SOURCE t reads it anew" in why
    opened.execute("CREATE OR REPLACE TABLE t (*) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(2, "two")]
    there.execute("UPDATE t SET v = 'zwei'; INSERT INTO t VALUES (3, NULL)")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(2, "zwei"), (3, None)]
    assert where(opened)[0] == "running"


@on_each("there, single", [of("postgres", False), of("postgres", True), of("mysql", False)])
def test_a_table_that_was_made_again_there_goes_on_below_its_views(opened, there, single):
    there.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    there.execute("CREATE TABLE u (i int PRIMARY KEY); INSERT INTO u VALUES (1)")
    if single:
        given = {"slot.name": f"s_{there.name}", "schema.name": "public", "table.name": "t"}
        opened.execute(f"CREATE TABLE t (i int PRIMARY KEY, v varchar) {options(there, **given)}")
    else:
        source(opened, there)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'")
    opened.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, max(v) AS v FROM t")
    assert rows(opened, "SELECT * FROM n") == [(2, "two")]
    create_again(there, "t", "i int PRIMARY KEY, v text, more int")
    there.execute("INSERT INTO t VALUES (2, 'zwei', 7)")
    assert rows(opened, "SELECT * FROM n", stops=True) == [(2, "two")]
    opened.execute("RESET SOURCE t")
    assert rows(opened, "SELECT * FROM n") == [(1, "zwei")]
    there.execute("INSERT INTO t VALUES (3, 'zzz', 8); INSERT INTO u VALUES (2)")
    assert rows(opened, "SELECT * FROM n") == [(2, "zzz")]
    if not single:
        assert sorted(rows(opened, "SELECT * FROM u")) == [(1,), (2,)]


@on_each(
    "there, columns, condition, said",
    [
        of(system, *shape)
        for system in ("postgres", "mysql")
        for shape in (
            ("*", "CONNECTOR_OPTION", 'column "p" of table "{0}.t" has type point, wh'),
            (
                "i int PRIMARY KEY, v int",
                "DATATYPE_MISMATCH",
                '"v" of table "{0}.t" has type character varying, not integer',
            ),
            ("i int PRIMARY KEY, w int", "UNDEFINED_COLUMN", 'table "{0}.t" has no column "w"'),
            ("i int, v varchar PRIMARY KEY", "CONNECTOR_OPTION", 'the primary key of table "{0}.t" is (i), not (v)'),
        )
    ],
)
def test_a_table_of_another_shape_is_refused(opened, there, columns, condition, said):
    there.execute("CREATE TABLE t (i int PRIMARY KEY, p point, v text)")
    source(opened, there)
    with pytest.raises(errors.Error) as refused:
        opened.execute(f"CREATE TABLE t ({columns}) FROM there TABLE 't'")
    assert refused.value.condition == condition
    assert said.format(schema(there)) in refused.value.message
    if is_postgres(there):
        there.execute("INSERT INTO t VALUES (1, '(1,2)', 'v')")
        opened.execute("CREATE TABLE t (*, p varchar) FROM there TABLE 't'")  # as the hint of the first one says
        assert rows(opened, "SELECT i, p, v FROM t") == [(1, "(1,2)", "v")]


@on_each()
def test_a_right_that_is_taken_while_a_table_is_filled_and_given_back(opened, there):
    pieces = []

    def hook(point):
        if point == "capture.chunk":
            pieces.append(point)
            if len(pieces) == 3:
                user.grant("REVOKE SELECT ON {schema}.b FROM {user}")

    with user_of(there) as user:
        source(opened, there, username=user.name, password="first-secret")
        opened.execute("CREATE TABLE a (*) FROM there TABLE 'a'")
        assert rows(opened, "SELECT * FROM a") == []
        process.set_hook(hook)
        try:
            opened.execute("CREATE TABLE b (*) WITH (snapshot.batch_size = '10') FROM there TABLE 'b'")
            until(opened, "waiting", f"GRANT SELECT ON {schema(there)}.b TO")
        finally:
            process.set_hook(None)
        there.execute("INSERT INTO a VALUES (1); UPDATE b SET v = 'new' WHERE i IN (1, 50)")
        cursor = opened.cursor()
        cursor.execute("FLUSH")
        assert ['table "b" was not waited for' in n for n in cursor.notices] == [True]
        assert opened.execute("SELECT * FROM a").fetchall() == [(1,)]  # the other table goes on
        user.grant()
        until(opened, "running")
        assert sorted(rows(opened, "SELECT * FROM b")) == sorted(ask(there, "SELECT * FROM b"))
        opened.close()


@on_each(
    "there, taken, given, said",
    [
        of("postgres", "PASSWORD 'second-secret'", "PASSWORD 'first-secret'", ["does not let user"]),
        of("postgres", "NOREPLICATION", "REPLICATION", ["may not read changes"]),
        of("postgres", "NOLOGIN", "LOGIN", ["does not let user", "not permitted to log in", "refuses"]),
        of("mysql", "IDENTIFIED BY 'second-secret'", "IDENTIFIED BY 'first-secret'", ["does not let user"]),
    ],
)
def test_what_is_taken_from_a_user_and_given_back(opened, there, taken, given, said):
    with user_of(there) as user:
        there.execute("INSERT INTO a VALUES (1)")
        source(opened, there, username=user.name, password="first-secret")
        opened.execute("CREATE TABLE a (*) FROM there TABLE 'a'")
        assert rows(opened, "SELECT * FROM a") == [(1,)]
        user.alter(taken)
        user.end_connections()  # what is given back needs no new connection
        there.execute("INSERT INTO a VALUES (2)")
        wait_until(lambda: any(s in until(opened, "waiting") for s in said))  # at first the connection that was ended
        assert "secret" not in where(opened)[1]
        cursor = opened.cursor()
        cursor.execute("FLUSH")
        assert 'source "there" was not waited for' in cursor.notices[0]
        assert "secret" not in str(cursor.notices)
        assert opened.execute("SELECT * FROM a").fetchall() == [(1,)]
        user.alter(given)
        until(opened, "running")
        assert sorted(rows(opened, "SELECT * FROM a")) == [(1,), (2,)]
        opened.close()
