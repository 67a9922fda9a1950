"""Avro schemas as trees: plain types, logical types, sizes of values; and the frame of container files.

Source: Avro 1.12, "Object Container Files".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.formats.registry import RegisteredSchema, Registry
from watersmeet.formats.typemapping import Logical, of_avro
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DOUBLE,
    INTEGER,
    JSONB,
    REAL,
    VARCHAR,
    Field,
    Schema,
    SqlType,
)

Kind = Literal[
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", "record", "enum", "array", "map", "fixed",
    "union",
]  # fmt: skip

Sizes = npt.NDArray[np.int64]

_ARROW: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.int32(),
    "union": pa.string(),
}

_SQL: Final[dict[str, SqlType]] = {
    "boolean": BOOLEAN,
    "int": INTEGER,
    "long": BIGINT,
    "float": REAL,
    "double": DOUBLE,
    "bytes": BYTEA,
    "string": VARCHAR,
    "fixed": BYTEA,
    "enum": VARCHAR,
    "union": JSONB,
    "map": JSONB,
}

#: The name of Debezium's record of a decimal that contains its scale.
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"


@dataclass(frozen=True)
class Node:
    """A type of a schema.

    branches: the position of null in a union with null, 1 or 2; else 0. name: the full name of a record. fields: the
    fields of a record, as pairs of a node and its names (its own, then its aliases). items: the type of the items of an
    array or map. size: the size of a fixed. choices: the types of a `union` of several types, whose values are written
    as JSON.
    """

    kind: Kind
    branches: int = 0
    name: str = ""
    logical: Logical | None = None
    fields: tuple[tuple[tuple[str, ...], Node], ...] = ()
    items: Node | None = None
    symbols: tuple[str, ...] = ()
    size: int = 0
    choices: tuple[Node, ...] = ()

    @cached_property
    def plain(self) -> Any:
        """The type as JSON without logical types; an enum becomes an int."""
        return _plain(self, count())

    @property
    def is_variable_decimal(self) -> bool:
        """Whether it is Debezium's record of a decimal that contains its scale."""
        return self.name == VARIABLE_DECIMAL and None not in map(self.part, ("scale", "value"))

    @property
    def title(self) -> str:
        """The name for messages."""
        return self.kind if self.logical is None else f"{self.kind} ({self.logical.meaning})"

    @cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its plain values."""
        if self.kind == "record":
            return pa.struct([pa.field(f"f{i}", node.arrow) for i, (_, node) in enumerate(self.fields)])
        if self.kind in ("array", "map"):
            assert self.items is not None
            return pa.list_(self.items.arrow) if self.kind == "array" else pa.map_(pa.string(), self.items.arrow)
        return _ARROW[self.kind]

    @cached_property
    def type(self) -> SqlType | None:
        """The SQL type of its values; None for null."""
        if self.logical is not None:
            return self.logical.type
        if self.kind == "record":
            found = [(names[0], node.type) for names, node in self.fields]
            return SqlType("struct", fields=tuple((name, kind) for name, kind in found if kind is not None))
        if self.kind == "array":
            assert self.items is not None
            return None if self.items.type is None else SqlType("array", element=self.items.type)
        if self.kind == "map":
            return self.entries
        return _SQL.get(self.kind)

    @property
    def entries(self) -> SqlType | None:
        """The entries of a map as an array of structs."""
        assert self.items is not None
        if self.items.type is None:
            return None
        return SqlType("array", element=SqlType("struct", fields=(("key", VARCHAR), ("value", self.items.type))))

    @cached_property
    def is_plain(self) -> bool:
        """Whether blocks of it can be read as columns: it has no maps, no unions of several types, no records without
        fields.
        """
        if self.kind == "record":
            return bool(self.fields) and all(node.is_plain for _, node in self.fields)
        if self.kind == "array":
            assert self.items is not None
            return self.items.is_plain
        return self.kind not in ("map", "union", "null") and (self.kind != "fixed" or self.size > 0)

    def part(self, name: str) -> tuple[int, Node] | None:
        """The position and type of the field with a name, else with this alias, else with this name in another case."""
        for same in (
            lambda names: names[0] == name,
            lambda names: name in names,
            lambda names: names[0].lower() == name.lower(),
        ):
            for i, (names, node) in enumerate(self.fields):
                if same(names):
                    return i, node
        return None

    def sizes(self, values: pa.Array) -> Sizes:
        """The bytes of each value in the shortest encoding."""
        null = values.is_null().to_numpy(zero_copy_only=False)
        if self.kind == "record":
            found = np.zeros(len(values), np.int64)
            for i, (_, node) in enumerate(self.fields):
                found += node.sizes(values.field(i))
        elif self.kind == "array":
            assert self.items is not None
            offsets = np.asarray(values.offsets).astype(np.int64)
            inside = np.concatenate([[0], np.cumsum(self.items.sizes(values.values))])
            counts = np.diff(offsets)
            found = inside[offsets[1:]] - inside[offsets[:-1]] + 1 + np.where(counts > 0, _varints(counts), 0)
        elif self.kind in ("int", "long", "enum"):
            found = _varints(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.int64))
        elif self.kind in ("string", "bytes"):
            lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            found = lengths + _varints(lengths)
        elif self.kind == "fixed":
            found = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            found = np.full(len(values), {"boolean": 1, "float": 4, "double": 8}[self.kind], np.int64)
        return np.where(null, 0, found) + 1 if self.branches else found

    def agrees(self, values: pa.Array, starts: Sizes, data: npt.NDArray[np.uint8]) -> bool:
        """Whether the bytes of each value, which begin at `starts`, select the null branch if it is NULL, and its type
        otherwise.

        It is needed because the reader treats any branch but 0 as a value. Values have the lengths of `sizes`.
        """
        null = values.is_null().to_numpy(zero_copy_only=False)
        if self.branches:
            said = data[starts]
            first, second = (null, ~null) if self.branches == 1 else (~null, null)
            if not ((first & (said == 0)) | (second & (said == 2))).all():
                return False
            starts = starts + 1
        if null.any():
            values, starts = values.filter(pa.array(~null)), starts[~null]
        if self.kind == "record":
            for i, (_, node) in enumerate(self.fields):
                part = values.field(i)
                if not node.agrees(part, starts, data):
                    return False
                starts = starts + node.sizes(part)
        elif self.kind == "array":
            assert self.items is not None
            counts = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
            items = values.flatten()
            ends = np.cumsum(self.items.sizes(items))
            before = np.concatenate([[0], ends])[:-1] if len(ends) else ends
            first_item = np.cumsum(counts) - counts
            rows = np.repeat(np.arange(len(counts)), counts)
            begin = (starts + _varints(counts))[rows] + before - before[first_item[rows]] if len(rows) else before
            return self.items.agrees(items, begin, data)
        return True

    def shaped(self, value: Any) -> Any:
        """A value of fastavro converted for Arrow."""
        if value is None:
            return None
        if self.kind == "record":
            return {f"f{i}": node.shaped(value[f"f{i}"]) for i, (_, node) in enumerate(self.fields)}
        if self.kind == "array":
            assert self.items is not None
            return [self.items.shaped(item) for item in value]
        if self.kind == "map":
            assert self.items is not None
            return [(name, self.items.shaped(item)) for name, item in value.items()]
        if self.kind == "union":
            return json.dumps(value, default=_as_text, ensure_ascii=False)
        return value


def _plain(node: Node, numbers: Iterator[int]) -> Any:
    """`Node.plain`. Each record and fixed has a unique name."""
    found: Any
    if node.kind == "record":
        parts = [{"name": f"f{i}", "type": _plain(part, numbers)} for i, (_, part) in enumerate(node.fields)]
        found = {"type": "record", "name": f"n{next(numbers)}", "fields": parts}
    elif node.kind == "fixed":
        found = {"type": "fixed", "name": f"n{next(numbers)}", "size": node.size}
    elif node.kind == "array":
        assert node.items is not None
        found = {"type": "array", "items": _plain(node.items, numbers)}
    elif node.kind == "map":
        assert node.items is not None
        found = {"type": "map", "values": _plain(node.items, numbers)}
    elif node.kind == "union":
        return [_plain(choice, numbers) for choice in node.choices]
    else:
        found = "int" if node.kind == "enum" else node.kind
    return {0: found, 1: ["null", found], 2: [found, "null"]}[node.branches]


def _as_text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _varints(values: Sizes) -> Sizes:
    """The bytes of encoded whole numbers."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    found = np.ones(len(values), np.int64)
    for i in range(1, 10):
        more = rest >= np.uint64(1 << (7 * i)) if i < 10 else rest < 0
        if not more.any():
            break
        found += more
    return found


