"""Bound expressions (DuckDB trees with SQL types), templates of trees, and the context of binding.

DuckDB always computes in UTC, so a bound expression contains the zone of the session where its value depends on it.
`in_zone` sets the zone while a statement is bound; a view has that of its creation (`Relation.zone`).
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, Overflow
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol

import duckdb
from sqlglot import exp, parse_one
from sqlglot.dialects.duckdb import DuckDB

from watersmeet.algebra.scalars import ORACLE, Oracle, Scalar, SortKey
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error, Span, error
from watersmeet.values.calledfunctions import NATIVE, CalledFunction, is_called, readable
from watersmeet.values.times import UTC
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DEFAULT_SCALE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

_MAX_DIGITS: Final = 38

#: Written numbers that can be read exactly. Numbers with more digits or a larger exponent are rejected or rounded once.
_EXACT: Final = decimal.Context(
    prec=4096, Emax=4096, Emin=-4096, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow]
)

_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGER_ORDER: Final = ("smallint", "integer", "bigint")


@dataclass(frozen=True, slots=True)
class Value:
    """A bound expression.

    unknown: whether it is an untyped string literal or NULL, whose type follows from the context. exact: whether the
    expression's DuckDB type is `type.duckdb`; otherwise `finish` must cast it. parts: the fields of a row constructor
    before they had types.
    """

    expression: exp.Expression
    type: SqlType
    nullable: bool = True
    unknown: bool = False
    exact: bool = True
    parts: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        """True if it is the literal NULL."""
        return isinstance(self.expression, exp.Null)

    @property
    def is_number_literal(self) -> bool:
        """True if it is a number literal, which adapts to the adjacent number type."""
        node = self.expression
        if isinstance(node, exp.Neg):
            node = node.this
        return isinstance(node, exp.Literal) and not node.is_string

    def finish(self) -> Scalar:
        """The scalar with exactly its type."""
        if self.exact and not self.is_null:
            return Scalar(self.expression, self.type, self.nullable)
        found = exp.null() if self.is_null else self.expression  # an open parameter is also represented by NULL
        return Scalar(duckdb_cast(found, self.type), self.type, self.nullable)


def columns_of(value: Value) -> frozenset[str]:
    """The ids of the columns that a value reads."""
    return frozenset(c.name for c in value.expression.find_all(exp.Column))


def of_scalar(scalar: Scalar) -> Value:
    """The value of a finished scalar."""
    return Value(scalar.expression, scalar.type, scalar.nullable)


def duckdb_cast(expression: exp.Expression, kind: SqlType) -> exp.Expression:
    """DuckDB's CAST, without PostgreSQL's rules."""
    written = expression.copy()
    number = written.this if isinstance(written, exp.Neg) else written
    if kind.is_float and isinstance(number, exp.Literal) and not number.is_string:
        # a cast from text, because DuckDB reads a number with a decimal point as a decimal, whose cast is sometimes
        # wrong in the last bit
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
    """The expression in parentheses, if an adjacent operator could bind more tightly."""
    if isinstance(expression, (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Predicate, exp.Interval)):
        return exp.Paren(this=expression.copy())
    return expression.copy()


def family(kind: SqlType) -> str:
    """The family of a type. Values of one family can be compared with each other."""
    if kind.is_numeric:
        return "number"
    if kind.name in ("date", "timestamp", "timestamptz"):
        return "datetime"
    return kind.name


def refuse_maps(kinds: Iterable[SqlType], what: str, text: str, span: Span | None = None) -> None:
    """Raises FEATURE_NOT_SUPPORTED for types that are or contain maps, because two orders of entries are one map."""
    if any(kind.has_map for kind in kinds):
        hint = "Use a value of the map, such as m['key'], or the array of its keys."
        raise error("FEATURE_NOT_SUPPORTED", f"{what} a map is not supported", sql=text, span=span, hint=hint)


def common_type(types: Sequence[SqlType]) -> SqlType | None:
    """The common type of values of these types (in CASE, UNION, comparisons), or None."""
    result = types[0]
    for kind in types[1:]:
        merged = _common(result, kind)
        if merged is None:
            return None
        result = merged
    return result


def _common(a: SqlType, b: SqlType) -> SqlType | None:
    if a == b:
        return a if a.padding == b.padding else VARCHAR
    if family(a) != family(b):
        return None
    if a.is_numeric:
        return _common_number(a, b)
    if family(a) == "datetime":
        order = ("date", "timestamp", "timestamptz")
        return max(a, b, key=lambda t: order.index(t.name))
    if a.element is not None and b.element is not None:
        element = _common(a.element, b.element)
        return None if element is None else replace(a, element=element)
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
    """The number of digits before the decimal point."""
    if kind.is_integer:
        return _INTEGER_DIGITS[kind.name]
    return (kind.precision or _MAX_DIGITS) - _scale(kind)


def null() -> Value:
    """The literal NULL."""
    return Value(exp.null(), VARCHAR, nullable=True, unknown=True)


def boolean(expression: exp.Expression, *parts: Value) -> Value:
    """A boolean that can be NULL only if one of `parts` can."""
    return Value(expression, BOOLEAN, any(p.nullable for p in parts))


def integer_literal(value: int) -> Value | None:
    """A literal of the smallest type that can represent `value` (not negative); None beyond 38 digits."""
    literal = number(str(value))
    if value < 2**31:
        return Value(literal, INTEGER, nullable=False)
    if value < 2**63:
        return Value(literal, BIGINT, nullable=False)
    return decimal_literal(str(value))


def decimal_literal(text: str) -> Value | None:
    """A literal of type numeric, or of a suitable `numeric(38, s)` if numeric has not enough digits; None beyond 38
    digits before the decimal point. Excess decimals are rounded.
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
    # DuckDB counts a zero before the decimal point as one of the 38 digits
    plain = f"{digits or ('0' if len(fraction) < _MAX_DIGITS else '')}.{fraction}" if fraction else f"{digits or 0}.0"
    if not fraction and len(digits) == _MAX_DIGITS:
        plain = digits
    return Value(number(plain), kind, nullable=False, exact=False)


