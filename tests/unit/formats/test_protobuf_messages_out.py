"""Messages of Protocol Buffers as they are written: read by the library, and by the decoder here."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.formats.fake_registry import FakeRegistry, fake_registry
from tests.unit.formats.messages import columns, decode, messages, rows
from tests.unit.formats.test_protobuf_messages import DESCRIPTORS, SCHEMA, TEXT, UINT64, Order

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats.encoders import Destination, open_encoder
from watersmeet.formats.protowriter import message_encoder
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

LINE = SqlType(
    "struct",
    fields=(("n", t.INTEGER), ("name", t.VARCHAR), ("deltas", SqlType("array", element=t.BIGINT))),
)
BIG, SMALL = 2**63 - 1, 2**31 - 1
#: By column: its type, and values that the schema can say, so that reading gives them again.
VALUES: dict[str, tuple[SqlType, list[Any]]] = {
    "d": (t.DOUBLE, [0.0, -0.0, 1e300]),
    "f": (t.REAL, [0.0, -2.5]),
    "i": (t.INTEGER, [0, 1, -1, SMALL, -SMALL - 1]),
    "l": (t.BIGINT, [0, 300, -1, BIG, -BIG - 1]),
    "u": (t.BIGINT, [0, 2**32 - 1]),
    "ul": (UINT64, [Decimal(0), Decimal(2**64 - 1)]),
    "si": (t.INTEGER, [0, -1, SMALL, -SMALL - 1]),
    "sl": (t.BIGINT, [0, -1, BIG, -BIG - 1]),
    "x": (t.BIGINT, [0, 2**32 - 1]),
    "xl": (UINT64, [Decimal(0), Decimal(2**63)]),
    "sx": (t.INTEGER, [0, -1]),
    "sxl": (t.BIGINT, [0, -BIG - 1]),
    "b": (t.BOOLEAN, [False, True]),
    "s": (t.VARCHAR, ["", "é" * 100]),
    "raw": (t.BYTEA, [b"", b"\xff\x00"]),
    "state": (t.VARCHAR, ["NEW", "PAID"]),
    "line": (LINE, [None, {"n": 0, "name": "", "deltas": []}, {"n": 7, "name": "x" * 200, "deltas": [1, -(2**40)]}]),
    "lines": (SqlType("array", element=LINE), [[], [{"n": 1, "name": "a", "deltas": []}] * 3]),
    "packed": (SqlType("array", element=t.INTEGER), [[], [0], [1, -1, 300]]),
    "loose": (SqlType("array", element=t.BIGINT), [[], [1, 2]]),
    "words": (SqlType("array", element=t.VARCHAR), [[], ["", "b"]]),
    "at": (t.TIMESTAMPTZ, [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)]),
    "maybe": (t.BIGINT, [None, 0, -5]),
    "opt": (t.INTEGER, [None, 0, 3]),
    "left": (t.VARCHAR, [None, "", "a"]),
}  # fmt: skip
COLUMNS = columns(**{name: kind for name, (kind, _) in VALUES.items()})


def some_rows(seed: int, count: int = 40) -> pa.Table:
    random_ = random.Random(seed)
    arrays = [pa.array([random_.choice(v) for _ in range(count)], k.arrow) for k, v in VALUES.values()]
    return pa.table(arrays, names=list(VALUES))


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> MessageFormat:
    path = tmp_path_factory.mktemp("schemas") / "shop.desc"
    path.write_bytes(DESCRIPTORS)
    return MessageFormat(encoding="protobuf", options={"schema.location": f"file://{path}", "message": "Order"})


def written(table: pa.Table, form: MessageFormat, of: tuple[Field, ...] = COLUMNS) -> list[bytes]:
    encoder = open_encoder(of, (), form, Destination("orders"))
    return encoder.encode(table, np.ones(len(table), np.int64), 0).values.to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_the_library_writes_the_same_message_again(form: MessageFormat, seed: int) -> None:
    for value in written(some_rows(seed).slice(seed), form):
        order = Order.FromString(value)
        # What it has read says all that was written: packed or not, the numbers are the same.
        again = Order.FromString(order.SerializeToString())
        assert order == again


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_again(form: MessageFormat, seed: int) -> None:
    table = some_rows(seed)
    found = decode(messages(written(table, form)), COLUMNS, form)
    assert not found.unreadable
    assert rows(found) == [tuple(row[c.name] for c in COLUMNS) for row in table.to_pylist()]


def test_values_by_the_librarys_reading(form: MessageFormat) -> None:
    table = pa.table({name: pa.array(v[-1:], k.arrow) for name, (k, v) in VALUES.items()})
    (value,) = written(table, form)
    order = Order.FromString(value)
    assert (order.i, order.l, order.u, order.ul) == (-SMALL - 1, -BIG - 1, 2**32 - 1, 2**64 - 1)
    assert (order.state, order.line.n, list(order.line.deltas)) == (1, 7, [1, -(2**40)])
    assert ([line.n for line in order.lines], list(order.packed), list(order.words)) == (
        [1, 1, 1],
        [1, -1, 300],
        ["", "b"],
    )
    assert (order.at.seconds, order.maybe.value, order.opt, order.left) == (253402214400, -5, 3, "a")


def test_absent_and_default_are_told_apart_where_the_schema_does(form: MessageFormat) -> None:
    of = columns(i=t.INTEGER, opt=t.INTEGER, maybe=t.BIGINT)
    table = pa.table(
        {n: pa.array([0, None], k) for n, k in (("i", pa.int32()), ("opt", pa.int32()), ("maybe", pa.int64()))}
    )
    zero, null = (Order.FromString(v) for v in written(table, form, of))
    assert (zero.HasField("opt"), zero.HasField("maybe"), zero.i) == (True, True, 0)
    assert null.SerializeToString() == b""


@pytest.fixture
def registry():
    with fake_registry() as fake:
        yield fake


def test_the_registry_s_newest_schema_and_the_message_s_place(registry: FakeRegistry) -> None:
    number = registry.add(TEXT, "PROTOBUF", "orders-value")
    for message, path in (("Order", b"\0"), ("shop.v1.Other", b"\x02\x02"), ("Deep", b"\x04\x02\x00")):
        form = MessageFormat(encoding="protobuf", options={"schema.registry": registry.address, "message": message})
        field = {"Order": "s", "shop.v1.Other": "ok", "Deep": "z"}[message]
        kind = t.BOOLEAN if field == "ok" else t.VARCHAR
        table = pa.table({field: pa.array([True if field == "ok" else "a"])})
        (value,) = written(table, form, (Field(field, kind),))
        assert value[: 5 + len(path)] == b"\0" + number.to_bytes(4, "big") + path
        (row,) = rows(decode(messages([value]), (Field(field, kind),), form))
        assert row == (table.column(0)[0].as_py(),)


def test_a_registry_without_the_schema(registry: FakeRegistry) -> None:
    form = MessageFormat(encoding="protobuf", options={"schema.registry": registry.address, "message": "Order"})
    with pytest.raises(Error, match=r'the subject "orders-value" of the registry has no schema'):
        written(pa.table({"i": [1]}), form, columns(i=t.INTEGER))


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"nowhere": t.INTEGER}, '"nowhere": message "shop.v1.Order" has no such field'),
        ({"i": t.VARCHAR}, '"i": character varying can\'t be written as int32'),
        ({"line": SqlType("struct", fields=(("q", t.INTEGER),))}, '"line.q": message "shop.v1.Order.Line" has no'),
        ({"counts": t.JSONB}, '"counts": jsonb can\'t be written as a repeated field'),
        ({"packed": t.INTEGER}, '"packed": integer can\'t be written as a repeated field'),
        ({"at": t.BIGINT}, '"at": bigint can\'t be written as google.protobuf.Timestamp'),
    ],
)
def test_columns_that_no_field_takes(of: dict[str, SqlType], message: str) -> None:
    with pytest.raises(Error) as caught:
        message_encoder(columns(**of), SCHEMA, SCHEMA.messages["shop.v1.Order"])
    assert message in caught.value.message
    assert caught.value.condition == "CONNECTOR_OPTION"


@pytest.mark.parametrize(
    ("name", "kind", "value", "message"),
    [
        ("i", t.BIGINT, 2**31, "does not fit into int32"),
        ("u", t.INTEGER, -1, "does not fit into uint32"),
        ("ul", t.BIGINT, -1, "does not fit into uint64"),
        ("state", t.VARCHAR, "LOST", '"LOST" in "state" is no word of its enum'),
        ("words", SqlType("array", element=t.VARCHAR), [None], "has a NULL in it"),
    ],
)
def test_values_that_a_field_does_not_take(
    form: MessageFormat, name: str, kind: SqlType, value: Any, message: str
) -> None:
    with pytest.raises(Error, match=message):
        written(pa.table({name: pa.array([value], kind.arrow)}), form, (Field(name, kind),))


def test_other_types_are_texts(form: MessageFormat) -> None:
    of = (Field("s", SqlType("numeric", 10, 2)),)
    (value,) = written(pa.table({"s": pa.array([Decimal("1.50")], of[0].type.arrow)}), form, of)
    assert Order.FromString(value).s == "1.50"


@pytest.mark.parametrize(("name", "kind", "plain"), [("s", t.VARCHAR, ""), ("i", t.INTEGER, 0)])
def test_a_key_without_presence_takes_no_null(form: MessageFormat, name: str, kind: SqlType, plain: Any) -> None:
    keyed = MessageFormat("upsert", "protobuf", options={**form.options, "key.message": "Order"})
    of = columns(**{name: kind, "l": t.BIGINT})
    encoder = open_encoder(of, (name,), keyed, Destination("orders"))

    def keys(*values: Any) -> list[bytes]:
        table = pa.table([pa.array(values, kind.arrow), pa.array(range(len(values)))], names=[name, "l"])
        return encoder.encode(table, np.ones(len(values), np.int64), 0).keys.to_pylist()

    assert keys(plain) == [b""]
    with pytest.raises(Error) as refused:
        keys(plain, None)
    assert refused.value.condition == "DELIVERY_REFUSED"


def test_a_key_with_presence_takes_null(form: MessageFormat) -> None:
    keyed = MessageFormat("upsert", "protobuf", options={**form.options, "key.message": "Order"})
    encoder = open_encoder(columns(opt=t.INTEGER, l=t.BIGINT), ("opt",), keyed, Destination("orders"))
    table = pa.table([pa.array([0, None], pa.int32()), pa.array([1, 2])], names=["opt", "l"])
    assert len(set(encoder.encode(table, np.ones(2, np.int64), 0).keys.to_pylist())) == 2


def test_an_upsert_needs_a_format_of_the_key(form: MessageFormat) -> None:
    upsert = MessageFormat("upsert", "protobuf", None, form.options)
    with pytest.raises(Error, match="needs a format of the key"):
        open_encoder(columns(i=t.INTEGER), ("i",), upsert, Destination("orders"))
    keyed = MessageFormat("upsert", "protobuf", "string", form.options)
    encoder = open_encoder(columns(i=t.INTEGER, s=t.VARCHAR), ("i",), keyed, Destination("orders"))
    found = encoder.encode(pa.table({"i": pa.array([1, 2], pa.int32()), "s": ["a", "b"]}), np.array([1, -1]), 0)
    assert found.keys.to_pylist() == [b"1", b"2"]
    assert found.values[1].as_py() is None
    assert Order.FromString(found.values[0].as_py()).s == "a"
