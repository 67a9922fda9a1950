"""Converts Timeplus' functions to trees of functions that all dialects have: `to_int32(x)`, `if(c, a, b)`,
`count_if(c)`.

The names are from Timeplus's reference, case-insensitive. A function that depends on the types of its arguments becomes
a function of `expressions.lenient`. The names of these begin with `$`, so that no text can call them.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.timeplus.aggregates import MET, aggregate, call, wrapped
from watersmeet.dialects.timeplus.columns import cast_type, tree_of
from watersmeet.dialects.timeplus.families import OWN
from watersmeet.dialects.timeplus.streamfunctions import NEIGHBORS, over_window
from watersmeet.dialects.tree.nodes import LambdaCall, wrap
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
    "if_null": "coalesce", "null_if": "nullif", "ln": "ln", "log": "ln", "truncate": "trunc",
    "position_utf8": "strpos", "locate": "strpos",
    "length": "$length", "empty": "$empty", "not_empty": "$not_empty",
    "concat": "$concat", "map": "$map_cast", "map_update": "map_cat",
    "split_by_char": "$split_by_string",
    **{f"{prefix}_{name}": f"$json_{name}" for prefix in ("simple_json", "visit_param") for name in (
        "extract_bool", "extract_float", "extract_int", "extract_raw", "extract_string", "extract_uint", "has")},
    "json_extract_array_raw": "$json_extract_array", "map_contains_key": "$map_contains", "map_concat": "map_cat",
    "tuple": "$tuple_cast", "concat_with_separator": "concat_ws", "initcap_utf8": "initcap",
     "timestamp_diff": "$date_diff",
    "date_format": "$format_datetime", "make_date32": "make_date",
    "levenshtein_distance": "levenshtein",
    "emit_version": "$emit_version", "array_join": "unnest", "to_date": "$to_date", "to_date32": "$to_date",
    "database": "current_database", "schema": "current_database", "date": "$to_date", "timestamp": "$to_time",
    "yyyymmdd_to_date32": "$yyyymmdd_to_date",
    "index_of_assume_sorted": "$index_of", "array_element_or_null": "$element", "map_partial_sort": "$map_sort",
    "concat_assume_injective": "$concat", "concat_with_separator_assume_injective": "concat_ws",
    "to_column_type_name": "$to_type_name",
    "to_ipv4_or_zero": "$to_ipv4_or_default", "to_ipv6_or_zero": "$to_ipv6_or_default",
    "inet_aton": "$ipv4_string_to_num", "inet_ntoa": "$ipv4_num_to_string", "inet6_aton": "$ipv6_string_to_num",
    "inet6_ntoa": "$ipv6_num_to_string", "pmod": "$positive_modulo", "scalar_product": "$dot_product",
    "str_to_date": "$parse_datetime", "from_days": "$from_days_since_year_zero",
    "str_to_map": "$extract_key_value_pairs", "map_from_string": "$extract_key_value_pairs",
    **{f"parse_datetime{bits}_best_effort{ending}": f"$parse_datetime_best_effort{ending}"
       for bits in ("32",) for ending in ("", "_or_null", "_or_zero")},
    **{f"to_time_or_{ending}": f"$parse_datetime64_best_effort_or_{ending}" for ending in ("null", "zero")},
    **{f"{name}_{n}": f"${n}_{name}"
       for name in ("norm", "distance") for n in ("l1", "l2", "l2_squared", "linf", "lp")},
    **{f"{name}_utf8": f"${name}" for name in (
        "count_substrings_case_insensitive", "ends_with_case_insensitive", "has_subsequence",
        "has_subsequence_case_insensitive", "multi_search_all_positions", "multi_search_all_positions_case_insensitive",
        "multi_search_any", "multi_search_any_case_insensitive", "multi_search_first_index",
        "multi_search_first_index_case_insensitive", "multi_search_first_position",
        "multi_search_first_position_case_insensitive", "position_case_insensitive", "starts_with_case_insensitive",
        "substring_index")},
}  # fmt: skip

#: The types of functions that return an empty array.
_ELEMENTS: Final = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "date", "datetime",
    "string",
)  # fmt: skip

_TYPED_LOOK_UP: Final = re.compile(r"dict_get_(?:u?int\d+|float\d+|string|date|datetime|uuid|ipv[46])(_or_default)?")

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
_DECIMALS: Final = {"decimal": "decimal128", **{n: n for n in ("decimal32", "decimal64", "decimal128")}}

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
_SHORT_UNITS: Final = ("millisecond", "microsecond")
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


def _case(*arguments: exp.Expression) -> exp.Expression:
    """Converts `multi_if(c1, a1, c2, a2, …, b)` to CASE."""
    ifs = [exp.If(this=c, true=a) for c, a in zip(arguments[:-1:2], arguments[1::2], strict=True)]
    return exp.Paren(this=exp.Case(ifs=ifs, default=arguments[-1]))


def _case_of(value: exp.Expression, *arguments: exp.Expression) -> exp.Expression:
    """Converts `case_with_expression(x, 1, a, 2, b, …, c)` to CASE."""
    ifs = [exp.If(this=c, true=a) for c, a in zip(arguments[:-1:2], arguments[1::2], strict=True)]
    return exp.Paren(this=exp.Case(this=value, ifs=ifs, default=arguments[-1]))


def _cast(name: str) -> _Build:
    kind = tree_of(name)
    if name in _WHOLE:  # ClickHouse truncates a fraction, SQL rounds it
        return lambda x: exp.Cast(this=call("$truncated", x), to=kind.copy())
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
        return moved if unit in ("second", "minute", "hour", *_SHORT_UNITS) else call("$as_date", time.copy(), moved)

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


def _pair(kind: type[exp.Binary]) -> _Build:
    return lambda a, b: exp.Paren(this=kind(this=wrapped(a), expression=wrapped(b)))


def _all_of(kind: type[exp.Connector]) -> _Build:
    return lambda *parts: exp.Paren(this=reduce(lambda a, b: kind(this=a, expression=b), map(wrapped, parts)))


def _divided(a: exp.Expression, b: exp.Expression) -> exp.Expression:
    return exp.Paren(this=exp.Div(this=exp.Cast(this=a, to=tree_of("float64")), expression=wrapped(b)))


def _power(x: exp.Expression, y: exp.Expression) -> exp.Expression:
    return call("pow", *(exp.Cast(this=n, to=tree_of("float64")) for n in (x, y)))


def _is(*, negate: bool) -> _Build:
    def build(x: exp.Expression) -> exp.Expression:
        test = exp.Is(this=wrapped(x), expression=exp.Null())
        return exp.Paren(this=exp.Not(this=test) if negate else test)

    return build


def _to_datetime64(x: exp.Expression, digits: exp.Expression | None = None, *zone: exp.Expression) -> exp.Expression:
    unit, time = _UNIT_OF_DIGITS.get("3" if digits is None else digits.name), call("$to_time", x, *zone)
    return time if unit is None else call("date_trunc", _text(unit), time)


def _sunday(time: exp.Expression) -> exp.Expression:
    """The beginning of the week, which starts on Sunday in ClickHouse (mode 0)."""
    day = exp.cast(_text("1 day"), exp.DType.INTERVAL)
    later = exp.Add(this=wrapped(time), expression=day)
    return exp.Paren(this=exp.Sub(this=call("date_trunc", _text("week"), later), expression=day.copy()))


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
        return call("date_trunc", _text(unit), time) if count == "1" else None
    if not count.isdecimal() or not int(count):
        return None
    origin = exp.cast(_text("1970-01-05" if unit == "week" else "1970-01-01"), exp.DType.TIMESTAMP)
    return call("date_bin", length, time, origin)


def _element(node: exp.Bracket) -> exp.Expression | None:
    """Converts `a[1]`, and `a[-1]` for the last element."""
    place = node.expressions[0]
    if len(node.expressions) != 1 or isinstance(place, exp.Slice):
        return None
    return call("$element", node.this, place)


def _clock(unit: str) -> _Build:
    """The time of the epoch, truncated to the unit; the arguments for digits and time zone have no effect."""
    return lambda *_digits: call("date_trunc", _text(unit), call("localtimestamp"))


def _typed(name: exp.Expression) -> exp.Expression:
    """NULL of a type, which is given as a constant."""
    if not name.is_string:
        return name
    return exp.Cast(this=exp.Null(), to=tree_of(name.name))


def _json_extract(name: str) -> _Build:
    """`json_extract(document, path …, 'type')`: the type becomes the type of the last argument."""

    def build(*arguments: exp.Expression) -> exp.Expression | None:
        return call(f"${name}", *arguments[:-1], _typed(arguments[-1])) if arguments[-1].is_string else None

    return build


_LARGEST: Final = {
    "int8": 127, "int16": 32767, "int32": 2147483647, "int": 2147483647, "int64": 4294967295, "uint8": 255,
    "uint16": 65535, "uint32": 4294967295, "uint": 4294967295, "uint64": 4294967295, "float32": 1, "float": 1,
    "float64": 1, "date": 65535, "date32": 65535, "datetime": 4294967295, "datetime64": 4294967295,
}  # fmt: skip


def _letter(code: exp.Expression) -> exp.Expression:
    return call("chr", exp.Cast(this=call("$truncated", code), to=tree_of("int32")))


def _random_value(name: exp.Expression, *arguments: exp.Expression) -> exp.Expression | None:
    """`random_in_type('int', 10, x -> x * 2)`: a random value of a type, below a number, given to a lambda."""
    kind = name.name.lower().partition("(")[0] if name.is_string else ""
    made = arguments[-1] if arguments and isinstance(arguments[-1], exp.Lambda) else None
    bound = arguments[0] if arguments and not isinstance(arguments[0], exp.Lambda) else None
    if len(arguments) == 2 and made is None:
        return None
    if kind in ("uuid", "string") and not arguments:
        return call("$uuid") if kind == "uuid" else call("$random_printable_ascii", exp.Literal.number(16))
    if kind == "ipv4" and not arguments:
        return call("$ipv4_num_to_string", call("$rand"))
    if kind == "bool" and not arguments:
        return call("$rand_bernoulli", exp.Literal.number("0.5"))
    if kind not in _LARGEST:
        return None
    # a lambda may double it
    most = exp.Literal.number(_LARGEST[kind] // (2 if made is not None and kind in ("int", "int32") else 1))
    most = most if bound is None else bound
    value = call("$rand_uniform", exp.Literal.number(0), most)
    if not kind.startswith("float"):
        value = exp.Cast(this=call("floor", value), to=tree_of("int64"))
    if made is not None:
        variable = made.expressions[0].name
        body = exp.Paren(this=made.this.copy())
        for node in [n for n in body.find_all(exp.Identifier) if n.name == variable]:
            whole = node.parent if isinstance(node.parent, exp.Column) else node
            whole.replace(value.copy())
        return body
    if kind.startswith("date"):
        return call("$to_time" if kind.startswith("datetime") else "$to_date", value)
    return exp.Cast(this=value, to=tree_of(kind))


_SPECIAL: Final[dict[str, tuple[Sequence[int] | None, _Build]]] = {
    # # by name: the accepted numbers of arguments (None: odd, at least 3), and the function that makes the tree
    "multi_if": (None, _case),
    **{f"to_{name}": ((1,), _cast(name)) for name in _CASTS},
    **dict.fromkeys(("to_string", "to_string_utf8"), ((1,), lambda x: call("$to_string", x))),
    **{f"to_{name}": ((2,), _decimal(made)) for name, made in _DECIMALS.items()},
    "pow": ((2,), _power), "power": ((2,), _power),
    **{name: ((2,), _pair(kind)) for name, kind in _OPERATORS.items()},
    "divide": ((2,), _divided),
    "int_div": ((2,), lambda a, b: call("$int_div", a, b)),
    "negate": ((1,), lambda x: exp.Paren(this=exp.Neg(this=wrapped(x)))),
    "and": ((2, 3, 4, 5, 6), _all_of(exp.And)), "or": ((2, 3, 4, 5, 6), _all_of(exp.Or)),
    "not": ((1,), lambda x: exp.Paren(this=exp.Not(this=wrapped(x)))),
    "is_null": ((1,), _is(negate=False)), "is_not_null": ((1,), _is(negate=True)),
    "now": ((0, 1), _clock("second")), "now64": ((0, 1, 2), _clock("milliseconds")),
    "to_datetime": ((1, 2), lambda x, *zone: call("date_trunc", _text("second"), call("$to_time", x, *zone))),
    "to_datetime64": ((1, 2, 3), _to_datetime64),
    **{name: ((0,), lambda: exp.cast(_text("1970-01-01 00:00:00"), exp.DType.TIMESTAMP))
       for name in ("earliest_ts", "earliest_timestamp")},
    "today": ((0,), lambda: exp.Cast(this=call("localtimestamp"), to=tree_of("date"))),
    "yesterday": ((0,), lambda: exp.Paren(this=exp.Sub(this=exp.Cast(this=call("localtimestamp"), to=tree_of("date")),
                                                       expression=exp.Literal.number(1)))),
    "date_diff": ((3,), lambda unit, a, b: call("$date_diff", _unit(unit), a, b)),
    "date_bin": ((2, 3), lambda length, time, *origin: call("date_bin", length, time, *(origin or (exp.cast(
        _text("1970-01-01"), exp.DType.TIMESTAMP),)))),
    "date_add": ((2, 3), _date_add(exp.Add)), "date_sub": ((2, 3), _date_add(exp.Sub)),
    "date_trunc": ((2,), lambda unit, time: call("date_trunc", _unit(unit), time)),
    **{f"{name}_{u}s": ((2,), _moved(u, sign))
       for name, sign in (("add", exp.Add), ("subtract", exp.Sub)) for u in (*_UNITS, *_SHORT_UNITS)},
    **{f"to_start_of_{u}": ((1,), lambda x, u=u: call("date_trunc", _text(u), x)) for u in _UNITS},
    "to_start_of_interval": ((2,), _floored),
    **{f"to_start_of_{name}_minutes": ((1,), lambda x, n=n: _floored(x, exp.cast(_text(f"{n} minutes"),
    exp.DType.INTERVAL)))
       for name, n in (("five", 5), ("ten", 10), ("fifteen", 15))},
    "to_start_of_week": ((1,), _sunday),
    "to_monday": ((1,), lambda x: exp.Cast(this=call("date_trunc", _text("week"), x), to=tree_of("date"))),
    **{f"to_{name}": ((1,), lambda x, f=field: exp.Cast(this=call("date_part", _text(f), x), to=tree_of("int32")))
       for name, field in _FIELDS.items()},
    "to_second": ((1,), lambda x: exp.Cast(this=call("$truncated", call("date_part", _text("second"), x)),
    to=tree_of("int32"))),
    "to_unix_timestamp": ((1, 2), lambda x, *zone: exp.Cast(this=call("$truncated", call("date_part", _text("epoch"),
    call("$to_time", x, *zone))),
    to=tree_of("int64"))),
    "to_interval_second": ((1,), lambda n: exp.Paren(this=exp.Mul(this=n, expression=exp.cast(_text("1 second"),
    exp.DType.INTERVAL)))),
    "like": ((2,), lambda x, pattern: exp.Paren(this=exp.Like(this=x, expression=pattern))),
    "ilike": ((2,), lambda x, pattern: exp.Paren(this=exp.ILike(this=x, expression=pattern))),
    "to_nullable": ((1,), lambda x: exp.Paren(this=x)),
    "array_element": ((2,), lambda a, i: call("$element", a, i)),
    "array": (range(1000), lambda *values: exp.Array(expressions=list(values))),
    **dict.fromkeys(("identity", "materialize"), ((1,), lambda x: exp.Paren(this=x))),
    "not_like": ((2,), lambda x, p: exp.Paren(this=exp.Not(this=exp.Like(this=x, expression=p)))),
    "not_ilike": ((2,), lambda x, p: exp.Paren(this=exp.Not(this=exp.ILike(this=x, expression=p)))),
    "clamp": ((3,), lambda x, low, high: call("least", call("greatest", x, low), high)),
    "is_zero_or_null": ((1,), lambda x: call("coalesce", exp.EQ(this=wrapped(x), expression=exp.Literal.number(0)),
                                              exp.true())),
    **dict.fromkeys(("now_in_block", "utc_timestamp"), ((0, 1), _clock("second"))),
    "now_in_block64": ((0, 1, 2), _clock("milliseconds")),
    "to_datetime32": ((1, 2), lambda x, *zone: call("date_trunc", _text("second"), call("$to_time", x, *zone))),
    **{f"{name}_date": ((2,), _date_add(sign)) for name, sign in (("add", exp.Add), ("sub", exp.Sub))},
    **{name: ((2,), lambda x, digits, n=name: call(f"${n}", x, digits)) for name in ("floor", "ceil", "trunc")},
    **{name: (range(2, 100), _json_extract(name)) for name in ("json_extract", "json_extract_keys_and_values")},
    "default_value_of_type_name": ((1,), lambda name: call("$assume_not_null", _typed(name))),
    "random_in_type": ((1, 2, 3), _random_value),
    **dict.fromkeys(("case_with_expression", "case_with_expr"), ((4, 6, 8, 10, 12), _case_of)),
    "array_cast": (range(1, 1000), lambda *values: exp.Array(expressions=list(values))),
    **dict.fromkeys(("host_name", "hostname", "fqdn", "full_host_name", "display_name"),
                    ((0,), lambda: _text(platform.node()))),
    **dict.fromkeys(("timezone", "server_timezone"), ((0,), lambda: _text("UTC"))),
    "ignore": (range(1000), lambda *_: exp.Literal.number(0)),
    "curdate": ((0,), lambda: exp.Cast(this=call("localtimestamp"), to=tree_of("date"))),
    "to_low_cardinality": ((1,), lambda x: exp.Paren(this=x)),
    "accurate_cast": ((2,), lambda x, name: exp.Cast(this=x, to=tree_of(name.name)) if name.is_string else None),
    "accurate_cast_or_null": ((2,), lambda x, name: call(f"$to_{name.name.lower()}_or_null", call("$to_string", x))
                              if name.is_string and f"to_{name.name.lower()}_or_null" in OWN else None),
    "is_distinct_from": ((2,), _pair(exp.NullSafeNEQ)), "is_not_distinct_from": ((2,), _pair(exp.NullSafeEQ)),
    **{f"array_partial_{name}": ((2,), lambda _most, a, n=name: call(f"$array_{n}", a))
       for name in ("sort", "reverse_sort")},
    "array_flattened_length": ((1,), lambda a: call("$length", call("$array_flatten", a))),
    "replicate": ((2,), lambda x, a: call("$array_with_constant", call("$length", a), x)),
    **{f"empty_array_{name}": ((0,), lambda n=name: exp.Cast(this=exp.Array(expressions=[]), to=tree_of(f"array({n})")))
       for name in _ELEMENTS},
    "char": (range(1, 100), lambda *codes: call("$concat", _text(""), *map(_letter, codes))),
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
                wrap(operand, partial(call, "$number"))
            continue
        else:
            continue
        for place in places:
            if isinstance(place.unnest(), _NUMBERS) or (isinstance(place, exp.Literal) and not place.is_string):
                wrap(place, partial(call, "$condition"))
    return tree


def _made(node: Any) -> exp.Expression | None:
    if isinstance(node, exp.CastToStrType):
        return exp.Cast(this=node.this, to=tree_of(node.args["to"].name))
    if isinstance(node, exp.Cast):
        cut = _cut(node.to)
        node.set("to", cast_type(node.to))
        return None if cut is None else call("date_trunc", _text(cut), node.copy())
    if isinstance(node, exp.Substring):
        return call(
            "$substring", *[p for p in (node.this, node.args.get("start"), node.args.get("length")) if p is not None]
        )
    if isinstance(node, exp.Bracket):
        return _element(node)
    if isinstance(node, exp.Interval) and node.this is not None and not isinstance(node.this, (exp.Literal, exp.Neg)):
        one = exp.cast(_text(f"1 {node.unit.name.lower()}"), exp.DType.INTERVAL)
        return exp.Paren(this=exp.Mul(this=wrapped(node.this), expression=one))  # INTERVAL n DAY
    if isinstance(node, exp.Struct):  # `{'key': value}` before a subscript
        pairs = ((_text(pair.this.name), pair.expression) for pair in node.expressions)
        return call("$map_cast", *chain.from_iterable(pairs))
    if isinstance(node, exp.VarMap):  # `{'key': value}`
        return call(
            "$map_cast",
            *chain.from_iterable(zip(node.args["keys"].expressions, node.args["values"].expressions, strict=True)),
        )
    if isinstance(node, exp.Tuple):
        return _tupled(node)
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Literal):  # `t.1`
        return call("$tuple_element", exp.column(node.args["table"]), node.this)
    if isinstance(node, exp.Dot) and isinstance(node.expression, (exp.Literal, exp.Identifier)):
        return call("$tuple_element", node.this, exp.Literal.string(node.expression.name))
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


def _aggregated(node: exp.Anonymous, name: str) -> exp.Expression | None:
    """Converts an aggregate function; other functions and wrong arguments stay as written, for the binder's error."""
    arguments = list(node.expressions)
    if any(isinstance(a, (exp.Star, exp.Distinct, exp.Order)) for a in arguments):
        return None
    made = aggregate(name, arguments, node.args.get("parameters") or ())
    if isinstance(node.parent, exp.Window) and not isinstance(made, (exp.Anonymous, exp.Filter)):
        return None
    return made


