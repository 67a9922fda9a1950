"""Binds operators, and the syntax of times: `INTERVAL`, `EXTRACT`, `AT TIME ZONE`, `FLOOR(time TO unit)`.

`FLOOR(time TO unit)`, `CEIL(time TO unit)` and `STEP(time BY interval)`, a FLOOR to an interval, are SQLstream's ("JOIN
clause", "Using JOINs to Enrich Stream Data", SS-67). Units of a fixed length are windows counted from 1970
(`algebra.timewindows`), which keep watermarks; months and years are calendar units.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.timewindows import TimeWindow, duration_us
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error, did_you_mean
from watersmeet.expressions import jsonfunctions
from watersmeet.expressions.casts import cast, coerce, condition, has_cast, text_of
from watersmeet.expressions.clock import at_time_zone, moved
from watersmeet.expressions.context import (
    Context,
    Value,
    boolean,
    call,
    common_type,
    duckdb_cast,
    family,
    fill,
    first_line,
    is_utc,
    number,
    ranked,
    refuse_maps,
    string,
    typed_null,
    wrap,
)
from watersmeet.expressions.datefunctions import extracted
from watersmeet.expressions.mathfunctions import POWER
from watersmeet.expressions.nestedfunctions import JOINED
from watersmeet.values.times import UNITS_US
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

SIGNS: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.Pow: "^",
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM", exp.DPipe: "||",
    exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "#", exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}  # fmt: skip

_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=", "IS NOT DISTINCT FROM", "IS DISTINCT FROM")
_OF_NUMBERS: Final = ("+", "-", "*", "/", "%", "^")
_OF_TEXT: Final = ("||", "~~", "~~*", "~", "~*", "^@")
_DATE_OR_TIME: Final = ("date", "timestamp", "timestamptz")

#: Result types of + and - on dates, times and intervals: (left family or type, sign, right) -> result; None: the left
#: type.
_TEMPORAL: Final[dict[tuple[str, str, str], SqlType | None]] = {
    ("date", "+", "integer"): DATE, ("integer", "+", "date"): DATE, ("date", "-", "integer"): DATE,
    ("date", "-", "date"): INTEGER,
    ("date", "+", "interval"): TIMESTAMP, ("interval", "+", "date"): TIMESTAMP, ("date", "-", "interval"): TIMESTAMP,
    ("timestamp", "+", "interval"): None, ("timestamp", "-", "interval"): None,
    ("timestamptz", "+", "interval"): None, ("timestamptz", "-", "interval"): None,
    ("interval", "+", "timestamp"): TIMESTAMP, ("interval", "+", "timestamptz"): SqlType("timestamptz"),
    ("time", "+", "interval"): TIME, ("interval", "+", "time"): TIME, ("time", "-", "interval"): TIME,
    ("interval", "+", "interval"): INTERVAL, ("interval", "-", "interval"): INTERVAL,
    ("date", "+", "time"): TIMESTAMP, ("time", "+", "date"): TIMESTAMP,
}  # fmt: skip


def no_operator(ctx: Context, node: exp.Expression, sign: str, *types: SqlType) -> Error:
    """PostgreSQL's error for a missing operator."""
    shown = f" {sign} ".join(t.sql for t in types) if len(types) > 1 else f"{sign} {types[0].sql}"
    wanted = _castable(sign, *types) if len(types) == 2 else None
    hint = None if wanted is None else f"Cast one side, for example: (…)::{wanted.sql}."
    if sign in ("+", "-") and len(types) == 2 and types[0] in (TIMESTAMP, TIMESTAMPTZ) and types[1].is_integer:
        hint = f"Write the unit: {sign} n * INTERVAL '1 second'."
    return ctx.error("DATATYPE_MISMATCH", f"operator does not exist: {shown}", node, hint=hint)


def _castable(sign: str, left: SqlType, right: SqlType) -> SqlType | None:
    """The type of one side to which the other side can be cast and which has the operator for two of its values."""
    for kind, other in ((left, right), (right, left)):
        if sign in _COMPARISONS:
            fits = True
        elif sign in _OF_NUMBERS:
            fits = kind.is_numeric
        else:
            fits = kind == VARCHAR and sign in _OF_TEXT
        if fits and left != right and has_cast(other, kind):
            return kind
    return None


