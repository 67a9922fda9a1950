"""Messages as RisingWave documents them, and what changes become which messages."""

import datetime as dt
import decimal
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from tests.thorough import mostly_slow

from watersmeet.catalog import MessageFormat
from watersmeet.dialects.semantics import LENSES_JSON
from watersmeet.errors import Error
from watersmeet.formats.encoders import Destination, Encoded, open_encoder
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
    arrow_schema,
)

TO = Destination("t", "dev", "mv")
POINT = SqlType("struct", fields=(("x", INTEGER), ("when", TIMESTAMPTZ)))
TWO = (Field("id", INTEGER), Field("name", VARCHAR))


#: Options for JSON as Timeplus writes it. Timeplus, "JSONEachRow".
TIMEPLUS_JSON = {
    "numeric.handling.mode": "number",
    "date.handling.mode": "string",
    "time.handling.mode": "string",
    "timestamp.handling.mode": "string",
    "timestamptz.handling.mode": "utc_without_suffix",
}


def table(columns, *rows):
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False))


def encoded(columns, given, *, key=(), diff=None, time_us=0, force=False, parts=None, **options) -> Encoded:
    message = MessageFormat(**options)
    encoder = open_encoder(columns, key, message, TO, force_append_only=force, parts=parts)
    return encoder.encode(table(columns, *given), np.array(diff or [1] * len(given)), time_us)


def one(kind, value, encoding="json", **options):
    """The only value of a row with a column c."""
    (text,) = encoded((Field("c", kind),), [(value,)], encoding=encoding, options=options).values.to_pylist()
    return text.decode()


def days(year, month, day):
    return dt.date(year, month, day)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (BOOLEAN, True, "true"),
        (SMALLINT, -16, "-16"),
        (INTEGER, 16, "16"),
        (BIGINT, 2**63 - 1, "9223372036854775807"),
        (REAL, 0.5, "0.5"),
        (REAL, 0.1, "0.1"),
        (DOUBLE, 1e300, "1e+300"),
        (DOUBLE, float("nan"), "null"),
        (DOUBLE, float("-inf"), "null"),
        (VARCHAR, 'a"b\\c\n\x01é😀/', '"a\\"b\\\\c\\n\\u0001é😀/"'),
        (VARCHAR, "", '""'),
        (NUMERIC, decimal.Decimal("3.14"), '"3.14"'),
        (NUMERIC, decimal.Decimal(100), '"100"'),
        (SqlType("numeric", 38, 2), decimal.Decimal("999999999999999999999999999999999999.99"), f'"{"9" * 36}.99"'),
        (SqlType("numeric", 6, 0), decimal.Decimal(-100), '"-100"'),
        (BYTEA, b"\x00\xff\xfe\xfd", '"AP/+/Q=="'),
        (DATE, days(1970, 1, 1), "719163"),
        (DATE, days(1, 1, 1), "1"),
        (TIME, dt.time(0, 16, 40), "1000000"),
        (TIMESTAMP, dt.datetime(1970, 1, 1, 0, 16, 40), "1000000"),
        (TIMESTAMP, dt.datetime(1969, 12, 31, 23, 59, 59, 999900), "-1"),
        (TIMESTAMP, dt.datetime(1969, 12, 31, 23, 59, 59), "-1000"),
        (TIMESTAMPTZ, dt.datetime(2023, 11, 11, 18, 30, 9, 453000, dt.UTC), '"2023-11-11T18:30:09.453000Z"'),
        (INTERVAL, pa.MonthDayNano([13, 2, 1_000_000_000]), '"P1Y1M2DT0H0M1S"'),
        (INTERVAL, pa.MonthDayNano([-13, 2, -90_061_250_000_000]), '"P-1Y-1M2DT-25H-1M-1.25S"'),
        (INTERVAL, pa.MonthDayNano([0, 0, -50_000_000]), '"P0Y0M0DT0H0M-0.05S"'),
        (JSONB, '{"a": [1, 12345678901234567890.12]}', '"{\\"a\\": [1, 12345678901234567890.12]}"'),
        (SqlType("array", element=NUMERIC), [decimal.Decimal("1.5"), None], '["1.5",null]'),
        (SqlType("array", element=SqlType("array", element=INTEGER)), [[1], [], None], "[[1],[],null]"),
        (SqlType("array", element=INTEGER), [], "[]"),
        (
            SqlType("array", element=POINT),
            [{"x": 1, "when": None}, None],
            '[{"x":1,"when":null},null]',
        ),
        (POINT, {"x": None, "when": dt.datetime(2023, 11, 11, tzinfo=dt.UTC)}, None),
    ],
)
def test_values_in_json_are_as_risingwave_writes_them(kind, value, text):
    text = text or '{"x":null,"when":"2023-11-11T00:00:00.000000Z"}'
    assert one(kind, value) == f'{{"c":{text}}}'
    assert json.loads(one(kind, None)) == {"c": None}


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("utc_string", '"2023-11-11T18:30:09.453000Z"'),
        ("utc_without_suffix", '"2023-11-11 18:30:09.453000"'),
        ("milli", "1699727409453"),
        ("micro", "1699727409453000"),
    ],
)
def test_modes_of_timestamptz(mode, text):
    value = dt.datetime(2023, 11, 11, 18, 30, 9, 453000, dt.UTC)
    assert one(TIMESTAMPTZ, value, **{"timestamptz.handling.mode": mode}) == f'{{"c":{text}}}'


