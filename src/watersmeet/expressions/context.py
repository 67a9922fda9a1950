"""What an expression needs to know of where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import duckdb
from sqlglot import exp

from watersmeet.algebra.oracle import ORACLE, Oracle
from watersmeet.algebra.sortkeys import SortKey
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, error
from watersmeet.expressions.values import Value
from watersmeet.types import SqlType


class Sets(Protocol):
    """Takes the set-returning functions of a select list."""

    def add(self, name: str, array: Value, node: exp.Expression) -> Value:
        """The value in each row of a function with the rows `array`."""
        ...


class WindowFunctions(Protocol):
    """Takes the window functions of a select list."""

    def add(self, node: exp.Window, ctx: Context) -> Value:
        """The value of a window function."""
        ...


class RowOrder:
    """The order in which the rows of a FROM came; this one: they have none."""

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        """Its keys, the oldest row first; None where rows have no order."""
        return None

    def keys(self, node: exp.Expression, ctx: Context) -> tuple[SortKey, ...]:
        """Its keys, for the call `node`; FEATURE_NOT_SUPPORTED where rows have no order."""
        found = self.known
        if found is None:
            span = place_of(node)
            name = "this function" if span is None else ctx.text[span.start : span.end].partition("(")[0]
            raise ctx.not_supported(
                f"{name} of rows that have no order",
                node,
                detail="It depends on the order in which rows came. That order is known for an "
                "append-only stream, but not for groups, rows that change, the output of a view, or after a join.",
                hint="Specify the order: ORDER BY in OVER, or in an aggregate (FIRST_VALUE(x ORDER BY t), "
                "arg_min(x, t)).",
            )
        return found


UNORDERED: Final = RowOrder()


class Context:
    """Base of all places where an expression can stand. Subclasses say what a column is.

    text: the SQL text that the tree's places are in. bounded: whether it is in a query that ends. volatile_allowed:
    False in views, whose content must follow from their input alone. sets: takes set-returning functions; None where
    they can't stand. windowing: the same for window functions. row_order: that of the rows of this place; None where a
    dialect has none.
    """

    oracle: Oracle = ORACLE
    volatile_allowed = False
    sets: Sets | None = None
    windowing: WindowFunctions | None = None

    @property
    def row_order(self) -> RowOrder | None:
        return None

    def __init__(self, text: str, clause: str = "this place", *, bounded: bool = False) -> None:
        self.text = text
        self.clause = clause
        self.bounded = bounded
        self.volatile_allowed = self.volatile_allowed or bounded

    def column(self, node: exp.Column) -> Value:
        """The value of a column reference; UNDEFINED_COLUMN or AMBIGUOUS_COLUMN."""
        raise self.error("UNDEFINED_COLUMN", f'column "{node.name}" does not exist', node)

    def special(self, node: exp.Expression) -> Value | None:
        """The value of a node that this place treats in its own way (an aggregate, a subquery), else None."""
        del node
        return None

    def over(self, node: exp.Window) -> Value:
        """The value of a window function."""
        if self.windowing is not None:
            return self.windowing.add(node, self)
        raise self.error("COLUMN_NOT_GROUPED", f"window functions are not allowed in {self.clause}", node)

    def rows_of(self, name: str, array: Callable[[], Value], node: exp.Expression) -> Value:
        """The value of a set-returning function in each of its rows. array: makes the array of them."""
        if self.sets is not None:
            return self.sets.add(name, array(), node)
        raise self.error(
            "FEATURE_NOT_SUPPORTED",
            f"set-returning functions are not allowed in {self.clause}",
            node,
            hint=f"Call it in FROM, for example: FROM t, {name}(…) AS x; then x can stand here.",
        )

    def error(
        self,
        condition: str,
        message: str,
        node: exp.Expression | None,
        *,
        detail: str | None = None,
        hint: str | None = None,
        code: int | None = None,
    ) -> Error:
        """An error at the place of `node`."""
        span = None if node is None else place_of(node)
        return error(condition, message, detail=detail, hint=hint, sql=self.text, span=span, code=code)

    def not_supported(
        self, feature: str, node: exp.Expression | None, *, detail: str | None = None, hint: str | None = None
    ) -> Error:
        """The error that a feature is lacking."""
        return self.error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", node, detail=detail, hint=hint)

    def type_of(self, expression: exp.Expression) -> tuple[SqlType | None, str]:
        """DuckDB's type of an expression without columns and DuckDB's name of it; raises duckdb.Error."""
        return self.oracle.type_of(expression.sql(dialect="duckdb"))

    def constant(self, expression: exp.Expression) -> Any:
        """The value of a constant expression; raises duckdb.Error."""
        return self.oracle.constant(expression.sql(dialect="duckdb"))

    def check(self, expression: exp.Expression) -> None:
        """Raises duckdb.Error if a constant expression has no value."""
        sql = expression.sql(dialect="duckdb")
        try:
            self.oracle.constant(sql)
        except duckdb.OutOfRangeException:
            self.oracle.arrow_constant(sql)  # only Python can't hold it


def typed_null(value: Value) -> exp.Expression:
    """What stands for a value when DuckDB is asked for the type of a call: constants as they are, else a typed NULL."""
    if next(value.expression.find_all(exp.Column, exp.Subquery, exp.AggFunc, exp.Window), None) is None:
        return value.expression.copy()
    kind = value.type.duckdb
    return exp.Cast(this=exp.null(), to=exp.DataType.build(kind, dialect="duckdb"))


def first_line(err: duckdb.Error) -> str:
    """DuckDB's message without its kind and without what follows the first line."""
    line = str(err).splitlines()[0]
    return line.split(": ", 1)[1] if ": " in line else line
