"""Tables that follow PostgreSQL equal its own, whatever changes there, whatever is killed, and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

import watersmeet
from tests.thorough import mostly_slow
from tests.unit.session.test_capturing import ask, source
from watersmeet import faults
from watersmeet.sources.capture.postgres import system
from watersmeet.sources.capture.postgres.pgoutput import lsn_of

POINTS = ("capture.commit", "capture.committed", "capture.chunk")
TABLES = """
CREATE TABLE a (k text PRIMARY KEY, n int, big text);
ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
CREATE TABLE b (i int, j bigint, v numeric(10, 2), PRIMARY KEY (j, i));
CREATE TABLE both_a (t int PRIMARY KEY); CREATE TABLE both_b (t int PRIMARY KEY);
INSERT INTO a SELECT 'k' || i, i, repeat('x', 3000 * (i % 2)) FROM generate_series(1, 80) i;
INSERT INTO b SELECT i, i / 7, i FROM generate_series(1, 50) i;
"""
NAMES = {"a": "k", "b": "j, i", "both_a": "t", "both_b": "t"}


class History:
    """The same statements, failures and restarts again for the same seed, but for when the threads come to them."""

    def __init__(self, path, postgres, seed):
        self.path, self.postgres, self.random = path, postgres, random.Random(seed)
        self.failures = random.Random(f"failures {seed}")
        self.failing = True
        self.number = 0

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
        end = "ROLLBACK" if r.random() < 0.15 else "COMMIT"
        with self.postgres.connect() as connection:
            connection.execute("; ".join(["BEGIN", *statements, end]))

    def check_moment(self):
        """No transaction is seen in one of its tables alone."""
        cursor = self.connection.cursor()
        cursor.execute("SELECT (SELECT max(t) FROM both_a), (SELECT max(t) FROM both_b)")
        ((in_a, in_b),) = cursor.fetchall()
        assert in_a == in_b

    def check(self):
        """At a quiet point all tables and the view are what PostgreSQL has."""
        self.failing = False
        self.reopen()  # threads that are gone come back
        cursor = self.connection.cursor()
        cursor.execute("FLUSH")
        assert not cursor.notices
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
        faults.set_hook(self.fail)
        self.made = ["both_a", "both_b", "a", "b"]
        for name in self.made:
            size = r.choice([3, 20, 1000])
            self.connection.execute(
                f"CREATE TABLE {name} (*) WITH (snapshot.batch_size = '{size}') FROM pg TABLE '{name}'"
            )
            if name.startswith("both") and name.endswith("b"):
                self.failing = False
                self.reopen()
                self.connection.execute("FLUSH")  # the two are followed from one moment on
                self.failing = True
            elif name == "a":
                self.change()
        self.connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT b.j, count(*) AS rows, sum(a.n) AS total FROM a JOIN b ON a.n = b.j "
            "GROUP BY b.j"
        )
        for _ in range(30):
            self.change()
            self.check_moment()
            if r.random() < 0.15:
                self.reopen()
            if r.random() < 0.1:
                self.check()
        self.check()
        self.connection.close()


def ordered(key):
    return ", ".join(f'{k} COLLATE "C"' if k == "k" else k for k in key.split(", "))


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    faults.set_hook(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", mostly_slow(range(12), 1))
def test_tables_equal_those_that_they_follow(tmp_path, postgres, seed):
    History(tmp_path / "db", postgres, seed).run()


KILLED = """
import os, signal, sys
import watersmeet
from watersmeet import faults
from watersmeet.session.services import capturing
path, point, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def kill(now):
    global count
    if now == point:
        count -= 1
        if not count:
            os.kill(os.getpid(), signal.SIGKILL)
faults.set_hook(kill)
with watersmeet.connect(path, runtime="inprocess") as connection:
    connection.execute("FLUSH")
"""


@pytest.mark.parametrize("point", mostly_slow(POINTS, 1))
def test_a_killed_process_goes_on_where_it_was(tmp_path, postgres, point):
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i"
    )
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        slot = source(connection, postgres)
        connection.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '7') FROM pg TABLE 't'")
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
        assert confirmed <= lsn_of(captured["place"])


def committed(connection):
    """How far the newest commit says that each captured database is."""
    log = connection._session.database.log
    return list(log.read(log.head()).captured.values())


def test_the_server_forgets_only_what_was_committed_here(tmp_path, postgres, monkeypatch):
    """And it may forget what is of no concern: a database that is never written is confirmed, too."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE other (i int)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        slot = source(connection, postgres)
        connection.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
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
        faults.set_hook(stop)
        postgres.execute("INSERT INTO t VALUES (1)")
        connection.execute("FLUSH")
        assert confirmed() == before
        assert connection.execute("SELECT * FROM t").fetchall() == []
        faults.set_hook(None)
        deadline = time.monotonic() + 60
        while not connection.execute("SELECT * FROM t").fetchall():  # what waits is tried again
            assert time.monotonic() < deadline
            connection.execute("FLUSH")
        before, content = confirmed(), committed(connection)
        monkeypatch.setattr(system, "_IDLE_BYTES", 1)
        postgres.execute("INSERT INTO other SELECT i FROM generate_series(1, 1000) i")
        while confirmed() == before:
            assert time.monotonic() < deadline
            connection.execute("FLUSH")
        assert committed(connection) != content
