"""Where a piece of a stored file is."""

from __future__ import annotations

from typing import NamedTuple


class BlobRef(NamedTuple):
    """Bytes [offset_bytes, offset_bytes + length_bytes) of `file`. rows: of the table in it.

    file: its name among those of a database, or in a state store; "" for "the pack in which this is written".
    """

    file: str
    offset_bytes: int
    length_bytes: int
    rows: int

    def within(self, pack: str) -> BlobRef:
        """The reference as seen from outside: `pack` is the name of the pack in whose footer it was found."""
        return self if self.file else self._replace(file=pack)
