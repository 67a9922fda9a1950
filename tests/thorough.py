"""How much random tests try: a sixth by default, all with WATERSMEET_THOROUGH=1.

`make test` sets it for the tests that are slow anyway, `make thorough` for all: that takes hours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

THOROUGH = bool(os.environ.get("WATERSMEET_THOROUGH"))


def examples(many: int, *suppressed: HealthCheck) -> settings:
    """For @given: `many` examples, or a sixth of them."""
    return settings(max_examples=many if THOROUGH else max(8, many // 6), deadline=None,
                    suppress_health_check=(HealthCheck.too_slow, *suppressed))


def some(all_of_them: Sequence[int]) -> Sequence[int]:
    """All, or every sixth."""
    return all_of_them if THOROUGH else all_of_them[::6]


def mostly_slow(seeds: Sequence[int], fast: int) -> list[object]:
    """For parametrize: the first `fast` as they are, the others as slow tests."""
    return [*seeds[:fast], *[pytest.param(seed, marks=pytest.mark.slow) for seed in seeds[fast:]]]
