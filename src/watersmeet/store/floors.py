"""The floor: the number up to which commits may be gone. It is announced before they are deleted, and never falls.

Each floor is a file of its own, named by its number and never replaced; the highest one counts. So what a writer that
was overtaken announces late changes nothing.

A number up to the floor is free again, unless it is that of a fence: those stay, as they refuse the writers before
them. Who opens the database may take a free one, if it looked for the next number too long ago. So whoever finds a
commit up to the floor asks `Floor.admits` whether it is part of the history: that is what makes a commit a commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from watersmeet import storage
from watersmeet.errors import error
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.manifests import Commit

#: So many of the last writers are known.
_KNOWN_REIGNS: Final = 1024


@dataclass(frozen=True, slots=True)
class Floor:
    """reigns: of the last writers that took over up to `number`, rising: the number of its fence, writer, its token."""

    number: int = 0
    reigns: tuple[tuple[int, int, str], ...] = ()

    def admits(self, commit: Commit) -> bool:
        """Whether a commit that was found under its number is part of the history.

        Above the floor all are. Up to it, those of the writer whose turn it was: any other came too late.
        """
        if commit.number > self.number:
            return True
        turn = max((r for r in self.reigns if r[0] <= commit.number), default=None)
        return turn is not None and turn[1:] == (commit.writer, commit.token)

    @property
    def fences(self) -> set[int]:
        """The numbers of the fences up to it that are known. Fences are never deleted."""
        return {number for number, _, _ in self.reigns}

    @property
    def oldest(self) -> int:
        """Up to this number it is not known what is a fence, and all stays that is there."""
        return self.reigns[0][0] if len(self.reigns) == _KNOWN_REIGNS else 0

    def without_fences(self, numbers: Iterable[int]) -> list[int]:
        """Those of the numbers of commits that are there which are known to be no fences up to it."""
        fences, oldest = self.fences, self.oldest
        return [n for n in numbers if n > oldest and n not in fences]


def commits_there(layout: Layout, floor: Floor, *, after: int = 0) -> list[int]:
    """The numbers above `after` of the commits that are there, rising, without the fences up to the floor.

    Of writers that are no longer known nobody would see what is a fence: what is there of their time stays.
    """
    return floor.without_fences(file_numbers(layout.commits, after=max(after, floor.oldest)))


def floor_number(layout: Layout) -> int:
    """The number of the newest floor; 0 if there is none. One listing of a folder of one or two files."""
    return max(file_numbers(layout.floors), default=0)


def read_floor(layout: Layout) -> Floor:
    """The newest floor. DATABASE_DAMAGED."""
    while number := floor_number(layout):
        path = layout.floor(number)
        try:
            value = layout.unseal(path)
        except FileNotFoundError:
            continue  # A higher one took its place.
        try:
            reigns = tuple((int(n), int(w), str(t)) for n, w, t in value["reigns"])
            return Floor(int(value["floor"]), reigns)
        except (AttributeError, KeyError, TypeError, ValueError) as cause:
            raise error("DATABASE_DAMAGED", f"floors/{path.name} is not a floor") from cause
    return Floor()


def raise_floor(layout: Layout, before: Floor, number: int, commits: Iterable[Commit]) -> Floor:
    """Announces, durably, that commits up to `number` are going to be deleted; the newest floor.

    before: the floor as it was read. commits: those above it up to `number`.
    """
    fences = ((c.number, c.writer, c.token) for c in commits if c.kind == "fence")
    reigns = (*before.reigns, *fences)[-_KNOWN_REIGNS:]
    path = layout.floor(number)
    value = {"floor": number, "reigns": reigns}
    try:
        storage.create_file(path, layout.seal(path, value), durable=layout.durable)
    except FileExistsError:
        pass  # By a writer that was overtaken: all writers say the same of the same commits.
    if layout.durable:
        storage.sync_directory(layout.floors)
    storage.remove_files(layout.floor(n) for n in file_numbers(layout.floors) if n < number)
    return Floor(number, reigns)
