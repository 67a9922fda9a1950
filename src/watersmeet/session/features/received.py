"""CREATE SOURCE and CREATE TABLE with a connector whose broker keeps no log (MQTT).

RisingWave, "Ingest data from MQTT brokers". Both store the messages as rows (`capture.receiving`). CREATE makes the
session in which the broker keeps messages, so reading begins there.
"""

from __future__ import annotations

from watersmeet.capture.receiving import client_id, decoder_of_received
from watersmeet.catalog import ReceivedSource, ReceivedTable
from watersmeet.connectors.base.sources import Unavailable, rate_limit
from watersmeet.connectors.messages.mqtt import SOURCE_OPTIONS, MqttInbox, forget_session, mqtt_broker
from watersmeet.database.assignment import generated_columns
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.secrets import with_secrets
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.tables import CreateReceivedSource, CreateReceivedTable, check_rows
from watersmeet.dialects.tree.definitions import CreateTable
from watersmeet.errors import error
from watersmeet.session.clauses import column_defaults, event_time, with_schema_columns
from watersmeet.session.handlers import handles


@handles(CreateReceivedTable)
@handles(CreateReceivedSource)
def create_received(session: Session, statement: CreateReceivedTable | CreateReceivedSource) -> Result:
    """CREATE SOURCE or CREATE TABLE. Raises RUNTIME_UNAVAILABLE if the broker does not answer."""
    is_table = isinstance(statement, CreateTable)
    tag = Result("CREATE TABLE" if is_table else "CREATE SOURCE")
    statement = with_secrets(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return tag
    if not is_table and statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            "a source can't have a primary key",
            hint="CREATE TABLE … WITH (connector = …) keeps the last row of each key.",
        )
    statement = with_schema_columns(session, statement)
    check_columns(statement.columns, statement)
    generated, functions = generated_columns(session, statement)
    made = new_relation(
        session,
        statement,
        ReceivedTable if is_table else ReceivedSource,
        statement.columns,
        primary_key=statement.primary_key,
        append_only=statement.append_only if isinstance(statement, CreateTable) else True,
        conflict=statement.conflict if isinstance(statement, CreateTable) else None,
        options=dict(statement.options),
        format=statement.format,
        message_parts=dict(statement.message_parts),
        event_time=event_time(statement),
        defaults=column_defaults(statement),
        generated=generated,
        functions=functions,
    )
    with located(statement, statement.name_span):
        options = SOURCE_OPTIONS.read(made.options)
        options.check()
        options.needed("topic")
        mqtt_broker(options)
        rate_limit(made.options)
        if made.format is not None:
            session.require_files(made.format.options)
            check_rows(made.format, made.given, made.primary_key, made.message_parts, is_table=is_table)
        decoder_of_received(made)
    if options.choice("qos") == "exactly_once":
        session.notice("qos = exactly_once is read as at_least_once: a message may be stored twice after a failure")
    with own_transaction(session), located(statement, statement.name_span):
        if session.connectors == "used":
            _begin(session, made)
        add(session, made)
    return tag


def _begin(session: Session, made: ReceivedTable) -> None:
    """Makes the session at the broker, which ends if the transaction is rolled back."""
    named, transaction = client_id(session.database, made), session.transaction
    assert transaction is not None
    try:
        MqttInbox(made.options, named).close()
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause)) from None
    transaction.ends.callback(lambda: None if transaction.committed else forget_session(made.options, named))
