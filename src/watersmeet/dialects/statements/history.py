"""Statements on the history of a database, in all dialects: SHOW COMMITS, ALTER SYSTEM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_value
from watersmeet.errors import Span


@dataclass(frozen=True, kw_only=True)
class ShowCommits(Statement):
    """`SHOW COMMITS [FROM relation] [LIMIT limit]`: the newest first. relation: only commits that changed it."""

    relation: Name | None
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class AlterSystem(Statement):
    """`ALTER SYSTEM SET name = value`, `ALTER SYSTEM RESET name`: a setting of the database. value: None: its default.

    place: of the name and the value.
    """

    name: str
    value: str | None
    place: Span


def read_show_commits(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind SHOW COMMITS."""
    relation = cursor.relation_name() if cursor.take("FROM") or cursor.take("IN") else None
    limit = cursor.integer() if cursor.take("LIMIT") else None
    cursor.end()
    return ShowCommits(**base, relation=relation, limit=limit)


def read_alter_system(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind ALTER SYSTEM."""
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
    return AlterSystem(**base, name=name.name, value=value, place=Span(name.span.start, end))
