"""SQL sessions of HTTP clients: run statements and return rows as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.database.sessions.context import Session, check_followed
from watersmeet.database.sessions.result import Result, Running
from watersmeet.errors import Error, error
from watersmeet.server.backend import Backend
from watersmeet.server.clients import Traffic
from watersmeet.server.copying import CopyResult
from watersmeet.server.results import complete_tag, has_rows, text_columns
from watersmeet.subscribing.subscriber import Subscriber, subscribe
from watersmeet.subscribing.updates import ChangeBatch
from watersmeet.system.process import lazy_import
from watersmeet.values.types import BIGINT, Field, Schema

if TYPE_CHECKING:
    from watersmeet.session.connections import checking, scripts
else:
    checking = lazy_import("watersmeet.session.connections.checking")
    scripts = lazy_import("watersmeet.session.connections.scripts")

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, object]
#: A function that sends an event and its data to a client.
Send = Callable[[str, object], Awaitable[None]]

MOST_ROWS: Final = 10_000
#: The number of rows of one event of a running query.
_PART_ROWS: Final = 500
#: The maximum wait for rows of a running query before its end is checked.
_WAIT_S: Final = 0.25
#: The interval at which the connection of a running statement's client is checked.
_WATCH_S: Final = 0.5
#: The interval at which a cancellation is repeated, because a starting query may have reset it.
_AGAIN_S: Final = 0.1
_MOST_RUNNING: Final = 8
_NUMBERS: Final = itertools.count(1)
#: The first columns of a subscription: the commit, and the number of inserted (or, negative, deleted) equal rows.
_CHANGE: Final = (Field("commit", BIGINT, nullable=False), Field("diff", BIGINT, nullable=False))


class Work(Protocol):
    """A function that runs a blocking action in a thread."""

    async def __call__(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T: ...


class SqlSession:
    """Runs one text of statements at a time, and several running queries. send: blocks while the client is slow."""

    def __init__(self, backend: Backend, work: Work, send: Send, traffic: Traffic) -> None:
        self._backend = backend
        self._work = work
        self._send = send
        self._traffic = traffic
        self._busy = asyncio.Lock()
        self._running: dict[str, tuple[Running | Subscriber, asyncio.Task[None]]] = {}
        self._closed = False

    @property
    def session(self) -> Session:
        """The session of the database."""
        return self._backend.session

    @property
    def is_busy(self) -> bool:
        """Whether a statement or a query runs."""
        return self._busy.locked() or bool(self._running)

    async def run(self, text: str, dialect: str | None, most_rows: int, is_gone: Callable[[], bool]) -> Json:
        """Runs the statements of a text in a dialect. Returns the results as JSON; if a statement fails, the last one
        is its error.

        is_gone: whether the client has disconnected, which cancels the statement.
        """
        if self._busy.locked():
            raise error("SESSION_BUSY", "a statement of this session runs already", hint="Stop it first.")
        async with self._busy:
            results: list[Json] = []
            backend = self._backend
            try:
                if dialect is not None and dialect != backend.settings.dialect:
                    backend.settings.set("dialect", dialect)
                found = backend.simple(text)
                try:
                    while (result := await self._within_limits(is_gone, lambda: next(found, None))) is not None:
                        results.append(await self._taken(result, most_rows))
                        backend.session.puts_roles = False
                finally:
                    await self._work(found.close)
            except Error as err:
                results.append({"error": err.to_json()})
            session = backend.session
            session.puts_roles = False
            return {
                "results": results,
                "dialect": backend.settings.dialect,
                "transaction": session.transaction is not None,
            }

    async def check(self, text: str, dialect: str | None) -> Json:
        """The statements of a text that would be refused, given the objects of the database. Nothing is run."""
        if self._busy.locked():
            raise error("SESSION_BUSY", "a statement of this session runs already", hint="Stop it first.")
        async with self._busy:
            return await self._work(_checked, self.session, text, dialect or self.session.dialect)

    async def _taken(self, result: Result, most_rows: int) -> Json:
        """A result as JSON. The rows of a running query are sent from now on."""
        if isinstance(result, CopyResult):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "COPY needs a client of PostgreSQL's protocol",
                hint="Use psql, or SELECT here.",
            )
        if result.running is not None and len(self._running) >= _MOST_RUNNING:
            await self._work(result.running.close)
            raise _too_many()
        found = await self._work(_result, result, most_rows)
        if result.running is not None:
            found["query"] = self._follow(result.running, result.columns)
        return found

    async def _within_limits(self, is_gone: Callable[[], bool], action: Callable[[], T]) -> T:
        """Runs an action in a thread; cancels it at the timeout of statements, or when the client disconnects."""
        cancellation, loop = self._backend.session.cancellation, asyncio.get_running_loop()
        cancellation.reset()
        most_ms = self._backend.settings.limit("statement_timeout")
        until_s = loop.time() + most_ms / 1000 if most_ms else math.inf
        work = asyncio.ensure_future(self._work(action))
        try:
            while True:
                left_s = _AGAIN_S if cancellation.canceled else max(min(_WATCH_S, until_s - loop.time()), 0.001)
                done, _ = await asyncio.wait([work], timeout=left_s)
                if done:
                    return work.result()
                if cancellation.canceled or is_gone() or loop.time() >= until_s:
                    cancellation.cancel()  # repeated, see `_AGAIN_S`
        except asyncio.CancelledError:
            cancellation.cancel()
            with contextlib.suppress(Error, asyncio.CancelledError):
                await work
            raise

    async def follow(self, names: Sequence[str]) -> Json:
        """Subscribes to relations as of one moment. Returns a result for each, and sends their rows as events. Raises
        the errors of `Connection.subscribe`.
        """
        if len(self._running) + len(names) > _MOST_RUNNING:
            raise _too_many()
        subscriber = await self._work(subscribe, self._backend.session, names)
        results = []
        for one in subscriber.followed:
            shown = [*_CHANGE, *one.relation.columns]
            columns = [{"name": c.name, "type": c.type.sql} for c in shown]
            results.append({"tag": "", "notices": [], "columns": columns, "data": [], "rows": 0, "sign": 1})
        queries = [f"q{next(_NUMBERS)}" for _ in results]
        task = asyncio.get_running_loop().create_task(self._changes(queries, subscriber))
        for result, query in zip(results, queries, strict=True):
            result["query"] = query
            self._running[query] = (subscriber, task)
        return {"results": results, "dialect": self._backend.settings.dialect, "transaction": False}

    async def stop(self, query: str | None) -> None:
        """Stops a running query; None for the current statement."""
        if query is None:
            self.cancel()
            return
        known = self._running.get(query)
        if known is None:
            raise error("UNDEFINED_OBJECT", f'query "{query}" does not run')
        await self._work(known[0].close)

    def cancel(self) -> None:
        """Cancels the current statement. Thread-safe."""
        self._backend.session.cancellation.cancel()

    async def close(self) -> None:
        """Stops all statements and closes the session. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for running, task in list(self._running.values()):
            await self._work(running.close)
            task.cancel()
        while self._busy.locked():
            self._backend.session.cancellation.cancel()
            await asyncio.sleep(_AGAIN_S)
        await self._work(self._backend.close)

    def _follow(self, running: Running, columns: Schema) -> str:
        """Starts sending the rows of a running query. Returns its id."""
        query = f"q{next(_NUMBERS)}"
        task = asyncio.get_running_loop().create_task(self._rows(query, running, columns))
        self._running[query] = (running, task)
        return query

    async def _rows(self, query: str, running: Running, columns: Schema) -> None:
        failure: object = None
        try:
            with self._traffic.subscribed():
                while True:
                    ended = running.ended
                    table: pa.Table = await self._work(running.rows)
                    for part in _parts(table):
                        data = await self._work(_texts, part, columns)
                        await self._send("rows", {"query": query, "data": data})
                    if ended:
                        break
                    await self._work(running.wait, _WAIT_S)
        except Error as err:
            # Conditions after which the query was stopped, by this session or by KILL QUERY.
            failure = None if err.condition in ("NO_RESULT", "QUERY_CANCELED") else err.to_json()
        finally:
            self._running.pop(query, None)
            await self._work(running.close)
        await self._send("ended", {"query": query, "error": failure})

    async def _changes(self, queries: Sequence[str], subscriber: Subscriber) -> None:
        failure: object = None
        followed = {
            f.relation.shown: (q, f.relation.columns) for q, f in zip(queries, subscriber.followed, strict=True)
        }
        session = self._backend.session
        try:
            with self._traffic.subscribed():
                while not subscriber.ended:
                    update = await subscriber.take_async()
                    if update is None:
                        await subscriber.arrive()
                        continue
                    check_followed(session, [f.relation.id for f in subscriber.followed])
                    for batch in update.batches:
                        query, columns = followed[batch.relation]
                        table = _with_commit(batch, update.commit)
                        for part in _parts(table):
                            data = await self._work(_texts, part, (*_CHANGE, *columns))
                            await self._send("rows", {"query": query, "data": data})
        except Error as err:
            failure = err.to_json()
        finally:
            for query in queries:
                self._running.pop(query, None)
            await self._work(subscriber.close)
        for query in queries:
            await self._send("ended", {"query": query, "error": failure})


