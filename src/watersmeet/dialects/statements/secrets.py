"""CREATE SECRET, DROP SECRET and CREATE CONNECTION."""

from __future__ import annotations

from typing import Any, Final

from watersmeet.dialects.tree.definitions import CreateConnection, CreateSecret, DropSecret
from watersmeet.dialects.tree.statements import Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, span_of
from watersmeet.errors import Span, error
from watersmeet.secretvalues import outside

#: By backend whose values are not in the database: the option that says where they are.
_OUTSIDE: Final = {"env": "name", "file": "path"}


def read_create(cursor: Cursor, base: dict[str, Any]) -> Statement:
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


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP SECRET …: the cursor stands behind SECRET."""
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name()
    cursor.end()
    return DropSecret(**base, name=name, if_exists=if_exists)


def read_create_connection(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE CONNECTION …: the cursor stands behind CONNECTION.

    RisingWave, "CREATE CONNECTION".
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("WITH")
    options = read_options(cursor)
    cursor.end()
    return CreateConnection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        options=options,
    )
