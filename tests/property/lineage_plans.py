"""Random queries whose rows know in plain Python which rows of tables they come from, and where missing rows end.

The rules are those of docs/LINEAGE.md. Nothing here is taken from the product: a query is a tree
of the classes below, each with its SQL and its rows. Conditions stand right above what they are about, so that no
rewrite of a query moves them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: A row: its values, and the rows of tables (table, rid) that it comes from.
Row = tuple[tuple[Any, ...], frozenset[tuple[str, int]]]
Wanted = dict[int, Any]
#: Where rows end: the operator, and the rows of tables that the rows come from which end there.
End = tuple[str, frozenset[tuple[str, int]]]
Tables = dict[str, list[tuple[int, int | None, int | None]]]


def meets(values: Sequence[Any], wanted: Wanted) -> bool:
    return all(values[i] == v and v is not None for i, v in wanted.items())


def together(rows: Sequence[Row]) -> frozenset[tuple[str, int]]:
    return frozenset().union(*(lineage for _, lineage in rows))


class Unclear(Exception):
    """What is wanted contradicts itself, or any row would do: which operator comes first depends on rewrites."""


class Plan:
    """columns: how many. They are called c0, c1 …"""

    columns: int

    def sql(self) -> str:
        raise NotImplementedError

    def rows(self, tables: Tables) -> list[Row]:
        raise NotImplementedError

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        """No row meets `wanted`."""
        raise NotImplementedError

    def meeting(self, tables: Tables, wanted: Wanted) -> list[Row]:
        return [r for r in self.rows(tables) if meets(r[0], wanted)]


@dataclass
class Scan(Plan):
    table: str
    columns: int = 3

    def sql(self) -> str:
        return f"SELECT rid AS c0, k AS c1, x AS c2 FROM {self.table}"

    def rows(self, tables: Tables) -> list[Row]:
        return [(row, frozenset([(self.table, row[0])])) for row in tables[self.table]]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        return [("table", frozenset())]


@dataclass
class View(Plan):
    """A materialized view of a plan."""

    name: str
    plan: Plan

    @property
    def columns(self) -> int:
        return self.plan.columns

    def sql(self) -> str:
        return f"SELECT * FROM {self.name}"

    def rows(self, tables: Tables) -> list[Row]:
        """Equal rows can't be told from each other: each has what all of them come from."""
        rows = self.plan.rows(tables)
        return [(values, together([r for r in rows if r[0] == values])) for values, _ in rows]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        return self.plan.ends(tables, wanted)


@dataclass
class Filter(Plan):
    """What is above a value in one column."""

    plan: Plan
    column: int
    above: int

    @property
    def columns(self) -> int:
        return self.plan.columns

    def sql(self) -> str:
        return f"SELECT * FROM ({self.plan.sql()}) f WHERE c{self.column} > {self.above}"

    def rows(self, tables: Tables) -> list[Row]:
        return [r for r in self.plan.rows(tables) if r[0][self.column] is not None and r[0][self.column] > self.above]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        found = self.plan.meeting(tables, wanted)
        return [("Filter", together(found))] if found else self.plan.ends(tables, wanted)


