"""Views by time when epochs are run again, cut otherwise, or killed: the same bytes, nothing lost, nothing doubled."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from unittest import mock

import pytest

from tests.property.test_final import QUERIES, Database, Rule, closing, history, show
from tests.property.test_replay import Again
from tests.property.test_timed_arrival import QUERIES as ARRIVAL
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.runtime import inprocess
from watersmeet.system import files

SEEDS = mostly_slow(range(6), 0)


def with_arrival(database):
    for name, query in ARRIVAL.items():
        database.run(f"CREATE MATERIALIZED VIEW arrival_{name} AS {query} EMIT ON ARRIVAL")


@pytest.mark.parametrize("seed", SEEDS)
def test_an_epoch_that_is_run_again_gives_the_same_bytes(tmp_path, seed):
    """In another order, and in other tasks."""
    rng, again = random.Random(3000 + seed), Again(seed)
    with mock.patch.object(inprocess, "run_epoch", again.run_epoch):
        database = Database(tmp_path, 1 + seed % 3)
        with_arrival(database)
        for rows in [*history(rng), closing()]:
            database.epoch(rows)
        database.connection.close()
    assert again.epochs > len(QUERIES)


class Mortal(Database):
    """A database that is killed now and then while it runs an epoch."""

    def __init__(self, path, parallelism, rng):
        super().__init__(path, parallelism)
        self.rng, self.kills = rng, 0

    def epoch(self, rows):
        flush = self.flush
        self.flush = lambda: None
        super().epoch(rows)
        self.flush = flush
        while self.rng.random() < 0.6:
            with mock.patch.object(
                files, "os", FaultyOs(self.rng.choice((1, 2, 3, 5, 8, 13, 21)), torn=self.rng.random() < 0.3)
            ):
                try:
                    self.flush()
                except Killed:
                    self.kills += 1
                    with contextlib.suppress(Killed):  # lets go of the lock, and can do nothing else
                        self.connection.close()
                else:
                    continue
            self.connection = self._connect()
        self.flush()


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_lose_and_double_nothing(tmp_path, seed):
    rng = random.Random(4000 + seed)
    database, rule = Mortal(tmp_path, 1 + seed % 3, rng), Rule()
    shown = {name: Counter() for name in QUERIES}
    for rows in [*history(rng), closing()]:
        database.epoch(rows)
        rule.epoch(rows)
        show(database, shown)
    for name, (_, batch) in QUERIES.items():
        assert shown[name] == rule.batch(batch), name
    assert database.state() == []
    assert database.kills or seed, "the first one is killed"
    database.connection.close()
