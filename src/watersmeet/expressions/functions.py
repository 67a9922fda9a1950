"""Scalar functions: RisingWave's names and results, DuckDB's expressions.

A function that is not in the tables here goes to DuckDB under its own name, so what both systems call the same needs no
entry. `special` holds those that need more than a name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.arrayfunctions import ARRAY_FUNCTIONS
from watersmeet.expressions.calls import (
    Arguments,
    Builder,
    by_duckdb,
    count_checked,
    refuse_volatile,
)
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.context import Context
from watersmeet.expressions.datefunctions import DATE_FUNCTIONS
from watersmeet.expressions.jsonfunctions import JSON_FUNCTIONS
from watersmeet.expressions.lenient import LENIENT_FUNCTIONS
from watersmeet.expressions.mathfunctions import MATH_FUNCTIONS
from watersmeet.expressions.regexfunctions import REGEX_FUNCTIONS
from watersmeet.expressions.setfunctions import is_set_function, set_function
from watersmeet.expressions.signatures import limited
from watersmeet.expressions.templates import fill
from watersmeet.expressions.textfunctions import TEXT_FUNCTIONS
from watersmeet.expressions.values import Value, call, duckdb_cast, wrap
from watersmeet.types import (
    INTEGER,
)

#: Functions that DuckDB has and that a database must not offer.
_FORBIDDEN: Final = frozenset({
    "currval", "error", "getvariable", "nextval", "setseed", "sleep_ms", "stats", "write_log", "pg_sleep",
    "current_connection_id", "current_query_id", "current_transaction_id", "txid_current", "in_search_path",
    "current_setting", "getenv", "remap_struct", "can_cast_implicitly", "create_sort_key",
    # of DuckDB's own catalog
    "col_description", "current_schemas", "format_pg_type", "format_type", "map_to_pg_oid", "obj_description",
    "shobj_description",
})  # fmt: skip

_FORBIDDEN_PREFIXES: Final = ("pg_", "has_", "inet_", "duckdb_", "__internal", "icu_")

#: Functions whose value does not follow from their arguments.
_VOLATILE: Final = frozenset({
    "clock_timestamp", "current_date", "current_time", "current_timestamp", "gen_random_uuid", "localtime",
    "localtimestamp", "now", "proctime", "random", "statement_timestamp", "today", "transaction_timestamp", "uuid",
    "uuidv4", "uuidv7", "setseed", "pg_backend_pid", "version", "current_user", "session_user", "user",
    "current_database", "current_schema", "current_role", "current_catalog",
})  # fmt: skip


#: Aggregate functions that DuckDB calls otherwise.
_AGGREGATES: Final = frozenset({
    "every", "first_value", "jsonb_agg", "jsonb_object_agg", "last_value", "percentile_cont", "percentile_disc",
})  # fmt: skip


def function(name: str, arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The value of `name(arguments)`; UNDEFINED_FUNCTION or DATATYPE_MISMATCH."""
    check_function(name, node, ctx)
    if is_set_function(name):
        return ctx.rows_of(name, lambda: set_function(name, arguments, nodes, node, ctx), node)
    if name in LENIENT_FUNCTIONS:  # put there by a grammar
        return LENIENT_FUNCTIONS[name](arguments, nodes, node, ctx)
    known = ctx.oracle.functions()
    if name in _VOLATILE or known.get(name, ("", ""))[1] not in ("", "CONSISTENT"):
        refuse_volatile(name, node, ctx)
    if name in _SPECIAL:
        return _SPECIAL[name](arguments, nodes, node, ctx)
    if name in ("array_resize", "list_resize"):
        arguments = _resized(arguments)
    return by_duckdb(name, name, arguments, node, ctx)


def check_function(name: str, node: exp.Expression, ctx: Context) -> None:
    """UNDEFINED_FUNCTION unless there is a function of one row called so; its arguments need not be known."""
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise _undefined(name, node, ctx)
    if is_set_function(name) or name in LENIENT_FUNCTIONS or name in _SPECIAL:
        return
    if ctx.oracle.functions().get(name, ("", ""))[0] not in ("scalar", "macro"):
        raise _undefined(name, node, ctx)


