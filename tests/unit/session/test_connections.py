"""Connections: options that sources, tables and sinks take over."""

import pytest

import watersmeet
from watersmeet.errors import Error


def test_a_source_and_a_sink_take_over_its_options(broker, topic, tmp_path):
    read, written = topic(retention_ms=-1), topic(retention_ms=-1)
    producer = broker.producer()
    producer.produce(read, b'{"id": 7}')
    producer.flush()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE SECRET s WITH (backend = 'meta') AS 'x'")
        cursor.execute(
            f"""CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = '{broker.bootstrap}',
                properties.sasl.password = SECRET s)"""
        )
        cursor.execute(
            f"""CREATE SOURCE k (id int) WITH (connector = 'kafka', connection = c, topic = '{read}')
                FORMAT PLAIN ENCODE JSON"""
        )
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM k")
        cursor.execute(
            f"""CREATE SINK out FROM v WITH (connector = 'kafka', connection = c, topic = '{written}')
                FORMAT PLAIN ENCODE JSON"""
        )
        cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM v")
        assert cursor.fetchall() == [(7,)]
        cursor.execute("SHOW CONNECTIONS")
        assert cursor.fetchall() == [("c", "kafka")]
        for text in ("DROP CONNECTION c", "DROP SECRET s"):
            with pytest.raises(Error) as caught:
                cursor.execute(text)
            assert caught.value.condition == "DEPENDENT_OBJECTS"
        cursor.execute("DROP SINK out; DROP MATERIALIZED VIEW v; DROP SOURCE k; DROP CONNECTION c; DROP SECRET s")
        cursor.execute("SHOW CONNECTIONS")
        assert cursor.fetchall() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE CONNECTION d WITH (type = 'ftp')", 'a connection can\'t be of type "ftp"'),
        ("CREATE CONNECTION d WITH (type = 'kafka')", 'needs the option "properties.bootstrap.server"'),
        ("CREATE CONNECTION d WITH (type = 'kafka', topic = 't')", 'has no option "topic"'),
        (
            "CREATE SOURCE k (a int) WITH (connector = 'kafka', connection = r, topic = 't') FORMAT PLAIN ENCODE JSON",
            'connection "r" is of type schema_registry',
        ),
        (
            "CREATE SOURCE k (a int) WITH (connector = 'kafka', connection = b, topic = 't') FORMAT PLAIN ENCODE JSON",
            'connection "b" does not exist',
        ),
        (
            """CREATE SOURCE k (a int) WITH (connector = 'kafka', connection = c, topic = 't',
               properties.bootstrap.server = 'x:1') FORMAT PLAIN ENCODE JSON""",
            'option "properties.bootstrap.server" is given by connection "c", too',
        ),
        ("SELECT * FROM c", 'connection "c" can\'t be read by a query'),
    ],
)
def test_what_is_refused(run, text, message):
    run("CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = 'h:1')")
    run("CREATE CONNECTION r WITH (type = 'schema_registry', schema.registry = 'http://h:1')")
    with pytest.raises(Error) as caught:
        run(text)
    assert message in caught.value.message
