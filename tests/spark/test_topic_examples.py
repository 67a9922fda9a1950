"""Examples of RisingWave and Timeplus on Spark, whose inputs are topics of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.topicexamples import play

FOLDER = Path(__file__).parents[1] / "slt"
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        pytest.param("risingwave", "asof-left", marks=SLOW),
        pytest.param("risingwave", "interval-join", marks=SLOW),
        pytest.param("risingwave", "window-join", marks=SLOW),
        ("timeplus", "latest-append-append"),
        pytest.param("timeplus", "range-join", marks=SLOW),
        pytest.param("timeplus", "asof-append-append", marks=SLOW),
    ],
)
def test_example(dialect, name, broker, topic, tmp_path):
    play(FOLDER / dialect / "examples" / f"{name}.slt", broker, topic, tmp_path / "db", runtime="spark", parallelism=2)
