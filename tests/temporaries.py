"""Temporary files of tests, and of servers that they start, are in memory where there is plenty of it.

A database writes many small files. On a disk that takes a fifth of the processor time of a run and a third of its
time, and nothing in them has to outlive it. Set TMPDIR to have them elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
_PREFIX = f"watersmeet-tests-{os.getuid()}-"
#: Ten times what the files of a run take at once, since those of tests that passed are deleted.
_ROOM_BYTES = 4 << 30

_made = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Processes that xdist starts later inherit the folder."""
    if "TMPDIR" in os.environ or _free_bytes() < _ROOM_BYTES:
        return
    made = config.stash[_made] = _MEMORY / f"{_PREFIX}{os.getpid()}"
    for left in _MEMORY.glob(f"{_PREFIX}*"):  # by a run that was killed, or failed
        if left == made or not Path("/proc", left.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    made.mkdir()
    os.environ["TMPDIR"] = str(made)
    tempfile.tempdir = None  # what was asked for before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """What failed tests wrote stays until the next run."""
    yield
    made = session.config.stash.get(_made, None)
    if made is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(made, ignore_errors=True)


def _free_bytes() -> int:
    """Of memory that files may be in; 0 where there is no such folder."""
    try:
        about = os.statvfs(_MEMORY)
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0
    available = next(line.split() for line in memory.splitlines() if line.startswith("MemAvailable:"))
    return min(about.f_bavail * about.f_frsize, int(available[1]) * 1024)
