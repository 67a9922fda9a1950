"""Binds calls of functions: by a signature, by DuckDB's type, or as an SQL function, whose body replaces the call.

A signature has the types of parameters, the type of the result, and a template: DuckDB SQL over `a0`, `a1` … that
computes PostgreSQL's result. As in PostgreSQL (PostgreSQL 17, 10.3), a call uses the signature with exactly its
argument types, else the first one to which the arguments convert. SQL functions convert arguments and results in the
same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.tree.nodes import is_open
from watersmeet.errors import Error
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import CLOCKS, refused
from watersmeet.expressions.context import (
    TOO_LONG,
    Context,
    Value,
    call,
    calls_other_language,
    common_type,
    duckdb_cast,
    failing,
    fill,
    first_line,
    number,
    reads_variable,
    string,
    typed_null,
)
from watersmeet.values.calledfunctions import CalledFunction, wired
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    SqlType,
)

Arguments = Sequence[Value]


@dataclass(frozen=True)
class FunctionCall:
    """A call of a named function: its bound arguments, their nodes, and the node of the call."""

    name: str
    arguments: Arguments
    nodes: Sequence[exp.Expression]
    node: exp.Expression
    ctx: Context

    @property
    def shown(self) -> str:
        """The call for messages, with the types of its arguments."""
        return f"{self.name}({', '.join('unknown' if a.unknown else a.type.sql for a in self.arguments)})"

    def cast(self, index: int, kind: SqlType) -> Value:
        """An argument converted to a type."""
        return cast(self.arguments[index], kind, self.ctx, self.node)

    def text(self, index: int, *, example: str, what: str = "a format") -> str:
        """An argument that must be a constant text; see `constant_text`."""
        return constant_text(self.arguments[index], self.name, self.node, self.ctx, example=example, what=what)

    def over(self, arguments: Arguments, nodes: Sequence[exp.Expression] | None = None) -> FunctionCall:
        """The call with other arguments."""
        return replace(self, arguments=arguments, nodes=self.nodes if nodes is None else nodes)

    def error(self, condition: str, message: str, hint: str | None = None) -> Error:
        """An error at the call."""
        return self.ctx.error(condition, message, self.node, hint=hint)

    def not_supported(self, feature: str, hint: str | None = None) -> Error:
        """The error FEATURE_NOT_SUPPORTED at the call."""
        return self.ctx.not_supported(feature, self.node, hint=hint)

    def mismatch(self, detail: str) -> Error:
        """PostgreSQL's error for an existing function without a matching signature."""
        return self.ctx.error("DATATYPE_MISMATCH", f"function {self.shown} does not exist", self.node, detail=detail)


Builder = Callable[[FunctionCall], Value]


def counted(build: Builder, *counts: int, name: str | None = None) -> Builder:
    """Wraps `build` to check the number of arguments first. name: the function's name for users. Raises
    DATATYPE_MISMATCH.
    """
    return _checked(build, lambda _: counts, name)


def at_least(build: Builder, count: int, name: str | None = None) -> Builder:
    """Like `counted`, for a function with `count` or more arguments."""
    return _checked(build, lambda c: (max(count, len(c.arguments)),), name)


def _checked(build: Builder, counts: Callable[[FunctionCall], tuple[int, ...]], name: str | None) -> Builder:
    def checked(c: FunctionCall) -> Value:
        named = c if name is None else replace(c, name=name)
        check_count(named, *counts(named))
        return build(named)

    return checked


def inserted(builders: Mapping[str, Builder], prefix: str = "$") -> dict[str, Builder]:
    """The functions under names that no text can call, for grammars; errors have their plain names."""

    def named(name: str) -> Builder:
        return lambda c: builders[name](replace(c, name=name))

    return {f"{prefix}{name}": named(name) for name in builders}


def check_count(c: FunctionCall, *counts: int) -> None:
    """Raises DATATYPE_MISMATCH unless the call has one of these numbers of arguments."""
    if len(c.arguments) not in counts:
        noun = "argument" if counts == (1,) else "arguments"
        raise c.mismatch(f"It takes {' or '.join(map(str, counts))} {noun}, not {len(c.arguments)}.")


