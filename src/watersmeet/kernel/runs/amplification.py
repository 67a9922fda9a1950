"""How many rows a join makes of a change: for each key, rows times matches, known before the first row is made."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.metrics import RowsByKey, busiest
from watersmeet.kernel.runs.matching import Probe

#: More than any limit: products of many counts may not fit in 64 bits.
_BEYOND: Final = 1 << 62
_TEXT_CHARACTERS: Final = 80


class Amplification:
    """The rows that one step of one operator makes.

    rows: of all keys. hottest: the most that are made of one key.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.hottest = 0
        self._place: tuple[Probe, int] | None = None
        self._terms: list[tuple[Probe, np.ndarray]] = []

    def add(self, probe: Probe, made: np.ndarray) -> None:
        """Adds rows by key of the probe. made: floats where products may be beyond 64 bits."""
        if not len(made):
            return
        self.rows = min(_BEYOND, self.rows + int(made.sum()))
        self._terms.append((probe, made))
        group = int(made.argmax())
        if made[group] > self.hottest:
            self.hottest = min(_BEYOND, int(made[group]))
            self._place = probe, group

    @property
    def busiest(self) -> RowsByKey:
        """As in `Counters`."""
        if not self.rows:
            return ()
        found: dict[int, int] = {}
        for key, rows in (pair for probe, made in self._terms for pair in busiest(probe.hashes, made)):
            found[key] = found.get(key, 0) + rows
        return busiest(np.array(list(found), np.uint64), np.array(list(found.values()), np.int64))

    def hottest_key(self) -> tuple[str | None, ...]:
        """The values of the key of which most rows are made, as texts; none for a join without a key."""
        if self._place is None:
            return ()
        probe, group = self._place
        return tuple(shown(a[int(probe.starts[group])]) for a in probe.run.key_arrays)


class TooManyRowsError(Exception):
    """An operator would make more rows than it may: nothing of its output was made."""


def shown(value: pa.Scalar) -> str | None:
    """A value of a key as text, cut if it is long; None for NULL."""
    if not value.is_valid:
        return None
    try:
        text = str(value.as_py())
    except (ValueError, OverflowError):  # a time that Python's types lack
        text = str(value.cast(pa.int64()))
    return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS] + "…"


def pairs(probe: Probe, matches: col.Positions) -> col.Positions:
    """By key of the probe, its rows times their matches."""
    return probe.lengths * matches
