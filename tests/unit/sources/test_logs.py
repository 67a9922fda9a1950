"""The sources of NATS JetStream and Kinesis against real servers: what is read once, what stops them, what they say."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripts.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

import watersmeet
from watersmeet.catalog import MessageFormat, Source
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.registry import check_connector, open_source, read_slice
from watersmeet.errors import Error
from watersmeet.values.slices import JumpSlice
from watersmeet.values.types import BIGINT, BYTEA, TIMESTAMPTZ, VARCHAR, Field

MANY = 1 << 40
COLUMNS = (Field("n", BIGINT), Field("text", VARCHAR))


class Nats:
    """A stream of NATS with the subjects `<name>.a` and `<name>.b`."""

    def __init__(self, server: Any) -> None:
        self.server, self.name = server, f"t{secrets.token_hex(6)}"
        self.make()

    @property
    def options(self) -> dict[str, str]:
        subject = f"{self.name}.*"
        return {"connector": "nats", "server_url": self.server.url, "subject": subject, "stream": self.name}

    def do(self, work: Any) -> Any:
        async def run() -> Any:
            import nats  # noqa: PLC0415 - of an extra

            connection = await nats.connect(self.server.url)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(run())

    def make(self) -> None:
        self.do(lambda js: js.add_stream(name=self.name, subjects=[f"{self.name}.*"]))

    def delete(self) -> None:
        self.do(lambda js: js.delete_stream(self.name))

    def purge(self, before: int) -> None:
        self.do(lambda js: js.purge_stream(self.name, seq=before))

    def send(self, values: Sequence[bytes], subject: str = "a", headers: dict[str, str] | None = None) -> None:
        async def work(js: Any) -> None:
            for value in values:
                await js.publish(f"{self.name}.{subject}", value, headers=headers)

        self.do(work)


class Kinesis:
    """A stream of Kinesis with one shard."""

    def __init__(self, server: Any) -> None:
        self.server, self.name, self.client = server, f"t{secrets.token_hex(6)}", server.client("kinesis")
        self.make()

    @property
    def options(self) -> dict[str, str]:
        return {
            "connector": "kinesis",
            "stream": self.name,
            "aws.region": REGION,
            "endpoint": self.server.url,
            "aws.credentials.access_key_id": ACCESS_KEY,
            "aws.credentials.secret_access_key": SECRET_KEY,
        }

    def make(self) -> None:
        self.client.create_stream(StreamName=self.name, ShardCount=1)
        self.client.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})

    def delete(self) -> None:
        self.client.delete_stream(StreamName=self.name)
        self.client.get_waiter("stream_not_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})

    def send(self, values: Sequence[bytes], key: str = "k") -> None:
        for start in range(0, len(values), 500):
            records = [{"Data": v, "PartitionKey": key} for v in values[start : start + 500]]
            assert not self.client.put_records(StreamName=self.name, Records=records)["FailedRecordCount"]


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = request.param
    if kind == "kinesis":
        made: Any = Kinesis(request.getfixturevalue("bucket").server)
    else:
        made = Nats(request.getfixturevalue("own_nats" if kind == "own-nats" else "nats"))
    yield made


def on(*kinds: str) -> pytest.MarkDecorator:
    marks = {"kinesis": [pytest.mark.objectstores]}
    listed = [pytest.param(k, marks=marks.get(k, [pytest.mark.brokers])) for k in kinds]
    return pytest.mark.parametrize("stream", listed, indirect=True)


def messages(*numbers: int) -> list[bytes]:
    return [json.dumps({"n": n, "text": f"t{n}"}).encode() for n in numbers]


def relation(stream, /, columns=COLUMNS, parts=None, **options):
    made = Source("s1", "s", columns, connector={**stream.options, **options})
    return check_connector(replace(made, message_parts=parts or {}, format=MessageFormat(bad_field="null")))


class Reading:
    """A source and where it is: polls, reads what a poll gave, accepts it."""

    def __init__(self, relation):
        self.source = open_source(relation)
        self.position = None
        self.slices = []
        self.dead = DeadLetterWriter(None)

    def poll(self, rows=MANY, fresh=True):
        return self.source.poll(self.position, rows, MANY, time.time_ns() // 1000, fresh=fresh)

    def accept(self, poll):
        self.source.accept(poll.slices)
        self.slices += poll.slices
        self.position = poll.position

    def rows(self, slices, column="n"):
        spec = self.source.spec()
        found = [read_slice(piece, spec, spec.columns, self.dead) for piece in slices]
        return [n for part in found for n in part.table.column(column).to_pylist()]

    def take(self, rows=MANY):
        poll = self.poll(rows)
        self.accept(poll)
        return self.rows(poll.slices)


@on("nats", "kinesis")
def test_each_message_is_read_once_and_again_in_histories_and_after_a_restart(stream, tmp_path):
    stream.send(messages(*range(10)))
    reading = Reading(relation(stream))
    assert reading.take() == list(range(10))
    assert reading.take() == []
    stream.send(messages(10, 11))
    assert reading.take() == [10, 11]
    assert reading.rows(reading.slices) == list(range(12)), "slices give the same rows whenever they are read"
    reading.source.save(tmp_path / "state")
    again = Reading(relation(stream))
    again.source.load(tmp_path / "state")
    again.position = reading.position
    stream.send(messages(12))
    assert again.take() == [12]
    found, cursor = [], None
    while True:
        part = again.source.history(cursor, 1, MANY)
        found += again.rows(part.slices)
        cursor = part.cursor
        if cursor is None:
            break
    assert found == list(range(13))


@on("nats", "kinesis")
def test_a_history_lacks_what_was_withdrawn(stream):
    reading = Reading(relation(stream))
    for first in range(0, 30, 10):
        stream.send(messages(*range(first, first + 10)))
        while (poll := reading.poll(4)).slices:
            reading.accept(poll)
    for kept in range(len(reading.slices), -1, -1):
        reading.source.withdraw(reading.slices[kept:])
        history = reading.source.history(None, MANY, MANY)
        assert sorted(reading.rows(history.slices)) == sorted(reading.rows(reading.slices[:kept]))


@on("kinesis", "nats")
def test_a_poll_that_is_not_accepted_is_given_again(stream):
    stream.send(messages(1, 2))
    reading = Reading(relation(stream))
    first, second = reading.poll(), reading.poll()
    assert first.slices == second.slices
    reading.accept(second)
    with pytest.raises(Error, match="the position of source") as damaged:
        reading.source.poll(None, MANY, MANY, 0)
    assert damaged.value.condition == "DATABASE_DAMAGED"


@on("nats", "kinesis")
@pytest.mark.parametrize("mode", ["latest", "timestamp"])
def test_where_reading_begins(stream, mode):
    stream.send(messages(1, 2))
    time.sleep(0.05)
    options = {"scan.startup.mode": mode}
    if mode == "timestamp":
        options["scan.startup.timestamp.millis"] = str(time.time_ns() // 1_000_000)
    made = relation(stream, **options)
    time.sleep(0.05)
    stream.send(messages(3))
    assert Reading(made).take() == [3]
    assert Reading(made).take() == [3], "CREATE has determined where"


@on("nats", "kinesis")
def test_messages_that_are_no_json_are_set_aside_with_their_bytes(stream):
    stream.send([*messages(1), b"{", *messages(2)])
    reading = Reading(relation(stream))
    assert reading.take() == [1, 2]
    (letter,) = reading.dead.records
    assert letter["topic"] == stream.name
    assert letter["value"] == "ew=="


@on("nats", "kinesis")
def test_parts_of_messages(stream):
    columns = (Field("n", BIGINT), Field("at", TIMESTAMPTZ), Field("number", VARCHAR), Field("shard", VARCHAR))
    parts = {"at": "timestamp", "number": "offset", "shard": "partition"}
    stream.send(messages(1, 2))
    reading = Reading(relation(stream, columns, parts))
    poll = reading.poll()
    assert len(set(reading.rows(poll.slices, "number"))) == 2
    assert set(reading.rows(poll.slices, "shard")) == {"0"}
    assert all(abs(at.timestamp() - time.time()) < 3600 for at in reading.rows(poll.slices, "at"))


@on("kinesis")
def test_the_key_of_a_record_is_its_partition_key(stream):
    stream.send(messages(1), "a")
    reading = Reading(relation(stream, (*COLUMNS, Field("key", BYTEA)), {"key": "key"}))
    assert reading.rows(reading.poll().slices, "key") == [b"a"]


@on("kinesis")
def test_shards_that_were_split_are_read_before_those_that_came_of_them(stream):
    stream.send(messages(*range(5)))
    made = relation(stream)
    stream.client.split_shard(
        StreamName=stream.name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(1 << 127)
    )
    for key in "abcdef":
        stream.send(messages(*range(100, 103)), key)
    reading = Reading(made)
    found = []
    while len(found) < 5 + 18:
        found += reading.take()
    assert found[:5] == list(range(5))
    assert sorted(found[5:]) == sorted([100, 101, 102] * 6)


@on("nats")
def test_several_subjects_and_headers(stream):
    columns = (*COLUMNS, Field("h", VARCHAR))
    stream.send(messages(1), "a", {"x": "1"})
    stream.send(messages(2), "c")
    stream.send(messages(3), "b")
    both = f"{stream.name}.a, {stream.name}.b"
    reading = Reading(relation(stream, columns, {"h": "header:x"}, subject=both))
    slices = reading.poll().slices
    assert reading.rows(slices) == [1, 3]
    assert reading.rows(slices, "h") == ["1", None]
    one = Reading(relation(stream, subject=f"{stream.name}.b"))
    assert one.take() == [3]


@on("nats")
@pytest.mark.parametrize("on_data_loss", ["stop", "skip"])
def test_messages_that_were_deleted_unread(stream, on_data_loss):
    stream.send(messages(*range(4)))
    made = relation(stream, on_data_loss=on_data_loss)
    reading = Reading(made)
    assert reading.take() == [0, 1, 2, 3]
    stream.send(messages(4, 5, 6))
    stream.purge(7)
    if on_data_loss == "stop":
        assert reading.take() == []
        status = reading.source.status()
        assert status["state"] == "stalled"
        assert "were deleted before they were read: 5 to 6" in status["reason"]
        assert "on_data_loss = 'skip'" in status["reason"]
    else:
        (jump,) = (poll := reading.poll()).slices
        assert isinstance(jump, JumpSlice)
        reading.accept(poll)
        assert reading.rows([jump]) == []
        assert reading.dead.rows == 2
        assert reading.take() == [6]
        assert reading.source.status()["lost_messages"] == 2


@on("nats", "kinesis")
@pytest.mark.parametrize("on_data_loss", ["stop", "skip"])
def test_a_stream_that_was_made_anew(stream, on_data_loss):
    stream.send(messages(1, 2))
    made = relation(stream, on_data_loss=on_data_loss)
    reading = Reading(made)
    assert reading.take() == [1, 2]
    stream.delete()
    time.sleep(1.1)  # Kinesis tells its streams apart by seconds
    stream.make()
    stream.send(messages(3))
    reading = _reopened(reading, made)
    if on_data_loss == "stop":
        assert reading.take() == []
        assert "was deleted and created again" in reading.source.status()["reason"]
    else:
        reading.take()
        assert reading.take() == [3]


def _reopened(reading, made):
    again = Reading(made)
    again.source.accept(reading.slices)
    again.position = reading.position
    return again


@on("own-nats")
def test_a_server_that_goes_away_and_comes_back(stream):
    stream.send(messages(1))
    reading = Reading(relation(stream))
    assert reading.take() == [1]
    stream.server.stop()
    assert reading.take() == []
    status = reading.source.status()
    assert (status["state"], "can't be reached" in status["reason"]) == ("waiting", True)
    stream.server.start()
    stream.send(messages(2))
    assert reading.take() == [2]


@on("nats", "kinesis")
def test_a_missing_stream(stream):
    with pytest.raises(Error, match="there is no stream") as refused:
        relation(stream, stream="nowhere")
    assert refused.value.condition == "UNDEFINED_OBJECT"


@on("nats", "kinesis")
def test_a_join_of_a_stream_as_scripts_write_it(stream, tmp_path):
    written = ", ".join(f"{n} = '{v}'" for n, v in stream.options.items())
    stream.send(messages(1, 2))
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE SOURCE s (n bigint, text varchar) INCLUDE offset AS number WITH ({written})
                FORMAT PLAIN ENCODE JSON;
            CREATE TABLE names (n bigint PRIMARY KEY, name varchar);
            INSERT INTO names VALUES (1, 'a'), (3, 'c');
            CREATE MATERIALIZED VIEW v AS SELECT s.n, text, name FROM s JOIN names USING (n);
            FLUSH
        """)
        assert connection.execute("SELECT * FROM v").fetchall() == [(1, "t1", "a")]
        stream.send(messages(3))
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT * FROM v").fetchall()) == [(1, "t1", "a"), (3, "t3", "c")]
        connection.execute("CREATE MATERIALIZED VIEW later AS SELECT count(*) AS n FROM s; FLUSH")
        assert connection.execute("SELECT n FROM later").fetchall() == [(3,)]


@on("nats", "kinesis")
def test_a_query_reads_the_present_messages_from_the_first_one(stream):
    stream.send(messages(1, 2))
    options = ", ".join(f"{name} = '{value}'" for name, value in stream.options.items())
    with watersmeet.connect(runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"CREATE SOURCE s (n bigint, text varchar) WITH ({options}, scan.startup.mode = 'latest')"
            " FORMAT PLAIN ENCODE JSON"
        )
        assert sorted(cursor.execute("SELECT n, text FROM s").fetchall()) == [(1, "t1"), (2, "t2")]
        stream.send([*messages(3), b"no json"])
        assert cursor.execute("SELECT sum(n), count(*) FROM s WHERE n > 1").fetchall() == [(5, 2)]
        assert "1 message is left out" in "".join(cursor.notices) or "1 record is left out" in "".join(cursor.notices)
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT n FROM s; FLUSH")
        assert cursor.execute("SELECT * FROM v").fetchall() == [(3,)]
        stream.delete()
        with pytest.raises(Error) as gone:
            cursor.execute("SELECT * FROM s")
        assert gone.value.condition in ("RUNTIME_UNAVAILABLE", "UNDEFINED_OBJECT")
