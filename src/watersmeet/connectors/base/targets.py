"""Deliveries of a catalog, and the contract of the targets to which they are written.

Only this module decides which relations of a catalog have a delivery.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import (
    KEY_COLUMN,
    RECORD_NUMBER,
    RECORD_TIME,
    TOMBSTONE,
    Catalog,
    ComputedPart,
    MaterializedView,
    Merging,
    MessageFormat,
    Pump,
    Relation,
    Sink,
    TopicWriter,
)
from watersmeet.connectors.base.options import OptionSet
from watersmeet.errors import error
from watersmeet.formats.encoders import changed_keys
from watersmeet.formats.writers import Writer
from watersmeet.values.types import BYTEA, VARCHAR, Field, Schema


@dataclass(frozen=True)
class Delivery:
    """One stream of changes out of the database, to one target.

    id: of the object in the catalog. title: its kind and name, for messages. relation: the id of the relation
    whose changes go out. columns: the first columns of that relation, under the names that they have at the target.
    key: names of the columns of the key. connector, format: see `catalog.Sink`. force_append_only: deleted rows are
    left out. message_parts: by column, the part of a message that it is, as `open_encoder` takes them. computed_parts:
    rows have their columns behind `columns`. target_id: the
    name under which the target knows this delivery and those that it has replaced; unique in the database. generation:
    see `SinkOffset`. dead_letters: the undecodable messages of the relation are delivered.
    renewal: how the user restarts it, as a sentence. merging: of rows that are only added, by the names of
    `columns`.
    """

    id: str
    title: str
    relation: str
    columns: Schema
    key: tuple[str, ...]
    connector: dict[str, str]
    format: MessageFormat
    force_append_only: bool
    target_id: str
    generation: int
    message_parts: dict[str, str] = field(default_factory=dict)
    computed_parts: tuple[ComputedPart, ...] = ()
    dead_letters: bool = False
    renewal: str = "CREATE OR REPLACE it: the new one begins with the whole content."
    merging: Merging | None = None


class SinkOffset(NamedTuple):
    """The position of a sink: the first `rows` rows of commit `commit`, and all earlier commits, are delivered.

    generation: rises when a sink restarts with the whole content; a target only keeps the newest one. last: whether
    those are all rows of that commit.
    """

    generation: int
    commit: int
    rows: int = 0
    last: bool = True


@dataclass(frozen=True)
class SinkBatch:
    """All that a commit changed of a relation, or a part of it.

    rows: columns by the delivery's names. diff: int64, how often each row came (+) or went (-); consolidated. time_us:
    of the commit, microseconds since 1970 (UTC). offset: at its end. The rows of a commit are always in the same order,
    wherever batches end. All rows of one key that a commit changed are in one batch, unless the sink only appends.
    """

    offset: SinkOffset
    rows: pa.Table
    diff: npt.NDArray[np.int64]
    time_us: int


def rows_that_came(batch: SinkBatch) -> pa.Table:
    """The inserted rows of a batch, each as often as it was inserted."""
    if (batch.diff == 1).all():
        return batch.rows
    times = np.maximum(batch.diff, 0)
    return batch.rows.take(pa.array(np.repeat(np.arange(len(times)), times)))


def newest_rows(
    batches: Sequence[SinkBatch], names: Sequence[str], keys: Writer
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """(a row for each key that changed, whether the key has no row any more).

    names: the columns. keys: encodes a key; equal keys have equal bytes. Within a batch an inserted row replaces the
    row of its key; a deletion in a later batch removes it.
    """
    rows = pa.concat_tables([p.rows.select(names) for p in batches])
    of = np.repeat(np.arange(len(batches)), [len(p.diff) for p in batches])
    changed = changed_keys(keys.write(rows), np.concatenate([p.diff for p in batches]))
    there = (changed.came >= 0) & ((changed.gone < 0) | (of[changed.came] >= of[changed.gone]))
    return rows.take(pa.array(np.where(there, changed.came, changed.first))), ~there


@dataclass(frozen=True)
class RowChange:
    """Rows of a table that a statement changes.

    key: the columns of a key without NULL, as the table calls them. keys: their values in the rows that change. rows:
    in the same order, the new values of the delivery's columns; None: the rows are deleted.
    """

    key: Schema
    keys: pa.Table
    rows: pa.Table | None


class Unavailable(OSError):  # noqa: N818 - a state of the target that passes
    """The target can't be reached, or has rejected rows for a temporary reason: the sink tries again."""


class Target(abc.ABC):
    """The external system or directory that one sink writes. Not thread-safe.

    Law: a target always contains each batch once or not at all, also after a crash between two calls: `deliver` writes
    rows and their offset in one step, and `open` returns the offset that was written last.
    """

    def look(self) -> None:  # noqa: B027 - of targets that have something to check
        """Checks that it exists and accepts the rows. Unavailable; other errors if it never will."""

    @abc.abstractmethod
    def open(self, generation: int) -> SinkOffset | None:
        """Fences all earlier writers, then returns the offset of the newest batch; None if the target has no batch.

        The offset may be one of an earlier generation. Unavailable; WRITER_FENCED if a newer generation writes there.
        """

    @abc.abstractmethod
    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        """Writes batches, in this order, and the offset of the last one. Returns when the target has acknowledged all.

        A target that can't write several in one step writes them in sequence. Unavailable: any number of the first
        batches may be written; `open` then returns the newest. WRITER_FENCED if a later writer was opened. Any other
        `Error`, such as of a row that the target never accepts, stops the sink.
        """

    def rest(self) -> None:  # noqa: B027 - of targets that buffer
        """Writes buffered rows while nothing is to be delivered. Called repeatedly. Unavailable; WRITER_FENCED."""

    def close(self) -> None:  # noqa: B027 - of targets that hold something
        """Cancels writes and releases all resources. May be called again."""


