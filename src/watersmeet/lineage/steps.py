"""The answer of EXPLAIN ROW and EXPLAIN MISSING ROW: steps with values and names, drawn as a tree.

Columns and expressions have the names of the view's own SQL where possible. `Asker` runs trees of the algebra in
DuckDB; it returns their first rows, and the keys nearest to a missing key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import PastScan, Recursion
from watersmeet.algebra.nodes import Aggregate, Column, Expand, Node, Project, Scan, SortKey, Union, Unnest, Window
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.scalars import AggregateCall, Scalar, conjuncts, null_of
from watersmeet.algebra.trees import filtered, read, walk
from watersmeet.expressions.casts import as_written
from watersmeet.unparsing.relations import Writer
from watersmeet.unparsing.texts import cast, quoted, sql
from watersmeet.values.types import BOOLEAN, VARCHAR, SqlType


@dataclass(frozen=True)
class Step:
    """One step: an operator, a row of a relation, or a missing row.

    relation: the relation of the row. row: the row as JSON. detail: a text.
    """

    what: str
    relation: str | None = None
    row: str | None = None
    detail: str | None = None
    below: Sequence[Step] = field(default=())

    def noted(self, note: str) -> Step:
        """The step with an additional note; the step itself if the note is empty."""
        if not note:
            return self
        return replace(self, detail=f"{self.detail}; {note}" if self.detail else note)


class Line(NamedTuple):
    """A step as it is shown. step: its line of the drawn tree."""

    step: str
    relation: str | None
    row: str | None
    detail: str | None


def drawn(steps: Sequence[Step]) -> list[Line]:
    """The steps as lines, parents before children."""
    return [line for step in steps for line in _lines(step)]


def _lines(step: Step) -> Iterator[Line]:
    yield Line(step.what, step.relation, step.row, step.detail)
    for number, below in enumerate(step.below, 1):
        last = number == len(step.below)
        for place, line in enumerate(_lines(below)):
            lead = ("└─ " if last else "├─ ") if place == 0 else ("   " if last else "│  ")
            yield line._replace(step=lead + line.step)


#: Sums of floating-point numbers depend, in their last digits, on the order of addition.
_NEAR: Final = "1e-9"

_RAW: Final = frozenset({"boolean", "jsonb"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. text: its text as DuckDB's VARCHAR, None for NULL. nested: for arrays and structs, the JSON text."""

    text: str | None
    type: SqlType
    nested: str | None = None

    @property
    def json(self) -> str:
        """The value as JSON. Numbers have all their digits."""
        if self.text is None:
            return "null"
        if self.nested is not None:
            return self.nested
        is_number = self.type.is_numeric and self.text.lstrip("+-")[:1].isdigit()
        return self._plain if is_number or self.type.name in _RAW else json.dumps(self.text, ensure_ascii=False)

    @property
    def shown(self) -> str:
        """The value as SQL shows it."""
        if self.text is None:
            return "NULL"
        if self.type.is_numeric or self.type.name == "boolean":
            return self._plain
        return "'" + self.text.replace("'", "''") + "'"

    @property
    def _plain(self) -> str:
        """The text of a number without the trailing zeros of its type."""
        assert self.text is not None
        endless = self.type.name == "numeric" and self.type.precision is None
        return self.text.rstrip("0").rstrip(".") if endless and "." in self.text else self.text

    @property
    def literal(self) -> Scalar:
        """The value as a constant of the algebra."""
        if self.text is None:
            return null_of(self.type)
        return Scalar(exp.cast(exp.Literal.string(self.text), self.type.duckdb, dialect="duckdb"), self.type, False)


#: A row: its values by the ids of their columns.
Cells = Mapping[str, Cell]


def row_json(columns: Sequence[Column], cells: Cells, names: Sequence[str] | None = None) -> str:
    """The row as a JSON object. names: those of the columns, if they differ from their own. Duplicate names are
    numbered.
    """
    found: dict[str, str] = {}
    for column, wanted in zip(columns, names or [c.name for c in columns], strict=True):
        name, number = wanted, 1
        while name in found:
            number += 1
            name = f"{wanted}_{number}"
        found[name] = cells[column.id].json
    return "{" + ", ".join(f"{json.dumps(n, ensure_ascii=False)}: {v}" for n, v in found.items()) + "}"


def equal(value: Scalar, cell: Cell, *, nearly: bool = False) -> Scalar:
    """The condition that an expression has this value, which may be NULL. nearly: ignore the last digits of a float."""
    left = value.expression.copy() if value.column else exp.paren(value.expression)
    if cell.text is None:
        return Scalar(exp.Is(this=left, expression=exp.null()), BOOLEAN, False)
    literal = cell.literal.expression
    same: exp.Expression = exp.EQ(this=left, expression=literal)
    if nearly and value.type.is_float:
        away = exp.Abs(this=exp.paren(exp.Sub(this=left.copy(), expression=literal.copy())))
        most = exp.Mul(this=exp.Literal.number(_NEAR), expression=exp.Abs(this=literal.copy()))
        same = exp.paren(exp.Or(this=same, expression=exp.LTE(this=away, expression=most)))
    return Scalar(same, BOOLEAN)


