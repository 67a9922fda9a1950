"""Folders of processes that were killed go; those of processes that live stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.system import process as machine

MAKES = """
import sys
from watersmeet.system.process import make_folder
folder = make_folder("content")
(folder / "spilled").mkdir()
(folder / "spilled" / "block").write_bytes(b"x" * 100)
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def process(place):
    """process() starts one that has a folder: (the process, its folder)."""
    started = []

    def process():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen([sys.executable, "-c", MAKES], text=True, env=environment, **pipes))
        return started[-1], Path(started[-1].stdout.readline().strip())

    yield process
    for each in started:
        with each:
            each.kill()


def test_folders_of_killed_processes_go_and_no_others(place, process, monkeypatch):
    others = place / "watersmeet-servers-abc"
    others.mkdir()
    (others / "data").write_text("of another program")
    killed, left = process()
    _, kept = process()
    killed.kill()
    killed.wait(60)
    assert (left / "spilled" / "block").exists()
    monkeypatch.setattr(machine, "_swept", set())
    mine = machine.make_folder("merging")
    assert not left.exists()
    assert (kept / "spilled" / "block").exists()
    assert (others / "data").exists()
    machine.remove_folder(mine)
    machine.remove_folder(mine)
    assert sorted(place.iterdir()) == sorted([kept, others])


def test_a_folder_goes_with_its_block(place):
    with pytest.raises(KeyError), machine.scratch_folder("document") as folder:
        (folder / "file").write_text("x")
        raise KeyError
    assert not folder.exists()
    assert list(place.iterdir()) == []


def test_a_folder_that_an_interrupted_caller_left_goes_with_the_process(tmp_path):
    """Not with a fork of it, which ends earlier."""
    code = """
import os
from watersmeet.system.process import make_folder
folder = make_folder("content")
if os.fork() == 0:
    raise SystemExit
os.wait()
print(folder.exists())
raise KeyboardInterrupt
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n"
    assert not list(tmp_path.iterdir())
