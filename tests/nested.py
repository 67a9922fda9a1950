"""Random queries with nested and correlated subqueries, in SQL that DuckDB reads alike.

Tables a(id, k, x) and b(id, k, x) of integers, `id` the primary key, the others with NULLs and duplicates.
"""

from __future__ import annotations

import random

TABLES = {"a": ("id", "k", "x"), "b": ("id", "k", "x")}
SCRIPT = "; ".join(f"CREATE TABLE {t} (id int PRIMARY KEY, k int, x int)" for t in TABLES)
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

Scope = list[tuple[str, tuple[str, ...]]]
"""Aliases in FROM with their columns."""


class Nested:
    """Makes one query. streamable: every correlation has an equality, so that no plan needs a nested loop."""

    def __init__(self, source: random.Random, *, streamable: bool = True, depth: int = 3) -> None:
        self.random = source
        self.streamable = streamable
        self.depth = depth
        self._aliases = 0

    def query(self) -> str:
        """SELECT … of one to three columns x0, x1, …"""
        return self._select([], self.depth, self.random.choice([1, 1, 2, 3]), whole=True)

    # -- SELECT

    def _select(self, outer: list[Scope], depth: int, width: int, *, whole: bool = False) -> str:
        """A query of `width` columns. whole: the outermost one, which must be correlated with nothing."""
        r = self.random
        scope, source = self._source(outer, depth)
        scopes = [scope, *outer]
        conditions = [] if whole else self._correlation(scopes)
        conditions += [self._condition(scopes, depth) for _ in range(r.choice([0, 1, 1, 2] if whole else [0, 0, 1]))]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        shape = r.random()
        if shape < 0.22:
            return self._grouped(scopes, depth, width, source + where)
        items = ", ".join(f"{self._number(scopes, depth if whole else depth - 1)} AS x{i}" for i in range(width))
        text = f"SELECT {'DISTINCT ' if shape > 0.93 else ''}{items} FROM {source}{where}"
        if shape > 0.85 and depth > 0:
            other = self._select(outer, depth - 1, width, whole=whole)
            return f"{text} {r.choice(['UNION ALL', 'UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} {other}"
        return text

    def _grouped(self, scopes: list[Scope], depth: int, width: int, source: str) -> str:
        r = self.random
        key = self._column(scopes[:1])
        calls = [self._call(scopes, depth) for _ in range(width)]
        having = ""
        if r.random() < 0.4:
            left = r.choice(["count(*)", self._call(scopes[:1], 0)])
            grouped: list[Scope] = [[(key.split(".")[0], (key.split(".")[1],))], *scopes[1:]]
            right = self._scalar(grouped, depth - 1) if depth > 0 and r.random() < 0.6 else str(r.randint(0, 3))
            having = f" HAVING {left} {r.choice(_COMPARISONS)} {right}"
        items = ", ".join(f"{e} AS x{i}" for i, e in enumerate([key, *calls][:width]))
        return f"SELECT {items} FROM {source} GROUP BY {key}{having}"

    def _call(self, scopes: list[Scope], depth: int) -> str:
        r = self.random
        argument = self._column(scopes[:1])
        if len(scopes) > 1 and r.random() < 0.2:
            argument = f"{argument} + {self._column(scopes[1:])}"
        return r.choice(
            [
                "count(*)",
                f"count({argument})",
                f"sum({argument})",
                f"min({argument})",
                f"max({argument})",
                f"count(DISTINCT {argument})",
                f"sum({argument}) FILTER (WHERE {self._simple(scopes)})",
            ]
        )

    # -- FROM

    def _alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    def _source(self, outer: list[Scope], depth: int) -> tuple[Scope, str]:
        r = self.random
        scope, text = self._item(outer, depth)
        for _ in range(r.choice([0, 0, 1] if depth > 1 else [0, 0, 0, 1])):
            if depth > 0 and r.random() < 0.35:
                alias = self._alias()
                inner = self._select([scope, *outer], depth - 1, 2)
                kind, condition = r.choice(
                    [
                        ("CROSS JOIN", ""),
                        (",", ""),
                        ("LEFT JOIN", " ON true"),
                        ("JOIN", " ON true"),
                        ("LEFT JOIN", f" ON {alias}.x0 > 1"),
                    ]
                )
                text += f"{'' if kind == ',' else ' '}{kind} LATERAL ({inner}) AS {alias}{condition}"
                scope = [*scope, (alias, ("x0", "x1"))]
                continue
            added, item = self._item(outer, depth - 1)
            on = f"{self._column([scope])} = {self._column([added])}"
            if r.random() < 0.3:
                on += f" AND {self._condition([[*scope, *added], *outer], min(depth - 1, 1), simple=0.5)}"
            text += f" {r.choice(['JOIN', 'JOIN', 'LEFT JOIN', 'RIGHT JOIN', 'FULL JOIN'])} {item} ON {on}"
            scope = [*scope, *added]
        return scope, text

    def _item(self, outer: list[Scope], depth: int) -> tuple[Scope, str]:
        alias = self._alias()
        if depth > 0 and self.random.random() < 0.15:
            if outer and self.random.random() < 0.5:
                return [(alias, ("x0", "x1"))], f"({self._select(outer, depth - 1, 2)}) AS {alias}"
            return [(alias, ("x0", "x1"))], f"({self._select([], depth - 1, 2, whole=True)}) AS {alias}"
        table = self.random.choice(list(TABLES))
        return [(alias, TABLES[table])], f"{table} AS {alias}"

    # -- conditions

    def _correlation(self, scopes: list[Scope]) -> list[str]:
        """How a subquery depends on the queries around it: mostly by an equality, sometimes by more, or not at all."""
        r = self.random
        if len(scopes) < 2 or r.random() < 0.15:
            return []
        near = scopes[1:2] if r.random() < 0.75 else scopes[1:]
        parts = []
        if self.streamable or r.random() < 0.7:
            side = r.choice(["{}", "{}", "{}", "{} + 1"]).format(self._column(scopes[:1]))
            sign = "IS NOT DISTINCT FROM" if r.random() < 0.15 else "="
            parts.append(f"{side} {sign} {self._column(near)}")
        if r.random() < 0.35:
            parts.append(f"{self._column(scopes[:1])} {r.choice(_COMPARISONS)} {self._column(near)}")
        if r.random() < 0.1:
            parts.append(f"{self._column(near)} > 1")
        return parts

    def _simple(self, scopes: list[Scope]) -> str:
        r = self.random
        column = self._column(scopes[:1])
        return r.choice(
            [
                f"{column} > 1",
                f"{column} IS NOT NULL",
                f"{column} IN (1, 2)",
                f"{column} IS NULL",
                f"{column} {r.choice(_COMPARISONS)} {self._column(scopes[:1])}",
            ]
        )

    def _condition(self, scopes: list[Scope], depth: int, simple: float = 0.25) -> str:
        r = self.random
        if depth <= 0 or r.random() < simple:
            return self._simple(scopes)
        shape = r.random()
        if shape < 0.15:
            return f"({self._predicate(scopes, depth)} OR {self._condition(scopes, depth - 1)})"
        if shape < 0.25:
            return f"NOT ({self._predicate(scopes, depth)} {r.choice(['AND', 'OR'])} {self._simple(scopes)})"
        if shape < 0.32:
            return (
                f"CASE WHEN {self._predicate(scopes, depth)} THEN {self._simple(scopes)} ELSE "
                f"{self._simple(scopes)} END"
            )
        if shape < 0.4:
            return (
                f"({self._predicate(scopes, depth)}) IS {r.choice(['', 'NOT '])}{r.choice(['TRUE', 'NULL', 'FALSE'])}"
            )
        return self._predicate(scopes, depth)

    def _predicate(self, scopes: list[Scope], depth: int) -> str:
        r = self.random
        inner, shape = depth - 1, r.random()
        if shape < 0.3:
            return f"{r.choice(['', 'NOT '])}EXISTS ({self._select(scopes, inner, 1)})"
        left = self._number(scopes, 0)
        if shape < 0.55:
            return f"{left} {r.choice(['', 'NOT '])}IN ({self._select(scopes, inner, 1)})"
        if shape < 0.75:
            return f"{left} {r.choice(_COMPARISONS)} {r.choice(['ANY', 'ALL'])} ({self._select(scopes, inner, 1)})"
        return f"{left} {r.choice(_COMPARISONS)} {self._scalar(scopes, inner)}"

    # -- values

    def _column(self, scopes: list[Scope]) -> str:
        found = [f"{alias}.{c}" for scope in scopes for alias, columns in scope for c in columns]
        return self.random.choice(found)

    def _number(self, scopes: list[Scope], depth: int) -> str:
        r = self.random
        shape = r.random()
        if depth > 0 and shape < 0.2:
            return self._scalar(scopes, depth - 1)
        if depth > 0 and shape < 0.28:
            return f"CASE WHEN {self._predicate(scopes, depth)} THEN 1 ELSE 0 END"
        mine = self._column(scopes[:1])
        if len(scopes) > 1 and shape < 0.36:
            return f"{mine} + {self._column(scopes[1:])}"
        if len(scopes) > 1 and shape < 0.4:
            return self._column(scopes[1:])
        return r.choice([mine, mine, f"{mine} + 1", f"coalesce({mine}, 0)"])

    def _scalar(self, scopes: list[Scope], depth: int) -> str:
        """A subquery of one value: an aggregate without GROUP BY, or one row by its key."""
        r = self.random
        if r.random() < 0.2:
            alias = self._alias()
            scope: Scope = [(alias, TABLES["a"])]
            more = f" AND {self._condition([scope, *scopes], depth)}" if r.random() < 0.4 else ""
            return (
                f"(SELECT {self._number([scope, *scopes], depth)} FROM {r.choice(list(TABLES))} AS {alias} "
                f"WHERE {alias}.id = {self._column(scopes)}{more})"
            )
        inside, source = self._source(scopes, depth)
        both = [inside, *scopes]
        parts = self._correlation(both) + ([self._condition(both, depth)] if r.random() < 0.3 else [])
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        call = self._call(both, depth)
        having = (
            f" HAVING {r.choice(['count(*) > 1', 'count(*) < 2', f'{call} IS NOT NULL'])}" if r.random() < 0.15 else ""
        )
        return (
            f"(SELECT {r.choice(['{}', '{}', '{} + 1', 'coalesce({}, 7)']).format(call)} FROM {source}{where}{having})"
        )


