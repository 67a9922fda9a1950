"""In which order tests run (tests/conftest.py), and which of them CI runs (tests/thorough.py)."""

from types import SimpleNamespace

import pytest
from tests.conftest import FEW_ON_SPARK, longest_first
from tests.thorough import mark_costly, sampled


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


def case(test, *marks):
    found = SimpleNamespace(nodeid=test, marks=list(marks))
    found.get_closest_marker = lambda name: name in found.marks or None
    found.add_marker = lambda mark: found.marks.append(mark.name)
    return found


def test_of_the_costly_tests_of_a_module_every_sixth_is_quick():
    quick = [case(f"test_a.py::test_q[{n}]") for n in range(3)]
    costly = [case(f"test_{module}.py::test_{n % 2}[{n}]") for n in range(13) for module in "ab"]
    on_spark = [case(f"test_c.py::test_{n}", "spark") for n in range(7)]
    slow = case("test_d.py::test", "slow")
    costs = {item.nodeid: 100 - n for n, item in enumerate([*costly, slow])}
    mark_costly([*quick, *costly, *on_spark, slow], costs)
    assert [i.marks for i in [*quick, slow]] == [[], [], [], ["slow"]]
    assert [n for n, i in enumerate(costly[::2]) if not i.marks] == [1, 7]
    assert [n for n, i in enumerate(costly[1::2]) if not i.marks] == [0, 6, 12]
    assert [n for n, i in enumerate(on_spark) if i.marks == ["spark"]] == [0, 6]


def test_a_sample_has_all_quick_tests_and_every_sixth_slow_one_of_each_module():
    slow = [case(f"test_{module}.py::test_{n % 2}[{n}]", "slow") for n in range(13) for module in "ab"]
    quick = [case(f"test_a.py::test_2[{n}]") for n in range(5)]
    single, long = case("test_c.py::test", "slow"), case("test_d.py::test", "slow", "long")
    assert sampled([*slow, *quick, single, long]) == [*(slow[n] for n in (0, 1, 12, 13, 24, 25)), *quick, single]
