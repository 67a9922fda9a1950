"""Checkpoints: where the content of every relation up to some commit lies, so that older commits can go."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import xxhash

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.moments import Moment
from watersmeet.system.blobs import BlobRef
from watersmeet.values.serialization import from_json, to_json

#: So many checkpoints are read at a time by who wants all.
_AT_ONCE: Final = 64


class Named(NamedTuple):
    """Which files a commit names for its changes. files: `file_key` of each. size_bytes: of the changes."""

    number: int
    size_bytes: int
    files: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a relation's content: blobs of rows with diffs (`changes`), in which a row that is there n times may
    be stored as one.

    insert_only: no diff is negative. Otherwise no two rows are equal.
    """

    blobs: tuple[BlobRef, ...]
    insert_only: bool

    @property
    def rows(self) -> int:
        """Stored rows of all blobs."""
        return sum(b.rows for b in self.blobs)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of one relation up to commit `upto`: the sum of its levels, the oldest (and largest) first.

    rows: of the content, duplicates counted.
    """

    upto: int
    rows: int = 0
    levels: tuple[Level, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of all blobs."""
        return sum(b.length_bytes for b in self.blobs)

    @property
    def blobs(self) -> list[BlobRef]:
        """The blobs of all levels, in order."""
        return [b for level in self.levels for b in level.blobs]

    def within(self, pack: str) -> Snapshot:
        """The snapshot as seen from outside of the pack that parts of it were written with."""
        return replace(
            self,
            levels=tuple(replace(level, blobs=tuple(b.within(pack) for b in level.blobs)) for level in self.levels),
        )

    @property
    def stored_rows(self) -> int:
        """Stored rows of all blobs."""
        return sum(level.rows for level in self.levels)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of all stored relations at a moment. Commits above `moment.transaction` complete it.

    next_number: as in the catalog then: a relation with a smaller number that is not here was dropped.
    before: the number of the checkpoint before it, 0 if there was none. time_us: when it was made.
    named: what the commits name that came since the one before, rising: who starts needs it of all commits that are
    kept, and would have to read each of them.
    """

    moment: Moment = field(default_factory=lambda: Moment(0, 0))
    relations: dict[str, Snapshot] = field(default_factory=dict)
    next_number: int = 0
    before: int = 0
    time_us: int = 0
    named: tuple[Named, ...] = ()

    @property
    def files(self) -> set[str]:
        """The names of all files in packs/ that hold the content."""
        return {b.file for s in self.relations.values() for b in s.blobs}

    @property
    def size_bytes(self) -> int:
        """The bytes of all content."""
        return sum(s.size_bytes for s in self.relations.values())


def file_key(name: str) -> int:
    """What stands for the name of a file in packs/ where only equality counts: a hash."""
    return xxhash.xxh3_64_intdigest(name.encode())


def named_by(commit: Commit) -> Named:
    """What a commit names."""
    return Named(commit.number, commit.change_bytes, tuple(map(file_key, sorted(commit.changed_files))))


def save_checkpoint(layout: Layout, log: CommitLog, checkpoint: Checkpoint) -> None:
    """Publishes `checkpoint`; all its files must be in place. It counts once a commit names it."""
    path = layout.snapshot_manifest(checkpoint.moment.head)
    # What is there under its name was left by an attempt that failed.
    storage.replace_file(path, layout.seal(path, to_json(checkpoint)), durable=layout.durable)
    log.append(Commit("checkpoint", time_us=time.time_ns() // 1000, checkpoint=checkpoint.moment.head))


def load_checkpoint(layout: Layout, number: int) -> Checkpoint:
    """Checkpoint `number`. FileNotFoundError if it is gone, DATABASE_DAMAGED if it can't be read."""
    path = layout.snapshot_manifest(number)
    return _parsed(layout, number, storage.read_file(path))


def _parsed(layout: Layout, number: int, data: bytes) -> Checkpoint:
    path = layout.snapshot_manifest(number)
    value = layout.unsealed(path, data)
    try:
        return from_json(Checkpoint, value)
    except ValueError as cause:
        raise error("DATABASE_DAMAGED", f"snapshots/{path.name} is not a checkpoint") from cause


def newest_checkpoint(layout: Layout, log: CommitLog) -> Checkpoint:
    """The checkpoint that the newest commit names; an empty one if there is none. DATABASE_DAMAGED."""
    while True:
        head = log.head()
        try:
            number = log.read(head).checkpoint if head else 0
            return load_checkpoint(layout, number) if number else Checkpoint()
        except FileNotFoundError as cause:
            if log.head(anew=True) == head:
                raise error(
                    "DATABASE_DAMAGED",
                    f"{layout.snapshot_manifest(number).name} is missing from {layout.snapshots}",
                    detail="A commit names this checkpoint.",
                ) from cause
        except Error:
            if log.head(anew=True) == head:  # otherwise the clean-up was faster
                raise


def checkpoints_from(layout: Layout, newest: Checkpoint) -> Iterator[Checkpoint]:
    """`newest` and those before it that are still there, falling. None for an empty one."""
    checkpoint = newest
    while checkpoint.moment.head:
        yield checkpoint
        try:
            checkpoint = load_checkpoint(layout, checkpoint.before) if checkpoint.before else Checkpoint()
        except FileNotFoundError:
            return


def all_checkpoints(layout: Layout, newest: Checkpoint) -> Iterator[Checkpoint]:
    """As `checkpoints_from`, for who wants all: several are read at a time."""
    if not newest.moment.head:
        return
    yield newest
    number = newest.before
    there = file_numbers(layout.snapshots) if number else []
    found: dict[int, bytes] = {}
    while number:
        if number not in found:
            end = bisect_right(there, number)
            numbers = there[max(0, end - _AT_ONCE) : end]
            read = storage.read_files([layout.snapshot_manifest(n) for n in numbers])
            found = {n: data for n, data in zip(numbers, read, strict=True) if data is not None}
        if number not in found:
            return
        checkpoint = _parsed(layout, number, found.pop(number))
        yield checkpoint
        number = checkpoint.before


def checkpoint_upto(layout: Layout, log: CommitLog, number: int) -> Checkpoint:
    """The newest checkpoint with a number of at most `number`; an empty one if there is none."""
    newest = newest_checkpoint(layout, log)
    return next((c for c in checkpoints_from(layout, newest) if c.moment.head <= number), Checkpoint())
