"""The law and the text tests on Spark: few of each, with one, two and three buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.property.test_deep import run as run_deep
from tests.property.test_timed_joins import run as run_timed
from tests.property.test_views import run as run_seed
from tests.slt.test_text import files
from tests.slt.test_text import run as run_text


@pytest.mark.parametrize("seed", range(12))
def test_random_views(seed: int) -> None:
    run_seed(seed, runtime="spark", parallelism=1 + seed % 3)


@pytest.mark.parametrize("seed", range(2000, 2024))
def test_deep_views(seed: int) -> None:
    run_deep(seed, runtime="spark", parallelism=1 + seed % 2)


@pytest.mark.parametrize("seed", range(3))
def test_random_timed_joins(seed: int, tmp_path: Path) -> None:
    run_timed(seed, tmp_path / "db", runtime="spark", parallelism=1 + seed, deliveries=4)


@pytest.mark.parametrize("path", files(), ids=lambda p: p.name)
def test_text(path: Path) -> None:
    run_text(path, runtime="spark", parallelism=2)
