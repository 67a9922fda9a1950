"""Where a piece of a stored file is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Pieces = Sequence[bytes | memoryview]
"""The bytes of a blob, in pieces that lie anywhere in memory."""


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


def joined(blob: Pieces) -> pa.Buffer:
    """The bytes of a blob in one piece, at a multiple of 64 bytes."""
    buffer = pa.allocate_buffer(sum(map(len, blob)))
    target, end = memoryview(buffer).cast("B"), 0
    for piece in blob:
        target[end : end + len(piece)] = piece
        end += len(piece)
    return buffer


Ranges = npt.NDArray[np.int64]
"""Ranges of bytes: of each [begin, end), as a row."""


class BlobParts(Protocol):
    """The bytes of a blob that is elsewhere, of which only some are here.

    buffer: as long as the blob. What has not been fetched must not be read: it is undefined.
    """

    buffer: pa.Buffer

    def missing_bytes(self, ranges: Ranges) -> int:
        """How many bytes `fetch` would have to get from elsewhere for these ranges."""
        ...

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """Has ranges of blobs of one store, this one's among them, in their buffers, with as few waits as possible.

        STATE_DAMAGED, naming the file, if bytes are missing or not those that were written.
        """
        ...