def compare(node: exp.Expression, left: Value, right: Value, ctx: Context) -> Value:
    """`=`, `<>`, `<`, `<=`, `>`, `>=`, `IS [NOT] DISTINCT FROM`."""
    left, right = comparable(node, left, right, ctx)
    if isinstance(node, (exp.LT, exp.LTE, exp.GT, exp.GTE)) and (left.type.labels or right.type.labels):
        if left.type.enum != right.type.enum:
            raise no_operator(ctx, node, SIGNS[type(node)], left.type, right.type)
        left, right = ranked(left), ranked(right)
    elif isinstance(node, (exp.LT, exp.LTE, exp.GT, exp.GTE)) and left.type == JSONB:
        left, right = ranked(left), ranked(right)
    expression = type(node)(this=wrap(left.expression), expression=wrap(right.expression))
    if isinstance(node, (exp.NullSafeEQ, exp.NullSafeNEQ)):
        return Value(expression, BOOLEAN, nullable=False)
    return boolean(expression, left, right)


def comparable(node: exp.Expression, left: Value, right: Value, ctx: Context) -> tuple[Value, Value]:
    """Both sides of a comparison, converted to the type in which they are compared."""
    if left.unknown and right.unknown:
        return cast(left, VARCHAR, ctx, node), cast(right, VARCHAR, ctx, node)
    if left.unknown:
        return cast(left, right.type, ctx, node), right
    if right.unknown:
        return left, cast(right, left.type, ctx, node)
    kind = common_type([left.type, right.type])
    if kind is None and {left.type.name, right.type.name} == {"uuid", "varchar"}:
        kind = VARCHAR  # unlike in PostgreSQL: ids may be columns of texts, and drivers send them as uuid
    if kind is not None:
        refuse_maps([kind], f"the operator {SIGNS.get(type(node), '=')} of", ctx.text, node_span(node))
    if kind is None or kind == JSON:
        raise no_operator(ctx, node, SIGNS.get(type(node), "="), left.type, right.type)
    if left.type.is_integer and right.type.is_integer:
        return left, right  # DuckDB compares integers of different widths
    return coerce(left, kind, ctx, node), coerce(right, kind, ctx, node)


def quantified(array: Value, each: exp.Expression, *, every: bool) -> Value:
    """ANY (or ALL if `every` is set) of the condition `each` on the elements `_e` of an array; NULL if it depends on a
    NULL.
    """
    parameter = exp.to_identifier("_e")
    outcomes = call("list_transform", array.expression, exp.Lambda(this=each, expressions=[parameter]))
    decisive, otherwise = (exp.false(), exp.true()) if every else (exp.true(), exp.false())
    unknown = exp.LT(this=call("list_count", outcomes), expression=call("len", outcomes))
    return Value(
        exp.Paren(
            this=exp.Case(
                ifs=[
                    exp.If(this=exp.Is(this=wrap(array.expression), expression=exp.null()), true=exp.null()),
                    exp.If(this=call("list_contains", outcomes, decisive), true=decisive.copy()),
                    exp.If(this=unknown, true=exp.null()),
                ],
                default=otherwise,
            )
        ),
        BOOLEAN,
    )