#: The names of variables of lambdas in DuckDB's SQL.
_VARIABLE: Final = re.compile(r"_v\d+")


def variable(place: int) -> exp.Expression:
    """The variable of a lambda; its number is that of the variables in sight."""
    return exp.Identifier(this=f"_v{place}", quoted=False)


def reads_variable(expression: exp.Expression) -> bool:
    """Whether an expression contains a variable of a lambda."""
    return any(_VARIABLE.fullmatch(node.name) for node in expression.find_all(exp.Identifier))


class Sets(Protocol):
    """Collects the set-returning functions of a select list."""

    def add(self, name: str, array: Value, node: exp.Expression) -> Value:
        """Adds a function with the rows `array`; returns its value in each row."""
        ...


class WindowFunctions(Protocol):
    """Collects the window functions of a select list."""

    def add(self, node: exp.Window, ctx: Context) -> Value:
        """The value of a window function."""
        ...


class RowOrder:
    """The order in which the rows of a FROM arrived. This base class has no order."""

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        """The sort keys, oldest row first; None if rows have no order."""
        return None

    def keys(self, node: exp.Expression, ctx: Context) -> tuple[SortKey, ...]:
        """The sort keys for the call `node`. Raises FEATURE_NOT_SUPPORTED if rows have no order."""
        found = self.known
        if found is None:
            span = node_span(node)
            name = "this function" if span is None else ctx.text[span.start : span.end].partition("(")[0]
            raise ctx.not_supported(
                f"{name} of rows that have no order",
                node,
                detail="It depends on the order of arrival. That order is known for an append-only stream and for "
                "groups that are output once, but not for other groups, rows that change, or after a join.",
                hint="Specify the order: ORDER BY in OVER, or in an aggregate (FIRST_VALUE(x ORDER BY t), "
                "arg_min(x, t)).",
            )
        return found


UNORDERED: Final = RowOrder()


