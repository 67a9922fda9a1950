"""Generated columns of sources and tables with a connector, over files and over topics."""

import datetime as dt
import json

import pytest

import watersmeet


@pytest.fixture
def path(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,at\n1,2024-05-01 12:00:00\n2,2024-05-02 00:30:00\n")
    return tmp_path


def opened(path):
    return watersmeet.connect(path / "db", runtime="inprocess")


def of_files(path, more=""):
    return f"WITH (connector = 'file', path = '{path}/in', format = 'csv', header = true{more})"


def rows(connection, query):
    connection.execute("FLUSH")
    return connection.execute(query).fetchall()


def test_files_have_the_columns_that_are_not_generated(path):
    with opened(path) as connection:
        connection.execute(
            f"""CREATE TABLE t (id int PRIMARY KEY, day date AS at::date, at timestamp, name varchar AS 'no. ' || id,
                WATERMARK FOR at AS at) {of_files(path)}"""
        )
        connection.execute("CREATE MATERIALIZED VIEW days AS SELECT day, count(*) AS n FROM t GROUP BY day")
        assert rows(connection, "SELECT * FROM t ORDER BY id") == [
            (1, dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 12), "no. 1"),
            (2, dt.date(2024, 5, 2), dt.datetime(2024, 5, 2, 0, 30), "no. 2"),
        ]
    (path / "in" / "b.csv").write_text("id,at\n2,2024-05-03 00:00:00\n")
    with opened(path) as connection:
        assert rows(connection, "SELECT * FROM days ORDER BY day") == [
            (dt.date(2024, 5, 1), 1),
            (dt.date(2024, 5, 3), 1),
        ]


def test_a_watermark_on_a_generated_column_drops_late_rows(path):
    (path / "in" / "a.csv").write_text("id,at\n1,1000000\n2,1060000\n")
    with opened(path) as connection:
        connection.execute(
            f"""CREATE SOURCE s (id int, at bigint, ts timestamptz AS to_timestamp(at / 1000.0),
                WATERMARK FOR ts AS ts - INTERVAL '5 seconds') {of_files(path)}"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s")
        assert rows(connection, "SELECT * FROM v ORDER BY id") == [(1,), (2,)]
        (path / "in" / "b.csv").write_text("id,at\n3,1054999\n4,1055000\n")
        assert rows(connection, "SELECT * FROM v ORDER BY id") == [(1,), (2,), (4,)]


def test_a_value_that_raises_an_error_is_null(path):
    with opened(path) as connection:
        connection.execute(f"CREATE SOURCE s (id int, at varchar, n smallint AS id * 20000) {of_files(path)}")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, n FROM s")
        assert rows(connection, "SELECT * FROM v ORDER BY id") == [(1, 20000), (2, None)]
        ((relation, kind, _, _, message),) = rows(connection, "SHOW ERRORS")
        assert (relation, kind) == ("s", "expression")
        assert message.startswith("column n: (id * 20000:Int32)::Int16 is NULL in 1 row: ")


def send(broker, topic, *messages):
    producer = broker.producer()
    for key, value in messages:
        text = None if value is None else json.dumps(value).encode()
        producer.produce(topic, text, key=key, timestamp=1_700_000_000_000)
    producer.flush()


def of_topic(broker, topic):
    return f"WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{broker.bootstrap}')"


def test_messages_and_their_parts(tmp_path, broker, topic):
    name = topic(retention_ms=-1)
    send(broker, name, (b"a", {"n": 1}), (b"b", {"n": 2}), (b"a", {"n": 3}), (b"b", None))
    with opened(tmp_path) as connection:
        connection.execute(
            f"""CREATE TABLE t (n int, twice int AS n * 2, key_text varchar AS convert_from(k, 'UTF8'), PRIMARY KEY (k))
                INCLUDE key AS k {of_topic(broker, name)} FORMAT UPSERT ENCODE JSON"""
        )
        connection.execute(
            f"""CREATE SOURCE s (n int, day date AS sent::date, WATERMARK FOR sent AS sent) INCLUDE timestamp AS sent
                {of_topic(broker, name)} FORMAT PLAIN ENCODE JSON"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT day, count(*) AS c FROM s GROUP BY day")
        assert rows(connection, "SELECT n, twice, key_text, k FROM t") == [(3, 6, "a", b"a")]
        assert rows(connection, "SELECT * FROM v") == [(dt.date(2023, 11, 14), 4)]


def test_debezium_takes_rows_back_with_their_generated_values(tmp_path, broker, topic):
    name = topic(retention_ms=-1)
    first, second = {"id": 1, "n": 5}, {"id": 1, "n": 6}
    send(broker, name, (b"1", {"before": None, "after": first, "op": "c"}))
    with opened(tmp_path) as connection:
        connection.execute(
            f"""CREATE TABLE t (id int PRIMARY KEY, n int, g int AS n + 1) {of_topic(broker, name)}
                FORMAT DEBEZIUM ENCODE JSON"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT g, count(*) AS c FROM t GROUP BY g")
        assert rows(connection, "SELECT * FROM v") == [(6, 1)]
        send(broker, name, (b"1", {"before": first, "after": second, "op": "u"}))
        assert rows(connection, "SELECT * FROM v") == [(7, 1)]


def test_columns_of_the_schema_beside_generated_ones(tmp_path, broker, topic):
    name = topic(retention_ms=-1)
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    with opened(tmp_path) as connection:
        connection.execute(
            f"""CREATE SOURCE s (*, g bigint AS n + 1) {of_topic(broker, name)}
                FORMAT PLAIN ENCODE AVRO (schema.location = 'file://{tmp_path}/r.avsc')"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT g FROM s")
        assert [r[:2] for r in connection.execute("DESCRIBE s").fetchall()][:2] == [("n", "integer"), ("g", "bigint")]
