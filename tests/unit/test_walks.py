"""Each step of the walks in ARCHITECTURE is a function that exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"
STEP = re.compile(r"^\| (\d+) \| `([\w.]+)` \| .* \|$", re.MULTILINE)
WALKS = 4
MOST_STEPS = 12


def walks() -> list[list[tuple[str, str]]]:
    """The number and the function of each step, by walk."""
    section = PAGE.read_text(encoding="utf-8").split("## Four walks")[1].split("\n## ")[0]
    return [STEP.findall(part) for part in section.split("|---|---|---|")[1:]]


@pytest.mark.parametrize("walk", range(WALKS))
def test_each_step_of_a_walk_is_a_function(walk):
    steps = walks()[walk]
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 10 <= len(steps) <= MOST_STEPS
    for _, name in steps:
        assert callable(pkgutil.resolve_name(f"watersmeet.{name}")), name


def test_there_are_four_walks():
    assert len(walks()) == WALKS
