"""Stops at random places of the file system work, anywhere in a random case: nothing is lost, nothing doubled.

A stop is final, clean-ups included: the database is opened anew, and what the interrupted statement should do is
either all there or not at all.
"""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
from unittest import mock

import pytest

import watersmeet
from tests.property.oracle import rows
from tests.property.runs import Run
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.system import files

_PLACES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 21, 27, 34, 50)


class CrashingRun(Run):
    """A case in which statements are killed. stops: how many were."""

    def __init__(self, seed: int, path: str, options: dict) -> None:
        self.random = random.Random(-1 - seed)
        self.stops = 0
        self._before: dict = {}
        super().__init__(seed, path, options)

    def change(self, statement: str) -> None:
        if self._open is None:
            self._before = {name: self.oracle.content(name) for name in self.oracle.tables}
        super().change(statement)

    def execute(self, statement: str) -> None:
        waits = statement in ("BEGIN", "ROLLBACK") or (self._open is not None and statement != "COMMIT")
        while not waits and self.random.random() < 0.5:
            faulty = FaultyOs(self.random.choice(_PLACES), torn=self.random.random() < 0.3)
            if not self.is_killed(statement, faulty):
                return
            self.stops += 1
            self.done.append(f"-- killed in {faulty.names[-1]}, step {faulty.calls}")
            self.open()
            if self.was_done(statement):
                return
            if statement == "COMMIT":
                for part in ["BEGIN", *(self._open or [])]:
                    super().execute(part)
        super().execute(statement)

    def is_killed(self, statement: str, faulty: FaultyOs) -> bool:
        with mock.patch.object(files, "os", faulty):
            try:
                super().execute(statement)
            except Killed:
                with contextlib.suppress(Killed):  # lets go of the lock, and can do nothing else
                    self.connection.close()
                return True
        return False

    def open(self) -> None:
        """Opens the database again, at times with a further stop while it opens."""
        while self.random.random() < 0.3:
            with mock.patch.object(files, "os", FaultyOs(self.random.choice(_PLACES))), contextlib.suppress(Killed):
                watersmeet.connect(self.path, **self.options).close()
        self.connection = watersmeet.connect(self.path, **self.options)
        self.cursor = self.connection.cursor()

    def was_done(self, statement: str) -> bool:
        """Whether the statement has happened. The oracle, which is asked first, has done it."""
        if found := re.match(r"CREATE (?:TABLE|VIEW|MATERIALIZED VIEW) (\w+)", statement):
            return self.exists(found[1])
        if found := re.match(r"DROP (?:VIEW|MATERIALIZED VIEW) (\w+)", statement):
            return not self.exists(found[1])
        if statement == "FLUSH":
            return False
        self.cursor.execute("FLUSH")
        real = {}
        for name in self.oracle.tables:
            self.cursor.execute(f"SELECT * FROM {name}")
            real[name] = rows(self.cursor.fetchall())
        if real == {name: self.oracle.content(name) for name in real}:
            return True
        assert real == self._before, f"seed {self.seed}: {statement} was done in part\n" + ";\n".join(self.done)
        return False

    def exists(self, name: str) -> bool:
        try:
            self.cursor.execute(f"SELECT * FROM {name}")
        except watersmeet.Error as failure:
            assert failure.condition == "UNDEFINED_RELATION"
            return False
        return True


def crash(seed: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        case = CrashingRun(seed, f"{directory}/db", {"runtime": "inprocess", "parallelism": 1 + seed % 3})
        try:
            for step in case.case.steps:
                case.step(step)
            case.finish()
        finally:
            case.connection.close()
        return case.stops


@pytest.mark.slow
def test_stops() -> None:
    stops = [crash(seed) for seed in range(7000, 7003)]
    assert sum(stops) > 5 * len(stops)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(3))
def test_many_stops(block: int) -> None:
    for seed in range(7100 + 10 * block, 7110 + 10 * block):
        crash(seed)
