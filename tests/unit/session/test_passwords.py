"""Passwords that statements give in plain: they work, and are nowhere but in private files of secrets."""

import json
import logging
import stat

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from scripts.servers import mariadb, s3
from scripts.servers import postgres as pg
from tests.kafkatopics import delivered, messages, send
from tests.lakes import RestCatalog, sql_catalog
from tests.thorough import mostly_slow
from tests.waiting import until

import watersmeet
from watersmeet.errors import Error

PLANTED = "planted-4711"


def kafka_source(broker, topic):
    """A registry and a user in plain, too: brokers without SASL look at neither."""
    return (
        f"""CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = '{broker.bootstrap}',
            properties.sasl.password = '{PLANTED}');
            CREATE SOURCE made (id int) WITH (connector = 'kafka', connection = c, topic = '{topic()}')
            FORMAT PLAIN ENCODE JSON;
            CREATE MATERIALIZED VIEW v AS SELECT id FROM made;
            CREATE SINK k FROM v WITH (connector = 'kafka', topic = '{topic()}', type = 'append-only',
            properties.bootstrap.server = '{broker.bootstrap}', properties.ssl.key.password = '{PLANTED}')
            FORMAT PLAIN ENCODE JSON (force_append_only = 'true')""",
        "risingwave",
        "SHOW CREATE SOURCE made; SHOW CREATE SINK k; SHOW CREATE CONNECTION c",
        "DROP SINK k; DROP MATERIALIZED VIEW v; DROP SOURCE made; DROP CONNECTION c",
        PLANTED,
    )


def kafka_stream(broker, topic):
    return (
        f"""CREATE NAMED COLLECTION n AS brokers = '{broker.bootstrap}', properties = 'sasl.password={PLANTED}';
            CREATE EXTERNAL STREAM made (id int) SETTINGS type = 'kafka', topic = '{topic()}', named_collection = 'n',
            security_protocol = 'PLAINTEXT', username = 'u', password = '{PLANTED}';
            CREATE MATERIALIZED VIEW v AS SELECT id FROM made""",
        "timeplus",
        "SHOW CREATE STREAM made; SHOW CREATE NAMED COLLECTION n",
        "DROP VIEW v; DROP STREAM made; DROP NAMED COLLECTION n",
        PLANTED,
    )


