"""The 22 queries of TPC-H as materialised views: equal to DuckDB's answers after every step.

Views are made before and after the tables are filled; then come refresh pairs, and updates and deletes of every table.
"""

from __future__ import annotations

import pytest

import watersmeet
from tests.tpch.changes import STEERED, Changes
from tests.tpch.data import QUERIES, SCHEMA, content, generated
from tests.tpch.live import Live
from tests.tpch.refresh import Refreshes


def run(*, scale: float, before: set[int], after: set[int], steps: int, seed: int, **options) -> Live:
    """One history. before, after: the queries that are made before and after loading."""
    judge = generated(scale)
    for statement in STEERED:
        judge.execute(statement)
    loaded = content(judge)
    with watersmeet.connect(**options) as connection:
        connection.execute(SCHEMA)
        live = Live(connection, judge)
        live.create(sorted(before))
        live.load(loaded, batches=3)
        live.create(sorted(after))
        live.check("loaded")
        refreshes, changes = Refreshes(loaded, seed, share=0.01), Changes(loaded, seed)
        for step in range(steps):
            pair = refreshes.next()
            live.apply([("orders", pair.orders), ("lineitem", pair.lineitem)])
            live.check(f"step {step}, after RF1")
            live.apply(pair.deletions)
            live.check(f"step {step}, after RF2")
            live.apply(changes.next())
            live.check(f"step {step}, after updates and deletes")
        live.apply(["DELETE FROM lineitem", "DELETE FROM customer"])
        live.check("without lines and customers")
        return live


EVEN, ODD = ({n for n in QUERIES if n % 2 == rest} for rest in (0, 1))


def test_a_little_of_each() -> None:
    run(scale=0.001, before={4, 13, 21}, after={5, 18, 22}, steps=1, seed=3, runtime="inprocess", parallelism=1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "before", [pytest.param(EVEN, id="even-first"), pytest.param(ODD, id="odd-first", marks=pytest.mark.thorough)]
)
def test_all(before: set[int]) -> None:
    live = run(
        scale=0.003,
        before=before,
        after=QUERIES.keys() - before,
        steps=6,
        seed=len(before),
        runtime="inprocess",
        parallelism=3,
    )
    assert live.answered == QUERIES.keys()


@pytest.mark.slow
@pytest.mark.spark
def test_all_on_spark() -> None:
    live = run(scale=0.01, before=set(QUERIES), after=set(), steps=1, seed=5, parallelism=2)
    assert live.answered == QUERIES.keys()
