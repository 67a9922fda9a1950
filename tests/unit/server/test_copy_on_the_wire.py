"""COPY … TO STDOUT and COPY … FROM STDIN."""

from __future__ import annotations

import psycopg
import pytest

SHOP = """
CREATE TABLE t (id int PRIMARY KEY, name varchar, n numeric(10, 2), b bytea, a int[]);
INSERT INTO t VALUES (1, 'plain', 1.5, '\\x00ff', ARRAY[1, 2]),
                     (2, E'tab\\tline\\nback\\\\slash, "quote"', NULL, NULL, NULL),
                     (3, '', 0, '', ARRAY[]::int[]), (4, NULL, NULL, NULL, NULL), (5, '\\N', NULL, NULL, NULL);
CREATE TABLE u (id int PRIMARY KEY, name varchar, n numeric(10, 2), b bytea, a int[]);
FLUSH;
"""

TEXT = (
    "1\tplain\t1.50\t\\\\x00ff\t{1,2}\n"
    '2\ttab\\tline\\nback\\\\slash, "quote"\t\\N\t\\N\t\\N\n'
    "3\t\t0.00\t\\\\x\t{}\n"
    "4\t\\N\t\\N\t\\N\t\\N\n"
    "5\t\\\\N\t\\N\t\\N\t\\N\n"
)
CSV = (
    'id,name,n,b,a\n1,plain,1.50,\\x00ff,"{1,2}"\n2,"tab\tline\nback\\slash, ""quote""",,,\n'
    '3,"",0.00,\\x,{}\n4,,,,\n5,\\N,,,\n'
)


def copied_out(client, statement) -> str:
    with client.cursor().copy(statement) as copy:
        return b"".join(copy).decode()


@pytest.fixture
def client(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        yield client


def test_text_and_csv_as_postgresql_writes_them(client):
    assert copied_out(client, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT") == TEXT
    assert copied_out(client, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT (FORMAT csv, HEADER)") == CSV
    assert copied_out(client, "COPY (SELECT id, a FROM t WHERE id = 1) TO STDOUT WITH CSV DELIMITER ';'") == "1;{1,2}\n"
    assert sorted(copied_out(client, "COPY t (id) TO STDOUT").split()) == list("12345")
    with client.cursor().copy("COPY t (id) TO STDOUT") as copy:
        assert sorted(row for (row,) in copy.rows()) == list("12345")


def test_binary(client):
    cursor = client.cursor()
    with cursor.copy("COPY (SELECT id, name, n FROM t ORDER BY id) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "varchar", "numeric"])
        rows = list(copy.rows())
    assert rows == client.execute("SELECT id, name, n FROM t ORDER BY id").fetchall()
    empty = copied_out_bytes(client, "COPY (SELECT id FROM t WHERE id > 9) TO STDOUT BINARY")
    assert empty == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"


def copied_out_bytes(client, statement) -> bytes:
    with client.cursor().copy(statement) as copy:
        return b"".join(copy)


@pytest.mark.parametrize(("options", "data"), [("", TEXT), ("(FORMAT csv, HEADER true)", CSV)])
def test_what_went_out_comes_in_again(client, options, data):
    cursor = client.cursor()
    with cursor.copy(f"COPY u FROM STDIN {options}") as copy:
        for start in range(0, len(data), 7):
            copy.write(data[start : start + 7])
    assert cursor.statusmessage == "COPY 5"
    client.execute("FLUSH")
    every = "SELECT * FROM {} ORDER BY id"
    assert client.execute(every.format("u")).fetchall() == client.execute(every.format("t")).fetchall()


def test_rows_of_python(client):
    with client.cursor().copy("COPY u (name, id) FROM STDIN") as copy:
        for i in range(1000):
            copy.write_row((f"n\t{i}", i))
    client.execute("FLUSH")
    assert client.execute("SELECT name FROM u WHERE id = 999").fetchone() == ("n\t999",)
    assert client.execute("SELECT count(*) FROM u").fetchone() == (1000,)


def test_a_copy_that_fails_leaves_nothing(client):
    for data, failure in (
        ("1\ta\n", psycopg.errors.BadCopyFileFormat),
        ("x\ta\t\\N\t\\N\t\\N\n", psycopg.errors.InvalidTextRepresentation),
    ):
        with pytest.raises(failure), client.cursor().copy("COPY u FROM STDIN") as copy:
            copy.write(data)
    with pytest.raises(ValueError, match="enough"), client.cursor().copy("COPY u FROM STDIN") as copy:
        copy.write("1\t")
        raise ValueError("enough")
    client.execute("FLUSH")
    assert client.execute("SELECT * FROM u").fetchall() == []
    for statement, failure in (
        ("COPY u FROM STDIN (FORMAT binary)", psycopg.errors.FeatureNotSupported),
        ("COPY u TO STDOUT (FORMAT xml)", psycopg.errors.InvalidParameterValue),
        ("COPY nothing TO STDOUT", psycopg.errors.UndefinedTable),
        ("COPY (SELECT 1) TO STDOUT (FORCE_QUOTE *)", psycopg.Error),
        ("COPY u TO '/tmp/somewhere'", psycopg.errors.InsufficientPrivilege),
    ):
        with pytest.raises(failure):
            client.execute(statement)
    assert client.execute("SELECT 1").fetchone() == (1,)
