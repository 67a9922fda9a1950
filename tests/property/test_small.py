"""The law where every size is tiny: merges in segments, split files, colliding hashes and compactions in every case."""

from __future__ import annotations

import pytest

from tests.property.small import small
from tests.property.test_deep import run as run_deep
from tests.property.test_views import run
from tests.thorough import mostly_slow


@pytest.mark.parametrize("seed", mostly_slow(range(8000, 8020), 0))
def test_views(seed: int) -> None:
    with small():
        run(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.parametrize("seed", mostly_slow(range(8500, 8510), 0))
def test_deep_views(seed: int) -> None:
    with small():
        run_deep(seed, runtime="inprocess", parallelism=1 + seed % 3)
