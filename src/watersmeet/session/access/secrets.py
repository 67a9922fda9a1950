"""Secrets in the options of statements: which options may refer to one, and who does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from watersmeet.catalog import Connection, Relation
from watersmeet.dialects.statements import AlterConnector, CreateConnection, CreateRelation, CreateSink
from watersmeet.errors import did_you_mean
from watersmeet.objectstores import CREDENTIALS
from watersmeet.secretvalues import reference, referred
from watersmeet.session.access.context import Session, error_at
from watersmeet.store.secretfiles import secret_names

Given = TypeVar("Given", bound=CreateConnection | CreateRelation | CreateSink | AlterConnector)

#: What may be a secret: what clients take as it is. A wrong value of another option would stand in their messages.
_SECRET: Final = frozenset(
    {
        *CREDENTIALS,
        "gcs.service.account",
        "password",
        "properties.sasl.oauthbearer.client.id",
        "properties.sasl.oauthbearer.client.secret",
        "properties.sasl.password",
        "properties.sasl.username",
        "properties.ssl.ca.pem",
        "properties.ssl.certificate.pem",
        "properties.ssl.key.password",
        "properties.ssl.key.pem",
        "properties.ssl.keystore.password",
        "s3.access.key",
        "s3.secret.key",
        "schema.registry.password",
        "schema.registry.username",
        "username",
    }
)


def with_secrets(session: Session, statement: Given) -> Given:
    """The statement with its references to secrets for good: they name the database.

    UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED for an option that can't be a secret.
    """
    made = replace(statement, options=_options(session, statement, statement.options))
    if isinstance(made, (CreateRelation, CreateSink)) and made.format is not None:
        options = _options(session, statement, made.format.options)
        made = replace(made, format=replace(made.format, options=options))
    return made


def uses_secret(relation: Relation, name: str) -> bool:
    """Whether an option of a relation refers to the secret."""
    if isinstance(relation, Connection):
        return any(referred(value) == name for value in relation.options.values())
    options = [*relation.connector.values(), *(relation.format.options.values() if relation.format else ())]
    return any(referred(value) == name for value in options)


def _options(session: Session, statement: Given, options: Mapping[str, str]) -> dict[str, str]:
    layout = session.database.layout
    found = dict(options)
    for option, value in options.items():
        name = referred(value)
        if name is None:
            continue
        span = statement.name.span if isinstance(statement, AlterConnector) else statement.name_span
        if option.removeprefix("key.") not in _SECRET:
            raise error_at(
                statement,
                span,
                "FEATURE_NOT_SUPPORTED",
                f"a secret in option {option} is not supported",
                hint="These can be secrets: " + ", ".join(sorted(_SECRET)) + ".",
            )
        known = secret_names(layout)
        if name not in known:
            raise error_at(
                statement,
                span,
                "UNDEFINED_OBJECT",
                f'secret "{name}" does not exist',
                hint=did_you_mean(name, known) or "Create it first: CREATE SECRET name WITH (backend = 'meta') AS '…'.",
            )
        found[option] = reference(name, layout.id)
    return found
