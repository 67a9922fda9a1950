"""Where a piece of a stored file is."""

from __future__ import annotations

from typing import Any, NamedTuple


class BlobRef(NamedTuple):
    """Bytes [offset_bytes, offset_bytes + length_bytes) of `file`. rows: of the table in it.

    file: its name among those of a database, or in a state store; "" for "the pack in which this is written".
    """

    file: str
    offset_bytes: int
    length_bytes: int
    rows: int

    def to_json(self) -> list[Any]:
        """A JSON value from which `from_json` makes the same reference."""
        return list(self)

    @staticmethod
    def from_json(value: Any) -> BlobRef:
        """The inverse of `to_json`."""
        return BlobRef(*value)

    def within(self, pack: str) -> BlobRef:
        """The reference as seen from outside: `pack` is the name of the pack in whose footer it was found."""
        return self if self.file else self._replace(file=pack)
