"""Parts of SQL of DuckDB: names, expressions, orders."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.algebra.nodes import Column, SortKey
from watersmeet.algebra.scalars import Scalar
from watersmeet.store.merging import quoted as quoted
from watersmeet.types import SqlType


def sql(scalar: Scalar) -> str:
    """The text of an expression."""
    node = scalar.expression
    if isinstance(node, exp.Literal):
        return text_literal(node.this) if node.is_string else str(node.this)
    if isinstance(node, exp.Null):
        return "NULL"
    if isinstance(node, exp.Column):
        return quoted(node.name)
    return str(node.sql(dialect="duckdb", copy=False))  # a bound expression has nothing that sqlglot would rewrite


def cast(text: str, kind: SqlType) -> str:
    """`CAST(text AS kind)`."""
    return f"CAST({text} AS {kind.duckdb})"


def text_literal(text: str) -> str:
    """The text in quotes."""
    return "'" + text.replace("'", "''") + "'"


def as_column(text: str, column: Column) -> str:
    """The item of a select list that is `column`."""
    name = quoted(column.id)
    return text if text == name else f"{text} AS {name}"


def alias(columns: Sequence[Column]) -> str:
    """The alias of an item of FROM, with the names of its columns."""
    return f"{quoted('~' + columns[0].id)}({', '.join(quoted(c.id) for c in columns)})"


def order_by(keys: Sequence[SortKey], items: Sequence[str] = ()) -> str:
    """`ORDER BY …`; nothing without keys. items: of the select list, whose places may stand for them."""
    return f"ORDER BY {', '.join(sort_key(k, items) for k in keys)}" if keys else ""


def sort_key(key: SortKey, items: Sequence[str] = ()) -> str:
    """One key of an order."""
    text = key_text(key.value)
    place = items.index(text) + 1 if text in items else text
    return f"{place}{' DESC' if key.descending else ''} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def key_text(scalar: Scalar) -> str:
    """The text of what rows are ordered or told apart by; a constant is not read as a place of the select list."""
    constant = isinstance(scalar.expression, (exp.Literal, exp.Neg))
    return cast(sql(scalar), scalar.type) if constant else sql(scalar)
