"""Scopes: the columns that an expression can read, with their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Final, Protocol

from sqlglot import exp

from watersmeet.dialects.schemas import comparable_schema
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.nodes import Adapted, ColumnPath, FirstName, ImpliedAlias, TuplePath, text_of
from watersmeet.dialects.tree.queries import is_folded, name_of
from watersmeet.errors import did_you_mean
from watersmeet.expressions.calls import Inlined
from watersmeet.expressions.context import Context, RowOrder, Value, columns_of
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import SqlType

#: Columns that RisingWave adds to each relation and `*` omits, with the way round.
_HIDDEN: Final = {
    "_row_id": "Rows without a primary key have no identity: declare PRIMARY KEY, or a column with DEFAULT nextval(…).",
    "_rw_timestamp": "Store the time: a column with DEFAULT now(). SHOW COMMITS lists the times of commits.",
}


@dataclass(frozen=True, slots=True)
class ScopeColumn:
    """A readable column with its name and value. unlisted: whether `*` omits it."""

    name: str
    value: Value
    unlisted: bool = False


@dataclass(frozen=True, slots=True)
class ScopeTable:
    """An item of FROM under its alias. If that is None, its columns can't be qualified.

    hidden: the columns that `*` omits.
    schema: the schema of a relation without alias, which allows `schema.relation.column`.
    """

    alias: str | None
    columns: tuple[ScopeColumn, ...]
    hidden: tuple[ScopeColumn, ...] = ()
    schema: str | None = None

    def is_called(self, qualifier: Sequence[str]) -> bool:
        """True if `alias` or `schema, alias` is its name."""
        return self.alias == qualifier[-1] and (
            len(qualifier) == 1 or (self.schema is not None and comparable_schema(self.schema) == qualifier[0])
        )


@dataclass(frozen=True, slots=True)
class StreamInput:
    """The rowtime of a stream in dialects with ROWTIME: the time of each row, by which rows are ordered.

    window: the rows that take part in a join with another stream; None: those with the current rowtime.
    """

    rowtime: ScopeColumn
    window: exp.Window | None = None


@dataclass(frozen=True)
class Extension:
    """Facts of a dialect about a scope or a query, which general modules only pass on.

    beside: the number of a query's last columns that are not in its select list.
    """

    beside: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Scope:
    """The columns that FROM offers.

    tables: the items, for `alias.column` and `alias.*`.
    visible: the columns for `column` and `*`. A column merged by USING comes first and only once.
    outer: the scope around a subquery.
    from_inside: the value of a column inside a subquery if it differs there (above a GROUP BY).
    extension: facts that the dialect adds.
    stream: the rowtime of the joined items if they are a stream in a dialect with rowtimes; else None.
    order: the row order of the joined items in a dialect that uses it.
    batch: whether the enclosing query ends.
    """

    tables: tuple[ScopeTable, ...] = ()
    visible: tuple[ScopeColumn, ...] = ()
    outer: Scope | None = None
    from_inside: Callable[[Value, str, exp.Column], Value] | None = None
    extension: Extension | None = None
    stream: StreamInput | None = None
    order: RowOrder | None = None
    batch: bool = False

    @property
    def is_batch(self) -> bool:
        """Whether it belongs to a batch query."""
        return self.batch or (self.outer is not None and self.outer.is_batch)

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of the readable columns, without those of enclosing scopes."""
        columns = [*self.visible, *self._rowtime, *[c for t in self.tables for c in (*t.columns, *t.hidden)]]
        return frozenset().union(*[columns_of(c.value) for c in columns])

    @property
    def ids_around(self) -> frozenset[str]:
        """The ids of the columns that only enclosing scopes have."""
        return frozenset() if self.outer is None else self.outer.ids | self.outer.ids_around

    def gives(self, value: Value) -> bool:
        """True if the value reads a column of this scope, not only of enclosing ones."""
        return bool(columns_of(value) & self.ids)

    def resolve(self, node: exp.Column, ctx: Context) -> Value:
        """The value of a column reference. Raises UNDEFINED_COLUMN, UNDEFINED_RELATION or AMBIGUOUS_COLUMN."""
        found = self._find(node, ctx)
        if found is None and isinstance(node, ColumnPath):
            found = self._nested(node, ctx)
        if found is None and node.args.get("table") is None and not isinstance(node, ColumnPath):
            found = self._whole_row(node, ctx)
        if found is not None:
            return found
        raise self._unknown(node, ctx)

    def _whole_row(self, node: exp.Column, ctx: Context) -> Value | None:
        """The row of an item of FROM whose name is used like that of a column, as a struct."""
        around: Scope | None = self
        while around is not None:
            table = next((t for t in around.tables if t.alias is not None and named_by(t.alias, node.this)), None)
            if table is not None:
                break
            around = around.outer
        else:
            return None
        assert table is not None
        alias = exp.to_identifier(table.alias, quoted=True)
        names = [c.name for c in table.columns if not c.unlisted]
        values = [bind_value(exp.column(exp.to_identifier(n, quoted=True), alias.copy()), ctx) for n in names]
        scalars = [v.finish() for v in values]
        pairs = [
            exp.PropertyEQ(this=exp.to_identifier(n, quoted=True), expression=s.expression)
            for n, s in zip(names, scalars, strict=True)
        ]
        fields = tuple((n, s.type) for n, s in zip(names, scalars, strict=True))
        return Value(exp.Struct(expressions=pairs), SqlType("struct", fields=fields), nullable=False)

    def _nested(self, node: exp.Column, ctx: Context) -> Value | None:
        """The value of `source.field.field` or `field.field` in grammars with this notation; None for other
        references.
        """
        parts = node.parts
        for n in range(len(parts) - 1, 0, -1):
            column = exp.column(*[p.copy() for p in reversed(parts[:n])])
            if self._find(column, ctx) is not None:
                made = reduce(lambda inner, part: exp.Dot(this=inner, expression=part.copy()), parts[n:], column)
                return bind_value(made, ctx)
        return None

    def _find(self, node: exp.Column, ctx: Context) -> Value | None:
        name = name_of(node.this)
        if node.args.get("table") is None:
            found = named(self.visible, node.this) or named(self._rowtime, node.this)
        else:
            qualifier = self.qualifier(node)
            alias = qualifier[-1]
            tables = [t for t in self.tables if t.is_called(qualifier)]
            if tables:
                found = named([c for t in tables for c in (*t.columns, *t.hidden)], node.this)
                if not found:
                    raise self._no_column(f"{alias}.{name}", name, tables, node, ctx)
            else:
                found = []
        if len(found) > 1 and not isinstance(node.this, FirstName):
            raise ctx.error(
                "AMBIGUOUS_COLUMN", f'column reference "{name}" is ambiguous', node, hint=self._qualifiers(name)
            )
        if found:
            return found[0].value
        return None if self.outer is None else self.outer._seen(node, ctx)

    @property
    def _rowtime(self) -> tuple[ScopeColumn, ...]:
        return () if self.stream is None else (self.stream.rowtime,)

    @staticmethod
    def qualifier(node: exp.Column) -> tuple[str, ...]:
        """The qualifier of a column: a relation, or a schema and a relation."""
        table, schema = name_of(node.args["table"]), node.args.get("db")
        return (table,) if schema is None else (comparable_schema(name_of(schema)), table)

    def _seen(self, node: exp.Column, ctx: Context) -> Value | None:
        """The value of this scope's column inside a subquery."""
        found = self._find(node, ctx)
        if found is None or self.from_inside is None or not self.gives(found):
            return found
        qualifier = node.args.get("table")
        shown = name_of(node.this) if qualifier is None else f"{name_of(qualifier)}.{name_of(node.this)}"
        return self.from_inside(found, shown, node)

    def _qualifiers(self, name: str) -> str | None:
        tables = [t for t in self.tables if t.alias and any(c.name == name for c in t.columns)]
        same = len({t.alias for t in tables}) < len(tables)
        aliases = [f"{t.schema}.{t.alias}" if same and t.schema else t.alias for t in tables]
        return "Write " + " or ".join(f"{a}.{name}" for a in aliases) + "." if aliases else None

    def _no_column(
        self, shown: str, name: str, tables: Sequence[ScopeTable], node: exp.Column, ctx: Context
    ) -> Exception:
        if name in _HIDDEN:
            return ctx.not_supported(f"the hidden column {shown}", node, hint=_HIDDEN[name])
        hint = did_you_mean(name, [c.name for t in tables for c in t.columns])
        return ctx.error("UNDEFINED_COLUMN", f"column {shown} does not exist", node, hint=hint)

    def _unknown(self, node: exp.Column, ctx: Context) -> Exception:
        qualifier = node.args.get("table")
        if qualifier is None:
            name = name_of(node.this)
            if name in _HIDDEN:
                return ctx.not_supported(f"the hidden column {name}", node, hint=_HIDDEN[name])
            return ctx.error(
                "UNDEFINED_COLUMN", f'column "{name}" does not exist', node, hint=did_you_mean(name, self._names())
            )
        alias = ".".join(self.qualifier(node))
        structs = [c for c in self.visible if c.name == alias and c.value.type.name == "struct"]
        if structs:
            return ctx.error(
                "UNDEFINED_RELATION",
                unknown_source(alias, node),
                node,
                hint=f"A field of a struct is written ({alias}).{node.name}.",
            )
        return ctx.error(
            "UNDEFINED_RELATION",
            unknown_source(alias, node),
            qualifier,
            hint=did_you_mean(alias, self.aliases(len(self.qualifier(node)))),
        )

    def _names(self) -> list[str]:
        names = [c.name for c in self.visible]
        return names + (self.outer._names() if self.outer else [])

    def aliases(self, parts: int) -> list[str]:
        """The possible qualifiers of a column reference with `parts` names before the column."""
        names = [
            t.alias if parts == 1 else f"{t.schema}.{t.alias}"
            for t in self.tables
            if t.alias and (parts == 1 or t.schema)
        ]
        return names + (self.outer.aliases(parts) if self.outer else [])

    def table(self, *qualifier: str) -> ScopeTable | None:
        """The item of FROM with this alias, or with this schema and name."""
        return next((t for t in self.tables if t.is_called(qualifier)), None)

    def clash(self, other: Scope) -> str | None:
        """An alias that both scopes have, unless it is the name of two relations in different schemas."""
        for table in other.tables:
            for mine in self.tables:
                schemas = {mine.schema, table.schema}
                if table.alias is not None and mine.alias == table.alias and (None in schemas or len(schemas) == 1):
                    return table.alias
        return None


