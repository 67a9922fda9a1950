"""A disk that fills up, other processes and other formats: a clear error, nothing lost, and it goes on afterwards."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys

import pytest

import watersmeet
from watersmeet.store.layout import Layout
from watersmeet.system import files

#: Calls of the system that can find no space.
WRITES = ("open", "write", "writev", "fsync", "link", "mkdir")


class FullDisk:
    """A stand-in for the module `os`: from the call `at` on there is no space, until `freed`."""

    def __init__(self, at):
        self.left = at
        self.freed = False

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in WRITES:
            return real

        def call(*args, **kwargs):
            harmless = (name == "open" and not (len(args) > 1 and args[1] & (os.O_WRONLY | os.O_RDWR))) or (
                name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            )
            if not harmless and not self.freed:
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call


@pytest.fixture
def full_disk(monkeypatch):
    """Makes the disk full after so many writes; gives what frees it."""

    def full_disk(at):
        disk = FullDisk(at)
        monkeypatch.setattr(files, "os", disk)
        return disk

    return full_disk


def answer(connection):
    return sorted(connection.execute("SELECT k, n FROM v").fetchall(), key=str)


def truth(connection):
    sql = "SELECT t.k, count(s.a) AS n FROM t LEFT JOIN s_content s ON t.k = s.a GROUP BY t.k"
    return sorted(connection.execute(sql).fetchall(), key=str)


STATEMENTS = (
    "INSERT INTO t VALUES (7), (8)",
    "UPDATE t SET k = k + 1 WHERE k >= 7",
    "BEGIN; INSERT INTO t VALUES (20); DELETE FROM t WHERE k = 1; COMMIT",
    "CREATE MATERIALIZED VIEW w AS SELECT k FROM t",
    "DROP MATERIALIZED VIEW w",
    "FLUSH",
)


@pytest.mark.parametrize("at", [0, 3, 11, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 6, 20))])
def test_a_full_disk_loses_nothing_and_doubles_nothing(tmp_path, full_disk, at):
    inputs = tmp_path / "in"
    inputs.mkdir()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute("CREATE TABLE t (k int)")
        connection.execute(
            f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{inputs}', format = 'json', settle_ms = 0)"
        )
        connection.execute("CREATE MATERIALIZED VIEW s_content AS SELECT a FROM s")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT t.k, count(s.a) AS n FROM t LEFT JOIN s ON t.k = s.a GROUP BY t.k"
        )
        connection.execute("INSERT INTO t VALUES (1), (2); FLUSH")
        failures = 0
        for number, statement in enumerate(STATEMENTS):
            (inputs / f"{number}.json").write_text('{"a": 1}\n{"a": 7}\nnonsense\n')
            before = connection.execute("SELECT k FROM t").fetchall()
            disk = full_disk(at)
            try:
                connection.execute(statement)
                done = True
            except watersmeet.Error as err:
                done = False
                failures += 1
                assert err.condition == "DISK_FULL", err
                assert "no space left" in err.message
                assert err.hint
            answer(connection)  # can be read while the disk is full
            disk.freed = True
            connection.rollback()
            if not done:
                if statement != "FLUSH":
                    assert connection.execute("SELECT k FROM t").fetchall() == before, "all or nothing"
                connection.execute(statement)
            connection.execute("FLUSH")
            assert answer(connection) == truth(connection)
            assert len(connection.execute("SHOW DEAD LETTERS").fetchall()) == number + 1
        assert failures
        end = answer(connection)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as again:
        again.execute("FLUSH")
        assert answer(again) == end == truth(again)
        assert len(again.execute("SELECT a FROM s_content").fetchall()) == 2 * len(STATEMENTS)


def test_a_full_disk_at_the_start(tmp_path, full_disk):
    disk = full_disk(2)
    with pytest.raises(watersmeet.OperationalError) as found:
        watersmeet.connect(tmp_path / "db", runtime="inprocess")
    assert found.value.condition == "DISK_FULL"
    disk.freed = True
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")


SECOND = """
import sys, watersmeet
try:
    watersmeet.connect(sys.argv[1], runtime="inprocess")
except watersmeet.Error as err:
    print(err)
"""


@pytest.mark.slow
def test_a_second_process_that_would_write_is_refused(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", SECOND, str(tmp_path / "db")],
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        assert done.stdout.startswith("error[DATABASE_IN_USE] 55006: the database at ")
        assert f"process {os.getpid()}" in done.stdout
        assert "watersmeet query" in done.stdout
        connection.execute("INSERT INTO t VALUES (1)")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", SECOND, str(tmp_path / "db")],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout == "", "the lock goes with the process that had it"


def test_a_flipped_bit_of_the_format_is_never_another_version(tmp_path):
    layout = Layout(tmp_path / "db")
    written, damaged = (tmp_path / "db" / "FORMAT").read_bytes(), 0
    for bit in range(8 * len(written)):
        data = bytearray(written)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "db" / "FORMAT").write_bytes(data)
        try:
            assert Layout(tmp_path / "db", create=False).id == layout.id
        except watersmeet.Error as problem:
            assert problem.condition == "DATABASE_DAMAGED", data
            damaged += 1
    assert damaged > 6 * len(written)


def newer_database(path):
    value = json.loads((path / "FORMAT").read_text())
    (path / "FORMAT").write_text(json.dumps({"format": value["format"] + 1}))


def newer_plan(path):
    layout = Layout(path, create=False)
    [plan] = [p for p in layout.plans.iterdir() if p.name.startswith("m")]
    value = layout.unseal(plan)
    value["state_format"] += 1
    plan.write_bytes(layout.seal(plan, value))


@pytest.mark.parametrize(
    ("change", "condition", "words"),
    [
        (newer_database, "DATABASE_FORMAT", "newer than format"),
        (newer_plan, "STATE_MISMATCH", "state format"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused_and_nothing_is_touched(tmp_path, change, condition, words, read_only):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        connection.execute("INSERT INTO t VALUES (1); FLUSH")
    change(path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}
    if read_only and change is newer_plan:
        with watersmeet.connect(path, read_only=True) as reader:
            assert reader.execute("SELECT a FROM v").fetchall() == [(1,)], "content does not depend on plans"
        return
    with pytest.raises(watersmeet.Error) as found:
        watersmeet.connect(path, runtime="inprocess", read_only=read_only)
    assert found.value.condition == condition
    assert words in found.value.message
    assert found.value.hint.startswith("Use the release")
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"} == before
