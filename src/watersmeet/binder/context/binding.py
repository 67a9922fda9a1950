"""The facts that binding a query collects, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sqlglot import exp

from watersmeet.algebra.bounded import PastScan, TopicScan
from watersmeet.algebra.nodes import Aggregate, Column, Filter, KeyPair, Node, Project
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction
from watersmeet.algebra.timewindows import TimeWindow
from watersmeet.algebra.trees import read
from watersmeet.binder.context.scope import Extension, Scope, ScopeColumn
from watersmeet.catalog import Period
from watersmeet.dialects.tree.queries import node_error
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.context import Context, Value, columns_of, common_type
from watersmeet.values.types import INTEGER, Origin, Schema, SqlType

#: A bound item of the select list: its value, its name, its node.
Item = tuple[Value, str | None, exp.Expression]


class NewColumns(Protocol):
    """A source of new columns for a query."""

    def new_column(self, name: str, kind: SqlType, nullable: bool) -> Column:
        """A column with a new id."""
        ...


@dataclass(frozen=True)
class Fill:
    """The rows that look-ups find in the source of a dictionary and that its cache stream lacks."""

    dictionary: str
    tree: Node


#: The part of a relation's rows that a query reads; see `Reading`. `before`: the rows at the start of the query.
Part = Literal["all", "new", "new of streams", "before"]


@dataclass
class Collected:
    """Facts that binding a query collects.

    notices: notices for the user.
    limits: the settings that limit the memory of a join, from all nested queries.
    most_join_rows: the setting that limits the output rows of a join, or None.
    closed: whether rows are output when a later row of their substream closes their window. delayed: whether windows
    of streams without a watermark already include the delay of `Binding.closing`.
    windowed: the columns of TUMBLE and HOP by their SQL.
    window_ends: the columns with the end of a window.
    named: the referenced CTEs; in queries that end, with their results.
    read: ids of the stored relations and sources that are read, also through views.
    system: names of the system relations that are read.
    topics: the topics whose present messages are read.
    past: scans of earlier moments.
    origins: in queries that end, the (relation id, column) of each column of a named relation, by column id.
    """

    next_id: int = 1
    notices: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    most_join_rows: int | None = None
    delayed: bool = False
    closed: bool = False
    windowed: dict[str, TimeWindow] = field(default_factory=dict)
    window_ends: set[str] = field(default_factory=set)
    named: dict[Cte, Bound | None] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    topics: list[TopicScan] = field(default_factory=list)
    past: list[PastScan] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputColumn:
    """An output column of a bound query.

    named: whether it has a name other than `?column?`.
    unknown: whether it is an untyped literal, which takes the type that a set operation needs.
    hidden: whether it is missing from the select list, like the rowtime of a query over streams.
    """

    column: Column
    named: bool = True
    unknown: bool = False
    span: Span | None = None
    hidden: bool = False


@dataclass(frozen=True)
class Bound:
    """A bound query. The columns of its tree are those of `outputs` in order.

    extension: facts that its dialect adds.
    """

    relation: Node
    outputs: tuple[OutputColumn, ...]
    extension: Extension | None = None

    @property
    def width(self) -> int:
        """The number of its columns, except for those added to its select list."""
        return len(self.outputs) - (0 if self.extension is None else self.extension.beside)


@dataclass(frozen=True)
class BoundQuery:
    """A bound query with the facts that views and running queries need.

    tree: the algebra tree, whose columns are `columns` in order, then `age`.
    age: columns that order the rows by arrival, the newest first, if they were requested and the order is known.
    hidden: whether the first column is the rowtime, which is not in the select list.
    rowtime: for a query over streams, the name of the column that never decreases from row to row.
    notices: notices for the user, which are not errors.
    depends_on: ids of the catalog relations that the query names, including views.
    max_buffered_bytes: the memory limit of each join of the view; None: no limit.
    most_join_rows: the limit of rows that each join may output in one epoch; None if the query doesn't set it.
    fills: see `rules.Binding`. extension: see `Bound`. period, signs: see `MaterializedView`.
    functions: ids of the SQL functions that the query calls.
    """

    tree: Node
    columns: Schema
    notices: tuple[str, ...]
    depends_on: tuple[str, ...]
    max_buffered_bytes: int | None = None
    most_join_rows: int | None = None
    extension: Extension | None = None
    rowtime: str | None = None
    hidden: bool = False
    fills: tuple[Fill, ...] = ()
    functions: tuple[str, ...] = ()
    period: Period | None = None
    signs: bool = False
    age: tuple[Column, ...] = ()

    @property
    def width(self) -> int:
        """The number of its columns, except for those added to its select list."""
        return len(self.columns) - (0 if self.extension is None else self.extension.beside)


@dataclass(frozen=True)
class Environment:
    """The context of binding a query: the text of its tree, the visible CTEs and the enclosing scope."""

    text: str
    ctes: dict[str, Cte] = field(default_factory=dict)
    outer: Scope | None = None

    def error(
        self, condition: str, message: str, node: exp.Expression, *, detail: str | None = None, hint: str | None = None
    ) -> Error:
        """An error at the span of `node`."""
        return node_error(self.text, node, condition, message, detail=detail, hint=hint)

    def not_supported(
        self, feature: str, node: exp.Expression, *, detail: str | None = None, hint: str | None = None
    ) -> Error:
        """The error FEATURE_NOT_SUPPORTED for a feature."""
        return self.error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", node, detail=detail, hint=hint)


@dataclass(frozen=True, eq=False)
class Cte:
    """A common table expression. A view binds it again at each reference. It is equal only to itself.

    recursive: whether the query reads its own name. round: inside a recursive query, its name and its columns.
    """

    query: exp.Expression
    names: tuple[str, ...]
    environment: Environment
    recursive: bool = False
    round: tuple[str, tuple[Column, ...]] | None = None


def value_of(column: Column) -> Value:
    """The value that reads a column."""
    return Value(column_ref(column.id), column.type, column.nullable)


def scope_columns(columns: Sequence[Column], names: Sequence[str] = ()) -> list[ScopeColumn]:
    """The columns of a relation for a scope. `names` replaces the names of the first columns."""
    shown = [*names, *[c.name for c in columns[len(names) :]]]
    return [ScopeColumn(n, value_of(c)) for n, c in zip(shown, columns, strict=True)]


def filtered(relation: Node, parts: list[Scalar]) -> Node:
    """`relation` filtered by all parts of a condition; the relation itself if there are none."""
    predicate = conjunction(parts)
    return relation if predicate is None else Filter(relation, predicate)


def one_row(relation: Node, binding: NewColumns) -> Node:
    """A single row if `relation` has rows, else no row."""
    mark = binding.new_column("exists", INTEGER, nullable=False)
    marked = Project(relation, (mark,), (Scalar(exp.Literal.number(1), INTEGER, nullable=False),))
    return distinct(marked, binding)


def distinct(relation: Node, binding: NewColumns) -> Node:
    """The distinct rows of `relation`."""
    outputs = tuple(binding.new_column(c.name, c.type, c.nullable) for c in relation.columns)
    return Aggregate(relation, tuple(read(c) for c in relation.columns), (), outputs)


def check_alias_list(names: Sequence[str], width: int, what: str, text: str, span: Span | None) -> None:
    """Raises SYNTAX_ERROR if an alias lists more columns than the item has."""
    if len(names) > width:
        raise error(
            "SYNTAX_ERROR",
            f"{what} has {width} columns available but {len(names)} columns specified",
            sql=text,
            span=span,
        )


def check_width(word: str, left: int, right: int, span: Span | None, text: str) -> None:
    """Raises SYNTAX_ERROR if the sides of a set operation do not have the same number of columns."""
    if left != right:
        raise error(
            "SYNTAX_ERROR",
            f"each {word} query must have the same number of columns",
            sql=text,
            span=span,
            detail=f"They have {left} and {right}.",
        )


def condition_parts(condition: exp.Expression) -> list[exp.Expression]:
    """The conjuncts of a parsed condition. Row equalities and BETWEEN are split as well."""
    parts: list[exp.Expression] = []
    stack = [condition]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, exp.And):
            stack += [node.right, node.left]
        elif (
            isinstance(node, exp.EQ)
            and isinstance(node.this, exp.Tuple)
            and isinstance(node.expression, exp.Tuple)
            and len(node.this.expressions) == len(node.expression.expressions)
        ):
            pairs = list(zip(node.this.expressions, node.expression.expressions, strict=True))
            stack += [exp.EQ(this=a.copy(), expression=b.copy()) for a, b in reversed(pairs)]
        else:
            parts.append(node)
    return parts


def equality_key(node: exp.Expression, a: Value, b: Value, left: Node, right: Node, ctx: Context) -> KeyPair | None:
    """The join key of an equality if one operand reads only `left` and the other only `right`; else None."""
    reads_a, reads_b = columns_of(a), columns_of(b)
    if not reads_a or not reads_b:
        return None
    null_safe = isinstance(node, exp.NullSafeEQ)
    if reads_a <= left.ids and reads_b <= right.ids:
        return key_of(node, a, b, ctx, null_safe=null_safe)
    if reads_b <= left.ids and reads_a <= right.ids:
        return key_of(node, b, a, ctx, null_safe=null_safe)
    return None


def key_of(node: exp.Expression, a: Value, b: Value, ctx: Context, *, null_safe: bool = False) -> KeyPair:
    """The key `a = b` of two comparable values, converted to a common type."""
    kind = common_type([a.type, b.type])
    assert kind is not None, "compare() has checked it"
    return KeyPair(coerce(a, kind, ctx, node).finish(), coerce(b, kind, ctx, node).finish(), null_safe)
