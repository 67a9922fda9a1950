"""COMMENT ON: texts about relations and their columns, which the catalog stores.

PostgreSQL 17, "COMMENT"; RisingWave, "COMMENT ON". `pg_description`, `obj_description`, `col_description` and DESCRIBE
show them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from watersmeet.catalog import Index, Relation, Table, View, one
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import is_called
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Accepted, Name, Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.errors import Span, did_you_mean
from watersmeet.session.handlers import handles

#: The kinds of relations by their words.
_KINDS: Final = {
    "TABLE": "table",
    "COLUMN": "",
    "VIEW": "view",
    "MATERIALIZED VIEW": "materialized view",
    "SOURCE": "source",
    "SINK": "sink",
    "INDEX": "index",
    "CONNECTION": "connection",
    "SUBSCRIPTION": "subscription",
}

#: Other objects, whose comments are not stored.
_OTHERS: Final = (
    "AGGREGATE", "CAST", "COLLATION", "CONSTRAINT", "DATABASE", "DOMAIN", "EXTENSION", "FUNCTION", "LANGUAGE",
    "OPERATOR", "POLICY", "PROCEDURE", "PUBLICATION", "ROLE", "ROUTINE", "RULE", "SCHEMA", "SECRET", "SEQUENCE",
    "SERVER", "STATISTICS", "TABLESPACE", "TRIGGER", "TYPE", "USER",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Comment(Statement):
    """`COMMENT ON kind name IS {'text' | NULL}`. column: that of COMMENT ON COLUMN. comment: empty for NULL."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    kind: str
    name: Name
    comment: str
    column: Name | None = None


@reads("COMMENT ON", own="comment")
def read_comment(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """COMMENT ON …: the cursor stands after ON."""
    for words in _OTHERS:
        if cursor.take(words):
            cursor.until("")
            return Accepted(
                **base,
                command="COMMENT",
                notice=f"COMMENT ON {words} has no effect: only comments on relations and columns are stored",
            )
    kind = next((k for words, k in _KINDS.items() if cursor.take(*words.split())), None)
    if kind is None:
        raise cursor.error(detail="TABLE or COLUMN was expected here.")
    name, column = cursor.relation_name(), None
    if not kind:
        name, column = _parted(cursor, name)
    cursor.expect("IS")
    text = "" if cursor.take("NULL") else cursor.string()
    cursor.end()
    return Comment(**base, kind=kind, name=name, comment=text, column=column)


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
    """COMMENT ON. Raises UNDEFINED_RELATION, UNDEFINED_COLUMN, CATALOG_TYPE_MISMATCH for another kind."""
    session.require_definer("COMMENT")
    relation = session.relation(statement.name, statement)
    if statement.kind and not _is_of(statement.kind, relation):
        message = f'"{statement.name.shown}" is not {one(statement.kind)}'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    made = replace(relation, comment=statement.comment)
    if statement.column is not None:
        column, known = statement.column, [c.name for c in relation.columns]
        if column.name not in known or isinstance(relation, Index):
            raise error_at(
                statement,
                column.span,
                "UNDEFINED_COLUMN",
                f'column "{column.name}" of relation "{relation.shown}" does not exist',
                hint=did_you_mean(column.name, known),
            )
        others = {n: c for n, c in relation.comments.items() if n != column.name}
        text = {column.name: statement.comment} if statement.comment else {}
        made = replace(relation, comments={**others, **text})
    with own_transaction(session):
        session.put(made)
    return Result("COMMENT")


def _is_of(kind: str, relation: Relation) -> bool:
    """Whether a kind means the relation. PostgreSQL has no word for some kinds, which are tables or views to it."""
    if kind == "table" and isinstance(relation, Table):
        return True
    return any(is_called(word, relation) for word in relation.words.drop if word == kind) or (
        kind == "view" and isinstance(relation, View)
    )
