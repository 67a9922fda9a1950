"""Workers and budgets: the number of tasks at a time, and how much they may read, merge and keep in memory.

An epoch's input grows while there is a backlog, because only then throughput matters more than latency. The merges of
an epoch are limited, so that no epoch waits for merges that later ones can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.connectors.base.sources import Allowance
from watersmeet.kernel.runs.trace import CHUNK_BYTES, MERGE_BYTES
from watersmeet.system.process import bytes_of, container_bytes

WORKER: Final = "WATERSMEET_WORKER_BYTES"

"""Environment variable of the writer: the memory of a worker, with mapped files. Without it, the workers on the
writer's machine share half of the memory of its container. If that is unlimited, each worker uses as much as epochs of
full size need, about 1.3 GB of its own.
"""

#: The part of a container's memory that workers share. Java, the writer and queries use the rest.
_WORKERS_PART: Final = 2

#: With less memory than this, a worker returns freed memory, and does not keep state in memory just because there is
#: room.
_SMALL_BYTES: Final = 2 << 30

#: The parts of a worker's memory for a bucket's input, and for the bytes merged at a time. Both have several copies.
_INPUT_PART: Final = 8

_MERGED_PART: Final = 16

#: The part of a worker's memory for pages of state that stay in memory.
_STAYING_PART: Final = 3


@dataclass(frozen=True)
class Workers:
    """The workers of one machine or cluster. count: the number of tasks at a time. memory_bytes: the memory of each
    worker; None if unlimited.
    """

    count: int = 1
    memory_bytes: int | None = None

    @property
    def are_small(self) -> bool:
        """Whether workers have so little memory that they return all freed memory."""
        return self.memory_bytes is not None and self.memory_bytes < _SMALL_BYTES

    @property
    def input_bytes(self) -> int | None:
        """The maximum input of a bucket in one epoch."""
        return None if self.memory_bytes is None else max(1, self.memory_bytes // _INPUT_PART)

    @property
    def piece_bytes(self) -> int | None:
        """The bytes that are merged at a time."""
        return None if self.memory_bytes is None else max(1, min(CHUNK_BYTES, self.memory_bytes // _MERGED_PART))

    def stay_bytes(self, buckets: int) -> int | None:
        """The bytes of each bucket's state whose pages stay in memory, for `buckets` buckets."""
        if self.memory_bytes is None:
            return None
        return self.memory_bytes // (_STAYING_PART * max(1, -(-buckets // self.count)))


