"""Clients of HTTP and their server-sent events: sessions of the console, subscriptions, single requests.

Browsers open at most six connections to a server by HTTP 1.1, so each page of the console has one stream, for metrics
and rows of queries. `GET /subscribe?view=v&view=w` sends the content of views, then the changes of each commit. The id
of an event is the number of the commit that it completes, so that browsers resume by themselves (Last-Event-ID); other
clients give `after`. See docs/SUBSCRIPTIONS.md#over-http.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from aiohttp import web

from watersmeet.catalog.roles import OWNER
from watersmeet.database.sessions.context import Session
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.runtime.status import SinkStatus, SourceStatus
from watersmeet.server.clients import Activity, Clients, Speaks, State
from watersmeet.server.users import Login, expired
from watersmeet.server.valuebytes import texts
from watersmeet.server.web.access import compact
from watersmeet.server.web.sqlsessions import SqlSession
from watersmeet.server.web.watch import RelationMetrics, Snapshot
from watersmeet.subscribing.subscriber import Subscriber, subscribe
from watersmeet.subscribing.updates import ChangeBatch, Update
from watersmeet.values.types import Schema, SqlType

#: Names of clients in `pg_stat_activity.application_name`.
CONSOLE: Final = "console"
REQUEST: Final = "http request"
SUBSCRIPTION: Final = "http subscription"


def is_gone(request: web.Request) -> bool:
    """Whether the client of a request has disconnected."""
    return request.transport is None or request.transport.is_closing()


class WebClient:
    """One client of HTTP, from its request to the end of the answer.

    sql_session: runs its statements. ended: set when the server ends the client; failure: the reason.
    """

    protocol: Speaks = "http"

    def __init__(self, clients: Clients, request: web.Request, login: Login | None, application: str) -> None:
        """Registers the client. Raises TOO_MANY_CONNECTIONS."""
        self.sql_session: SqlSession | None = None
        self.ended = asyncio.Event()
        self.failure: Error | None = None
        self.login = login
        self._clients = clients
        self._application = application
        self._address = request.remote or ""
        self._began_s = time.time()
        self.process, _ = clients.enter(self, login)

    def leave(self) -> None:
        """Unregisters the client."""
        self._clients.leave(self)

    def cancel(self) -> None:
        if self.sql_session is not None:
            self.sql_session.cancel()

    def end(self, err: Error) -> None:
        self.failure = err
        self.cancel()
        self.ended.set()

    def activity(self) -> Activity:
        login, session = self.login, self._session
        user, actor = (OWNER, None) if login is None else (login.name, login.actor)
        application = self._application if session is None else session.variables.get("application_name")
        works = self._application == SUBSCRIPTION or (self.sql_session is not None and self.sql_session.is_busy)
        in_transaction = session is not None and session.transaction is not None
        state: State = "active" if works else "idle in transaction" if in_transaction else "idle"
        return Activity(self.process, user, actor, application, self._address, state, self._began_s)

    def check_login(self) -> None:
        session = self._session
        if session is not None and session.puts_roles:
            return  # the client first gets the answer to its own statement
        if self.failure is None and not self._clients.users.admits(self.login):
            self.end(expired(self.login))

    @property
    def _session(self) -> Session | None:
        return None if self.sql_session is None else self.sql_session.session


#: The interval of comments, because proxies close silent connections.
STILL_THERE_S: Final = 15.0
STILL_THERE: Final = b": still here\n\n"
#: The pause before a page gets an event without news. A page that receives no event for three pauses shows that the
#: server is unreachable.
ALIVE_S: Final = 5.0
#: The error of a view for users without the privilege to see the cause.
_BRIEF: Final = {"condition": "VIEW_FAILED", "message": "the views have stopped", "hint": None}
#: The maximum number of queued events for a page. If the queue is full, senders block.
_QUEUE: Final = 64


class Sight(NamedTuple):
    """The relations that a user may see, by id; None for all. known: those whose definition and errors it may also see,
    because it may see all relations that they read.
    """

    shown: frozenset[str] | None = None
    known: frozenset[str] = frozenset()

    def shows(self, relation_id: str) -> bool:
        """Whether the user may see a relation."""
        return self.shown is None or relation_id in self.shown


def sight_of(session: Session) -> Sight:
    """The relations that are granted to a session."""
    catalog = session.catalog
    if catalog.granted is None:
        return Sight()
    shown = frozenset(r.id for r in catalog.shown)
    return Sight(shown, frozenset(i for i in shown if catalog.knows([i])))


def event(name: str, data: object, number: int | None = None) -> bytes:
    """A server-sent event. number: its id."""
    lines = [f"event: {name}", *([] if number is None else [f"id: {number}"]), f"data: {compact(data)}", "", ""]
    return "\n".join(lines).encode()


_ALIVE: Final = event("alive", {})


class Frames:
    """Events with the changes between snapshots, encoded once for all pages that see the same relations."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, Sight], bytes] = {}
        self._snapshot: Snapshot | None = None

    def between(self, before: Snapshot | None, snapshot: Snapshot, sight: Sight) -> bytes | None:
        """The event for a page that has one snapshot, with the changes of the next one; None if nothing changed."""
        if snapshot is not self._snapshot:
            self._snapshot, self._written = snapshot, {}
        key = (0 if before is None else before.time_us, sight)
        if key not in self._written:
            self._written[key] = _frame(before, snapshot, sight)
        return self._written[key] or None


