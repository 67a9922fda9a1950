"""Where buckets are to run: decisions without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

from watersmeet.runtime.committer import Locality
from watersmeet.runtime.spark.jobs import Executor, TaskAffinity
from watersmeet.runtime.stages import own_executor

A, B, C = (Executor(i, f"host-{i}") for i in "abc")
TWICE = Executor("t", "host-t", cores=2)


def buckets_of(affinity):
    return Counter(e.id for e in affinity.of)


def ran(affinity, stage=1):
    return {(stage, bucket): executor.id for bucket, executor in enumerate(affinity.of)}


def test_buckets_are_spread_by_cores():
    assert buckets_of(TaskAffinity().rebalanced(8, [A, B])) == {"a": 4, "b": 4}
    assert buckets_of(TaskAffinity().rebalanced(9, [A, TWICE])) == {"a": 3, "t": 6}
    assert buckets_of(TaskAffinity().rebalanced(2, [A, B, C])).most_common(1)[0][1] == 1


def test_affinity_stays():
    affinity = TaskAffinity().rebalanced(7, [A, B])
    assert affinity.rebalanced(7, [B, A]) == affinity
    after = affinity.after(ran(affinity), [A, B], apart=True)
    assert after.rebalanced(7, [A, B]).of == affinity.of
    assert after.locality(ran(affinity)) == Locality(local=7, moved=0)


def test_buckets_of_an_executor_that_is_gone_move_at_once_and_no_others():
    affinity = TaskAffinity().rebalanced(9, [A, B, C])
    now = affinity.rebalanced(9, [A, C])
    assert buckets_of(now) == {"a": 5, "c": 4}
    assert all(old == new for old, new in zip(affinity.of, now.of, strict=True) if old != B)


def test_the_same_machine_is_as_good_as_it_gets():
    again = Executor("d", B.host)
    others = [Executor(i, "elsewhere") for i in "xyz"]
    affinity = TaskAffinity(of=(B, B, *others))
    assert affinity.rebalanced(5, [*others, again]).of == (again, again, *others)


def test_a_few_buckets_at_a_time_move_to_an_executor_that_comes():
    affinity = TaskAffinity().rebalanced(64, [A])
    for _ in range(10):
        now = affinity.rebalanced(64, [A, B])
        moved = sum(old != new for old, new in zip(affinity.of, now.of, strict=True))
        assert moved <= 8
        assert moved or buckets_of(affinity) == {"a": 32, "b": 32}
        affinity = now
    assert buckets_of(affinity) == {"a": 32, "b": 32}


def test_nothing_is_wished_for_without_executors():
    affinity = TaskAffinity().rebalanced(3, [A])
    affinity = affinity.after(ran(affinity), [A], apart=True)
    assert affinity.rebalanced(3, []).of == ()
    assert affinity.of_all([]) is None
    assert affinity.of_all([B]) is None
    assert TaskAffinity().of_all([A]) is None


def test_who_took_a_bucket_has_it():
    affinity = TaskAffinity().rebalanced(4, [A, B])
    stolen = {**ran(affinity), (1, 0): B.id}
    after = affinity.after(ran(affinity), [A, B], apart=True).after(stolen, [A, B], apart=True)
    assert after.of[0] == B
    # Of several stages the last one counts: nobody knows more of the bucket.
    assert affinity.after({(1, 0): B.id, (2, 0): A.id}, [A, B], apart=True).of[0] == A
    # An executor of which the driver does not know yet can't be wished for.
    assert affinity.after({(1, 0): "new"}, [A, B], apart=True).of == affinity.of


def test_an_epoch_that_is_one_task_runs_where_the_last_one_ran():
    affinity = TaskAffinity().rebalanced(4, [A, B])
    affinity = affinity.after(ran(affinity), [A, B], apart=True)
    whole = dict.fromkeys(ran(affinity), B.id)
    assert affinity.locality(whole) == Locality(local=2, moved=2)
    after = affinity.after(whole, [A, B], apart=False)
    assert after.of == affinity.of, "buckets of large epochs stay spread"
    assert after.of_all([A, B]) == B
    assert after.locality(whole) == Locality(local=4, moved=0)


def test_what_never_ran_counts_nowhere():
    assert TaskAffinity().locality({(1, 0): "a", (1, 1): "b"}) == Locality()


@pytest.mark.parametrize(("before", "now"), [(2, 8), (8, 2), (3, 5)])
def test_another_number_of_buckets_begins_where_their_hashes_were(before, now):
    affinity = TaskAffinity().rebalanced(before, [A, B])
    found = affinity.rebalanced(now, [A, B])
    stayed = sum(found.of[b] == affinity.of[b * before // now] for b in range(now))
    assert stayed >= now - 2


@pytest.mark.parametrize("seed", range(20))
def test_any_history_ends_evenly(seed):
    """Executors come and go, buckets are taken by others: affinity are always there, few move, and all have as much."""
    r = random.Random(seed)
    every = [Executor(str(i), f"host-{i % 4}", r.choice([1, 1, 2])) for i in range(12)]
    affinity, there = TaskAffinity(), {every[0]}
    buckets = r.randint(1, 40)
    for _ in range(60):
        there ^= {r.choice(every)}
        now = affinity.rebalanced(buckets, there)
        assert len(now.of) == (buckets if there else 0)
        assert set(now.of) <= there
        kept = sum(old in there and old != new for old, new in zip(affinity.of, now.of, strict=False))
        assert kept <= max(2, buckets // 8)
        stolen = {
            step: r.choice(sorted(there, key=lambda e: e.id)).id if r.random() < 0.1 else i
            for step, i in ran(now).items()
        }
        affinity = now.after(stolen, there, apart=r.random() < 0.7)
    there |= {every[0]}
    for _ in range(buckets):
        affinity = affinity.rebalanced(buckets, there)
    assert affinity.rebalanced(buckets, there) == affinity
    load = buckets_of(affinity)
    fullest = max(load[e.id] / e.cores for e in there)
    assert all((load[e.id] + 1) / e.cores >= fullest for e in there)


def test_a_process_below_an_executor_knows_its_id():
    assert own_executor() == ""
    code = "from watersmeet.runtime.stages import own_executor; print(own_executor())"
    # As Spark does it: a process with the id in its command line starts one that starts another.
    between = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}]))"
    above = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {between!r}]))"
    found = subprocess.run(
        [sys.executable, "-c", above, "--executor-id", "17", "--hostname", "h"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "17"