def arithmetic(node: exp.Expression, left: Value, right: Value, ctx: Context) -> Value:
    """`+ - * / %` on numbers, dates, times and intervals."""
    sign = SIGNS[type(node)]
    left, right = _settle(sign, left, right, ctx, node)
    if left.type.is_numeric and right.type.is_numeric:
        return _numbers(node, sign, left, right, ctx)
    pair = (left.type.name, right.type.name)
    if left.type == right.type == TIME and sign == "-":
        days = [
            exp.Add(this=duckdb_cast(string("2000-01-01"), DATE), expression=wrap(v.expression)) for v in (left, right)
        ]
        return Value(
            exp.Paren(this=exp.Sub(this=exp.Paren(this=days[0]), expression=exp.Paren(this=days[1]))), INTERVAL
        )
    if sign == "-" and left.type == JSONB:
        return jsonfunctions.without(left, right, ctx, node)
    both_times = left.type.name in _DATE_OR_TIME and right.type.name in _DATE_OR_TIME
    if sign == "-" and both_times and pair != ("date", "date"):
        result = INTERVAL
        if "timestamptz" in pair:
            left, right = coerce(left, TIMESTAMPTZ, ctx, node), coerce(right, TIMESTAMPTZ, ctx, node)
    elif sign in "*/" and pair[0] == "interval" and right.type.is_numeric:
        return _generic(node, left, _plain(right), INTERVAL, ctx)
    elif sign == "*" and pair[1] == "interval" and left.type.is_numeric:
        return _generic(node, _plain(left), right, INTERVAL, ctx)
    else:
        key = (_as_integer(left.type), sign, _as_integer(right.type))
        if key not in _TEMPORAL:
            raise no_operator(ctx, node, sign, left.type, right.type)
        result = _TEMPORAL[key] or left.type
    if result == TIMESTAMPTZ and not is_utc():
        time, interval = (right, left) if left.type == INTERVAL else (left, right)
        return Value(moved(time.expression, interval.expression, sign), TIMESTAMPTZ)
    if pair[0] == "bigint":
        left = Value(duckdb_cast(left.expression, INTEGER), INTEGER)
    if pair[1] == "bigint":
        right = Value(duckdb_cast(right.expression, INTEGER), INTEGER)
    return _generic(node, left, right, result, ctx)


def _as_integer(kind: SqlType) -> str:
    return "integer" if kind.is_integer else kind.name


def _plain(value: Value) -> Value:
    """A factor of an interval as BIGINT or DOUBLE, the only factors that DuckDB accepts."""
    if value.type.is_integer:
        return value
    return Value(duckdb_cast(value.expression, DOUBLE), DOUBLE)


def _settle(sign: str, left: Value, right: Value, ctx: Context, node: exp.Expression) -> tuple[Value, Value]:
    """Gives untyped literals the type that the other side requires."""
    if left.unknown and right.unknown:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"operator is not unique: unknown {sign} unknown", node, hint="Cast one side."
        )
    if left.unknown:
        kind = _partner(sign, right.type)
        return cast(left, kind, ctx, node), right
    if right.unknown:
        return left, cast(right, _partner(sign, left.type), ctx, node)
    return left, right


def _partner(sign: str, kind: SqlType) -> SqlType:
    if kind == JSONB:
        return VARCHAR
    if kind.name in (*_DATE_OR_TIME, "time") and sign == "+":
        return INTERVAL
    if kind == INTERVAL and sign in "*/":
        return DOUBLE
    return kind


def _numbers(node: exp.Expression, sign: str, left: Value, right: Value, ctx: Context) -> Value:
    if left.type.is_integer and right.type.is_integer:
        kind = common_type([left.type, right.type])
        assert kind is not None
    elif left.type.is_float or right.type.is_float:
        kind = left.type if left.type == right.type else DOUBLE
        if sign == "%":
            raise no_operator(ctx, node, sign, left.type, right.type)
    else:
        kind = NUMERIC
    if kind.is_integer:
        left, right = coerce(left, kind, ctx, node), coerce(right, kind, ctx, node)
        if left.is_number_literal and right.is_number_literal:
            left = Value(duckdb_cast(left.expression, kind), kind, nullable=False)
        shape = exp.IntDiv if sign == "/" else type(node)
        return Value(shape(this=wrap(left.expression), expression=wrap(right.expression)), kind)
    if kind.is_float:
        left, right = coerce(left, kind, ctx, node), coerce(right, kind, ctx, node)
        divisor = wrap(right.expression) if sign != "/" else _not_zero(right.expression)
        return Value(type(node)(this=wrap(left.expression), expression=divisor), kind)
    return _decimals(node, sign, left, right)


