"""Views are filled in pieces, between which live views run. At the end, all have the content of their queries."""

from __future__ import annotations

import random

import pytest
from tests.thorough import mostly_slow
from tests.unit.runtime import trees
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

from watersmeet.runtime import committer, inprocess, workers
from watersmeet.runtime.backfill import progress_of
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget
from watersmeet.store.compaction import Compactor

#: A full join of the tables, and its groups: they share arrangements with `JOINED`.
FULL = (
    lambda kit: trees.join(kit.scan("a"), kit.scan("b"), "full", "k", (0, "k"), (0, "x"), (1, "y")),
    "SELECT a.k, a.x, b.y FROM a FULL JOIN b ON a.k = b.k",
)
COUNTED = (
    lambda kit: trees.group(kit.scan("b"), ["k"], ("n", "count", None)),
    "SELECT k, count(*) AS n FROM b GROUP BY k",
)
LATER = {"full_join": FULL, "grouped": GROUPED, "counted": COUNTED, "total": TOTAL}


class Died(BaseException):
    """The process is gone."""


class Beside(InProcessEngine):
    """An engine that calls `between` after each epoch of a fill, and notes for each whether it was a piece."""

    between = staticmethod(lambda: None)

    def _run(self, coordinator, intent):
        super()._run(coordinator, intent)
        self.ran = [*getattr(self, "ran", ()), intent.mode.kind]
        if coordinator.backfill is not None:
            self.between()


def small_epochs(db):
    return Coordinator(db, budget=Budget(first_rows=20, max_rows=20))


def opened(path, buckets, before=None):
    kit = Kit(path, buckets=buckets, make_engine=lambda db: Beside(db, make_coordinator=small_epochs), before=before)
    if before is None:
        two_tables(kit)
        kit.engine.start()
        kit.view("joined", *JOINED)
    return kit


def changed(kit, random_):
    """One transaction of a few rows, some of which are deleted."""
    rows = {}
    for name, value in (("a", lambda: random_.choice(["x", "y", None])), ("b", lambda: random_.randrange(4))):
        new = [(random_.choice([None, *range(6)]), value(), 1) for _ in range(random_.randrange(4))]
        old = kit.model.execute(f"SELECT * FROM {name} USING SAMPLE 1 ROWS").fetchall()
        rows[name] = [*new, *((*row, -1) for row in old[: random_.randrange(2)])]
    kit.change(**{name: found for name, found in rows.items() if found})


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(workers, "PIECE_ROWS", 7)
    monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 7)
    monkeypatch.setattr(workers, "PIECE_S", 0)
    monkeypatch.setattr(committer, "PIECE_MERGE_BYTES", 300)
    monkeypatch.setattr(inprocess, "LIMITED_S", 0.001)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 4))
def test_views_have_the_content_of_their_queries(tmp_path, seed):
    """Transactions and flushes between the pieces, compaction, limits of rows per second, pauses, and the end of the
    process at any moment.
    """
    random_ = random.Random(seed)
    buckets = random_.choice([1, 1, 2, 3])
    kit = opened(tmp_path / "db", buckets)
    for _ in range(20):
        changed(kit, random_)
    kit.engine.flush()
    left = random_.randrange(1, 20) if random_.random() < 0.4 else None
    share = random_.choice([0.1, 0.3, 0.7])

    def between():
        nonlocal left
        if random_.random() < share:
            changed(kit, random_)
        if random_.random() < 0.2:
            Compactor(kit.layout, kit.log, kit.segments, lambda: kit.catalog, commits=1).run()
        if left is not None:
            left -= 1
            if left == 0:
                raise Died

    limits = random_.choice([[None], [None, 0, 1], [None, 0, 300, 5000]])

    def check():
        """Called before each piece, and again and again during a pause, which the last change ends."""
        if random_.random() < 0.2:
            for view in [i for i in kit.views if not kit.catalog.relations[i].ready]:
                kit.limit(view, random_.choice(limits))
        if random_.random() < 0.2:
            kit.engine.flush()

    kit.engine.between = between
    names = random_.sample(sorted(LATER), 3)
    needed = {"total": "grouped"}
    names = list(dict.fromkeys([n for name in names for n in ([needed[name]] if name in needed else []) + [name]]))
    for name in names:
        kit.view(name, *LATER[name], install=False)
    while True:
        try:
            kit.install(check)
            break
        except Died:
            kit.crash()
            kit = opened(tmp_path / "db", buckets, before=kit)
            kit.engine.between = between
            kit.engine.start()
    kit.engine.between = lambda: None
    assert "fill" in kit.engine.ran or left == 0
    kit.engine.flush()
    kit.check()
    for _ in range(3):
        changed(kit, random_)
        kit.engine.flush()
        kit.check()
    kit.close()


