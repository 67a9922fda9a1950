"""The contracts of decoders and payload readers, the parts of messages as columns, and windowed keys.

Kafka Streams writes a windowed key as the bytes of the key, then the start of its window; for a session its end, then
its start. Both are milliseconds since 1970 (UTC) in 8 bytes, big-endian.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.convert import convert
from watersmeet.formats.jsonscan import canonical, is_valid
from watersmeet.formats.valuetexts import Converted, Mask, of_rows
from watersmeet.formats.writers import Writer, concatenated, fixed
from watersmeet.values.packing import offsets
from watersmeet.values.types import TIMESTAMP, TIMESTAMPTZ, Field, SqlType

Numbers = npt.NDArray[np.int64]


#: The type of the headers of messages.
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Messages:
    """Messages of one partition of a topic, ordered by offset.

    keys, values: binary, NULL if a message has none (a tombstone has no value). offsets: int64, ascending, with gaps.
    times_ms: milliseconds since 1970 (UTC), -1 if a message has no time; None if not requested. headers:
    list<struct<key: string, value: binary>>, NULL if a message has none; None if not requested. numbers: the system's
    words for the offsets, where these are places in a slice.
    """

    topic: str
    partition: int
    keys: pa.BinaryArray
    values: pa.BinaryArray
    offsets: Numbers
    times_ms: Numbers | None
    headers: pa.ListArray | None = None
    numbers: pa.StringArray | None = None

    def __len__(self) -> int:
        return len(self.offsets)


class Unreadable(NamedTuple):
    """An undecodable message. place: its position in the batch."""

    place: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The rows of messages.

    table: all columns of the relation that are read from messages, by name, in the Arrow types of their SQL types.
    places: the position of each row's message in the batch (int64, ascending). diff: int64, 1 for an inserted row, -1
    for a deleted row, of which only the primary key counts; None: all are 1. unreadable: the messages without rows, by
    ascending place. kept: list<string>, by row the columns that the message lacks because they did not change; an empty
    list with diff -1 means that all rows are deleted. None: all are NULL.
    """

    table: pa.Table
    places: Numbers
    diff: Numbers | None = None
    unreadable: Sequence[Unreadable] = ()
    kept: pa.ListArray | None = None


class Decoder(Protocol):
    """Converts messages to rows.

    Law: the rows of a message always depend only on this message, and on schemas with fixed ids: decoding again, or in
    different batches, returns the same rows.
    """

    def decode(self, messages: Messages) -> Decoded:
        """The rows of `messages`. Invalid messages are listed in `unreadable` and never raise an error.

        Raises OSError if a schema is temporarily unavailable (the caller tries again), an `Error` if it can never be
        used.
        """


@dataclass(frozen=True)
class Read:
    """The rows of payloads.

    columns: one for each field of the reader. places: the position of each row's payload (int64, ascending). reasons:
    by place, the reason why a payload has no rows.
    """

    columns: Sequence[Converted]
    places: Numbers
    reasons: Mapping[int, str] = field(default_factory=dict)


class PayloadReader(Protocol):
    """Converts payloads to rows."""

    def read(self, payloads: pa.BinaryArray) -> Read:
        """The rows of payloads, which must not be NULL. Raises the errors of `Decoder.decode`."""


def nothing(fields: Sequence[Field], reasons: Mapping[int, str] | None = None) -> Read:
    """No rows."""
    return Read([Converted(pa.array([], f.type.arrow)) for f in fields], np.zeros(0, np.int64), reasons or {})


def as_texts(payloads: pa.BinaryArray) -> tuple[pa.StringArray, Mask]:
    """The payloads as texts, and the mask of those that are UTF-8. Other texts are empty."""
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
    """Payloads, which must not be NULL, without their first bytes. Arrow's own function fails for long texts."""
    if not len(payloads):
        return payloads
    ends = offsets(payloads)
    bounds = np.empty(2 * len(payloads), np.int32)
    bounds[0::2] = np.minimum(ends[:-1] + size_bytes, ends[1:])
    bounds[1::2] = ends[1:]
    # every other piece lies between two bodies
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(payloads) - 1, [None, pa.py_buffer(bounds), payloads.buffers()[2]]
    )
    return pieces.take(pa.array(np.arange(0, 2 * len(payloads), 2)))


def cut_rows(read: Read, keep: Mask) -> Read:
    """Only the rows to keep."""
    if keep.all():
        return read
    return Read([c.rows(keep) for c in read.columns], read.places[keep], read.reasons)


