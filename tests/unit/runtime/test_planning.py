"""Pieces of planning: budgets, tasks, intents as text."""

from __future__ import annotations

import pytest
from benchmarks.nexmarkconnector import NexmarkSpec
from benchmarks.nexmarkevents import Settings
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.circuit.epochs import (
    ClockInput,
    Fill,
    Live,
    Rebuild,
    Rescale,
    SplitKeys,
    StateDistribution,
    StoredContent,
)
from watersmeet.connectors.datagen import DatagenSpec
from watersmeet.connectors.files.options import FileOptions, FileSpec
from watersmeet.database.plans import default_parallelism
from watersmeet.errors import Error, error
from watersmeet.kernel.runs.trace import CHUNK_BYTES
from watersmeet.runtime import workers
from watersmeet.runtime.failures import view_failed
from watersmeet.runtime.taskcontract import InputSpec, Intent, TimedInput, divide
from watersmeet.runtime.workers import (
    FIRST_BYTES,
    FIRST_ROWS,
    LIMITED_BYTES,
    LIMITED_ROWS,
    MAX_BYTES,
    MAX_ROWS,
    MERGING,
    WORKER,
    Budget,
    PieceBudget,
    Workers,
    merge_bytes,
    workers_elsewhere,
    workers_here,
)
from watersmeet.store.manifests import Backfill, Filling, Frontier, Rebuilding
from watersmeet.system.process import cores
from watersmeet.values.slices import ChangeSlice
from watersmeet.values.types import BIGINT, TIMESTAMP, Field

OPTIONS = FileOptions("/in", "*.csv", None, recursive=False, format="csv", delimiter=";", settle_ms=7)


def test_budget_grows_with_the_backlog_up_to_the_cap():
    budget = Budget()
    seen = []
    for _ in range(6):
        seen.append(budget.rows)
        budget.planned(limited=True)
    assert seen == [FIRST_ROWS, 500_000, 1_000_000, MAX_ROWS, MAX_ROWS, MAX_ROWS]
    assert budget.bytes == MAX_BYTES
    for _ in range(6):
        budget.planned(limited=False)
    assert (budget.rows, budget.bytes) == (FIRST_ROWS, FIRST_BYTES)


def test_budget_grows_twice_as_fast_while_epochs_are_short():
    budget = Budget()
    budget.planned(limited=True)
    assert budget.rows == 2 * FIRST_ROWS  # nobody knows yet
    budget.ran(0.4)
    budget.planned(limited=True)
    assert budget.rows == 8 * FIRST_ROWS
    for _ in range(3):
        budget.planned(limited=False)
    budget.ran(1.5)
    budget.planned(limited=True)
    assert budget.rows == 2 * FIRST_ROWS


def test_long_epochs_are_followed_by_smaller_ones():
    budget = Budget()
    for _ in range(3):
        budget.planned(limited=True)
    budget.ran(7.0)
    assert budget.rows == 4 * FIRST_ROWS
    budget.ran(70.0)
    assert budget.rows == FIRST_ROWS


def test_epochs_are_cut_by_what_their_joins_make():
    budget = Budget()
    for _ in range(3):
        budget.planned(limited=True)
    budget.joined(400_000, 0.4)
    assert budget.rows == 500_000  # a larger one would use more than half of what its joins may make
    budget.joined(500_000, 5.0)
    assert budget.rows == 50_000
    budget.joined(0, 0.0)
    assert budget.rows == 50_000
    budget.joined(50_000, 1e9)
    assert budget.rows == 1
    budget.joined(1, 0.0)
    assert budget.rows == MAX_ROWS


def test_epochs_are_as_large_as_workers_with_limited_memory_can_take():
    budget = Budget(workers=Workers(2, 512 << 20))
    for buckets, most_bytes in ((1, 64 << 20), (3, 192 << 20), (8, 512 << 20), (400, LIMITED_BYTES)):
        budget.buckets = buckets
        for _ in range(9):
            budget.planned(limited=True)
        assert budget.bytes == most_bytes
        assert budget.rows == FIRST_ROWS * most_bytes // FIRST_BYTES <= LIMITED_ROWS
        for _ in range(9):
            budget.planned(limited=False)
        assert budget.bytes == FIRST_BYTES
    for _ in range(3):
        budget.planned(limited=True)
    budget.ran(7.0)
    assert budget.rows == 8 * FIRST_ROWS
    budget.ran(25.0)
    assert budget.rows == 4 * FIRST_ROWS
    budget.ran(70.0)
    assert budget.rows == FIRST_ROWS


def test_workers_have_what_is_said_or_share_half_of_their_container(monkeypatch):
    monkeypatch.delenv(WORKER, raising=False)
    monkeypatch.setattr(workers, "container_bytes", lambda: None)
    ample = workers_here(2)
    assert ample == workers_elsewhere(2) == Workers(2, None)
    assert ample.input_bytes is ample.piece_bytes is ample.stay_bytes(4) is None
    assert not ample.are_small
    monkeypatch.setattr(workers, "container_bytes", lambda: 6 << 30)
    assert workers_here(2) == Workers(2, 3 << 29)
    assert workers_here(2).are_small
    assert not workers_here(1).are_small
    assert workers_elsewhere(2) == Workers(2, None)
    monkeypatch.setenv(WORKER, str(1 << 30))
    assert workers_here(2) == workers_elsewhere(2) == Workers(2, 1 << 30)


