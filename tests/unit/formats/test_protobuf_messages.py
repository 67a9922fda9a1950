"""Messages in Protocol Buffers: against the library that makes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from tests.unit.formats.fake_registry import FakeRegistry, fake_registry
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats.protoschema import ProtoSchema, from_descriptors, from_text
from watersmeet.formats.registry import RegisteredSchema
from watersmeet.values import types as t
from watersmeet.values.types import SqlType

TEXT = """
// a file
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
option java_package = "x";

message Order {
  /* nested */
  message Line { int32 n = 1; string name = 2; repeated sint64 deltas = 3; }
  enum State { NEW = 0; PAID = 1; option allow_alias = true; }
  double d = 1;
  float f = 2;
  int32 i = 3;
  int64 l = 4;
  uint32 u = 5;
  uint64 ul = 6;
  sint32 si = 7;
  sint64 sl = 8;
  fixed32 x = 9;
  fixed64 xl = 10;
  sfixed32 sx = 11;
  sfixed64 sxl = 12;
  bool b = 13;
  string s = 14;
  bytes raw = 15;
  State state = 16;
  Line line = 17;
  repeated Line lines = 18;
  repeated int32 packed = 19;
  repeated int32 loose = 20 [packed = false];
  repeated string words = 21;
  map<string, int64> counts = 22;
  google.protobuf.Timestamp at = 23;
  google.protobuf.Int64Value maybe = 24;
  optional int32 opt = 25;
  oneof choice { string left = 26; Line right = 27; }
  Other other = 100;
  reserved 200 to 300;
}
message Other { bool ok = 1; message Deep { string z = 1; } }
"""


def classes(schema: ProtoSchema) -> tuple[Any, bytes]:
    """(the library's classes by name, the set of descriptors) of a schema."""
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", package="shop.v1", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    words = {name.removeprefix("TYPE_").lower(): n for name, n in descriptor_pb2.FieldDescriptorProto.Type.items()}

    def fill(target: Any, name: str) -> None:
        message = schema.messages[name]
        target.name = name.rpartition(".")[2]
        for enum in [e for e in schema.enums if e.rpartition(".")[0] == name]:
            made = target.enum_type.add(name=enum.rpartition(".")[2])
            for number, word in schema.enums[enum].items():
                made.value.add(name=word, number=number)
        for part in message.fields:
            made = target.field.add(name=part.name, number=part.number, type=words[part.type])
            made.label = 3 if part.repeated else 1
            if part.named:
                made.type_name = "." + part.named.replace("counts@entry", "CountsEntry")
            if part.name == "loose":
                made.options.packed = False
            if part.name in ("left", "right", "opt"):
                if part.name == "opt":
                    made.proto3_optional = True
                made.oneof_index = 1 if part.name == "opt" else 0
            if "@entry" in part.named:
                entry = target.nested_type.add(name="CountsEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=words["string"], label=1)
                entry.field.add(name="value", number=2, type=words["int64"], label=1)
        for nested in message.nested:
            fill(target.nested_type.add(), nested)
        if name == "shop.v1.Order":
            target.oneof_decl.add(name="choice")
            target.oneof_decl.add(name="_opt")

    for name in schema.top:
        fill(file.message_type.add(), name)
    pool = descriptor_pool.DescriptorPool()
    known = [timestamp_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR]
    files = descriptor_pb2.FileDescriptorSet()
    for found in known:
        found.CopyToProto(files.file.add())
        pool.AddSerializedFile(found.serialized_pb)
    pool.Add(file)
    files.file.add().CopyFrom(file)
    made = message_factory.GetMessageClassesForFiles([file.name], pool)
    return made, files.SerializeToString()


SCHEMA = from_text(RegisteredSchema(0, "PROTOBUF", TEXT))
CLASSES, DESCRIPTORS = classes(SCHEMA)
Order = CLASSES["shop.v1.Order"]
LINE = SqlType("struct", fields=(("n", t.INTEGER), ("name", t.VARCHAR)))
UINT64 = SqlType("numeric", 20, 0)
COLUMNS = columns(
    d=t.DOUBLE,
    f=t.REAL,
    i=t.INTEGER,
    l=t.BIGINT,
    u=t.BIGINT,
    ul=UINT64,
    si=t.INTEGER,
    sl=t.BIGINT,
    x=t.BIGINT,
    xl=UINT64,
    sx=t.INTEGER,
    sxl=t.BIGINT,
    b=t.BOOLEAN,
    s=t.VARCHAR,
    raw=t.BYTEA,
    state=t.VARCHAR,
    line=LINE,
    lines=SqlType("array", element=SqlType("struct", fields=(("deltas", SqlType("array", element=t.BIGINT)),))),
    packed=SqlType("array", element=t.INTEGER),
    loose=SqlType("array", element=t.BIGINT),
    words=SqlType("array", element=t.VARCHAR),
    counts=t.JSONB,
    at=t.TIMESTAMPTZ,
    maybe=t.BIGINT,
    opt=t.INTEGER,
    left=t.VARCHAR,
    nowhere=t.VARCHAR,
)


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> MessageFormat:
    path = tmp_path_factory.mktemp("schemas") / "shop.desc"
    path.write_bytes(DESCRIPTORS)
    return MessageFormat(encoding="protobuf", options={"schema.location": f"file://{path}", "message": "Order"})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as fake:
        yield fake


def made(random_: random.Random) -> Any:
    """An order of the library's."""
    order = Order()
    big, small = (1 << 63) - 1, (1 << 31) - 1
    if random_.random() < 0.8:
        order.d, order.f = random_.choice([0.0, 1.5, -2.25]), random_.choice([0.0, 0.5])
        order.i, order.si, order.sx = (random_.choice([0, 1, -1, small, -small - 1]) for _ in range(3))
        order.l, order.sl, order.sxl = (random_.choice([0, 300, -1, big, -big - 1]) for _ in range(3))
        order.u, order.x = (random_.choice([0, 7, 2 * small + 1]) for _ in range(2))
        order.ul, order.xl = (random_.choice([0, 7, 2 * big + 1]) for _ in range(2))
        order.b, order.s = random_.random() < 0.5, random_.choice(["", "é", "x" * 200])
        order.raw, order.state = random_.choice([b"", b"\xff\x00"]), random_.choice([0, 1, 77])
    if random_.random() < 0.5:
        order.line.n, order.line.name = 5, "l"
        order.maybe.value = random_.choice([0, -5])
        order.opt = random_.choice([0, 3])
        order.at.seconds, order.at.nanos = random_.choice([0, -1, 1_709_201_230]), random_.choice([0, 123_456_789])
        order.left = random_.choice(["", "a"])
    for n in range(random_.choice([0, 0, 1, 3])):
        order.lines.add(n=n, deltas=[n, -n, 1 << 40])
        order.packed.append(n - 1)
        order.loose.append(1 - n)
        order.words.append("w" * n)
        order.counts[str(n)] = n
    return order


def expected(order: Any) -> tuple[Any, ...]:
    """What the columns are, from the library's own reading."""
    micros = order.at.seconds * 1_000_000 + order.at.nanos // 1000
    return (
        order.d,
        order.f,
        order.i,
        order.l,
        order.u,
        Decimal(order.ul),
        order.si,
        order.sl,
        order.x,
        Decimal(order.xl),
        order.sx,
        order.sxl,
        order.b,
        order.s,
        order.raw,
        {0: "NEW", 1: "PAID", 77: "77"}[order.state],
        {"n": order.line.n, "name": order.line.name} if order.HasField("line") else None,
        [{"deltas": list(line.deltas)} for line in order.lines],
        list(order.packed),
        list(order.loose),
        list(order.words),
        dict(order.counts),
        datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)
        if order.HasField("at")
        else None,
        order.maybe.value if order.HasField("maybe") else None,
        order.opt if order.HasField("opt") else None,
        order.left if order.HasField("left") else None,
        None,
    )


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(__import__("json").loads(v) if i == 21 else v for i, v in enumerate(row))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [3, 40])
def test_the_library_reads_the_same(seed: int, count: int, form: MessageFormat) -> None:
    random_ = random.Random(seed)
    orders = [made(random_) for _ in range(count)]
    found = decode(messages([o.SerializeToString() for o in orders]), COLUMNS, form)
    assert reasons(found) == {}
    assert [comparable(row) for row in rows(found)] == [expected(o) for o in orders]


