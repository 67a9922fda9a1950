"""What the sources of all systems that carry messages share: their specification, and the rows of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, SourceSpec, Unavailable
from watersmeet.formats.decoders import open_decoder, together
from watersmeet.formats.payloads import Decoder, Messages
from watersmeet.values.serialization import to_json
from watersmeet.values.slices import MessageSlice
from watersmeet.values.types import Schema


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
