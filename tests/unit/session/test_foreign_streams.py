"""SQLstream's servers and foreign streams, over topics of Kafka and files."""

import datetime as dt
import gzip
import json
import os
import time

import fastavro
import pytest
from confluent_kafka import Consumer, Producer

import watersmeet
from watersmeet.errors import Error

OF_JSON = (
    "CREATE FOREIGN STREAM s (a INTEGER) SERVER KAFKA10_SERVER OPTIONS (TOPIC 't', SEED_BROKERS 'h:1', PARSER 'JSON', "
)
TWO = '"n" INTEGER, "t" VARCHAR(9)'
OF_FILES = "CREATE FOREIGN STREAM s "
OF_CSV = OF_FILES + "(a INTEGER) SERVER FILE_SERVER OPTIONS (DIRECTORY '/', PARSER 'CSV', "
TO_CSV = OF_CSV.replace("'/'", "'/tmp'").replace("PARSER", "FORMATTER")


@pytest.fixture
def session(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="sqlstream", runtime="inprocess") as connection:
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
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, partition=partition, **message)
    producer.flush()


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


def options(**given):
    return ", ".join(f"\"{name}\" '{value}'" for name, value in given.items())


def stream(broker, topic, columns='"id" BIGINT, "name" VARCHAR(20)', server="KAFKA10_SERVER", **more):
    given = {"PARSER": "JSON", "SEED_BROKERS": broker.bootstrap, "TOPIC": topic, **more}
    return f'CREATE FOREIGN STREAM "s" ({columns}) SERVER {server} OPTIONS ({options(**given)})'


def view(name, query):
    return f'CREATE MATERIALIZED VIEW "{name}" AS {query}'


def test_a_view_reads_messages_from_the_starting_time_on(broker, topic, session):
    name = topic(2)
    produce(broker, name, {"id": 1, "name": "a"})
    produce(broker, name, {"id": 2}, partition=1)
    run(
        session,
        stream(broker, name, STARTING_TIME="EARLIEST"),
        stream(broker, name).replace('"s"', '"latest"'),
        stream(broker, name, STARTING_OFFSET="1", PARTITION="0").replace('"s"', '"second"'),
        view("all", 'SELECT STREAM "id", "name" FROM "s"'),
        view("new", 'SELECT STREAM "id" FROM "latest"'),
        view("one", 'SELECT STREAM "id" FROM "second"'),
    )
    produce(broker, name, {"id": 3})
    assert rows(session, 'SELECT "id", "name" FROM "all"') == [(1, "a"), (2, None), (3, None)]
    assert rows(session, 'SELECT "id" FROM "new"') == [(3,)]
    assert rows(session, 'SELECT "id" FROM "one"') == [(3,)]


def test_a_query_says_where_reading_begins(broker, topic, session):
    name = topic()
    produce(broker, name, *[{"id": n} for n in range(4)])
    query = 'SELECT max("at") AS STARTING_OFFSET FROM "places"'
    run(
        session,
        'CREATE TABLE "places" ("at" BIGINT)',
        stream(broker, name, OPTIONS_QUERY=query, STARTING_TIME="EARLIEST"),
        view("whole", 'SELECT STREAM "id" FROM "s"'),
        'INSERT INTO "places" VALUES (2)',
        view("later", 'SELECT STREAM "id" FROM "s"'),
    )
    assert rows(session, 'SELECT "id" FROM "whole"') == [(0,), (1,), (2,), (3,)]
    assert rows(session, 'SELECT "id" FROM "later"') == [(2,), (3,)]
    run(session, 'INSERT INTO "places" VALUES (1)', 'DELETE FROM "places"', 'DROP TABLE "places"')
    assert rows(session, 'SELECT "id" FROM "later"') == [(2,), (3,)]
    with pytest.raises(Error, match="UNDEFINED_RELATION"):
        run(session, view("third", 'SELECT STREAM "id" FROM "s"'))


