"""Converts functions of Lenses' reference to trees of functions that the binder has.

Names are case-insensitive, also between backticks, which Lenses requires for keywords: `` `TRUNCATE`(name, 2) ``.
Functions that other dialects lack or define differently are in `expressions.recordfunctions`; their names have a
prefix.

An aggregate function becomes an array function over `array_agg`, or a function of standard SQL (Lenses SQL,
"Functions", "Aggregate"). N is 1 if it is missing, as in the examples of the reference; COLLECT and COLLECT_UNIQUE
without it have no limit. NULLs count for FIRST and LAST only.

| function | value |
|---|---|
| `COLLECT(x, n)`, `COLLECT_UNIQUE(x, n)` | the first n values, in the order of their arrival |
| `MINK(x, n)`, `MAXK(x, n)` | the n least or greatest values, the most extreme first |
| `MINK_UNIQUE(x, n)`, `MAXK_UNIQUE(x, n)` | the same, each value once |
| `TOPK(x, n)`, `BOTTOMK(x, n)` | the n most or least frequent values; equally frequent ones by value |
| `FIRST(x)`, `LAST(x)` | the value of the record that arrived first or last |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from watersmeet.catalog import LAST_OFFSET, META_COLUMN, RECORD_HEADERS, RECORD_TIME
from watersmeet.dialects.tree.nodes import RECORD_FUNCTION, adapt, text_of, wrap
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.values.spans import own_span, set_span

_Build = Callable[..., exp.Expression]

#: For each function, the function of `expressions.nestedfunctions` over all values of the group.
_LISTS: Final = {
    "collect": "$collected",
    "collect_unique": "$collected_once",
    "mink": "$least",
    "maxk": "$greatest",
    "mink_unique": "$least_once",
    "maxk_unique": "$greatest_once",
    "topk": "$most_frequent",
    "bottomk": "$least_frequent",
}

#: The names of the functions of standard SQL.
_SAME: Final = {"first": "first_value", "last": "last_value"}

#: The default number of values of COLLECT, which is larger than any array.
_ALL: Final = 2**31 - 1

#: The names in Lenses' reference by family, without aliases.
FAMILIES: Final[Mapping[str, str]] = {
    "aggregate": "avg bottomk collect collect_unique count first last max maxk maxk_unique min mink mink_unique sum "
    "topk",
    "array": "element_of flatten in_array repeat sizeof zip zip_all",
    "condition": "exists",
    "conversion": "cast",
    "date and time": "convert_datetime curdate curtime date datetime day extract_date extract_time format_date "
    "format_time format_timestamp hour minute month month_text now parse_date parse_time_micros parse_time_millis "
    "parse_timestamp_micros parse_timestamp_millis second time_micros time_millis timestamp timestamp_micros "
    "timestamp_millis to_date to_datetime to_timestamp today tomorrow week year yesterday",
    "header": "headerasdouble headerasfloat headerasint headeraslong headerasstring headerkeys",
    "json": "json_extract_all json_extract_first",
    "offset": "last_offset",
    "null": "as_non_nullable as_nullable coalesce isnotnull isnull",
    "number": "abs acos asin atan cbrt ceil cos cosh degrees distance floor mod neg pow radians randint round sign "
    "sin sinh sqrt tan tanh",
    "obfuscation": "anonymize email first1 first2 first3 first4 initials last1 last2 last3 last4",
    "text": "abbreviate base64 capitalize center chop concat contains decode64 deletewhitespace digits dropleft "
    "dropright endswith indexof len lower lpad mkstring regexp regex_matches replace reverse rpad startswith "
    "stripaccents substr swapcase takeleft takeright trim truncate uncapitalize upper uuid",
}

#: The aliases of functions.
ALIASES: Final[Mapping[str, str]] = {
    "concatenate": "concat", "convertdatetime": "convert_datetime", "leftpad": "lpad", "length": "len",
    "lowercase": "lower", "mask": "anonymize", "regex": "regexp", "rightpad": "rpad", "substring": "substr",
    "uppercase": "upper",
}  # fmt: skip

#: Functions that have other names in other dialects.
_RENAMED: Final[Mapping[str, str]] = {"len": "length", "startswith": "starts_with"}

#: Functions that are the same in all dialects.
_SHARED: Final = frozenset(
    {"abs", "acos", "asin", "atan", "cbrt", "ceil", "coalesce", "concat", "cos", "cosh", "degrees", "floor", "lower"}
    | {"mod", "now", "pow", "radians", "replace", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trim", "upper"}
)


def _is_null(*, negate: bool) -> _Build:
    def build(value: exp.Expression) -> exp.Expression:
        test = exp.Is(this=_wrapped(value), expression=exp.Null())
        return exp.Paren(this=exp.Not(this=test) if negate else test)

    return build


def _wrapped(node: exp.Expression) -> exp.Expression:
    return exp.Paren(this=node) if isinstance(node, (exp.Binary, exp.Unary)) else node


def _element(array: exp.Expression, place: exp.Expression) -> exp.Expression:
    """The element at an index from 0."""
    return exp.Bracket(this=array, expressions=[exp.Add(this=_wrapped(place), expression=exp.Literal.number(1))])


def _in_array(element: exp.Expression, array: exp.Expression) -> exp.Expression:
    return exp.Paren(this=exp.EQ(this=_wrapped(element), expression=exp.Any(this=exp.Paren(this=array))))


def _extreme(name: str) -> _Build:
    return lambda *values: exp.Anonymous(this=name, expressions=list(values))


#: For each name, the numbers of arguments (None: two or more), and the function that makes the tree.
_TREES: Final[Mapping[str, tuple[int | None, _Build]]] = {
    "element_of": (2, _element), "exists": (1, _is_null(negate=True)), "in_array": (2, _in_array),
    "isnull": (1, _is_null(negate=False)), "isnotnull": (1, _is_null(negate=True)),
    "max": (None, _extreme("greatest")), "min": (None, _extreme("least")),
    "neg": (1, lambda value: exp.Paren(this=exp.Neg(this=_wrapped(value)))),
}  # fmt: skip

#: Functions that Watersmeet lacks, each with an alternative.
LACKING: Final[Mapping[str, str]] = {
    "dump": "It shows Lenses' own classes. MKSTRING(value) is the JSON of any value.",
    "typeof": "It shows the name of a class in the format of a topic. DESCRIBE TABLE topic shows the types of fields.",
}

#: The families whose functions are in `expressions.recordfunctions`, except for those in the other tables.
_OF_RECORDS: Final = ("array", "date and time", "json", "null", "number", "obfuscation", "text")

_OWN: Final = frozenset(name for family in _OF_RECORDS for name in FAMILIES[family].split()) - {
    *_SHARED, *_RENAMED, *_TREES,
}  # fmt: skip


def adapt_call(node: exp.Anonymous, sql: str) -> None:
    """Replaces a call of a function of Lenses; other calls are unchanged. The tree keeps the written form.

    Raises FEATURE_NOT_SUPPORTED for a function that Watersmeet lacks.
    """
    written = (node.this if isinstance(node.this, str) else node.this.name).lower()
    if not isinstance(node.this, str):
        node.set("this", node.this.name)
    name = ALIASES.get(written, written)
    if name in LACKING:
        raise not_supported(f"{name.upper()}()", sql, node_span(node), hint=LACKING[name])
    if name.startswith("headeras") and name in FAMILIES["header"].split():
        _adapt_header(node, name, sql)
    elif name == "last_offset" and not node.expressions:
        _replace(node, exp.column(exp.to_identifier(LAST_OFFSET, quoted=True)))
    elif name == "headerkeys" and not node.expressions:
        _replace(node, exp.Anonymous(this="json_keys", expressions=[_all_headers()]))
    elif name in _OWN or name in _RENAMED or name != written:
        adapt(node, text_of(node))
        node.set("this", _RENAMED.get(name, f"{RECORD_FUNCTION}{name}" if name in _OWN else name))
    elif name in _TREES:
        count, build = _TREES[name]
        arguments: Sequence[Any] = node.expressions
        if len(arguments) == count or (count is None and len(arguments) > 1):
            _replace(node, build(*arguments))


def _replace(node: exp.Anonymous, made: exp.Expression) -> None:
    adapt(node, text_of(node))
    span = own_span(node)
    node.replace(made)
    set_span(made, span)


def _all_headers() -> exp.Expression:
    return exp.column(exp.to_identifier(RECORD_HEADERS, quoted=True))


def _adapt_header(node: exp.Anonymous, name: str, sql: str) -> None:
    """Converts `HEADERASSTRING("name")`: the text of the record's last header with that name; NULL if there is none.

    Raises SYNTAX_ERROR unless the argument is a text.
    """
    arguments = node.expressions
    if len(arguments) != 1 or not isinstance(arguments[0], exp.Literal) or not arguments[0].is_string:
        raise node_error(
            sql,
            node,
            "SYNTAX_ERROR",
            f"{name.upper()} takes the name of a header",
            hint=f'Write {name.upper()}("name").',
        )
    text = exp.JSONExtractScalar(this=_all_headers(), expression=arguments[0].copy())
    made = text if name == "headerasstring" else exp.Anonymous(this=f"{RECORD_FUNCTION}{name}", expressions=[text])
    for part in (text, made):
        set_span(part, own_span(node))
    node.replace(made)


_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)


def adapt_time(node: exp.Expression) -> None:
    """Converts numbers that are compared with the time of a record, which are milliseconds since 1970, to times."""
    if isinstance(node, _COMPARISONS) and any(n.name == RECORD_TIME for n in node.iter_expressions()):
        for number in [n for n in node.iter_expressions() if isinstance(n, exp.Literal) and n.is_int]:
            wrap(number, lambda n: exp.Anonymous(this=f"{RECORD_FUNCTION}timestamp_millis", expressions=[n]))


#: The letters of durations in texts. Lenses, "Date Math".
_DURATION: Final = re.compile(r"(?:\d+[yMwdhms])+")
_UNITS: Final = {"y": "years", "M": "months", "w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def adapt_duration(node: exp.Binary) -> None:
    """Converts the text in `NOW() - '1h30m'` to an interval."""
    text = node.expression
    if not isinstance(text, exp.Literal) or not text.is_string or _DURATION.fullmatch(text.this) is None:
        return
    length = " ".join(f"{count} {_UNITS[unit]}" for count, unit in re.findall(r"(\d+)(.)", text.this))
    made = exp.cast(exp.Literal.string(length), exp.DType.INTERVAL)
    span = own_span(text)
    text.replace(made)
    set_span(made, span)


def expand_metadata(node: exp.Column) -> None:
    """Replaces `_meta.*` in a select list by the fields of a record's metadata."""
    select, table = node.parent, node.args.get("table")
    if table is None or table.name != META_COLUMN or not isinstance(node.this, exp.Star):
        return
    if not isinstance(select, exp.Select) or node.arg_key != "expressions":
        return
    fields = [_field(node, name) for name in ("offset", "partition", "timestamp")]
    place = node.index
    select.set("expressions", [*select.expressions[:place], *fields, *select.expressions[place + 1 :]])


