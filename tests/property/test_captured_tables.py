"""Tables that follow PostgreSQL equal its own, whatever changes there, whatever is killed, and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from psycopg.errors import LockNotAvailable

import watersmeet
from tests.captures import ask, source
from tests.thorough import mostly_slow
from tests.waiting import until
from watersmeet.capture.tablechanges import content
from watersmeet.catalog import CapturedTable
from watersmeet.connectors.databases.captures import DatabasePosition
from watersmeet.connectors.postgres import capture
from watersmeet.connectors.postgres.replication import lsn_of
from watersmeet.system import process
from watersmeet.values.serialization import from_json

POINTS = ("capture.commit", "capture.committed", "capture.chunk")
TABLES = """
CREATE TABLE a (k text PRIMARY KEY, n int, big text);
ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
CREATE TABLE b (i int, j bigint, v numeric(10, 2), PRIMARY KEY (j, i));
CREATE TABLE both_a (t int PRIMARY KEY); CREATE TABLE both_b (t int PRIMARY KEY);
CREATE TABLE c (i int PRIMARY KEY, v int);
INSERT INTO a SELECT 'k' || i, i, repeat('x', 3000 * (i % 2)) FROM generate_series(1, 80) i;
INSERT INTO b SELECT i, i / 7, i FROM generate_series(1, 50) i;
"""
NAMES = {"a": "k", "b": "j, i", "both_a": "t", "both_b": "t"}
#: What is compared at offsets of the log: columns that no change adds.
CONTENTS = {"a": "k, n, big", "b": "j, i, v", "both_a": "t", "both_b": "t", "c": "i, v"}
#: Changes that table c can't follow.
STOPS = (
    "DROP COLUMN v",
    "ALTER COLUMN v TYPE text",
    "RENAME COLUMN v TO w",
    "DROP CONSTRAINT c_pkey, ALTER v TYPE bigint",
)


class Long:
    """A transaction that stays open over many others, with savepoints that are rolled back."""

    def __init__(self, postgres, seed, number):
        self.random, self.number, self.is_over = random.Random(f"long {seed} {number}"), number, False
        self.connection = postgres.connect()
        self.do(f"SET lock_timeout = '20ms'; BEGIN; INSERT INTO both_a VALUES ({number})")

    def do(self, statements):
        """Runs statements. Where another open transaction is in the way, everything is rolled back."""
        if self.is_over:
            return
        try:
            self.connection.execute(statements)
        except LockNotAvailable:
            self.connection.execute("ROLLBACK")
            self.is_over = True

    def go_on(self):
        r, n = self.random, self.number
        statements = [
            f"INSERT INTO a VALUES ('long{r.randrange(9)}of{n}.', 1, repeat('l', 3000)) ON CONFLICT DO NOTHING",
            f"UPDATE a SET n = 77 WHERE k LIKE '%of{n}.'",
            f"INSERT INTO b VALUES ({r.randrange(9)}, {1000 + n}, 5) ON CONFLICT DO NOTHING",
            f"UPDATE b SET v = -1 WHERE j = {1000 + n}",
            f"DELETE FROM a WHERE k = 'k{r.randrange(100)}'",
        ]
        chosen = "; ".join(r.sample(statements, 2))
        if r.random() < 0.3:
            chosen = f"SAVEPOINT l; {chosen}; ROLLBACK TO l"
        self.do(chosen)

    def end(self):
        """Commits it, or rolls it back. Returns the server's offset before that."""
        before = offset_now(self.connection)
        self.do(f"INSERT INTO both_b VALUES ({self.number})")
        if not self.is_over:
            before = offset_now(self.connection)
            self.connection.execute(self.random.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        self.connection.close()
        return before


class History:
    """The same statements, failures and restarts again for the same seed, but for when the threads come to them."""

    def __init__(self, path, postgres, seed):
        self.path, self.postgres, self.seed, self.random = path, postgres, seed, random.Random(seed)
        self.failures = random.Random(f"failures {seed}")
        self.failing = True
        self.number = 0
        self.long, self.compared = [], 0
        self.stopped = False
        #: Of each transaction: its commit is behind that offset; what the tables are with it.
        self.states = []

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

    def change(self):
        """One transaction of some statements, and the same number in two tables."""
        r, statements = self.random, []
        for _ in range(r.randint(1, 5)):
            key = f"k{r.randrange(100)}"
            statements.append(
                r.choice(
                    [
                        (
                            f"INSERT INTO a VALUES ('{key}', {r.randrange(9)}, repeat('y', {r.randrange(6000)})) "
                            f"ON CONFLICT (k) DO UPDATE SET n = a.n + 1"
                        ),
                        f"UPDATE a SET n = n + 1 WHERE k LIKE '%{r.randrange(10)}'",
                        f"UPDATE a SET big = repeat('z', {r.randrange(6000)}) WHERE k = '{key}'",
                        f"UPDATE a SET k = k || 'm' WHERE k = '{key}'",
                        f"DELETE FROM a WHERE k = '{key}'",
                        f"UPDATE b SET v = v + 0.25 WHERE j = {r.randrange(9)}",
                        f"UPDATE b SET i = -i WHERE j = {r.randrange(9)}",
                        f"INSERT INTO b VALUES ({r.randrange(1000)}, {r.randrange(9)}, 1) ON CONFLICT DO NOTHING",
                        f"DELETE FROM b WHERE i % 11 = {r.randrange(11)}",
                    ]
                )
            )
        if r.random() < 0.06:
            statements.append(r.choice(["TRUNCATE a", "TRUNCATE a, b", "TRUNCATE b"]))
        if r.random() < 0.1:
            name, value = f"c{self.number}", r.choice(["", f"DEFAULT {r.randrange(9)}"])
            statements.append(f"ALTER TABLE b ADD COLUMN {name} int {value}; INSERT INTO b VALUES ({-self.number}, 99)")
        if r.random() < 0.15:
            statements.append("SAVEPOINT s; DELETE FROM a; UPDATE b SET v = 0; ROLLBACK TO s")
        self.number += 1
        for name in r.sample(["both_a", "both_b"], 2):
            statements.insert(r.randrange(len(statements) + 1), f"INSERT INTO {name} VALUES ({self.number})")
        if not self.stopped:
            statements.append(f"INSERT INTO c VALUES ({self.number}, {r.randrange(9)})")
        if not self.stopped and self.number > 12 and r.random() < 0.2:
            self.stopped = True
            statements.append(f"ALTER TABLE c {r.choice(STOPS)}; INSERT INTO c VALUES ({-self.number})")
        with self.postgres.connect() as connection:
            try:
                connection.execute("; ".join(["SET lock_timeout = '20ms'", "BEGIN", *statements]))
            except LockNotAvailable:  # a long transaction is in the way
                connection.execute("ROLLBACK")
                self.stopped = "c" not in self.states[-1][1]
                return
            before = offset_now(connection)
            is_rolled_back = r.random() < 0.15
            connection.execute("ROLLBACK" if is_rolled_back else "COMMIT")
        if is_rolled_back:
            self.stopped = "c" not in self.states[-1][1]
        else:
            self.note(before)

    def note(self, before):
        """What the tables are now, with a transaction whose commit is behind that offset."""
        names = [n for n in CONTENTS if n != "c" or not self.stopped]
        state = {n: sorted(ask(self.postgres, f"SELECT {CONTENTS[n]} FROM {n}")) for n in names}
        self.states.append((before, state))

    def change_long(self):
        """Long transactions begin, go on and end."""
        r = self.random
        if len(self.long) < 2 and r.random() < 0.3:
            self.number += 1
            self.long.append(Long(self.postgres, self.seed, self.number))
        for long in self.long:
            long.go_on()
        if self.long and r.random() < 0.2:
            self.note(self.long.pop(0).end())

    def end_long(self):
        while self.long:
            self.note(self.long.pop(0).end())

    def is_filled(self, position):
        """Whether no rows are read any more that were there before."""
        return len(position.tables) > len(NAMES) and all(p.takes_all or p.stalled for p in position.tables.values())

    def check_moment(self):
        """No transaction is seen in one of its tables alone, and all tables are what they were at one offset there."""
        found = self.connection.execute("SELECT count(*) FROM both_a FULL JOIN both_b USING (t) WHERE both_a.t IS NULL "
                                        "OR both_b.t IS NULL").fetchall()  # fmt: skip
        assert found == [(0,)]
        before, here = newest(self.connection, CONTENTS)
        if not self.is_filled(before):
            return
        stopped = any(t.stalled for t in before.tables.values())
        known = [state for offset, state in self.states if offset < lsn_of(before.offset)]
        # The offset may be between what was written of the last one and its commit.
        assert any(all(here[n] == rows or (n == "c" and stopped) for n, rows in s.items()) for s in known[-2:]), before
        self.compared += 1

    def check(self):
        """At a quiet point all tables and the view are what PostgreSQL has."""
        self.failing = False
        if not self.is_filled(position(self.connection)):
            self.end_long()  # rows are read when those who write the table are done
        self.reopen()  # threads that are gone come back
        cursor = self.connection.cursor()
        cursor.execute("FLUSH")
        assert [n.split(":")[0] for n in cursor.notices] == ['table "c" follows no more'] * self.stopped
        self.check_moment()
        for name, key in NAMES.items():
            if name in self.made:
                found = self.connection.execute(f"SELECT * FROM {name} ORDER BY {key}").fetchall()
                assert found == ask(self.postgres, f"SELECT * FROM {name} ORDER BY {ordered(key)}"), name
        query = "SELECT b.j, count(*), sum(a.n) FROM a JOIN b ON a.n = b.j GROUP BY b.j"
        found = self.connection.execute("SELECT * FROM v ORDER BY j").fetchall()
        assert found == ask(self.postgres, f"{query} ORDER BY b.j")
        self.failing = True

    def run(self):
        r = self.random
        self.postgres.execute(TABLES)
        if r.random() < 0.5:
            self.postgres.execute("ALTER TABLE a REPLICA IDENTITY FULL; ALTER TABLE b REPLICA IDENTITY FULL")
        self.open()
        source(self.connection, self.postgres, **{"auto.schema.change": "true"})
        process.set_hook(self.fail)
        self.made = ["both_a", "both_b", "c", "a", "b"]
        self.note(0)
        for name in self.made:
            size = r.choice([3, 20, 1000])
            self.connection.execute(
                f"CREATE TABLE {name} (*) WITH (snapshot.batch_size = '{size}') FROM there TABLE '{name}'"
            )
            if name == "c":
                self.failing = False
                self.reopen()
                self.connection.execute("FLUSH")  # the two are followed from one moment on
                self.failing = True
                self.number += 1
                self.long = [Long(self.postgres, self.seed, self.number)]  # it is open while the others are read
                self.long[0].go_on()
            elif name == "a":
                self.change()
        self.connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT b.j, count(*) AS rows, sum(a.n) AS total FROM a JOIN b ON a.n = b.j "
            "GROUP BY b.j"
        )
        for i in range(30):
            self.change()
            self.change_long()
            if i == 5:
                self.end_long()
            self.check_moment()
            if r.random() < 0.15:
                self.reopen()
            if r.random() < 0.1:
                self.check()
        self.end_long()
        self.check()
        for _ in range(9):
            if not self.compared:  # the last rows that were there before were read behind the last change
                self.change()
                self.check()
        assert self.compared, position(self.connection)
        self.connection.close()


