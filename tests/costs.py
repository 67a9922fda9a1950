"""Processor seconds of tests: which are costly, and how that is measured.

`costs.json` has the tests that take 0.4 seconds of processor or more, with the processes that they start. Of those of
a module one in six stays quick, the others count as slow (`thorough.mark_costly`). Measure again after many changes:

    WATERSMEET_TIER=more python -m pytest -n 0 -p tests.costs -m "not slow" tests
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).with_name("costs.json")
#: The lowest cost of a costly test.
COSTLY_S: Final = 0.4
#: The processor seconds of each costly test.
COSTS: Final[dict[str, float]] = json.loads(FILE.read_text())

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_measured: dict[str, float] = {}


def processor_s() -> float:
    """Processor seconds of this process, of all processes below it, and of those below it that have ended."""
    below: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            below.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = sum(map(int, fields[11:15]))
    total, rest = 0, [os.getpid()]
    while rest:
        process = rest.pop()
        total += used.get(process, 0)
        rest += below.get(process, [])
    return total / _TICKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    began = processor_s()
    result = yield
    _measured[item.nodeid] = processor_s() - began
    return result


def pytest_sessionfinish() -> None:
    costly = {test: round(cost, 1) for test, cost in sorted(_measured.items()) if cost >= COSTLY_S}
    FILE.write_text(json.dumps(costly, indent=0, ensure_ascii=False) + "\n")
