"""The law: after every batch a view equals the batch result of its query over the current tables.

Covers RW-01 to RW-19, RA-03, RA-26, RA-27, RA-30 over random schemas, queries and histories.
WATERSMEET_SEEDS=from-to runs other seeds, for example WATERSMEET_SEEDS=10000-15000.
"""

from __future__ import annotations

import os
import tempfile
from unittest import mock

import pytest

import watersmeet
from tests.property.generator import Generator, Step
from tests.property.oracle import Oracle, rows
from tests.property.values import ours

#: Seeds that once failed: what was wrong is in the commit that added them.
REGRESSIONS: tuple[int, ...] = ()
#: Views larger than this are cut short by emptying a table: random joins multiply.
_LARGE = 4000


def chosen(default: range) -> list[int]:
    text = os.environ.get("WATERSMEET_SEEDS")
    if text:
        first, last = text.split("-")
        return list(range(int(first), int(last)))
    return [*REGRESSIONS, *default]


class Run:
    """A case on Watersmeet and on the oracle."""

    def __init__(self, seed: int, path: str | None, options: dict) -> None:
        self.seed = seed
        self.case = Generator(seed).case()
        self.oracle = Oracle(self.case.tables)
        self.path, self.options = path, options
        self.connection = watersmeet.connect(path, **options)
        self.cursor = self.connection.cursor()
        self.views: dict[str, str] = {}
        self.in_transaction = False
        self.done: list[str] = []
        for table in self.case.tables:
            self.execute(table.ddl)

    def execute(self, statement: str) -> None:
        self.done.append(ours(statement))
        self.cursor.execute(ours(statement))

    def step(self, step: Step) -> None:
        if step.kind == "statement":
            self.change(step.sql)
        elif step.kind in ("view", "materialized"):
            self.oracle.view(step.name, step.sql)
            self.relieve()
            self.execute(f"CREATE {'MATERIALIZED ' * (step.kind == 'materialized')}VIEW {step.name} AS {step.sql}")
            if step.kind == "materialized":
                self.views[step.name] = step.sql
        elif step.kind == "drop":
            self.oracle.drop(step.names)
            self.execute(f"DROP {step.sql} {step.name} CASCADE")
            for name in step.names:
                self.views.pop(name, None)
        elif step.kind == "reopen" and self.path is not None:
            self.done.append("-- reopened")
            self.connection.close()
            self.connection = watersmeet.connect(self.path, **self.options)
            self.cursor = self.connection.cursor()
        elif step.kind == "check":
            self.execute("FLUSH")
            for name in self.views:
                self.check(name, name)

    def change(self, statement: str) -> None:
        if statement in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.in_transaction = statement == "BEGIN"
        self.oracle.execute(statement)
        self.execute(statement)
        if not self.in_transaction:
            self.relieve()

    def relieve(self) -> None:
        """Keeps views small."""
        for name in self.views:
            while self.oracle.size(name) > _LARGE:
                largest = max(self.oracle.tables, key=self.oracle.size)
                if not self.oracle.size(largest):
                    break
                self.oracle.execute(f"DELETE FROM {largest}")
                self.execute(f"DELETE FROM {largest}")

    def check(self, name: str, real_name: str) -> None:
        self.cursor.execute(f"SELECT * FROM {real_name}")
        expected, real = self.oracle.content(name), rows(self.cursor.fetchall())
        assert real == expected, (
            f"seed {self.seed}, {real_name}: {ours(self.views[name])}\n" + ";\n".join(self.done) +
            f"\nmissing {expected - real}\nsurplus {real - expected}")

    def finish(self) -> None:
        """Views that are made only now show the same."""
        for name, sql in list(self.views.items()):
            self.execute(f"CREATE MATERIALIZED VIEW fresh_{name} AS {sql}")
            self.check(name, f"fresh_{name}")


def run(seed: int, path: str | None = None, **options) -> None:
    """Runs one seed. Nothing here needs what is written to survive a loss of power."""
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(os, "fsync"):
        case = Run(seed, path or f"{directory}/db", options)
        try:
            for step in case.case.steps:
                case.step(step)
            case.finish()
        finally:
            case.connection.close()


@pytest.mark.parametrize("seed", chosen(range(150)))
def test_in_process(seed: int) -> None:
    run(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_in_process(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        run(seed, runtime="inprocess", parallelism=1 + seed % 3)
