"""Dictionaries on Spark: the same answers, with epochs and upkeep in the background."""

from __future__ import annotations

import pytest
from tests.property.test_dictionaries import run

from watersmeet.runtime.spark import session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def spark():
    """Spark stays between the tests."""
    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


@pytest.mark.parametrize("seed", [3])
def test_dictionaries_answer_as_the_rules_say(seed, tmp_path):
    run(seed, tmp_path, runtime="spark")
