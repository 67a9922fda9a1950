"""How much random tests try, by the tier in which they run: WATERSMEET_TIER, which `make` sets.

| tier | random tests |
|---|---|
| `fast` | one seed of each law whose seeds are quick, few examples |
| `test` | a third of what `check` tries without `-m slow`; `make test-more` the slow rest |
| `check` | some seeds, a tenth of the examples; a sixteenth of the slow seeds |
| `thorough` | all seeds and examples, and as many fresh seeds again |

Fresh seeds begin at WATERSMEET_FRESH, which the header of the run shows. WATERSMEET_SEEDS=from-to, with one module,
runs those seeds and no others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

TIER = os.environ.get("WATERSMEET_TIER", "check")
THOROUGH = TIER == "thorough"
FAST = TIER == "fast"
#: `check` tries as much more than the tiers that people wait for.
_LESS = {"fast": 5, "test": 3}.get(TIER, 1)
#: The first of the fresh seeds: the same in all processes of a run (tests/conftest.py).
FRESH = int(os.environ.get("WATERSMEET_FRESH", "0"))


def examples(many: int, *suppressed: HealthCheck) -> settings:
    """For @given: `many` examples in the thorough tier, a tenth of them usually."""
    return settings(
        max_examples=many if THOROUGH else max(8 if _LESS == 1 else 2, many // (10 * _LESS)),
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, *suppressed),
    )


def some(all_of_them: Sequence[int]) -> Sequence[int]:
    """All in the thorough tier, every sixth usually, else the first."""
    return all_of_them if THOROUGH else all_of_them[:1] if FAST else all_of_them[:: 6 * _LESS]


def mostly_slow(cases: Sequence[object], quick: int, slow: int | None = None, *, fresh: bool = True) -> list[object]:
    """For parametrize: the first `quick` cases as they are, the next `slow` as slow tests, the rest in the
    thorough tier alone. In tiers that try less, of `quick` the first ones as they are, and the others as slow tests.

    slow: without it, all others, or of whole numbers, which are taken for seeds, a sixteenth of them. The thorough tier
    has fresh seeds as well, as many again, unless the numbers are none (`fresh`).
    """
    given = os.environ.get("WATERSMEET_SEEDS")
    if given:
        first, last = given.split("-")
        return list(range(int(first), int(last)))
    at_once = min(quick, 1) if FAST else -(-quick // _LESS)
    others = list(cases[quick:])
    seeds = all(isinstance(case, int) for case in cases)
    if THOROUGH:
        others += range(FRESH, FRESH + len(cases)) if seeds and fresh else []
    else:
        others = others[: slow if slow is not None else (len(others) + 15) // 16 if seeds else len(others)]
    later = [*cases[at_once:quick], *others]
    return [*cases[:at_once], *[pytest.param(case, marks=pytest.mark.slow) for case in later]]
