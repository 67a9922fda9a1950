"""The memory of a file source: as many files as there ever were, in a bounded number of bytes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.connectors.files.seen import SeenFiles
from watersmeet.errors import Error
from watersmeet.values.serialization import to_json
from watersmeet.values.slices import AsideSlice, FileSlice, FileVersion, RenamingSlice


def piece(ordinal, name, begin=0, end=100, **more):
    return FileSlice(
        relation="s1",
        ordinal=ordinal,
        path=name,
        rows=10,
        size_bytes=end - begin,
        begin=begin,
        end=end,
        version=FileVersion(end, 5, ordinal + 1),
        line=1 + begin // 10,
        lines=(end - begin) // 10,
        head=(end, "a" * 16),
        tail=(end, "b" * 16),
        **more,
    )


def renaming(ordinal, *names):
    return RenamingSlice(relation="s1", ordinal=ordinal, names=names)


def aside(ordinal, name):
    version = FileVersion(100, 5, ordinal + 1)
    return AsideSlice(relation="s1", ordinal=ordinal, path=name, version=version, reason="damaged", lost_bytes=100)


def content(seen):
    """All that it says."""
    runs = [tuple(r) for r in seen.runs()]
    states = dict(seen.files.items())
    return states, runs, seen.lacking(9), seen.read, seen.slices, seen.rows, seen.aside, seen.renamed


def test_two_files_that_grow_in_turn_have_many_runs_and_small_states():
    """What is kept of a file when it grows does not grow with it: it is read and written at each step."""
    seen = SeenFiles()
    for i in range(0, 400, 2):
        seen.apply([piece(i, "a", i, i + 2), piece(i + 1, "b", i, i + 2)])
    assert seen.files["a"].runs == 200
    assert len(json.dumps(to_json(seen.files["a"]))) < 300
    assert len(list(seen.runs())) == 400
    assert list(seen.runs(398)) == [("a", (398, 39), 400), ("b", (398, 39), 400)]
    assert next(seen.runs()) == ("a", None, 2)


def test_slices_that_follow_each_other_are_one_run():
    seen = SeenFiles()
    seen.apply([piece(0, "a", 0, 10), piece(1, "a", 10, 20), piece(2, "b"), piece(3, "a", 20, 30)])
    assert list(seen.runs()) == [("a", None, 20), ("b", None, 100), ("a", (20, 2), 30)]
    assert (seen.read, seen.files["a"].runs) == (2, 2)


@pytest.mark.parametrize("saves", [(3,), (1, 2, 3), (0, 3), (2, 2)])
def test_what_is_saved_is_what_is_known(tmp_path, saves):
    """However often it was saved before: also what went, and two files that changed names with each other."""
    steps = [
        [piece(0, "a"), piece(1, "b", lacks=("x",)), aside(2, "c\udce9")],
        [piece(3, "a", 100, 200), renaming(4, ("a", "b"), ("b", "a"))],
        [renaming(5, ("a", "d")), piece(6, "b", 200, 300)],
    ]
    seen, path = SeenFiles(), tmp_path / "in" / "s1.saved"
    for number, step in enumerate(steps):
        if number in saves:
            seen.save(path)
        seen.apply(step)
    if 3 in saves:
        seen.save(path)
    again = SeenFiles.load(path)
    again.apply([p for step in steps for p in step])
    assert content(again) == content(seen)
    assert sorted(again.files) == ["b", "c\udce9", "d"]


def test_a_save_writes_what_is_new(tmp_path):
    """The saved database is changed in place: a save of one file among many is no copy of all of them."""
    seen, path = SeenFiles(), tmp_path / "s1.saved"
    seen.apply(piece(i, f"file {i}") for i in range(2000))
    seen.save(path)
    inode, size_bytes = path.stat().st_ino, path.stat().st_size
    saved = sqlite3.connect(path)
    before = saved.execute("PRAGMA data_version").fetchone()
    seen.apply([piece(2000, "one more")])
    changes = seen._database.total_changes
    seen.save(path)
    assert seen._database.total_changes - changes < 10
    assert saved.execute("PRAGMA data_version").fetchone() != before
    assert path.stat().st_ino == inode
    assert path.stat().st_size <= size_bytes + 3 * 4096
    assert len(SeenFiles.load(path).files) == 2001


def test_a_file_that_vanished_is_written_as_a_whole(tmp_path):
    seen, path = SeenFiles(), tmp_path / "s1.saved"
    seen.apply([piece(0, "a")])
    seen.save(path)
    path.unlink()
    seen.apply([piece(1, "b")])
    seen.save(path)
    assert content(SeenFiles.load(path)) == content(seen)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"{", b"SQLite format 3\0 and no more", None])
def test_damage_is_named(tmp_path, damage):
    path = tmp_path / "s1.saved"
    if damage is None:
        SeenFiles().save(path)
        damage = path.read_bytes()[:4096].replace(b"counts", b"county")
    path.write_bytes(damage)
    with pytest.raises(Error, match=r"DATABASE_DAMAGED.*s1\.saved"):
        SeenFiles.load(path)


def test_what_can_not_be_saved_is_named_and_kept(tmp_path):
    seen = SeenFiles()
    seen.apply([piece(0, "a")])
    (tmp_path / "in").write_text("no directory")
    with pytest.raises(Error, match="DATABASE_ACCESS"):
        seen.save(tmp_path / "in" / "s1.saved")
    seen.save(tmp_path / "s1.saved")
    assert content(SeenFiles.load(tmp_path / "s1.saved")) == content(seen)


def test_a_full_disk_is_named(tmp_path):
    seen = SeenFiles()
    seen.apply([piece(0, "a")])
    seen._database.execute("PRAGMA max_page_count = 20")
    with pytest.raises(Error, match="DISK_FULL"):
        seen.apply(piece(i, f"file {i}") for i in range(1, 2000))


MANY = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_seen import piece
from watersmeet.connectors.files.seen import SeenFiles
seen = SeenFiles(cache_bytes=100_000)
ordinal = 0
peaks = []
for part in range(4):
    for _ in range(10):
        seen.apply([piece(ordinal + i, f"/a/rather/long/path/of/a/file/{{ordinal + i}}") for i in range(500)])
        ordinal += 500
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[-1] - peaks[0])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files():
    """15,000 files more take no memory: as objects they took 15 MB."""
    code = MANY.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit_bytes < 4 << 20
