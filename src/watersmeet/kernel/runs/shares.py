"""References to stored runs, and shares of them: after the number of buckets has changed, several buckets have one run.

A share is of all rows of a run whose hashes are in some ranges. So nothing of a run has to be read to give it to other
buckets, only a reference to be written. Of a run that is sorted by that hash a share is a slice; of others its rows are
picked out when a bucket first reads it, and stored by themselves in the same epoch.

What a merge has taken of a run is no longer referred to: its rest is that from a hash on.

Hot keys: those of which a run has many rows. They are found when a run is stored, and kept with its reference.
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

#: A run of fewer rows tells nothing.
LEAST_ROWS: Final = 1024

#: Told are so many keys of a run at most, each with at least one of so many rows.
MOST_KEYS: Final = 16

PART: Final = 256


class HotKey(NamedTuple):
    """A key of a run. hash: of the key. rows: entries of it. values: as texts, None for NULL."""

    hash: int
    rows: int
    values: tuple[str | None, ...]


class HotKeys(NamedTuple):
    """The hot keys of a run, the hottest first. keys: the columns whose values they are."""

    keys: tuple[int, ...]
    found: tuple[HotKey, ...]

    @property
    def rows(self) -> int:
        """Entries of all of them."""
        return sum(key.rows for key in self.found)

    def between(self, low: int, high: int) -> HotKeys | None:
        """Those with hashes in [low, high); None if there are none."""
        found = tuple(key for key in self.found if low <= key.hash < high)
        return HotKeys(self.keys, found) if found else None

    def scaled(self, part: float) -> HotKeys:
        """With a part of the rows of each."""
        return HotKeys(self.keys, tuple(key._replace(rows=round(key.rows * part)) for key in self.found))

    @staticmethod
    def from_json(value: Any) -> HotKeys:
        """The inverse of `json`: a tuple as a list."""
        keys, found = value
        return HotKeys(tuple(keys), tuple(HotKey(hash_, rows, tuple(values)) for hash_, rows, values in found))


def busiest_of(change: Run) -> RowsByKey:
    """Of an epoch's change, as in `Counters`."""
    if not change.keys:
        return ()
    starts, lengths = change.stretches
    return busiest(change.hash[starts], lengths)


def hot_keys(run: Run) -> HotKeys | None:
    """The keys of which the run has most rows; None if it has no such keys, or too few rows to tell."""
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
    """The rows whose hash is in [low, high). keys: of which values, each the first of some columns that is not NULL."""

    keys: Keys
    low: int
    high: int

    @property
    def width(self) -> int:
        """How many hashes there are."""
        return self.high - self.low

    def common(self, other: HashRange) -> HashRange:
        """What is in both; of no width if nothing is. other: of the same keys."""
        return HashRange(self.keys, max(self.low, other.low), min(self.high, other.high))


class Share(NamedTuple):
    """The rows of a run that are in all of `ranges`, of different keys. part: of all rows about so large a part."""

    ranges: tuple[HashRange, ...]
    part: float

    @staticmethod
    def from_json(value: Any) -> Share:
        """The inverse of `json`: a tuple as a list."""
        ranges, part = value
        return Share(tuple(HashRange(tuple(map(tuple, keys)), low, high) for keys, low, high in ranges), part)


class Remainder(NamedTuple):
    """The rows of a run with the hash by which it is sorted not below `start`. rows: how many; of a share about."""

    start: int
    rows: int


class RunRef(NamedTuple):
    """Where a run is stored. share: of its rows, None for all of them. hot: its hot keys, of a share about.

    rest: what a merge has left of it, None for all. merging: the merge under way that is to take it.
    """

    blob: BlobRef
    share: Share | None = None
    hot: HotKeys | None = None
    rest: Remainder | None = None
    merging: Merging | None = None

    @property
    def file(self) -> str:
        """The file that it is in."""
        return self.blob.file

    @property
    def rows(self) -> int:
        """How many rows; of a share about so many."""
        return round(self._rows)

    @property
    def _rows(self) -> float:
        if self.rest is not None:
            return self.rest.rows
        return self.blob.rows * (1.0 if self.share is None else self.share.part)

    @property
    def size_bytes(self) -> int:
        """How many bytes; of a part about so many."""
        if self.share is None and self.rest is None:
            return self.blob.length_bytes
        return round(self.blob.length_bytes * self._rows / max(1, self.blob.rows))

    def within(self, pack: str) -> RunRef:
        """As `BlobRef.within`."""
        return self._replace(blob=self.blob.within(pack))

    def behind(self, start: int, rows: int) -> RunRef:
        """The rows whose hash is not below `start`. rows: how many."""
        hot = None if self.hot is None else self.hot.between(start, HASHES)
        return self._replace(hot=hot, rest=Remainder(start, rows))

    def narrowed(self, wanted: HashRange, known: HashRange, *, strays: bool = False) -> RunRef | None:
        """Those of the rows that are in `wanted`; None if there are none.

        known: where all are, by the same keys. strays: there may be some elsewhere, of hot keys.
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
        """The JSON form: that of the blob, followed by the other fields as far as there are any."""
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
    """The run of a reference from the bytes of its blob. If its rows had to be picked out, it is yet to be stored.

    Raises Error STATE_DAMAGED if the bytes are not that run.
    """
    return shared(ref, Run.from_ipc(buffer, ref))


def shared(ref: RunRef, run: Run) -> Run:
    """The rows of a reference, of the run that is in its blob; as `load`."""
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
    """Where in sorted hashes those of a range begin and end."""
    start = int(np.searchsorted(hashes, np.uint64(wanted.low)))
    return start, int(np.searchsorted(hashes, np.uint64(wanted.high - 1), side="right"))


def _first_known(arrays: Sequence[pa.Array], key: tuple[int, ...]) -> pa.Array:
    """Of each row the first of some columns that is not NULL."""
    return arrays[key[0]] if len(key) == 1 else pc.coalesce(*[arrays[i] for i in key])