def _field(star: exp.Column, name: str) -> exp.Column:
    made = star.copy()
    made.set("this", exp.to_identifier(name, quoted=True))
    set_span(made.this, own_span(star.this) or own_span(star))
    return made


def adapt_aggregate(node: exp.Anonymous, sql: str) -> bool:
    """Replaces a call of an aggregate function that only Lenses has. False for other calls.

    Raises SYNTAX_ERROR for a wrong number of arguments, INVALID_PARAMETER unless the number of values is a constant
    above 0.
    """
    written = node.this if isinstance(node.this, str) else node.this.name
    name, arguments = written.lower(), list(node.expressions)
    if name not in _LISTS and name not in _SAME:
        return False
    most = 1 if name in _SAME else 2
    if not 1 <= len(arguments) <= most:
        takes = "one argument" if most == 1 else "a value and, if it is not 1, the number of values"
        raise node_error(sql, node, "SYNTAX_ERROR", f"{name.upper()} takes {takes}")
    adapt(node, text_of(node))
    if name in _SAME:
        node.set("this", _SAME[name])
        return True
    number = arguments[1] if len(arguments) > 1 else exp.Literal.number(_ALL if name.startswith("collect") else 1)
    if not number.is_int or int(number.name) < 1:
        raise node_error(
            sql, number, "INVALID_PARAMETER", f"the number of values of {name.upper()} must be a constant above 0"
        )
    node.set("this", _LISTS[name])
    node.set("expressions", [exp.Anonymous(this="array_agg", expressions=[arguments[0]]), number])
    return True
