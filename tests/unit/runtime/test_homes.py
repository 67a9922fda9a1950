"""Where buckets are to run: decisions without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

from watersmeet.runtime.committer import Returns
from watersmeet.runtime.output import own_executor
from watersmeet.runtime.spark.jobs import Executor, Homes

A, B, C = (Executor(i, f"host-{i}") for i in "abc")
TWICE = Executor("t", "host-t", cores=2)


def buckets_of(homes):
    return Counter(e.id for e in homes.of)


def ran(homes, stage=1):
    return {(stage, bucket): executor.id for bucket, executor in enumerate(homes.of)}


def test_buckets_are_spread_by_cores():
    assert buckets_of(Homes().settled(8, [A, B])) == {"a": 4, "b": 4}
    assert buckets_of(Homes().settled(9, [A, TWICE])) == {"a": 3, "t": 6}
    assert buckets_of(Homes().settled(2, [A, B, C])).most_common(1)[0][1] == 1


def test_homes_stay():
    homes = Homes().settled(7, [A, B])
    assert homes.settled(7, [B, A]) == homes
    after = homes.after(ran(homes), [A, B], apart=True)
    assert after.settled(7, [A, B]).of == homes.of
    assert after.returns(ran(homes)) == Returns(local=7, moved=0)


def test_buckets_of_an_executor_that_is_gone_move_at_once_and_no_others():
    homes = Homes().settled(9, [A, B, C])
    now = homes.settled(9, [A, C])
    assert buckets_of(now) == {"a": 5, "c": 4}
    assert all(old == new for old, new in zip(homes.of, now.of, strict=True) if old != B)


def test_the_same_machine_is_as_good_as_it_gets():
    again = Executor("d", B.host)
    others = [Executor(i, "elsewhere") for i in "xyz"]
    homes = Homes(of=(B, B, *others))
    assert homes.settled(5, [*others, again]).of == (again, again, *others)


def test_a_few_buckets_at_a_time_move_to_an_executor_that_comes():
    homes = Homes().settled(64, [A])
    for _ in range(10):
        now = homes.settled(64, [A, B])
        moved = sum(old != new for old, new in zip(homes.of, now.of, strict=True))
        assert moved <= 8
        assert moved or buckets_of(homes) == {"a": 32, "b": 32}
        homes = now
    assert buckets_of(homes) == {"a": 32, "b": 32}


def test_nothing_is_wished_for_without_executors():
    homes = Homes().settled(3, [A])
    homes = homes.after(ran(homes), [A], apart=True)
    assert homes.settled(3, []).of == ()
    assert homes.of_all([]) is None
    assert homes.of_all([B]) is None
    assert Homes().of_all([A]) is None


def test_who_took_a_bucket_has_it():
    homes = Homes().settled(4, [A, B])
    stolen = {**ran(homes), (1, 0): B.id}
    after = homes.after(ran(homes), [A, B], apart=True).after(stolen, [A, B], apart=True)
    assert after.of[0] == B
    # Of several stages the last one counts: nobody knows more of the bucket.
    assert homes.after({(1, 0): B.id, (2, 0): A.id}, [A, B], apart=True).of[0] == A
    # An executor of which the driver does not know yet can't be wished for.
    assert homes.after({(1, 0): "new"}, [A, B], apart=True).of == homes.of


def test_an_epoch_that_is_one_task_runs_where_the_last_one_ran():
    homes = Homes().settled(4, [A, B])
    homes = homes.after(ran(homes), [A, B], apart=True)
    whole = dict.fromkeys(ran(homes), B.id)
    assert homes.returns(whole) == Returns(local=2, moved=2)
    after = homes.after(whole, [A, B], apart=False)
    assert after.of == homes.of, "buckets of large epochs stay spread"
    assert after.of_all([A, B]) == B
    assert after.returns(whole) == Returns(local=4, moved=0)


def test_what_never_ran_counts_nowhere():
    assert Homes().returns({(1, 0): "a", (1, 1): "b"}) == Returns()


@pytest.mark.parametrize(("before", "now"), [(2, 8), (8, 2), (3, 5)])
def test_another_number_of_buckets_begins_where_their_hashes_were(before, now):
    homes = Homes().settled(before, [A, B])
    found = homes.settled(now, [A, B])
    stayed = sum(found.of[b] == homes.of[b * before // now] for b in range(now))
    assert stayed >= now - 2


@pytest.mark.parametrize("seed", range(20))
def test_any_history_ends_evenly(seed):
    """Executors come and go, buckets are taken by others: homes are always there, few move, and all have as much."""
    r = random.Random(seed)
    every = [Executor(str(i), f"host-{i % 4}", r.choice([1, 1, 2])) for i in range(12)]
    homes, there = Homes(), {every[0]}
    buckets = r.randint(1, 40)
    for _ in range(60):
        there ^= {r.choice(every)}
        now = homes.settled(buckets, there)
        assert len(now.of) == (buckets if there else 0)
        assert set(now.of) <= there
        kept = sum(old in there and old != new for old, new in zip(homes.of, now.of, strict=False))
        assert kept <= max(2, buckets // 8)
        stolen = {
            step: r.choice(sorted(there, key=lambda e: e.id)).id if r.random() < 0.1 else i
            for step, i in ran(now).items()
        }
        homes = now.after(stolen, there, apart=r.random() < 0.7)
    there |= {every[0]}
    for _ in range(buckets):
        homes = homes.settled(buckets, there)
    assert homes.settled(buckets, there) == homes
    load = buckets_of(homes)
    fullest = max(load[e.id] / e.cores for e in there)
    assert all((load[e.id] + 1) / e.cores >= fullest for e in there)


def test_a_process_below_an_executor_knows_its_id():
    assert own_executor() == ""
    code = "from watersmeet.runtime.output import own_executor; print(own_executor())"
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
