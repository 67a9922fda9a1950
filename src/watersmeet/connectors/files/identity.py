"""Which names are which files: what was renamed, and what is one file under several names.

A file that was read is the same file under a new name if the old name is gone (or is another file's by now) and
- `path_identity = 'inode'`: its inode is the same, what was read of it is unchanged, and either its size and its
  time stamp are too or `EVIDENCE_BYTES` were read. A number alone proves nothing: file systems give those of deleted
  files to new ones at once.
- `path_identity = 'content'`: its size, its time stamp and its first and last bytes are the same, whatever its inode.
- `path_identity = 'path'`: never.
Devices are not compared with what was saved: their numbers change when a file system is mounted again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import BinaryIO, Final

from watersmeet.connectors.files.cutting import open_file
from watersmeet.connectors.files.listing import FileStat
from watersmeet.connectors.files.options import FileOptions
from watersmeet.connectors.files.seen import FileState, Key, SeenFiles, identity_key, print_at

EVIDENCE_BYTES: Final = 8192
"""So much must have been read of a file that has changed since, to know it again by its inode and these bytes."""


def key_of(options: FileOptions, stat: FileStat) -> Key | None:
    """The `seen.identity_key` of a listed file."""
    return identity_key(options.path_identity, stat.inode, stat.size, stat.mtime_ns)


def is_same_file(file: BinaryIO, size: int, state: FileState) -> bool:
    """True if what was read of a file is still there, unchanged as far as its fingerprints tell."""
    end = _bytes_read(state)
    if size < end or (state.total is not None and size != end):
        return False
    return print_at(file, end, tail=False) == state.head and print_at(file, end, tail=True) == state.tail


def _bytes_read(state: FileState) -> int:
    """How much of the file its fingerprints speak of."""
    return state.size if state.total is not None else state.consumed


def other_names(options: FileOptions, files: Mapping[str, FileStat], seen: SeenFiles) -> dict[str, str]:
    """Names of files that have several (hard and symbolic links), each with the name by which the file is read.

    That is the one by which it was read before, else the first.
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
    """(the files of `seen` that have another name now: the new name by the old one; names that can't be judged: why).

    changed: names whose entry is new or another one. A name whose own file was read, and is not known under a new name
    itself, stays with that file.
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
