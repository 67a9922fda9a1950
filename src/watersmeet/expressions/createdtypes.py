"""Casts to types that users create, enums and domains, and the functions of enums (PostgreSQL 17, 8.7, 8.18, 9.10).

A cast to such a type is a call that a rewrite of the syntax tree has inserted (`binder.sqlfunctions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sqlglot import exp, parse_one

from watersmeet.expressions.calls import Builder, FunctionCall, at_least
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.context import (
    NO_NULLS,
    Value,
    call,
    checked_enum,
    fill,
    of_rank,
    ranked,
    string,
)
from watersmeet.values.types import INTEGER, SqlType


def _domain(c: FunctionCall) -> Value:
    """`value::domain`. The other arguments are the name of the domain, whether it allows NULL, and names and conditions
    of its checks in DuckDB SQL. A value that breaks a rule raises an error.
    """
    value = c.arguments[0]
    value = replace(value, expression=value.finish().expression)
    name, nullable, *checks = (str(a.expression.name) for a in c.arguments[1:])
    wrong = f"CAST(CAST(CAST(concat({{}}, left(CAST(_d AS VARCHAR), 0)) AS INTEGER) AS VARCHAR) AS {value.type.duckdb})"
    cases = [] if nullable == "1" else [f"WHEN _d IS NULL THEN {wrong.format(_quoted(f'domain {name}{NO_NULLS}'))}"]
    for check, condition in zip(checks[::2], checks[1::2], strict=True):
        tree = parse_one(condition, dialect="duckdb").transform(_checked_value)
        message = f'value for domain {name} violates check constraint "{check}"'
        cases.append(f"WHEN NOT ({tree.sql(dialect='duckdb')}) THEN {wrong.format(_quoted(message))}")
    if not cases:
        return value
    template = f"list_transform([a0], lambda _d: CASE {' '.join(cases)} ELSE _d END)[1]"
    return Value(fill(template, value.expression), value.type, value.nullable)


def _quoted(text: str) -> str:
    return str(string(text).sql(dialect="duckdb"))


def _checked_value(node: exp.Expression) -> exp.Expression:
    return exp.column("_d") if isinstance(node, exp.Column) else node


def _rank(c: FunctionCall) -> Value:
    """The place of an enum's value in its order."""
    return ranked(c.arguments[0])


def _label(c: FunctionCall) -> Value:
    """The value of an enum at a place of its order. The other arguments are name and id of the enum and its labels."""
    name, enum_id, *labels = (str(a.expression.name) for a in c.arguments[1:])
    return of_rank(c.arguments[0], SqlType("varchar", enum=name, enum_id=enum_id, labels=tuple(labels)))


def _enum(c: FunctionCall) -> Value:
    """`value::enum`. The other arguments are name and id of the enum and its labels. Raises INVALID_VALUE for another
    constant.
    """
    value = c.arguments[0]
    name, enum_id, *labels = (str(a.expression.name) for a in c.arguments[1:])
    kind = SqlType("varchar", enum=name, enum_id=enum_id, labels=tuple(labels))
    if value.is_null or value.unknown:
        return cast(value, kind, c.ctx, c.node)
    for _ in range(_depth(value.type)):
        kind = SqlType("array", element=kind)
    if value.type.leaf.enum == name:
        return replace(value, type=kind)
    return Value(fill(checked_enum("a0", kind), c.cast(0, kind).expression), kind, value.nullable)


def _depth(kind: SqlType) -> int:
    return 0 if kind.element is None else 1 + _depth(kind.element)


def _extreme(c: FunctionCall) -> Value:
    values, kind = unify(c.arguments, c.nodes, c.ctx, c.name.upper())
    enum = next((a.type for a in c.arguments if a.type.labels), None)
    if enum is not None:
        if any(a.type.enum != enum.enum for a in c.arguments if not a.unknown):
            raise c.mismatch("All arguments must have the same type.")
        places = [ranked(c.cast(n, enum) if a.unknown else a) for n, a in enumerate(c.arguments)]
        return of_rank(Value(call(c.name, *[p.expression for p in places]), INTEGER), enum)
    return Value(call(c.name, *[v.expression for v in values]), kind, all(v.nullable for v in values))


def _enum_labels(c: FunctionCall) -> Value:
    """`enum_first`, `enum_last`, and `enum_range` of an enum or between two of its values (PostgreSQL 17, 9.10)."""
    kind = next((a.type for a in c.arguments if a.type.labels), None)
    if kind is None or len(c.arguments) > (2 if c.name == "enum_range" else 1):
        raise c.mismatch("It takes values of an enum, such as NULL::name.")
    if c.name != "enum_range":
        return Value(string(kind.labels[0 if c.name == "enum_first" else -1]), kind, nullable=False)
    labels = f"[{', '.join(_quoted(label) for label in kind.labels)}]"
    made = SqlType("array", element=kind)
    if len(c.arguments) == 1:
        return Value(fill(labels), made, nullable=False)
    first, last = (ranked(c.cast(n, kind) if a.unknown else a).expression for n, a in enumerate(c.arguments))
    bounds = f"coalesce(a0, 1), coalesce(a1, {len(kind.labels)})"
    return Value(fill(f"list_slice({labels}, {bounds})", first, last), made, nullable=False)


#: The calls that rewrites insert, and the functions of enums by their names.
INSERTED: Final[Mapping[str, Builder]] = {"enum": _enum, "of_domain": _domain, "rank": _rank, "label": _label}
ENUM_FUNCTIONS: Final[Mapping[str, Builder]] = {
    **dict.fromkeys(("enum_first", "enum_last", "enum_range"), at_least(_enum_labels, 1)),
    **dict.fromkeys(("greatest", "least"), at_least(_extreme, 1)),
}
