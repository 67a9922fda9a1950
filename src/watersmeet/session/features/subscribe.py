"""SUBSCRIBE name, …: the content of relations and their changes as rows.

The clauses and envelopes are those of Materialize ("SUBSCRIBE"); AFTER and several relations are Watersmeet's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, get_args

from watersmeet.catalog import Relation
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.session.handlers import handles
from watersmeet.subscribing.forms import Envelope, Form, ShownUpdates, shown_columns
from watersmeet.subscribing.subscriber import subscriber_of
from watersmeet.values.types import Schema

_TRUE: Final = ("true", "on", "1", "t", "yes")
_FALSE: Final = ("false", "off", "0", "f", "no")
_OPTIONS: Final = ("snapshot", "progress", "envelope", "key")

#: What stands where a query could stand.
QUERIES: Final = ("SELECT", "WITH", "VALUES", "(")


@dataclass(frozen=True, kw_only=True)
class SubscribeChanges(Statement):
    """`SUBSCRIBE name, … [AFTER after] [UP TO up_to] [ENVELOPE envelope (KEY (key, …))] [WITH (…)]`.

    after, up_to: commits. snapshot, progress: see `Connection.subscribe`. key: of envelopes; empty: the primary key.
    envelope_span: where the envelope is named.
    """

    takes: ClassVar[str | None] = None

    relations: tuple[Name, ...]
    after: int | None = None
    up_to: int | None = None
    snapshot: bool = True
    progress: bool = False
    envelope: Envelope = "none"
    key: tuple[Name, ...] = ()
    envelope_span: Span | None = None


@reads("SUBSCRIBE")
def read_subscribe(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind SUBSCRIBE."""
    cursor.take("TO")
    if any(cursor.at(word) for word in QUERIES):
        raise not_supported(
            "SUBSCRIBE to a query",
            cursor.text,
            span_of(cursor.rest),
            hint="CREATE MATERIALIZED VIEW v AS SELECT …, and SUBSCRIBE v.",
        )
    relations = [cursor.relation_name()]
    while cursor.take(","):
        relations.append(cursor.relation_name())
    clauses: dict[str, Any] = {}
    while not cursor.done:
        first = cursor.index
        for name, value in _clause(cursor).items():
            if name in clauses:
                place = span_of(cursor.tokens[first : cursor.index])
                raise error("SYNTAX_ERROR", f"{name} is given twice", sql=cursor.text, span=place)
            clauses[name] = value
    return SubscribeChanges(**base, relations=tuple(relations), **clauses)


def _clause(cursor: Cursor) -> dict[str, Any]:
    """One of the clauses behind the relations."""
    start = cursor.index
    if cursor.take("AFTER"):
        cursor.take("COMMIT")
        return {"after": cursor.integer()}
    if cursor.take("UP", "TO"):
        cursor.take("COMMIT")
        return {"up_to": cursor.integer()}
    if cursor.take("ENVELOPE"):
        return _envelope(cursor, start)
    if cursor.take("WITH"):
        cursor.expect("(")
        return _options(cursor)
    if cursor.at("(") and start:
        cursor.expect("(")
        return _options(cursor)
    if cursor.at("AS", "OF"):
        hint = "AFTER commit begins behind a commit, which the program has seen already."
        raise not_supported("AS OF in SUBSCRIBE", cursor.text, span_of(cursor.rest), hint=hint)
    if cursor.at("WITHIN"):
        raise not_supported("WITHIN TIMESTAMP ORDER BY", cursor.text, span_of(cursor.rest))
    raise cursor.error(detail="AFTER, UP TO, ENVELOPE or WITH was expected here.")


def _envelope(cursor: Cursor, start: int) -> dict[str, Any]:
    """`UPSERT (KEY (a, b))`: the cursor stands behind ENVELOPE."""
    found: dict[str, Any] = {"envelope": _known(cursor, cursor.word()), "key": ()}
    if cursor.take("("):
        cursor.expect("KEY")
        found["key"] = cursor.names()
        cursor.expect(")")
    return {**found, "envelope_span": span_of(cursor.tokens[start : cursor.index])}


def _options(cursor: Cursor) -> dict[str, Any]:
    """`SNAPSHOT = false, PROGRESS, …)`: a bare name is true."""
    found: dict[str, Any] = {}
    while not cursor.at(")"):
        name = cursor.word()
        if name.name not in _OPTIONS:
            raise error(
                "INVALID_PARAMETER",
                f'SUBSCRIBE has no option "{name.name}"',
                sql=cursor.text,
                span=name.span,
                hint="The options are snapshot, progress, envelope and key.",
            )
        place = span_of(cursor.rest[1:2]) if cursor.at("=") and len(cursor.rest) > 1 else name.span
        value = read_value(cursor) if cursor.take("=") else "true"
        if name.name == "envelope":
            found |= {"envelope": _known(cursor, Name(value.lower(), place)), "envelope_span": place}
        elif name.name == "key":
            found["key"] = tuple(Name(part.strip(), place, folded=True) for part in value.split(","))
        elif value.lower() in (*_TRUE, *_FALSE):
            found[name.name] = value.lower() in _TRUE
        else:
            raise error(
                "INVALID_PARAMETER", f'{name.name} is true or false, not "{value}"', sql=cursor.text, span=place
            )
        if not cursor.take(","):
            break
    cursor.expect(")")
    return found


def _known(cursor: Cursor, name: Name) -> str:
    if name.name not in get_args(Envelope):
        raise error(
            "INVALID_PARAMETER",
            f'there is no envelope "{name.name}"',
            sql=cursor.text,
            span=name.span,
            hint="The envelopes are none, upsert and debezium.",
        )
    return name.name


@handles(SubscribeChanges)
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
