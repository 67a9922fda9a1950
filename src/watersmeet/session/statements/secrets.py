"""CREATE SECRET, DROP SECRET, SHOW SECRETS.

RisingWave, "Manage secrets".
"""

from __future__ import annotations

import os
from collections.abc import Callable

from watersmeet.binder.clauses.relations import files_refused
from watersmeet.database.secrets import uses_secret
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.tree.definitions import CreateSecret, DropSecret
from watersmeet.errors import did_you_mean
from watersmeet.secretvalues import outside, place_outside
from watersmeet.store import notes


def create_secret(session: Session, statement: CreateSecret) -> Result:
    """CREATE SECRET: it is there at once. FILES_NOT_ALLOWED for what is outside, if this connection may not read it."""
    session.require_definer("CREATE SECRET")
    session.require_no_transaction("CREATE SECRET")
    name, value = statement.name, statement.value
    place = place_outside(value)
    if place is not None:
        if not session.reads_files:
            raise files_refused(f"a secret of backend {place[0]}", sql=statement.text, span=name.span)
        if place[0] == "file":
            value = outside("file", os.path.abspath(place[1]))
    if not notes.create_secret(session.database.layout, name.name, value):
        if not statement.if_not_exists:
            raise error_at(statement, name.span, "DUPLICATE_OBJECT", f'secret "{name.name}" already exists')
        session.notice(f'secret "{name.name}" already exists, skipping')
    return Result("CREATE SECRET")


def drop_secret(session: Session, statement: DropSecret) -> Result:
    """DROP SECRET. DEPENDENT_OBJECTS while an option refers to it."""
    session.require_definer("DROP SECRET")
    session.require_no_transaction("DROP SECRET")
    layout, name = session.database.layout, statement.name
    known = notes.secret_names(layout)
    if name.name not in known:
        if statement.if_exists:
            session.notice(f'secret "{name.name}" does not exist, skipping')
            return Result("DROP SECRET")
        raise error_at(
            statement,
            name.span,
            "UNDEFINED_OBJECT",
            f'secret "{name.name}" does not exist',
            hint=did_you_mean(name.name, known),
        )
    using = [r for r in session.catalog.relations.values() if uses_secret(r, name.name)]
    if using:
        raise error_at(
            statement,
            name.span,
            "DEPENDENT_OBJECTS",
            f'cannot drop secret "{name.name}" because other objects use it',
            detail=sentence(f"{r.title} does" for r in using),
            hint="Drop these first.",
        )
    notes.drop_secret(layout, name.name)
    return Result("DROP SECRET")


def show_secrets(session: Session, is_like: Callable[[str], bool]) -> Result:
    """The names of the secrets. Nothing shows their values."""
    names = notes.secret_names(session.database.layout)
    return text_result("SHOW", ("Name",), [(n,) for n in names if is_like(n)])
