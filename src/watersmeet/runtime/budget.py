"""How much one epoch may read: it grows while there is a backlog, so that throughput wins over latency only then.

And how much of its state it may merge, so that no epoch waits for what can be done in the next ones.
"""

from __future__ import annotations

from typing import Final

from watersmeet.environment import bytes_of
from watersmeet.kernel.runs.merge import MERGE_BYTES
from watersmeet.runtime.workers import Workers

MERGING: Final = "WATERSMEET_MERGE_BYTES"
"""Environment of the process that writes: how many bytes of runs each bucket of a stage merges in an epoch, or a few
times what the epoch brings if that is more.
"""
FIRST_ROWS: Final = 250_000
MAX_ROWS: Final = 2_000_000
FIRST_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20
#: An epoch that takes longer is not followed by a larger one.
LONG_EPOCH_S: Final = 5.0
#: While epochs take less than this, a backlog makes the next ones grow twice as fast.
SHORT_EPOCH_S: Final = 1.0
_TOO_LONG: Final = 3
#: How much of what joins may make the next epoch is to use at most.
_JOINABLE: Final = 0.5
#: Where memory is limited, each epoch may read most of the state, which does not become more with the input: so epochs
#: are larger, and may take longer.
LIMITED_ROWS: Final = 8_000_000
LIMITED_BYTES: Final = 1 << 30
_LONGER: Final = 4
_ANY_WORKERS: Final = Workers()


class Budget:
    """Rows and bytes of the next epoch.

    Starts small and doubles each time an epoch was cut short by it, up to the cap, or quadruples while epochs take less
    than a second; halves when the backlog is gone, or when an epoch took far too long. No more rows than joins may make
    half of what they may of, if they go on to make as many of a row as in the newest epoch: so a backlog, or the
    history of a new view, is read in smaller epochs before a view is stopped for what a smaller one would not make.
    Where memory is limited (`workers`), epochs grow further: up to what workers may have of each bucket at a time.
    """

    def __init__(
        self, *, first_rows: int = FIRST_ROWS, max_rows: int | None = None, workers: Workers = _ANY_WORKERS
    ) -> None:
        self.buckets = 1
        """Among how many what is read is divided."""
        self.workers = workers
        """Who runs the epochs."""
        self._first_rows = first_rows
        self._given_rows = max_rows
        self._factor = 1
        self._growth = 2
        self._joinable_rows: int | None = None

    @property
    def rows(self) -> int:
        """The most rows of the next epoch."""
        rows = min(self._first_rows * self._factor, self._max_rows)
        return rows if self._joinable_rows is None else min(rows, self._joinable_rows)

    @property
    def bytes(self) -> int:
        """The most bytes of the next epoch."""
        return min(FIRST_BYTES * self._factor, self._max_bytes)

    @property
    def _max_bytes(self) -> int:
        input_bytes = self.workers.input_bytes
        if input_bytes is None:
            return MAX_BYTES
        return min(LIMITED_BYTES, max(FIRST_BYTES, self.buckets * input_bytes))

    @property
    def _max_rows(self) -> int:
        if self._given_rows is not None:
            return self._given_rows
        return MAX_ROWS if self.workers.memory_bytes is None else LIMITED_ROWS

    def planned(self, *, limited: bool) -> None:
        """Takes note that an epoch was planned. limited: there was more to read than it could take."""
        most = max(1, min(self._max_bytes // FIRST_BYTES, self._max_rows // self._first_rows))
        self._factor = min(self._factor * self._growth, most) if limited else max(1, self._factor // 2)

    def ran(self, duration_s: float) -> None:
        """Takes note of how long an epoch took."""
        self._growth = 4 if duration_s < SHORT_EPOCH_S else 2
        long_s = LONG_EPOCH_S if self.workers.memory_bytes is None else _LONGER * LONG_EPOCH_S
        if duration_s > _TOO_LONG * long_s:
            self._factor = max(1, self._factor // 4)
        elif duration_s > long_s:
            self._factor = max(1, self._factor // 2)

    def joined(self, rows: int, used: float) -> None:
        """Takes note of an epoch of so many rows. used: what the join nearest to its limit made of what it may make."""
        if rows:
            self._joinable_rows = max(1, int(rows * _JOINABLE / used)) if used > 0 else None


def merge_bytes() -> int:
    """What MERGING says, else MERGE_BYTES. Raises Error INVALID_PARAMETER if that is no number of bytes."""
    return bytes_of(MERGING) or MERGE_BYTES