def _decimals(node: exp.Expression, sign: str, left: Value, right: Value) -> Value:
    if sign == "/":
        # DuckDB divides decimals as doubles; the result has 10 decimals
        dividend, divisor = duckdb_cast(left.expression, DOUBLE), duckdb_cast(right.expression, DOUBLE)
        quotient = exp.Div(this=dividend, expression=_not_zero(divisor))
        return Value(duckdb_cast(quotient, NUMERIC), NUMERIC)
    divisor = _not_zero(right.expression) if sign == "%" else wrap(right.expression)
    expression = type(node)(this=wrap(left.expression), expression=divisor)
    if sign in "+-" and left.exact and right.exact and left.type == right.type == NUMERIC:
        return Value(expression, NUMERIC)
    return Value(duckdb_cast(expression, NUMERIC), NUMERIC)


def _not_zero(expression: exp.Expression) -> exp.Expression:
    if isinstance(expression, exp.Literal) and not expression.is_string and float(expression.name) != 0:
        return expression.copy()
    return call("nullif", expression, number(0))


def _generic(node: exp.Expression, left: Value, right: Value, kind: SqlType, ctx: Context) -> Value:
    """An operator of DuckDB whose result is cast to `kind` if DuckDB's type differs."""
    shape = type(node)
    expression = shape(this=wrap(left.expression), expression=wrap(right.expression))
    probe = shape(this=wrap(typed_null(left)), expression=wrap(typed_null(right)))
    try:
        found, name = ctx.type_of(probe)
    except duckdb.Error as err:
        raise ctx.error("DATATYPE_MISMATCH", first_line(err), node) from None
    if found == kind and name.upper() == kind.duckdb.upper():
        return Value(expression, kind)
    return Value(duckdb_cast(expression, kind), kind)


def power(left: Value, right: Value, ctx: Context, node: exp.Expression) -> Value:
    """`^` in double precision, or in numeric if a side is numeric and none is a float."""
    left, right = _settle("^", left, right, ctx, node)
    if not (left.type.is_numeric and right.type.is_numeric):
        raise no_operator(ctx, node, "^", left.type, right.type)
    sides = [duckdb_cast(side.expression, DOUBLE) for side in (left, right)]
    if "numeric" in (left.type.name, right.type.name) and not (left.type.is_float or right.type.is_float):
        return Value(duckdb_cast(call("pow", *sides), NUMERIC), NUMERIC)
    return Value(fill(POWER, *sides), DOUBLE)


def bitwise(node: exp.Expression, left: Value, right: Value, ctx: Context) -> Value:
    """`& | # << >>` on integers."""
    sign = SIGNS[type(node)]
    left, right = _settle(sign, left, right, ctx, node)
    if not (left.type.is_integer and right.type.is_integer):
        raise no_operator(ctx, node, sign, left.type, right.type)
    if sign in ("<<", ">>"):
        kind = left.type
    else:
        merged = common_type([left.type, right.type])
        assert merged is not None
        kind = merged
    left = Value(duckdb_cast(left.expression, kind), kind)
    right = Value(duckdb_cast(right.expression, kind), kind)
    if sign == "#":
        return Value(call("xor", left.expression, right.expression), kind)
    if sign == "<<":  # DuckDB can't shift negative numbers
        shifted = fill("CASE WHEN a0 < 0 THEN -((-a0) << a1) ELSE a0 << a1 END", left.expression, right.expression)
        return Value(shifted, kind)
    return Value(type(node)(this=wrap(left.expression), expression=wrap(right.expression)), kind)


def concatenate(node: exp.Expression, left: Value, right: Value, ctx: Context) -> Value:
    """`||` on texts (one side may have another type), arrays and bytea."""
    arrays = [v for v in (left, right) if v.type.name == "array" and not v.unknown]
    if arrays:
        return _append(node, left, right, ctx)
    if left.type.name == right.type.name == "bytea" and not (left.unknown or right.unknown):
        return Value(exp.DPipe(this=wrap(left.expression), expression=wrap(right.expression)), left.type)
    if JSONB in (left.type, right.type):
        documents = [cast(v, JSONB, ctx, node) if v.unknown else v for v in (left, right)]
        if documents[0].type == documents[1].type:
            return jsonfunctions.joined(documents[0], documents[1])
    texts = [v for v in (left, right) if v.type == VARCHAR]
    if not texts or any(v.type.is_nested or v.type.name in ("jsonb", "bytea") for v in (left, right)):
        raise no_operator(ctx, node, "||", left.type, right.type)
    sides = [cast(v, VARCHAR, ctx, node).expression if v.unknown else text_of(v) for v in (left, right)]
    expression = exp.DPipe(this=wrap(sides[0]), expression=wrap(sides[1]))
    # DuckDB assigns no type to a NULL text
    exact = not (left.is_null or right.is_null)
    return Value(expression, VARCHAR, left.nullable or right.nullable, exact=exact)


