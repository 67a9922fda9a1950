"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from tests.costs import COSTS
from tests.thorough import CHECK, FRESH, THOROUGH, TIER, mark_costly, sampled
from watersmeet.system.process import cores

pytest_plugins = ["tests.temporaries", "tests.servers", "tests.browsers"]

# Images of containers often set it. Each process that a test starts would compile the whole package anew, half a second
# and more, and each process of pytest would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

#: So many tests on Spark are quicker in one process than in several, each with a Java of its own.
FEW_ON_SPARK = 100

# What a try takes, and what making its values takes, depends on what else the machine does. The same examples each
# time, so that a run says what changed; `make thorough` tries others.
settings.register_profile(
    "watersmeet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not THOROUGH,
)
settings.load_profile("watersmeet")

# A shell without job control starts background processes with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"tier: {TIER}" + (f", WATERSMEET_FRESH={FRESH}" if THOROUGH else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto` starts half as many processes again as there are cores: tests also wait, for servers and for disks."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (3 * cores() + 1) // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    mark_costly(items, COSTS)
    yield  # tests are chosen by their marks
    kept = items if THOROUGH else [item for item in items if not item.get_closest_marker("thorough")]
    kept = sampled(kept) if CHECK else kept
    if len(kept) < len(items):
        ids = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in ids])
        items[:] = kept
    worker = getattr(config, "workerinput", {})
    items[:] = longest_first(items, int(worker.get("workercount", 1)))


def pytest_collection_finish() -> None:
    """What stands for thousands of tests stays to the end: looking at it for garbage takes 0.3 s each time."""
    gc.freeze()


def longest_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Those on Spark first, then the other slow ones, so that no long test is the last of a run.

    xdist begins with as many neighbours for each of its workers: each gets some of all kinds. But few tests on Spark
    are for one worker alone: Java takes twenty seconds of processor to start and to get warm.
    """
    kinds: list[list[pytest.Item]] = [[], [], [], []]
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        kinds[(1 - slow) if is_on_spark(item) else 3 - slow].append(item)
    on_spark, alone = len(kinds[0]) + len(kinds[1]), [1, *[0] * (workers - 1)]
    room = [-(-len(items) // workers)] * workers
    shares = [room] * 4
    if on_spark <= FEW_ON_SPARK:
        room[0] = max(0, room[0] - on_spark)
        shares = [alone, alone, room, room]
    each: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for kind, share in zip(kinds, shares, strict=True):
        ends = [len(kind) * sum(share[: worker + 1]) // max(1, sum(share)) for worker in range(workers)]
        for part, begin, end in zip(each, [0, *ends], ends, strict=False):
            part.extend(kind[begin:end])
    return [item for part in each for item in part]


def is_on_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None


_kept_spark: list[Any] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    if _kept_spark and (nextitem is None or not is_on_spark(nextitem)):
        from watersmeet.runtime.spark import session  # noqa: PLC0415

        session.release(_kept_spark.pop())


@pytest.fixture(scope="session", autouse=True)
def _plain_output():
    """What the one who starts the tests wants of colours and widths is for pytest's own output."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_disks():
    """A process that is killed loses nothing of what it wrote, a machine without power does: there the tests of it have
    disks of their own (tests/simulation/disk.py). A small database would wait for the disk longer than it works.
    Processes of their own do wait.
    """
    with mock.patch.object(os, "fsync", lambda handle: os.fstat(handle) and None):
        yield


@pytest.fixture(scope="session", autouse=True)
def _locks_in_order():
    """Every test fails that takes the locks of a session in another order than the one they have."""
    from watersmeet.system import threads  # noqa: PLC0415

    with threads.checked():
        yield


@pytest.fixture(autouse=True)
def _spark(request):
    """Spark ends with its last user, and each start takes seconds: it stays between tests that follow one another."""
    if is_on_spark(request.node) and not _kept_spark and "WATERSMEET_TEST_REMOTE" not in os.environ:
        from watersmeet.runtime.spark import session  # noqa: PLC0415

        _kept_spark.append(session.acquire(None, 2))
