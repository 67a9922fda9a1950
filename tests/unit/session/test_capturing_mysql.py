"""Tables that follow tables of a real MariaDB by its changes."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal

import pytest
from scripts.servers.mariadb import PASSWORD, USER
from tests.thorough import mostly_slow
from tests.unit.session.test_capturing import SHAPES

import watersmeet
from watersmeet import errors, faults

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


def options(mysql, **more):
    found = {"connector": "mysql-cdc", "hostname": "127.0.0.1", "port": mysql.server.port, "username": USER,
        "password": PASSWORD, "database.name": mysql.name, **more}  # fmt: skip
    return "WITH (" + ", ".join(f"{n} = '{v}'" for n, v in found.items()) + ")"


def source(opened, mysql, **more):
    opened.execute(f"CREATE SOURCE my {options(mysql, **more)}")


def rows(opened, query):
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert not [n for n in cursor.notices if "waited for" in n], cursor.notices
    cursor.execute(query)
    return cursor.fetchall()


def ask(mysql, query):
    return list(mysql.execute(query))


def where(opened):
    ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    return state, why


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
    opened.execute("CREATE TABLE t (*, t3 varchar, j jsonb) FROM my TABLE 't'")
    opened.execute("CREATE TABLE texts (*, da varchar, d6 varchar, ts varchar, n varchar, f varchar, t3 varchar) "
                   f"FROM my TABLE '{mysql.name}.t'")  # fmt: skip
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


def test_changes_of_rows(opened, mysql):
    mysql.execute(
        "CREATE TABLE t (a int, b varchar(9), v text, PRIMARY KEY (b, a)); INSERT INTO t VALUES (1, 'x', 'one')"
    )
    source(opened, mysql)
    opened.execute("CREATE TABLE t (a int, b varchar, v varchar, PRIMARY KEY (a, b)) FROM my TABLE 't'")
    opened.execute("CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS n, max(v) AS v FROM t")
    assert rows(opened, "SELECT * FROM seen") == [(1, "one")]
    mysql.execute("INSERT INTO t VALUES (2, 'y', 'two'), (3, 'z', NULL)")
    mysql.execute("UPDATE t SET v = 'three' WHERE a = 3; UPDATE t SET a = 4, v = 'four' WHERE a = 2")
    mysql.execute("DELETE FROM t WHERE a = 1; INSERT INTO t VALUES (1, 'x', 'new')")
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(1, "x", "new"), (3, "z", "three"), (4, "y", "four")]
    assert rows(opened, "SELECT * FROM seen") == [(3, "three")]
    mysql.execute("UPDATE t SET a = 7 - a")  # keys change places
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(3, "y", "four"), (4, "z", "three"), (6, "x", "new")]
    mysql.execute("TRUNCATE t; INSERT INTO t VALUES (9, 'n', 'nine')")
    assert rows(opened, "SELECT * FROM t") == [(9, "n", "nine")]
    mysql.execute("TRUNCATE TABLE t")
    assert rows(opened, "SELECT * FROM seen") == [(0, None)]


def test_what_is_rolled_back_does_not_come(opened, mysql):
    """Beside a table without transactions, the log has rows that were rolled back, too, and says so behind them."""
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); CREATE TABLE m (i int) ENGINE = MyISAM")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []  # all comes by the log
    mysql.execute(
        "BEGIN; INSERT INTO t VALUES (1, 1); SAVEPOINT s; INSERT INTO t VALUES (2, 2); INSERT INTO m SELECT i FROM t;"
        "SAVEPOINT `a b`; UPDATE t SET v = 9; INSERT INTO m VALUES (7); ROLLBACK\nWORK TO `A b` /* so */;"
        "ROLLBACK TO SAVEPOINT s;"
        "INSERT INTO t VALUES (3, 3); COMMIT"
    )
    mysql.execute("BEGIN; INSERT INTO t VALUES (4, 4); INSERT INTO m SELECT i FROM t; ROLLBACK")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(1, 1), (3, 3)]


def test_tables_of_one_transaction_change_at_once(opened, mysql):
    mysql.execute("CREATE TABLE a (i int PRIMARY KEY, v int); CREATE TABLE b (i int PRIMARY KEY, v int)")
    source(opened, mysql)
    opened.execute("CREATE TABLE a (*) FROM my TABLE 'a'")
    opened.execute("CREATE TABLE b (*) FROM my TABLE 'b'")
    opened.execute("FLUSH")
    log = opened._session.database.log
    start = log.head()
    for i in range(50):
        mysql.execute(f"BEGIN; INSERT INTO a VALUES ({i}, {i}); INSERT INTO b VALUES ({i}, -{i}); COMMIT")
    opened.execute("FLUSH")
    changed = [c.relations for c in log.transactions(start, log.head()) if c.relations]
    assert changed
    assert all(len(c) == 2 for c in changed)
    assert all(len({r.inserted_rows for r in c.values()}) == 1 for c in changed)


def test_large_transactions_are_whole(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(200))")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    mysql.execute("INSERT INTO t SELECT seq, REPEAT(CHAR(97 + seq % 26), seq % 150) FROM seq_1_to_200000")
    mysql.execute("UPDATE t SET v = NULL WHERE i % 3 = 0")
    query = "SELECT count(*), count(v), sum(i), sum(length(v)) FROM t"
    assert rows(opened, query) == ask(mysql, query)


def test_a_table_of_its_own_reader(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    opened.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v varchar) INCLUDE table_name AS t INCLUDE database_name AS d "
        f"INCLUDE timestamp AS at {options(mysql, **{'table.name': 't'})}"
    )
    assert rows(opened, "SELECT i, v, t, d, at FROM t") == [(1, "one", "t", mysql.name, None)]
    mysql.execute("UPDATE t SET v = 'two'")
    ((i, v, at),) = rows(opened, "SELECT i, v, at FROM t")
    assert (i, v) == (1, "two")
    assert abs(at - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
    opened.execute("DROP TABLE t")
    assert opened.execute("SHOW SOURCES").fetchall() == []


@pytest.mark.parametrize(
    "key",
    mostly_slow(
        ["k varchar(20)", "k varchar(20) CHARACTER SET latin1", "k varbinary(20)", "k decimal(9, 3)", "k datetime(3)"],
        1,
        2,
    ),
)
def test_a_snapshot_in_pieces_while_rows_change(opened, mysql, key):
    value = {"de": "{0} + 0.5", "da": "'2024-01-01' + INTERVAL {0} HOUR"}.get(key[2:4], "CONCAT('k', {0})")
    mysql.execute(f"CREATE TABLE t ({key}, n int, v int, PRIMARY KEY (k, n))")
    mysql.execute(f"INSERT INTO t SELECT {value.format('seq DIV 2')}, seq, 0 FROM seq_1_to_500")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '7') FROM my TABLE 't'")
    for i in range(1, 60):
        mysql.execute(
            f"UPDATE t SET v = v + 1 WHERE n % 10 = {i % 10}; DELETE FROM t WHERE n = {i * 7};"
            f"INSERT INTO t VALUES ({value.format(i * 9)}, 1000 + {i}, {i}); UPDATE t SET n = -n WHERE n = {i * 8}"
        )
    assert rows(opened, "SELECT * FROM t ORDER BY n") == ask(mysql, "SELECT * FROM t ORDER BY n")


def test_without_snapshot_only_changes_come(opened, mysql):
    mysql.execute("CREATE TABLE t (e enum('a', 'b') PRIMARY KEY); INSERT INTO t VALUES ('a')")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) WITH (snapshot = 'false') FROM my TABLE 't'")
    mysql.execute("INSERT INTO t VALUES ('b')")
    assert rows(opened, "SELECT * FROM t") == [("b",)]
    opened.execute("CREATE TABLE u (*) FROM my TABLE 't'")
    opened.execute("FLUSH")
    assert "a key of type enum" in where(opened)[1]


def test_columns_that_are_added_there_are_added_here(opened, mysql):
    mysql.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v text, `out` int); INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)"
    )
    source(opened, mysql, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM my TABLE 't'")
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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("ALTER TABLE t ADD COLUMN r double DEFAULT (rand())", "a value of its own"),
        ("ALTER TABLE t ADD COLUMN p point", "no equivalent"),
        ("ALTER TABLE t DROP COLUMN v", 'column "v" of table "{0}.t" is gone'),
        ("ALTER TABLE t CHANGE v w varchar(9)", 'column "v" of table "{0}.t" was changed by ALTER TABLE'),
        ("ALTER TABLE t RENAME COLUMN v TO w", 'column "v" of table "{0}.t" has another name'),
        ("ALTER TABLE t MODIFY v int", 'column "v" of table "{0}.t" was changed by ALTER TABLE'),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1", "another charset"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (i, v)", "another primary key"),
        ("RENAME TABLE t TO renamed", "was renamed"),
        ("DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v varchar(9))", "was dropped"),
        ("CREATE OR REPLACE TABLE t (i int PRIMARY KEY, v varchar(9))", "created again"),
        (
            "SET SESSION binlog_format = STATEMENT; UPDATE t SET v = 3; SET SESSION binlog_format = ROW",
            "not in the log as rows",
        ),
        (
            "SET SESSION binlog_row_image = MINIMAL; UPDATE t SET v = 3; SET SESSION binlog_row_image = FULL",
            "binlog_row_image = FULL",
        ),
        ("XA START 'x'; UPDATE t SET v = 3; XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'", "a transaction of XA"),
    ],
)
def test_other_changes_of_a_table_stop_it_alone(opened, mysql, change, reason):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(9)); CREATE TABLE u (i int PRIMARY KEY)")
    source(opened, mysql, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM my TABLE 'u'")
    mysql.execute("INSERT INTO t VALUES (1, '1')")
    assert rows(opened, "SELECT * FROM t") == [(1, "1")]
    mysql.execute(change)
    mysql.execute("INSERT INTO u VALUES (7)")
    assert rows(opened, "SELECT * FROM u") == [(7,)]
    assert rows(opened, "SELECT * FROM t") == [(1, "1")]
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    reason = reason.format(mysql.name)
    assert [n for n in cursor.notices if 'table "t" follows no more' in n and reason in n], cursor.notices
    state, why = where(opened)
    assert state == "stalled"
    assert reason in why
    if "COLUMN r" not in change and "COLUMN p" not in change:
        assert "RESET SOURCE t reads it anew" in why


def test_what_changes_no_column_that_is_read_stops_nothing(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(9), o int); INSERT INTO t VALUES (1, 'v', 1)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM my TABLE 't'")
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
        opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
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
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'; CREATE TABLE texts (*, d varchar) FROM my TABLE 't'")
    opened.execute("CREATE TABLE careful (*) WITH (on_error = 'stop') FROM my TABLE 't'; FLUSH")
    mysql.execute(
        "SET sql_mode = ''; UPDATE t SET d = '0000-00-00' WHERE i = 1; INSERT INTO t VALUES (3, '2024-02-01')"
    )
    assert rows(opened, "SELECT * FROM texts ORDER BY i") == [(1, "0000-00-00"), (2, None), (3, "2024-02-01")]
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(2, None), (3, dt.date(2024, 2, 1))]
    assert rows(opened, "SELECT * FROM careful ORDER BY i") == [(1, dt.date(2024, 1, 1)), (2, None)]
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
    assert rows(opened, "SELECT * FROM t WHERE i = 1") == [(1, dt.date(2024, 3, 1))]


def test_every_table_that_stopped_is_named(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); CREATE TABLE u (i int PRIMARY KEY, v int)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'; CREATE TABLE u (*) FROM my TABLE 'u'; FLUSH")
    mysql.execute("ALTER TABLE t MODIFY v int AFTER i; ALTER TABLE u DROP v; INSERT INTO t VALUES (1, 1)")
    rows(opened, "SELECT * FROM t")
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
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'; CREATE TABLE u (*) FROM my TABLE 'u'; FLUSH")
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


def until(opened, state, said=""):
    """Waits until the only source has that state, and says why."""
    deadline = time.monotonic() + 60
    while (found := where(opened))[0] != state or said not in (found[1] or ""):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_what_is_taken_from_a_user_and_given_back(opened, mysql):
    user = f"u_{mysql.name}"
    mysql.execute(
        "CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE b (i int PRIMARY KEY, v varchar(9));"
        "INSERT INTO b SELECT seq, 'old' FROM seq_1_to_50;"
        f"CREATE USER {user} IDENTIFIED BY 'first-secret'; GRANT REPLICATION SLAVE ON *.* TO {user};"
        f"GRANT SELECT ON {mysql.name}.a TO {user}; GRANT SELECT ON {mysql.name}.b TO {user}"
    )
    pieces = []

    def hook(point):
        if point == "capture.chunk":
            pieces.append(point)
            if len(pieces) == 3:
                mysql.execute(f"REVOKE SELECT ON {mysql.name}.b FROM {user}")

    try:
        source(opened, mysql, username=user, password="first-secret")
        opened.execute("CREATE TABLE a (*) FROM my TABLE 'a'")
        assert rows(opened, "SELECT * FROM a") == []
        faults.set_hook(hook)
        opened.execute("CREATE TABLE b (*) WITH (snapshot.batch_size = '10') FROM my TABLE 'b'")
        until(opened, "waiting", f"GRANT SELECT ON {mysql.name}.b TO {user}")
        faults.set_hook(None)
        mysql.execute("INSERT INTO a VALUES (1); UPDATE b SET v = 'new' WHERE i IN (1, 50)")
        cursor = opened.cursor()
        cursor.execute("FLUSH")
        assert ['table "b" was not waited for' in n for n in cursor.notices] == [True]
        assert opened.execute("SELECT * FROM a").fetchall() == [(1,)]  # the other table goes on
        mysql.execute(f"GRANT SELECT ON {mysql.name}.b TO {user}")
        until(opened, "running")
        assert sorted(rows(opened, "SELECT * FROM b")) == sorted(ask(mysql, "SELECT * FROM b"))
        mysql.execute(f"ALTER USER {user} IDENTIFIED BY 'second-secret'; KILL USER {user}; INSERT INTO a VALUES (2)")
        until(opened, "waiting", "does not let user")
        assert "secret" not in where(opened)[1]
        mysql.execute(f"ALTER USER {user} IDENTIFIED BY 'first-secret'")
        until(opened, "running")
        assert sorted(rows(opened, "SELECT * FROM a")) == [(1,), (2,)]
    finally:
        faults.set_hook(None)
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


def test_a_server_that_is_killed_is_followed_again(opened, own_mysql):
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, own_mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_mysql.server.kill()
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert 'source "my" was not waited for' in cursor.notices[0]
    own_mysql.server.start()
    own_mysql.execute("INSERT INTO t VALUES (2)")
    deadline = time.monotonic() + 60
    while opened.execute("SELECT count(*) FROM t").fetchall() != [(2,)]:
        assert time.monotonic() < deadline, cursor.notices
        cursor.execute("FLUSH")


@pytest.mark.slow
def test_a_log_that_was_purged_stalls_its_source(tmp_path, own_mysql):
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        source(connection, own_mysql)
        connection.execute("CREATE TABLE t (*) FROM my TABLE 't'")
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
        deadline = time.monotonic() + 60
        while (found := where(connection))[0] != "stalled":
            assert time.monotonic() < deadline, found
        assert "has no changes behind" in found[1]
        assert "RESET SOURCE reads its tables anew" in found[1]
        connection.execute("RESET SOURCE my")
        own_mysql.execute("INSERT INTO t VALUES (3)")
        assert rows(connection, "SELECT * FROM t ORDER BY i") == [(1,), (2,), (3,)]
        assert where(connection)[0] == "running"


def test_one_statement_lets_a_table_go_on_that_was_made_again_there(opened, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    mysql.execute("DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (2, 'two')")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    state, why = where(opened)
    assert (state, 'table "t"' in why) == ("stalled", True)
    assert "RESET SOURCE t reads it anew" in why
    opened.execute("CREATE OR REPLACE TABLE t (*) FROM my TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(2, "two")]
    mysql.execute("UPDATE t SET v = 'zwei'; INSERT INTO t VALUES (3, NULL)")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(2, "zwei"), (3, None)]
    assert where(opened)[0] == "running"
    opened.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
    mysql.execute("DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (4, 'four')")
    assert rows(opened, "SELECT * FROM n") == [(2,)]
    opened.execute("RESET SOURCE t")
    assert rows(opened, "SELECT * FROM n") == [(1,)]
    mysql.execute("INSERT INTO t VALUES (5, 'five')")
    assert rows(opened, "SELECT * FROM n") == [(2,)]


def test_a_log_that_begins_anew_stalls_its_source(opened, own_mysql):
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, own_mysql)
    opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
    own_mysql.execute("INSERT INTO t VALUES (1)")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_mysql.execute("RESET MASTER; INSERT INTO t VALUES (2)")
    own_mysql.server.stop()
    own_mysql.server.start()
    deadline = time.monotonic() + 60
    while (found := where(opened))[0] != "stalled":
        assert time.monotonic() < deadline, found
    assert "has no changes behind" in found[1]
    assert "RESET SOURCE reads its tables anew" in found[1]
    opened.execute("RESET SOURCE my")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(1,), (2,)]


@pytest.mark.parametrize(("columns", "condition", "said"), SHAPES)
def test_a_table_of_another_shape_is_refused(opened, mysql, columns, condition, said):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, p point, v text)")
    source(opened, mysql)
    with pytest.raises(errors.Error) as refused:
        opened.execute(f"CREATE TABLE t ({columns}) FROM my TABLE 't'")
    assert refused.value.condition == condition
    assert said.format(mysql.name) in refused.value.message


def test_a_server_that_is_away_is_waited_for(tmp_path, own_mysql):
    """At CREATE it is refused; when the database is opened, its tables are there, and go on when the server is back."""
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, own_mysql)
        opened.execute("CREATE TABLE t (*) FROM my TABLE 't'")
        assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_mysql.server.kill()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        with pytest.raises(errors.Error, match="can't be reached") as refused:
            opened.execute(f"CREATE SOURCE other {options(own_mysql)}")
        assert refused.value.condition == "RUNTIME_UNAVAILABLE"
        assert opened.execute("SELECT * FROM t").fetchall() == [(1,)]
        deadline = time.monotonic() + 60
        while (found := where(opened))[0] != "waiting":
            assert time.monotonic() < deadline, found
        assert "can't be reached" in found[1]
        own_mysql.server.start()
        own_mysql.execute("INSERT INTO t VALUES (2)")
        while opened.execute("SELECT count(*) FROM t").fetchall() != [(2,)]:
            assert time.monotonic() < deadline
            opened.execute("FLUSH")
