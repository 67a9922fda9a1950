"""Two laws. The content that a subscriber began with and all changes that it got are the content at its token. What a
SELECT shows as of a commit is what it showed when that commit was the newest.

Subscribers begin, end and go on by their tokens at random, over random schemas, views and histories, in which the
database is opened anew. WATERSMEET_SEEDS=from-to runs other seeds.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter

import pyarrow as pa
import pytest

import watersmeet
from tests.property import oracle
from tests.property.oracle import UnanswerableError
from tests.property.runs import Run
from tests.thorough import mostly_slow
from watersmeet.database.sessions.result import python_rows
from watersmeet.values.types import SqlType

#: Seeds that once failed: what was wrong is in the commit that added them.
REGRESSIONS: tuple[int, ...] = ()


class Follower:
    """A subscriber of some relations, and what it was told of them."""

    def __init__(self, names, columns, **options):
        self.names, self.columns, self.options = names, columns, options
        self.state = {name: Counter() for name in names}
        self.token = None
        self.subscriber = None

    def begin(self, connection):
        options = {**self.options, "after": self.token} if self.token is not None else self.options
        self.subscriber = connection.subscribe(*self.names, **options)

    def read(self):
        """All that there is. Each commit comes once, and in order."""
        while (update := self.subscriber.take()) is not None:
            before = -1 if self.token is None else self.token
            assert update.commit > before or (update.commit == before and not update.batches)
            for batch in update.batches:
                assert batch.rows.num_rows == len(batch.diffs) > 0
                for row, diff in zip(self.rows(batch), batch.diffs.tolist(), strict=True):
                    assert diff
                    self.state[batch.relation][row] += diff
            if update.is_complete:
                self.token = update.commit
                for counts in self.state.values():
                    assert all(n >= 0 for n in counts.values()), "a row went that was not there"
        self.token = self.subscriber.token

    def rows(self, batch):
        values = python_rows(pa.Table.from_batches([batch.rows]), self.columns[batch.relation])
        return [next(iter(oracle.rows([row]))) for row in values]

    def content(self, name):
        return +self.state[name]


class SubscribedRun(Run):
    """A case whose views and tables are subscribed to."""

    def __init__(self, seed, path, options):
        super().__init__(seed, path, options)
        self.random = random.Random(f"subscribers {seed}")
        self.followers: list[Follower] = []
        self.past: dict[int, dict[str, Counter]] = {}
        """What each relation contained at some commits."""

    def types_of(self, name) -> tuple[SqlType, ...]:
        return tuple(c[1] for c in self.connection.execute(f"SELECT * FROM {name} LIMIT 0").description)

    def step(self, step):
        if step.kind == "drop":
            gone = set(step.names)
            self.followers = [f for f in self.followers if not gone.intersection(f.names)]
            for content in self.past.values():
                for name in gone:
                    content.pop(name, None)
        if step.kind == "reopen":
            for follower in self.followers:
                follower.subscriber = None
        super().step(step)
        if step.kind == "check":
            self.follow()
            self.compare()
            self.look_back()
            head = self.connection.opened.log.head()
            self.past[head] = {n: self.oracle.content(n) for n in (*self.views, *self.oracle.tables)}

    def follow(self):
        """Subscribers end, go on and begin."""
        for follower in self.followers:
            if follower.subscriber is not None and self.random.random() < 0.3:
                follower.read()
                follower.subscriber.close()
                follower.subscriber = None
            if follower.subscriber is None:
                try:
                    follower.begin(self.connection)
                except watersmeet.Error as refusal:
                    assert refusal.condition == "HISTORY_GONE"
                    follower.state, follower.token = {n: Counter() for n in follower.names}, None
                    follower.begin(self.connection)
        known = [*self.views, *self.oracle.tables]
        if known and len(self.followers) < 6 and self.random.random() < 0.8:
            names = self.random.sample(known, self.random.randint(1, min(3, len(known))))
            progress = self.random.random() < 0.5
            follower = Follower(names, {n: self.types_of(n) for n in names}, progress=progress)
            follower.begin(self.connection)
            self.followers.append(follower)

    def compare(self):
        head = self.connection.opened.log.head()
        end_s = time.monotonic() + 120
        for follower in self.followers:
            while follower.token is None or follower.token < head:
                assert time.monotonic() < end_s, f"seed {self.seed}: nothing came"
                follower.subscriber.wait(0.01)
                follower.read()
            for name in follower.names:
                expected, real = self.oracle.content(name), follower.content(name)
                assert real == expected, (
                    f"seed {self.seed}, {name} at commit {follower.token}\n"
                    + ";\n".join(self.done)
                    + f"\nmissing {expected - real}\nsurplus {real - expected}"
                )

    def look_back(self):
        """Relations as of some earlier commits, and what came since."""
        for number in self.random.sample(sorted(self.past), min(3, len(self.past))):
            for name, expected in self.past[number].items():
                past = f"SELECT * FROM {name} FOR SYSTEM_TIME AS OF COMMIT {number}"
                try:
                    real = oracle.rows(self.connection.execute(past).fetchall())
                except watersmeet.Error as refusal:
                    assert refusal.condition == "HISTORY_GONE"
                    continue
                assert real == expected, (
                    f"seed {self.seed}, {name} as of commit {number}\n"
                    + ";\n".join(self.done)
                    + f"\nmissing {expected - real}\nsurplus {real - expected}"
                )


def run(seed, **options):
    with (
        contextlib.suppress(UnanswerableError),
        tempfile.TemporaryDirectory() as directory,
    ):
        case = SubscribedRun(seed, f"{directory}/db", options)
        try:
            for step in case.case.steps:
                case.step(step)
        finally:
            case.connection.close()


@pytest.mark.parametrize("seed", mostly_slow([*REGRESSIONS, *range(20)], len(REGRESSIONS) + 1))
def test_in_process(seed):
    run(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_in_process(block):
    for seed in range(1000 + 40 * block, 1040 + 40 * block):
        run(seed, runtime="inprocess", parallelism=1 + seed % 3)
