"""Databases at URLs, on a server of S3's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.servers import Bucket
from tests.unit.session.test_overtaken_writers import SETUP, show

import watersmeet


def connect(url, **options):
    return watersmeet.connect(url, runtime="inprocess", **options)


def filled(url):
    with connect(url, parallelism=2) as connection:
        for _ in connection.execute_script(SETUP):
            pass


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall())


def test_a_database_goes_on_where_it_was(any_url):
    with connect(any_url, parallelism=2) as connection:
        connection.execute("CREATE TABLE a (k int PRIMARY KEY, x int)")
        connection.execute("CREATE TABLE b (k int, y int)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a.k, x, y FROM a JOIN b ON a.k = b.k")
        connection.execute("INSERT INTO a VALUES (1, 10), (2, 20)")
        connection.execute("INSERT INTO b VALUES (1, 100), (2, 200), (2, 201)")
        connection.flush()
        assert rows(connection, "SELECT * FROM v") == [(1, 10, 100), (2, 20, 200), (2, 20, 201)]
    with connect(any_url) as connection:
        connection.execute("DELETE FROM a WHERE k = 2")
        connection.flush()
        connection._session.database._compactor.run()
        connection.execute("INSERT INTO b VALUES (1, 101)")
        connection.flush()
        assert rows(connection, "SELECT * FROM v") == [(1, 10, 100), (1, 10, 101)]
    with connect(any_url, read_only=True) as connection:
        assert rows(connection, "SELECT * FROM v") == [(1, 10, 100), (1, 10, 101)]


def test_a_database_that_was_closed_leaves_nothing_open(database_url):
    def mine():
        """The folders of this process, as it keeps a file in each of them locked."""
        opened = (os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd"))
        return {os.path.dirname(f) for f in opened if "watersmeet-local-" in f}

    before = mine()
    with connect(database_url) as connection:
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a; FLUSH")
        connection._session.database._compactor.clean_up_first()  # which looks for files of earlier writers
        (folder,) = mine() - before
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)
    assert mine() == before


def test_nothing_is_needed_but_the_store(database_url, tmp_path, monkeypatch):
    """Another machine has no copies."""
    filled(database_url)
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "another"))
    with connect(database_url) as connection:
        connection.execute("INSERT INTO t VALUES ('second')")
        connection.flush()
        assert rows(connection, "SELECT * FROM v") == [("first", 1), ("second", 1)]


@pytest.mark.slow
def test_the_command_reads_while_another_process_writes(database_url):
    with connect(database_url, parallelism=2) as connection:
        for _ in connection.execute_script(SETUP):
            pass
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "watersmeet",
                "query",
                "SELECT a, n FROM v",
                "--path",
                database_url,
                "--json",
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == {"a": "first", "n": 1}


@pytest.mark.slow
def test_the_command_runs_scripts(database_url, tmp_path):
    (tmp_path / "a.sql").write_text(SETUP)
    command = [
        sys.executable,
        "-m",
        "watersmeet",
        "run",
        "--path",
        database_url,
        "--runtime",
        "inprocess",
        "--once",
    ]
    for script in ([str(tmp_path / "a.sql")], []):
        done = subprocess.run(
            [*command, "--runtime", "inprocess", *script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr
    assert show(database_url) == ({"first"}, {"t"})


def test_files_that_could_not_be_read_are_set_aside(database_url, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1\nx\n3\n")
    create = (
        f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}/in') "
        "FORMAT PLAIN ENCODE CSV (header = 'false')"
    )
    with connect(database_url, parallelism=1) as connection:
        connection.execute(create)
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM s")
        connection.flush()
        assert rows(connection, "SELECT a FROM v") == [(1,), (3,)]
    (tmp_path / "in" / "b.csv").write_text("4\n")
    with connect(database_url) as connection:
        connection.flush()
        assert rows(connection, "SELECT a FROM v") == [(1,), (3,), (4,)]
        errors = connection.execute("SHOW ERRORS").fetchall()
        assert len(errors) == 1


def test_secrets_are_in_the_store(any_url):
    with connect(any_url, parallelism=1) as connection:
        connection.execute("CREATE SECRET pw WITH (backend = 'meta') AS 'abc'")
    with connect(any_url) as connection:
        assert "pw" in str(connection.execute("SHOW SECRETS").fetchall())
        connection.execute("DROP SECRET pw")
        assert connection.execute("SHOW SECRETS").fetchall() == []


def test_who_opens_last_writes(any_url):
    filled(any_url)
    first = connect(any_url)
    second = connect(any_url)
    with pytest.raises(watersmeet.Error) as refusal:
        first.execute("INSERT INTO t VALUES ('late')")
    assert refusal.value.condition == "WRITER_FENCED"
    assert f"was taken over by process {os.getpid()}" in refusal.value.message
    second.execute("INSERT INTO t VALUES ('second')")
    second.flush()
    first.close()
    second.close()
    assert show(any_url)[0] == {"first", "second"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://no-such-bucket-here/db", 'there is no bucket "no-such-bucket-here"'),
    ],
)
def test_a_bucket_that_is_not_there(database_url, url, message):
    with pytest.raises(watersmeet.Error) as refused:
        connect(url)
    assert refused.value.condition == "DATABASE_ACCESS"
    assert refused.value.message.startswith(message)


def test_a_key_that_the_store_does_not_know(own_bucket: Bucket, monkeypatch, tmp_path):
    keys = own_bucket.server.require_credentials()
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in own_bucket.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(watersmeet.Error) as refused:
        connect(f"s3://{own_bucket.name}/db")
    assert refused.value.condition == "DATABASE_ACCESS"
    assert refused.value.message.startswith(f'access to bucket "{own_bucket.name}"')
    del keys


def test_a_place_that_holds_something_else(bucket: Bucket, database_url):
    bucket.put("some/db/file.txt", b"x")
    for read_only in (False, True):
        with pytest.raises(watersmeet.Error, match="is not empty and holds no Watersmeet database"):
            connect(database_url, read_only=read_only)
    bucket.put("some/dbx", b"another")
    with connect(f"{database_url}2", parallelism=1):
        pass
    with pytest.raises(watersmeet.Error, match="there is no Watersmeet database at s3://"):
        connect(f"{database_url}3", read_only=True)
