"""Lengths in Proton's EMIT clause."""

from __future__ import annotations

import pytest
import sqlglot

from watersmeet.dialects.timeplus.grammar import WatersmeetTimeplus
from watersmeet.dialects.timeplus.nodes import cut_emit


@pytest.mark.parametrize(
    ("length", "length_us"),
    [
        ("5s", 5_000_000),
        ("500ms", 500_000),
        ("INTERVAL 5 SECOND", 5_000_000),
        ("INTERVAL 2 hours", 7_200_000_000),
        ("INTERVAL 5 ms", 5_000),
        ("INTERVAL 5 m", 300_000_000),
    ],
)
def test_lengths(length, length_us):
    sql = f"SELECT i FROM s EMIT PERIODIC {length}"
    rest, clause, _ = cut_emit(sqlglot.tokenize(sql, read=WatersmeetTimeplus), sql)
    assert [t.text for t in rest] == ["SELECT", "i", "FROM", "s"]
    assert clause is not None
    assert (clause.mode, clause.length("length_us")) == ("periodic", length_us)
