"""Look-up joins with rows that wait for their first match, through epochs, buckets and restarts. LS-22 to LS-26."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.runtime import trees
from tests.unit.runtime.kit import Kit

from watersmeet.algebra.nodes import KeyPair, Project, TemporalJoin
from watersmeet.errors import Error
from watersmeet.values.types import BIGINT, VARCHAR

OUTPUT = reference.columns("l0", "l1", "l2", "r0", "r1")


def waiting(kit, kind, *, append_only=True):
    left, right = trees.scan(kit.catalog.by_name("orders"), append_only=append_only), kit.scan("customers")
    joined = TemporalJoin(
        left, right, kind, (KeyPair(trees.ref(left, "k"), trees.ref(right, "id")),), None, None, waits=True
    )
    columns = joined.columns
    outputs = tuple(trees.column(c.name + str(i), c.type) for i, c in enumerate(columns))
    return Project(joined, outputs, tuple(trees.ref(joined, c.name) for c in columns))


def tables(kit):
    kit.table("orders", n=BIGINT, k=BIGINT, item=VARCHAR)
    kit.table("customers", id=BIGINT, label=VARCHAR)


def fits(left, right):
    return left[1] is not None and left[1] == right[0]


@pytest.mark.parametrize("seed", mostly_slow(range(6), 2))
def test_random_histories(seed, tmp_path):
    """Epochs of any size, with restarts between them; one view is there from the start, one comes later."""
    rng = random.Random(seed)
    kit = Kit(tmp_path / "db", buckets=rng.choice([1, 3]))
    tables(kit)
    kit.engine.start()
    kit.view("l", lambda k: waiting(k, "left"), "SELECT 1")
    kit.view("i", lambda k: waiting(k, "inner"), "SELECT 1")
    references = {n: reference.LookUp(kind, fits, OUTPUT, 2) for n, kind in (("l", "left"), ("i", "inner"))}
    expected = {n: Counter() for n in ("l", "i", "late")}
    right, lefts = Counter(), []
    for number in range(20):
        came = [(10 * number + i, rng.choice([None, 1, 2, 3, 4]), "x") for i in range(rng.choice([0, 1, 3]))]
        lefts += came
        net = Counter()
        for _ in range(rng.choice([0, 0, 1, 2])):
            row = (rng.randrange(1, 5), rng.choice("ab"))
            change = -1 if right[row] + net[row] > 0 and rng.random() < 0.5 else 1
            net[row] += change
        for row, change in net.items():
            right[row] += change
        kit.change(orders=[(*r, 1) for r in came], customers=[(*r, d) for r, d in net.items() if d])
        kit.engine.flush()
        for name, one in references.items():
            expected[name] += one.epoch(came, right)
        if number == 8:
            kit.view("late", lambda k: waiting(k, "left"), "SELECT 1")
            references["late"] = reference.LookUp("left", fits, OUTPUT, 2)
            expected["late"] += references["late"].epoch(lefts, right)  # history meets what is there now
        if rng.random() < 0.15:
            kit.close()
            kit = kit.reopen()
            kit.engine.start()
            kit.install()
    for name in references:
        assert rows_of(kit, name) == expected[name], name
    kit.close()


def rows_of(kit, name):
    kit.content.refresh(kit.catalog, [kit.catalog.by_name(name).id])
    return Counter(reference.row(r.values()) for r in kit.content.query(f'SELECT * FROM "{name}"').to_pylist())


def test_left_rows_that_go_are_refused(tmp_path):
    kit = Kit(tmp_path / "db")
    tables(kit)
    with pytest.raises(Error) as failure:
        kit.view("v", lambda k: waiting(k, "left", append_only=False), "SELECT 1")
    assert failure.value.condition == "TEMPORAL_KIND"
    kit.close()
