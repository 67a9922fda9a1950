"""SUBSCRIBE name, …, RisingWave's named subscriptions with the cursors over them, and LISTEN, UNLISTEN and NOTIFY.

The clauses and envelopes of SUBSCRIBE are those of Materialize ("SUBSCRIBE"); AFTER and several relations are
Watersmeet's own. RisingWave, "Subscribe to real-time updates". PostgreSQL 17, "LISTEN", "NOTIFY": a channel
`changes of v`, which announces the changes of a relation, is Watersmeet's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, get_args

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.catalog import NamedSubscription, Relation, is_job
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.reading import readable
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.schemas import near_relations, relation_written
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.queries import QUERIES
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, read_value, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.session.handlers import handles
from watersmeet.store.checkpoints import commit_at, oldest_commit
from watersmeet.store.readers import low_water_number
from watersmeet.subscribing.forms import Envelope, Form, OperationForm, ShownUpdates, shown_columns
from watersmeet.subscribing.subscriber import refusal, subscribe
from watersmeet.subscribing.updates import CHANGES_OF, ChangesListener, channels_of, tailer_of
from watersmeet.values.times import length_text
from watersmeet.values.types import BIGINT, TIMESTAMPTZ, VARCHAR, Field, Schema


@dataclass(frozen=True)
class Beginning:
    """The start of a cursor over a subscription: with the content, with the changes from now on, with the oldest kept
    change, or with the changes from a time on (milliseconds since 1970, UTC).
    """

    kind: Literal["full", "now", "begin", "since"]
    since_ms: int = 0


def read_beginning(cursor: Cursor) -> Beginning:
    """`FULL`, `SINCE now()`, `SINCE proctime()`, `SINCE begin()`, `SINCE 1715669376304`, or nothing; to the end."""
    found = Beginning("now")
    if cursor.take("FULL"):
        found = Beginning("full")
    elif cursor.take("SINCE"):
        if cursor.take("NOW", "(", ")") or cursor.take("PROCTIME", "(", ")"):
            pass
        elif cursor.take("BEGIN", "(", ")"):
            found = Beginning("begin")
        else:
            found = Beginning("since", cursor.integer())
    cursor.end()
    return found


_TRUE: Final = ("true", "on", "1", "t", "yes")
_FALSE: Final = ("false", "off", "0", "f", "no")
_OPTIONS: Final = ("snapshot", "progress", "envelope", "key")


@dataclass(frozen=True, kw_only=True)
class SubscribeChanges(Statement):
    """`SUBSCRIBE name, … [AFTER after] [UP TO up_to] [ENVELOPE envelope (KEY (key, …))] [WITH (…)]`.

    after, up_to: commits. snapshot, progress: see `Connection.subscribe`. key: that of the envelope; empty for the
    primary key. envelope_span: that of the envelope's name.
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
    """The cursor stands after SUBSCRIBE."""
    cursor.take("TO")
    if any(cursor.at(word) for word in QUERIES):
        raise not_supported(
            "SUBSCRIBE to a query",
            cursor.text,
            span_of(cursor.rest),
            hint="Name relations: SUBSCRIBE v. A query can be a view.",
        )
    relations = [cursor.relation_name()]
    while cursor.take(","):
        relations.append(cursor.relation_name())
    clauses: dict[str, Any] = {}
    while not cursor.done:
        first = cursor.index
        for name, value in _clause(cursor).items():
            if name in clauses:
                span = span_of(cursor.tokens[first : cursor.index])
                raise cursor.error_at(span, "SYNTAX_ERROR", f"{name} is given twice")
            clauses[name] = value
    return SubscribeChanges(**base, relations=tuple(relations), **clauses)


def _clause(cursor: Cursor) -> dict[str, Any]:
    """One of the clauses after the relations."""
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
        hint = "AFTER commit begins after a commit that the program has already seen."
        raise not_supported("AS OF in SUBSCRIBE", cursor.text, span_of(cursor.rest), hint=hint)
    if cursor.at("WITHIN"):
        raise not_supported("WITHIN TIMESTAMP ORDER BY", cursor.text, span_of(cursor.rest))
    raise cursor.error(detail="AFTER, UP TO, ENVELOPE or WITH was expected here.")


