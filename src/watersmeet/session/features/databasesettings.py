"""Statements on the whole database: SHOW COMMITS, ALTER SYSTEM (retention, clock), ALTER DATABASE (parallelism); texts
about its relations: COMMENT ON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.catalog import Index, Relation, Table, View, one
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import is_called
from watersmeet.database.sessions.context import Session, error_at, located, undefined_column
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Accepted, Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.session.features.viewrefresh import reset_clock
from watersmeet.session.handlers import handles
from watersmeet.store.checkpoints import oldest_commit
from watersmeet.store.manifests import Commit
from watersmeet.store.positions import secret_names
from watersmeet.system.secretvalues import reference, signed
from watersmeet.values.types import BIGINT, TIMESTAMPTZ, VARCHAR, Field, Schema


@dataclass(frozen=True, kw_only=True)
class AlterDatabase(Statement):
    """`ALTER DATABASE SET parallelism = value`."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    parallelism: str
    value_span: Span


@reads("ALTER DATABASE")
def read_alter_database(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after ALTER DATABASE."""
    if not cursor.take("SET", "PARALLELISM"):
        words = cursor.tokens[: cursor.index + 1]
        shown = " ".join(t.text for t in words).upper()
        hint = "ALTER DATABASE SET parallelism = N changes the number of state buckets of the database that is open."
        return Refused(**base, error=not_supported(shown, cursor.text, span_of(words), hint=hint))
    if not cursor.take("TO"):
        cursor.expect("=")
    value = read_value(cursor)
    span = span_of(cursor.tokens[cursor.index - 1 : cursor.index])
    cursor.end()
    return AlterDatabase(**base, parallelism=value, value_span=span)


@dataclass(frozen=True, kw_only=True)
class ShowCommits(Statement):
    """`SHOW COMMITS [FROM relation] [LIMIT limit]`: the newest commit first. relation: only the commits that changed
    this relation.
    """

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    relation: Name | None
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class AlterSystem(Statement):
    """`ALTER SYSTEM SET name = value`, `ALTER SYSTEM RESET name`: a setting of the database. value: None for the
    default.
    """

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    name: str
    value: str | None
    value_span: Span


@reads("SHOW COMMITS")
def read_show_commits(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after SHOW COMMITS."""
    relation = cursor.relation_name() if cursor.take("FROM") or cursor.take("IN") else None
    limit = cursor.integer() if cursor.take("LIMIT") else None
    cursor.end()
    return ShowCommits(**base, relation=relation, limit=limit)


@reads("ALTER SYSTEM")
def read_alter_system(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after ALTER SYSTEM."""
    value = None
    resets = cursor.take("RESET")
    if not resets:
        cursor.expect("SET")
    name = cursor.word()
    end = name.span.end
    if not resets:
        if not cursor.take("TO"):
            cursor.expect("=")
        if not cursor.take("DEFAULT"):
            end = cursor.rest[0].end + 1 if cursor.rest else end
            value = read_value(cursor)
    cursor.end()
    return AlterSystem(**base, name=name.name, value=value, value_span=Span(name.span.start, end))


_COMMITS: Final[Schema] = (
    Field("commit", BIGINT, nullable=False),
    Field("committed", TIMESTAMPTZ, nullable=False),
    Field("kind", VARCHAR, nullable=False),
    Field("relations", VARCHAR),
    Field("inserted", BIGINT, nullable=False),
    Field("deleted", BIGINT, nullable=False),
    Field("recomputed", VARCHAR),
)

RETENTION: Final = "retention"

#: RisingWave's name of this setting, in milliseconds.
_RETENTION_MS: Final = "time_travel_retention_ms"

_CLOCK: Final = "clock"

_LATE_ROWS: Final = "late_rows_retention"

_VERIFY_RATE: Final = "verify_rate"

_VERIFY_KEY: Final = "verify_key"


@handles(ShowCommits)
def show_commits(session: Session, statement: ShowCommits) -> Result:
    """SHOW COMMITS: the kept history, the newest commit first."""
    named = None if statement.relation is None else session.relation(statement.relation, statement)
    shown = {r.id: r for r in session.catalog.shown if not r.hidden} if named is None else {named.id: named}
    rows: list[tuple[Any, ...]] = []
    for commit in _newest_first(session):
        if statement.limit is not None and len(rows) >= statement.limit:
            break
        if named is None or named.id in commit.relations:
            rows.append(_row(commit, shown))
    return typed_result("SHOW", _COMMITS, rows)


def _newest_first(session: Session) -> Iterator[Commit]:
    """All readable commits. Another process may delete the oldest ones meanwhile."""
    database = session.database
    log = database.log
    oldest = oldest_commit(database.layout, log)
    for number in range(log.head(), oldest.number - 1 if oldest else 0, -1):
        commit = log.find(number)
        if commit is None:
            return
        yield commit


def _row(commit: Commit, shown: dict[str, Relation]) -> tuple[Any, ...]:
    changes = {i: c for i, c in commit.relations.items() if i in shown}
    names = ", ".join(sorted(shown[i].shown for i in changes))
    inserted, deleted = (sum(getattr(c, f"{w}_rows") for c in changes.values()) for w in ("inserted", "deleted"))
    recomputed = ", ".join(sorted(shown[i].shown for i in commit.metrics.recomputed if i in shown))
    return commit.number, commit.time_us, commit.kind, names or None, inserted, deleted, recomputed or None


@handles(AlterSystem)
def alter_system(session: Session, statement: AlterSystem) -> Result:
    """ALTER SYSTEM SET retention, late_rows_retention: how long history and late rows are kept; verify_rate,
    verify_key: see `verifying`. ALTER SYSTEM RESET clock: see `viewrefresh`.

    Raises INVALID_PARAMETER, UNDEFINED_OBJECT.
    """
    session.require_definer("ALTER SYSTEM")
    session.require_no_transaction("ALTER SYSTEM")
    if statement.name == _CLOCK:
        return _reset_clock(session, statement)
    if statement.name == _VERIFY_RATE:
        return _set_verify_rate(session, statement)
    if statement.name == _VERIFY_KEY:
        return _set_verify_key(session, statement)
    if statement.name not in (RETENTION, _RETENTION_MS, _LATE_ROWS):
        raise error_at(
            statement,
            statement.value_span,
            "UNDEFINED_OBJECT",
            f'there is no setting "{statement.name}" of the database',
            hint=did_you_mean(statement.name, [RETENTION, _LATE_ROWS, _VERIFY_RATE, _VERIFY_KEY, _CLOCK])
            or f"There are {RETENTION}, {_LATE_ROWS}, {_VERIFY_RATE}, {_VERIFY_KEY} and, for RESET only, {_CLOCK}.",
        )
    retention_us = None if statement.value is None else _length_us(statement, statement.value)
    database = session.database
    with database.guard:
        late_rows, catalog = statement.name == _LATE_ROWS, database.catalog
        database.change_catalog(
            catalog.with_late_rows(retention_us) if late_rows else catalog.with_retention(retention_us)
        )
    return Result("ALTER SYSTEM")


def _set_verify_rate(session: Session, statement: AlterSystem) -> Result:
    value = statement.value or "0"
    if not (value.isascii() and value.isdecimal()) or int(value) > _MOST_VERIFIED:
        raise error_at(
            statement,
            statement.value_span,
            "INVALID_PARAMETER",
            f'{_VERIFY_RATE} can\'t be "{value}"',
            hint=f"Write how many views to verify in an hour, at most {_MOST_VERIFIED}; 0 for none.",
        )
    database = session.database
    with database.guard:
        database.change_catalog(database.catalog.with_verify_rate(int(value)))
    database.follow()
    return Result("ALTER SYSTEM")


def _set_verify_key(session: Session, statement: AlterSystem) -> Result:
    database, name = session.database, statement.value or ""
    if name:
        if name not in (known := secret_names(database.layout)):
            hint = did_you_mean(name, known) or "Create it first: CREATE SECRET name WITH (backend = 'meta') AS '…'."
            raise error_at(
                statement, statement.value_span, "UNDEFINED_OBJECT", f'secret "{name}" does not exist', hint=hint
            )
        with located(statement, statement.value_span):
            signed("", reference(name, database.layout.id))
    with database.guard:
        database.change_catalog(database.catalog.with_verify_key(name))
    return Result("ALTER SYSTEM")


#: The greatest `verify_rate`: ten views a second.
_MOST_VERIFIED: Final = 36_000


def _reset_clock(session: Session, statement: AlterSystem) -> Result:
    if statement.value is not None:
        raise error_at(
            statement,
            statement.value_span,
            "INVALID_PARAMETER",
            "clock can only be reset",
            hint="ALTER SYSTEM RESET clock sets the time of epochs to the machine's clock.",
        )
    with located(statement, statement.value_span):
        reset_clock(session)
    return Result("ALTER SYSTEM")


def _length_us(statement: AlterSystem, value: str) -> int:
    if value.isascii() and value.isdecimal() and (statement.name == _RETENTION_MS or int(value) == 0):
        return int(value) * 1000
    length = timeout_us(value) if statement.name != _RETENTION_MS else None
    if length is None:
        raise error_at(
            statement,
            statement.value_span,
            "INVALID_PARAMETER",
            f'{statement.name} can\'t be "{value}"',
            hint="Write a length of time such as '1 day', or 0."
            if statement.name != _RETENTION_MS
            else "Write a number of milliseconds.",
        )
    return length


_COMMAND = "ALTER DATABASE"


@handles(AlterDatabase)
def alter_database(session: Session, statement: AlterDatabase) -> Result:
    """ALTER DATABASE SET parallelism, effective from the next epoch on. Returns after the commit of that epoch."""
    session.require_writer(_COMMAND)
    session.require_no_transaction(_COMMAND)
    value = statement.parallelism
    if not value.isdecimal():
        raise error_at(
            statement, statement.value_span, "INVALID_PARAMETER", f'parallelism is a whole number, not "{value}"'
        )
    with located(statement, statement.value_span):
        session.database.circuit.rescale(int(value))
    return Result(_COMMAND)


#: The kinds of relations by their words.
_COMMENTED: Final = {
    "TABLE": "table",
    "COLUMN": "",
    "CONSTRAINT": "constraint",
    "VIEW": "view",
    "MATERIALIZED VIEW": "materialized view",
    "SOURCE": "source",
    "SINK": "sink",
    "INDEX": "index",
    "CONNECTION": "connection",
    "SUBSCRIPTION": "subscription",
}

#: Other objects, whose comments are not stored.
_WITHOUT_COMMENTS: Final = (
    "AGGREGATE", "CAST", "COLLATION", "DATABASE", "DOMAIN", "EXTENSION", "FUNCTION", "LANGUAGE",
    "OPERATOR", "POLICY", "PROCEDURE", "PUBLICATION", "ROLE", "ROUTINE", "RULE", "SCHEMA", "SECRET", "SEQUENCE",
    "SERVER", "STATISTICS", "TABLESPACE", "TRIGGER", "TYPE", "USER",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Comment(Statement):
    """`COMMENT ON kind name IS {'text' | NULL}`. column: that of COMMENT ON COLUMN. constraint: that of COMMENT ON
    CONSTRAINT, whose table is `name`. comment: empty for NULL.
    """

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    kind: str
    name: Name
    comment: str
    column: Name | None = None
    constraint: Name | None = None


@reads("COMMENT ON", own="comment")
def read_comment(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """COMMENT ON …: the cursor stands after ON.

    PostgreSQL 17, "COMMENT"; RisingWave, "COMMENT ON".
    """
    for words in _WITHOUT_COMMENTS:
        if cursor.take(words):
            cursor.until("")
            return Accepted(
                **base,
                command="COMMENT",
                notice=f"COMMENT ON {words} has no effect: "
                "only comments on relations, columns and constraints are stored",
            )
    kind = next((k for words, k in _COMMENTED.items() if cursor.take(*words.split())), None)
    if kind is None:
        raise cursor.error(detail="TABLE or COLUMN was expected here.")
    constraint = None
    if kind == "constraint":
        constraint, kind = cursor.name(), "table"
        cursor.expect("ON")
        if cursor.at("DOMAIN"):
            cursor.until("")
            return Accepted(**base, command="COMMENT", notice="comments on constraints of domains are not stored")
    name, column = cursor.relation_name(), None
    if not kind:
        name, column = _parted(cursor, name)
    cursor.expect("IS")
    text = "" if cursor.take("NULL") else cursor.string()
    cursor.end()
    return Comment(**base, kind=kind, name=name, comment=text, column=column, constraint=constraint)


def _parted(cursor: Cursor, name: Name) -> tuple[Name, Name]:
    """The relation and the column of a name of two or more parts, of which `name` has those that a relation may
    have.
    """
    if cursor.take("."):
        return name, cursor.name(reserved=True)
    if name.schema is None:
        raise cursor.error(detail="The name of a table and . were expected before that of the column.")
    start = name.span.end - len(name.name)
    return Name(name.schema, Span(name.span.start, start)), Name(name.name, name.span)


@handles(Comment)
def comment_on(session: Session, statement: Comment) -> Result:
    """COMMENT ON. Raises UNDEFINED_RELATION, UNDEFINED_COLUMN, UNDEFINED_OBJECT for a missing constraint, and
    CATALOG_TYPE_MISMATCH for another kind.
    """
    session.require_definer("COMMENT")
    relation = session.relation(statement.name, statement)
    if statement.kind and not _is_of(statement.kind, relation):
        message = f'"{statement.name.shown}" is not {one(statement.kind)}'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    made = replace(relation, comment=statement.comment)
    if statement.constraint is not None:
        made = _with_constraint_comment(relation, statement.constraint, statement)
    elif statement.column is not None:
        column = statement.column
        if column.name not in [c.name for c in relation.columns] or isinstance(relation, Index):
            raise undefined_column(relation, column.name, column.span, statement)
        others = {n: c for n, c in relation.comments.items() if n != column.name}
        text = {column.name: statement.comment} if statement.comment else {}
        made = replace(relation, comments={**others, **text})
    with own_transaction(session):
        session.put(made)
    return Result("COMMENT")


def _with_constraint_comment(relation: Relation, name: Name, statement: Comment) -> Relation:
    """The table with another comment on a constraint."""
    text = statement.comment
    if isinstance(relation, Table) and relation.primary_key and name.name == relation.key_name:
        return replace(relation, key_comment=text)
    if not isinstance(relation, Table) or name.name not in {c.name for c in relation.constraints}:
        message = f'constraint "{name.name}" for table "{relation.name}" does not exist'
        raise error_at(statement, name.span, "UNDEFINED_OBJECT", message)
    return replace(
        relation,
        uniques=tuple(replace(c, comment=text) if c.name == name.name else c for c in relation.uniques),
        checks=tuple(replace(c, comment=text) if c.name == name.name else c for c in relation.checks),
        foreign_keys=tuple(replace(c, comment=text) if c.name == name.name else c for c in relation.foreign_keys),
    )


def _is_of(kind: str, relation: Relation) -> bool:
    """Whether a kind means the relation. PostgreSQL has no word for some kinds, which are tables or views to it."""
    if kind == "table" and isinstance(relation, Table):
        return True
    return any(is_called(word, relation) for word in relation.words.drop if word == kind) or (
        kind == "view" and isinstance(relation, View)
    )