@dataclass
class Join(Plan):
    """Pairs with an equal column."""

    kind: str
    left: Plan
    right: Plan
    keys: tuple[int, int]

    @property
    def columns(self) -> int:
        return self.left.columns + (0 if self.kind in ("SEMI", "ANTI") else self.right.columns)

    def sql(self) -> str:
        left, right = self.keys
        condition = f"a.c{left} = b.c{right}"
        if self.kind in ("SEMI", "ANTI"):
            word = "EXISTS" if self.kind == "SEMI" else "NOT EXISTS"
            inner = f"SELECT * FROM ({self.right.sql()}) b WHERE {condition}"
            return f"SELECT * FROM ({self.left.sql()}) a WHERE {word} ({inner})"
        columns = [f"a.c{i}" for i in range(self.left.columns)] + [f"b.c{i}" for i in range(self.right.columns)]
        named = ", ".join(f"{c} AS c{i}" for i, c in enumerate(columns))
        return f"SELECT {named} FROM ({self.left.sql()}) a {self.kind} JOIN ({self.right.sql()}) b ON {condition}"

    @property
    def title(self) -> str:
        return "Join" if self.kind == "INNER" else f"{self.kind.title()} Join"

    def match(self, left: Row, right: Row) -> bool:
        one, other = left[0][self.keys[0]], right[0][self.keys[1]]
        return one is not None and one == other

    def rows(self, tables: Tables) -> list[Row]:
        return self.joined(self.left.rows(tables), self.right.rows(tables))

    def joined(self, lefts: Sequence[Row], rights: Sequence[Row]) -> list[Row]:
        found: list[Row] = []
        for left in lefts:
            partners = [r for r in rights if self.match(left, r)]
            if self.kind == "SEMI":
                found += [(left[0], left[1] | together(partners))] if partners else []
            elif self.kind == "ANTI":
                found += [] if partners else [left]
            else:
                found += [(left[0] + r[0], left[1] | r[1]) for r in partners]
                if not partners and self.kind in ("LEFT", "FULL"):
                    found.append((left[0] + (None,) * self.right.columns, left[1]))
        if self.kind in ("RIGHT", "FULL"):
            alone = [r for r in rights if not any(self.match(left, r) for left in lefts)]
            found += [((None,) * self.left.columns + r[0], r[1]) for r in alone]
        return found

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        width = self.left.columns
        lefts = {i: v for i, v in wanted.items() if i < width}
        rights = {i - width: v for i, v in wanted.items() if i >= width}
        if self.kind in ("SEMI", "ANTI"):
            found = self.left.meeting(tables, wanted)
            if not found:
                return self.left.ends(tables, wanted)
            partners = [r for r in self.right.rows(tables) if any(self.match(left, r) for left in found)]
            killed = together(found) | (together(partners) if self.kind == "ANTI" else frozenset())
            return [(self.title, killed)]
        # A row that lacks a side has NULLs there, which meet nothing that is wanted.
        needs_left = self.kind in ("INNER", "LEFT") or bool(lefts)
        needs_right = self.kind in ("INNER", "RIGHT") or bool(rights)
        if needs_left and needs_right:
            return self.paired(tables, lefts, rights)
        if not needs_left and not needs_right:
            raise Unclear
        side, own = (self.left, lefts) if needs_left else (self.right, rights)
        shift = 0 if needs_left else width
        if not side.meeting(tables, own):
            return side.ends(tables, own)
        return [(self.title, together(self.meeting(tables, {i + shift: v for i, v in own.items()})))]

    def paired(self, tables: Tables, lefts: Wanted, rights: Wanted) -> list[End]:
        one, other = self.keys
        if one in lefts and other in rights and lefts[one] != rights[other]:
            raise Unclear
        lefts, rights = (
            lefts | ({one: rights[other]} if other in rights else {}),
            rights | ({other: lefts[one]} if one in lefts else {}),
        )
        sides = ((self.left, lefts), (self.right, rights))
        dead = [side.ends(tables, own) for side, own in sides if not side.meeting(tables, own)]
        if dead:
            return [end for ends in dead for end in ends]
        return [(self.title, together(min((side.meeting(tables, own) for side, own in sides), key=len)))]


@dataclass
class Groups(Plan):
    """Of each value of a column: the number of rows, the sum of the last column."""

    plan: Plan
    key: int
    columns: int = 3

    def sql(self) -> str:
        total = f"sum(c{self.plan.columns - 1})"
        return (
            f"SELECT c{self.key} AS c0, count(*) AS c1, {total} AS c2 FROM ({self.plan.sql()}) g GROUP BY c{self.key}"
        )

    def rows(self, tables: Tables) -> list[Row]:
        groups: dict[Any, list[Row]] = {}
        for row in self.plan.rows(tables):
            groups.setdefault(row[0][self.key], []).append(row)
        found = []
        for key, rows in groups.items():
            known = [v[-1] for v, _ in rows if v[-1] is not None]
            found.append(((key, len(rows), sum(known) if known else None), together(rows)))
        return found

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        own = {i: v for i, v in wanted.items() if i == 0}
        found = self.meeting(tables, own)
        return [("Group", together(found))] if found else self.plan.ends(tables, {self.key: v for v in own.values()})


