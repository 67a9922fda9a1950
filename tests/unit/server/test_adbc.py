"""ADBC's driver of PostgreSQL: Arrow by COPY in binary, there and back, and what it asks of the catalog."""

from __future__ import annotations

import datetime as dt

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pytest

SHOP = """
CREATE TABLE t (a int PRIMARY KEY, b varchar, x double precision, ts timestamptz, arr int[]);
INSERT INTO t VALUES (1, 'x', 1.5, '2020-01-01 00:00:00Z', ARRAY[1, NULL]), (2, NULL, NULL, NULL, NULL);
CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t; FLUSH
"""


@pytest.fixture
def client(serving):
    uri = f"postgresql://u@127.0.0.1:{serving(SHOP).server.port}/shop"
    with adbc_driver_postgresql.dbapi.connect(uri, autocommit=True) as client:
        yield client


def test_arrow_there_and_back(client):
    with client.cursor() as cursor:
        cursor.execute("SELECT * FROM t ORDER BY a")
        first, second = cursor.fetch_arrow_table().to_pylist()
        moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        assert first == {"a": 1, "b": "x", "x": 1.5, "ts": moment, "arr": [1, None]}
        assert second == {"a": 2, "b": None, "x": None, "ts": None, "arr": None}
        cursor.execute("SELECT b FROM t WHERE a = $1", (1,))
        assert cursor.fetchall() == [("x",)]
        cursor.execute("INSERT INTO t (a, b) VALUES ($1, $2)", (7, "z"))
        made = pa.table(
            {
                "i": pa.array([1, 2, None], pa.int64()),
                "s": ["x", None, "ü"],
                "d": [1.5, None, -2.5],
                "o": [True, None, False],
                "t": pa.array([0, None, 10**15], pa.timestamp("us")),
                "b": [b"\x00\x01", None, b""],
            }
        )
        assert cursor.adbc_ingest("made", made, mode="create") == 3
        assert cursor.adbc_ingest("made", made.slice(0, 2), mode="append") == 2
        cursor.execute("FLUSH")
        cursor.execute("SELECT i, s, d, o, t, b FROM made")
        found = cursor.fetch_arrow_table().to_pylist()
        wanted = [*made.to_pylist(), *made.slice(0, 2).to_pylist()]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="does not exist"):
            cursor.execute("SELECT * FROM nothing")


def test_the_catalog(client):
    assert "materialized_view" in client.adbc_get_table_types()
    schema = client.adbc_get_table_schema("t")
    assert [(f.name, f.type) for f in schema][:3] == [("a", pa.int32()), ("b", pa.string()), ("x", pa.float64())]
    objects = client.adbc_get_objects(depth="all").read_all().to_pylist()
    assert [o["catalog_name"] for o in objects] == ["shop"]
    schemas = {s["db_schema_name"]: s for s in objects[0]["catalog_db_schemas"]}
    tables = {t["table_name"]: t for t in schemas["public"]["db_schema_tables"]}
    assert {n: t["table_type"] for n, t in tables.items()} == {"t": "table", "v": "materialized view"}
    assert [c["column_name"] for c in tables["v"]["table_columns"]] == ["a", "b"]
    keys = tables["t"]["table_constraints"]
    assert [(k["constraint_type"], k["constraint_column_names"]) for k in keys] == [("PRIMARY KEY", ["a"])]
