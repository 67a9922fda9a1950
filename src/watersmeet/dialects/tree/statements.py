"""Statements, the results of `dialects.parsing.parse`. They are frozen; their names are not resolved yet.

Names are already folded by the dialect's rule (unquoted names in lower case). Queries and expressions are sqlglot trees
in the source dialect whose nodes have a span in `text`; `binder` gives them meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from sqlglot import exp

from watersmeet.catalog.roles import WRITER
from watersmeet.errors import Error, Span

ExplainFormat = Literal["text", "json", "dot"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Base of all statements.

    text: the whole text that was parsed; the spans of all tree nodes refer to it. sql: only the statement, without its
    semicolon. span: the span of `sql` in `text`.

    takes: the fixed role that the statement requires, or None. Rights on relations are checked where names are
    resolved. defines: whether it may wait for views while other threads run statements; only one such statement runs at
    a time. tells: whether it changes nothing, so that running it is a way to find its columns. once: whether running a
    script a second time skips it. alone: whether it can't run inside a transaction, so that a script commits what
    precedes it.

    notices: the parts of the statement without effect, each with the reason.
    """

    takes: ClassVar[str | None] = WRITER
    defines: ClassVar[bool] = False
    tells: ClassVar[bool] = False
    once: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    text: str
    sql: str
    span: Span
    notices: tuple[str, ...] = ()

    def role_for(self, user: str | None) -> str | None:  # noqa: ARG002 - most statements ask alike of all users
        """The fixed role that a user needs to run the statement, or None."""
        return self.takes


@dataclass(frozen=True)
class Name:
    """A name and its span. folded: whether it is unquoted, so that comparisons ignore its case.

    schema: the qualifier of a relation, or None. path: for a field in a column, the names after that of the column.
    """

    name: str
    span: Span
    folded: bool = False
    schema: str | None = None
    path: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name as it was written."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Accepted(Statement):
    """A statement of another system without effect. command: its tag. notice: the reason, unless clients send it
    without being asked. of: the relation that it names, which must exist unless `if_exists`.
    """

    takes: ClassVar[str | None] = None

    command: str
    notice: str = ""
    of: Name | None = None
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class StopProcessor(Statement):
    """`STOP PROCESSOR topic`, `DROP PROCESSOR topic`: ends the processor that writes the topic, and keeps the topic's
    records.
    """

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name


@dataclass(frozen=True, kw_only=True)
class StartProcessor(Statement):
    """`START PROCESSOR topic`: resumes writing to Kafka after an error stopped it."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name


@dataclass(frozen=True, kw_only=True)
class Unit(Statement):
    """Statements that take effect together or not at all, from a script with processors."""

    takes: ClassVar[str | None] = None
    defines: ClassVar[bool] = True

    statements: tuple[Statement, ...]


def single(statements: Iterable[Statement]) -> Iterator[Statement]:
    """The statements in order, with the statements of a unit instead of each unit."""
    for statement in statements:
        if isinstance(statement, Unit):
            yield from statement.statements
        else:
            yield statement


@dataclass(frozen=True, kw_only=True)
class OnConflict:
    """`ON CONFLICT [(columns) | ON CONSTRAINT constraint] DO {NOTHING | UPDATE SET … [WHERE where]}`.

    alias: the other name of the table in the expressions. assignments: None for DO NOTHING. span: that of the first
    column, or of the table's name.
    """

    span: Span
    alias: str | None
    columns: tuple[Name, ...]
    constraint: Name | None
    assignments: tuple[tuple[Name, exp.Expression], ...] | None
    where: exp.Expression | None = None


@dataclass(frozen=True, kw_only=True)
class Insert(Statement):
    """`INSERT INTO table [(columns)] [OVERRIDING {SYSTEM | USER} VALUE] query`; VALUES is a query.

    returning: the select items; None without RETURNING. overriding: whose values identity columns get; None without the
    clause.
    """

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    table: Name
    columns: tuple[Name, ...]
    query: exp.Expression
    returning: tuple[exp.Expression, ...] | None = None
    conflict: OnConflict | None = None
    overriding: Literal["system", "user"] | None = None


@dataclass(frozen=True, kw_only=True)
class Update(Statement):
    """`UPDATE table SET column = expression, … [FROM sources] [WHERE where]`."""

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    table: Name
    alias: str | None
    assignments: tuple[tuple[Name, exp.Expression], ...]
    where: exp.Expression | None = None
    returning: tuple[exp.Expression, ...] | None = None
    sources: tuple[exp.Expression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Delete(Statement):
    """`DELETE FROM table [USING sources] [WHERE where]`."""

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    table: Name
    alias: str | None
    where: exp.Expression | None = None
    returning: tuple[exp.Expression, ...] | None = None
    sources: tuple[exp.Expression, ...] = ()


@dataclass(frozen=True)
class MergeAction:
    """`WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN …`.

    matched: whether the row of the table has one of the source, or None if the source's has none of the table. columns,
    values: those of INSERT. span: that of the table's name.
    """

    matched: bool | None
    kind: Literal["update", "delete", "insert", "nothing"]
    condition: exp.Expression | None = None
    assignments: tuple[tuple[Name, exp.Expression], ...] = ()
    columns: tuple[Name, ...] = ()
    values: tuple[exp.Expression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MergeInto(Statement):
    """`MERGE INTO table USING source ON condition WHEN …`."""

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    table: Name
    alias: str | None
    source: exp.Expression
    on: exp.Expression
    actions: tuple[MergeAction, ...]
    returning: tuple[exp.Expression, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class NamedChange:
    """A change in WITH, or a query that runs once. Later parts read its rows as the relation `id`, with `columns`."""

    name: Name
    columns: tuple[str, ...]
    statement: Insert | Update | Delete | MergeInto | Select

    @property
    def id(self) -> str:
        """The id of the relation, which no stored relation has."""
        return f"?with {self.name.name}"


@dataclass(frozen=True, kw_only=True)
class WithChanges(Statement):
    """`WITH name AS (INSERT | UPDATE | DELETE | MERGE …), … statement`. All parts read the same moment."""

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    changes: tuple[NamedChange, ...]
    main: Insert | Update | Delete | MergeInto | Select


@dataclass(frozen=True, kw_only=True)
class Flush(Statement):
    """`FLUSH`: returns when all views reflect all earlier commits. fills: WAIT, which first waits for views that are
    being filled.
    """

    takes: ClassVar[str | None] = None
    alone: ClassVar[bool] = True

    fills: bool = False


@dataclass(frozen=True, kw_only=True)
class Select(Statement):
    """A query: SELECT, WITH, VALUES or a set operation."""

    takes: ClassVar[str | None] = None

    query: exp.Expression


@dataclass(frozen=True, kw_only=True)
class Explain(Statement):
    """`EXPLAIN [(options)] statement`. level: the plan to show; `distsql` shows the stages.

    trace: whether to show each step of the planner. analyze: whether to run the query.
    """

    tells: ClassVar[bool] = True

    statement: Statement
    verbose: bool = False
    trace: bool = False
    analyze: bool = False
    level: Literal["logical", "physical", "distsql"] = "physical"
    format: ExplainFormat = "text"


@dataclass(frozen=True, kw_only=True)
class Describe(Statement):
    """`DESCRIBE name`."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    name: Name


