"""Functions by signature: parameter types, result type and the DuckDB expression that gives PostgreSQL's value.

A template is DuckDB SQL in which `a0`, `a1` … stand for the arguments. It is chosen as PostgreSQL chooses among
functions of one name (PostgreSQL 17, 10.3): exact types first, then the first signature to which the arguments convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.expressions.calls import Arguments, Builder, mismatch_of
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context, first_line, typed_null
from watersmeet.expressions.templates import TOO_LONG, failing, fill
from watersmeet.expressions.values import Value, duckdb_cast
from watersmeet.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

_TYPES: Final[dict[str, SqlType]] = {
    "bool": BOOLEAN, "smallint": SMALLINT, "int": INTEGER, "bigint": BIGINT, "numeric": NUMERIC, "real": REAL,
    "double": DOUBLE, "text": VARCHAR, "bytea": BYTEA, "date": DATE, "time": TIME, "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ, "interval": INTERVAL, "jsonb": JSONB, "text[]": SqlType("array", element=VARCHAR),
}  # fmt: skip

#: Parameter type -> argument types that become it by themselves (PostgreSQL 17, 10.3 and table pg_cast).
_IMPLICIT: Final[dict[str, tuple[str, ...]]] = {
    "int": ("smallint",), "bigint": ("smallint", "integer"), "numeric": ("smallint", "integer", "bigint"),
    "double": ("smallint", "integer", "bigint", "numeric", "real"), "timestamp": ("date",),
    "timestamptz": ("date", "timestamp"), "interval": ("time",),
}  # fmt: skip

_MOST_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class Signature:
    """One function. parameters: names of `_TYPES` or `any`."""

    parameters: tuple[str, ...]
    result: str
    template: str


Functions = Mapping[str, Sequence[Signature]]


def signature(parameters: str, result: str, template: str) -> Signature:
    """`signature("text int", "text", "left(a0, a1)")`."""
    return Signature(tuple(parameters.split()), result, template)


def builders(functions: Functions) -> dict[str, Builder]:
    """For each function what binds a call of it."""
    return {name: _builder(name, signatures) for name, signatures in functions.items()}


def limited(size_bytes: str, count: str = "a1", kind: str = "INTEGER") -> str:
    """A template of `count`, of DuckDB's type `kind`, that says how long a value is to be. It fails where that would be
    above 64 MiB: a row with a large number must not take the memory of all others.
    """
    return f"CASE WHEN {size_bytes} > {_MOST_BYTES} THEN {failing(TOO_LONG, count, kind)} ELSE {count} END"


def _builder(name: str, signatures: Sequence[Signature]) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        chosen = _chosen(arguments, signatures)
        if chosen is None:
            shown = "; ".join(f"{name}({', '.join(_shown(p) for p in s.parameters)})" for s in signatures[:4])
            raise mismatch_of(name, arguments, node, ctx, f"The function exists as {shown}.")
        values = [
            a if p == "any" and not a.unknown else cast(a, _TYPES.get(p, VARCHAR), ctx, n)
            for a, p, n in zip(arguments, chosen.parameters, nodes, strict=True)
        ]
        return apply(chosen.template, values, _TYPES[chosen.result], ctx, node)

    return build


def apply(template: str, values: Sequence[Value], kind: SqlType, ctx: Context, node: exp.Expression) -> Value:
    """The value of a template, of exactly the type `kind`."""
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
    """The signature with the most parameters of exactly the arguments' types, the first of equals."""
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
