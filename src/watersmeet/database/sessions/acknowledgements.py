"""Which rows of a subscription were handed out, and up to which row this is saved.

A request for rows acknowledges all rows handed out before: these never come again. When a query ends in any way other
than the end of its process, its exact position is saved.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from watersmeet.store.positions import Position, Positions

#: Without rows, the position is saved once it is this many commits ahead, so that these need not be kept.
_SAVED_COMMITS: Final = 256


@dataclass(slots=True)
class _Block:
    """Rows given in one go. position: of the first row that was not handed out. rows: from there on."""

    position: Position
    rows: int


class Acknowledgements:
    """The rows of one subscription on their way to its reader. Safe for several threads.

    ended: the subscription gives nothing after these rows.
    """

    def __init__(self, positions: Positions[Position], relation_id: str, position: Position) -> None:
        """position: the saved one."""
        self.ended = False
        self._positions = positions
        self._relation_id = relation_id
        self._lock = threading.Lock()
        self._blocks: deque[_Block] = deque()
        self._after = self._saved = position
        self._unread_rows = 0
        self._handed_out = False
        self._broken = self._over = False

    def gave(self, begin: Position, rows: int, after: Position) -> None:
        """Adds that many rows to come. begin: position of the first row; after: position after the last."""
        with self._lock:
            if rows:
                self._blocks.append(_Block(begin, rows))
                self._unread_rows += rows
            self._after = after

    def unread(self, rows: int) -> None:
        """Notes how many of the rows given are not handed out yet."""
        with self._lock:
            self._unread_rows = rows

    def lose(self) -> None:
        """Stops saving positions, as it is unknown which rows were handed out."""
        with self._lock:
            self._broken = True

    @property
    def finished(self) -> bool:
        """Whether all rows that there will ever be are handed out."""
        with self._lock:
            return self.ended and not (self._unread_rows or self._broken or self._over)

    def acknowledge(self) -> None:
        """Saves that the rows handed out must not come again."""
        with self._lock:
            if self._over:
                return
            position = self._position()
            if self._handed_out or position.since - self._saved.since >= _SAVED_COMMITS:
                self._save(position)

    def rest(self) -> None:
        """Ends the reading. The subscription continues after the last row handed out. May be called again."""
        with self._lock:
            if self._over:
                return
            self._over = True
            try:
                self._save(self._position())
            finally:
                self._positions.rest(self._relation_id)

    def _save(self, position: Position) -> None:
        if not self._broken:
            self._positions.save(self._relation_id, position)
            self._saved, self._handed_out = position, False

    def _position(self) -> Position:
        """The position of the first row that was not handed out."""
        handed = sum(b.rows for b in self._blocks) - self._unread_rows
        self._handed_out |= handed > 0
        while self._blocks and handed >= self._blocks[0].rows:
            handed -= self._blocks.popleft().rows
        if not self._blocks:
            return self._after
        first = self._blocks[0]
        first.position = replace(first.position, given=first.position.given + handed)
        first.rows -= handed
        return first.position
