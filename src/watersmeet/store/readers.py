"""Who still reads what: holds that keep the clean-up from deleting commits and snapshots under a reader.

A reader has a file in readers/, locked while it lives, with one line: a state letter and a commit number n,
"all commits above n, and the snapshots of their content from n on, are needed". `A`: now, the clean-up waits.
`I`: between two reads; kept if that costs little, otherwise the reader starts again from a snapshot.
`K`: for a subscription that nobody reads; kept up to limits of its own, otherwise it is lost.
`D`: for a sink, to be delivered; kept up to limits of its own, otherwise it is lost.

In an object store there are no locks, so a hold is known in its own process alone: that of the writer, which cleans up,
has the holds of subscriptions, sinks and epochs. Readers in other processes are waited for by time (`retention`).

Reader and clean-up agree without a lock on each other: the reader writes its hold, then reads the floor (below
which things may be gone); the clean-up raises the floor, then reads the holds. One of them sees the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import Final, NamedTuple
from weakref import WeakSet

from watersmeet import files
from watersmeet.storage import Place
from watersmeet.store.floors import floor_number
from watersmeet.store.layout import Layout

READING: Final = "WATERSMEET_READING_SECONDS"
"""Environment of the process that writes: for how long it keeps what readers of other processes may need, where it does
not know of them.
"""
ACTIVE: Final = "A"
IDLE: Final = "I"
KEPT: Final = "K"
DELIVERED: Final = "D"
FREE: Final = "F"


class Hold(NamedTuple):
    """state: one of the letters above. commit: all commits above it are needed."""

    state: str
    commit: int


_FOLDER: Final = "readers"
_LOCK: Final = threading.Lock()


class Reader:
    """This reader's hold. It needs nothing (FREE) at first. Where nothing can be written, it holds nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._hold = Hold(FREE, 0)
        self._handle: int | None = None
        self._text = b""
        if layout.directory is None:
            with _LOCK:
                _HERE.setdefault(layout.root, WeakSet()).add(self)
            return
        directory = layout.directory / _FOLDER
        self._path = files.temporary_path(directory)
        with contextlib.suppress(OSError):
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, files.rights(directory))
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(FREE, 0)
            # Named only once it is locked: an unlocked one is taken for a dead reader's.
            named = directory / self._path.name.removeprefix(files.TEMPORARY)
            os.rename(self._path, named)
            self._path = named

    @property
    def held(self) -> Hold:
        """What it holds now."""
        return self._hold

    def keep(self, commit: int, state: str = ACTIVE) -> None:
        """Nothing above `commit` that is there is deleted from now on, as far as `state` goes."""
        self._write(state, commit)

    def hold(self, commit: int, state: str = ACTIVE) -> bool:
        """As `keep`. False if something above `commit` may be gone already."""
        self._write(state, commit)
        return floor_number(self._layout) <= commit

    def rest(self, commit: int) -> None:
        """As `keep`, but only as long as it costs little."""
        self._write(IDLE, commit)

    def release(self) -> None:
        """Needs nothing for now."""
        self._write(FREE, 0)

    def close(self) -> None:
        """Takes the reader off the list. May be called again."""
        self._hold = Hold(FREE, 0)
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(handle)

    def _write(self, state: str, commit: int) -> None:
        self._hold = Hold(state, commit)
        text = f"{state}{commit:012d}\n".encode()
        if self._handle is not None and text != self._text:
            with contextlib.suppress(OSError):
                os.pwrite(self._handle, text, 0)
                self._text = text


#: By database in an object store: the readers of this process.
_HERE: Final[dict[Place, WeakSet[Reader]]] = {}


def read_holds(layout: Layout) -> list[Hold]:
    """The holds of all living readers; files of dead ones are deleted. A line that can't be read holds everything."""
    if layout.directory is None:
        with _LOCK:
            here = [reader.held for reader in _HERE.get(layout.root, ())]
        return [h for h in here if h.state != FREE]
    holds = []
    directory = layout.directory / _FOLDER
    for name in files.list_names(directory):
        path = directory / name
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            if files.try_lock(handle):  # its reader died
                with contextlib.suppress(OSError):
                    os.unlink(path)
                continue
            holds.append(_parse(os.pread(handle, 64, 0)))
        finally:
            os.close(handle)
    return [h for h in holds if h.state != FREE]


def _parse(line: bytes) -> Hold:
    text = line.decode(errors="replace").strip()
    if len(text) == 13 and text[0] in (ACTIVE, IDLE, KEPT, DELIVERED, FREE) and text[1:].isdigit():
        return Hold(text[0], int(text[1:]))
    return Hold(ACTIVE, 0)


def clear(layout: Layout) -> None:
    """Deletes what readers that died left behind. Only for the writer, before it starts."""
    if layout.directory is None:
        return
    read_holds(layout)
    # Unnamed ones are being made by a reader just now, or were left by one that died in the middle.
    for path in list((layout.directory / _FOLDER).iterdir()):
        if path.name.startswith(files.TEMPORARY):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR)
                try:
                    if files.try_lock(handle):
                        os.unlink(path)
                finally:
                    os.close(handle)
