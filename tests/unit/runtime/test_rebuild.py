"""State made anew for another number of buckets; compaction under the engine; engines that start on odd states."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from tests.unit.runtime import trees
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

from watersmeet.errors import Error
from watersmeet.planner import assemble, compile_view
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget
from watersmeet.store.compaction import Compactor


def small(db):
    return InProcessEngine(db, make_coordinator=partial(Coordinator, budget=Budget(first_rows=10, max_rows=20)))


def filled(tmp_path, buckets, seed=1):
    rng = random.Random(seed)
    kit = Kit(tmp_path / "db", buckets=buckets, make_engine=small)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("grouped", *GROUPED)
    kit.view("total", *TOTAL)
    for _ in range(4):
        change(kit, rng)
    kit.engine.flush()
    return kit, rng


def change(kit, rng):
    kit.change(
        a=[(rng.randrange(9), rng.choice(["x", None]), 1) for _ in range(9)],
        b=[(rng.randrange(9), rng.randrange(5), 1) for _ in range(5)],
    )


def for_buckets(kit, buckets):
    """The same views compiled for another number of buckets."""
    views = {}
    for name, (tree, _) in (("joined", JOINED), ("grouped", GROUPED), ("total", TOTAL)):
        relation = kit.catalog.by_name(name)
        views[relation.id] = compile_view(tree(kit), relation, views)
    kit.views, kit.buckets = views, buckets
    return assemble(views.values(), buckets)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (2, 2)])
def test_rebuild(tmp_path, before, after):
    kit, rng = filled(tmp_path, before)
    kit.engine.rebuild(for_buckets(kit, after))
    kit.check()
    assert {int(k.partition("/")[2]) for k in kit.log.last_epoch().segments} <= set(range(after))
    for _ in range(3):
        change(kit, rng)
        kit.engine.flush()
        kit.check()
    kit.close()
    kit = kit.reopen()
    kit.engine.start()
    change(kit, rng)
    kit.engine.flush()
    kit.check()
    kit.close()


def cut_off(kit, circuit, monkeypatch):
    """The kit after a rebuild that was killed in its third epoch."""
    calls = []

    def dying(self, coordinator, intent):
        calls.append(intent.epoch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        run(self, coordinator, intent)

    run = InProcessEngine._run
    monkeypatch.setattr(InProcessEngine, "_run", dying)
    with pytest.raises(KeyboardInterrupt):
        kit.engine.rebuild(circuit)
    monkeypatch.setattr(InProcessEngine, "_run", run)
    kit.crash()
    kit = kit.reopen()
    kit.engine.start()
    assert kit.log.last_epoch().frontier.backfill.purpose.kind == "rebuilding"
    return kit


def test_a_rebuild_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    kit, rng = filled(tmp_path, 2)
    kit = cut_off(kit, for_buckets(kit, 3), monkeypatch)
    change(kit, rng)
    kit.engine.flush()
    kit.check()
    assert kit.log.last_epoch().frontier.backfill is None
    kit.close()


def test_a_rebuild_that_was_cut_off_is_given_up(tmp_path, monkeypatch):
    kit, rng = filled(tmp_path, 2)
    before = dict(kit.views)
    kit = cut_off(kit, for_buckets(kit, 3), monkeypatch)
    kit.views, kit.buckets = before, 2
    kit.install()
    assert kit.log.last_epoch().frontier.backfill is None
    assert not any(k.startswith("~") for k in kit.log.last_epoch().segments)
    for _ in range(2):
        change(kit, rng)
        kit.engine.flush()
        kit.check()
    kit.close()


def test_circuit_of_another_parallelism_is_refused(tmp_path):
    kit, _ = filled(tmp_path, 2)
    with pytest.raises(Error) as raised:
        kit.engine.install(for_buckets(kit, 3))
    assert raised.value.condition == "PARALLELISM_MISMATCH"
    kit.close()


def test_another_plan_for_a_live_view_is_refused(tmp_path):
    kit, _ = filled(tmp_path, 2)
    other = kit.catalog.by_name("grouped")
    kit.views[other.id] = compile_view(
        JOINED[0](kit), replace(other, columns=kit.catalog.by_name("joined").columns), {}
    )
    joined = kit.catalog.by_name("joined").id
    kit.views[joined] = compile_view(
        TOTAL[0](kit), replace(kit.catalog.by_name("joined"), columns=kit.catalog.by_name("total").columns), {}
    )
    total = kit.catalog.by_name("total").id
    kit.views[total] = compile_view(
        grouped_over_b(kit), replace(kit.catalog.by_name("total"), columns=other.columns), {}
    )
    with pytest.raises(Error) as raised:
        kit.engine.install(kit.circuit())
    assert raised.value.condition == "STATE_MISMATCH"
    kit.close()


def grouped_over_b(kit):
    return trees.group(kit.scan("b"), ["k"], ("n", "count", None), ("s", "sum", "y"))


@pytest.mark.parametrize("buckets", [1, 2])
def test_compaction_and_backfill(tmp_path, buckets):
    kit = Kit(tmp_path / "db", buckets=buckets, make_engine=small)
    two_tables(kit)
    kit.engine.start()
    compactor = Compactor(kit.layout, kit.log, kit.segments, lambda: kit.catalog, commits=2)
    rng = random.Random(2)
    for _ in range(5):
        change(kit, rng)
        compactor.run()
    kit.view("joined", *JOINED)
    kit.check()
    for _ in range(6):
        change(kit, rng)
        kit.engine.flush()
        compactor.run()
        kit.check()
    change(kit, rng)
    compactor.run()
    kit.view("grouped", *GROUPED)
    kit.view("total", *TOTAL)
    compactor.run()
    kit.engine.flush()
    kit.check()
    kit.close()
    kit = kit.reopen()
    kit.engine.start()
    change(kit, rng)
    kit.engine.flush()
    kit.check()
    kit.close()


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_view_made_again_after_an_attempt_that_was_cut_off(tmp_path, buckets, monkeypatch):
    """The second attempt has the same operators, and finds what the first one left: their state, and scratch state."""
    rng = random.Random(4)
    kit = Kit(tmp_path / "db", buckets=buckets, make_engine=small)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    for _ in range(4):
        change(kit, rng)
    kit.engine.flush()
    calls = []

    def dying(self, coordinator, intent):
        calls.append(intent.epoch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        run(self, coordinator, intent)

    run = InProcessEngine._run
    monkeypatch.setattr(InProcessEngine, "_run", dying)
    with pytest.raises(KeyboardInterrupt):
        kit.view("grouped", *GROUPED)
    monkeypatch.setattr(InProcessEngine, "_run", run)
    relation = kit.catalog.by_name("grouped")
    kit.views.pop(relation.id)
    kit.catalog = kit.catalog.without({relation.id})
    kit.model.execute("DROP VIEW grouped")
    kit.crash()
    kit = kit.reopen()
    kit.engine.start()
    assert kit.log.last_epoch().frontier.backfill.purpose.views == (relation.id,)
    kit.view("grouped", *GROUPED)
    kit.check()
    change(kit, rng)
    kit.engine.flush()
    kit.check()
    kit.close()
