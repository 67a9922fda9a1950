"""Random runs of the simulation: each seed decides what happens, and what goes wrong (`case`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.case import run
from tests.thorough import FRESH, THOROUGH, mostly_slow

#: So many seeds are one test.
BLOCK = 10
SEEDS = 200
THOROUGH_SEEDS = 2000


@pytest.mark.parametrize("block", mostly_slow(range(SEEDS // BLOCK), 2, SEEDS, fresh=False))
def test_seeds(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        print("seed", seed)
        run(seed)


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