#: A view of all that a stream gave, as it is in another dialect.
HISTORY = "SET dialect = 'risingwave'; CREATE MATERIALIZED VIEW \"{}\" AS SELECT n FROM s"


def counted(connection, name):
    return run(connection, f'SELECT "n", count(*) FROM "{name}" GROUP BY "n" ORDER BY "n"').fetchall()


def test_files_are_read_so_many_times_more(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("1,a\n2,b\n")
    (folder / "b.csv").write_text("3,c\n")
    made = view("v", 'SELECT STREAM "n", "t" FROM "s"')
    for number in range(2):
        with watersmeet.connect(tmp_path / "db", dialect="sqlstream", runtime="inprocess") as connection:
            if not number:
                run(connection, of_files(folder, TWO, PARSER="CSV", REPEAT=2), made)
            else:
                (folder / "c.csv").write_text("4,d\n")  # the files are static
                run(connection, HISTORY.format("later"), "SET dialect = 'sqlstream'")
                assert counted(connection, "later") == [(1, 3), (2, 3), (3, 3)]
            connection.flush()
            assert counted(connection, "v") == [(1, 3), (2, 3), (3, 3)]


def test_files_are_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("watersmeet.connectors.files.source._AGAIN_ROWS", 2)
    monkeypatch.setattr("watersmeet.connectors.files.source.MAX_SLICES", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    for name, first in (("a", 0), ("b", 5)):
        (folder / f"{name}.csv").write_text("".join(f"{first + n},x\n" for n in range(5)))
    made = view("v", 'SELECT STREAM "n", "t" FROM "s"')
    times = 0
    for number in range(3):
        with watersmeet.connect(tmp_path / "db", dialect="sqlstream", runtime="inprocess") as connection:
            if not number:
                run(connection, of_files(folder, TWO, PARSER="CSV", REPEAT="FOREVER"), made)
            for _ in range(2):
                connection.flush()
                found = counted(connection, "v")
                assert len({count for _, count in found}) == 1, "whole times"
                assert found[0][1] > times
                times = found[0][1]
            run(connection, HISTORY.format(f"later {number}"), "SET dialect = 'sqlstream'")
            assert counted(connection, f"later {number}") == [(n, times) for n in range(10)]


def test_a_query_gives_options_of_files(tmp_path, session):
    (tmp_path / "a.csv").write_text("1;x\n")
    query = "SELECT '';'' AS SEPARATOR, CAST(NULL AS VARCHAR(9)) AS FILENAME_PATTERN"
    run(
        session,
        f'CREATE FOREIGN STREAM "s" ("n" INTEGER, "t" VARCHAR(9)) SERVER FILE_SERVER OPTIONS '
        f"(PARSER 'CSV', DIRECTORY '{tmp_path}', STATIC_FILES 'true', OPTIONS_QUERY '{query}')",
        view("v", 'SELECT STREAM "n", "t" FROM "s"'),
    )
    assert rows(session, 'SELECT "n", "t" FROM "v"') == [(1, "x")]


def test_a_stream_inherits_the_options_of_its_server(broker, topic, session):
    name = topic()
    produce(broker, name, {"id": 1})
    run(
        session,
        f"CREATE SERVER \"k\" TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA "
        f"OPTIONS ({options(SEED_BROKERS=broker.bootstrap, PARSER='JSON', TOPIC='another', STARTING_TIME='EARLIEST')})",
        f'CREATE FOREIGN STREAM "s" ("id" BIGINT) SERVER "k" OPTIONS (TOPIC \'{name}\')',
        view("v", 'SELECT STREAM "id" FROM "s"'),
    )
    assert rows(session, 'SELECT "id" FROM "v"') == [(1,)]
    with pytest.raises(Error, match="DEPENDENT_OBJECTS"):
        run(session, 'DROP SERVER "k"')
    run(session, 'DROP MATERIALIZED VIEW "v"', 'DROP FOREIGN STREAM "s"', 'DROP SERVER "k"')


def test_paths_and_provenance_columns(broker, topic, session):
    name, now_ms = topic(), time.time_ns() // 1_000_000
    columns = (
        '"number" BIGINT, SQLSTREAM_PROV_KAFKA_PARTITION INTEGER, SQLSTREAM_PROV_KAFKA_OFFSET BIGINT, '
        "SQLSTREAM_PROV_KAFKA_KEY VARBINARY(10), SQLSTREAM_PROV_KAFKA_TIMESTAMP TIMESTAMP"
    )
    run(
        session,
        stream(broker, name, columns, ROW_PATH="$", number_PATH="$.id"),
        view("v", 'SELECT STREAM * FROM "s"'),
        view("times", 'SELECT STREAM "number" FROM "s" WHERE SQLSTREAM_PROV_KAFKA_TIMESTAMP = ROWTIME'),
    )
    produce(broker, name, {"id": 7}, key=b"k", timestamp=now_ms)
    found = rows(
        session,
        'SELECT "number", SQLSTREAM_PROV_KAFKA_PARTITION, SQLSTREAM_PROV_KAFKA_OFFSET, '
        'SQLSTREAM_PROV_KAFKA_KEY FROM "v"',
    )
    assert [(*row[:3], bytes(row[3])) for row in found] == [(7, 0, 0, b"k")]
    assert rows(session, 'SELECT "number" FROM "times"') == []


def test_rows_and_columns_are_at_paths_in_json(broker, topic, session):
    name = topic()
    produce(broker, name, {"sent": [{"id": 1, "of": {"who": {"name": "a"}}}, {"id": 2, "x": [{"nick": "b"}]}]})
    produce(broker, name, b'{"sent": []} {"sent": {"id": 3}}')
    columns = '"id" BIGINT, "name" VARCHAR(20), "nick" VARCHAR(20)'
    paths = {"ROW_PATH": "$.sent[*]", "id_PATH": "$.sent[*].id", "name_PATH": "$.of.who.name"}
    run(
        session,
        stream(broker, name, columns, STARTING_TIME="EARLIEST", **paths),
        view("v", 'SELECT STREAM "id", "name", "nick" FROM "s"'),
    )
    assert rows(session, 'SELECT "id", "name", "nick" FROM "v"') == [(1, "a", None), (2, None, "b")]


def test_messages_in_xml(broker, topic, session):
    name = topic()
    produce(broker, name, b"<orders><order no='1'><who>a</who></order><order no='2'/></orders>", b"<order")
    given = {"PARSER": "XML", "PARSER_XML_ROW_TAGS": "/orders/order", "id_XPATH": "/orders/order/@no"}
    run(
        session,
        stream(broker, name, STARTING_TIME="EARLIEST", name_XPATH="who", **given),
        view("v", 'SELECT STREAM "id", "name" FROM "s"'),
    )
    assert rows(session, 'SELECT "id", "name" FROM "v"') == [(1, "a"), (2, None)]
    ((reason, text),) = run(session, "SELECT reason, value FROM watersmeet.dead_letters").fetchall()
    assert reason.startswith("xml: ")
    assert "<order" in (text if isinstance(text, str) else bytes(text).decode())


def test_the_time_of_messages_is_the_rowtime_if_it_has_the_watermark(broker, topic, session):
    name, now_ms = topic(), time.time_ns() // 1_000_000
    columns = (
        '"id" BIGINT, SQLSTREAM_PROV_KAFKA_TIMESTAMP TIMESTAMP, WATERMARK FOR SQLSTREAM_PROV_KAFKA_TIMESTAMP '
        "AS SQLSTREAM_PROV_KAFKA_TIMESTAMP - INTERVAL '5' SECOND"
    )
    run(
        session,
        stream(broker, name, columns),
        view("v", 'SELECT STREAM "id" FROM "s" WHERE ROWTIME = SQLSTREAM_PROV_KAFKA_TIMESTAMP'),
    )
    produce(broker, name, {"id": 1}, timestamp=now_ms)
    assert rows(session, 'SELECT "id" FROM "v"') == [(1,)]


def test_streams_are_joined_by_the_time_of_arrival_and_pumped_on(broker, topic, session):
    first, second = topic(), topic()
    run(
        session,
        stream(broker, first),
        stream(broker, second).replace('"s"', '"t"'),
        'CREATE STREAM "out" ("id" BIGINT, "name" VARCHAR(20))',
        'CREATE PUMP "p" STARTED AS INSERT INTO "out" SELECT STREAM "s"."id", "t"."name" FROM "s" '
        'JOIN "t" OVER (RANGE INTERVAL \'1\' HOUR PRECEDING) ON "s"."id" = "t"."id"',
        view("v", 'SELECT STREAM "id", "name" FROM "out"'),
    )
    produce(broker, second, {"id": 1, "name": "x"})
    session.flush()
    produce(broker, first, {"id": 1})
    session.flush()
    produce(broker, second, {"id": 2})  # the row comes out once the clocks of both streams have passed it
    assert rows(session, 'SELECT "id", "name" FROM "v"') == [(1, "x")]


def test_files_are_read(tmp_path, session):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a-1.csv").write_text("1;x\n2;y\n")
    (tmp_path / "in" / "b.csv").write_text("3;z\n")
    given = options(PARSER="CSV", DIRECTORY=tmp_path / "in", FILENAME_PATTERN=r"a-.*\.csv", SEPARATOR=";")
    run(
        session,
        f'CREATE FOREIGN STREAM "s" ("id" BIGINT, "name" VARCHAR(20)) SERVER FILE_SERVER OPTIONS ({given})',
        view("v", 'SELECT STREAM "id", "name" FROM "s"'),
    )
    assert rows(session, 'SELECT "id", "name" FROM "v"') == [(1, "x"), (2, "y")]


def of_files(folder, columns='"id" BIGINT, "name" VARCHAR(20)', **more):
    given = {"DIRECTORY": folder, "STATIC_FILES": "true", **more}
    return f'CREATE FOREIGN STREAM "s" ({columns}) SERVER FILE_SERVER OPTIONS ({options(**given)})'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


PLACE = "SQLSTREAM_PROV_FILE_SOURCE_FILE VARCHAR(99), SQLSTREAM_PROV_FILE_LINE_NUMBER BIGINT"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_know_their_files_and_lines(folder, session, suffix):
    write = gzip.open if suffix else open
    with write(folder / f"a.csv{suffix}", "wt") as file:
        file.write('id,name\n1,"x\ny"\n\n2,z\nno\n3,w\n')
    columns = f'"id" BIGINT, {PLACE}, "name" VARCHAR(9), SQLSTREAM_PROV_FILE_MODIFIED_TIME TIMESTAMP'
    os.utime(folder / f"a.csv{suffix}", ns=(0, 1_700_000_000_123_456_789))
    run(
        session,
        of_files(folder, columns, PARSER="CSV", SKIP_HEADER="true"),
        view("v", 'SELECT STREAM * FROM "s"'),
    )
    names = "SQLSTREAM_PROV_FILE_SOURCE_FILE, SQLSTREAM_PROV_FILE_LINE_NUMBER, SQLSTREAM_PROV_FILE_MODIFIED_TIME"
    when = dt.datetime(2023, 11, 14, 22, 13, 20, 123000)
    name = f"a.csv{suffix}"
    found = rows(session, f'SELECT "id", "name", {names} FROM "v"')
    assert found == [(1, "x\ny", name, 2, when), (2, "z", name, 5, when), (3, "w", name, 7, when)]


def test_json_files_have_rows_and_columns_at_paths(folder, session):
    (folder / "a.json").write_text(
        '{"sent": [{"id": 1, "of": {"who": "a"}}, {"id": "x", "deep": [{"name": "n"}]}]}\n\n'
        '{"sent": 5}\n{"sent": {"id": 3}}\n'
    )
    given = {"ROW_PATH": "$.sent[*]", "PARSER": "JSON", "who_PATH": "$.of.who"}
    columns = f'"id" BIGINT, "who" VARCHAR(9), "name" VARCHAR(9), {PLACE}'
    run(session, of_files(folder, columns, **given), view("v", 'SELECT STREAM * FROM "s"'))
    found = rows(session, 'SELECT "id", "who", "name", SQLSTREAM_PROV_FILE_LINE_NUMBER FROM "v"')
    assert found == [(1, "a", None, 1), (None, None, "n", 1)]


def test_xml_files(folder, session):
    (folder / "a.xml").write_text("<o><r id='1'><name>x</name></r><r id='2'/></o>")
    with gzip.open(folder / "b.xml.gz", "wt") as file:
        file.write("<o><r id='3'/></o>")
    (folder / "c.xml").write_text("<o><r id='4'>")
    given = {"PARSER": "XML", "PARSER_XML_ROW_TAGS": "/o/r", "PARSER_XML_USE_ATTRIBUTES": "true"}
    columns = f'"id" BIGINT, "name" VARCHAR(9), {PLACE}'
    run(session, of_files(folder, columns, **given), view("v", 'SELECT STREAM * FROM "s"'))
    found = rows(session, 'SELECT "id", "name", SQLSTREAM_PROV_FILE_SOURCE_FILE FROM "v"')
    assert found == [(1, "x", "a.xml"), (2, None, "a.xml"), (3, None, "b.xml.gz")]
    ((file, reason),) = run(session, "SELECT file, reason FROM watersmeet.dead_letters").fetchall()
    assert (file, reason.split(":")[0]) == ("c.xml", "damaged")


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("kind", ["long", {"type": "map", "values": "long"}])  # Polars reads no maps
def test_avro_files(folder, session, codec, kind):
    fields = [
        {"name": "number", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "more", "type": kind},
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    more = 1 if kind == "long" else {"k": 1}
    records = [{"number": n, "name": "x" if n % 2 else None, "more": more} for n in range(5000)]
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, records, codec=codec, sync_interval=1000)
    (folder / "b.avro").write_bytes(b"Obj\x01 and no more")
    run(
        session,
        of_files(folder, PARSER="AVRO", id_PATH="$.number"),
        view("v", 'SELECT STREAM "id", "name" FROM "s"'),
    )
    assert rows(session, 'SELECT COUNT(*), SUM("id"), COUNT("name") FROM "v"') == [(5000, 12497500, 2500)]
    ((file, reason),) = run(session, "SELECT file, reason FROM watersmeet.dead_letters").fetchall()
    assert (file, reason.split(":")[0]) == ("b.avro", "damaged")


def to_files(folder, columns='"id" BIGINT, "name" VARCHAR(20)', **more):
    given = {"DIRECTORY": folder, "FILE_ROTATION_TIME": "1h", "FORMATTER_INCLUDE_ROWTIME": "false", **more}
    return f'CREATE FOREIGN STREAM "f" ({columns}) SERVER FILE_SERVER OPTIONS ({options(**given)})'


PUMP = 'CREATE PUMP "p" STARTED AS INSERT INTO "f" SELECT STREAM "id", "name" FROM "in"'


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"FORMATTER": "CSV", "SEPARATOR": "|", "WRITE_HEADER": "true"}, "id|name\n1|a\n2|\n3|c\n"),
        ({"FORMATTER": "JSON"}, '{"id":1,"name":"a"}\n{"id":2,"name":null}\n{"id":3,"name":"c"}\n'),
        (
            {"FORMATTER": "XML", "DATA_ELEMENTS": "all", "ROW_ELEMENTS": "one", "id_ELEMENTS": "no"},
            (
                '<?xml version="1.0" encoding="UTF-8"?>\n<all>\n<one><no>1</no><name>a</name></one>\n'
                "<one><no>2</no></one>\n<one><no>3</no><name>c</name></one>\n</all>\n"
            ),
        ),
    ],
)
def test_a_pump_writes_files_that_get_their_names_when_it_is_stopped(folder, session, more, expected):
    run(
        session,
        'CREATE STREAM "in" ("id" BIGINT, "name" VARCHAR(20))',
        to_files(folder, FILENAME_PREFIX="o-", FILENAME_SUFFIX=".txt", FILENAME_DATE_FORMAT="yyyyMMdd-HH", **more),
        PUMP,
    )
    insert = 'INSERT INTO "in" (ROWTIME, "id", "name") VALUES (TIMESTAMP \'2024-05-01 10:00:0'
    run(session, f"{insert}1', 1, 'a')", f"{insert}2', 2, NULL)", f"{insert}3', 3, 'c')", 'ALTER PUMP "p" STOP')
    (made,) = [f for f in folder.iterdir() if f.is_file()]
    assert (made.name, made.read_text()) == ("o-20240501-10.txt", expected)


