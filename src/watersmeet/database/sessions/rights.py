"""Which statements a role may run: each says which fixed role it takes (`Statement.takes`).

What a statement reads and writes is checked where its names are looked up: `Session.require`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.catalog import SHOWN
from watersmeet.catalog.roles import ADMIN, READER, WRITER
from watersmeet.database.sessions.context import Session, denied
from watersmeet.dialects.statements import roles as rl
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st

#: What SHOW tells everybody, of what they may know.
_LISTS: Final = (*SHOWN, "all", "columns", "databases", "functions", "grants", "relations", "roles", "schemas")
#: What SHOW tells of more than relations.
_OF_DATABASE: Final = {"parameters": WRITER, "secrets": WRITER}


def check_statement(session: Session, statement: st.Statement) -> None:
    """PERMISSION_DENIED for a statement that the session's role may not run."""
    rights = session.rights
    if rights.has(ADMIN):
        return
    needed = _needed(session, statement)
    if needed is not None and not rights.has(needed):
        raise denied("this statement", statement.text, detail=f"It takes the role {needed}.")


def check_named(session: Session, relation_ids: Sequence[str], text: str | None = None) -> None:
    """PERMISSION_DENIED if a query names a relation that the session may not read."""
    known = session.catalog.relations
    for relation_id in relation_ids:
        session.require("SELECT", known[relation_id], text)


def check_followed(session: Session, relation_ids: Sequence[str]) -> None:
    """PERMISSION_DENIED if what is followed may not be read any more. What was dropped ends by itself."""
    known = session.catalog.relations
    check_named(session, [i for i in relation_ids if i in known])


def _needed(session: Session, statement: st.Statement) -> str | None:
    """The fixed role that a statement takes; None: none."""
    if isinstance(statement, st.Explain):
        return _needed(session, statement.statement)
    if isinstance(statement, st.Show):
        return _shown(statement.what)
    if isinstance(statement, rl.AlterRole) and _is_own_password(session, statement):
        return None
    return ADMIN if _has_connector(statement) else statement.takes


def _is_own_password(session: Session, statement: rl.AlterRole) -> bool:
    return session.user is not None and statement.is_own_password(session.user.name)


def _shown(what: str) -> str | None:
    if what in _OF_DATABASE:
        return _OF_DATABASE[what]
    return None if what in _LISTS or what.startswith("create ") else READER


def _has_connector(statement: st.Statement) -> bool:
    """Whether rows of what it makes come from outside, or go there."""
    return isinstance(statement, df.CreateRelation) and "connector" in statement.options