class Context:
    """The base class of contexts of expressions. Subclasses resolve columns.

    text: the SQL text to which the tree's spans refer. batch: whether it belongs to a batch query. volatile_allowed:
    False in views, whose content must depend only on their inputs. sets: collects set-returning functions; None if they
    are not allowed. windowing: collects window functions; None if they are not allowed. clock: the time at which a
    row is computed (timestamp), which the row keeps; None if now() is not allowed. row_order: the order of rows in
    dialects that have one.
    """

    oracle: Oracle = ORACLE
    #: The variables of the enclosing lambdas, by name.
    variables: Mapping[str, Value] = MappingProxyType({})
    volatile_allowed = False
    sets: Sets | None = None
    windowing: WindowFunctions | None = None
    clock: Callable[[], Value] | None = None

    @property
    def row_order(self) -> RowOrder | None:
        return None

    def __init__(self, text: str, clause: str = "this place", *, batch: bool = False) -> None:
        self.text = text
        self.clause = clause
        self.batch = batch
        self.volatile_allowed = self.volatile_allowed or batch

    def column(self, node: exp.Column) -> Value:
        """The value of a column reference. Raises UNDEFINED_COLUMN or AMBIGUOUS_COLUMN."""
        raise self.error("UNDEFINED_COLUMN", f'column "{node.name}" does not exist', node)

    def special(self, node: exp.Expression) -> Value | None:
        """The value of a node that this context handles itself (an aggregate, a subquery), else None."""
        del node
        return None

    def over(self, node: exp.Window) -> Value:
        """The value of a window function."""
        if self.windowing is not None:
            return self.windowing.add(node, self)
        raise self.error(
            "COLUMN_NOT_GROUPED",
            f"window functions are not allowed in {self.clause}",
            node,
            hint="Compute it in a query in FROM: SELECT … FROM (SELECT …, lag(x) AS y FROM t) AS q WHERE y > 1.",
        )

    def rows_of(self, name: str, array: Callable[[], Value], node: exp.Expression) -> Value:
        """The value of a set-returning function in each of its rows. array: computes the array of these rows."""
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
        """An error at the span of `node`."""
        span = None if node is None else node_span(node)
        return error(condition, message, detail=detail, hint=hint, sql=self.text, span=span, code=code)

    def not_supported(
        self, feature: str, node: exp.Expression | None, *, detail: str | None = None, hint: str | None = None
    ) -> Error:
        """The error FEATURE_NOT_SUPPORTED for a feature."""
        return self.error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", node, detail=detail, hint=hint)

    def type_of(self, expression: exp.Expression) -> tuple[SqlType | None, str]:
        """The type of an expression without columns, and DuckDB's name of this type. Raises duckdb.Error."""
        return self.oracle.type_of(expression.sql(dialect="duckdb"))

    def constant(self, expression: exp.Expression) -> Any:
        """The value of a constant expression. Raises duckdb.Error."""
        if calls_other_language(expression):
            raise duckdb.InvalidInputException("Invalid Input Error: a function of another language is not a constant")
        return self.oracle.constant(expression.sql(dialect="duckdb"))

    def check(self, expression: exp.Expression) -> None:
        """Raises duckdb.Error if a constant expression has no value."""
        sql = expression.sql(dialect="duckdb")
        try:
            self.oracle.constant(sql)
        except duckdb.OutOfRangeException:
            self.oracle.arrow_constant(sql)  # only Python can't represent it


def typed_null(value: Value) -> exp.Expression:
    """A placeholder argument for computing the type of a call: a constant itself, else a typed NULL."""
    parts = value.expression.find_all(exp.Column, exp.Subquery, exp.AggFunc, exp.Window)
    if (
        next(parts, None) is None
        and not calls_other_language(value.expression)
        and not reads_variable(value.expression)
    ):
        return value.expression.copy()
    kind = value.type.duckdb
    return exp.Cast(this=exp.null(), to=exp.DataType.build(kind, dialect="duckdb"))


def calls_other_language(expression: exp.Expression) -> bool:
    """Whether an expression calls a function of another language, whose value is never computed in advance."""
    return any(is_called(node.this) for node in expression.find_all(exp.Anonymous))


def first_line(err: duckdb.Error) -> str:
    """The first line of DuckDB's message, without the kind of error."""
    line = readable(str(err).splitlines()[0])
    return line.split(": ", 1)[1] if ": " in line else line


_OBJECT: Final = re.compile(r'\s*\{\s*("|\}\s*$)')


def is_object(text: str) -> bool:
    """Whether a text begins like an object of JSON."""
    return _OBJECT.match(text) is not None


def of_object(text: str, kind: SqlType) -> exp.Expression:
    """An object of JSON as a map, or as a struct with the fields of the same names."""
    if kind.name == "struct":
        return fill(f"CAST(CAST(a0 AS JSON) AS {kind.duckdb})", string(text))
    entries = f"map_entries(CAST(CAST(a0 AS JSON) AS MAP(VARCHAR, {kind.entry[1].duckdb})))"
    return duckdb_cast(fill(entries, string(text)), kind)


