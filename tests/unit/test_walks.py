"""Each step of the walks in ARCHITECTURE is a function that exists."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"
STEP = re.compile(r"^(\d+)\. `([\w.]+)` in `([\w/]+)`", re.MULTILINE)
MOST_STEPS = 12


def test_each_step_of_a_walk_is_a_function():
    steps = STEP.findall(PAGE.read_text(encoding="utf-8"))
    assert steps
    for number, function, module in steps:
        assert int(number) <= MOST_STEPS
        name = "watersmeet." + module.replace("/", ".").removesuffix(".__init__")
        assert callable(attrgetter(function)(importlib.import_module(name)))
