"""Timeplus' databases and external tables over catalogs of Iceberg, behind REST and in SQLite.

Timeplus, "Iceberg External Stream".
"""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.lakes import duckdb_with, rest_catalog, sql_catalog

import watersmeet
from watersmeet.connectors.iceberg.tables import IcebergReader, iceberg_options
from watersmeet.errors import Error
from watersmeet.maintenance import refreshing
from watersmeet.sinkwriters.writers import SinkWriters

COLUMNS = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        ("i", pa.int64()),
        ("v", pa.string()),
        ("n", pa.decimal128(8, 2)),
        ("d", pa.date32()),
        ("p", pa.timestamp("us")),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int32())),
    ]
)


@pytest.fixture
def rest(tmp_path):
    with rest_catalog(tmp_path) as server:
        yield server


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as found:
        yield found


def settings(rest, tmp_path):
    return (
        f"type='iceberg', catalog_type='rest', catalog_uri='{rest.uri}', catalog_token='{rest.token}', "
        f"warehouse='file://{tmp_path}/warehouse'"
    )


def rows(connection, sql):
    return connection.execute(sql).fetchall()


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


def delivered(connection):
    connection.execute("FLUSH")
    database = connection._session.database
    for relation in database.catalog.relations.values():
        assert database.service(SinkWriters).wait(relation.id, 60)


def table(tmp_path, name="lake.t", schema=COLUMNS):
    catalog = sql_catalog(tmp_path)
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table(name, schema)


def some(rng, count):
    return pa.table(
        {
            "k": pa.array(range(count), pa.int32()),
            "i": pa.array([rng.choice([-1, 0, 3, 99999999999, None]) for _ in range(count)], pa.int64()),
            "v": [rng.choice(["a", "B", "ä", "", None]) for _ in range(count)],
            "n": pa.array(
                [rng.choice([Decimal("1.50"), Decimal(-2), None]) for _ in range(count)], pa.decimal128(8, 2)
            ),
            "d": pa.array([rng.choice([dt.date(2024, 2, 29), dt.date(1969, 1, 1), None]) for _ in range(count)]),
            "p": pa.array(
                [rng.choice([dt.datetime(2024, 2, 29, 12, 0, 0, 1), None]) for _ in range(count)], pa.timestamp("us")
            ),
            "b": pa.array([rng.choice([True, False, None]) for _ in range(count)]),
            "l": pa.array([rng.choice([[1, 2], [], None]) for _ in range(count)], pa.list_(pa.int32())),
        },
        schema=COLUMNS,
    )


def test_a_database_has_the_tables_of_the_catalog(connection, rest, tmp_path):
    there = table(tmp_path)
    there.append(some(random.Random(1), 3))
    connection.execute(f"CREATE DATABASE lake SETTINGS {settings(rest, tmp_path)}")
    assert rows(connection, "SELECT count(*), sum(k) FROM lake.t") == [(3, 3)]
    there.append(some(random.Random(2), 2))
    assert rows(connection, "SELECT count(*) FROM lake.t") == [(5,)]
    there.delete("k = 1")
    assert sorted(rows(connection, "SELECT k FROM lake.t")) == [(0,), (0,), (2,)]
    # One that comes later is found when it is named.
    assert refused(connection, "SELECT * FROM lake.later").condition == "UNDEFINED_RELATION"
    table(tmp_path, "lake.later", pa.schema([("x", pa.string())])).append(pa.table({"x": ["new"]}))
    assert rows(connection, "SELECT * FROM lake.later") == [("new",)]
    connection.execute(
        "CREATE STREAM s(k int); CREATE MATERIALIZED VIEW v AS SELECT s.k AS k, n FROM s JOIN lake.t AS t ON s.k = t.k"
    )
    connection.execute("INSERT INTO s(k) VALUES (2); FLUSH")
    assert len(rows(connection, "SELECT * FROM table(v)")) == 1
    assert "lake" in refused(connection, "DROP DATABASE lake").message
    connection.execute("DROP VIEW v; DROP DATABASE lake CASCADE")
    assert refused(connection, "SELECT * FROM lake.t").condition == "UNDEFINED_RELATION"
    assert sql_catalog(tmp_path).load_table("lake.t").scan().to_arrow().num_rows == 3


