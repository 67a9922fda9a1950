"""Maps: views follow their changes, and JSON, Parquet and the protocol of PostgreSQL keep their entries."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet
from watersmeet.formats.convert import convert
from watersmeet.formats.typemapping import can_read, retyped, sql_type
from watersmeet.formats.valuetexts import EXACT_JSON, evaluate, json_value
from watersmeet.formats.writingfiles import FileWriter
from watersmeet.server import oids, valuebytes
from watersmeet.values.types import BIGINT, INTEGER, VARCHAR, Field, SqlType, map_of

_KIND = map_of(VARCHAR, BIGINT)
_VIEW = """CREATE MATERIALIZED VIEW v AS SELECT t.id, map_insert(map_delete(t.m, 'a'), 'id', t.id) AS changed,
    map_cat(t.m, u.m) AS both, t.m['b'] AS b, map_length(u.m) AS n FROM t LEFT JOIN u ON t.id = u.id"""

Map = dict[str, int | None] | None


def _row(number: int, m: Map, other: Map) -> tuple[Any, ...]:
    """The row of the view, written from RisingWave's rules alone: a new value of a key is the last entry."""
    changed = None if m is None else {**{k: v for k, v in m.items() if k not in ("a", "id")}, "id": number}
    if m is None or other is None:
        both = other if m is None else m
    else:
        both = {**{k: v for k, v in m.items() if k not in other}, **other}
    return (number, changed, both, None if m is None else m.get("b"), None if other is None else len(other))


def _written(m: Map) -> str:
    if m is None:
        return "NULL"
    pairs = ", ".join(f"'{k}': {'NULL' if v is None else v}::bigint" for k, v in m.items())
    return f"MAP {{{pairs}}}"


def _any_map(rng: random.Random) -> Map:
    if rng.random() < 0.15:
        return None
    keys = rng.sample(["a", "b", "c", "id"], rng.randint(0, 4))
    return {k: None if rng.random() < 0.2 else rng.randint(-5, 1 << 40) for k in keys}


def test_views_follow_the_changes_of_maps(tmp_path: Path) -> None:
    rng = random.Random(5)
    tables: dict[str, dict[int, Map]] = {"t": {}, "u": {}}
    connection = watersmeet.connect(tmp_path, runtime="inprocess")
    for name in tables:
        connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, m map(varchar, bigint))")
    connection.execute(_VIEW)
    for step in range(16):
        name, number = rng.choice("tu"), rng.randint(1, 4)
        if number in tables[name] and rng.random() < 0.3:
            del tables[name][number]
            connection.execute(f"DELETE FROM {name} WHERE id = {number}")
        else:
            tables[name][number] = _any_map(rng)
            connection.execute(f"INSERT INTO {name} VALUES ({number}, {_written(tables[name][number])})")
        if step == 8:
            connection.close()
            connection = watersmeet.connect(tmp_path, runtime="inprocess")
        if step % 4 == 3:
            connection.execute("FLUSH")
            found = connection.execute("SELECT id, changed, both, b, n FROM v ORDER BY id").fetchall()
            expected = [_row(n, m, tables["u"].get(n)) for n, m in sorted(tables["t"].items())]
            assert found == expected
            orders = [[list(c) for c in row if isinstance(c, dict)] for row in found]
            assert orders == [[list(c) for c in row if isinstance(c, dict)] for row in expected]
    connection.close()


def _entries(*maps: Map) -> pa.Array:
    rows = [None if m is None else [{"key": k, "value": v} for k, v in m.items()] for m in maps]
    return pa.array(rows, _KIND.arrow)


def test_json_objects_are_maps() -> None:
    texts = ['{"b": 1, "a": null}', "{}", None, '{"a": 1, "a": 2}', "[]", '{"a": "x"}']
    (found,) = convert([pa.array(texts)], [_KIND])
    assert found.column.equals(_entries({"b": 1, "a": None}, {}, None, {"a": 2}, None, None))
    assert found.bad is not None
    assert found.bad.tolist() == [False, False, False, False, True, True]
    (written,) = evaluate([found.column.slice(0, 4)], [json_value("t0", _KIND, EXACT_JSON)])
    assert written.to_pylist() == ['{"b":1,"a":null}', "{}", "null", '{"a":2}']


def test_keys_that_are_no_texts_are_texts_in_json() -> None:
    kind = map_of(INTEGER, map_of(VARCHAR, VARCHAR))
    text = '{"7":{"a\\"b":"c"}}'
    (found,) = convert([pa.array([text])], [kind])
    assert found.column.to_pylist() == [[{"key": 7, "value": [{"key": 'a"b', "value": "c"}]}]]
    (written,) = evaluate([found.column], [json_value("t0", kind, EXACT_JSON)])
    assert json.loads(written[0].as_py()) == json.loads(text)


def test_parquet_has_maps() -> None:
    column = _entries({"b": 1, "a": None}, None, {}, {"a": 2})
    file = io.BytesIO()
    writer = FileWriter((Field("m", _KIND),), "parquet", {}).begin(file)
    writer.write(pa.table({"m": column.slice(1)}))
    writer.close()
    read = pq.read_table(io.BytesIO(file.getvalue())).column("m")
    assert pa.types.is_map(read.type)
    assert sql_type(read.type) == _KIND
    assert can_read(read.type, _KIND)
    assert retyped(read.combine_chunks(), _KIND).column.equals(column.slice(1))


def test_clients_of_postgresql_read_the_text() -> None:
    column = _entries({"b": 1, "a": None}, None, {})
    assert valuebytes.texts(column.slice(0), _KIND).to_pylist() == ["{b:1,a:NULL}", None, "{}"]
    assert valuebytes.encoded(column, _KIND).to_pylist() == [b"{b:1,a:NULL}", None, b"{}"]
    assert oids.oid_of(_KIND) == oids.oid_of(VARCHAR)
    assert oids.oid_of(SqlType("array", element=_KIND)) == oids.oid_of(SqlType("array", element=VARCHAR))


def test_keys_are_unique() -> None:
    connection = watersmeet.connect(runtime="inprocess")
    for written in ("MAP {'a': 1, 'a': 2}", "map_from_key_values(array['a', NULL], array[1, 2])"):
        with pytest.raises(watersmeet.Error, match="unique and not NULL"):
            connection.execute(f"SELECT {written}")
    with pytest.raises(watersmeet.Error, match="as many keys as values"):
        connection.execute("SELECT map_from_key_values(array['a'], array[1, 2])")
    for query in ("GROUP BY m", "UNION SELECT NULL::map(varchar, int) AS m", "WHERE m = m"):
        with pytest.raises(watersmeet.Error, match="a map is not supported"):
            connection.execute(f"SELECT m FROM (SELECT MAP {{'a': 1}} AS m) AS s {query}")
    connection.close()
