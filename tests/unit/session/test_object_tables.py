"""Timeplus' external tables of type s3, with a real server of S3's protocol.

Timeplus, "S3 External Table".
"""

from __future__ import annotations

import gzip
import io
import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.objectstores.base import StoreProblem
from watersmeet.objectstores.stores import CloudStore
from watersmeet.sinkwriters.writers import SinkWriters


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as found:
        yield found


def rows(connection, sql="SELECT * FROM t"):
    return sorted(connection.execute(sql).fetchall(), key=str)


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


def parquet(first, count, group=10):
    sink = io.BytesIO()
    numbers = range(first, first + count)
    table = pa.table({"id": pa.array(numbers, pa.int32()), "name": [f"r{i}" for i in numbers]})
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


def delivered(connection):
    """Everything that views have written is there."""
    database = connection._session.database
    for relation in database.catalog.relations.values():
        assert database.service(SinkWriters).wait(relation.id, 60)


def create(connection, bucket, more, columns="id int, name nullable(string)"):
    connection.execute(f"CREATE EXTERNAL TABLE t({columns}) SETTINGS {bucket.settings}, {more}")


@pytest.mark.parametrize(
    ("name", "more", "content"),
    [
        ("x.json", "", b'{"id": 1, "name": "r1"}\n{"id": 2, "name": "r2"}'),
        ("x.ndjson", "", b'{"id": 1, "name": "r1"}\n{"id": 2, "name": "r2"}'),
        ("x", ", data_format='JSONEachRow'", b'{"name": "r1", "id": 1}\n{"id": 2, "name": "r2"}'),
        ("x.csv", "", b"1,r1\n2,r2\n"),
        ("x.csv", ", data_format='CSVWithNames'", b"name,id\nr1,1\nr2,2\n"),
        ("x.tsv.gz", ", compression_method='gzip'", gzip.compress(b"1\tr1\n2\tr2\n", mtime=0)),
        ("x.parquet", "", parquet(1, 2, group=1)),
    ],
)
def test_formats(connection, bucket, name, more, content):
    bucket.put(f"in/{name}", content)
    bucket.put(f"in/{name}.old", b"not meant")
    create(connection, bucket, f"read_from='in/{name}'{more}")
    assert rows(connection) == [(1, "r1"), (2, "r2")]


PATTERNS = {
    "a/*.json": ["a/1.json", "a/22.json", "a/333.json"],
    "a/?.json": ["a/1.json"],
    "a/{1,333}.json": ["a/1.json", "a/333.json"],
    "a/{2..400}.json": ["a/22.json", "a/333.json"],
    "{a,b/c}/{01..30}*.json": ["a/22.json", "b/c/017.json"],
    "**/017.json": ["b/c/017.json", "b/c/d/017.json"],
    "b/**.json": ["b/c/017.json", "b/c/d/017.json", "b/c/x.json"],
    "*/x.json": ["d[1]/x.json"],
    "d[1]/x.json": ["d[1]/x.json"],
    "d[1]/*.json": ["d[1]/x.json"],
    "e/*.json": [],
}


def test_patterns_and_where_rows_are_from(connection, bucket):
    for name in ("a/1", "a/22", "a/333", "b/c/017", "b/c/d/017", "b/c/x", "d[1]/x", "a/_1", "a/.2"):
        bucket.put(f"{name}.json", json.dumps({"id": 1}))
    for pattern, meant in PATTERNS.items():
        create(connection, bucket, f"read_from='{pattern}'", "_path string, id int, _file string")
        assert rows(connection) == [(name, 1, name.rpartition("/")[2]) for name in meant], pattern
        connection.execute("DROP STREAM t")


