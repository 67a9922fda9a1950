"""What holds for all tests: no deadlines, and which of the random ones are slow."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.thorough import THOROUGH

# what a try takes depends on what else the machine does
settings.register_profile("watersmeet", deadline=None)
settings.load_profile("watersmeet")


def pytest_collection_modifyitems(items) -> None:
    """With WATERSMEET_THOROUGH=1 a test that tries more than without is a slow one too, so that `make test` has it in both parts."""
    for item in items if THOROUGH else ():
        tries_more = getattr(item.obj, "is_hypothesis_test", False) or {"some", "THOROUGH"} & vars(item.module).keys()
        if tries_more:
            item.add_marker(pytest.mark.slow)
