"""Workers and budgets: how many tasks run, and how much they may read, merge and keep in memory.

The workers that run tasks: how many there are, and how much memory each may use.

How much one epoch may read: it grows while there is a backlog, so that throughput wins over latency only then.

And how much of its state it may merge, so that no epoch waits for what can be done in the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.kernel.runs.trace import MERGE_BYTES, SEGMENT_BYTES
from watersmeet.system.process import bytes_of, container_bytes

WORKER: Final = "WATERSMEET_WORKER_BYTES"

"""Environment of the process that writes: how much memory a worker may use, with the files that it maps. Without it,
workers on its own machine share half of the memory of its container; where that has no limit either, each uses as much
as it needs for epochs of full size, which is some 1.3 GB of its own.
"""

#: The part of a container's memory that workers share. The rest is for Java, for the process that writes, for queries.
_WORKERS_PART: Final = 2

#: With less than this, what a worker frees goes back, and state does not stay in memory by chance.
_SMALL_BYTES: Final = 2 << 30

#: The parts of a worker's memory that a bucket's input of an epoch may be, and what is merged at a time: several copies
#: of it are there at a time.
_INPUT_PART: Final = 8

_MERGED_PART: Final = 16

#: And the part that is for the pages of state that stay.
_STAYING_PART: Final = 3


@dataclass(frozen=True)
class Workers:
    """count: how many tasks run at a time. memory_bytes: how much memory each worker may use; None: all it needs."""

    count: int = 1
    memory_bytes: int | None = None

    @property
    def are_small(self) -> bool:
        """Whether each has so little memory that it keeps none of what it has freed."""
        return self.memory_bytes is not None and self.memory_bytes < _SMALL_BYTES

    @property
    def input_bytes(self) -> int | None:
        """How large the input of a bucket may be in one epoch."""
        return None if self.memory_bytes is None else max(1, self.memory_bytes // _INPUT_PART)

    @property
    def piece_bytes(self) -> int | None:
        """How much is merged at a time."""
        return None if self.memory_bytes is None else max(1, min(SEGMENT_BYTES, self.memory_bytes // _MERGED_PART))

    def stay_bytes(self, buckets: int) -> int | None:
        """Of how much of the state of each of so many buckets the pages stay in memory."""
        if self.memory_bytes is None:
            return None
        return self.memory_bytes // (_STAYING_PART * max(1, -(-buckets // self.count)))


def workers_here(count: int = 1) -> Workers:
    """So many workers in the container of this process. Raises Error INVALID_PARAMETER if WORKER is no number."""
    given = bytes_of(WORKER)
    if given is None and (container := container_bytes()) is not None:
        given = max(1, container // (_WORKERS_PART * count))
    return Workers(count, given)


def workers_elsewhere(count: int) -> Workers:
    """So many workers in containers of which nothing is known here. Raises Error as `workers_here`."""
    return Workers(count, bytes_of(WORKER))


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
