"""The number of buckets changes at random moments of random cases, with stops before, during and after: no row is lost,
none is doubled, and every row that is kept is in the bucket that it shows.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress

import pytest

from tests import placed
from tests.property.generator import Step
from tests.property.oracle import UnanswerableError
from tests.property.test_crashes import CrashingRun
from tests.thorough import mostly_slow

_COUNTS = (1, 3, 8)
_ALTER = "ALTER DATABASE SET parallelism = "


class RescalingRun(CrashingRun):
    """A case whose buckets change in number: by statements, and where the database is opened again. changes: how often
    they did.
    """

    rescaled = 0

    def step(self, step: Step) -> None:
        if self._open is None and self.random.random() < 0.2:
            now = self.parallelism()
            self.execute(f"{_ALTER}{self.random.choice([n for n in _COUNTS if n != now])}")
            self.rescaled += 1
        if step.kind == "reopen":
            self.options = {**self.options, "parallelism": self.random.choice((*_COUNTS, None))}
        super().step(step)

    def is_killed(self, statement, faulty) -> bool:
        # Most statements run as they are: the stops are for those that change the number, and those around.
        if not statement.startswith(_ALTER) and self.random.random() < 0.8:
            super(CrashingRun, self).execute(statement)
            return False
        return super().is_killed(statement, faulty)

    def was_done(self, statement: str) -> bool:
        if statement.startswith(_ALTER):
            return self.parallelism() == int(statement.removeprefix(_ALTER))
        return super().was_done(statement)

    def parallelism(self) -> int:
        self.cursor.execute("SHOW PARAMETERS LIKE 'parallelism'")
        return int(self.cursor.fetchone()[1])


def rescale(seed: int) -> tuple[int, int]:
    """(how often the number changed, how many statements were killed)."""
    with tempfile.TemporaryDirectory() as directory, placed.checked():
        options = {"runtime": "inprocess", "parallelism": _COUNTS[seed % 3]}
        case = RescalingRun(seed, f"{directory}/db", options)
        with suppress(UnanswerableError):
            try:
                for step in case.case.steps:
                    case.step(step)
                case.finish()
            finally:
                case.connection.close()
        return case.rescaled, case.stops


@pytest.mark.slow
def test_the_number_of_buckets_changes() -> None:
    """Often, and statements are killed often: how often one seed does it follows from each step of the product."""
    changes = stops = 0
    for seed in range(9000, 9010):
        changed, stopped = rescale(seed)
        changes, stops = changes + changed, stops + stopped
        print("seed", seed, "changes", changes, "stops", stops)
        if min(changes, stops) > 3:
            return
    pytest.fail("neither is likely any more")


@pytest.mark.parametrize("seed", mostly_slow(range(9010, 9210), 0, 3))
def test_more_histories(seed: int) -> None:
    rescale(seed)