#: The functions for which DuckDB's parser requires arguments.
_NEVER_EMPTY: Final = frozenset({"array_cat", "array_concat", "list_cat", "list_concat"})

#: More functions that read the clock, in addition to `clock.CLOCKS`.
_TIMES: Final = frozenset({
    "age", "clock_timestamp", "curdate", "current_time", "curtime", "date", "datetime", "localtime", "today",
    "tomorrow", "yesterday",
})  # fmt: skip

_RANDOM: Final = frozenset({"gen_random_uuid", "randint", "random", "setseed", "uuid", "uuidv4", "uuidv7"})


def refuse_volatile(c: FunctionCall) -> None:
    """Raises FEATURE_NOT_SUPPORTED in a view, whose content must depend only on its inputs."""
    if c.ctx.volatile_allowed or (c.name in CLOCKS and c.ctx.clock is not None):
        return
    if c.name in CLOCKS:
        raise refused(c.node, c.ctx, c.name)
    if c.name in _TIMES:
        hint = (
            "Compare a column with now(), in the view or when it is read: WHERE t > now() - INTERVAL '1 day'. "
            "Or write the time into a column when the row is inserted: INSERT INTO t SELECT …, now()."
        )
    elif c.name in _RANDOM:
        hint = f"Write the value into a column when the row is inserted: INSERT INTO t SELECT …, {c.name}()."
    else:
        hint = f"Ask for it in the query that reads the view: SELECT …, {c.name}() FROM v."
    raise c.ctx.error(
        "FEATURE_NOT_SUPPORTED",
        f"{c.name}() is not supported in a view",
        c.node,
        hint=hint,
        detail="The content of a view must depend only on the rows of its relations.",
    )


def by_duckdb(c: FunctionCall) -> Value:
    """A call of DuckDB's function with the same name; DuckDB determines its type."""
    if not c.arguments and c.name in _NEVER_EMPTY:
        check_count(c, 2)
    try:
        kind, duckdb_name = c.ctx.type_of(call(c.name, *map(_typed, c.arguments)))
    except duckdb.BinderException as err:
        candidates = [line.strip() for line in str(err).splitlines() if "->" in line and "(" in line]
        exists = f"The function exists as {'; '.join(candidates[:4])}." if candidates else f"{first_line(err)}."
        raise c.mismatch(exists) from None
    except duckdb.Error as err:
        raise c.error("INVALID_VALUE", first_line(err)) from None
    if kind is None:
        raise c.error("DATATYPE_MISMATCH", f"function {c.name} returns a {duckdb_name}, which is not a supported type")
    expression = call(c.name, *[a.expression for a in c.arguments])
    return Value(expression, kind, exact=kind.duckdb.upper() == duckdb_name.upper())


def _typed(value: Value) -> exp.Expression:
    """A value in a call whose type DuckDB computes, with a cast if DuckDB would lose the element type of a NULL
    array.
    """
    found = typed_null(value)
    if value.type.name == "array" and isinstance(found, exp.Cast) and isinstance(found.this, exp.Null):
        found.set("this", exp.Array(expressions=[]))
    return found


def constant_text(
    value: Value, name: str, node: exp.Expression, ctx: Context, *, example: str, what: str = "a format"
) -> str:
    """The text of a constant argument; `example` for an open parameter. Raises FEATURE_NOT_SUPPORTED for other
    arguments.
    """
    if value.unknown and not value.is_null:
        return str(value.expression.name)
    found = constant_of(value, VARCHAR, node, ctx, example=example)
    if not isinstance(found, str):
        raise ctx.not_supported(f"{name} with {what} that is not a constant", node)
    return found


def constant_of(value: Value, kind: SqlType, node: exp.Expression, ctx: Context, *, example: Any) -> Any:
    """The value of a constant as a `kind`; `example` for a parameter without a value. None for NULL, for a value
    without an implicit conversion, and for an expression that is not constant. Raises INVALID_VALUE.
    """
    typed = cast(value, kind, ctx, node) if value.unknown or value.is_null else value
    if is_open(value.expression):
        return example
    if typed.type != kind and not (typed.type.is_numeric and kind.is_numeric):
        return None
    if next(typed.expression.find_all(exp.Column, exp.Query, exp.AggFunc, exp.Window), None) is not None:
        return None
    if calls_other_language(typed.expression) or reads_variable(typed.expression):
        return None
    try:
        return ctx.constant(duckdb_cast(typed.expression, kind))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None


