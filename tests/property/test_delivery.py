"""Whatever fails, and whenever: a sink's target gets the content and then each change once, in order."""

from __future__ import annotations

import random

import pytest

import watersmeet
from tests.thorough import mostly_slow
from tests.unit.sinks.memory import Memory, Unavailable
from watersmeet.sinkwriters import batches, writers
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.system import process

SOURCES = {
    "from_table": ("FROM t", "t"),
    "from_view": ("FROM m", "m"),
    "as_query": ("AS SELECT v, count(*) AS n FROM t GROUP BY v", "(SELECT v, count(*) AS n FROM t GROUP BY v) AS q"),
}
KEYS = {"from_table": "k", "from_view": "k", "as_query": "v"}
STEPS = ("open", "opened", "deliver", "delivered", "close")
POINTS = ("sink.open", "sink.opened", "sink.deliver", "sink.delivered", "sink.acknowledged")


class History:
    """The same statements, failures and restarts again for the same seed, but for when the threads come to them."""

    def __init__(self, path, seed):
        self.path, self.random = path, random.Random(seed)
        self.memory = Memory()
        self.memory.install()
        self.memory.fails = self.fail
        self.failing = True
        self.failures = random.Random(f"failures {seed}")
        self.altered = False

    def fail(self, step):
        if self.failing and self.failures.random() < 0.15:
            if step.startswith("sink.") and self.failures.random() < 0.3:
                raise SystemExit  # the thread is gone, as if the process was killed
            raise Unavailable("it failed")

    def open(self):
        self.connection = watersmeet.connect(self.path, runtime="inprocess", parallelism=2)

    def reopen(self):
        self.connection.close()
        self.open()

    def change(self):
        choice, key = self.random.random(), self.random.randrange(30)
        if choice < 0.5:
            names = "(k, v)" if self.altered else ""
            rows = ", ".join(f"({self.random.randrange(30)}, '{self.random.choice('abc')}')" for _ in range(12))
            self.connection.execute(f"INSERT INTO t {names} VALUES {rows}")
        elif choice < 0.75:
            self.connection.execute(f"UPDATE t SET v = '{self.random.choice('xyz')}' WHERE k < {key}")
        elif choice < 0.95:
            self.connection.execute(f"DELETE FROM t WHERE k > {key}")
        elif not self.altered:
            self.connection.execute("ALTER TABLE t ADD COLUMN extra int")
            self.altered = True

    def run(self):
        self.open()
        self.connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
        self.connection.execute("CREATE MATERIALIZED VIEW m AS SELECT a.k, b.v FROM t a LEFT JOIN t b ON a.k = b.k + 1")
        process.set_hook(self.fail)
        waiting = list(SOURCES)
        for _ in range(25):
            self.change()
            if self.random.random() < 0.4:
                self.connection.flush()
            if waiting and self.random.random() < 0.4:
                name = waiting.pop()
                self.create(name)
            if self.random.random() < 0.15:
                self.connection._session.database._compactor.run()
            if self.random.random() < 0.15:
                self.reopen()
            if self.random.random() < 0.05 and len(waiting) < 2:
                self.create("as_query", "OR REPLACE ")
        for name in waiting:
            self.create(name)
        self.failing = False
        self.reopen()
        self.connection.flush()
        self.check()
        self.connection.close()

    def create(self, name, replaces=""):
        source = SOURCES[name][0]
        self.connection.execute(
            f"CREATE {replaces}SINK {name} {source} WITH (connector = 'memory', primary_key = '{KEYS[name]}')"
        )

    def check(self):
        session = self.connection._session
        for name, (_, relation) in SOURCES.items():
            sink = session.catalog.by_name(name)
            assert session.database.service(SinkWriters).wait(sink.id, 60)
            status = session.database.service(SinkWriters).status(sink.id)
            assert status.state == "running", status.problem
            columns = ", ".join(c.name for c in sink.columns)
            expected = sorted(self.connection.execute(f"SELECT {columns} FROM {relation}").fetchall(), key=repr)
            assert self.memory.topic(sink.target_id).content == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of threads that are "killed"
@pytest.mark.parametrize("seed", mostly_slow(range(16), 2))
def test_each_change_is_delivered_once(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(batches, "BATCH_ROWS", 5)
    monkeypatch.setattr(writers, "_GROUP_ROWS", 12)
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.002)
    monkeypatch.setattr(writers, "_LOOK_S", 0.002)
    try:
        History(tmp_path / "db", seed).run()
    finally:
        process.set_hook(None)
