"""Lists a directory cheaply, and recognizes renamed files and files with several names.

A file that was read is recognized under a new name if the old name is missing (or now names another file) and
- `path_identity = 'inode'`: the inode is the same, the read part is unchanged, and either the size and the time stamp
  are unchanged or `EVIDENCE_BYTES` were read. The inode alone proves nothing, because file systems reuse the inodes of
  deleted files.
- `path_identity = 'content'`: the size, the time stamp and the first and last bytes are the same, with any inode.
- `path_identity = 'path'`: never.
Device numbers are not compared with saved ones, because they change when a file system is mounted again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from stat import S_ISREG
from typing import BinaryIO, Final, NamedTuple

from watersmeet.connectors.base.sources import Inquiry, Notification
from watersmeet.connectors.files.options import FileOptions
from watersmeet.connectors.files.seen import FileState, Key, SeenFiles, identity_key, print_at
from watersmeet.objectstores.base import StoreProblem
from watersmeet.objectstores.stores import ObjectFile, open_store

MIN_INTERVAL_US: Final = 200_000
COST_FACTOR: Final = 20

"""The minimum pause between listings, as a multiple of their duration, so that they take at most 5 % of a core."""

FULL_INTERVAL_US: Final = 10_000_000
RECENT_NS: Final = 60_000_000_000
TICK_NS: Final = 50_000_000

"""An entry made within the resolution of a directory's time stamp may not change the time stamp."""


class FileStat(NamedTuple):
    """A file in a listing. linked: whether hard or symbolic links may give it more names. etag: the tag of an object,
    whose inode is a number computed from the tag and the name.
    """

    mtime_ns: int
    size: int
    inode: int
    device: int = 0
    linked: bool = False
    etag: str = ""


class Listing:
    """The files of a source at the last listing. Names are relative to the root and contain `/`.

    Hidden names (beginning with `.` or `_`) and `.tmp` are omitted. A full listing reads the state of all files. While
    the directory's time stamp shows that no name was added or removed, later listings only check files that may grow.
    An inaccessible entry never prevents others from being found.
    """

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._pattern: re.Pattern[str] | None = options.names
        self.files: dict[str, FileStat] = {}
        self.problem: str | None = None
        self.not_read: dict[str, str] = {}
        """Entries that match but are not readable files (broken links, pipes, …), with the reason."""
        self._directory_ns = 0
        self._next_us = 0
        self._next_full_us = 0

    def is_due(self, now_us: int) -> bool:
        """True if the next listing is due."""
        return now_us >= self._next_us

    def look(self, now_us: int, open_files: set[str], *, full: bool) -> set[str]:
        """Lists the directory and returns the names whose entry is new, changed or deleted."""
        began = time.perf_counter_ns()
        full = full or self._options.recursive or now_us >= self._next_full_us
        try:
            directory_ns = os.stat(self._options.root).st_mtime_ns
            full = full or directory_ns != self._directory_ns
            found = self._all() if full else self._recent(now_us, open_files)
            self.problem = None
        except OSError as problem:
            self.problem = f"{self._options.root}: {problem.strerror}"
            self._next_us = now_us + MIN_INTERVAL_US
            return set()
        before = self.files
        changed = {name for name, stat in found.items() if before.get(name) != stat}
        if full:
            changed |= before.keys() - found.keys()
            self.files = found
            # If the directory has just changed, its time stamp may already include an entry that the walk missed.
            self._directory_ns = directory_ns if now_us * 1000 - directory_ns > TICK_NS else 0
        else:
            self.files = {**before, **found} if changed else before
        took_us = (time.perf_counter_ns() - began) // 1000
        self._next_us = now_us + max(MIN_INTERVAL_US, COST_FACTOR * took_us)
        if full:
            self._next_full_us = now_us + max(FULL_INTERVAL_US, 10 * COST_FACTOR * took_us)
        return changed

    def _all(self) -> dict[str, FileStat]:
        """The existing files; inaccessible ones have their previous state. Raises OSError."""
        walk = _Walk(self._options, self._pattern)
        walk.run()
        self.not_read = walk.not_read
        for unknown in walk.unknown:
            below = unknown + "/"
            for name, stat in self.files.items():
                if name == unknown or name.startswith(below):
                    walk.files.setdefault(name, stat)
        return walk.files

    def _recent(self, now_us: int, open_files: set[str]) -> dict[str, FileStat]:
        """The present state of the files that may have grown."""
        oldest_ns = now_us * 1000 - RECENT_NS
        found = {}
        for name, stat in self.files.items():
            if stat.mtime_ns >= oldest_ns or name in open_files:
                try:
                    now = os.stat(os.path.join(self._options.root, name))
                except OSError:
                    continue
                if S_ISREG(now.st_mode):
                    found[name] = _stat(now, linked=stat.linked)
        return found