def moved(read: Read, places: Numbers) -> Read:
    """The rows with the places of payloads that are at `places` in a larger batch."""
    return Read(read.columns, places[read.places], {int(places[i]): why for i, why in read.reasons.items()})


def joined(reads: Sequence[Read], fields: Sequence[Field]) -> Read:
    """Rows of several unordered sets of payloads, by place."""
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
    """A column of `count` rows with the values at `places`, NULL elsewhere."""
    at = np.full(count, -1, np.int64)
    at[places] = np.arange(len(places))
    bad = None
    if found.bad is not None:
        bad = np.zeros(count, np.bool_)
        bad[places] = found.bad
    return Converted(found.column.take(pa.array(at, mask=at < 0)), bad)


def first_of(first: Converted, second: Converted) -> Converted:
    """The first value, or if it is NULL the second."""
    there = first.column.is_valid().to_numpy(zero_copy_only=False)
    first_bad = np.zeros(len(there), np.bool_) if first.bad is None else first.bad
    second_bad = np.zeros(len(there), np.bool_) if second.bad is None else second.bad & ~there
    bad = first_bad | second_bad
    return Converted(pc.if_else(pa.array(there), first.column, second.column), bad if bad.any() else None)


_DEFAULTS: Final[Mapping[str, Any]] = {
    "array": [],
    "boolean": False,
    "bytea": b"",
    "interval": (0, 0, 0),
    "jsonb": "null",
    "numeric": Decimal(0),
    "varchar": "",
}


def default_of(kind: SqlType) -> Any:
    """The default that replaces an unreadable value: 0, an empty text, 1970-01-01."""
    if kind.name == "struct":
        return pa.scalar({name: default_of(part).as_py() for name, part in kind.fields}, kind.arrow)
    if kind.name in _DEFAULTS:
        return pa.scalar(_DEFAULTS[kind.name], kind.arrow)
    return pa.scalar(0, pa.int32() if kind.name == "date" else pa.int64()).cast(kind.arrow)


def documents(payloads: pa.BinaryArray) -> Converted:
    """Payloads, or NULL, as jsonb."""
    present = payloads.is_valid().to_numpy(zero_copy_only=False)
    texts, is_text = as_texts(pc.fill_null(payloads, b"null"))
    valid = is_valid(texts) & is_text
    shown = pc.if_else(pa.array(valid & present), texts, pa.scalar(None, pa.string()))
    bad = present & ~valid
    return Converted(canonical(shown), bad if bad.any() else None)


_HEADER: Final = "header:"
_PARTS: Final = ("key", "partition", "offset", "timestamp", "payload", "headers", "topic", "tombstone")


