"""References to stored runs, and shares of them: after the number of buckets has changed, several buckets have one run.

A share is of all rows of a run whose hashes are in some ranges. So nothing of a run has to be read to give it to other
buckets, only a reference to be written. Of a run that is sorted by that hash a share is a slice; of others its rows are
picked out when a bucket first reads it, and stored by themselves in the same epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.blobs import BlobRef
from watersmeet.circuit.placing import Keys
from watersmeet.errors import error
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.runs.run import Run


class HashRange(NamedTuple):
    """The rows whose hash is in [low, high). keys: of which values, each the first of some columns that is not NULL."""

    keys: Keys
    low: int
    high: int

    @property
    def width(self) -> int:
        """How many hashes there are."""
        return self.high - self.low


class Share(NamedTuple):
    """The rows of a run that are in all of `ranges`, of different keys. part: of all rows about so large a part."""

    ranges: tuple[HashRange, ...]
    part: float


class RunRef(NamedTuple):
    """Where a run is stored. share: of its rows, None for all of them."""

    blob: BlobRef
    share: Share | None = None

    @property
    def file(self) -> str:
        """The file that it is in."""
        return self.blob.file

    @property
    def rows(self) -> int:
        """How many rows; of a share about so many."""
        return self.blob.rows if self.share is None else round(self.blob.rows * self.share.part)

    @property
    def size_bytes(self) -> int:
        """How many bytes; of a share about so many."""
        return self.blob.length_bytes if self.share is None else round(self.blob.length_bytes * self.share.part)

    def within(self, pack: str) -> RunRef:
        """As `BlobRef.within`."""
        return self._replace(blob=self.blob.within(pack))

    def narrowed(self, wanted: HashRange, known: HashRange) -> RunRef | None:
        """Those of the rows that are in `wanted`; None if there are none. known: where all are, by the same keys."""
        ranges = {} if self.share is None else {r.keys: r for r in self.share.ranges}
        before = ranges.get(wanted.keys, known)
        low, high = max(wanted.low, before.low), min(wanted.high, before.high)
        if low >= high:
            return None
        if (low, high) == (before.low, before.high):
            return self
        ranges[wanted.keys] = HashRange(wanted.keys, low, high)
        part = (1.0 if self.share is None else self.share.part) * (high - low) / before.width
        return RunRef(self.blob, Share(tuple(ranges.values()), part))

    def to_json(self) -> list[Any]:
        """The JSON form: that of the blob, followed by the share if it is one."""
        blob = list(self.blob)
        return blob if self.share is None else [*blob, [list(r) for r in self.share.ranges], self.share.part]

    @staticmethod
    def from_json(value: Sequence[Any]) -> RunRef:
        """The inverse of `to_json`."""
        blob = BlobRef(*value[:4])
        if len(value) == len(blob):
            return RunRef(blob)
        ranges, part = value[4:]
        return RunRef(blob, Share(tuple(HashRange(tuple(map(tuple, r[0])), r[1], r[2]) for r in ranges), part))


def load(ref: RunRef, buffer: pa.Buffer) -> Run:
    """The run of a reference from the bytes of its blob. If its rows had to be picked out, it is yet to be stored.

    Raises Error STATE_DAMAGED if the bytes are not that run.
    """
    run = Run.from_ipc(buffer, ref)
    if run.num_rows != ref.blob.rows:
        raise error(
            "STATE_DAMAGED", f"a stored run has {run.num_rows} rows instead of {ref.blob.rows}", detail=f"{ref}."
        )
    for wanted in () if ref.share is None else ref.share.ranges:
        if [(k,) for k in run.keys] == list(wanted.keys):
            start, stop = _places(run.hash, wanted)
            if stop - start < run.num_rows:
                part = run.slice(start, stop)
                part.ref, part.continues, part.note = run.ref, run.continues, run.note  # what is true of more rows
                run = part
        else:
            hashes = hash_columns([_first_known(run.arrays, key) for key in wanted.keys], run.num_rows)
            rows = np.flatnonzero((hashes >= np.uint64(wanted.low)) & (hashes <= np.uint64(wanted.high - 1)))
            if len(rows) < run.num_rows:
                part = run.take(rows)
                part.continues = run.continues
                run = part
    return run


def _places(hashes: Hashes, wanted: HashRange) -> tuple[int, int]:
    """Where in sorted hashes those of a range begin and end."""
    start = int(np.searchsorted(hashes, np.uint64(wanted.low)))
    return start, int(np.searchsorted(hashes, np.uint64(wanted.high - 1), side="right"))


def _first_known(arrays: Sequence[pa.Array], key: tuple[int, ...]) -> pa.Array:
    """Of each row the first of some columns that is not NULL."""
    return arrays[key[0]] if len(key) == 1 else pc.coalesce(*[arrays[i] for i in key])
