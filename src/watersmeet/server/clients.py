"""The clients of a server: their limits, their activity, counts of their statements, and signals between them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Literal, ParamSpec, Protocol, TypeVar

from watersmeet.catalog.roles import Actor
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import size
from watersmeet.errors import Error, error
from watersmeet.server.messages import cancel_request
from watersmeet.server.settings import Settings
from watersmeet.server.users import Login, Users
from watersmeet.server.workers import Worker
from watersmeet.session.statements.small import Plans

P = ParamSpec("P")
T = TypeVar("T")

log: Final = logging.getLogger(__name__)

#: Additional connections for members of `admin`.
_RESERVED: Final = 3
_SECRET_BYTES: Final = 4
#: The interval at which the logins of clients are checked.
_LOGINS_S: Final = 0.5
_LEAST_TEXT_BYTES: Final = 1 << 10
_LEAST_MEMORY_BYTES: Final = 64 << 20

#: The memory for each word of a statement, including its tokens and its part of the tree.
_WORD_BYTES: Final = 1 << 10

#: A pattern: a word, a quoted text or a sign; or spaces, in a group.
_WORD: Final = re.compile(r"""'[^']*+(?:'|\Z)|"[^"]*+(?:"|\Z)|\w++|[^\w\s]|(\s++)""")


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    connections: the number of authenticated clients; members of `admin` have a few more. starting: the number of
    unauthenticated clients; if there are more, the oldest is disconnected. authentication_s: the time for logging in.
    slow_client_s: the maximum time in which a client reads nothing. message_bytes: the size of a message of an
    authenticated client. requires_tls: whether unencrypted connections are rejected. result_size: the size of a result,
    the default of a setting. statement_size: the size of a statement's text, without parameters and rows of COPY.
    statement_memory: the memory of a statement that runs in a separate process, and that of a statement's tree.
    """

    connections: int = 100
    starting: int = 100
    authentication_s: float = 30
    slow_client_s: float = 60
    message_bytes: int = 1 << 28
    requires_tls: bool = False
    result_size: str = "1GB"
    statement_size: str = "16MB"
    statement_memory: str = "1GB"

    def check(self) -> None:
        """Raises INVALID_PARAMETER for an invalid or too small size."""
        for option, found, least in (
            ("--statement-size", self.statement_bytes, _LEAST_TEXT_BYTES),
            ("--statement-memory", self.memory_bytes, _LEAST_MEMORY_BYTES),
        ):
            if found < least:
                raise error("INVALID_PARAMETER", f"{option} must be at least {least:,} bytes")

    @property
    def statement_bytes(self) -> int:
        """The maximum bytes of the text of a statement."""
        return size("the size of a statement", self.statement_size)

    @property
    def memory_bytes(self) -> int:
        """The maximum memory of a statement."""
        return size("the memory of a statement", self.statement_memory)

    def check_words(self, text: str) -> None:
        """Raises STATEMENT_LIMIT for a text whose tree would take too much memory."""
        most = self.memory_bytes // _WORD_BYTES
        words = (m for m in _WORD.finditer(text) if m.lastindex is None)
        if len(text) > most and sum(1 for _ in islice(words, most + 1)) > most:
            raise error(
                "STATEMENT_LIMIT",
                "the statement has too many words",
                detail=f"It may have {most:,} words, signs and numbers.",
                hint="Send values as parameters or rows as COPY, or split the statement.",
            )

    def too_long(self, text_bytes: int) -> Error:
        """The error STATEMENT_LIMIT for a text with too many bytes."""
        return error(
            "STATEMENT_LIMIT",
            "the text of the statement is too long",
            detail=f"It has {text_bytes:,} bytes, and may have {self.statement_bytes:,}.",
            hint="Send values as parameters or rows as COPY, or split the statement.",
        )


#: The SQLSTATE of success.
SUCCESS: Final = "00000"

#: Kinds of statements by the first words of their tags. All others are `other`, so that their number is bounded.
_KINDS: Final = {
    **{
        word.upper(): word
        for word in (
            "select", "insert", "update", "delete", "merge", "copy", "create", "alter", "drop", "show", "describe",
            "explain", "set", "flush", "fetch", "subscribe",
        )
    },
    **dict.fromkeys(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START"), "transaction"),
}  # fmt: skip


def kind_of(tag: str) -> str:
    """The kind of a statement, determined by its tag or its first word."""
    return _KINDS.get(tag.partition(" ")[0].upper(), "other")


class Traffic:
    """Counts finished statements, and running queries and subscriptions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: Counter[tuple[str, str]] = Counter()
        self._subscriptions = 0

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """Counts a subscription while the context is open."""
        with self._lock:
            self._subscriptions += 1
        try:
            yield
        finally:
            with self._lock:
                self._subscriptions -= 1

    def ended(self, kind: str, sqlstate: str = SUCCESS) -> None:
        """Counts a finished statement."""
        with self._lock:
            self._statements[kind, sqlstate] += 1

    @property
    def statements(self) -> dict[tuple[str, str], int]:
        """The number of finished statements by kind and SQLSTATE."""
        with self._lock:
            return dict(self._statements)

    @property
    def subscriptions(self) -> int:
        """The current number of running queries and subscriptions."""
        with self._lock:
            return self._subscriptions


#: Protocols of clients.
Speaks = Literal["postgresql", "http"]
#: The states of a client, as in pg_stat_activity.
State = Literal["active", "idle", "idle in transaction", "idle in transaction (aborted)"]


@dataclass(frozen=True)
class Activity:
    """The activity of a client. actor: the authenticated user, None for a trusted one. began_s: the time of its
    connection, in seconds since 1970.
    """

    process: int
    user: str
    actor: Actor | None
    application: str
    address: str
    state: State
    began_s: float


class Client(Protocol):
    """An authenticated client, over any protocol."""

    protocol: Speaks

    def cancel(self) -> None:
        """Cancels the current statement."""
        ...

    def end(self, err: Error) -> None:
        """Ends the connection and cancels its statement."""
        ...

    def activity(self) -> Activity | None:
        """The activity of the client; None before its authentication."""
        ...

    def check_login(self) -> None:
        """Disconnects the client if its user is no longer admitted (`Users.admits`)."""
        ...


@dataclass(frozen=True)
class _Entered:
    """An authenticated client. secret: the secret for its cancel requests."""

    secret: bytes
    client: Client
    login: Login | None


class Clients:
    """The clients of a server, of all protocols. Only `signal` and `activity` are thread-safe; others are for the event
    loop.
    """

    def __init__(self, limits: Limits, users: Users) -> None:
        self.limits = limits
        self.users = users
        self.traffic = Traffic()
        self.plans = Plans()
        self.worker: Worker | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(limits.connections + 8, thread_name_prefix="watersmeet-client")
        self._starting: dict[Client, None] = {}
        self._entered: dict[int, _Entered] = {}
        self._numbers = 0

    def count(self, protocol: Speaks) -> int:
        """The number of authenticated clients of a protocol."""
        return sum(e.client.protocol == protocol for e in self._entered.values())

    def begin(self, client: Client) -> None:
        """Registers a connection. If there are too many unauthenticated ones, the oldest is disconnected."""
        self._starting[client] = None
        while len(self._starting) > self.limits.starting:
            oldest = next(iter(self._starting))
            del self._starting[oldest]
            oldest.end(error("TOO_MANY_CONNECTIONS", "sorry, too many clients are connecting"))

    def enter(self, client: Client, login: Login | None) -> tuple[int, bytes]:
        """Registers an authenticated client. Returns its number and its secret. Raises TOO_MANY_CONNECTIONS."""
        most = self.limits.connections
        if login is not None:
            own = self.users.role(login).connections
            same = sum(e.login is not None and e.login.actor == login.actor for e in self._entered.values())
            if own is not None and same >= own:
                raise error("TOO_MANY_CONNECTIONS", f'too many connections for role "{login.name}"')
            most += _RESERVED if self.users.is_admin(login) else 0
        if len(self._entered) >= most:
            raise error("TOO_MANY_CONNECTIONS", "sorry, too many clients already")
        self._loop = asyncio.get_running_loop()
        self._starting.pop(client, None)
        self._numbers = self._numbers % 0x7FFF_FFFF + 1
        process = self._numbers if self.worker is None else self.worker.process(self._numbers)
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._entered[process] = _Entered(secret, client, login)
        return process, secret

    def leave(self, client: Client) -> None:
        """Unregisters a client."""
        self._starting.pop(client, None)
        for process in [p for p, e in self._entered.items() if e.client is client]:
            del self._entered[process]

    def cancel(self, process: int, secret: bytes) -> None:
        """Cancels the statement of a client if the secret is right."""
        known = self._entered.get(process)
        if known is None and self.worker is not None and self._loop is not None:
            self._forwarding = self._loop.create_task(self.worker.forward(process, cancel_request(process, secret)))
        if known is not None and hmac.compare_digest(known.secret, secret):
            known.client.cancel()

    def activity(self) -> list[Activity]:
        """The activity of all clients."""
        return [found for e in list(self._entered.values()) if (found := e.client.activity()) is not None]

    def signal(self, process: int, *, ends: bool) -> bool:
        """Cancels the statement of a client, or ends it; False for an unknown number."""
        known = self._entered.get(process)
        if known is None or self._loop is None:
            return False
        if ends:
            failure = error("ADMIN_SHUTDOWN", "terminating connection due to administrator command")
            self._loop.call_soon_threadsafe(known.client.end, failure)
        else:
            known.client.cancel()
        return True

    async def watch_logins(self) -> None:
        """Disconnects idle clients, and those in a long statement, whose users are no longer admitted. Never
        returns.
        """
        while True:
            for entered in list(self._entered.values()):
                try:
                    entered.client.check_login()
                except Exception:
                    log.exception("the login of a client can't be checked")
            await asyncio.sleep(_LOGINS_S)

    async def work(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Runs a blocking action in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(action, *arguments, **named))

    def close(self) -> None:
        """Stops the threads, after the last client has left."""
        self._threads.shutdown()


@dataclass
class ClientState:
    """The session of a client. user, database: as the client named them. process: its number, see pg_backend_pid."""

    session: Session
    settings: Settings
    user: str
    database: str
    clients: Clients
    process: int = 0
