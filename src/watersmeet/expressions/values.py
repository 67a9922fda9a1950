"""Bound expressions while they are built: a DuckDB tree with its SQL type and what else is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, Overflow
from functools import lru_cache
from typing import Final

from sqlglot import exp

from watersmeet.algebra.scalars import Scalar
from watersmeet.types import (
    BIGINT,
    BOOLEAN,
    DEFAULT_SCALE,
    DOUBLE,
    INTEGER,
    NUMERIC,
    VARCHAR,
    SqlType,
)

_MAX_DIGITS: Final = 38
#: Numbers as they are written; those with more digits, or an exponent beyond this, are refused or rounded once.
_EXACT: Final = Context(prec=4096, Emax=4096, Emin=-4096, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])
_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGER_ORDER: Final = ("smallint", "integer", "bigint")


@dataclass(frozen=True, slots=True)
class Value:
    """A bound expression.

    unknown: a bare string literal or NULL, whose type follows from where it stands.
    exact: the expression's DuckDB type is `type.duckdb`; else `finish` has to cast it.
    parts: the fields of a row that is written out, as they were before they got types.
    """

    expression: exp.Expression
    type: SqlType
    nullable: bool = True
    unknown: bool = False
    exact: bool = True
    parts: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        """True for the literal NULL."""
        return isinstance(self.expression, exp.Null)

    @property
    def is_number_literal(self) -> bool:
        """True for a number that is written out; it adapts to the number type next to it."""
        node = self.expression
        if isinstance(node, exp.Neg):
            node = node.this
        return isinstance(node, exp.Literal) and not node.is_string

    def finish(self) -> Scalar:
        """The scalar, of exactly its type."""
        if self.exact and not self.is_null:
            return Scalar(self.expression, self.type, self.nullable)
        found = exp.null() if self.is_null else self.expression  # an open parameter is a NULL, too
        return Scalar(duckdb_cast(found, self.type), self.type, self.nullable)


def columns_of(value: Value) -> frozenset[str]:
    """The ids of the columns that a value reads."""
    return frozenset(c.name for c in value.expression.find_all(exp.Column))


def of_scalar(scalar: Scalar) -> Value:
    """The value of a finished scalar."""
    return Value(scalar.expression, scalar.type, scalar.nullable)


def duckdb_cast(expression: exp.Expression, kind: SqlType) -> exp.Expression:
    """CAST in DuckDB, without any rule of PostgreSQL's."""
    written = expression.copy()
    number = written.this if isinstance(written, exp.Neg) else written
    if kind.is_float and isinstance(number, exp.Literal) and not number.is_string:
        # from text: DuckDB reads a number with a point as a decimal, whose cast is off by one in the last bit at times
        written = string(number.this if number is written else f"-{number.this}")
    return exp.Cast(this=written, to=_duckdb_type(kind).copy())


@lru_cache(maxsize=1024)
def _duckdb_type(kind: SqlType) -> exp.DataType:
    return exp.DataType.build(kind.duckdb, dialect="duckdb")


def call(name: str, *arguments: exp.Expression) -> exp.Expression:
    """A DuckDB function call."""
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def string(value: str) -> exp.Expression:
    """A string literal."""
    return exp.Literal.string(value)


def number(value: int | str) -> exp.Expression:
    """A number literal."""
    return exp.Literal.number(value)


def wrap(expression: exp.Expression) -> exp.Expression:
    """The expression in parentheses where an operator next to it could tear it apart."""
    if isinstance(expression, (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Predicate, exp.Interval)):
        return exp.Paren(this=expression.copy())
    return expression.copy()


def family(kind: SqlType) -> str:
    """Types of one family can be compared with each other."""
    if kind.is_numeric:
        return "number"
    if kind.name in ("date", "timestamp", "timestamptz"):
        return "datetime"
    return kind.name


def common_type(types: Sequence[SqlType]) -> SqlType | None:
    """The type to which all of `types` are converted when they meet (CASE, UNION, comparisons); None if there is
    none.
    """
    result = types[0]
    for kind in types[1:]:
        merged = _common(result, kind)
        if merged is None:
            return None
        result = merged
    return result