def _envelope(cursor: Cursor, start: int) -> dict[str, Any]:
    """`UPSERT (KEY (a, b))`: the cursor stands after ENVELOPE."""
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
            raise cursor.error_at(
                name.span,
                "INVALID_PARAMETER",
                f'SUBSCRIBE has no option "{name.name}"',
                hint="The options are snapshot, progress, envelope and key.",
            )
        span = span_of(cursor.rest[1:2]) if cursor.at("=") and len(cursor.rest) > 1 else name.span
        value = read_value(cursor) if cursor.take("=") else "true"
        if name.name == "envelope":
            found |= {"envelope": _known(cursor, Name(value.lower(), span)), "envelope_span": span}
        elif name.name == "key":
            found["key"] = tuple(Name(part.strip(), span, folded=True) for part in value.split(","))
        elif value.lower() in (*_TRUE, *_FALSE):
            found[name.name] = value.lower() in _TRUE
        else:
            raise cursor.error_at(span, "INVALID_PARAMETER", f'{name.name} is true or false, not "{value}"')
        if not cursor.take(","):
            break
    cursor.expect(")")
    return found


def _known(cursor: Cursor, name: Name) -> str:
    if name.name not in get_args(Envelope):
        raise cursor.error_at(
            name.span,
            "INVALID_PARAMETER",
            f'there is no envelope "{name.name}"',
            hint="The envelopes are none, upsert and debezium.",
        )
    return name.name


