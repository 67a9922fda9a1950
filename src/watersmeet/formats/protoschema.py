"""Reads schemas of Protocol Buffers from sets of file descriptors and from the text of .proto files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.formats.avroschema import Node
from watersmeet.formats.registry import RegisteredSchema, Registry, option_error, schema_bytes
from watersmeet.formats.typemapping import Logical
from watersmeet.system.process import library

#: The words in .proto files by the numbers of types in descriptors.
_WORDS: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
SCALARS: Final[dict[str, Node]] = {
    "double": Node("double"),
    "float": Node("float"),
    "int64": Node("long"),
    "uint64": Node("fixed", logical=Logical("decimal", precision=20)),
    "int32": Node("int"),
    "fixed64": Node("fixed", logical=Logical("decimal", precision=20)),
    "fixed32": Node("long"),
    "bool": Node("boolean"),
    "string": Node("string"),
    "bytes": Node("bytes"),
    "uint32": Node("long"),
    "sfixed32": Node("int"),
    "sfixed64": Node("long"),
    "sint32": Node("int"),
    "sint64": Node("long"),
    "enum": Node("string"),
}
TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPED: Final = {
    "Double": "double", "Float": "float", "Int64": "int64", "UInt64": "uint64", "Int32": "int32", "UInt32": "uint32",
    "Bool": "bool", "String": "string", "Bytes": "bytes",
}  # fmt: skip
_LONG: Final = "int64"


@dataclass(frozen=True)
class ProtoField:
    """A field. type: the word of a scalar, `enum` or `message`. named: the full name of the enum or message. optional:
    whether an absent field is NULL.
    """

    name: str
    number: int
    type: str
    named: str = ""
    repeated: bool = False
    optional: bool = False

    @property
    def has_presence(self) -> bool:
        """Whether an absent field differs from one with the default of its type."""
        return not self.repeated and (self.optional or self.type == "message")


@dataclass(frozen=True)
class ProtoMessage:
    """A type of messages. nested: the names of the messages defined in it, in order."""

    name: str
    fields: tuple[ProtoField, ...]
    nested: tuple[str, ...] = ()
    is_map_entry: bool = False

    def field(self, name: str) -> ProtoField | None:
        """The field with a name, else with this name in another case."""
        equal = [f for f in self.fields if f.name == name]
        alike = [f for f in self.fields if f.name.lower() == name.lower()]
        return next(iter(equal + alike), None)


def _well_known(name: str, *fields: ProtoField, is_map_entry: bool = False) -> ProtoMessage:
    return ProtoMessage(f"{_GOOGLE}{name}", fields, is_map_entry=is_map_entry)


_GOOGLE: Final = "google.protobuf."
#: The messages in files of Protobuf's compiler, which schemas don't contain.
_WELL_KNOWN: Final = {
    message.name: message
    for message in (
        _well_known("Duration", ProtoField("seconds", 1, _LONG), ProtoField("nanos", 2, "int32")),
        _well_known("Any", ProtoField("type_url", 1, "string"), ProtoField("value", 2, "bytes")),
        _well_known("FieldMask", ProtoField("paths", 1, "string", repeated=True)),
        _well_known("Struct", ProtoField("fields", 1, "message", f"{_GOOGLE}Struct.FieldsEntry", repeated=True)),
        _well_known(
            "Struct.FieldsEntry",
            ProtoField("key", 1, "string"),
            ProtoField("value", 2, "message", f"{_GOOGLE}Value", optional=True),
            is_map_entry=True,
        ),
        _well_known(
            "Value",
            ProtoField("null_value", 1, "enum", f"{_GOOGLE}NullValue", optional=True),
            ProtoField("number_value", 2, "double", optional=True),
            ProtoField("string_value", 3, "string", optional=True),
            ProtoField("bool_value", 4, "bool", optional=True),
            ProtoField("struct_value", 5, "message", f"{_GOOGLE}Struct", optional=True),
            ProtoField("list_value", 6, "message", f"{_GOOGLE}ListValue", optional=True),
        ),
        _well_known("ListValue", ProtoField("values", 1, "message", f"{_GOOGLE}Value", repeated=True)),
    )
}
_WELL_KNOWN_ENUMS: Final = {f"{_GOOGLE}NullValue": {0: "NULL_VALUE"}}


@dataclass
class ProtoSchema:
    """Messages and enums (names by number) by their full names. top: the messages of the file itself in order."""

    messages: dict[str, ProtoMessage] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    top: list[str] = field(default_factory=list)

    def message(self, name: str | None) -> ProtoMessage:
        """The message with a name, which may lack its package; without a name the only message."""
        if name is None:
            if len(self.top) == 1:
                return self.messages[self.top[0]]
            hint = "message = 'name'; there are " + ", ".join(self.top) + "."
            raise error("CONNECTOR_OPTION", "message: the schema has several messages", hint=hint)
        found = [n for n in self.messages if n == name or (n.endswith("." + name) and n not in _WELL_KNOWN)]
        if len(found) != 1 and name not in self.messages:
            known = "There are " + ", ".join(self.top) + "."
            raise error("CONNECTOR_OPTION", f'message: the schema has no message "{name}"', hint=known)
        return self.messages[name if name in self.messages else found[0]]

    def by_path(self, path: Sequence[int]) -> ProtoMessage | None:
        """The message at a path: the index of a message in the file, then of a message defined in it, and so on."""
        names: Sequence[str] = self.top
        found = None
        for place in path:
            if not 0 <= place < len(names):
                return None
            found = self.messages[names[place]]
            names = found.nested
        return found

    def node(self, part: ProtoField, inside: tuple[str, ...] = ()) -> Node:
        """The type of a field's values as a tree. Raises FEATURE_NOT_SUPPORTED if it is recursive."""
        found = self._single(part, inside)
        if not part.repeated:
            return found
        entry = self.messages.get(part.named) if part.type == "message" else None
        if entry is not None and entry.is_map_entry:
            return Node("map", items=self.node(entry.fields[1], inside))
        return Node("array", items=found)

    def _single(self, part: ProtoField, inside: tuple[str, ...]) -> Node:
        if part.type != "message":
            return SCALARS[part.type]
        if part.named == TIMESTAMP:
            return Node("long", logical=Logical("timestamp"))
        wrapped = wrapped_type(part.named)
        if wrapped is not None:
            return SCALARS[wrapped]
        if part.named in inside:
            raise error(
                "FEATURE_NOT_SUPPORTED", f'a schema of Protobuf in which the message "{part.named}" holds itself'
            )
        message = self.messages[part.named]
        fields = tuple(((f.name,), self.node(f, (*inside, part.named))) for f in message.fields)
        return Node("record", name=part.named, fields=fields)


