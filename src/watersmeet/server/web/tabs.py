"""Clients of HTTP: tabs of the console with a stream of events each, subscriptions, single requests.

Browsers allow six connections to a server by HTTP 1.1, so a tab has one for figures, and for the rows of its worksheet.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from aiohttp import web

from watersmeet.catalog.roles import OWNER
from watersmeet.database.sessions.context import Session
from watersmeet.errors import Error, error
from watersmeet.runtime.status import SinkStatus, SourceStatus
from watersmeet.server.clients import Activity, Clients, Speaks, State
from watersmeet.server.users import Login, expired
from watersmeet.server.web.access import compact
from watersmeet.server.web.figures import Figures
from watersmeet.server.web.watch import Look
from watersmeet.server.web.worksheets import Worksheet

#: Names of clients, as `pg_stat_activity.application_name` has them.
CONSOLE: Final = "console"

REQUEST: Final = "http request"
SUBSCRIPTION: Final = "http subscription"


def is_gone(request: web.Request) -> bool:
    """Whether the client of a request has hung up."""
    return request.transport is None or request.transport.is_closing()


class WebClient:
    """One client of HTTP, from its request to the end of the answer.

    worksheet: that runs its statements. ended: an event when it was sent away; failure: why.
    """

    protocol: Speaks = "http"

    def __init__(self, clients: Clients, request: web.Request, login: Login | None, application: str) -> None:
        """Enters the service. TOO_MANY_CONNECTIONS."""
        self.worksheet: Worksheet | None = None
        self.ended = asyncio.Event()
        self.failure: Error | None = None
        self.login = login
        self._clients = clients
        self._application = application
        self._address = request.remote or ""
        self._began_s = time.time()
        self.process, _ = clients.enter(self, login)

    def leave(self) -> None:
        """The end."""
        self._clients.leave(self)

    def cancel(self) -> None:
        if self.worksheet is not None:
            self.worksheet.cancel()

    def end(self, err: Error) -> None:
        self.failure = err
        self.cancel()
        self.ended.set()

    def activity(self) -> Activity:
        login, session = self.login, self._session
        user, actor = (OWNER, None) if login is None else (login.name, login.actor)
        application = self._application if session is None else session.variables.get("application_name")
        works = self._application == SUBSCRIPTION or (self.worksheet is not None and self.worksheet.is_busy)
        in_transaction = session is not None and session.transaction is not None
        state: State = "active" if works else "idle in transaction" if in_transaction else "idle"
        return Activity(self.process, user, actor, application, self._address, state, self._began_s)

    def check_login(self) -> None:
        session = self._session
        if session is not None and session.puts_roles:
            return  # the answer to its own statement comes first
        if self.failure is None and not self._clients.users.admits(self.login):
            self.end(expired(self.login))

    @property
    def _session(self) -> Session | None:
        return None if self.worksheet is None else self.worksheet.session


#: A comment is sent when nothing else was for so long: proxies cut off what is silent.
STILL_THERE_S: Final = 15.0

STILL_THERE: Final = b": still here\n\n"

#: What is told of an error to those who may not know what it is about.
_BRIEF: Final = {"condition": "VIEW_FAILED", "message": "the views do not go on", "hint": None}

#: So many events wait for a tab at most: what gives more waits.
_QUEUE: Final = 64


class Sight(NamedTuple):
    """What a user may see: ids of relations; None for all. known: of those that are shown, those of which it may know
    why they are as they are, as it may know of all that they read.
    """

    shown: frozenset[str] | None = None
    known: frozenset[str] = frozenset()

    def shows(self, relation_id: str) -> bool:
        """Whether a relation may be shown."""
        return self.shown is None or relation_id in self.shown


def sight_of(session: Session) -> Sight:
    """What a session may see: what is granted to it."""
    catalog = session.catalog
    if catalog.granted is None:
        return Sight()
    shown = frozenset(r.id for r in catalog.shown)
    return Sight(shown, frozenset(i for i in shown if catalog.knows([i])))


def event(name: str, data: object, number: int | None = None) -> bytes:
    """A server-sent event. number: its id."""
    lines = [f"event: {name}", *([] if number is None else [f"id: {number}"]), f"data: {compact(data)}", "", ""]
    return "\n".join(lines).encode()


class Frames:
    """Looks as the events that tell tabs what has changed. One look is written once, however many tabs see the same."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, Sight], bytes] = {}
        self._look: Look | None = None

    def between(self, before: Look | None, look: Look, sight: Sight) -> bytes | None:
        """What a tab that knows one look is told of the next; None if that is the same."""
        if look is not self._look:
            self._look, self._written = look, {}
        key = (0 if before is None else before.time_us, sight)
        if key not in self._written:
            self._written[key] = _frame(before, look, sight)
        return self._written[key] or None


