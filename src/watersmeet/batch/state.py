"""What the translation of one bounded query keeps in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from watersmeet.algebra.timewindows import TimeWindow
from watersmeet.binder.rules import DialectRules
from watersmeet.binder.scope import Scope, ScopeColumn
from watersmeet.catalog import Catalog, Relation
from watersmeet.dialects.queries import place_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.values import Value
from watersmeet.types import SqlType


class Aliases:
    """Aliases of tables, each given once."""

    def __init__(self) -> None:
        self._next = 1

    def new(self, taken: Catalog) -> str:
        """One that is no relation's name."""
        while True:
            name = f"~{self._next}"
            self._next += 1
            if all(r.shown != name for r in taken.relations.values()):
                return name


@dataclass(frozen=True)
class Batch:
    """How a query is translated, and where to put what is found. A view in it has a batch of its own.

    relation_name: the DuckDB relation that holds a relation's content. rules: of the dialect of the text.
    named: the relations that the query itself names, depends_on: those whose content it reads, below views too.
    windowed: the columns that TUMBLE and HOP give, by their SQL. settings: of the query. files: whether it may read
    files.
    """

    catalog: Catalog
    relation_name: Callable[[Relation], str]
    rules: DialectRules
    files: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    aliases: Aliases = field(default_factory=Aliases)
    depends_on: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    windowed: dict[str, TimeWindow] = field(default_factory=dict)

    def alias(self) -> str:
        """A table alias that is used nowhere else, nor the name of a relation."""
        return self.aliases.new(self.catalog)

    def name(self, relation_id: str) -> None:
        """Notes that the query names this relation."""
        if relation_id not in self.named:
            self.named.append(relation_id)

    def depend(self, relation_id: str) -> None:
        """Notes that the query reads this relation."""
        if relation_id not in self.depends_on:
            self.depends_on.append(relation_id)

    def of_nothing(self, value: Value, function: str, argument: exp.Expression, scope: Scope) -> Value:
        """The value of an aggregate function that may get no rows."""
        return self.rules.of_nothing(value, function, argument, scope, self.settings)


@dataclass(frozen=True)
class Output:
    """An output column: in the translated query it is called `alias`.

    name: as the user knows it. unknown: a bare literal. span: its place. window: if it is one of TUMBLE's or HOP's.
    """

    alias: str
    name: str
    type: SqlType
    nullable: bool
    unknown: bool = False
    span: Span | None = None
    window: TimeWindow | None = None


@dataclass(frozen=True)
class Translated:
    """A query of DuckDB and its columns."""

    query: exp.Query
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Cte:
    """A common table expression that is in sight: its DuckDB name and its columns."""

    name: str
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Environment:
    """Where a query stands: the text of its tree, the CTEs in sight, the scope around it."""

    text: str
    ctes: dict[str, Cte] = field(default_factory=dict)
    outer: Scope | None = None


def column(table: str, name: str) -> exp.Column:
    """A reference to a column of the translated query."""
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(table, quoted=True))


def table_alias(name: str, columns: Sequence[str] = ()) -> exp.TableAlias:
    """`AS name (columns)`."""
    made = exp.TableAlias(this=exp.to_identifier(name, quoted=True))
    if columns:
        made.set("columns", [exp.to_identifier(c, quoted=True) for c in columns])
    return made


def scope_columns(table: str, outputs: Sequence[Output], names: Sequence[str] = ()) -> list[ScopeColumn]:
    """The outputs of a query under the alias `table` as a scope sees them; `names` replace the first of their names."""
    shown = [*names, *[o.name for o in outputs[len(names) :]]]
    return [
        ScopeColumn(n, Value(column(table, o.alias), o.type, o.nullable)) for n, o in zip(shown, outputs, strict=True)
    ]


def aliased(query: exp.Query, table: str) -> exp.Subquery:
    """The query as an item of FROM."""
    return exp.Subquery(this=query, alias=table_alias(table))


def not_supported(feature: str, node: exp.Expression, env: Environment, *, hint: str | None = None) -> Error:
    """The error that a feature is lacking."""
    return error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", hint=hint, sql=env.text, span=place_of(node))