def test_jsonb_may_be_json_with_all_its_digits():
    value = '{"a": [1, 12345678901234567890.12]}'
    assert one(JSONB, value, **{"jsonb.handling.mode": "dynamic"}) == f'{{"c":{value}}}'


def test_an_unknown_mode_is_refused_by_name():
    with pytest.raises(Error, match=r"jsonb\.handling\.mode can't be 'dynamc'") as caught:
        one(JSONB, "1", **{"jsonb.handling.mode": "dynamc"})
    assert caught.value.hint == 'Did you mean "dynamic"?'


def test_other_systems_json():
    moment = dt.datetime(2023, 11, 11, 18, 30, 9, 453000)
    assert one(TIMESTAMP, moment, **TIMEPLUS_JSON) == '{"c":"2023-11-11 18:30:09.453000"}'
    assert one(DATE, days(2023, 11, 11), **TIMEPLUS_JSON) == '{"c":"2023-11-11"}'
    assert one(NUMERIC, decimal.Decimal("1.50"), **TIMEPLUS_JSON) == '{"c":1.5}'
    assert one(DATE, days(1970, 1, 2), **LENSES_JSON) == '{"c":1}'


def test_names_of_columns_are_escaped():
    columns = (Field("it's", INTEGER), Field('a"b', INTEGER), Field("A\"b'", INTEGER))
    (text,) = encoded(columns, [(1, 2, 3)]).values.to_pylist()
    assert json.loads(text) == {"it's": 1, 'a"b': 2, "A\"b'": 3}


def test_plain_rows_come_as_often_as_they_came():
    got = encoded(TWO, [(1, "a"), (2, "b")], diff=[2, 1])
    assert got.values.to_pylist() == [b'{"id":1,"name":"a"}'] * 2 + [b'{"id":2,"name":"b"}']
    assert got.keys.to_pylist() == [None] * 3


def test_plain_rows_with_a_key_have_it():
    got = encoded(TWO, [(1, "a")], key=("id",))
    assert got.keys.to_pylist() == [b'{"id":1}']


def test_plain_rows_leave_out_deletions_only_if_forced():
    rows, diff = [(1, "a"), (1, "b")], [-1, 1]
    with pytest.raises(Error, match="a row was deleted"):
        encoded(TWO, rows, diff=diff)
    assert encoded(TWO, rows, diff=diff, force=True).values.to_pylist() == [b'{"id":1,"name":"b"}']


def test_upsert_writes_one_message_for_each_key():
    rows = [(3, "gone"), (1, "old"), (2, "new"), (1, "newer")]
    got = encoded(TWO, rows, key=("id",), diff=[-1, -1, 1, 1], rows="upsert")
    assert list(zip(got.keys.to_pylist(), got.values.to_pylist(), strict=True)) == [
        (b'{"id":3}', None),
        (b'{"id":1}', b'{"id":1,"name":"newer"}'),
        (b'{"id":2}', b'{"id":2,"name":"new"}'),
    ]


@pytest.mark.parametrize("rows", ["upsert", "debezium"])
def test_what_needs_a_key_says_so(rows):
    with pytest.raises(Error, match="needs a key"):
        encoded(TWO, [(1, "a")], rows=rows)


@pytest.mark.parametrize(
    ("encoding", "kind", "value", "key"),
    [
        ("string", INTEGER, 7, b"7"),
        ("string", VARCHAR, "x y", b"x y"),
        ("bytes", BYTEA, b"\x00\xff", b"\x00\xff"),
        ("int", INTEGER, -2, b"\xff\xff\xff\xfe"),
        ("long", BIGINT, 258, b"\x00\x00\x00\x00\x00\x00\x01\x02"),
        ("json", INTEGER, 7, b'{"k":7}'),
    ],
)
def test_keys_have_encodings_of_their_own(encoding, kind, value, key):
    columns = (Field("k", kind), Field("v", INTEGER))
    got = encoded(columns, [(value, 1)], key=("k",), rows="upsert", encoding="csv", key_encoding=encoding)
    assert got.keys.to_pylist() == [key]


