"""Joins on a Spark Connect server whose workers don't have the package, and joins with their state in files: the tests
of `test_frames.py`, run in processes of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.cluster import connect_server

pytestmark = pytest.mark.spark
TESTS = Path(__file__).with_name("test_frames.py")
ROOT = TESTS.parents[2]


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """The URL of a server."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def run_frames(*selected: str, remote: str | None = None, files: bool) -> None:
    """Runs tests of `test_frames.py`: on the server, or in a classic session; with the state in files, or in Spark's
    state store.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "WATERSMEET_TEST_"))}
    if remote is not None:
        environment["WATERSMEET_TEST_REMOTE"] = remote
    if files:
        environment["WATERSMEET_TEST_STATE"] = "files"
    environment["WATERSMEET_TIER"] = "more"  # a sample would leave out tests that are named here
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(TESTS)]
    chosen = ["-k", " or ".join(selected)] if selected else []
    found = subprocess.run([*command, *chosen], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert int(re.findall(r"(\d+) passed", found.stdout)[-1]) >= max(len(selected), 1)


LEFT = "test_left_join_follows_both_sides_through_a_restart"
FINAL = "test_final_rows_of_an_interval_join"
STATIC = "test_a_static_side_needs_no_state"


QUERY = "test_a_query_of_two_steps_through_a_restart"


def test_a_left_join_and_a_query_on_a_server(remote):
    run_frames(LEFT, QUERY, remote=remote, files=False)


def test_state_in_files_on_a_server(remote):
    run_frames(LEFT, FINAL, STATIC, QUERY, remote=remote, files=True)


@pytest.mark.slow
def test_all_joins_on_a_server(remote):
    run_frames(remote=remote, files=False)


@pytest.mark.slow
@pytest.mark.parametrize("connect", [False, True])
def test_all_joins_with_state_in_files(remote, connect):
    run_frames(remote=remote if connect else None, files=True)