def is_aggregate(name: str, ctx: Context) -> bool:
    """True for the names of aggregate functions."""
    return ctx.oracle.functions().get(name, ("", ""))[0] == "aggregate" or name in _AGGREGATES


def _undefined(name: str, node: exp.Expression, ctx: Context) -> Exception:
    scalars = [n for n, (kind, _) in ctx.oracle.functions().items() if kind in ("scalar", "macro", "aggregate")]
    names = {*scalars, *_SPECIAL} - _FORBIDDEN
    words = [n for n in names if n.replace("_", "").isalnum() and not n.startswith(_FORBIDDEN_PREFIXES)]
    hint = did_you_mean(name, words, nearness=0.7)
    return ctx.error("UNDEFINED_FUNCTION", f"function {name} does not exist", node, hint=hint)


def _at_least(count: int, arguments: Arguments) -> tuple[int, ...]:
    return (max(count, len(arguments)),)


def _coalesce(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("coalesce", arguments, _at_least(1, arguments), node, ctx)
    values, kind = unify(list(arguments), nodes, ctx, "COALESCE")
    return Value(
        exp.Coalesce(this=values[0].expression, expressions=[v.expression for v in values[1:]]),
        kind,
        all(v.nullable for v in values),
    )


def _extreme(name: str) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, _at_least(1, arguments), node, ctx)
        values, kind = unify(list(arguments), nodes, ctx, name.upper())
        return Value(call(name, *[v.expression for v in values]), kind, all(v.nullable for v in values))

    return build


def _resized(arguments: Arguments) -> Arguments:
    """The arguments of a function that makes an array as long as its second one says.

    If the number is too large, also the array is NULL: DuckDB returns an empty one if only the number is.
    """
    if len(arguments) < 2 or arguments[1].unknown:
        return arguments
    array, count = arguments[0].finish().expression, arguments[1]
    limit = limited("CAST(a0 AS BIGINT) * 8", "a0")
    number = fill(limit, count.expression)
    checked = f"({limit})".replace("a0", "a1")
    whole = fill(f"CASE WHEN a1 IS NULL OR {checked} IS NOT NULL THEN a0 END", array, count.expression)
    return [replace(arguments[0], expression=whole), replace(count, expression=number), *arguments[2:]]


def _nullif(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("nullif", arguments, (2,), node, ctx)
    if arguments[0].unknown and not arguments[1].unknown:
        arguments = [cast(arguments[0], arguments[1].type, ctx, node), arguments[1]]
    values, _ = unify(list(arguments), nodes, ctx, "NULLIF")
    first = arguments[0].finish() if not arguments[0].unknown else values[0].finish()
    condition = exp.EQ(this=wrap(values[0].expression), expression=wrap(values[1].expression))
    whole = exp.Case(ifs=[exp.If(this=condition, true=exp.null())], default=first.expression)
    return Value(exp.Paren(this=whole), first.type)


def _nulls(name: str, *, counted: str) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, _at_least(1, arguments), node, ctx)
        parts = [fill(f"CASE WHEN a0 IS {counted} THEN 1 ELSE 0 END", a.expression) for a in arguments]
        total = reduce(lambda a, b: exp.Add(this=a, expression=b), parts)
        return Value(duckdb_cast(total, INTEGER), INTEGER, nullable=False)

    return build


_SPECIAL: Final[dict[str, Builder]] = {
    **DATE_FUNCTIONS, **MATH_FUNCTIONS, **TEXT_FUNCTIONS, **REGEX_FUNCTIONS,
    **ARRAY_FUNCTIONS, **JSON_FUNCTIONS,
    "coalesce": _coalesce, "greatest": _extreme("greatest"), "least": _extreme("least"), "nullif": _nullif,
    "num_nonnulls": _nulls("num_nonnulls", counted="NOT NULL"), "num_nulls": _nulls("num_nulls", counted="NULL"),
}  # fmt: skip
