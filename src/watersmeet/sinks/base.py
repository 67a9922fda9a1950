"""The contract of targets: where a sink writes what its relation changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Place(NamedTuple):
    """How far a sink was delivered: part `part` of commit `commit` is there, and all before it.

    generation: rises when a sink begins anew with the whole content; a target knows the newest one only. last: whether
    that was the last part of its commit.
    """

    generation: int
    commit: int
    part: int = 0
    last: bool = True


@dataclass(frozen=True)
class Portion:
    """What one transaction at a target has: all that a commit changed of a relation, or a part of it.

    rows: columns by the relation's names. diff: int64, how often each row came (+) or went (-); consolidated. time_us:
    of the commit, microseconds since 1970 (UTC). The same place always has the same rows in the same order.
    """

    place: Place
    rows: pa.Table
    diff: npt.NDArray[np.int64]
    time_us: int


class Unavailable(OSError):  # noqa: N818 - a state of the target that passes
    """The target can't be reached for now, or refused for a reason that passes: the delivery is tried again."""


class Target(Protocol):
    """One sink's place outside. Not thread-safe.

    Law: each portion is there once, or not at all, whatever happens between any two calls: `deliver` writes the rows
    and the place in one step, and `open` tells which place was written last.
    """

    def open(self, generation: int) -> Place | None:
        """Shuts out all writers of before, then gives the place of the newest portion that is there; None: none is.

        Unavailable; WRITER_FENCED if a newer generation writes there.
        """

    def deliver(self, portion: Portion) -> None:
        """Writes the portion and its place. Returns when the target has acknowledged both.

        Unavailable: it may be there or not; `open` again tells. WRITER_FENCED if a later writer was opened. Any other
        `Error` stops the sink: a row that the target never takes.
        """

    def close(self) -> None:
        """Gives up what is under way, and lets go of everything. May be called again."""
