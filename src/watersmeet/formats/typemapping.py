"""The SQL types of Arrow types, Avro's logical types and Kafka Connect's names, and the conversion to declared
types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.convert import convert
from watersmeet.formats.valuetexts import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US, Converted, Mask, convert_scalars
from watersmeet.values.packing import offsets
from watersmeet.values.times import DAY_US
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    MAP_KEYS,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    Schema,
    SqlType,
    map_of,
)

Meaning = Literal[
    "decimal", "date", "time", "timestamp", "local timestamp", "duration", "uuid", "json", "zoned text", "interval text"
]

_TYPES: Final[dict[Meaning, SqlType]] = {
    "date": DATE,
    "time": TIME,
    "timestamp": TIMESTAMPTZ,
    "local timestamp": TIMESTAMP,
    "duration": INTERVAL,
    "json": JSONB,
    "zoned text": TIMESTAMPTZ,
    "interval text": INTERVAL,
}


@dataclass(frozen=True)
class Logical:
    """The meaning of plain values. units: the units of times per second. precision, scale: the digits of decimals."""

    meaning: Meaning
    units: int = 1_000_000
    precision: int = 38
    scale: int = 0

    @property
    def type(self) -> SqlType:
        """The SQL type of these values."""
        if self.meaning == "decimal":
            return SqlType("numeric", min(self.precision, 38), max(self.scale, 0))
        return _TYPES.get(self.meaning, VARCHAR)


#: The parts of Arrow's intervals.
_INTERVAL: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])

_MOST_DURATION_US: Final = (2**63 - 1) // 1000
_MS, _US, _NS = 1000, 1_000_000, 1_000_000_000

#: Source: Avro specification, "Logical Types".
_AVRO: Final = {
    ("int", "date"): Logical("date"),
    ("int", "time-millis"): Logical("time", _MS),
    ("long", "time-micros"): Logical("time", _US),
    ("long", "timestamp-millis"): Logical("timestamp", _MS),
    ("long", "timestamp-micros"): Logical("timestamp", _US),
    ("long", "timestamp-nanos"): Logical("timestamp", _NS),
    ("long", "local-timestamp-millis"): Logical("local timestamp", _MS),
    ("long", "local-timestamp-micros"): Logical("local timestamp", _US),
    ("long", "local-timestamp-nanos"): Logical("local timestamp", _NS),
    ("string", "uuid"): Logical("uuid"),
    ("fixed", "uuid"): Logical("uuid"),
}

#: Source: Kafka Connect's `data` package, Debezium's `time` package.
_CONNECT: Final = {
    "org.apache.kafka.connect.data.Date": Logical("date"),
    "org.apache.kafka.connect.data.Time": Logical("time", _MS),
    "org.apache.kafka.connect.data.Timestamp": Logical("timestamp", _MS),
    "io.debezium.time.Date": Logical("date"),
    "io.debezium.time.Time": Logical("time", _MS),
    "io.debezium.time.MicroTime": Logical("time", _US),
    "io.debezium.time.NanoTime": Logical("time", _NS),
    "io.debezium.time.Timestamp": Logical("local timestamp", _MS),
    "io.debezium.time.MicroTimestamp": Logical("local timestamp", _US),
    "io.debezium.time.NanoTimestamp": Logical("local timestamp", _NS),
    "io.debezium.time.MicroDuration": Logical("duration", _US),
    "io.debezium.time.NanoDuration": Logical("duration", _NS),
    "io.debezium.time.ZonedTimestamp": Logical("zoned text"),
    "io.debezium.time.Interval": Logical("interval text"),
    "io.debezium.data.Json": Logical("json"),
}

_CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


def of_avro(kind: str, schema: Mapping[str, Any]) -> Logical | None:
    """The meaning that an Avro schema gives its primitive type `kind`; None for an invalid logical type."""
    name = schema.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38 and precision > 0:
            return Logical("decimal", precision=precision, scale=scale)
        return None
    found = _AVRO.get((kind, str(name)))
    if found is not None:
        return found
    parameters = schema.get("connect.parameters") or {}
    return of_connect(schema.get("connect.name"), parameters)


def of_connect(name: str | None, parameters: Mapping[str, Any]) -> Logical | None:
    """The meaning of a name in a schema of Kafka Connect."""
    if name == _CONNECT_DECIMAL:
        try:
            return Logical("decimal", precision=38, scale=int(parameters.get("scale", 0)))
        except ValueError:
            return None
    return _CONNECT.get(str(name))


def with_meaning(raw: pa.Array, logical: Logical) -> Converted:
    """Numbers, bytes or texts converted by their meaning. Nanoseconds are truncated to microseconds."""
    meaning = logical.meaning
    if meaning == "decimal":
        return Converted(raw) if pa.types.is_decimal(raw.type) else decimals(raw, logical.scale)
    if meaning == "uuid":
        return Converted(_uuids(raw) if not pa.types.is_string(raw.type) else raw)
    if meaning in ("json", "zoned text", "interval text"):
        return Converted(raw)
    if meaning == "duration":
        return _durations(raw, logical.units)
    values = pc.fill_null(raw, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    null = raw.is_null().to_numpy(zero_copy_only=False)
    if meaning == "date":
        wrong = (values < FIRST_DAY) | (values > LAST_DAY)
        column = pa.array(values.astype(np.int32), mask=null | wrong).view(pa.date32())
        return Converted(column, wrong if wrong.any() else None)
    wrong = np.zeros(len(values), np.bool_)
    if logical.units == _MS:
        most = (1 << 63) // 1000
        wrong = (values >= most) | (values <= -most)
        values = np.where(wrong, 0, values) * 1000
    elif logical.units == _NS:
        values = values // 1000
    if meaning == "time":
        wrong |= (values < 0) | (values >= DAY_US)
        column = pa.array(np.where(wrong, 0, values), mask=null | wrong).view(TIME.arrow)
    else:
        wrong |= (values < FIRST_US) | (values > LAST_US)
        kind = TIMESTAMPTZ if meaning == "timestamp" else TIMESTAMP
        column = pa.array(values, mask=null | wrong).view(kind.arrow)
    return Converted(column, wrong & ~null if wrong.any() else None)


def _durations(raw: pa.Array, units: int) -> Converted:
    """Numbers as intervals without days. An interval has whole microseconds, which Arrow stores as nanoseconds."""
    values = pc.fill_null(raw, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    null = raw.is_null().to_numpy(zero_copy_only=False)
    if units == _NS:
        wrong = values % 1000 != 0
    else:
        wrong = (values > _MOST_DURATION_US) | (values < -_MOST_DURATION_US)
        values = np.where(wrong, 0, values) * 1000
    column = np.zeros(len(values), _INTERVAL)
    column["nanoseconds"] = np.where(wrong, 0, values)
    found = pa.Array.from_buffers(INTERVAL.arrow, len(values), [None, pa.py_buffer(column.tobytes())])
    mask = null | wrong
    found = pc.if_else(pa.array(~mask), found, pa.scalar(None, INTERVAL.arrow)) if mask.any() else found
    return Converted(found, wrong if wrong.any() else None)


def decimals(raw: pa.Array, scale: int) -> Converted:
    """Bytes in big-endian two's complement, as in Avro and Java's BigInteger, as decimals of 38 digits.

    A negative scale adds zeros to whole numbers.
    """
    if scale < 0:
        return _multiplied(decimals(raw, 0), -scale)
    raw = raw.cast(pa.binary())
    sizes = pc.fill_null(pc.binary_length(raw), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    null = raw.is_null().to_numpy(zero_copy_only=False)
    if not 0 <= scale <= 38:
        return Converted(pa.nulls(len(raw), pa.decimal128(38, 0)), ~null)
    wide = sizes > 16
    if wide.any():  # leading bytes may be redundant
        short = [_shortest(value) if big else value for value, big in zip(raw.to_pylist(), wide, strict=True)]
        done = decimals(pa.array([None if v is not None and len(v) > 16 else v for v in short], pa.binary()), scale)
        lost = done.column.is_null().to_numpy(zero_copy_only=False) & ~null
        return Converted(done.column, lost if lost.any() else None)
    data = np.frombuffer(raw.buffers()[2] or b"\0", np.uint8)
    if not len(data):
        data = np.zeros(1, np.uint8)
    bounds = offsets(raw)
    starts, ends = bounds[:-1], bounds[1:]
    sign = np.where((sizes > 0) & (data[np.minimum(starts, len(data) - 1)] >= 128), 255, 0).astype(np.uint8)
    little = np.empty((len(raw), 16), np.uint8)
    for i in range(16):
        at = ends - 1 - i
        little[:, i] = np.where(i < sizes, data[np.clip(at, 0, len(data) - 1)], sign)
    column = pa.Array.from_buffers(pa.decimal128(38, scale), len(raw), [None, pa.py_buffer(little)])
    digits = _too_many_digits(column) | (~null & (sizes == 0))
    mask = null | digits
    column = pc.if_else(pa.array(~mask), column, pa.scalar(None, column.type)) if mask.any() else column
    return Converted(column, digits & ~null if (digits & ~null).any() else None)


def _multiplied(whole: Converted, zeros: int) -> Converted:
    """Whole decimals times a power of ten."""
    zero = pc.equal(whole.column, pa.scalar(0, whole.column.type))
    texts = pc.if_else(zero, "0", pc.binary_join_element_wise(whole.column.cast(pa.string()), "0" * min(zeros, 38), ""))
    (done,) = convert_scalars([texts], [SqlType("numeric", 38, 0)])
    return done.with_bad(whole.bad)


def _too_many_digits(column: pa.Array) -> Mask:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _fits(column.slice(i, 1)) for i in range(len(column))])
    return np.zeros(len(column), np.bool_)


def _fits(one: pa.Array) -> bool:
    try:
        one.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _shortest(value: bytes) -> bytes:
    number = int.from_bytes(value, "big", signed=True)
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _uuids(raw: pa.Array) -> pa.StringArray:
    """The texts of UUIDs of sixteen bytes."""
    texts = [None if v is None else v.hex() for v in raw.to_pylist()]
    return pa.array(
        [None if t is None else f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts], pa.string()
    )


_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
#: For each type, the tests of the Arrow types from which it can be read.
_READ_FROM: Final[Mapping[str, Sequence[Callable[[pa.DataType], bool]]]] = {
    "varchar": _TEXTS,
    "jsonb": _TEXTS,
    "boolean": (pa.types.is_boolean,),
    "real": (pa.types.is_floating, pa.types.is_integer),
    "double precision": (pa.types.is_floating, pa.types.is_integer),
    "numeric": (pa.types.is_decimal, pa.types.is_integer),
    "bytea": _BINARIES,
    "date": (pa.types.is_date,),
    "time": (pa.types.is_time,),
}


def can_read(found: pa.DataType, kind: SqlType) -> bool:
    """Whether values of the type `found` can be converted to the declared type."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return True
    if kind.name in ("timestamp", "timestamptz"):
        return bool(pa.types.is_timestamp(found)) and (found.tz is not None) == (kind.name == "timestamptz")
    if kind.name == "map":
        key, item = kind.entry
        return bool(pa.types.is_map(found)) and can_read(found.key_type, key) and can_read(found.item_type, item)
    if kind.element is not None:
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(is_list and can_read(found.value_type, kind.element))
    if kind.name == "struct":
        return bool(pa.types.is_struct(found)) and all(
            found.get_field_index(part) >= 0 and can_read(found.field(part).type, part_kind)
            for part, part_kind in kind.fields
        )
    if kind.is_integer:
        return bool(pa.types.is_integer(found))
    tests = _READ_FROM.get(kind.name)
    return bool(found == kind.arrow) if tests is None else any(test(found) for test in tests)