def test_each_query_sees_the_objects_that_are_there(connection, bucket):
    bucket.put("in/1.parquet", parquet(1, 3, group=2))
    create(connection, bucket, "read_from='in/*.parquet'")
    connection.execute("CREATE STREAM s(id int)")
    connection.execute("CREATE MATERIALIZED VIEW still AS SELECT s.id AS id, name FROM s JOIN t ON s.id = t.id")
    bucket.put("in/2.parquet", parquet(4, 2))
    assert rows(connection, "SELECT count(*), sum(id) FROM t") == [(5, 15)]
    bucket.put("in/1.parquet", parquet(7, 1))
    bucket.delete("in/2.parquet")
    assert rows(connection, "SELECT name FROM t WHERE id > 3") == [("r7",)]
    connection.execute("INSERT INTO s(id) VALUES (1), (7); FLUSH")
    assert rows(connection, "SELECT id, name FROM table(still)") == [(1, "r1")]  # it stands still
    asked = [line for (line,) in connection.execute("EXPLAIN SELECT name FROM t").fetchall() if "sends" in line]
    bucket.delete("in/1.parquet")
    assert asked == ['External { table: "t", sends: columns name of in/*.parquet }']
    assert rows(connection) == []


def test_a_bad_record_and_a_store_that_is_away_are_errors(connection, own_bucket):
    own_bucket.put("x.json", '{"id": 1}\n{"id": "many"}\n')
    found = refused(connection, f"CREATE EXTERNAL TABLE t(id int) SETTINGS {own_bucket.settings}, read_from='x.json'")
    assert (found.condition, found.detail) == ("INVALID_VALUE", 'It is in x.json, line 2. It says: {"id": "many"}')
    own_bucket.put("x.json", '{"id": 1}')
    create(connection, own_bucket, "read_from='x.json'", "id int")
    own_bucket.server.kill()
    found = refused(connection, "SELECT * FROM t")
    assert (found.condition, "can't be reached" in found.message) == ("RUNTIME_UNAVAILABLE", True)
    assert "RUNTIME_UNAVAILABLE" in str(rows(connection, "SHOW ERRORS"))


def test_a_part_that_can_not_be_read_is_never_left_out(connection, bucket, monkeypatch):
    """What is listed and then not given is an error, and no smaller table."""
    bucket.put("1.csv", "1,a\n")
    bucket.put("2.csv", "2,b\n")
    create(connection, bucket, "read_from='*.csv'")
    given = CloudStore.range

    def fails(self, name, *more):
        if name == "2.csv":
            raise StoreProblem("the bucket says no", passes=True)
        return given(self, name, *more)

    bucket.put("2.csv", "2,d\n")
    bucket.put("3.csv", "3,c\n")
    monkeypatch.setattr(CloudStore, "range", fails)
    found = refused(connection, "SELECT * FROM t")
    assert (found.condition, found.detail) == ("RUNTIME_UNAVAILABLE", "the bucket says no")
    monkeypatch.undo()
    assert rows(connection) == [(1, "a"), (2, "d"), (3, "c")]


KINDS = (
    "i int, n nullable(int64), d decimal(30, 5), f float64, s string, b bool, t datetime64(6), day date, l array(int)"
)
FIRST = "(1, 9007199254740993, 123456789012345678901234.12345, 0.1, 'a\"b,\nc', true, '2024-02-29 23:59:59.123456', "
VALUES = (
    f"{FIRST}'1969-12-31', [1, 2])",
    "(2, NULL, -0.00001, -1.5e10, '', false, '1900-01-01 00:00:00', '2100-01-01', [])",
)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("data.json", ""),
        ("data.csv", ""),
        pytest.param("data.csv", "CSVWithNames", marks=pytest.mark.slow),
        ("data.tsv", "TSVWithNames"),
        ("data.parquet", ""),
        pytest.param("data", "JSONEachRow", marks=pytest.mark.slow),
    ],
)
def test_what_is_written_is_read_again(connection, bucket, name, form):
    columns = KINDS if form or "parquet" in name or "json" in name else KINDS.replace(", l array(int)", "")
    values = [v if columns is KINDS else v.replace(", [1, 2])", ")").replace(", [])", ")") for v in VALUES]
    more = f", data_format='{form}'" if form else ""
    create(connection, bucket, f"write_to='out/{name}'{more}", columns)
    assert rows(connection) == []
    connection.execute("CREATE STREAM s(" + columns + ")")
    listed = ", ".join(c.split()[0] for c in columns.replace("(30, 5)", "").split(", "))
    connection.execute(f"CREATE MATERIALIZED VIEW v INTO t AS SELECT {listed} FROM s")
    connection.execute(f"INSERT INTO s({listed}) VALUES {values[0]}; FLUSH")
    connection.execute(f"INSERT INTO t VALUES {values[1]}")
    delivered(connection)
    assert rows(connection, f"SELECT {listed} FROM t") == rows(
        connection, f"SELECT {listed} FROM table(s) UNION ALL SELECT {listed} FROM t WHERE i = 2"
    )
    names = [n for n in bucket.names("out/") if ".watersmeet" not in n]
    stem, _, ending = name.partition(".")
    assert len(names) == 2
    assert all(n.startswith(f"out/{stem}.") and (not ending or n.endswith(f".{ending}")) for n in names)


