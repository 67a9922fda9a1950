"""How far the changes of a database are in the tables: part of the commit that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

#: Numbers of transactions have 64 bits, and 32 in the messages of changes.
_WRAP = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """Which transactions a reader saw: those below `xmax` that are not in `running`.

    PostgreSQL, "pg_snapshot".
    """

    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Snapshot:
        """The snapshot that `pg_current_snapshot()` shows."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), tuple(int(x) for x in running.split(",") if x))

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the transactions, by the lower 32 bits of their numbers, it saw."""
        behind = (self.xmax - xids) % _WRAP
        behind = np.where(behind > _WRAP // 2, behind - _WRAP, behind)
        running = np.isin(xids, np.array([x % _WRAP for x in self.running], np.int64))
        seen: npt.NDArray[np.bool_] = (behind > 0) & ~running
        return seen


@dataclass(frozen=True)
class Chunk:
    """Rows of a table of PostgreSQL that were read by their key.

    upto: the texts of the greatest key; empty: to the end. snapshot: what the reader saw. high_lsn: all that it saw was
    committed before that place.
    """

    upto: tuple[str, ...]
    snapshot: Snapshot
    high_lsn: int


@dataclass(frozen=True)
class TablePosition:
    """How far a table is.

    upto: the rows up to that key were read; empty: none yet. done: all were. rows: how many. chunks: of PostgreSQL,
    the newest of them, as far as changes may still come that they have already; the keys of those before are up to
    `settled`. stalled: why it follows no more; empty if it does.
    """

    done: bool = False
    upto: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    stalled: str = ""

    def behind(self, lsn: int) -> TablePosition:
        """The position when all changes before that place are in the table."""
        left = tuple(c for c in self.chunks if c.high_lsn > lsn)
        if len(left) == len(self.chunks):
            return self
        settled = self.chunks[len(self.chunks) - len(left) - 1].upto
        return replace(self, chunks=left, settled=settled)

    @property
    def takes_all(self) -> bool:
        """Whether every change that comes is one of its rows, and new."""
        return self.done and not self.chunks


@dataclass(frozen=True)
class DatabasePosition:
    """How far a database is: everything that was committed there before `place` is here. tables: by their ids.
    history: see `Stream`. letters: the number of the newest commit that set rows aside; later dead letters are of
    commits that were not made.
    """

    place: str
    tables: Mapping[str, TablePosition] = field(default_factory=dict)
    history: str = ""
    letters: int = 0

    def of(self, table_id: str) -> TablePosition | None:
        """The position of a table; None if it is new."""
        return self.tables.get(table_id)
