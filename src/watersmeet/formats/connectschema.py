"""Schemas of Kafka Connect in JSON messages as the trees that Avro's schemas are read to.

Source: Kafka Connect, `JsonConverter`; Debezium, "Change events" of its connectors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from watersmeet.formats.avropayloads import declare
from watersmeet.formats.avroschema import VARIABLE_DECIMAL, Kind, Node
from watersmeet.formats.logicaltypes import of_connect
from watersmeet.types import BIGINT, BOOLEAN, BYTEA, DOUBLE, REAL, VARCHAR, SqlType

_KINDS: Final[dict[str, Kind]] = {
    "boolean": "boolean",
    "int8": "long",
    "int16": "long",
    "int32": "long",
    "int64": "long",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "bytes": "bytes",
    "string": "string",
}
_WRITTEN_AS: Final[dict[str, SqlType]] = {
    "boolean": BOOLEAN,
    "long": BIGINT,
    "float": REAL,
    "double": DOUBLE,
    "bytes": BYTEA,
    "string": VARCHAR,
}
#: Meanings of numbers that JSON alone would read as other times.
_TIMES: Final = ("date", "time", "timestamp", "local timestamp", "duration")


@lru_cache(maxsize=256)
def record_of(schema: str, part: str | None) -> Node | None:
    """The tree of a schema, or of its field `part`; None for an unreadable one."""
    try:
        found = json.loads(schema)
        if part is not None:
            found = next(f for f in found["fields"] if f.get("field") == part)
        node = _node(found)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    return node if node.kind == "record" else None


def _node(schema: Mapping[str, Any]) -> Node:
    """Maps, whose JSON is not one form, are unions: their values are read as JSON."""
    kind, name = schema.get("type", "struct"), schema.get("name")
    if name == VARIABLE_DECIMAL:
        return Node("record", name=name, fields=((("scale",), Node("long")), (("value",), Node("bytes"))))
    if kind == "struct":
        return Node("record", name=name or "", fields=tuple(((f["field"],), _node(f)) for f in schema["fields"]))
    if kind == "array":
        return Node("array", items=_node(schema["items"]))
    if kind not in _KINDS:
        return Node("union")
    logical = of_connect(name, schema.get("parameters") or {})
    fits = logical is None or (logical.meaning == "decimal") == (kind == "bytes")
    return Node(_KINDS[kind], logical=logical if fits else None)


def written_as(node: Node) -> SqlType:
    """The type in which JSON values of a schema are read first."""
    if node.kind == "record":
        return SqlType("struct", fields=tuple((names[0], written_as(part)) for names, part in node.fields))
    if node.kind == "array":
        assert node.items is not None
        return SqlType("array", element=written_as(node.items))
    return _WRITTEN_AS.get(node.kind, VARCHAR)


def has_meaning(node: Node, kind: SqlType) -> bool:
    """Whether the schema says of a value for this column more than its JSON does."""
    if node.kind == "array":
        return node.items is not None and (
            (kind.element is not None and has_meaning(node.items, kind.element))
            or (kind.name == "jsonb" and has_meaning(node.items, kind))
        )
    if node.is_variable_decimal:
        return _is_declarable(node, kind)
    if node.kind == "record":
        parts = [(node.part(name), part) for name, part in kind.fields]
        # A struct with a part that only JSON's rules convert, such as a date in a text, is read by them as a whole.
        return any(held is not None and has_meaning(held[1], part) for held, part in parts) and _is_declarable(
            node, kind
        )
    if node.kind == "long" and kind.name == "boolean":
        return True
    if node.logical is None:
        return False
    meaning = node.logical.meaning
    if meaning == "decimal":
        return kind.name != "bytea"
    return meaning in _TIMES and kind.name in ("date", "time", "timestamp", "timestamptz", "interval")


def _is_declarable(node: Node, kind: SqlType) -> bool:
    return declare(node, pa.array([], node.arrow), kind) is not None
