"""Messages of topics, and the contracts of their decoders and of the readers of payloads (keys and values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.formats.scalars import Converted, Mask
from watersmeet.values.types import Field, SqlType

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of one partition of a topic, in the order of their offsets.

    keys, values: binary; NULL is a message without one (a tombstone has no value). offsets: int64, rising, with gaps.
    times_ms: milliseconds since 1970 (UTC), -1 where the message has none; None if nobody asked for them. headers:
    list<struct<key: string, value: binary>>, NULL for messages without; None if nobody asked for them.
    """

    topic: str
    partition: int
    keys: pa.BinaryArray
    values: pa.BinaryArray
    offsets: Numbers
    times_ms: Numbers | None
    headers: pa.ListArray | None = None

    def __len__(self) -> int:
        return len(self.offsets)


class Unreadable(NamedTuple):
    """A message that can't be decoded. place: its place in the batch."""

    place: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The rows of messages.

    table: all columns of the relation that come from messages, by name, in the Arrow types of their SQL types. places:
    int64, not falling: for each row the place of its message in the batch. diff: int64: 1 for a row that is there now,
    -1 for one that is gone, of which only the columns of the primary key count; None: all are 1. unreadable: rising by
    place; these messages have no row. kept: list<string>: by row, the columns whose values the message lacks because
    they did not change; an empty list with diff -1: all rows are gone. None: all are NULL.
    """

    table: pa.Table
    places: Numbers
    diff: Numbers | None = None
    unreadable: Sequence[Unreadable] = ()
    kept: pa.ListArray | None = None


class Decoder(Protocol):
    """From messages to rows.

    Law: what it gives for a message depends on that message alone, and on schemas that never change once they have an
    id; a batch that is decoded again, or cut otherwise, gives the same rows.
    """

    def decode(self, messages: Messages) -> Decoded:
        """The rows of `messages`. Bad messages are `unreadable`, never an error.

        Raises OSError if a schema can't be fetched for now (it is tried again), an `Error` if it can't ever be used.
        """


@dataclass(frozen=True)
class Read:
    """The rows of payloads.

    columns: one for each field that the reader has. places: int64, not falling: for each row the place of its payload.
    reasons: by place, why a payload has no rows.
    """

    columns: Sequence[Converted]
    places: Numbers
    reasons: Mapping[int, str] = field(default_factory=dict)


class PayloadReader(Protocol):
    """From payloads to rows."""

    def read(self, payloads: pa.BinaryArray) -> Read:
        """The rows of payloads, of which none is NULL. Raises as `Decoder.decode` does."""


def nothing(fields: Sequence[Field], reasons: Mapping[int, str] | None = None) -> Read:
    """No rows."""
    return Read([Converted(pa.array([], f.type.arrow)) for f in fields], np.zeros(0, np.int64), reasons or {})


def as_texts(payloads: pa.BinaryArray) -> tuple[pa.StringArray, Mask]:
    """(the payloads as text, which of them are UTF-8). What is no text is an empty one."""
    good = np.ones(len(payloads), np.bool_)
    try:
        return payloads.cast(pa.string()), good
    except pa.ArrowInvalid:
        pass
    for i, payload in enumerate(payloads):
        try:
            payload.as_buffer().to_pybytes().decode()
        except UnicodeDecodeError:
            good[i] = False
    return pc.if_else(pa.array(good), payloads, pa.scalar(b"", pa.binary())).cast(pa.string()), good


def without_head(payloads: pa.BinaryArray, size_bytes: int) -> pa.BinaryArray:
    """Payloads, of which none is NULL, without their first bytes. (Arrow's own function fails for long texts.)"""
    if not len(payloads):
        return payloads
    _, offsets, data = payloads.buffers()
    ends = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    bounds = np.empty(2 * len(payloads), np.int32)
    bounds[0::2] = np.minimum(ends[:-1] + np.int32(size_bytes), ends[1:])
    bounds[1::2] = ends[1:]
    # Every other piece is what lies between two bodies.
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(payloads) - 1, [None, pa.py_buffer(bounds), data])
    return pieces.take(pa.array(np.arange(0, 2 * len(payloads), 2)))