def test_a_piece_merges_little(tmp_path, monkeypatch):
    """Live views wait for a piece, so it merges less than other epochs, which merge as before."""
    jobs, job_of = [], inprocess.job_of
    monkeypatch.setattr(inprocess, "job_of", lambda *a: jobs.append(job_of(*a)) or jobs[-1])
    kit = opened(tmp_path / "db", 1)
    kit.change(a=[(g, "x", 1) for g in range(100)], b=[(g, g, 1) for g in range(60)])
    kit.engine.flush()
    jobs.clear()
    kit.view("grouped", *LATER["grouped"])
    kit.change(b=[(1, 1, 1)])
    kit.engine.flush()
    merged = {kind: {j.merge_bytes for j in jobs if j.intent.mode.kind == kind} for kind in ("live", "fill")}
    assert merged == {"live": {workers.merge_bytes()}, "fill": {300}}
    kit.check()
    kit.close()


def history(intent):
    """The number of rows of history that an epoch reads."""
    return sum(s.rows if s.part is None else s.part[1] - s.part[0] for s in intent.slices)


def test_a_limit_is_of_rows_per_second(tmp_path, monkeypatch):
    """The time is the one that `plan` gets. Live epochs run whether a piece is due or not."""
    monkeypatch.setattr(workers, "FIRST_PIECE_ROWS", 1000)
    monkeypatch.setattr(workers, "PIECE_ROWS", 1000)
    kit = opened(tmp_path / "db", 1)
    kit.change(a=[(g, "x", 1) for g in range(100)], b=[(g, g, 1) for g in range(60)])
    kit.engine.flush()
    view = kit.view("counted", *COUNTED, install=False)
    kit.limit(view.id, 20)
    coordinator = Coordinator(kit.db)
    coordinator.install(kit.circuit())
    second = 1_000_000

    def ran(now_us):
        intent = coordinator.plan(now_us)
        if intent is None:
            return None
        kit.engine._coordinator = coordinator
        kit.engine._run(coordinator, intent)
        return intent.mode.kind, history(intent)

    assert [ran(now) for now in (0, 0, second // 2, second // 2)] == [("fill", 20), None, ("fill", 10), None]
    kit.change(b=[(1, 1, 1)])
    assert [ran(second // 2) for _ in range(2)] == [("live", 1), None]
    kit.limit(view.id, 0)
    kit.change(b=[(2, 2, 1)])
    assert [ran(9 * second) for _ in range(2)] == [("live", 1), None]
    assert progress_of(coordinator.backfill) == 0.25  # half of the rows are read, and no group is output
    kit.limit(view.id, None)
    assert [ran(9 * second) for _ in range(4)] == [("fill", 30), ("fill", 0), ("fill", 2), None]
    kit.mark_ready()
    kit.check()


def test_rows_that_arrive_as_fast_as_a_limit_allows_are_read_without_it(tmp_path):
    kit = opened(tmp_path / "db", 1)
    kit.change(a=[(g, "x", 1) for g in range(5)], b=[(g, g, 1) for g in range(40)])
    kit.engine.flush()
    view = kit.view("counted", *COUNTED, install=False)
    kit.limit(view.id, 4)
    now_us, most = 0, 0
    coordinator = kit.engine._coordinator = Coordinator(kit.db)
    coordinator.install(kit.circuit())
    while coordinator.backfill is not None:
        now_us += 1_000_000
        if most < 40:
            most += 1
            kit.change(b=[(g, g, 1) for g in range(6)])
        while (intent := coordinator.plan(now_us)) is not None:
            kit.engine._run(coordinator, intent)
    assert most < 40, "the fill has ended while rows still arrive"
    kit.mark_ready()
    kit.engine.flush()
    kit.check()
