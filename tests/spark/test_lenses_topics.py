"""Processors on Spark, whose topics are those of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafkaexamples import play

EXAMPLES = Path(__file__).parents[1] / "slt" / "lenses" / "examples"


@pytest.mark.parametrize("name", ["inner", "three-sources", pytest.param("key-formats", marks=pytest.mark.slow)])
def test_example(name, broker, registry, tmp_path):
    play(EXAMPLES / f"{name}.slt", broker, registry, tmp_path / "db", parallelism=2)