def newest(connection, columns):
    """(the newest commit's position, the rows of the followed tables then)."""
    session = connection._session
    with session.database.guard:
        found = [t for t in session.database.catalog.relations.values() if isinstance(t, CapturedTable)]
        names = {t.name: columns[t.name].split(", ") for t in found}
        rows = {t.name: content(session, t).select(names[t.name]).to_pylist() for t in found}
        return position(connection), {n: sorted(tuple(r.values()) for r in there) for n, there in rows.items()}


def position(connection):
    (found,) = committed(connection)
    return from_json(DatabasePosition, found)


def offset_now(connection):
    ((lsn,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
    return lsn_of(lsn)


def ordered(key):
    return ", ".join(f'{k} COLLATE "C"' if k == "k" else k for k in key.split(", "))


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    process.set_hook(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", mostly_slow([0, 271126005, *range(1, 12)], 0, 2))
def test_tables_equal_those_that_they_follow(tmp_path, postgres, seed):
    History(tmp_path / "db", postgres, seed).run()


class CrashingServer(History):
    """Its server is killed between changes, with transactions that are open, and starts again."""

    def __init__(self, path, postgres, seed):
        super().__init__(path, postgres, seed)
        self.crashes = 0

    def change(self):
        super().change()
        if self.crashes < 4 and self.number > 8 and self.random.random() < 0.2:
            self.crashes += 1
            self.postgres.server.kill()
            for long in self.long:  # they are rolled back
                long.connection.close()
            self.long = []
            if self.random.random() < 0.5:
                self.reopen()  # without its server
            self.postgres.server.start()

    def check(self):
        """Who waits for the server tries again meanwhile."""
        self.failing = False
        self.end_long()
        self.reopen()  # threads that are gone come back
        until(lambda: not [n for n in self.connection.flush() if "waited for" in n])
        super().check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", mostly_slow(range(6), 0, 1))
def test_tables_equal_those_of_a_server_that_is_killed(tmp_path, own_postgres, seed):
    history = CrashingServer(tmp_path / "db", own_postgres, seed)
    history.run()
    assert history.crashes


KILLED = """
import os, signal, sys
import watersmeet
from watersmeet.system import process
from watersmeet.capture import capturing
path, point, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def kill(now):
    global count
    if now == point:
        count -= 1
        if not count:
            os.kill(os.getpid(), signal.SIGKILL)
process.set_hook(kill)
with watersmeet.connect(path, runtime="inprocess") as connection:
    connection.execute("FLUSH")
"""


@pytest.mark.parametrize("point", mostly_slow(POINTS, 0))
def test_a_killed_process_goes_on_where_it_was(tmp_path, postgres, point):
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i"
    )
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        slot = source(connection, postgres)
        connection.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '7') FROM there TABLE 't'")
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, sum(v) AS v FROM t")
        if point != "capture.chunk":
            connection.execute("FLUSH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = 0
    for count in (1, 2, 3):
        for _ in range(3):
            postgres.execute("UPDATE t SET v = v + 1; UPDATE t SET i = i + 1000 WHERE i % 10 = 0")
        ended = subprocess.run([sys.executable, "-c", KILLED, path, point, str(count)], env=environment, check=False)
        assert ended.returncode in (0, -signal.SIGKILL)
        killed += ended.returncode != 0
    assert killed
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("FLUSH")
        found = connection.execute("SELECT * FROM t ORDER BY i").fetchall()
        assert found == ask(postgres, "SELECT * FROM t ORDER BY i")
        assert connection.execute("SELECT * FROM n").fetchall() == ask(postgres, "SELECT count(*), sum(v) FROM t")
        (captured,) = committed(connection)
        ((confirmed,),) = ask(
            postgres, f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{slot}'"
        )
        assert confirmed <= lsn_of(captured["offset"])


def committed(connection):
    """How far the newest commit says that each captured database is."""
    log = connection._session.database.log
    return list(log.read(log.head()).captured.values())


def test_the_server_forgets_only_what_was_committed_here(tmp_path, postgres, monkeypatch):
    """And it may forget what is of no concern: a database that is never written is confirmed, too."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE other (i int)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        slot = source(connection, postgres)
        connection.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        connection.execute("FLUSH")

        def stop(point):
            if point == "capture.commit":
                raise OSError("it failed")

        def confirmed():
            ((lsn,),) = ask(
                postgres, f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
            )
            return lsn

        before = confirmed()
        process.set_hook(stop)
        postgres.execute("INSERT INTO t VALUES (1)")
        connection.execute("FLUSH")
        assert confirmed() == before
        assert connection.execute("SELECT * FROM t").fetchall() == []
        process.set_hook(None)
        deadline = time.monotonic() + 60
        while not connection.execute("SELECT * FROM t").fetchall():  # what waits is tried again
            assert time.monotonic() < deadline
            connection.execute("FLUSH")
        before, content = confirmed(), committed(connection)
        monkeypatch.setattr(capture, "_IDLE_BYTES", 1)
        postgres.execute("INSERT INTO other SELECT i FROM generate_series(1, 1000) i")
        while confirmed() == before:
            assert time.monotonic() < deadline
            connection.execute("FLUSH")
        assert committed(connection) != content
