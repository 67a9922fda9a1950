"""Rows of queries that run until they are stopped: a few at a time for FETCH and portals, or all as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import pyarrow as pa

from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.database.sessions.result import Running
from watersmeet.errors import error
from watersmeet.subscribing.opening import ShownUpdates

#: So often a thread that waits for rows looks whether it should end.
_LOOK_S: Final = 0.1
#: So often the event loop looks whether a client that waits for rows is still there.
_CLIENT_S: Final = 2.0
#: How long a FETCH that does not wait gives what is committed to reach it.
_SETTLE_S: Final = 1.0

#: Runs what blocks in a thread.
Work = Callable[..., Any]
#: Makes of rows what is sent.
Encode = Callable[[pa.Table], bytes]


class Send(Protocol):
    """Sends what was encoded, maybe nothing. is_first: of the first rows."""

    async def __call__(self, part: bytes, *, is_first: bool) -> None: ...


class Flow:
    """The rows of a running query, for a portal. waits: whether FETCH without a timeout waits for the first row."""

    def __init__(self, running: Running, cancellation: Cancellation, *, waits: bool = True) -> None:
        self._running, self._cancellation, self._waits = running, cancellation, waits
        self._pending: pa.Table | None = None

    @property
    def is_done(self) -> bool:
        """Whether no more rows come."""
        return self._running.ended and not self._count

    def take(self, most: int | None, timeout_s: float | None = None) -> pa.Table:
        """The next rows, at most so many. Without a timeout, those that there are, or the first that come. With one,
        what comes in that time, or so many rows. QUERY_CANCELED.
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
            left_s = (_LOOK_S if self._waits else 0) if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                break
            if self._cancellation.canceled:
                raise error("QUERY_CANCELED", "the statement was canceled")
            self._running.wait(min(left_s, _LOOK_S))
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
        """Takes rows until there are enough, or none comes."""
        while most is None or self._count < most:
            rows = self._running.rows()
            before = self._count
            self._pending = rows if self._pending is None else pa.concat_tables([self._pending, rows])
            if self._count == before:
                return


async def follow(
    running: Running, encode: Encode, how: object, work: Work, cancellation: Cancellation, send: Send
) -> int:
    """Sends the rows of a running query until it has no more, and closes it; their number. QUERY_CANCELED.

    how: see `encoded`.
    """
    total = 0
    cancellation.reset()
    try:
        async for part, rows in encoded(running, encode, how, work):
            if cancellation.canceled:
                raise error("QUERY_CANCELED", "canceling statement due to user request")
            await send(part, is_first=bool(rows) and not total)
            total += rows
    finally:
        await work(running.close)
    return total


async def encoded(running: Running, encode: Encode, how: object, work: Work) -> AsyncIterator[tuple[bytes, int]]:
    """The rows of a running query as they come, encoded, and how many they are; now and then nothing, so that the
    caller looks whether its client is still there. how: equal for encodings that give the same bytes.

    Subscribers wait in the event loop, and what one commit gives is encoded once for all. Others ask in threads.
    """
    if not isinstance(running, ShownUpdates):
        async for rows in _asked(running, work):
            yield (await work(encode, rows) if rows.num_rows else b""), rows.num_rows
        return
    subscriber = running.subscriber
    while True:
        update = await (work(subscriber.take) if subscriber.reads else _now(subscriber.take))
        if update is not None:
            yield running.encoded(update, how, encode)
        elif subscriber.ended:
            return
        else:
            yield b"", 0
            waiting = asyncio.ensure_future(subscriber.arrive())
            try:
                await asyncio.wait([waiting], timeout=_CLIENT_S)
            finally:
                waiting.cancel()


async def _asked(running: Running, work: Work) -> AsyncIterator[pa.Table]:
    while True:
        ended = running.ended
        yield await work(running.rows)
        if ended:
            return
        await work(running.wait, _LOOK_S)


async def _now(action: Callable[[], Any]) -> Any:
    return action()