@pytest.mark.parametrize(
    ("encoding", "columns", "message"),
    [
        ("string", TWO, "STRING encodes one column, here are 2"),
        ("bytes", (Field("a", DOUBLE),), 'BYTES can\'t encode column "a" of type double precision'),
        ("int", (Field("a", BIGINT),), 'INT can\'t encode column "a" of type bigint'),
        ("parquet", TWO, "ENCODE PARQUET for a sink"),
    ],
)
def test_what_an_encoding_does_not_take_is_refused(encoding, columns, message):
    with pytest.raises(Error, match=message):
        open_encoder(columns, (), MessageFormat(encoding=encoding), TO)


def test_null_in_the_only_column_is_a_message_without_value():
    assert encoded((Field("a", INTEGER),), [(1,), (None,)], encoding="int").values.to_pylist() == [b"\0\0\0\1", None]
    assert encoded((Field("a", VARCHAR),), [(None,)], encoding="string").values.to_pylist() == [None]


def test_csv_and_tsv():
    columns = (Field("a", VARCHAR), Field("b", INTEGER), Field("c", BYTEA), Field("d", TIMESTAMPTZ))
    rows = [("x", 1, b"\x01", dt.datetime(2023, 1, 2, tzinfo=dt.UTC)), ('a,"b', None, None, None), ("", 2, b"", None)]
    rows.append(("t\tn\n\\", 3, None, None))
    assert encoded(columns, rows, encoding="csv").values.to_pylist() == [
        b"x,1,\\x01,2023-01-02 00:00:00+00:00",
        b'"a,""b",,,',
        b'"",2,\\x,',
        b'"t\tn\n\\",3,,',
    ]
    assert encoded(columns, rows, encoding="csv", options={"delimiter": "|"}).values[1].as_py() == b'"a,""b"|||'
    assert encoded(columns, rows, encoding="tsv").values.to_pylist() == [
        b"x\t1\t\\x01\t2023-01-02 00:00:00+00:00",
        b'a,"b\t\\N\t\\N\t\\N',
        b"\t2\t\\x\t\\N",
        b"t\\tn\\n\\\\\t3\t\\N\t\\N",
    ]


DEBEZIUM_KEY = {
    "schema": {
        "type": "struct",
        "fields": [{"field": "id", "optional": True, "type": "int32"}],
        "optional": False,
        "name": "RisingWave.dev.mv.Key",
    },
    "payload": {"id": 1},
}


def test_debezium_says_what_was_and_what_is():
    rows = [(1, "old"), (2, "gone"), (1, "new"), (3, "came")]
    got = encoded(TWO, rows, key=("id",), diff=[-1, -1, 1, 1], rows="debezium", time_us=1_699_727_409_453_999)
    keys, values = ([m and json.loads(m) for m in part.to_pylist()] for part in (got.keys, got.values))
    assert keys[0] == DEBEZIUM_KEY
    assert [k["payload"]["id"] for k in keys] == [1, 2, 2, 3]
    source = {"db": "dev", "table": "mv", "ts_ms": 1_699_727_409_453}
    times = {"ts_ms": 1_699_727_409_453, "source": source}
    assert [v and v["payload"] for v in values] == [
        {"before": {"id": 1, "name": "old"}, "after": {"id": 1, "name": "new"}, "op": "u", **times},
        {"before": {"id": 2, "name": "gone"}, "after": None, "op": "d", **times},
        None,
        {"before": None, "after": {"id": 3, "name": "came"}, "op": "c", **times},
    ]
    schema = values[0]["schema"]
    assert schema["name"] == "RisingWave.dev.mv.Envelope"
    assert [f["field"] for f in schema["fields"]] == ["before", "after", "source", "op", "ts_ms"]
    assert schema["fields"][1]["fields"] == [
        {"field": "id", "optional": True, "type": "int32"},
        {"field": "name", "optional": True, "type": "string"},
    ]


def test_debezium_without_schemas():
    got = encoded(TWO, [(1, "a")], key=("id",), rows="debezium", options={"schemas.enable": "false"})
    assert got.keys.to_pylist() == [b'{"id":1}']
    assert json.loads(got.values[0].as_py())["op"] == "c"


def test_dates_of_debezium_count_from_1970():
    columns = (Field("id", INTEGER), Field("d", DATE))
    got = encoded(columns, [(1, days(1970, 1, 2))], key=("id",), rows="debezium")
    assert json.loads(got.values[0].as_py())["payload"]["after"]["d"] == 1


