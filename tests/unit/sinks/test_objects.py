"""A bucket as a target: rows are there once, whatever happens when. Against a real server of S3's protocol."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import textwrap
import time

import pyarrow.parquet as pq
import pytest
from tests.thorough import mostly_slow
from tests.unit.sinks.batches import TWO, additions, batch
from tests.unit.sinks.test_files import delivery

import watersmeet
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import SinkOffset
from watersmeet.connectors.objects import ObjectTarget
from watersmeet.errors import Error
from watersmeet.objectstores.base import StoreProblem
from watersmeet.objectstores.stores import CloudStore
from watersmeet.system import process

POINTS = ("objects.looked", "objects.fenced", "objects.one written", "objects.written", "objects.committed")


@pytest.fixture(autouse=True)
def no_hook():
    yield
    process.set_hook(None)


def options_of(bucket):
    return {
        "connector": "s3",
        "s3.bucket_name": bucket.name,
        "s3.path": "out",
        "s3.region_name": "us-east-1",
        "s3.endpoint_url": bucket.server.url,
        "s3.credentials.access": bucket.keys[0],
        "s3.credentials.secret": bucket.keys[1],
    }


def target(bucket, database="db", **more):
    made = delivery("", TWO, **more)
    own = {n: v for n, v in made.connector.items() if n not in ("connector", "path")}
    object.__setattr__(made, "connector", {**options_of(bucket), **own})
    return ObjectTarget(made, database)


def seen(bucket):
    return [n.removeprefix("out/") for n in bucket.names("out/") if "/.watersmeet/" not in n]


def content(bucket, names=None):
    names = seen(bucket) if names is None else names
    tables = [pq.read_table(io.BytesIO(bucket.get(f"out/{name}"))) for name in names]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def delivered(bucket):
    """The objects that the log names, which is what readers go by that come while something is written."""
    logs = [json.loads(bucket.get(n)) for n in bucket.names("out/.watersmeet/log/")]
    return sorted({name for entry in logs for name in entry["objects"]})


def test_rows_of_commits_are_objects_in_their_order(bucket):
    sink = target(bucket)
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"), (2, "b"), diff=[1, 2])])
    sink.deliver([batch(4, (3, "c")), batch(5, (4, "d"), part=0, last=False), batch(5, (5, "e"), part=1)])
    sink.deliver([batch(4, (3, "c")), batch(6), batch(7, (6, "f"))])
    assert content(bucket) == [(1, "a"), (2, "b"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, "f")]
    assert seen(bucket)[:2] == [
        "s1-00000001-000000000003-000000000000-0.parquet",
        "s1-00000001-000000000004-000000000000-0.parquet",
    ]
    assert delivered(bucket) == seen(bucket)
    sink.close()
    assert target(bucket).open(1) == SinkOffset(1, 7, 0, last=True)


def test_an_upsert_sink_says_what_became_of_keys_and_partitions_are_directories(bucket):
    sink = target(bucket, rows="upsert", partition_by="name", max_row_count="1")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "a"), (3, "b/c"))])
    sink.deliver([batch(4, (2, "a"), (1, "a"), (1, "x"), diff=[-1, -1, 1])])
    assert content(bucket) == [(1, "a", 1, 3), (1, "x", 3, 4), (2, "a", 1, 3), (2, "a", 2, 4), (3, "b/c", 1, 3)]
    stem = "s1-00000001-000000000003-000000000000"
    assert [name for name in seen(bucket) if stem in name] == [
        f"name=a/{stem}-0.parquet",
        f"name=a/{stem}-1.parquet",
        f"name=b%2Fc/{stem}-2.parquet",
    ]


def test_an_answer_that_is_lost_is_no_other_writer(bucket, monkeypatch):
    """The library tries again after an answer that did not come: its second attempt finds the name taken."""
    real = CloudStore.create

    def twice(self, name, data):
        return real(self, name, data) and real(self, name, data)

    monkeypatch.setattr(CloudStore, "create", twice)
    sink = target(bucket)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    sink.deliver([batch(4, (2, "b"))])
    assert content(bucket) == [(1, "a"), (2, "b")]
    assert target(bucket).open(1) == SinkOffset(1, 4)


def test_each_request_may_fail(bucket, monkeypatch):
    r = random.Random(7)

    def failing(name):
        real = getattr(CloudStore, name)

        def call(self, *arguments):
            before = r.random()
            if before < 0.1:
                raise StoreProblem("it stumbled", passes=True)
            found = real(self, *arguments)
            if before < 0.2:
                raise StoreProblem("its answer was lost", passes=True)
            return found

        return call

    for name in ("create", "get", "stat", "delete", "list"):
        monkeypatch.setattr(CloudStore, name, failing(name))
    wanted = [p for p, _ in additions(3)]
    sink, offset, left, tries = target(bucket), None, None, 0
    while left is None or left:
        tries += 1
        try:
            if left is None:
                offset = sink.open(1)
                left = [p for p in wanted if offset is None or p.offset > offset]
            sink.deliver(left[:2])
            left = left[2:]
        except Unavailable:
            left = None
    monkeypatch.undo()
    assert tries > len(wanted)
    assert [row[0] for row in content(bucket)] == [i for p in wanted for i in p.rows["id"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("point", mostly_slow(POINTS, 3))
def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(bucket, point):
    code = textwrap.dedent(f"""
        import os, signal
        from scripts.servers.s3 import S3
        from tests.servers import Bucket
        from tests.unit.sinks.test_objects import batch, process, target

        process.set_hook(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == {point!r} else None)
        sink = target(Bucket(S3({bucket.server.port}), {bucket.name!r}), partition_by="name")
        sink.open(1)
        sink.deliver([batch(3, (1, "a"), (2, "b"))])
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    sink = target(bucket, partition_by="name")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "b"))])
    assert content(bucket) == [(1, "a"), (2, "b")]


