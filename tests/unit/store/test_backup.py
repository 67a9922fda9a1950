"""A copy of a database opens, and has the content of one commit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app
from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.store import backup
from watersmeet.store.backup import copy_database

SCRIPT = """
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, w int);
CREATE SOURCE s (id int) WITH (connector = 'file', path = '{folder}', format = 'json', settle_ms = 0);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a LEFT JOIN b ON a.id = b.id;
CREATE MATERIALIZED VIEW c AS SELECT s.id, a.v FROM s JOIN a ON s.id = a.id;
INSERT INTO a SELECT x, 0 FROM generate_series(0, 99) AS t(x);
"""


@pytest.fixture
def written(tmp_path):
    """A database with a writer. Each of its transactions adds one row to `b` and changes all rows of `a` alike."""
    (tmp_path / "in").mkdir()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        list(connection.execute_script(SCRIPT.format(folder=tmp_path / "in"), transaction=True))

        def write(number):
            (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}}}\n')
            connection.execute(f"BEGIN; UPDATE a SET v = {number}; INSERT INTO b VALUES ({number}, {number}); COMMIT")
            connection.execute("FLUSH")

        yield tmp_path / "db", write


def check(copy, folder=None):
    """The transaction up to which a copy has everything: it is one moment, and goes on."""
    with watersmeet.connect(copy, runtime="inprocess") as connection:

        def ask(sql):
            return connection.execute(sql).fetchall()

        (values,) = ask("SELECT min(v), max(v), count(*) FROM a")
        assert values[0] == values[1]
        assert values[2] == 100
        number = values[0]
        assert ask("SELECT id, w FROM b ORDER BY id") == [(i, i) for i in range(1, number + 1)]
        assert ask("SELECT DISTINCT v FROM j") == [(number,)]
        assert ask("SELECT w FROM j WHERE w IS NOT NULL ORDER BY w") == [(i,) for i in range(1, number + 1)]
        connection.execute("INSERT INTO a VALUES (1000, 7); FLUSH")
        assert ask("SELECT v FROM j WHERE id = 1000") == [(7,)], "its state is whole"
        files = len(os.listdir(folder)) if folder is not None else 0
        assert ask("SELECT count(*), count(DISTINCT id) FROM c") == [(files, files)], "each file is read once"
        return number


def test_a_copy_beside_a_writer_has_one_commit(written, tmp_path):
    db, write = written
    stop = threading.Event()

    def writing():
        number = 0
        while not stop.is_set() and number < 99:
            number += 1
            write(number)

    writer = threading.Thread(target=writing)
    writer.start()
    try:
        for number in range(3):
            copy_database(db, tmp_path / f"copy{number}")
    finally:
        stop.set()
        writer.join()
    found = [check(tmp_path / f"copy{number}", tmp_path / "in") for number in range(3)]
    assert found == sorted(found)


@pytest.mark.parametrize("moment", range(12))
def test_the_writer_may_commit_between_any_two_files(written, tmp_path, monkeypatch, moment):
    """It commits often enough that it deletes the state of the commit which is copied."""
    db, write = written
    write(1)
    read, reads, written_rows = storage.read_file, [], [1]

    def reading(path):
        reads.append(path)
        if len(reads) % 12 == moment and written_rows[0] < 30:
            written_rows[0] += 1
            write(written_rows[0])
        return read(path)

    with monkeypatch.context() as planted:
        planted.setattr(backup.storage, "read_file", reading, raising=True)
        planted.setattr(backup, "storage", backup.storage)
        copy_database(db, tmp_path / "copy")
    assert 1 <= check(tmp_path / "copy", tmp_path / "in") <= written_rows[0]


KILLED = """
import os, sys
from watersmeet.store import backup
copy, left = backup.Copy._copy, [int(sys.argv[3])]

def dying(self, name, **options):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    copy(self, name, **options)

backup.Copy._copy = dying
backup.copy_database(*sys.argv[1:3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 8])
def test_a_killed_copy_is_no_database_and_harms_none(written, tmp_path, files):
    db, write = written
    write(1)
    command = [sys.executable, "-c", KILLED, str(db), str(tmp_path / "copy"), str(files)]
    killed = subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert killed.returncode == -9
    for options in ({}, {"read_only": True}):
        with pytest.raises(Error) as refused:
            watersmeet.connect(tmp_path / "copy", runtime="inprocess", **options)
        assert refused.value.condition == "DATABASE_FORMAT"
    with pytest.raises(Error, match="is not empty"):
        copy_database(db, tmp_path / "copy")
    write(2)
    copy_database(db, tmp_path / "second")
    assert check(tmp_path / "second", tmp_path / "in") == 2


def test_targets(written, tmp_path):
    db, write = written
    write(1)
    call = CliRunner().invoke
    (tmp_path / "empty").mkdir()
    done = call(app, ["backup", str(db), str(tmp_path / "empty")])
    assert (done.exit_code, done.stdout.startswith(f"{tmp_path / 'empty'} has commit ")) == (0, True)
    with watersmeet.connect(tmp_path / "empty", read_only=True) as connection:
        assert connection.execute("SELECT id FROM b").fetchall() == [(1,)]
    assert check(tmp_path / "empty", tmp_path / "in") == 1
    for source, target, problem in (
        (db, tmp_path / "empty", "is not empty"),
        (db, db / "copy", "is inside the database"),
        (tmp_path / "nowhere", tmp_path / "other", "there is no Watersmeet database"),
    ):
        refused = call(app, ["backup", str(source), str(target)])
        assert refused.exit_code == 1
        assert problem in refused.stderr
        assert not (tmp_path / "other").exists()


@pytest.mark.objectstores
def test_from_a_store_into_a_store_and_a_directory(database_url, tmp_path):
    with watersmeet.connect(database_url, runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        connection.execute("INSERT INTO t VALUES (1); FLUSH")
        copy_database(database_url, f"{database_url}-copy")
    copy_database(f"{database_url}-copy", tmp_path / "copy")
    for copy in (f"{database_url}-copy", tmp_path / "copy"):
        with contextlib.closing(watersmeet.connect(copy, runtime="inprocess")) as connection:
            assert connection.execute("SELECT * FROM v").fetchall() == [(1,)]
            connection.execute("INSERT INTO t VALUES (2); FLUSH")
            assert connection.execute("SELECT count(*) FROM v").fetchall() == [(2,)]
