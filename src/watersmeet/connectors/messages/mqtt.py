"""MQTT: the client, its options and errors, the target `mqtt`, and the inbox of received messages.

RisingWave, "Sink data from RisingWave to MQTT", "Ingest data from MQTT brokers".
"""

from __future__ import annotations

import contextlib
import queue
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.connectors.base.messages import MessageTarget
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.process import scratch_folder
from watersmeet.system.secretvalues import revealed

#: The time limit of an answer of the broker.
_ANSWER_S: Final = 15.0
_QOS: Final = {"at_most_once": 0, "at_least_once": 1, "exactly_once": 2}
_SCHEMES: Final = {"tcp": False, "mqtt": False, "ssl": True, "mqtts": True}
#: The beginning of the path of a file, as against the content of one.
_FILE: Final = "fs://"

BROKER_OPTIONS: Final = (
    OptionSpec("url", "The broker, as `tcp://host:1883`, or `mqtts://host:8883` for TLS.", is_needed=True),
    OptionSpec("qos", "How often the broker delivers a message.", "choice", among=tuple(_QOS), default="at_most_once"),
    OptionSpec("username", "The user."),
    OptionSpec("password", "The password of the user.", secret=True),
    OptionSpec("client_prefix", "The beginning of the client's id.", default="watersmeet"),
    OptionSpec("inflight_messages", "The messages that wait for an answer.", "integer", minimum=1, default=100),
    OptionSpec("tls.client_cert", "The client's certificate in PEM: its text, or fs:// and its path."),
    OptionSpec("tls.client_key", "The key of the certificate, in the same form.", secret=True),
)
SINK_OPTIONS: Final = OptionSet(
    "mqtt of sinks",
    (
        *BROKER_OPTIONS,
        OptionSpec("topic", "The topic.", is_needed=True),
        OptionSpec(
            "retain", "Whether the broker keeps the newest message for later subscribers.", "flag", default=False
        ),
    ),
)
SOURCE_OPTIONS: Final = OptionSet(
    "mqtt",
    (
        *BROKER_OPTIONS,
        OptionSpec("topic", "The topic, which may have the wildcards + and #.", is_needed=True),
        OptionSpec(
            "clean_start",
            "Whether the broker forgets messages while Watersmeet is not connected.",
            "flag",
            default=False,
        ),
        OptionSpec(
            "max_packet_size",
            "The size of the largest message. Messages of any size are read.",
            "integer",
            is_idle=True,
        ),
        OptionSpec("scan.startup.mode", "Reading begins at CREATE: a broker keeps no earlier messages.", is_idle=True),
        OptionSpec("scan.startup.timestamp.millis", "The same.", is_idle=True),
    ),
)
#: A topic without subscribers.
_NOWHERE: Final = "watersmeet/end"
#: The messages that wait in memory; when there are more, the broker waits.
_MOST_WAITING: Final = 10_000


def library() -> ModuleType:
    """The module paho.mqtt.client. Raises LIBRARY_MISSING if it is not installed."""
    return process.library("paho.mqtt.client", "topics of MQTT")


@dataclass(frozen=True)
class MqttBroker:
    """A broker, and how the client logs in. qos: 0, 1 or 2. cert, key: empty without a certificate of the client."""

    host: str
    port: int
    tls: bool
    qos: int
    username: str
    password: str
    client_prefix: str
    inflight_messages: int
    cert: str
    key: str

    @property
    def shown(self) -> str:
        """The broker, for messages."""
        return f"the MQTT broker at {self.host}:{self.port}"


def mqtt_broker(options: Options) -> MqttBroker:
    """The broker in the options of a statement. Raises CONNECTOR_OPTION."""
    parts = urlsplit(options.needed("url"))
    if parts.scheme not in _SCHEMES or not parts.hostname:
        refuse("option url has to be tcp://host:1883, mqtt://…, ssl://… or mqtts://…")
    if parts.username is not None:
        refuse("user and password can't be in url", hint="Write username and password.")
    tls = _SCHEMES[parts.scheme]
    cert, key = options.text("tls.client_cert"), options.text("tls.client_key")
    if bool(cert) != bool(key):
        refuse("tls.client_cert and tls.client_key need each other")
    return MqttBroker(
        parts.hostname,
        parts.port or (8883 if tls else 1883),
        tls,
        _QOS[options.choice("qos")],
        options.text("username"),
        options.text("password"),
        options.text("client_prefix"),
        options.integer("inflight_messages") or 100,
        cert,
        key,
    )


