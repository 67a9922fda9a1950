"""The tabs that have the console open: one stream of events for each, with all that is live.

Browsers allow six connections to a server by HTTP 1.1, so a tab has one for figures, and for the rows of its worksheet.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from aiohttp import web

from watersmeet.errors import error
from watersmeet.server.users import Login
from watersmeet.server.web.answers import compact
from watersmeet.server.web.clients import WebClient
from watersmeet.server.web.figures import Figures
from watersmeet.server.web.watch import Look
from watersmeet.session.access.context import Session

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


def event(name: str, data: Any, number: int | None = None) -> bytes:
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
    parts: dict[str, Any] = {}
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
            parts[name] = [row for row in found if sight.shows(row["id"])]
    return event("look", {**parts, "time_us": look.time_us}) if parts else b""


def _seen(relation_id: str, figures: Figures, sight: Sight) -> Figures:
    """Figures as a user may see them."""
    if sight.shown is None or relation_id in sight.known:
        return figures
    return figures._replace(note=None, held_back_by=None)


def _outside(look: Look, name: str) -> list[dict[str, Any]]:
    """The sources or sinks of a look."""
    return look.status["sources"] if name == "sources" else [*look.sinks]


class Tab:
    """One tab, from the beginning of its stream to its end. For one event loop."""

    def __init__(self, client: WebClient, session: Session) -> None:
        """session: of its user, by which it is known what the user may see."""
        self.client = client
        self.opening = asyncio.Lock()
        self._session = session
        self._events: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._known: Look | None = None
        self._sight: tuple[Any, Sight] = (None, Sight())
        self._newest: Look | None = None
        self._wake = asyncio.Event()

    async def send(self, name: str, data: Any) -> None:
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
