"""A file under a new name is the same file; a copy, and a new file with the inode of an old one, are others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.unit.sources.helpers import T0, Driver, S, file_source, put, stored

from watersmeet.connectors.files import listing as identity

BOTH = pytest.mark.parametrize("identity", ["inode", "content"])
LONG = "a,b\n" + "".join(f"{i},{'x' * 90}\n" for i in range(100))
"""More than is needed to know a file again that has grown."""


def status(driver: Driver) -> tuple[int, int, int]:
    found = driver.source.status()
    return found["renamed_files"], found["replaced_files"], found["vanished_files"]


def numbers(rows: list[tuple[object, ...]]) -> list[object]:
    return [row[0] for row in rows]


@BOTH
def test_a_renamed_file_is_not_read_again_and_followed_under_its_new_name(tmp_path: Path, identity: str) -> None:
    driver = Driver(file_source(tmp_path, path_identity=identity))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    assert driver.all() == [(1, "x")]
    file.rename(tmp_path / "b.csv")
    assert driver.all() == []
    assert (status(driver), driver.dead) == ((1, 0, 0), [])
    put(tmp_path / "b.csv", "2,y\n", T0, append=True)
    assert driver.all() == [(2, "y")]
    assert driver.history() == [(1, "x"), (2, "y")]
    assert (driver.dead, driver.source.status()["history_lost"]) == ([], [])


def test_by_path_alone_a_renamed_file_is_another_one(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, path_identity="path"))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    file.rename(tmp_path / "b.csv")
    assert driver.all() == [(1, "x")]


@BOTH
def test_a_copy_is_another_file(tmp_path: Path, identity: str) -> None:
    driver = Driver(file_source(tmp_path, path_identity=identity))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    shutil.copy2(file, tmp_path / "b.csv")
    assert driver.all() == [(1, "x")]
    assert status(driver) == (0, 0, 0)


@BOTH
def test_a_new_file_with_the_number_of_a_deleted_one_is_read(tmp_path: Path, identity: str) -> None:
    driver = Driver(file_source(tmp_path, path_identity=identity))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    # Written in place and renamed: what a file system does that gives the number of a deleted file to the next one.
    file.rename(tmp_path / "b.csv")
    put(tmp_path / "b.csv", "a,b\n1,x\n", T0)
    assert driver.all() == [(1, "x")]
    (tmp_path / "b.csv").rename(tmp_path / "c.csv")
    put(tmp_path / "c.csv", "a,b\n1,x\n2,y\n", T0 + S)
    assert driver.all() == [(1, "x"), (2, "y")]
    assert status(driver)[0] == 0


@pytest.mark.parametrize(("rows", "is_new"), [(55, True), (99, False)])
def test_how_much_must_have_been_read_to_know_a_file_that_grew(tmp_path: Path, rows: int, is_new: bool) -> None:
    driver = Driver(file_source(tmp_path))
    text = "".join(LONG.splitlines(keepends=True)[: rows + 1])
    file = put(tmp_path / "a.csv", text)
    assert len(driver.all()) == rows
    file.rename(tmp_path / "b.csv")
    put(tmp_path / "b.csv", "7,more\n", T0, append=True)
    assert len(driver.all()) == (rows + 1 if is_new else 1)
    assert (4096 < len(text) < identity.EVIDENCE_BYTES) == is_new


def test_logs_that_are_turned_while_they_grow(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "log.1", LONG.replace("x", "y"), T0 - 90 * S)
    put(tmp_path / "log", LONG, T0 - 60 * S)
    assert len(driver.all()) == 200
    (tmp_path / "log.1").rename(tmp_path / "log.2")
    (tmp_path / "log").rename(tmp_path / "log.1")
    put(tmp_path / "log.1", "100,last\n", T0, append=True)
    put(tmp_path / "log", "a,b\n200,new\n", T0)
    assert driver.all() == [(200, "new"), (100, "last")]
    assert status(driver) == (2, 0, 0)
    assert len(driver.history()) == 202


@BOTH
def test_files_that_change_names_with_each_other(tmp_path: Path, identity: str) -> None:
    driver = Driver(file_source(tmp_path, path_identity=identity))
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    put(tmp_path / "b.csv", "a,b\n2,y\n", T0 - 50 * S)
    rows = driver.all()
    (tmp_path / "a.csv").rename(tmp_path / "c")
    (tmp_path / "b.csv").rename(tmp_path / "a.csv")
    (tmp_path / "c").rename(tmp_path / "b.csv")
    assert driver.all() == []
    assert status(driver) == (2, 0, 0)
    put(tmp_path / "a.csv", "3,z\n", T0, append=True)
    assert driver.all() == [(3, "z")]
    assert sorted(driver.history()) == sorted([*rows, (3, "z")])


@BOTH
def test_a_file_moved_to_another_directory_of_the_source(tmp_path: Path, identity: str) -> None:
    for name in ("in", "done"):
        (tmp_path / name).mkdir()
    driver = Driver(file_source(tmp_path, recursive="true", path_identity=identity))
    put(tmp_path / "in" / "a.csv", "a,b\n1,x\n")
    put(tmp_path / "in" / "b.csv", "a,b\n2,x\n")
    put(tmp_path / "done" / "b.csv", "a,b\n3,x\n")
    driver.all()
    (tmp_path / "in").rename(tmp_path / "away")
    assert driver.all() == []
    assert status(driver) == (2, 0, 0)
    (tmp_path / "away" / "b.csv").rename(tmp_path / "done" / "b.csv")
    assert driver.all() == []
    assert status(driver) == (2, 1, 0), "its old content is gone: the name was another file's"


def test_a_file_that_is_half_read_goes_on_under_its_new_name(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path), budget_rows=1)
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    assert driver.once() == [(1, "x")]
    file.rename(tmp_path / "b.csv")
    assert driver.all() == [(2, "y"), (3, "z")]
    assert (status(driver), driver.dead) == ((1, 0, 0), [])


@BOTH
def test_a_file_renamed_between_poll_and_read_is_read_once(tmp_path: Path, identity: str) -> None:
    driver = Driver(file_source(tmp_path, path_identity=identity))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    poll = driver.source.poll(None, 100, 1000, T0, fresh=True)
    file.rename(tmp_path / "b.csv")
    assert driver.read(poll.slices) == [(1, "x")]
    driver.source.accept(poll.slices)
    driver.position = poll.position
    assert driver.all() == []
    assert (status(driver), driver.dead) == ((1, 0, 0), [])


@BOTH
def test_renamed_while_nobody_looked(tmp_path: Path, identity: str) -> None:
    root = tmp_path / "in"
    root.mkdir()
    driver = Driver(file_source(root, path_identity=identity))
    file = put(root / "a.csv", "a,b\n1,x\n")
    driver.all()
    driver.source.save(tmp_path / "seen.json")
    file.rename(root / "b.csv")
    again = Driver(file_source(root, path_identity=identity))
    again.source.load(tmp_path / "seen.json")
    again.position = driver.position
    assert again.all() == []
    again.source.save(tmp_path / "seen.json")
    third = file_source(root, path_identity=identity)
    third.load(tmp_path / "seen.json")
    assert third.status()["renamed_files"] == 1
    replayed = file_source(root, path_identity=identity)
    replayed.accept(stored(driver.slices + again.slices))
    assert replayed.status()["renamed_files"] == 1


def test_a_poll_that_is_not_accepted_says_it_again(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    file.rename(tmp_path / "b.csv")
    first = driver.source.poll(driver.position, 100, 100, T0, fresh=True)
    assert first.slices[0].names == (("a.csv", "b.csv"),)
    (tmp_path / "b.csv").rename(tmp_path / "c.csv")
    second = driver.source.poll(driver.position, 100, 100, T0 + S, fresh=True)
    assert second.slices[0].names == (("a.csv", "c.csv"),)
    assert driver.all() == []
    assert status(driver) == (1, 0, 0)


def test_several_names_of_a_file_are_one_file(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "b.csv", "a,b\n1,x\n")
    os.link(tmp_path / "b.csv", tmp_path / "c.csv")
    (tmp_path / "a.csv").symlink_to("b.csv")
    assert driver.all() == [(1, "x")]
    assert driver.source.status()["linked_files"] == 2
    put(tmp_path / "c.csv", "2,y\n", T0, append=True)
    assert driver.all() == [(2, "y")]
    (tmp_path / "a.csv").unlink()
    (tmp_path / "b.csv").unlink()
    assert driver.all() == []
    assert driver.dead == []
    put(tmp_path / "c.csv", "3,z\n", T0 + S, append=True)
    assert driver.all() == [(3, "z")]
    assert (status(driver), driver.source.status()["linked_files"]) == ((1, 0, 0), 0)
    by_path = Driver(file_source(tmp_path, path_identity="path"))
    os.link(tmp_path / "c.csv", tmp_path / "d.csv")
    assert len(by_path.all()) == 6


def test_a_link_that_always_leads_to_the_newest_file(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "log-1.csv", "a,b\n1,x\n")
    (tmp_path / "current.csv").symlink_to("log-1.csv")
    rows = driver.all()
    for i in (2, 3):
        put(tmp_path / f"log-{i}.csv", f"a,b\n{i},x\n")
        (tmp_path / "current.csv").unlink()
        (tmp_path / "current.csv").symlink_to(f"log-{i}.csv")
        rows += driver.all()
    assert numbers(rows) == [1, 2, 3]
    assert driver.dead == []


def test_a_name_that_can_not_be_compared_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    file.rename(tmp_path / "b.csv")

    def refusing(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(identity, "open_file", refusing)
    assert driver.all() == []
    assert driver.source.status()["unreadable"] == [["b.csv", "Permission denied"]]
    monkeypatch.undo()
    assert driver.all() == []
    assert (status(driver), driver.source.status()["unreadable"]) == ((1, 0, 0), [])
