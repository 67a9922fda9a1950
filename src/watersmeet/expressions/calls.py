"""What all functions share: calls of DuckDB's functions, checks of arguments, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.tree.nodes import is_open
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import CLOCKS, refused
from watersmeet.expressions.context import Context, first_line, typed_null
from watersmeet.expressions.values import Value, call, duckdb_cast
from watersmeet.types import VARCHAR, SqlType

Arguments = Sequence[Value]
Builder = Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]

#: Functions that DuckDB's text can't be written for without arguments.
_NEVER_EMPTY: Final = frozenset({"array_cat", "array_concat", "list_cat", "list_concat"})


#: What follows from the clock beside `clock.CLOCKS`.
_TIMES: Final = frozenset({"age", "clock_timestamp", "current_time", "localtime", "today"})
_RANDOM: Final = frozenset({"gen_random_uuid", "random", "setseed", "uuid", "uuidv4", "uuidv7"})


def refuse_volatile(name: str, node: exp.Expression, ctx: Context) -> None:
    """FEATURE_NOT_SUPPORTED in a view: its content would not follow from its input."""
    if ctx.volatile_allowed:
        return
    if name in CLOCKS:
        raise refused(node, ctx, name)
    if name in _TIMES:
        hint = (
            "Compare a column with now(), in the view or when it is read: WHERE t > now() - INTERVAL '1 "
            "day'. Or write the "
            "time into a column when the row is inserted: INSERT INTO t SELECT …, now()."
        )
    elif name in _RANDOM:
        hint = f"Write the value into a column when the row is inserted: INSERT INTO t SELECT …, {name}()."
    else:
        hint = f"Ask for it in the query that reads the view: SELECT …, {name}() FROM v."
    raise ctx.error(
        "FEATURE_NOT_SUPPORTED",
        f"{name}() is not supported in a view",
        node,
        hint=hint,
        detail="The content of a view must depend only on the rows of its relations.",
    )


def by_duckdb(name: str, target: str, arguments: Arguments, node: exp.Expression, ctx: Context) -> Value:
    """A call of DuckDB's function `target`, typed by DuckDB."""
    if not arguments and target in _NEVER_EMPTY:
        count_checked(name, arguments, (2,), node, ctx)
    expression = call(target, *[a.expression for a in arguments])
    probe = call(target, *map(_typed, arguments))
    try:
        kind, duckdb_name = ctx.type_of(probe)
    except duckdb.BinderException as err:
        raise mismatch(name, arguments, node, ctx, err) from None
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    if kind is None:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"function {name} returns a {duckdb_name}, which is not a supported type", node
        )
    return Value(expression, kind, exact=kind.duckdb.upper() == duckdb_name.upper())


def _typed(value: Value) -> exp.Expression:
    """Stands for a value when DuckDB is asked for the type of a call: of a NULL array, DuckDB sorts no elements and
    forgets the type.
    """
    found = typed_null(value)
    if value.type.name == "array" and isinstance(found, exp.Cast) and isinstance(found.this, exp.Null):
        found.set("this", exp.Array(expressions=[]))
    return found


def mismatch(name: str, arguments: Arguments, node: exp.Expression, ctx: Context, err: duckdb.Error) -> Exception:
    """PostgreSQL's error for a function that exists, but not with these argument types."""
    candidates = [line.strip() for line in str(err).splitlines() if "->" in line and "(" in line]
    detail = "The function exists as " + "; ".join(candidates[:4]) + "." if candidates else first_line(err) + "."
    return mismatch_of(name, arguments, node, ctx, detail)


def mismatch_of(name: str, arguments: Arguments, node: exp.Expression, ctx: Context, detail: str) -> Exception:
    """The same error with a reason of ours."""
    shown = ", ".join("unknown" if a.unknown else a.type.sql for a in arguments)
    return ctx.error("DATATYPE_MISMATCH", f"function {name}({shown}) does not exist", node, detail=detail)


def count_checked(name: str, arguments: Arguments, wanted: tuple[int, ...], node: exp.Expression, ctx: Context) -> None:
    """DATATYPE_MISMATCH unless there are as many arguments as `wanted` says."""
    if len(arguments) not in wanted:
        shown = ", ".join("unknown" if a.unknown else a.type.sql for a in arguments)
        noun = "argument" if wanted == (1,) else "arguments"
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"function {name}({shown}) does not exist",
            node,
            detail=f"It takes {' or '.join(map(str, wanted))} {noun}, not {len(arguments)}.",
        )


def constant_text(
    value: Value, name: str, node: exp.Expression, ctx: Context, *, example: str, what: str = "a format"
) -> str:
    """The text of a constant argument; `example` for a parameter that has no value yet. FEATURE_NOT_SUPPORTED for
    another expression.
    """
    if value.unknown and not value.is_null:
        return str(value.expression.name)
    found = constant_of(value, VARCHAR, node, ctx, example=example)
    if not isinstance(found, str):
        raise ctx.not_supported(f"{name} with {what} that is not a constant", node)
    return found


def constant_of(value: Value, kind: SqlType, node: exp.Expression, ctx: Context, *, example: Any) -> Any:
    """The value of a constant as a `kind`; `example` for a parameter that has no value yet. None for NULL, for a value
    that does not become one by itself, and for an expression that is not constant. INVALID_VALUE.
    """
    typed = cast(value, kind, ctx, node) if value.unknown or value.is_null else value
    if is_open(value.expression):
        return example
    if typed.type != kind and not (typed.type.is_numeric and kind.is_numeric):
        return None
    if next(typed.expression.find_all(exp.Column, exp.Query, exp.AggFunc, exp.Window), None) is not None:
        return None
    try:
        return ctx.constant(duckdb_cast(typed.expression, kind))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
