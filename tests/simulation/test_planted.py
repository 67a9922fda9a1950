"""The simulation finds defects: each of these is planted, and some of its seeds must fail.

The first one is a defect that there was: a commit number that had been cleaned away was taken again by a writer that
had slept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.case import Knobs, Supervisor, run
from tests.simulation.planted import DEFECTS
from tests.simulation.test_exhaustive import DEFINING, pauses, writes
from tests.simulation.test_seeds import SEEDS
from tests.simulation.world import Violation
from tests.thorough import mostly_slow
from watersmeet.errors import Error

#: From which seed on each is looked for, where that is not the first: where it was found last.
FROM = {
    "answers are believed": 53,
    "state of what is left, and nobody is asked": 170,
    "files of running epochs are deleted": 16,
    "readers are not asked": 102,
    "what fails is not explained": 59,
}


def _flips(knobs: Knobs) -> Knobs:
    """Bits are flipped often, and much is read from many small segments: one seed in 300 finds it."""
    rates, disk = replace(knobs.rates, flip=0.05), replace(knobs.disk, flip=0.05)
    return replace(knobs, lives=3, readers=1, small=True, reading_s="0", history=None, rates=rates, disk=disk)


#: What makes it likelier to be found than what a seed decides on.
LIKELIER: dict[str, Callable[[Knobs], Knobs]] = {"checksums are not looked at": _flips}

#: What needs more luck than a seed has, and how the steps begin before one of which a writer has to stand still.
PAUSED = {"plans of later writers are deleted": "list db/plans"}


def _clean_behind(supervisor: Supervisor) -> None:
    """Writers clean up whose clocks are an hour behind those of the writers that made the commits."""
    for skew_us in (3_600_000_000, 3_600_000_000, 0, 0):
        process = writes(supervisor, ("transaction", "flush", "clean") if skew_us else ("clean",)).process
        process.skew_us = skew_us
        supervisor.world.wait(lambda process=process: process.is_over)
        supervisor.world.now_us += 10_000_000
    supervisor.settle()


#: What happens by itself where some things come together, and a script in which they do.
SCRIPTED: dict[str, Callable[[], object]] = {
    "a clean-up looks below the low-water mark": lambda: run(
        "behind", Knobs(locks=False, switching=0.0, reading_s="5"), _clean_behind
    ),
}


@pytest.mark.parametrize("name", mostly_slow([n for n in DEFECTS if n not in {*PAUSED, *SCRIPTED}], 0, 8))
def test_a_defect_is_found(name: str) -> None:
    first = FROM.get(name, 0)
    likelier = LIKELIER.get(name, lambda knobs: knobs)
    for seed in range(first, first + SEEDS):
        try:
            with DEFECTS[name]():
                run(seed, likelier(Knobs.of(seed)))
        except Exception as found:
            print("seed", seed, found)
            return
    pytest.fail(f"no seed finds it: {name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIER)
def test_what_makes_it_likelier_breaks_nothing(name: str) -> None:
    """That what is found is the defect."""
    for seed in range(10):
        run(seed, LIKELIER[name](Knobs.of(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAUSED)
def test_a_pause_finds_a_defect(name: str) -> None:
    for at in itertools.count(1):
        try:
            with DEFECTS[name]():
                if not pauses("objects", at, DEFINING, PAUSED[name]):
                    pytest.fail(f"no pause finds it: {name}")
        except Violation as found:
            print("step", at, found)
            return


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_finds_a_defect_and_nothing_else(name: str) -> None:
    SCRIPTED[name]()
    with DEFECTS[name](), pytest.raises((Violation, Error)):
        SCRIPTED[name]()
