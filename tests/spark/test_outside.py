"""Dictionaries on Spark: the same answers, with epochs and maintenance in the background."""

from __future__ import annotations

import pytest
from tests.property.test_dictionaries import run

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", [3])
def test_dictionaries_answer_as_the_rules_say(seed, tmp_path):
    run(seed, tmp_path, runtime="spark")
