"""Random queries for views: everything that a view can hold so far."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.property.expressions import Column, Expressions, family
from tests.property.values import EXACT, INTEGERS, NUMBERS, ORDERED, both, spelled

#: Join keys of these types are spelled alike and never raise.
_KEYS = (
    *NUMBERS,
    "varchar",
    "boolean",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "interval",
    "jsonb",
    "int[]",
    "bytea",
    "struct<a int, b varchar>",
    "varchar[][]",
)


@dataclass(frozen=True)
class Relation:
    """Something to select from: its name and its columns with their types."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Query:
    """A query and the columns that it gives."""

    sql: str
    columns: tuple[Column, ...]


class Queries:
    """Makes queries over `relations`. used: the names of those that were read so far."""

    def __init__(self, source: random.Random, relations: Sequence[Relation]) -> None:
        self.random = source
        self.make = Expressions(source, risky=True)
        self.relations = list(relations)
        self.used: set[str] = set()
        self._names = 0
        self._joins = 4

    def query(self) -> Query:
        """A whole query."""
        r = self.random
        shape = r.random()
        if shape < 0.12:
            return self._twice()
        found = self.select()
        names = ", ".join(n for n, _ in found.columns)
        if shape < 0.22:
            return Query(f"SELECT DISTINCT {names} FROM ({found.sql}) AS q", found.columns)
        if shape < 0.36:
            return self._union(found)
        if shape < 0.42:
            name = found.columns[0][0]
            return Query(f"WITH q AS ({found.sql}) SELECT q.* FROM q WHERE q.{name} IS NOT NULL", found.columns)
        return found

    def _alias(self) -> str:
        self._names += 1
        return f"a{self._names}"

    def _twice(self) -> Query:
        """A CTE that is read twice."""
        inner = self.select()
        keys = [n for n, t in inner.columns if t in _KEYS]
        key = self.random.choice(keys or [inner.columns[0][0]])
        kind = self._kind()
        condition = f"a.{key} = b.{key}"
        if self.random.random() < 0.3:
            condition = f"a.{key} IS NOT DISTINCT FROM b.{key}"
        scope = [(f"{side}.{n}", t) for side in "ab" for n, t in inner.columns]
        items = self._items(scope)
        return Query(
            f"WITH q AS ({inner.sql}) SELECT {items.sql} FROM q AS a {kind} q AS b ON {condition}", items.columns
        )

    def _union(self, found: Query) -> Query:
        r = self.random
        kinds = [t for _, t in found.columns]
        scope, source = self._source(depth=0)
        items = ", ".join(self.make.of(t, scope, 1) for t in kinds)
        where = f" WHERE {self.make.predicate(scope)}" if r.random() < 0.5 else ""
        second = f"SELECT {items} FROM {source}{where}"
        signs = ["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"]
        text = f"{found.sql} {r.choice(signs)} {second}"
        if r.random() < 0.4:  # parentheses: DuckDB counts otherwise where a query is read twice
            text = f"({text}) {r.choice(signs)} {found.sql}"
        return Query(text, found.columns)

    # -- SELECT

    def select(self, depth: int = 1) -> Query:
        """SELECT … FROM … [WHERE …] [GROUP BY …]."""
        r = self.random
        scope, source = self._source(depth)
        where: list[str] = []
        if r.random() < 0.15:
            scope, source, where = self._comma()
        if r.random() < 0.35:
            where.append(self.make.predicate(scope))
        if r.random() < 0.35:
            where.append(self._subquery(scope))
        tail = f" WHERE {' AND '.join(where)}" if where else ""
        if r.random() < 0.3:
            return self._aggregate(scope, source + tail)
        items = self._items(scope)
        return Query(f"SELECT {items.sql} FROM {source}{tail}", items.columns)

    def _items(self, scope: Sequence[Column]) -> Query:
        """A select list: `sql` is the list."""
        r = self.random
        chosen = r.sample(list(scope), min(len(scope), r.randint(1, 5)))
        computed = [self.make.any(scope) for _ in range(r.choice([0, 0, 1, 2, 3]))]
        part = self.make.extracted(scope) if r.random() < 0.15 else None
        found = [*chosen, *computed, *([part] if part else [])]
        columns = tuple((f"x{i}", t) for i, (_, t) in enumerate(found))
        return Query(", ".join(f"{e} AS x{i}" for i, (e, _) in enumerate(found)), columns)

    # -- FROM

    def _kind(self) -> str:
        return self.random.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])

    def _source(self, depth: int) -> tuple[list[Column], str]:
        """(columns in scope, text of FROM)."""
        r = self.random
        scope, source = self._item(depth)
        for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
            if self._joins <= 0:
                break
            self._joins -= 1
            columns, item = self._item(depth)
            if r.random() < 0.12:
                other, text = self._item(0)
                condition = self._on(columns, other)
                if condition is not None:
                    item, columns = f"({item} {self._kind()} {text} ON {condition})", columns + other
            condition = self._on(scope, columns)
            if condition is None:
                continue
            source += f" {self._kind()} {item} ON {condition}"
            scope = scope + columns
        arrays = [(n, t) for n, t in scope if t.endswith("[]")]
        if arrays and r.random() < 0.4:
            scope, source = self._unnested(scope, source, *r.choice(arrays))
        return scope, source

    def _unnested(self, scope: list[Column], source: str, name: str, kind: str) -> tuple[list[Column], str]:
        """The elements of an array of a column to the left."""
        alias = self._alias()
        element = kind.replace("[]", "")  # PostgreSQL's unnest goes through all dimensions, DuckDB's through one
        flat = f"flatten({name})" if kind.endswith("[][]") else name
        join = self.random.choice(["CROSS JOIN", "LEFT JOIN"])
        condition = " ON TRUE" if join == "LEFT JOIN" else ""
        item = both(f"unnest({name}) AS {alias}(e)", f"LATERAL (SELECT unnest({flat}) AS e) AS {alias}")
        return [*scope, (f"{alias}.e", element)], f"{source} {join} {item}{condition}"

    def _item(self, depth: int) -> tuple[list[Column], str]:
        """One relation, or a query in its place."""
        r = self.random
        alias = self._alias()
        if depth > 0 and r.random() < 0.2:
            inner = self._using() if r.random() < 0.4 else self.select(depth - 1)
            return [(f"{alias}.{n}", t) for n, t in inner.columns], f"({inner.sql}) AS {alias}"
        if r.random() < 0.04:
            return (
                [(f"{alias}.id", "int"), (f"{alias}.s", "varchar")],
                f"(VALUES (1, 'a'), (2, 'b'), (2, NULL)) AS {alias}(id, s)",
            )
        relation = self._relation()
        return [(f"{alias}.{n}", t) for n, t in relation.columns], f"{relation.name} AS {alias}"

    def _relation(self) -> Relation:
        relation = self.random.choice(self.relations)
        self.used.add(relation.name)
        return relation

    def _using(self) -> Query:
        """A join with USING or NATURAL of two parts that share columns."""
        r = self.random
        left, right = self._relation(), self._relation()
        shared = [n for n, t in left.columns for m, k in right.columns if n == m and t in family(k) and t in _KEYS]
        if not shared:
            return self.select(0)
        keys = r.sample(shared, min(len(shared), r.choice([1, 1, 2])))
        sides, columns = [], []
        for side, relation in (("l", left), ("r", right)):
            rest = [c for c in relation.columns if c[0] not in keys]
            extra = r.sample(rest, min(len(rest), 2))
            renamed = [f"{n} AS {side}{i}" for i, (n, _) in enumerate(extra)]
            sides.append(f"(SELECT {', '.join([*keys, *renamed])} FROM {relation.name}) AS {side}")
            columns += [(f"{side}{i}", t) for i, (_, t) in enumerate(extra)]
        # The type of a merged column is known here only if it is the same on both sides.
        types, others = dict(left.columns), dict(right.columns)
        columns += [(n, types[n]) for n in keys if types[n] == others[n]]
        if not columns:
            return self.select(0)
        kind = self._kind()
        text = (
            f"{sides[0]} NATURAL {kind} {sides[1]}"
            if r.random() < 0.5
            else f"{sides[0]} {kind} {sides[1]} USING ({', '.join(keys)})"
        )
        listed = ", ".join(f"{n} AS x{i}" for i, (n, _) in enumerate(columns))
        return Query(f"SELECT {listed} FROM {text}", tuple((f"x{i}", t) for i, (_, t) in enumerate(columns)))

    def _comma(self) -> tuple[list[Column], str, list[str]]:
        """(scope, FROM a, b …, the equalities for WHERE)."""
        scope, source = self._item(0)
        where = []
        for _ in range(self.random.choice([1, 1, 2])):
            columns, item = self._item(0)
            condition = self._on(scope, columns)
            if condition is None:
                break
            where.append(condition)
            source += f", {item}"
            scope = scope + columns
        return scope, source, where

    def _on(self, left: Sequence[Column], right: Sequence[Column]) -> str | None:
        """A condition with at least one equality between the sides; None if their types do not meet."""
        r = self.random
        pairs = [(a, b) for a in left for b in right if b[1] in family(a[1]) and a[1] in _KEYS]
        if not pairs:
            return None
        named = [p for p in pairs if p[0][0].endswith((".k", ".s")) and p[1][0].endswith((".k", ".s"))]
        (a, kind), (b, other) = r.choice(named if named and r.random() < 0.7 else pairs)
        if r.random() < 0.15 and kind in INTEGERS:
            a = f"{a} + 1"
        elif r.random() < 0.1 and kind == other == "varchar":
            a = f"lower({a})"
        sign = "IS NOT DISTINCT FROM" if r.random() < 0.12 else "="
        parts = [f"{a} {sign} {b}" if r.random() < 0.8 else f"{b} {sign} {a}"]
        if r.random() < 0.25:
            (a, _), (b, _) = r.choice(pairs)
            parts.append(f"{a} = {b}")
        if r.random() < 0.3:
            parts.append(self._residual(left, right, pairs))
        r.shuffle(parts)
        return " AND ".join(parts)

    def _residual(self, left: Sequence[Column], right: Sequence[Column], pairs: list[tuple[Column, Column]]) -> str:
        r = self.random
        shape = r.random()
        if shape < 0.4:
            return self.make.predicate(r.choice([left, right]))
        ordered = [(a, b) for (a, t), (b, _) in pairs if t in ORDERED]
        if shape < 0.8 and ordered:
            a, b = r.choice(ordered)
            return f"{a} {r.choice(['<', '<>', '>=', '<='])} {b}"
        return self.make.predicate([*left, *right])

    # -- subqueries and aggregates

    def _subquery(self, scope: Sequence[Column]) -> str:
        r = self.random
        columns, item = self._item(0)
        pairs = [(a, b, t) for a, t in scope for b, k in columns if k in family(t) and t in _KEYS]
        if not pairs:
            return self.make.predicate(scope)
        a, b, kind = r.choice(pairs)
        extra = r.choice(["", "", f" AND {self.make.predicate(columns)}"])
        ordered = [(x, y) for x, y, t in pairs if t in ORDERED]
        if ordered and r.random() < 0.3:
            x, y = r.choice(ordered)
            extra += f" AND {x} {r.choice(['<>', '<'])} {y}"
        shape = r.randrange(7)
        if shape < 2:
            return f"{'NOT ' * shape}EXISTS (SELECT 1 FROM {item} WHERE {b} = {a}{extra})"
        if shape == 2:
            return f"{a} IN (SELECT {b} FROM {item})"
        if shape == 3:
            having = r.choice(["", " HAVING count(*) > 1", f" HAVING {'NOT ' * r.randrange(2)}(count({b}) = 1)"])
            return f"{a} {'NOT ' * r.randrange(2)}IN (SELECT {b} FROM {item} GROUP BY {b}{having})"
        if shape == 4:
            return f"{a} NOT IN (SELECT {b} FROM {item} WHERE {self.make.predicate(columns)})"
        if shape == 5:
            x, y, _ = r.choice(pairs)
            return f"{a} NOT IN (SELECT {b} FROM {item} WHERE {y} = {x})"
        grouped = f"SELECT max({b}) FROM {item}" if kind in ORDERED else f"SELECT {b} FROM {item}"
        return f"{a} IN ({grouped})"

    def _aggregate(self, scope: Sequence[Column], source: str) -> Query:
        r = self.random
        calls = [self._call(scope) for _ in range(r.randint(1, 4))]
        keys = r.sample(list(scope), min(len(scope), r.choice([0, 1, 1, 1, 2])))
        if keys and r.random() < 0.25:
            keys[0] = self.make.any(scope, 1)
            if "." not in keys[0][0]:  # a bare literal would be a position
                keys[0] = r.choice(list(scope))
        items = [*keys, *calls]
        group = f" GROUP BY {', '.join(k for k, _ in keys)}" if keys else ""
        having = ""
        if r.random() < 0.25:
            having = f" HAVING {r.choice(['count(*) > 1', f'{calls[0][0]} IS NOT NULL', 'count(*) < 3'])}"
        listed = ", ".join(f"{e} AS x{i}" for i, (e, _) in enumerate(items))
        columns = tuple((f"x{i}", t) for i, (_, t) in enumerate(items))
        return Query(f"SELECT {listed} FROM {source}{group}{having}", columns)

    def _call(self, scope: Sequence[Column]) -> Column:
        r = self.random
        argument, kind = r.choice(list(scope)) if r.random() < 0.8 else self.make.any(scope, 1)
        tail = f" FILTER (WHERE {self.make.predicate(scope)})" if r.random() < 0.2 else ""
        distinct = "DISTINCT " if r.random() < 0.2 else ""
        if kind in ORDERED and kind not in ("real", "double precision") and r.random() < 0.25:
            return self._collected(argument, kind, tail, distinct)
        if kind == "boolean" and r.random() < 0.6:
            return f"{r.choice(['bool_and', 'bool_or'])}({argument}){tail}", "boolean"
        if kind in ORDERED and r.random() < 0.4:
            return f"{r.choice(['min', 'max'])}({argument}){tail}", kind
        if kind in EXACT and r.random() < 0.7:
            if r.random() < 0.4:
                return spelled(
                    "avg({})", "exact_avg(sum({0}), count({0}))", distinct + argument
                ) if not tail else spelled(
                    "avg({}){}", "exact_avg(sum({0}){1}, count({0}){1})", distinct + argument, tail
                ), "numeric"
            if kind in ("int", "smallint"):
                return f"sum({distinct}{argument}){tail}", "bigint"
            return spelled("sum({}){}", "CAST(sum({}){} AS decimal(38,10))", distinct + argument, tail), "numeric"
        if kind in ("double precision", "real") and r.random() < 0.7:
            average = r.random() < 0.4
            name = "avg" if average else "sum"
            return spelled(f"{name}({{}}){{}}", f"float_{name}(list({{}}){{}}, '{kind}')", distinct + argument, tail), (
                "double precision" if average else kind
            )
        if r.random() < 0.4:
            return f"count(*){tail}", "bigint"
        return f"count({distinct}{argument}){tail}", "bigint"

    def _collected(self, argument: str, kind: str, tail: str, distinct: str) -> Column:
        """An aggregate over all values of a group; in the order of its own values, so that DuckDB's ties do not
        show.
        """
        r = self.random
        down = r.choice(["ASC", "DESC"])
        if kind in INTEGERS and r.random() < 0.3:
            return f"{r.choice(['bit_and', 'bit_or', 'bit_xor'])}({distinct}{argument}){tail}", kind
        if kind == "varchar" and r.random() < 0.5:
            return f"string_agg({distinct}{argument}, ';' ORDER BY {argument} {down}){tail}", "varchar"
        shape = r.randrange(3)
        if shape == 0:
            name = r.choice(["first", "last"])
            return spelled(
                f"{name}_value({{0}} ORDER BY {{0}} {down}){{1}}",
                f"{name}({{0}} ORDER BY {{0}} {down}){{1}}",
                argument,
                tail,
            ), kind
        if shape == 1:
            return f"mode() WITHIN GROUP (ORDER BY {argument} {down}){tail}", kind
        listed = spelled(
            f"array_agg({distinct}{{0}} ORDER BY {{0}} {down}){{1}}",
            f"list({distinct}{{0}} ORDER BY {{0}} {down}){{1}}",
            argument,
            tail,
        )
        return f"array_length({listed})", "int"