def workers_here(count: int = 1) -> Workers:
    """Workers in the container of this process. Raises INVALID_PARAMETER if the variable WORKER isn't a number of
    bytes.
    """
    given = bytes_of(WORKER)
    if given is None and (container := container_bytes()) is not None:
        given = max(1, container // (_WORKERS_PART * count))
    return Workers(count, given)


def workers_elsewhere(count: int) -> Workers:
    """Workers in containers on other machines. Raises INVALID_PARAMETER like `workers_here`."""
    return Workers(count, bytes_of(WORKER))


MERGING: Final = "WATERSMEET_MERGE_BYTES"

"""Environment variable of the writer: the bytes of runs that each bucket of a stage merges in an epoch; a few times the
epoch's input if that is more.
"""

FIRST_ROWS: Final = 250_000
MAX_ROWS: Final = 2_000_000
FIRST_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20

#: If an epoch took longer than this, the next one is not larger.
LONG_EPOCH_S: Final = 5.0

#: While epochs take less than this and there is a backlog, the next ones grow twice as fast.
SHORT_EPOCH_S: Final = 1.0

_TOO_LONG: Final = 3

#: The time that a piece of history may take between live epochs, the rows of a history that is read alone, and those of
#: the first piece.
PIECE_S: Final = 0.06
PIECE_ROWS: Final = 100_000
FIRST_PIECE_ROWS: Final = 20_000

#: Pieces are not made smaller than this, because then each costs more than its rows do, …
LEAST_PIECE_ROWS: Final = 10_000

#: … unless one takes much longer than it may: then its rows are costly.
LEAST_COSTLY_ROWS: Final = 2_000
_MUCH_LONGER: Final = 8

#: The least number of live epochs that a fill replays before the next one runs, so that it catches up.
LEAST_REPLAYS: Final = 4

#: The state that each bucket of a stage merges in such a piece, for which live views wait as well.
PIECE_MERGE_BYTES: Final = 8 << 20

#: The part of the joins' limits that the next epoch may use.
_JOINABLE: Final = 0.5

#: Where memory is limited, each epoch may read most of the state, whatever its input, so epochs are larger and may take
#: longer.
LIMITED_ROWS: Final = 8_000_000

LIMITED_BYTES: Final = 1 << 30
_LONGER: Final = 4
_ANY_WORKERS: Final = Workers()


class Budget:
    """The maximum rows and bytes of the next epoch.

    It starts small and doubles after each epoch that it limited, up to a maximum; quadruples while epochs take less
    than a second; halves when the backlog is gone or an epoch took far too long. Rows are limited so that joins output
    at most half of their allowed rows, if they output as many for each input row as in the newest epoch: a backlog, or
    the history of a new view, is read in smaller epochs before a view is stopped. Where memory is limited (`workers`),
    epochs grow further: up to the memory for each bucket.
    """

    def __init__(
        self, *, first_rows: int = FIRST_ROWS, max_rows: int | None = None, workers: Workers = _ANY_WORKERS
    ) -> None:
        self.buckets = 1
        """The number of buckets that share the input."""
        self.workers = workers
        """The workers that run the epochs."""
        self._first_rows = first_rows
        self._given_rows = max_rows
        self._factor = 1
        self._growth = 2
        self._joinable_rows: int | None = None

    @property
    def rows(self) -> int:
        """The maximum number of rows of the next epoch."""
        rows = min(self._first_rows * self._factor, self.most_rows)
        return rows if self._joinable_rows is None else min(rows, self._joinable_rows)

    @property
    def bytes(self) -> int:
        """The maximum number of bytes of the next epoch."""
        return min(FIRST_BYTES * self._factor, self.most_bytes)

    @property
    def most_bytes(self) -> int:
        """The maximum number of bytes of any epoch."""
        input_bytes = self.workers.input_bytes
        if input_bytes is None:
            return MAX_BYTES
        return min(LIMITED_BYTES, max(FIRST_BYTES, self.buckets * input_bytes))

    @property
    def most_rows(self) -> int:
        """The maximum number of rows of any epoch."""
        if self._given_rows is not None:
            return self._given_rows
        return MAX_ROWS if self.workers.memory_bytes is None else LIMITED_ROWS

    def planned(self, *, limited: bool) -> None:
        """Record a planned epoch. limited: whether there was more to read."""
        most = max(1, min(self.most_bytes // FIRST_BYTES, self.most_rows // self._first_rows))
        self._factor = min(self._factor * self._growth, most) if limited else max(1, self._factor // 2)

    def ran(self, duration_s: float) -> None:
        """Record the duration of an epoch."""
        self._growth = 4 if duration_s < SHORT_EPOCH_S else 2
        long_s = LONG_EPOCH_S if self.workers.memory_bytes is None else _LONGER * LONG_EPOCH_S
        if duration_s > _TOO_LONG * long_s:
            self._factor = max(1, self._factor // 4)
        elif duration_s > long_s:
            self._factor = max(1, self._factor // 2)

    def joined(self, rows: int, used: float) -> None:
        """Record an epoch with that many rows. used: as in `limits.most_used`."""
        if rows:
            self._joinable_rows = max(1, int(rows * _JOINABLE / used)) if used > 0 else None


class PieceBudget:
    """The maximum rows and bytes of a piece of history between which live views run, so that their epochs wait for
    about `PIECE_S`. Never more than an epoch's, or than a limit of rows per second allows.
    """

    def __init__(self, epochs: Budget) -> None:
        self._epochs = epochs
        self._rows = float(min(FIRST_PIECE_ROWS, PIECE_ROWS))
        self.few_rows: Final = PIECE_ROWS
        """The rows of a history up to which live views wait for its end."""
        self._replay_s = max(1e-3, PIECE_S)
        self._rate: int | None = None
        self._allowance: Allowance | None = None
        self._allowed: int | None = None

    def allows(self, rate: int | None, now_us: int) -> bool:
        """Whether a piece may be read now. rate: the maximum number of rows per second; 0: none; None: any number."""
        if rate != self._rate:
            self._rate, self._allowance = rate, Allowance(rate) if rate else None
        self._allowed = self._allowance.at(now_us) if self._allowance is not None else rate
        return self._allowed != 0

    @property
    def rows(self) -> int:
        return self.unlimited_rows if self._allowed is None else min(self.unlimited_rows, self._allowed)

    @property
    def unlimited_rows(self) -> int:
        """The maximum number of rows without a limit of rows per second."""
        return max(1, min(int(self._rows), self._epochs.rows))

    @property
    def bytes(self) -> int:
        return self._epochs.bytes

    @property
    def replays(self) -> int:
        """The number of live epochs that are replayed before the next one runs: as many as take `PIECE_S`."""
        return max(LEAST_REPLAYS, int(PIECE_S / self._replay_s))

    def replayed(self, duration_s: float) -> None:
        """Record the duration of an epoch that replayed a live one."""
        self._replay_s = max(1e-3, (self._replay_s + duration_s) / 2)

    def planned(self, rows: int) -> None:
        """Record a planned piece."""
        if self._allowance is not None:
            self._allowance.take(rows)

    def ran(self, duration_s: float) -> None:
        """Record the duration of a piece, without the time that a piece of any size takes to store and to commit."""
        costly = duration_s > _MUCH_LONGER * PIECE_S
        least = min(LEAST_PIECE_ROWS, LEAST_COSTLY_ROWS if costly else self._rows)
        self._rows = max(least, self._rows * min(2.0, max(0.5, PIECE_S / max(duration_s, 1e-3))))


def merge_bytes() -> int:
    """The value of MERGING, else MERGE_BYTES. Raises INVALID_PARAMETER if that isn't a number of bytes."""
    return bytes_of(MERGING) or MERGE_BYTES
