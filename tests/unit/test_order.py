"""In which order tests run (tests/conftest.py), and which of them CI runs (tests/thorough.py)."""

from types import SimpleNamespace

import pytest
from tests.conftest import FEW_ON_SPARK, longest_first
from tests.thorough import sampled


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


def test_a_sample_has_every_sixth_slow_case_of_each_test_and_all_quick_cases():
    def case(test, number, *marks):
        found = item(number, *marks)
        found.nodeid = f"test_x.py::{test}[{number}]"
        return found

    slow = [case(test, n, "slow") for n in range(13) for test in ("test_a", "test_b")]
    quick = [case("test_a", n) for n in range(13, 18)]
    single = case("test_c", 18, "slow")
    found = sampled([*slow, *quick, single])
    assert found == [*(i for i in slow if i.number in (0, 6, 12)), *quick, single]
