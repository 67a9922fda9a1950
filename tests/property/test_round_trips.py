"""What is written as messages is read from them as it was."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import examples
from tests.unit.formats.fake_registry import fake_registry
from tests.unit.formats.messages import decode, messages, rows
from watersmeet.catalog import MessageFormat
from watersmeet.formats import avrowriter
from watersmeet.formats.encoders import Destination, open_encoder
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

ARRAY = SqlType("array", element=t.BIGINT)
POINT = SqlType("struct", fields=(("x", t.INTEGER), ("y", t.VARCHAR)))
NUMERIC = SqlType("numeric", 38, 9)
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8)
MOST = decimal.Decimal(10**38 - 1).scaleb(-9, decimal.Context(prec=60))
VALUES = {
    t.BOOLEAN: st.booleans(),
    t.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    t.INTEGER: st.integers(-(2**31), 2**31 - 1),
    t.BIGINT: st.integers(-(2**63), 2**63 - 1),
    t.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    t.VARCHAR: TEXT,
    NUMERIC: st.one_of(st.sampled_from([MOST, MOST.copy_negate()]), st.decimals(-(10**28), 10**28, places=9)),
    t.TIMESTAMPTZ: st.datetimes(timezones=st.just(dt.UTC)),
}
#: Types that JSON writes as RisingWave does, which do not read back alike, are of Avro alone.
OF_AVRO = {
    **VALUES,
    t.BYTEA: st.binary(max_size=8),
    t.DATE: st.dates(),
    t.TIMESTAMP: st.datetimes(),
    t.TIME: st.times(),
    ARRAY: st.lists(st.none() | st.integers(-9, 9), max_size=3),
    POINT: st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "y": st.none() | TEXT}),
}
CASES = [("json", "plain", VALUES), ("json", "debezium", VALUES), ("csv", "plain", VALUES)]
CASES += [("avro", "plain", OF_AVRO), ("avro", "debezium", OF_AVRO)]


class Registering:
    """The writer's registry: schemas go to the fake one, which the reader asks."""

    def __init__(self, fake):
        self.fake = fake

    def newest(self, subject):
        return None

    def register(self, subject, kind, text):
        return self.fake.add(json.loads(text), kind, subject)


@pytest.fixture(scope="module")
def registry():
    with fake_registry() as fake:
        yield fake


@pytest.mark.parametrize(("encoding", "form", "values"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
@examples(200)
@given(data=st.data())
def test_rows_come_back(registry, encoding, form, values, data):
    columns = (Field("id", t.INTEGER), *(Field(f"c{i}", kind) for i, kind in enumerate(values)))
    some = [st.none() | of for of in values.values()]
    given_rows = data.draw(st.lists(st.tuples(*some), min_size=1, max_size=5))
    wanted = [(i, *row) for i, row in enumerate(given_rows)]
    table = pa.table({c.name: pa.array([r[i] for r in wanted], c.type.arrow) for i, c in enumerate(columns)})
    options = {"schema.registry": registry.address} if encoding == "avro" else {}
    with mock.patch.object(avrowriter, "open_registry", lambda _: Registering(registry)):
        key = ("id",) if form == "debezium" else ()
        encoder = open_encoder(columns, key, MessageFormat(form, encoding, None, options), Destination("t", "d", "r"))
        got = encoder.encode(table, np.ones(len(table), np.int64), 0)
    batch = messages(got.values.to_pylist(), got.keys.to_pylist())
    found = decode(batch, columns, MessageFormat(form, encoding, None, options), key)
    assert not found.unreadable
    came = [r[-len(columns) :] for r in rows(found)]
    assert [tuple(r) for r in came] == [tuple(r.values()) for r in table.to_pylist()]
