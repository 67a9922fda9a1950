"""The workers that run tasks: how many there are, and how much memory each may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.environment import bytes_of
from watersmeet.kernel.runs.merge import SEGMENT_BYTES
from watersmeet.machine import container_bytes

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
