"""Checkpoints: where the content of every relation up to some commit lies, so that older commits can go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from watersmeet.errors import error
from watersmeet.store import files
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import sealed, unsealed
from watersmeet.store.moments import Moment


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One data file in snapshots/. rows: stored rows (a row that is there n times counts once)."""

    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a relation's content: a consolidated change, in files of bounded size.

    insert_only: no diff is negative.
    """

    files: tuple[SnapshotFile, ...]
    insert_only: bool

    @property
    def rows(self) -> int:
        """Stored rows of all files."""
        return sum(f.rows for f in self.files)


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
        """The bytes of all files."""
        return sum(f.size_bytes for level in self.levels for f in level.files)

    @property
    def stored_rows(self) -> int:
        """Stored rows of all files."""
        return sum(level.rows for level in self.levels)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of all stored relations at a moment. Commits above `moment.transaction` complete it.

    next_number: as in the catalog then: a relation with a smaller number that is not here was dropped.
    """

    moment: Moment = field(default_factory=lambda: Moment(0, 0))
    relations: dict[str, Snapshot] = field(default_factory=dict)
    next_number: int = 0

    @property
    def files(self) -> set[str]:
        """The names of all data files."""
        return {f.name for s in self.relations.values() for level in s.levels for f in level.files}

    @property
    def size_bytes(self) -> int:
        """The bytes of all data files."""
        return sum(s.size_bytes for s in self.relations.values())

    def to_json(self) -> Any:
        """A JSON value from which `from_json` makes the same checkpoint."""
        return {
            "number": self.moment.head,
            "transaction": self.moment.transaction,
            "next_number": self.next_number,
            "relations": {i: _snapshot_json(s) for i, s in self.relations.items()},
        }

    @staticmethod
    def from_json(value: Any) -> Checkpoint:
        """The inverse of `to_json`."""
        moment = Moment(value["number"], value["transaction"])
        return Checkpoint(moment, {i: _snapshot(s) for i, s in value["relations"].items()}, value["next_number"])


def _snapshot_json(snapshot: Snapshot) -> Any:
    levels = [{"insert_only": v.insert_only, "files": [[f.name, f.rows, f.size_bytes] for f in v.files]}
              for v in snapshot.levels]
    return {"upto": snapshot.upto, "rows": snapshot.rows, "levels": levels}


def _snapshot(value: Any) -> Snapshot:
    levels = tuple(
        Level(tuple(SnapshotFile(*f) for f in level["files"]), level["insert_only"]) for level in value["levels"]
    )
    return Snapshot(value["upto"], value["rows"], levels)


def save_checkpoint(layout: Layout, checkpoint: Checkpoint) -> None:
    """Publishes `checkpoint`; all its files must be in place."""
    path = layout.snapshot_manifest(checkpoint.moment.head)
    files.replace_file(path, sealed(checkpoint.to_json()), durable=layout.durable)


def checkpoint_numbers(layout: Layout) -> list[int]:
    """The numbers of all checkpoints, rising."""
    return [int(n[:-5]) for n in files.list_names(layout.snapshots) if n.endswith(".json")]


def load_checkpoint(layout: Layout, number: int) -> Checkpoint:
    """Checkpoint `number`. FileNotFoundError if it is gone, DATABASE_DAMAGED if it can't be read."""
    path = layout.snapshot_manifest(number)
    value = unsealed(files.read_file(path), path.name)
    try:
        return Checkpoint.from_json(value)
    except (KeyError, TypeError, IndexError) as cause:
        raise error("DATABASE_DAMAGED", f"snapshots/{path.name} is not a checkpoint") from cause


def newest_checkpoint(layout: Layout, upto: int | None = None) -> Checkpoint:
    """The newest checkpoint with a number of at most `upto` (default: any); an empty one if there is none."""
    while True:
        numbers = [n for n in checkpoint_numbers(layout) if upto is None or n <= upto]
        if not numbers:
            return Checkpoint()
        try:
            return load_checkpoint(layout, numbers[-1])
        except FileNotFoundError:
            continue  # The clean-up was faster: a newer one exists.
