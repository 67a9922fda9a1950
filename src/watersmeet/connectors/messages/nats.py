"""NATS JetStream: the client, its options and errors, and the target `nats`.

The messages of a batch have ids, so a stream takes each of them once within its duplicate window.

RisingWave, "Sink data to NATS and NATS JetStream", "Ingest data from NATS JetStream".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeVar

import pyarrow as pa

from watersmeet.connectors.base.messages import MessageTarget
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed

#: The time limit of a request.
_ANSWER_S: Final = 15.0
_CONNECT_S: Final = 5
#: The time between the two attempts to connect.
_AGAIN_S: Final = 0.2
_MODES: Final = ("plain", "user_and_password", "credential")

SERVER_OPTIONS: Final = (
    OptionSpec("server_url", "The servers, as `nats://host:4222`, separated by commas.", is_needed=True),
    OptionSpec("subject", "The subject.", is_needed=True),
    OptionSpec("connect_mode", "How the client logs in.", "choice", among=_MODES, default="plain"),
    OptionSpec("username", "The user, with connect_mode = user_and_password."),
    OptionSpec("password", "The password of the user.", secret=True),
    OptionSpec("jwt", "The JSON web token, with connect_mode = credential.", secret=True),
    OptionSpec("nkey", "The seed of the user's key, with connect_mode = credential.", secret=True),
)
SINK_OPTIONS: Final = OptionSet(
    "nats of sinks",
    (
        *SERVER_OPTIONS,
        OptionSpec("allow_create_stream", "Whether a missing stream is created.", "flag", default=False),
    ),
)

Answer = TypeVar("Answer")


def library() -> ModuleType:
    """The module nats. Raises LIBRARY_MISSING if it is not installed."""
    for name in ("nats.js.errors", "nats.errors"):
        process.library(name, "streams of NATS")
    return process.library("nats", "streams of NATS")


@dataclass(frozen=True)
class NatsServer:
    """The servers, and how the client logs in. login: the options of `nats.connect`, which may refer to secrets."""

    urls: tuple[str, ...]
    login: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The servers, for messages."""
        return f"NATS at {', '.join(url.rpartition('@')[2].removeprefix('nats://') for url in self.urls)}"


def nats_server(options: Options) -> NatsServer:
    """The servers in the options of a statement. Raises CONNECTOR_OPTION."""
    urls = []
    for part in options.needed("server_url").split(","):
        url = part.strip()
        if "@" in url:
            refuse("user and password can't be in server_url", hint="Write username and password.")
        urls.append(url if "://" in url else f"nats://{url}")
    mode = options.choice("connect_mode")
    needed = {"user_and_password": ("username", "password"), "credential": ("jwt", "nkey")}.get(mode, ())
    for name in needed:
        if not options.text(name):
            refuse(f"connect_mode = '{mode}' needs the option {name}")
    return NatsServer(tuple(urls), {name: options.text(name) for name in needed})