def test_files_that_a_pump_wrote_are_read_again(tmp_path, folder):
    """Over several runs of the database, in Avro: each row is in one file."""
    for number in range(3):
        with watersmeet.connect(tmp_path / "db", dialect="sqlstream", runtime="inprocess") as session:
            if not number:
                run(
                    session,
                    'CREATE STREAM "in" ("id" BIGINT, "name" VARCHAR(20))',
                    to_files(folder, FORMATTER="AVRO", FILENAME_SUFFIX=".avro"),
                    PUMP,
                )
            run(session, f'INSERT INTO "in" ("id", "name") VALUES ({number}, \'x\')')
            session.flush()
            if number == 2:
                run(session, 'ALTER PUMP "p" STOP')
    with watersmeet.connect(tmp_path / "db2", dialect="sqlstream", runtime="inprocess") as session:
        run(session, of_files(folder, PARSER="AVRO"), view("v", 'SELECT STREAM "id", "name" FROM "s"'))
        assert rows(session, 'SELECT "id", "name" FROM "v"') == [(0, "x"), (1, "x"), (2, "x")]


def test_files_that_are_written_are_neither_read_nor_inserted_into(folder, session):
    run(session, to_files(folder, FORMATTER="CSV"))
    with pytest.raises(Error, match="reading") as refused:
        run(session, view("v", 'SELECT STREAM "id" FROM "f"'))
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"
    with pytest.raises(Error, match="pumps") as refused:
        run(session, 'INSERT INTO "f" ("id") VALUES (1)')
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"