def _common(a: SqlType, b: SqlType) -> SqlType | None:
    if a == b:
        return a
    if family(a) != family(b):
        return None
    if a.is_numeric:
        return _common_number(a, b)
    if family(a) == "datetime":
        order = ("date", "timestamp", "timestamptz")
        return max(a, b, key=lambda t: order.index(t.name))
    if a.name == "array":
        assert a.element is not None
        assert b.element is not None
        element = _common(a.element, b.element)
        return None if element is None else SqlType("array", element=element)
    if a.name == "struct" and len(a.fields) == len(b.fields):
        parts = [_common(x[1], y[1]) for x, y in zip(a.fields, b.fields, strict=True)]
        if all(p is not None for p in parts):
            names = [x[0] for x in a.fields]
            return SqlType("struct", fields=tuple(zip(names, [p for p in parts if p], strict=True)))
    return None


def _common_number(a: SqlType, b: SqlType) -> SqlType:
    if a.is_integer and b.is_integer:
        return max(a, b, key=lambda t: _INTEGER_ORDER.index(t.name))
    if a.is_float or b.is_float:
        return DOUBLE
    scale = max(_scale(a), _scale(b))
    whole = max(_digits(a), _digits(b))
    if NUMERIC in (a, b) or a.is_integer or b.is_integer:
        if scale <= DEFAULT_SCALE and (whole <= _digits(NUMERIC) or whole + scale > _MAX_DIGITS):
            return NUMERIC
        return SqlType("numeric", _MAX_DIGITS, scale)
    return SqlType("numeric", min(whole + scale, _MAX_DIGITS), scale)


def _scale(kind: SqlType) -> int:
    if kind.is_integer:
        return 0
    return DEFAULT_SCALE if kind.precision is None else (kind.scale or 0)


def _digits(kind: SqlType) -> int:
    """Digits before the decimal point."""
    if kind.is_integer:
        return _INTEGER_DIGITS[kind.name]
    return (kind.precision or _MAX_DIGITS) - _scale(kind)


def null() -> Value:
    """The literal NULL."""
    return Value(exp.null(), VARCHAR, nullable=True, unknown=True)


def boolean(expression: exp.Expression, *parts: Value) -> Value:
    """A boolean that is NULL only if one of `parts` can be."""
    return Value(expression, BOOLEAN, any(p.nullable for p in parts))


def integer_literal(value: int) -> Value | None:
    """A literal of the smallest type that holds `value` (not negative); None beyond 38 digits."""
    literal = number(str(value))
    if value < 2**31:
        return Value(literal, INTEGER, nullable=False)
    if value < 2**63:
        return Value(literal, BIGINT, nullable=False)
    return decimal_literal(str(value))


def decimal_literal(text: str) -> Value | None:
    """A literal of type numeric, or, if that has not enough digits, of the `numeric(38, s)` that holds it; None beyond
    38 digits in front of the point. Digits behind the point that are too many are rounded.
    """
    try:
        value = _EXACT.create_decimal(text)
    except (InvalidOperation, Overflow):
        return None
    whole = max(value.adjusted() + 1, 0) if value else 0
    if whole > _MAX_DIGITS:
        return None
    written = format(_EXACT.quantize(value, Decimal(1).scaleb(whole - _MAX_DIGITS)), "f")
    digits, _, fraction = written.partition(".")
    digits, fraction = digits.lstrip("0"), fraction.rstrip("0")
    if len(digits) > _MAX_DIGITS:
        return None
    kind = NUMERIC
    if len(fraction) > DEFAULT_SCALE or len(digits) > _digits(NUMERIC):
        kind = SqlType("numeric", _MAX_DIGITS, min(len(fraction), _MAX_DIGITS - len(digits)))
    # DuckDB takes a zero in front of the point for one of the 38 digits
    plain = f"{digits or ('0' if len(fraction) < _MAX_DIGITS else '')}.{fraction}" if fraction else f"{digits or 0}.0"
    if not fraction and len(digits) == _MAX_DIGITS:
        plain = digits
    return Value(number(plain), kind, nullable=False, exact=False)
