"""Examples of RisingWave and Timeplus whose inputs are topics of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.topicexamples import play

EXAMPLES = {
    "risingwave": ("asof-inner", "asof-left", "interval-join", "window-join", "hop-window-join", "join-order"),
    "timeplus": ("append-join-append", "asof-append-append", "latest-append-append", "range-join", "self-join"),
}


@pytest.mark.parametrize(("dialect", "name"), [(d, n) for d, names in EXAMPLES.items() for n in names])
def test_example(dialect, name, broker, topic, tmp_path):
    path = Path(__file__).parent / dialect / "examples" / f"{name}.slt"
    play(path, broker, topic, tmp_path / "db", runtime="inprocess", parallelism=2)
