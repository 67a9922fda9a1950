"""Readers and the low-water mark: which commits are still needed, and which may have been deleted.

A lease keeps the clean-up from deleting commits and snapshots that a reader needs.

It is a file in readers/, locked while the reader lives, with one line: a state letter and a commit number n, which mean
that all commits above n, and the snapshots of the content from n on, are needed. `A`: active, the clean-up waits. `I`:
idle; commits are kept if that costs little, otherwise the reader starts again from a snapshot. `K` is for an unread
subscription and `D` for a sink: commits are kept up to separate limits; beyond these, the subscription or sink is lost.
Object stores have no locks, so a lease is only known in its own process: the writer, which cleans up, has those of
subscriptions, sinks and epochs. For readers in other processes, it waits a fixed time (`retention`).

Reader and clean-up need no common lock: the reader writes its lease, then reads the low-water mark; the clean-up raises
the mark, then reads the leases. One of them always sees the other.

The low-water mark is the number up to which commits may have been deleted. It is announced before they are deleted, and
never decreases. Each mark is a file, named by its number and never replaced; the highest one counts. So a late
announcement of an overtaken writer has no effect.

Numbers up to the mark are free again, except those of fences, which stay to stop earlier writers. A process that opens
the database may use a free number, if it determined the next number too long ago. Therefore `LowWaterMark.admits`
decides whether a commit up to the mark is part of the history.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from weakref import WeakSet

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.layout import Layout, file_numbers, fork_file
from watersmeet.store.manifests import Commit
from watersmeet.system import files

#: The number of most recent writers that a mark names.
_KNOWN_REIGNS: Final = 1024


@dataclass(frozen=True, slots=True)
class LowWaterMark:
    """A low-water mark. reigns: (number of the fence, writer, token) of the last writers that took over up to `number`,
    in this order.
    """

    number: int = 0
    reigns: tuple[tuple[int, int, str], ...] = ()

    def admits(self, commit: Commit) -> bool:
        """Whether an existing commit is part of the history.

        All commits above the mark are. Up to the mark, only those of the writer that was in charge at that number are:
        any other commit was written after its writer had been replaced.
        """
        if commit.number > self.number:
            return True
        turn = max((r for r in self.reigns if r[0] <= commit.number), default=None)
        return turn is not None and turn[1:] == (commit.writer, commit.token)

    @property
    def fences(self) -> set[int]:
        """The numbers of the known fences up to the mark. Fences are never deleted."""
        return {number for number, _, _ in self.reigns}

    @property
    def oldest(self) -> int:
        """The number up to which fences are unknown, so that all existing commits stay."""
        return self.reigns[0][0] if len(self.reigns) == _KNOWN_REIGNS else 0

    def without_fences(self, numbers: Iterable[int]) -> list[int]:
        """The numbers of existing commits that are known not to be fences up to the mark."""
        fences, oldest = self.fences, self.oldest
        return [n for n in numbers if n > oldest and n not in fences]


def commits_there(layout: Layout, low_water: LowWaterMark, *, after: int = 0) -> list[int]:
    """The numbers above `after` of the existing commits, ascending, without the fences up to the low-water mark.

    The mark only knows the fences of the last writers. Older commits may be fences, so they are left out as well, and
    are not deleted.
    """
    return low_water.without_fences(file_numbers(layout.commits, after=max(after, low_water.oldest)))


def low_water_number(layout: Layout) -> int:
    """The number of the current low-water mark; 0 without one. Lists a folder of one or two files once."""
    return max(file_numbers(layout.low_waters), default=0)


def read_low_water(layout: Layout) -> LowWaterMark:
    """The current low-water mark. Raises DATABASE_DAMAGED."""
    while number := low_water_number(layout):
        path = layout.low_water(number)
        try:
            value = layout.unseal(path)
        except FileNotFoundError:
            continue  # A higher mark has replaced it.
        try:
            reigns = tuple((int(n), int(w), str(t)) for n, w, t in value["reigns"])
            return LowWaterMark(int(value["low_water"]), reigns)
        except (AttributeError, KeyError, TypeError, ValueError) as cause:
            raise error("DATABASE_DAMAGED", f"low-water/{path.name} is not a low-water mark") from cause
    return LowWaterMark()


def raise_low_water(layout: Layout, before: LowWaterMark, number: int, commits: Iterable[Commit]) -> LowWaterMark:
    """Durably announces that commits up to `number` will be deleted. Returns the new low-water mark.

    before: the mark that was read. commits: those above it up to `number`.
    """
    fences = ((c.number, c.writer, c.token) for c in commits if c.kind == "fence")
    reigns = (*before.reigns, *fences)[-_KNOWN_REIGNS:]
    path = layout.low_water(number)
    value = {"low_water": number, "reigns": reigns}
    try:
        storage.create_file(path, layout.seal(path, value), durable=layout.durable)
    except FileExistsError:
        pass  # An overtaken writer announced it: all writers write the same mark for the same commits.
    if layout.durable:
        storage.sync_directory(layout.low_waters)
    storage.remove_files(layout.low_water(n) for n in file_numbers(layout.low_waters) if n < number)
    return LowWaterMark(number, reigns)


READING: Final = "WATERSMEET_READING_SECONDS"

"""Environment variable of the writing process: the time for which it keeps files for unknown readers of other
processes.
"""

#: The number of times that reading begins, if retention deletes commits that it needs.
ATTEMPTS: Final = 3

ACTIVE: Final = "A"
IDLE: Final = "I"
KEPT: Final = "K"
DELIVERED: Final = "D"
FREE: Final = "F"


def deleted_early() -> Error:
    """The error if files of an object store were deleted before a reader of another process could read them."""
    return error(
        "SNAPSHOT_TOO_OLD",
        "files were deleted before they could be read",
        detail=f"The files that a reader needs are kept for {READING} seconds of the process that writes.",
        hint="Read again, read less at a time, or let the process that writes keep files for longer.",
    )


class Lease(NamedTuple):
    """The commits that a reader needs. state: one of the letters above. commit: all commits above it are needed."""

    state: str
    commit: int


_FOLDER: Final = "readers"
_LOCK: Final = threading.Lock()


class Reader:
    """A reader's lease. At first it needs nothing (FREE). Without write access it has no effect."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lease = Lease(FREE, 0)
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
            # The file only gets its name once it is locked, because an unlocked file counts as that of a dead reader.
            named = directory / self._path.name.removeprefix(files.TEMPORARY)
            os.rename(self._path, named)
            self._path = named

    @property
    def lease(self) -> Lease:
        """The current lease."""
        return self._lease

    def pin(self, commit: int, state: str = ACTIVE) -> None:
        """From now on no commit above `commit` is deleted, within the limits of `state`."""
        self._write(state, commit)

    def try_pin(self, commit: int, state: str = ACTIVE) -> bool:
        """Like `pin`. False if some commit above `commit` may have been deleted already."""
        self._write(state, commit)
        return low_water_number(self._layout) <= commit

    def idle(self, commit: int) -> None:
        """Like `pin`, but only while it costs little."""
        self._write(IDLE, commit)

    def release(self) -> None:
        """Needs no commit for now."""
        self._write(FREE, 0)

    def close(self) -> None:
        """Deletes the lease. May be called again."""
        self._lease = Lease(FREE, 0)
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(handle)

    def _write(self, state: str, commit: int) -> None:
        self._lease = Lease(state, commit)
        text = f"{state}{commit:012d}\n".encode()
        if self._handle is not None and text != self._text:
            with contextlib.suppress(OSError):
                os.pwrite(self._handle, text, 0)
                self._text = text


