"""The engine without Spark: epochs, backfill, restart."""

from __future__ import annotations

import pytest
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

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
    packs = kit.log.last_epoch().packs.values()
    return {o for p in packs for o, traces in kit.packs.read_footer(p)["state"]["operators"].items() if traces}