def test_messages_are_written_in_xml(broker, topic, session):
    name = topic()
    given = {"FORMATTER": "XML", "PARSER": "XML", "STARTING_TIME": "EARLIEST", "FORMATTER_INCLUDE_ROWTIME": "false"}
    run(
        session,
        stream(broker, name, **given),
        view("v", 'SELECT STREAM "id", "name" FROM "s"'),
        'INSERT INTO "s" ("id", "name") VALUES (1, \'<a & b>\'), (2, NULL)',
    )
    assert rows(session, 'SELECT "id", "name" FROM "v"') == [(1, "<a & b>"), (2, None)]


@pytest.mark.parametrize(
    ("statement", "condition", "words"),
    [
        ("CREATE SERVER s TYPE 'MQTT' FOREIGN DATA WRAPPER ECDA", "FEATURE_NOT_SUPPORTED", "MQTT"),
        ("CREATE SERVER s TYPE 'MQTT' FOREIGN DATA WRAPPER ECDA", "FEATURE_NOT_SUPPORTED", "MQTT"),
        ("CREATE SERVER s TYPE 'KAFKA11' FOREIGN DATA WRAPPER ECDA", "CONNECTOR_OPTION", "KAFKA11"),
        ("CREATE FOREIGN STREAM s (a INTEGER) SERVER MQTT_SERVER", "FEATURE_NOT_SUPPORTED", "MQTT_SERVER"),
        ("CREATE FOREIGN STREAM s (a INTEGER) SERVER nobody", "UNDEFINED_RELATION", "NOBODY"),
        ("CREATE FOREIGN STREAM s (a INTEGER) SERVER KAFKA10_SERVER OPTIONS (TOPIC 't')", "CONNECTOR_OPTION", "SEED"),
        (
            "CREATE FOREIGN STREAM s (a INTEGER) SERVER KAFKA10_SERVER OPTIONS (TOPIC 't', SEED_BROKERS 'h:1')",
            "CONNECTOR_OPTION",
            "PARSER",
        ),
        (
            OF_JSON + "\"A_PATH\" '$.a[*].b')",
            "FEATURE_NOT_SUPPORTED",
            "$.a[*].b",
        ),
        (
            OF_JSON.replace("'JSON'", "'XML'") + "\"A_XPATH\" 'a[b]')",
            "FEATURE_NOT_SUPPORTED",
            "a[b]",
        ),
        (
            OF_JSON + "STARTING_TME 'LATEST')",
            "CONNECTOR_OPTION",
            "STARTING_TME",
        ),
        (OF_JSON + "OPTIONS_QUERY 'SELECT 1 AS A')", "CONNECTOR_OPTION", '"A"'),
        (
            OF_JSON + "OPTIONS_QUERY 'SELECT * FROM (VALUES (1), (2)) AS v(STARTING_OFFSET)')",
            "CONNECTOR_OPTION",
            "2 rows",
        ),
        (OF_JSON + "OPTIONS_QUERY 'SELECT * FROM nowhere')", "UNDEFINED_RELATION", "NOWHERE"),
        (
            OF_FILES + "(a INTEGER) SERVER FILE_SERVER OPTIONS (DIRECTORY '/', PARSER 'TEXT')",
            "FEATURE_NOT_SUPPORTED",
            "TEXT",
        ),
        (TO_CSV + "FILENAME_PREFIX 'a')", "CONNECTOR_OPTION", "FILE_ROTATION_TIME"),
        (TO_CSV + "FILE_ROTATION_TIME '5 weeks')", "CONNECTOR_OPTION", "5 weeks"),
        (TO_CSV + "FILE_ROTATION_SIZE '1M', FILENAME_PREFIX 'a/b')", "CONNECTOR_OPTION", "FILENAME_PREFIX"),
        (TO_CSV + "FILE_ROTATION_SIZE '1M', FILE_ROTATION_WATERMARK_COLUMN 'B')", "CONNECTOR_OPTION", '"B"'),
        (TO_CSV + "FILE_ROTATION_SIZE '1M', PARSER 'CSV')", "CONNECTOR_OPTION", "PARSER"),
        (TO_CSV + "FILE_ROTATION_SIZE '1M', ORIGINAL_FILENAME 'a/b')", "CONNECTOR_OPTION", "ORIGINAL_FILENAME"),
        (TO_CSV + "FILE_ROTATION_SIZE '1M', ORIGINAL_FILENAME '..')", "CONNECTOR_OPTION", "ORIGINAL_FILENAME"),
        (OF_CSV + "REPEAT 'FOREVER')", "CONNECTOR_OPTION", "REPEAT"),
        (OF_CSV + "STATIC_FILES 'true', REPEAT 'often')", "CONNECTOR_OPTION", "REPEAT"),
        (OF_CSV + "FILENAME_PATTERN '(')", "CONNECTOR_OPTION", "name_regex"),
        (
            OF_CSV + "FILENAME_PATTERN '.*', SORT_BY_TIMESTAMP_IN_FILENAME 'true')",
            "CONNECTOR_OPTION",
            "SORT_BY_TIMESTAMP",
        ),
        (
            OF_CSV + "FILENAME_PATTERN '(.*)', SORT_BY_TIMESTAMP_IN_FILENAME 'true', FILENAME_DATE_FORMAT 'yyyy-QQ')",
            "CONNECTOR_OPTION",
            "yyyy-QQ",
        ),
        (
            OF_CSV.replace("a INTEGER", "SQLSTREAM_PROV_FILE_LINE_NUMBER VARCHAR(9)") + "REPEAT '0')",
            "DATATYPE_MISMATCH",
            "LINE",
        ),
        (
            OF_CSV.replace("a INTEGER", "SQLSTREAM_PROV_FILE_LINE BIGINT") + "REPEAT '0')",
            "UNDEFINED_COLUMN",
            "FILE_LINE",
        ),
    ],
)
def test_what_is_refused(session, statement, condition, words):
    with pytest.raises(Error) as raised:
        run(session, statement)
    assert raised.value.condition == condition
    assert words in raised.value.message


