"""In which order tests run (tests/conftest.py)."""

from types import SimpleNamespace

import pytest
from tests.conftest import FEW_ON_SPARK, longest_first


def item(number, *marks):
    return SimpleNamespace(number=number, get_closest_marker=lambda name: name in marks or None)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("on_spark", [0, 1, 5, FEW_ON_SPARK, FEW_ON_SPARK + 1])
@pytest.mark.parametrize("others", [0, 1, 2, 3, 50, 400])
def test_each_test_runs_once(workers, on_spark, others):
    marks = [("spark", "slow")[: 1 + n % 2] for n in range(on_spark)] + [("slow",)[: n % 2] for n in range(others)]
    items = [item(n, *m) for n, m in enumerate(marks)]
    found = longest_first(items, workers)
    assert sorted(i.number for i in found) == list(range(len(items)))
    if on_spark <= FEW_ON_SPARK:
        assert all(i.get_closest_marker("spark") for i in found[:on_spark]), "one worker alone has them"
