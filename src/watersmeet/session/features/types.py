"""CREATE TYPE … AS ENUM and ALTER TYPE. Columns have the labels of an enum in their types (`values.types.SqlType`).

PostgreSQL 17, "CREATE TYPE", "ALTER TYPE". Views are planned with the order of labels, so that a type that one of them
reads gets no more labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from watersmeet.catalog import EnumType, MaterializedView, Relation
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, may_create, named, new_relation, written
from watersmeet.database.sessions.context import Session, depended_on, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import Alter, Create
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name
from watersmeet.errors import Span
from watersmeet.session.handlers import handles
from watersmeet.values.types import with_labels


@dataclass(frozen=True, kw_only=True)
class CreateEnum(Create):
    """`CREATE TYPE name AS ENUM ('label', …)`."""

    makes: ClassVar[type[Relation]] = EnumType

    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AlterEnum(Alter):
    """`ALTER TYPE name ADD VALUE [IF NOT EXISTS] 'label' [BEFORE | AFTER 'other']`, `… RENAME VALUE 'old' TO 'label'`.

    other: the label before or after which the new one is, or that gets another name. place: `before`, `after`, or
    `renamed`.
    """

    label: str
    other: str | None = None
    place: str = "after"
    if_label_missing: bool = False
    span_of_label: Span


@reads("CREATE TYPE", own="type")
def read_create_type(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after TYPE. None for other types than enums."""
    made = read_new_name(cursor, base)
    if not cursor.take("AS", "ENUM"):
        return None
    cursor.expect("(")
    labels: list[str] = []
    while not cursor.at(")"):
        labels.append(cursor.string())
        if not cursor.take(","):
            break
    cursor.expect(")")
    cursor.end()
    return CreateEnum(**made, labels=tuple(labels))


@reads("ALTER TYPE", own="type")
def read_alter_type(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after TYPE. None for RENAME TO, SET SCHEMA and OWNER TO, which all relations have."""
    name = cursor.relation_name()
    made = {**base, "name": name, "kind": "type"}
    start = cursor.index
    if cursor.take("ADD", "VALUE"):
        missing = cursor.take("IF", "NOT", "EXISTS")
        label, place, other = cursor.string(), "after", None
        for word in ("before", "after"):
            if cursor.take(word.upper()):
                place, other = word, cursor.string()
        cursor.end()
        return AlterEnum(
            **made, label=label, other=other, place=place, if_label_missing=missing, span_of_label=name.span
        )
    if cursor.take("RENAME", "VALUE"):
        old = cursor.string()
        cursor.expect("TO")
        label = cursor.string()
        cursor.end()
        return AlterEnum(**made, label=label, other=old, place="renamed", span_of_label=name.span)
    cursor.index = start
    return None


@handles(CreateEnum)
def create_enum(session: Session, statement: CreateEnum) -> Result:
    """CREATE TYPE … AS ENUM. Raises DUPLICATE_OBJECT."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TYPE")
    for number, label in enumerate(statement.labels):
        if label in statement.labels[:number]:
            message = f'enum label "{label}" used more than once'
            raise error_at(statement, statement.name_span, "DUPLICATE_OBJECT", message)
    add(session, new_relation(session, statement, EnumType, (), labels=statement.labels))
    return Result("CREATE TYPE")


@handles(AlterEnum)
def alter_enum(session: Session, statement: AlterEnum) -> Result:
    """ALTER TYPE … ADD VALUE and RENAME VALUE. Raises DEPENDENT_OBJECTS if a view reads a column of the type."""
    session.require_definer("ALTER TYPE")
    relation = named(session, statement.name, statement)
    if not isinstance(relation, EnumType):
        message = f'"{statement.name.shown}" is not an enum'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    labels = list(relation.labels)
    if statement.label in labels:
        if statement.if_label_missing:
            session.notice(f'enum label "{statement.label}" already exists, skipping')
            return Result("ALTER TYPE")
        message = f'enum label "{statement.label}" already exists'
        raise error_at(statement, statement.span_of_label, "DUPLICATE_OBJECT", message)
    if statement.other is not None and statement.other not in labels:
        message = f'"{statement.other}" is not an existing enum label'
        raise error_at(statement, statement.span_of_label, "INVALID_PARAMETER", message)
    users = session.catalog.with_enum(relation)
    if statement.place == "renamed":
        if any(r.is_stored for r in users):
            raise not_supported(
                f"RENAME VALUE of {relation.title}, which tables have,",
                statement.text,
                statement.span_of_label,
                hint="ADD VALUE with the new label, and UPDATE the rows.",
            )
        labels[labels.index(statement.other or "")] = statement.label
    else:
        place = len(labels) if statement.other is None else labels.index(statement.other)
        labels.insert(place + (statement.place == "after"), statement.label)
    views = [r for r in users if isinstance(r, MaterializedView)]
    views += [v for r in users for v in session.catalog.dependents(r.id) if isinstance(v, MaterializedView)]
    if views:
        raise depended_on(
            statement,
            statement.span,
            f"alter {relation.title}",
            (f"{v.reader} reads it" for v in {v.id: v for v in views}.values()),
            hint="Drop these first, and create them again.",
        )
    listed = ", ".join("'" + label.replace("'", "''") + "'" for label in labels)
    sql = f"CREATE TYPE {written(relation.name, relation)} AS ENUM ({listed})"
    with own_transaction(session):
        session.put(replace(relation, labels=tuple(labels), sql=sql))
        for user in users:
            columns = tuple(replace(c, type=with_labels(c.type, relation.shown, tuple(labels))) for c in user.columns)
            session.put(replace(user, columns=columns))
    return Result("ALTER TYPE")