def read_schema(schema: RegisteredSchema, registry: Registry | None = None) -> Node:
    """The tree of a schema with its references. Raises CONNECTOR_OPTION if it is invalid."""
    reader = _SchemaReader()
    try:
        if registry is not None:
            _read_references(schema, registry, reader, set())
        return reader.node(json.loads(schema.text), "")
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        called = f"schema {schema.id} of the registry" if schema.id else "the schema"
        raise error(
            "CONNECTOR_OPTION", f"{called} is no schema of Avro", detail=f"{type(cause).__name__}: {cause}"
        ) from cause


def _read_references(
    schema: RegisteredSchema, registry: Registry, reader: _SchemaReader, seen: set[tuple[str, int]]
) -> None:
    for reference in schema.references:
        if (reference.subject, reference.version) not in seen:
            seen.add((reference.subject, reference.version))
            found = registry.version(reference)
            _read_references(found, registry, reader, seen)
            reader.node(json.loads(found.text), "")


class _SchemaReader:
    """Reads types from JSON. Named types can be used by their names afterwards."""

    def __init__(self) -> None:
        self._named: dict[str, Node | None] = {}
        """Named types; None for a type that is being read, and so contains itself."""

    def node(self, schema: Any, namespace: str) -> Node:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            if schema in _ARROW and schema not in ("fixed", "enum", "union"):
                return Node(cast("Kind", schema))
            return self._by_name(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, namespace)
        if kind == "array":
            items = self.node(schema["items"], namespace)
            return Node("array", items=items)
        if kind == "map":
            items = self.node(schema["values"], namespace)
            return Node("map", items=items)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, schema, namespace)
        if kind in _ARROW:
            return Node(kind, logical=of_avro(kind, schema))
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> Node:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for known in (full, name):
            if known in self._named:
                found = self._named[known]
                if found is None:
                    raise error("FEATURE_NOT_SUPPORTED", f'a schema of Avro in which the type "{known}" holds itself')
                return found
        raise ValueError(f'there is no type "{name}"')

    def _define(self, kind: str, schema: Mapping[str, Any], namespace: str) -> Node:
        own = schema["name"]
        space = own.rpartition(".")[0] if "." in own else schema.get("namespace", namespace) or ""
        full = own if "." in own or not space else f"{space}.{own}"
        self._named[full] = None
        if kind == "fixed":
            node = Node("fixed", name=full, logical=of_avro("fixed", schema), size=int(schema["size"]))
        elif kind == "enum":
            node = Node("enum", name=full, symbols=tuple(schema["symbols"]))
        else:
            fields = []
            for part in schema["fields"]:
                held = self.node(_with_properties(part), space)
                fields.append(((part["name"], *part.get("aliases", ())), held))
            node = Node("record", name=full, fields=tuple(fields))
        self._named[full] = node
        return node

    def _union(self, schemas: Sequence[Any], namespace: str) -> Node:
        nodes = [self.node(s, namespace) for s in schemas]
        some = [n for n in nodes if n.kind != "null"]
        if len(some) == 1 and len(nodes) == 2 and not some[0].branches:
            return replace(some[0], branches=1 if nodes[0].kind == "null" else 2)
        return Node("union", choices=tuple(nodes))


