"""Reads payloads and container files in Avro.

All bodies of one schema are combined to a block of an Avro file, which Polars reads as columns. Polars receives plain
types only; this module adds the logical types. The sizes of the values show whether each body ends with its message; if
not, and for schemas that Polars can't read, bodies are read one by one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.avroschema import Node, container_block, container_head, read_schema
from watersmeet.formats.convert import convert
from watersmeet.formats.payloads import Numbers, Read, joined, moved, nothing, without_head
from watersmeet.formats.registry import RegisteredSchema, Registry, UnknownSchemaError
from watersmeet.formats.typemapping import can_read, decimals, retyped, with_meaning
from watersmeet.formats.valuetexts import Converted, Mask, evaluate, of_rows, one_array
from watersmeet.system.process import library
from watersmeet.values.packing import offsets
from watersmeet.values.types import Field, SqlType

#: The format option with the text of the schema from which the columns were derived.
TAKEN_SCHEMA: Final = "taken.schema"

_SYNC: Final = bytes(range(16))
_FRAME: Final = 5

"""The number of bytes before a body: a zero byte, and the id of its schema as a big-endian int."""


class AvroReader:
    """Reads records whose fields are the columns. whole: whether the single column is the value, of any type.

    registry: the registry of the schemas whose ids precede the bodies. schema: the schema of bodies without an id.
    ours: the text of the schema from which the columns were derived; its defaults replace fields that a body's schema
    lacks.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        *,
        registry: Registry | None,
        schema: Node | None,
        whole: bool = False,
        ours: str | None = None,
    ) -> None:
        assert (registry is None) != (schema is None), "either ids or one schema"
        library("fastavro", "messages in Avro")
        self._fields = fields
        self._registry = registry
        self._schema = schema
        self._whole = whole
        self._defaults = {} if ours is None else field_defaults(ours, fields)
        self._by_id: dict[int, Node | str] = {}

    def read(self, payloads: pa.BinaryArray) -> Read:
        reads = []
        for places, bodies, schema, called in self.by_schema(payloads):
            if isinstance(schema, str):
                found = nothing(self._fields, dict.fromkeys(range(len(places)), schema))
            else:
                found = columns_of(schema, bodies, self._fields, called, self._defaults, whole=self._whole)
            reads.append(moved(found, places))
        return joined(reads, self._fields) if reads else nothing(self._fields)

    def by_schema(self, payloads: pa.BinaryArray) -> Iterator[tuple[Numbers, pa.BinaryArray, Node | str, str]]:
        """For each schema of the payloads: the places and bodies, the schema or the reason why it is missing, and its
        name.
        """
        if self._registry is None:
            assert self._schema is not None
            yield np.arange(len(payloads)), payloads, self._schema, "the schema"
            return
        bodies, ids = split_frames(payloads)
        for id_ in np.unique(ids).tolist():
            places = np.flatnonzero(ids == id_)
            chosen = bodies if len(places) == len(bodies) else of_rows(bodies, places)
            yield places, chosen, self._schema_of(id_), f"schema {id_} of the registry"

    def _schema_of(self, id_: int) -> Node | str:
        """The schema with an id, or the reason why it is missing."""
        if id_ < 0:
            return "avro: no zero byte and id of a schema before the value"
        found = self._by_id.get(id_)
        if found is None:
            assert self._registry is not None
            try:
                registered = self._registry.schema(id_)
                if registered.kind == "AVRO":
                    found = read_schema(registered, self._registry)
                else:
                    found = f"avro: schema {id_} of the registry is one of {registered.kind}"
            except UnknownSchemaError as cause:
                return f"avro: {cause}"  # not cached, because the schema may be registered later
            self._by_id[id_] = found
        return found