@dataclass(frozen=True, kw_only=True)
class Exists(Statement):
    """`EXISTS [kind] name`: 1 or 0. kind: a word of SHOW CREATE, in lower case; `database`; empty: any relation."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    name: Name
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Show(Statement):
    """`SHOW what [FROM name] [LIKE pattern]`.

    what: lower-case words such as `tables`, `sources`, `views`, `materialized views`, `indexes`, `jobs`,
    `columns` (with `name`), `create table` and the like (with `name`), `all`, `databases`, `schemas`, `errors`,
    `dead letters`, `relations`, `queries`. name: the name of a relation, or of a schema for a list of relations.
    """

    tells: ClassVar[bool] = True

    what: str
    name: Name | None = None
    like: str | None = None


@dataclass(frozen=True, kw_only=True)
class SetVariable(Statement):
    """`SET name = value`, with a name in lower case and a text as value; None stands for DEFAULT and RESET.

    schema: the existing schema to which SET SCHEMA and USE set `search_path`; value is then None. local: whether it is
    SET LOCAL, which holds until the transaction ends.
    """

    takes: ClassVar[str | None] = None

    name: str
    value: str | None
    schema: Name | None = None
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class ShowVariable(Statement):
    """`SHOW name`, the value of a session variable."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    name: str
    name_span: Span


@dataclass(frozen=True, kw_only=True)
class Begin(Statement):
    """`BEGIN` or `START TRANSACTION`. isolation: the level in lower case; None for that of the session."""

    takes: ClassVar[str | None] = None

    read_only: bool = False
    isolation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Commit(Statement):
    """`COMMIT` or `END`."""

    takes: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class Rollback(Statement):
    """`ROLLBACK` or `ABORT`."""

    takes: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class KillQuery(Statement):
    """`KILL QUERY WHERE query_id = '…'`: ends running queries. ids: the ids with their spans."""

    takes: ClassVar[str | None] = None
    defines: ClassVar[bool] = True

    ids: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class CancelJobs(Statement):
    """`CANCEL JOBS ids`: ends the fills of new views, which then don't exist. ids: those of SHOW JOBS."""

    ids: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class Subscribe(Statement):
    """`SUBSCRIBE TO SELECT …`: starts a query that keeps running without a reader."""

    defines: ClassVar[bool] = True

    query: exp.Expression


@dataclass(frozen=True, kw_only=True)
class Recover(Statement):
    """`RECOVER FROM 'id'`: resumes a query of SUBSCRIBE TO."""

    defines: ClassVar[bool] = True

    id: Name


@dataclass(frozen=True, kw_only=True)
class Unsubscribe(Statement):
    """`UNSUBSCRIBE TO 'id'`: ends a query of SUBSCRIBE TO for good."""

    defines: ClassVar[bool] = True

    id: Name


@dataclass(frozen=True, kw_only=True)
class Refused(Statement):
    """An unsupported statement of the dialect, whose execution raises `error`.

    The reader of a script returns it instead of raising the error, so that earlier statements of the script still run.
    """

    takes: ClassVar[str | None] = None

    error: Error
