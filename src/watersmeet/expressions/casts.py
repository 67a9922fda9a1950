"""Binds casts as in PostgreSQL, and PostgreSQL's texts of values: arrays, JSON, rows, intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.tree.nodes import infer_open
from watersmeet.expressions.context import (
    Context,
    Value,
    call,
    common_type,
    document,
    duckdb_cast,
    family,
    fill,
    has_no_time,
    in_session_zone,
    is_object,
    is_utc,
    labelled,
    moment_of,
    number,
    of_object,
    string,
    wrap,
    zoned_text,
)
from watersmeet.formats.jsonscan import canonical_text
from watersmeet.formats.valuetexts import DATE_FORM, MOST_HOURS, PLUS_SIGN, TIME_FORM
from watersmeet.system.duckdbs import spaced_sql
from watersmeet.values.declaredtypes import ADDRESS, ADDRESSES, Declared, narrowing
from watersmeet.values.times import WITHOUT_ZONE, with_offset, with_offset_sql
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DEFAULT_PRECISION,
    INTEGER,
    INTERVAL,
    JSON,
    JSON_DEPTH_RULE,
    JSONB,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    SqlType,
    is_json,
    is_json_too_deep,
    uuid_text,
)

#: The tokens of an array's text: a quoted value, a delimiter, or an unquoted value.
_ELEMENT: Final = r'"(?:[^"\\]|\\.)*"|[{},]|(?:[^{},"\\]|\\.)+'

_SIGNS: Final = {"{": "[", "}": "]", ",": ","}


def list_text(written: str) -> str:
    """DuckDB's text of an array from PostgreSQL's. Other texts stay unchanged."""
    if not written.lstrip().startswith("{") or not re.fullmatch(f"(?s:(?:{_ELEMENT})*)", written):
        return written
    return "".join(map(_part, re.findall(f"(?s:{_ELEMENT})", written)))


def _part(part: str) -> str:
    if part in _SIGNS or part.startswith('"'):
        return _SIGNS.get(part, part)
    value = part.strip()
    return value if not value or value.upper() == "NULL" else f'"{value}"'


def list_sql(text: str) -> str:
    """DuckDB SQL that computes `list_text`. text: the SQL of its argument."""
    pattern = _ELEMENT.replace("'", "''")
    cases = " ".join(f"WHEN '{sign}' THEN '{shown}'" for sign, shown in _SIGNS.items())
    part = (
        f"CASE _p {cases} ELSE CASE WHEN starts_with(_p, '\"') THEN _p WHEN trim(_p) = '' OR upper(trim(_p)) = 'NULL' "
        "THEN trim(_p) ELSE '\"' || trim(_p) || '\"' END END"
    )
    listed = f"list_transform(regexp_extract_all({text}, '(?s:{pattern})'), lambda _p: {part})"
    whole = f"starts_with(ltrim({text}), '{{') AND regexp_full_match({text}, '(?s:(?:{pattern})*)')"
    return f"CASE WHEN {whole} THEN array_to_string({listed}, '') ELSE {text} END"


_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: A date may have a zone, which has no effect. PostgreSQL's driver for Java writes one.
_DATE: Final = re.compile(rf"{DATE_FORM}( [+-]\d{{2}}(:?\d{{2}}){{0,2}}\s*)?")
_TIME: Final = re.compile(TIME_FORM)

#: The texts that DuckDB would round to an integer.
_FRACTION: Final = re.compile(r"^[^xX]*[.eE]")

#: Appended to such a text, so that DuckDB rejects it.
NO_INTEGER: Final = " is no integer"

_SHORT: Final = 40
_WITHIN_REAL: Final = 1e38
_TRUE: Final = ("t", "true", "y", "yes", "on", "1")
_FALSE: Final = ("f", "false", "n", "no", "off", "0")

#: A text as a boolean; DuckDB reads fewer of PostgreSQL's words.
_READ_BOOLEAN: Final = (
    f"CASE WHEN lower(trim(a0)) IN {_TRUE!r} THEN true WHEN lower(trim(a0)) IN {_FALSE!r} THEN false "
    "ELSE CAST(a0 AS BOOLEAN) END"
)

_WIDENING: Final = {
    ("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint"), ("date", "timestamp"),
    ("smallint", "double precision"), ("integer", "double precision"), ("real", "double precision"),
}  # fmt: skip

#: The explicit casts between families of types; within a family every cast exists.
_ACROSS: Final[dict[str, tuple[str, ...]]] = {
    "number": ("varchar", "boolean", "jsonb"),
    "varchar": ("number", "boolean", "datetime", "time", "interval", "jsonb", "json", "uuid", "bytea", "array"),
    "boolean": ("varchar", "number", "jsonb"),
    "datetime": ("varchar", "time"),
    "time": ("varchar", "interval"),
    "interval": ("varchar", "time"),
    "jsonb": ("varchar", "number", "boolean", "json"),
    "json": ("varchar", "jsonb"),
    "uuid": ("varchar",),
    "bytea": ("varchar",),
    "array": ("varchar",),
    "struct": ("varchar",),
    "map": ("varchar",),
}

#: Forms of intervals that DuckDB can't read, and the same in words: signs `+`, SQL's and those of ISO 8601.
_INTERVALS: Final = (
    (PLUS_SIGN, r"\1\2"),
    (r"^\s*P(\d+)-(\d+)-(\d+)T?", r"\1 years \2 months \3 days "),
    *((rf"^(\s*P.*T.*[\d.]){letter}", rf"\1 {unit} ") for letter, unit in
      (("S", "seconds"), ("M", "minutes"), ("H", "hours"))),
    *((rf"^(\s*P[^T]*[\d.]){letter}", rf"\1 {unit} ") for letter, unit in
      (("D", "days"), ("W", "weeks"), ("M", "months"), ("Y", "years"))),
    (r"^\s*P([^T]*)T?", r"\1 "),
    (r"^\s*([-+]?)(\d+)-(\d+)(\s|$)", r"\1\2 years \1\3 months\4"),
    (r"(^|\s)([-+]?\d+)\s+([-+]?\d+:\d+)", r"\1\2 days \3"),
)  # fmt: skip
_IN_WORDS: Final = reduce(lambda text, form: f"regexp_replace({text}, '{form[0]}', '{form[1]}', 'g')", _INTERVALS, "a0")

_WHOLE: Final = f"CASE WHEN regexp_matches(a0, '{_FRACTION.pattern}') THEN concat(a0, '{NO_INTEGER}') ELSE a0 END"
_SPACED: Final = spaced_sql("a0")

#: The forms of a date and of a time of day. Other texts must be timestamps, of which only that part is used.
_PART: Final = (
    "CASE WHEN regexp_full_match(a0, '{form}') THEN CAST(a0 AS {kind}) ELSE CAST(CAST(a0 AS TIMESTAMP) AS {kind}) END"
)

#: Texts as types whose values are texts, checked and in their stored form.
_IN_TEXTS: Final = {
    "uuid": "CAST(CAST(a0 AS UUID) AS VARCHAR)",
    "json": "CAST(CAST(a0 AS JSON) AS VARCHAR)",
}

#: The types whose texts are read by PostgreSQL's rules; DuckDB reads the texts of other types.
_READ_STRICTLY: Final = (BOOLEAN, SMALLINT, INTEGER, BIGINT, DATE, TIME, TIMESTAMPTZ, INTERVAL)


def cast(value: Value, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """`value::target` as in PostgreSQL. Raises DATATYPE_MISMATCH if the cast does not exist."""
    if value.is_null:
        infer_open(value.expression, target)
        return Value(duckdb_cast(value.expression, target), target, nullable=True)
    if value.unknown:
        return labelled(literal(value, target, ctx, node), value, target, ctx, node)
    source = value.type
    if target.name == "map" and isinstance(value.expression, exp.Array) and not value.expression.expressions:
        return Value(duckdb_cast(value.expression, target), target, nullable=False)  # `MAP {}`
    if source == target:
        return Value(value.finish().expression, target, value.nullable)
    if source.name == target.name == "struct":
        return _struct(value, target, ctx, node)
    if not has_cast(source, target):
        raise _cannot(source, target, ctx, node)
    alike = common_type([source, target]) is not None and (is_utc() or has_no_time(source))
    alike = alike and _names(source) == _names(target)
    if source.element is not None and target.element is not None and not alike:
        return replace(_elements(value, target.element, ctx, node), type=target)
    source_family, target_family = family(source), family(target)
    if target == VARCHAR:
        return Value(text_of(value), VARCHAR, value.nullable)
    nullable = value.nullable or (source.name, target.name) not in _WIDENING
    if (source_family == "boolean" and target_family == "jsonb") or (
        source_family == "number" and target_family == "jsonb"
    ):
        return Value(call("to_json", value.finish().expression), target, nullable)
    if source == VARCHAR and target.name == "array":
        listed = duckdb_cast(fill(list_sql("a0"), value.expression), target)
        return Value(_checked(listed, target), target, nullable)
    if source == VARCHAR and target in _READ_STRICTLY:
        return Value(_text_as(value.expression, target), target, nullable)
    if (shifted := in_session_zone(value.finish().expression, source, target)) is not None:
        return Value(shifted, target, nullable)
    if source == TIMESTAMPTZ and target == TIME:
        return Value(duckdb_cast(duckdb_cast(value.expression, TIMESTAMP), target), target, nullable)
    if source == INTERVAL and target == TIME:
        return Value(fill("CAST('00:00:00' AS TIME) + a0", value.expression), target, nullable)
    if target.name in _IN_TEXTS and source == VARCHAR:
        return Value(fill(_IN_TEXTS[target.name], value.expression), target, nullable)
    if target == JSON:
        return Value(text_of(value), target, value.nullable)
    if target == JSONB and source in (VARCHAR, JSON):
        return Value(document(value.expression), target, nullable)
    if source == VARCHAR and target.name == "bytea":
        return Value(call("encode", value.expression), target, nullable)
    return Value(duckdb_cast(value.expression, target), target, nullable)


def _elements(value: Value, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """An array of which each element is cast."""
    kind = value.type.element
    assert kind is not None
    item = exp.to_identifier(f"_c{len(kind.sql)}")  # another name in each dimension
    each = exp.Lambda(this=cast(Value(item.copy(), kind), target, ctx, node).finish().expression, expressions=[item])
    listed = call("list_transform", value.finish().expression, each)
    return Value(listed, SqlType("array", element=target), value.nullable)


def checked_sql(value: str, kind: SqlType, depth: int = 0) -> str:
    """DuckDB SQL for a value that was read from a text, with its parts of types whose values are texts in their stored
    form. It fails for invalid texts. value: DuckDB SQL; for arrays that of an array of texts.
    """
    if kind.element is None:
        return _IN_TEXTS[kind.name].replace("a0", value) if kind.name in _IN_TEXTS else value
    item = checked_sql(f"_e{depth}", kind.element, depth + 1)
    return value if item == f"_e{depth}" else f"list_transform({value}, lambda _e{depth}: {item})"


def _checked(array: exp.Expression, kind: SqlType) -> exp.Expression:
    template = checked_sql("a0", kind)
    return array if template == "a0" else fill(template, array)


def narrowed(value: Value, declared: Declared | None, ctx: Context, node: exp.Expression) -> Value:
    """The value of an explicit cast to a declared type, which cuts texts without an error. Raises INVALID_VALUE."""
    written = value.expression
    if declared is not None and declared.name in ADDRESSES and isinstance(written, exp.Literal):
        if not re.fullmatch(ADDRESS, written.name):
            raise ctx.error("INVALID_VALUE", f'invalid input syntax for type {declared.name}: "{written.name}"', node)
        return value
    if declared is None or (template := narrowing(value.type, declared)) is None:
        return value
    return Value(fill(template, value.expression), value.type, value.nullable)


def _text_as(text: exp.Expression, target: SqlType) -> exp.Expression:
    """The text converted to a type in `_READ_STRICTLY`."""
    if target in (DATE, TIME):
        form = _DATE if target == DATE else _TIME
        return fill(_PART.format(form=form.pattern, kind=target.duckdb), text)
    if target == BOOLEAN:
        return fill(_READ_BOOLEAN, text)
    if target == TIMESTAMPTZ:
        return _zoned_column(text)
    return duckdb_cast(fill(_IN_WORDS if target == INTERVAL else _WHOLE, text), target)


def as_written(node: exp.Expression) -> exp.Expression | None:
    """The original `text::type` for messages if `cast` made the expression from it; else None.

    node: the expression from `cast`, or parsed again from its SQL.
    """
    if isinstance(node, exp.Case):
        texts = [_inner(node.args.get("default")), _inner(_inner(node.args.get("default")))]
    elif isinstance(node, exp.Cast):
        inner = node.this.unnest()
        # The cast stands in CASE, in one or two calls, or in CASE within two calls.
        outer = inner.args.get("default") if isinstance(inner, exp.Case) else _inner(inner)
        deepest = _inner(outer)
        texts = [outer, deepest.args.get("default") if isinstance(deepest, exp.Case) else deepest]
        texts.append(reduce(lambda found, _: _inner(found), _INTERVALS, inner))  # one call for each form of an interval
    else:
        return None
    found = _without_parentheses(node)
    pairs = ((t, k) for t in texts if t is not None for k in _READ_STRICTLY)
    return next((duckdb_cast(t, k) for t, k in pairs if _without_parentheses(_text_as(t, k)) == found), None)


def _without_parentheses(node: exp.Expression) -> str:
    """The SQL of an expression without any parentheses, for comparisons."""
    return str(node.sql(dialect="duckdb")).translate({ord("("): None, ord(")"): None})


def _inner(node: exp.Expression | None) -> exp.Expression | None:
    """The first argument of a call or cast."""
    if not isinstance(node, exp.Func):
        return None
    found = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
    return found.unnest() if isinstance(found, exp.Expression) else None


def has_cast(source: SqlType, target: SqlType) -> bool:
    """Whether values of a type, except untyped literals, can be cast to another type. Structs are cast field by
    field.
    """
    if source == target:
        return True
    if source.name == target.name == "struct":
        pairs = zip(source.fields, target.fields, strict=False)
        return len(source.fields) == len(target.fields) and all(has_cast(a, b) for (_, a), (_, b) in pairs)
    if source.name == target.name == "map":  # different keys must stay different
        key, other = source.entry[0], target.entry[0]
        return (other in (key, VARCHAR) or key.is_integer) and has_cast(source.entry[1], target.entry[1])
    if source.element is not None and target.element is not None:
        return has_cast(source.element, target.element)
    if family(source) != family(target) and family(target) not in _ACROSS.get(family(source), ()):
        return False
    return (
        not source.is_nested
        or target == VARCHAR
        or (common_type([source, target]) is not None and _names(source) == _names(target))
    )


def _cannot(source: SqlType, target: SqlType, ctx: Context, node: exp.Expression | None) -> Exception:
    return ctx.error("DATATYPE_MISMATCH", f"cannot cast type {source.sql} to {target.sql}", node)


def _struct(value: Value, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """A struct cast to another type field by field in order; DuckDB would match the names."""
    if len(value.type.fields) != len(target.fields):
        raise _cannot(value.type, target, ctx, node)
    whole = value.finish().expression
    parts = value.parts or tuple(Value(call("struct_extract", whole, string(n)), t) for n, t in value.type.fields)
    fields = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True), expression=cast(p, kind, ctx, node).finish().expression
        )
        for p, (name, kind) in zip(parts, target.fields, strict=True)
    ]
    made: exp.Expression = exp.Struct(expressions=fields)
    if value.nullable:
        none = exp.If(this=exp.Is(this=exp.Paren(this=whole.copy()), expression=exp.null()), true=exp.null())
        made = exp.Paren(this=exp.Case(ifs=[none], default=made))
    return Value(duckdb_cast(made, target), target, value.nullable)


def _names(kind: SqlType) -> object:
    """The names of the fields of structs at any depth."""
    return kind.element and _names(kind.element), [(name, _names(field)) for name, field in kind.fields]


def text_of(value: Value) -> exp.Expression:
    """The text that PostgreSQL prints for a value."""
    kind = value.type
    expression = value.finish().expression if not value.unknown else value.expression
    if kind == VARCHAR:
        return expression
    if kind.is_float:
        # -0.0 equals 0.0, so it must have the same text.
        text = duckdb_cast(
            exp.Paren(this=exp.Add(this=wrap(expression), expression=duckdb_cast(number(0), kind))), VARCHAR
        )
        for written, shown in (("-nan", "nan"), ("nan", "NaN"), ("inf", "Infinity")):
            text = call("replace", text, string(written), string(shown))
        return call("regexp_replace", text, string(r"\.0$"), string(""))
    if kind == TIMESTAMPTZ:
        return zoned_text(expression)
    text = duckdb_cast(expression, VARCHAR)
    if kind.name == "numeric" and kind.precision is None:
        return call("regexp_replace", text, string(r"\.?0+$"), string(""))
    if kind == JSONB:
        return fill(_SPACED, text)
    if kind.name == "bytea":
        return exp.Paren(this=exp.DPipe(this=string("\\x"), expression=call("lower", call("hex", expression))))
    if kind == INTERVAL:
        return _interval_text(text)
    if kind.name == "array" and kind.element is not None:
        return _array_output(expression, kind.element)
    if kind.name == "map":
        return _map_output(expression, kind)
    if kind.name == "struct":
        return _row_output(value)
    return text


def _interval_text(text: exp.Expression) -> exp.Expression:
    """PostgreSQL's text of an interval from DuckDB's: `mon`, `-1 days`, and a `+` after a negative part."""
    changes = (("month", "mon"), (r"-1 (year|mon|day)( |$)", r"-1 \1s\2"), (r"-(\d+ \w+) (\d)", r"-\1 +\2"))
    for pattern, shown in changes:
        text = call("regexp_replace", text, string(pattern), string(shown), string("g"))
    return text


def _array_output(array: exp.Expression, element: SqlType) -> exp.Expression:
    """The text of an array such as `{1,NULL,"a b"}` (PostgreSQL 17, 8.15.6)."""
    item = exp.to_identifier("_e" if element.name != "array" else "_r")
    text = _part_text(Value(item, element))
    if element.name != "array":
        text = _quoted(text, r'^$|[{}",\\\s]|^(?i:null)$', r"\\")
    each = exp.Lambda(this=call("coalesce", text, string("NULL")), expressions=[item.copy()])
    items = call("array_to_string", call("list_transform", array, each), string(","))
    return exp.Paren(this=exp.DPipe(this=exp.DPipe(this=string("{"), expression=items), expression=string("}")))


def _part_text(value: Value) -> exp.Expression:
    """The text of a value within an array or a row, where booleans are `t` and `f`."""
    if value.type != BOOLEAN:
        return text_of(value)
    return fill("CASE WHEN a0 THEN 't' WHEN NOT a0 THEN 'f' END", value.finish().expression)


def _map_output(entries: exp.Expression, kind: SqlType) -> exp.Expression:
    """The text of a map such as `{key1:1,key2:NULL}`, as RisingWave writes it."""
    key, value = (
        call("coalesce", text_of(Value(call("struct_extract", exp.to_identifier("_p"), string(name)), part)),
             string("NULL"))
        for name, part in zip(("key", "value"), kind.entry, strict=True)
    )  # fmt: skip
    each = exp.Lambda(this=call("concat", key, string(":"), value), expressions=[exp.to_identifier("_p")])
    items = call("array_to_string", call("list_transform", entries, each), string(","))
    return exp.Paren(this=exp.DPipe(this=exp.DPipe(this=string("{"), expression=items), expression=string("}")))


def _row_output(value: Value) -> exp.Expression:
    """The text of a row such as `(1,,"a b")` (PostgreSQL 17, 8.16.6)."""
    whole = value.finish().expression
    texts = [
        call(
            "coalesce",
            _quoted(_part_text(Value(call("struct_extract", whole, string(name)), kind)), r'^$|[()",\\\s]', '"'),
            string(""),
        )
        for name, kind in value.type.fields
    ]
    joined: list[exp.Expression] = [string("(")]
    for i, text in enumerate(texts):
        joined += [text] if i == 0 else [string(","), text]
    shown = call("concat", *joined, string(")"))
    none = exp.If(this=exp.Is(this=wrap(whole), expression=exp.null()), true=exp.null())
    return exp.Paren(this=exp.Case(ifs=[none], default=shown))


def _quoted(text: exp.Expression, special: str, quote: str) -> exp.Expression:
    """The text, in quotes if it matches `special`. quote: the character that escapes quotes inside."""
    inner = call(
        "replace",
        call("replace", text, string("\\"), string("\\\\")),
        string('"'),
        string(quote.replace("\\\\", "\\") + '"'),
    )
    whole = exp.DPipe(this=exp.DPipe(this=string('"'), expression=inner), expression=string('"'))
    return exp.Paren(
        this=exp.Case(ifs=[exp.If(this=call("regexp_matches", text, string(special)), true=whole)], default=text.copy())
    )


def literal(value: Value, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """The untyped string literal `value` read as `target`. Raises INVALID_VALUE if it is invalid."""
    if target == VARCHAR:
        return Value(value.expression, VARCHAR, nullable=False)
    written = value.expression.name
    if target == BOOLEAN:
        folded = written.strip().lower()
        if folded not in _TRUE + _FALSE:
            raise _invalid(written, target, ctx, node)
        return Value(exp.Boolean(this=folded in _TRUE), BOOLEAN, nullable=False)
    if target.name == "bytea":
        return _bytes(written, target, ctx, node)
    if target == UUID:
        if (canonical_uuid := uuid_text(written)) is None:
            raise _invalid(written, target, ctx, node)
        return Value(string(canonical_uuid), target, nullable=False)
    if (target in (JSON, JSONB) or target.is_nested) and is_json_too_deep(written):
        raise ctx.error("JSON_TOO_DEEP", JSON_DEPTH_RULE, node)
    source = list_text(written) if target.name == "array" else written
    if target == TIMESTAMP:
        source = source.strip()  # DuckDB accepts no blanks after a day
    if target == INTERVAL:
        source = reduce(lambda text, form: re.sub(form[0], form[1], text), _INTERVALS, source)
    if target.is_integer and _FRACTION.match(written):
        raise _invalid(written, target, ctx, node)
    expression = duckdb_cast(string(source), JSONB if target == JSON else target)
    if target.name in ("map", "struct") and is_object(written):
        expression = of_object(written, target)
    if target == TIMESTAMPTZ:
        expression = _zoned_literal(written)
    if target.name == "array":
        expression = _checked(expression, target)
    if not _is_plain_number(written, target):
        try:
            ctx.check(expression)
            if (target == DATE and not _DATE.fullmatch(written)) or (target == TIME and not _TIME.fullmatch(written)):
                ctx.check(duckdb_cast(string(written.strip()), TIMESTAMP))  # DuckDB ignores text after a date
        except duckdb.Error:
            raise _invalid(written, target, ctx, node) from None
        if target in (JSON, JSONB) and not is_json(written):
            raise _invalid(written, target, ctx, node)
        if target.is_float and "inf" not in written.lower() and math.isinf(ctx.constant(expression)):
            raise ctx.error("INVALID_VALUE", f'"{written}" is out of range for type {target.sql}', node)
    if target == INTERVAL and abs(ctx.constant(call("date_part", string("hour"), expression))) > MOST_HOURS:
        raise ctx.error(
            "INVALID_VALUE",
            f'interval "{written}" is out of range',
            node,
            detail=f"It takes at most {MOST_HOURS} hours beside its days and months.",
        )
    if target == JSONB:
        expression = duckdb_cast(string(canonical_text(written)), target)
    if target == JSON:
        expression = string(written)
    return Value(expression, target, nullable=False)


def _is_plain_number(written: str, target: SqlType) -> bool:
    """Whether the text is certainly a number in the type's range, so that INSERT needs no call of DuckDB for each
    value.
    """
    if not (target.is_float or target.name == "numeric") or len(written) > _SHORT or not _NUMBER.fullmatch(written):
        return False
    size = abs(float(written))
    if target.is_float:
        return size < _WITHIN_REAL
    return size < 10.0 ** ((target.precision or DEFAULT_PRECISION) - target.decimals - 1)


def _bytes(written: str, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    if not written.startswith("\\x"):
        return Value(call("from_hex", string(_unescaped(written, target, ctx, node).hex())), target, nullable=False)
    digits = written[2:]
    if not re.fullmatch(r"([0-9a-fA-F]{2})*", digits):
        raise _invalid(written, target, ctx, node)
    return Value(call("from_hex", string(digits)), target, nullable=False)


def _unescaped(written: str, target: SqlType, ctx: Context, node: exp.Expression | None) -> bytes:
    r"""The bytes in bytea's escape format (PostgreSQL 17, 8.4.2): `\\` is a backslash, `\\ooo` an octal byte."""
    parts = re.split(r"(\\[0-3][0-7]{2}|\\\\)", written)
    if any("\\" in p for p in parts[::2]):
        raise _invalid(written, target, ctx, node)
    signs = [
        p.encode() if i % 2 == 0 else b"\\" if p == "\\\\" else bytes([int(p[1:], 8)]) for i, p in enumerate(parts)
    ]
    return b"".join(signs)


