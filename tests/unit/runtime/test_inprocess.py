"""The engine without Spark: epochs, backfill, restart."""

from __future__ import annotations

import pytest
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

from watersmeet.runtime.stages import stored_state
from watersmeet.store.compaction import Compactor

pytestmark = pytest.mark.parametrize("buckets", [1, 2, 3])


def test_changes_reach_views_on_views(tmp_path, buckets):
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("grouped", *GROUPED)
    kit.view("total", *TOTAL)
    kit.check()
    kit.change(a=[(1, "one", 1), (2, "two", 1)], b=[(1, 10, 1)])
    kit.engine.flush()
    kit.check()
    kit.change(b=[(1, 10, -1), (2, 20, 2)])
    kit.change(a=[(1, "one", -1), (3, None, 1)])
    commit = kit.engine.flush()
    assert commit.frontier.transaction == kit.log.read(kit.log.head()).last_transaction
    kit.check()
    assert kit.engine.flush() == commit
    kit.close()


def test_a_later_view_gets_the_history(tmp_path, buckets):
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.change(a=[(i % 7, str(i), 1) for i in range(50)])
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.check()
    kit.change(b=[(i % 5, i, 1) for i in range(30)])
    kit.engine.flush()
    kit.change(a=[(6, "6", -1)])
    kit.view("grouped", *GROUPED)
    kit.view("total", *TOTAL)
    kit.engine.flush()
    kit.check()
    kit.change(a=[(6, "x", 1)], b=[(0, 0, -1)])
    kit.engine.flush()
    kit.check()
    kit.close()


def test_a_view_on_a_view_is_filled_from_what_is_stored(tmp_path, buckets):
    """The join below the older view does not run again, whatever was compacted or is still in commits."""
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    compactor = Compactor(kit.layout, kit.log, kit.segments, lambda: kit.catalog, commits=2)
    for round_number in range(4):
        kit.change(a=[(i % 7, str(i), 1) for i in range(20)], b=[(round_number, i, 1) for i in range(5)])
        kit.change(a=[(3, "3", -1)])
        kit.engine.flush()
        if round_number == 2:
            compactor.run()
    assert join_rows(kit) > 0
    kit.view("grouped", *GROUPED)
    assert join_rows(kit) == 0
    kit.check()
    kit.change(a=[(0, "later", 1)], b=[(0, 1, 1)])
    kit.engine.flush()
    assert join_rows(kit) == 2
    kit.check()
    kit.close()


def join_rows(kit):
    """Rows that joins read in the newest epoch."""
    operators = kit.log.last_epoch().metrics.operators
    return sum(m.rows_in for i, m in operators.items() if i.startswith("join"))


def test_restart_goes_on(tmp_path, buckets):
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("grouped", *GROUPED)
    for round_number in range(4):
        kit.change(a=[(round_number, "r", 1)], b=[(round_number, 1, 1), (0, 5, 1)])
        kit.engine.flush()
        kit.close()
        kit = kit.reopen()
        kit.engine.start()
        assert kit.engine.live_views == {"m3", "m4"}
        kit.change(a=[(round_number, "again", 1)])
        kit.engine.flush()
        kit.check()
    kit.close()


def test_dropped_views_leave_no_state(tmp_path, buckets):
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("total", *TOTAL)
    kit.change(a=[(1, "one", 1)], b=[(1, 10, 1)])
    kit.engine.flush()
    assert any("arrange" in o for o in state_of(kit))
    kit.drop("joined")
    assert not any("arrange" in o for o in state_of(kit))
    kit.change(a=[(1, "one", 1)])
    kit.engine.flush()
    kit.check()
    kit.view("joined", *JOINED)
    kit.check()
    kit.drop("joined")
    kit.drop("total")
    head = kit.log.head()
    kit.change(a=[(9, "nobody reads", 1)])
    kit.engine.flush()
    assert kit.log.head() == head + 1
    kit.view("total", *TOTAL)
    kit.check()
    kit.close()


def state_of(kit):
    found = (stored_state(kit.segments, segment, place) for segment, place in kit.log.last_epoch().sections)
    return {o for manifest in found for o, traces in manifest.operators.items() if traces}


def test_a_small_epoch_writes_one_segment_and_one_commit(tmp_path, buckets):
    """However many stages and buckets it changes. Each bucket finds its own state there."""
    kit = Kit(tmp_path / "db", buckets=buckets)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("total", *TOTAL)
    kit.change(a=[(i, "one", 1) for i in range(500)], b=[(i, 10, 1) for i in range(500)])
    before = {*kit.layout.segments.iterdir(), *kit.layout.commits.iterdir()}
    kit.engine.flush()
    made = {*kit.layout.segments.iterdir(), *kit.layout.commits.iterdir()} - before
    assert sorted(path.suffix for path in made) == [".json", ".segment"]
    segments = kit.log.last_epoch().segments
    assert len(segments) >= buckets
    assert len(set(segments.values())) == 1
    kit.check()
    kit.close()
