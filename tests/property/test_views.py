"""The law: after every batch a view equals the batch result of its query over the current tables.

Covers RW-01 to RW-19, RA-03, RA-26, RA-27, RA-30 over random schemas, queries and histories.
WATERSMEET_SEEDS=from-to runs other seeds, for example WATERSMEET_SEEDS=10000-15000.
"""

from __future__ import annotations

import pytest

from tests.property.runs import run
from tests.thorough import mostly_slow

#: Seeds that once failed: what was wrong is in the commit that added them.
REGRESSIONS: tuple[int, ...] = (1115,)


@pytest.mark.parametrize("seed", mostly_slow([*REGRESSIONS, *range(25)], len(REGRESSIONS) + 2))
def test_in_process(seed: int) -> None:
    run(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_in_process(block: int) -> None:
    for seed in range(1000 + 40 * block, 1040 + 40 * block):
        run(seed, runtime="inprocess", parallelism=1 + seed % 3)