def test_two_views_and_statements_write_one_directory_and_a_restart_delivers_nothing_twice(tmp_path, bucket):
    def connect():
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")

    with connect() as connection:
        create(connection, bucket, "write_to='out/data.json', read_from='out/*.json'", "id int, name string")
        connection.execute("CREATE STREAM s(id int)")
        for name in ("a", "b"):
            connection.execute(f"CREATE MATERIALIZED VIEW {name} INTO t AS SELECT id, '{name}' AS name FROM s")
        connection.execute("INSERT INTO s(id) VALUES (1), (2); INSERT INTO t(id) VALUES (7); FLUSH")
        delivered(connection)
    with connect() as connection:
        connection.execute("INSERT INTO s(id) VALUES (3); FLUSH")
        delivered(connection)
        expected = sorted([(i, n) for i in (1, 2, 3) for n in "ab"] + [(7, "")])
        assert rows(connection) == expected
    texts = [bucket.get(n).decode() for n in bucket.names("out/") if ".watersmeet" not in n]
    assert sorted((r["id"], r["name"]) for t in texts for r in map(json.loads, t.splitlines())) == expected


@pytest.mark.parametrize(
    ("more", "condition", "words"),
    [
        ("", "CONNECTOR_OPTION", "needs the setting read_from"),
        ("read_from='x'", "CONNECTOR_OPTION", "data_format is needed"),
        ("read_from='x.csv', data_format='RawBLOB'", "CONNECTOR_OPTION", 'format "RawBLOB"'),
        ("read_from='x.csv', region='a', pace='b'", "CONNECTOR_OPTION", '"pace"'),
        ("read_from='{1..100000}.csv'", "CONNECTOR_OPTION", "{1..100000}"),
        ("read_from='x.csv', compression_method='zstd'", "CONNECTOR_OPTION", "zstd"),
        ("read_from='x.csv', compression_method='gzip'", "FEATURE_NOT_SUPPORTED", "compression_method = 'gzip'"),
        ("write_to='x.csv.gz'", "FEATURE_NOT_SUPPORTED", "gzip"),
        ("write_to='x.avro'", "FEATURE_NOT_SUPPORTED", "Avro"),
        ("write_to='{_partition_id}/x.csv'", "FEATURE_NOT_SUPPORTED", "{_partition_id}"),
        ("write_to='*/x.csv'", "CONNECTOR_OPTION", "write_to"),
    ],
)
def test_settings_that_are_refused(connection, more, condition, words):
    where = "bucket='b', access_key_id='k', secret_access_key='s'"
    found = refused(connection, f"CREATE EXTERNAL TABLE t(id int) SETTINGS type='s3', {where}, {more}".rstrip(", "))
    assert (found.condition, words in found.message) == (condition, True), found.message