class MqttClient:
    """A connection to a broker, with the library's thread. clean: whether the broker forgets the client when it leaves.
    hear: receives messages, in that thread; the caller acknowledges them.

    Raises Unavailable, or CONNECTOR_OPTION if an administrator must act.
    """

    def __init__(
        self, broker: MqttBroker, client_id: str = "", *, clean: bool = True, hear: Callable[[Any], None] | None = None
    ) -> None:
        self.broker = broker
        self._mqtt = mqtt = library()
        self._answered = threading.Event()
        self._refusals: list[str] = []
        self._lost = ""
        self.is_known = False
        self._subscribed: queue.Queue[Any] = queue.Queue()
        self.client = client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id or f"{broker.client_prefix}-{uuid.uuid4().hex[:16]}",
            clean_session=clean,
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(broker.inflight_messages)
        if broker.username:
            client.username_pw_set(revealed(broker.username), revealed(broker.password))
        if broker.tls:
            client.tls_set_context(_tls(broker))
        client.on_connect, client.on_disconnect = self._hear_answer, self._hear_end
        client.on_subscribe = lambda _client, _userdata, _mid, reasons, _properties: self._subscribed.put(reasons[0])
        if hear is not None:
            client.manual_ack_set(True)
            client.on_message = lambda _client, _userdata, message: hear(message)
        try:
            client.connect(broker.host, broker.port)
        except (OSError, ValueError) as cause:
            raise Unavailable(f"{broker.shown} can't be reached: {cause}") from None
        client.loop_start()
        if not self._answered.wait(_ANSWER_S):
            self.close()
            raise Unavailable(f"{broker.shown} does not answer")
        if self._refusals:
            self.close()
            raise error(
                "CONNECTOR_OPTION",
                f"{broker.shown} refuses the client: {self._refusals[0]}",
                hint="Check username and password.",
            )

    @property
    def is_connected(self) -> bool:
        """Whether the broker still answers."""
        return bool(self.client.is_connected())

    @property
    def why_lost(self) -> str:
        """Why the connection has ended."""
        return self._lost or "the connection has ended"

    def subscribe(self, topic: str, qos: int) -> None:
        """Asks for the messages of a topic. Raises Unavailable, CONNECTOR_OPTION."""
        self.client.subscribe(topic, qos)
        try:
            reason = self._subscribed.get(timeout=_ANSWER_S)
        except queue.Empty:
            raise Unavailable(f"{self.broker.shown} does not answer") from None
        if reason.is_failure:
            refuse(f'{self.broker.shown} refuses a subscription to "{topic}": {reason}')

    def close(self) -> None:
        """Ends the connection and its thread. May be called again."""
        with contextlib.suppress(OSError, ValueError):
            self.client.disconnect()
        self.client.loop_stop()

    def _hear_answer(self, _client: Any, _userdata: Any, flags: Any, reason: Any, _properties: Any) -> None:
        self.is_known = bool(flags.session_present)
        if reason.is_failure:
            self._refusals.append(str(reason))
        self._answered.set()

    def _hear_end(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._lost = str(reason)
        self._answered.set()


def _tls(broker: MqttBroker) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if broker.cert:
        with scratch_folder("certificate") as folder:
            cert = _path(broker.cert, folder / "cert")
            key = _path(revealed(broker.key), folder / "key")
            try:
                context.load_cert_chain(cert, key)
            except (OSError, ssl.SSLError) as cause:
                refuse(f"tls.client_cert and tls.client_key can't be used: {cause}")
    return context


def _path(value: str, new: Path) -> Path:
    """The file that an option names, or the new file with the text of the option."""
    if value.startswith(_FILE):
        return Path(value.removeprefix(_FILE))
    new.write_text(value)
    return new


class MqttTarget(MessageTarget):
    """See `MessageTarget`: the messages of a topic. With qos = at_most_once the broker acknowledges none."""

    title = "mqtt"

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        options = SINK_OPTIONS.read(delivery.connector)
        self._broker = mqtt_broker(options)
        self._topic = options.needed("topic")
        if any(c in self._topic for c in "#+\0"):
            refuse("option topic of a sink has to be one topic, without # and +")
        self._retain = options.flag("retain")
        self._client: MqttClient | None = None
        super().__init__(delivery, database_id, self._topic)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        self._client = MqttClient(self._broker)

    def _send(self, keys: pa.BinaryArray, values: pa.BinaryArray, name: str) -> None:
        del keys, name
        client = self._client
        assert client is not None
        sent = []
        for value in values.to_pylist():
            info = client.client.publish(self._topic, value or b"", self._broker.qos, self._retain)
            sent.append(info)
        end_s = time.monotonic() + _ANSWER_S
        for info in sent:
            self._wait(client, info, end_s)

    def _wait(self, client: MqttClient, info: Any, end_s: float) -> None:
        while True:
            try:
                info.wait_for_publish(0.1)
            except (RuntimeError, ValueError) as cause:
                raise Unavailable(f"{self._broker.shown} takes nothing now: {cause}") from None
            if info.is_published():
                return
            if not client.is_connected:
                raise Unavailable(f"{self._broker.shown} takes nothing now: {client.why_lost}")
            if time.monotonic() > end_s:
                raise Unavailable(f"{self._broker.shown} does not answer")


class MqttInbox:
    """The messages of a topic, in a session that the broker keeps for the client while it is away.

    Law: with qos above 0 the broker sends a message again until `acknowledge` was called for it and has arrived.
    is_new: whether the broker did not know the client. The session has qos 1 at most, because the library acknowledges
    messages of qos 2 before they are handed over. Raises Unavailable, CONNECTOR_OPTION.
    """

    def __init__(self, given: Mapping[str, str], client_id: str) -> None:
        options = SOURCE_OPTIONS.read(given)
        broker, topic = mqtt_broker(options), options.needed("topic")
        self._queue: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._closed = self._asked = False
        self._taken = self.ends = 0
        clean = options.flag("clean_start")
        self._client = MqttClient(broker, _client_id(broker, client_id), clean=clean, hear=self._hear)
        self._client.client.on_unsubscribe = lambda *_: self._hear(None)
        self.is_new = not self._client.is_known
        if self.is_new:  # a broker that knows the session would send retained messages again
            try:
                self._client.subscribe(topic, min(broker.qos, 1))
            except BaseException:
                self.close()
                raise

    @property
    def waiting(self) -> int:
        """The number of received messages that were not taken."""
        return self._queue.qsize()

    def take(self, seconds: float) -> list[Any]:
        """The received messages; waits if there are none. Raises Unavailable if the connection has ended."""
        found: list[Any] = []
        with contextlib.suppress(queue.Empty):
            item = self._queue.get(timeout=seconds)
            while True:
                if item is None:
                    self._asked = False
                    self.ends += not self._taken
                else:
                    found.append(item)
                    self._taken += 1
                item = self._queue.get_nowait()
        if not found and not self._client.is_connected:
            raise Unavailable(f"{self._client.broker.shown} has ended the connection: {self._client.why_lost}")
        return found

    def acknowledge(self, messages: Sequence[Any]) -> None:
        """Tells the broker that these messages are stored."""
        for message in messages:
            self._client.client.ack(message.mid, message.qos)

    def ask_for_end(self) -> None:
        """Lets `take` count an end in `ends` when no message was left at the broker.

        A broker answers a client in order. So its answer to a request without effect follows all messages that it had,
        except those that wait for acknowledgements; then messages were taken since the request, and it is repeated.
        """
        if not self._asked:
            self._asked, self._taken = True, 0
            self._client.client.unsubscribe(_NOWHERE)

    def close(self) -> None:
        """Ends the connection. The broker keeps the session. May be called again."""
        self._closed = True
        self._client.close()

    def _hear(self, message: Any) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=0.1)
                return


def forget_session(given: Mapping[str, str], client_id: str) -> None:
    """Ends the session of an inbox. A broker that can't be reached keeps it."""
    broker = mqtt_broker(SOURCE_OPTIONS.read(given))
    with contextlib.suppress(Error, OSError):
        MqttClient(broker, _client_id(broker, client_id)).close()


def _client_id(broker: MqttBroker, client_id: str) -> str:
    return f"{broker.client_prefix}-{client_id}"
