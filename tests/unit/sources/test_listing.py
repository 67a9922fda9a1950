"""Entries of a directory that are not as one would wish: each is named, none keeps the others from being read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.unit.sources.helpers import T0, Driver, S, file_source, put

from watersmeet.connectors.files import listing
from watersmeet.connectors.files.listing import open_file
from watersmeet.connectors.files.seen import SeenFiles


def unreadable(driver: Driver) -> dict[str, str]:
    return dict(driver.source.status()["unreadable"])


@pytest.mark.parametrize("recursive", ["true", "false"])
def test_links_in_a_circle_are_named_and_the_files_beside_them_read(tmp_path: Path, recursive: str) -> None:
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    (tmp_path / "itself.csv").symlink_to("itself.csv")
    (tmp_path / "there.csv").symlink_to("back.csv")
    (tmp_path / "back.csv").symlink_to("there.csv")
    (tmp_path / "up").symlink_to(".")
    driver = Driver(file_source(tmp_path, recursive=recursive))
    assert driver.all() == [(1, "x")]
    circle = "Too many levels of symbolic links"
    up = {"up": "a link to a directory that is read under another name"} if recursive == "true" else {}
    assert unreadable(driver) == {"itself.csv": circle, "there.csv": circle, "back.csv": circle} | up
    assert driver.source.status()["problem"] is None
    put(tmp_path / "later.csv", "a,b\n2,y\n")
    assert driver.all() == [(2, "y")]
    (tmp_path / "itself.csv").unlink()
    driver.all()
    assert "itself.csv" not in unreadable(driver)


def test_a_directory_is_read_once_by_whatever_ways_it_can_be_reached(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / f"{name}.csv", f"a,b\n1,{name}\n")
    for name in ("a", "b", "c"):
        for other in ("a", "b", "c"):
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    driver = Driver(file_source(tmp_path, recursive="true"))
    assert driver.all() == [(1, "a"), (1, "b"), (1, "c")]
    assert {s.path for s in driver.slices} == {"a/a.csv", "b/b.csv", "c/c.csv"}
    assert len(unreadable(driver)) == 9


def test_deep_directories(tmp_path: Path) -> None:
    where = tmp_path
    for _ in range(300):
        where = where / "d"
        where.mkdir()
    put(where / "a.csv", "a,b\n1,x\n")
    assert Driver(file_source(tmp_path, recursive="true")).all() == [(1, "x")]


def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "nothing.csv").symlink_to("missing.csv")
    (tmp_path / "directory.csv").mkdir()
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.csv")
        put(tmp_path / "a.csv", "a,b\n1,x\n")
        driver = Driver(file_source(tmp_path))
        assert driver.all() == [(1, "x")]
        assert unreadable(driver) == {
            "directory.csv": "a directory: recursive = 'true' reads what is in it",
            "nothing.csv": "a link to nothing",
            "pipe.csv": "not a regular file",
            "socket.csv": "not a regular file",
        }
    only = Driver(file_source(tmp_path, match_pattern="a*.csv"))
    only.all()
    assert unreadable(only) == {}, "what is not asked for is nobody's problem"


@pytest.mark.parametrize("what", ["pipe", "directory"])
def test_a_file_whose_name_is_something_else_when_it_is_read_is_set_aside(tmp_path: Path, what: str) -> None:
    source = file_source(tmp_path)
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2,y\n")
    poll = source.poll(None, 100, 1000, T0, fresh=True)
    file.unlink()
    (os.mkfifo if what == "pipe" else os.mkdir)(file)
    driver = Driver(source)
    assert driver.read(poll.slices) == []
    assert [(d["file"], d["reason"], d["rows"]) for d in driver.dead] == [
        ("a.csv", "unreadable: not a regular file", 2)
    ]
    with pytest.raises(OSError, match="not a regular file"):
        open_file(str(tmp_path), "a.csv")


def test_a_directory_that_may_not_be_listed_keeps_what_was_known_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "a.csv", f"a,b\n1,{name}\n2,{name}\n")
    driver = Driver(file_source(tmp_path, recursive="true"), budget_rows=1)
    rows = driver.once()
    original = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", refusing)
    put(tmp_path / "open" / "b.csv", "a,b\n3,new\n", T0)
    rows += driver.all()
    assert unreadable(driver) == {"closed": "Permission denied"}
    monkeypatch.undo()
    rows += driver.all()
    assert sorted(rows) == [(1, "closed"), (1, "open"), (2, "closed"), (2, "open"), (3, "new")]
    assert (driver.dead, unreadable(driver)) == ([], {})


def test_a_file_that_may_not_be_read_any_more_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = file_source(tmp_path)
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    poll = source.poll(None, 100, 1000, T0, fresh=True)

    def refusing(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listing.os, "open", refusing)
    driver = Driver(source)
    assert driver.read(poll.slices) == []
    assert driver.dead[0]["reason"] == "unreadable: Permission denied"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_names_that_are_no_text(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "in"
    root.mkdir()
    name = os.fsdecode(b"caf\xe9." + kind.encode())
    content = {"csv": "a,b\n1,x\nbad,y\n", "json": '{"a": 1, "b": "x"}\n{"a": "bad"}\n'}[kind]
    put(root / name, content)
    (root / os.fsdecode(b"\xff.csv")).symlink_to("nothing")
    driver = Driver(file_source(root, format=kind))
    assert driver.all() == [(1, "x")]
    assert driver.dead[0]["file"] == rf"caf\xe9.{kind}"
    status = driver.source.status()
    assert status["unreadable"] == [[r"\xff.csv", "a link to nothing"]]
    saved = tmp_path / "seen.json"
    driver.source.save(saved)
    assert list(SeenFiles.load(saved).files) == [name]
    again = Driver(file_source(root, format=kind))
    again.source.load(saved)
    again.position = driver.position
    assert again.all() == []
    assert again.history() == [(1, "x")]
    (root / name).unlink()
    put(root / name, content[:-5], T0 + S)
    again.all()
    assert again.source.status()["replaced"] == [rf"caf\xe9.{kind}"]


def test_a_look_that_only_follows_growth_is_not_stopped_by_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a.csv", "a,b\n1,x\n", T0 - S)
    put(tmp_path / "b.csv", "a,b\n2,x\n", T0 - S)
    os.utime(tmp_path, ns=((T0 - S) * 1000,) * 2)
    driver = Driver(file_source(tmp_path))
    driver.all()
    put(tmp_path / "b.csv", "3,y\n", T0 + S, append=True)
    original = os.stat

    def refusing(path: object, **more: object) -> os.stat_result:
        if str(path).endswith("a.csv"):
            raise PermissionError(13, "Permission denied")
        return original(path, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", refusing)
    assert driver.once(T0 + S, fresh=False) == [(3, "y")]
