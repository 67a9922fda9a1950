"""Processors on Spark, whose topics are those of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafkaexamples import play
from tests.thorough import mostly_slow

EXAMPLES = Path(__file__).parents[1] / "slt" / "lenses" / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["inner", "three-sources", "key-formats"], 1))
def test_example(name, broker, registry, tmp_path):
    play(EXAMPLES / f"{name}.slt", broker, registry, tmp_path / "db", parallelism=2)