def _too_many() -> Error:
    return error("SESSION_BUSY", f"{_MOST_RUNNING} queries of this session run already", hint="Stop one of them.")


def _with_commit(batch: ChangeBatch, commit: int) -> pa.Table:
    """The rows of a batch, after the columns of `_CHANGE`."""
    count = len(batch.diffs)
    first = [pa.array(np.full(count, commit)), pa.array(batch.diffs)]
    names = [str(i) for i in range(len(first) + batch.rows.num_columns)]
    return pa.table([*first, *batch.rows.columns], names=names)


def _checked(session: Session, text: str, dialect: str) -> Json:
    """The number of statements in a text, and its findings as JSON. follows: the index of an earlier finding."""
    with scripts.scratch_database(session.database) as database:
        count, found = checking.check_scripts(database, [(dialect, text)], user=session)
    findings = [
        {
            "error": {name: value for name, value in f.error.to_json().items() if name != "sql"},
            "line": f.line,
            "checked": f.checked,
            "follows": None if f.follows is None else found.index(f.follows),
        }
        for f in found
    ]
    return {"statements": count, "findings": findings}


def _result(result: Result, most_rows: int) -> Json:
    """A result as JSON."""
    found: Json = {"tag": complete_tag(result), "notices": list(result.notices)}
    if not has_rows(result):
        return found
    found["columns"] = [{"name": c.name, "type": c.type.sql} for c in result.columns]
    found["data"], found["rows"] = [], 0
    if result.table is not None:
        found["rows"] = result.table.num_rows
        found["data"] = _texts(result.table.slice(0, most_rows), result.columns)
    if result.running is not None:
        found["sign"] = result.running.sign
    return found


def _texts(table: pa.Table, columns: Schema) -> list[tuple[str | None, ...]]:
    """The rows of a table as texts, NULL as null."""
    if not table.num_rows:
        return []
    return list(zip(*(c.to_pylist() for c in text_columns(table, columns)), strict=True))


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _PART_ROWS):
        yield table.slice(start, _PART_ROWS)