def test_what_a_worker_has_at_a_time_suits_its_memory():
    small = Workers(2, 1 << 30)
    assert small.piece_bytes == 64 << 20
    assert Workers(2, 1 << 40).piece_bytes == CHUNK_BYTES
    assert 64 << 20 < small.stay_bytes(2) < 512 << 20
    assert small.stay_bytes(1) == small.stay_bytes(2)
    for buckets in (3, 8, 64):  # all of those that a worker has, together no more
        of_a_worker = -(-buckets // 2) * small.stay_bytes(buckets)
        assert small.stay_bytes(2) * 0.9 < of_a_worker <= small.stay_bytes(2)


def test_small_workers_have_several_buckets(monkeypatch):
    monkeypatch.delenv(WORKER, raising=False)
    monkeypatch.setattr(workers, "container_bytes", lambda: None)
    assert default_parallelism("spark") == cores()
    monkeypatch.setenv(WORKER, str(1 << 30))
    assert default_parallelism("spark") == 4 * cores()
    assert default_parallelism("inprocess") == 1


def test_bytes_are_given_as_a_number(monkeypatch):
    monkeypatch.delenv(MERGING, raising=False)
    usual = merge_bytes()
    monkeypatch.setenv(WORKER, str(1 << 30))
    assert merge_bytes() == usual
    monkeypatch.setenv(MERGING, "5")
    assert merge_bytes() == 5
    for name, asked in ((MERGING, merge_bytes), (WORKER, workers_here), (WORKER, lambda: workers_elsewhere(1))):
        monkeypatch.setenv(name, "1 GB")
        with pytest.raises(Error, match=f"{name} is a number of bytes above 0") as problem:
            asked()
        assert problem.value.condition == "INVALID_PARAMETER"
        monkeypatch.delenv(name)


def test_a_piece_of_history_takes_a_short_time():
    """Rows that take long make pieces smaller; commits that take long do not, beyond a size."""
    pieces = PieceBudget(Budget())
    assert pieces.rows == 20_000
    pieces.ran(0.01)
    assert pieces.rows == 40_000
    pieces.ran(0.08)
    assert pieces.rows == 30_000
    for _ in range(9):
        pieces.ran(0.3)
    assert pieces.rows == 10_000
    for _ in range(9):
        pieces.ran(0.6)
    assert pieces.rows == 2_000
    pieces.ran(0.3)
    assert pieces.rows == 2_000
    pieces.ran(0.03)
    assert pieces.rows == 4_000
    for _ in range(9):
        pieces.ran(0.03)
    assert pieces.rows == FIRST_ROWS


@given(st.lists(st.integers(0, 5 << 20), max_size=30), st.integers(1, 5))
def test_tasks_hold_every_slice_once_and_balanced(sizes, buckets):
    slices = [ChangeSlice(relation="t1", rows=1, size_bytes=s, file="f.segment", offset_bytes=64) for s in sizes]
    tasks = divide(slices, buckets)
    assert 1 <= len(tasks) <= buckets
    numbers = sorted(s.seq for t in tasks for s in t)
    assert numbers == list(range(len(sizes)))
    assert all(slices[s.seq].size_bytes == s.size_bytes for t in tasks for s in t)
    loads = [sum(s.size_bytes for s in t) for t in tasks]
    assert max(loads) <= sum(sizes) / len(tasks) + max(sizes, default=0)


@pytest.mark.parametrize("purpose", [Filling(("m1",), ("t1",), 3, 1), Rebuilding(("m1",), "abc")])
@pytest.mark.parametrize(
    "mode",
    [
        Live(),
        Live({"s1": ("s2",)}, {"s3": 7}, {"s1": {"s1.ts": ClockInput("ts")}}),
        Fill(first=True, roles={"join-1": "copied", "sink-2": "new"}),
        Fill(False, {"arrange-1": "replayed"}, {"join-1": StoredContent("m2", ((0,), (1, 2)))}, 1, 3),
        Fill(False, {"join-1": "new"}, beside=True),
        Rebuild(first=True),
        Rebuild(first=False),
        SplitKeys({"exchange-1": (5, (1 << 64) - 1)}),
        Rescale(
            {
                "arrange-1": {"": StateDistribution("keyed", ((0,), (1, 2)))},
                "timefilter-2": {"passed": StateDistribution("pooled")},
            }
        ),
    ],
)
def test_an_intent_survives_as_text(mode, purpose):
    intent = an_intent(mode, purpose)
    assert Intent.from_text(intent.to_text()) == intent
    with pytest.raises(Error):
        Intent.from_text("{}")


def an_intent(mode=Live(), purpose=Filling(("m1",))):
    slices = [ChangeSlice(relation="t1", rows=1, size_bytes=10, file="f.segment", offset_bytes=64)]
    return Intent(
        7,
        "abc",
        Frontier(5, {"s1": {"slices": 3}}, Backfill(purpose, 1, 2, 3, ("t1", "s1"), ["file", 2], started=True)),
        mode,
        divide(slices, 2),
        everywhere=True,
        specs={
            "t1": InputSpec({"b": "7"}),
            "s1": InputSpec(source=FileSpec((Field("a", BIGINT),), ("a",), OPTIONS), arrivals=("p",)),
            "s2": InputSpec(source=DatagenSpec((Field("a", BIGINT),), {"a.min": "3"}, 10)),
            "s3": InputSpec(source=NexmarkSpec("bid", Settings(seed=4))),
        },
        event_times={"s1": TimedInput(Field("ts", TIMESTAMP), 5, 6, drops=True)},
        time_us=5,
        most_rows={"join-1": (1, 0)},
    )


def test_failures_keep_what_helps():
    damaged = error("STATE_DAMAGED", "x is missing")
    assert view_failed(damaged) is damaged
    assert view_failed(error("INVALID_VALUE", "bad", detail="D.")).condition == "VIEW_FAILED"
    made = view_failed(ValueError("odd"))
    assert made.condition == "VIEW_FAILED"
    assert "ValueError: odd" in made.message
