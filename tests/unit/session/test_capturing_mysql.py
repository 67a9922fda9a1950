"""Tables that follow tables of a real MariaDB by its changes: its own rules, besides those of `test_captures`."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal

import pytest
from tests.captures import ask, options, rows, source, until, where

import watersmeet
from watersmeet import errors

TYPES = """
CREATE TABLE t (i int PRIMARY KEY, b1 bit(1), b9 bit(9), ti tinyint, tu tinyint unsigned, si smallint,
    mi mediumint, mu mediumint unsigned, iu int unsigned, l bigint, lu bigint unsigned, f float, d double,
    n decimal(20, 4), n2 decimal(3, 3), v varchar(10), v2 varchar(300), c char(5), c2 varchar(9) CHARACTER SET latin1,
    u2 varchar(9) CHARACTER SET ucs2, x mediumtext, y varbinary(9), y2 binary(3), bl blob, da date, tm time, t3 time(3),
    dt datetime, d6 datetime(6), d3 datetime(3), ts timestamp NULL, t6 timestamp(6) NULL, yr year,
    e enum('a', 'it''s', 'ü'), s set('p', 'q', 'r'), j json, u uuid)"""
ROWS = r"""
(1, 1, 257, -128, 255, -32768, -8388608, 16777215, 4294967295, -9223372036854775808, 18446744073709551615, 1.5, 0.1,
    -1234567890123456.7891, -0.125, 'a "b", c', REPEAT('ü', 300), 'ab', 'ö€', 'é', 'x\\\n', x'00ff10', x'01', x'',
    '2024-02-29', '12:34:56', '-01:02:03.004', '2024-02-29 12:34:56', '2024-02-29 12:34:56.123456',
    '1999-12-31 23:59:59.007', '2024-02-29 12:00:00', '2024-02-29 12:00:00.000001', 2024, 'it''s', 'p,r',
    '{"k": [1, null]}', '00112233-4455-6677-8899-aabbccddee00'),