def outer_join_below(source: random.Random) -> tuple[str, str]:
    """A query whose subquery has an outer join with a correlated ON, and the same one with LEFT JOIN only.

    DuckDB does not have such a join: SQLite, which has, is the judge.
    """
    kept, other = source.choice(list(TABLES)), source.choice(list(TABLES))

    def column(alias: str) -> str:
        return f"{alias}.{source.choice(TABLES['a'])}"

    def compared(alias: str) -> str:
        return f"{column(alias)} {source.choice(_COMPARISONS)} {column('o')}"

    on = [f"{column('p')} = {column('q')}", compared(source.choice("pqqq"))]
    where = [f"{column('p')} {source.choice(['=', '=', '=', '>'])} {column('o')}"]
    where += source.choice([[], ["q.id IS NULL"], [compared("q")], [f"coalesce({column('q')}, 1) = {column('o')}"]])
    kind, sides = source.choice([("LEFT", ("p", "q")), ("RIGHT", ("q", "p"))])
    tables = {"p": kept, "q": other}
    frames = ("SELECT o.id FROM a AS o WHERE {}EXISTS (SELECT 1 {})", "SELECT o.id, (SELECT {} {}) AS n FROM a AS o")
    frame = source.choice(frames)
    head = source.choice(["", "NOT "] if frame is frames[0] else ["count(q.id)", "count(*)", "sum(q.x)"])

    def written(kind: str, left: str, right: str) -> str:
        joined = f"FROM {tables[left]} AS {left} {kind} JOIN {tables[right]} AS {right} ON {' AND '.join(on)}"
        return frame.format(head, f"{joined} WHERE {' AND '.join(where)}")

    return written(kind, *sides), written("LEFT", "p", "q")


def rows(source: random.Random, table: str, count: int) -> str:
    """An INSERT of `count` rows."""

    def value() -> str:
        return source.choice(["NULL", "0", "1", "2", "3", "4"])

    return f"INSERT INTO {table} VALUES " + ", ".join(f"({i}, {value()}, {value()})" for i in range(count))
