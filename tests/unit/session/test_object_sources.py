"""Sources of objects, with a real server of S3's protocol."""

from __future__ import annotations

import gzip
import io
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet
from watersmeet.connectors.files import reading
from watersmeet.errors import Error
from watersmeet.objectstores.base import StoreProblem


@pytest.fixture
def cursor(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection.cursor()


def rows(cursor, query="SELECT * FROM v ORDER BY 1, 2"):
    cursor.execute("FLUSH")
    cursor.execute(query)
    return cursor.fetchall()


def create(cursor, bucket, more="", form="CSV (without_header = 'true')", options=None):
    given = options or bucket.options
    cursor.execute(
        f"CREATE SOURCE s (a int, b varchar) WITH (connector = 's3', {given}{more}) FORMAT PLAIN ENCODE {form}"
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")


def parquet(first, count, group=10):
    sink = io.BytesIO()
    numbers = range(first, first + count)
    table = pa.table({"a": pa.array(numbers, pa.int32()), "b": [f"r{i}" for i in numbers]})
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


def test_new_objects_come_once(cursor, bucket):
    bucket.put("in/1.csv", "1,one\n2,two\n")
    bucket.put("in/deep/er/2.csv", "3,three")
    bucket.put("other/1.csv", "9,not meant\n")
    bucket.put("in/_temporary/x.csv", "8,not meant\n")
    bucket.put("in/.hidden.csv", "8,not meant\n")
    create(cursor, bucket, ", match_pattern = 'in/*.csv'")
    assert rows(cursor) == [(1, "one"), (2, "two"), (3, "three")]
    bucket.put("in/3.csv", "4,four\n")
    bucket.put("in/4.txt", "9,not meant\n")
    assert rows(cursor) == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
    cursor.execute("SHOW SOURCES")
    assert [row[:3] for row in cursor.fetchall()] == [("s", "running", None)]
    # What is created later reads all objects once more.
    cursor.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM s")
    assert rows(cursor, "SELECT n FROM n") == [(4,)]


@pytest.mark.parametrize(
    ("name", "form", "content"),
    [
        ("x.json", "JSON", b'{"a": 1, "b": "r1"}\n{"a": 2, "b": "r2"}'),
        ("x.csv", "CSV (without_header = 'false')", b"b,a\nr1,1\nr2,2\n"),
        ("x.csv.gz", "CSV (without_header = 'true')", gzip.compress(b"1,r1\n2,r2\n", mtime=0)),
        ("x.parquet", "PARQUET", parquet(1, 2, group=1)),
    ],
)
def test_formats(cursor, bucket, name, form, content):
    bucket.put(name, content)
    create(cursor, bucket, form=form)
    assert rows(cursor) == [(1, "r1"), (2, "r2")]


def test_include_file_and_offset(cursor, bucket):
    bucket.put("in/1.csv", "1,one\n2,two\n")
    bucket.put("in/2.csv", "3,three\n")
    cursor.execute(
        f"CREATE SOURCE s (a int, b varchar) INCLUDE file AS f INCLUDE offset WITH (connector = 's3', "
        f"{bucket.options}, match_pattern = 'in/*.csv') FORMAT PLAIN ENCODE CSV (without_header = 'true')"
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT a, f, _rw_s3_offset FROM s")
    assert rows(cursor) == [(1, "in/1.csv", "0"), (2, "in/1.csv", "6"), (3, "in/2.csv", "0")]


def test_large_objects_are_cut_into_slices(cursor, bucket, monkeypatch):
    monkeypatch.setattr("watersmeet.connectors.files.cutting.SLICE_BYTES", 1000)
    monkeypatch.setattr("watersmeet.objectstores.stores.BLOCK_BYTES", 777)
    bucket.put("x.csv", "".join(f"{i},row {i}\n" for i in range(2000)))
    bucket.put("y.parquet", parquet(0, 2000))
    create(cursor, bucket, ", match_pattern = '*.csv'")
    assert rows(cursor, "SELECT count(*), sum(a), count(DISTINCT b) FROM v") == [(2000, 1999000, 2000)]
    cursor.execute(
        f"CREATE TABLE t (a int, b varchar) WITH (connector = 's3', {bucket.options}, match_pattern = '*.parquet') "
        "FORMAT PLAIN ENCODE PARQUET"
    )
    assert rows(cursor, "SELECT count(*), sum(a), count(DISTINCT b) FROM t") == [(2000, 1999000, 2000)]


def test_a_url_is_a_path(cursor, bucket):
    for name in ("d/1.csv", "d/2.csv", "d/deep/3.csv"):
        bucket.put(name, f"{name[-5]},{name}\n")
    where = ", ".join(o for o in bucket.options.split(", ") if "bucket_name" not in o)
    for i, (path, found) in enumerate(
        [("d/", [1, 2]), ("d/*.csv", [1, 2]), ("d/**/*.csv", [1, 2, 3]), ("d/2.csv", [2]), ("", [1, 2, 3])]
    ):
        cursor.execute(
            f"CREATE TABLE t{i} (a int, b varchar) "
            f"WITH (connector = 'file', path = 's3://{bucket.name}/{path}', {where}) "
            "FORMAT PLAIN ENCODE CSV (without_header = 'true')"
        )
        assert [a for (a,) in rows(cursor, f"SELECT a FROM t{i} ORDER BY a")] == found, path


def test_a_replaced_object_is_not_read_again_and_is_named(cursor, bucket):
    bucket.put("x.csv", "1,one\n")
    bucket.put("y.csv", "5,five\n")
    create(cursor, bucket)
    assert rows(cursor) == [(1, "one"), (5, "five")]
    bucket.put("x.csv", "2,two\n3,three\n")
    bucket.put("y.csv", "6,four\n")  # as long, and maybe in the same second
    assert rows(cursor) == [(1, "one"), (5, "five")]
    cursor.execute("SHOW ERRORS")
    assert sorted((kind, file) for _, kind, file, *_ in cursor.fetchall()) == [
        ("replaced", "x.csv"),
        ("replaced", "y.csv"),
    ]


def test_an_object_that_is_replaced_before_it_is_read_gives_what_it_is_then(cursor, bucket):
    create(cursor, bucket)
    bucket.put("x.csv", "1,one\n")
    bucket.put("x.csv", "2,two\n3,three\n")
    bucket.put("y.csv", "4,four\n")
    bucket.delete("y.csv")
    assert rows(cursor) == [(2, "two"), (3, "three")]


def test_reopened_databases_go_on(tmp_path, bucket):
    for i in range(3):
        bucket.put(f"{i}.csv", f"{i},x\n")
        with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
            cursor = connection.cursor()
            if not i:
                create(cursor, bucket)
            assert rows(cursor) == [(n, "x") for n in range(i + 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("s3.region_name = 'r'", "connector s3 needs the option s3.bucket_name"),
        ("s3.bucket_name = 'b'", "connector s3 needs credentials, from one place"),
        ("s3.bucket_name = 'b', s3.credentials.access = 'x'", "needs the option s3.credentials.secret, too"),
        ("s3.bucket_name = 'b', anonymous = 'true', nothing = '1'", 'connector s3 has no option "nothing"'),
        ("s3.bucket_name = 'b', anonymous = 'true', refresh.interval.sec = '0'", "It must be 1 or more"),
    ],
)
def test_wrong_options_are_refused(cursor, bucket, options, message):
    with pytest.raises(Error) as problem:
        create(cursor, bucket, options=options)
    assert problem.value.condition == "CONNECTOR_OPTION"
    assert message in str(problem.value)


def test_a_missing_bucket_and_a_server_that_is_away_are_refused(cursor, own_bucket):
    missing = own_bucket.options.replace(own_bucket.name, "no-such-bucket")
    with pytest.raises(Error, match='there is no bucket "no-such-bucket"') as problem:
        create(cursor, own_bucket, options=missing)
    assert problem.value.condition == "CONNECTOR_OPTION"
    own_bucket.server.kill()
    with pytest.raises(Error, match="can't be reached") as problem:
        create(cursor, own_bucket)
    assert problem.value.condition == "RUNTIME_UNAVAILABLE"


def test_wrong_credentials_are_refused_and_secrets_are_never_shown(cursor, own_bucket):
    access, secret = own_bucket.server.require_credentials()
    options = own_bucket.options.replace(own_bucket.keys[0], access)
    with pytest.raises(Error, match="is refused") as problem:
        create(cursor, own_bucket, options=options)
    assert problem.value.condition == "CONNECTOR_OPTION"
    assert own_bucket.keys[1] not in str(problem.value).split("WITH (")[0]
    cursor.execute(f"CREATE SECRET k WITH (backend = 'meta') AS '{secret}'")
    create(cursor, own_bucket, options=options.replace(f"'{own_bucket.keys[1]}'", "SECRET k"))
    assert rows(cursor) == []
    shown = []
    for statement in ("SHOW SOURCES", "SHOW CREATE SOURCE s", "SHOW ERRORS", "EXPLAIN SELECT * FROM v"):
        cursor.execute(statement)
        shown.append(str(cursor.fetchall()))
    assert secret not in "".join(shown)


def test_a_server_that_goes_away_is_waited_for_and_others_go_on(cursor, own_bucket, monkeypatch):
    monkeypatch.setattr("watersmeet.connectors.base.sources._WAIT_S", 1)
    own_bucket.put("1.csv", "1,one\n")
    create(cursor, own_bucket, ", refresh.interval.sec = '1'")
    cursor.execute("CREATE TABLE t (a int PRIMARY KEY)")
    cursor.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
    assert rows(cursor) == [(1, "one")]
    own_bucket.server.pause()
    try:
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute("FLUSH")
        assert ['source "s" was not waited for, as it is waiting' in n for n in cursor.notices] == [True]
        cursor.execute("SELECT n FROM n")
        assert cursor.fetchall() == [(1,)]
        cursor.execute("SHOW SOURCES")
        ((_, state, why, *_),) = cursor.fetchall()
        assert state == "waiting"
        assert "does not answer" in why or "can't be reached" in why
    finally:
        own_bucket.server.resume()
    own_bucket.put("2.csv", "2,two\n")
    end = time.monotonic() + 60
    while rows(cursor) != [(1, "one"), (2, "two")]:
        assert time.monotonic() < end
        time.sleep(0.1)
    cursor.execute("SHOW SOURCES")
    assert cursor.fetchall()[0][1:3] == ("running", None)


def test_what_fails_between_listing_and_reading_is_planned_again(cursor, bucket, monkeypatch):
    """The store gives an object to the one who cuts it, and not to the one who reads it."""
    real, failures = reading._read, []

    def read(file, *arguments):
        if len(failures) < 2:
            failures.append(StoreProblem("the store stumbled", passes=True))
            file.problem = failures[-1]
            raise failures[-1]
        return real(file, *arguments)

    monkeypatch.setattr(reading, "_read", read)
    for i in range(3):
        bucket.put(f"{i}.csv", f"{i},x\n")
    create(cursor, bucket, ", refresh.interval.sec = '1'")
    for _ in range(2):
        cursor.execute("FLUSH")
        [notice] = cursor.notices
        assert "waiting: a source can't be read for now: the store stumbled" in notice
    assert rows(cursor) == [(0, "x"), (1, "x"), (2, "x")]
    cursor.execute("SHOW ERRORS")
    assert cursor.fetchall() == []


def test_a_query_reads_the_present_objects(cursor, bucket):
    bucket.put("in/1.csv", "1,one\n2,two\n")
    cursor.execute(
        f"CREATE SOURCE s (a int, b varchar) WITH (connector = 's3', {bucket.options})"
        " FORMAT PLAIN ENCODE CSV (without_header = 'true')"
    )
    assert rows(cursor, "SELECT * FROM s ORDER BY 1") == [(1, "one"), (2, "two")]
    bucket.put("in/2.csv", "3,three\n")
    assert rows(cursor, "SELECT count(*), sum(a) FROM s") == [(3, 6)]