@dataclass(frozen=True)
class Connector:
    """The functions that check and open targets of one connector.

    check: of a delivery that is about to be created, raises CONNECTOR_OPTION for options that are wrong, and other
    errors for what never works. open: the target of a delivery; nothing is connected before `Target.open`. database_id:
    of the database, which no other one has. stopping: whether calls that wait should give up. remembers: the target
    keeps offsets, as its contract says. One that does not gets each batch once, and after a crash the last ones again.
    append: adds the rows of a statement, all or none; None: statements can't write there. change: changes what the
    function returns, all or none; that gets the keys of the table without NULL, as sets of names, and from its call on
    no other process changes the table. None: statements can't change its rows. options: those that users write.
    """

    check: Callable[[Delivery], None]
    open: Callable[[Delivery, str, Callable[[], bool]], Target]
    remembers: bool = True
    append: Callable[[Delivery, pa.Table], None] | None = None
    change: Callable[[Delivery, Callable[[Sequence[frozenset[str]]], RowChange]], None] | None = None
    options: OptionSet | None = None


Made = TypeVar("Made", bound=Target)


@contextmanager
def reached(hint: str) -> Iterator[None]:
    """Unavailable as RUNTIME_UNAVAILABLE with a hint: for statements, which are not tried again."""
    try:
        yield
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint=hint) from cause


def connector_for(
    make: Callable[[Delivery, str], Made],
    options: OptionSet | None,
    hint: str = "",
    *,
    remembers: bool = True,
    append: Callable[[Made, pa.Table], None] | None = None,
    change: Callable[[Made, Callable[[Sequence[frozenset[str]]], RowChange]], None] | None = None,
) -> Connector:
    """The connector of targets that wait for nothing before `Target.open`.

    make: the target of a delivery, with the id of the database; CONNECTOR_OPTION for wrong options. hint: where the
    system can't be reached. append, change: methods of the target, see `Connector`.
    """

    def checked(delivery: Delivery) -> None:
        with reached(hint):
            make(delivery, "").look()

    def appended(delivery: Delivery, rows: pa.Table) -> None:
        assert append is not None
        with reached(hint):
            append(make(delivery, ""), rows)

    def changed(delivery: Delivery, compute: Callable[[Sequence[frozenset[str]]], RowChange]) -> None:
        assert change is not None
        with reached(hint):
            change(make(delivery, ""), compute)

    return Connector(
        checked,
        lambda delivery, database_id, _: make(delivery, database_id),
        remembers,
        None if append is None else appended,
        None if change is None else changed,
        options,
    )


def check_form(delivery: Delivery) -> None:
    """CONNECTOR_OPTION for a FORMAT, of a target that writes columns."""
    form = delivery.format
    if form.rows == "debezium" or form.encoding != "json" or form.options:
        raise error(
            "CONNECTOR_OPTION",
            f"connector {delivery.connector['connector'].lower()} writes columns, not messages",
            hint="Leave FORMAT … ENCODE … out; type = 'append-only' and 'upsert' exist.",
        )


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
    """All deliveries of committed relations, without sinks of an open transaction."""
    known = catalog.relations
    sinks = [delivery_of(r) for r in known.values() if isinstance(r, Sink) and r.connector and not r.staged]
    views = [r for r in known.values() if isinstance(r, MaterializedView) and r.ready and not r.staged]
    writers = [writer_delivery(v, known[v.feeds]) for v in views if isinstance(v, TopicWriter)]
    written = [
        view_delivery(v, known[v.feeds], v.merging if isinstance(v, Pump) else None)
        for v in views
        if v.feeds in known and known[v.feeds].is_written_externally
    ]
    dead_letters = [d for r in known.values() if not r.staged and (d := dead_letter_delivery(r)) is not None]
    return [*sinks, *written, *writers, *dead_letters]


def writer_delivery(writer: Relation, topic: Relation) -> Delivery:
    """The delivery of a processor that writes a Kafka topic."""
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
    """The delivery to the dead-letter topic of a topic: key and value of each record that could not be decoded, with
    its offset and the reason as headers; None if the topic has no dead-letter topic.
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
    """The delivery of a statement that writes these columns of an external table. merging: of a MERGE."""
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
    """The delivery of a view that writes to an external relation, in the types of that relation's columns. Deletions
    are left out, as for every stream. merging: of a pump that runs a MERGE.
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
    """The options of an external relation as a target, without those for reading."""
    if stream.external is not None:
        return stream.external.target
    if stream.connector["connector"] == "rotating_file":
        return stream.connector
    return {n: v for n, v in stream.connector.items() if n in ("connector", "topic") or n.startswith("properties.")}


def delivery_of(sink: Sink) -> Delivery:
    """The delivery of a sink."""
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
