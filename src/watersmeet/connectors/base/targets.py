"""The deliveries of a catalog, and the contract of the targets that receive them.

Only this module determines which relations of a catalog have a delivery.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

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
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.errors import error
from watersmeet.formats.writers import Writer
from watersmeet.system.process import lazy_import
from watersmeet.values.types import BYTEA, VARCHAR, Field, Schema

if TYPE_CHECKING:
    from watersmeet.formats import encoders
else:
    encoders = lazy_import("watersmeet.formats.encoders")


@dataclass(frozen=True)
class Delivery:
    """A stream of changes from the database to one target.

    id: the id of the object in the catalog. title: its kind and name for messages. relation: the id of the relation
    whose changes are delivered. columns: the first columns of this relation, with their names in the target. key: the
    names of the key's columns. connector, format: see `catalog.Sink`. force_append_only: whether deleted rows are
    omitted. message_parts: the part of a message in each column, see `open_encoder`. computed_parts: their columns
    follow `columns` in the rows. target_id: the name by which the target identifies this delivery and its predecessors;
    unique in the database. generation: see `SinkOffset`. dead_letters: whether the undecodable messages of the relation
    are delivered. renewal: a sentence that tells the user how to restart it. merging: the rule for rows with existing
    keys, by the names in `columns`. conflicts: see `catalog.Sink`.
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
    conflicts: str = ""


class SinkOffset(NamedTuple):
    """The position of a sink: all earlier commits and the first `rows` rows of commit `commit` are delivered.

    generation: increases when a sink restarts with the whole content; a target only keeps the newest generation. last:
    whether these are all rows of the commit.
    """

    generation: int
    commit: int
    rows: int = 0
    last: bool = True


@dataclass(frozen=True)
class SinkBatch:
    """The changes of a relation by one commit, or a part of them.

    rows: columns by the delivery's names. diff: int64, the number of insertions (+) or deletions (-) of each row,
    consolidated. time_us: the time of the commit, in microseconds since 1970 (UTC). offset: the offset at the end of
    the batch. The rows of a commit always have the same order, regardless of batches. All changed rows of a key in a
    commit are in one batch, unless the sink only appends.
    """

    offset: SinkOffset
    rows: pa.Table
    diff: npt.NDArray[np.int64]
    time_us: int


def rows_that_came(batch: SinkBatch) -> pa.Table:
    """The inserted rows of a batch, repeated as often as they were inserted."""
    if (batch.diff == 1).all():
        return batch.rows
    times = np.maximum(batch.diff, 0)
    return batch.rows.take(pa.array(np.repeat(np.arange(len(times)), times)))


