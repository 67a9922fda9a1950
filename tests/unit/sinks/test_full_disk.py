"""A file that the system has no room for: sinks wait with the reason, COPY fails and leaves nothing; then they go on.

The limit of a file's size stands in for a full disk: the system refuses the write itself.
"""

from __future__ import annotations

import resource

import duckdb
import pytest
from tests.waiting import until

import watersmeet
from watersmeet.errors import Error
from watersmeet.sinkwriters import writers

LIMIT_BYTES = 50_000
FORMATS = ("csv", "json", "parquet")


@pytest.fixture
def room():
    """room(bytes): no file gets larger; None: any may again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room(size_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size_bytes is None else size_bytes, hard))

    yield room
    room(None)


def content(paths):
    return sorted(duckdb.sql(f"SELECT k, v FROM '{path}'").fetchall() for path in paths)


@pytest.mark.parametrize("kind", FORMATS)
def test_copy_leaves_nothing_of_a_file_without_room(tmp_path, room, kind):
    path = tmp_path / "out" / f"rows.{kind}"
    path.parent.mkdir()
    path.write_text("of before")
    copy = f"COPY (SELECT i AS k, md5(i::varchar) AS v FROM generate_series(1, 20000) g(i)) TO '{path}'"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        room(LIMIT_BYTES)
        with pytest.raises(Error) as caught:
            connection.execute(copy)
        assert caught.value.condition == "DISK_FULL"
        assert path.name in caught.value.message
        assert str(path.parent) in caught.value.detail
        assert [p.name for p in path.parent.iterdir()] == [path.name]
        assert path.read_text() == "of before"
        room(None)
        assert connection.execute(copy).rowcount == 20000
    assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall() == [(20000,)]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_sink_waits_for_room_and_loses_nothing(tmp_path, room, shown, settle, monkeypatch, kind):
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.05)
    folder = tmp_path / "out"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (k int, v varchar) APPEND ONLY")
        connection.execute("INSERT INTO t SELECT i, md5(i::varchar) FROM generate_series(1, 5000) g(i)")
        connection.flush()
        room(LIMIT_BYTES)
        connection.execute(
            f"CREATE SINK s FROM t WITH (connector = 'file', path = '{folder}', type = 'append-only') "
            f"FORMAT PLAIN ENCODE {kind}"
        )
        said = []
        until(lambda: said.append(shown(connection)["s"]) or said[-1]["state"] == "retrying")
        assert f"{folder} can't be written: File too large" in said[-1]["detail"]
        connection.execute("INSERT INTO t VALUES (0, 'meanwhile')")
        connection.flush()
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(5001,)]
        assert list(folder.glob(f"*.{kind}")) == []
        room(None)
        settle(connection)
        until(lambda: shown(connection)["s"]["state"] == "running")  # it says so a moment later
        found = [r for rows in content(folder.glob(f"**/*.{kind}")) for r in rows]
        assert sorted(found) == sorted(connection.execute("SELECT k, v FROM t").fetchall())
