"""SUBSCRIBE name, …: the content of relations and their changes as rows."""

from __future__ import annotations

from watersmeet.catalog import Relation
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.subscribing import SubscribeChanges
from watersmeet.dialects.tree.statements import Name
from watersmeet.errors import did_you_mean
from watersmeet.subscribing.envelopes import Form, shown_columns
from watersmeet.subscribing.opening import ShownUpdates, subscriber_of
from watersmeet.types import Schema


def subscribe(session: Session, statement: SubscribeChanges) -> Result:
    """Runs until its cursor is closed, or until UP TO."""
    form = _form(session, statement)
    with located(statement, statement.relations[0].span):
        subscriber = subscriber_of(
            session,
            form.relations,
            after=statement.after,
            up_to=statement.up_to,
            snapshot=statement.snapshot,
            progress=statement.progress,
        )
    shown = ShownUpdates(session, subscriber, form)
    return Result("SUBSCRIBE", shown.columns, running=shown)


def described(session: Session, statement: SubscribeChanges) -> Schema:
    """The columns of its rows, without beginning it."""
    return _form(session, statement).columns


def _form(session: Session, statement: SubscribeChanges) -> Form:
    relations = tuple(session.relation(name, statement) for name in statement.relations)
    if statement.envelope == "none":
        return Form(relations, progress=statement.progress)
    if len(relations) > 1:
        raise error_at(
            statement,
            statement.envelope_span,
            "FEATURE_NOT_SUPPORTED",
            "an envelope of several relations is not supported",
            hint="Without an envelope, changed rows come as JSON.",
        )
    key = tuple(_key_column(statement, relations[0], name) for name in statement.key) or relations[0].primary_key
    if not key:
        raise error_at(
            statement,
            statement.envelope_span,
            "INVALID_PARAMETER",
            f"{relations[0].title} has no primary key",
            hint=f"Name the key: ENVELOPE {statement.envelope.upper()} (KEY (column, …)).",
        )
    return Form(relations, statement.envelope, key, statement.progress)


def _key_column(statement: SubscribeChanges, relation: Relation, name: Name) -> str:
    """UNDEFINED_COLUMN."""
    for column in shown_columns(relation):
        if column.name == name.name or (name.folded and column.name.lower() == name.name.lower()):
            return column.name
    raise error_at(
        statement,
        name.span,
        "UNDEFINED_COLUMN",
        f'{relation.title} has no column "{name.name}"',
        hint=did_you_mean(name.name, [c.name for c in shown_columns(relation)]),
    )