def wrapped_type(name: str) -> str | None:
    """The scalar in a well-known wrapper message."""
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return _WRAPPED.get(name.removeprefix("google.protobuf.").removesuffix("Value"))
    return None


def protobuf_schema(options: Mapping[str, str]) -> ProtoSchema:
    """The schema of messages without schema ids: a set of file descriptors, or the text of a .proto file."""
    found = schema_bytes(options)
    if found is None:
        hint = "schema.registry = 'http://host:port', or schema.location = 'file:///path'"
        raise option_error("schema.location", "messages in PROTOBUF need a schema", hint)
    if "schema" in options or options["schema.location"].endswith(".proto"):
        return from_text(RegisteredSchema(0, "PROTOBUF", found.decode("utf-8", "replace")))
    return from_descriptors(found)


def from_descriptors(data: bytes) -> ProtoSchema:
    """The schema of a serialized `FileDescriptorSet`. Raises CONNECTOR_OPTION for other data."""
    library("google.protobuf", "schemas of Protobuf")
    descriptors = library("google.protobuf.descriptor_pb2", "schemas of Protobuf")
    files = descriptors.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except Exception as cause:
        hint = "protoc --include_imports --descriptor_set_out=FILE"
        raise error("CONNECTOR_OPTION", "schema.location: it is no set of file descriptors", hint=hint) from cause
    if not files.file:
        raise error("CONNECTOR_OPTION", "schema.location: it is no set of file descriptors")
    schema = ProtoSchema()
    for file in files.file:
        prefix = f"{file.package}." if file.package else ""
        top = [_add_message(schema, m, prefix, file.syntax or "proto2") for m in file.message_type]
        for enum in file.enum_type:
            schema.enums[prefix + enum.name] = {v.number: v.name for v in reversed(enum.value)}
        schema.top = top if not file.package.startswith("google.protobuf") else schema.top
    return schema


