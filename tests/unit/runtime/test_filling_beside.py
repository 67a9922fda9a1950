"""Views are filled in pieces, between which live views run. At the end, all have the content of their queries."""

from __future__ import annotations

import random

import pytest
from tests.thorough import mostly_slow
from tests.unit.runtime import trees
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

from watersmeet.runtime import workers
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


@pytest.mark.parametrize("seed", mostly_slow(range(40), 4))
def test_views_have_the_content_of_their_queries(tmp_path, seed):
    """Transactions between the pieces, compaction, and the end of the process at any of them."""
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

    kit.engine.between = between
    names = random_.sample(sorted(LATER), 3)
    needed = {"total": "grouped"}
    names = list(dict.fromkeys([n for name in names for n in ([needed[name]] if name in needed else []) + [name]]))
    for name in names:
        kit.view(name, *LATER[name], install=False)
    while True:
        try:
            kit.install()
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