def test_where_the_bucket_is(connection, bucket):
    settings = bucket.settings.replace(f"bucket='{bucket.name}', ", "").replace(
        bucket.server.url, f"{bucket.server.url}/{bucket.name}"
    )
    bucket.put("x.csv", "1,a\n")
    connection.execute(f"CREATE EXTERNAL TABLE t(id int, name string) SETTINGS {settings}, read_from='x.csv'")
    assert rows(connection) == [(1, "a")]
    found = refused(
        connection,
        "CREATE EXTERNAL TABLE u(id int) SETTINGS "
        + bucket.settings.replace(bucket.name, "no")
        + ", read_from='x.csv'",
    )
    assert (found.condition, '"no"' in found.message) == ("CONNECTOR_OPTION", True)


def test_keys_are_never_shown(connection, bucket):
    secret = bucket.keys[1]
    create(connection, bucket, "read_from='x.csv', write_to='y/x.csv'")
    ((_, text),) = connection.execute("SHOW CREATE TABLE t").fetchall()
    assert ("'[HIDDEN]'" in text, secret in text) == (True, False)
    connection.execute(
        f"CREATE NAMED COLLECTION c AS {bucket.settings.replace(chr(44) + ' ', ', ').partition(', ')[2]}"
    )
    connection.execute("CREATE EXTERNAL TABLE u(id int) SETTINGS type='s3', named_collection='c', read_from='x.csv'")
    assert secret not in repr(connection._session.database.catalog.relations)


def test_settings_in_a_file_and_the_right_to_files(tmp_path, connection, bucket):
    bucket.put("x.csv", "1,a\n")
    config = tmp_path / "s3.properties"
    config.write_text(f"access_key_id={bucket.keys[0]}\nsecret_access_key={bucket.keys[1]}\n")
    settings = f"type='s3', bucket='{bucket.name}', endpoint='{bucket.server.url}', region='x', config_file='{config}'"
    connection.execute(f"CREATE EXTERNAL TABLE t(id int, name string) SETTINGS {settings}, read_from='x.csv'")
    config.unlink()  # it is read once
    assert rows(connection) == [(1, "a")]
    with watersmeet.connect(tmp_path / "other", "timeplus", runtime="inprocess", allow_files=False) as other:
        environment = settings.replace(f"config_file='{config}'", "use_environment_credentials=true")
        for refused_settings in (settings, environment):
            found = refused(other, f"CREATE EXTERNAL TABLE t(id int) SETTINGS {refused_settings}, read_from='x.csv'")
            assert found.condition == "FILES_NOT_ALLOWED"


def test_insert_only_where_something_is_written(connection, bucket):
    create(connection, bucket, "read_from='x.csv'")
    assert refused(connection, "INSERT INTO t VALUES (1, 'a')").condition == "READ_ONLY_RELATION"
    connection.execute("CREATE STREAM s(id int)")
    assert "t" in refused(connection, "CREATE MATERIALIZED VIEW v INTO t AS SELECT id FROM s").message
    connection.execute(f"CREATE EXTERNAL TABLE w(id int, name string) SETTINGS {bucket.settings}, write_to='w/x.csv'")
    found = refused(connection, "CREATE MATERIALIZED VIEW v INTO w AS SELECT id FROM s")
    assert found.condition == "FEATURE_NOT_SUPPORTED"
    connection.execute(f"CREATE EXTERNAL TABLE j(id int, name string) SETTINGS {bucket.settings}, write_to='j/x.json'")
    assert (
        refused(connection, "CREATE MATERIALIZED VIEW v INTO j AS SELECT id FROM s").condition == "NOT_NULL_VIOLATION"
    )


def test_duckdb_reads_what_was_written(connection, bucket, tmp_path):
    create(connection, bucket, "write_to='p/data.parquet'")
    connection.execute("INSERT INTO t VALUES (1, 'one'), (2, NULL)")
    (name,) = bucket.names("p/")
    (tmp_path / "x.parquet").write_bytes(bucket.get(name))
    assert duckdb.sql(f"SELECT * FROM '{tmp_path}/x.parquet' ORDER BY id").fetchall() == [(1, "one"), (2, None)]