def sink_state(cursor):
    cursor.execute("SHOW SINKS")
    ((row),) = cursor.fetchall()
    return dict(zip((c[0] for c in cursor.description), row, strict=True))


def wait_for(cursor, reached):
    end = time.monotonic() + 60
    while not reached(found := sink_state(cursor)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def create(cursor, bucket, more=""):
    cursor.execute(
        f"CREATE SINK k FROM t WITH (connector = 's3', {bucket.options}, s3.path = 'out', type = 'upsert'{more}) "
        "FORMAT UPSERT ENCODE PARQUET"
    )


def test_a_sink_delivers_while_the_store_comes_and_goes(tmp_path, own_bucket):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar)")
        cursor.execute("INSERT INTO t VALUES (1, 'a')")
        create(cursor, own_bucket)
        wait_for(cursor, lambda s: s["state"] == "running" and not s["commits_behind"])
        own_bucket.server.pause()
        try:
            cursor.execute("INSERT INTO t VALUES (2, 'b')")
        finally:
            own_bucket.server.resume()
        cursor.execute("DELETE FROM t WHERE id = 1")
        wait_for(cursor, lambda s: s["state"] == "running" and not s["commits_behind"])
        assert [row[:3] for row in content(own_bucket)] == [(1, "a", 1), (1, "a", 2), (2, "b", 1)]
        own_bucket.server.kill()
        cursor.execute("INSERT INTO t VALUES (3, 'c')")
        found = wait_for(cursor, lambda s: s["state"] == "retrying")
        assert "can't be reached" in found["detail"]
        assert own_bucket.keys[1] not in str(found)


def test_wrong_credentials_and_a_missing_bucket_are_refused(tmp_path, own_bucket):
    own_bucket.server.require_credentials()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar)")
        with pytest.raises(Error, match="access to bucket") as problem:
            create(cursor, own_bucket)
        assert problem.value.condition == "CONNECTOR_OPTION"
        with pytest.raises(Error, match='connector s3 of sinks has no option "nothing"'):
            create(cursor, own_bucket, ", nothing = '1'")


@pytest.mark.parametrize("store", ["bucket", "container"])
def test_what_a_sink_writes_a_source_reads(tmp_path, request, store):
    there = request.getfixturevalue(store)
    scheme, connector = {"bucket": ("s3", "s3"), "container": ("az", "azblob")}[store]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id int, name varchar) APPEND ONLY")
        cursor.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
        where = ", ".join(o for o in there.options.split(", ") if f"'{there.name}'" not in o)
        cursor.execute(
            f"CREATE SINK k FROM t WITH (connector = 'file', path = '{scheme}://{there.name}/out', {where}) "
            "FORMAT PLAIN ENCODE JSON"
        )
        wait_for(cursor, lambda s: s["state"] == "running" and not s["commits_behind"])
        cursor.execute(
            f"CREATE TABLE u (id int, name varchar) WITH (connector = '{connector}', {there.options}, "
            "match_pattern = 'out/*') FORMAT PLAIN ENCODE JSON"
        )
        cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM u ORDER BY id")
        assert cursor.fetchall() == [(1, "a"), (2, None)]