@handles(SubscribeChanges)
def subscribe_statement(session: Session, statement: SubscribeChanges) -> Result:
    """SUBSCRIBE: runs until its cursor is closed, or up to the commit of UP TO."""
    form = _form(session, statement)
    with located(statement, statement.relations[0].span):
        subscriber = subscribe(
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
    """The columns of the rows of SUBSCRIBE, without starting it."""
    return _form(session, statement).columns


def _form(session: Session, statement: SubscribeChanges) -> Form:
    relations = tuple(session.relation(name, statement) for name in statement.relations)
    if statement.envelope == "none":
        return Form(relations, progress=statement.progress)
    if len(relations) > 1:
        raise not_supported(
            "an envelope of several relations",
            statement.text,
            statement.envelope_span,
            hint="Without an envelope, changed rows are JSON.",
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
    """Raises UNDEFINED_COLUMN."""
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


@dataclass(frozen=True, kw_only=True)
class CreateSubscription(Create):
    """`CREATE SUBSCRIPTION name FROM source WITH (retention = '1D')`. options: names in lower case."""

    makes: ClassVar[type[Relation]] = NamedSubscription

    source: Name
    options: Mapping[str, str]
    options_span: Span


@dataclass(frozen=True, kw_only=True)
class AlterRetention(Statement):
    """`ALTER SUBSCRIPTION name SET retention = value`. value_span: that of the setting's value."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name
    retention: str
    value_span: Span
    if_exists: bool = False


@reads("CREATE SUBSCRIPTION", own="subscription")
def read_create_subscription(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after CREATE SUBSCRIPTION."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("FROM")
    source = cursor.relation_name()
    start = cursor.index
    options = read_options(cursor) if cursor.take("WITH") else {}
    cursor.end()
    span = span_of(cursor.tokens[start:]) if options else name.span
    return CreateSubscription(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        source=source,
        options=options,
        options_span=span,
    )


@reads("ALTER SUBSCRIPTION", own="subscription")
def read_retention(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """`ALTER SUBSCRIPTION [IF EXISTS] name SET retention = value`; None if something else follows the name."""
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    start = cursor.index
    if not cursor.take("SET", "RETENTION"):
        return None
    if not cursor.take("TO"):
        cursor.expect("=")
    value = read_value(cursor)
    span = span_of(cursor.tokens[start + 1 : cursor.index])
    cursor.end()
    return AlterRetention(**base, name=name, retention=value, value_span=span, if_exists=if_exists)


_SHOWN: Final[Schema] = (
    Field("Name", VARCHAR, nullable=False),
    Field("Relation", VARCHAR, nullable=False),
    Field("Retention", VARCHAR, nullable=False),
    Field("Oldest_commit", BIGINT),
    Field("Oldest_time", TIMESTAMPTZ),
    Field("Kept_rows", BIGINT),
    Field("Kept_bytes", BIGINT),
)


@handles(CreateSubscription)
def create_subscription(session: Session, statement: CreateSubscription) -> Result:
    """CREATE SUBSCRIPTION. From now on the changes of the relation are kept."""
    command = "CREATE SUBSCRIPTION"
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result(command)
    if wrong := [n for n in statement.options if n != "retention"]:
        raise error_at(
            statement,
            statement.options_span,
            "CONNECTOR_OPTION",
            f'a subscription has no option "{wrong[0]}"',
            hint="Write WITH (retention = '1D').",
        )
    if "retention" not in statement.options:
        raise error_at(
            statement,
            statement.options_span,
            "CONNECTOR_OPTION",
            "a subscription needs the option retention",
            hint="Write WITH (retention = '1D').",
        )
    retention_us = _length_us(statement, statement.options["retention"], statement.options_span)
    source = session.relation(statement.source, statement)
    if is_job(source) and not source.staged:
        raise undefined_relation(readable(session.catalog), statement.source, statement)
    if source.ready and (refused := refusal(replace(source, staged=False))) is not None:
        refused.sql, refused.span = statement.text, statement.source.span
        raise refused
    made = new_relation(
        session,
        statement,
        NamedSubscription,
        (),
        depends_on=(source.id,),
        retention_us=retention_us,
        begun=session.database.log.head(),
    )
    add(session, made)
    return Result(command)


@handles(AlterRetention)
def alter_retention(session: Session, statement: AlterRetention) -> Result:
    """ALTER SUBSCRIPTION … SET retention. Deleted history is not restored."""
    session.require_definer("ALTER SUBSCRIPTION")
    if session.find(statement.name) is None and statement.if_exists:
        session.notice(f'subscription "{statement.name.shown}" does not exist, skipping')
        return Result("ALTER SUBSCRIPTION")
    found = _named(session, statement.name, statement)
    retention_us = _length_us(statement, statement.retention, statement.value_span)
    session.put(replace(found, retention_us=retention_us))
    return Result("ALTER SUBSCRIPTION")


def show_subscriptions(session: Session, subscriptions: Sequence[Relation]) -> Result:
    """The subscriptions with their history: the oldest commit after which a cursor can begin, and the changes since
    then.
    """
    known, log = session.catalog.relations, session.database.log
    rows: list[tuple[Any, ...]] = []
    for found in subscriptions:
        if isinstance(found, NamedSubscription):
            oldest = _oldest(session, found)
            changes = [
                change
                for number in range(oldest + 1, log.head() + 1)
                if (change := log.read(number).relations.get(found.depends_on[0])) is not None
            ]
            rows.append(
                (
                    found.name,
                    known[found.depends_on[0]].shown,
                    length_text(found.retention_us),
                    oldest,
                    log.read(oldest).time_us if oldest else None,
                    sum(c.inserted_rows + c.deleted_rows for c in changes),
                    sum(c.size_bytes for c in changes),
                )
            )
    return typed_result("SHOW", _SHOWN, rows)


def subscription_rows(session: Session, name: Name, beginning: Beginning, text: str) -> Result:
    """The rows of a cursor over a subscription. Raises UNDEFINED_OBJECT; HISTORY_GONE for a time without kept
    changes.
    """
    statement = Statement(text=text, sql=text, span=name.span)
    found = _named(session, name, statement)
    relation = session.catalog.relations[found.depends_on[0]]
    after: int | None = None
    if beginning.kind == "begin":
        after = _oldest(session, found)
    elif beginning.kind == "since":
        log, low_water = session.database.log, low_water_number(session.database.layout)
        after = max(commit_at(log, beginning.since_ms * 1000 - 1, low_water), low_water)
        if after < found.begun and beginning.since_ms * 1000 <= log.read(found.begun).time_us:
            raise error(
                "HISTORY_GONE",
                f'subscription "{found.shown}" begins later than {beginning.since_ms}',
                detail=f"It was created at {log.read(found.begun).time_us // 1000}.",
                hint="SINCE begin() begins with the oldest kept change.",
                sql=text,
                span=name.span,
            )
    form = OperationForm(relation)
    subscriber = subscribe(session, [relation], after=after, snapshot=beginning.kind == "full")
    shown = ShownUpdates(session, subscriber, form)
    return Result("DECLARE", shown.columns, running=shown)


def _oldest(session: Session, found: NamedSubscription) -> int:
    """The oldest commit after which a cursor over the subscription can begin."""
    log = session.database.log
    kept = commit_at(log, time.time_ns() // 1000 - found.retention_us, low_water_number(session.database.layout))
    oldest = oldest_commit(session.database.layout, log)
    return max(kept, found.begun, 0 if oldest is None else oldest.number)


def _named(session: Session, name: Name, statement: Statement) -> NamedSubscription:
    found = session.find(name)
    if isinstance(found, NamedSubscription):
        return found
    known = [r.shown for r in session.catalog.shown if isinstance(r, NamedSubscription)]
    raise error_at(
        statement,
        name.span,
        "UNDEFINED_OBJECT",
        f'subscription "{name.shown}" does not exist',
        hint=did_you_mean(name.shown, known) or "SHOW SUBSCRIPTIONS lists them.",
    )


def _length_us(statement: Statement, value: str, span: Span) -> int:
    length = timeout_us(value)
    if length is None:
        raise error_at(
            statement,
            span,
            "INVALID_PARAMETER",
            f'retention can\'t be "{value}"',
            hint="Write a length of time, such as '1D' or '36 hours'.",
        )
    return length


#: The maximum bytes of the name of a channel, and of a payload.
_CHANNEL_BYTES: Final = 63
_PAYLOAD_BYTES: Final = 7999


@dataclass(frozen=True, kw_only=True)
class Listen(Statement):
    """`LISTEN channel`, or `UNLISTEN {channel | *}`. channel: None for all."""

    takes: ClassVar[str | None] = None

    channel: Name | None
    stops: bool = False


@dataclass(frozen=True, kw_only=True)
class Notify(Statement):
    """`NOTIFY channel [, 'payload']`."""

    takes: ClassVar[str | None] = None

    channel: str
    payload: str = ""


@reads("LISTEN")
def read_listen(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after LISTEN."""
    channel = _read_channel(cursor)
    cursor.end()
    return Listen(**base, channel=channel)


def _read_channel(cursor: Cursor) -> Name:
    """Reads the name of a channel, of which only the first bytes count, as of all names in PostgreSQL."""
    name = cursor.name()
    return replace(name, name=name.name.encode()[:_CHANNEL_BYTES].decode(errors="ignore"))


@reads("UNLISTEN")
def read_unlisten(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after UNLISTEN."""
    channel = None if cursor.take("*") else _read_channel(cursor)
    cursor.end()
    return Listen(**base, channel=channel, stops=True)


@reads("NOTIFY")
def read_notify(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after NOTIFY."""
    channel = _read_channel(cursor).name
    payload = cursor.string() if cursor.take(",") else ""
    cursor.end()
    return Notify(**base, channel=channel, payload=payload)


@handles(Listen)
def listen(session: Session, statement: Listen) -> Result:
    """LISTEN and UNLISTEN. In a transaction, they take effect at COMMIT.

    Raises UNDEFINED_RELATION, FEATURE_NOT_SUPPORTED, PERMISSION_DENIED for the changes of a relation.
    """
    inbox, channel = session.inbox, statement.channel
    command = "UNLISTEN" if statement.stops else "LISTEN"
    if inbox is None:
        hint = "In Python, connection.subscribe(…) receives changes. Clients of a server can listen."
        raise not_supported(command, statement.text, statement.span, hint=hint)
    channels = channels_of(session.database)
    if statement.stops or channel is None:
        _at_commit(session, lambda: channels.unlisten(inbox, None if channel is None else channel.name))
        return Result(command)
    if not channel.name.startswith(CHANGES_OF):
        session.require_writer(command)  # notifications reach the clients of one process
        _check_channel(channel.name)
        _at_commit(session, lambda: channels.listen(inbox, channel.name))
        return Result(command)
    found = channel.name.removeprefix(CHANGES_OF)
    relation = relation_written(session.catalog, found)
    if relation is None:
        near = near_relations(session.catalog, found, None)
        message = f'relation "{found}" does not exist'
        raise error_at(statement, channel.span, "UNDEFINED_RELATION", message, hint=near)
    session.require("SELECT", relation, statement.text)
    if (refused := refusal(relation)) is not None:
        refused.sql, refused.span = statement.text, channel.span
        raise refused
    listener, tailer = ChangesListener(inbox, channel.name, relation), tailer_of(session.database)

    def follow() -> None:
        tailer.join(listener)
        channels.listen(inbox, channel.name, lambda: tailer.leave(listener))

    _at_commit(session, follow)
    return Result(command)


def _at_commit(session: Session, action: Callable[[], None]) -> None:
    if session.transaction is None:
        action()
    else:
        session.transaction.listens.append(action)


def _check_channel(name: str) -> None:
    if not name:
        raise error("INVALID_PARAMETER", "channel name cannot be empty")
    if len(name.encode()) > _CHANNEL_BYTES:
        raise error("INVALID_PARAMETER", "channel name too long")


@handles(Notify)
def run_notify(session: Session, statement: Notify) -> Result:
    """NOTIFY."""
    with located(statement, statement.span):
        notify(session, statement.channel, statement.payload)
    return Result("NOTIFY")


def notify(session: Session, channel: str, payload: str) -> None:
    """Sends a notification to all clients of this process that listen to a channel; in a transaction at COMMIT.

    Raises INVALID_PARAMETER, READ_ONLY_SESSION.
    """
    session.require_writer("NOTIFY")
    _check_channel(channel)
    if channel.startswith(CHANGES_OF):
        raise error("INVALID_PARAMETER", f'only changes of a relation are announced on "{channel}"')
    if len(payload.encode()) > _PAYLOAD_BYTES:
        raise error("INVALID_PARAMETER", "payload string too long")
    sender = 0 if session.inbox is None else session.inbox.process

    def send() -> None:
        channels_of(session.database).notify(sender, channel, payload)

    if session.transaction is None:
        send()
    else:
        session.transaction.notifications.setdefault((channel, payload), send)