def single(
    alias: str | None, columns: Sequence[ScopeColumn], schema: str | None = None, stream: StreamInput | None = None
) -> Scope:
    """The scope of a single item of FROM. schema: the schema of a relation without alias."""
    hidden = () if stream is None else (stream.rowtime,)
    return Scope((ScopeTable(alias, tuple(columns), hidden, schema),), tuple(columns), stream=stream)


def named(columns: Sequence[ScopeColumn], identifier: exp.Expression) -> list[ScopeColumn]:
    """The columns with a name; for an unquoted name that no column has, the columns whose names differ only in case."""
    name = name_of(identifier)
    found = [c for c in columns if c.name == name]
    if not found and is_folded(identifier):
        found = [c for c in columns if c.name.lower() == name.lower()]
    return found


def named_by(name: str, identifier: exp.Expression) -> bool:
    """Whether an identifier is a name, in any case if it is unquoted."""
    written = name_of(identifier)
    return written == name or (is_folded(identifier) and written.lower() == name.lower())


class SubqueryValues(Protocol):
    """The values of a clause's subqueries."""

    def value(self, node: exp.Expression, ctx: Context, /) -> Value | None:
        """The value of an expression that is a subquery, else None."""
        ...


class ScopeContext(Context):
    """The context of expressions that read the columns of a scope. With `subqueries` the expressions may contain
    subqueries.
    """

    def __init__(self, text: str, scope: Scope, clause: str, subqueries: SubqueryValues | None = None) -> None:
        super().__init__(text, clause, batch=scope.is_batch)
        self.scope = scope
        self.subqueries = subqueries

    @property
    def row_order(self) -> RowOrder | None:
        return self.scope.order

    def special(self, node: exp.Expression) -> Value | None:
        return None if self.subqueries is None else self.subqueries.value(node, self)

    def column(self, node: exp.Column) -> Value:
        return self.scope.resolve(node, self)