def equals(columns: Sequence[Column], cells: Sequence[Cell], *, nearly: bool = False) -> list[Scalar]:
    """The conditions that columns have these values."""
    pairs = zip(columns, cells, strict=True)
    return [equal(read(column), cell, nearly=nearly) for column, cell in pairs]


def filled(scalar: Scalar, cells: Cells) -> Scalar:
    """An expression with columns replaced by the values of a row."""
    return scalar.substitute({i: c.literal.expression for i, c in cells.items() if i in scalar.columns})


Names = Mapping[str, str]

#: The function that returns NULL instead of an error.
TRY: Final = "TRY"

#: Columns that scans of the past add to their relation.
_ADDED: Final = {
    "#epoch": "newest commit",
    "#sequence": "newest row",
    "#commit": "its commit",
    "#from": "the first commit with it",
    "#until": "the first commit without it",
}

_UNNAMED: Final = "?column?"


def names_of(tree: Node, past: Mapping[str, str]) -> dict[str, str]:
    """The names of all columns in a tree, by their ids. past: by id, the relations of the tree's scans of the past."""
    found: dict[str, str] = {}
    for node in reversed(list(walk(tree))):
        found.update(_own(node, found, past))
    return found


def _own(node: Node, names: Names, past: Mapping[str, str]) -> dict[str, str]:
    if isinstance(node, Scan):
        return {c.id: f"{node.relation_name}.{c.name}" for c in node.outputs}
    if isinstance(node, PastScan):
        name = past.get(node.relation_id, node.relation_id)
        return {c.id: _ADDED.get(c.name, f"{name}.{c.name.replace('#', '_')}") for c in node.outputs}
    if isinstance(node, Project):
        pairs = zip(node.outputs, node.exprs, strict=True)
        return {c.id: expression_text(e, names) for c, e in pairs if c.id not in names}
    if isinstance(node, Aggregate):
        texts = [*(expression_text(k, names) for k in node.keys), *(_call(c, names) for c in node.calls)]
        return {c.id: t for c, t in zip(node.outputs, texts, strict=True) if c.id not in names}
    if isinstance(node, Window):
        return {c.id: call.function + "()" for c, call in zip(node.outputs, node.calls, strict=True)}
    if isinstance(node, Expand):
        keys = (expression_text(k, names) for k in node.keys)
        return {c.id: t for c, t in zip(node.made, (*keys, "the number of the grouping set"), strict=True)}
    if isinstance(node, Unnest):
        texts = [f"unnest({expression_text(a, names)})" for a in node.arrays]
        return {c.id: t for c, t in zip(node.made, (*texts, "ordinality"), strict=False)}
    if isinstance(node, (Recursion, Union)):
        return {c.id: c.name for c in node.outputs if c.id not in names}
    return {c.id: c.name for c in node.columns if c.id not in names} if not node.inputs else {}


def _call(call: AggregateCall, names: Names) -> str:
    inner = "*" if call.argument is None else expression_text(call.argument, names)
    condition = "" if call.filter is None else f" FILTER (WHERE {expression_text(call.filter, names)})"
    return f"{call.function}({'DISTINCT ' if call.distinct else ''}{inner}){condition}"


def expression_text(scalar: Scalar, names: Names) -> str:
    """An expression as text, without the casts that the binder has added around columns and constants."""
    node = scalar.expression.copy()
    root = exp.Paren(this=node)
    for tried in list(root.find_all(exp.Anonymous)):
        if tried.this == TRY:
            tried.replace(tried.expressions[0])
    for made in list(root.find_all(exp.Case, exp.Cast)):
        if (written := as_written(made)) is not None:
            made.replace(written)
    for made in list(root.find_all(exp.Cast))[::-1]:
        inner = made.this.unnest()
        if isinstance(inner, exp.Literal) and made.is_type("interval"):
            made.replace(exp.Var(this=f"INTERVAL {inner.sql()}"))
        elif isinstance(inner, exp.Literal) and inner.is_string and made.is_type(*exp.DataType.NUMERIC_TYPES):
            made.replace(exp.Literal.number(inner.name))
        elif isinstance(inner, (exp.Column, exp.Literal, exp.Null, exp.Binary, exp.Neg, exp.Boolean)):
            made.replace(made.this)
    for column in list(root.find_all(exp.Column)):
        column.replace(exp.Var(this=names.get(column.name, column.name)))
    for paren in list(root.find_all(exp.Paren)):
        is_call = isinstance(paren.this, exp.Func) and not isinstance(paren.this, exp.Binary)
        if (is_call or isinstance(paren.this, (exp.Var, exp.Literal, exp.Paren))) and paren is not root:
            paren.replace(paren.this)
    return str(root.this.unnest().sql(dialect="duckdb"))


def conditions_text(parts: Sequence[Scalar], names: Names) -> str:
    """The text of a conjunction."""
    flat = [c for p in parts for c in conjuncts(p)]
    return " AND ".join(_in_parentheses(c, expression_text(c, names)) for c in flat)


