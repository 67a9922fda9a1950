"""Sinks to NATS JetStream, MQTT and Kinesis: what arrives, servers that go away, and what is refused."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from scripts.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from tests.unit.sinks.batches import TWO, batch
from tests.unit.sinks.databasetargets import is_done, wait

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery
from watersmeet.connectors.registry import connector_of
from watersmeet.errors import Error

NAMES = ("nats", "mqtt", "kinesis")


@dataclass(frozen=True)
class System:
    """A system that messages are sent to. options: those of a sink. messages: the values, in the order of arrival;
    count: how many are waited for. server: its server.
    """

    options: dict[str, str]
    messages: Callable[[int], list[bytes]]
    server: Any


@pytest.fixture
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    name = request.param
    if name.removeprefix("own-") == "nats":
        yield from _nats(request.getfixturevalue("own_nats" if name.startswith("own") else "nats"))
    elif name.removeprefix("own-") == "mqtt":
        yield from _mqtt(request.getfixturevalue("own_mosquitto" if name.startswith("own") else "mosquitto"))
    else:
        yield from _kinesis(request.getfixturevalue("bucket").server)


def systems(*names: str) -> pytest.MarkDecorator:
    marks = {"nats": [pytest.mark.brokers], "mqtt": [pytest.mark.brokers], "kinesis": [pytest.mark.objectstores]}
    listed = [pytest.param(n, marks=marks[n.removeprefix("own-")]) for n in names]
    return pytest.mark.parametrize("system", listed, indirect=True)


def _nats(server: Any) -> Iterator[System]:
    subject = f"t{secrets.token_hex(6)}"

    async def read(count: int) -> list[bytes]:
        import nats  # noqa: PLC0415 - of an extra

        connection = await nats.connect(server.url)
        streams = connection.jetstream()
        found = await streams.pull_subscribe(subject, stream=subject)
        messages: list[Any] = []
        while len(messages) < count:
            messages += (fetched := await found.fetch(500, timeout=30))
            await asyncio.gather(*(m.ack() for m in fetched))
        await connection.close()
        return [m.data for m in messages]

    async def make() -> None:
        import nats  # noqa: PLC0415

        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name=subject, subjects=[subject])
        await connection.close()

    asyncio.run(make())
    options = {"connector": "nats", "server_url": server.url, "subject": subject}
    yield System(options, lambda count: asyncio.run(read(count)), server)


def _mqtt(server: Any) -> Iterator[System]:
    import paho.mqtt.client as mqtt  # noqa: PLC0415 - of an extra

    topic, arrived, came = f"t/{secrets.token_hex(6)}", [], threading.Condition()

    def hear(_client: Any, _userdata: Any, message: Any) -> None:
        with came:
            arrived.append(message.payload)
            came.notify_all()

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"test-{topic}", clean_session=False)
    subscribed = threading.Event()
    client.on_message = hear
    client.on_connect = lambda c, *_: c.subscribe(topic, 1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.reconnect_delay_set(1, 1)
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    assert subscribed.wait(30)

    def messages(count: int) -> list[bytes]:
        with came:
            assert came.wait_for(lambda: len(arrived) >= count, 60)
            return list(arrived)

    yield System({"connector": "mqtt", "url": server.url, "topic": topic, "qos": "at_least_once"}, messages, server)
    client.disconnect()
    client.loop_stop()


def _kinesis(server: Any) -> Iterator[System]:
    client, stream = server.client("kinesis"), f"t{secrets.token_hex(6)}"
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    (shard,) = client.list_shards(StreamName=stream)["Shards"]

    def messages(count: int) -> list[bytes]:
        del count
        at = client.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
        return [r["Data"] for r in client.get_records(ShardIterator=at["ShardIterator"])["Records"]]

    options = {
        "connector": "kinesis",
        "stream": stream,
        "aws.region": REGION,
        "endpoint": server.url,
        "aws.credentials.access_key_id": ACCESS_KEY,
        "aws.credentials.secret_access_key": SECRET_KEY,
    }
    yield System(options, messages, server)
    client.delete_stream(StreamName=stream)


def target(system: Any, /, *, rows="plain", form=None, **more):
    options = {n: v for n, v in {**system.options, **more}.items() if v is not None}
    key = ("id",) if rows != "plain" or options["connector"] == "kinesis" else ()
    made = MessageFormat(rows, **(form or {}))
    delivery = Delivery("s1", "sink k", "v1", TWO, key, options, made, True, "s1", 1)
    return connector_of(delivery).open(delivery, "db", lambda: False)


def rows_of(messages: list[bytes]) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(m).values()) for m in messages]


@systems(*NAMES)
def test_messages_arrive_in_order(system):
    sink = target(system)
    sink.look()
    assert sink.open(1) is None
    many = [(i, "x") for i in range(1_500)]
    sink.deliver([batch(3, (1, "a"), (1, "a"), (2, None)), batch(4, (1, "a"), (3, "c"), diff=[-1, 1])])
    sink.deliver([batch(5, *many)])
    sink.close()
    sink.close()
    found = rows_of(system.messages(1504))
    assert sorted(found, key=repr) == sorted([(1, "a"), (1, "a"), (2, None), (3, "c"), *many], key=repr)
    if "endpoint" not in system.options:
        assert found == [(1, "a"), (1, "a"), (2, None), (3, "c"), *many]


@systems("nats", "mqtt")
def test_only_added_rows_are_sent_where_messages_have_no_key(system):
    with pytest.raises(Error, match="of sinks with type = 'upsert' is not supported") as refused:
        target(system, rows="upsert")
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"


@systems("kinesis")
def test_changes_of_rows_are_records_by_key(system):
    sink = target(system, rows="upsert")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "b")), batch(4, (1, "a"), diff=[-1])])
    assert sorted(system.messages(3)) == [b"", b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}']


@systems("nats")
def test_a_stream_takes_messages_that_are_sent_again_once(system):
    for _ in range(2):
        sink = target(system)
        sink.open(1)
        sink.deliver([batch(3, (1, "a"), (2, "b"))])
        sink.deliver([batch(4, (1, "a"))])
        sink.close()
    assert rows_of(system.messages(3)) == [(1, "a"), (2, "b"), (1, "a")]


@systems("nats")
def test_a_missing_stream_is_created_only_if_asked(system):
    other = {"subject": f"other.{secrets.token_hex(6)}"}
    with pytest.raises(Error, match=r"no stream of NATS at .* stores the subject") as refused:
        target(system, **other).look()
    assert refused.value.condition == "UNDEFINED_OBJECT"
    sink = target(system, **other, allow_create_stream="true")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    sink.close()
    target(system, **other).look()


@systems("kinesis")
def test_a_missing_stream_of_kinesis(system):
    with pytest.raises(Error, match='there is no stream "nowhere"') as refused:
        target(system, stream="nowhere").look()
    assert refused.value.condition == "UNDEFINED_OBJECT"


@systems("own-nats", "own-mqtt")
def test_a_server_that_goes_away_and_comes_back(system):
    sink = target(system)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    system.server.stop()
    with pytest.raises(Unavailable):
        sink.deliver([batch(4, (2, "b"))])
    with pytest.raises(Unavailable):
        sink.open(1)
    system.server.start()
    sink.open(1)
    sink.deliver([batch(4, (2, "b"))])
    sink.close()
    assert rows_of(system.messages(2))[-1] == (2, "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"connector": "nats", "server_url": "a", "subject": "a.*"}, "one subject, without"),
        ({"connector": "nats", "server_url": "u:p@a", "subject": "a"}, "can't be in server_url"),
        ({"connector": "nats", "server_url": "a"}, 'needs the option "subject"'),
        (
            {"connector": "nats", "server_url": "a", "subject": "a", "connect_mode": "credential"},
            "connect_mode = 'credential' needs the option jwt",
        ),
        ({"connector": "mqtt", "url": "http://a", "topic": "a"}, "option url has to be tcp://"),
        ({"connector": "mqtt", "url": "tcp://a", "topic": "a/#"}, "one topic, without"),
        ({"connector": "mqtt", "url": "tcp://a", "topic": "a", "qos": "1"}, "qos"),
        ({"connector": "mqtt", "url": "tcp://a", "topic": "a", "tls.client_cert": "x"}, "need each other"),
        (
            {"connector": "kinesis", "stream": "a", "aws.region": "b", "aws.credentials.access_key_id": "c"},
            "need each other",
        ),
        (
            {"connector": "kinesis", "stream": "a", "aws.region": "b", "aws.credentials.role.external_id": "c"},
            "needs aws.credentials.role.arn",
        ),
        ({"connector": "kinesis", "stream": "a", "aws.region": "b", "shard": "1"}, 'no option "shard"'),
    ],
)
def test_refused_options(options, message):
    @dataclass
    class Nowhere:
        options: Any

    with pytest.raises(Error) as refused:
        target(Nowhere(options))
    assert message in refused.value.message


@systems(*NAMES)
def test_a_sink_as_scripts_write_it(system, tmp_path):
    written = ", ".join(f"{n} = '{v}'" for n, v in system.options.items())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({written}, primary_key = 'id')
                FORMAT PLAIN ENCODE JSON (force_append_only = 'true');
            INSERT INTO t VALUES (1, 'a');
            FLUSH
        """)
        wait(connection, is_done)
        connection.execute("UPDATE t SET name = 'b' WHERE id = 1; FLUSH")
        wait(connection, is_done)
        assert rows_of(system.messages(2)) == [(1, "a"), (1, "b")]
        shown = connection.execute("SHOW CREATE SINK k").fetchone()
        assert SECRET_KEY not in repr(shown)
