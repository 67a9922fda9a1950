"""How much random tests try, by the tier in which they run: WATERSMEET_TIER, which `make` sets.

| tier | random tests |
|---|---|
| `fast` | one seed of each law whose seeds are quick, few examples |
| `test` | a third of the quick seeds, a thirtieth of the examples |
| `check` | as `test`; and every sixth of the slow tests of each module |
| `more` | all slow cases: the other quick seeds, a sixteenth of the slow ones; a tenth of the examples |
| `thorough` | all seeds and examples, and as many fresh seeds again |

Without WATERSMEET_TIER it is `more`. Fresh seeds begin at WATERSMEET_FRESH, which the header of the run shows.
WATERSMEET_SEEDS=from-to, with one module, runs those seeds and no others.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, settings

TIER = os.environ.get("WATERSMEET_TIER", "more")
THOROUGH = TIER == "thorough"
FAST = TIER == "fast"
CHECK = TIER == "check"
#: The tiers that people wait for try so much less than `more`.
_LESS = {"fast": 5, "test": 3, "check": 3}.get(TIER, 1)
#: Of quick cases, one in so many runs in `make test`.
_ONE_IN = 3
#: One of this many costly tests of a module runs in `make test`, and one of this many slow ones in CI.
_COSTLY_ONE_IN = 6
#: The first of the fresh seeds: processes that xdist starts inherit it, so that all of them collect the same ones.
FRESH = int(os.environ.setdefault("WATERSMEET_FRESH", str(secrets.randbelow(1_000_000_000))))


def examples(many: int, *suppressed: HealthCheck) -> settings:
    """For @given: `many` examples in the thorough tier, a tenth of them in `make test-more`, else fewer."""
    return settings(
        max_examples=many if THOROUGH else max(8 if _LESS == 1 else 2, many // (10 * _LESS)),
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, *suppressed),
    )


def some(all_of_them: Sequence[int]) -> Sequence[int]:
    """All in the thorough tier, every sixth usually, else the first."""
    return all_of_them if THOROUGH else all_of_them[:1] if FAST else all_of_them[:: 18 if TIER == "test" else 6]


def mark_costly(items: Sequence[pytest.Item], costs: Mapping[str, float]) -> None:
    """Marks costly tests as slow, but every sixth of each module, and the cheapest of a module without others.

    costs: the processor seconds of costly tests. Those on Spark are costly, too; together they count as one module.
    """
    groups: dict[str, list[pytest.Item]] = {}
    quick: set[str] = set()
    for item in items:
        module = item.nodeid.partition("::")[0]
        if item.get_closest_marker("slow") is not None:
            continue
        if item.get_closest_marker("spark") is not None:
            groups.setdefault("spark", []).append(item)
        elif item.nodeid in costs:
            groups.setdefault(module, []).append(item)
        else:
            quick.add(module)
    for module, group in groups.items():
        first = _COSTLY_ONE_IN - 1 if module in quick else 0
        for place, item in enumerate(sorted(group, key=lambda i: costs.get(i.nodeid, 0))):
            if place % _COSTLY_ONE_IN != first:
                item.add_marker(pytest.mark.slow)


def sampled(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that CI runs: all quick ones, and every sixth slow one of a module, the first among them, unless it is
    long.
    """
    kept, seen = [], Counter[str]()
    for item in items:
        if item.get_closest_marker("slow") is not None:
            module = item.nodeid.partition("::")[0]
            seen[module] += 1
            if seen[module] % _COSTLY_ONE_IN != 1 or item.get_closest_marker("long") is not None:
                continue
        kept.append(item)
    return kept


def mostly_slow(cases: Sequence[object], quick: int, slow: int | None = None, *, fresh: bool = True) -> list[object]:
    """For parametrize: a third of the first `quick` cases as they are, the others of them and the next `slow` as slow
    tests, the rest in the thorough tier alone.

    slow: without it, all others, or of whole numbers, which are taken for seeds, a sixteenth of them. The thorough tier
    has fresh seeds as well, as many again, unless the numbers are none (`fresh`).
    """
    given = os.environ.get("WATERSMEET_SEEDS")
    if given:
        first, last = given.split("-")
        return list(range(int(first), int(last)))
    at_once = min(quick, 1) if FAST else -(-quick // _ONE_IN)
    others = list(cases[quick:])
    seeds = all(isinstance(case, int) for case in cases)
    if THOROUGH:
        others += range(FRESH, FRESH + len(cases)) if seeds and fresh else []
    else:
        others = others[: slow if slow is not None else (len(others) + 15) // 16 if seeds else len(others)]
    later = [*cases[at_once:quick], *others]
    return [*cases[:at_once], *[pytest.param(case, marks=pytest.mark.slow) for case in later]]
