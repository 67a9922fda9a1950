"""Whose the files of a database are."""

from __future__ import annotations

import json
import os
import stat

import pytest
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app


@pytest.fixture(params=[0o000, 0o027])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def make(path, folder, **options):
    """A database with everything that is written: dead letters, what sources remember, notes, snapshots."""
    folder.mkdir()
    (folder / "a.json").write_text('{"a": 1}\nnot json\n' + json.dumps({"a": 2}) + "\n")
    with watersmeet.connect(path, runtime="inprocess", parallelism=1, **options) as connection:
        connection.execute(
            "ALTER SYSTEM SET retention = 0;"
            f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{folder}', format = 'json');"
            "CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT s.a FROM s JOIN t ON s.a = t.a;"
            "INSERT INTO t VALUES (1), (2); FLUSH"
        )
        assert connection.execute("SHOW DEAD LETTERS").fetchall()
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (3); FLUSH")
        connection._session.database._compactor.run()
        with watersmeet.connect(path, read_only=True) as reader:
            assert len(reader.execute("SELECT * FROM v").fetchall()) == 2
            return modes(path)


def modes(path):
    """By name, the rights of the database's directory and of everything in it."""
    return {str(p.relative_to(path)): stat.S_IMODE(p.stat().st_mode) for p in (path, *path.rglob("*"))}


def kinds(found, path):
    return {mode for name, mode in found.items() if not (path / name).is_dir()}, {
        mode for name, mode in found.items() if (path / name).is_dir()
    }


def test_a_database_is_its_users_alone(tmp_path, umask):
    found = make(tmp_path / "db", tmp_path / "in")
    for folder in ("commits", "segments", "snapshots", "plans", "catalog", "low-water", "sources", "readers", "dead/s"):
        assert any(name.startswith(folder) and not (tmp_path / "db" / name).is_dir() for name in found), folder
    assert kinds(found, tmp_path / "db") == ({0o600}, {0o700})


def test_an_empty_directory_becomes_private(tmp_path, umask):
    (tmp_path / "db").mkdir(mode=0o755)
    assert kinds(make(tmp_path / "db", tmp_path / "in"), tmp_path / "db") == ({0o600}, {0o700})


def test_the_umask_decides_if_asked_to(tmp_path, umask):
    found = make(tmp_path / "db", tmp_path / "in", file_permissions="umask")
    assert kinds(found, tmp_path / "db") == ({0o666 & ~umask}, {0o777 & ~umask})


def test_an_old_database_keeps_its_rights(tmp_path, umask):
    watersmeet.connect(tmp_path / "db", runtime="inprocess").close()
    assert kinds(make(tmp_path / "db", tmp_path / "in", file_permissions="umask"), tmp_path / "db")[0] == {0o600}


def test_the_command_line_has_it(tmp_path):
    script = tmp_path / "a.sql"
    script.write_text("CREATE TABLE t (a int);")
    before = os.umask(0o027)
    try:
        for word, mode in (("private", 0o700), ("umask", 0o750)):
            path = tmp_path / word
            command = ["run", str(script), "--path", str(path), "--runtime", "inprocess", "--file-permissions", word]
            assert CliRunner().invoke(app, command).exit_code == 0
            assert modes(path)["."] == mode
    finally:
        os.umask(before)


def test_an_unknown_word_is_refused(tmp_path):
    with pytest.raises(watersmeet.Error, match='unknown file_permissions "all"'):
        watersmeet.connect(tmp_path / "db", runtime="inprocess", file_permissions="all")
    assert not (tmp_path / "db").exists()
