"""Topics of Kafka that statements create, use and drop, as the settings `kafka.*` and `topic.*` say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final, cast

from watersmeet.catalog import MessageFormat, Relation, TopicTable
from watersmeet.catalog.parts import Encoding
from watersmeet.connectors.kafka import cluster
from watersmeet.connectors.kafka.options import START, TOPIC_ID, kafka_options
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.transaction import if_committed
from watersmeet.dialects.tree.definitions import CreateProcessor, CreateTopic
from watersmeet.dialects.variables import KAFKA_PROPERTIES, TOPIC_CONFIGURATION
from watersmeet.errors import Error, error
from watersmeet.formats.messageparts import WINDOW, split_window

#: By the name of the option of connector kafka, where the settings differ from it.
_OPTIONS: Final = {"bootstrap.servers": "properties.bootstrap.server"}
_ON_ERROR: Final = {"continue": "skip", "fail": "stop", "dlq": "skip"}


def connector_for(session: Session, topic: str) -> dict[str, str]:
    """The options of connector kafka for a topic, by the settings; none if topics are in the database."""
    settings = session.variables
    if not settings.get("kafka.bootstrap.servers") or session.replace_connectors:
        return {}
    properties = {name: settings.get(f"kafka.{name}") for name in KAFKA_PROPERTIES}
    return {
        "connector": "kafka",
        "topic": topic,
        **{_OPTIONS.get(name, f"properties.{name}"): value for name, value in properties.items() if value},
    }


def format_for(session: Session, key_format: str, value_format: str) -> MessageFormat:
    """How the records of a topic of Kafka are written and read. INVALID_PARAMETER for AVRO without a registry."""
    settings = session.variables
    options = dict(session.semantics.message_options)
    window, key_format = split_window(key_format)
    if window is not None:
        options[WINDOW] = window
    registry = settings.get("kafka.schema.registry.url")
    if registry:
        options["schema.registry"] = registry
        for part in ("username", "password"):
            if value := settings.get(f"kafka.schema.registry.{part}"):
                options[f"schema.registry.{part}"] = value
    elif "AVRO" in (key_format, value_format):
        raise error(
            "INVALID_PARAMETER",
            "a topic of Kafka with AVRO needs a schema registry",
            hint="Write SET kafka.schema.registry.url = 'http://host:8081'.",
        )
    return MessageFormat(
        encoding=cast("Encoding", value_format.lower()),
        key_encoding=cast("Encoding", key_format.lower()),
        options=options,
    )


def setting(session: Session, topic: str, name: str) -> str:
    """The setting of one topic, else the default for all."""
    own = session.variables.get(f"topic.{topic}.{name}")
    return own or session.variables.get(f"defaults.topic.{name}")


def reading_options(session: Session) -> dict[str, str]:
    """Further options of connector kafka: where reading begins, and what becomes of records that can't be decoded."""
    return {
        "scan.startup.mode": session.variables.get("auto.offset.reset"),
        "on_error": _ON_ERROR[session.variables.get("error.policy")],
    }


def dead_letter_topic(
    session: Session, statement: CreateTopic | CreateProcessor, connector: dict[str, str]
) -> dict[str, str]:
    """The options of the topic that gets the records that can't be decoded, as the settings say; none: none does.

    INVALID_PARAMETER if the settings don't name one.
    """
    if session.variables.get("error.policy") != "dlq":
        return {}
    name = session.variables.get("dead.letter.queue")
    if not name or name == connector["topic"]:
        raise error_at(
            statement,
            statement.name_span,
            "INVALID_PARAMETER",
            "error.policy 'dlq' needs a dead-letter topic"
            if not name
            else f'topic "{name}" can\'t be its own dead-letter topic',
            hint="Write SET dead.letter.queue = 'topic'.",
        )
    return {**connector, "topic": name}


def ensure_topic(
    session: Session,
    statement: CreateTopic | CreateProcessor,
    connector: dict[str, str],
    *,
    partitions: int | None,
    replication: int | None = None,
    compacted: bool | None = None,
    is_table: bool = False,
) -> tuple[int, dict[str, str]]:
    """Creates the topic of a statement in Kafka. If it is there, it is used as it is.

    Returns how many partitions it has and, if it was created, further options of connector kafka by which all of it is
    read. partitions, replication, compacted: None as the settings say. is_table: its records
    are the changes of a table, so it is compacted unless the settings say otherwise. INVALID_PARAMETER if it is there
    with another number of partitions than the statement says; what prevents a connection.
    """
    name, properties = connector["topic"], kafka_options(connector).properties
    own = session.variables.get(f"topic.{name}.partitions")
    asked = partitions or (int(own) if own else None)
    there = cluster.partitions_of(properties, name)
    if there is None:
        wanted = asked or int(setting(session, name, "partitions"))
        copies = replication or int(setting(session, name, "replication"))
        found = {n: value for n in TOPIC_CONFIGURATION if (value := setting(session, name, n))}
        if compacted is not None:
            found["cleanup.policy"] = "compact" if compacted else "delete"
        elif is_table:
            found.setdefault("cleanup.policy", "compact")
        topic_id = cluster.create_topic(properties, name, wanted, copies, found)
        if topic_id is not None:
            return wanted, {START: json.dumps(dict.fromkeys(range(wanted), 0)), TOPIC_ID: topic_id}
        there = cluster.partitions_of(properties, name)
    if there is None:
        raise error("RUNTIME_UNAVAILABLE", f'topic "{name}" is created and deleted by somebody else')
    if asked is not None and asked != there:
        raise error_at(
            statement,
            statement.name_span,
            "INVALID_PARAMETER",
            f'topic "{name}" exists in Kafka with {there} partitions, not {asked}',
            hint=f"Leave partitions out, or write partitions={there}.",
        )
    session.notice(f'topic "{name}" exists in Kafka, with {there} partitions: it is used as it is')
    return there, {}


def undone_by_rollback(session: Session, connector: dict[str, str]) -> Callable[[], None]:
    """Deletes a topic that was created for a statement, if its transaction is rolled back.

    Returns what does it at once, for a statement that fails.
    """
    delete = _deletion(session, connector)
    transaction = session.transaction
    if transaction is not None:
        transaction.ends.callback(lambda: None if transaction.committed else delete())
    return delete


def drop_topics(session: Session, relations: Iterable[Relation]) -> None:
    """Deletes the topics of Kafka of relations that were dropped; in a transaction, when it commits."""
    for relation in relations:
        connector = topic_of(relation)
        if not connector:
            continue
        delete = _deletion(session, connector)
        transaction = session.transaction
        if transaction is None:
            delete()
        else:
            transaction.ends.callback(if_committed, transaction, delete)


def _deletion(session: Session, connector: dict[str, str]) -> Callable[[], None]:
    def delete() -> None:
        try:
            cluster.delete_topic(kafka_options(connector).properties, connector["topic"])
        except Error as err:
            session.notice(f'topic "{connector["topic"]}" stays in Kafka: {err.message}')

    return delete


def topic_of(relation: Relation) -> dict[str, str]:
    """The options of connector kafka of a topic that is in Kafka; none for other relations."""
    return relation.connector if isinstance(relation, TopicTable) else {}
