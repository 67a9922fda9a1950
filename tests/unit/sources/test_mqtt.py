"""Sources and tables of MQTT against Mosquitto: what is stored, what a kill loses, and what is refused."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.waiting import until

import watersmeet
from watersmeet.errors import Error

pytestmark = pytest.mark.brokers


class Topic:
    """The topics that begin with `<name>/`."""

    def __init__(self, server: Any) -> None:
        self.server, self.name = server, f"t{secrets.token_hex(6)}"

    def options(self, **more: str) -> str:
        found = {"connector": "mqtt", "url": self.server.url, "topic": f"{self.name}/#", "qos": "at_least_once", **more}
        return ", ".join(f"{n} = '{v}'" for n, v in found.items())

    def client(self, name: str = "", *, clean: bool = True, answered: Callable[[Any], object] = id) -> Any:
        import paho.mqtt.client as mqtt  # noqa: PLC0415 - of an extra

        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, clean_session=clean)
        client.on_connect = lambda _client, _userdata, flags, *_: answered(flags)
        client.connect("127.0.0.1", self.server.port)
        client.loop_start()
        return client

    def send(self, values: Sequence[bytes], topic: str = "a", *, retain: bool = False) -> None:
        client = self.client()
        for sent in [client.publish(f"{self.name}/{topic}", v, 1, retain) for v in values]:
            sent.wait_for_publish(30)
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def topic(mosquitto) -> Topic:
    return Topic(mosquitto)


@pytest.fixture
def connect(tmp_path) -> Iterator[Any]:
    opened = []

    def make():
        opened.append(watersmeet.connect(tmp_path / "db", runtime="inprocess"))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


def messages(*numbers: int) -> list[bytes]:
    return [json.dumps({"n": n, "text": f"t{n}"}).encode() for n in numbers]


def values(connection, query: str = "SELECT n FROM s") -> list[Any]:
    connection.execute("FLUSH")
    return sorted(row[0] if len(row) == 1 else row for row in connection.execute(query).fetchall())


def test_messages_of_a_source_are_stored_and_there_for_later_views_and_after_a_restart(topic, connect):
    connection = connect()
    connection.execute(f"CREATE SOURCE s (n bigint, text varchar) WITH ({topic.options()}) FORMAT PLAIN ENCODE JSON")
    topic.send(messages(*range(50)))
    assert values(connection) == list(range(50))
    connection.execute("CREATE MATERIALIZED VIEW later AS SELECT count(*) AS n FROM s")
    assert values(connection, "SELECT n FROM later") == [50]
    assert connection.execute("SHOW SOURCES").fetchall() == [("s", "running", None, 0, None, None)]
    connection.close()
    topic.send(messages(50, 51))
    again = connect()
    assert values(again, "SELECT n FROM later") == [52]
    assert values(again) == list(range(52))


def test_parts_of_messages_and_those_that_are_no_rows(topic, connect):
    connection = connect()
    connection.execute(f"""CREATE TABLE s (n int PRIMARY KEY, text varchar NOT NULL, half int AS (text::int))
        INCLUDE partition AS topic INCLUDE offset INCLUDE payload WITH ({topic.options()}) FORMAT PLAIN ENCODE JSON""")
    topic.send([b'{"n": 1, "text": "5"}', b"{", b'{"n": 2}'])
    topic.send([b'{"n": 1, "text": "7"}', b'{"n": 3, "text": "x"}', b'{"n": 4, "text": "8"}'], "b/c")
    assert values(connection, "SELECT n, half, topic, _rw_mqtt_payload->>'text' FROM s") == [
        (1, 7, f"{topic.name}/b/c", "7"),
        (4, 8, f"{topic.name}/b/c", "8"),
    ]
    assert all(o.isdecimal() for o in values(connection, "SELECT _rw_mqtt_offset FROM s"))
    letters = values(connection, "SELECT topic, reason FROM watersmeet.dead_letters")
    assert [(t.removeprefix(topic.name), r[:16]) for t, r in letters] == [
        ("/a", "json: not a JSON"), ("/a", 'null: column "te'), ("/b/c", "generated column"),
    ]  # fmt: skip
    with pytest.raises(Error) as refused:
        connection.execute("INSERT INTO s (n, text) VALUES (9, '9')")
    assert refused.value.condition == "READ_ONLY_RELATION"


@pytest.mark.parametrize("kind", ["TABLE", "SOURCE"])
def test_a_text_that_is_too_long_becomes_a_dead_letter(topic, connect, kind):
    connection = connect()
    connection.execute(f"CREATE {kind} s (n int, text varchar(3)) WITH ({topic.options()}) FORMAT PLAIN ENCODE JSON")
    topic.send([b'{"n": 1, "text": "abc"}', b'{"n": 2, "text": "abcd"}', b'{"n": 3}'])
    assert values(connection, "SELECT n FROM s") == [1, 3]
    assert values(connection, "SELECT reason FROM watersmeet.dead_letters") == [
        "value too long for type character varying(3)"
    ]


def test_columns_that_are_added_and_renamed_while_messages_arrive(topic, connect):
    connection = connect()
    connection.execute(f"CREATE TABLE s (n int, a varchar) WITH ({topic.options()}) FORMAT PLAIN ENCODE JSON")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT n, a FROM s")
    topic.send([b'{"n": 1, "a": "x", "b": 5}'])
    connection.execute("FLUSH")
    connection.execute("ALTER TABLE s ADD COLUMN b int")
    connection.execute("ALTER TABLE s RENAME COLUMN a TO c")
    topic.send([b'{"n": 2, "a": "lost", "b": 6, "c": "y"}'])
    connection.execute("FLUSH")
    assert sorted(connection.execute("SELECT n, c, b FROM s").fetchall()) == [(1, "x", None), (2, "y", 6)]
    assert sorted(connection.execute("SELECT * FROM v").fetchall()) == [(1, "x"), (2, "y")]
    connection.close()
    connection = connect()
    topic.send([b'{"n": 3, "b": 7, "c": "z"}'])
    connection.execute("FLUSH")
    assert connection.execute("SELECT n, c, b FROM s WHERE n = 3").fetchall() == [(3, "z", 7)]


def test_a_join_as_scripts_write_it(topic, connect):
    connection = connect()
    connection.execute(f"""
        CREATE SOURCE s (n bigint, text varchar) INCLUDE offset AS number WITH ({topic.options()})
            FORMAT PLAIN ENCODE JSON;
        CREATE TABLE names (n bigint PRIMARY KEY, name varchar);
        INSERT INTO names VALUES (1, 'a'), (3, 'c');
        CREATE MATERIALIZED VIEW v AS SELECT s.n, text, name FROM s JOIN names USING (n)""")
    topic.send(messages(1, 2))
    assert values(connection, "SELECT * FROM v") == [(1, "t1", "a")]
    topic.send(messages(3))
    assert values(connection, "SELECT * FROM v") == [(1, "t1", "a"), (3, "t3", "c")]


def test_flush_waits_for_more_messages_than_the_broker_sends_without_acknowledgement(topic, connect):
    connection = connect()
    connection.execute(f"CREATE SOURCE s (data bytea) WITH ({topic.options()}) FORMAT PLAIN ENCODE BYTES")
    connection.close()
    topic.send([b"x" * 10] * 3_000)
    again = connect()
    assert values(again, "SELECT count(*) FROM s") == [3_000]


def test_retained_messages_are_stored_once(topic, connect):
    topic.send(messages(1), retain=True)
    connection = connect()
    connection.execute(f"CREATE SOURCE s (n int) WITH ({topic.options()})")
    assert values(connection) == [1]
    connection.close()
    assert values(connect()) == [1]


def test_a_dropped_source_leaves_no_session_at_the_broker(topic, connect):
    connection = connect()
    connection.execute(f"CREATE SOURCE s (n int) WITH ({topic.options(client_prefix=topic.name)})")
    relation = connection._session.catalog.by_name("s")
    name = f"{topic.name}-{connection._session.database.layout.id}-{relation.id}"
    connection.execute("DROP SOURCE s")
    known, answered = [], threading.Event()
    client = topic.client(
        name, clean=False, answered=lambda flags: (known.append(flags.session_present), answered.set())
    )
    assert answered.wait(30)
    client.disconnect()
    client.loop_stop()
    assert known == [False]


def test_a_broker_that_goes_away_and_comes_back(own_mosquitto, connect):
    topic, connection = Topic(own_mosquitto), connect()
    connection.execute(f"CREATE SOURCE s (n int) WITH ({topic.options()})")
    topic.send(messages(1))
    assert values(connection) == [1]
    own_mosquitto.stop()
    until(lambda: connection.execute("SHOW SOURCES").fetchone()[1] == "waiting")
    assert "was not waited for, as it is waiting" in connection.flush()[0]
    own_mosquitto.start()
    until(lambda: connection.execute("SHOW SOURCES").fetchone()[1] == "running")
    topic.send(messages(2))
    assert values(connection) == [1, 2]


@pytest.mark.parametrize(
    ("more", "condition", "said"),
    [
        ({"url": "http://a"}, "CONNECTOR_OPTION", "option url has to be tcp://"),
        ({"url": "tcp://127.0.0.1:1"}, "RUNTIME_UNAVAILABLE", "can't be reached"),
        ({"topic": ""}, "CONNECTOR_OPTION", "topic"),
        ({"qos": "2"}, "CONNECTOR_OPTION", "qos"),
        ({"what": "x"}, "CONNECTOR_OPTION", "what"),
    ],
)
def test_what_is_refused(topic, connect, more, condition, said):
    with pytest.raises(Error, match=said) as refused:
        connect().execute(f"CREATE SOURCE s (n int) WITH ({topic.options(**more)})")
    assert refused.value.condition == condition


def test_forms_and_keys_that_are_refused_and_a_quality_that_is_lowered(topic, connect):
    connection = connect()
    for sql in (
        f"CREATE TABLE s (n int PRIMARY KEY) WITH ({topic.options()}) FORMAT UPSERT ENCODE JSON",
        f"CREATE SOURCE s (n int PRIMARY KEY) WITH ({topic.options()})",
    ):
        with pytest.raises(Error) as refused:
            connection.execute(sql)
        assert refused.value.condition == "FEATURE_NOT_SUPPORTED"
    cursor = connection.execute(f"CREATE SOURCE s (n int) WITH ({topic.options(qos='exactly_once')})")
    assert "is read as at_least_once" in str(cursor.notices)
    connection.execute(f"CREATE SOURCE p (n int) WITH ({topic.options()}, source_rate_limit = 0)")
    until(lambda: connection.execute("SHOW SOURCES").fetchall()[-1][:2] == ("p", "paused"))


#: It receives until it reaches a point for the third time, or is killed.
RECEIVING = """
import os, signal, sys, time, watersmeet
from watersmeet.system.process import set_hook

left = 3

def hook(point):
    global left
    left -= point == sys.argv[2]
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

set_hook(hook)
with watersmeet.connect(sys.argv[1], runtime="inprocess") as connection:
    print("open", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["receiving.commit", "receiving.committed", "receiving.acknowledged", ""])
def test_a_kill_loses_nothing_at_any_step(topic, connect, tmp_path, fault):
    """Each message is there; those of the last commits may be there twice."""
    connection = connect()
    connection.execute(f"CREATE SOURCE s (n int) WITH ({topic.options()})")
    connection.close()
    command = [sys.executable, "-c", RECEIVING, str(tmp_path / "db"), fault]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    sent = 0
    while process.poll() is None:
        topic.send(messages(*range(sent, sent + 20)))
        sent += 20
        if not fault and sent == 100:
            process.kill()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    assert set(values(connect())) == set(range(sent))