def test_a_schema_beside_upserts():
    got = encoded(TWO, [(1, "a")], key=("id",), rows="upsert", options={"schemas.enable": "true"})
    value = json.loads(got.values[0].as_py())
    assert value["payload"] == {"id": 1, "name": "a"}
    assert value["schema"]["name"] == "dev.mv"
    assert json.loads(got.keys[0].as_py())["payload"] == {"id": 1}


def test_columns_that_are_parts_of_messages():
    columns = (*TWO, Field("k", VARCHAR), Field("h", BYTEA), Field("g", VARCHAR), Field("o", VARCHAR))
    parts = {"k": "key", "h": "header:h1", "g": "header:h2", "o": "offset"}
    rows = [(1, "a", "key", b"\xff", "g", "5"), (2, "b", None, None, "g", None), (3, "c", "x", None, None, None)]
    got = encoded(columns, rows, parts=parts)
    assert got.keys.to_pylist() == [b"key", None, b"x"]
    assert got.values.to_pylist()[0] == b'{"id":1,"name":"a"}'
    assert got.headers.to_pylist() == [
        [{"key": "h1", "value": b"\xff"}, {"key": "h2", "value": b"g"}],
        [{"key": "h2", "value": b"g"}],
        [],
    ]


@pytest.mark.parametrize("rows", ["upsert", "debezium"])
@pytest.mark.parametrize("seed", mostly_slow(range(20), 12, 20, fresh=False))
def test_the_topic_read_from_its_beginning_has_the_content(rows, seed):
    """Random histories of a table with a key; the reader follows the rules of both forms in plain Python."""
    r = random.Random(seed)
    columns = (Field("a", INTEGER), Field("b", VARCHAR), Field("v", INTEGER))
    encoder = open_encoder(columns, ("a", "b"), MessageFormat(rows), TO)
    content, read = {}, {}
    for commit in range(15):
        before = dict(content)
        for _ in range(r.randint(1, 8)):
            key = (r.randint(0, 3), r.choice(["x", "y", None]))
            if r.random() < 0.4:
                content.pop(key, None)
            else:
                content[key] = r.randint(0, 2)
        change = [((*k, v), -1) for k, v in before.items() if content.get(k) != v]
        change += [((*k, v), 1) for k, v in content.items() if before.get(k) != v]
        r.shuffle(change)
        if not change:
            continue
        got = encoder.encode(table(columns, *(row for row, _ in change)), np.array([d for _, d in change]), commit)
        assert len(got) >= len({row[:2] for row, _ in change})
        for key_text, text in zip(got.keys.to_pylist(), got.values.to_pylist(), strict=True):
            key, value = json.loads(key_text), json.loads(text or b"null")
            if rows == "debezium":
                key = key["payload"]
                before_row = read.get(tuple(key.values()))
                if value is not None:
                    value = value["payload"]
                    was = value["before"] and value["before"]["v"]
                    assert was == before_row
                    assert value["op"] == ("c" if before_row is None else "u" if value["after"] else "d")
                    value = value["after"]
            if value is None:
                read.pop(tuple(key.values()), None)
            else:
                assert {n: value[n] for n in "ab"} == key
                read[tuple(key.values())] = value["v"]
        assert read == content


def test_a_batch_without_rows():
    for rows in ("plain", "upsert", "debezium"):
        assert len(encoded(TWO, [], key=("id",), rows=rows)) == 0


def test_records_have_a_key_a_time_and_maybe_no_value():
    columns = (
        Field("_key", INTEGER),
        Field("name", VARCHAR),
        Field("at", TIMESTAMP),
        Field("gone", BOOLEAN),
        Field("place", BIGINT),
    )
    moment = dt.datetime(2021, 1, 1, 0, 0, 5, 123456)
    rows = [(1, "John", moment, False, 7), (2, None, moment, True, 8), (1, "Ann", None, None, 9)]
    parts = {"_key": "key", "at": "timestamp", "gone": "tombstone", "place": "offset"}
    found = encoded(columns, rows, parts=parts, key_encoding="int")
    assert found.keys.to_pylist() == [b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\1"]
    assert found.values.to_pylist() == [b'{"name":"John"}', None, b'{"name":"Ann"}']
    assert found.times_ms.to_pylist() == [1609459205123, 1609459205123, None]


def test_a_key_that_is_an_object_is_written_as_its_fields():
    plate = SqlType("struct", fields=(("plate", VARCHAR), ("n", INTEGER)))
    columns = (Field("_key", plate), Field("v", INTEGER))
    rows = [({"plate": "M-1", "n": 5}, 1), (None, 2)]
    found = encoded(columns, rows, parts={"_key": "key"}, key_encoding="json")
    assert found.keys.to_pylist() == [b'{"plate":"M-1","n":5}', None]
