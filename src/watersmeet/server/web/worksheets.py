"""A worksheet of the console: runs statements of a user in the session of a tab, and gives rows as JSON."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.server.backend import Backend
from watersmeet.server.datarows import text_columns
from watersmeet.server.messages import Column
from watersmeet.server.steps import Outcome
from watersmeet.server.traffic import Traffic
from watersmeet.session.access.result import Running
from watersmeet.types import Schema

T = TypeVar("T")

#: So many rows of a result are given at most.
MOST_ROWS: Final = 10_000
#: So many rows of a running query are sent at once.
_PORTION_ROWS: Final = 500
#: How long a running query is waited for before it is asked whether it goes on.
_WAIT_S: Final = 0.25
#: So many queries of one tab run at once.
_MOST_RUNNING: Final = 8
_NUMBERS: Final = itertools.count(1)


class Work(Protocol):
    """Runs what blocks in a thread."""

    async def __call__(self, action: Callable[..., T], *arguments: Any) -> T: ...


class Worksheet:
    """The session of one tab. One text runs at a time, queries that run until they are stopped beside it.

    send: takes an event and its data, for the tab; it waits while the tab has not taken what is before.
    """

    def __init__(self, backend: Backend, work: Work, send: Callable[[str, Any], Any], traffic: Traffic) -> None:
        self._backend = backend
        self._work = work
        self._send = send
        self._traffic = traffic
        self._busy = asyncio.Lock()
        self._running: dict[str, tuple[Running, asyncio.Task[None]]] = {}
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a statement or a query runs."""
        return self._busy.locked() or bool(self._running)

    async def run(self, text: str, dialect: str | None, most_rows: int) -> dict[str, Any]:
        """Runs the statements of a text in a dialect; the results as JSON, the last of them an error if one fails."""
        if self._busy.locked():
            raise error("SESSION_BUSY", "a statement of this worksheet runs already", hint="Stop it first.")
        async with self._busy:
            results: list[dict[str, Any]] = []
            session = self._backend.session
            session.cancellation.reset()
            timeout_ms = self._backend.settings.limit("statement_timeout")
            work = asyncio.ensure_future(self._work(self._outcomes, text, dialect, most_rows, results))
            try:
                done, _ = await asyncio.wait([work], timeout=timeout_ms / 1000 if timeout_ms else None)
                while not done:
                    session.cancellation.cancel()  # again, as a query that is about to begin forgets it
                    done, _ = await asyncio.wait([work], timeout=0.2)
                started = work.result()
            except asyncio.CancelledError:
                session.cancellation.cancel()
                raise
            for result, running, schema in started:
                result["query"] = self._follow(running, schema)
            return {"results": results, "dialect": session.dialect, "transaction": session.transaction is not None}

    async def stop(self, query: str | None) -> None:
        """Stops a running query; None: the statement that runs."""
        if query is None:
            self._backend.session.cancellation.cancel()
            return
        known = self._running.get(query)
        if known is None:
            raise error("UNDEFINED_OBJECT", f'query "{query}" does not run')
        await self._work(known[0].close)

    async def close(self) -> None:
        """Stops everything and gives the session back. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._backend.session.cancellation.cancel()
        for running, task in list(self._running.values()):
            await self._work(running.close)
            task.cancel()
        async with self._busy:
            await self._work(self._backend.close)

    def _outcomes(
        self, text: str, dialect: str | None, most_rows: int, results: list[dict[str, Any]]
    ) -> list[tuple[dict[str, Any], Running, Schema]]:
        """Runs a text; those of its queries that go on, with their results and columns. Blocks."""
        backend = self._backend
        started: list[tuple[dict[str, Any], Running, Schema]] = []
        try:
            if dialect is not None and dialect != backend.session.dialect:
                backend.settings.set("dialect", dialect)
            for outcome in backend.simple(text):
                if outcome.copied is not None:
                    raise error(
                        "FEATURE_NOT_SUPPORTED",
                        "COPY needs a client of PostgreSQL's protocol",
                        hint="Use psql, or SELECT here.",
                    )
                if outcome.running is not None and len(self._running) + len(started) >= _MOST_RUNNING:
                    outcome.running.close()
                    raise error("SESSION_BUSY", f"{_MOST_RUNNING} queries of this worksheet run already")
                result = _result(outcome, most_rows)
                results.append(result)
                if outcome.running is not None:
                    started.append((result, outcome.running, outcome.schema))
        except Error as err:
            results.append({"error": err.to_json()})
        return started

    def _follow(self, running: Running, columns: Schema) -> str:
        """Sends the rows of a running query to the tab; its id."""
        query = f"q{next(_NUMBERS)}"
        task = asyncio.get_running_loop().create_task(self._rows(query, running, columns))
        self._running[query] = (running, task)
        return query

    async def _rows(self, query: str, running: Running, columns: Schema) -> None:
        failure: Any = None
        try:
            with self._traffic.subscribed():
                while True:
                    ended = running.ended
                    table: pa.Table = await self._work(running.rows)
                    for portion in _portions(table):
                        data = await self._work(_texts, portion, columns)
                        await self._send("rows", {"query": query, "data": data})
                    if ended:
                        break
                    await self._work(running.wait, _WAIT_S)
        except Error as err:
            # It was stopped, here or by KILL QUERY; anything else is what went wrong.
            failure = None if err.condition in ("NO_RESULT", "QUERY_CANCELED") else err.to_json()
        finally:
            self._running.pop(query, None)
            await self._work(running.close)
        await self._send("ended", {"query": query, "error": failure})


def _result(outcome: Outcome, most_rows: int) -> dict[str, Any]:
    """An outcome as JSON."""
    found: dict[str, Any] = {"tag": outcome.complete if outcome.tag else "", "notices": list(outcome.notices)}
    if outcome.columns is None:
        return found
    found["columns"] = [_column(c, f.type.sql) for c, f in zip(outcome.columns, outcome.schema, strict=True)]
    found["data"], found["rows"] = [], 0
    if outcome.table is not None:
        found["rows"] = outcome.table.num_rows
        found["data"] = _texts(outcome.table.slice(0, most_rows), outcome.schema)
    if outcome.running is not None:
        found["sign"] = outcome.running.sign
    return found


def _column(column: Column, kind: str) -> dict[str, str]:
    return {"name": column.name, "type": kind}


def _texts(table: pa.Table, columns: Schema) -> list[list[str | None]]:
    """The rows of a table as texts, NULL as null."""
    if not table.num_rows:
        return []
    return [list(row) for row in zip(*(c.to_pylist() for c in text_columns(table, columns)), strict=True)]


def _portions(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _PORTION_ROWS):
        yield table.slice(start, _PORTION_ROWS)
