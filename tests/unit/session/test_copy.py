"""COPY … TO and COPY … FROM files."""

import datetime as dt
from decimal import Decimal

import duckdb
import pytest

import watersmeet
from watersmeet.errors import Error

COLUMNS = "i int, n numeric(10, 2), s varchar, b boolean, d date, ts timestamp, j jsonb, x bytea, a int[], f double"
ROWS = """(1, 1.50, 'a', true, '2024-05-01', '2024-05-01 12:00:00.000001',
    '{"a": [1]}', '\\x00ff', ARRAY[1, NULL], 0.1),
    (2, -0.01, 'with "quotes", commas
    and lines', false, '1999-12-31', '2024-05-01 00:00:00', '"text"', '\\x', ARRAY[]::int[], -1e9),
    (3, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"CREATE TABLE t ({COLUMNS}); INSERT INTO t VALUES {ROWS}; FLUSH")
        yield connection


def content(connection, name):
    return connection.execute(f"SELECT * FROM {name} ORDER BY i").fetchall()


@pytest.mark.parametrize(
    ("extension", "options"),
    [("parquet", ""), ("json", ""), ("csv", "(HEADER)"), ("txt", "WITH (FORMAT CSV, DELIMITER '|', NULL 'none')")],
)
def test_what_goes_out_comes_in_as_the_same_values(connection, tmp_path, extension, options):
    path = tmp_path / f"out.{extension}"
    assert connection.execute(f"COPY t TO '{path}' {options}").rowcount == 3
    connection.execute(f"CREATE TABLE u ({COLUMNS})")
    assert connection.execute(f"COPY u FROM '{path}' {options}").rowcount == 3
    assert content(connection, "u") == content(connection, "t")


def test_others_read_what_was_written(connection, tmp_path):
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT i, n FROM t WHERE i < 3")
    connection.execute(f"COPY v TO '{tmp_path}/v.parquet'")
    connection.execute(f"COPY t (s, i) TO '{tmp_path}/t.csv' (HEADER true, FORMAT csv)")
    connection.execute(f"COPY (SELECT i + 1 AS next FROM t ORDER BY i DESC) TO '{tmp_path}/q.json'")
    read = duckdb.connect().execute
    assert read(f"SELECT * FROM '{tmp_path}/v.parquet' ORDER BY i").fetchall() == [
        (1, Decimal("1.50")),
        (2, Decimal("-0.01")),
    ]
    assert read(f"SELECT i FROM read_csv('{tmp_path}/t.csv') ORDER BY i").fetchall() == [(1,), (2,), (3,)]
    assert (tmp_path / "q.json").read_text() == '{"next":4}\n{"next":3}\n{"next":2}\n'


def test_a_copy_that_fails_leaves_the_file_as_it_was(connection, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("before")
    with pytest.raises(Error, match="invalid input syntax"):
        connection.execute(f"COPY (SELECT (s || 'x')::int AS q FROM t) TO '{path}'")
    assert path.read_text() == "before"
    connection.execute(f"COPY (SELECT i FROM t WHERE i = 1) TO '{path}'")
    assert path.read_text() == "1\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db", "t.csv"]


def test_copy_from_is_an_insert(connection, tmp_path):
    (tmp_path / "in.csv").write_text("key,value\n1,10\n2,20\n1,11\n")
    connection.execute(
        "CREATE TABLE k (key int PRIMARY KEY, value int, twice int AS value * 2, d date DEFAULT '2024-05-01')"
    )
    connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT sum(twice) AS s FROM k; INSERT INTO k VALUES (2, 2)")
    assert connection.execute(f"COPY k (key, value) FROM '{tmp_path}/in.csv' (HEADER)").rowcount == 3
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM k ORDER BY key").fetchall() == [
        (1, 11, 22, dt.date(2024, 5, 1)),
        (2, 20, 40, dt.date(2024, 5, 1)),
    ]
    assert connection.execute("SELECT * FROM sums").fetchall() == [(62,)]
    connection.execute(f"BEGIN; COPY k (key, value) FROM '{tmp_path}/in.csv' (HEADER); ROLLBACK; FLUSH")
    assert len(connection.execute("SELECT * FROM k").fetchall()) == 2


def test_records_that_cannot_be_read_are_refused_or_set_aside(connection, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("1,10\nx,20\n3,\n4,9,9\n")
    connection.execute("CREATE TABLE k (key int PRIMARY KEY, value int NOT NULL)")
    with pytest.raises(Error, match="3 records of the file can't be read") as caught:
        connection.execute(f"COPY k FROM '{path}'")
    assert caught.value.detail == "The first is in bad.csv, line 2. Nothing was copied."
    assert connection.execute("SELECT * FROM k").fetchall() == []
    for _ in range(2):
        cursor = connection.execute(f"COPY k FROM '{path}' (ON_ERROR skip)")
        assert cursor.rowcount == 1
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM k").fetchall() == [(1, 10)]
    letters = connection.execute("SELECT line, text FROM watersmeet.dead_letters WHERE source = 'k'").fetchall()
    assert sorted(letters) == sorted([(2, "x,20"), (3, "3,"), (4, "4,9,9")] * 2)


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("COPY missing TO '{0}/x.csv'", "UNDEFINED_RELATION"),
        ("COPY t (missing) TO '{0}/x.csv'", "UNDEFINED_COLUMN"),
        ("COPY t TO '{0}/none/x.csv'", "INVALID_PARAMETER"),
        ("COPY t TO '{0}'", "INVALID_PARAMETER"),
        ("COPY t FROM '{0}/missing.csv'", "INVALID_PARAMETER"),
        ("COPY t TO '{0}/x.csv' (FORMAT xlsx)", "CONNECTOR_OPTION"),
        ("COPY t TO '{0}/x.json' (HEADER)", "CONNECTOR_OPTION"),
        ("COPY t TO '{0}/x.csv' (HEADER maybe)", "CONNECTOR_OPTION"),
        ("COPY t TO '{0}/x.csv' (DELIMITER 'ab')", "CONNECTOR_OPTION"),
        ("COPY t TO '{0}/x.parquet' (COMPRESSION fast)", "CONNECTOR_OPTION"),
        ("COPY t FROM '{0}/a.csv' (ON_ERROR maybe)", "CONNECTOR_OPTION"),
        ("COPY t (i, missing) FROM '{0}/a.csv'", "UNDEFINED_COLUMN"),
        ("COPY t (i, f) FROM '{0}/a.csv' (HEADER)", "UNDEFINED_COLUMN"),
        ("COPY v FROM '{0}/a.csv'", "READ_ONLY_RELATION"),
        ("COPY (SELECT i, i FROM t) TO '{0}/x.json'", "DUPLICATE_COLUMN"),
        ("COPY t FROM STDIN", "FEATURE_NOT_SUPPORTED"),
        ("COPY t TO STDOUT", "FEATURE_NOT_SUPPORTED"),
        ("COPY t", "SYNTAX_ERROR"),
        ("COPY (SELECT 1 AS a) FROM '{0}/a.csv'", "SYNTAX_ERROR"),
    ],
)
def test_what_is_refused(connection, tmp_path, statement, condition):
    (tmp_path / "a.csv").write_text("i\n1\n")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT i FROM t")
    with pytest.raises(Error) as caught:
        connection.execute(statement.format(tmp_path))
    assert caught.value.condition == condition
    assert caught.value.span is not None
    assert not (tmp_path / "x.csv").exists()


def test_a_connection_without_files_copies_nothing(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", allow_files=False) as connection:
        connection.execute("CREATE TABLE t (i int)")
        for way in ("TO", "FROM"):
            with pytest.raises(Error) as caught:
                connection.execute(f"COPY t {way} '{tmp_path}/x.csv'")
            assert caught.value.condition == "FILES_NOT_ALLOWED"