def test_tables_are_made_and_written(connection, rest, tmp_path):
    connection.execute(f"CREATE DATABASE demo SETTINGS {settings(rest, tmp_path)}, namespace='marts'")
    connection.execute("CREATE STREAM demo.out(id int, at datetime64(6), price decimal(10, 2), name nullable(string))")
    assert refused(connection, "CREATE STREAM demo.out(id int)").condition == "DUPLICATE_OBJECT"
    connection.execute("CREATE STREAM s(id int, at datetime64(6), price decimal(10, 2), name nullable(string))")
    connection.execute("CREATE MATERIALIZED VIEW v INTO demo.out AS SELECT id, at, price, name FROM s")
    for row in ("(1, '2024-02-29 12:00:00.000001', 1.25, 'one')", "(2, '2024-03-01 00:00:00', -0.01, NULL)"):
        connection.execute(f"INSERT INTO s(id, at, price, name) VALUES {row}")
    delivered(connection)
    connection.execute("INSERT INTO demo.out VALUES (3, '1969-12-31 23:59:59', 0, 'three')")
    expected = [
        (1, dt.datetime(2024, 2, 29, 12, 0, 0, 1), Decimal("1.25"), "one"),
        (2, dt.datetime(2024, 3, 1), Decimal("-0.01"), None),
        (3, dt.datetime(1969, 12, 31, 23, 59, 59), Decimal("0.00"), "three"),
    ]
    assert rows(connection, "SELECT * FROM demo.out ORDER BY id") == expected
    made = sql_catalog(tmp_path).load_table("marts.out")
    assert [(f.name, f.required) for f in made.schema().fields] == [
        ("id", True), ("at", True), ("price", True), ("name", False),
    ]  # fmt: skip
    with duckdb_with("avro", "iceberg") as reader:
        found = reader.sql(f"SELECT * FROM iceberg_scan('{made.metadata_location}') ORDER BY id").fetchall()
    assert found == expected
    assert refused(connection, "DELETE FROM demo.out WHERE id = 1").condition == "FEATURE_NOT_SUPPORTED"
    assert refused(connection, "INSERT INTO demo.out(id) VALUES (4)").condition == "CONNECTOR_OPTION"
    for wrong in ("MUTABLE STREAM demo.m(id int) PRIMARY KEY id", "STREAM demo.m(id int DEFAULT 5)"):
        assert refused(connection, f"CREATE {wrong}").condition == "FEATURE_NOT_SUPPORTED"


def test_a_restart_delivers_nothing_twice_and_keeps_secrets(rest, tmp_path):
    def connect():
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")

    with connect() as connection:
        connection.execute(f"CREATE DATABASE demo SETTINGS {settings(rest, tmp_path)}")
        connection.execute("CREATE STREAM demo.out(id int); CREATE STREAM s(id int)")
        connection.execute("CREATE MATERIALIZED VIEW v INTO demo.out AS SELECT id FROM s; INSERT INTO s(id) VALUES (1)")
        delivered(connection)
        assert rest.token not in repr(connection._session.catalog.relations)
        assert rest.token not in str(rows(connection, "SHOW CREATE STREAM demo.out"))
    for path in (tmp_path / "db").rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            assert rest.token.encode() not in path.read_bytes(), path
    with connect() as connection:
        connection.execute("INSERT INTO s(id) VALUES (2)")
        delivered(connection)
        assert rows(connection, "SELECT id FROM demo.out ORDER BY id") == [(1,), (2,)]


CONSTANTS = {
    "i": ["-1", "0", "3", "99999999999", "2.5"],
    "v": ["'a'", "'B'", "'ä'", "''"],
    "n": ["1", "1.50", "-2", "0.005"],
    "d": ["to_date('2024-02-29')", "to_date('1970-01-01')"],
    "p": ["cast('2024-02-29 12:00:00.000001', 'datetime64(6)')", "cast('2024-02-29 12:00:00', 'datetime64(6)')"],
}


def condition(rng):
    column = rng.choice(sorted(CONSTANTS))
    if rng.random() < 0.2:
        return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
    if rng.random() < 0.2:
        return f"{column} IN ({', '.join(rng.choices(CONSTANTS[column], k=2))})"
    return f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(CONSTANTS[column])}"


