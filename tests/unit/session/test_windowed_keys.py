"""Topics of Lenses whose keys have windows (TW…, SW…), as Kafka Streams writes them, with a real broker."""

import datetime as dt

import pytest
from tests.kafkatopics import delivered, read_avro, rows, table, there

from watersmeet.errors import Error

START, END = dt.datetime(2021, 1, 1, 0, 0, 5), dt.datetime(2021, 1, 1, 0, 1)


def ms(moment):
    return round((moment - dt.datetime(1970, 1, 1)).total_seconds() * 1000).to_bytes(8, "big", signed=True)


def send(broker, topic, *records):
    producer = broker.producer()
    for key, value in records:
        producer.produce(topic, value, key=key)
    producer.flush()


@pytest.mark.parametrize(
    ("formats", "declared", "key", "read"),
    [
        ("TWSTRING, JSON", "", b"car" + ms(START), {"value": "car", "window": {"start": START}}),
        ("TWINT, JSON", "", b"\0\0\0\7" + ms(START), {"value": 7, "window": {"start": START}}),
        ("TWSTRING, JSON", "_key string, ", ms(START), {"value": "", "window": {"start": START}}),
        (
            "SWLONG, JSON",
            "",
            b"\0" * 7 + b"\7" + ms(END) + ms(START),
            {"value": 7, "window": {"start": START, "end": END}},
        ),
        (
            "SWJSON, JSON",
            "_key struct<plate string>, ",
            b'{"plate":"M"}' + ms(END) + ms(START),
            {"value": {"plate": "M"}, "window": {"start": START, "end": END}},
        ),
    ],
)
def test_keys_are_read_and_written(broker, opened, topic, named, formats, declared, key, read):
    connection, name, copy = opened(), topic(partitions=2), named()
    send(broker, name, (key, b'{"n": 1}'))
    connection.execute(f"CREATE TABLE {name} ({declared}n int) FORMAT ({formats})")
    assert rows(connection, f"SELECT _key, n FROM {name}") == [(read, 1)]
    assert rows(connection, f"SELECT _key.window.start AS s, _key.value AS v FROM {name}") == [(START, read["value"])]
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"INSERT INTO {copy} SELECT STREAM * FROM {name}")
    delivered(connection)
    assert [(k, v) for _, k, v, _ in there(broker, copy)] == [(key, b'{"n":1}')]
    shown = {r[0]: r[1:3] for r in connection.execute("SHOW TOPICS").fetchall()}
    assert shown[copy] == shown[name] == tuple(formats.split(", "))


def test_rows_of_windows(broker, opened, named):
    """Each window of a key is a row of the table; a tombstone takes that one away."""
    connection, name = opened(), named()
    connection.execute(f"CREATE TABLE {name} (_key string, n int) FORMAT (TWSTRING, JSON)")
    first, second = (f"row('a', row(TIMESTAMP '2021-01-01 00:00:0{s}'))" for s in (0, 5))
    connection.execute(f"INSERT INTO {name} VALUES ({first}, 1), ({second}, 2), ({second}, 3)")
    assert table(connection, name, "_key.window.start, n") == [(dt.datetime(2021, 1, 1), 1), (START, 3)]
    connection.execute(f"INSERT INTO {name} (_key, _value) VALUES ({first}, NULL)")
    assert table(connection, name, "_key.window.start, n") == [(START, 3)]
    assert there(broker, name)[0][1] == b"a" + ms(dt.datetime(2021, 1, 1))


def test_keys_that_are_none(broker, opened, topic):
    connection, name = opened(), topic()
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (TWINT, JSON)")
    send(
        broker,
        name,
        (b"short", b'{"n": 1}'),
        (b"\0" + ms(START), b'{"n": 2}'),
        (b"\0\0\0\7" + b"\x7f" + b"\xff" * 7, b'{"n": 3}'),
        (b"\0\0\0\7" + ms(START), b'{"n": 4}'),
    )
    assert rows(connection, f"SELECT n FROM {name}") == [(4,)]
    found = connection.execute(f"SELECT reason FROM watersmeet.dead_letters WHERE topic = '{name}' ORDER BY `offset`")
    assert [r for (r,) in found.fetchall()][:2] == [
        "key: 5 bytes are no key with a window",
        "key: int: 1 bytes instead of 4",
    ]


def test_formats_of_windows_are_changed_as_those_of_keys_are(broker, registry, opened, named):
    connection = opened(kafka={"bootstrap.servers": broker.bootstrap, "schema.registry.url": registry.url})
    name, other, plain = named(), named(), named()
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (TWINT, JSON)")
    connection.execute(f"CREATE TABLE {plain} (n int) FORMAT (INT, JSON)")
    for source, wanted, said in (
        (name, "SWINT", "a key in TWINT can't be stored AS SWINT"),
        (name, "INT", "a key in TWINT can't be stored AS INT"),
        (plain, "TWINT", "a key in INT can't be stored AS TWINT"),
    ):
        with pytest.raises(Error) as caught:
            connection.execute(f"INSERT INTO {other} STORE KEY AS {wanted} SELECT STREAM * FROM {source}")
        assert caught.value.message == said
    with pytest.raises(Error, match='format "TWCSV" does not exist'):
        connection.execute(f"CREATE TABLE {other} (n int) FORMAT (TWCSV, JSON)")
    with pytest.raises(Error, match='format "TWINT" does not exist'):
        connection.execute(f"CREATE TABLE {other} (n int) FORMAT (INT, TWINT)")
    connection.execute(f"INSERT INTO {other} STORE KEY AS TWAVRO SELECT STREAM * FROM {name}")
    connection.execute(f"INSERT INTO {name} VALUES (row(7, row(TIMESTAMP '2021-01-01 00:00:05')), 1)")
    delivered(connection)
    ((_, key, _, _),) = there(broker, other)
    assert (read_avro(registry, key[:-8]), key[-8:]) == (7, ms(START))


def test_groups_in_windows_are_written(broker, opened, named):
    connection, name, fixed, sessions = opened(), named(), named(), named()
    connection.execute("SET defaults.topic.autocreate=true; SET defaults.topic.retention.ms='-1'")
    connection.execute(f"CREATE TABLE {name} (_key string, n int) FORMAT (STRING, JSON)")
    connection.execute(f"INSERT INTO {fixed} SELECT STREAM COUNT(*) AS c FROM {name} WINDOW BY TUMBLE 5s")
    connection.execute(
        f"INSERT INTO {sessions} SELECT STREAM COUNT(*) AS c FROM {name} WINDOW BY SESSION 5s GROUP BY n"
    )
    connection.execute(f"INSERT INTO {name} (_key, n, `@time`) VALUES ('a', 7, TIMESTAMP '{START}')")
    connection.execute("FLUSH")
    delivered(connection)
    assert [(k, v) for _, k, v, _ in there(broker, fixed)] == [(b"a" + ms(START), b'{"c":1}')]
    assert [(k, v) for _, k, v, _ in there(broker, sessions)] == [(b"\0\0\0\7" + ms(START) * 2, b'{"c":1}')]