def _with_lambda(node: exp.Anonymous, name: str) -> exp.Expression | None:
    """Converts a call whose first argument is a lambda; its accumulator may stand in front: `acc, x -> acc + x`."""
    arguments = list(node.expressions)
    place = next((i for i, a in enumerate(arguments) if isinstance(a, exp.Lambda)), None)
    if place is None or not all(isinstance(a, exp.Column) for a in arguments[:place]):
        return None
    function = arguments[place]
    names = [a.name for a in arguments[:place]]
    for column in list(function.this.find_all(exp.Column)):
        if column.name in names and not column.table:
            column.replace(exp.to_identifier(column.name, quoted=True))
    function.set("expressions", [*(exp.to_identifier(n, quoted=True) for n in names), *function.expressions])
    return LambdaCall(this=name, function=function, expressions=arguments[place + 1 :])


def _tupled(node: exp.Tuple) -> exp.Expression | None:
    """Converts `(a, b)` where it is a value; comparisons, IN and keys of dictionaries read rows."""
    above = node.parent
    of_dictionary = isinstance(above, exp.Anonymous) and str(above.this).lower().startswith("dict_")
    if of_dictionary or not isinstance(above, (exp.Alias, exp.Anonymous, exp.Array, exp.Lambda, exp.Select, exp.Dot)):
        return None
    return call("$tuple_cast", *node.expressions)


