"""Brokers that refuse, topics that go away: each source and sink says what is wrong, and goes on when it is mended."""

from __future__ import annotations

import json
import logging
import time

import pytest
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind
from scripts.servers.kafka import PASSWORD, USER
from tests.kafkatopics import avro_values
from tests.unit.formats.fake_registry import fake_registry
from tests.unit.sinks.test_kafka import content, messages

import watersmeet
from watersmeet.formats import registry as registry_module
from watersmeet.sinkwriters import writers
from watersmeet.sinkwriters.writers import SinkWriters


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.05)


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as made:
        yield made


@pytest.fixture
def deny(broker):
    """deny(kind, name, operation): USER may not; the rights are back when what it gives is called, or at the end."""
    admin = broker.admin()
    given = []

    def deny(kind, name, operation):
        pattern = (kind, name, ResourcePatternType.PREFIXED, f"User:{USER}", "*", operation)
        # Where there is one rule, what no rule allows is refused.
        allowed = (kind, name, ResourcePatternType.PREFIXED, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        rules = [AclBinding(*pattern, AclPermissionType.DENY), AclBinding(*allowed)]
        for future in admin.create_acls(rules).values():
            future.result(30)
        until(lambda: len(rules_of(kind, name)) == len(rules))
        given.append((kind, name))
        return back

    def back():
        while given:
            kind, name = given.pop()
            for future in admin.delete_acls([filter_of(kind, name)]).values():
                future.result(30)
            until(lambda kind=kind, name=name: not rules_of(kind, name))

    def rules_of(kind, name):
        return admin.describe_acls(filter_of(kind, name)).result(30)

    def filter_of(kind, name):
        return AclBindingFilter(
            kind, name, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )

    yield deny
    back()


def options(settings, **more):
    named = {f"properties.{n}": v for n, v in settings.items() if n != "bootstrap.servers"}
    listed = {
        "connector": "kafka",
        "properties.bootstrap.server": settings["bootstrap.servers"],
        **named,
        **more,
    }
    return ", ".join(f"{n} = {v if str(v).startswith('SECRET ') else repr(v)}" for n, v in listed.items())


def source(connection, name, settings):
    connection.execute(f"CREATE SOURCE s (id int) WITH ({options(settings, topic=name)}) FORMAT PLAIN ENCODE JSON")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s")


def table_and_sink(connection, name, settings):
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    more = {"topic": name, "progress.topic": f"p_{name}"}
    connection.execute(f"CREATE SINK out FROM t WITH ({options(settings, **more)}) FORMAT UPSERT ENCODE JSON")


def produce(broker, name, *numbers):
    producer = broker.producer()
    for number in numbers:
        producer.produce(name, json.dumps({"id": number}).encode())
    producer.flush()


def shown(connection, what):
    """(state, detail) of the one source or sink."""
    cursor = connection.execute(f"SHOW {what}")
    names = [d[0] for d in cursor.description]
    row = dict(zip(names, cursor.fetchone(), strict=True))
    return row["state"], row["detail"]


def until(done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def delivered(connection, broker, name):
    """What the topic has once the sink has come to the end."""
    settle(connection)
    return content(messages(broker, name))


def settle(connection):
    """Waits until the sink has come to the end."""
    connection.flush()
    until(lambda: shown(connection, "SINKS")[0] == "running")  # one that was told to start is stopped for a moment
    sink = connection._session.catalog.by_name("out")
    assert connection._session.database.service(SinkWriters).wait(sink.id, 60)
    assert shown(connection, "SINKS")[0] == "running"


def everything_that_is_shown(connection, path, caplog):
    """What SHOW says, what files have but for the one with the secrets, what was logged."""
    shows = ("SOURCES", "SINKS", "SECRETS", "ERRORS", "CREATE SOURCE s")
    found = [caplog.text, *(str(connection.execute(f"SHOW {what}").fetchall()) for what in shows)]
    found += [str(connection.status()), connection.topology("dot")]
    for file in path.rglob("*"):
        if file.is_file() and "secret" not in str(file).lower():
            found.append(file.read_bytes().decode("latin-1"))
    return "\n".join(found)


@pytest.mark.slow
def test_credentials_come_from_secrets_and_are_shown_nowhere(connection, broker, topic, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    name, out = topic(), topic()
    wrong, right = "wrong-password-1", PASSWORD
    connection.execute(f"CREATE SECRET bad WITH (backend = 'meta') AS '{wrong}'")
    connection.execute(f"CREATE SECRET good WITH (backend = 'meta') AS '{right}'")
    settings = broker.sasl()
    with pytest.raises(watersmeet.Error) as caught:
        source(connection, name, {**settings, "sasl.password": "SECRET bad"})
    assert "refuse the credentials" in caught.value.message
    assert "properties.sasl.password" in caught.value.hint
    with pytest.raises(watersmeet.Error) as sink:
        table_and_sink(connection, out, {**settings, "sasl.password": "SECRET bad"})
    assert "refuse the credentials" in sink.value.message
    connection.execute("DROP TABLE t")
    source(connection, name, {**settings, "sasl.password": "SECRET good"})
    table_and_sink(connection, out, {**settings, "sasl.password": "SECRET good"})
    produce(broker, name, 1, 2)
    connection.flush()
    assert connection.execute("SELECT * FROM v ORDER BY id").fetchall() == [(1,), (2,)]
    assert delivered(connection, broker, out) == [(1, "a"), (2, "b")]
    said = everything_that_is_shown(connection, tmp_path / "db", caplog)
    for error in (caught.value, sink.value):
        said += f"{error} {error.detail} {error.hint} {error!r}"
    assert wrong not in said
    assert right not in said


def test_a_user_who_may_not_read_is_told_and_reads_on_later(connection, broker, topic, deny):
    name = topic()
    source(connection, name, broker.sasl())
    produce(broker, name, 1)
    connection.flush()
    back = deny(Kind.TOPIC, name, AclOperation.READ)
    sent = [1]

    def is_told():
        sent.append(len(sent) + 1)
        produce(broker, name, sent[-1])
        try:
            notices = connection.flush()
        except watersmeet.Error as problem:
            notices = (problem.message,)
        return any("do not allow this user" in notice and name in notice for notice in notices)

    until(is_told)  # what was asked for before is still given
    assert (len(sent),) not in connection.execute("SELECT * FROM v").fetchall()
    back()

    def is_read():
        try:
            connection.flush()
        except watersmeet.Error:
            return False
        found = [n for (n,) in connection.execute("SELECT * FROM v ORDER BY id").fetchall()]
        return found == sent

    until(is_read)
    assert connection.execute("SELECT * FROM watersmeet.dead_letters").fetchall() == []


@pytest.mark.parametrize(
    ("kind", "operation"), [(Kind.TOPIC, AclOperation.WRITE), (Kind.TRANSACTIONAL_ID, AclOperation.WRITE)]
)
def test_a_user_who_may_not_write_stops_the_sink_until_it_is_mended(connection, broker, topic, deny, kind, operation):
    name = topic()
    back = deny(kind, name if kind == Kind.TOPIC else "watersmeet-", operation)
    table_and_sink(connection, name, broker.sasl())
    until(lambda: shown(connection, "SINKS")[0] == "stopped")
    assert "do not allow this user" in shown(connection, "SINKS")[1]
    connection.execute("INSERT INTO t VALUES (3, 'c')")
    back()
    connection.execute("ALTER SINK out START")
    assert delivered(connection, broker, name) == [(1, "a"), (2, "b"), (3, "c")]
    assert len(messages(broker, name)) == 3


@pytest.mark.parametrize("way", ["plain", "no certificate", "nobody"])
def test_brokers_that_are_reached_the_wrong_way_are_named_with_the_option(connection, broker, topic, way, monkeypatch):
    monkeypatch.setattr("watersmeet.connectors.kafka.cluster._TIMEOUT_S", 1.0)
    monkeypatch.setattr("watersmeet.connectors.kafka.target._ANSWER_S", 1.0)
    settings = broker.tls()
    if way == "plain":
        settings = {"bootstrap.servers": settings["bootstrap.servers"]}
    elif way == "nobody":
        settings = {"bootstrap.servers": "127.0.0.1:1"}
    else:
        del settings["ssl.ca.location"]
    option = "properties.ssl.ca.location" if way == "no certificate" else "properties.bootstrap.server"
    name = topic()
    for create in (source, table_and_sink):
        with pytest.raises(watersmeet.Error) as caught:
            create(connection, name, settings)
        assert caught.value.condition in ("CONNECTOR_OPTION", "RUNTIME_UNAVAILABLE")
        assert option in f"{caught.value.message} {caught.value.hint}"
        assert settings["bootstrap.servers"] in caught.value.message


def test_a_topic_that_is_deleted_under_a_sink_stops_it_alone(connection, broker, topic):
    name, other = topic(), topic()
    table_and_sink(connection, name, {"bootstrap.servers": broker.bootstrap})
    assert delivered(connection, broker, name) == [(1, "a"), (2, "b")]
    source(connection, other, {"bootstrap.servers": broker.bootstrap})
    broker.delete_topic(name)
    connection.execute("INSERT INTO t VALUES (3, 'c')")
    produce(broker, other, 1)
    connection.flush()
    assert connection.execute("SELECT * FROM v").fetchall() == [(1,)]
    until(lambda: shown(connection, "SINKS")[0] == "stopped")
    assert f'there is no topic "{name}"' in shown(connection, "SINKS")[1]
    broker.create_topic(name)
    connection.execute("ALTER SINK out START")
    until(lambda: "made anew" in (shown(connection, "SINKS")[1] or ""))
    assert shown(connection, "SINKS")[0] == "stopped"
    more = {"topic": name, "progress.topic": f"p_{name}"}
    listed = options({"bootstrap.servers": broker.bootstrap}, **more)
    connection.execute(f"CREATE OR REPLACE SINK out FROM t WITH ({listed}) FORMAT UPSERT ENCODE JSON")
    assert delivered(connection, broker, name) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.slow
def test_a_registry_that_is_killed_is_waited_for_by_source_and_sink(connection, broker, topic, own_registry):
    """It is ended between schemas, and started again without any: whoever wrote with them registers them again."""
    read, written = topic(), topic()

    def register(*types):
        """The messages {"id": 7} of a schema for each of the types."""
        schemas = [{"type": "record", "name": f"r_{t}", "fields": [{"name": "id", "type": t}]} for t in types]
        subjects = [(f"{read}-{t}", s) for t, s in zip(types, schemas, strict=True)]
        return [avro_values(own_registry, *pair, {"id": 7})[0][1] for pair in subjects]

    def dead():
        return connection.execute("SELECT * FROM watersmeet.dead_letters").fetchall()

    first, second = register("int", "long")
    given = options({"bootstrap.servers": broker.bootstrap}, topic=read)
    avro = f"ENCODE AVRO (schema.registry = '{own_registry.url}')"
    connection.execute(f"CREATE SOURCE s (id bigint) WITH ({given}) FORMAT PLAIN {avro}")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s; CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    given = options({"bootstrap.servers": broker.bootstrap}, topic=written, primary_key="k")
    connection.execute(f"CREATE SINK out FROM t WITH ({given}) FORMAT UPSERT {avro}")
    producer = broker.producer()
    producer.produce(read, first)
    producer.flush()
    connection.flush()
    assert connection.execute("SELECT * FROM v").fetchall() == [(7,)]
    own_registry.kill()
    producer.produce(read, second)
    producer.flush()
    for _ in range(2):
        [notice] = connection.flush()
        assert 'source "s" was not waited for, as it is waiting' in notice
        assert str(own_registry.port) in notice
        assert dead() == []
    own_registry.start()
    assert register("int", "long") == [first, second]
    assert not connection.flush()
    assert connection.execute("SELECT * FROM v").fetchall() == [(7,), (7,)]
    assert dead() == []
    own_registry.kill()
    connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    connection.flush()
    until(lambda: shown(connection, "SINKS")[0] == "retrying")
    assert str(own_registry.port) in shown(connection, "SINKS")[1]
    own_registry.start()
    settle(connection)
    assert len(messages(broker, written)) == 2


def test_a_registry_that_is_down_is_waited_for(connection, broker, topic):
    name = topic()
    with fake_registry() as registry:
        schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
        number = registry.add(schema, subject=f"{name}-value").to_bytes(4, "big")
        connection.execute(
            f"""CREATE SOURCE s (id int) WITH ({options({"bootstrap.servers": broker.bootstrap}, topic=name)})
                FORMAT PLAIN ENCODE AVRO (schema.registry = '{registry.address}')"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s")
        connection.flush()
        registry.status = 503
        registry_module._opened.cache_clear()  # as in a process that has not seen the schema yet
        producer = broker.producer()
        producer.produce(name, b"\0" + number + b"\x0e")  # 7, as Avro writes it
        producer.flush()
        for _ in range(2):
            [notice] = connection.flush()
            assert 'source "s" was not waited for, as it is waiting' in notice
            assert "answers with the status 503" in notice
            assert registry.address in notice
            ((_, state, reason, *_),) = connection.execute("SHOW SOURCES").fetchall()
            assert state == "waiting"
            assert reason in notice
        assert connection.execute("SELECT * FROM watersmeet.dead_letters").fetchall() == []
        registry.status = 0
        connection.flush()
        assert connection.execute("SELECT * FROM v").fetchall() == [(7,)]