@pytest.mark.parametrize("seed", range(10))
def test_garbage_is_unreadable_where_the_library_says_so(seed: int, form: MessageFormat) -> None:
    random_ = random.Random(seed)
    wires = []
    for _ in range(60):
        wire = bytearray(made(random_).SerializeToString())
        for _ in range(random_.choice([0, 1, 1, 3])):
            if wire:
                place = random_.randrange(len(wire))
                wire[place : place + random_.choice([0, 1])] = bytes([random_.randrange(256)])
        wires.append(bytes(wire[: random_.choice([len(wire), len(wire), random_.randrange(len(wire) + 1)])]))
    fields = columns(i=t.INTEGER, s=t.VARCHAR, d=t.DOUBLE)
    found = decode(messages(wires), fields, form)
    read = dict(zip(found.places.tolist(), rows(found), strict=True))
    for place, wire in enumerate(wires):
        order = Order()
        try:
            order.ParseFromString(wire)
        except Exception:
            continue  # it also looks at fields that nobody wants
        if place in read:
            assert repr(read[place]) == repr((order.i, order.s, order.d))
        else:
            assert place in reasons(found)  # groups, and messages that are there twice


def test_the_text_and_the_descriptors_say_the_same() -> None:
    found = from_descriptors(DESCRIPTORS)
    assert found.top == SCHEMA.top == ["shop.v1.Order", "shop.v1.Other"]
    assert found.messages["shop.v1.Other"] == SCHEMA.messages["shop.v1.Other"]
    for one, other in zip(found.message("Order").fields, SCHEMA.message("Order").fields, strict=True):
        assert (one.name, one.number, one.type, one.repeated, one.optional) == (
            other.name,
            other.number,
            other.type,
            other.repeated,
            other.optional,
        )


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (b"\x00", "shop.v1.Order", {"s": "a"}),
        (b"\x02\x00", "shop.v1.Order", {"s": "a"}),
        (b"\x02\x02", "shop.v1.Other", {"ok": True}),
        (b"\x04\x00\x00", "shop.v1.Order.Line", {"name": "s"}),
    ],
)
def test_paths_to_messages(path: bytes, name: str, value: dict[str, Any], registry: FakeRegistry) -> None:
    id_ = registry.add(TEXT, "PROTOBUF")
    wire = b"\x00" + id_.to_bytes(4, "big") + path
    fields = columns(s=t.VARCHAR, ok=t.BOOLEAN, name=t.VARCHAR)
    options = {"schema.registry": registry.address, "message": "Order"}
    body = Order.Line(**value) if name.endswith("Line") else CLASSES[name](**value)
    found = decode(
        messages([wire + body.SerializeToString(), wire[:5] + b"\x02\x0a", wire[:5], b"x"]),
        fields,
        MessageFormat(encoding="protobuf", options=options),
    )
    plain = {"shop.v1.Order": {"s": ""}, "shop.v1.Other": {"ok": False}, "shop.v1.Order.Line": {"name": ""}}[name]
    said = {**plain, **value}
    assert rows(found) == [(said.get("s"), said.get("ok"), said.get("name"))]
    assert list(reasons(found)) == [1, 2, 3]


