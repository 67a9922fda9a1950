"""Runs trees of the algebra in DuckDB: their first rows, and the keys nearest to one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import duckdb

from watersmeet.algebra.nodes import Column, Node
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import filtered
from watersmeet.lineage.steps import Cell, Cells, Names, equal, expression_text, filled
from watersmeet.unparsing.relations import Writer
from watersmeet.unparsing.texts import cast, quoted, sql
from watersmeet.values.types import VARCHAR

_NESTED = ("array", "struct")


class Asker:
    """Asks one connection, in which relations are at one moment. relation_name: of a relation's id, there."""

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
        """How many rows a plain tree has. most: count no further."""
        limit = "" if most is None else f" LIMIT {most}"
        return int(self._run(f"SELECT count(*) FROM (SELECT 1 FROM ({self.text(tree)}){limit})")[0][0])

    def tally(self, tree: Node, column: Column) -> dict[int, int]:
        """How many rows a plain tree has with each value of a column, which are whole numbers."""
        return dict(self._run(f"SELECT {quoted(column.id)}, count(*) FROM ({self.text(tree)}) GROUP BY ALL"))

    def some(self, tree: Node) -> bool:
        """Whether a plain tree has rows."""
        return self.count(tree, 1) > 0

    def values(self, scalars: Sequence[Scalar], cells: Cells) -> list[Cell]:
        """The values of expressions for one row."""
        if not scalars:
            return []
        texts = [cast(f"({sql(filled(s, cells))})", VARCHAR) for s in scalars]
        row = self._run(f"SELECT {', '.join(texts)}")[0]
        return [Cell(v, s.type) for v, s in zip(row, scalars, strict=True)]

    def extremes(self, tree: Node, value: Scalar, around: Cell) -> tuple[Cell, Cell]:
        """The greatest value of an expression below another value, and the least above it; NULL if there is none."""
        own, wanted = sql(value), sql(around.literal)
        parts = ((f"max({own})", "<"), (f"min({own})", ">"))
        items = [cast(f"{call} FILTER (WHERE {own} {sign} {wanted})", VARCHAR) for call, sign in parts]
        low, high = self._run(f"SELECT {', '.join(items)} FROM ({self.text(tree)})")[0]
        return Cell(low, value.type), Cell(high, value.type)

    def text(self, tree: Node) -> str:
        """A plain tree as a query of the connection."""
        writer = Writer(self._relation_name)
        return writer.text(push_filters(tree))

    def _run(self, text: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(text).fetchall()
        return found


def picked(columns: Sequence[Column], cells: Cells) -> list[Cell]:
    """The values of some columns of a row."""
    return [cells[c.id] for c in columns]


def key_text(keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """`orders.id = 7 AND …`."""
    pairs = zip(keys, values, strict=True)
    return " AND ".join(
        f"{expression_text(k, names)} {'IS NULL' if v.text is None else '= ' + v.shown}" for k, v in pairs
    )


def nearest_text(asker: Asker, tree: Node, keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """The nearest keys that a plain tree has instead of one that it lacks.

    The first keys that are there together count as found; the next one is the one that is not.
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