@dataclass
class Both(Plan):
    """UNION ALL, or UNION."""

    left: Plan
    right: Plan
    distinct: bool

    @property
    def columns(self) -> int:
        return self.left.columns

    def sql(self) -> str:
        return f"{self.left.sql()} UNION {'' if self.distinct else 'ALL '}{self.right.sql()}"

    def rows(self, tables: Tables) -> list[Row]:
        rows = self.left.rows(tables) + self.right.rows(tables)
        if not self.distinct:
            return rows
        values = dict.fromkeys(v for v, _ in rows)
        return [(v, together([r for r in rows if r[0] == v])) for v in values]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        return self.left.ends(tables, wanted) + self.right.ends(tables, wanted)


@dataclass
class First(Plan):
    """The row with the least rid of each value of a column. The first column is unique."""

    plan: Scan
    key: int
    columns: int = 3

    def sql(self) -> str:
        number = f"row_number() OVER (PARTITION BY c{self.key} ORDER BY c0) AS n"
        return f"SELECT c0, c1, c2 FROM (SELECT *, {number} FROM ({self.plan.sql()}) s) n WHERE n <= 1"

    def rows(self, tables: Tables) -> list[Row]:
        rows = self.plan.rows(tables)
        return [r for r in rows if r[0][0] == min(o[0][0] for o in rows if o[0][self.key] == r[0][self.key])]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        found = self.plan.meeting(tables, wanted)
        return [("Top N", together(found))] if found else self.plan.ends(tables, wanted)


@dataclass
class Nearest(Plan):
    """An ASOF join: of the rows with an equal second column, the one with the greatest rid up to that of the row."""

    left: Scan
    right: Scan
    outer: bool
    columns: int = 6

    def sql(self) -> str:
        named = ", ".join(f"{side}.c{i} AS c{i + shift}" for side, shift in (("a", 0), ("b", 3)) for i in range(3))
        kind = "ASOF LEFT JOIN" if self.outer else "ASOF JOIN"
        sides = f"({self.left.sql()}) a {kind} ({self.right.sql()}) b"
        return f"SELECT {named} FROM {sides} ON a.c1 = b.c1 AND a.c0 >= b.c0"

    def rows(self, tables: Tables) -> list[Row]:
        found: list[Row] = []
        for left, lineage in self.left.rows(tables):
            rights = [r for r in self.right.rows(tables) if r[0][1] == left[1] is not None and r[0][0] <= left[0]]
            if rights:
                values, partner = max(rights, key=lambda r: r[0][0])
                found.append((left + values, lineage | partner))
            elif self.outer:
                found.append((left + (None,) * 3, lineage))
        return found

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        own = {i: v for i, v in wanted.items() if i < 3}
        found = self.left.meeting(tables, own)
        if not found:
            return self.left.ends(tables, own)
        return [("Asof Join", together(self.meeting(tables, own) or found))]


@dataclass
class Running(Plan):
    """Each row with how many there are of its value in a column: a window function over the whole partition."""

    plan: Scan
    key: int
    columns: int = 4

    def sql(self) -> str:
        return f"SELECT c0, c1, c2, count(*) OVER (PARTITION BY c{self.key}) AS c3 FROM ({self.plan.sql()}) s"

    def rows(self, tables: Tables) -> list[Row]:
        rows = self.plan.rows(tables)
        parts = [[o for o in rows if o[0][self.key] == r[0][self.key]] for r in rows]
        return [(r[0] + (len(part),), together(part)) for r, part in zip(rows, parts, strict=True)]

    def ends(self, tables: Tables, wanted: Wanted) -> list[End]:
        own = {i: v for i, v in wanted.items() if i < 3}
        found = self.meeting(tables, own)
        return [("Window", together(found))] if found else self.plan.ends(tables, own)