def _frame(before: Snapshot | None, snapshot: Snapshot, sight: Sight) -> bytes:
    known: dict[str, RelationMetrics] = {} if before is None else before.metrics
    changed = {i: _seen(i, f, sight) for i, f in snapshot.metrics.items() if known.get(i) != f and sight.shows(i)}
    dropped = [i for i in known if i not in snapshot.metrics and sight.shows(i)]
    parts: dict[str, object] = {}
    if before is None or before.database != snapshot.database:
        error = snapshot.database["error"]
        parts["database"] = (
            snapshot.database if sight.shown is None else {**snapshot.database, "error": error and _BRIEF}
        )
    if before is None or before.catalog.version != snapshot.catalog.version:
        parts["version"] = snapshot.catalog.version
    if changed:
        parts["metrics"] = changed
    if dropped:
        parts["gone"] = dropped
    for name in ("sources", "sinks"):
        found = _endpoints(snapshot, name)
        if before is None or _endpoints(before, name) != found:
            parts[name] = [row.to_dict() for row in found if sight.shows(row.id)]
    return event("snapshot", {**parts, "time_us": snapshot.time_us}) if parts else b""


def _seen(relation_id: str, metrics: RelationMetrics, sight: Sight) -> RelationMetrics:
    """The metrics of a relation that a user may see."""
    if sight.shown is None or relation_id in sight.known:
        return metrics
    return metrics._replace(note=None, held_back_by=None)


def _endpoints(snapshot: Snapshot, name: str) -> tuple[SourceStatus | SinkStatus, ...]:
    """The sources or sinks of a snapshot."""
    return snapshot.status.sources if name == "sources" else snapshot.sinks


class ClientSession:
    """One page of the console, from the start of its stream to its end. For one event loop."""

    def __init__(self, client: WebClient, session: Session) -> None:
        """session: that of its user, for privileges."""
        self.client = client
        self.opening = asyncio.Lock()
        self._session = session
        self._events: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._known: Snapshot | None = None
        self._sight: tuple[object, Sight] = (None, Sight())
        self._newest: Snapshot | None = None
        self._wake = asyncio.Event()

    async def send(self, name: str, data: object) -> None:
        """Queues an event. Waits while the queue is full."""
        await self._events.put(event(name, data))
        self._wake.set()

    def show(self, snapshot: Snapshot) -> None:
        """Queues a new snapshot, instead of an unsent one."""
        self._newest = snapshot
        self._wake.set()

    async def stream(self, response: web.StreamResponse, frames: Frames, slow_s: float) -> None:
        """Sends events until the page disconnects. Raises TimeoutError if it reads nothing for `slow_s` seconds."""
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while True:
            for part in self._parts(frames) or ([_ALIVE] if loop.time() - sent_s >= ALIVE_S else []):
                async with asyncio.timeout(slow_s):
                    await response.write(part)
                sent_s = loop.time()
            # Each snapshot wakes it, even one without news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sent_s + ALIVE_S - loop.time())):
                    await self._wake.wait()
            self._wake.clear()

    def _parts(self, frames: Frames) -> list[bytes]:
        parts = []
        snapshot, catalog = self._newest, self._session.catalog
        sight = self._sight[1]
        if self._sight[0] != (catalog.version, catalog.granted):
            sight = sight_of(self._session)
            if sight != self._sight[1]:  # after GRANT or REVOKE the whole snapshot is sent
                self._known = None
            self._sight = ((catalog.version, catalog.granted), sight)
        if snapshot is not None and snapshot is not self._known:
            frame = frames.between(self._known, snapshot, sight)
            self._known = snapshot
            if frame is not None:
                parts.append(frame)
        while not self._events.empty():
            parts.append(self._events.get_nowait())
        return parts


