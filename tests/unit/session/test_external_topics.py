"""Timeplus' external streams over topics of Kafka."""

import json
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer

import watersmeet
from watersmeet.connectors.externalstreams import kafka_connector
from watersmeet.errors import Error
from watersmeet.formats.csvtext import CsvReader
from watersmeet.formats.registry import subject_of
from watersmeet.values.types import VARCHAR, Field


@pytest.fixture
def session(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        yield connection


def run(connection, *statements):
    cursor = connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    return cursor


def rows(connection, query):
    connection.flush()
    return sorted(run(connection, query).fetchall(), key=repr)


def produce(broker, topic, *values, partition=0, **message):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for value in values:
        text = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        producer.produce(topic, text, partition=partition, **message)
    producer.flush()


def stream(broker, topic, columns="n int, text string", **settings):
    given = {"type": "kafka", "brokers": broker.bootstrap, "topic": topic, **settings}
    listed = ", ".join(f"{name} = '{value}'" for name, value in given.items())
    return f"CREATE EXTERNAL STREAM s({columns}) SETTINGS {listed}"


def consumed(broker, topic, count):
    """The first `count` committed messages, (key, value, time), in the order of partitions and offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found, end = [], time.monotonic() + 30
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.key(), json.loads(message.value()), message.timestamp()[1]))
    consumer.close()
    return found


def view(name, query):
    return f"CREATE MATERIALIZED VIEW {name} AS {query}"


def test_each_query_begins_where_it_says(broker, topic, session):
    name = topic(2)
    produce(broker, name, *[{"n": n} for n in range(3)])
    produce(broker, name, *[{"n": n} for n in range(10, 13)], partition=1)
    run(
        session,
        stream(broker, name),
        view("new", "SELECT n FROM s"),
        view("whole", "SELECT n FROM s SETTINGS seek_to = 'earliest'"),
        view("places", "SELECT n FROM s SETTINGS seek_to = '2,1'"),
        view("one", "SELECT n, _tp_shard, _tp_sn FROM s SETTINGS seek_to = '1', shards = '1'"),
        view("past", "SELECT n FROM s SETTINGS seek_to = '-1h'"),
        view("later", "SELECT n FROM s SETTINGS seek_to = '2100-01-01T00:00:00Z'"),
    )
    produce(broker, name, {"n": 3})
    assert rows(session, "SELECT * FROM table(new)") == [(3,)]
    assert rows(session, "SELECT * FROM table(whole)") == [(0,), (1,), (10,), (11,), (12,), (2,), (3,)]
    assert rows(session, "SELECT * FROM table(places)") == [(11,), (12,), (2,), (3,)]
    assert rows(session, "SELECT * FROM table(one)") == [(11, 1, 1), (12, 1, 2)]
    assert rows(session, "SELECT * FROM table(past)") == [(0,), (1,), (10,), (11,), (12,), (2,), (3,)]
    assert rows(session, "SELECT * FROM table(later)") == [(3,)]


def test_a_restart_goes_on_where_each_view_was(broker, topic, tmp_path):
    name = topic()
    produce(broker, name, {"n": 0})
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        run(connection, stream(broker, name), view("new", "SELECT n FROM s"))
        produce(broker, name, {"n": 1})
        assert rows(connection, "SELECT * FROM table(new)") == [(1,)]
    produce(broker, name, {"n": 2})
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        assert rows(connection, "SELECT * FROM table(new)") == [(1,), (2,)]
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess", rebuild=True) as connection:
        produce(broker, name, {"n": 3})
        assert rows(connection, "SELECT * FROM table(new)") == [(1,), (2,), (3,)]


def test_what_brokers_know_of_a_message_is_in_columns_that_a_star_leaves_out(broker, topic, session):
    name, now_ms = topic(), time.time_ns() // 10_000_000 * 10 + 7  # its text has all three digits
    run(
        session,
        stream(broker, name),
        view("v", "SELECT *, _tp_message_key, _tp_message_headers, _tp_sn, _tp_shard FROM s"),
        view("star", "SELECT * EXCEPT (_tp_time) FROM s"),
        view("joined", "SELECT a.n FROM s AS a JOIN s AS b ON a._tp_sn = b._tp_sn"),
    )
    produce(broker, name, {"n": 7, "text": "t"}, key=b"k", headers=[("h", b"1")], timestamp=now_ms)
    found = rows(session, "SELECT n, text, to_string(_tp_time), _tp_message_key, _tp_sn, _tp_shard FROM table(v)")
    assert found == [
        (
            7,
            "t",
            str(datetime.fromtimestamp(now_ms / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")),
            "k",
            0,
            0,
        )
    ]
    assert rows(session, "SELECT _tp_message_headers FROM table(v)") == [({"h": "1"},)]
    assert rows(session, "SELECT * EXCEPT (_tp_time) FROM table(star)") == [(7, "t")]
    assert rows(session, "SELECT * FROM table(joined)") == [(7,)]


def test_fields_that_are_not_there_are_defaults_and_bad_messages_dead_letters(broker, topic, session):
    name = topic()
    run(
        session,
        stream(broker, name, "n int, text string, maybe nullable(int)"),
        view(
            "v",
            "SELECT n, text, maybe FROM s "
            "SETTINGS recovery_policy = 'best_effort', enable_dlq = true, input_format_ignore_parsing_errors = 1",
        ),
    )
    produce(broker, name, {"n": 1}, b'{"n": 2}\n{"n": 3, "text": "x", "maybe": 4}', b"{", {"n": "many"})
    assert rows(session, "SELECT * FROM table(v)") == [(1, "", None), (2, "", None), (3, "x", 4)]
    cursor = run(session, "SHOW JOBS")
    names = [d[0] for d in cursor.description]
    (source,) = (dict(zip(names, row, strict=True)) for row in cursor.fetchall() if row[1] == "source")
    assert (source["name"], source["errors"]) == ("s", 2)
    letters = run(session, "SELECT * FROM system.mat_view_dlq")
    names = [d[0] for d in letters.description]
    assert sorted(row[names.index("offset")] for row in letters.fetchall()) == [2, 3]


def test_a_bad_message_holds_up_a_strict_view_alone_until_a_statement_lets_it_go_on(broker, topic, session):
    name, strict = topic(), "SETTINGS recovery_policy = 'strict'"
    run(
        session,
        stream(broker, name),
        "CREATE STREAM beside(n int)",
        view("v", f"SELECT n FROM s UNION ALL SELECT n FROM beside {strict}"),
        view("ignoring", f"SELECT n FROM s {strict}, input_format_ignore_parsing_errors = 1"),
        view("other", "SELECT n FROM s"),
    )
    produce(broker, name, {"n": 1})
    session.flush()
    produce(broker, name, b"{", {"n": 2})
    run(session, "INSERT INTO beside(n) VALUES (10)")
    for _ in range(2):
        [notice] = run(session, "FLUSH").notices
        assert f"partition 0 of topic {name}, offset 1" in notice
        for reader, wanted in (("other", [(1,), (2,)]), ("ignoring", [(1,), (2,)]), ("v", [(1,), (10,)])):
            assert run(session, f"SELECT * FROM table({reader}) ORDER BY n").fetchall() == wanted
    (shown,) = run(session, "SHOW SOURCES").fetchall()
    assert shown[1] == "stalled"
    command = "ALTER VIEW v MODIFY QUERY SETTING recovery_policy = 'best_effort'"
    assert notice.endswith(f"To set such records aside and continue: {command}")
    run(session, command)
    assert rows(session, "SELECT * FROM table(v)") == [(1,), (10,), (2,)]
    letters = run(session, "SELECT source, `offset` FROM watersmeet.dead_letters").fetchall()
    assert letters == [("s", 1)] * 3
    run(session, "ALTER VIEW v MODIFY QUERY SETTING recovery_policy = 'strict'")
    produce(broker, name, b"{")
    assert len(run(session, "FLUSH").notices) == 1


def test_a_bad_message_ends_a_strict_query_that_runs(broker, topic, session):
    name = topic()
    run(session, stream(broker, name))
    with session.cursor() as cursor:
        cursor.execute("SELECT n FROM s SETTINGS recovery_policy = 'strict'")
        produce(broker, name, {"n": 1})
        session.flush()
        assert cursor.fetchall() == [(1,)]
        produce(broker, name, b"{")
        session.flush()
        with pytest.raises(Error, match=f"(?s)can't continue.*partition 0 of topic {name}, offset 1") as raised:
            cursor.fetchall()
        assert raised.value.condition == "SOURCE_STOPPED"


@pytest.mark.parametrize(
    ("statement", "condition", "words"),
    [
        ("VIEW v MODIFY QUERY SETTING recovery_policy = 'lax'", "INVALID_PARAMETER", "lax"),
        ("VIEW v MODIFY QUERY SETTING seek_to = 'earliest'", "FEATURE_NOT_SUPPORTED", "SETTING seek_to"),
        ("VIEW v MODIFY QUERY SETTING recovery_policy = 'strict'", "FEATURE_NOT_SUPPORTED", "recovery_policy of"),
        ("VIEW v MODIFY QUERY SETTING recovery_policy", "SYNTAX_ERROR", "syntax error"),
        ("VIEW w MODIFY QUERY SETTING recovery_policy = 'strict'", "UNDEFINED_RELATION", '"w"'),
    ],
)
def test_settings_of_views_that_are_not_altered(session, statement, condition, words):
    run(session, "CREATE STREAM s(n int)", "CREATE MATERIALIZED VIEW v AS SELECT n FROM s")
    with pytest.raises(Error, match=words) as raised:
        run(session, f"ALTER {statement}")
    assert raised.value.condition == condition
    assert raised.value.span is not None


def test_all_queries_of_a_stream_go_on_after_messages_expired_by_one_statement(broker, topic, session):
    name = topic()
    run(session, stream(broker, name), *(view(v, "SELECT n FROM s") for v in ("v", "w")))
    session.flush()
    produce(broker, name, *({"n": i, "text": ""} for i in range(3)))
    broker.delete_records(name, 0, 2)
    session.flush()
    (reason,) = [shown for found in run(session, "SHOW SOURCES").fetchall() for shown in found if "ALTER" in str(shown)]
    for statement in reason.split("To go on with what is there: ")[1].split("; "):
        run(session, statement)
    for known in ("v", "w"):
        assert rows(session, f"SELECT n FROM {known}") == [(2,)]


def test_one_column_of_texts_is_the_whole_message(broker, topic, session):
    name = topic()
    run(session, stream(broker, name, "raw string"), view("v", "SELECT raw FROM s"))
    produce(broker, name, b"any text", b'{"n": 1}')
    assert rows(session, "SELECT * FROM table(v)") == [("any text",), ('{"n": 1}',)]


def test_a_query_that_runs_reads_new_messages(broker, topic, session):
    name = topic()
    produce(broker, name, {"n": 1})
    run(session, stream(broker, name))
    with session.cursor() as cursor:
        cursor.execute("SELECT n FROM s LIMIT 1")
        produce(broker, name, {"n": 2})
        session.flush()
        assert cursor.fetchone()[0] == 2


def test_a_table_of_a_stream_is_what_its_topic_has_now(broker, topic, session):
    name = topic(2)
    produce(broker, name, *[{"n": n} for n in range(3)], key=b"k", headers=[("h", b"1")])
    produce(broker, name, *[{"n": n} for n in range(10, 13)], partition=1)
    run(session, stream(broker, name), "CREATE VIEW big AS SELECT n FROM s WHERE n > 1")

    def found(query):
        return sorted(run(session, query).fetchall(), key=repr)

    assert found("SELECT n FROM table(s)") == [(0,), (1,), (10,), (11,), (12,), (2,)]
    assert found("SELECT count() FROM table(s)") == [(6,)]
    assert found("SELECT count(), max(n), max(_tp_sn) FROM table(s) WHERE n < 12") == [(5, 11, 2)]
    assert found("SELECT n FROM table(s) SETTINGS seek_to = '2,1'") == [(11,), (12,), (2,)]
    assert found("SELECT n FROM table(s) SETTINGS shards = '1'") == [(10,), (11,), (12,)]
    assert found("SELECT n FROM table(s) SETTINGS seek_to = 'latest'") == []
    assert found("SELECT n FROM table(s) SETTINGS seek_to = '-1h', shards = '0'") == [(0,), (1,), (2,)]
    assert found("SELECT * EXCEPT (_tp_time) FROM table(s) WHERE n = 2") == [(2, "")]
    assert found("SELECT _tp_message_key, _tp_message_headers, _tp_shard, _tp_sn FROM table(s) WHERE n = 2") == [
        ("k", {"h": "1"}, 0, 2)
    ]
    assert found("SELECT n FROM table(s) ORDER BY n LIMIT 2") == [(0,), (1,)]
    assert found("SELECT a.n FROM table(s) AS a JOIN table(s) AS b ON a.n = b.n + 10") == [(10,), (11,), (12,)]
    assert found(
        "SELECT n FROM (SELECT n FROM table(s) SETTINGS shards = '0') UNION ALL SELECT n FROM table(s) WHERE n = 12"
    ) == [(0,), (1,), (12,), (2,)]
    assert found("SELECT n FROM table(big)") == [(10,), (11,), (12,), (2,)]
    produce(broker, name, {"n": 3})
    assert found("WITH x AS (SELECT n FROM table(s)) SELECT count() FROM x AS a JOIN x AS b ON a.n = b.n") == [(7,)]
    assert run(session, "SHOW JOBS").fetchall() == []


def test_what_a_topic_has_now_is_inserted_and_what_is_wrong_is_told(broker, topic, session):
    name = topic()
    produce(broker, name, {"n": 1}, b"{", {"n": 2})
    run(session, stream(broker, name), "CREATE STREAM kept(n int)", "INSERT INTO kept(n) SELECT n FROM table(s)")
    assert rows(session, "SELECT n FROM table(kept)") == [(1,), (2,)]
    cursor = run(session, "SELECT n FROM table(s)")
    assert "1 message is left out (the first: partition 0, offset 1:" in "".join(cursor.notices)
    for query, words in {
        "SELECT n FROM table(s) SETTINGS shards = '7'": "no partition 7",
        "SELECT n FROM table(s) SETTINGS seek_to = '1,2'": "2 offsets",
    }.items():
        with pytest.raises(Error, match=words):
            run(session, query)
    admin = broker.admin()
    admin.delete_topics([name])[name].result()
    with pytest.raises(Error, match=f'no topic "{name}"'):
        run(session, "SELECT n FROM table(s)")


def test_dropping_a_view_drops_what_it_reads_by_itself(broker, topic, session):
    run(session, stream(broker, topic()), view("v", "SELECT n FROM s"))
    with pytest.raises(Error, match="DEPENDENT_OBJECTS"):
        run(session, "DROP STREAM s")
    run(session, "DROP VIEW v", "DROP STREAM s")
    assert run(session, "SHOW STREAMS").fetchall() == []
    assert run(session, "SHOW JOBS").fetchall() == []


@pytest.mark.parametrize(
    ("settings", "condition", "words"),
    [
        ({"type": "pulsar"}, "FEATURE_NOT_SUPPORTED", "pulsar"),
        ({"type": "log"}, "FEATURE_NOT_SUPPORTED", "log"),
        ({"named_collection": "c"}, "UNDEFINED_OBJECT", 'named collection "c" does not exist'),
        (
            {"sharding_expr": "text"},
            "DATATYPE_MISMATCH",
            "sharding_expr must give a whole number, not character varying",
        ),
        ({"sharding_expr": "n / 2"}, "DATATYPE_MISMATCH", "sharding_expr must give a whole number, not double"),
        ({"message_key": "n"}, "DATATYPE_MISMATCH", "message_key must give a string, not integer"),
        ({"message_key": "other"}, "UNDEFINED_COLUMN", "other"),
        ({"message_key": "text ||"}, "SYNTAX_ERROR", ""),
        ({"message_key": "text, text"}, "SYNTAX_ERROR", ""),
        ({"data_format": "XML"}, "CONNECTOR_OPTION", "data_format"),
        ({"data_format": "RawBLOB"}, "CONNECTOR_OPTION", "one column"),
        ({"datafmt": "CSV"}, "CONNECTOR_OPTION", "datafmt"),
        ({"properties": "x"}, "CONNECTOR_OPTION", "properties"),
        ({"config_file": "/nowhere"}, "CONNECTOR_OPTION", "config_file"),
        ({"topic": ""}, "CONNECTOR_OPTION", "topic"),
        ({"subject_name_strategy": "any"}, "CONNECTOR_OPTION", "subject_name_strategy"),
        ({"format_csv_delimiter": "|"}, "CONNECTOR_OPTION", "format_csv_delimiter"),
        ({"data_format": "CSV", "format_csv_delimiter": "||"}, "CONNECTOR_OPTION", "delimiter"),
    ],
)
def test_settings_that_are_refused(tmp_path, settings, condition, words):
    class Nobody:
        bootstrap = "127.0.0.1:1"

    with (
        watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection,
        pytest.raises(Error) as raised,
    ):
        run(connection, stream(Nobody, settings.pop("topic", "t"), **settings))
    assert raised.value.condition == condition
    assert words in raised.value.message


def test_rows_are_inserted_as_messages_with_keys_and_times(broker, topic, session):
    name, now_ms = topic(), time.time_ns() // 1_000_000
    now = datetime.fromtimestamp(now_ms / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")
    run(
        session,
        stream(broker, name, "n int, at datetime64(3), d decimal(10, 2)"),
        "CREATE STREAM given(n int)",
        f"INSERT INTO s(n, at, d, _tp_message_key, _tp_time) VALUES (1, '2024-01-31 12:00:00.5', 1.10, 'k', '{now}')",
        "INSERT INTO given(n) VALUES (2), (3)",
        "INSERT INTO s(n) SELECT n FROM table(given) ORDER BY n",
    )
    found = consumed(broker, name, 3)
    assert found[0] == (b"k", {"n": 1, "at": "2024-01-31 12:00:00.500000", "d": 1.10}, now_ms)
    assert [(key, value["n"]) for key, value, _ in found[1:]] == [(None, 2), (None, 3)]


def test_keys_and_partitions_are_computed_from_rows(broker, topic, session):
    first, second = topic(3), topic(3)
    exprs = {"message_key": "lower(text)", "sharding_expr": "n + 1"}
    run(
        session,
        stream(broker, first, **exprs),
        stream(broker, second, **exprs).replace("STREAM s", "STREAM out"),
        "CREATE STREAM given(n int, text string)",
        "CREATE MATERIALIZED VIEW v INTO out AS SELECT n, text, '{\"h\": 1}'::json AS _tp_message_headers FROM given",
        "CREATE MATERIALIZED VIEW w INTO out AS SELECT n + 10 AS n, text FROM given",
        "INSERT INTO s(n, text) VALUES (0, 'A'), (1, 'b'), (-1, 'C'), (-2, 'D')",
        "INSERT INTO given(n, text) VALUES (0, 'A'), (1, 'b')",
    )
    asked = "SELECT n, text, _tp_message_key, _tp_shard FROM table({}) ORDER BY n"
    assert run(session, asked.format("s")).fetchall() == [
        (-2, "D", "d", (2**32 - 1) % 3),
        (-1, "C", "c", 0),
        (0, "A", "a", 1),
        (1, "b", "b", 2),
    ]
    session.flush()
    consumed(broker, second, 4)
    assert run(session, asked.format("out")).fetchall() == [
        (0, "A", "a", 1),
        (1, "b", "b", 2),
        (10, "A", "a", 2),
        (11, "b", "b", 0),
    ]
    with pytest.raises(Error, match='writing column "_tp_message_key"'):
        run(session, "INSERT INTO s(n, _tp_message_key) VALUES (1, 'k')")
    with pytest.raises(Error, match='writing column "_tp_message_key"'):
        run(session, "CREATE MATERIALIZED VIEW x INTO out AS SELECT n, text, text AS _tp_message_key FROM given")
    with pytest.raises(Error, match=r'the view has no column "text", which message_key of .* reads'):
        run(session, "CREATE MATERIALIZED VIEW x INTO out AS SELECT n FROM given")


def test_expressions_of_messages_that_fail_and_those_that_choose_nothing(broker, topic, session):
    name = topic(2)
    run(
        session,
        stream(
            broker, name, "n nullable(int), text string", sharding_expr="n", message_key="to_string(to_int32(text))"
        ),
    )
    with pytest.raises(Error, match=r"setting message_key .* can't be computed"):
        run(session, "INSERT INTO s(n, text) VALUES (0, 'A')")
    run(session, "INSERT INTO s(n, text) VALUES (NULL, '07')")
    assert run(session, "SELECT n, _tp_message_key FROM table(s)").fetchall() == [(None, "7")]
    with pytest.raises(Error, match="message_key can't be combined with the column _tp_message_key"):
        run(
            session,
            stream(broker, name, "n int, _tp_message_key string", message_key="to_string(n)").replace("s(", "t("),
        )
    run(session, stream(broker, name, sharding_expr="rand()").replace("s(", "u("))


def test_headers_are_written(broker, topic, session):
    first, second = topic(), topic()
    run(
        session,
        stream(broker, first),
        stream(broker, second).replace("STREAM s", "STREAM out"),
        "CREATE MATERIALIZED VIEW v INTO out AS SELECT n, text, _tp_message_headers FROM s",
        """INSERT INTO s(n, _tp_message_headers)
        VALUES (1, '{"a": "x", "b.c": 2, "none": null}'), (2, NULL), (3, '{}')""",
    )
    wanted = [(1, {"a": "x", "b.c": "2", "none": None}), (2, None), (3, None)]
    written = "SELECT n, _tp_message_headers FROM table({}) ORDER BY n"
    assert run(session, written.format("s")).fetchall() == wanted
    session.flush()
    consumed(broker, second, 3)
    assert run(session, written.format("out")).fetchall() == wanted
    with pytest.raises(Error, match=r"headers can't be \[1\]"):
        run(session, "INSERT INTO s(n, _tp_message_headers) VALUES (1, '[1]')")


def test_a_view_into_a_stream_is_delivered_once_and_goes_on_after_a_restart(broker, topic, tmp_path):
    first, second = topic(), topic()
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        run(
            connection,
            stream(broker, first),
            stream(broker, second, "n int, double_n int64").replace("STREAM s", "STREAM out"),
            "CREATE MATERIALIZED VIEW v INTO out AS SELECT n, n * 2 AS double_n, text AS _tp_message_key FROM s",
            "CREATE MATERIALIZED VIEW back AS SELECT n, double_n FROM out SETTINGS seek_to = 'earliest'",
        )
        produce(broker, first, {"n": 1, "text": "a"}, {"n": 2, "text": "b"})
        connection.flush()
        assert [m[:2] for m in consumed(broker, second, 2)] == [
            (b"a", {"n": 1, "double_n": 2}),
            (b"b", {"n": 2, "double_n": 4}),
        ]
        assert rows(connection, "SELECT * FROM table(back)") == [(1, 2), (2, 4)]
    produce(broker, first, {"n": 3, "text": "c"})
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        connection.flush()
        assert [m[0] for m in consumed(broker, second, 3)] == [b"a", b"b", b"c"]
        run(connection, "DROP VIEW v")


def test_a_view_into_a_stream_gives_values_in_the_types_of_the_stream(broker, topic, session):
    first, second = topic(), topic()
    run(
        session,
        stream(broker, first),
        stream(broker, second, "n decimal(10, 2), text string").replace("STREAM s", "STREAM out"),
        "CREATE MATERIALIZED VIEW v INTO out AS SELECT n / 8 AS n, text FROM s",
    )
    produce(broker, first, {"n": 1, "text": "a"}, {"n": 16, "text": "b"})
    session.flush()
    assert [m[1] for m in consumed(broker, second, 2)] == [{"n": 0.13, "text": "a"}, {"n": 2.0, "text": "b"}]


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("SELECT n, text FROM s", "FEATURE_NOT_SUPPORTED"),
        ("SELECT n AS other FROM t", "UNDEFINED_COLUMN"),
        ("SELECT n, 1 AS _tp_shard FROM t", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_views_into_a_stream_that_are_refused(broker, topic, session, query, condition):
    run(session, stream(broker, topic()), "CREATE STREAM t(n int)")
    with pytest.raises(Error) as raised:
        run(session, f"CREATE MATERIALIZED VIEW v INTO s AS {query}")
    assert raised.value.condition == condition


def test_the_subject_of_the_schema_of_values():
    settings = {"brokers": "b:1", "topic": "t", "data_format": "Avro", "kafka_schema_registry_url": "http://r"}
    for added, subject in (({}, "t-value"), ({"schema_subject_name": "orders"}, "orders")):
        _, form = kafka_connector(settings | added, (Field("a", VARCHAR), Field("b", VARCHAR)))
        assert subject_of("t", "value", form.options) == subject
        assert subject_of("t", "key", form.options) == "t-key"


def test_the_delimiter_of_csv():
    fields = (Field("a", VARCHAR), Field("b", VARCHAR))
    settings = {"brokers": "b:1", "topic": "t", "data_format": "CSV", "format_csv_delimiter": "|"}
    _, form = kafka_connector(settings, fields)
    assert CsvReader(fields, form.options)._dialect.delimiter == "|"