def captured(postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    return (
        f"""CREATE SOURCE pg WITH (connector = 'postgres-cdc', hostname = '127.0.0.1', port = '{postgres.server.port}',
            username = '{pg.USER}', password = '{pg.PASSWORD}', database.name = '{postgres.name}');
            CREATE TABLE made (*) FROM pg TABLE 't'; FLUSH""",
        "risingwave",
        "SHOW CREATE SOURCE pg; SHOW CREATE TABLE made; SHOW SOURCES",
        "DROP TABLE made; DROP SOURCE pg",
        pg.PASSWORD,
    )


def postgres_sink(postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return (
        f"""CREATE TABLE given (id int PRIMARY KEY); INSERT INTO given VALUES (1);
            CREATE SINK made FROM given WITH (connector = 'postgres', host = '127.0.0.1',
            port = '{postgres.server.port}', user = '{pg.USER}', password = '{pg.PASSWORD}',
            database = '{postgres.name}', table = 't', type = 'upsert', primary_key = 'id')""",
        "risingwave",
        "SHOW CREATE SINK made; SHOW SINKS",
        "DROP SINK made; DROP TABLE given",
        pg.PASSWORD,
    )


def mysql_sink(mysql):
    mysql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    url = f"jdbc:mariadb://127.0.0.1:{mysql.server.port}/{mysql.name}"
    return (
        f"""CREATE TABLE given (id int PRIMARY KEY); INSERT INTO given VALUES (1);
            CREATE SINK made FROM given WITH (connector = 'jdbc', table.name = 't', type = 'upsert',
            primary_key = 'id', jdbc.url = '{url}?user={mariadb.USER}&password={mariadb.PASSWORD}')""",
        "risingwave",
        "SHOW CREATE SINK made; SHOW SINKS",
        "DROP SINK made; DROP TABLE given",
        mariadb.PASSWORD,
    )


def external_table(postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    where = f"HOST '127.0.0.1' PORT {postgres.server.port} USER '{pg.USER}' PASSWORD '{pg.PASSWORD}'"
    return (
        f"""CREATE EXTERNAL TABLE made SETTINGS {postgres.settings}, table = 't';
            CREATE DICTIONARY d(id int, v string) PRIMARY KEY id
            SOURCE(POSTGRESQL({where} DB '{postgres.name}' TABLE 't')) LAYOUT(HASHED())""",
        "timeplus",
        "SHOW CREATE TABLE made; SHOW CREATE DICTIONARY d; SELECT id FROM made; SELECT dict_get('d', 'v', 1)",
        "DROP STREAM made; DROP DICTIONARY d",
        pg.PASSWORD,
    )


def foreign_table(postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    url = f"jdbc:postgresql://127.0.0.1:{postgres.server.port}/{postgres.name}?password={pg.PASSWORD}"
    return (
        f"""CREATE SERVER s FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (URL '{url}', USER_NAME '{pg.USER}');
            CREATE FOREIGN TABLE made ("id" INTEGER) SERVER s OPTIONS (TABLE_NAME 't')""",
        "sqlstream",
        'SELECT * FROM made; SELECT "id" FROM made',
        "DROP FOREIGN TABLE made; DROP SERVER s",
        pg.PASSWORD,
    )


def objects(bucket):
    bucket.put("a.json", '{"id": 1}')
    return (
        f"""CREATE SOURCE made (id int) WITH (connector = 's3', {bucket.options}, match_pattern = '*.json')
            FORMAT PLAIN ENCODE JSON;
            CREATE MATERIALIZED VIEW v AS SELECT id FROM made; FLUSH;
            CREATE SINK k FROM v WITH (connector = 's3', {bucket.options}, s3.path = 'out', type = 'append-only')
            FORMAT PLAIN ENCODE PARQUET (force_append_only = 'true')""",
        "risingwave",
        "SHOW CREATE SOURCE made; SHOW CREATE SINK k; SELECT * FROM v",
        "DROP SINK k; DROP MATERIALIZED VIEW v; DROP SOURCE made",
        s3.SECRET_KEY,
    )


MADE = {
    "kafka source": (kafka_source, "broker", "topic"),
    "kafka stream": (kafka_stream, "broker", "topic"),
    "captured": (captured, "postgres"),
    "postgres sink": (postgres_sink, "postgres"),
    "mysql sink": (mysql_sink, "mysql"),
    "external table": (external_table, "postgres"),
    "foreign table": (foreign_table, "postgres"),
    "objects": (objects, "bucket"),
}


def files_with(path, text):
    """The files in which a text stands, and their permissions."""
    found = (f for f in path.rglob("*") if f.is_file() and text.encode() in f.read_bytes())
    return {f.relative_to(path).parts[0]: stat.S_IMODE(f.stat().st_mode) for f in found}


def said(connection, statements):
    """Everything that statements give."""
    found = [connection.execute(s).fetchall() for s in statements.split("; ")]
    return json.dumps([found, connection.status()], default=str)


@pytest.mark.parametrize("name", mostly_slow(list(MADE), 9))
def test_a_password_works_and_is_in_private_files_alone(name, tmp_path, request):
    make, *fixtures = MADE[name]
    create, dialect, ask, drop, password = make(*map(request.getfixturevalue, fixtures))
    path = tmp_path / "db"
    with watersmeet.connect(path, dialect, runtime="inprocess", file_permissions="umask") as connection:
        connection.execute(create)
        connection.flush()
        assert password not in said(connection, ask)
        assert files_with(path, password) == {"secrets": 0o600}
    with watersmeet.connect(path, dialect, runtime="inprocess") as connection:
        connection.flush()
        assert password not in said(connection, ask)
        assert files_with(path, password) == {"secrets": 0o600}
        connection.execute(drop)
    with watersmeet.connect(path, dialect, runtime="inprocess"):
        pass
    assert files_with(path, password) == {}


def unread_messages(broker, topic):
    name = topic()
    send(broker, name, (b"key", b"no json"))
    return (
        f"""CREATE SOURCE made (id int) WITH (connector = 'kafka', topic = '{name}',
            properties.bootstrap.server = '{broker.bootstrap}', properties.sasl.password = '{PLANTED}')
            FORMAT PLAIN ENCODE JSON""",
        PLANTED,
    )


def unread_objects(bucket):
    bucket.put("a.json", '{"id": 1}\nno json\n')
    return (
        f"""CREATE SOURCE made (id int) WITH (connector = 's3', {bucket.options}, match_pattern = '*.json')
            FORMAT PLAIN ENCODE JSON""",
        s3.SECRET_KEY,
    )


def unread_delta(bucket):
    environment = {**bucket.environment, "AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write_deltalake(f"s3://{bucket.name}/t", TOO_LARGE, storage_options=environment)
    return (
        f"""CREATE SOURCE made (id int) WITH (connector = 'deltalake', location = 's3://{bucket.name}/t',
            s3.endpoint = '{bucket.server.url}', s3.region = '{s3.REGION}', s3.access.key = '{bucket.keys[0]}',
            s3.secret.key = '{bucket.keys[1]}')""",
        s3.SECRET_KEY,
    )


def unread_iceberg(tmp_path, request):
    catalog = sql_catalog(tmp_path)
    catalog.create_namespace("n")
    catalog.create_table("n.t", schema=TOO_LARGE.schema).append(TOO_LARGE)
    server = RestCatalog(catalog, PLANTED)
    request.addfinalizer(server.stop)
    return (
        f"""CREATE SOURCE made (id int) WITH (connector = 'iceberg', catalog.type = 'rest', catalog.name = 'lake',
            catalog.uri = '{server.uri}', catalog.token = '{PLANTED}', warehouse.path = 'file://{tmp_path}/warehouse',
            database.name = 'n', table.name = 't')""",
        PLANTED,
    )


def unread_changes(mysql):
    mysql.execute("CREATE TABLE t (id int PRIMARY KEY, d date)")
    mysql.execute("SET sql_mode = ''; INSERT INTO t VALUES (1, '0000-00-00')")
    return (
        f"""CREATE SOURCE there WITH (connector = 'mysql-cdc', hostname = '127.0.0.1', port = '{mysql.server.port}',
            username = '{mariadb.USER}', password = '{mariadb.PASSWORD}', database.name = '{mysql.name}');
            CREATE TABLE made (*) FROM there TABLE 't'""",
        mariadb.PASSWORD,
    )


TOO_LARGE = pa.table({"id": pa.array([1, 1 << 40], pa.int64())})


def unread_stream(broker, topic):
    name = topic()
    send(broker, name, (None, b"no json"))
    return (
        f"""CREATE EXTERNAL STREAM made (id int) SETTINGS type = 'kafka', brokers = '{broker.bootstrap}',
            topic = '{name}', security_protocol = 'PLAINTEXT', username = 'u', password = '{PLANTED}'""",
        PLANTED,
        "timeplus",
        "SETTINGS seek_to = 'earliest'",
    )


def unread_foreign_stream(broker, topic):
    name = topic()
    send(broker, name, (None, b"<order"))
    return (
        f"""CREATE SERVER k TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA OPTIONS ("sasl.password" '{PLANTED}');
            CREATE FOREIGN STREAM made ("id" INTEGER) SERVER k OPTIONS (SEED_BROKERS '{broker.bootstrap}',
            TOPIC '{name}', STARTING_TIME 'EARLIEST', PARSER 'XML', PARSER_XML_ROW_TAGS '/order', "id_XPATH" '@id',
            "ssl.key.password" '{PLANTED}')""",
        PLANTED,
        "sqlstream",
    )


UNREAD = {
    "messages": (unread_messages, "broker", "topic"),
    "objects": (unread_objects, "bucket"),
    "delta": (unread_delta, "bucket"),
    "iceberg": (unread_iceberg, "tmp_path", "request"),
    "changes": (unread_changes, "mysql"),
    "external stream": (unread_stream, "broker", "topic"),
    "foreign stream": (unread_foreign_stream, "broker", "topic"),
}
#: By dialect: what is read, and what is asked of it alone.
VIEWS = {
    "risingwave": ("SELECT id FROM made", "SHOW CREATE SOURCE made"),
    "timeplus": ("SELECT id FROM made", "SHOW CREATE STREAM made; SELECT * FROM system.mat_view_dlq"),
    "sqlstream": ('SELECT STREAM "id" FROM made', "SHOW CREATE STREAM made; SHOW CREATE SERVER k"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_said_of_rows_that_can_not_be_read_has_no_password(name, tmp_path, request, caplog):
    make, *fixtures = UNREAD[name]
    create, password, *more = make(*map(request.getfixturevalue, fixtures))
    dialect, *settings = more or ["risingwave"]
    query, shown = VIEWS[dialect]
    caplog.set_level(logging.DEBUG)
    ask = "SHOW DEAD LETTERS; SELECT * FROM watersmeet.dead_letters; SHOW ERRORS; SHOW SOURCES; SHOW JOBS; "
    ask += "SHOW CREATE TABLE made" if name == "changes" else shown
    path = tmp_path / "db"
    for is_new in (True, False):
        with watersmeet.connect(path, dialect, runtime="inprocess", file_permissions="umask") as connection:
            if is_new:
                connection.execute(f"{create}; CREATE MATERIALIZED VIEW v AS {' '.join([query, *settings])}")
            notices = connection.flush()
            until(lambda: connection.execute("SHOW DEAD LETTERS").fetchall())
            assert connection.execute("SELECT count(*) FROM watersmeet.dead_letters").fetchone() != (0,)
            assert password not in said(connection, ask) + str(notices) + caplog.text
            assert files_with(path, password) == {"secrets": 0o600}


def test_a_dead_letter_topic_and_what_is_said_of_it_have_no_password(tmp_path, broker, named, topic, caplog):
    caplog.set_level(logging.DEBUG)
    name, dead, path = topic(), named("dead"), tmp_path / "db"
    given = {"bootstrap.servers": broker.bootstrap, "sasl.username": "u", "sasl.password": PLANTED}
    ask = "SHOW DEAD LETTERS; SELECT * FROM watersmeet.dead_letters; SHOW ERRORS; SHOW SOURCES; SHOW SINKS; SHOW JOBS; "
    ask += f"SHOW ALL; SHOW TABLES; DESCRIBE TABLE {name}; SHOW CREATE TABLE {name}"
    for count in (1, 2):
        send(broker, name, (b"k", b"no json"))
        with watersmeet.connect(path, "lenses", kafka=given, runtime="inprocess", file_permissions="umask") as made:
            if count == 1:
                made.execute(f"SET kafka.schema.registry.password='{PLANTED}'; SET error.policy='dlq'")
                made.execute(f"SET dead.letter.queue='{dead}'; CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
            delivered(made)
            found = messages(broker, dead)
            assert [m.value() for m in found] == [b"no json"] * count
            assert len(made.execute("SHOW DEAD LETTERS").fetchall()) == count
            assert PLANTED not in str([(m.key(), m.headers()) for m in found]) + said(made, ask) + caplog.text
            assert set(files_with(path, PLANTED).items()) <= {("secrets", 0o600)}


def test_a_password_that_is_altered_is_kept_as_well(broker, topic, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(kafka_source(broker, topic)[0])
        connection.execute("ALTER SOURCE made CONNECTOR WITH (properties.sasl.password = 'another-4712')")
        connection.flush()
    assert files_with(tmp_path / "db", "another-4712") == {"secrets": 0o600}


def test_no_error_has_the_password(postgres, tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        settings = postgres.settings.replace(pg.PASSWORD, PLANTED)
        with pytest.raises(Error) as found:
            connection.execute(f"CREATE EXTERNAL TABLE e SETTINGS {settings}, table = 't'")
    assert PLANTED not in str(found.value)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess"):
        pass
    assert files_with(tmp_path / "db", PLANTED) == {}


def test_names_that_are_kept_are_not_shown(run):
    run("CREATE SECRET mine WITH (backend = 'meta') AS 'x'")
    run("CREATE TABLE t (id int PRIMARY KEY)")
    run(
        """CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = 'h:1',
           properties.sasl.password = 'y')"""
    )
    assert run("SHOW SECRETS") == [("mine",)]
