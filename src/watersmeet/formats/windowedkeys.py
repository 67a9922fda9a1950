"""Keys with a window, as Kafka Streams writes them: the bytes of the key and behind them the start of its window; of a
session its end, then its start. Both are milliseconds since 1970 (UTC), in 8 bytes, the highest first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.base import Numbers
from watersmeet.formats.payloads import PayloadReader, Read, moved, nothing, of_rows
from watersmeet.formats.scalars import Converted, Mask
from watersmeet.formats.wire import fixed
from watersmeet.formats.writers import Writer, concatenated
from watersmeet.types import TIMESTAMP, Field, SqlType

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