def _with_properties(part: Mapping[str, Any]) -> Any:
    """The type of a field, which may contain Kafka Connect's names."""
    kind = part["type"]
    if isinstance(kind, str) and ("connect.name" in part or "logicalType" in part):
        return {**{k: v for k, v in part.items() if k not in ("name", "default", "aliases")}, "type": kind}
    return kind


def columns_from(schema: Node, options: Mapping[str, str]) -> Schema:
    """The columns for the fields of a record. map.handling.mode: `map` (the default) or `jsonb`."""
    if schema.kind != "record":
        raise error("CONNECTOR_OPTION", f"columns are taken from records, and the schema is {schema.title}")
    as_json = options.get("map.handling.mode", "map") == "jsonb"
    columns = []
    for names, node in schema.fields:
        kind = JSONB if node.kind == "union" or (node.kind == "map" and as_json) else node.type
        if kind is None:
            raise _no_type(names[0], node)
        columns.append(Field(names[0], kind))
    return tuple(columns)


def _no_type(name: str, node: Node) -> Error:
    return error(
        "FEATURE_NOT_SUPPORTED", f'field "{name}" of the schema is {node.title}, for which there is no SQL type'
    )


def container_head(schema: Any, sync: bytes) -> bytes:
    """The beginning of a file without compression. schema: JSON. sync: 16 bytes, which end each block."""
    text = json.dumps(schema).encode()
    return b"".join((b"Obj\x01", _varint(1), _varint(11), b"avro.schema", _varint(len(text)), text, _varint(0), sync))


def container_block(count: int, records: bytes | memoryview | pa.Buffer, sync: bytes) -> bytes:
    """A block with a number of records."""
    return b"".join((_varint(count), _varint(memoryview(records).nbytes), records, sync))


def _varint(number: int) -> bytes:
    """A non-negative number in Avro's encoding."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
