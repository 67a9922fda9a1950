"""Calls of functions of SQL whose body stands in their place.

The arguments have the types of the parameters, and the body that of the function, as PostgreSQL converts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp

from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context
from watersmeet.expressions.values import Value, common_type
from watersmeet.types import SqlType

Bind = Callable[[exp.Expression, Context], Value]


class Argument(exp.Expression, exp.Func):  # type: ignore[misc]
    """`this` as a value of the parameter's type, `kind`. called: what the function is called with, for messages."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "kind": True, "called": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"kind", "called"})


class Inlined(exp.Expression, exp.Func):  # type: ignore[misc]
    """The body of a function with its arguments in it. expressions: the arguments that it does not read.

    kind: the function's type. called: its name.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expressions": False, "kind": True, "called": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"kind", "called"})


def returned(value: Value, kind: SqlType, ctx: Context, node: exp.Expression) -> Value:
    """What a body gives as the function's type; DATATYPE_MISMATCH."""
    if value.unknown or value.type == kind or _is_implicit(value, kind) or (value.type.is_numeric and kind.is_numeric):
        return cast(value, kind, ctx, node)
    raise ctx.error(
        "DATATYPE_MISMATCH",
        "return type mismatch detected",
        node,
        detail=f"The body returns {value.type.sql}, the function {kind.sql}.",
    )


def _is_implicit(value: Value, kind: SqlType) -> bool:
    """Whether PostgreSQL makes an argument a value of the type by itself."""
    numbers = value.type.is_numeric and (kind.is_float or (kind.name == "numeric" and not value.type.is_float))
    written = (value.is_number_literal and kind.is_numeric) or (bool(value.parts) and kind.name == "struct")
    return numbers or written or common_type([value.type, kind]) == kind


def _argument(node: Any, ctx: Context, bind: Bind) -> Value:
    value, kind = bind(node.this, ctx), node.args["kind"]
    if value.unknown or value.type == kind or _is_implicit(value, kind):
        return cast(value, kind, ctx, node.this)
    raise ctx.error(
        "DATATYPE_MISMATCH",
        f"{node.args['called']} must be {kind.sql}, not {value.type.sql}",
        node.this,
        hint="Cast the argument.",
    )


def _inlined(node: Any, ctx: Context, bind: Bind) -> Value:
    for argument in node.expressions:
        bind(argument, ctx)
    return returned(bind(node.this, ctx), node.args["kind"], ctx, node)


READERS: Final[dict[type, Callable[[Any, Context, Bind], Value]]] = {Argument: _argument, Inlined: _inlined}
