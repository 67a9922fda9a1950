"""The shared parts of systems that carry messages: the specification of a source, the rows of messages, and targets
that take messages one by one and store no offset.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.options import OptionSpec
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, SourceSpec, Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target
from watersmeet.errors import error
from watersmeet.formats.decoders import open_decoder, together
from watersmeet.formats.encoders import Destination, open_encoder
from watersmeet.formats.payloads import Decoder, Messages
from watersmeet.system.process import fault
from watersmeet.values.serialization import to_json
from watersmeet.values.slices import JumpSlice, MessageSlice
from watersmeet.values.types import Schema

#: The option of all these sources.
ON_ERROR: Final = OptionSpec(
    "on_error",
    "Whether a message that can't be decoded becomes a dead letter, or stops the source.",
    "choice",
    among=("skip", "stop"),
    default="skip",
)


@dataclass(frozen=True)
class MessageSpec(SourceSpec):
    """The specification of a source of messages.

    columns: all columns that are read from messages. key: the names of the primary key's columns. message_parts: see
    `catalog.Input`.
    """

    columns: Schema
    key: tuple[str, ...]
    format: MessageFormat
    message_parts: Mapping[str, str]

    @property
    def wants_headers(self) -> bool:
        """Whether a column has headers of messages."""
        return any(part.startswith("header") for part in self.message_parts.values())

    @property
    def wants_times(self) -> bool:
        """Whether a column has the times of messages."""
        return "timestamp" in self.message_parts.values()


def rows_of(
    batches: Iterable[Messages],
    begin: int,
    spec: MessageSpec,
    decoder: Decoder,
    empty: pa.Table,
    dead_letters: DeadLetterSink,
) -> SourceRows:
    """The rows of a slice's messages. begin: the offset from which ordinals count. empty: a table with the columns and
    no rows. Raises Unavailable if a schema registry is temporarily unavailable.
    """
    batches_read, tables, diffs, at = [], [empty], [], []
    for batch in batches:
        try:
            decoded = decoder.decode(batch)
        except OSError as cause:
            raise Unavailable(str(cause)) from cause
        _set_aside(batch, [u.place for u in decoded.unreadable], [u.reason for u in decoded.unreadable], dead_letters)
        batches_read.append(decoded)
        tables.append(decoded.table.select(empty.column_names))
        diffs.append(np.ones(len(decoded.places), np.int64) if decoded.diff is None else decoded.diff)
        at.append(batch.offsets[decoded.places] - begin)
    diff, offsets = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (diffs, at))
    table = pa.concat_tables(tables) if empty.num_columns else empty
    numbers = np.arange(len(diff))
    if spec.format.rows.startswith("debezium"):
        # A message contains one row, or a deleted row and an inserted row.
        again = np.zeros(len(offsets), np.int64)
        again[1:] = offsets[1:] == offsets[:-1]
        numbers = MessageSlice.ROWS_OF_CHANGE * offsets + again
    return SourceRows(table, numbers, diff=diff, kept=together(batches_read))


def _set_aside(batch: Messages, rows: Sequence[int], reasons: Sequence[str], dead_letters: DeadLetterSink) -> None:
    if not rows:
        return
    dead_letters.add_messages(
        batch.topic,
        batch.partition,
        batch.offsets[list(rows)].tolist(),
        reasons,
        batch.keys.take(pa.array(rows)).to_pylist(),
        batch.values.take(pa.array(rows)).to_pylist(),
    )


def rows_of_jump(
    piece: JumpSlice, reasons: Mapping[str, str], empty: pa.Table, dead_letters: DeadLetterSink
) -> SourceRows:
    """No rows, and a dead letter for the lost messages of each partition. reasons: its text by the jump's reason."""
    for partition, begin, end in piece.offsets:
        if begin < end or piece.reason == "recreated":
            dead_letters.add_lost(piece.topic, partition, begin, end, reasons[piece.reason])
    return SourceRows(empty, np.zeros(0, np.int64))


def new_decoder(spec: MessageSpec) -> Decoder:
    """A decoder of the messages of a source. Raises the errors of `open_decoder`."""
    return open_decoder(spec.columns, spec.key, spec.format, spec.message_parts)


def decoder_of(spec: MessageSpec) -> Decoder:
    """The decoder that the tasks of this process share."""
    return _opened(_Same(spec))


class _Same:
    """Makes a spec usable as a key, because specs contain dicts."""

    def __init__(self, spec: MessageSpec) -> None:
        self.spec = spec
        self._text = repr(to_json(spec))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=32)
def _opened(same: _Same) -> Decoder:
    return new_decoder(same.spec)


#: The messages that are sent before waiting for their acknowledgements.
_TOGETHER: Final = 1_000


class MessageTarget(Target):
    """See `base.targets.Target`. The system stores no offset: after a crash it receives the last batches again.

    title: the connector's name. takes: the forms of rows that it can write.
    """

    title: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, delivery: Delivery, database_id: str, topic: str) -> None:
        if delivery.format.rows not in self.takes:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"connector {self.title} of sinks with type = '{delivery.format.rows}' is not supported",
                detail="Its messages have no key, so a reader could not tell which row one changes.",
                hint="type = 'append-only' is; add force_append_only = 'true' if rows are updated or deleted.",
            )
        self._delivery = delivery
        self._name = f"{database_id}-{delivery.target_id}"
        self._encoder = open_encoder(
            delivery.columns,
            delivery.key,
            delivery.format,
            Destination(topic, "", delivery.title),
            force_append_only=delivery.force_append_only,
        )

    def look(self) -> None:
        try:
            self._connect()
        finally:
            self.close()

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - it keeps no offset
        self.close()
        self._connect()
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            encoded = self._encoder.encode(batch.rows, batch.diff, batch.time_us)
            for begin in range(0, len(encoded), _TOGETHER):
                keys, values = (c.slice(begin, _TOGETHER) for c in (encoded.keys, encoded.values))
                self._send(keys, values, f"{self._name}-{_place(batch)}-{begin}")
                fault("messages.sent")

    @abc.abstractmethod
    def _connect(self) -> None:
        """Connects, and checks that the system takes the messages. Raises Unavailable, CONNECTOR_OPTION and others."""

    @abc.abstractmethod
    def _send(self, keys: pa.BinaryArray, values: pa.BinaryArray, name: str) -> None:
        """Sends messages in order, and waits until all are acknowledged. name: the same whenever these are sent again,
        and different for others. Raises Unavailable, DELIVERY_REFUSED.
        """


def _place(batch: SinkBatch) -> str:
    """The place of a batch in the history of its relation."""
    offset = batch.offset
    return f"{offset.generation}-{offset.commit}-{offset.rows - len(batch.rows)}"