def _invalid(written: str, target: SqlType, ctx: Context, node: exp.Expression | None) -> Exception:
    if target.name == "numeric" and written.strip().lstrip("+-").lower() in ("nan", "inf", "infinity"):
        return ctx.not_supported(f"{written.strip()} of type numeric", node, hint="Use double precision.")
    if target.name == "numeric" and _NUMBER.fullmatch(written.strip()):
        return ctx.error("INVALID_VALUE", f"value {written.strip()} is out of range for type {target.sql}", node)
    return ctx.error("INVALID_VALUE", f'invalid input syntax for type {target.sql}: "{written}"', node)


def coerce(value: Value, target: SqlType, ctx: Context, node: exp.Expression | None) -> Value:
    """`value` converted to `target` where PostgreSQL converts implicitly (`target` is the common type)."""
    if value.unknown:
        return cast(value, target, ctx, node)
    if value.type == target and value.exact:
        return value
    if value.type != target and value.type.name == target.name == "struct":
        return _struct(value, target, ctx, node)
    if value.is_number_literal and target.is_integer and value.type.is_integer:
        # an integer literal adapts to the adjacent integers
        return Value(value.expression, target, nullable=False, exact=False)
    nullable = value.nullable or (value.type != target and (value.type.name, target.name) not in _WIDENING)
    if value.is_number_literal:
        nullable = False
    if (shifted := in_session_zone(value.expression, value.type, target)) is not None:
        return Value(shifted, target, nullable)
    return Value(duckdb_cast(value.expression, target), target, nullable)