_TYPES: Final[dict[str, SqlType]] = {
    "bool": BOOLEAN, "smallint": SMALLINT, "int": INTEGER, "bigint": BIGINT, "numeric": NUMERIC, "real": REAL,
    "double": DOUBLE, "text": VARCHAR, "bytea": BYTEA, "date": DATE, "time": TIME, "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ, "interval": INTERVAL, "jsonb": JSONB, "text[]": SqlType("array", element=VARCHAR),
    "uint64": SqlType("numeric", 20, 0), "uuid": UUID, "json": JSON,
}  # fmt: skip

#: The argument types that convert implicitly to each parameter type (PostgreSQL 17, 10.3 and table pg_cast).
_IMPLICIT: Final[dict[str, tuple[str, ...]]] = {
    "int": ("smallint",), "bigint": ("smallint", "integer"), "numeric": ("smallint", "integer", "bigint"),
    "double": ("smallint", "integer", "bigint", "numeric", "real"), "timestamp": ("date",),
    "timestamptz": ("date", "timestamp"), "interval": ("time",), "jsonb": ("json",),
}  # fmt: skip

_MOST_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class Signature:
    """The signature of a function. parameters: names from `_TYPES`, or `any`."""

    parameters: tuple[str, ...]
    result: str
    template: str


Functions = Mapping[str, Sequence[Signature]]


def signature(parameters: str, result: str, template: str) -> Signature:
    """A signature from texts: `signature("text int", "text", "left(a0, a1)")`."""
    return Signature(tuple(parameters.split()), result, template)


def builders(functions: Functions) -> dict[str, Builder]:
    """The builders that bind calls, by function name."""
    return {name: _builder(name, signatures) for name, signatures in functions.items()}


def limited(size_bytes: str, count: str = "a1", kind: str = "INTEGER") -> str:
    """A template of `count`, the length of a value, as DuckDB's type `kind`. It fails for lengths above 64 MiB, so that
    a row with a large number can't exhaust the memory.
    """
    return f"CASE WHEN {size_bytes} > {_MOST_BYTES} THEN {failing(TOO_LONG, count, kind)} ELSE {count} END"


def _builder(name: str, signatures: Sequence[Signature]) -> Builder:
    def build(c: FunctionCall) -> Value:
        chosen = _chosen(c.arguments, signatures)
        if chosen is None:
            shown = "; ".join(f"{name}({', '.join(_shown(p) for p in s.parameters)})" for s in signatures[:4])
            raise c.mismatch(f"The function exists as {shown}.")
        values = [
            a if p == "any" and not a.unknown else cast(a, _TYPES.get(p, VARCHAR), c.ctx, n)
            for a, p, n in zip(c.arguments, chosen.parameters, c.nodes, strict=True)
        ]
        return apply(chosen.template, values, _TYPES[chosen.result], c.ctx, c.node)

    return build


def apply(template: str, values: Sequence[Value], kind: SqlType, ctx: Context, node: exp.Expression) -> Value:
    """The value of a template with exactly the type `kind`."""
    expression = fill(template, *[v.expression for v in values])
    try:
        _, found = ctx.type_of(fill(template, *[typed_null(v) for v in values]))
    except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    except duckdb.Error:
        found = ""  # a constant that DuckDB can't plan by itself
    if found.upper() == kind.duckdb.upper():
        return Value(expression, kind)
    return Value(duckdb_cast(expression, kind), kind)


def _shown(parameter: str) -> str:
    return _TYPES[parameter].sql if parameter in _TYPES else parameter


def _chosen(arguments: Arguments, signatures: Sequence[Signature]) -> Signature | None:
    """The first signature among those with the most parameters that have exactly the arguments' types."""
    best, most = None, -1
    for s in signatures:
        if len(s.parameters) != len(arguments):
            continue
        pairs = list(zip(arguments, s.parameters, strict=True))
        if not all(_fits(a, p) for a, p in pairs):
            continue
        exact = sum(p in _TYPES and not a.unknown and _TYPES[p].name == a.type.name for a, p in pairs)
        if exact > most:
            best, most = s, exact
    return best