def qualified_items(
    items: Sequence[tuple[Value, str | None, exp.Expression]], scope: Scope
) -> list[tuple[Value, str | None, exp.Expression]]:
    """The items of a select list, where a repeated name is qualified by its relation."""
    owners = {i: t.alias for t in scope.tables if t.alias for c in (*t.columns, *t.hidden) for i in columns_of(c.value)}
    seen: set[str | None] = set()
    named: list[tuple[Value, str | None, exp.Expression]] = []
    for value, name, node in items:
        owner = owners.get(value.expression.name) if isinstance(value.expression, exp.Column) else None
        shown = f"{owner}.{name}" if name in seen and owner is not None and not _is_named(node) else name
        seen.add(shown)
        named.append((value, shown, node))
    return named


def _is_named(node: exp.Expression) -> bool:
    """Whether an item of a select list has AS."""
    return isinstance(node, exp.Alias) and not isinstance(node, ImpliedAlias)


def unaliased_name(node: exp.Expression, place: int, semantics: Semantics) -> str | None:
    """The name of a select item without alias, at an index (from 0) of the list; None if it has no name."""
    if semantics.unnamed == "numbered" and not isinstance(node, exp.Column):
        return f"EXPR${place}"
    if semantics.unnamed == "text" and not isinstance(node, (exp.Column, Inlined)):
        return text_of(node)
    return item_name(node)


