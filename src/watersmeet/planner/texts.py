"""Expressions as operators store them: DuckDB SQL over positional columns `c0`, `l0`, `r0`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sqlglot import exp, parse_one

from watersmeet.types import Schema, SqlType


def position(index: int, side: str = "c") -> exp.Column:
    """The expression that reads column `index` (of a join's left or right input: side `l`, `r`)."""
    return exp.column(f"{side}{index}")


def index_of(name: str) -> int:
    """The index of the operator's column that expressions call `name`: 3 for c3."""
    return int(name.removeprefix("c"))


def column_at(text: str) -> int | None:
    """The index of the column that the text is; None for any other expression."""
    return index_of(text) if text.startswith("c") and text[1:].isdecimal() else None


def sql(node: exp.Expression) -> str:
    """The text of an expression as an operator stores it, without parentheses around the whole."""
    return str(node.unnest().sql(dialect="duckdb"))


@lru_cache(maxsize=4096)
def parsed(text: str) -> exp.Expression:
    """The syntax tree of such a text. It is shared and must not be changed."""
    return parse_one(text, dialect="duckdb")


@lru_cache(maxsize=4096)
def columns_of(text: str) -> frozenset[str]:
    """The names of the columns in a text."""
    return frozenset(c.name for c in parsed(text).find_all(exp.Column))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with columns renamed."""
    if text in names:
        return names[text]

    def rename(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name in names:
            return exp.column(names[node.name])
        return node

    return sql(parsed(text).transform(rename))


def hash_form(text: str, schema: Schema) -> str:
    """The text without what makes no difference to its hash: parentheses, casts of integer columns to wider types."""
    node = parsed(text)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column):
        source = {f"c{i}": f.type for i, f in enumerate(schema)}.get(node.this.name)
        if source is not None and source.is_integer and _is_wider(node.to, source):
            return str(node.this.name)
    return sql(node)


def _is_wider(target: exp.DataType, source: SqlType) -> bool:
    order = [exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT]
    names = ["smallint", "integer", "bigint"]
    return target.this in order and order.index(target.this) >= names.index(source.name)
