"""DROP of relations."""

from __future__ import annotations

from watersmeet.capture.dropping import drop_captured
from watersmeet.catalog import Relation, one
from watersmeet.database.definitions import is_called, kind_word, named, remove, used_instead, with_dependents
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import Drop
from watersmeet.dialects.tree.statements import Name
from watersmeet.session.access.kafkatopics import drop_topics


def drop(session: Session, statement: Drop) -> Result:
    """DROP of relations of one kind: all or none."""
    command = f"DROP {kind_word(statement).upper()}"
    session.require_definer(command)
    found = [r for name in statement.names if (r := _dropped(session, name, statement)) is not None]
    ids = with_dependents(session, found, statement, cascade=statement.cascade)
    if ids:
        gone = [r for r in session.catalog.relations.values() if r.id in ids or r.owner in ids]
        remove(session, ids)
        drop_topics(session, gone)
        drop_captured(session, gone)
    return Result(command)


def _dropped(session: Session, name: Name, statement: Drop) -> Relation | None:
    relation = named(session, name, statement)
    if relation is not None and not is_called(statement.kind, relation):
        hint, word = used_instead("DROP", relation, session.semantics)
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {one(kind_word(statement))}',
            hint=f"{hint}." if word is None else f"{hint} to remove {one(word)}.",
        )
    return relation