def _append(node: exp.Expression, left: Value, right: Value, ctx: Context) -> Value:
    array, other = (left, right) if left.type.name == "array" and not left.unknown else (right, left)
    element = array.type.element
    assert element is not None
    if other.is_null:  # an array, which is empty
        return array
    if other.unknown or other.type.name != "array":
        if other.type.name != element.name and not other.unknown and family(other.type) != family(element):
            raise no_operator(ctx, node, "||", left.type, right.type)
        name = "list_append" if array is left else "list_prepend"
        item = coerce(other, element, ctx, node).expression
        arguments = (array.expression, item) if array is left else (item, array.expression)
        return Value(call(name, *arguments), array.type)
    kind = common_type([left.type, right.type])
    if kind is None:
        raise no_operator(ctx, node, "||", left.type, right.type)
    sides = [coerce(v, kind, ctx, node).expression for v in (left, right)]
    return Value(exp.Paren(this=fill(JOINED, *sides)), kind)


def negate(node: exp.Expression, value: Value, ctx: Context) -> Value:
    """Unary minus."""
    if value.unknown:
        value = cast(value, DOUBLE, ctx, node)
    if not (value.type.is_numeric or value.type == INTERVAL):
        raise no_operator(ctx, node, "-", value.type)
    if value.is_number_literal and isinstance(value.expression, exp.Literal):
        kind = value.type
        if value.expression.name == str(2**31):
            kind = INTEGER
        elif value.expression.name == str(2**63):
            kind = BIGINT
        return Value(
            exp.Neg(this=value.expression.copy()), kind, nullable=False, exact=value.exact and kind == value.type
        )
    return Value(exp.Neg(this=wrap(value.expression)), value.type, exact=value.exact)


def logical(node: exp.Expression, values: list[Value], nodes: list[exp.Expression], ctx: Context) -> Value:
    """AND, OR."""
    word = "AND" if isinstance(node, exp.And) else "OR"
    sides = [condition(v, ctx, n, word) for v, n in zip(values, nodes, strict=True)]
    parts = [
        exp.Paren(this=s.expression)
        if isinstance(s.expression, exp.Connector) and type(s.expression) is not type(node)
        else s.expression
        for s in sides
    ]
    return boolean(type(node)(this=parts[0], expression=parts[1]), *sides)


Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _interval(node: Any, ctx: Context, _bind: Bind) -> Value:
    unit = node.args.get("unit")
    if node.this is None or not node.this.is_string:
        raise ctx.error("SYNTAX_ERROR", "an interval must be written as a string", node, hint="INTERVAL '1' DAY.")
    if isinstance(unit, exp.IntervalSpan):
        written = _spanned(node.this.name.strip(), f"{unit.this.name} TO {unit.expression.name}".upper(), node, ctx)
    else:
        written = node.this.name + (f" {unit.name}" if unit is not None else "")
    return cast(Value(exp.Literal.string(written), VARCHAR, nullable=False, unknown=True), INTERVAL, ctx, node)


