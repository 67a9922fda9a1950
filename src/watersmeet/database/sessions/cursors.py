"""Open cursors and prepared statements of a session, and the positions of its subscriptions.

A request for rows acknowledges all rows returned before, which are never returned again. When a query ends, except by
the end of its process, its exact position is saved.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa
from sqlglot import exp

from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.database.sessions.result import Result, Running
from watersmeet.dialects.statements.preparing import Parameter, with_values
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import error
from watersmeet.store.positions import Position, Positions
from watersmeet.values.types import Schema

#: The interval at which a thread that waits for rows checks for a cancellation.
_CHECK_S: Final = 0.1

#: The time for which a FETCH without a timeout waits for committed rows.
_SETTLE_S: Final = 1.0


class Flow:
    """The rows of a running query, for a cursor. waits: whether FETCH without a timeout waits for the first row."""

    def __init__(self, running: Running, cancellation: Cancellation, *, waits: bool = True) -> None:
        self._running, self._cancellation, self._waits = running, cancellation, waits
        self._pending: pa.Table | None = None

    @property
    def is_done(self) -> bool:
        """Whether no more rows follow."""
        return self._running.ended and not self._count

    def take(self, most: int | None, timeout_s: float | None = None) -> pa.Table:
        """The next rows, at most `most`. Without a timeout: the rows that have arrived, or the first that arrive. With
        a timeout: the rows that arrive in this time, up to `most`. Raises QUERY_CANCELED.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._waits or timeout_s == 0:
            self._running.settle(_SETTLE_S)
        while True:
            ended = self._running.ended
            self._fill(most)
            enough = self._count >= (1 if until_s is None or most is None else most)
            if ended or (enough and (until_s is None or most is not None)):
                break
            left_s = (_CHECK_S if self._waits else 0) if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                break
            if self._cancellation.canceled:
                raise error("QUERY_CANCELED", "the statement was canceled")
            self._running.wait(min(left_s, _CHECK_S))
        assert self._pending is not None
        found = self._pending if most is None else self._pending.slice(0, most)
        self._pending = self._pending.slice(found.num_rows)
        self._running.unread(self._pending.num_rows)
        return found

    def close(self) -> None:
        """Ends the query."""
        self._running.close()

    @property
    def _count(self) -> int:
        return 0 if self._pending is None else int(self._pending.num_rows)

    def _fill(self, most: int | None) -> None:
        """Takes rows until there are enough or no more arrive."""
        while most is None or self._count < most:
            rows = self._running.rows()
            before = self._count
            self._pending = rows if self._pending is None else pa.concat_tables([self._pending, rows])
            if self._count == before:
                return


@dataclass
class OpenCursor:
    """A cursor: the result of a statement, and the position in its rows. Portals of protocols are also cursors.

    result: set once the statement ran. position: the number of rows before the next one. declared: whether DECLARE
    created it. held: whether it outlives its transaction. binary: whether the protocol sends its rows in binary. flow:
    the rows of a running query. run: runs the statement of a portal.
    """

    result: Result | None = None
    position: int = 0
    declared: bool = False
    held: bool = False
    binary: bool = False
    flow: Flow | None = None
    run: Callable[[], object] | None = None

    @property
    def table(self) -> pa.Table:
        """All rows of the statement, which must have run."""
        assert self.result is not None
        assert self.result.table is not None
        return self.result.table

    @property
    def is_done(self) -> bool:
        """Whether no rows are left."""
        return bool(self.position >= self.table.num_rows)

    def take(self, most: int) -> pa.Table:
        """The next rows, at most `most` (0: all)."""
        table = self.table
        end = table.num_rows if most <= 0 else min(self.position + most, table.num_rows)
        found = table.slice(self.position, end - self.position)
        self.position = end
        return found

    def fetch(
        self, kind: Literal["next", "absolute", "relative"], count: int | None, timeout_s: float | None = None
    ) -> pa.Table:
        """The rows of FETCH. count: None for all following rows. timeout_s: the time to wait for rows of a running
        query.

        Raises FEATURE_NOT_SUPPORTED for directions other than forward in a running query.
        """
        if self.result is None and self.run is not None:
            self.run()
        if self.flow is not None:
            if kind != "next" or (count is not None and count < 0):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    "a cursor over a query that runs until it is stopped can only fetch forward",
                    hint="Write FETCH n FROM cursor.",
                )
            return self.flow.take(count, timeout_s)
        table, total = self.table, self.table.num_rows
        if kind == "next" and (count is None or count >= 0):
            start = min(self.position, total)
            found = table.slice(start, count)
            self.position = start + count if found.num_rows == count else total + 1
            return found
        assert count is not None
        if kind == "next":
            start, end = max(self.position - 1 + count, 0), max(self.position - 1, 0)
            self.position = start + (1 if end - start == -count else 0)
            found = table.slice(start, min(end, total) - start)
            return found.take(pa.array(range(found.num_rows - 1, -1, -1), pa.int64()))
        row = self.position + count if kind == "relative" else count
        if kind == "absolute" and row < 0:
            row = total + 1 + row
        self.position = max(0, min(row, total + 1))
        return table.slice(row - 1, 1) if 1 <= row <= total else table.slice(0, 0)

    def close(self) -> None:
        """Ends its running query, if any."""
        if self.flow is not None:
            self.flow.close()


