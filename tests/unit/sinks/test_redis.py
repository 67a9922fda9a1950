"""Sinks to Redis: what it stores in each form, what is refused, and a server that goes away."""

from __future__ import annotations

import json

import pytest
from tests.unit.sinks.batches import TWO, batch
from tests.unit.sinks.databasetargets import is_done, wait

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkOffset
from watersmeet.connectors.registry import connector_of
from watersmeet.errors import Error
from watersmeet.values.types import DOUBLE, VARCHAR, Field

#: The named points of a delivery, in their order.
POINTS = ("redis.read", "redis.fenced", "redis.begun", "redis.written", "redis.committed")


def target(database, columns=TWO, /, *, rows="upsert", key=("id",), generation=1, encoding="json", **options):
    connector = {"connector": "redis", "redis.url": database.url}
    form = MessageFormat(rows, encoding, options=options)
    delivery = Delivery("s1", "sink k", "v1", columns, key, connector, form, False, "s1", generation)
    return connector_of(delivery).open(delivery, "db", lambda: False)


def strings(database):
    with database.connect() as client:
        keys = [key for key in client.scan_iter() if not key.startswith("watersmeet:sink:")]
        return {key: client.get(key) for key in keys}


def content(database):
    found = [json.loads(value) for value in strings(database).values()]
    return sorted((row["id"], row["name"]) for row in found)


def delivered(database, *batches, **options):
    sink = target(database, **options)
    sink.open(1)
    sink.deliver(batches)
    sink.close()


def test_keys_and_values_are_json_without_templates(redis):
    delivered(redis, batch(3, (1, "a"), (2, None)))
    assert strings(redis) == {'{"id":1}': '{"id":1,"name":"a"}', '{"id":2}': '{"id":2,"name":null}'}


def test_plain_rows_need_a_key_and_never_remove_one(redis):
    delivered(redis, batch(3, (1, "a"), (2, "b")), batch(4, (1, "a"), (1, "c"), diff=[-1, 1]), rows="plain")
    assert content(redis) == [(1, "c"), (2, "b")]
    with pytest.raises(Error, match="needs a key") as refused:
        target(redis, rows="plain", key=())
    assert refused.value.condition == "CONNECTOR_OPTION"


def test_templates(redis):
    form = {"encoding": "template", "key_format": "user:{id}", "value_format": r"\{{name}\} \\{, \n"}
    delivered(redis, batch(3, (1, "a"), (2, None)), **form)
    assert strings(redis) == {"user:1": r"{a} \{, \n", "user:2": r"{NULL} \{, \n"}


def test_a_template_that_gives_two_rows_one_key_keeps_the_row_that_stays(redis):
    form = {"encoding": "template", "key_format": "one", "value_format": "{name}"}
    delivered(redis, batch(3, (1, "a")), batch(4, (1, "a"), (2, "b"), diff=[-1, 1]), **form)
    assert strings(redis) == {"one": "b"}


def test_text_as_key(redis):
    connector = {"connector": "redis", "redis.url": redis.url}
    form = MessageFormat("upsert", "json", "string")
    delivery = Delivery("s1", "sink k", "v1", TWO, ("id",), connector, form, False, "s1", 1)
    sink = connector_of(delivery).open(delivery, "db", lambda: False)
    sink.open(1)
    sink.deliver([batch(3, (7, "a"))])
    assert strings(redis) == {"7": '{"id":7,"name":"a"}'}


def test_messages_of_channels(redis):
    with redis.connect() as client, client.pubsub() as heard:
        heard.psubscribe("*")
        assert heard.get_message(timeout=10)["type"] == "psubscribe"
        for options in ({"channel": "c"}, {"channel_column": "name"}):
            form = {"encoding": "template", "redis_value_type": "pubsub", "value_format": "{id}", **options}
            sink = target(redis, **form)
            sink.open(1)
            sink.deliver([batch(3, (1, "a"), (2, "b")), batch(4, (1, "a"), diff=[-1])])
        found = [heard.get_message(timeout=10) for _ in range(4)]
    assert [(m["channel"], m["data"]) for m in found] == [("c", "1"), ("c", "2"), ("a", "1"), ("b", "2")]


PLACES = (Field("x", DOUBLE), Field("y", DOUBLE), Field("who", VARCHAR), Field("town", VARCHAR))


