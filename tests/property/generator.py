"""Random schemas, views and histories. Everything follows from one seed.

A case is a list of steps. The SQL is read by Watersmeet's RisingWave dialect and by DuckDB; where the two differ
by design it holds both spellings (see `values`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from tests.property.expressions import Column, Expressions
from tests.property.queries import Queries, Relation
from tests.property.values import INTEGERS, VALUES, both, type_name

Kind = Literal["statement", "view", "materialized", "drop", "reopen", "check"]


@dataclass(frozen=True)
class Table(Relation):
    """A table. hot: most rows have the same k."""

    primary_key: bool = False
    hot: bool = False

    @property
    def ddl(self) -> str:
        """CREATE TABLE; without the key on the other side, where `Oracle` does what it does."""
        parts = [f"{n} {type_name(t)}" for n, t in self.columns]
        if self.primary_key:
            parts[0] += both(" PRIMARY KEY", "")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"


@dataclass(frozen=True)
class Step:
    """statement: `sql` changes tables. view, materialized: `name` is made as `sql`. drop: `names` go, `name` being the
    one that the others depend on. reopen: the database is closed and opened. check: everything is compared.
    """

    kind: Kind
    sql: str = ""
    name: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    tables: tuple[Table, ...]
    steps: tuple[Step, ...]


@dataclass
class _View:
    relation: Relation
    materialized: bool
    above: set[str] = field(default_factory=set)


class Generator:
    """Makes one case from `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.make = Expressions(self.random)
        self.views: dict[str, _View] = {}
        self.number = 0
        self.steps: list[Step] = []

    def case(self) -> Case:
        """The case."""
        r = self.random
        tables = tuple(self.table(f"t{i}") for i in range(r.choice([1, 2, 2, 3, 3])))
        written = tables if r.random() < 0.85 else tables[1:] or tables  # else one stays empty
        batches = r.randint(2, 7)
        late = r.randrange(batches + 1) if r.random() < 0.4 else 0
        extra = {r.randrange(batches + 1) for _ in range(r.choice([0, 1, 1, 2, 3]))}
        for batch in range(batches + 1):
            if batch == late:
                self.add_view(tables, materialized=True)
            if batch in extra:
                self.change_views(tables)
            if r.random() < 0.12:
                self.steps.append(Step("reopen"))
            self.steps.append(Step("check"))
            if batch < batches:
                self.batch(written)
        return Case(tables, tuple(self.steps))

    # -- schemas and histories

    def table(self, name: str) -> Table:
        r = self.random
        key = r.random() < 0.4
        keys = ["int", "int", "int", "bigint", "smallint", "numeric(10,2)", *VALUES]
        columns: list[Column] = [("id", "int"), ("k", r.choice(keys)), ("s", "varchar")]
        width = r.choice([12, 20]) if r.random() < 0.06 else r.randint(0, 3)
        columns += [(f"c{i}", r.choice(list(VALUES))) for i in range(width)]
        return Table(name, tuple(columns), key, r.random() < 0.25)

    def row(self, table: Table) -> str:
        r = self.random
        values = []
        for name, kind in table.columns:
            if name == "id" and table.primary_key:
                values.append(str(r.randint(0, 9)))
            elif name == "k" and table.hot and r.random() < 0.8:
                values.append("1" if kind in INTEGERS else self.make.value(kind))
            elif name == "s" and r.random() < 0.02:
                values.append("'" + "long text " * r.choice([10, 2000]) + "'")
            else:
                values.append(self.make.value(kind))
        return f"({', '.join(values)})"

    def batch(self, tables: tuple[Table, ...]) -> None:
        r = self.random
        statements = [self.statement(r.choice(tables)) for _ in range(r.choice([1, 1, 2, 5]))]
        if r.random() < 0.2:
            statements = ["BEGIN", *statements, r.choice(["COMMIT", "COMMIT", "ROLLBACK"])]
        self.steps += [Step("statement", s) for s in statements]

    def statement(self, table: Table) -> str:
        r = self.random
        what = r.random()
        if what < 0.55:
            rows = [self.row(table) for _ in range(r.choice([1, 2, 3, 8]))]
            last = list({row.split(",")[0]: row for row in rows}.values()) if table.primary_key else rows
            if last == rows:
                return f"INSERT INTO {table.name} VALUES {', '.join(rows)}"
            return f"INSERT INTO {table.name} VALUES {', '.join(last)}"
        name, kind = r.choice([c for c in table.columns if c[0] in ("id", "k", "s")])
        where = f"{name} = {self.make.value(kind)}" if r.random() < 0.8 else f"{name} IS NULL"
        if r.random() < 0.05:
            where = "true"
        if what < 0.8:
            return f"DELETE FROM {table.name} WHERE {where}"
        target, target_kind = r.choice([c for c in table.columns if c[0] != "id"])
        scope = [(n, t) for n, t in table.columns]
        value = self.make.value(target_kind)
        if r.random() < 0.3 and target_kind in ("int", "varchar", "boolean"):
            value = self.make.of(target_kind, scope, 1)
        return f"UPDATE {table.name} SET {target} = {value} WHERE {where}"

    # -- views

    def add_view(self, tables: tuple[Table, ...], *, materialized: bool) -> None:
        """A view over tables and views."""
        known: list[Relation] = [*tables, *tables, *(v.relation for v in self.views.values())]
        self.number += 1
        name = f"{'m' if materialized else 'w'}{self.number}"
        queries = Queries(self.random, known)
        query = queries.query()
        for other in queries.used & self.views.keys():
            self.views[other].above.add(name)
        self.views[name] = _View(Relation(name, query.columns), materialized)
        self.steps.append(Step("materialized" if materialized else "view", query.sql, name))

    def change_views(self, tables: tuple[Table, ...]) -> None:
        """Makes or drops some."""
        r = self.random
        if self.views and r.random() < 0.35:
            name = r.choice(list(self.views))
            gone = self._dependents(name)
            for other in gone:
                del self.views[other]
            for view in self.views.values():
                view.above -= set(gone)
            self.steps.append(Step("drop", "MATERIALIZED VIEW" if name.startswith("m") else "VIEW", name, tuple(gone)))
        if not self.views or r.random() < 0.8:
            if r.random() < 0.3:
                self.add_view(tables, materialized=False)
            self.add_view(tables, materialized=True)

    def _dependents(self, name: str) -> list[str]:
        found = [name]
        for other in found:
            found += [n for n in sorted(self.views[other].above) if n not in found]
        return found
