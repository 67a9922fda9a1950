"""CREATE SECRET, DROP SECRET, SHOW SECRETS.

RisingWave, "Manage secrets".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from watersmeet.binder.clauses.sources import files_refused
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.secrets import uses_secret
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.session.handlers import handles
from watersmeet.store import notes
from watersmeet.system.secretvalues import outside, place_outside

#: By backend whose values are not in the database: the option that says where they are.
_OUTSIDE: Final = {"env": "name", "file": "path"}


@dataclass(frozen=True, kw_only=True)
class CreateSecret(Statement):
    """`CREATE SECRET name WITH (backend = 'meta') AS 'value'`. Its text has no value. Or `WITH (backend = 'env', name =
    '…')`, `(backend = 'file', path = '…')`, whose value says where it is.
    """

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True

    name: Name
    value: str = field(repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class DropSecret(Statement):
    """`DROP SECRET name`."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True

    name: Name
    if_exists: bool = False


@reads("CREATE SECRET", own="secret")
def read_create_secret(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE SECRET …: the cursor stands behind SECRET. The statement's text has stars in place of the value.

    RisingWave, "CREATE SECRET". Our own: a value that is in the environment or in a file (backend env, file).
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    cursor.expect("WITH")
    spans: dict[str, Span] = {}
    backend = read_options(cursor, spans)
    kind = backend.get("backend", "")
    if kind in _OUTSIDE:
        option = _OUTSIDE[kind]
        cursor.end()
        if backend.keys() != {"backend", option} or not backend[option]:
            wrong = next((n for n in backend if n not in ("backend", option)), "backend")
            raise error(
                "CONNECTOR_OPTION",
                f"a secret of backend {kind} has the option {option} alone",
                hint=f"Write WITH (backend = '{kind}', {option} = '…').",
                sql=cursor.text,
                span=spans[wrong],
            )
        return CreateSecret(
            **{**base, "sql": f"CREATE SECRET {name.name}"},
            name=name,
            value=outside(kind, backend[option]),
            if_not_exists=if_not_exists,
        )
    cursor.expect("AS")
    place = span_of(cursor.rest[:1] or cursor.tokens)
    value = cursor.string()
    cursor.end()
    stars = "*" * (place.end - place.start - 2)
    text = f"{cursor.text[: place.start]}'{stars}'{cursor.text[place.end :]}"
    base = {**base, "text": text, "sql": f"CREATE SECRET {name.name}"}
    if backend.pop("backend", "") != "meta" or backend:
        hint = "Write WITH (backend = 'meta') AS '…', (backend = 'env', name = '…') or (backend = 'file', path = '…')."
        return Refused(**base, error=not_supported("a secret of this backend", text, name.span, hint=hint))
    return CreateSecret(**base, name=name, value=value, if_not_exists=if_not_exists)


@reads("DROP SECRET", own="secret")
def read_drop_secret(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP SECRET …: the cursor stands behind SECRET."""
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name()
    cursor.end()
    return DropSecret(**base, name=name, if_exists=if_exists)


@handles(CreateSecret)
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


@handles(DropSecret)
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
