"""The examples of Lenses' document with topics of a real broker: consumers read what the examples say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafkaexamples import play
from tests.thorough import mostly_slow

EXAMPLES = sorted((Path(__file__).parent / "lenses" / "examples").glob("*.slt"))
#: Examples that are run each time: a look-up, two streams, a chain of two joins, a group.
QUICK = ("inner", "within-bounds", "three-sources", "join-group")


@pytest.mark.parametrize(
    "path",
    mostly_slow(sorted(EXAMPLES, key=lambda path: path.stem not in QUICK), len(QUICK), 5),
    ids=lambda path: path.stem,
)
def test_example(path, broker, registry, tmp_path):
    play(path, broker, registry, tmp_path / "db", runtime="inprocess")
