"""The HTTP server: in the process and event loop of the server of PostgreSQL's protocol, for the same users."""

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
from watersmeet.server.web import clientsessions, details, metrics
from watersmeet.server.web.access import (
    Accepting,
    Access,
    answer,
    failed,
    optional_text,
    read_body,
    read_json,
    refused,
    text_field,
)
from watersmeet.server.web.clientsessions import (
    CONSOLE,
    REQUEST,
    SUBSCRIPTION,
    ClientSession,
    ClientSessions,
    Frames,
    WebClient,
    is_gone,
    sight_of,
)
from watersmeet.server.web.metrics import Clients, Exporter
from watersmeet.server.web.sqlsessions import MOST_ROWS, Send, SqlSession
from watersmeet.server.web.topologies import Graphs, shown_graph
from watersmeet.server.web.watch import STEP_S, RelationMetrics, Watch
from watersmeet.session.features import webhooks
from watersmeet.values import CHOICES

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log: Final = logging.getLogger(__name__)

#: The user of a request; None for a trusted one.
USER: Final[web.RequestKey[Login | None]] = web.RequestKey("user")
_THREADS: Final = 8
_MOST_BODY_BYTES: Final = 1 << 20
#: The maximum size of a request of a webhook, as in RisingWave.
_MOST_HOOK_BYTES: Final = 2 << 20
#: Pages may load resources only from this server.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: Paths without authentication, which show no data.
_OPEN: Final = ("/livez", "/readyz", "/api/login", "/api/session")
#: Paths for programs, whose answer to a failed login names the way to authenticate.
_OF_PROGRAMS: Final = ("/metrics", "/subscribe", "/webhook/")


#: Statuses of answers to webhooks that differ from those of other requests: after 503, senders try again.
_OF_HOOKS: Final = {
    **dict.fromkeys(("INVALID_VALUE", "NOT_NULL_VIOLATION", "VALUE_TOO_LONG"), 422),
    **dict.fromkeys(("DISK_FULL", "READ_ONLY_SESSION", "RUNTIME_UNAVAILABLE", "WRITER_FENCED"), 503),
}