def retyped(array: pa.Array, kind: SqlType) -> Converted:
    """The column converted to the declared type; values that don't fit are bad. Raises pa.ArrowException if it can't be
    converted.
    """
    try:
        # Parquet's readers don't check that text is UTF-8 and decimals have the digits of their type.
        array.validate(full=True)
        bad = None
    except pa.ArrowInvalid:
        bad = _culprits(array, _validated)
        array = pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))
    return _retyped_valid(array, kind).with_bad(bad)


def _retyped_valid(array: pa.Array, kind: SqlType) -> Converted:
    if pa.types.is_null(array.type):
        return Converted(pa.nulls(len(array), kind.arrow))
    if kind.name == "jsonb":
        return convert([array.cast(pa.string())], [kind])[0]
    if pa.types.is_map(array.type):
        array = pa.concat_arrays([array])
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        array = pa.ListArray.from_arrays(array.offsets, entries, mask=array.is_null())
    if kind.name == "time":
        return _in_a_day(pc.cast(array, kind.arrow, safe=False))
    if array.type == kind.arrow:
        return Converted(array)
    if kind.is_float or (kind.name in ("timestamp", "timestamptz") and array.type.unit == "ns"):
        # Nanoseconds are truncated to microseconds; whole numbers above 2^53 are rounded, as in a cast in SQL.
        return Converted(pc.cast(array, kind.arrow, safe=False))
    try:
        return Converted(pc.cast(array, kind.arrow))
    except pa.ArrowInvalid:
        bad = _culprits(array, lambda part: pc.cast(part, kind.arrow))
        array = pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))
        return Converted(pc.cast(array, kind.arrow), bad)


