"""Values of rows as they are found, shown and asked for again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.trees import read
from watersmeet.types import BOOLEAN, SqlType

#: Sums of floating-point numbers differ in the last digits with the order in which they are added.
_NEAR: Final = "1e-9"
_RAW: Final = frozenset({"boolean", "jsonb"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. text: as DuckDB's VARCHAR, None for NULL. nested: of arrays and structs, as JSON."""

    text: str | None
    type: SqlType
    nested: str | None = None

    @property
    def json(self) -> str:
        """As JSON. Numbers have all their digits."""
        if self.text is None:
            return "null"
        if self.nested is not None:
            return self.nested
        is_number = self.type.is_numeric and self.text.lstrip("+-")[:1].isdigit()
        return self._plain if is_number or self.type.name in _RAW else json.dumps(self.text, ensure_ascii=False)

    @property
    def shown(self) -> str:
        """As in SQL, for people."""
        if self.text is None:
            return "NULL"
        if self.type.is_numeric or self.type.name == "boolean":
            return self._plain
        return "'" + self.text.replace("'", "''") + "'"

    @property
    def _plain(self) -> str:
        """A number without the digits that its type adds."""
        assert self.text is not None
        endless = self.type.name == "numeric" and self.type.precision is None
        return self.text.rstrip("0").rstrip(".") if endless and "." in self.text else self.text

    @property
    def literal(self) -> Scalar:
        """As a constant of the algebra."""
        if self.text is None:
            return null_of(self.type)
        return Scalar(exp.cast(exp.Literal.string(self.text), self.type.duckdb, dialect="duckdb"), self.type, False)


#: A row: its values by the ids of their columns.
Cells = Mapping[str, Cell]


def row_json(columns: Sequence[Column], cells: Cells, names: Sequence[str] | None = None) -> str:
    """The row as a JSON object. names: of the columns, if others than their own. Repeated ones get numbers."""
    found: dict[str, str] = {}
    for column, wanted in zip(columns, names or [c.name for c in columns], strict=True):
        name, number = wanted, 1
        while name in found:
            number += 1
            name = f"{wanted}_{number}"
        found[name] = cells[column.id].json
    return "{" + ", ".join(f"{json.dumps(n, ensure_ascii=False)}: {v}" for n, v in found.items()) + "}"


def equal(value: Scalar, cell: Cell, *, nearly: bool = False) -> Scalar:
    """The condition that an expression has that value, NULL included. nearly: but for the last digits of a float."""
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
    """An expression with the values of a row in the place of its columns."""
    return scalar.substitute({i: c.literal.expression for i, c in cells.items() if i in scalar.columns})