def check_part(column: Field, part: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for an unknown part, DATATYPE_MISMATCH for a column that can't show the part."""
    if part not in _PARTS and not part.startswith(_HEADER):
        raise error("FEATURE_NOT_SUPPORTED", f'messages have no part "{part}"')
    kind = column.type
    if part == "headers":
        pairs = kind.element is not None and [t.name for _, t in kind.element.fields] in (
            ["varchar", "bytea"],
            ["varchar", "varchar"],
        )
        fits = pairs or kind.name in ("jsonb", "varchar")
    elif part in ("partition", "offset"):
        fits = kind.name == "varchar" or kind.is_integer or kind.name == "numeric"
    elif part == "timestamp":
        fits = kind.name in ("timestamptz", "timestamp", "bigint")
    elif part == "payload":
        fits = kind.name in ("jsonb", "varchar", "bytea")
    elif part == "topic":
        fits = kind.name == "varchar"
    elif part == "tombstone":
        fits = kind.name == "boolean"
    else:
        fits = part == "key" or not kind.is_nested
    if not fits:
        raise error("DATATYPE_MISMATCH", f'column "{column.name}" is {kind.sql}, which can\'t show {part} of a message')


def part_column(column: Field, part: str, messages: Messages) -> Converted:
    """The part of each message; the key from its bytes, without decoding."""
    kind = column.type
    count = len(messages)
    if part == "key":
        return of_bytes(messages.keys, column)
    if part == "topic":
        return Converted(pa.array([messages.topic] * count, pa.string()))
    if part == "tombstone":
        return Converted(messages.values.is_null())
    if part == "partition":
        return _number(np.full(count, messages.partition), column)
    if part == "offset" and messages.numbers is not None:
        return of_bytes(messages.numbers.cast(pa.binary()), column)
    if part == "offset":
        return _number(messages.offsets, column)
    if part == "timestamp":
        assert messages.times_ms is not None, "nobody asked for times"
        times = pa.array(messages.times_ms, mask=messages.times_ms < 0)
        if kind.name == "bigint":
            return Converted(times)
        moments = times.view(pa.timestamp("ms", "UTC")).cast(TIMESTAMPTZ.arrow)
        return Converted(moments if kind.name == "timestamptz" else moments.cast(pa.int64()).view(kind.arrow))
    if part == "payload":
        return documents(messages.values) if kind.name == "jsonb" else of_bytes(messages.values, column)
    assert messages.headers is not None, "nobody asked for headers"
    if part == "headers":
        return _headers(column, messages.headers)
    return of_bytes(_header(messages.headers, part.removeprefix(_HEADER)), column)


def of_bytes(payloads: pa.BinaryArray, column: Field) -> Converted:
    """Bytes as bytea, or converted from their text."""
    if column.type.name == "bytea":
        return Converted(payloads)
    present = payloads.is_valid().to_numpy(zero_copy_only=False)
    texts, is_text = as_texts(payloads)
    shown = texts if is_text.all() else pc.if_else(pa.array(is_text), texts, pa.scalar(None, pa.string()))
    (found,) = convert([shown], [column.type])
    wrong = present & ~is_text
    return found.with_bad(wrong)


def _number(values: Any, column: Field) -> Converted:
    numbers = pa.array(values, pa.int64())
    if column.type.name == "varchar":
        return Converted(numbers.cast(pa.string()))
    return Converted(numbers.cast(column.type.arrow))


def _header(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    """The value of the last header with a name, or NULL."""
    rows = pc.list_parent_indices(headers).to_numpy()
    pairs = headers.flatten()
    wanted = pc.fill_null(pc.equal(pairs.field("key"), name), fill_value=False).to_numpy(zero_copy_only=False)
    place = np.full(len(headers), -1, np.int64)
    place[rows[wanted]] = np.flatnonzero(wanted)
    return pairs.field("value").take(pa.array(place, mask=place < 0))


def _headers(column: Field, headers: pa.ListArray) -> Converted:
    """All headers: as pairs, or as a JSON object with the last of equal names."""
    kind = column.type
    if kind.element is not None:
        pairs = headers.values
        values = pairs.field("value")
        bad = None
        if kind.element.fields[1][1].name == "varchar":
            done = of_bytes(values, Field("value", kind.element.fields[1][1]))
            values = done.column
            if done.bad is not None:
                parents = np.repeat(np.arange(len(headers)), np.diff(headers.offsets.to_numpy()))
                first = headers.offsets[0].as_py()
                bad = np.zeros(len(headers), np.bool_)
                bad[parents[done.bad[first : first + len(parents)]]] = True
        typed = pa.StructArray.from_arrays([pairs.field("key"), values], fields=list(kind.element.arrow))
        column_ = pa.ListArray.from_arrays(
            headers.offsets, typed, type=kind.arrow, mask=headers.is_null() if headers.null_count else None
        )
        return Converted(column_, bad)
    texts = [None if pairs is None else _object(pairs) for pairs in headers.to_pylist()]
    return convert([pa.array(texts, pa.string())], [kind])[0]


def _object(pairs: list[dict[str, Any]]) -> str:
    said: dict[str, str | None] = {}
    for pair in pairs:
        value = pair["value"]
        try:
            said[pair["key"]] = None if value is None else value.decode()
        except UnicodeDecodeError:
            said[pair["key"]] = base64.b64encode(value).decode()
    return json.dumps(said, ensure_ascii=False)


#: The kind of windows by the prefix of a key's format.
_WINDOWS: Final = {"TW": "time", "SW": "session"}

#: The option of a format whose keys have windows: time or session.
WINDOW: Final = "key.window"

#: For each value of the option, the times of the window in the order in which they follow the key's bytes.
_TIMES: Final = {"time": ("start",), "session": ("end", "start")}

_WIDTH: Final = 8

#: The first and the last millisecond of the years 1 to 9999.
_FIRST_MS: Final = -62_135_596_800_000

_LAST_MS: Final = 253_402_300_799_999


def split_window(key_format: str) -> tuple[str | None, str]:
    """The kind of windows in a format of keys (time, session; None without windows), and the format of the key
    itself.
    """
    window = _WINDOWS.get(key_format[:2])
    return window, key_format if window is None else key_format[2:]


def windowed_key(value: SqlType, window: str) -> SqlType:
    """The type of windowed keys: an object of `value` and `window`, which has `start`, and `end` for a session."""
    times = tuple((name, TIMESTAMP) for name in sorted(_TIMES[window], reverse=True))
    return SqlType("struct", fields=(("value", value), ("window", SqlType("struct", fields=times))))


def window_prefix(kind: SqlType) -> tuple[str, SqlType]:
    """(the prefix of the format of keys with a window, the type before it); without a window "" and the type."""
    value = dict(kind.fields).get("value")
    found = [p for p, window in _WINDOWS.items() if value is not None and kind == windowed_key(value, window)]
    return (found[0], value) if found and value is not None else ("", kind)


def value_of(key: Field, window: str) -> Field:
    """The type of the key without its window. Raises CONNECTOR_OPTION for a column whose type is not `windowed_key`."""
    value = dict(key.type.fields).get("value")
    if value is None or key.type != windowed_key(value, window):
        raise error(
            "CONNECTOR_OPTION",
            f"{key.type.sql} is no key with a window",
            hint=f"Its type has to be {windowed_key(value or SqlType('varchar'), window).sql}.",
        )
    return Field("value", value)


class WindowedKeyReader:
    """Reads windowed keys into one column. inner: reads the bytes before the window."""

    def __init__(self, key: Field, window: str, inner: PayloadReader) -> None:
        self._key, self._times, self._inner = key, _TIMES[window], inner

    def read(self, payloads: pa.BinaryArray) -> Read:
        width = _WIDTH * len(self._times)
        sizes = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
        fits = sizes >= width
        reasons = {int(i): f"{sizes[i]} bytes are no key with a window" for i in np.flatnonzero(~fits)}
        if not fits.any():
            return nothing([self._key], reasons)
        places = np.flatnonzero(fits)
        whole = of_rows(payloads, fits)
        read = self._inner.read(pc.binary_slice(whole, 0, -width))
        tails = of_rows(pc.binary_slice(whole, -width, None), read.places).cast(pa.binary(width))
        (value,) = read.columns
        key = pa.StructArray.from_arrays([value.column, self._windows(tails)], fields=list(self._key.type.arrow))
        millis = self._millis(tails)
        bad: Mask = np.logical_or.reduce((millis < _FIRST_MS) | (millis > _LAST_MS), axis=1)
        if value.bad is not None:
            bad = bad | value.bad
        found = moved(Read([Converted(key, bad)], read.places, read.reasons), places)
        return Read(found.columns, found.places, {**reasons, **found.reasons})

    def _millis(self, tails: pa.FixedSizeBinaryArray) -> Numbers:
        """A row for each key."""
        count = len(self._times)
        raw = np.frombuffer(tails.buffers()[1], ">i8", count * len(tails), tails.offset * _WIDTH * count)
        return raw.astype(np.int64).reshape(-1, count)

    def _windows(self, tails: pa.FixedSizeBinaryArray) -> pa.StructArray:
        micros = np.clip(self._millis(tails), _FIRST_MS, _LAST_MS) * 1000
        by_name = dict(zip(self._times, micros.T, strict=True))
        kind = dict(self._key.type.fields)["window"].arrow
        times = [pa.array(np.ascontiguousarray(by_name[f.name])).view(f.type) for f in kind]
        return pa.StructArray.from_arrays(times, fields=list(kind))


class WindowedKeyWriter:
    """Writes windowed keys, or NULL. inner: writes the column `value`."""

    def __init__(self, key: Field, window: str, inner: Writer) -> None:
        self._name, self._times, self._inner = key.name, _TIMES[window], inner

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        column = rows.column(self._name).combine_chunks()
        there = column.is_valid()
        values, windows = (pc.struct_field(column, name) for name in ("value", "window"))
        tails = [self._time(pc.struct_field(windows, name)) for name in self._times]
        written = concatenated([self._inner.write(pa.table({"value": values})), *tails])
        if (written.is_null().to_numpy(zero_copy_only=False) & there.to_numpy(zero_copy_only=False)).any():
            raise error("INVALID_VALUE", f'a key with a window has NULL in "{self._name}"')
        return pc.if_else(there, written, pa.scalar(None, pa.binary()))

    def _time(self, column: pa.Array) -> pa.BinaryArray:
        millis = (
            pc.fill_null(column.cast(pa.timestamp("us")).cast(pa.int64()), 0).to_numpy(zero_copy_only=False) // 1000
        )
        bytes_ = fixed(millis.astype(">i8"))
        return pc.if_else(column.is_valid(), bytes_, pa.scalar(None, pa.binary()))