class NatsClient:
    """A connection to a NATS server. Its coroutines run in the calling thread, one at a time.

    Raises in all methods: Unavailable for temporary problems, CONNECTOR_OPTION if an administrator must act.
    """

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self._library = library()
        self._runner = asyncio.Runner()
        self._told: Exception | None = None
        self._ended = asyncio.Event()
        with self._explained():
            self._connection = self._runner.run(self._connected())
        self.streams = self._connection.jetstream(timeout=_ANSWER_S)

    async def _connected(self) -> Any:
        async def hear(problem: Exception) -> None:
            self._told = problem

        async def end() -> None:
            self._ended.set()

        return await asyncio.wait_for(
            self._library.connect(
                [*self.server.urls],
                name="watersmeet",
                connect_timeout=_CONNECT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_AGAIN_S,
                error_cb=hear,
                disconnected_cb=end,
                **_login(self.server.login),
            ),
            _ANSWER_S,
        )

    def run(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer of a coroutine, such as a request to JetStream."""

        async def run() -> Answer:
            answer = asyncio.ensure_future(asyncio.wait_for(ask(), _ANSWER_S))
            end = asyncio.ensure_future(self._ended.wait())
            await asyncio.wait({answer, end}, return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if answer.done():
                return answer.result()
            answer.cancel()  # the library would wait for an answer that never comes
            raise self._library.errors.ConnectionClosedError

        with self._explained():
            return self._runner.run(run())

    @property
    def not_found(self) -> type[Exception]:
        """The library's error for a stream that does not exist."""
        kind: type[Exception] = self._library.js.errors.NotFoundError
        return kind

    def reader_config(self, deliver_policy: str, **settings: Any) -> Any:
        """The configuration of a reader on the server that acknowledges nothing. deliver_policy: JetStream's word."""
        api = self._library.js.api
        policy = api.DeliverPolicy(deliver_policy)
        return api.ConsumerConfig(deliver_policy=policy, ack_policy=api.AckPolicy.NONE, **settings)

    def stream_of(self, subject: str) -> str | None:
        """The stream that stores a subject; None if no stream does."""
        missing = self.not_found

        async def ask() -> str | None:
            try:
                name: str = await self.streams.find_stream_name_by_subject(subject)
            except missing:
                return None
            return name

        return self.run(ask)

    def close(self) -> None:
        """Closes the connection. May be called again."""
        with contextlib.suppress(Exception):  # the connection may be broken, and nothing is lost with it
            self._runner.run(asyncio.wait_for(self._connection.close(), _CONNECT_S))
        self._runner.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the client to those of connectors."""
        errors, streams = self._library.errors, self._library.js.errors
        shown = self.server.shown
        try:
            yield
        except (Unavailable, Error):
            raise
        except (errors.AuthorizationError, errors.InvalidUserCredentialsError) as cause:
            raise _not_let_in(shown, cause) from None
        except streams.NoStreamResponseError as cause:
            raise Unavailable(f"no stream of {shown} takes the messages: {cause}") from None
        except streams.APIError as cause:
            if cause.code is not None and int(cause.code) < 500:
                raise error(
                    "CONNECTOR_OPTION", f"{shown} refuses: {cause.description}", detail=f"Error {cause.err_code}."
                ) from None
            raise Unavailable(f"{shown} takes nothing now: {cause.description}") from None
        except errors.MaxPayloadError:
            raise error(
                "DELIVERY_REFUSED", f"{shown} takes no message of this size", hint="Raise max_payload."
            ) from None
        except (errors.Error, OSError, TimeoutError) as cause:
            if "authorization" in f"{self._told} {cause}".lower():
                raise _not_let_in(shown, self._told or cause) from None
            raise Unavailable(f"{shown} can't be reached: {self._told or cause or type(cause).__name__}") from None


def _not_let_in(shown: str, cause: BaseException) -> Error:
    return error(
        "CONNECTOR_OPTION",
        f"{shown} refuses the credentials",
        detail=str(cause),
        hint="Check connect_mode, username and password, or jwt and nkey.",
    )


def _login(login: Mapping[str, str]) -> dict[str, Any]:
    """The options of the library that log in, with the values of secrets."""
    known = {name: revealed(value) for name, value in login.items()}
    if "username" in known:
        return {"user": known["username"], "password": known["password"]}
    if "jwt" in known:
        return {"user_jwt_cb": known["jwt"].encode, "nkeys_seed_str": known["nkey"]}
    return {}


class NatsTarget(MessageTarget):
    """See `MessageTarget`: the messages of a subject, which a stream must store."""

    title = "nats"

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        options = SINK_OPTIONS.read(delivery.connector)
        self._server = nats_server(options)
        self._subject = options.needed("subject")
        if any(c in self._subject for c in "*> \t\r\n"):
            refuse("option subject of a sink has to be one subject, without * and >")
        self._creates = options.flag("allow_create_stream")
        self._client: NatsClient | None = None
        super().__init__(delivery, database_id, self._subject)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        self._client = client = NatsClient(self._server)
        if client.stream_of(self._subject) is not None:
            return
        if not self._creates:
            raise error(
                "UNDEFINED_OBJECT",
                f'no stream of {self._server.shown} stores the subject "{self._subject}"',
                hint="Create one, or write allow_create_stream = 'true'.",
            )
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in self._subject)
        client.run(lambda: client.streams.add_stream(name=name, subjects=[self._subject]))

    def _send(self, keys: pa.BinaryArray, values: pa.BinaryArray, name: str) -> None:
        del keys
        client = self._client
        assert client is not None
        payloads = values.to_pylist()

        async def send() -> None:
            waiting: list[Awaitable[Any]] = [
                await client.streams.publish_async(self._subject, value or b"", headers={"Nats-Msg-Id": f"{name}-{i}"})
                for i, value in enumerate(payloads)
            ]
            await asyncio.gather(*waiting)

        client.run(send)
