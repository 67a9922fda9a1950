"""Changes that are too many to be held at once: they are made slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from watersmeet.kernel.runs.delta import Delta


@dataclass(frozen=True)
class Slicing:
    """How large slices are, and where they wait if they have to.

    rows, bytes: output of more rows, or of about more bytes, is made in slices of that size, whichever is less.
    directory: where temporary files are made; None for the system's place.
    """

    rows: int = 1 << 20
    bytes: int = 64 << 20
    directory: str | None = None

    def rows_of(self, row_bytes: float) -> int:
        """The rows of a slice whose rows have about that many bytes; at least 1."""
        return max(1, min(self.rows, int(self.bytes / max(row_bytes, 1.0))))


class Sliced:
    """Changes as slices, which are made when they are read: each reading makes them anew.

    The slices one after the other are the changes in their order. Slices may be empty.
    """

    def __init__(self, make: Callable[[], Iterable[Delta]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Delta]:
        return iter(self._make())


def slices_of(changes: Delta | Sliced) -> Iterable[Delta]:
    """The slices of changes; those that are held at once are one."""
    return (changes,) if isinstance(changes, Delta) else changes