class WebServer:
    """Serves one open database over HTTP from `start` to `stop`, both in one event loop.

    Raises INVALID_PARAMETER if the address is taken; LIBRARY_MISSING.
    """

    def __init__(self, host: Host, tls: ssl.SSLContext | None, address: str, port: int) -> None:
        self._host, self._tls = host, tls
        self._address, self._port = address, port
        self._access = Access(host.users, address, encrypted=tls is not None)
        self._threads = ThreadPoolExecutor(_THREADS + host.limits.connections, thread_name_prefix="watersmeet-web")
        session = self._session()
        self._watch = Watch(session)
        self._graphs = Graphs(session)
        self._sessions = ClientSessions()
        self._streams = 0
        self._alone: set[SqlSession] = set()
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
                web.get("/api/columns", self._columns),
                web.get("/api/relations/{name}", self._relation),
                web.get("/api/relations/{name}/history", self._history),
                web.get("/api/relations/{name}/letters", self._letters),
                web.get("/api/history", self._history),
                web.post("/api/check", self._check),
                web.post("/api/run", self._run),
                web.post("/api/follow", self._follow),
                web.post("/api/stop", self._stop),
                web.post("/webhook/{database}/{schema}/{table}", self._webhook),
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
        """Ends all clients, and returns when their statements have ended."""
        self._stopping.set()
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
        if self._accepting is not None:
            self._accepting.close()
        await asyncio.gather(*(sql_session.close() for sql_session in self._alone))
        if self._runner is not None:
            await self._runner.cleanup()
        if self._ending:
            await asyncio.wait(self._ending)
        self._threads.shutdown()

    async def _work(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        task = partial(action, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, task)

    async def _take_snapshots(self) -> None:
        """Takes snapshots for open pages every `Watch.pause_s` seconds, and for the history."""
        await self._tried(self._watch.begin)
        seconds = 0.0
        while True:
            if self._sessions.open or seconds >= STEP_S:
                seconds = 0.0
                await self._tried(self._watch.snapshot)
                for client_session in self._sessions.open:
                    if self._watch.newest is not None:
                        client_session.show(self._watch.newest)
            pause_s = self._watch.pause_s
            await asyncio.sleep(pause_s)
            seconds += pause_s

    def _kept(self, work: Awaitable[None]) -> None:
        """Runs work in the background; `stop` waits for it."""
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _tried(self, action: Callable[[], object]) -> None:
        try:
            await self._work(action)
        except Exception:
            log.exception("the console can't read the database")

    def _session(self, login: Login | None = None) -> Session:
        """A session that reads as a user; None for a session with all privileges."""
        return self._host.users.session(login, Variables(self._host.dialect), files=False)

    def _clients(self) -> Clients:
        traffic = self._host.traffic
        connections = {"postgresql": self._host.count("postgresql"), "http": self._streams}
        return Clients(connections, traffic.statements, traffic.subscriptions)

    # ---- authentication

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticates requests and answers errors."""
        assert self._accepting is not None
        with self._accepting.answering(request.protocol):
            return await self._answered(request, handler)

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not request.path.startswith("/webhook/"):  # those with a condition are accepted from everywhere
                self._access.check_place(request)
            if request.path.startswith(("/api/", "/metrics", "/subscribe")) and request.path not in _OPEN:
                request[USER] = await self._access.user(request)
            response = await handler(request)
        except Error as err:
            response = failed(err)
            if err.condition == "AUTHENTICATION_FAILED" and request.path.startswith(_OF_PROGRAMS):
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
        """The answer with the user and the settings of the console."""
        try:
            login, lets_in = await self._access.user(request), True
        except Error:
            login, lets_in = None, False
        known = {
            "user": None if login is None else login.name,
            "lets_in": lets_in,
            "needs_users": self._access.needs_users,
            "version": __version__,
            "dialects": list(CHOICES),
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
        """The stream of a page."""
        name = request.query.get("session", "")
        if not name:
            raise error(
                "INVALID_PARAMETER", "a stream needs the name of its session", hint="GET /api/live?session=NAME"
            )
        with self._streaming(request, CONSOLE) as client:
            client_session = ClientSession(client, self._session(client.login))
            self._sessions.enter(name, client_session)
            response = event_stream()
            try:
                await response.prepare(request)
                client_session.show(await self._work(self._watch.snapshot))
                await self._until_stopped(request, client, client_session.stream(response, self._frames, self._slow_s))
            finally:
                # Even if the client has disconnected, the statements of the page must end.
                self._kept(self._sessions.leave(name, client_session))
        return response

    @property
    def _slow_s(self) -> float:
        """The maximum time in which a client may read nothing."""
        return self._host.limits.slow_client_s

    @contextlib.contextmanager
    def _entered(self, request: web.Request, application: str) -> Iterator[WebClient]:
        """Registers a client while the context is open. Raises TOO_MANY_CONNECTIONS."""
        client = WebClient(self._host, request, request[USER], application)
        try:
            yield client
        finally:
            client.leave()

    @contextlib.contextmanager
    def _streaming(self, request: web.Request, application: str) -> Iterator[WebClient]:
        """Registers a client with a stream while the context is open. Raises TOO_MANY_CONNECTIONS."""
        with self._entered(request, application) as client:
            self._streams += 1
            try:
                yield client
            finally:
                self._streams -= 1

    async def _until_stopped(self, request: web.Request, client: WebClient, stream: Awaitable[None]) -> None:
        """Waits for a stream, until the server stops, or the client disconnects, is too slow, or is ended."""
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
            subscriber = await self._work(clientsessions.opened, session, request)
            if subscriber is None:
                return web.Response(status=204)  # browsers stop reconnecting
            ids = [f.relation.id for f in subscriber.followed]

            def allowed() -> None:
                if not self._host.users.admits(client.login):
                    raise expired(client.login)
                check_followed(session, ids)

            response = event_stream()
            try:
                await response.prepare(request)
                with self._host.traffic.subscribed():
                    stream = clientsessions.stream(response, subscriber, allowed, self._slow_s)
                    await self._until_stopped(request, client, stream)
            finally:
                self._kept(self._work(subscriber.close))
        return response

    async def _topology(self, request: web.Request) -> web.Response:
        session, around = self._session(request[USER]), request.query.get("around")
        unfolded = request.query.getall("unfold", [])
        found = await self._work(self._drawn, session, around, unfolded)
        response = answer(found)
        response.enable_compression()
        return response

    def _drawn(self, session: Session, around: str | None, unfolded: list[str]) -> object:
        catalog, diagram = self._graphs.diagram()
        return shown_graph(catalog, diagram, sight_of(session), around, unfolded)

    async def _columns(self, request: web.Request) -> web.Response:
        response = answer(await self._work(details.columns_json, self._session(request[USER]).catalog))
        response.enable_compression()
        return response

    def _asked(self, request: web.Request) -> tuple[Session, Relation]:
        """The session of the user, and the relation of the request. Raises UNDEFINED_RELATION."""
        session, name = self._session(request[USER]), request.match_info["name"]
        found = details.named(session.catalog, name)
        if found is None:
            raise error("UNDEFINED_RELATION", f'relation "{name}" does not exist')
        return session, found

    async def _relation(self, request: web.Request) -> web.Response:
        session, relation = self._asked(request)
        snapshot = await self._work(self._watch.snapshot)
        producers = await self._work(self._graphs.producers)
        return answer(await self._work(details.relation_json, session, relation, snapshot, producers))

    async def _history(self, request: web.Request) -> web.Response:
        if "name" in request.match_info:
            relation_id = self._asked(request)[1].id
        elif self._session(request[USER]).rights.has(READER):
            relation_id = DATABASE
        else:
            raise error(
                "PERMISSION_DENIED", "permission denied for the database", detail=f"It takes the role {READER}."
            )
        return answer(await self._work(self._watch.history.read, relation_id))

    async def _letters(self, request: web.Request) -> web.Response:
        session, relation = self._asked(request)
        return answer({"letters": await self._work(details.letters_json, session, relation)})

    # ---- statements

    async def _run(self, request: web.Request) -> web.Response:
        """Runs statements in the SQL session of a page, or in a new one."""
        body = await read_json(request, self._host.limits.authentication_s)
        text, dialect = text_field(body, "text"), optional_text(body, "dialect")
        most_rows = body.get("rows", 1000)
        if type(most_rows) is not int or not 0 <= most_rows <= MOST_ROWS:
            raise error("INVALID_PARAMETER", f"rows must be a number up to {MOST_ROWS:,}")
        if "session" not in body:
            with self._entered(request, REQUEST) as client:
                alone = client.sql_session = await self._opened(client, REQUEST, _nowhere)
                self._alone.add(alone)
                try:
                    found = answer(await alone.run(text, dialect, most_rows, lambda: is_gone(request)))
                    if client.failure is not None:
                        raise client.failure
                    return found
                finally:
                    self._alone.discard(alone)
                    await alone.close()
        sql_session = await self._sql_session(request[USER], text_field(body, "session"))
        found = answer(await sql_session.run(text, dialect, most_rows, lambda: is_gone(request)))
        found.enable_compression()
        return found

    async def _webhook(self, request: web.Request) -> web.Response:
        """Answers when the rows of a request are committed. For a table without a condition the user must log in, also
        to learn that the table does not exist.
        """
        place = request.match_info["schema"], request.match_info["table"]
        session = self._session()
        table = webhooks.webhook_table(session, *place)
        if table is None or not webhooks.is_validated(table):
            self._access.check_place(request)
            session = self._session(await self._access.user(request))
            table = webhooks.webhook_table(session, *place)
            if table is None:
                raise error("UNDEFINED_RELATION", f'there is no webhook table "{place[0]}.{place[1]}"')
        body = await read_body(request.clone(client_max_size=_MOST_HOOK_BYTES), self._host.limits.authentication_s)
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
        try:
            await self._work(webhooks.receive, session, table, headers, body)
        except Error as problem:
            return failed(problem, _OF_HOOKS.get(problem.condition))
        return web.Response()

    async def _check(self, request: web.Request) -> web.Response:
        """Checks statements, as the SQL session of a page would run them."""
        body = await read_json(request, self._host.limits.authentication_s)
        text, dialect = text_field(body, "text"), optional_text(body, "dialect")
        sql_session = await self._sql_session(request[USER], text_field(body, "session"))
        return answer(await sql_session.check(text, dialect))

    async def _sql_session(self, login: Login | None, name: str) -> SqlSession:
        """The SQL session of a page. Raises UNDEFINED_OBJECT."""
        client_session = self._sessions.get(login, name)
        async with client_session.opening:
            if client_session.client.sql_session is None:
                opened = await self._opened(client_session.client, CONSOLE, client_session.send)
                client_session.client.sql_session = opened
        return client_session.client.sql_session

    async def _follow(self, request: web.Request) -> web.Response:
        """Subscribes the SQL session of a page to relations."""
        body = await read_json(request, self._host.limits.authentication_s)
        names = body.get("names")
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise error("INVALID_PARAMETER", 'a request needs a list of texts "names"')
        sql_session = await self._sql_session(request[USER], text_field(body, "session"))
        return answer(await sql_session.follow(names))

    async def _opened(self, client: WebClient, application: str, send: Send) -> SqlSession:
        """A new SQL session of a client."""
        login = client.login
        options = {"user": OWNER if login is None else login.name, "database": OWNER, "application_name": application}
        backend = await self._work(self._host.open, options, login)
        backend.process = client.process
        return SqlSession(backend, self._work, send, self._host.traffic)

    async def _stop(self, request: web.Request) -> web.Response:
        body = await read_json(request, self._host.limits.authentication_s)
        client_session = self._sessions.get(request[USER], text_field(body, "session"))
        sql_session = client_session.client.sql_session
        if sql_session is not None:
            await sql_session.stop(optional_text(body, "query"))
        return answer({})


async def _nowhere(name: str, data: object) -> None:
    """Drops the rows of a running query without a page."""
    del name, data


def event_stream() -> web.StreamResponse:
    """An answer with server-sent events."""
    return web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **_HEADERS,
        }
    )


def _static_files() -> dict[str, tuple[bytes, str]]:
    """The files of the console by name, with their types."""
    root = resources.files("watersmeet.server.web").joinpath("static")
    return {
        file.name: (file.read_bytes(), kind)
        for file in root.iterdir()
        if (kind := _TYPES.get("." + file.name.rpartition(".")[2])) is not None
    }