#: The messages of failing templates (`failing`).
TOO_LONG: Final = "requested length too large"

OVERFLOW: Final = "value out of range: overflow"
UNDERFLOW: Final = "value out of range: underflow"
ZERO_TO_NEGATIVE: Final = "zero raised to a negative power is undefined"
COMPLEX: Final = "a negative number raised to a non-integer power yields a complex result"
TOO_DEEP: Final = "jsonb nests too deeply to be compared"
NO_INDEX: Final = "path element is not an integer"
EQUAL_KEYS: Final = "the keys of a map must be unique and not NULL"
UNPAIRED_KEYS: Final = "a map must have as many keys as values"
SKIPPED_TWICE: Final = "summer time skips two times of the series"
FAILURES: Final = (
    TOO_LONG, OVERFLOW, UNDERFLOW, ZERO_TO_NEGATIVE, COMPLEX, TOO_DEEP, NO_INDEX, EQUAL_KEYS, UNPAIRED_KEYS,
    SKIPPED_TWICE,
)  # fmt: skip


def failing(message: str, argument: str, kind: str) -> str:
    """A template with DuckDB's type `kind` that fails with one of `FAILURES` for each row.

    It is a cast, because TRY doesn't accept the function `error`. It contains an argument, because a constant would
    fail when it is planned.
    """
    return f"CAST(concat('{message}', left(CAST({argument} AS VARCHAR), 0)) AS {kind})"