def test_passwords_are_hidden(session):
    run(
        session,
        "CREATE SERVER k TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA OPTIONS (\"sasl.password\" 'hush', TOPIC 't')",
    )
    text = run(session, "SHOW CREATE SERVER k").fetchall()[0][1]
    assert "hush" not in text
    assert "'t'" in text


def test_pumps_write_topics_until_they_are_stopped(broker, topic, session):
    name = topic()
    run(
        session,
        'CREATE STREAM "in" ("id" BIGINT)',
        f'CREATE FOREIGN STREAM "out" ("id" BIGINT, "twice" BIGINT) SERVER KAFKA10_SERVER '
        f"OPTIONS ({options(FORMATTER='JSON', FORMATTER_INCLUDE_ROWTIME='false')}, "
        f"{options(SEED_BROKERS=broker.bootstrap, TOPIC=name)})",
        'CREATE PUMP "p" STARTED AS INSERT INTO "out" ("id", "twice") SELECT STREAM "id", "id" * 2 FROM "in"',
        'INSERT INTO "in" ("id") VALUES (1), (2)',
        'ALTER PUMP "p" STOP',
        'INSERT INTO "in" ("id") VALUES (3)',
        'ALTER PUMP "p" START',
        'INSERT INTO "in" ("id") VALUES (4)',
        'ALTER PUMP "p" STOP',
    )
    assert [m[1] for m in consumed(broker, name, 3)] == [{"id": n, "twice": 2 * n} for n in (1, 2, 4)]


