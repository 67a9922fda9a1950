"""CREATE OR REPLACE: the old relation is removed in the same transaction, and so the same commit, that creates the new
one.

A plain view keeps its identity, so that others may go on reading it. As in PostgreSQL ("CREATE VIEW"), columns may only
be added after the existing ones. Everything else is dropped and created again: a table's content is lost (SQLstream,
"CREATE STREAM": the history is lost), a materialized view is filled again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from watersmeet.catalog import Relation, StoppedPump, View, one
from watersmeet.catalog.roles import PassGrants
from watersmeet.dialects.tree import definitions as df
from watersmeet.session.access.context import Session, error_at, sentence
from watersmeet.session.access.schemas import schema_for


def check_replaceable(statement: df.Create, existing: Relation) -> None:
    """CATALOG_TYPE_MISMATCH if the statement creates another kind of relation than the existing one."""
    made = statement.makes.words.role
    if existing.role == made:
        return
    raise error_at(
        statement,
        statement.name_span,
        "CATALOG_TYPE_MISMATCH",
        f"{existing.reader} can't be replaced by {one(made)}",
        hint=f"Drop the {existing.role} first; do both in one transaction so that nobody misses it.",
    )


@contextlib.contextmanager
def keeping_grants(session: Session, statement: df.Create) -> Iterator[None]:
    """What roles were granted on the relation that a statement replaces, inside the block, they have on the new one."""
    schema = schema_for(session, statement)
    old = session.catalog.by_name(statement.name, schema)
    yield
    new = session.catalog.by_name(statement.name, schema)
    granted = old is not None and any(old.id in role.grants for role in session.catalog.roles.values())
    if granted and new is not None and old is not None and new.id != old.id:
        session.put_roles([PassGrants(old.id, new.id)])


def check_view(session: Session, statement: df.CreateView, old: Relation, new: Relation) -> None:
    """Checks that a plain view may replace another one.

    DATATYPE_MISMATCH for columns that are missing or different, DEPENDENT_OBJECTS if something has been filled through
    the old view, INVALID_NAME if the new one would read itself.
    """
    catalog = session.catalog
    if old.id in catalog.upstream(new.depends_on):
        raise error_at(statement, statement.name_span, "INVALID_NAME", f"{old.title} would read itself")
    kept = new.columns[: len(old.columns)]
    for before, now in zip(old.columns, kept, strict=False):
        if (before.name, before.type) != (now.name, now.type):
            raise error_at(
                statement,
                statement.name_span,
                "DATATYPE_MISMATCH",
                f'{old.title} has the column "{before.name}" of type {before.type.sql}, the new one has '
                f'"{now.name}" of type {now.type.sql} there',
                hint="Columns can only be added at the end. For other changes, drop the view first.",
            )
    if len(kept) < len(old.columns):
        raise error_at(
            statement,
            statement.name_span,
            "DATATYPE_MISMATCH",
            f'{old.title} has the column "{old.columns[len(kept)].name}", the new one does not',
            hint="Columns can only be added at the end. For other changes, drop the view first.",
        )
    filled = [r for r in catalog.dependents(old.id) if not isinstance(r, View) or isinstance(r, StoppedPump)]
    if filled and not is_same(old, new):
        raise error_at(
            statement,
            statement.name_span,
            "DEPENDENT_OBJECTS",
            f"cannot replace {old.title} because other objects depend on it",
            detail=sentence(f"{r.reader} was filled through it" for r in filled),
            hint="Drop these first and create them again; do both in one transaction so that nobody misses them.",
        )


def is_same(old: Relation, new: Relation) -> bool:
    """Whether two views are the same: in text, dialect and the meaning of their names."""
    return not old.known and (
        (old.sql, old.dialect, old.path, old.columns, set(old.depends_on), set(old.functions))
        == (new.sql, new.dialect, new.path, new.columns, set(new.depends_on), set(new.functions))
    )