def _in_a_day(times: pa.Array) -> Converted:
    """Times of a day; files may contain any number."""
    numbers = times.cast(pa.int64())
    fits = pc.fill_null(pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, DAY_US)), fill_value=True)
    bad = ~fits.to_numpy(zero_copy_only=False)
    if not bad.any():
        return Converted(times)
    return Converted(pc.if_else(fits, times, pa.scalar(None, times.type)), bad)


def _validated(array: pa.Array) -> None:
    array.validate(full=True)


def _culprits(array: pa.Array, attempt: Callable[[pa.Array], object]) -> Mask:
    """The rows for which `attempt` raises ArrowInvalid, found by halving."""
    bad = np.zeros(len(array), np.bool_)
    nested = pa.types.is_nested(array.type)
    open_ = [(0, len(array))]
    while open_:
        start, end = open_.pop()
        # A slice of a nested array still has the values of other rows.
        part = array.take(pa.array(range(start, end))) if nested else array.slice(start, end - start)
        try:
            attempt(part)
        except pa.ArrowInvalid:
            if end - start == 1:
                bad[start] = True
            else:
                middle = (start + end) // 2
                open_ += [(middle, end), (start, middle)]
    return bad


def as_map(column: pa.Array, kind: SqlType) -> pa.MapArray:
    """A column of maps, which are arrays of entries, with Arrow's type of maps. A NULL key is an error of Arrow."""
    column = pa.concat_arrays([column])
    keys, items = (column.values.field(i) for i in range(2))
    offsets = pa.array(
        column.offsets.to_numpy(), mask=np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    )
    return pa.MapArray.from_arrays(offsets, keys, items, pa.map_(*(part.arrow for part in kind.entry)))


