"""How much random tests try: a sixth by default, all with WATERSMEET_THOROUGH=1, which `make test` sets for the slow ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, settings

THOROUGH = bool(os.environ.get("WATERSMEET_THOROUGH"))


def examples(many: int, *suppressed: HealthCheck) -> settings:
    """For @given: `many` examples, or a sixth of them."""
    return settings(max_examples=many if THOROUGH else max(8, many // 6), deadline=None, suppress_health_check=suppressed)


def some(all_of_them: Sequence[int]) -> Sequence[int]:
    """All, or every sixth."""
    return all_of_them if THOROUGH else all_of_them[::6]
