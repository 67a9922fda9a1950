"""The law over deep queries: subqueries, LATERAL, set operations, windows, top-N (RA-26 to RA-32).

A query that Watersmeet refuses is left out; how many those are is watched. WATERSMEET_SEEDS=from-to runs other seeds.
"""

from __future__ import annotations

import tempfile
from collections import Counter

import duckdb
import pytest

import watersmeet
from tests.property.deep import VALUES, DeepQueries
from tests.property.generator import Generator, Step, Table
from tests.property.queries import Relation
from tests.property.runs import Run
from tests.property.values import theirs
from tests.thorough import mostly_slow

#: Seeds that once failed: what was wrong is in the commit that added them.
REGRESSIONS: tuple[int, ...] = ()
#: Why a view may be refused.
REFUSALS = ("FEATURE_NOT_SUPPORTED", "JOIN_WITHOUT_EQUALITY")


class DeepGenerator(Generator):
    """Small tables of few types; deep views over them and over each other."""

    def table(self, name: str) -> Table:
        r = self.random
        types = [t for t in VALUES if t != "numeric" or r.random() < 0.5]
        columns = [("id", "int"), ("k", "int"), ("s", "varchar")]
        columns += [
            (f"c{i}", "numeric(10,2)" if t == "numeric" else t)
            for i, t in enumerate(r.sample(types, r.choice([0, 1, 1])))
        ]
        return Table(name, tuple(columns), r.random() < 0.4, r.random() < 0.2)

    def add_view(self, tables: tuple[Table, ...], *, materialized: bool) -> None:
        del materialized
        below = [s for s in self.steps if s.kind == "materialized"]
        known = [
            Relation(t.name, tuple((n, "numeric" if k.startswith("numeric") else k) for n, k in t.columns))
            for t in tables
        ]
        if below and self.random.random() < 0.3:
            known.append(self.views[self.random.choice(below).name].relation)
        self.number += 1
        name = f"m{self.number}"
        query = DeepQueries(self.random, known).query()
        self.views[name] = _Known(Relation(name, query.columns))
        self.steps.append(Step("materialized", query.sql, name))

    def change_views(self, tables: tuple[Table, ...]) -> None:
        self.add_view(tables, materialized=True)
        self.add_view(tables, materialized=True)


class _Known:
    def __init__(self, relation: Relation) -> None:
        self.relation = relation


class DeepRun(Run):
    """A case in which views may be refused. refused: the reasons."""

    make_case = DeepGenerator

    def __init__(self, seed: int, path: str | None, options: dict) -> None:
        super().__init__(seed, path, options)
        self.refused: Counter[str] = Counter()

    def step(self, step: Step) -> None:
        if step.kind != "materialized":
            super().step(step)
            return
        try:
            self.oracle.connection.execute(f"EXPLAIN {theirs(step.sql)}")
        except duckdb.Error as cause:  # not a query for DuckDB, or over a view that was refused
            self.refused[f"duckdb: {str(cause).splitlines()[0][:60]}"] += 1
            return
        try:
            super().step(step)
        except watersmeet.Error as refusal:
            assert refusal.condition in REFUSALS, f"seed {self.seed}: {step.sql}\n{refusal}"
            self.refused[refusal.message] += 1
            self.oracle.drop((step.name,))
            del self.views[step.name]


def run(seed: int, path: str | None = None, **options) -> tuple[int, Counter[str]]:
    """(views, reasons of refusals) of one seed."""
    with tempfile.TemporaryDirectory() as directory:
        case = DeepRun(seed, path or f"{directory}/db", options)
        try:
            for step in case.case.steps:
                case.step(step)
            case.finish()
        finally:
            case.connection.close()
        return len(case.views), case.refused


@pytest.mark.parametrize("seed", mostly_slow([*REGRESSIONS, *range(20)], len(REGRESSIONS) + 1))
def test_in_process(seed: int) -> None:
    run(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_in_process(block: int) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        run(seed, runtime="inprocess", parallelism=1 + seed % 3)


if __name__ == "__main__":  # python -m tests.property.test_deep 0-1000: what is refused, and what fails
    import sys
    import traceback

    first, last = map(int, sys.argv[1].split("-"))
    views, reasons = 0, Counter()
    for number in range(first, last):
        try:
            made, refused = run(number, runtime="inprocess", parallelism=1 + number % 3)
        except BaseException as failure:
            print(f"seed {number}: {str(failure)[:1500]}", flush=True)
            if not isinstance(failure, AssertionError):
                traceback.print_exc(limit=-3)
            continue
        views += made
        reasons += refused
    print(views, "views;", *(f"\n{n} {text}" for text, n in reasons.most_common()))
