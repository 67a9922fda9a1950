"""Random runs of the simulation: each seed decides what happens, and what goes wrong (`case`)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation.case import Knobs, run
from tests.simulation.standbys import take_turns
from tests.thorough import FRESH, THOROUGH, mostly_slow

#: So many seeds are one test.
BLOCK = 10
SEEDS = 200
THOROUGH_SEEDS = 2000
STANDBY_SEEDS = 100


@pytest.mark.parametrize("block", mostly_slow(range(SEEDS // BLOCK), 2, SEEDS, fresh=False))
def test_seeds(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        print("seed", seed)
        run(seed)


@pytest.mark.parametrize("block", mostly_slow(range(STANDBY_SEEDS // BLOCK), 1, STANDBY_SEEDS // BLOCK, fresh=False))
def test_servers_take_turns(block: int) -> None:
    """One of two servers writes. It is killed, hangs, ends or is overtaken: nothing acknowledged is lost, and the other
    one goes on.
    """
    writers = forced = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        print("seed", seed)
        notes = run(f"standby {seed}", replace(Knobs.of(seed), locks=True), take_turns).notes
        writers += sum(" writes" in note for note in notes)
        forced += sum(note.endswith("by force") for note in notes)
    assert writers > 2 * BLOCK
    assert forced > 0


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(THOROUGH_SEEDS // 50))
def test_fresh_seeds(block: int) -> None:
    assert THOROUGH
    for seed in range(FRESH + 50 * block, FRESH + 50 * (block + 1)):
        print("seed", seed)
        run(seed)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run() -> None:
    for seed in (3, 16):
        first, second = run(seed), run(seed)
        assert first.notes == second.notes
        assert first.digest == second.digest


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """Where sets of names have another order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "3", "6"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for seed in (3, 4, 5):
        assert f"{seed}: fine" in done.stdout
        assert f"trace {run(seed).digest:08x}" in done.stdout