class _Walk:
    """A walk through the directories. It enters each directory once, real directories before links.

    So it ends even if links form a cycle, and the name of a file with several paths doesn't depend on the order of
    entries.
    """

    def __init__(self, options: FileOptions, pattern: re.Pattern[str] | None) -> None:
        self._options = options
        self._pattern = pattern
        self._entered: set[tuple[int, int]] = set()
        self._to_enter: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []
        self.files: dict[str, FileStat] = {}
        self.not_read: dict[str, str] = {}
        """Entries that match but are not read, with the reason."""
        self.unknown: list[str] = []
        """Those of them that are inaccessible now, so that they and files below them may still exist."""

    def run(self) -> None:
        """Runs the walk. Raises OSError if the root itself can't be listed."""
        self._enter(self._options.root, "")
        while self._to_enter or self._links:
            if not self._to_enter:
                self._links.sort(reverse=True)
                self._to_enter.append(self._links.pop())
            directory, name = self._to_enter.pop()
            try:
                self._enter(directory, name + "/")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as problem:
                self._note(name, problem)

    def _enter(self, directory: str, prefix: str) -> None:
        now = os.stat(directory)
        if (now.st_dev, now.st_ino) in self._entered:
            self.not_read[prefix.rstrip("/")] = "a link to a directory that is read under another name"
            return
        self._entered.add((now.st_dev, now.st_ino))
        with os.scandir(directory) as entries:
            for entry in entries:
                name = prefix + entry.name
                if not self._is_wanted(entry.name, name):
                    continue
                try:
                    self._take(entry, name)
                except FileNotFoundError:
                    if entry.is_symlink() and self._is_meant(name):
                        self.not_read[name] = "a link to nothing"
                except OSError as problem:
                    if self._is_meant(name) or self._options.recursive:
                        self._note(name, problem)

    def _take(self, entry: os.DirEntry[str], name: str) -> None:
        is_link = entry.is_symlink()
        if entry.is_dir():
            if self._options.recursive:
                (self._links if is_link else self._to_enter).append((entry.path, name))
            elif self._is_meant(name) and self._looks_like_a_file(name):
                self.not_read[name] = "a directory: recursive = 'true' reads what is in it"
        elif self._is_meant(name):
            now = entry.stat()
            if S_ISREG(now.st_mode):
                self.files[name] = _stat(now, linked=is_link)
            else:
                self.not_read[name] = "not a regular file"

    def _note(self, name: str, problem: OSError) -> None:
        self.not_read[name] = problem.strerror or str(problem)
        self.unknown.append(name)

    def _is_wanted(self, base: str, name: str) -> bool:
        if self._options.explicit is not None:
            return name == self._options.explicit
        return not base.startswith((".", "_")) and not base.endswith(".tmp")

    def _is_meant(self, name: str) -> bool:
        return self._pattern is None or self._pattern.fullmatch(name) is not None

    def _looks_like_a_file(self, name: str) -> bool:
        """True if the options name the file, or if its name has an ending of the source's format."""
        return (
            self._pattern is not None or self._options.explicit is not None or name.endswith(f".{self._options.format}")
        )


def _stat(result: os.stat_result, *, linked: bool) -> FileStat:
    return FileStat(
        result.st_mtime_ns, result.st_size, result.st_ino, result.st_dev, linked=linked or result.st_nlink > 1
    )