def _add_message(schema: ProtoSchema, message: Any, prefix: str, syntax: str) -> str:
    name: str = prefix + message.name
    nested = [_add_message(schema, m, name + ".", syntax) for m in message.nested_type]
    for enum in message.enum_type:
        schema.enums[f"{name}.{enum.name}"] = {v.number: v.name for v in reversed(enum.value)}
    fields = tuple(
        ProtoField(
            f.name,
            f.number,
            _WORDS[f.type],
            f.type_name.lstrip("."),
            f.label == 3,
            f.label != 3
            and (syntax == "proto2" or f.proto3_optional or f.HasField("oneof_index") or _WORDS[f.type] == "message"),
        )
        for f in message.field
    )
    kept = tuple(n for n in nested if not schema.messages[n].is_map_entry)
    schema.messages[name] = ProtoMessage(name, fields, kept, message.options.map_entry)
    return name


def from_text(schema: RegisteredSchema, registry: Registry | None = None) -> ProtoSchema:
    """The schema of the text of a .proto file with its imports. Raises CONNECTOR_OPTION if it is unreadable."""
    found = ProtoSchema()
    try:
        _read_file(schema, registry, found, set())
        _resolve(found)
    except (ValueError, StopIteration) as cause:
        called = f"schema {schema.id} of the registry" if schema.id else "the schema"
        raise error(
            "CONNECTOR_OPTION", f"{called} is no schema of Protobuf that can be read", detail=str(cause)
        ) from cause
    return found


def _read_file(
    schema: RegisteredSchema, registry: Registry | None, found: ProtoSchema, seen: set[tuple[str, int]]
) -> None:
    if registry is not None:
        for reference in schema.references:
            if (reference.subject, reference.version) not in seen:
                seen.add((reference.subject, reference.version))
                _read_file(registry.version(reference), registry, found, seen)
    found.top = _FileReader(schema.text, found).read()


def _resolve(schema: ProtoSchema) -> None:
    """Replaces the names of types by full names, searching from the innermost scope outwards."""
    for name, message in list(schema.messages.items()):
        fields = []
        for part in message.fields:
            if part.type != "named":
                fields.append(part)
                continue
            full = _full_name(schema, name, part.named)
            kind = "enum" if full in schema.enums else "message"
            optional = part.optional or (kind == "message" and not part.repeated)
            fields.append(ProtoField(part.name, part.number, kind, full, part.repeated, optional))
        schema.messages[name] = ProtoMessage(name, tuple(fields), message.nested, message.is_map_entry)


def _full_name(schema: ProtoSchema, scope: str, name: str) -> str:
    if name.startswith("."):
        candidates = [name[1:]]
    else:
        parts = scope.split(".")
        candidates = [".".join([*parts[:i], name]) for i in range(len(parts), -1, -1)]
    for full in candidates:
        if full in schema.messages or full in schema.enums or full == TIMESTAMP or wrapped_type(full):
            return full
    for full in candidates:
        if full in _WELL_KNOWN:
            schema.messages |= _WELL_KNOWN
            schema.enums |= _WELL_KNOWN_ENUMS
            return full
    raise ValueError(f'there is no type "{name}"')


