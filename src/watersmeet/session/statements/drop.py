"""DROP of relations."""

from __future__ import annotations

from watersmeet.catalog import Relation
from watersmeet.dialects.statements import (
    Drop,
    Name,
)
from watersmeet.session.access.context import Session, error_at
from watersmeet.session.access.definitions import kind_word, named, remove, with_dependents
from watersmeet.session.access.result import Result
from watersmeet.session.access.words import is_meant


def drop(session: Session, statement: Drop) -> Result:
    """DROP of relations of one kind, all or none."""
    command = f"DROP {kind_word(statement).upper()}"
    session.require_definer(command)
    found = [r for name in statement.names if (r := _dropped(session, name, statement)) is not None]
    ids = with_dependents(session, found, statement, cascade=statement.cascade)
    if ids:
        remove(session, ids)
    return Result(command)


def _dropped(session: Session, name: Name, statement: Drop) -> Relation | None:
    relation = named(session, name, statement)
    if relation is not None and not is_meant("drop", statement.kind, relation, session.semantics):
        kind = (
            relation.what
            if relation.what in ("dictionary", "pump", "stream") and session.semantics.continuous != "never"
            else relation.kind
        )
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {_article(kind_word(statement))}',
            hint=f"Use DROP {kind.upper()} to remove {_article(kind)}.",
        )
    return relation


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "index" else f"a {kind}"
