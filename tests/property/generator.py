"""Random schemas, queries and histories. Everything follows from one seed.

The SQL is read alike by Watersmeet's RisingWave dialect and by DuckDB: integer division, time zones
and other places where the two differ by design are left to tests of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Column types with few distinct values, so that joins match and duplicates occur.
VALUES = {
    "int": ["0", "1", "2", "3", "NULL", "7"],
    "bigint": ["0", "1", "2", "3", "NULL", "5000000000"],
    "smallint": ["0", "1", "2", "NULL"],
    "numeric(10,2)": ["0.00", "1.00", "2.00", "2.50", "NULL"],
    "double precision": ["0.0", "-0.0", "1.0", "2.5", "'NaN'", "NULL", "1e16"],
    "varchar": ["'a'", "'b'", "'c'", "''", "NULL", "'a b|c'"],
    "boolean": ["true", "false", "NULL"],
    "date": ["'2024-01-01'", "'2024-01-02'", "NULL"],
    "timestamp": ["'2024-01-01 00:00:00'", "'2024-01-01 00:00:00.000001'", "NULL"],
    "int[]": ["ARRAY[1, 2]", "ARRAY[NULL, 1]", "NULL"],
    "bytea": ["'\\x01'", "'\\x'", "NULL"],
}
NUMBERS = ("int", "bigint", "smallint", "numeric(10,2)")


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[tuple[str, str], ...]
    primary_key: bool

    @property
    def ddl(self) -> str:
        body = ", ".join(f"{n} {t}" + (" PRIMARY KEY" if self.primary_key and n == "id" else "") for n, t in self.columns)
        return f"CREATE TABLE {self.name} ({body})"


@dataclass(frozen=True)
class Case:
    tables: tuple[Table, ...]
    query: str
    batches: tuple[tuple[str, ...], ...]


class Generator:
    """Makes one case from `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def case(self) -> Case:
        r = self.random
        tables = tuple(self.table(f"t{i}") for i in range(r.choice([1, 2, 2, 3, 3])))
        query = self.query(tables)
        batches = tuple(tuple(self.statement(tables) for _ in range(r.choice([1, 1, 2, 5])))
                        for _ in range(r.randint(2, 7)))
        return Case(tables, query, batches)

    # -- schemas and histories

    def table(self, name: str) -> Table:
        r = self.random
        key = r.random() < 0.4
        columns = [("id", "int"), ("k", r.choice(["int", "int", "bigint", "smallint", "numeric(10,2)"])),
                   ("s", "varchar")]
        columns += [(f"c{i}", r.choice(list(VALUES))) for i in range(r.randint(0, 2))]
        return Table(name, tuple(columns), key)

    def value(self, kind: str) -> str:
        r = self.random
        values = VALUES[kind]
        text = values[0] if r.random() < 0.2 else r.choice(values)
        return text if text == "NULL" else f"CAST({text} AS {kind})" if kind not in ("int", "varchar") else text

    def row(self, table: Table) -> str:
        values = [str(self.random.randint(0, 6)) if n == "id" and table.primary_key else self.value(t)
                  for n, t in table.columns]
        return f"({', '.join(values)})"

    def statement(self, tables: tuple[Table, ...]) -> str:
        r = self.random
        table = r.choice(tables)
        what = r.random()
        if what < 0.55:
            rows = [self.row(table) for _ in range(r.choice([1, 2, 3, 8]))]
            if table.primary_key:  # a key twice in one statement has an outcome that DuckDB does not share
                rows = list({row.split(",")[0]: row for row in rows}.values())
            return f"INSERT INTO {table.name} VALUES {', '.join(rows)}"
        name, kind = r.choice([c for c in table.columns if c[0] in ("id", "k", "s")])
        where = f"{name} = {self.value(kind)}" if r.random() < 0.8 else f"{name} IS NULL"
        if what < 0.8:
            return f"DELETE FROM {table.name} WHERE {where}"
        target, target_kind = r.choice([c for c in table.columns if c[0] != "id"])
        return f"UPDATE {table.name} SET {target} = {self.value(target_kind)} WHERE {where}"

    # -- queries

    def alias(self) -> str:
        self.names += 1
        return f"a{self.names}"

    def query(self, tables: tuple[Table, ...]) -> str:
        r = self.random
        text = self.select(tables)
        shape = r.random()
        if shape < 0.15:
            return f"SELECT DISTINCT * FROM ({text}) AS q"
        if shape < 0.3 and "count(" not in text:
            return f"{text} UNION {'ALL ' if r.random() < 0.6 else ''}{text.replace(' > 1', ' > 0')}"
        if shape < 0.4:
            return f"WITH q AS ({text}) SELECT q.* FROM q WHERE q.x0 IS NOT NULL"
        return text

    def select(self, tables: tuple[Table, ...]) -> str:
        r = self.random
        scope: list[tuple[str, Table]] = [(self.alias(), r.choice(tables))]
        source = f"{scope[0][1].name} AS {scope[0][0]}"
        for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
            table, alias = r.choice(tables), self.alias()
            kind = r.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            condition = self.on(scope, alias, table, inner=kind == "JOIN")
            source += f" {kind} {table.name} AS {alias} ON {condition}"
            scope.append((alias, table))
        where = [self.predicate(scope)] if r.random() < 0.35 else []
        where += [self.subquery(scope, tables)] if r.random() < 0.35 else []
        tail = f" WHERE {' AND '.join(where)}" if where else ""
        if r.random() < 0.35:
            return self.aggregate(scope, source + tail)
        columns = r.sample(self.columns(scope), min(len(self.columns(scope)), r.randint(1, 5)))
        items = [f"{c} AS x{i}" for i, (c, _) in enumerate(columns)]
        if r.random() < 0.3:
            items.append(f"CASE WHEN {self.predicate(scope)} THEN 1 ELSE 0 END AS y")
        return f"SELECT {', '.join(items)} FROM {source}{tail}"

    def columns(self, scope: list[tuple[str, Table]]) -> list[tuple[str, str]]:
        return [(f"{alias}.{n}", t) for alias, table in scope for n, t in table.columns]

    def on(self, scope: list[tuple[str, Table]], alias: str, table: Table, *, inner: bool) -> str:
        r = self.random
        other, other_table = r.choice(scope)
        if r.random() < 0.75:
            parts = [f"{other}.k = {alias}.k"]
        elif r.random() < 0.5:
            parts = [f"{other}.s = {alias}.s"]
        else:
            parts = [f"{other}.k + 1 = {alias}.k"]
        if r.random() < 0.15:
            parts[0] = parts[0].replace(" = ", " IS NOT DISTINCT FROM ")
        if r.random() < 0.25:
            parts.append(f"{other}.s = {alias}.s")
        if r.random() < 0.35:
            parts.append(r.choice([f"{other}.id < {alias}.id", f"{other}.id > 1", f"{alias}.id > 1",
                                   f"{other}.id + {alias}.id > 3", f"{alias}.s <> 'b'"]))
        del inner
        return " AND ".join(parts)

    def predicate(self, scope: list[tuple[str, Table]]) -> str:
        r = self.random
        column, kind = r.choice([c for c in self.columns(scope) if c[1] in (*NUMBERS, "varchar")])
        if kind == "varchar":
            return r.choice([f"{column} = 'a'", f"{column} IS NULL", f"{column} <> 'b'", f"{column} IN ('a', 'c')",
                             f"coalesce({column}, 'z') > 'a'"])
        return r.choice([f"{column} > 1", f"{column} IS NOT NULL", f"({column} = 2 OR {column} IS NULL)",
                         f"NOT ({column} = 1)", f"{column} BETWEEN 1 AND 3"])

    def subquery(self, scope: list[tuple[str, Table]], tables: tuple[Table, ...]) -> str:
        r = self.random
        table, alias = r.choice(tables), self.alias()
        outer, _ = r.choice(scope)
        extra = r.choice(["", f" AND {alias}.id > 1", f" AND {alias}.id <> {outer}.id"])
        shape = r.randrange(5)
        if shape == 0:
            return f"EXISTS (SELECT 1 FROM {table.name} AS {alias} WHERE {alias}.k = {outer}.k{extra})"
        if shape == 1:
            return f"NOT EXISTS (SELECT 1 FROM {table.name} AS {alias} WHERE {alias}.k = {outer}.k{extra})"
        if shape == 2:
            return f"{outer}.k IN (SELECT {alias}.k FROM {table.name} AS {alias})"
        if shape == 3:
            return f"{outer}.s NOT IN (SELECT {alias}.s FROM {table.name} AS {alias} WHERE {alias}.id > 0)"
        return f"{outer}.s NOT IN (SELECT {alias}.s FROM {table.name} AS {alias} WHERE {alias}.k = {outer}.k)"

    def aggregate(self, scope: list[tuple[str, Table]], source: str) -> str:
        r = self.random
        numbers = [c for c, t in self.columns(scope) if t in NUMBERS]
        ordered = [c for c, t in self.columns(scope) if t in (*NUMBERS, "varchar", "date", "timestamp")]
        calls = ["count(*)", f"count({r.choice(ordered)})", f"sum({r.choice(numbers)})", f"min({r.choice(ordered)})",
                 f"max({r.choice(ordered)})", f"count(DISTINCT {r.choice(ordered)})",
                 f"sum({r.choice(numbers)}) FILTER (WHERE {r.choice(numbers)} > 1)"]
        chosen = r.sample(calls, r.randint(1, 4))
        keys = [c for c, _ in r.sample(self.columns(scope), r.choice([0, 1, 1, 2]))]
        items = [f"{e} AS x{i}" for i, e in enumerate([*keys, *chosen])]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = " HAVING count(*) > 1" if keys and r.random() < 0.3 else ""
        return f"SELECT {', '.join(items)} FROM {source}{group}{having}"
