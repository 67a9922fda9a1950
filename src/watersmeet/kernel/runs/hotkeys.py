"""Hot keys: those of which a run has many rows. They are found when a run is stored, and kept with its reference."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from watersmeet.kernel.metrics import RowsByKey, busiest
from watersmeet.kernel.runs.amplification import shown
from watersmeet.kernel.runs.run import Run

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