def _in_parentheses(part: Scalar, text: str) -> str:
    return f"({text})" if isinstance(part.expression, exp.Or) else text


def order_text(keys: Sequence[SortKey], names: Names) -> str:
    """The text of the keys of an order."""
    return ", ".join(f"{expression_text(k.value, names)}{' DESC' if k.descending else ''}" for k in keys)


def named(name: str) -> str | None:
    """A column's own name; None if its query gives it none."""
    return None if name == _UNNAMED else name


_NESTED = ("array", "struct", "map")


class Asker:
    """Runs queries on one connection, which shows relations as of one moment. relation_name: returns the name of a
    relation id on it.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, relation_name: Callable[[str], str]) -> None:
        self._connection = connection
        self._relation_name = relation_name

    def rows(self, tree: Node, most: int) -> list[dict[str, Cell]]:
        """The first rows of a plain tree in the order of its columns, at most `most`."""
        items, columns = [], tree.columns
        for column in columns:
            name = quoted(column.id)
            items.append(cast(name, VARCHAR))
            items.append(cast(f"to_json({name})", VARCHAR) if column.type.name in _NESTED else "NULL")
        order = ", ".join(quoted(c.id) for c in columns)
        found = self._run(f"SELECT {', '.join(items)} FROM ({self.text(tree)}) ORDER BY {order} LIMIT {most}")
        return [{c.id: Cell(r[2 * i], c.type, r[2 * i + 1]) for i, c in enumerate(columns)} for r in found]

    def count(self, tree: Node, most: int | None = None) -> int:
        """The number of rows of a plain tree. most: the number at which to stop counting."""
        limit = "" if most is None else f" LIMIT {most}"
        return int(self._run(f"SELECT count(*) FROM (SELECT 1 FROM ({self.text(tree)}){limit})")[0][0])

    def tally(self, tree: Node, column: Column) -> dict[int, int]:
        """The number of rows of a plain tree by the value of an integer column."""
        return dict(self._run(f"SELECT {quoted(column.id)}, count(*) FROM ({self.text(tree)}) GROUP BY ALL"))

    def some(self, tree: Node) -> bool:
        """Whether a plain tree has any row."""
        return self.count(tree, 1) > 0

    def values(self, scalars: Sequence[Scalar], cells: Cells) -> list[Cell]:
        """The values of expressions for one row."""
        if not scalars:
            return []
        texts = [cast(f"({sql(filled(s, cells))})", VARCHAR) for s in scalars]
        row = self._run(f"SELECT {', '.join(texts)}")[0]
        return [Cell(v, s.type) for v, s in zip(row, scalars, strict=True)]

    def extremes(self, tree: Node, value: Scalar, around: Cell) -> tuple[Cell, Cell]:
        """The nearest values of an expression below and above another value; NULL where there is none."""
        own, wanted = sql(value), sql(around.literal)
        parts = ((f"max({own})", "<"), (f"min({own})", ">"))
        items = [cast(f"{call} FILTER (WHERE {own} {sign} {wanted})", VARCHAR) for call, sign in parts]
        low, high = self._run(f"SELECT {', '.join(items)} FROM ({self.text(tree)})")[0]
        return Cell(low, value.type), Cell(high, value.type)

    def text(self, tree: Node) -> str:
        """The SQL text of a plain tree, for the connection."""
        writer = Writer(self._relation_name)
        return writer.text(push_filters(tree))

    def _run(self, text: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(text).fetchall()
        return found


def picked(columns: Sequence[Column], cells: Cells) -> list[Cell]:
    """The values of the given columns of a row."""
    return [cells[c.id] for c in columns]


def key_text(keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """A text like `orders.id = 7 AND …`."""
    pairs = zip(keys, values, strict=True)
    return " AND ".join(
        f"{expression_text(k, names)} {'IS NULL' if v.text is None else '= ' + v.shown}" for k, v in pairs
    )


def nearest_text(asker: Asker, tree: Node, keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """The text of the existing keys in a plain tree that are nearest to a missing key.

    The longest existing prefix of key columns counts as found; the column after it is the missing one.
    """
    if not asker.some(tree):
        return "there are no rows at all"
    found: list[Scalar] = []
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        below = filtered(tree, found)
        if asker.some(filtered(below, [equal(key, value)])):
            found.append(equal(key, value))
            continue
        there = f"with {key_text(keys[:number], values[:number], names)} " if number else ""
        return there + _around(asker, below, key, value, names)
    return "no row has all of them together"


def _around(asker: Asker, tree: Node, key: Scalar, value: Cell, names: Names) -> str:
    text = expression_text(key, names)
    if value.text is None:
        return f"no {text} is NULL"
    low, high = asker.extremes(tree, key, value)
    parts = [f"{side} {cell.shown}" for side, cell in (("below", low), ("above", high)) if cell.text is not None]
    if not parts:
        return f"{text} is NULL everywhere"
    return f"the nearest {text}: {', '.join(parts)}"