def columns_of(what: str, schema: pa.Schema) -> Schema:
    """The columns of an external table. what: the table. Raises FEATURE_NOT_SUPPORTED for a type without an SQL
    type.
    """
    found = []
    for field in schema:
        kind = sql_type(field.type)
        if kind is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{field.name}" of {what} has type {field.type}, which is not supported',
                hint="List the columns that are to be read.",
            )
        found.append(Field(field.name, kind, field.nullable))
    return tuple(found)


def sql_type(kind: pa.DataType) -> SqlType | None:
    """The SQL type that contains all values of a type, or None."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    if pa.types.is_decimal128(kind):
        return SqlType("numeric", kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = sql_type(kind.value_type)
        return None if element is None else SqlType("array", element=element)
    if pa.types.is_map(kind):
        key, item = sql_type(kind.key_type), sql_type(kind.item_type)
        return None if key is None or item is None or key.name not in MAP_KEYS else map_of(key, item)
    if pa.types.is_struct(kind):
        parts = [(f.name, sql_type(f.type)) for f in kind]
        known = tuple((name, part) for name, part in parts if part is not None)
        return SqlType("struct", fields=known) if len(known) == len(parts) else None
    for known_as, test in (
        (BOOLEAN, pa.types.is_boolean),
        (SMALLINT, lambda k: pa.types.is_int8(k) or pa.types.is_int16(k)),
        (INTEGER, pa.types.is_int32),
        (BIGINT, pa.types.is_int64),
        (REAL, pa.types.is_float32),
        (DOUBLE, pa.types.is_float64),
        (VARCHAR, lambda k: any(test(k) for test in _TEXTS)),
        (BYTEA, lambda k: any(test(k) for test in _BINARIES)),
        (DATE, pa.types.is_date),
        (TIME, pa.types.is_time),
    ):
        if test(kind):
            return known_as
    return None