def newest_rows(
    batches: Sequence[SinkBatch], names: Sequence[str], keys: Writer
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """A row for each changed key, and whether the row of the key was deleted.

    names: the columns of the key. keys: encodes a key; equal keys have equal bytes. Within a batch an inserted row
    replaces the row of its key; a deletion in a later batch removes it.
    """
    rows = pa.concat_tables([p.rows.select(names) for p in batches])
    of = np.repeat(np.arange(len(batches)), [len(p.diff) for p in batches])
    changed = encoders.changed_keys(keys.write(rows), np.concatenate([p.diff for p in batches]))
    there = (changed.came >= 0) & ((changed.gone < 0) | (of[changed.came] >= of[changed.gone]))
    return rows.take(pa.array(np.where(there, changed.came, changed.first))), ~there


@dataclass(frozen=True)
class RowChange:
    """Rows of a table that a statement changes.

    key: the table's names of the columns of a key without NULL. keys: their values in the changed rows. rows: the new
    values of the delivery's columns, in the same order; None: the rows are deleted.
    """

    key: Schema
    keys: pa.Table
    rows: pa.Table | None


class Target(abc.ABC):
    """The external system or directory that a sink writes. Not thread-safe.

    Law: a target always contains each batch exactly once or not at all, even after a crash between two calls: `deliver`
    writes rows and their offset atomically, and `open` returns the last written offset.
    """

    def look(self) -> None:  # noqa: B027 - of targets that have something to check
        """Checks that the target exists and accepts the rows. Raises Unavailable, or another error if it never will."""

    @abc.abstractmethod
    def open(self, generation: int) -> SinkOffset | None:
        """Fences off all earlier writers, then returns the offset of the newest batch; None if the target has no batch.

        The offset may belong to an earlier generation. Raises Unavailable, or WRITER_FENCED if a newer generation
        writes.
        """

    @abc.abstractmethod
    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        """Writes batches in order, and the offset of the last one. Returns when the target has acknowledged all.

        A target that can't write several batches atomically writes them in sequence. After Unavailable any number of
        the first batches may be written; `open` then returns the offset of the newest. Raises WRITER_FENCED if a later
        writer was opened. Any other `Error`, for example for a row that the target never accepts, stops the sink.
        """

    def rest(self) -> None:  # noqa: B027 - of targets that buffer
        """Writes buffered rows; called repeatedly while no batch is pending. Raises Unavailable, WRITER_FENCED."""

    def close(self) -> None:  # noqa: B027 - of targets that hold something
        """Cancels writes and releases all resources. May be called again."""


@dataclass(frozen=True)
class Connector:
    """The functions that check and open targets of a connector.

    check: checks a delivery before it is created; raises CONNECTOR_OPTION for invalid options, and other errors if it
    can never work. open: returns the target of a delivery, which connects in `Target.open`. database_id: the unique id
    of the database. stopping: returns whether waiting calls should give up. remembers: whether the target stores
    offsets as its contract requires; otherwise it receives each batch once, but after a crash the last batches again.
    append: adds the rows of a statement atomically; None: statements can't write. change: applies the changes that a
    function returns, atomically. The function receives the table's keys without NULL as sets of names; from its call on
    no other process can change the table. None: statements can't change rows. options: the options that users write.
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
    """Turns Unavailable into RUNTIME_UNAVAILABLE with a hint for statements, which are not repeated."""
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
    """A connector whose targets do not block before `Target.open`.

    make: returns the target of a delivery, given the id of the database; raises CONNECTOR_OPTION for invalid options.
    hint: the hint if the system is unavailable. append, change: methods of the target, see `Connector`.
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
    """Raises CONNECTOR_OPTION for a FORMAT, which a target that writes columns can't have."""
    form = delivery.format
    if form.rows == "debezium" or form.encoding != "json" or form.options:
        raise error(
            "CONNECTOR_OPTION",
            f"connector {delivery.connector['connector'].lower()} writes columns, not messages",
            hint="Leave FORMAT … ENCODE … out; type = 'append-only' and 'upsert' exist.",
        )


#: The parts of a message by the topic columns that hold them.
_RECORD_PARTS: Final = {
    KEY_COLUMN: "key",
    RECORD_TIME: "timestamp",
    TOMBSTONE: "tombstone",
    RECORD_NUMBER: "offset",
}

#: The part of a message that is never written.
_UNWRITTEN: Final = "offset"

#: The columns of an undecodable record.
_DEAD_LETTER: Final[Schema] = (
    Field("key", BYTEA),
    Field("value", BYTEA),
    *(Field(name, VARCHAR) for name in ("topic", "partition", "offset", "reason")),
)

_DEAD_LETTER_PARTS: Final = {"key": "key", **{c.name: f"header:{c.name}" for c in _DEAD_LETTER[2:]}}


def deliveries(catalog: Catalog) -> list[Delivery]:
    """All deliveries of committed relations, without the sinks of an open transaction."""
    known = catalog.relations
    sinks = [delivery_of(r) for r in known.values() if isinstance(r, Sink) and r.connector and not r.staged]
    views = [r for r in known.values() if isinstance(r, MaterializedView) and r.ready and not r.staged]
    writers = [
        writer_delivery(v, known[v.feeds]) for v in views if isinstance(v, TopicWriter) and known[v.feeds].connector
    ]
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
        force_append_only=True,
        target_id=_first_of(writer),
        generation=1,
        message_parts=_RECORD_PARTS,
        renewal="STOP PROCESSOR and start it again: it begins with the whole content.",
    )


def dead_letter_delivery(relation: Relation) -> Delivery | None:
    """The delivery to the dead-letter topic of a topic: key and value of each undecodable record, with its offset and
    the reason as headers; None if the topic has no dead-letter topic.
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
    """The delivery of a statement that writes some columns of an external table. merging: the rule of a MERGE."""
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
    """The delivery of a view that writes to an external relation, in the types of the relation's columns. Deletions are
    omitted, as for every stream. merging: the rule of a pump that runs a MERGE.
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
        target_id=_first_of(view),
        generation=1,
        message_parts={name: part for name, part in parts.items() if part},
        computed_parts=stream.computed_parts,
        merging=_merging_there(stream, merging),
    )


def _first_of(view: Relation) -> str:
    """The id of the first view of a delivery, which later views may have continued."""
    return (isinstance(view, MaterializedView) and view.delivered_as) or view.id


def _merging_there(relation: Relation, merging: Merging | None) -> Merging | None:
    """The rule with the external names of the columns."""
    if merging is None or relation.external is None:
        return merging
    names = relation.external.names
    key, updated = (tuple(names.get(n, n) for n in part) for part in (merging.key, merging.updated))
    return Merging(key, updated)


def written_to(stream: Relation) -> dict[str, str]:
    """The options of an external relation as a target, without the options for reading."""
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
        conflicts=sink.conflicts,
    )
