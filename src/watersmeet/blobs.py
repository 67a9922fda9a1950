"""Where a piece of a stored file is."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: Hashes are below this.
HASHES: Final = 1 << 64

_WHOLE: Final = [str, int, int, int]
_BOUNDED: Final = [*_WHOLE, int, int]


class BlobRef(NamedTuple):
    """Bytes [offset_bytes, offset_bytes + length_bytes) of `file`. rows: of the table in it.

    file: its name among those of a database, or in a state store; "" for "the pack in which this is written".
    low, high: of a run, which of its rows count: those whose distribution has a hash in [low, high). So several buckets
    can share a run. `rows` and `length_bytes` are those of all rows.

    Its JSON form is a list, without bounds if there are none.
    """

    file: str
    offset_bytes: int
    length_bytes: int
    rows: int
    low: int = 0
    high: int = HASHES

    @property
    def is_whole(self) -> bool:
        """Whether all rows count."""
        return self.low == 0 and self.high == HASHES

    def within(self, pack: str) -> BlobRef:
        """The reference as seen from outside: `pack` is the name of the pack in whose footer it was found."""
        return self if self.file else self._replace(file=pack)

    def to_json(self) -> list[Any]:
        """The JSON form."""
        return list(self[:4] if self.is_whole else self)

    @staticmethod
    def from_json(value: Any) -> BlobRef:
        """The inverse of `to_json`. ValueError."""
        if not isinstance(value, list) or list(map(type, value)) not in (_WHOLE, _BOUNDED):
            raise ValueError(f"not the JSON form of BlobRef: {value!r}")
        return BlobRef(*value)