class ClientSessions:
    """The open sessions, by user and by the name that the page has chosen."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[Login | None, str], ClientSession] = {}

    @property
    def open(self) -> list[ClientSession]:
        """All open sessions."""
        return list(self._sessions.values())

    def enter(self, name: str, client_session: ClientSession) -> None:
        """Registers a session. Raises DUPLICATE_OBJECT for a used name."""
        if (client_session.client.login, name) in self._sessions:
            raise error("DUPLICATE_OBJECT", f'there is a client session "{name}" already')
        self._sessions[client_session.client.login, name] = client_session

    def get(self, login: Login | None, name: str) -> ClientSession:
        """The session with that name. Raises UNDEFINED_OBJECT."""
        found = self._sessions.get((login, name))
        if found is None:
            raise error(
                "UNDEFINED_OBJECT", "the client session has no stream", hint="GET /api/live?session=NAME comes first."
            )
        return found

    async def leave(self, name: str, client_session: ClientSession) -> None:
        """Unregisters a session and ends its queries."""
        self._sessions.pop((client_session.client.login, name), None)
        if client_session.client.sql_session is not None:
            await client_session.client.sql_session.close()


#: Types whose values are numbers and booleans in JSON; others are texts, as in PostgreSQL.
_NATIVE: Final = ("smallint", "integer", "real", "double precision", "boolean")

#: Parameters of a request, and spellings of booleans.
_ASKED: Final = ("view", "after", "up_to", "snapshot", "progress")

_TRUTHS: Final = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}

#: The maximum number of digits of a commit's number.
_MOST_DIGITS: Final = 18

#: The key under which a batch caches its text for all subscribers of a view.
_TEXT: Final = "server-sent events"


def opened(session: Session, request: web.Request) -> Subscriber | None:
    """The subscriber of a request; None if the client already has all requested commits. Blocks.

    Raises the errors of `Connection.subscribe`.
    """
    query = request.query
    for asked in query:
        if asked not in _ASKED:
            raise error(
                "INVALID_PARAMETER",
                f'a subscription has no parameter "{asked}"',
                hint=did_you_mean(asked, _ASKED) or f"There are: {', '.join(_ASKED)}.",
            )
    names = query.getall("view", [])
    after = _number(request.headers.get("Last-Event-ID") or query.get("after"), "after")
    up_to = _number(query.get("up_to"), "up_to")
    if after is not None and up_to is not None and after >= up_to:
        return None
    return subscribe(
        session,
        names,
        after=after,
        up_to=up_to,
        snapshot=_truth(query.get("snapshot", "true"), "snapshot"),
        progress=_truth(query.get("progress", "false"), "progress"),
    )


async def stream(
    response: web.StreamResponse, subscriber: Subscriber, allowed: Callable[[], None], slow_s: float
) -> None:
    """Sends updates until the subscription ends or the client disconnects. allowed: raises an error once the user has
    lost access.

    Raises TimeoutError if the client reads nothing for `slow_s` seconds.
    """
    first, columns = True, {f.relation.shown: f.relation.columns for f in subscriber.followed}
    try:
        while True:
            allowed()
            update = await subscriber.take_async()
            if update is not None:
                part = written(update, columns, first=first)
                first = first and not update.is_complete
            elif subscriber.ended:
                part = event("end", {"commit": subscriber.token})
            else:
                part = b"" if await _arrived(subscriber) else STILL_THERE
            async with asyncio.timeout(slow_s):
                await response.write(part)
            if update is None and subscriber.ended:
                return
    except Error as err:
        async with asyncio.timeout(slow_s):
            await response.write(event("failed", {"error": err.to_json(), "token": subscriber.token}))


def written(update: Update, columns: Mapping[str, Schema], *, first: bool) -> bytes:
    """An update as an event. columns: those of each relation. first: whether it is the first part of the content, which
    replaces the client's rows.
    """
    name = "snapshot" if update.is_snapshot else "change" if update.batches else "progress"
    begins = ',"begins":true' if first and update.is_snapshot else ""
    complete = "true" if update.is_complete else "false"
    parts = ",".join(b.made(_TEXT, lambda b: _text(b, columns[b.relation])) for b in update.batches)
    number = f"id: {update.commit}\n" if update.is_complete else ""
    data = f'{{"commit":{update.commit},"time_us":{update.time_us},"complete":{complete}{begins},"changes":[{parts}]}}'
    return f"event: {name}\n{number}data: {data}\n\n".encode()


def _text(batch: ChangeBatch, columns: Schema) -> str:
    values = [_values(batch.rows.column(i), c.type) for i, c in enumerate(columns)]
    rows = list(zip(*values, strict=True))
    names = [c.name for c in columns]
    found = {"view": batch.relation, "columns": names, "rows": rows, "diffs": batch.diffs.tolist()}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _values(column: pa.Array, kind: SqlType) -> list[object]:
    """The values of a column for JSON."""
    is_native = kind.name in _NATIVE
    if is_native and pa.types.is_floating(column.type):
        is_native = pc.all(pc.is_finite(column)).as_py() is not False  # JSON has no NaN
    found: list[object] = (column if is_native else texts(column, kind)).to_pylist()
    return found


def _number(text: str | None, name: str) -> int | None:
    """The number of a commit. Raises INVALID_PARAMETER."""
    if text is None or not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise error("INVALID_PARAMETER", f"{name} is the number of a commit")
    return int(text)


def _truth(text: str, name: str) -> bool:
    """The boolean of a parameter. Raises INVALID_PARAMETER."""
    if text.lower() not in _TRUTHS:
        raise error("INVALID_PARAMETER", f'{name} is true or false, not "{text}"')
    return _TRUTHS[text.lower()]


async def _arrived(subscriber: Subscriber) -> bool:
    """Waits for an update; False if a comment is due earlier."""
    try:
        async with asyncio.timeout(STILL_THERE_S):
            await subscriber.arrive()
    except TimeoutError:
        return False
    return True