class Cursors(dict[str, OpenCursor]):
    """The open cursors of a session, by name."""

    def named(self, name: str) -> OpenCursor:
        """The cursor with a name. Raises UNDEFINED_CURSOR."""
        if name not in self:
            raise error("UNDEFINED_CURSOR", f'cursor "{name}" does not exist' if name else "there is no unnamed portal")
        return self[name]

    def drop(self, names: Iterable[str]) -> None:
        """Ends the open cursors with some names."""
        for name in list(names):
            cursor = self.pop(name, None)
            if cursor is not None:
                cursor.close()

    def drop_unheld(self) -> None:
        """Ends the cursors that don't outlive a transaction."""
        self.drop([n for n, c in self.items() if not c.held])

    def check_new(self, name: str) -> None:
        """Raises DUPLICATE_CURSOR if the name is taken."""
        if name in self:
            raise error("DUPLICATE_CURSOR", f'cursor "{name}" already exists')

    def check_size(self, most_bytes: int) -> None:
        """Raises RESULT_LIMIT, and closes all cursors, if they are together larger than the maximum result (0: no
        limit).
        """
        held = [c.result.table for c in self.values() if c.result is not None and c.result.table is not None]
        if most_bytes and sum(table.nbytes for table in held) > most_bytes:
            self.clear()
            raise error(
                "RESULT_LIMIT",
                "the results that cursors and portals hold are too large",
                detail=f"They may have {most_bytes} bytes here, all together. They were closed.",
                hint="Close cursors that are not needed, ask for less, or set max_result_size.",
            )


@dataclass
class Prepared:
    """A statement that is parsed once and run with different values each time.

    statement: None for an empty text. numbers: the numbers of the parameters, from 1, in the order of the text. result:
    an empty result with the columns; None if the statement returns no rows. described: the state of the session from
    which the columns follow.
    """

    text: str
    statement: Statement | None
    numbers: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    result: Result | None = None
    described: Hashable = None

    @property
    def columns(self) -> Schema | None:
        """The columns of its rows; None if it returns no rows."""
        return None if self.result is None else self.result.columns

    def bound(self, values: Sequence[exp.Expression]) -> Statement | None:
        """The statement with a value for each parameter; None for an empty statement."""
        return None if self.statement is None else with_values(self.statement, [values[n - 1] for n in self.numbers])


#: The number of commits without rows after which the position is saved, so that these commits can be deleted.
_SAVED_COMMITS: Final = 256


@dataclass(slots=True)
class _Block:
    """Rows that were received together. position: the position of the first unreturned row. rows: the rows from there
    on.
    """

    position: Position
    rows: int


class Acknowledgements:
    """The rows of a subscription that its reader has not acknowledged. Thread-safe.

    ended: whether no more rows follow.
    """

    def __init__(self, positions: Positions[Position], relation_id: str, position: Position) -> None:
        """position: the saved position."""
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
        """Adds `count` rows. begin: the position of the first row. after: the position after the last row."""
        with self._lock:
            if rows:
                self._blocks.append(_Block(begin, rows))
                self._unread_rows += rows
            self._after = after

    def unread(self, rows: int) -> None:
        """Records how many of the rows are not returned yet."""
        with self._lock:
            self._unread_rows = rows

    def lose(self) -> None:
        """Stops saving positions, because it is unknown which rows were returned."""
        with self._lock:
            self._broken = True

    @property
    def finished(self) -> bool:
        """Whether the subscription has ended and all its rows are returned."""
        with self._lock:
            return self.ended and not (self._unread_rows or self._broken or self._over)

    def acknowledge(self) -> None:
        """Saves the position after the returned rows, so that they are never returned again."""
        with self._lock:
            if self._over:
                return
            position = self._position()
            if self._handed_out or position.since - self._saved.since >= _SAVED_COMMITS:
                self._save(position)

    def end_reading(self) -> None:
        """Ends the reading. The subscription continues after the last returned row. It may be called again."""
        with self._lock:
            if self._over:
                return
            self._over = True
            try:
                self._save(self._position())
            finally:
                self._positions.idle(self._relation_id)

    def _save(self, position: Position) -> None:
        if not self._broken:
            self._positions.save(self._relation_id, position)
            self._saved, self._handed_out = position, False

    def _position(self) -> Position:
        """The position of the first unreturned row."""
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
