"""The simulation finds defects: each of these is planted, and some of its seeds must fail.

The first one is a defect that there was: a commit number that had been cleaned away was taken again by a writer that
had slept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.case import Knobs, run
from tests.simulation.planted import DEFECTS
from tests.simulation.test_exhaustive import DEFINING, pauses
from tests.simulation.test_seeds import SEEDS
from tests.thorough import mostly_slow

#: From which seed on each is looked for, where that is not the first: where it was found last.
FROM = {
    "answers are believed": 53,
    "state of what is left, and nobody is asked": 170,
    "files of running epochs are deleted": 16,
    "readers are not asked": 102,
    "a clean-up looks below the floor": 200,
    "what fails is not explained": 59,
}


def _flips(knobs: Knobs) -> Knobs:
    """Bits are flipped often, and much is read from many small packs: with what seeds decide, one in 300 finds it."""
    rates, disk = replace(knobs.rates, flip=0.05), replace(knobs.disk, flip=0.05)
    return replace(knobs, lives=3, readers=1, small=True, reading_s="0", history=None, rates=rates, disk=disk)


#: What makes it likelier to be found than what a seed decides on.
LIKELIER: dict[str, Callable[[Knobs], Knobs]] = {"checksums are not looked at": _flips}

#: What needs more luck than a seed has, and the step before which a writer stands still that finds it.
PAUSED = {"plans of later writers are deleted": range(30, 60)}


@pytest.mark.parametrize("name", mostly_slow([n for n in DEFECTS if n not in PAUSED], 0, 8))
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


@pytest.mark.parametrize("name", mostly_slow(list(PAUSED), 0))
def test_a_pause_finds_a_defect(name: str) -> None:
    for at in PAUSED[name]:
        try:
            with DEFECTS[name]():
                assert pauses("objects", at, DEFINING), "there are fewer steps"
        except Exception as found:
            print("step", at, found)
            assert not isinstance(found, AssertionError)
            return
    pytest.fail(f"no pause finds it: {name}")