def test_places(redis):
    form = {"redis_value_type": "geospatial", "longitude": "x", "latitude": "y", "member": "who"}
    sink = target(redis, PLACES, key=("who", "town"), encoding="template", key_format="in:{town}", **form)
    sink.open(1)
    rows = [(1.1, 1.1, "a", "t"), (2.0, 3.0, "b", "t")]
    sink.deliver([batch(3, *rows, columns=PLACES)])
    with redis.connect() as client:
        (found,) = client.geopos("in:t", "a")
        assert found == pytest.approx((1.1, 1.1), abs=1e-5)
        sink.deliver([batch(4, rows[0], columns=PLACES, diff=[-1])])
        assert client.zrange("in:t", 0, -1) == ["b"]
    with pytest.raises(Error, match="has no longitude or latitude") as refused:
        sink.deliver([batch(5, (None, 1.0, "c", "t"), columns=PLACES)])
    assert refused.value.condition == "DELIVERY_REFUSED"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "avro"}, "does not write FORMAT UPSERT ENCODE AVRO"),
        ({"rows": "debezium"}, "does not write FORMAT DEBEZIUM ENCODE JSON"),
        ({"encoding": "template"}, "ENCODE TEMPLATE needs the option key_format"),
        ({"encoding": "template", "key_format": "a", "value_format": "{nam}"}, 'names column "nam"'),
        ({"encoding": "template", "key_format": "a{", "value_format": ""}, "without its other brace"),
        ({"redis_value_type": "stream"}, 'redis_value_type can\'t be "stream"'),
        ({"redis_value_type": "pubsub"}, "needs ENCODE TEMPLATE"),
        ({"encoding": "template", "redis_value_type": "pubsub", "value_format": "a"}, "channel or channel_column"),
        ({"encoding": "template", "redis_value_type": "geospatial", "key_format": "a"}, "needs the option longitude"),
        ({"valueformat": "a"}, 'has no option "valueformat"'),
    ],
)
def test_refused_options(options, message):
    class Nowhere:
        url = "redis://127.0.0.1:1/"

    with pytest.raises(Error) as refused:
        target(Nowhere, **options)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("url", "condition", "message"),
    [
        ('["redis://a:1/","redis://b:1/"]', "FEATURE_NOT_SUPPORTED", "a cluster of Redis servers"),
        ("http://a", "CONNECTOR_OPTION", "redis.url has to be"),
    ],
)
def test_refused_urls(url, condition, message):
    class Nowhere:
        pass

    Nowhere.url = url
    with pytest.raises(Error, match=message) as refused:
        target(Nowhere)
    assert refused.value.condition == condition


def test_a_server_that_goes_away_and_comes_back(own_redis):
    sink = target(own_redis)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    own_redis.server.kill()
    with pytest.raises(Unavailable):
        sink.deliver([batch(4, (2, "b"))])
    with pytest.raises(Unavailable):
        target(own_redis).look()
    own_redis.server.start()
    again = target(own_redis)
    assert again.open(1) == SinkOffset(1, 3)
    again.deliver([batch(4, (2, "b"))])
    assert content(own_redis) == [(1, "a"), (2, "b")]


def test_credentials_are_checked_and_never_shown(own_redis):
    with own_redis.connect() as client:
        client.config_set("requirepass", "redis-secret")

    class WithPassword:
        url = own_redis.url.replace("redis://", "redis://:wrong-secret@")

    with pytest.raises(Error, match="refuses the credentials") as refused:
        target(WithPassword).open(1)
    assert "secret" not in str(refused.value)


def test_a_sink_of_a_join_as_scripts_write_it(redis, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE names (id int PRIMARY KEY, name varchar);
            CREATE TABLE amounts (id int PRIMARY KEY, amount int);
            CREATE SINK k AS SELECT n.id, name, amount FROM names n JOIN amounts a ON a.id = n.id
                WITH (connector = 'redis', primary_key = 'id', redis.url = '{redis.url}')
                FORMAT UPSERT ENCODE TEMPLATE (key_format = 'id:{{id}}', value_format = '{{name}}={{amount}}');
            INSERT INTO names VALUES (1, 'a'), (2, 'b');
            INSERT INTO amounts VALUES (1, 10), (2, 20);
            FLUSH
        """)
        wait(connection, is_done)
        assert strings(redis) == {"id:1": "a=10", "id:2": "b=20"}
        connection.execute("UPDATE amounts SET amount = 11 WHERE id = 1; DELETE FROM names WHERE id = 2; FLUSH")
        wait(connection, is_done)
        assert strings(redis) == {"id:1": "a=11"}