def _fits(argument: Value, parameter: str) -> bool:
    if argument.unknown or parameter == "any":
        return True
    kind = _TYPES[parameter]
    if kind.element is not None:
        return argument.type == kind
    return kind.name == argument.type.name or argument.type.name in _IMPLICIT.get(parameter, ())


Bind = Callable[[exp.Expression, Context], Value]


class Argument(exp.Expression, exp.Func):  # type: ignore[misc]
    """The argument `this` converted to the parameter's type `kind`. called: the name of the argument in messages."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "kind": True, "called": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"kind", "called"})


class Inlined(exp.Expression, exp.Func):  # type: ignore[misc]
    """The body of a function with the arguments of a call. expressions: the arguments that the body does not read.

    kind: the function's result type. called: the function's name.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expressions": False, "kind": True, "called": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"kind", "called"})


def returned(value: Value, kind: SqlType, ctx: Context, node: exp.Expression) -> Value:
    """The value of a body converted to the function's type. Raises DATATYPE_MISMATCH."""
    if value.unknown or value.type == kind or _is_implicit(value, kind) or (value.type.is_numeric and kind.is_numeric):
        return cast(value, kind, ctx, node)
    raise ctx.error(
        "DATATYPE_MISMATCH",
        "return type mismatch detected",
        node,
        detail=f"The body returns {value.type.sql}, the function {kind.sql}.",
    )


def _is_implicit(value: Value, kind: SqlType) -> bool:
    """Whether PostgreSQL converts an argument implicitly to the type."""
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


class Called(exp.Expression, exp.Func):  # type: ignore[misc]
    """A call of a function of another language over the expressions of its arguments.

    function: the function. rows: whether a table function is in FROM, where its array is unnested.
    """

    arg_types: ClassVar[dict[str, bool]] = {"expressions": False, "function": True, "rows": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"function", "rows"})


def _called(node: Any, ctx: Context, bind: Bind) -> Value:
    function: CalledFunction = node.args["function"]
    if function.volatile and not ctx.volatile_allowed:
        raise ctx.error(
            "FEATURE_NOT_SUPPORTED",
            f"the volatile function {function.name} is not supported in a view",
            node,
            detail="The content of a view must depend only on the rows of its relations.",
            hint=f"Write the value into a column when the row is inserted: INSERT INTO t SELECT …, {function.name}(…).",
        )
    values = [bind(argument, ctx) for argument in node.expressions]
    if not values:  # a value for each row, which differs if calls may differ
        arguments = [call("random") if function.volatile else number(0)]
    else:
        kinds = map(wired, function.arguments)
        arguments = [duckdb_cast(v.finish().expression, k) for v, k in zip(values, kinds, strict=True)]
    found = call(function.encoded, *arguments)
    if wired(function.value) != function.value:
        found = duckdb_cast(found, function.value)
    if function.shape != "table" or node.args.get("rows"):
        return Value(found, function.value)
    if len(function.returns.fields) == 1:
        column, kind = function.returns.fields[0]
        each = exp.Lambda(
            this=call("struct_extract", exp.to_identifier("_e"), string(column)), expressions=[exp.to_identifier("_e")]
        )
        value = Value(call("list_transform", found, each), SqlType("array", element=kind))
    else:
        value = Value(found, function.value)
    return ctx.rows_of(function.name, lambda: value, node)


def in_python(body: str, parameters: str, result: str) -> Builder:
    """A function that neither DuckDB nor Arrow has: a body in Python, which defines `f`, called for each row without
    NULL. It runs like a user's functions, in a process of its own.
    """
    kinds = tuple(_TYPES[p] for p in parameters.split())

    def build(c: FunctionCall) -> Value:
        arguments = [c.cast(i, kind).finish().expression for i, kind in enumerate(kinds)]
        function = CalledFunction(c.name, "python", "f", body, kinds, _TYPES[result], strict=True)
        return Value(call(function.encoded, *arguments), _TYPES[result])

    return counted(build, len(kinds))


READERS: Final[dict[type, Callable[[Any, Context, Bind], Value]]] = {
    Argument: _argument, Called: _called, Inlined: _inlined,
}  # fmt: skip