_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\.?[A-Za-z_][\w.]*|-?[\d][\w.+-]*|.)""",
    re.DOTALL,
)


class _FileReader:
    """Reads the text of a .proto file. Raises ValueError for other text."""

    def __init__(self, text: str, schema: ProtoSchema) -> None:
        self._tokens = [m["token"] for m in _TOKEN.finditer(text) if m["token"] is not None]
        self._place = 0
        self._schema = schema
        self._proto3 = False

    def read(self) -> list[str]:
        """Adds the definitions of the file; returns the names of its messages."""
        prefix = ""
        top = []
        while self._place < len(self._tokens):
            word = self._next()
            if word in ("syntax", "edition"):
                self._expect("=")
                self._proto3 = self._next().strip("\"'") != "proto2"
                self._expect(";")
            elif word == "package":
                prefix = self._next() + "."
                self._expect(";")
            elif word == "message":
                top.append(self._message(prefix))
            elif word == "enum":
                self._enum(prefix)
            elif word in ("import", "option"):
                self._skip_to_semicolon()
            elif word in ("service", "extend"):
                self._skip_block()
            elif word != ";":
                raise ValueError(f'"{word}" is not expected')
        return top

    def _next(self) -> str:
        if self._place >= len(self._tokens):
            raise ValueError("the text ends too early")
        self._place += 1
        return self._tokens[self._place - 1]

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise ValueError(f'"{found}" in place of "{token}"')

    def _skip_to_semicolon(self) -> None:
        depth = 0
        while (word := self._next()) != ";" or depth:
            depth += (word == "{") - (word == "}")

    def _skip_block(self) -> None:
        while self._next() != "{":
            pass
        depth = 1
        while depth:
            word = self._next()
            depth += (word == "{") - (word == "}")

    def _message(self, prefix: str) -> str:
        name = prefix + self._next()
        fields: list[ProtoField] = []
        nested: list[str] = []
        self._expect("{")
        self._body(name, fields, nested, in_oneof=False)
        self._schema.messages[name] = ProtoMessage(name, tuple(fields), tuple(nested))
        return name

    def _body(self, name: str, fields: list[ProtoField], nested: list[str], *, in_oneof: bool) -> None:
        while (word := self._next()) != "}":
            if word == "message" and self._is_definition():
                nested.append(self._message(name + "."))
            elif word == "enum" and self._is_definition():
                self._enum(name + ".")
            elif word == "oneof":
                self._next()
                self._expect("{")
                self._body(name, fields, nested, in_oneof=True)
            elif word in ("option", "reserved", "extensions"):
                self._skip_to_semicolon()
            elif word == "extend":
                self._skip_block()
            elif word == "map" and self._peek() == "<":
                fields.append(self._map(name))
            elif word != ";":
                fields.append(self._field(word, in_oneof=in_oneof))

    def _is_definition(self) -> bool:
        return self._place + 1 < len(self._tokens) and self._tokens[self._place + 1] == "{"

    def _field(self, word: str, *, in_oneof: bool) -> ProtoField:
        label = word if word in ("repeated", "optional", "required") else ""
        kind = self._next() if label else word
        if kind == "group":
            raise ValueError("groups are not supported")
        name = self._next()
        number = self._number()
        repeated = label == "repeated"
        optional = not repeated and (in_oneof or label == "optional" or not self._proto3)
        if kind in SCALARS and kind != "enum":
            return ProtoField(name, number, kind, "", repeated, optional)
        return ProtoField(name, number, "named", kind, repeated, optional)

    def _map(self, scope: str) -> ProtoField:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        number = self._number()
        entry = f"{scope}.{name}@entry"
        kind = (value, "") if value in SCALARS and value != "enum" else ("named", value)
        parts = (ProtoField("key", 1, key), ProtoField("value", 2, *kind))
        self._schema.messages[entry] = ProtoMessage(entry, parts, is_map_entry=True)
        return ProtoField(name, number, "message", entry, repeated=True)

    def _number(self) -> int:
        """Reads `= number [options];`."""
        self._expect("=")
        number = int(self._next(), 0)
        if self._peek() == "[":
            while self._next() != "]":
                pass
        self._expect(";")
        return number

    def _enum(self, prefix: str) -> None:
        name = prefix + self._next()
        values: dict[int, str] = {}
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved"):
                self._skip_to_semicolon()
            elif word != ";":
                values.setdefault(self._number(), word)
        self._schema.enums[name] = values