#: The delay after which an unavailable store is listed again.
_RETRY_US: Final = 2_000_000


class ObjectListing:
    """The objects of a source at the last listing; the rules for names are those of `Listing`.

    Names are relative to the root. Objects in directories whose names begin with `.` or `_` are also omitted.
    """

    def __init__(self, options: FileOptions) -> None:
        assert options.store is not None
        self._options = options
        self._location = options.store
        self._pattern = options.names
        self.files: dict[str, FileStat] = {}
        self.problem: str | None = None
        self.not_read: dict[str, str] = {}
        """Always empty: all listed objects can be read."""
        self._next_us = 0
        self._inquiry: Inquiry[dict[str, FileStat] | OSError] = Inquiry("objects", self._location.shown)

    def listen(self, notification: Notification) -> None:
        """Registers the notification that the end of each listing sets."""
        self._inquiry.listen(notification)

    def is_due(self, now_us: int) -> bool:
        """True if a listing has finished or the next one is due."""
        return self._inquiry.is_answered or (self._inquiry.is_idle and now_us >= self._next_us)

    def look(self, now_us: int, open_files: set[str], *, full: bool) -> set[str]:  # noqa: ARG002
        """The names whose entry is new, changed or deleted.

        full: whether to list now and wait for the result. Otherwise the result of a finished listing is used, and the
        next one is started unless one is running.
        """
        if full:
            found = self._inquiry.now(self._asked)
            if found is None:
                found = StoreProblem(f"{self._location.shown} does not answer", passes=True)
        else:
            found = self._inquiry.take()
            if found is None:
                self._inquiry.begin(self._asked)
                return set()
        return self._taken(found, now_us)

    def fail(self, problem: StoreProblem, now_us: int) -> None:
        """Schedules another listing soon, because the store did not return an object that it had listed."""
        self.problem = str(problem)
        self._next_us = now_us + _RETRY_US

    def _taken(self, found: dict[str, FileStat] | OSError, now_us: int) -> set[str]:
        if isinstance(found, OSError):
            self.problem = str(found)
            self._next_us = now_us + _RETRY_US
            return set()
        before, self.files, self.problem = self.files, found, None
        self._next_us = now_us + max(self._options.refresh_s * 1_000_000, COST_FACTOR * self._inquiry.took_us)
        return {name for name, stat in found.items() if before.get(name) != stat} | (before.keys() - found.keys())

    def _asked(self) -> dict[str, FileStat] | OSError:
        try:
            return self.listed()
        except OSError as problem:
            return problem
        except Exception as problem:  # raised by the library for a name that it can't read
            return OSError(f"{type(problem).__name__}: {problem}")

    def listed(self) -> dict[str, FileStat]:
        """The present objects. Raises StoreProblem."""
        options, found = self._options, {}
        for key, stat in open_store(self._location).list(options.root.rstrip("/")):
            name = key.removeprefix(options.root)
            if self._is_meant(name):
                number = int.from_bytes(hashlib.blake2b(f"{name}\0{stat.etag}".encode(), digest_size=8).digest()) >> 1
                found[name] = FileStat(stat.modified_ns, stat.size_bytes, number, etag=stat.etag)
        return found

    def _is_meant(self, name: str) -> bool:
        options = self._options
        if options.explicit is not None:
            return name == options.explicit
        if "/" in name and not options.recursive:
            return False
        if name.endswith((".tmp", "/")) or any(part.startswith((".", "_")) for part in name.split("/")):
            return False
        return self._pattern is None or self._pattern.fullmatch(name) is not None


def open_listed(options: FileOptions, name: str, stat: FileStat) -> BinaryIO:
    """Opens a listed file or object; see `open_file`. An object is only read if it is unchanged."""
    if options.store is not None:
        return ObjectFile(options.store, options.root + name, stat.size, stat.etag)
    return open_file(options.root, name)


def present_stat(file: BinaryIO, listed: FileStat) -> FileStat:
    """The present state of an open file, which may have changed since it was listed. An object can't have changed."""
    if isinstance(file, ObjectFile):
        return listed
    now = os.fstat(file.fileno())
    return listed._replace(mtime_ns=now.st_mtime_ns, size=now.st_size, inode=now.st_ino, device=now.st_dev)