def test_a_schema_that_is_none(registry: FakeRegistry) -> None:
    id_ = registry.add("message {", "PROTOBUF")
    form = MessageFormat(encoding="protobuf", options={"schema.registry": registry.address})
    with pytest.raises(Error, match="no schema of Protobuf"):
        decode(messages([b"\x00" + id_.to_bytes(4, "big") + b"\x00"]), columns(a=t.BIGINT), form)


def test_a_message_that_holds_itself_is_refused_where_it_is_wanted() -> None:
    text = 'syntax = "proto3"; message Tree { int32 n = 1; Tree left = 2; }'
    form = MessageFormat(encoding="protobuf", options={"schema": text})
    assert rows(decode(messages([b"\x08\x05\x12\x02\x08\x06"]), columns(n=t.INTEGER), form)) == [(5,)]
    with pytest.raises(Error, match="holds itself"):
        decode(messages([b"\x08\x05"]), columns(left=t.JSONB), form)


@pytest.mark.parametrize("name", ["Any", "Struct", "Value", "ListValue", "Duration", "FieldMask"])
def test_messages_of_the_compiler_need_no_schema(name: str) -> None:
    file = {"ListValue": "struct", "Value": "struct", "FieldMask": "field_mask"}.get(name, name.lower())
    text = (
        f'syntax = "proto3"; import "google/protobuf/{file}.proto"; '
        f"message Value {{ int32 n = 1; google.protobuf.{name} b = 2; }}"
    )
    form = MessageFormat(encoding="protobuf", options={"schema": text, "message": "Value"})
    assert rows(decode(messages([b"\x08\x05\x12\x00"]), columns(n=t.INTEGER), form)) == [(5,)]
    wanted = columns(b=t.JSONB)
    if name in ("Any", "Duration", "FieldMask"):
        assert decode(messages([b"\x08\x05"]), wanted, form).table.num_rows == 1
    else:
        with pytest.raises(Error, match=f'"google.protobuf.{"Struct" if name == "Struct" else "Value|ListValue"}'):
            decode(messages([b"\x08\x05"]), wanted, form)


def test_any_is_the_name_of_a_type_and_bytes() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any b = 1; }'
    form = MessageFormat(encoding="protobuf", options={"schema": text})
    kind = t.SqlType("struct", fields=(("type_url", t.VARCHAR), ("value", t.BYTEA)))
    found = decode(messages([b"\x0a\x06\x0a\x01x\x12\x01\xff"]), columns(b=kind), form)
    assert rows(found) == [({"type_url": "x", "value": b"\xff"},)]


def test_a_file_that_is_no_set_of_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "x.desc"
    path.write_bytes(b"\xff\xff")
    for location in (str(path), str(tmp_path / "none.desc"), "ftp://host/x"):
        form = MessageFormat(encoding="protobuf", options={"schema.location": location})
        with pytest.raises(Error, match=r"schema\.location"):
            decode(messages([]), columns(a=t.BIGINT), form)