def _called(node: exp.Anonymous, name: str) -> exp.Expression | None:
    if isinstance(node.parent, exp.Table):
        return None
    if isinstance(node.parent, exp.Window) and name in MET:
        node.set("this", MET[name])
        return None
    if name in NEIGHBORS and not isinstance(node.parent, (exp.IgnoreNulls, exp.RespectNulls)):
        return NEIGHBORS[name](node)
    if isinstance(node.expressions[0] if node.expressions else None, exp.Lambda) or name == "array_fold":
        return _with_lambda(node, name)
    if look_up := _TYPED_LOOK_UP.fullmatch(name):
        node.set("this", f"dict_get{look_up[1] or ''}")
        return None
    if name in ("json_cast", "json_encode") and all(isinstance(a, exp.Column) for a in node.expressions):
        return call(f"${name}", *(p for a in node.expressions for p in (_text(a.name), a)))
    if name == "date_trunc" and len(node.expressions) == 3:
        return call("$date_trunc_in", _unit(node.expressions[0]), *node.expressions[1:])
    if (name in OWN or name in _RENAMED) and name not in _SPECIAL:
        node.set("this", _RENAMED.get(name, f"${name}"))
        return None
    if name not in _SPECIAL:
        return _aggregated(node, name)
    counts, build = _SPECIAL[name]
    arguments = list(node.expressions)
    fits = len(arguments) in counts if counts is not None else len(arguments) >= 3 and len(arguments) % 2 == 1
    if not fits or any(isinstance(a, (exp.Star, exp.Distinct, exp.Order)) for a in arguments):
        return None  # stays unchanged: the binder reports the error
    made = build(*arguments)
    return None if isinstance(node.parent, exp.Window) and not isinstance(made, (exp.Anonymous, exp.Filter)) else made