@pytest.mark.slow
def test_random_queries_give_what_they_give_over_all_rows(connection, tmp_path, monkeypatch):
    rng = random.Random(5)
    there = table(tmp_path)
    for _ in range(3):
        there.append(some(rng, 12))
    connection.execute(
        f"CREATE EXTERNAL TABLE t SETTINGS type='iceberg', catalog_type='sql', catalog_name='lake', namespace='lake', "
        f"catalog_uri='sqlite:///{tmp_path}/catalog.db', warehouse='file://{tmp_path}/warehouse', table='t'"
    )
    counts, plain = [], IcebergReader.read

    def counted(self, columns, conditions=()):
        found = plain(self, columns, conditions)
        counts.append((found.num_rows, len(found.column_names)))
        return found

    monkeypatch.setattr(IcebergReader, "read", counted)
    fewer = 0
    for _ in range(20):
        where = " AND ".join(condition(rng) for _ in range(rng.randint(1, 2)))
        text = rng.choice(["SELECT k, v FROM t WHERE {}", "SELECT count() FROM t WHERE {}", "SELECT * FROM t WHERE {}"])
        connection._session.database.external_readers.versions.clear()
        counts.clear()
        found = rows(connection, text.format(where))
        [(count, width)] = counts
        fewer += count < 36 and width < len(COLUMNS)
        with monkeypatch.context() as whole:
            whole.setattr(refreshing, "needed_rows", lambda *_: {})
            expected = rows(connection, text.format(where))
        assert sorted(found, key=repr) == sorted(expected, key=repr), where
    assert fewer > 5
    (line,) = [t for (t,) in rows(connection, "EXPLAIN SELECT v FROM t WHERE k > 3") if "sends" in t]
    assert "columns k, v where" in line
    assert "GreaterThan" in line


@pytest.mark.parametrize(
    ("changed", "condition", "words"),
    [
        (("type='iceberg'", "type='glue'"), "FEATURE_NOT_SUPPORTED", "type glue"),
        (("warehouse=", "wharehouse="), "CONNECTOR_OPTION", 'has no option "wharehouse"'),
        (("catalog_type='rest'", "catalog_type='hive'"), "CONNECTOR_OPTION", "catalog_type"),
        (("let-me-in", "let-me-out"), "CONNECTOR_OPTION", "refuses the user"),
        (("http://127.0.0.1:", "http://127.0.0.1:1"), "RUNTIME_UNAVAILABLE", "can't be read"),
        (("type='iceberg'", "pace=1, type='iceberg'"), "CONNECTOR_OPTION", '"pace"'),
    ],
)
def test_what_is_wrong_is_said(connection, rest, tmp_path, changed, condition, words):
    found = refused(connection, f"CREATE DATABASE lake SETTINGS {settings(rest, tmp_path).replace(*changed)}")
    assert (found.condition, words in found.message) == (condition, True), found.message
    assert "lake" not in str(rows(connection, "SHOW DATABASES"))


def test_a_table_that_can_not_be_read_is_named(connection, rest, tmp_path):
    table(tmp_path, "lake.odd", pa.schema([("m", pa.map_(pa.float64(), pa.string()))]))
    table(tmp_path, "lake.even", pa.schema([("m", pa.map_(pa.string(), pa.string()))]))
    table(tmp_path)
    done = connection.execute(f"CREATE DATABASE lake SETTINGS {settings(rest, tmp_path)}")
    assert ["lake.odd" in n for n in done.notices] == [True]
    assert rows(connection, "SELECT count(*) FROM lake.t") == [(0,)]
    assert rows(connection, "SELECT count(*) FROM lake.even") == [(0,)]


def test_how_settings_are_given_to_the_library():
    given = {
        "catalog_uri": "https://glue.us-west-2.amazonaws.com/iceberg",
        "warehouse": "123",
        "storage_endpoint": "https://b.s3.us-west-2.amazonaws.com",
        "storage_credential": "k:s",
        "rest_catalog_sigv4_enabled": "true",
        "rest_catalog_signing_region": "us-west-2",
        "rest_catalog_signing_name": "glue",
    }
    assert iceberg_options(given, "demo", "t") == {
        "connector": "iceberg",
        "catalog.type": "rest",
        "catalog.uri": "https://glue.us-west-2.amazonaws.com/iceberg",
        "warehouse.path": "123",
        "database.name": "demo",
        "table.name": "t",
        "s3.access.key": "k",
        "s3.secret.key": "s",
        "catalog.rest.sigv4_enabled": "true",
        "catalog.rest.signing_region": "us-west-2",
        "catalog.rest.signing_name": "glue",
    }


def test_connections_without_the_right_to_files(tmp_path, rest):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", allow_files=False) as connection:
        found = refused(connection, f"CREATE DATABASE lake SETTINGS {settings(rest, tmp_path)}")
        assert found.condition == "FILES_NOT_ALLOWED"
