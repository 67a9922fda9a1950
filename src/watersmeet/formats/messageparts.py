"""Columns that show parts of messages: key, partition, offset, time, headers, value."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.base import Messages
from watersmeet.formats.convert import convert
from watersmeet.formats.jsonpayloads import documents
from watersmeet.formats.payloads import as_texts
from watersmeet.formats.scalars import Converted
from watersmeet.types import TIMESTAMPTZ, Field

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
