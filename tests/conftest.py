"""What holds for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# What a try takes, and what making its values takes, depends on what else the machine does. The same examples each time,
# so that a run says what changed; `make thorough` tries others.
settings.register_profile("watersmeet", deadline=None, suppress_health_check=[HealthCheck.too_slow],
                          derandomize="WATERSMEET_RANDOM" not in os.environ)
settings.load_profile("watersmeet")


@pytest.fixture(scope="session")
def spark_stays():
    """Spark ends with its last user: this one keeps it between the tests, as each start takes seconds."""
    from watersmeet.runtime.spark import session  # noqa: PLC0415

    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


@pytest.fixture(autouse=True)
def _spark(request):
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark_stays")
