"""The texts of plans: stored expressions, their form in EXPLAIN, watermarks, and trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp, parse_one

from watersmeet.algebra.timewindows import clock_text, duration_us
from watersmeet.drawing import Arrow, Box, Diagram
from watersmeet.expressions.casts import as_written
from watersmeet.system.duckdbs import JSON_TEXT
from watersmeet.values.calledfunctions import decoded
from watersmeet.values.times import DAY_US
from watersmeet.values.types import Schema, SqlType
from watersmeet.values.watermarks import NOW, MonthStep, Term, Watermark


def position(index: int, side: str = "c") -> exp.Column:
    """The expression that reads column `index`; side `l` or `r` means a join's left or right input."""
    return exp.column(f"{side}{index}")


def index_of(name: str) -> int:
    """The index of the column `name` in expressions: 3 for c3."""
    return int(name.removeprefix("c"))


def column_at(text: str) -> int | None:
    """The index of the column if the text is just a column; else None."""
    return index_of(text) if text.startswith("c") and text[1:].isdecimal() else None


def sql(node: exp.Expression) -> str:
    """The text of an expression, as an operator stores it, without outer parentheses."""
    return str(node.unnest().sql(dialect="duckdb"))


@lru_cache(maxsize=4096)
def parsed(text: str) -> exp.Expression:
    """The syntax tree of a stored text. It is shared and must not be changed."""
    return parse_one(text, dialect="duckdb")


@lru_cache(maxsize=4096)
def columns_of(text: str) -> frozenset[str]:
    """The names of the columns in a text."""
    return frozenset(c.name for c in parsed(text).find_all(exp.Column))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with columns renamed."""
    if text in names:
        return names[text]

    def rename(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name in names:
            return exp.column(names[node.name])
        return node

    return sql(parsed(text).transform(rename))


def hash_form(text: str, schema: Schema) -> str:
    """The text without parts that do not change its hash: parentheses, casts of integer columns to wider types."""
    node = parsed(text)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column):
        source = {f"c{i}": f.type for i, f in enumerate(schema)}.get(node.this.name)
        if source is not None and source.is_integer and _is_wider(node.to, source):
            return str(node.this.name)
    return sql(node)


def _is_wider(target: exp.DataType, source: SqlType) -> bool:
    order = [exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT]
    names = ["smallint", "integer", "bigint"]
    return target.this in order and order.index(target.this) >= names.index(source.name)


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
    if isinstance(node, exp.Anonymous) and node.name == JSON_TEXT:
        return f"({' ->> '.join(display(part, names) for part in node.expressions)})"
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
    if isinstance(node, exp.DateBin):  # only TUMBLE and HOP create it (algebra.timewindows)
        return f"TumbleStart({shown(*_time_and_size(node))}{_offset(node)})"
    if isinstance(node, exp.GenerateSeries) and isinstance(node.args["end"], exp.DateBin):
        last = node.args["end"]
        return f"HopStarts({shown(*_time_and_size(last))}, {_hop_size(node)}{_offset(last)})"
    if isinstance(node, exp.Anonymous):
        function = decoded(str(node.this).lower())
        name = _camel(str(node.this)) if function is None else function.name
        return f"{name}({shown(*node.expressions)})"
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
    """The text of any other expression: DuckDB's SQL with the columns' names."""

    def rename(part: exp.Expression) -> exp.Expression:
        return exp.Var(this=names.get(part.name, part.name)) if isinstance(part, exp.Column) else part

    return sql(node.transform(rename))


def watermark_text(bound: Watermark, names: Mapping[str, str]) -> str:
    """`watermark(t.ts)`, `(now - '01:00:00':Interval)`, `least(…, …)`.

    names: the columns that have the sources' watermarks.
    """
    texts = [_term(t, names) for t in bound]
    return texts[0] if len(texts) == 1 else f"least({', '.join(texts)})"


def _term(term: Term, names: Mapping[str, str]) -> str:
    text = "now" if term.source == NOW else f"watermark({names.get(term.source, term.source)})"
    for step in term.steps:
        amount = step.months if isinstance(step, MonthStep) else step.amount_us
        length = _months_text(abs(amount)) if isinstance(step, MonthStep) else interval_text(abs(amount))
        text = (
            f"({text} {'-' if amount < 0 else '+'} {length})"
            if step.kind not in ("floor", "floor_months")
            else f"floor({text}, {length})"
        )
    return text


def _months_text(months: int) -> str:
    """A constant interval of months: `'1 year 2 months':Interval`."""
    parts = [
        f"{n} {word}{'s' if n != 1 else ''}" for n, word in zip(divmod(months, 12), ("year", "month"), strict=True) if n
    ]
    return f"'{' '.join(parts)}':Interval"


def interval_text(length_us: int) -> str:
    """A constant interval: `'2 days 01:00:00':Interval`."""
    days, rest = divmod(length_us, DAY_US)
    time = clock_text(rest)
    parts = [f"{days} day{'s' if days != 1 else ''}"] * bool(days) + [time] * bool(rest or not days)
    return f"'{' '.join(parts)}':Interval"


@dataclass(frozen=True)
class PlanTree:
    """One operator of a plan: `name [flags] { field: value, … }` and the plans of its inputs."""

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    inputs: tuple[PlanTree, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line of the operator."""
        flags = f" [{', '.join(self.flags)}]" if self.flags else ""
        fields = ", ".join(f"{name}: {value}" for name, value in self.fields)
        return f"{self.name}{flags}" + (f" {{ {fields} }}" if fields else "")

    def lines(self) -> list[str]:
        """The tree as RisingWave draws it, the root first."""
        found = [self.text]
        for i, node in enumerate(self.inputs):
            last = i == len(self.inputs) - 1
            first, *rest = node.lines()
            found.append(("└─" if last else "├─") + first)
            found += [("  " if last else "│ ") + line for line in rest]
        return found

    def walk(self) -> Iterator[PlanTree]:
        """This node and all below it."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    @property
    def joins(self) -> int:
        """The number of joins in the tree."""
        return sum(n.is_join for n in self.walk())

    @property
    def join_height(self) -> int:
        """The most joins on a path from this node to a source."""
        return max((i.join_height for i in self.inputs), default=0) + self.is_join

    @property
    def is_join(self) -> bool:
        """True for operators that join."""
        return self.name.endswith("Join")

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON value, for programs; it always has all keys."""
        return {
            "name": self.name,
            "flags": list(self.flags),
            "fields": dict(self.fields),
            "children": [i.to_json() for i in self.inputs],
        }


def plan_diagram(plan: PlanTree) -> Diagram:
    """The plan as a graph, whose arrows point in the direction of the rows."""
    boxes: list[Box] = []
    arrows: list[Arrow] = []

    def add(node: PlanTree) -> str:
        name = f"n{len(boxes)}"
        flags = f" [{', '.join(node.flags)}]" if node.flags else ""
        boxes.append(Box(name, node.name + flags, tuple(f"{field}: {value}" for field, value in node.fields)))
        arrows.extend([Arrow(add(i), name) for i in node.inputs])
        return name

    add(plan)
    return Diagram("plan", tuple(boxes), tuple(arrows))