def _spanned(text: str, units: str, node: exp.Expression, ctx: Context) -> str:
    """The text of an `INTERVAL … unit TO unit` with its units written out."""
    sign, bare = ("-", text[1:]) if text.startswith("-") else ("", text)
    if units == "YEAR TO MONTH" and re.fullmatch(r"\d+-\d+", bare):
        years, months = bare.split("-")
        return f"{sign}{years} years {sign}{months} months"
    if units.startswith("DAY TO ") and re.fullmatch(r"\d+ \d+(:\d+){0,2}(\.\d+)?", bare):
        days, time = bare.split(" ")
        return f"{sign}{days} days {sign}{time if ':' in time else time + ':00'}"
    if units in ("HOUR TO MINUTE", "HOUR TO SECOND") and re.fullmatch(r"\d+:\d+(:\d+)?(\.\d+)?", bare):
        return text
    if units == "MINUTE TO SECOND" and re.fullmatch(r"\d+:\d+(\.\d+)?", bare):
        minutes, seconds = bare.split(":")
        return f"{sign}{minutes} minutes {sign}{seconds} seconds"
    raise ctx.not_supported(
        f"the interval '{text}' {units}", node, hint="Write its units, for example '1 day 2 hours'."
    )


def _at_time_zone(node: Any, ctx: Context, bind: Bind) -> Value:
    value, zone = bind(node.this, ctx), bind(node.args["zone"], ctx)
    if value.unknown or value.type == DATE:
        value = cast(value, TIMESTAMPTZ, ctx, node)
    if zone.type == INTERVAL:
        raise ctx.not_supported("an interval as a time zone", node, hint="Add it to the time AT TIME ZONE 'UTC'.")
    if value.type.name not in ("timestamp", "timestamptz") or zone.type != VARCHAR:
        raise no_operator(ctx, node, "AT TIME ZONE", value.type, zone.type)
    return at_time_zone(zone, value, ctx, node.args["zone"])


def _extract(node: Any, ctx: Context, bind: Bind) -> Value:
    return extracted(node.this.name.lower(), bind(node.expression, ctx), ctx, node)


def _overlaps(node: Any, ctx: Context, bind: Bind) -> Value:
    """`(start, end) OVERLAPS (start, end)`, where an end may be an interval (PostgreSQL 17, 9.9)."""
    sides = [node.this, node.expression]
    if not all(isinstance(s, exp.Tuple) and len(s.expressions) == 2 for s in sides):
        raise ctx.error("SYNTAX_ERROR", "wrong number of parameters of OVERLAPS expression", node)
    bounds: list[exp.Expression] = []
    for side in sides:
        start, end = (bind(e, ctx) for e in side.expressions)
        start = cast(start, TIMESTAMP, ctx, node) if start.unknown or start.type.name == "date" else start
        if not end.unknown and end.type == INTERVAL:
            if start.type == TIMESTAMPTZ:
                end = Value(moved(start.expression, end.expression, "+"), TIMESTAMPTZ)
            else:
                end = Value(fill("a0 + a1", start.expression, end.expression), start.type)
        end = cast(end, start.type, ctx, node) if end.unknown or end.type != start.type else end
        if start.type.name not in ("timestamp", "timestamptz", "time"):
            raise no_operator(ctx, node, "OVERLAPS", start.type, end.type)
        bounds += [start.expression, end.expression]
    # a period without length is a single moment
    whole = (
        "CASE WHEN least(a0, a1) = least(a2, a3) THEN TRUE WHEN least(a0, a1) > least(a2, a3) "
        "THEN least(a0, a1) < greatest(a2, a3) ELSE least(a2, a3) < greatest(a0, a1) END"
    )
    return Value(fill(whole, *bounds), BOOLEAN)


READERS: Final[dict[type, Reader]] = {
    exp.Interval: _interval,
    exp.AtTimeZone: _at_time_zone,
    exp.Extract: _extract,
    exp.Overlaps: _overlaps,
}

#: The length of a unit in microseconds; None for a unit of variable length.
UNITS: Final[dict[str, int | None]] = {
    **{unit.upper(): UNITS_US[unit] for unit in ("second", "minute", "hour", "day")},
    "MONTH": None,
    "YEAR": None,
}

#: A unit's name, or its length in microseconds.
Unit = str | int


def _length_us(unit: Unit) -> int | None:
    return unit if isinstance(unit, int) else UNITS[unit]