def of_rows(column: pa.Array, rows: Mask | Numbers) -> pa.Array:
    """Some rows of a column, by a mask or by places."""
    return column.filter(pa.array(rows)) if rows.dtype == np.bool_ else column.take(pa.array(rows))


def cut_rows(read: Read, keep: Mask) -> Read:
    """Only the rows to keep."""
    if keep.all():
        return read
    columns = [Converted(of_rows(c.column, keep), None if c.bad is None else c.bad[keep]) for c in read.columns]
    return Read(columns, read.places[keep], read.reasons)


def moved(read: Read, places: Numbers) -> Read:
    """The same rows, of payloads that are at `places` among others."""
    return Read(read.columns, places[read.places], {int(places[i]): why for i, why in read.reasons.items()})


def joined(reads: Sequence[Read], fields: Sequence[Field]) -> Read:
    """Rows of several sets of payloads that are not in order, by place."""
    if len(reads) == 1:
        return reads[0]
    places = np.concatenate([np.zeros(0, np.int64), *(r.places for r in reads)])
    order = np.argsort(places, kind="stable")
    columns = []
    for i, column in enumerate(fields):
        parts = [r.columns[i] for r in reads]
        values = pa.concat_arrays([pa.array([], column.type.arrow), *(p.column for p in parts)]).take(pa.array(order))
        bad = None
        if any(p.bad is not None for p in parts):
            bad = np.concatenate([np.zeros(len(p.column), np.bool_) if p.bad is None else p.bad for p in parts])[order]
        columns.append(Converted(values, bad))
    return Read(columns, places[order], {i: why for r in reads for i, why in r.reasons.items()})


def spread(found: Converted, places: Numbers, count: int) -> Converted:
    """A column of `count` rows that has the values at `places`, NULL elsewhere."""
    at = np.full(count, -1, np.int64)
    at[places] = np.arange(len(places))
    bad = None
    if found.bad is not None:
        bad = np.zeros(count, np.bool_)
        bad[places] = found.bad
    return Converted(found.column.take(pa.array(at, mask=at < 0)), bad)


def first_of(first: Converted, second: Converted) -> Converted:
    """The first value, or else the second."""
    there = first.column.is_valid().to_numpy(zero_copy_only=False)
    first_bad = np.zeros(len(there), np.bool_) if first.bad is None else first.bad
    second_bad = np.zeros(len(there), np.bool_) if second.bad is None else second.bad & ~there
    bad = first_bad | second_bad
    return Converted(pc.if_else(pa.array(there), first.column, second.column), bad if bad.any() else None)


def option_error(name: str, message: str, hint: str | None = None) -> Error:
    """An option of a format that can't be used."""
    return error("CONNECTOR_OPTION", f"{name}: {message}", hint=hint)


def default_of(kind: SqlType) -> Any:
    """The value that stands for one that can't be read: 0, an empty text, 1970-01-01."""
    zero = pa.scalar(0, pa.int64())
    if kind.name == "jsonb":
        return pa.scalar("null", kind.arrow)
    if kind.name == "array":
        return pa.scalar([], kind.arrow)
    if kind.name == "struct":
        return pa.scalar({name: default_of(part).as_py() for name, part in kind.fields}, kind.arrow)
    if kind.name == "varchar":
        return pa.scalar("", kind.arrow)
    if kind.name == "bytea":
        return pa.scalar(b"", kind.arrow)
    if kind.name == "interval":
        return pa.scalar((0, 0, 0), kind.arrow)
    if kind.name == "numeric":
        return pa.scalar(Decimal(0), kind.arrow)
    if kind.name == "date":
        return zero.cast(pa.int32()).cast(kind.arrow)
    return pa.scalar(False, kind.arrow) if kind.name == "boolean" else zero.cast(kind.arrow)
