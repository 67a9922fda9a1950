"""What a catalog delivers. No other module knows what in a catalog is delivered."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import (
    KEY_COLUMN,
    RECORD_NUMBER,
    RECORD_TIME,
    TOMBSTONE,
    Catalog,
    MaterializedView,
    Merging,
    MessageFormat,
    Pump,
    Relation,
    Sink,
    TopicWriter,
)
from watersmeet.connectors.base.targets import Delivery
from watersmeet.values.types import BYTEA, VARCHAR, Field, Schema

#: By column of a topic, the part of a message that it is.
_RECORD_PARTS: Final = {
    KEY_COLUMN: "key",
    RECORD_TIME: "timestamp",
    TOMBSTONE: "tombstone",
    RECORD_NUMBER: "offset",
}
#: The part of a message that is never written.
_UNWRITTEN: Final = "offset"
#: A record that could not be decoded.
_DEAD_LETTER: Final[Schema] = (
    Field("key", BYTEA),
    Field("value", BYTEA),
    *(Field(name, VARCHAR) for name in ("topic", "partition", "offset", "reason")),
)
_DEAD_LETTER_PARTS: Final = {"key": "key", **{c.name: f"header:{c.name}" for c in _DEAD_LETTER[2:]}}


def deliveries(catalog: Catalog) -> list[Delivery]:
    """All deliveries of what is committed; a sink that an open transaction has made is not among them."""
    known = catalog.relations
    sinks = [delivery_of(r) for r in known.values() if isinstance(r, Sink) and r.connector and not r.staged]
    views = [r for r in known.values() if isinstance(r, MaterializedView) and r.ready and not r.staged]
    writers = [writer_delivery(v, known[v.feeds]) for v in views if isinstance(v, TopicWriter)]
    written = [
        view_delivery(v, known[v.feeds], v.merging if isinstance(v, Pump) else None)
        for v in views
        if v.feeds in known and known[v.feeds].is_written_outside
    ]
    dead_letters = [d for r in known.values() if not r.staged and (d := dead_letter_delivery(r)) is not None]
    return [*sinks, *written, *writers, *dead_letters]


def writer_delivery(writer: Relation, topic: Relation) -> Delivery:
    """What a processor delivers that writes a topic of Kafka."""
    return Delivery(
        writer.id,
        writer.title,
        writer.id,
        writer.columns,
        (),
        written_to(topic),
        topic.format or MessageFormat(),
        force_append_only=False,
        target_id=writer.id,
        generation=1,
        message_parts=_RECORD_PARTS,
        renewal="STOP PROCESSOR and start it again: it begins with the whole content.",
    )


def dead_letter_delivery(relation: Relation) -> Delivery | None:
    """What goes to the dead-letter topic of a topic: the key and value of each record that could not be decoded, its
    place and the reason as headers; None for others.
    """
    topic = relation.topic
    if topic is None or not topic.dead_letters or not relation.connector:
        return None
    return Delivery(
        relation.id,
        f"the dead-letter topic of {relation.title}",
        relation.id,
        _DEAD_LETTER,
        (),
        {**written_to(relation), "topic": topic.dead_letters},
        MessageFormat(encoding="bytes", key_encoding="bytes"),
        force_append_only=False,
        target_id=relation.id,
        generation=1,
        message_parts=_DEAD_LETTER_PARTS,
        dead_letters=True,
        renewal="DROP TABLE the topic that is read, and create it again.",
    )


def statement_delivery(relation: Relation, columns: Schema, merging: Merging | None = None) -> Delivery:
    """What a statement writes to these columns of an external table. merging: of a MERGE."""
    assert relation.external is not None
    return Delivery(
        relation.id,
        relation.title,
        relation.id,
        relation.external.named(columns),
        (),
        written_to(relation),
        relation.format or MessageFormat(),
        force_append_only=True,
        target_id=relation.id,
        generation=1,
        merging=_merging_there(relation, merging),
    )


def view_delivery(view: Relation, stream: Relation, merging: Merging | None = None) -> Delivery:
    """What a view delivers that writes to a relation outside of the database, in the types of its columns. Rows
    that go are left out, as they are of what is written to any stream. merging: of a pump that runs a MERGE.
    """
    there = {c.name: c for c in stream.columns}
    columns = tuple(replace(c, type=there.get(c.name, c).type) for c in view.columns)
    parts = {c.name: stream.message_parts.get(c.name, "" if c.name in there else _UNWRITTEN) for c in view.columns}
    return Delivery(
        view.id,
        view.title,
        view.id,
        columns if stream.external is None else stream.external.named(columns),
        (),
        written_to(stream),
        stream.format or MessageFormat(),
        force_append_only=True,
        target_id=view.id,
        generation=1,
        message_parts={name: part for name, part in parts.items() if part},
        computed_parts=stream.computed_parts,
        merging=_merging_there(stream, merging),
    )


def _merging_there(relation: Relation, merging: Merging | None) -> Merging | None:
    """The same, by the names that the columns have outside of the database."""
    if merging is None or relation.external is None:
        return merging
    names = relation.external.names
    key, updated = (tuple(names.get(n, n) for n in part) for part in (merging.key, merging.updated))
    return Merging(key, updated)


def written_to(stream: Relation) -> dict[str, str]:
    """The options of the target that a relation outside of the database is: those that do not say how it is read."""
    if stream.external is not None:
        return stream.external.target
    if stream.connector["connector"] == "rotating_file":
        return stream.connector
    return {n: v for n, v in stream.connector.items() if n in ("connector", "topic") or n.startswith("properties.")}


def delivery_of(sink: Sink) -> Delivery:
    """What a sink delivers."""
    return Delivery(
        sink.id,
        sink.title,
        sink.delivers,
        sink.columns,
        sink.primary_key,
        sink.connector,
        sink.format,
        sink.force_append_only,
        sink.target_id,
        sink.generation,
    )