def test_rows_are_inserted_as_messages_with_their_rowtime(broker, topic, session):
    name = topic()
    run(session, stream(broker, name), 'INSERT INTO "s" ("id", "name") VALUES (1, \'a\')')
    ((_, value, _),) = consumed(broker, name, 1)
    assert (value["id"], value["name"]) == (1, "a")
    assert value["ROWTIME"]


def test_texts_are_cut_to_the_lengths_of_their_columns(folder, session):
    (folder / "a.json").write_text('{"k": {"id": 1, "name": "abcdef"}}\n{"k": {"id": 2, "name": "äöüß"}}\n')
    columns = '"id" BIGINT, "name" VARCHAR(3)'
    run(
        session,
        of_files(folder, columns, PARSER="JSON", ROW_PATH="$.k", name_PATH="$.name"),
        view("v", 'SELECT STREAM "id", "name" FROM "s"'),
    )
    assert rows(session, 'SELECT "id", "name" FROM "v"') == [(1, "abc"), (2, "äöü")]


def test_the_lines_of_a_file_are_the_values_of_one_column(folder, session):
    (folder / "a.log").write_text('A=1,B="x, y"\n"quoted"\n\n\tc\n')
    run(
        session,
        of_files(folder, '"line" VARCHAR(64)', PARSER="NONE"),
        view("v", 'SELECT STREAM "line" FROM "s"'),
    )
    # an empty line is NULL
    assert {*rows(session, 'SELECT "line" FROM "v"')} == {("\tc",), ('"quoted"',), ('A=1,B="x, y"',), (None,)}
    with pytest.raises(Error, match="reads one column, not 2"):
        run(session, of_files(folder, '"a" INTEGER, "b" INTEGER', PARSER="NONE").replace('"s"', '"t"'))
