"""Reads payloads in Protocol Buffers.

The bytes of all messages are scanned together with NumPy: the first field of all messages, then the second field, and
so on. Fields become columns by their numbers. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.avropayloads import declared, split_frames
from watersmeet.formats.payloads import Numbers, Read, joined, moved, nothing
from watersmeet.formats.protoschema import TIMESTAMP, ProtoField, ProtoMessage, ProtoSchema, from_text, wrapped_type
from watersmeet.formats.registry import Registry, UnknownSchemaError
from watersmeet.formats.valuetexts import Converted, Mask, of_rows
from watersmeet.values.packing import offsets
from watersmeet.values.types import Field

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_VARINT, _FIXED64, _SPAN, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), _VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), _SPAN),
}
_VARINT_BYTES: Final = 10
"""The maximum number of bytes of a varint."""
#: When only this many messages have more fields, they are scanned one by one.
_FEW: Final = 8
_MAX_SECONDS: Final = 253_402_300_799
_MIN_SECONDS: Final = -62_135_596_800


@dataclass(frozen=True)
class _Found:
    """Fields of messages. rows: the message of each field, ascending; fields of one message are in order.

    values: the values of varints and fixed numbers. starts, ends: the bounds of the bytes of others.
    """

    rows: Numbers
    numbers: Numbers
    wires: Numbers
    values: Words
    starts: Numbers
    ends: Numbers


class ProtobufReader:
    """Reads messages whose fields are the columns.

    registry: the registry of the schemas whose ids precede the bodies, with a path to the message in the schema.
    schema, message: the schema and the message's name for bodies without an id.
    """

    def __init__(
        self, fields: Sequence[Field], *, registry: Registry | None, schema: ProtoSchema | None, message: str | None
    ) -> None:
        self._fields = fields
        self._registry = registry
        self._schema = schema
        self._message = None if schema is None else schema.message(message)
        self._by_id: dict[int, ProtoSchema | str] = {}

    def read(self, payloads: pa.BinaryArray) -> Read:
        if self._registry is None:
            assert self._schema is not None
            assert self._message is not None
            bounds, data = offsets(payloads), _bytes(payloads)
            return self._columns(self._schema, self._message, data, bounds[:-1], bounds[1:], "the schema")
        bodies, ids = split_frames(payloads)
        reads = []
        for id_ in np.unique(ids).tolist():
            places = np.flatnonzero(ids == id_)
            chosen = bodies if len(places) == len(bodies) else of_rows(bodies, places)
            reads.append(moved(self._of_schema(id_, chosen), places))
        return joined(reads, self._fields) if reads else nothing(self._fields)

    def _of_schema(self, id_: int, bodies: pa.BinaryArray) -> Read:
        schema = self._schema_of(id_)
        if isinstance(schema, str):
            return nothing(self._fields, dict.fromkeys(range(len(bodies)), schema))
        bounds, data = offsets(bodies), _bytes(bodies)
        starts, ends = bounds[:-1].copy(), bounds[1:]
        paths: dict[tuple[int, ...] | None, list[int]] = {}
        simple = (ends > starts) & (data[np.minimum(starts, len(data) - 1)] == 0)
        starts[simple] += 1
        for i in np.flatnonzero(~simple).tolist():
            path, starts[i] = _path(data, int(starts[i]), int(ends[i]))
            paths.setdefault(path, []).append(i)
        groups = [(path, np.array(places)) for path, places in paths.items()]
        reads = []
        for path, places in [((0,), np.flatnonzero(simple)), *groups]:
            message = None if path is None else schema.by_path(path)
            if message is None:
                why = f"protobuf: no path to a message of schema {id_} of the registry"
                reads.append(nothing(self._fields, dict.fromkeys(places.tolist(), why)))
            elif len(places):
                called = f"schema {id_} of the registry"
                found = self._columns(schema, message, data, starts[places], ends[places], called)
                reads.append(moved(found, places))
        return joined(reads, self._fields)

    def _schema_of(self, id_: int) -> ProtoSchema | str:
        """The schema with an id, or the reason why it is missing."""
        if id_ < 0:
            return "protobuf: no zero byte and id of a schema before the value"
        if id_ not in self._by_id:
            assert self._registry is not None
            try:
                registered = self._registry.schema(id_)
                if registered.kind == "PROTOBUF":
                    self._by_id[id_] = from_text(registered, self._registry)
                else:
                    self._by_id[id_] = f"protobuf: schema {id_} of the registry is one of {registered.kind}"
            except UnknownSchemaError as cause:
                return f"protobuf: {cause}"  # not cached, because the schema may be registered later
        return self._by_id[id_]

    def _columns(
        self, schema: ProtoSchema, message: ProtoMessage, data: Bytes, starts: Numbers, ends: Numbers, called: str
    ) -> Read:
        scan = _Scan(schema, data, len(starts))
        found = scan.fields(starts, ends, np.arange(len(starts)))
        columns: list[Converted] = []
        for column in self._fields:
            part = message.field(column.name)
            if part is None:
                columns.append(Converted(pa.nulls(len(starts), column.type.arrow)))
                continue
            node = schema.node(part)  # called first, because it rejects recursive messages
            raw = scan.column(found, part, len(starts), np.arange(len(starts)))
            columns.append(declared(node, raw, column, called))
        good = ~scan.bad
        reasons = {
            int(i): scan.reasons.get(int(i), "protobuf: the bytes are no message") for i in np.flatnonzero(scan.bad)
        }
        read = Read(columns, np.arange(len(starts)), reasons)
        if good.all():
            return read
        kept = [c.rows(good) for c in columns]
        return Read(kept, np.flatnonzero(good), reasons)


def _bytes(payloads: pa.BinaryArray) -> Bytes:
    buffer = payloads.buffers()[2]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    return data if len(data) else np.zeros(1, np.uint8)


def _path(data: Bytes, start: int, end: int) -> tuple[tuple[int, ...] | None, int]:
    """The path to a message and the beginning of its bytes; None if it is unreadable."""
    numbers: list[int] = []
    place, wanted = start, 1
    while len(numbers) < wanted:
        value, place = _one_varint(data, place, end)
        if value is None or wanted > 100:
            return None, end
        number = (value >> 1) ^ -(value & 1)
        if not numbers and wanted == 1 and place is not None:
            if number == 0:
                return (0,), place
            numbers.append(number)
            wanted = number + 1
        else:
            numbers.append(number)
    return tuple(numbers[1:]), place


def _one_varint(data: Bytes, place: int, end: int) -> tuple[int | None, int]:
    value = 0
    for i in range(_VARINT_BYTES):
        if place >= end:
            return None, place
        byte = int(data[place])
        place += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    return None, place


def _varints(data: Bytes, places: Numbers, ends: Numbers) -> tuple[Words, Numbers, Mask]:
    """The varints at some positions, their ends, and the mask of complete ones."""
    values = np.zeros(len(places), np.uint64)
    places = places.copy()
    open_ = np.arange(len(places))
    last = len(data) - 1
    for i in range(_VARINT_BYTES):
        inside = places[open_] < ends[open_]
        open_ = open_[inside]
        byte = data[np.minimum(places[open_], last)]
        values[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        places[open_] += 1
        done = byte < 0x80
        if done.all() and inside.all() and i == 0:
            return values, places, np.ones(len(places), np.bool_)
        open_ = open_[~done]
        if not len(open_):
            break
    # the others don't end within their bytes
    whole = (places > 0) & (data[np.clip(places - 1, 0, last)] < 0x80)
    whole[open_] = False
    return values, places, whole


class _Scan:
    """Scans messages for their fields. bad: the unreadable rows. reasons: the known reasons."""

    def __init__(self, schema: ProtoSchema, data: Bytes, rows: int) -> None:
        self._schema = schema
        self._data = data
        self.bad = np.zeros(rows, np.bool_)
        self.reasons: dict[int, str] = {}

    def fields(self, starts: Numbers, ends: Numbers, owners: Numbers) -> _Found:
        """The fields of messages at some bytes. owners: the payload of each message."""
        data = self._data
        place = starts.copy()
        active = np.flatnonzero(place < ends)
        parts: list[tuple[Numbers, Numbers, Numbers, Words, Numbers, Numbers]] = []
        while len(active) > _FEW:
            tags, at, good = _varints(data, place[active], ends[active])
            # a message that has reached its end has no bytes left for another tag
            good &= at > place[active]
            wires = (tags & np.uint64(7)).astype(np.int64)
            numbers = (tags >> np.uint64(3)).astype(np.int64)
            values = np.zeros(len(active), np.uint64)
            begin, stop = at.copy(), at.copy()
            limits = ends[active]
            for wire in np.unique(wires).tolist():
                mine = np.flatnonzero((wires == wire) & good)
                if wire == _VARINT:
                    values[mine], stop[mine], good[mine] = _varints(data, at[mine], limits[mine])
                    good[mine] &= stop[mine] > at[mine]
                elif wire in (_FIXED64, _FIXED32):
                    width = 8 if wire == _FIXED64 else 4
                    stop[mine] = at[mine] + width
                    good[mine] = stop[mine] <= limits[mine]
                    values[mine] = _fixed(data, at[mine], width)
                elif wire == _SPAN:
                    sizes, begin[mine], whole = _varints(data, at[mine], limits[mine])
                    whole &= (begin[mine] > at[mine]) & (sizes <= (limits[mine] - begin[mine]).astype(np.uint64))
                    stop[mine] = begin[mine] + np.where(whole, sizes, 0).astype(np.int64)
                    good[mine] = whole
                else:
                    good[mine] = False
            good &= numbers > 0
            self.bad[owners[active[~good]]] = True
            kept = np.flatnonzero(good)
            rows = active[kept]
            parts.append((rows, numbers[kept], wires[kept], values[kept], begin[kept], stop[kept]))
            place[rows] = stop[kept]
            active = rows[place[rows] < ends[rows]]
        for row in active.tolist():
            parts += self._of_one(row, int(place[row]), int(ends[row]), int(owners[row]))
        if not parts:
            none = np.zeros(0, np.int64)
            return _Found(none, none, none, np.zeros(0, np.uint64), none, none)
        joined_parts = [np.concatenate([p[i] for p in parts]) for i in range(6)]
        order = np.argsort(joined_parts[0], kind="stable")
        return _Found(*(column[order] for column in joined_parts))

    def _of_one(
        self, row: int, place: int, end: int, owner: int
    ) -> list[tuple[Numbers, Numbers, Numbers, Words, Numbers, Numbers]]:
        """The fields of one message from a position on."""
        data = self._data
        found: list[tuple[int, int, int, int, int]] = []
        while place < end:
            tag, at = _one_varint(data, place, end)
            wire = -1 if tag is None or tag >> 3 == 0 else tag & 7
            value, begin, stop = 0, at, at
            if wire == _VARINT:
                said, stop = _one_varint(data, at, end)
                wire, value = (wire, said) if said is not None else (-1, 0)
            elif wire in (_FIXED64, _FIXED32):
                stop = at + (8 if wire == _FIXED64 else 4)
                value = int.from_bytes(data[at:stop].tobytes(), "little") if stop <= end else 0
            elif wire == _SPAN:
                size, begin = _one_varint(data, at, end)
                stop = end + 1 if size is None else begin + size
            else:
                wire = -1
            if wire < 0 or stop > end:
                self.bad[owner] = True
                break
            assert tag is not None
            found.append((tag >> 3, wire, value, begin, stop))
            place = stop
        if not found:
            return []
        numbers, wires, values, begins, stops = zip(*found, strict=True)
        rows = np.full(len(found), row, np.int64)
        return [
            (
                rows,
                np.array(numbers, np.int64),
                np.array(wires, np.int64),
                np.array(values, np.uint64),
                np.array(begins, np.int64),
                np.array(stops, np.int64),
            )
        ]

    def column(self, found: _Found, part: ProtoField, count: int, owners: Numbers) -> pa.Array:
        """The values of a field in `count` messages, in plain types (`ProtoSchema.node`)."""
        mine = np.flatnonzero(found.numbers == part.number)
        if part.repeated:
            return self._repeated(found, mine, part, count, owners)
        mine = mine[found.wires[mine] == _WIRE[part.type]]
        last = np.full(count, -1, np.int64)
        last[found.rows[mine]] = mine
        if part.type == "message":
            # several submessages must be merged into one with the fields of all
            often = found.rows[mine][np.flatnonzero(np.diff(found.rows[mine]) == 0)] if len(mine) else mine
            for row in often.tolist():
                self.bad[owners[row]] = True
                self.reasons[int(owners[row])] = f'protobuf: field "{part.name}" is there more than once'
        there = np.flatnonzero(last >= 0)
        at = last[there]
        values = self._values(part, found.values[at], found.starts[at], found.ends[at], owners[there])
        take = np.full(count, -1, np.int64)
        take[there] = np.arange(len(there))
        column = values.take(pa.array(take, mask=take < 0))
        if part.optional or len(there) == count:
            return column
        default = self._default(part, values.type)
        return pc.if_else(pa.array(take >= 0), column, default)

    def _default(self, part: ProtoField, kind: pa.DataType) -> pa.Scalar:
        if part.type == "enum":
            return pa.scalar(self._schema.enums[part.named].get(0, "0"), kind)
        if pa.types.is_decimal(kind):
            return pa.scalar(0, pa.int64()).cast(pa.decimal128(20, 0))
        if part.type in ("string", "bytes"):
            return pa.scalar("" if part.type == "string" else b"", kind)
        return pa.scalar(False if part.type == "bool" else 0, kind)

    def _repeated(self, found: _Found, mine: Numbers, part: ProtoField, count: int, owners: Numbers) -> pa.Array:
        wire = _WIRE[part.type]
        mine = mine[(found.wires[mine] == wire) | ((found.wires[mine] == _SPAN) & (wire != _SPAN))]
        rows, values = found.rows[mine], found.values[mine]
        starts, ends = found.starts[mine], found.ends[mine]
        packed = (found.wires[mine] == _SPAN) & (wire != _SPAN)
        if packed.any():
            rows, values = self._unpacked(rows, values, starts, ends, packed, wire, owners)
            starts = ends = np.zeros(len(rows), np.int64)
        entry = self._schema.messages.get(part.named) if part.type == "message" else None
        items = self._values(part, values, starts, ends, owners[rows])
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        if entry is not None and entry.is_map_entry:
            key = items.field(0)
            texts = key if pa.types.is_string(key.type) else key.cast(pa.string())
            return _map(pa.array(offsets), texts, items.field(1), rows, count)
        return pa.ListArray.from_arrays(pa.array(offsets), items)

    def _unpacked(
        self, rows: Numbers, values: Words, starts: Numbers, ends: Numbers, packed: Mask, wire: int, owners: Numbers
    ) -> tuple[Numbers, Words]:
        """The rows and values of numbers, of which a packed range of bytes contains any number."""
        sizes = np.where(packed, ends - starts, 0)
        stretches = np.repeat(np.arange(len(rows)), sizes)  # for each byte
        places = np.arange(len(stretches)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # in its stretch
        chunk = self._data[starts[stretches] + places]
        broken = np.zeros(len(rows), np.bool_)
        if wire == _VARINT:
            is_last = chunk < 0x80
            begins = np.flatnonzero((places == 0) | np.roll(is_last, 1))
            lengths = np.diff(begins, append=len(chunk))
            broken[stretches[begins[lengths > _VARINT_BYTES]]] = True
            broken[stretches[~is_last & (places == sizes[stretches] - 1)]] = True
            bits, digits = chunk & 0x7F, 7
        else:
            width = 8 if wire == _FIXED64 else 4
            begins = np.flatnonzero(places % width == 0)
            lengths = np.diff(begins, append=len(chunk))
            broken = sizes % width != 0
            bits, digits = chunk, 8
        shifts = (np.arange(len(chunk)) - np.repeat(begins, lengths)) * digits
        shifted = bits.astype(np.uint64) << shifts.astype(np.uint64)
        numbers = np.bitwise_or.reduceat(shifted, begins) if len(begins) else np.zeros(0, np.uint64)
        self.bad[owners[rows[broken]]] = True
        of = np.concatenate([np.flatnonzero(~packed), stretches[begins]])
        order = np.argsort(of, kind="stable")
        order = order[~broken[of[order]]]
        return rows[of[order]], np.concatenate([values[~packed], numbers])[order]

    def _values(self, part: ProtoField, values: Words, starts: Numbers, ends: Numbers, owners: Numbers) -> pa.Array:
        """The values of single fields in sequence."""
        kind = part.type
        if kind == "message":
            return self._messages(part, starts, ends, owners)
        if kind in ("string", "bytes"):
            return self._texts(starts, ends, owners, checked=kind == "string")
        if kind in ("double", "float"):
            bits = values if kind == "double" else values.astype(np.uint32)
            return pa.array(bits.view(np.float64 if kind == "double" else np.float32))
        if kind in ("sint32", "sint64"):
            return (
                pa.array(_zigzag(values), pa.int64())
                if kind == "sint64"
                else pa.array(_zigzag(values).astype(np.int32))
            )
        if kind in ("uint64", "fixed64"):
            little = np.zeros((len(values), 2), np.uint64)
            little[:, 0] = values
            return pa.Array.from_buffers(pa.decimal128(20, 0), len(values), [None, pa.py_buffer(little)])
        if kind == "bool":
            return pa.array(values != 0)
        if kind in ("uint32", "fixed32"):
            return pa.array((values & np.uint64(0xFFFF_FFFF)).astype(np.int64))
        numbers = values.view(np.int64)
        if kind == "enum":
            names = self._schema.enums[part.named]
            codes, places = np.unique(numbers.astype(np.int32), return_inverse=True)
            known = pa.array([names.get(code, str(code)) for code in codes.tolist()], pa.string())
            return known.take(pa.array(places.astype(np.int64)))
        return pa.array(numbers) if kind in ("int64", "sfixed64") else pa.array(numbers.astype(np.int32))

    def _texts(self, starts: Numbers, ends: Numbers, owners: Numbers, *, checked: bool) -> pa.Array:
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        if not len(starts):
            return pa.array([], pa.string() if checked else pa.binary())
        pieces = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * len(starts) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        found = pieces.take(pa.array(np.arange(0, 2 * len(starts), 2)))
        if not checked:
            return found
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            texts = []
            for owner, value in zip(owners.tolist(), found.to_pylist(), strict=True):
                try:
                    texts.append(value.decode())
                except UnicodeDecodeError:
                    self.bad[owner] = True
                    self.reasons.setdefault(owner, "protobuf: a text is not UTF-8")
                    texts.append("")
            return pa.array(texts, pa.string())

    def _messages(self, part: ProtoField, starts: Numbers, ends: Numbers, owners: Numbers) -> pa.Array:
        found = self.fields(starts, ends, owners)
        count = len(starts)
        if part.named == TIMESTAMP:
            seconds = self.column(found, ProtoField("seconds", 1, "int64"), count, owners).to_numpy()
            nanos = self.column(found, ProtoField("nanos", 2, "int32"), count, owners).to_numpy().astype(np.int64)
            fits = (seconds >= _MIN_SECONDS) & (seconds <= _MAX_SECONDS) & (nanos >= 0) & (nanos < 1_000_000_000)
            for owner in owners[~fits].tolist():
                self.bad[owner] = True
                self.reasons.setdefault(owner, "protobuf: a timestamp is out of range")
            return pa.array(np.where(fits, seconds, 0) * 1_000_000 + np.where(fits, nanos, 0) // 1000)
        wrapped = wrapped_type(part.named)
        if wrapped is not None:
            return self.column(found, ProtoField("value", 1, wrapped), count, owners)
        message = self._schema.messages[part.named]
        columns = [self.column(found, f, count, owners) for f in message.fields]
        names = [f"f{i}" for i in range(len(columns))]
        if not columns:
            return pa.array([{}] * count, pa.struct([]))
        return pa.StructArray.from_arrays(columns, names)


def _map(offsets: pa.Array, keys: pa.Array, items: pa.Array, rows: Numbers, count: int) -> pa.MapArray:
    """Maps with the last of equal keys."""
    codes = keys.dictionary_encode().indices.to_numpy()
    same = rows * (int(codes.max()) + 1 if len(codes) else 1) + codes
    _, last = np.unique(same[::-1], return_index=True)
    if len(last) != len(same):
        kept = np.sort(len(same) - 1 - last)
        keys, items, rows = keys.take(pa.array(kept)), items.take(pa.array(kept)), rows[kept]
        counted = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=counted[1:])
        offsets = pa.array(counted)
    return pa.MapArray.from_arrays(offsets, keys, items)


def _zigzag(values: Words) -> Numbers:
    return ((values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))).view(np.int64)


def _fixed(data: Bytes, places: Numbers, width: int) -> Words:
    """Little-endian numbers; 0 after the end."""
    last = len(data) - 1
    found = np.zeros(len(places), np.uint64)
    for i in range(width):
        found |= data[np.minimum(places + i, last)].astype(np.uint64) << np.uint64(8 * i)
    return found