def split_frames(payloads: pa.BinaryArray) -> tuple[pa.BinaryArray, Numbers]:
    """The bodies after the ids of schemas, and the ids (-1 if missing)."""
    sizes = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
    framed = pc.starts_with(payloads, b"\x00").to_numpy(zero_copy_only=False) & (sizes >= _FRAME)
    ids = np.full(len(payloads), -1, np.int64)
    if framed.any():
        starts = offsets(payloads)[:-1][framed]
        heads = np.frombuffer(payloads.buffers()[2], np.uint8)[starts[:, None] + np.arange(1, _FRAME)]
        ids[framed] = heads.astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    return without_head(payloads, _FRAME), ids


def field_defaults(text: str, fields: Sequence[Field]) -> dict[str, pa.Scalar]:
    """The defaults of fields in a schema by column, except for null. Raises CONNECTOR_OPTION for a default that is
    invalid for its column.
    """
    found = {}
    for part in json.loads(text).get("fields", ()):
        column = next((c for c in fields if c.name.lower() == part["name"].lower()), None)
        if column is None or part.get("default") is None:
            continue
        try:
            (value,) = _default(part, column)
        except Exception as cause:
            raise error(
                "CONNECTOR_OPTION",
                f'the default of field "{part["name"]}" can\'t be a value of column "{column.name}"',
                detail=str(cause)[:200] or type(cause).__name__,
                hint="Declare the columns.",
            ) from cause
        found[column.name] = value
    return found


def _default(part: Mapping[str, Any], column: Field) -> pa.Array:
    """The default of a field, which is written as a body of the field's type and read like all bodies."""
    fastavro = library("fastavro", "messages in Avro")
    alone = {"type": "record", "name": "defaults", "fields": [part]}
    kind = part["type"][0] if isinstance(part["type"], list) else part["type"]
    kind = kind.get("type") if isinstance(kind, dict) else kind
    value = part["default"].encode("latin-1") if kind in ("bytes", "fixed") else part["default"]
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(_without_meanings(alone)), {part["name"]: value})
    schema = read_schema(RegisteredSchema(0, "AVRO", json.dumps(alone)))
    read = columns_of(schema, pa.array([file.getvalue()], pa.binary()), [column], "the schema of the columns", {})
    if read.reasons or read.columns[0].column.null_count:
        raise ValueError(next(iter(read.reasons.values()), json.dumps(part["default"])))
    return read.columns[0].column


def _without_meanings(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, list):
        return [_without_meanings(s) for s in schema]
    if isinstance(schema, dict):
        return {n: s if n == "default" else _without_meanings(s) for n, s in schema.items() if n != "logicalType"}
    return schema


def columns_of(
    schema: Node,
    bodies: pa.BinaryArray,
    fields: Sequence[Field],
    called: str,
    defaults: Mapping[str, pa.Scalar],
    *,
    whole: bool = False,
) -> Read:
    """Bodies of one schema as columns. called: the schema in errors. defaults: the defaults of columns that it lacks.

    Raises DATATYPE_MISMATCH if a field of the schema can't be a column of the declared type.
    """
    table, reasons, good = raw_columns(schema, bodies)
    return Read(columns_in(schema, table, fields, called, defaults, whole=whole), np.flatnonzero(good), reasons)


def columns_in(
    schema: Node,
    values: pa.Array,
    fields: Sequence[Field],
    called: str,
    defaults: Mapping[str, pa.Scalar],
    *,
    whole: bool = False,
) -> list[Converted]:
    """Values of a schema in plain types as columns. Raises the errors of `columns_of`."""
    if whole or schema.kind != "record":
        if len(fields) != 1:
            raise error("DATATYPE_MISMATCH", f"{called} is no record, and there are {len(fields)} columns")
        return [declared(schema, values, fields[0], called)]
    columns = []
    for column in fields:
        part = schema.part(column.name)
        if part is None:
            missing = defaults.get(column.name, pa.scalar(None, column.type.arrow))
            columns.append(Converted(pa.repeat(missing, len(values))))
        else:
            columns.append(declared(part[1], values.field(part[0]), column, called))
    return columns


def raw_columns(schema: Node, bodies: pa.BinaryArray) -> tuple[pa.Array, dict[int, str], Mask]:
    """The values of the readable bodies in plain types, the reasons why others can't be read, and the mask of readable
    ones.
    """
    if len(bodies) and schema.is_plain and schema.kind == "record":
        found = _by_block(schema, bodies)
        if found is not None:
            return found, {}, np.ones(len(bodies), np.bool_)
    return _one_by_one(schema, bodies)