def floor(time: exp.Expression, unit: Unit, *, zoned: bool = False) -> exp.Expression:
    """The start of the `unit` that contains a timestamp. zoned: whether it is a timestamptz."""
    length_us = _length_us(unit)
    if length_us is None:
        assert isinstance(unit, str)
        return fill(f"date_trunc('{unit.lower()}', a0)", time)
    return TimeWindow("tumble", length_us, length_us).last_start(time, TIMESTAMPTZ if zoned else TIMESTAMP)


def after(start: exp.Expression, unit: Unit) -> exp.Expression:
    """The start of the next unit, given the start of a unit."""
    length_us = _length_us(unit)
    if length_us is None:
        assert isinstance(unit, str)
        return fill(f"a0 + INTERVAL '1 {unit.lower()}'", start)
    return TimeWindow("tumble", length_us, length_us).end(start)


def unit_of(window: exp.Window, ctx: Context, bind: Bind) -> Unit | None:
    """The unit of a window `(ORDER BY FLOOR(ROWTIME TO unit) RANGE CURRENT ROW)`; None for others. Raises
    INVALID_VALUE.
    """
    order, spec = window.args.get("order"), window.args.get("spec")
    if order is None or len(order.expressions) != 1 or (spec is not None and not _is_current_row(spec)):
        return None
    key = order.expressions[0].this
    if (
        not isinstance(key, exp.Floor)
        or key.args.get("to") is None
        or not isinstance(key.this, exp.Column)
        or key.this.name.upper() != "ROWTIME"
    ):
        return None
    return _unit(key, ctx, bind)


def _is_current_row(spec: exp.Expression) -> bool:
    return (
        spec.args.get("kind") == "RANGE"
        and spec.args.get("start") == "CURRENT ROW"
        and spec.args.get("end") in (None, "CURRENT ROW")
    )


def _floor(node: Any, ctx: Context, bind: Bind) -> Value:
    value, unit = _operand(node, ctx, bind)
    zoned = value.type == TIMESTAMPTZ
    return Value(duckdb_cast(floor(_timestamp(value), unit, zoned=zoned), value.type), value.type, value.nullable)


def _ceil(node: Any, ctx: Context, bind: Bind) -> Value:
    """The ceiling, computed as the end of the unit of the preceding microsecond, so that the start of a unit is its own
    ceiling.
    """
    value, unit = _operand(node, ctx, bind)
    before = fill("a0 - INTERVAL '1 microsecond'", _timestamp(value))
    found = after(floor(before, unit, zoned=value.type == TIMESTAMPTZ), unit)
    return Value(duckdb_cast(found, value.type), value.type, value.nullable)


def _operand(node: Any, ctx: Context, bind: Bind) -> tuple[Value, Unit]:
    value, unit = bind(node.this, ctx), _unit(node, ctx, bind)
    if value.unknown or value.type.name not in ("timestamp", "timestamptz", "date"):
        shown = "STEP … BY an interval" if isinstance(unit, int) else f"{node.key.upper()} … TO {unit}"
        raise no_operator(ctx, node, shown, VARCHAR if value.unknown else value.type)
    return value, unit


def _unit(node: Any, ctx: Context, bind: Bind) -> Unit:
    """The unit to which a time is rounded. Raises INVALID_VALUE."""
    written = node.args["to"]
    if isinstance(written, exp.Interval):
        length_us = duration_us(bind(written, ctx).finish().expression)
        if length_us is None or length_us <= 0:
            raise ctx.error(
                "INVALID_VALUE",
                "STEP needs an interval above zero without months",
                written,
                hint="FLOOR(… TO MONTH) and FLOOR(… TO YEAR) go by the calendar." if length_us is None else None,
            )
        return length_us
    unit: str = written.name.upper()
    if unit not in UNITS:
        raise ctx.error("INVALID_VALUE", f'unit "{unit}" not recognized', node, hint=did_you_mean(unit, UNITS))
    return unit


def _timestamp(value: Value) -> exp.Expression:
    return duckdb_cast(value.expression, TIMESTAMP) if value.type.name == "date" else value.expression


ROUNDING: Final[dict[type, Reader]] = {exp.Floor: _floor, exp.Ceil: _ceil}
