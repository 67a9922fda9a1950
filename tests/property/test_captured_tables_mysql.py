"""Tables that follow MariaDB equal its own, whatever changes there, whatever is killed, and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading

import pytest

import watersmeet
from tests.captures import ask, source
from tests.property.test_captured_tables import KILLED, POINTS, newest
from tests.thorough import mostly_slow
from watersmeet.connectors.mysql import binlog, capture
from watersmeet.connectors.mysql.capture import Gtids
from watersmeet.system import process

TABLES = """
CREATE TABLE a (k varchar(20) PRIMARY KEY, n int, big text);
CREATE TABLE b (i int, j bigint, v decimal(10, 2), PRIMARY KEY (j, i));
CREATE TABLE both_a (t int PRIMARY KEY); CREATE TABLE both_b (t int PRIMARY KEY);
CREATE TABLE c (i int PRIMARY KEY, v int);
CREATE TABLE other (i int) ENGINE = MyISAM;
INSERT INTO a SELECT CONCAT('k', seq), seq, REPEAT('x', 3000 * (seq % 2)) FROM seq_1_to_80;
INSERT INTO b SELECT seq, seq DIV 7, seq FROM seq_1_to_50;
"""
#: What is compared at offsets of the log: columns that no change adds.
CONTENTS = {"a": "k, n, big", "b": "i, j, v", "both_a": "t", "both_b": "t", "c": "i, v"}
#: Changes that table c can't follow.
STOPS = ("DROP COLUMN v", "MODIFY v varchar(9)", "CHANGE v w int", "RENAME COLUMN v TO w")
#: What a client gets when another one is in the way: a lock that is not waited for, or a deadlock.
_IN_THE_WAY = (1205, 1213)


class Long:
    """A transaction that stays open over many others, with savepoints that are rolled back."""

    def __init__(self, mysql, seed, number):
        self.random, self.number, self.is_over = random.Random(f"long {seed} {number}"), number, False
        self.connection = mysql.connect()
        self.do("SET innodb_lock_wait_timeout = 0, lock_wait_timeout = 0, tx_isolation = 'READ-COMMITTED'; BEGIN;"
                f"INSERT INTO both_a VALUES ({number})")  # fmt: skip

    def do(self, statements):
        """Runs statements. Where another open transaction is in the way, everything is rolled back."""
        if self.is_over:
            return
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(statements)
                while cursor.nextset():
                    pass
            except Exception as problem:
                if problem.args[0] not in _IN_THE_WAY:
                    raise
                self.connection.rollback()
                self.is_over = True

    def go_on(self):
        r, n = self.random, self.number
        statements = [
            f"INSERT IGNORE INTO a VALUES ('long{r.randrange(9)}of{n}.', 1, REPEAT('l', 3000))",
            f"UPDATE a SET n = 77 WHERE k = 'long{r.randrange(9)}of{n}.'",
            f"INSERT IGNORE INTO b (i, j, v) VALUES ({r.randrange(9)}, {1000 + n}, 5)",
            f"UPDATE b SET v = -1 WHERE j = {1000 + n}",
            f"DELETE FROM a WHERE k = 'k{r.randrange(100)}'",
            "INSERT INTO other VALUES (2)",
        ]
        chosen = "; ".join(r.sample(statements, 2))
        if r.random() < 0.3:
            chosen = f"SAVEPOINT l; {chosen}; ROLLBACK TO l"
        self.do(chosen)

    def end(self):
        """Commits it, or rolls it back."""
        self.do(f"INSERT INTO both_b VALUES ({self.number})")
        self.do(self.random.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        self.connection.close()


class Client:
    """Somebody who changes the tables, one transaction after the other, the same again for the same seed."""

    def __init__(self, mysql, seed, first):
        self.mysql, self.random, self.number, self.step = mysql, random.Random(seed), first, 10

    def change(self, *, waits):
        """One transaction of some statements, and the same number in two tables. waits: for others who are in the
        way.
        """
        r, statements = self.random, []
        for _ in range(r.randint(1, 5)):
            key = f"k{r.randrange(100)}"
            statements.append(
                r.choice(
                    [
                        (
                            f"INSERT INTO a VALUES ('{key}', {r.randrange(9)}, REPEAT('y', {r.randrange(6000)})) "
                            f"ON DUPLICATE KEY UPDATE n = n + 1"
                        ),
                        f"UPDATE a SET n = n + 1 WHERE k LIKE '%{r.randrange(10)}'",
                        f"UPDATE a SET big = REPEAT('ü', {r.randrange(6000)}) WHERE k = '{key}'",
                        f"UPDATE IGNORE a SET k = CONCAT(k, 'm') WHERE k = '{key}'",
                        f"REPLACE INTO a VALUES ('{key.upper()}', 1, NULL)",
                        f"DELETE FROM a WHERE k = '{key}'",
                        f"UPDATE b SET v = v + 0.25 WHERE j = {r.randrange(9)}",
                        f"UPDATE IGNORE b SET i = -i WHERE j = {r.randrange(9)}",
                        f"INSERT IGNORE INTO b VALUES ({r.randrange(1000)}, {r.randrange(9)}, 1)",
                        f"DELETE FROM b WHERE i % 11 = {r.randrange(11)}",
                        "INSERT INTO other VALUES (1)",
                    ]
                )
            )
        if r.random() < 0.15:
            statements.append("SAVEPOINT s; DELETE FROM a; UPDATE b SET v = 0; ROLLBACK TO s")
        self.number += self.step
        for name in r.sample(["both_a", "both_b"], 2):
            statements.insert(r.randrange(len(statements) + 1), f"INSERT INTO {name} VALUES ({self.number})")
        end = "ROLLBACK" if r.random() < 0.15 else "COMMIT"
        with self.mysql.connect() as connection, connection.cursor() as cursor:
            if not waits:
                cursor.execute("SET innodb_lock_wait_timeout = 0, tx_isolation = 'READ-COMMITTED'")
            try:
                cursor.execute("; ".join(["BEGIN", *statements, end]))
                while cursor.nextset():
                    pass
            except Exception as problem:
                if problem.args[0] not in _IN_THE_WAY:
                    raise


class History:
    """The same statements, failures and restarts again for the same seed, but for when the threads come to them."""

    def __init__(self, path, mysql, seed):
        self.path, self.mysql, self.random = path, mysql, random.Random(seed)
        self.clients = [Client(mysql, f"{seed} {i}", i) for i in range(3)]
        self.failures = random.Random(f"failures {seed}")
        self.failing = True
        self.added = 0
        self.seed, self.long, self.longs = seed, [], 0
        self.stopped, self.rows_of_c = False, []
        #: What the tables were at offsets of the log.
        self.states = {}

    def fail(self, point):
        if self.failing and point in POINTS and self.failures.random() < 0.1:
            if self.failures.random() < 0.5:
                raise SystemExit  # the thread is gone, as if the process was killed
            raise OSError("it failed")

    def open(self):
        self.connection = watersmeet.connect(self.path, runtime="inprocess", parallelism=2)

    def reopen(self):
        self.connection.close()
        self.open()

    def work(self, count):
        """All clients at once."""
        threads = [
            threading.Thread(
                target=lambda c=c: [c.change(waits=not self.long) for _ in range(self.random.randint(1, count))]
            )
            for c in self.clients
        ]
        threads.append(threading.Thread(target=self.note))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        r = self.random
        self.define()
        if len(self.long) < 2 and r.random() < 0.5:
            self.begin_long()
        for long in self.long:
            long.go_on()
        if self.long and r.random() < 0.3:
            self.long.pop(0).end()
        self.note()

    def define(self):
        """Statements that are no transactions. Long transactions that wrote the table are in their way."""
        r = self.random
        if r.random() < 0.1:
            self.mysql.execute(r.choice(["FLUSH BINARY LOGS", "CREATE OR REPLACE VIEW w AS SELECT * FROM a"]))
        if r.random() < 0.1 and not self.long:
            self.mysql.execute(r.choice(["TRUNCATE a", "TRUNCATE TABLE b"]))
        if r.random() < 0.2 and not self.long:
            self.added += 1
            default = r.choice(["", f"DEFAULT {r.randrange(9)}", "NOT NULL"])
            self.mysql.execute(f"ALTER TABLE b ADD COLUMN c{self.added} int {default}")
            self.mysql.execute(f"INSERT IGNORE INTO b (i, j, v) VALUES ({-self.added}, 99, 1)")
        if not self.stopped:
            self.mysql.execute(f"INSERT INTO c VALUES ({len(self.rows_of_c)}, {r.randrange(9)})")
            self.rows_of_c = sorted(ask(self.mysql, "SELECT i, v FROM c"))
            if len(self.rows_of_c) > 4 and r.random() < 0.2:
                self.stopped = True
                self.mysql.execute(f"ALTER TABLE c {r.choice(STOPS)}; INSERT INTO c (i) VALUES (-1)")

    def begin_long(self):
        self.longs += 1
        self.long.append(Long(self.mysql, self.seed, 10_000 + self.longs))

    def end_long(self):
        while self.long:
            self.long.pop(0).end()

    def note(self):
        """What the tables are at an offset."""
        with self.mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET tx_isolation = 'REPEATABLE-READ'; START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.nextset()
            cursor.execute("SHOW STATUS WHERE Variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position')")
            log = dict(cursor.fetchall())
            cursor.execute(
                "SELECT BINLOG_GTID_POS(%s, %s)", [log["Binlog_snapshot_file"], log["Binlog_snapshot_position"]]
            )
            ((offset,),) = cursor.fetchall()
            state = {}
            for name in [n for n in CONTENTS if n != "c"]:
                cursor.execute(f"SELECT {CONTENTS[name]} FROM {name}")
                state[name] = sorted(cursor.fetchall())
            self.states[str(Gtids.parsed(offset))] = state

    def check_moment(self):
        """No transaction is seen in one of its tables alone, and all tables are what they were at one offset there."""
        found = self.connection.execute("SELECT count(*) FROM both_a FULL JOIN both_b USING (t) WHERE both_a.t IS NULL "
                                        "OR both_b.t IS NULL").fetchall()  # fmt: skip
        assert found == [(0,)]
        position, here = newest(self.connection, CONTENTS)
        tables = position.tables.values()
        if position.offset in self.states and len(tables) == len(CONTENTS) and all(t.done or t.stalled for t in tables):
            for name, rows in self.states[position.offset].items():
                assert here[name] == rows, (name, position)

    def check(self):
        """At a quiet point all tables and the view are what MariaDB has."""
        self.failing = False
        self.reopen()  # threads that are gone come back
        cursor = self.connection.cursor()
        cursor.execute("FLUSH")
        assert [n.split(":")[0] for n in cursor.notices] == ['table "c" follows no more'] * self.stopped
        self.check_moment()
        _, here = newest(self.connection, {n: c for n, c in CONTENTS.items() if n in self.made})
        assert "c" not in self.made or here["c"] == self.rows_of_c
        for name in [n for n in self.made if n != "c"]:
            columns = [c for (c,) in ask(self.mysql, f"SELECT column_name FROM information_schema.columns WHERE "
                f"table_schema = '{self.mysql.name}' AND table_name = '{name}' ORDER BY ordinal_position")]  # fmt: skip
            query = f"SELECT {', '.join(columns)} FROM {name}"
            found = self.connection.execute(query).fetchall()
            assert sorted(found, key=repr) == sorted(ask(self.mysql, query), key=repr), name
        query = "SELECT b.j, count(*), sum(a.n) FROM a JOIN b ON a.n = b.j GROUP BY b.j ORDER BY b.j"
        found = self.connection.execute("SELECT * FROM v ORDER BY j").fetchall()
        assert found == [(j, c, int(s)) for j, c, s in ask(self.mysql, query)]
        self.failing = True

    def run(self):
        r = self.random
        self.mysql.execute(TABLES)
        self.open()
        source(self.connection, self.mysql, **{"auto.schema.change": "true"})
        process.set_hook(self.fail)
        self.made = []
        for name in ("both_a", "both_b", "c", "a", "b"):
            size = r.choice([3, 20, 1000])
            self.connection.execute(
                f"CREATE TABLE {name} (*) WITH (snapshot.batch_size = '{size}') FROM there TABLE '{name}'"
            )
            self.made.append(name)
            if name == "c":
                self.failing = False
                self.reopen()
                self.connection.execute("FLUSH")  # the two are followed from one moment on
                self.failing = True
                self.begin_long()  # it is open while the others are read
            elif name == "a":
                self.work(1)
        self.connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT b.j, count(*) AS rows, sum(a.n) AS total FROM a JOIN b ON a.n = b.j "
            "GROUP BY b.j"
        )
        for _ in range(9):
            self.work(3)
            self.check_moment()
            if r.random() < 0.2:
                self.reopen()
            if r.random() < 0.15:
                self.check()
        self.end_long()
        self.check()
        self.connection.close()


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    process.set_hook(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", mostly_slow(range(12), 0, 1))
def test_tables_equal_those_that_they_follow(tmp_path, mysql, seed, monkeypatch):
    if seed % 2:
        monkeypatch.setattr(binlog, "_MOST_BYTES", 1)  # a batch for each transaction
    history = History(tmp_path / "db", mysql, seed)
    try:
        history.run()
    finally:
        for long in history.long:
            long.connection.close()  # else the database can't be dropped


@pytest.mark.parametrize("point", mostly_slow(POINTS, 0, 1))
def test_a_killed_process_goes_on_where_it_was(tmp_path, mysql, point):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); INSERT INTO t SELECT seq, 0 FROM seq_1_to_50")
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        source(connection, mysql)
        connection.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '7') FROM there TABLE 't'")
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, sum(v) AS v FROM t")
        if point != "capture.chunk":
            connection.execute("FLUSH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = 0
    for count in (1, 2, 3):
        for _ in range(3):
            mysql.execute("UPDATE t SET v = v + 1; UPDATE t SET i = i + 1000 WHERE i % 10 = 0")
        ended = subprocess.run([sys.executable, "-c", KILLED, path, point, str(count)], env=environment, check=False)
        assert ended.returncode in (0, -signal.SIGKILL)
        killed += ended.returncode != 0
    assert killed
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("FLUSH")
        found = connection.execute("SELECT * FROM t ORDER BY i").fetchall()
        assert found == ask(mysql, "SELECT * FROM t ORDER BY i")
        assert connection.execute("SELECT * FROM n").fetchall() == ask(mysql, "SELECT count(*), sum(v) FROM t")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_is_killed_loses_nothing_here(tmp_path, own_mysql):
    """In the middle of a snapshot and of transactions."""
    own_mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v int); INSERT INTO t SELECT seq, 0 FROM seq_1_to_5000")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        source(connection, own_mysql)
        connection.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '50') FROM there TABLE 't'")
        for i in range(3):
            own_mysql.execute(f"UPDATE t SET v = v + 1 WHERE i % 3 = {i}; UPDATE t SET i = -i WHERE i % 7 = {i}")
            own_mysql.server.kill()
            own_mysql.server.start()
        deadline = 40
        cursor = connection.cursor()
        cursor.execute("FLUSH")
        while cursor.notices:
            deadline -= 1
            assert deadline, cursor.notices
            threading.Event().wait(0.5)
            cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM t ORDER BY i")
        assert cursor.fetchall() == ask(own_mysql, "SELECT * FROM t ORDER BY i")


def test_changes_of_other_tables_move_the_place(tmp_path, mysql, monkeypatch):
    """So that what is purged there later is not missed."""
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE other (i int)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        source(connection, mysql)
        connection.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        connection.execute("FLUSH")
        log = connection._session.database.log

        def offset():
            (captured,) = log.read(log.head()).captured.values()
            return captured["offset"]

        before = offset()
        mysql.execute("INSERT INTO other VALUES (1)")
        connection.execute("FLUSH")
        assert offset() == before
        monkeypatch.setattr(capture, "_IDLE_BYTES", 1)
        mysql.execute("INSERT INTO other VALUES (2)")
        for _ in range(200):
            connection.execute("FLUSH")
            if offset() != before:
                break
        assert offset() != before
