"""One client's connection: TLS, startup, login, then messages and their answers.

PostgreSQL, "Message Flow", "Start-up", "SSL Session Encryption", "Canceling Requests in Progress".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import IO, Final, ParamSpec, TypeVar

import pyarrow as pa

from watersmeet.database.committing import wait_if_wanted
from watersmeet.database.sessions.result import Result, Running, in_zone
from watersmeet.database.sessions.variables import APPLICATION
from watersmeet.errors import Error, error
from watersmeet.server import messages
from watersmeet.server.backend import Backend, Host
from watersmeet.server.clients import Activity, Speaks, State
from watersmeet.server.copying import CopyForm, CopyResult
from watersmeet.server.grouped import ChangeWaiting, InsertWaiting, LookupWaiting, SmallWaiting, inserted
from watersmeet.server.messages import Body, Message, authentication, violation
from watersmeet.server.results import Encode, Portal, complete_tag, data_rows, follow, has_rows
from watersmeet.server.users import Login, Users, expired, refused
from watersmeet.server.wire import Hangup, Wire
from watersmeet.session.statements.preparing import prepared_named
from watersmeet.subscribing.forms import ShownUpdates
from watersmeet.system.passwords import MECHANISM, Exchange
from watersmeet.values.types import Schema

_MAJOR: Final = 3


async def start(
    wire: Wire, tls: ssl.SSLContext | None, cancel: Callable[[int, bytes], None], *, reads: bool, requires_tls: bool
) -> dict[str, str] | None:
    """The options of the startup message; None after another request, or at the end.

    cancel: called with the process number and the secret of a cancel request. reads: whether the server only reads.
    requires_tls: only with TLS. Raises PROTOCOL_VIOLATION, FEATURE_NOT_SUPPORTED, INVALID_AUTHORIZATION and Hangup.
    """
    while True:
        body = await wire.first()
        if body is None:
            return None
        (code,) = struct.unpack(">I", body[:4])
        if code == messages.SSL_REQUEST and not wire.is_encrypted:
            wire.tell(b"N" if tls is None else b"S")
            await wire.flush()
            if tls is not None:
                await wire.encrypt(tls)
        elif code == messages.GSS_REQUEST:
            wire.tell(b"N")
            await wire.flush()
        elif code == messages.CANCEL_REQUEST:
            if len(body) == 12:
                cancel(struct.unpack(">i", body[4:8])[0], body[8:])
            return None
        elif code == messages.ROLE_REQUEST:
            wire.tell(messages.READER if reads else messages.WRITER)
            await wire.flush()
            return None
        else:
            options = _options(wire, code, Body(body[4:]))
            if tls is not None and requires_tls and not wire.is_encrypted:
                raise error("INVALID_AUTHORIZATION", "connections must be encrypted", hint="Use sslmode=require.")
            return options


def _options(wire: Wire, code: int, body: Body) -> dict[str, str]:
    major, minor = code >> 16, code & 0xFFFF
    if major != _MAJOR:
        raise error("FEATURE_NOT_SUPPORTED", f"unsupported frontend protocol {major}.{minor}: the server speaks 3.0")
    options: dict[str, str] = {}
    while name := body.text():
        options[name] = body.text()
    body.end()
    unknown = [n for n in options if n.startswith("_pq_.")]
    if minor or unknown:
        wire.tell(messages.negotiate_version(0, unknown))
    if not options.get("user"):
        raise error("INVALID_AUTHORIZATION", "no user name is given in the startup message")
    return options


Ask = Callable[[bytes], Awaitable[bytes]]
Tell = Callable[[bytes], None]


async def authenticate(users: Users, name: str, address: str, ask: Ask, tell: Tell) -> Login | None:
    """Authenticates a user by SCRAM; None if no password is needed. Earlier failures at its address delay it.

    Raises AUTHENTICATION_FAILED, in the same way for a wrong password and an unknown user.
    """
    if not users.need_passwords:
        return None
    body = Body(await ask(authentication(10, MECHANISM.encode() + b"\0\0")))
    if body.text() != MECHANISM:
        raise violation("the client chose a mechanism of authentication that was not offered")
    first = _text(body.value() or b"")
    login, verifier = users.find(name)
    exchange = Exchange(verifier, first)
    final = _text(await ask(authentication(11, exchange.server_first.encode())))
    await users.guesses.turn(address, name)
    proved = exchange.check(final)
    if login is None or not proved:
        raise refused(name)
    users.guesses.succeed(address, name)
    tell(authentication(12, exchange.server_final.encode()))
    return login


def _text(said: bytes) -> str:
    try:
        return said.decode("utf-8")
    except UnicodeDecodeError:
        raise violation("a message of SCRAM is not text") from None


P = ParamSpec("P")
T = TypeVar("T")
log: Final = logging.getLogger(__name__)

#: The interval at which the connection is checked while a statement runs.
_WATCH_S: Final = 0.5

#: The maximum bytes of rows of COPY in memory, further bytes are in a file; and the bytes that are written together.
_COPY_BYTES: Final = 1 << 25
_WRITTEN_BYTES: Final = 1 << 16

#: The name of a client that only shows the rows of a query once it has all of them, but those of COPY as they arrive.
_PSQL: Final = "psql"

#: Messages that read or run a statement.
_BEGINNING: Final = (b"Q", b"P", b"E")

#: The state of a waiting client, by the state of its transaction.
_STATES: Final[dict[bytes, State]] = {b"I": "idle", b"T": "idle in transaction", b"E": "idle in transaction (aborted)"}


class Connection:
    """Serves one client until it disconnects, or `end` is called."""

    protocol: Speaks = "postgresql"

    def __init__(
        self, host: Host, tls: ssl.SSLContext | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._tls = tls
        self._wire = Wire(reader, writer, host.limits.slow_client_s)
        self._backend: Backend | None = None
        self._skipping = False
        self._timed_out = False
        self._task: asyncio.Task[None] | None = None
        self._ended: Error | None = None
        self._began_s = time.time()
        self._login: Login | None = None
        self._works = False
        self._collected: list[tuple[InsertWaiting, Portal]] = []
        """INSERTs of a pipeline whose rows are not committed yet. Their results are encoded, but not sent."""
        self._reports = True
        """Whether settings may have changed since the last ReadyForQuery."""
        self._following: Running | None = None
        """The running query whose rows are sent."""

    async def serve(self) -> None:
        """Serves the client until it disconnects. Never raises an error."""
        self._task = asyncio.current_task()
        try:
            await self._speak()
        except (Hangup, ConnectionError, asyncio.CancelledError):
            pass
        except Error as err:
            await self._farewell(err)
        except Exception:
            log.exception("a connection ended by an internal error")
            await self._farewell(error("INTERNAL_ERROR", "the connection ended by an internal error"))
        finally:
            if self._ended is not None:
                await self._farewell(self._ended)
            await self._close()

    def end(self, err: Error) -> None:
        self._ended = err
        if self._backend is not None:
            self._backend.session.cancellation.cancel()
        if self._task is not None:
            self._task.cancel()

    def cancel(self) -> None:
        if self._backend is not None:
            self._backend.session.cancellation.cancel()
        if isinstance(self._following, ShownUpdates):
            self._following.subscriber.wake()

    def activity(self) -> Activity | None:
        backend = self._backend
        if backend is None:
            return None
        state: State = "active" if self._works else _STATES[backend.state]
        application = backend.session.variables.get("application_name")
        actor = None if self._login is None else self._login.actor
        return Activity(backend.process, backend.user, actor, application, self._wire.address, state, self._began_s)

    def check_login(self) -> None:
        backend = self._backend
        if backend is None or (self._works and backend.session.puts_roles):
            return  # the client first receives the answer to its own statement
        if not self._host.users.admits(self._login, backend.session):
            self.end(expired(self._login))

    async def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            with contextlib.suppress(Error, asyncio.CancelledError):
                await asyncio.shield(self._host.work(backend.close))
        await self._wire.close()

    async def _farewell(self, err: Error) -> None:
        """Sends the last message: the reason why the connection ends."""
        self._wire.tell(messages.error_response(err, severity="FATAL"))
        with contextlib.suppress(Hangup, OSError, Error):
            await self._wire.flush(most_s=1)

    # ---- before the first statement

    async def _speak(self) -> None:
        limits = self._host.limits
        try:
            async with asyncio.timeout(limits.authentication_s):
                host, wire = self._host, self._wire
                reads, secured = host.database.read_only, limits.requires_tls
                options = await start(wire, self._tls, host.cancel, reads=reads, requires_tls=secured)
                if options is None:
                    return
                self._login = await authenticate(host.users, options["user"], wire.address, wire.ask, wire.tell)
                backend = await self._host.work(self._host.open, options, self._login)
        except TimeoutError:
            raise error("IDLE_TIMEOUT", "authentication timed out") from None
        self._backend = backend
        process, secret = self._host.enter(self, self._login)
        backend.process = process
        later = asyncio.get_running_loop().call_soon_threadsafe
        backend.session.receive(partial(later, self._push), process)
        backend.session.teller = lambda text: later(self._wire.push, messages.notices([text]))
        self._wire.tell(messages.AUTHENTICATION_OK)
        self._report()
        self._wire.tell(messages.backend_key(process, secret))
        await self._ready()
        while True:
            await self._answer(await self._next())

    # ---- messages

    async def _next(self, *, idles: bool = True) -> Message:
        """The next message. idles: whether the client does nothing until then. Raises IDLE_TIMEOUT, and Hangup at the
        end.
        """
        assert self._backend is not None
        if (taken := self._wire.taken()) is not None and taken.kind != b"X":
            return taken
        settings = self._backend.settings
        idle = "idle_session_timeout" if self._backend.state == b"I" else "idle_in_transaction_session_timeout"
        most_ms = settings.limit(idle) if idles else 0
        try:
            async with asyncio.timeout(most_ms / 1000 if most_ms else None):
                limits = self._host.limits
                message = await self._wire.next(limits.message_bytes, limits.statement_bytes)
        except TimeoutError:
            raise error("IDLE_TIMEOUT", f"terminating connection due to {idle}") from None
        if message is None or message.kind == b"X":
            raise Hangup
        return message

    async def _answer(self, message: Message) -> None:
        if self._skipping and message.kind != b"S":
            return
        if message.kind in (b"S", b"Q") and (self._collected or self._client.pipelined):
            try:
                await self._finish()
            except Error as err:
                self._wire.tell(messages.error_response(self._adjusted(err)))
                self._skipping = message.kind != b"S"
                if self._skipping:
                    await self._wire.flush()
                    return
        body = Body(message.body)
        handler = _HANDLERS.get(message.kind)
        if handler is None:
            raise violation(f"unknown message type {message.kind!r}")
        if message.kind in _BEGINNING and not self._host.users.admits(self._login, self._client.session):
            raise expired(self._login)
        try:
            self._works = True
            if message.skipped_bytes:
                raise self._client.failed(self._host.limits.too_long(message.skipped_bytes))
            await handler(self, body)
        except Error as err:
            if err.condition == "PROTOCOL_VIOLATION" and message.kind != b"B":
                raise
            self._collected.clear()
            self._wire.tell(messages.error_response(self._adjusted(err)))
            if message.kind == b"Q":
                await self._ready()
            else:
                self._skipping = True
                await self._wire.flush()
        finally:
            self._works = self._client.session.puts_roles = False

    def _adjusted(self, err: Error) -> Error:
        """The error with the reason of a cancellation."""
        if err.condition == "QUERY_CANCELED" and not err.message.startswith("COPY"):
            why = "statement timeout" if self._timed_out else "user request"
            return error("QUERY_CANCELED", f"canceling statement due to {why}")
        return err

    async def _query(self, body: Body) -> None:
        text = body.text()
        body.end()
        backend = self._client
        waiting = backend.small_text(text)
        if waiting is not None and await self._small(waiting, described=False):
            await self._ready()
            return
        results = backend.simple(text)
        try:
            while (result := await self._run(lambda: next(results, None))) is not None:
                await self._give(result)
                backend.session.puts_roles = False
        finally:
            await self._host.work(results.close)
        await self._ready()

    async def _small(self, waiting: SmallWaiting, *, described: bool, counts: int | None = None) -> bool:
        """Runs a small statement with those of other clients, and sends its result. False if it must run the usual
        way. described: whether the client knows the columns. counts: the number of INSERTs whose results were told.
        """
        traffic, kind = self._host.traffic, waiting.command.lower()
        most_ms = self._client.settings.limit("statement_timeout")
        self._timed_out = False
        try:
            await self._host.grouped(waiting, most_ms)
        except Error as err:
            self._timed_out = waiting.timed_out
            traffic.ended(kind, err.sqlstate)
            raise
        if waiting.outdated:
            return False
        if not isinstance(waiting, LookupWaiting) and waiting.session.variables.is_on("implicit_flush"):
            await self._run(wait_if_wanted, waiting.session)
        for _ in range(counts or 1):
            traffic.ended(kind)
        if isinstance(waiting, InsertWaiting):
            self._wire.tell(b"" if counts else messages.command_complete(f"INSERT 0 {waiting.count}"))
            return True
        if isinstance(waiting, ChangeWaiting):
            self._wire.tell(messages.command_complete(f"{waiting.command} {waiting.rows}"))
            return True
        if not described:
            self._wire.tell(waiting.description)
        self._wire.tell(b"".join(waiting.messages) + messages.command_complete(f"SELECT {len(waiting.messages)}"))
        return True

    async def _give(self, result: Result) -> None:
        """Sends the result of a statement of a simple query."""
        self._wire.tell(messages.notices(result.notices))
        if not result.command:
            self._wire.tell(messages.EMPTY_QUERY)
            return
        self._report()
        if result.running is not None and self._client.session.variables.get(APPLICATION) == _PSQL:
            result = CopyResult(result.command, result.columns, running=result.running, form=CopyForm(header=True))
        if isinstance(result, CopyResult):
            await self._copy(result)
        elif has_rows(result):
            columns = self._client.columns(result) or ()
            formats = (0,) * len(columns)
            self._wire.tell(messages.row_description(columns, formats))
            if result.running is not None:
                await self._follow_rows(result, formats)
                return
            await self._rows(result.table, result.columns, formats)
            self._wire.tell(messages.command_complete(complete_tag(result)))
        else:
            self._wire.tell(messages.command_complete(complete_tag(result)))

    async def _copy(self, result: CopyResult) -> None:
        """COPY … TO STDOUT and COPY … FROM STDIN."""
        form, columns, done = result.form, result.columns, complete_tag(result)
        formats = [form.code] * len(columns)
        if result.receives is not None:
            received = await self._receive(result.receives, formats)
            self._wire.tell(messages.notices(received.notices))
            done = complete_tag(received)
        elif result.running is not None:
            self._wire.tell(messages.copy_response(b"H", formats))
            self._wire.tell(form.head(columns))
            total = await self._follow(result.running, lambda rows: form.rows(rows, columns), form, form.first)
            self._wire.tell((form.tail() if total else form.first(form.tail())) + messages.COPY_DONE)
            done = complete_tag(result, total)
        else:
            self._wire.tell(messages.copy_response(b"H", formats))
            await self._send(form.messages(result.table, columns))
            self._wire.tell(messages.COPY_DONE)
        self._wire.tell(messages.command_complete(done))

    async def _receive(self, receives: Callable[[IO[bytes]], Result], formats: list[int]) -> Result:
        """The result of COPY with the rows of the client. Raises QUERY_CANCELED."""
        self._wire.tell(messages.copy_response(b"G", formats))
        await self._wire.flush()
        cancellation, loop = self._client.session.cancellation, asyncio.get_running_loop()
        cancellation.reset()
        most_ms, began_s = self._client.settings.limit("statement_timeout"), loop.time()
        rows = bytearray()  # many clients send each row as a message
        with tempfile.SpooledTemporaryFile(_COPY_BYTES) as file:
            while (message := await self._next(idles=False)).kind != b"c":
                self._timed_out = bool(most_ms) and loop.time() - began_s >= most_ms / 1000
                if self._timed_out or cancellation.canceled:
                    raise error("QUERY_CANCELED", "the statement was canceled")
                if message.kind == b"d":
                    rows += message.body
                    if len(rows) >= _WRITTEN_BYTES:
                        await self._host.work(file.write, rows)
                        rows = bytearray()
                elif message.kind == b"f":
                    reason = Body(message.body).text()
                    raise error("QUERY_CANCELED", f"COPY from stdin failed: {reason}")
                elif message.kind not in (b"H", b"S"):
                    raise violation(f"a message of type {message.kind!r} is not allowed within COPY")
            await self._host.work(file.write, rows)
            file.seek(0)
            return await self._run(lambda: self._client.guarded(receives, file))

    async def _rows(self, table: pa.Table, columns: Schema, formats: tuple[int, ...]) -> None:
        await self._send(iter(data_rows(table, columns, formats)))

    async def _send(self, batches: Iterator[memoryview]) -> None:
        """Sends batches. Each is encoded only after the client has read the previous one."""
        while (batch := await self._host.work(lambda: next(batches, None))) is not None:
            await self._wire.send(batch)

    async def _follow_rows(self, result: Result, formats: tuple[int, ...]) -> None:
        """Sends the rows of a running query, and its end."""
        assert result.running is not None

        def encode(rows: pa.Table) -> bytes:
            return b"".join(data_rows(in_zone(rows, result.zone), result.columns, formats))

        total = await self._follow(result.running, encode, formats)
        self._wire.tell(messages.command_complete(complete_tag(result, total)))

    async def _follow(
        self, running: Running, encode: Encode, how: object, first: Callable[[bytes], bytes] = bytes
    ) -> int:
        """Sends the rows of a running query until its end. Returns their number. Raises QUERY_CANCELED.

        how: as in `results.encoded`. first: converts the first messages.
        """

        async def send(part: bytes, *, is_first: bool) -> None:
            if part:
                await self._wire.send(memoryview(first(part) if is_first else part))
            # A buffered message can hide the end of the client's stream, so this checks whether it is cut.
            if self._wire.is_cut:
                raise Hangup

        self._following = running
        try:
            await self._wire.flush()
            cancellation = self._client.session.cancellation
            with self._host.traffic.subscribed():
                return await follow(running, encode, how, self._host, cancellation, send)
        finally:
            self._following = None

    async def _parse(self, body: Body) -> None:
        name, text = body.text(), body.text()
        oids = body.numbers(4)
        body.end()
        backend, numbers = self._client, [o & 0xFFFFFFFF for o in oids]
        if not backend.parse_again(name, text, numbers):
            await self._run(backend.guarded, backend.parse, name, text, numbers)
        self._wire.tell(messages.PARSE_COMPLETE)

    async def _bind(self, body: Body) -> None:
        name, statement = body.text(), body.text()
        forms = body.numbers(2)
        values = [body.value() for _ in range(body.count())]
        results = body.numbers(2)
        body.end()
        backend = self._client
        if not backend.guarded(backend.bind_small, name, statement, forms, values, results):
            await self._run(backend.guarded, backend.bind, name, statement, forms, values, results)
        self._wire.tell(messages.BIND_COMPLETE)

    async def _describe(self, body: Body) -> None:
        kind, name = body.take(1), body.text()
        body.end()
        backend = self._client
        if kind == b"S":
            prepared = backend.guarded(prepared_named, backend.session, name)
            self._wire.tell(messages.parameter_description(backend.parameter_oids(name)))
            columns = backend.columns(prepared.result)
            formats = (0,) * len(columns or ())
        elif kind == b"P":
            portal = backend.guarded(backend.portal_named, name)
            columns, formats = portal.columns, portal.formats
        else:
            raise violation("a statement (S) or a portal (P) is described")
        self._wire.tell(messages.NO_DATA if columns is None else messages.row_description(columns, formats))

    async def _execute(self, body: Body) -> None:
        name, most = body.text(), body.number(4)
        body.end()
        backend = self._client
        portal = backend.guarded(backend.portal_named, name)
        if portal.statement is None and portal.result is None and portal.bind is None:
            self._wire.tell(messages.EMPTY_QUERY)
            return
        if backend.adds_rows(portal):
            self._wire.tell(inserted(portal))
            return
        waiting = backend.small_portal(portal, most)
        if self._collected or self._wire.continues:
            if isinstance(waiting, InsertWaiting) and self._collects(waiting, portal):
                self._wire.tell(inserted(portal))
                return
            if self._collected or backend.changes_rows(portal):
                await self._join()
                waiting = None
        if waiting is not None and await self._small(waiting, described=True):
            portal.result = Result("")
            return
        result = await self._run(backend.guarded, backend.execute_portal, portal)
        self._wire.tell(messages.notices(result.notices))
        self._report()
        if isinstance(result, CopyResult):
            await self._copy(result)
            return
        if portal.flow is not None and most <= 0:
            await self._follow_rows(result, portal.formats)
            return
        if portal.flow is not None:
            taken = await self._run(backend.guarded, portal.flow.take, most)
            await self._rows(taken, result.columns, portal.formats)
            ended = messages.command_complete(complete_tag(result, taken.num_rows))
            self._wire.tell(ended if portal.flow.is_done else messages.PORTAL_SUSPENDED)
            return
        if result.table is None:
            self._wire.tell(messages.command_complete(complete_tag(result)))
            return
        taken = portal.take(most)
        await self._rows(taken, result.columns, portal.formats)
        if most > 0 and not portal.is_done:
            self._wire.tell(messages.PORTAL_SUSPENDED)
        else:
            self._wire.tell(messages.command_complete(complete_tag(result, taken.num_rows)))

    def _collects(self, waiting: InsertWaiting, portal: Portal) -> bool:
        """Adds the row of an INSERT to those of its pipeline, which are committed together. False if it can't be."""
        if self._collected and not waiting.joins(self._collected[0][0]):
            return False
        self._collected.append((waiting, portal))
        portal.result = Result("INSERT", rowcount=waiting.count)
        return True

    async def _join(self) -> None:
        """Begins a transaction with the collected rows, in which later statements run, up to Sync."""
        portals, self._collected = [portal for _, portal in self._collected], []
        await self._run(self._client.guarded, self._client.begin_pipeline, portals)

    async def _finish(self) -> None:
        """Commits the statements of a pipeline."""
        if self._collected:
            collected, self._collected = self._collected, []
            first = collected[0][0]
            first.extend([waiting for waiting, _ in collected[1:]])
            if not await self._small(first, described=True, counts=len(collected)):
                self._collected = collected
                await self._join()
        if self._client.pipelined:
            await self._run(self._client.end_pipeline)

    async def _close_one(self, body: Body) -> None:
        kind, name = body.take(1), body.text()
        body.end()
        if kind not in (b"S", b"P"):
            raise violation("a statement (S) or a portal (P) is closed")
        if kind == b"S":
            self._client.session.prepared.pop(name, None)
        else:
            await self._host.work(self._client.session.cursors.drop, [name])
        self._wire.tell(messages.CLOSE_COMPLETE)

    async def _sync(self, body: Body) -> None:
        body.end()
        self._skipping = False
        self._client.sync()
        await self._ready()

    async def _flushed(self, body: Body) -> None:
        body.end()
        if self._collected:
            await self._join()
        await self._wire.flush()

    async def _ignored(self, body: Body) -> None:
        """Drops rows of a failed COPY."""
        del body

    # ---- helpers

    @property
    def _client(self) -> Backend:
        assert self._backend is not None
        return self._backend

    async def _run(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Runs an action in a thread; cancels it at the timeout of statements, or if the client disconnects."""
        cancellation = self._client.session.cancellation
        cancellation.reset()
        self._timed_out, self._reports = False, True
        most_ms = self._client.settings.limit("statement_timeout")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + most_ms / 1000 if most_ms else None
        work = asyncio.ensure_future(self._host.work(action, *arguments, **named))
        try:
            while True:
                left_s = _WATCH_S if until_s is None else min(_WATCH_S, max(until_s - loop.time(), 0.001))
                done, _ = await asyncio.wait([work], timeout=left_s)
                if done:
                    return work.result()
                if self._wire.is_at_end or cancellation.canceled:
                    cancellation.cancel()  # repeated, because a starting query may have reset it
                if until_s is not None and loop.time() >= until_s:
                    self._timed_out = True
                    cancellation.cancel()
        except (Error, StopIteration):
            raise
        except Exception as cause:
            log.exception("a statement ended by an internal error")
            raise error("INTERNAL_ERROR", f"{type(cause).__name__}: {cause}") from cause
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                while not work.done():
                    cancellation.cancel()  # repeated, as above
                    await asyncio.wait([work], timeout=_WATCH_S)
            with contextlib.suppress(Error, asyncio.CancelledError):
                await work
            raise

    def _report(self) -> None:
        for name, value in self._client.changed_settings().items():
            self._wire.tell(messages.parameter_status(name, value))

    def _push(self) -> None:
        """Sends the notifications that have arrived, unless the client waits for an answer or is in a transaction."""
        backend = self._backend
        if backend is not None and not self._works and backend.state == b"I":
            self._wire.push(self._notifications())

    def _notifications(self) -> bytes:
        inbox = self._client.session.inbox
        return b"" if inbox is None else messages.notifications(inbox.waiting)

    async def _ready(self) -> None:
        if self._reports:
            self._report()
            self._reports = False
        if self._client.state == b"I":
            self._wire.tell(self._notifications())
        self._wire.tell(messages.ready(self._client.state))
        await self._wire.flush()


_HANDLERS: Final[dict[bytes, Callable[[Connection, Body], Awaitable[None]]]] = {
    b"Q": Connection._query,
    b"P": Connection._parse,
    b"B": Connection._bind,
    b"D": Connection._describe,
    b"E": Connection._execute,
    b"C": Connection._close_one,
    b"S": Connection._sync,
    b"H": Connection._flushed,
    b"d": Connection._ignored,
    b"c": Connection._ignored,
    b"f": Connection._ignored,
}
