"""A subscription that is ended and recovered again and again gives what a query gives that is read without a break."""

from __future__ import annotations

import contextlib
import gc
import random

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow

START_US = 1_704_103_200_000_000

#: Queries of each kind of EMIT.
EMISSIONS = {
    "periodic limit": "SELECT i FROM s EMIT PERIODIC 4s LIMIT 20 OFFSET 5",
    "aggregate": "SELECT i % 3 AS k, sum(i) AS total FROM s GROUP BY k",
    "changelog": "SELECT i % 3 AS k, max(i) AS most, emit_version() AS e FROM s GROUP BY k EMIT CHANGELOG",
    "updates": "SELECT emit_version() AS e, i % 3 AS k, count() AS n FROM s GROUP BY k EMIT ON UPDATE",
    "batches": "SELECT emit_version() AS e, i % 3 AS k, count() AS n FROM s GROUP BY k EMIT ON UPDATE WITH BATCH 3s",
    "periodic": "SELECT emit_version() AS e, i % 3 AS k, count() AS n FROM s GROUP BY k EMIT PERIODIC 4s",
    "windows": "SELECT window_start, sum(i) AS n FROM tumble(s, 3s) GROUP BY window_start EMIT AFTER WINDOW CLOSE",
    "limit": "SELECT i FROM s LIMIT 20 OFFSET 5",
    "stream": "SELECT i FROM s",
    "join": "SELECT s.i AS i, kv.v AS v FROM s LEFT JOIN kv ON s.i = kv.k",
    "self join": "SELECT a.i AS i FROM s AS a JOIN s AS b ON a.i = b.i + 1",
}


class History:
    """The same changes and reads again for the same seed. cut: the subscription is ended and recovered at random."""

    def __init__(self, path, query, seed, *, cut):
        self.path, self.query, self.cut = path, query, cut
        self.random, self.cuts = random.Random(seed), random.Random(f"cuts {seed}")
        self.rows = []

    def run(self):
        self.open()
        Harness(self.connection).set_clock(START_US)
        self.connection.execute(
            "CREATE STREAM s(i int); CREATE STREAM kv(k int, v int, PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv'"
        )
        self.cursor = self.connection.execute(self.written())
        for step in range(1, 16):
            Harness(self.connection).set_clock(START_US + step * 1_000_000)
            for _ in range(self.random.randint(0, 2)):
                self.change()
            if self.random.random() < 0.5:
                self.read(self.random.randint(1, 6))
            if self.cut and self.cuts.random() < 0.5:
                self.interrupt()
        Harness(self.connection).set_clock(START_US + 60_000_000)
        for number in (1, 2):
            self.connection.execute(f"INSERT INTO s(i) VALUES ({number}); FLUSH")
        self.read(10_000)
        self.connection.close()
        return self.rows

    def open(self):
        self.connection = watersmeet.connect(self.path, runtime="inprocess", dialect="timeplus", parallelism=2)

    def written(self):
        return f"SUBSCRIBE TO {self.query} SETTINGS query_id = 'q'" if self.cut else self.query

    def change(self):
        numbers = ", ".join(f"({self.random.randint(0, 9)})" for _ in range(self.random.randint(1, 4)))
        self.connection.execute(f"INSERT INTO s(i) VALUES {numbers}")
        key, value = self.random.randint(0, 9), self.random.randint(0, 99)
        if self.random.random() < 0.4:
            self.connection.execute(f"INSERT INTO kv(k, v) VALUES ({key}, {value})")
        self.connection.flush()

    def read(self, most):
        if self.cursor is not None:
            self.rows += self.cursor.fetchmany(most)

    def interrupt(self):
        how = self.cuts.choice(["close", "kill", "forget", "restart", "compact"])
        if how == "compact":
            self.connection._session.database._compactor.run()
        elif how == "kill":
            with contextlib.suppress(watersmeet.Error):  # LIMIT may have ended it
                self.connection.execute("KILL QUERY 'q'")
        elif how == "restart":
            now_us = self.connection._session.database.clock.now_us()
            self.connection.close()
            self.open()
            Harness(self.connection).set_clock(now_us)
        elif how == "close" and self.cursor is not None:
            self.cursor.close()
        if how != "compact":
            self.cursor = None
            gc.collect()
            self.recover()

    def recover(self):
        try:
            self.cursor = self.connection.execute("RECOVER FROM 'q'")
        except watersmeet.Error as refusal:  # LIMIT was reached, and all of it was fetched
            assert (refusal.condition, len(self.rows), "LIMIT" in self.query) == ("UNDEFINED_OBJECT", 20, True)


def check(directory, kind, seed):
    whole = History(directory / "whole", EMISSIONS[kind], seed, cut=False).run()
    assert History(directory / "cut", EMISSIONS[kind], seed, cut=True).run() == whole
    assert whole


@pytest.mark.parametrize("kind", mostly_slow([*EMISSIONS], 1, 3))
def test_a_reader_that_is_interrupted_gets_the_rows_of_one_that_is_not(tmp_path, kind):
    check(tmp_path, kind, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 5))
def test_of_any_query(tmp_path, seed):
    for kind in EMISSIONS:
        check(tmp_path / kind.replace(" ", "_"), kind, seed)
