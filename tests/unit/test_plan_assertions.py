"""Assertions on printed plans."""

from __future__ import annotations

import pytest
from tests.plans import broken, contains_in_order

PLAN = """StreamMaterialize { columns: [a] }
└─StreamHashJoin { type: Inner }
  ├─StreamHashJoin { type: LeftOuter }
  │ ├─StreamTableScan { table: t1 }
  │ └─StreamTableScan { table: t2 }
  └─StreamFilter { predicate: x }
    └─StreamTableScan { table: t3 }

Stages: 1""".split("\n")


@pytest.mark.parametrize(
    "assertion",
    [
        "joins = 2",
        "join-height = 2",
        "has LeftOuter",
        "no Apply",
        "t1 below LeftOuter",
        "StreamFilter above t3",
        "LeftOuter not above t3",
        "StreamFilter below StreamHashJoin",
    ],
)
def test_holds(assertion):
    assert broken(assertion, PLAN) is None


@pytest.mark.parametrize(
    "assertion",
    [
        "joins = 3",
        "join-height = 1",
        "has Apply",
        "no LeftOuter",
        "t3 below LeftOuter",
        "StreamFilter above t1",
        "LeftOuter not above t2",
        "nonsense",
    ],
)
def test_broken(assertion):
    assert broken(assertion, PLAN) is not None


def test_contains_in_order():
    assert contains_in_order(["StreamMaterialize { ... }", "├─StreamTableScan { table: t1 }"], PLAN) is None
    assert contains_in_order(["StreamTableScan { table: t2 }", "StreamTableScan { table: t1 }"], PLAN) is not None
