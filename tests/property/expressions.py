"""Random typed expressions over columns in scope."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.property.values import DATES, EXACT, INTEGERS, NUMBERS, ORDERED, VALUES, literal, spelled, type_name

#: (expression, type)
Column = tuple[str, str]

#: Types whose values can be compared with each other.
_FAMILIES = (NUMBERS, DATES)
#: Types of which a cast to text looks the same everywhere and for equal values.
_TEXTUAL = ("int", "bigint", "smallint", "boolean", "date", "timestamp", "timestamptz", "time")


def family(kind: str) -> tuple[str, ...]:
    """The types with which `kind` can be compared."""
    return next((f for f in _FAMILIES if kind in f), (kind,))


class Expressions:
    """Makes expressions of wanted types. risky: conditions may raise errors for some rows."""

    def __init__(self, source: random.Random, *, risky: bool = False) -> None:
        self.random = source
        self._risky = risky

    def value(self, kind: str) -> str:
        """A literal."""
        texts = VALUES[kind]
        return literal(kind, texts[0] if self.random.random() < 0.2 else self.random.choice(texts))

    def of(self, kind: str, scope: Sequence[Column], depth: int = 2) -> str:
        """An expression of exactly the type `kind`."""
        r = self.random
        columns = [c for c, t in scope if t == kind]
        if depth <= 0 or (columns and r.random() < 0.35):
            return r.choice(columns) if columns and r.random() < 0.9 else self.value(kind)
        choices = [self._generic]
        special = getattr(
            self, "_" + kind.partition("(")[0].partition("<")[0].replace(" ", "_").replace("[]", "_array"), None
        )
        if special is not None:
            choices += [special] * 3
        return r.choice(choices)(kind, scope, depth - 1)

    def any(self, scope: Sequence[Column], depth: int = 2) -> Column:
        """An expression of a type that makes sense here."""
        r = self.random
        kind = r.choice([t for _, t in scope] + ["int", "varchar"]) if r.random() < 0.85 else r.choice(list(VALUES))
        return self.of(kind, scope, depth), kind

    def predicate(self, scope: Sequence[Column], depth: int = 1) -> str:
        """A condition."""
        r = self.random
        if depth > 0 and r.random() < 0.3:
            a, b = self.predicate(scope, depth - 1), self.predicate(scope, depth - 1)
            return r.choice([f"({a} OR {b})", f"({a} AND {b})", f"NOT ({a})", f"(({a}) IS NOT TRUE)"])
        texts = [c for c, t in scope if t == "varchar"]
        if self._risky and texts and r.random() < 0.12:
            return spelled(
                "CAST({} AS int) {} {}",
                "TRY(CAST({} AS int)) {} {}",
                r.choice(texts),
                r.choice(["<", "=", ">="]),
                r.choice(["1", "2"]),
            )
        column, kind = r.choice(list(scope))
        if r.random() < 0.2:
            column = self.of(kind, scope, 1)
        if r.random() < 0.15:
            return f"{column} IS {r.choice(['', 'NOT '])}NULL"
        others = [c for c, t in scope if t in family(kind)]
        other = r.choice(others) if others and r.random() < 0.3 else self.value(kind)
        if kind not in ORDERED:
            return f"{column} {r.choice(['=', '<>', 'IS DISTINCT FROM', 'IS NOT DISTINCT FROM'])} {other}"
        shapes = [
            f"{column} {r.choice(['=', '<>', '<', '<=', '>', '>='])} {other}",
            f"{column} IN ({self.value(kind)}, {self.value(kind)})",
            f"{column} IS NOT DISTINCT FROM {other}",
            f"{column} BETWEEN {self.value(kind)} AND {self.value(kind)}",
        ]
        if kind == "varchar":
            shapes += [f"{column} LIKE '{r.choice(['a%', '%b%', '_', '%|c'])}'", f"coalesce({column}, 'z') > 'a'"]
        if kind in NUMBERS:
            shapes += [f"{column} > 1", f"NOT ({column} = 1)", f"({column} = 2 OR {column} IS NULL)"] * 2
        return r.choice(shapes)

    # -- by type: each takes the type, the scope and the depth of the parts

    def _generic(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        a, b = self.of(kind, scope, depth), self.of(kind, scope, depth)
        when = self.predicate(scope)
        shapes = [
            f"COALESCE({a}, {b})",
            f"CASE WHEN {when} THEN {a} ELSE {b} END",
            f"CASE WHEN {when} THEN {a} END",
            f"NULLIF({a}, {b})",
        ]
        if kind in ORDERED:
            shapes += [f"GREATEST({a}, {b})", f"LEAST({a}, {b})"]
        return self.random.choice(shapes)

    def _int(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        del kind
        r = self.random
        a, b = self.of("int", scope, depth), self.of(r.choice(["int", "smallint"]), scope, depth)
        text = self.of("varchar", scope, depth)
        shapes = [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * 2)",
            f"(-{a})",
            f"abs({a})",
            spelled("({} / {})", "({} // {})", a, b),
            f"({a} % 3)",
            f"length({text})",
            f"CAST({self.of('smallint', scope, depth)} AS int)",
            f"CAST({self.of('boolean', scope, 0)} AS int)",
            f"CAST({self.of('numeric(10,2)', scope, 0)} AS int)",
            f"({self.of('date', scope, 0)} - DATE '2023-12-30')",
        ]
        texts = [c for c, t in scope if t == "varchar"]
        if self._risky and texts:
            shapes += [spelled("CAST({} AS int)", "TRY(CAST({} AS int))", r.choice(texts))] * 2
        arrays = [c for c, t in scope if t == "int[]"]
        structs = [c for c, t in scope if t.startswith("struct")]
        if arrays:
            shapes += [f"({r.choice(arrays)})[1]"] * 3
        if structs:
            shapes += [f"({r.choice(structs)}).a"] * 3
        return r.choice(shapes)

    def _bigint(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        del kind
        a = self.of("bigint", scope, depth)
        part = self.random.choice(INTEGERS)
        return self.random.choice(
            [
                f"({a} + {self.of(part, scope, depth)})",
                f"({a} - 1)",
                f"(-{a})",
                f"CAST({self.of('int', scope, depth)} AS bigint)",
                f"({a} % 10)",
            ]
        )

    def _numeric(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        a = self.of(self.random.choice(EXACT), scope, depth)
        whole = f"CAST({a} AS {type_name(kind)})"
        if kind != "numeric":
            return f"CAST({self.of('int', scope, 0)} AS {kind})"
        return self.random.choice(
            [whole, f"({whole} + {self.of('numeric', scope, 0)})", f"(-{whole})", f"abs({whole})"]
        )

    def _double_precision(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        a = self.of(kind, scope, depth)
        other = self.random.choice(["real", "int", "numeric(10,2)", "double precision"])
        return self.random.choice(
            [f"({a} * 2)", f"({a} + 1)", f"CAST({self.of(other, scope, depth)} AS double precision)", f"abs({a})"]
        )

    def _varchar(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        r = self.random
        a, b = self.of(kind, scope, depth), self.of(kind, scope, depth)
        other = r.choice(_TEXTUAL)
        cast = f"CAST({self.of(other, scope, depth)} AS varchar)"
        shapes = [
            f"lower({a})",
            f"upper({a})",
            f"substr({a}, 1, 2)",
            f"({a} || {b})",
            f"concat({a}, {b})",
            cast,
            cast,
            f"replace({a}, 'a', 'xx')",
            f"trim({a})",
            f"({a} || {cast})",
            f"left({a}, 1)",
        ]
        documents = [c for c, t in scope if t == "jsonb"]
        structs = [c for c, t in scope if t.startswith("struct")]
        if documents:
            shapes += [f"({r.choice(documents)} ->> 'a')"] * 4
        if structs:
            shapes += [f"({r.choice(structs)}).b"] * 4
        return r.choice(shapes)

    def _boolean(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        del kind
        return f"({self.predicate(scope, depth)})"

    def _date(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        return self.random.choice(
            [
                f"CAST({self.of('timestamp', scope, depth)} AS date)",
                f"({self.of(kind, scope, depth)} + 1)",
                f"CAST({self.of('timestamptz', scope, depth)} AS date)",
            ]
        )

    def _time(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        return self.random.choice(
            [
                f"CAST({self.of('timestamp', scope, depth)} AS time)",
                f"({self.of(kind, scope, depth)} + INTERVAL '1 hour')",
            ]
        )

    def _timestamp(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        r = self.random
        a = self.of(kind, scope, depth)
        unit = r.choice(["day", "hour", "month", "year", "second", "week"])
        return r.choice(
            [
                f"date_trunc('{unit}', {a})",
                f"({a} + INTERVAL '1 day')",
                f"({a} - INTERVAL '1 month')",
                f"CAST({self.of('date', scope, depth)} AS timestamp)",
                f"CAST({self.of('timestamptz', scope, depth)} AS timestamp)",
                f"({self.of('date', scope, depth)} + INTERVAL '90 minutes')",
            ]
        )

    def _timestamptz(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        r = self.random
        a = self.of(kind, scope, depth)
        return r.choice(
            [
                f"date_trunc('{r.choice(['day', 'hour', 'month'])}', {a})",
                f"({a} + INTERVAL '1 hour')",
                f"CAST({self.of('timestamp', scope, depth)} AS timestamptz)",
            ]
        )

    def _interval(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        a = self.of(kind, scope, depth)
        b = self.of("timestamp", scope, depth)
        return self.random.choice(
            [f"({a} + {self.of(kind, scope, depth)})", f"({a} * 2)", f"({b} - {self.of('timestamp', scope, depth)})"]
        )

    def _jsonb(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        return f"({self.of(kind, scope, depth)} -> '{self.random.choice('ab')}')"

    def extracted(self, scope: Sequence[Column]) -> Column | None:
        """extract(… from …) over a column, None if there is none that has parts."""
        r = self.random
        places = [(c, t) for c, t in scope if t in DATES or t == "time"]
        if not places:
            return None
        column, kind = r.choice(places)
        parts = ["hour", "minute"] if kind == "time" else ["year", "month", "day", "dow", "doy", "quarter", "week"]
        return f"extract({r.choice(parts)} FROM {column})", "double precision"
