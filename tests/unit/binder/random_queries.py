"""Random SELECTs over the two tables of `test_meaning`, in SQL that DuckDB reads alike."""

from __future__ import annotations

import random

COLUMNS = {
    "a": {"id": "number", "k": "number", "s": "text", "n": "number", "f": "number", "d": "date"},
    "b": {"id": "number", "k": "number", "s": "text", "bo": "boolean"},
}


class Maker:
    """Makes one query from `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0

    def query(self) -> str:
        text, shape = self.select(), self.random.random()
        if shape < 0.15:
            return f"SELECT DISTINCT * FROM ({text}) AS q"
        if shape < 0.3:
            return (
                f"WITH q AS ({text}) SELECT x0 FROM q UNION {self.random.choice(['', 'ALL '])}SELECT x0 FROM q "
                f"WHERE x0 IS NOT NULL"
            )
        return text

    def select(self) -> str:
        r = self.random
        scope = [self.item()]
        source = f"{scope[0][1]} AS {scope[0][0]}"
        for _ in range(r.choice([0, 1, 1, 2, 3])):
            item = self.item()
            kind = r.choice(
                [
                    "JOIN" if "CROSS" in source else "CROSS JOIN",
                    "JOIN",
                    "JOIN",
                    "JOIN",
                    "LEFT JOIN",
                    "RIGHT JOIN",
                    "FULL JOIN",
                ]
            )
            condition = "" if kind == "CROSS JOIN" else f" ON {self.on(scope, item)}"
            scope.append(item)
            source += f" {kind} {item[1]} AS {item[0]}{condition}"
        where = [self.predicate(scope) for _ in range(r.choice([0, 0, 1, 2]))] + [
            self.subquery(scope) for _ in range(r.choice([0, 0, 1]))
        ]
        tail = f" WHERE {' AND '.join(where)}" if where else ""
        if r.random() < 0.35:
            return self.aggregate(scope, source + tail)
        items = [f"{self.expression(scope)} AS x{i}" for i in range(r.randint(1, 4))]
        return f"SELECT {', '.join(items)} FROM {source}{tail}"

    def item(self) -> tuple[str, str]:
        self.number += 1
        return f"t{self.number}", self.random.choice(list(COLUMNS))

    def column(self, scope, *kinds: str) -> str:
        found = [
            f"{alias}.{name}"
            for alias, table in scope
            for name, kind in COLUMNS[table].items()
            if not kinds or kind in kinds
        ]
        return self.random.choice(found)

    def expression(self, scope) -> str:
        r = self.random
        number = self.column(scope, "number")
        return r.choice(
            [
                self.column(scope),
                number,
                f"{number} + 1",
                f"-{number}",
                f"coalesce({number}, {self.column(scope, 'number')})",
                f"CASE WHEN {self.predicate(scope)} THEN {number} ELSE 0 END",
                f"upper({self.column(scope, 'text')})",
                f"{self.column(scope, 'text')} || '-'",
                f"{number} IS NULL",
                f"nullif({number}, 2)",
            ]
        )

    def predicate(self, scope) -> str:
        r = self.random
        number, text = self.column(scope, "number"), self.column(scope, "text")
        return r.choice(
            [
                f"{number} > 2",
                f"{number} BETWEEN 1 AND 4",
                f"{number} IN (1, 2, NULL)",
                f"{number} IS NOT NULL",
                f"({number} = 2 OR {text} IS NULL)",
                f"NOT ({number} < 3)",
                f"{text} LIKE 'b%'",
                f"{text} NOT IN ('a', 'b')",
                f"{number} IS DISTINCT FROM {self.column(scope, 'number')}",
                f"{number} <= {self.column(scope, 'number')}",
            ]
        )

    def on(self, scope, item) -> str:
        r = self.random
        kind = r.choice(["number", "number", "text"])
        sign = "IS NOT DISTINCT FROM" if r.random() < 0.2 else "="
        parts = [f"{self.column(scope, kind)} {sign} {self.column([item], kind)}"]
        parts += [self.predicate([*scope, item]) for _ in range(r.choice([0, 0, 1, 2]))]
        r.shuffle(parts)
        return " AND ".join(parts)

    def subquery(self, scope) -> str:
        r = self.random
        item = self.item()
        source, both = f"{item[1]} AS {item[0]}", [*scope, item]
        inner = [f"{self.column([item], 'number')} = {self.column(scope, 'number')}"] if r.random() < 0.6 else []
        inner += [self.predicate(both if inner else [item])] if r.random() < 0.5 else []
        tail = f" WHERE {' AND '.join(inner)}" if inner else ""
        negation = r.choice(["", "NOT "])
        if r.random() < 0.4:
            return f"{negation}EXISTS (SELECT 1 FROM {source}{tail})"
        kind = r.choice(["number", "text"])
        return f"{self.column(scope, kind)} {negation}IN (SELECT {self.column([item], kind)} FROM {source}{tail})"

    def aggregate(self, scope, source: str) -> str:
        r = self.random
        keys = [self.expression(scope) for _ in range(r.choice([0, 1, 1, 2]))]
        number = self.column(scope, "number")
        calls = [
            "count(*)",
            f"count({self.column(scope)})",
            f"sum({number})",
            f"min({self.column(scope, 'number', 'text', 'date')})",
            f"max({self.column(scope, 'number', 'text', 'date')})",
            f"count(DISTINCT {number})",
            f"sum({number}) FILTER (WHERE {self.predicate(scope)})",
            f"sum({number}) + count(*)",
        ]
        items = [f"{e} AS x{i}" for i, e in enumerate([*keys, *r.sample(calls, r.randint(1, 3))])]
        group = f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}" if keys else ""
        having = " HAVING count(*) > 1" if keys and r.random() < 0.3 else ""
        return f"SELECT {', '.join(items)} FROM {source}{group}{having}"