#: The readers of this process, by database in an object store.
_HERE: Final[dict[AnyPath, WeakSet[Reader]]] = {}


def read_leases(layout: Layout) -> list[Lease]:
    """The leases of all living readers. Files of dead readers are deleted. An unreadable lease pins everything."""
    if layout.directory is None:
        with _LOCK:
            here = [reader.lease for reader in _HERE.get(layout.root, ())]
        return [h for h in here if h.state != FREE]
    leases = []
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
            leases.append(_parse(os.pread(handle, 64, 0)))
        finally:
            os.close(handle)
    return [h for h in leases if h.state != FREE]


def _parse(line: bytes) -> Lease:
    text = line.decode(errors="replace").strip()
    if len(text) == 13 and text[0] in (ACTIVE, IDLE, KEPT, DELIVERED, FREE) and text[1:].isdigit():
        return Lease(text[0], int(text[1:]))
    return Lease(ACTIVE, 0)


def clear(layout: Layout) -> None:
    """Deletes files of dead readers. Only for the writer, before it starts."""
    if layout.directory is None:
        return
    read_leases(layout)
    # Files without a final name are being created by a reader, or remain from one that died meanwhile.
    for path in list((layout.directory / _FOLDER).iterdir()):
        if path.name.startswith(files.TEMPORARY):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR)
                try:
                    if files.try_lock(handle):
                        os.unlink(path)
                finally:
                    os.close(handle)


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork of the database. commit: the one with which it began. files: the segment and run files that it shares.
    definitions: digests of the definitions of the database, by relation id; "" for the others.
    time_us: when it was created. replayed: the commit of which it has the content; needs: all later commits are needed.
    is_filled: whether its views were filled again, because the state of the commit was deleted. is_past: whether it
    began with an earlier commit, so that it has no commits of the main database. is_complete: False while it is
    created.
    """

    name: str
    commit: int
    files: tuple[str, ...] = ()
    time_us: int = 0
    replayed: int = 0
    needs: int = 0
    definitions: dict[str, str] = field(default_factory=dict)
    is_filled: bool = False
    is_past: bool = False
    is_complete: bool = True


_FORK: Final = ".json"

#: The file of a fork with the commits up to which it has the transactions and the epochs of the main database.
REPLAYED: Final = "REPLAYED"


def read_forks(layout: Layout) -> list[Fork]:
    """The recorded forks, by name, including one that is being created or dropped. Raises DATABASE_DAMAGED."""
    try:
        names = [n.removesuffix(_FORK) for n in storage.list_names(layout.forks) if n.endswith(_FORK)]
    except FileNotFoundError:  # an older release created the database, and no writer has opened it since
        return []
    return [fork for name in names if (fork := read_fork(layout, name)) is not None]


def read_fork(layout: Layout, name: str) -> Fork | None:
    """The recorded fork with that name; None if there is none. Raises DATABASE_DAMAGED."""
    path = fork_file(layout.forks, name)
    try:
        value = layout.unseal(path)
    except FileNotFoundError:
        return None
    try:
        files, definitions = tuple(map(str, value["files"])), dict(value["definitions"])
        found = Fork(
            name,
            int(value["commit"]),
            files,
            int(value["time_us"]),
            definitions=definitions,
            is_filled=bool(value.get("filled")),
            is_past=bool(value.get("past")),
            is_complete=bool(value.get("complete", True)),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise error("DATABASE_DAMAGED", f"forks/{path.name} is not a fork") from cause
    try:
        text = storage.read_file(layout.forks / name / REPLAYED)
    except FileNotFoundError:
        return replace(found, replayed=found.commit, needs=found.commit)
    transaction, epoch = json.loads(text)
    return replace(found, replayed=epoch, needs=min(transaction, epoch))


def record_fork(layout: Layout, fork: Fork, *, first: bool) -> None:
    """Records a fork: from then on, its files stay. first: raises FileExistsError for a recorded name."""
    path = fork_file(layout.forks, fork.name)
    value = {
        "commit": fork.commit,
        "files": fork.files,
        "time_us": fork.time_us,
        "definitions": fork.definitions,
        "filled": fork.is_filled,
        "past": fork.is_past,
        "complete": fork.is_complete,
    }
    data = layout.seal(path, value)
    write = storage.create_file if first else storage.replace_file
    write(path, data, durable=layout.durable)
    if layout.durable:
        storage.sync_directory(layout.forks)