def unify(
    values: Sequence[Value], nodes: Sequence[exp.Expression], ctx: Context, what: str
) -> tuple[list[Value], SqlType]:
    """The values converted to their common type. Raises DATATYPE_MISMATCH `what types a and b cannot be matched`."""
    known = [v.type for v in values if not v.unknown]
    kind = _meeting_type(values)
    if kind is None:
        first = known[0]
        for value, node in zip(values, nodes, strict=True):
            if not value.unknown and common_type([first, value.type]) is None:
                raise ctx.error(
                    "DATATYPE_MISMATCH", f"{what} types {first.sql} and {value.type.sql} cannot be matched", node
                )
        raise ctx.error("DATATYPE_MISMATCH", f"{what} types cannot be matched", nodes[0])
    found = [_exact(coerce(v, kind, ctx, n)) for v, n in zip(values, nodes, strict=True)]
    return found, VARCHAR if kind.padding and any(v.unknown and not v.is_null for v in values) else kind


def _meeting_type(values: Sequence[Value]) -> SqlType | None:
    """The common type of values. Literal fields of row constructors have no type yet."""
    known = [v for v in values if not v.unknown]
    if not known:
        return VARCHAR
    width = max(len(v.parts) for v in known)
    if not width or any(len(v.type.fields) != width for v in known):
        return common_type([v.type for v in known])
    fields = [_meeting_type([_field(v, i) for v in known]) for i in range(width)]
    named = tuple((name, kind) for (name, _), kind in zip(known[0].type.fields, fields, strict=True) if kind)
    return SqlType("struct", fields=named) if len(named) == width else None


