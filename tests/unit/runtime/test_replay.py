"""The law of replay: an epoch that is run again, cut and ordered otherwise, writes the same bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.runtime import trees
from tests.unit.runtime.kit import GROUPED, JOINED, Kit

from watersmeet.runtime.committer import commit_epoch, job_of
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.taskcontract import Receipt
from watersmeet.runtime.tasks import run_whole
from watersmeet.runtime.workers import Workers
from watersmeet.values.types import BIGINT, DOUBLE, VARCHAR

SUMS = (
    lambda kit: trees.group(kit.scan("f"), ["k"], ("n", "count", None)),
    "SELECT k, count(*) AS n FROM f GROUP BY k",
)


@pytest.mark.parametrize("buckets", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3])
def test_same_bytes(tmp_path, buckets):
    rng = random.Random(buckets)
    kit = Kit(tmp_path / "db", buckets=buckets)
    kit.table("a", k=BIGINT, x=VARCHAR)
    kit.table("b", k=BIGINT, y=BIGINT)
    kit.table("f", k=BIGINT, y=DOUBLE)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("grouped", *GROUPED)
    kit.view("sums", *SUMS)
    for _ in range(6):
        for _ in range(4):
            kit.change(
                a=[(rng.randrange(9), rng.choice(["x", None]), 1) for _ in range(9)],
                b=[(rng.randrange(9), rng.randrange(5), rng.choice([1, 1, 2])) for _ in range(5)],
                f=[(rng.randrange(4), rng.choice([0.1, 1e16, -0.0]), 1) for _ in range(5)],
            )
        coordinator = Coordinator(kit.db)
        intent = coordinator.plan(0)
        job = job_of(kit.db, kit.circuit(), intent, Workers())
        first = receipts(job, buckets)
        for _ in range(4):
            again = receipts(replace(job, intent=replace(intent, tasks=recut(intent.slices, rng, buckets))), buckets)
            assert [r.segment for r in again] == [r.segment for r in first]
            assert [r.relations for r in again] == [r.relations for r in first]
        commit_epoch(kit.db, kit.circuit(), intent, first, duration_us=0)
        coordinator.close()
        kit.check_by_content()
    kit.close()


def receipts(job, buckets):
    """Of the tasks that have state: how stage 0 is cut is free if there are several buckets."""
    found = [Receipt.from_bytes(bytes(f.body)) for f in run_whole(job)]
    return sorted((r for r in found if r.stage or buckets == 1), key=lambda r: (r.stage, r.bucket))


def recut(slices, rng, buckets):
    """The same slices in other tasks and another order; their numbers tell what came first."""
    groups = [[] for _ in range(rng.randrange(1, 4) if buckets > 1 else 1)]
    for piece in rng.sample(slices, len(slices)):
        rng.choice(groups).append(piece)
    return tuple(tuple(g) for g in groups if g)