def _by_block(schema: Node, bodies: pa.BinaryArray) -> pa.StructArray | None:
    """Reads all bodies as one block; None unless each body exactly matches the schema."""
    ends = offsets(bodies)
    block = (bodies.buffers()[2] or pa.py_buffer(b""))[int(ends[0]) : int(ends[-1])]
    record = read_block(schema, len(bodies), block)
    if record is None or not np.array_equal(schema.sizes(record), np.diff(ends)):
        return None
    if not schema.agrees(record, ends[:-1] - ends[0], np.frombuffer(block, np.uint8)):
        return None
    return record


def read_block(schema: Node, count: int, block: bytes | memoryview | pa.Buffer) -> pa.StructArray | None:
    """Reads a number of consecutive records; None if Polars can't read them."""
    polars = library("polars", "messages in Avro")
    file = container_head(schema.plain, _SYNC) + container_block(count, block, _SYNC)
    try:
        frame = polars.read_avro(io.BytesIO(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a Rust panic is not an Exception; reading one by one reports the error and its location
        return None
    if frame.height != count:
        return None
    columns = [
        one_array(column.cast(node.arrow))
        for (_, node), column in zip(schema.fields, frame.to_arrow().columns, strict=True)
    ]
    record = pa.StructArray.from_arrays(columns, fields=list(schema.arrow))
    try:
        record.validate(full=True)  # Polars does not check that texts are UTF-8
    except pa.ArrowInvalid:
        return None
    return record


def _one_by_one(schema: Node, bodies: pa.BinaryArray) -> tuple[pa.Array, dict[int, str], Mask]:
    fastavro = library("fastavro", "messages in Avro")
    parsed = fastavro.parse_schema(schema.plain)
    good = np.ones(len(bodies), np.bool_)
    reasons: dict[int, str] = {}
    values = []
    for i, body in enumerate(bodies.to_pylist()):
        file = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(file, parsed)
            if file.tell() != len(body):
                raise ValueError(f"{len(body) - file.tell()} bytes follow the value")  # noqa: TRY301
            values.append(schema.shaped(value))
        except Exception as cause:
            good[i] = False
            reasons[i] = f"avro: {str(cause)[:200] or type(cause).__name__}"
    return pa.array(values, schema.arrow), reasons, good


def declared(node: Node, raw: pa.Array, column: Field, called: str) -> Converted:
    """Plain values of a schema in the declared type. Raises DATATYPE_MISMATCH if they can't be converted."""
    found = declare(node, raw, column.type)
    if found is None:
        raise error(
            "DATATYPE_MISMATCH",
            f'column "{column.name}" is {column.type.sql}, in {called} it is {node.title}',
            hint="Declare the column as it is written, or go back to a schema that fits.",
        )
    return found


def declare(node: Node, raw: pa.Array, kind: SqlType) -> Converted | None:
    """Plain values of a schema converted to a type; None if no value can be converted."""
    if node.kind == "null":
        return Converted(pa.nulls(len(raw), kind.arrow))
    if node.is_variable_decimal and (found := _of_own_scales(node, raw, kind)) is not None:
        return found
    if kind.name == "jsonb" and node.kind != "bytes":
        return _as_json(node, raw)
    if node.kind == "record" and kind.name == "struct":
        return _as_struct(node, raw, kind)
    if node.kind in ("array", "map") and kind.name == "array":
        return _as_list(node, raw, kind)
    if node.kind in ("record", "array", "map", "union"):
        return _as_json(node, raw) if kind.name == "varchar" else None
    plain = raw.dictionary_decode() if pa.types.is_dictionary(raw.type) else raw
    if node.kind == "enum":
        plain = pa.array(node.symbols).take(raw) if pa.types.is_integer(raw.type) else raw
    if node.kind in ("int", "long") and kind.name == "boolean" and node.logical is None:
        return _booleans(plain)
    meant = node.logical
    if meant is not None and meant.meaning == "duration" and kind.is_integer:
        meant = None
    done, meaning = Converted(plain), None
    if meant is not None:
        done, meaning = with_meaning(plain, meant), meant.meaning
    values = done.column
    if meaning == "decimal":
        number = _of_decimals(values, kind)
        return None if number is None else number.with_bad(done.bad)
    if (kind.name, meaning) in (("timestamp", "timestamp"), ("timestamptz", "local timestamp")):
        values = values.cast(pa.int64()).view(kind.arrow)
    elif meaning in ("zoned text", "interval text", "json") and kind.name != "varchar":
        return convert([values], [kind])[0] if meant is not None and kind == meant.type else None
    elif kind.name == "varchar" and meaning not in ("date", "time", "timestamp", "local timestamp", "duration"):
        if node.kind in ("bytes", "fixed") and meaning is None:
            return None
        return Converted(values.cast(pa.string()), done.bad)
    elif kind.name == "numeric" and node.kind in ("float", "double"):
        return convert([values.cast(pa.string())], [kind])[0].with_bad(done.bad)
    elif not can_read(values.type, kind):
        return None
    return retyped(values, kind).with_bad(done.bad)


def _booleans(numbers: pa.Array) -> Converted:
    """MySQL's booleans 1 and 0; other numbers are bad."""
    is_one = pc.equal(numbers, 1)
    fits = pc.fill_null(pc.or_(is_one, pc.equal(numbers, 0)), fill_value=True)
    if pc.all(fits).as_py() in (True, None):
        return Converted(is_one)
    return Converted(pc.if_else(fits, is_one, pa.scalar(None, pa.bool_())), ~fits.to_numpy(zero_copy_only=False))


def _of_decimals(values: pa.Array, kind: SqlType) -> Converted | None:
    """Decimals converted to a type: exactly to whole numbers, rounded to floating-point numbers."""
    if kind.name == "numeric":
        return rescaled(values, kind)
    if kind.is_integer:
        return retyped(values, kind)
    if kind.is_float or kind.name in ("varchar", "jsonb"):
        (texts,) = evaluate([values], ["CAST(t0 AS VARCHAR)"])
        return convert([texts], [kind])[0]
    return None


def _of_own_scales(node: Node, raw: pa.StructArray, kind: SqlType) -> Converted | None:
    """Records of a scale and an unscaled value, converted to a type of numbers or texts."""
    scale, value = node.part("scale"), node.part("value")
    assert scale is not None
    assert value is not None
    scales, values = raw.field(scale[0]), raw.field(value[0])
    present = raw.is_valid().to_numpy(zero_copy_only=False)
    complete = present & pc.and_(scales.is_valid(), values.is_valid()).to_numpy(zero_copy_only=False)
    column, bad = pa.nulls(len(raw), kind.arrow), present & ~complete
    if _of_decimals(pa.nulls(0, pa.decimal128(38, 0)), kind) is None:
        return None
    for number in pc.unique(scales.filter(pa.array(complete))).to_pylist():
        mine = complete & pc.fill_null(pc.equal(scales, number), fill_value=False).to_numpy(zero_copy_only=False)
        unscaled = decimals(of_rows(values, mine), number)
        found = _of_decimals(unscaled.column, kind)
        assert found is not None
        found = found.with_bad(unscaled.bad)
        column = pc.replace_with_mask(column, pa.array(mine), found.column)
        if found.bad is not None:
            bad[np.flatnonzero(mine)[found.bad]] = True
    return Converted(column, bad if bad.any() else None)


def rescaled(values: pa.Array, kind: SqlType) -> Converted:
    """Decimals with the digits of a type, rounded like casts in SQL; too large numbers are bad."""
    if values.type.scale <= kind.arrow.scale:
        return retyped(values, kind)
    return convert([values.cast(pa.string())], [kind])[0]


def _as_struct(node: Node, raw: pa.StructArray, kind: SqlType) -> Converted | None:
    columns, bad = [], np.zeros(len(raw), np.bool_)
    valid = raw.is_valid()
    for name, part_kind in kind.fields:
        part = node.part(name)
        if part is None:
            columns.append(pa.nulls(len(raw), part_kind.arrow))
            continue
        values = pc.if_else(valid, raw.field(part[0]), pa.scalar(None, raw.field(part[0]).type))
        found = declare(part[1], values, part_kind)
        if found is None:
            return None
        if found.bad is not None:
            bad |= found.bad
        columns.append(found.column)
    null = ~valid.to_numpy(zero_copy_only=False) | bad
    column = pa.StructArray.from_arrays(columns, fields=list(kind.arrow), mask=pa.array(null))
    return Converted(column, bad if bad.any() else None)


def _as_list(node: Node, raw: pa.Array, kind: SqlType) -> Converted | None:
    assert kind.element is not None
    assert node.items is not None
    null = raw.is_null().to_numpy(zero_copy_only=False)
    if node.kind == "map":
        names = [name for name, _ in kind.element.fields]
        if len(names) != 2 or kind.element.fields[0][1].name != "varchar":
            return None
        values = declare(node.items, raw.items, kind.element.fields[1][1])
        if values is None:
            return None
        pairs = pa.StructArray.from_arrays([raw.keys, values.column], fields=list(kind.element.arrow))
        found = Converted(pairs, values.bad)
    else:
        items = declare(node.items, raw.values, kind.element)
        if items is None:
            return None
        found = items
    offsets = np.asarray(raw.offsets)
    bad = np.zeros(len(raw), np.bool_)
    if found.bad is not None:
        before = np.concatenate([[0], np.cumsum(found.bad)])
        bad = before[offsets[1:]] > before[offsets[:-1]]
    column = pa.ListArray.from_arrays(raw.offsets, found.column, type=kind.arrow, mask=pa.array(null | bad))
    return Converted(column, bad if bad.any() else None)


def _as_json(node: Node, raw: pa.Array) -> Converted | None:
    """Values as JSON, in which records and maps are objects."""
    if node.kind == "union" or (node.logical is not None and node.logical.meaning == "json"):
        return convert([raw], [SqlType("jsonb")])[0]
    kind = node.type
    if kind is None:
        return None
    found = declare(node, raw, kind)
    if found is None:
        return None
    if node.kind == "map":
        (texts,) = evaluate([found.column.cast(kind.arrow)], ["CAST(to_json(map_from_entries(t0)) AS VARCHAR)"])
    else:
        (texts,) = evaluate([found.column], ["CAST(to_json(t0) AS VARCHAR)"])
    texts = pc.if_else(found.column.is_valid(), texts, pa.scalar(None, pa.string()))
    return convert([texts], [SqlType("jsonb")])[0].with_bad(found.bad)


def count_records(file: BinaryIO) -> int:
    """The number of records of a file, from the headers of its blocks. Raises fastavro's error for other files."""
    return sum(block.num_records for block in library("fastavro", "files of Avro").block_reader(file))


def read_records(file: BinaryIO, fields: Sequence[Field]) -> Read:
    """The records of a file as rows. Raises fastavro's error for other files.

    Raises DATATYPE_MISMATCH if a field of its schema can't be a column of the declared type.
    """
    fastavro = library("fastavro", "files of Avro")
    blocks = fastavro.block_reader(file)
    text = blocks.metadata["avro.schema"]
    schema = read_schema(RegisteredSchema(0, "AVRO", text))
    count, data = 0, io.BytesIO()
    for block in blocks:
        count += block.num_records
        data.write(block.bytes_.read())
    records = read_block(schema, count, data.getbuffer()) if schema.is_plain and schema.kind == "record" else None
    if records is None:
        parsed = fastavro.parse_schema(schema.plain)
        data.seek(0)
        records = pa.array(
            [schema.shaped(fastavro.schemaless_reader(data, parsed)) for _ in range(count)], schema.arrow
        )
    return Read(columns_in(schema, records, fields, "the schema of the file", {}), np.arange(count, dtype=np.int64))
