"""What holds for all tests."""

from __future__ import annotations

import os
import secrets
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers", "tests.browsers"]

# Images of containers often set it. Each process that a test starts would compile the whole package anew, half a second
# and more, and each process of pytest would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Processes that xdist starts inherit it, so that all of them collect the same seeds.
os.environ.setdefault("WATERSMEET_FRESH", str(secrets.randbelow(1_000_000_000)))

# What a try takes, and what making its values takes, depends on what else the machine does. The same examples each
# time, so that a run says what changed; `make thorough` tries others.
settings.register_profile(
    "watersmeet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("WATERSMEET_TIER") != "thorough",
)
settings.load_profile("watersmeet")

# A shell without job control starts background processes with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    tier = os.environ.get("WATERSMEET_TIER", "test")
    return f"tier: {tier}" + (f", WATERSMEET_FRESH={os.environ['WATERSMEET_FRESH']}" if tier == "thorough" else "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("WATERSMEET_TIER") == "thorough":
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.fixture(scope="session")
def spark_stays():
    """Spark ends with its last user: this one keeps it between the tests, as each start takes seconds."""
    from watersmeet.runtime.spark import session  # noqa: PLC0415

    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


@pytest.fixture(scope="session", autouse=True)
def _plain_output():
    """What the one who starts the tests wants of colours and widths is for pytest's own output."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _locks_in_order():
    """Every test fails that takes the locks of a session in another order than the one they have."""
    from watersmeet.database import locks  # noqa: PLC0415

    with locks.checked():
        yield


@pytest.fixture(autouse=True)
def _spark(request):
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark_stays")
