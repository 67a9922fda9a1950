"""How much one epoch may read: it grows while there is a backlog, so that throughput wins over latency only then.

And how much of its state it may merge, so that no epoch waits for what can be done in the next ones.
"""

from __future__ import annotations

import os
from typing import Final

from watersmeet.errors import error
from watersmeet.kernel.runs.merge import MERGE_BYTES, SEGMENT_BYTES

MERGING: Final = "WATERSMEET_MERGE_BYTES"
"""Environment of the process that writes: how many bytes of runs each bucket of a stage merges in an epoch, or a few
times what the epoch brings if that is more.
"""
WORKER: Final = "WATERSMEET_WORKER_BYTES"
"""Environment of the process that writes: how much memory a worker may use, with the files that it maps; without it, as
much as it needs for epochs of full size, which is some 1.3 GB of its own.
"""
FIRST_ROWS: Final = 200_000
MAX_ROWS: Final = 2_000_000
FIRST_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20
#: An epoch that takes longer is not followed by a larger one.
LONG_EPOCH_S: Final = 5.0
_TOO_LONG: Final = 3
#: How much of what joins may make the next epoch is to use at most.
_JOINABLE: Final = 0.5
#: The parts of a worker's memory that a bucket's input of an epoch may be, and what is merged at a time: several copies
#: of it are there at a time.
_INPUT_PART: Final = 8
_MERGED_PART: Final = 16
#: And the part that is for the pages of state that stay.
_STAYING_PART: Final = 3


class Budget:
    """Rows and bytes of the next epoch.

    Starts small and doubles each time an epoch was cut short by it, up to the cap; halves when the
    backlog is gone, or when an epoch took far too long. No more rows than joins may make half of what they may of, if
    they go on to make as many of a row as in the newest epoch: so a backlog, or the history of a new view, is read in
    smaller epochs before a view is stopped for what a smaller one would not make.
    memory_bytes: what a worker may use; an epoch's input is an eighth of it for each bucket at most, and at least
    `FIRST_BYTES` in all. Where state does not fit into memory, each epoch reads most of it, so epochs are to be large.
    """

    def __init__(
        self, memory_bytes: int | None = None, *, first_rows: int = FIRST_ROWS, max_rows: int = MAX_ROWS
    ) -> None:
        self.buckets = 1
        """Among how many what is read is divided."""
        self._memory_bytes = memory_bytes
        self._first_rows = first_rows
        self._max_rows = max_rows
        self._factor = 1
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
        if self._memory_bytes is None:
            return MAX_BYTES
        return min(MAX_BYTES, max(FIRST_BYTES, self.buckets * self._memory_bytes // _INPUT_PART))

    def planned(self, *, limited: bool) -> None:
        """Takes note that an epoch was planned. limited: there was more to read than it could take."""
        most = max(1, min(self._max_bytes // FIRST_BYTES, self._max_rows // self._first_rows))
        self._factor = min(self._factor * 2, most) if limited else max(1, self._factor // 2)

    def ran(self, duration_s: float) -> None:
        """Takes note of how long an epoch took."""
        if duration_s > _TOO_LONG * LONG_EPOCH_S:
            self._factor = max(1, self._factor // 4)
        elif duration_s > LONG_EPOCH_S:
            self._factor = max(1, self._factor // 2)

    def joined(self, rows: int, used: float) -> None:
        """Takes note of an epoch of so many rows. used: what the join nearest to its limit made of what it may make."""
        if rows:
            self._joinable_rows = max(1, int(rows * _JOINABLE / used)) if used > 0 else None


def worker_bytes() -> int | None:
    """What WORKER says; None if it says nothing. Raises Error INVALID_PARAMETER if that is no number of bytes."""
    return _bytes_of(WORKER)


def merge_bytes() -> int:
    """What MERGING says, else MERGE_BYTES. Raises Error INVALID_PARAMETER if that is no number of bytes."""
    return _bytes_of(MERGING) or MERGE_BYTES


def merge_piece_bytes(memory_bytes: int | None) -> int | None:
    """How much is merged at a time by a worker that may use so much memory."""
    return None if memory_bytes is None else max(1, min(SEGMENT_BYTES, memory_bytes // _MERGED_PART))


def stay_bytes(memory_bytes: int | None) -> int | None:
    """Of how much of a bucket's state the pages stay in the memory of a worker that may use so much."""
    return None if memory_bytes is None else memory_bytes // _STAYING_PART


def _bytes_of(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise error("INVALID_PARAMETER", f'{name} is a number of bytes above 0, not "{text}"')
    return int(text)
