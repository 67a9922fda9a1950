"""Parts of messages: columns of key, partition, offset, time, headers and value, and keys with a window.

Kafka Streams writes a windowed key as the bytes of the key, then the start of its window; for a session its end, then
its start. Both are milliseconds since 1970 (UTC) in 8 bytes, big-endian.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.convert import convert
from watersmeet.formats.jsonpayloads import documents
from watersmeet.formats.payloads import Messages, Numbers, PayloadReader, Read, as_texts, moved, nothing, of_rows
from watersmeet.formats.scalars import Converted, Mask
from watersmeet.formats.writers import Writer, concatenated, fixed
from watersmeet.values.types import TIMESTAMP, TIMESTAMPTZ, Field, SqlType

_HEADER: Final = "header:"
_PARTS: Final = ("key", "partition", "offset", "timestamp", "payload", "headers", "topic", "tombstone")


def check_part(column: Field, part: str) -> None:
    """FEATURE_NOT_SUPPORTED if there is no such part, or no way to show it in a column of this type."""
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
    """The part of each message; the key as its bytes say it, without decoding."""
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
    """Bytes as bytea, or as what their text says."""
    if column.type.name == "bytea":
        return Converted(payloads)
    present = payloads.is_valid().to_numpy(zero_copy_only=False)
    texts, is_text = as_texts(payloads)
    shown = texts if is_text.all() else pc.if_else(pa.array(is_text), texts, pa.scalar(None, pa.string()))
    (found,) = convert([shown], [column.type])
    wrong = present & ~is_text
    return found if not wrong.any() else Converted(found.column, wrong if found.bad is None else wrong | found.bad)


def _number(values: Any, column: Field) -> Converted:
    numbers = pa.array(values, pa.int64())
    if column.type.name == "varchar":
        return Converted(numbers.cast(pa.string()))
    return Converted(numbers.cast(column.type.arrow))


def _header(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    """The value of the last header of that name; NULL if there is none."""
    rows = pc.list_parent_indices(headers).to_numpy()
    pairs = headers.flatten()
    wanted = pc.fill_null(pc.equal(pairs.field("key"), name), fill_value=False).to_numpy(zero_copy_only=False)
    place = np.full(len(headers), -1, np.int64)
    place[rows[wanted]] = np.flatnonzero(wanted)
    return pairs.field("value").take(pa.array(place, mask=place < 0))


def _headers(column: Field, headers: pa.ListArray) -> Converted:
    """All headers: as pairs, or as an object of JSON of which the last of equal names counts."""
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


#: By what is before the name of the format of a key, the kind of its windows.
_WINDOWS: Final = {"TW": "time", "SW": "session"}

#: The option of a format whose keys have windows: time or session.
WINDOW: Final = "key.window"

#: By its value, the times behind a key, in their order.
_TIMES: Final = {"time": ("start",), "session": ("end", "start")}

_WIDTH: Final = 8

#: The first and the last millisecond of the years 1 to 9999.
_FIRST_MS: Final = -62_135_596_800_000

_LAST_MS: Final = 253_402_300_799_999


def split_window(key_format: str) -> tuple[str | None, str]:
    """(the kind of windows of keys in a format: time or session, the format of what is before the window); None
    without windows.
    """
    window = _WINDOWS.get(key_format[:2])
    return window, key_format if window is None else key_format[2:]


def windowed_key(value: SqlType, window: str) -> SqlType:
    """The type of such keys: an object of `value` and `window`, which has `start`, and `end` if it is a session."""
    times = tuple((name, TIMESTAMP) for name in sorted(_TIMES[window], reverse=True))
    return SqlType("struct", fields=(("value", value), ("window", SqlType("struct", fields=times))))


def value_of(key: Field, window: str) -> Field:
    """The key without its window. CONNECTOR_OPTION for a column of another type than `windowed_key`."""
    value = dict(key.type.fields).get("value")
    if value is None or key.type != windowed_key(value, window):
        raise error(
            "CONNECTOR_OPTION",
            f"{key.type.sql} is no key with a window",
            hint=f"Its type has to be {windowed_key(value or SqlType('varchar'), window).sql}.",
        )
    return Field("value", value)


class WindowedKeyReader:
    """Reads such keys into one column. inner: reads what is before the window."""

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
    """Writes such keys; NULL for none. inner: writes the column `value`."""

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