def item_name(node: exp.Expression) -> str | None:
    """The name that PostgreSQL gives to a select item without alias, or None."""
    if isinstance(node, Inlined):
        return str(node.args["called"])
    if isinstance(node, Adapted):
        return item_name(node.this)
    if isinstance(node, exp.Column):
        return str(node.args.get("title") or name_of(node.this))
    if isinstance(node, exp.Dot):
        return name_of(node.expression)
    if isinstance(node, (exp.Paren, exp.Collate)):
        return item_name(node.this)
    if isinstance(node, exp.Subquery):
        inside = node.unnest()
        items = inside.expressions if isinstance(inside, exp.Select) else []
        return (
            None
            if not items
            else name_of(items[0].args["alias"])
            if isinstance(items[0], exp.Alias)
            else item_name(items[0])
        )
    if isinstance(node, exp.Bracket):
        return item_name(node.this)
    if isinstance(node, exp.Cast):
        inner = item_name(node.this)
        return inner if inner is not None else _type_word(node.to)
    if isinstance(node, exp.Case):
        return "case"
    if isinstance(node, (exp.Filter, exp.WithinGroup, exp.Window)):
        return item_name(node.this)
    if isinstance(node, exp.Anonymous):
        called = node.this.lower() if isinstance(node.this, str) else node.this.name
        if called == "$enum":  # a cast
            return item_name(node.expressions[0]) or node.expressions[1].name.rpartition(".")[2]
        return called.removeprefix("$")
    named = {
        exp.Extract: "extract",
        exp.Array: "array",
        exp.Substring: "substr",
        exp.Trim: "btrim",
        exp.StrPosition: "position",
        exp.Overlay: "overlay",
        exp.Exists: "exists",
        exp.CurrentDate: "current_date",
        exp.CurrentTimestamp: "current_timestamp",
        exp.AtTimeZone: "timezone",
    }
    return named.get(type(node))


def unknown_source(alias: str, node: exp.Expression) -> str:
    """The message for a qualifier that FROM lacks, in the words of the node's grammar."""
    if isinstance(node, ColumnPath) and not isinstance(node, TuplePath):
        return f'unknown source "{alias}"'
    return f'missing FROM-clause entry for table "{alias}"'


def _type_word(kind: exp.DataType) -> str:
    """The word for a type, which may not exist."""
    return str(kind.this.value if isinstance(kind.this, exp.DataType.Type) else kind.this).lower()
