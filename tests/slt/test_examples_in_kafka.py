"""The examples of Lenses' document with topics of a real broker: consumers read what the examples say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafkaexamples import play

EXAMPLES = sorted((Path(__file__).parent / "lenses" / "examples").glob("*.slt"))
#: Examples that are run each time: a look-up, two streams, a chain of two joins, a group.
QUICK = ("inner", "within-bounds", "three-sources", "join-group")


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem) for p in EXAMPLES]
)
def test_example(path, broker, registry, tmp_path):
    play(path, broker, registry, tmp_path / "db", runtime="inprocess")
