"""Typed scalar expressions.

A `Scalar` is a sqlglot tree in DuckDB's dialect. Every column in it is written as an unqualified identifier that is the
id of a `relations.Column` (`#12`), unique within a view, so that moving an expression through a plan never needs
renaming by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from watersmeet.types import BOOLEAN, SqlType


@dataclass(frozen=True, slots=True)
class Scalar:
    """An expression, its type and whether it can be NULL. Compares and hashes by value."""

    expression: exp.Expression
    type: SqlType
    nullable: bool = True

    @property
    def columns(self) -> frozenset[str]:
        """The ids of the columns it reads."""
        return frozenset(c.name for c in self.expression.find_all(exp.Column))

    @property
    def column(self) -> str | None:
        """The id if this is nothing but a column."""
        return self.expression.name if isinstance(self.expression, exp.Column) else None

    @property
    def cast_column(self) -> str | None:
        """The id if this is a column, or casts of one."""
        node = self.expression.unnest()
        while isinstance(node, exp.Cast):
            node = node.this.unnest()
        return node.name if isinstance(node, exp.Column) else None

    def sql(self) -> str:
        """DuckDB SQL with the column ids as quoted identifiers."""
        return str(self.expression.sql(dialect="duckdb"))

    def substitute(self, mapping: Mapping[str, exp.Expression]) -> Scalar:
        """The scalar with each column of `mapping` replaced by a copy of its expression."""

        def replace(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Column) and node.name in mapping:
                new = mapping[node.name].copy()
                return new if isinstance(new, (exp.Column, exp.Literal, exp.Null)) else exp.paren(new, copy=False)
            return node

        return Scalar(self.expression.transform(replace), self.type, self.nullable)


def null_of(kind: SqlType) -> Scalar:
    """NULL as a value of a type."""
    return Scalar(exp.cast(exp.null(), kind.duckdb, dialect="duckdb"), kind)


def column_ref(column_id: str) -> exp.Column:
    """The expression that reads the column `column_id`."""
    return exp.column(exp.to_identifier(column_id, quoted=True))


def conjuncts(predicate: Scalar | None) -> list[Scalar]:
    """The parts of a predicate that are joined by AND; none for None."""
    return [] if predicate is None else _parts(predicate, exp.And)


def disjuncts(predicate: Scalar) -> list[Scalar]:
    """The parts of a predicate that are joined by OR; the predicate itself if it is none."""
    return _parts(predicate, exp.Or)


def _parts(predicate: Scalar, connector: type[exp.Connector]) -> list[Scalar]:
    parts: list[Scalar] = []
    stack = [predicate.expression]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, connector):
            stack.extend([node.right, node.left])
        else:
            parts.append(Scalar(node, BOOLEAN, predicate.nullable))
    return parts


def conjunction(parts: list[Scalar]) -> Scalar | None:
    """The AND of `parts`; None for no part."""
    if not parts:
        return None
    expression = exp.and_(*[p.expression for p in parts], copy=True)
    return Scalar(expression, BOOLEAN, any(p.nullable for p in parts))