def _frame(before: Look | None, look: Look, sight: Sight) -> bytes:
    known: dict[str, Figures] = {} if before is None else before.figures
    changed = {i: _seen(i, f, sight) for i, f in look.figures.items() if known.get(i) != f and sight.shows(i)}
    gone = [i for i in known if i not in look.figures and sight.shows(i)]
    parts: dict[str, object] = {}
    if before is None or before.database != look.database:
        error = look.database["error"]
        parts["database"] = look.database if sight.shown is None else {**look.database, "error": error and _BRIEF}
    if before is None or before.catalog.version != look.catalog.version:
        parts["version"] = look.catalog.version
    if changed:
        parts["figures"] = changed
    if gone:
        parts["gone"] = gone
    for name in ("sources", "sinks"):
        found = _outside(look, name)
        if before is None or _outside(before, name) != found:
            parts[name] = [row.to_dict() for row in found if sight.shows(row.id)]
    return event("look", {**parts, "time_us": look.time_us}) if parts else b""


def _seen(relation_id: str, figures: Figures, sight: Sight) -> Figures:
    """Figures as a user may see them."""
    if sight.shown is None or relation_id in sight.known:
        return figures
    return figures._replace(note=None, held_back_by=None)


def _outside(look: Look, name: str) -> tuple[SourceStatus | SinkStatus, ...]:
    """The sources or sinks of a look."""
    return look.status.sources if name == "sources" else look.sinks


class Tab:
    """One tab, from the beginning of its stream to its end. For one event loop."""

    def __init__(self, client: WebClient, session: Session) -> None:
        """session: of its user, by which it is known what the user may see."""
        self.client = client
        self.opening = asyncio.Lock()
        self._session = session
        self._events: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._known: Look | None = None
        self._sight: tuple[object, Sight] = (None, Sight())
        self._newest: Look | None = None
        self._wake = asyncio.Event()

    async def send(self, name: str, data: object) -> None:
        """Gives it an event. Waits while too many are before it."""
        await self._events.put(event(name, data))
        self._wake.set()

    def show(self, look: Look) -> None:
        """There is a new look."""
        self._newest = look
        self._wake.set()

    async def stream(self, response: web.StreamResponse, frames: Frames, slow_s: float) -> None:
        """Sends what there is until the tab goes. TimeoutError if it takes nothing for `slow_s` seconds."""
        while True:
            for part in self._parts(frames):
                async with asyncio.timeout(slow_s):
                    await response.write(part)
            try:
                async with asyncio.timeout(STILL_THERE_S):
                    await self._wake.wait()
            except TimeoutError:
                async with asyncio.timeout(slow_s):
                    await response.write(STILL_THERE)
            self._wake.clear()

    def _parts(self, frames: Frames) -> list[bytes]:
        parts = []
        look, catalog = self._newest, self._session.catalog
        sight = self._sight[1]
        if self._sight[0] != (catalog.version, catalog.granted):
            sight = sight_of(self._session)
            if sight != self._sight[1]:  # it was granted something, or that was taken away: all is told anew
                self._known = None
            self._sight = ((catalog.version, catalog.granted), sight)
        if look is not None and look is not self._known:
            frame = frames.between(self._known, look, sight)
            self._known = look
            if frame is not None:
                parts.append(frame)
        while not self._events.empty():
            parts.append(self._events.get_nowait())
        return parts


class Tabs:
    """The open tabs, by user and the name that each has chosen for itself."""

    def __init__(self) -> None:
        self._tabs: dict[tuple[Login | None, str], Tab] = {}

    @property
    def open(self) -> list[Tab]:
        """All of them."""
        return list(self._tabs.values())

    def enter(self, name: str, tab: Tab) -> None:
        """Takes a tab in. DUPLICATE_OBJECT if there is one of that name."""
        if (tab.client.login, name) in self._tabs:
            raise error("DUPLICATE_OBJECT", f'there is a tab "{name}" already')
        self._tabs[tab.client.login, name] = tab

    def get(self, login: Login | None, name: str) -> Tab:
        """The tab of that name. UNDEFINED_OBJECT."""
        found = self._tabs.get((login, name))
        if found is None:
            raise error("UNDEFINED_OBJECT", "the tab has no stream", hint="GET /api/live?tab=NAME comes first.")
        return found

    async def leave(self, name: str, tab: Tab) -> None:
        """A tab is gone: what it runs ends."""
        self._tabs.pop((tab.client.login, name), None)
        if tab.client.worksheet is not None:
            await tab.client.worksheet.close()