def _field(row: Value, place: int) -> Value:
    """A field of a row, of which only the type is used."""
    return row.parts[place] if row.parts else Value(exp.null(), row.type.fields[place][1])


def _exact(value: Value) -> Value:
    return value if value.exact else Value(value.finish().expression, value.type, value.nullable)


def condition(value: Value, ctx: Context, node: exp.Expression | None, where: str) -> Value:
    """A value that must be a boolean. Raises DATATYPE_MISMATCH `argument of where must be type boolean`."""
    if value.unknown:
        return cast(value, BOOLEAN, ctx, node)
    if value.type != BOOLEAN:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"argument of {where} must be type boolean, not type {value.type.sql}", node
        )
    return value


#: Times with a zone that only PostgreSQL reads, not DuckDB: without seconds, or with a space before the offset.
_NO_SECONDS: Final = re.compile(r"^(\s*\S+[ T]\s*\d{1,2}:\d{2})(\s*[-+A-Za-z])")

_SPACED_OFFSET: Final = re.compile(r"(:\d{2}(?:\.\d*)?)\s+([-+]\d)")

_ZONED: Final = (
    f"regexp_replace(regexp_replace(a0, '{_SPACED_OFFSET.pattern}', '\\1\\2'), '{_NO_SECONDS.pattern}', '\\1:00\\2')"
)
_WITH_OFFSET: Final = with_offset_sql("a0")
_IS_LOCAL: Final = f"regexp_matches(a0, '{WITHOUT_ZONE}')"


def _zoned_literal(written: str) -> exp.Expression:
    """The timestamptz of a text. DuckDB's cast in it fails for an invalid one."""
    source = written.strip()  # DuckDB accepts no blanks after a day
    if not is_utc() and re.search(WITHOUT_ZONE, source):
        return moment_of(duckdb_cast(string(source), TIMESTAMP))
    source = _NO_SECONDS.sub(r"\1:00\2", _SPACED_OFFSET.sub(r"\1\2", with_offset(source)))
    return duckdb_cast(string(source), TIMESTAMPTZ)


def _zoned_column(written: exp.Expression) -> exp.Expression:
    """The timestamptz of texts in a column."""
    found = duckdb_cast(fill(_ZONED, _text_with_offset(written)), TIMESTAMPTZ)
    if is_utc():
        return found
    shifted = moment_of(duckdb_cast(written, TIMESTAMP))
    return fill(f"CASE WHEN {_IS_LOCAL} THEN a1 ELSE a2 END", written, shifted, found)


def _text_with_offset(written: exp.Expression) -> exp.Expression:
    """The text of a timestamptz with an offset."""
    return fill(_WITH_OFFSET, written)
