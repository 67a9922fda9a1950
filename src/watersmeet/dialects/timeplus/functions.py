"""Converts Timeplus' functions to trees of functions that all dialects have: `to_int32(x)`, `if(c, a, b)`,
`count_if(c)`.

The names are from Timeplus's reference, case-insensitive. A function that depends on the types of its arguments becomes
a function of `expressions.lenient`. The names of these begin with `$`, so that no text can call them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.timeplus.columns import cast_type, tree_of
from watersmeet.dialects.timeplus.streamfunctions import NEIGHBORS, over_window
from watersmeet.dialects.tree.nodes import wrap
from watersmeet.values.spans import own_span, set_span

Arguments = Sequence[exp.Expression]
_Build = Callable[..., exp.Expression | None]

_RENAMED: Final[dict[str, str]] = {
    "ceiling": "ceil", "char_length_utf8": "char_length", "length_utf8": "char_length", "lcase": "lower",
    "ucase": "upper",
    "lower_utf8": "lower", "upper_utf8": "upper", "reverse_utf8": "reverse", "substring_utf8": "$substring",
    "substr_utf8": "$substring",
    "mid": "$substring", "substr": "$substring", "replace_all": "replace", "trim_left": "ltrim", "trim_right": "rtrim",
    "trim_both": "btrim",
    "if_null": "coalesce", "null_if": "nullif", "pow": "power", "ln": "ln", "log": "ln", "truncate": "trunc",
    "position_utf8": "strpos", "locate": "strpos",
    "length": "$length", "empty": "$empty", "not_empty": "$not_empty",
    "concat": "$concat", "to_time": "$moment", "parse_datetime_best_effort": "$moment",
    "emit_version": "$emit_version", "array_join": "unnest", "to_date": "$day", "to_date32": "$day",
}  # fmt: skip

#: The functions that cast to the type with the same name.
_CASTS: Final = (
    "int8",
    "int16",
    "int32",
    "int64",
    "int",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int128",
    "uint128",
    "float",
    "float32",
    "float64",
    "string",
    "bool",
)
_WHOLE: Final = frozenset(
    {"int8", "int16", "int32", "int64", "int", "uint8", "uint16", "uint32", "uint64", "int128", "uint128"}
)
_DECIMALS: Final = ("decimal32", "decimal64", "decimal128")

#: The aggregates of the first or last value in order of arrival.
_MET: Final = {
    "earliest": "first_value", "first_value": "first_value", "any": "first_value",
    "latest": "last_value", "last_value": "last_value", "any_last": "last_value",
}  # fmt: skip

_OPERATORS: Final[dict[str, type[exp.Binary]]] = {
    "plus": exp.Add, "minus": exp.Sub, "multiply": exp.Mul, "modulo": exp.Mod, "mod": exp.Mod, "equals": exp.EQ,
    "not_equals": exp.NEQ,
    "less": exp.LT, "greater": exp.GT, "less_or_equals": exp.LTE, "greater_or_equals": exp.GTE,
    "bit_and": exp.BitwiseAnd,
    "bit_or": exp.BitwiseOr, "bit_xor": exp.BitwiseXor,
}  # fmt: skip

_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
#: The words that may be literals instead of calls.
_NUMBERS: Final = (
    exp.Column,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Mod,
    exp.Neg,
    exp.BitwiseAnd,
    exp.BitwiseOr,
    exp.BitwiseXor,
)

_UNIT_OF_DIGITS: Final = {"0": "second", "3": "milliseconds"}
_UNITS: Final = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_FIELDS: Final = {
    "year": "year",
    "month": "month",
    "day_of_month": "day",
    "day_of_year": "doy",
    "day_of_week": "isodow",
    "hour": "hour",
    "minute": "minute",
    "quarter": "quarter",
    "iso_week": "week",
    "iso_year": "isoyear",
}


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _case(*arguments: exp.Expression) -> exp.Expression:
    """Converts `multi_if(c1, a1, c2, a2, …, b)` to CASE."""
    ifs = [exp.If(this=c, true=a) for c, a in zip(arguments[:-1:2], arguments[1::2], strict=True)]
    return exp.Paren(this=exp.Case(ifs=ifs, default=arguments[-1]))


def _cast(name: str) -> _Build:
    kind = tree_of(name)
    if name in _WHOLE:  # ClickHouse truncates a fraction, SQL rounds it
        return lambda x: exp.Cast(this=_call("$truncated", x), to=kind.copy())
    return lambda x: exp.Cast(this=x, to=kind.copy())


def _decimal(name: str) -> _Build:
    return lambda x, scale: exp.Cast(this=x, to=tree_of(f"{name}({scale.name})"))


def _text(name: str) -> exp.Expression:
    return exp.Literal.string(name)


def _moved(unit: str, sign: type[exp.Binary]) -> _Build:
    """Converts `add_minutes(t, n)` to the sum with n times the unit. A date stays a date if days or longer units are
    added.
    """
    one = exp.cast(_text(f"1 {unit}"), exp.DType.INTERVAL)

    def build(time: exp.Expression, n: exp.Expression) -> exp.Expression:
        moved = exp.Paren(this=sign(this=time, expression=exp.Paren(this=exp.Mul(this=n, expression=one.copy()))))
        return moved if unit in ("second", "minute", "hour") else _call("$as_date", time.copy(), moved)

    return build


def _date_add(sign: type[exp.Binary]) -> _Build:
    """Converts `date_add(minute, 2, t)` and `date_add(t, INTERVAL 2 MINUTE)`."""

    def build(*arguments: exp.Expression) -> exp.Expression:
        if len(arguments) == 3:
            return _moved(_unit(arguments[0]).name, sign)(arguments[2], arguments[1])
        time, length = arguments
        return exp.Paren(this=sign(this=time, expression=length))

    return build


def _unit(node: exp.Expression) -> exp.Expression:
    """The unit in an argument, a text or a bare word."""
    if isinstance(node, exp.Column) and not node.args.get("table") and node.name.lower() in (*_UNITS, "millisecond"):
        return _text(node.name.lower())
    return node


def _filtered(name: str) -> _Build:
    """Converts `sum_if(x, c)` to the aggregate over the rows for which c is true."""

    def build(*arguments: exp.Expression) -> exp.Expression:
        *inner, condition = arguments
        inner = [_call("$number", x) for x in inner] if name == "sum" else inner
        call = _call(name, *(inner or ([exp.Star()] if name == "count" else [])))
        return exp.Filter(this=call, expression=exp.Where(this=condition))

    return build


def _array(*, distinct: bool) -> _Build:
    """Converts `group_array(x)` to an array of the non-NULL values."""

    def build(x: exp.Expression, *conditions: exp.Expression) -> exp.Expression:
        present = exp.Not(this=exp.Is(this=_wrapped(x.copy()), expression=exp.Null()))
        call = _call("array_agg", exp.Distinct(expressions=[x]) if distinct else x)
        return exp.Filter(
            this=call, expression=exp.Where(this=_all_of(exp.And)(*conditions, present) if conditions else present)
        )

    return build


def _distinct(name: str) -> _Build:
    return lambda x: _call(name, exp.Distinct(expressions=[x]))


def _counted(x: exp.Expression, condition: exp.Expression) -> exp.Expression:
    """Converts `uniq_if(x, c)` to a distinct count."""
    return exp.Filter(this=_distinct("count")(x), expression=exp.Where(this=condition))


def _extreme(*, descending: bool) -> _Build:
    """Converts `arg_max(x, by)` to the x of the row with the greatest `by`; among equal `by` the least x."""

    def build(x: exp.Expression, by: exp.Expression, *conditions: exp.Expression) -> exp.Expression:
        order = exp.Order(this=x, expressions=[exp.Ordered(this=by, desc=descending, nulls_first=False)])
        present = exp.Not(this=exp.Is(this=_wrapped(by.copy()), expression=exp.Null()))
        return exp.Filter(
            this=_call("first_value", order),
            expression=exp.Where(this=_all_of(exp.And)(*conditions, present) if conditions else present),
        )

    return build


def _met(name: str) -> _Build:
    """Converts `earliest(x)` and `latest(x)` to the first and last non-NULL value in order of arrival."""

    def build(x: exp.Expression, *conditions: exp.Expression) -> exp.Expression:
        present = exp.Not(this=exp.Is(this=_wrapped(x.copy()), expression=exp.Null()))
        return exp.Filter(
            this=_call(name, x),
            expression=exp.Where(this=_all_of(exp.And)(*conditions, present) if conditions else present),
        )

    return build


def _quantile(x: exp.Expression, *conditions: exp.Expression, level: exp.Expression | None = None) -> exp.Expression:
    """Converts `quantile(0.9)(x)` and `median(x)` to a float64 that is interpolated between the two nearest values."""
    ordered = exp.Ordered(this=exp.Cast(this=_call("$number", x), to=tree_of("float64")))
    call = exp.WithinGroup(
        this=_call("percentile_cont", level or exp.Literal.number("0.5")), expression=exp.Order(expressions=[ordered])
    )
    return exp.Filter(this=call, expression=exp.Where(this=conditions[0])) if conditions else call


def _pair(kind: type[exp.Binary]) -> _Build:
    return lambda a, b: exp.Paren(this=kind(this=_wrapped(a), expression=_wrapped(b)))


def _all_of(kind: type[exp.Connector]) -> _Build:
    return lambda *parts: exp.Paren(this=reduce(lambda a, b: kind(this=a, expression=b), map(_wrapped, parts)))


def _wrapped(node: exp.Expression) -> exp.Expression:
    return exp.Paren(this=node) if isinstance(node, (exp.Binary, exp.Not)) else node


def _divided(a: exp.Expression, b: exp.Expression) -> exp.Expression:
    return exp.Paren(this=exp.Div(this=exp.Cast(this=a, to=tree_of("float64")), expression=_wrapped(b)))


def _is(*, negate: bool) -> _Build:
    def build(x: exp.Expression) -> exp.Expression:
        test = exp.Is(this=_wrapped(x), expression=exp.Null())
        return exp.Paren(this=exp.Not(this=test) if negate else test)

    return build


def _to_datetime64(x: exp.Expression, digits: exp.Expression | None = None, *_zone: exp.Expression) -> exp.Expression:
    unit = _UNIT_OF_DIGITS.get("3" if digits is None else digits.name)
    return _call("$moment", x) if unit is None else _call("date_trunc", _text(unit), _call("$moment", x))


def _sunday(time: exp.Expression) -> exp.Expression:
    """The beginning of the week, which starts on Sunday in ClickHouse (mode 0)."""
    day = exp.cast(_text("1 day"), exp.DType.INTERVAL)
    later = exp.Add(this=_wrapped(time), expression=day)
    return exp.Paren(this=exp.Sub(this=_call("date_trunc", _text("week"), later), expression=day.copy()))


def _floored(time: exp.Expression, length: exp.Expression) -> exp.Expression | None:
    """Converts `to_start_of_interval(t, INTERVAL 5 MINUTE)`. Multiples count from 1970, multiples of weeks from a
    Monday; only one month at a time is supported.
    """
    if isinstance(length, exp.Interval):
        count, unit = length.this.name if length.this else "", length.unit.name if length.unit else ""
    else:
        count, _, unit = length.this.name.partition(" ") if isinstance(length, exp.Cast) else ("", "", "")
    unit = unit.lower().removesuffix("s")
    if unit in ("month", "quarter", "year"):
        return _call("date_trunc", _text(unit), time) if count == "1" else None
    if not count.isdecimal() or not int(count):
        return None
    origin = exp.cast(_text("1970-01-05" if unit == "week" else "1970-01-01"), exp.DType.TIMESTAMP)
    return _call("date_bin", length, time, origin)


def _element(node: exp.Bracket) -> exp.Expression | None:
    """Converts `a[1]`, and `a[-1]` for the last element."""
    place = node.expressions[0]
    if len(node.expressions) != 1 or isinstance(place, exp.Slice):
        return None
    return _call("$element", node.this, place)


def _clock(unit: str) -> _Build:
    """The time of the epoch, truncated to the unit; the arguments for digits and time zone have no effect."""
    return lambda *_digits: _call("date_trunc", _text(unit), _call("localtimestamp"))


_SPECIAL: Final[dict[str, tuple[tuple[int, ...] | None, _Build]]] = {
    # # by name: the accepted numbers of arguments (None: odd, at least 3), and the function that makes the tree
    "multi_if": (None, _case),
    **{f"to_{name}": ((1,), _cast(name)) for name in _CASTS},
    "to_string_utf8": ((1,), _cast("string")),
    **{f"to_{name}": ((2,), _decimal(name)) for name in _DECIMALS},
    **{name: ((2,), _pair(kind)) for name, kind in _OPERATORS.items()},
    "divide": ((2,), _divided),
    "int_div": ((2,), lambda a, b: _call("$int_div", a, b)),
    "negate": ((1,), lambda x: exp.Paren(this=exp.Neg(this=_wrapped(x)))),
    "and": ((2, 3, 4, 5, 6), _all_of(exp.And)), "or": ((2, 3, 4, 5, 6), _all_of(exp.Or)),
    "not": ((1,), lambda x: exp.Paren(this=exp.Not(this=_wrapped(x)))),
    "is_null": ((1,), _is(negate=False)), "is_not_null": ((1,), _is(negate=True)),
    "count": ((0,), lambda: _call("count", exp.Star())),
    "sum": ((1,), lambda x: _call("sum", _call("$number", x))),
    "count_if": ((1,), _filtered("count")), "sum_if": ((2,), _filtered("sum")), "min_if": ((2,), _filtered("min")),
    "max_if": ((2,), _filtered("max")),
    "avg_if": ((2,), lambda x, c: _filtered("avg")(exp.Cast(this=x, to=tree_of("float64")), c)),
    **{name: ((1,), lambda x, n=name: _call(n, exp.Cast(this=x, to=tree_of("float64"))))
       for name in ("avg", "stddev_pop", "stddev_samp", "var_pop", "var_samp")},
    **{name: ((1,), _distinct("count")) for name in ("count_distinct", "uniq", "uniq_exact", "unique", "unique_exact")},
    "uniq_if": ((2,), _counted), "uniq_exact_if": ((2,), _counted), "count_distinct_if": ((2,), _counted),
    "arg_max": ((2,), _extreme(descending=True)), "arg_min": ((2,), _extreme(descending=False)),
    "arg_max_if": ((3,), _extreme(descending=True)), "arg_min_if": ((3,), _extreme(descending=False)),
    **{name: ((1,), _met(made)) for name, made in _MET.items()},
    **{f"{name}_if": ((2,), _met(made)) for name, made in _MET.items()},
    "quantile": ((1,), _quantile), "quantile_if": ((2,), _quantile), "median": ((1,), _quantile), "median_if": ((2,),
    _quantile),
    "group_array": ((1,), _array(distinct=False)), "group_array_if": ((2,), _array(distinct=False)),
    "group_uniq_array": ((1,), _array(distinct=True)),
    "now": ((0, 1), _clock("second")), "now64": ((0, 1, 2), _clock("milliseconds")),
    "to_datetime": ((1, 2), lambda x, *_zone: _call("date_trunc", _text("second"), _call("$moment", x))),
    "to_datetime64": ((1, 2, 3), _to_datetime64),
    **{name: ((0,), lambda: exp.cast(_text("1970-01-01 00:00:00"), exp.DType.TIMESTAMP))
       for name in ("earliest_ts", "earliest_timestamp")},
    "today": ((0,), lambda: exp.Cast(this=_call("localtimestamp"), to=tree_of("date"))),
    "yesterday": ((0,), lambda: exp.Paren(this=exp.Sub(this=exp.Cast(this=_call("localtimestamp"), to=tree_of("date")),
                                                       expression=exp.Literal.number(1)))),
    "date_diff": ((3,), lambda unit, a, b: _call("$date_diff", _unit(unit), a, b)),
    "date_bin": ((2, 3), lambda length, time, *origin: _call("date_bin", length, time, *(origin or (exp.cast(
        _text("1970-01-01"), exp.DType.TIMESTAMP),)))),
    "date_add": ((2, 3), _date_add(exp.Add)), "date_sub": ((2, 3), _date_add(exp.Sub)),
    "date_trunc": ((2, 3), lambda unit, *rest: _call("date_trunc", _unit(unit), *rest)),
    **{f"add_{u}s": ((2,), _moved(u, exp.Add)) for u in _UNITS}, **{f"subtract_{u}s": ((2,), _moved(u,
    exp.Sub)) for u in _UNITS},
    **{f"to_start_of_{u}": ((1,), lambda x, u=u: _call("date_trunc", _text(u), x)) for u in _UNITS},
    "to_start_of_interval": ((2,), _floored),
    **{f"to_start_of_{name}_minutes": ((1,), lambda x, n=n: _floored(x, exp.cast(_text(f"{n} minutes"),
    exp.DType.INTERVAL)))
       for name, n in (("five", 5), ("ten", 10), ("fifteen", 15))},
    "to_start_of_week": ((1,), _sunday),
    "to_monday": ((1,), lambda x: exp.Cast(this=_call("date_trunc", _text("week"), x), to=tree_of("date"))),
    **{f"to_{name}": ((1,), lambda x, f=field: exp.Cast(this=_call("date_part", _text(f), x), to=tree_of("int32")))
       for name, field in _FIELDS.items()},
    "to_second": ((1,), lambda x: exp.Cast(this=_call("$truncated", _call("date_part", _text("second"), x)),
    to=tree_of("int32"))),
    "to_unix_timestamp": ((1,), lambda x: exp.Cast(this=_call("$truncated", _call("date_part", _text("epoch"), x)),
    to=tree_of("int64"))),
    "to_interval_second": ((1,), lambda n: exp.Paren(this=exp.Mul(this=n, expression=exp.cast(_text("1 second"),
    exp.DType.INTERVAL)))),
    "split_by_string": ((2,), lambda sep, x: _call("string_to_array", x, sep)),
    "split_by_char": ((2,), lambda sep, x: _call("string_to_array", x, sep)),
    "has": ((2,), lambda array, x: exp.EQ(this=x, expression=exp.Any(this=exp.Paren(this=array)))),
    "match": ((2,), lambda x, pattern: _call("regexp_like", x, pattern)),
}  # fmt: skip


def with_functions(tree: exp.Expression) -> exp.Expression:
    """The tree with Timeplus' functions, types of casts and conditional expressions in the form that the binder
    reads.
    """
    for node in reversed(list(tree.walk())):
        made = _made(node)
        if made is None:
            continue
        span = own_span(node)
        if span is not None and all(own_span(n) is None for n in made.walk()):
            set_span(made, span)
        if span is not None and isinstance(
            made, exp.Filter
        ):  # for an aggregate with a condition, errors refer to the whole call
            set_span(made.this, span)
        if node is tree:
            tree = made
        else:
            node.replace(made)
    return tree


def with_conditions(tree: exp.Expression) -> exp.Expression:
    """The tree in standard SQL where it has numbers as conditions (`WHERE flag`, `if(i % 2, …)`) or compares conditions
    with 0 or 1.
    """
    for node in list(tree.walk()):
        if isinstance(node, (exp.Where, exp.Having, exp.Not, exp.If)):
            of_values = (
                isinstance(node.parent, exp.Case) and node.parent.args.get("this") is not None
            )  # `CASE i WHEN 1 THEN …`
            places = [] if of_values else [node.this]
        elif isinstance(node, (exp.And, exp.Or)):
            places = [node.this, node.expression]
        elif (
            isinstance(node, _COMPARISONS)
            and node.arg_key != "settings"
            and any(
                isinstance(o, exp.Literal) and o.this in ("0", "1") and not o.is_string for o in node.iter_expressions()
            )
        ):
            for operand in [o for o in node.iter_expressions() if isinstance(o.unnest(), (exp.Column, *_COMPARISONS))]:
                wrap(operand, partial(_call, "$number"))
            continue
        else:
            continue
        for place in places:
            if isinstance(place.unnest(), _NUMBERS) or (isinstance(place, exp.Literal) and not place.is_string):
                wrap(place, partial(_call, "$condition"))
    return tree


def _made(node: Any) -> exp.Expression | None:
    if isinstance(node, exp.CastToStrType):
        return exp.Cast(this=node.this, to=tree_of(node.args["to"].name))
    if isinstance(node, exp.Cast):
        cut = _cut(node.to)
        node.set("to", cast_type(node.to))
        return None if cut is None else _call("date_trunc", _text(cut), node.copy())
    if isinstance(node, exp.Substring):
        return _call(
            "$substring", *[p for p in (node.this, node.args.get("start"), node.args.get("length")) if p is not None]
        )
    if isinstance(node, exp.Bracket):
        return _element(node)
    if isinstance(node, exp.If) and not isinstance(node.parent, exp.Case):
        return _case(node.this, node.args["true"], node.args.get("false") or exp.Null())
    if isinstance(node, exp.Window) and isinstance(node.this, exp.Anonymous):
        return over_window(node)
    if isinstance(node, exp.Anonymous) and isinstance(node.this, str):
        return _called(node, node.this.lower())
    return None


def _cut(kind: exp.DataType) -> str | None:
    """The unit to which a type truncates times."""
    if kind.this == exp.DType.DATETIME:
        return "second"
    if kind.this != exp.DType.DATETIME64:
        return None
    return _UNIT_OF_DIGITS.get(kind.expressions[0].name if kind.expressions else "3")


def _called(node: exp.Anonymous, name: str) -> exp.Expression | None:
    if isinstance(node.parent, exp.Table):
        return None
    if isinstance(node.parent, exp.Window) and name in _MET:
        node.set("this", _MET[name])
        return None
    if name in NEIGHBORS and not isinstance(node.parent, (exp.IgnoreNulls, exp.RespectNulls)):
        return NEIGHBORS[name](node)
    if name in _RENAMED:
        node.set("this", _RENAMED[name])
        return None
    if name not in _SPECIAL:
        return None
    if (level := node.args.get("level")) is not None:
        return _quantile(*node.expressions, level=level)
    counts, build = _SPECIAL[name]
    arguments = list(node.expressions)
    fits = len(arguments) in counts if counts is not None else len(arguments) >= 3 and len(arguments) % 2 == 1
    if not fits or any(isinstance(a, (exp.Star, exp.Distinct, exp.Order)) for a in arguments):
        return None  # stays unchanged: the binder reports the error
    made = build(*arguments)
    return None if isinstance(node.parent, exp.Window) and not isinstance(made, (exp.Anonymous, exp.Filter)) else made
