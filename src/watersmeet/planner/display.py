"""Expressions as RisingWave's EXPLAIN shows them: `(t.a > 10:Int32)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.algebra.durations import duration_us
from watersmeet.algebra.timewindows import clock_text
from watersmeet.expressions.casts import as_written
from watersmeet.planner.texts import sql

_TYPES: Final = {
    "BOOLEAN": "Boolean", "SMALLINT": "Int16", "INT": "Int32", "BIGINT": "Int64", "FLOAT": "Float32",
    "DOUBLE": "Float64", "DECIMAL": "Decimal", "VARCHAR": "Varchar", "TEXT": "Varchar", "VARBINARY": "Bytea",
    "BLOB": "Bytea", "DATE": "Date", "TIME": "Time", "TIMESTAMP": "Timestamp", "TIMESTAMPNTZ": "Timestamp",
    "TIMESTAMPTZ": "Timestamptz",
    "INTERVAL": "Interval", "JSON": "Jsonb",
}  # fmt: skip

_OPERATORS: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "/", exp.Mod: "%", exp.EQ: "=", exp.NEQ: "<>",
    exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "AND", exp.Or: "OR", exp.DPipe: "||",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM", exp.JSONExtract: "->",
    exp.JSONExtractScalar: "->>", exp.Like: "LIKE", exp.ILike: "ILIKE",
}  # fmt: skip

_INT32: Final = 2**31
_INT64: Final = 2**63


def display(node: exp.Expression, names: Mapping[str, str]) -> str:
    """The text of an expression, with columns shown by their `names` and operators in parentheses."""
    if isinstance(node, exp.Column):
        return names.get(node.name, node.name)
    if isinstance(node, exp.Paren):
        return display(node.this, names)
    if type(node) in _OPERATORS:
        operator = _OPERATORS[type(node)]
        return f"({display(node.this, names)} {operator} {display(node.expression, names)})"
    if isinstance(node, (exp.Literal, exp.Boolean, exp.Null)):
        return _literal(node, None)
    if (written := as_written(node)) is not None:
        return display(written, names)
    if isinstance(node, exp.Cast):
        return _cast(node, names)
    return _call(node, names)


def constant_text(constant: str | float | None) -> list[str]:
    """A constant argument of an aggregate; empty for None."""
    if constant is None:
        return []
    return [f"'{constant}':Varchar"] if isinstance(constant, str) else [f"{constant}:Float64"]


def _literal(node: exp.Expression, kind: str | None) -> str:
    if isinstance(node, exp.Null):
        return f"null:{kind}" if kind else "null"
    if isinstance(node, exp.Boolean):
        return f"{str(node.this).lower()}:Boolean"
    text = str(node.this)
    if node.args.get("is_string"):
        return f"'{text}':{kind or 'Varchar'}"
    if not text.isdecimal():
        return f"{text}:{kind or 'Decimal'}"
    return f"{text}:{kind or ('Int32' if int(text) < _INT32 else 'Int64' if int(text) < _INT64 else 'Decimal')}"


def _type_name(node: exp.DataType) -> str:
    base = node.this.value if isinstance(node.this, exp.DataType.Type) else str(node.this)
    return _TYPES.get(base, sql(node))


def _cast(node: exp.Cast, names: Mapping[str, str]) -> str:
    kind = _type_name(node.to)
    if isinstance(node.this, (exp.Literal, exp.Null)):
        return _literal(node.this, kind)
    return f"{display(node.this, names)}::{kind}"


def _call(node: exp.Expression, names: Mapping[str, str]) -> str:
    def shown(*parts: exp.Expression) -> str:
        return ", ".join(display(p, names) for p in parts)

    if isinstance(node, exp.Not):
        inner = node.this.unnest()
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            return f"IsNotNull({shown(inner.this)})"
        return f"Not({shown(inner)})"
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        return f"IsNull({shown(node.this)})"
    if isinstance(node, exp.Neg):
        return f"-{shown(node.this)}" if isinstance(node.this, exp.Literal) else f"Neg({shown(node.this)})"
    if isinstance(node, exp.In) and node.expressions:
        return f"In({shown(node.this, *node.expressions)})"
    if isinstance(node, exp.Between):
        return (
            f"(({shown(node.this)} >= {shown(node.args['low'])}) AND ({shown(node.this)} <= "
            f"{shown(node.args['high'])}))"
        )
    if isinstance(node, exp.Coalesce):
        return f"Coalesce({shown(node.this, *node.expressions)})"
    if isinstance(node, exp.Case) and node.this is None:
        parts = [p for i in node.args["ifs"] for p in (i.this, i.args["true"])]
        default = node.args.get("default")
        return f"Case({shown(*parts, *([default] if default is not None else []))})"
    if isinstance(node, exp.DateBin):  # only TUMBLE and HOP make it, see algebra.timewindows
        return f"TumbleStart({shown(*_time_and_size(node))}{_offset(node)})"
    if isinstance(node, exp.GenerateSeries) and isinstance(node.args["end"], exp.DateBin):
        last = node.args["end"]
        return f"HopStarts({shown(*_time_and_size(last))}, {_hop_size(node)}{_offset(last)})"
    if isinstance(node, exp.Anonymous):
        return f"{_camel(str(node.this))}({shown(*node.expressions)})"
    if isinstance(node, (exp.Lower, exp.Upper, exp.Abs, exp.Length, exp.Floor, exp.Ceil)):
        return f"{type(node).__name__}({shown(node.this)})"
    return _as_sql(node, names)


def _time_and_size(start: exp.DateBin) -> tuple[exp.Expression, exp.Expression]:
    return start.expression, start.this


def _hop_size(starts: exp.GenerateSeries) -> str:
    """The size of windows whose starts are generated from `size - slide` before the last start."""
    first = starts.args["start"]
    before = duration_us(first.expression) if isinstance(first, exp.Sub) else 0
    return f"'{clock_text((before or 0) + (duration_us(starts.args['step']) or 0))}':Interval"


def _offset(start: exp.DateBin) -> str:
    """The argument for windows that are not aligned to 1970-01-01 00:00."""
    clock = start.args["unit"].this.name[len("1970-01-01 ") :].removesuffix("+00")
    return "" if clock == "00:00:00" else f", '{clock}':Interval"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _as_sql(node: exp.Expression, names: Mapping[str, str]) -> str:
    """An expression without a form of its own: DuckDB's SQL with the columns' names."""

    def rename(part: exp.Expression) -> exp.Expression:
        return exp.Var(this=names.get(part.name, part.name)) if isinstance(part, exp.Column) else part

    return sql(node.transform(rename))