def fill(template: str, *arguments: exp.Expression) -> exp.Expression:
    """The expression of a template."""
    mapping = {f"a{i}": a for i, a in enumerate(arguments)}

    def replace(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name in mapping and not node.table:
            return wrap(mapping[node.name])
        return node

    made = _parsed(template).transform(replace)
    return made if isinstance(made, exp.Func) and not isinstance(made, exp.Binary) else exp.Paren(this=made)


class _Templates(DuckDB):  # type: ignore[misc]
    """DuckDB's SQL with functions as written; sqlglot would replace some by operators."""

    class Parser(DuckDB.Parser):  # type: ignore[misc]
        """The parser."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}


@lru_cache(maxsize=1024)
def _parsed(template: str) -> exp.Expression:
    return parse_one(template, dialect=_Templates)


#: The end of the message about NULL in a domain without it.
NO_NULLS: Final = " does not allow null values"


def checked_enum(item: str, kind: SqlType, depth: int = 0) -> str:
    """DuckDB SQL for a text, or an array of texts, which raises an error for a text that the enum does not contain."""
    if kind.element is not None:
        inner = checked_enum(f"_e{depth}", kind.element, depth + 1)
        return f"list_transform({item}, lambda _e{depth}: {inner})"
    labels = ", ".join(string(label).sql(dialect="duckdb") for label in kind.labels)
    message = string(f"invalid input value for enum {kind.enum}: ").sql(dialect="duckdb")
    wrong = f"CAST(CAST(concat({message}, {item}) AS INTEGER) AS VARCHAR)"
    return f"CASE WHEN {item} IS NULL OR {item} IN ({labels}) THEN {item} ELSE {wrong} END"


def ranked(value: Value) -> Value:
    """The place of an enum's value in its order, from 1; for a jsonb document bytes in the order of documents; other
    values as they are.
    """
    if value.type == JSONB:
        return native("jsonb_order", [replace(value, expression=value.finish().expression)], BYTEA)
    if not value.type.labels:
        return value
    labels = ", ".join(string(label).sql(dialect="duckdb") for label in value.type.labels)
    return Value(fill(f"list_position([{labels}], a0)", value.finish().expression), INTEGER, value.nullable)


def of_rank(place: Value, enum: SqlType) -> Value:
    """The value of an enum at a place of its order, from 1."""
    labels = ", ".join(string(label).sql(dialect="duckdb") for label in enum.labels)
    return Value(fill(f"list_extract([{labels}], a0)", place.finish().expression), enum, place.nullable)


def labelled(made: Value, written: Value, kind: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """A literal of a type, made from one as written. Raises INVALID_VALUE if it is no label of an enum."""
    text = written.expression.name
    if kind.labels and text not in kind.labels:
        raise ctx.error("INVALID_VALUE", f'invalid input value for enum {kind.enum}: "{text}"', node)
    if kind.padding and made.expression.is_string:
        made = replace(made, expression=string(text.rstrip(" ")))
    return replace(made, type=kind)


def blank_padded(value: Value) -> Value:
    """A value of `char(n)` with its blanks, as some functions and LIKE see it; other values as they are."""
    if not value.type.padding or value.unknown:
        return value
    return replace(value, expression=fill(f"rpad(a0, {value.type.padding}, ' ')", value.expression), type=VARCHAR)


_zone: ContextVar[str] = ContextVar("zone", default=UTC)


@contextmanager
def in_zone(zone: str) -> Iterator[None]:
    """Binds expressions inside in the zone of a session."""
    before = _zone.set(zone)
    try:
        yield
    finally:
        _zone.reset(before)


def session_zone() -> str:
    """The zone in which expressions are bound; `UTC` by default."""
    return _zone.get()


def is_utc() -> bool:
    """Whether local times are those of DuckDB."""
    return session_zone() == UTC


def has_no_time(kind: SqlType) -> bool:
    """Whether no conversion of a type depends on the zone, because none of its parts is a date or time."""
    inner = kind.entry if kind.name == "map" else (kind.element,) if kind.element else ()
    parts = [*(k for _, k in kind.fields), *inner]
    return kind.name not in ("date", "timestamp", "timestamptz") and all(map(has_no_time, parts))


def local_time(moment: exp.Expression) -> exp.Expression:
    """The local time (a timestamp) of a timestamptz."""
    return duckdb_cast(moment, TIMESTAMP) if is_utc() else call("timezone", string(session_zone()), moment)


def moment_of(local: exp.Expression) -> exp.Expression:
    """The timestamptz of a local time (a timestamp)."""
    return duckdb_cast(local, TIMESTAMPTZ) if is_utc() else call("timezone", string(session_zone()), local)


def in_session_zone(expression: exp.Expression, source: SqlType, target: SqlType) -> exp.Expression | None:
    """The conversion between a timestamptz and a date, time or timestamp in another zone than UTC; None for other
    types, and in UTC.
    """
    if is_utc() or source == target or TIMESTAMPTZ not in (source, target):
        return None
    if source == TIMESTAMPTZ and target.name in ("date", "time", "timestamp"):
        return local_time(expression) if target == TIMESTAMP else duckdb_cast(local_time(expression), target)
    if source in (DATE, TIMESTAMP):
        return moment_of(duckdb_cast(expression, TIMESTAMP) if source == DATE else expression)
    return None


def native(name: str, values: Sequence[Value], kind: SqlType, *, volatile: bool = False) -> Value:
    """A call of a function of `kernel.evaluation.nativefunctions`."""
    made = CalledFunction(name, NATIVE, name, "", tuple(v.type for v in values), kind, volatile=volatile)
    return Value(call(made.encoded, *[duckdb_cast(v.expression, v.type) for v in values]), kind)


def document(text: exp.Expression) -> exp.Expression:
    """A text as jsonb in its stored form. Rows with invalid JSON fail."""
    return duckdb_cast(native("jsonb", [Value(text, VARCHAR)], VARCHAR).expression, JSONB)


#: The seconds east of UTC of a local time a0 and its timestamptz a1.
OFFSET_SECONDS: Final = "((epoch_us(a0) - epoch_us(a1)) // 1000000)"
_ZONED_TEXT: Final = (
    "CASE WHEN isfinite(a1) THEN concat(CAST(a0 AS VARCHAR), "
    f"CASE WHEN {OFFSET_SECONDS} < 0 THEN '-' ELSE '+' END, printf('%02d', abs({OFFSET_SECONDS}) // 3600), "
    f"CASE WHEN {OFFSET_SECONDS} % 3600 <> 0 THEN printf(':%02d', abs({OFFSET_SECONDS}) // 60 % 60) ELSE '' END, "
    f"CASE WHEN {OFFSET_SECONDS} % 60 <> 0 THEN printf(':%02d', abs({OFFSET_SECONDS}) % 60) ELSE '' END) "
    "ELSE CAST(a1 AS VARCHAR) END"
)


def zoned_text(value: exp.Expression) -> exp.Expression:
    """The text of a timestamptz, with the offset of the zone."""
    return duckdb_cast(value, SqlType("varchar")) if is_utc() else fill(_ZONED_TEXT, local_time(value), value)
