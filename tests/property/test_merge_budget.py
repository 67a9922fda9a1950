"""Random cases in which an epoch merges next to nothing: merges stand in the midst while processes are killed and while
the number of buckets changes.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest

from tests.property.test_rescale import rescale
from tests.thorough import mostly_slow
from watersmeet.kernel.runs import cold, run, trace
from watersmeet.runtime.stages import EarlyBlobs
from watersmeet.runtime.workers import MERGING, WORKER
from watersmeet.store import segments


def slowly(seed: int, worker_bytes: int | None = None) -> tuple[int, int]:
    """(how many changes of traces left a merge under way, how many statements were killed). worker_bytes: what workers
    may use.
    """
    settled, waiting = trace.settled, 0

    def counted(*arguments, **options):
        nonlocal waiting
        runs = settled(*arguments, **options)
        waiting += any(r.merging for r in runs)
        return runs

    with (
        mock.patch.dict(os.environ, {MERGING: "200"} | ({WORKER: str(worker_bytes)} if worker_bytes else {})),
        mock.patch.multiple(trace, FAN_IN=2, LEVEL_0_ROWS=1, LEAST_BYTES=1, _LEVELS=0),
        mock.patch.object(trace, "settled", counted),
    ):
        _, stops = rescale(seed)
    return waiting, stops


@pytest.mark.slow
def test_merges_stand_in_the_midst() -> None:
    found = [slowly(seed) for seed in range(9300, 9303)]
    print(found)
    assert all(sum(counts) > 3 for counts in zip(*found, strict=True))


def test_workers_have_little_memory() -> None:
    """Runs do not stay in it, and merges store each piece."""
    with (
        mock.patch.object(run, "INDEXED_BYTES", 1),
        mock.patch.object(cold, "_MOST_COPIED", 0),
        mock.patch.object(segments, "OWN_FILE_BYTES", 1),
        mock.patch.object(cold.StreamedRun, "nearby", autospec=True, side_effect=cold.StreamedRun.nearby) as nearby,
        mock.patch.object(EarlyBlobs, "add", autospec=True, side_effect=EarlyBlobs.add) as added,
    ):
        for seed in (9402, 9403):
            slowly(seed, 2000)
    print(nearby.call_count, added.call_count)
    assert nearby.call_count > 5
    assert added.call_count > 5


@pytest.mark.parametrize("seed", mostly_slow(range(9310, 9360), 0, 2))
def test_more_histories(seed: int) -> None:
    slowly(seed, 2000 if seed % 2 else None)
