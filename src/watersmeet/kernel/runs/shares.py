"""References to stored runs and to parts of them. After the number of buckets has changed, several buckets read one
run.

A share is the rows of a run whose hashes are in some ranges. Assigning a run to other buckets reads nothing of it and
only writes a reference. If the run is sorted by that hash, a share is a slice; otherwise its rows are selected when a
bucket first reads it, and stored separately in the same epoch. Rows that a merge has taken are no longer referenced:
the remaining rows begin at a hash.

Hot keys have many rows in a run; they are found when the run is stored, and kept with its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.epochs import Keys
from watersmeet.errors import error
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.metrics import RowsByKey, busiest
from watersmeet.kernel.runs.matching import shown
from watersmeet.kernel.runs.run import Merging, Run
from watersmeet.system.blobs import BlobRef

#: Smaller runs have no hot keys.
LEAST_ROWS: Final = 1024

#: The maximum number of hot keys of a run; each has at least one in this many rows.
MOST_KEYS: Final = 16

PART: Final = 256


class HotKey(NamedTuple):
    """A key of a run. hash: its hash. rows: the number of its entries. values: its values as texts, None for NULL."""

    hash: int
    rows: int
    values: tuple[str | None, ...]


class HotKeys(NamedTuple):
    """The hot keys of a run, the hottest first. keys: the positions of the key columns."""

    keys: tuple[int, ...]
    found: tuple[HotKey, ...]

    @property
    def rows(self) -> int:
        """The number of entries of all keys."""
        return sum(key.rows for key in self.found)

    def between(self, low: int, high: int) -> HotKeys | None:
        """The hot keys with hashes in [low, high); None without any."""
        found = tuple(key for key in self.found if low <= key.hash < high)
        return HotKeys(self.keys, found) if found else None

    def scaled(self, part: float) -> HotKeys:
        """The same keys, with their numbers of rows times `part`."""
        return HotKeys(self.keys, tuple(key._replace(rows=round(key.rows * part)) for key in self.found))

    @staticmethod
    def from_json(value: Any) -> HotKeys:
        """The inverse of `json`: a tuple as a list."""
        keys, found = value
        return HotKeys(tuple(keys), tuple(HotKey(hash_, rows, tuple(values)) for hash_, rows, values in found))


def busiest_of(change: Run) -> RowsByKey:
    """The keys with the most rows in the change of an epoch; see `Counters`."""
    if not change.keys:
        return ()
    starts, lengths = change.stretches
    return busiest(change.hash, lengths, starts)


def hot_keys(run: Run) -> HotKeys | None:
    """The hot keys of a run; None if it has none, or too few rows."""
    if run.num_rows < LEAST_ROWS or not run.keys:
        return None
    starts, lengths = run.stretches
    places = np.flatnonzero(lengths >= max(2, run.num_rows // PART))
    places = places[np.argsort(-lengths[places], kind="stable")][:MOST_KEYS]
    found = tuple(
        HotKey(int(run.hash[row]), int(rows), tuple(shown(a[row]) for a in run.key_arrays))
        for row, rows in zip(starts[places].tolist(), lengths[places].tolist(), strict=True)
    )
    return HotKeys(run.keys, found) if found else None


#: Hashes are below this.
HASHES: Final = 1 << 64


class HashRange(NamedTuple):
    """The rows whose hash is in [low, high). keys: the hashed values, each being the first non-NULL value of some
    columns.
    """

    keys: Keys
    low: int
    high: int

    @property
    def width(self) -> int:
        """The number of hashes."""
        return self.high - self.low

    def common(self, other: HashRange) -> HashRange:
        """The intersection, whose width is not positive if it is empty. other: a range of the same keys."""
        return HashRange(self.keys, max(self.low, other.low), min(self.high, other.high))


class Share(NamedTuple):
    """The rows of a run that are in all of `ranges`, which have different keys. part: their approximate fraction of all
    rows.
    """

    ranges: tuple[HashRange, ...]
    part: float

    @staticmethod
    def from_json(value: Any) -> Share:
        """The inverse of `json`: a tuple as a list."""
        ranges, part = value
        return Share(tuple(HashRange(tuple(map(tuple, keys)), low, high) for keys, low, high in ranges), part)


class Remainder(NamedTuple):
    """The rows of a run whose sort hash is not below `start`. rows: their number; approximate for a share."""

    start: int
    rows: int


class RunRef(NamedTuple):
    """Where a run is stored. share: the referenced rows, None for all. hot: its hot keys, approximate for a share.

    rest: the rows that a merge has not taken yet, None for all. merging: the merge that will take them.
    """

    blob: BlobRef
    share: Share | None = None
    hot: HotKeys | None = None
    rest: Remainder | None = None
    merging: Merging | None = None

    @property
    def file(self) -> str:
        """The file that contains the run."""
        return self.blob.file

    @property
    def rows(self) -> int:
        """The number of rows; approximate for a share."""
        return round(self._rows)

    @property
    def _rows(self) -> float:
        if self.rest is not None:
            return self.rest.rows
        return self.blob.rows * (1.0 if self.share is None else self.share.part)

    @property
    def size_bytes(self) -> int:
        """The number of bytes, approximate for a part."""
        if self.share is None and self.rest is None:
            return self.blob.length_bytes
        return round(self.blob.length_bytes * self._rows / max(1, self.blob.rows))

    def within(self, segment: str) -> RunRef:
        """See `BlobRef.within`."""
        return self._replace(blob=self.blob.within(segment))

    def behind(self, start: int, rows: int) -> RunRef:
        """A reference to the rows whose hash is not below `start`. rows: their number."""
        hot = None if self.hot is None else self.hot.between(start, HASHES)
        return self._replace(hot=hot, rest=Remainder(start, rows))

    def narrowed(self, wanted: HashRange, known: HashRange, *, strays: bool = False) -> RunRef | None:
        """A reference to the rows in `wanted`; None if there are none.

        known: the range of all rows, with the same keys. strays: whether some rows of hot keys may be outside of it.
        """
        ranges = {} if self.share is None else {r.keys: r for r in self.share.ranges}
        before = ranges.get(wanted.keys, HashRange(wanted.keys, 0, HASHES) if strays else known)
        found = before.common(wanted)
        if found.width <= 0:
            return None
        if found == before:
            return self
        likely = before.common(known)
        part = max(0, likely.common(found).width) / likely.width if likely.width > 0 else 0.0
        rows, hot = self._rows, self.hot
        if hot is not None and wanted.keys == tuple((k,) for k in hot.keys):
            inside = hot.between(found.low, found.high)
            rows = max(0.0, rows - hot.rows) * part + (0 if inside is None else inside.rows)
            hot = inside
        else:
            rows, hot = rows * part, None if hot is None else hot.scaled(part)
        share = Share(tuple({**ranges, found.keys: found}.values()), rows / max(1, self.blob.rows))
        rest = None if self.rest is None else self.rest._replace(rows=round(rows))
        return self._replace(share=share, hot=hot, rest=rest)

    def to_json(self) -> list[Any]:
        """The JSON form: the fields of the blob, followed by the other fields up to the last non-empty one."""
        more = list(self[1:])
        while more and more[-1] is None:
            more.pop()
        return [*self.blob, *more]

    @staticmethod
    def from_json(value: Sequence[Any]) -> RunRef:
        """The inverse of `to_json`."""
        width = len(BlobRef._fields)
        share, hot, rest, merging = [*value[width:], None, None, None, None][:4]
        return RunRef(
            BlobRef(*value[:width]),
            None if share is None else Share.from_json(share),
            None if hot is None else HotKeys.from_json(hot),
            None if rest is None else Remainder(*rest),
            None if merging is None else Merging(*merging),
        )


def load(ref: RunRef, buffer: pa.Buffer) -> Run:
    """The run of a reference, read from the bytes of its blob. Rows selected for a share are not stored yet.

    Raises STATE_DAMAGED if the bytes are not that run.
    """
    return shared(ref, Run.from_ipc(buffer, ref))


def shared(ref: RunRef, run: Run) -> Run:
    """Like `load`, given the run in the blob."""
    if run.num_rows != ref.blob.rows:
        raise error(
            "STATE_DAMAGED", f"a stored run has {run.num_rows} rows instead of {ref.blob.rows}", detail=f"{ref}."
        )
    run.merging = ref.merging
    if ref.rest is not None:
        run = run.part(int(np.searchsorted(run.hash, np.uint64(ref.rest.start))), run.num_rows)
    for wanted in () if ref.share is None else ref.share.ranges:
        if [(k,) for k in run.keys] == list(wanted.keys):
            start, stop = _places(run.hash, wanted)
            if stop - start < run.num_rows:
                run = run.part(start, stop)
        else:
            hashes = hash_columns([_first_known(run.arrays, key) for key in wanted.keys], run.num_rows)
            rows = np.flatnonzero((hashes >= np.uint64(wanted.low)) & (hashes <= np.uint64(wanted.high - 1)))
            if len(rows) < run.num_rows:
                part = run.take(rows)
                part.continues = run.continues
                run = part
    return run


def _places(hashes: Hashes, wanted: HashRange) -> tuple[int, int]:
    """The first index of a range in sorted hashes, and the index after its last."""
    start = int(np.searchsorted(hashes, np.uint64(wanted.low)))
    return start, int(np.searchsorted(hashes, np.uint64(wanted.high - 1), side="right"))


def _first_known(arrays: Sequence[pa.Array], key: tuple[int, ...]) -> pa.Array:
    """For each row, the first non-NULL value of some columns."""
    return arrays[key[0]] if len(key) == 1 else pc.coalesce(*[arrays[i] for i in key])
