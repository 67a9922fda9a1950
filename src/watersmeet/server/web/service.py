"""The HTTP port of a server: in the process and event loop of that of PostgreSQL's protocol, for the same users."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from watersmeet import __version__
from watersmeet.catalog import Relation
from watersmeet.catalog.roles import OWNER, READER
from watersmeet.database.sessions.context import Session, check_followed
from watersmeet.database.sessions.variables import Variables
from watersmeet.dialects.schemas import DATABASE
from watersmeet.errors import Error, error
from watersmeet.server.backend import Host
from watersmeet.server.users import Login, expired
from watersmeet.server.web import details, metrics, tabs
from watersmeet.server.web.access import (
    Accepting,
    Access,
    answer,
    failed,
    optional_text,
    read_json,
    refused,
    text_field,
)
from watersmeet.server.web.details import Graphs, shown_graph
from watersmeet.server.web.metrics import Clients, Exporter
from watersmeet.server.web.tabs import CONSOLE, REQUEST, SUBSCRIPTION, Frames, Tab, Tabs, WebClient, is_gone, sight_of
from watersmeet.server.web.watch import STEP_S, RelationMetrics, Watch
from watersmeet.server.web.worksheets import MOST_ROWS, Send, Worksheet
from watersmeet.values import DIALECTS

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log: Final = logging.getLogger(__name__)

#: The user who asks; None for one who is trusted.
USER: Final[web.RequestKey[Login | None]] = web.RequestKey("user")
_THREADS: Final = 8
_MOST_BODY_BYTES: Final = 1 << 20
#: What a page may load, and from where: nothing but what this server has.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: What is answered for everybody: no data of the database.
_OPEN: Final = ("/livez", "/readyz", "/api/login", "/api/session")
#: Paths whose clients are programs, which are told how to say who they are.
_OF_PROGRAMS: Final = ("/metrics", "/subscribe")


class WebServer:
    """Serves one open database over HTTP from `start` to `stop`, both in one event loop.

    INVALID_PARAMETER if the address is taken; LIBRARY_MISSING.
    """

    def __init__(self, host: Host, tls: ssl.SSLContext | None, address: str, port: int) -> None:
        self._host, self._tls = host, tls
        self._address, self._port = address, port
        self._access = Access(host.users, address, encrypted=tls is not None)
        self._threads = ThreadPoolExecutor(_THREADS + host.limits.connections, thread_name_prefix="watersmeet-web")
        session = self._session()
        self._watch = Watch(session)
        self._graphs = Graphs(session)
        self._tabs = Tabs()
        self._streams = 0
        self._alone: set[Worksheet] = set()
        self._ending: set[asyncio.Future[None]] = set()
        self._frames = Frames()
        self._files = _static_files()
        self._exporter = Exporter(self._watch.snapshot, self._clients, session.database.meter.read)
        self._sampling: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._accepting: Accepting | None = None
        self._stopping = asyncio.Event()

    @property
    def port(self) -> int:
        """The port, once it listens."""
        assert self._accepting is not None
        return self._accepting.port

    async def start(self) -> None:
        """Listens."""
        app = web.Application(middlewares=[self._guarded], client_max_size=_MOST_BODY_BYTES)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/subscribe", self._subscribe),
                web.get("/api/session", self._who),
                web.post("/api/login", self._login),
                web.post("/api/logout", self._logout),
                web.get("/api/live", self._live),
                web.get("/api/topology", self._topology),
                web.get("/api/relations/{id}", self._relation),
                web.get("/api/relations/{id}/history", self._history),
                web.get("/api/relations/{id}/letters", self._letters),
                web.get("/api/history", self._history),
                web.post("/api/run", self._run),
                web.post("/api/follow", self._follow),
                web.post("/api/stop", self._stop),
                web.get(r"/{name:([a-z]+\.[a-z]+)?}", self._static),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._accepting = Accepting(server, self._tls, self._host.limits)
        try:
            await self._accepting.listen(self._address, self._port)
        except OSError as cause:
            await self._runner.cleanup()
            raise error(
                "INVALID_PARAMETER", f"listening on {self._address}:{self._port} is not possible", detail=f"{cause}."
            ) from cause
        self._sampling = asyncio.get_running_loop().create_task(self._take_snapshots())

    async def stop(self) -> None:
        """Sends all clients away, and returns when nothing of theirs runs."""
        self._stopping.set()
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
        if self._accepting is not None:
            self._accepting.close()
        await asyncio.gather(*(worksheet.close() for worksheet in self._alone))
        if self._runner is not None:
            await self._runner.cleanup()
        if self._ending:
            await asyncio.wait(self._ending)
        self._threads.shutdown()

    async def _work(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        task = partial(action, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, task)

    async def _take_snapshots(self) -> None:
        """Snapshots for the tabs, as often as `Watch.pause_s` says, and for the history."""
        await self._tried(self._watch.begin)
        seconds = 0.0
        while True:
            if self._tabs.open or seconds >= STEP_S:
                seconds = 0.0
                await self._tried(self._watch.snapshot)
                for tab in self._tabs.open:
                    if self._watch.newest is not None:
                        tab.show(self._watch.newest)
            pause_s = self._watch.pause_s
            await asyncio.sleep(pause_s)
            seconds += pause_s

    def _kept(self, work: Awaitable[None]) -> None:
        """Does work beside everything else; `stop` waits for it."""
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _tried(self, action: Callable[[], object]) -> None:
        try:
            await self._work(action)
        except Exception:
            log.exception("the console can't snapshot at the database")

    def _session(self, login: Login | None = None) -> Session:
        """A session to snapshot with: as a user, or as one that sees everything."""
        return self._host.users.session(login, Variables(self._host.dialect), files=False)

    def _clients(self) -> Clients:
        traffic = self._host.traffic
        connections = {"postgresql": self._host.count("postgresql"), "http": self._streams}
        return Clients(connections, traffic.statements, traffic.subscriptions)

    # ---- who asks

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers errors, and lets nobody in who may not."""
        assert self._accepting is not None
        with self._accepting.answering(request.protocol):
            return await self._answered(request, handler)

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._access.check_place(request)
            if request.path.startswith(("/api/", "/metrics", "/subscribe")) and request.path not in _OPEN:
                request[USER] = await self._access.user(request)
            response = await handler(request)
        except Error as err:
            response = failed(err)
            if err.condition == "AUTHENTICATION_FAILED" and request.path in _OF_PROGRAMS:
                response.headers["WWW-Authenticate"] = 'Basic realm="watersmeet"'
        except web.HTTPException as err:
            response = refused(request, err)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a request ended by an internal error")
            response = failed(error("INTERNAL_ERROR", "the request ended by an internal error"))
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _who(self, request: web.Request) -> web.Response:
        """Who is logged in, and what the page has to know before anything else."""
        try:
            login, lets_in = await self._access.user(request), True
        except Error:
            login, lets_in = None, False
        known = {
            "user": None if login is None else login.name,
            "lets_in": lets_in,
            "needs_users": self._access.needs_users,
            "version": __version__,
            "dialects": list(DIALECTS),
            "dialect": self._host.dialect,
            "read_only": self._host.database.read_only,
            "metrics": list(RelationMetrics._fields),
            "most_rows": MOST_ROWS,
        }
        return answer(known)

    async def _login(self, request: web.Request) -> web.Response:
        login = await self._access.user(request)
        if login is None:
            return answer({"user": None})
        token = self._access.give_token(login)
        response = answer({"user": login.name, "token": token})
        self._access.set_cookie(response, token)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self._access.forget(request)
        response = answer({})
        self._access.set_cookie(response, "")
        return response

    # ---- health and metrics

    async def _livez(self, request: web.Request) -> web.Response:
        del request
        return answer(metrics.is_alive())

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        ready, said = metrics.readiness(self._watch.session)
        return answer(said, 200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._session(request[USER]).rights.has(READER):
            raise error(
                "PERMISSION_DENIED", "permission denied for the metrics", detail=f"They take the role {READER}."
            )
        body, kind = await self._work(self._exporter.text)
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    # ---- the console

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"] or "index.html"
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound
        body, kind = found
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-cache"}
        return web.Response(body=body, headers=headers)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """The stream of a tab."""
        name = request.query.get("tab", "")
        if not name:
            raise error("INVALID_PARAMETER", "a stream needs the name of its tab", hint="GET /api/live?tab=NAME")
        with self._streaming(request, CONSOLE) as client:
            tab = Tab(client, self._session(client.login))
            self._tabs.enter(name, tab)
            response = event_stream()
            try:
                await response.prepare(request)
                tab.show(await self._work(self._watch.snapshot))
                await self._until_stopped(request, client, tab.stream(response, self._frames, self._slow_s))
            finally:
                # Also if the request is cancelled, as its client is gone: what the tab runs has to end.
                self._kept(self._tabs.leave(name, tab))
        return response

    @property
    def _slow_s(self) -> float:
        """How long a client may leave what is sent to it untaken."""
        return self._host.limits.slow_client_s

    @contextlib.contextmanager
    def _entered(self, request: web.Request, application: str) -> Iterator[WebClient]:
        """One of the clients of the server inside. TOO_MANY_CONNECTIONS."""
        client = WebClient(self._host, request, request[USER], application)
        try:
            yield client
        finally:
            client.leave()

    @contextlib.contextmanager
    def _streaming(self, request: web.Request, application: str) -> Iterator[WebClient]:
        """A client gets a stream inside. TOO_MANY_CONNECTIONS."""
        with self._entered(request, application) as client:
            self._streams += 1
            try:
                yield client
            finally:
                self._streams -= 1

    async def _until_stopped(self, request: web.Request, client: WebClient, stream: Awaitable[None]) -> None:
        """Waits for a stream, which ends with the server, and with a client that is gone, too slow, or sent away."""
        streaming = asyncio.ensure_future(stream)
        stopping = asyncio.ensure_future(self._stopping.wait())
        ending = asyncio.ensure_future(client.ended.wait())
        try:
            await asyncio.wait([streaming, stopping, ending], return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            streaming.cancel()
            stopping.cancel()
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError, Error):
                await streaming

    async def _subscribe(self, request: web.Request) -> web.StreamResponse:
        """The stream of a subscription."""
        session = self._session(request[USER])
        with self._streaming(request, SUBSCRIPTION) as client:
            subscriber = await self._work(tabs.opened, session, request)
            if subscriber is None:
                return web.Response(status=204)  # browsers ask no more then
            ids = [f.relation.id for f in subscriber.followed]

            def allowed() -> None:
                if not self._host.users.admits(client.login):
                    raise expired(client.login)
                check_followed(session, ids)

            response = event_stream()
            try:
                await response.prepare(request)
                with self._host.traffic.subscribed():
                    stream = tabs.stream(response, subscriber, allowed, self._slow_s)
                    await self._until_stopped(request, client, stream)
            finally:
                self._kept(self._work(subscriber.close))
        return response

    async def _topology(self, request: web.Request) -> web.Response:
        session, around = self._session(request[USER]), request.query.get("around")
        found = await self._work(self._drawn, session, around)
        response = answer(found)
        response.enable_compression()
        return response

    def _drawn(self, session: Session, around: str | None) -> object:
        catalog, diagram = self._graphs.diagram()
        return shown_graph(catalog, diagram, sight_of(session), around)

    def _asked(self, request: web.Request) -> tuple[Session, Relation]:
        """The session of who asks, and the relation that is asked about. UNDEFINED_RELATION."""
        session, relation_id = self._session(request[USER]), request.match_info["id"]
        found = session.catalog.relations.get(relation_id)
        if found is None or found.staged or not session.catalog.shows(found):
            raise error("UNDEFINED_RELATION", f'relation "{relation_id}" does not exist')
        return session, found

    async def _relation(self, request: web.Request) -> web.Response:
        session, relation = self._asked(request)
        snapshot = await self._work(self._watch.snapshot)
        producers = await self._work(self._graphs.producers)
        return answer(await self._work(details.relation_json, session, relation, snapshot, producers))

    async def _history(self, request: web.Request) -> web.Response:
        if "id" in request.match_info:
            name = self._asked(request)[1].id
        elif self._session(request[USER]).rights.has(READER):
            name = DATABASE
        else:
            raise error(
                "PERMISSION_DENIED", "permission denied for the database", detail=f"It takes the role {READER}."
            )
        return answer(await self._work(self._watch.history.read, name))

    async def _letters(self, request: web.Request) -> web.Response:
        session, relation = self._asked(request)
        return answer({"letters": await self._work(details.letters_json, session, relation)})

    # ---- the worksheet

    async def _run(self, request: web.Request) -> web.Response:
        """Runs statements: in the worksheet of a tab, or in a session for them alone."""
        body = await read_json(request, self._host.limits.authentication_s)
        text, dialect = text_field(body, "text"), optional_text(body, "dialect")
        most_rows = body.get("rows", 1000)
        if type(most_rows) is not int or not 0 <= most_rows <= MOST_ROWS:
            raise error("INVALID_PARAMETER", f"rows must be a number up to {MOST_ROWS:,}")
        if "tab" not in body:
            with self._entered(request, REQUEST) as client:
                alone = client.worksheet = await self._opened(client, REQUEST, _nowhere)
                self._alone.add(alone)
                try:
                    found = answer(await alone.run(text, dialect, most_rows, lambda: is_gone(request)))
                    if client.failure is not None:
                        raise client.failure
                    return found
                finally:
                    self._alone.discard(alone)
                    await alone.close()
        worksheet = await self._worksheet(request[USER], text_field(body, "tab"))
        found = answer(await worksheet.run(text, dialect, most_rows, lambda: is_gone(request)))
        found.enable_compression()
        return found

    async def _worksheet(self, login: Login | None, name: str) -> Worksheet:
        """The worksheet of a tab. UNDEFINED_OBJECT."""
        tab = self._tabs.get(login, name)
        async with tab.opening:
            if tab.client.worksheet is None:
                tab.client.worksheet = await self._opened(tab.client, CONSOLE, tab.send)
        return tab.client.worksheet

    async def _follow(self, request: web.Request) -> web.Response:
        """Follows relations in the worksheet of a tab."""
        body = await read_json(request, self._host.limits.authentication_s)
        names = body.get("names")
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise error("INVALID_PARAMETER", 'a request needs a list of texts "names"')
        worksheet = await self._worksheet(request[USER], text_field(body, "tab"))
        return answer(await worksheet.follow(names))

    async def _opened(self, client: WebClient, application: str, send: Send) -> Worksheet:
        """A new worksheet of a client."""
        login = client.login
        options = {"user": OWNER if login is None else login.name, "database": OWNER, "application_name": application}
        backend = await self._work(self._host.open, options, login)
        backend.process = client.process
        return Worksheet(backend, self._work, send, self._host.traffic)

    async def _stop(self, request: web.Request) -> web.Response:
        body = await read_json(request, self._host.limits.authentication_s)
        tab = self._tabs.get(request[USER], text_field(body, "tab"))
        worksheet = tab.client.worksheet
        if worksheet is not None:
            await worksheet.stop(optional_text(body, "query"))
        return answer({})


async def _nowhere(name: str, data: object) -> None:
    """Where rows of a running query go that has no tab."""
    del name, data


def event_stream() -> web.StreamResponse:
    """An answer that is a stream of server-sent events."""
    return web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **_HEADERS,
        }
    )


def _static_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page, by name, with their types."""
    root = resources.files("watersmeet.server.web").joinpath("static")
    return {
        file.name: (file.read_bytes(), kind)
        for file in root.iterdir()
        if (kind := _TYPES.get("." + file.name.rpartition(".")[2])) is not None
    }