@dataclass
class Case:
    """tables, the plan of each view in the order in which they are made, and the one that is asked about."""

    tables: Tables
    views: list[View]
    last: View


class Maker:
    """Makes one case from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.views: list[View] = []

    def case(self) -> Case:
        r = self.random
        tables = {
            f"t{i}": [(n, r.choice([None, 1, 2, 3, 4]), r.choice([None, 1, 2, 3])) for n in range(1, r.randint(2, 9))]
            for i in range(3)
        }
        plan = self.plan(r.choice([2, 3, 3]))
        return Case(tables, self.views, plan if isinstance(plan, View) else self.view(plan))

    def view(self, plan: Plan) -> View:
        made = View(f"v{len(self.views)}", plan)
        self.views.append(made)
        return made

    def plan(self, depth: int) -> Plan:
        r = self.random
        made = self.leaf() if depth == 0 else self.inner(depth)
        return self.view(made) if depth and not isinstance(made, View) and r.random() < 0.3 else made

    def leaf(self) -> Plan:
        r = self.random
        scan = Scan(f"t{r.randrange(3)}")
        if r.random() < 0.2:
            return self.view(Nearest(scan, Scan(f"t{r.randrange(3)}"), r.random() < 0.5))
        filtered, first = Filter(scan, r.randrange(3), r.randint(0, 2)), First(scan, r.choice([1, 2]))
        return r.choice([scan, scan, filtered, first, Running(scan, r.choice([1, 2]))])

    def inner(self, depth: int) -> Plan:
        r = self.random
        left = self.plan(depth - 1)
        if r.random() < 0.25:
            groups = Groups(left, r.randrange(left.columns))
            return Filter(groups, r.choice([1, 2]), r.randint(0, 2)) if r.random() < 0.4 else groups
        right = self.plan(r.randrange(depth))
        if r.random() < 0.2 and left.columns == right.columns:
            return Both(left, right, r.random() < 0.5)
        kind = r.choice(["INNER", "INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"])
        made = Join(kind, left, right, (r.randrange(left.columns), r.randrange(right.columns)))
        # What is above an outer join makes an inner one of it, unless a view lies between.
        return self.view(made) if kind in ("LEFT", "RIGHT", "FULL") else made


def parts(text: str) -> tuple[int, str]:
    """How deep a step is drawn, and its own text."""
    own = text.lstrip("│├└─ ")
    return (len(text) - len(own)) // 3, own


def rows_read(lines: Sequence[Sequence[Any]], what: str) -> Iterator[tuple[str, Any]]:
    """The rows of relations of a kind among the steps, each with the name of its relation, but for those that are only
    there to explain what is lacking.
    """
    skipped = None
    for step, relation, row, _ in lines:
        depth, own = parts(step)
        if skipped is not None and depth > skipped:
            continue
        skipped = depth if own == "no partner" else None
        if own == what:
            yield relation, row


def rows_shown(lines: Sequence[Sequence[Any]]) -> frozenset[tuple[str, int]]:
    """The rows of tables among the steps, by their numbers."""
    return frozenset((relation, row["rid"]) for relation, row in rows_read(lines, "table") if row is not None)


def ends_shown(lines: Sequence[Sequence[Any]]) -> Iterator[End]:
    """Where rows end, below views and unions."""
    places = [parts(line[0]) for line in lines]
    number = 0
    while number < len(lines):
        depth, own = places[number]
        if own in ("materialized view", "Union"):
            number += 1
            continue
        end = number + 1
        while end < len(lines) and places[end][0] > depth:
            end += 1
        yield own, rows_shown(lines[number + 1 : end])
        number = end
