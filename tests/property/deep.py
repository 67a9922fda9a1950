"""Random queries of all of SQL around joins: nested and correlated subqueries, LATERAL, set operations, windows, top-N.

Few types and few values, but deep: what is tested is the shape. Every order is total (it ends with all columns), so
that each query has one answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.property.expressions import Column
from tests.property.queries import Query, Relation
from tests.property.values import spelled

_COMPARABLE = {
    "int": ("int", "bigint"),
    "bigint": ("int", "bigint"),
    "varchar": ("varchar",),
    "date": ("date",),
    "numeric": ("numeric", "int"),
    "boolean": ("boolean",),
}
VALUES = {
    "int": ("0", "1", "2", "3", "NULL::int"),
    "bigint": ("1", "2", "NULL::bigint"),
    "varchar": ("'a'", "'b'", "''", "NULL::varchar"),
    "date": ("DATE '2024-01-01'", "DATE '2024-01-03'", "NULL::date"),
    "numeric": ("1.5", "2.00", "NULL::numeric"),
    "boolean": ("true", "false", "NULL::boolean"),
}
_ORDERED = ("int", "bigint", "varchar", "date", "numeric")
_NUMBERS = ("int", "bigint", "numeric")

Scope = Sequence[Column]


class DeepQueries:
    """Makes queries over `relations`. used: the names of those that were read."""

    def __init__(self, source: random.Random, relations: Sequence[Relation]) -> None:
        self.random = source
        self.relations = list(relations)
        self.used: set[str] = set()
        self._names = 0
        self._sources = 7  # relations that may still be read: the answer's size is their product

    def query(self) -> Query:
        """A whole query, whose columns are x0, x1 …"""
        found = self._query(2, ())
        listed = ", ".join(f"x{i}" for i in range(len(found.columns)))
        if self.random.random() < 0.12:
            return Query(f"WITH w AS ({found.sql}) SELECT {listed} FROM w", found.columns)
        return found

    # -- queries; outer: the columns around that may be read

    def _query(self, depth: int, outer: Scope, kinds: Sequence[str] | None = None) -> Query:
        r = self.random
        if depth and r.random() < 0.2:
            return self._set_operation(depth, outer, kinds)
        return self._select(depth, outer, kinds)

    def _set_operation(self, depth: int, outer: Scope, kinds: Sequence[str] | None) -> Query:
        r = self.random
        left = self._select(depth - 1, outer, kinds)
        right = self._select(depth - 1, outer, [t for _, t in left.columns])
        sign = r.choice(
            ["UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL", "INTERSECT", "EXCEPT"]
        )
        return Query(f"({left.sql}) {sign} ({right.sql})", left.columns)

    def _select(self, depth: int, outer: Scope, kinds: Sequence[str] | None = None) -> Query:
        r = self.random
        scope, source, where = self._from(depth, outer)
        where += self._where(depth, scope, outer)
        shape = r.random()
        if shape < 0.3:
            return self._aggregate(depth, scope, outer, source, where, kinds)
        if shape < 0.42 and not outer:
            return self._windowed(scope, source, where, kinds)
        items = self._items(depth, scope, outer, kinds)
        text = f"SELECT {'DISTINCT ' * (r.random() < 0.1)}{_listed(items)} FROM {source}{_all(' WHERE ', where)}"
        if r.random() < 0.15:
            text += self._limit(items)
        return Query(text, _named(items))

    def _limit(self, items: Scope) -> str:
        """An order of all columns, and a limit."""
        r = self.random
        places = list(range(1, len(items) + 1))
        r.shuffle(places)
        order = ", ".join(f"{p}{r.choice(['', ' DESC', ' ASC', ' NULLS FIRST', ' DESC NULLS LAST'])}" for p in places)
        offset = f" OFFSET {r.randint(1, 3)}" if r.random() < 0.3 else ""
        return f" ORDER BY {order} LIMIT {r.choice([1, 2, 3, 5])}{offset}"

    def _items(self, depth: int, scope: Scope, outer: Scope, kinds: Sequence[str] | None) -> list[Column]:
        r = self.random
        if kinds is not None:
            return [(self._value(t, scope), t) for t in kinds]
        found = r.sample(list(scope), min(len(scope), r.randint(1, 4)))
        if r.random() < 0.4:
            kind = r.choice(list(VALUES))
            found.append((self._expression(kind, scope), kind))
        if depth and r.random() < 0.3:
            found.append(self._scalar(depth - 1, scope, outer))
        if depth and r.random() < 0.12:
            found.append((f"({self._subquery_predicate(depth - 1, scope, outer)})", "boolean"))
        return found

    # -- FROM

    def _from(self, depth: int, outer: Scope) -> tuple[list[Column], str, list[str]]:
        """(columns, text, equalities of comma joins, for WHERE)."""
        r = self.random
        where: list[str] = []
        scope, source = self._item(depth)
        for _ in range(r.choice([0, 1, 1, 2]) if self._sources > 1 else 0):
            if depth and r.random() < 0.15:
                found = self._lateral(depth - 1, scope, outer)
                scope, source = scope + found[0], f"{source} {found[1]}"
                continue
            columns, item = self._item(depth)
            kind = r.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", ","])
            equality = self._equality(scope, columns)
            if equality is None:
                continue
            if kind == ",":
                source = f"{source} CROSS JOIN {item}"
                where.append(equality)
            else:
                extra = []
                if r.random() < 0.25:
                    extra = [self._comparison([*scope, *columns])]
                elif depth and kind in ("JOIN", "LEFT JOIN") and r.random() < 0.1:
                    extra = [self._subquery_predicate(0, r.choice([scope, columns]), ())]
                source = f"{source} {kind} {item} ON {' AND '.join([equality, *extra])}"
            scope = scope + columns
        return scope, source, where

    def _item(self, depth: int) -> tuple[list[Column], str]:
        r = self.random
        self._names += 1
        alias = f"a{self._names}"
        if depth and r.random() < 0.25:
            inner = self._query(depth - 1, ())
            return [(f"{alias}.{n}", t) for n, t in inner.columns], f"({inner.sql}) AS {alias}"
        self._sources -= 1
        relation = r.choice(self.relations)
        self.used.add(relation.name)
        return [(f"{alias}.{n}", t) for n, t in relation.columns], f"{relation.name} AS {alias}"

    def _lateral(self, depth: int, scope: Scope, outer: Scope) -> tuple[list[Column], str]:
        self._names += 1
        alias = f"a{self._names}"
        inner = self._select(depth, [*scope, *outer])
        columns = [(f"{alias}.{n}", t) for n, t in inner.columns]
        return columns, self.random.choice(
            ["CROSS JOIN LATERAL ({}) AS {}", "LEFT JOIN LATERAL ({}) AS {} ON true"]
        ).format(inner.sql, alias)

    def _where(self, depth: int, scope: Scope, outer: Scope) -> list[str]:
        """Conditions; in a subquery mostly one that ties it to what is around it."""
        r = self.random
        found: list[str] = []
        if outer and r.random() < 0.85:
            tie = self._equality(scope, outer)
            found += [tie] if tie else []
            if tie and r.random() < 0.2:
                found.append(self._between_scopes(scope, outer))
        if r.random() < 0.4:
            found.append(self._comparison(scope))
        if depth and r.random() < 0.45:
            condition = self._subquery_predicate(depth - 1, scope, outer)
            found.append(condition if r.random() < 0.8 else f"({condition} OR {self._comparison(scope)})")
        return found

    def _equality(self, scope: Scope, other: Scope) -> str | None:
        pairs = [(a, b) for a, t in scope for b, k in other if k in _COMPARABLE[t]]
        keys = [p for p in pairs if p[0].endswith(".k") and p[1].endswith(".k")]
        if not pairs:
            return None
        a, b = self.random.choice(keys if keys and self.random.random() < 0.6 else pairs)
        return f"{a} {'IS NOT DISTINCT FROM' if self.random.random() < 0.08 else '='} {b}"

    def _between_scopes(self, scope: Scope, other: Scope) -> str:
        r = self.random
        pairs = [(a, b) for a, t in scope for b, k in other if k in _COMPARABLE[t] and t in _ORDERED]
        if not pairs:
            return "true"
        a, b = r.choice(pairs)
        return f"{a} {r.choice(['<', '<>', '>='])} {b}"

    # -- scalars and conditions

    def _value(self, kind: str, scope: Scope) -> str:
        columns = [c for c, t in scope if t == kind]
        return (
            self.random.choice(columns) if columns and self.random.random() < 0.8 else self.random.choice(VALUES[kind])
        )

    def _expression(self, kind: str, scope: Scope) -> str:
        a, b = self._value(kind, scope), self._value(kind, scope)
        shapes = [
            a,
            f"coalesce({a}, {b})",
            f"CASE WHEN {self._comparison(scope)} THEN {a} ELSE {b} END",
            f"nullif({a}, {b})",
        ]
        if kind in ("int", "bigint"):
            shapes += [f"{a} + 1", f"-{a}"]
        if kind == "varchar":
            shapes += [f"{a} || {b}", f"upper({a})"]
        return self.random.choice(shapes)

    def _comparison(self, scope: Scope) -> str:
        r = self.random
        column, kind = r.choice(list(scope))
        value = self._value(r.choice(_COMPARABLE[kind]), scope)
        if kind == "boolean":
            return r.choice([column, f"{column} IS NOT TRUE", f"NOT {column}"])
        return r.choice(
            [
                f"{column} {r.choice(['=', '<>', '<', '>=', '>', '<='])} {value}",
                f"{column} IS NOT NULL",
                f"{column} IS NULL",
                f"{column} IN ({value}, {r.choice(VALUES[kind])})",
                f"({column} = {value} OR {column} IS NULL)",
                f"{column} IS DISTINCT FROM {value}",
            ]
        )

    def _subquery_predicate(self, depth: int, scope: Scope, outer: Scope) -> str:
        r = self.random
        around = [*scope, *outer]
        shape, negation = r.random(), r.choice(["", "", "NOT "])
        if self._sources <= 0:
            return self._comparison(scope)
        if shape < 0.3:
            return f"{negation}EXISTS ({self._query(depth, around).sql})"
        column, kind = r.choice(list(scope))
        if shape < 0.55:
            inner = self._query(depth, around if r.random() < 0.6 else (), [kind])
            return f"{column} {negation}IN ({inner.sql})"
        if kind not in _ORDERED:
            return f"{column} IS NOT NULL"
        if shape < 0.65:
            sign = r.choice(["= ANY", "<> ALL", "> ALL", "<= ANY", "< ALL"])
            inner = self._query(depth, around if r.random() < 0.6 else (), [kind])
            return f"{column} {sign} ({inner.sql})"
        other = self._scalar(depth, scope, outer, r.choice(_COMPARABLE[kind]))
        return f"{column} {r.choice(['=', '<', '>', '>=', '<>'])} {other[0]}"

    def _scalar(self, depth: int, scope: Scope, outer: Scope, kind: str | None = None) -> Column:
        """A subquery of at most one row and one column."""
        r = self.random
        around = [*scope, *outer] if r.random() < 0.75 else ()
        inner_scope, source, where = self._from(depth, around)
        where += self._where(depth, inner_scope, around)
        tail = f" FROM {source}{_all(' WHERE ', where)}"
        wanted = kind or r.choice(_ORDERED)
        if r.random() < 0.25:
            value = self._value(wanted, inner_scope)
            return f"(SELECT {value}{tail} ORDER BY 1 {r.choice(['', 'DESC'])} LIMIT 1)", wanted
        if wanted == "bigint":
            number = self._value("int", inner_scope)
            return f"(SELECT {r.choice(['count(*)', f'sum({number})'])}{tail})", "bigint"
        return f"(SELECT {r.choice(['min', 'max'])}({self._value(wanted, inner_scope)}){tail})", wanted

    # -- aggregates and windows

    def _aggregate(
        self, depth: int, scope: Scope, outer: Scope, source: str, where: list[str], kinds: Sequence[str] | None
    ) -> Query:
        r = self.random
        wanted = kinds
        keys = r.sample(list(scope), min(len(scope), r.choice([0, 1, 1, 2])))
        sets = len(keys) == 2 and r.random() < 0.4
        if wanted is None:
            items = [*keys, *(self._call(scope) for _ in range(r.randint(1, 3)))]
        else:
            items = [(self._grouped(t, keys, scope), t) for t in wanted]
        group = ""
        if keys:
            names = [k for k, _ in keys]
            group = " GROUP BY " + ", ".join(names)
            if sets:
                a, b = names
                group = " GROUP BY " + r.choice(
                    [f"ROLLUP ({a}, {b})", f"CUBE ({a}, {b})", f"GROUPING SETS (({a}), ({b}), ())"]
                )
        having = []
        if keys and r.random() < 0.3:
            having.append(r.choice(["count(*) > 1", "count(*) < 3", f"{self._call(scope)[0]} IS NOT NULL"]))
        if depth and keys and r.random() < 0.15:
            having.append(f"count(*) >= {self._scalar(0, [], (), 'bigint')[0]}")
        del outer
        text = f"SELECT {_listed(items)} FROM {source}{_all(' WHERE ', where)}{group}{_all(' HAVING ', having)}"
        return Query(text, _named(items))

    def _grouped(self, kind: str, keys: Scope, scope: Scope) -> str:
        """An expression of the type over keys and aggregates."""
        fitting = [k for k, t in keys if t == kind]
        if fitting and self.random.random() < 0.5:
            return self.random.choice(fitting)
        if kind == "boolean":
            return f"bool_or({self._value(kind, scope)})"
        if kind == "bigint":
            return self.random.choice(["count(*)", f"sum({self._value('int', scope)})"])
        return f"{self.random.choice(['min', 'max'])}({self._value(kind, scope)})"

    def _call(self, scope: Scope) -> Column:
        r = self.random
        column, kind = r.choice(list(scope))
        tail = f" FILTER (WHERE {self._comparison(scope)})" if r.random() < 0.2 else ""
        distinct = "DISTINCT " if r.random() < 0.25 else ""
        shapes: list[Column] = [(f"count(*){tail}", "bigint"), (f"count({distinct}{column}){tail}", "bigint")]
        if kind in _ORDERED:
            shapes += [(f"{r.choice(['min', 'max'])}({column}){tail}", kind)] * 2
        if kind == "int":
            shapes += [
                (f"sum({distinct}{column}){tail}", "bigint"),
                (spelled("avg({0}){1}", "exact_avg(sum({0}){1}, count({0}){1})", distinct + column, tail), "numeric"),
            ]
        if kind == "numeric":
            shapes.append((f"sum({distinct}{column}){tail}", "numeric"))
        if kind == "boolean":
            shapes += [(f"{r.choice(['bool_and', 'bool_or'])}({column}){tail}", "boolean")] * 2
        if kind == "varchar" and not distinct:
            shapes.append((f"string_agg({column}, '|' ORDER BY {column}{r.choice(['', ' DESC'])}){tail}", "varchar"))
        return r.choice(shapes)

    def _windowed(self, scope: Scope, source: str, where: list[str], kinds: Sequence[str] | None) -> Query:
        """Window functions, at times with a filter on a rank around them: a grouped top-N."""
        r = self.random
        own = [(f"c{i}", t) for i, (_, t) in enumerate(scope)]
        inner = ", ".join(f"{c} AS c{i}" for i, (c, _) in enumerate(scope))
        base = f"(SELECT {inner} FROM {source}{_all(' WHERE ', where)}) AS b{self._names}"
        parts = r.sample(own, min(len(own), r.choice([0, 1, 1, 2])))
        order = list(own)
        r.shuffle(order)
        total = ", ".join(f"{c}{r.choice(['', ' DESC', ' NULLS FIRST'])}" for c, _ in order)
        partition = f"PARTITION BY {', '.join(c for c, _ in parts)} " if parts else ""
        window = f"({partition}ORDER BY {total}{{}})"
        calls = [self._window_call(own, window, total) for _ in range(r.choice([1, 1, 2]))]
        listed = ", ".join([*(c for c, _ in own), *(f"{e} AS w{i}" for i, (e, _) in enumerate(calls))])
        after: list[Column] = [*own, *((f"w{i}", t) for i, (_, t) in enumerate(calls))]
        items = (
            [(self._value(t, after), t) for t in kinds] if kinds is not None else r.sample(after, min(len(after), 4))
        )
        ranks = [f"w{i}" for i, (e, _) in enumerate(calls) if e.startswith(("row_number", "rank"))]
        test = [f"{r.choice(ranks)} <= {r.choice([1, 2, 3])}"] if ranks and r.random() < 0.7 else []
        return Query(
            f"SELECT {_listed(items)} FROM (SELECT {listed} FROM {base}) AS q{self._names}{_all(' WHERE ', test)}",
            _named(items),
        )

    def _window_call(self, own: Scope, window: str, total: str) -> Column:
        r = self.random
        column, kind = r.choice(list(own))
        frame = r.choice(
            [
                "",
                " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
                " ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
            ]
        )
        del total
        shapes: list[Column] = [
            ("row_number() OVER " + window.format(""), "bigint"),
            ("rank() OVER " + window.format(""), "bigint"),
            ("dense_rank() OVER " + window.format(""), "bigint"),
            (f"lag({column}) OVER " + window.format(""), kind),
            (f"lead({column}, 2) OVER " + window.format(""), kind),
            (f"first_value({column}) OVER " + window.format(frame), kind),
            (f"last_value({column}) OVER " + window.format(frame), kind),
            ("count(*) OVER " + window.format(frame), "bigint"),
        ]
        if kind in _ORDERED:
            shapes.append((f"max({column}) OVER " + window.format(frame), kind))
        if kind == "int":
            shapes.append((f"sum({column}) OVER " + window.format(frame), "bigint"))
        return r.choice([*shapes[:2], *shapes])


def _all(word: str, conditions: Sequence[str]) -> str:
    return f"{word}{' AND '.join(conditions)}" if conditions else ""


def _listed(items: Scope) -> str:
    return ", ".join(f"{e} AS x{i}" for i, (e, _) in enumerate(items))


def _named(items: Scope) -> tuple[Column, ...]:
    return tuple((f"x{i}", t) for i, (_, t) in enumerate(items))