(2, 0, 1, 127, 0, 32767, 8388607, 0, 0, 9223372036854775807, 0, -3.4e38, 1e300, 0, 0.999, '', '', '', '', '', '', x'',
    x'000000', x'5c', '0001-01-01', '00:00:00', '23:59:59.999', '9999-12-31 23:59:59', '1000-01-01 00:00:00.000000',
    '2000-02-29 00:00:00', '1970-01-01 00:00:01', '2038-01-19 03:14:07.999999', 1901, 'ü', '', '"s"',
    'ffffffff-ffff-ffff-ffff-ffffffffffff')"""
FIRST = (1, True, Decimal(257), -128, 255, -32768, -8388608, 16777215, 4294967295, -9223372036854775808,
    Decimal(18446744073709551615), 1.5, 0.1, Decimal("-1234567890123456.7891"), Decimal("-0.125"), 'a "b", c',
    "ü" * 300, "ab", "ö€", "é", "x\\\n", b"\x00\xff\x10", b"\x01\x00\x00", b"", dt.date(2024, 2, 29),
    dt.time(12, 34, 56), "-01:02:03.004", dt.datetime(2024, 2, 29, 12, 34, 56),
    dt.datetime(2024, 2, 29, 12, 34, 56, 123456), dt.datetime(1999, 12, 31, 23, 59, 59, 7000),
    dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC), 2024, "it's",
    "p,r", {"k": [1, None]}, "00112233-4455-6677-8899-aabbccddee00")  # fmt: skip


@pytest.fixture
def opened(tmp_path, mysql):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


@pytest.mark.parametrize("is_compressed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_type_comes_by_the_snapshot_and_by_changes(opened, own_mysql, is_compressed):
    mysql = own_mysql
    mysql.execute(f"SET GLOBAL log_bin_compress = {is_compressed}, GLOBAL log_bin_compress_min_len = 10")
    mysql.execute(f"{TYPES}; INSERT INTO t VALUES {ROWS}; INSERT INTO t (i) VALUES (3)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*, t3 varchar, j jsonb) FROM there TABLE 't'")
    opened.execute("CREATE TABLE texts (*, da varchar, d6 varchar, ts varchar, n varchar, f varchar, t3 varchar) "
                   f"FROM there TABLE '{mysql.name}.t'")  # fmt: skip
    columns = [c[0] for c in opened.execute("SELECT * FROM t").description]
    names = [c for (c,) in ask(mysql, f"SELECT column_name FROM information_schema.columns WHERE table_schema = "
                                      f"'{mysql.name}' AND table_name = 't' ORDER BY ordinal_position")]  # fmt: skip
    assert sorted(columns) == sorted(names)
    listed = ", ".join(f'"{n}"' for n in names)
    before = rows(opened, f"SELECT {listed} FROM t ORDER BY i")
    for name, found, expected in zip(names, before[0], FIRST, strict=True):
        assert found == expected, name
    assert before[2] == (3, *[None] * (len(names) - 1))
    texts = rows(opened, "SELECT * FROM texts ORDER BY i")
    mysql.execute(f"DELETE FROM t; INSERT INTO t VALUES {ROWS}; INSERT INTO t (i) VALUES (3)")
    assert rows(opened, f"SELECT {listed} FROM t ORDER BY i") == before
    mysql.execute("UPDATE t SET i = i + 10; UPDATE t SET i = i - 10")
    assert rows(opened, f"SELECT {listed} FROM t ORDER BY i") == before
    assert rows(opened, "SELECT * FROM texts ORDER BY i") == texts


def test_what_is_rolled_back_does_not_come(opened, mysql):
    """Beside a table without transactions, the log has rows that were rolled back, too, and says so behind them."""
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); CREATE TABLE m (i int) ENGINE = MyISAM")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []  # all comes by the log
    mysql.execute(
        "BEGIN; INSERT INTO t VALUES (1, 1); SAVEPOINT s; INSERT INTO t VALUES (2, 2); INSERT INTO m SELECT i FROM t;"
        "SAVEPOINT `a b`; UPDATE t SET v = 9; INSERT INTO m VALUES (7); ROLLBACK\nWORK TO `A b` /* so */;"
        "ROLLBACK TO SAVEPOINT s;"
        "INSERT INTO t VALUES (3, 3); COMMIT"
    )
    mysql.execute("BEGIN; INSERT INTO t VALUES (4, 4); INSERT INTO m SELECT i FROM t; ROLLBACK")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(1, 1), (3, 3)]


def test_large_transactions_are_whole(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(200))")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    mysql.execute("INSERT INTO t SELECT seq, REPEAT(CHAR(97 + seq % 26), seq % 150) FROM seq_1_to_200000")
    mysql.execute("UPDATE t SET v = NULL WHERE i % 3 = 0")
    query = "SELECT count(*), count(v), sum(i), sum(length(v)) FROM t"
    assert rows(opened, query) == ask(mysql, query)


def test_without_snapshot_only_changes_come(opened, mysql):
    mysql.execute("CREATE TABLE t (e enum('a', 'b') PRIMARY KEY); INSERT INTO t VALUES ('a')")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) WITH (snapshot = 'false') FROM there TABLE 't'")
    mysql.execute("INSERT INTO t VALUES ('b')")
    assert rows(opened, "SELECT * FROM t") == [("b",)]
    opened.execute("CREATE TABLE u (*) FROM there TABLE 't'")
    opened.execute("FLUSH")
    assert "a key of type enum" in where(opened)[1]


def test_columns_that_are_added_there_are_added_here(opened, mysql):
    mysql.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v text, `out` int); INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)"
    )
    source(opened, mysql, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM there TABLE 't'")
    opened.execute("FLUSH")
    mysql.execute(
        "UPDATE t SET v = 'eins' WHERE i = 1; INSERT INTO t VALUES (3, 'three', 3);"
        "ALTER TABLE t ADD COLUMN n decimal(6, 2) DEFAULT 1.5, ADD `At` datetime(6), ADD INDEX (n), "
        "ADD (ok bool NOT NULL DEFAULT true, w varchar(9) NOT NULL, x varchar(9) DEFAULT 'it''s, \\\\(') /* , no */;"
        "UPDATE t SET n = 2 WHERE i = 2; INSERT INTO t (i, v, w) VALUES (4, 'four', 'w');"
        "ALTER TABLE t ALTER n SET DEFAULT 9; INSERT INTO t (i, w) VALUES (5, ''); DELETE FROM t WHERE i = 1"
    )
    names = 'i, v, n, "At", ok, w, x'
    found = rows(opened, f"SELECT {names} FROM t ORDER BY i")
    assert found == ask(mysql, f"SELECT {names.replace(chr(34), '`')} FROM t ORDER BY i")
    opened.execute("CREATE MATERIALIZED VIEW after AS SELECT n, count(*) AS c FROM t GROUP BY n")
    mysql.execute("UPDATE t SET n = n + 1; ALTER TABLE t ADD z int AFTER i; INSERT INTO t (i, z, w) VALUES (6, 7, '')")
    assert rows(opened, "SELECT i, z FROM t ORDER BY i") == ask(mysql, "SELECT i, z FROM t ORDER BY i")
    grouped = "SELECT n, count(*) FROM t GROUP BY n ORDER BY n"
    assert rows(opened, "SELECT * FROM after ORDER BY n") == ask(mysql, grouped)


def test_what_changes_no_column_that_is_read_stops_nothing(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(9), o int); INSERT INTO t VALUES (1, 'v', 1)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1, "v")]
    for change in (
        "ALTER TABLE t ADD INDEX o (o), COMMENT = 'a, b', AUTO_INCREMENT = 7", "ALTER TABLE t DROP INDEX o",
        "ALTER TABLE t ADD COLUMN n int FIRST", "ALTER TABLE t MODIFY o bigint", "ALTER TABLE t DROP o",
        "ALTER TABLE t ALTER v SET DEFAULT 'x', ENGINE = InnoDB", "CREATE INDEX n ON t (n)", "OPTIMIZE TABLE t",
        "CREATE TABLE other LIKE t", "DROP TABLE other", "CREATE TEMPORARY TABLE t (i int); DROP TEMPORARY TABLE t",
        "ANALYZE TABLE t", "CREATE VIEW w AS SELECT * FROM t",
    ):  # fmt: skip
        mysql.execute(change)
        mysql.execute("INSERT INTO t (i, v) SELECT max(i) + 1, 'w' FROM t")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == ask(mysql, "SELECT i, v FROM t ORDER BY i")
    assert where(opened)[0] == "running"


def test_a_statement_of_another_database_stops_only_what_it_names(opened, mysql):
    """The log has statements that change rows with the names in them, of tables alike in other databases, too."""
    other = f"{mysql.name}_2"
    mysql.execute(
        f"CREATE TABLE t (i int PRIMARY KEY); CREATE DATABASE {other}; CREATE TABLE {other}.t (i int PRIMARY KEY)"
    )
    try:
        source(opened, mysql)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        mysql.execute(f"USE {other}; SET SESSION binlog_format = STATEMENT; INSERT INTO t VALUES (1)")
        mysql.execute("INSERT INTO t VALUES (7)")
        assert rows(opened, "SELECT * FROM t") == [(7,)]
        assert where(opened)[0] == "running"
        mysql.execute(f"USE {other}; SET SESSION binlog_format = STATEMENT; INSERT INTO {mysql.name}.t VALUES (8)")
        opened.execute("FLUSH")
        assert "not in the log as rows" in where(opened)[1]
    finally:
        mysql.execute(f"DROP DATABASE {other}")


def test_a_row_with_a_value_without_an_equivalent_is_set_aside(opened, mysql):
    """Or its table stops, if the option says so; the row of its key goes either way."""
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '2024-01-01'), (2, NULL)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE texts (*, d varchar) FROM there TABLE 't'")
    opened.execute("CREATE TABLE careful (*) WITH (on_error = 'stop') FROM there TABLE 't'; FLUSH")
    mysql.execute(
        "SET sql_mode = ''; UPDATE t SET d = '0000-00-00' WHERE i = 1; INSERT INTO t VALUES (3, '2024-02-01')"
    )
    assert rows(opened, "SELECT * FROM texts ORDER BY i", stops=True) == [
        (1, "0000-00-00"),
        (2, None),
        (3, "2024-02-01"),
    ]
    assert rows(opened, "SELECT * FROM t ORDER BY i", stops=True) == [(2, None), (3, dt.date(2024, 2, 1))]
    assert rows(opened, "SELECT * FROM careful ORDER BY i", stops=True) == [(1, dt.date(2024, 1, 1)), (2, None)]
    reason = f'a value of column "d" of table "{mysql.name}.t" is not date: 0000-00-00'
    place, text = f"{mysql.name}.t", '{"i": "1", "d": "0000-00-00"}'
    assert opened.execute("SHOW DEAD LETTERS FROM t").fetchall() == [("t", place, None, reason, text)]
    ((stopped, why),) = [r[::4] for r in opened.execute("SHOW ERRORS").fetchall() if r[1] == "stopped"]
    assert stopped == "careful"
    assert reason in why
    assert ("t", "dead letter", place, None, reason) in opened.execute("SHOW ERRORS").fetchall()
    jobs = {r[0]: (r[1], r[2], r[3], r[10]) for r in opened.execute("SHOW JOBS").fetchall()}
    assert jobs == {
        "t": ("table", "running", 2, 1),
        "texts": ("table", "running", 3, 0),
        "careful": ("table", "stalled", 2, 0),
    }
    mysql.execute("UPDATE t SET d = '2024-03-01' WHERE i = 1")
    assert rows(opened, "SELECT * FROM t WHERE i = 1", stops=True) == [(1, dt.date(2024, 3, 1))]


def test_every_table_that_stopped_is_named(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); CREATE TABLE u (i int PRIMARY KEY, v int)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'; FLUSH")
    mysql.execute("ALTER TABLE t MODIFY v int AFTER i; ALTER TABLE u DROP v; INSERT INTO t VALUES (1, 1)")
    rows(opened, "SELECT * FROM t", stops=True)
    state, why = where(opened)
    assert state == "stalled"
    assert f'table "t": column "v" of table "{mysql.name}.t" was changed by ALTER TABLE … MODIFY' in why
    assert f'table "u": column "v" of table "{mysql.name}.u" is gone' in why
    assert sorted(r[:2] for r in opened.execute("SHOW ERRORS").fetchall()) == [("t", "stopped"), ("u", "stopped")]


def test_labels_of_another_charset_do_not_block_other_tables(opened, mysql):
    mysql.execute(
        "CREATE TABLE t (i int PRIMARY KEY, e enum('é', 'b') CHARACTER SET latin1,"
        "s set('ж', 'x') CHARACTER SET koi8r);"
        "CREATE TABLE u (i int PRIMARY KEY)"
    )
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'; FLUSH")
    mysql.execute("INSERT INTO t VALUES (1, 'é', 'ж,x'), (2, 'b', ''); INSERT INTO u VALUES (1)")
    assert rows(opened, "SELECT * FROM u") == [(1,)]
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(1, "é", "ж,x"), (2, "b", "")]


@pytest.mark.parametrize(
    ("rights", "table", "condition", "said"),
    [
        ("", "t", "CONNECTOR_OPTION", r"GRANT REPLICATION SLAVE ON \*\.\*"),
        ("REPLICATION", "t", "CONNECTOR_OPTION", r"GRANT SELECT ON \w+\.t TO"),
        ("ALL", "keyless", "CONNECTOR_OPTION", "has no primary key"),
        ("ALL", "lost", "UNDEFINED_OBJECT", r'no table "\w+\.lost"'),
        ("ALL", "plain", "CONNECTOR_OPTION", "has engine MyISAM"),
        ("ALL", "shapes", "CONNECTOR_OPTION", 'column "p" .* has type point, whose changes are not read'),
        ("PASSWORD", "t", "CONNECTOR_OPTION", "does not let user"),
    ],
)
def test_what_a_server_lacks_is_said_at_create(opened, mysql, rights, table, condition, said):
    user = f"u_{mysql.name}"
    mysql.execute(
        "CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE keyless (i int); CREATE TABLE other (i int PRIMARY KEY);"
        "CREATE TABLE plain (i int PRIMARY KEY) ENGINE = MyISAM; CREATE TABLE shapes (i int PRIMARY KEY, p point)"
    )
    mysql.execute(f"CREATE USER {user} IDENTIFIED BY 'p'; GRANT SELECT ON {mysql.name}.other TO {user}")
    if rights in ("REPLICATION", "ALL"):
        mysql.execute(f"GRANT REPLICATION SLAVE ON *.* TO {user}")
    if rights == "ALL":
        mysql.execute(f"GRANT SELECT ON {mysql.name}.* TO {user}")
    try:
        more = {"username": user, "password": "q" if rights == "PASSWORD" else "p", "table.name": table}
        with pytest.raises(errors.Error) as refused:
            opened.execute(f"CREATE TABLE x (*) {options(mysql, **more)}")
        assert refused.value.condition == condition
        assert refused.match(said) if said in str(refused.value) else __import__("re").search(said, str(refused.value))
    finally:
        mysql.execute(f"DROP USER {user}")


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("binlog_format = MIXED", "SET GLOBAL binlog_format = ROW"),
        ("binlog_row_image = NOBLOB", "SET GLOBAL binlog_row_image = FULL"),
        ("binlog_row_metadata = MINIMAL", "SET GLOBAL binlog_row_metadata = FULL"),
    ],
)
def test_a_server_that_writes_too_little_is_refused(opened, own_mysql, setting, hint):
    own_mysql.execute(f"SET GLOBAL {setting}")
    with pytest.raises(errors.Error) as refused:
        source(opened, own_mysql)
    assert f"has {setting}" in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.slow
def test_a_log_that_was_purged_stalls_its_source(tmp_path, own_mysql):
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        source(connection, own_mysql)
        connection.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        connection.execute("FLUSH")
    own_mysql.execute("INSERT INTO t VALUES (1); FLUSH BINARY LOGS; INSERT INTO t VALUES (2); FLUSH BINARY LOGS")
    ((newest, *_),) = ask(own_mysql, "SHOW MASTER STATUS")
    with own_mysql.connect() as there, there.cursor() as cursor:
        cursor.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
        deadline = time.monotonic() + 60
        while ask(own_mysql, "SHOW BINARY LOGS")[0][0] != newest:  # the server may not know yet that nobody reads it
            assert time.monotonic() < deadline
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        why = until(connection, "stalled")
        assert "has no changes behind" in why
        assert "RESET SOURCE reads its tables anew" in why
        connection.execute("RESET SOURCE there")
        own_mysql.execute("INSERT INTO t VALUES (3)")
        assert rows(connection, "SELECT * FROM t ORDER BY i") == [(1,), (2,), (3,)]
        assert where(connection)[0] == "running"


def test_a_log_that_begins_anew_stalls_its_source(opened, own_mysql):
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, own_mysql)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    own_mysql.execute("INSERT INTO t VALUES (1)")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_mysql.execute("RESET MASTER; INSERT INTO t VALUES (2)")
    own_mysql.server.stop()
    own_mysql.server.start()
    why = until(opened, "stalled")
    assert "has no changes behind" in why
    assert "RESET SOURCE reads its tables anew" in why
    opened.execute("RESET SOURCE there")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(1,), (2,)]
