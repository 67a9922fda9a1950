"""Secrets in the options of statements: the options that may refer to a secret, and the relations that do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from watersmeet.catalog import (
    Connection,
    External,
    MaterializedView,
    MessageFormat,
    PushedTable,
    Relation,
    View,
)
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.dialects.parsing import without_secrets
from watersmeet.dialects.tree.definitions import AlterConnector, CreateOptions, CreateRelation, CreateSink
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import did_you_mean
from watersmeet.errors.secretnames import is_secret
from watersmeet.objectstores.base import CREDENTIALS
from watersmeet.store.positions import keep_secret, secret_names
from watersmeet.system.secretvalues import is_nameless, reference, referred

Given = TypeVar("Given", bound=CreateOptions | CreateRelation | CreateSink | AlterConnector)

R = TypeVar("R", bound=Relation)

#: The fields of relations that are options of connectors and servers.
_OPTIONS: Final = ("connector", "options", "settings")
#: The options that may be secrets, which clients use verbatim. Error messages would show wrong values of other options.
_SECRET: Final = frozenset(
    {
        *CREDENTIALS,
        "catalog.credential",
        "catalog.jdbc.password",
        "catalog.token",
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
        "validate.secret",
    }
)


def with_secrets(session: Session, statement: Given) -> Given:
    """The statement with references to secrets resolved to this database.

    Raises UNDEFINED_OBJECT, and FEATURE_NOT_SUPPORTED for an option that can't be a secret.
    """
    made = replace(statement, options=_options(session, statement, statement.options))
    if isinstance(made, (CreateRelation, CreateSink)) and made.format is not None:
        options = _options(session, statement, made.format.options)
        made = replace(made, format=replace(made.format, options=options))
    return made


def kept(session: Session, relation: R) -> R:
    """The relation without plaintext secrets: its options refer to secrets that are stored for it, and its text hides
    them.
    """
    changed: dict[str, Any] = {}
    for part in fields(relation):
        value = getattr(relation, part.name)
        if isinstance(value, MessageFormat):
            value = replace(value, options=kept_options(session, value.options))
        elif isinstance(value, External):
            options, target = (kept_options(session, given) for given in (value.options, value.target))
            value = replace(value, options=options, target=target)
        elif part.name in _OPTIONS:
            value = kept_options(session, value)
        else:
            continue
        changed[part.name] = value
    if not isinstance(relation, View | MaterializedView) or relation.is_external:
        changed["sql"] = without_secrets(relation.sql, relation.dialect)
    return replace(relation, **changed)


def kept_options(session: Session, options: Mapping[str, str]) -> dict[str, str]:
    """Options with references instead of plaintext secrets. Unreferenced secrets are deleted at the next start."""
    layout = session.database.layout
    return {
        name: reference(keep_secret(layout, value), layout.id)
        if value and referred(value) is None and is_secret(name, value)
        else value
        for name, value in options.items()
    }


def uses_secret(relation: Relation, name: str) -> bool:
    """Whether an option of a relation refers to the secret."""
    if isinstance(relation, Connection):
        return any(referred(value) == name for value in relation.options.values())
    options = [*relation.connector.values(), *(relation.format.options.values() if relation.format else ())]
    if isinstance(relation, PushedTable):
        options += relation.options.values()
    return any(referred(value) == name for value in options)


def _options(session: Session, statement: Given, options: Mapping[str, str]) -> dict[str, str]:
    layout = session.database.layout
    found = dict(options)
    for option, value in options.items():
        name = referred(value)
        if name is None or is_nameless(name):
            continue
        span = statement.name.span if isinstance(statement, AlterConnector) else statement.name_span
        if option.removeprefix("key.") not in _SECRET:
            raise not_supported(
                f"a secret in option {option}",
                statement.text,
                span,
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
