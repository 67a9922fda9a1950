"""A case step by step, on Watersmeet and on the oracle side by side."""

from __future__ import annotations

import contextlib
import tempfile

import watersmeet
from tests.property.generator import Generator, Step
from tests.property.oracle import Oracle, UnanswerableError, rows
from tests.property.values import ours

#: Beyond so many rows the largest table is emptied.
_LARGE = 4000
_LARGE_TABLE = 60


class Run:
    """A case on Watersmeet and on the oracle.

    make_case: makes the case of a seed. views: the materialised views and their queries. done: what was executed.
    changes: the statements that changed tables.
    """

    make_case = Generator

    def __init__(self, seed: int, path: str | None, options: dict) -> None:
        self.seed = seed
        self.case = self.make_case(seed).case()
        self.oracle = Oracle(self.case.tables)
        self.path, self.options = path, options
        self.connection = watersmeet.connect(path, **options)
        self.cursor = self.connection.cursor()
        self.views: dict[str, str] = {}
        self.done: list[str] = []
        self.changes: list[str] = []
        self._open: list[str] | None = None
        for table in self.case.tables:
            self.execute(table.ddl)

    def execute(self, statement: str) -> None:
        self.done.append(ours(statement))
        self.cursor.execute(ours(statement))

    def step(self, step: Step) -> None:
        if step.kind == "statement":
            self.change(step.sql)
            if self._open is None:
                self.relieve()
        elif step.kind in ("view", "materialized"):
            self.oracle.view(step.name, step.sql)
            if step.kind == "materialized":
                self.views[step.name] = step.sql
            self.relieve()
            self.execute(f"CREATE {'MATERIALIZED ' * (step.kind == 'materialized')}VIEW {step.name} AS {step.sql}")
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
        """A statement that changes tables, or begins or ends a transaction; on the oracle first."""
        self.oracle.execute(statement)
        self.execute(statement)
        if statement == "BEGIN":
            self._open = []
        elif statement in ("COMMIT", "ROLLBACK"):
            self.changes += self._open if self._open and statement == "COMMIT" else []
            self._open = None
        else:
            (self.changes if self._open is None else self._open).append(statement)

    def relieve(self) -> None:
        """Keeps tables and views small: random joins multiply."""
        for name in [*self.oracle.tables, *self.views]:
            while self.oracle.size(name) > (_LARGE if name in self.views else _LARGE_TABLE):
                largest = max(self.oracle.tables, key=self.oracle.size)
                if not self.oracle.size(largest):
                    break
                self.change(f"DELETE FROM {largest}")

    def check(self, name: str, real_name: str) -> None:
        self.cursor.execute(f"SELECT * FROM {real_name}")
        expected, real = self.oracle.content(name), rows(self.cursor.fetchall())
        assert real == expected, (
            f"seed {self.seed}, {real_name}: {ours(self.views[name])}\n"
            + ";\n".join(self.done)
            + f"\nmissing {expected - real}\nsurplus {real - expected}"
        )

    def finish(self) -> None:
        """Views that are made only now show the same, and so does each query as a batch query."""
        for name, sql in list(self.views.items()):
            self.execute(f"CREATE MATERIALIZED VIEW fresh_{name} AS {sql}")
            self.check(name, f"fresh_{name}")
            with contextlib.suppress(watersmeet.DataError):  # where an expression fails, a view has NULL
                self.check(name, f"({ours(sql)}) AS batch")


def run(seed: int, path: str | None = None, **options) -> None:
    """Runs one seed."""
    with (
        contextlib.suppress(UnanswerableError),
        tempfile.TemporaryDirectory() as directory,
    ):
        case = Run(seed, path or f"{directory}/db", options)
        try:
            for step in case.case.steps:
                case.step(step)
            case.finish()
        finally:
            case.connection.close()