def check_read(file: BinaryIO) -> None:
    """Raises the reason why an object could not be read if a reader took this for a damaged file."""
    if isinstance(file, ObjectFile):
        file.check()


def open_file(root: str, name: str) -> BinaryIO:
    """Opens a file for reading. Raises OSError if it is not a regular file. It never blocks, even for a named pipe."""
    handle = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return os.fdopen(handle, "rb")


EVIDENCE_BYTES: Final = 8192

"""The minimum number of read bytes by which, with the inode, a changed file is recognized."""


def key_of(options: FileOptions, stat: FileStat) -> Key | None:
    """The `seen.identity_key` of a listed file."""
    return identity_key(options.path_identity, stat.inode, stat.size, stat.mtime_ns)


def is_same_file(file: BinaryIO, size: int, state: FileState) -> bool:
    """True if the read part of a file is unchanged by its fingerprints."""
    end = _bytes_read(state)
    if size < end or (state.total is not None and size != end):
        return False
    return print_at(file, end, tail=False) == state.head and print_at(file, end, tail=True) == state.tail


def _bytes_read(state: FileState) -> int:
    """The number of the file's bytes that its fingerprints cover."""
    return state.size if state.total is not None else state.consumed


def other_names(options: FileOptions, files: Mapping[str, FileStat], seen: SeenFiles) -> dict[str, str]:
    """The names of files with several names (hard and symbolic links), each with the name by which the file is read.

    This is the name by which the file was read before, else the first one.
    """
    if options.path_identity != "inode" or not any(stat.linked for stat in files.values()):
        return {}
    groups: dict[tuple[int, int], list[str]] = {}
    for name, stat in files.items():
        groups.setdefault((stat.device, stat.inode), []).append(name)
    found: dict[str, str] = {}
    for names in groups.values():
        if len(names) > 1:
            read = [n for n in names if n in seen.files and seen.files[n].is_taken]
            first = min(read or names)
            found |= {n: first for n in names if n != first and n not in read}
    return found


def renamed_files(
    options: FileOptions, changed: Iterable[str], files: Mapping[str, FileStat], seen: SeenFiles
) -> tuple[dict[str, str], dict[str, str]]:
    """The files of `seen` that have a new name, as new names by old ones; and the names that can't be compared, with
    the reason.

    changed: the names whose entry is new or changed. A name whose own file was read stays the name of this file, unless
    the file itself has a new name.
    """
    found: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for name in sorted(changed):
        known = seen.names_of(key_of(options, files[name])) if name in files else []
        try:
            olds = () if name in known else (o for o in known if o not in found)
            old = next((o for o in olds if _is_renamed(options, o, name, files, seen)), None)
        except OSError as problem:
            undecided[name] = problem.strerror or str(problem)
            continue
        if old is not None:
            found[old] = name
    while kept := [o for o, n in found.items() if n in seen.files and seen.files[n].is_taken and n not in found]:
        for old in kept:
            del found[old]
    return found, undecided


def _is_renamed(options: FileOptions, old: str, new: str, files: Mapping[str, FileStat], seen: SeenFiles) -> bool:
    state, now = seen.files[old], files[new]
    unchanged = (now.size, now.mtime_ns) == (state.size, state.mtime_ns)
    if not state.is_read:
        return unchanged and old not in files
    if not unchanged and (now.size < state.size or _bytes_read(state) < EVIDENCE_BYTES):
        return False
    return not _is_there(options, old, files, state) and _is_file(options, new, state)


def _is_there(options: FileOptions, name: str, files: Mapping[str, FileStat], state: FileState) -> bool:
    """True if a file still has its old name."""
    return name in files and _is_file(options, name, state)


def _is_file(options: FileOptions, name: str, state: FileState) -> bool:
    try:
        with open_file(options.root, name) as file:
            return is_same_file(file, os.fstat(file.fileno()).st_size, state)
    except FileNotFoundError:
        return False
