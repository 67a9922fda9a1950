"""A password of its own in every place that takes one: no error, no answer, no log and no public file has it.

The statements succeed or fail, in every dialect, and once more with mistakes in them. `unit/session/test_passwords` has
those that reach a server.
"""

from __future__ import annotations

import itertools
import json
import logging
import traceback

import psycopg
import pytest
from tests.thorough import mostly_slow

import watersmeet

#: By dialect, statements, a paragraph each, with PLANTED where a password stands. Nothing listens on port 1.
PLACES = {
    "risingwave": """
CREATE CONNECTION kafka WITH (type = 'kafka', properties.bootstrap.server = '127.0.0.1:1', properties.sasl.password
= 'PLANTED')

CREATE CONNECTION registry WITH (type = 'schema_registry', schema.registry = 'http://127.0.0.1:1',
schema.registry.password = 'PLANTED')

CREATE CONNECTION registry2 WITH (type = 'schema_registry', schema.registry = 'http://u:PLANTED@127.0.0.1:1')

CREATE CONNECTION lake WITH (type = 'iceberg', warehouse.path = 's3://lake', catalog.type = 'rest', catalog.uri =
'http://127.0.0.1:1', catalog.credential = 'u:PLANTED', catalog.token = 'PLANTED', s3.secret.key = 'PLANTED',
s3.access.key = 'PLANTED', s3.region = 'r')

CREATE CONNECTION lake2 WITH (type = 'iceberg', warehouse.path = 's3://lake', catalog.type = 'jdbc', catalog.name =
'c', catalog.uri = 'postgresql+psycopg://u:PLANTED@127.0.0.1:1/d', catalog.jdbc.user = 'u', catalog.jdbc.password =
'PLANTED')

CREATE SOURCE k (id int) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1',
properties.sasl.password = 'PLANTED') FORMAT PLAIN ENCODE JSON

CREATE SOURCE k2 (id int) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1',
properties.ssl.key.pem = 'PLANTED', properties.ssl.key.password = $$PLANTED$$, properties.sasl.jaas.config = 'x
required password="PLANTED";') FORMAT PLAIN ENCODE JSON

CREATE SOURCE k3 WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1') FORMAT PLAIN
ENCODE AVRO (schema.registry = 'http://127.0.0.1:1', schema.registry.username = 'u', schema.registry.password =
'PLANTED')

CREATE SOURCE k4 WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1') FORMAT PLAIN
ENCODE AVRO (schema.registry = 'http://u:PLANTED@127.0.0.1:1')

CREATE SOURCE pg WITH (connector = 'postgres-cdc', hostname = '127.0.0.1', port = '1', username = 'u', password =
'PLANTED', database.name = 'd')

CREATE TABLE pg1 (id int PRIMARY KEY) WITH (connector = 'postgres-cdc', hostname = '127.0.0.1', port = '1', username
= 'u', password = 'PLANTED', database.name = 'd', table.name = 't')

CREATE SOURCE my WITH (connector = 'mysql-cdc', hostname = '127.0.0.1', port = '1', username = 'u', password =
"PLANTED", database.name = 'd', server.id = '7')

CREATE SOURCE my2 WITH (connector = 'mysql-cdc', hostname = '127.0.0.1', port = '1', username = 'u', password =
'PLANTED', database.name = 'd', server.id = '7')

CREATE SOURCE s3 (id int) WITH (connector = 's3', s3.bucket_name = 'b', s3.region_name = 'r', s3.endpoint_url =
'http://127.0.0.1:1', s3.credentials.access = 'PLANTED', s3.credentials.secret = 'PLANTED') FORMAT PLAIN ENCODE JSON

CREATE SOURCE gcs (id int) WITH (connector = 'gcs', gcs.bucket_name = 'b', gcs.credential = 'PLANTED') FORMAT PLAIN
ENCODE JSON

CREATE SOURCE az (id int) WITH (connector = 'azblob', azblob.container_name = 'b', azblob.endpoint_url =
'http://127.0.0.1:1', azblob.credentials.account_name = 'u', azblob.credentials.account_key = 'PLANTED') FORMAT
PLAIN ENCODE JSON

CREATE SOURCE delta (id int) WITH (connector = 'deltalake', location = 's3://b/t', s3.endpoint =
'http://127.0.0.1:1', s3.access.key = 'PLANTED', s3.secret.key = 'PLANTED')

CREATE SOURCE ice WITH (connector = 'iceberg', warehouse.path = 's3://b', catalog.type = 'rest', catalog.uri =
'http://127.0.0.1:1', catalog.token = 'PLANTED', database.name = 'd', table.name = 't')

CREATE SOURCE ice2 WITH (connector = 'iceberg', warehouse.path = 's3://b', catalog.type = 'jdbc', catalog.uri =
'postgresql+psycopg://u:PLANTED@127.0.0.1:1/d', database.name = 'd', table.name = 't')

CREATE SOURCE ice3 WITH (connector = 'iceberg', warehouse.path = 's3://b', catalog.type = 'jdbc', catalog.uri =
'u:PLANTED@127.0.0.1:1/d', database.name = 'd', table.name = 't')

CREATE SINK k5 FROM given WITH (connector = 'kafka', topic = 't', type = 'append-only', force_append_only = 'true',
properties.bootstrap.server = '127.0.0.1:1', properties.sasl.password = 'PLANTED') FORMAT PLAIN ENCODE JSON

CREATE SINK pg2 FROM given WITH (connector = 'postgres', host = '127.0.0.1', port = '1', user = 'u', password =
'PLANTED', database = 'd', table = 't', type = 'upsert', primary_key = 'id')

CREATE SINK j FROM given WITH (connector = 'jdbc', jdbc.url =
'jdbc:postgresql://127.0.0.1:1/d?user=u&password=PLANTED', table.name = 't', type = 'upsert', primary_key = 'id')

CREATE SINK j2 FROM given WITH (connector = 'jdbc', jdbc.url = 'jdbc:mysql://u:PLANTED@127.0.0.1:1/d', table.name =
't', type = 'upsert', primary_key = 'id')

CREATE SINK j3 FROM given WITH (connector = 'jdbc', jdbc.url = 'jdbc:oracle:u/x@h?password=PLANTED', table.name =
't', type = 'upsert', primary_key = 'id')

CREATE SINK d2 FROM given WITH (connector = 'deltalake', location = 's3://b/t', type = 'append-only',
force_append_only = 'true', s3.endpoint = 'http://nonsense:x', s3.access.key = 'PLANTED', s3.secret.key = 'PLANTED')

CREATE SINK i2 FROM given WITH (connector = 'iceberg', warehouse.path = 's3://b', catalog.type = 'rest', catalog.uri
= 'http://u:PLANTED@127.0.0.1:1', database.name = 'd', table.name = 't', type = 'append-only', force_append_only =
'true')

CREATE SINK s4 FROM given WITH (connector = 's3', s3.bucket_name = 'b', s3.region_name = 'r', s3.endpoint_url =
'http://127.0.0.1:1', s3.path = 'p', s3.credentials.access = 'PLANTED', s3.credentials.secret = 'PLANTED', type =
'append-only') FORMAT PLAIN ENCODE JSON (force_append_only = 'true')

CREATE SECRET mine WITH (backend = 'meta') AS 'PLANTED'

CREATE SECRET mine WITH (backend = 'vault', token = 'PLANTED') AS 'PLANTED'

ALTER SOURCE k CONNECTOR WITH (properties.sasl.password = 'PLANTED')

CREATE SOURCE wrong (id int) WITH (connector = 'datagen', password = 'PLANTED')

CREATE SINK wrong FROM given WITH (connector = 'blackhole', some.token = 'PLANTED')

SELECT * FROM postgres_query('127.0.0.1', '1', 'u', 'PLANTED', 'd', 'SELECT 1')

SELECT * FROM mysql_query('127.0.0.1', '1', 'u', 'PLANTED', 'd', 'SELECT 1')

SELECT * FROM file_scan('parquet', 's3', 'r', 'k', 'PLANTED', 's3://b/x.parquet')

CREATE USER ann PASSWORD 'PLANTED'

CREATE USER bob WITH ENCRYPTED PASSWORD 'PLANTED' CREATEDB

ALTER USER ann PASSWORD 'PLANTED'

ALTER USER nobody WITH PASSWORD 'PLANTED'

CREATE ROLE eve LOGIN PASSWORD 'PLANTED'

CREATE SOURCE pb WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1') FORMAT PLAIN
ENCODE PROTOBUF (message = 'M', schema.location = 'http://127.0.0.1:1/x?token=PLANTED')
""",
    "timeplus": """
CREATE NAMED COLLECTION n AS brokers = '127.0.0.1:1', password = 'PLANTED', properties = 'sasl.password=PLANTED'

CREATE EXTERNAL STREAM es (id int) SETTINGS type = 'kafka', topic = 't', brokers = '127.0.0.1:1', username = 'u',
password = 'PLANTED', security_protocol = 'SASL_PLAINTEXT', sasl_mechanism = 'PLAIN'

CREATE EXTERNAL STREAM es2 (id int) SETTINGS type = 'kafka', topic = 't', brokers = '127.0.0.1:1', properties =
'linger.ms=1;ssl.key.password=PLANTED'

CREATE EXTERNAL STREAM es3 (id int) SETTINGS type = 'kafka', topic = 't', brokers = '127.0.0.1:1', data_format =
'Avro', kafka_schema_registry_url = 'http://127.0.0.1:1', kafka_schema_registry_credentials = 'u:PLANTED'

CREATE EXTERNAL TABLE et SETTINGS type = 'postgresql', address = '127.0.0.1:1', user = 'u', password = 'PLANTED',
database = 'd', table = 't'

CREATE EXTERNAL TABLE et2 (id int) SETTINGS type = 'mysql', address = '127.0.0.1:1', user = 'u', password =
'PLANTED', database = 'd', table = 't'

CREATE EXTERNAL TABLE et3 (id int) SETTINGS type = 'clickhouse', address = '127.0.0.1:1', user = 'u', password =
'PLANTED', database = 'd', table = 't'

CREATE EXTERNAL TABLE et4 (id int) SETTINGS type = 's3', bucket = 'b', region = 'r', endpoint =
'http://127.0.0.1:1', access_key_id = 'u', secret_access_key = 'PLANTED', read_from = 'x.csv'

CREATE EXTERNAL TABLE et5 SETTINGS type = 'iceberg', catalog_type = 'rest', catalog_uri = 'http://127.0.0.1:1',
catalog_credential = 'u:PLANTED', warehouse = 's3://b', namespace = 'n', table = 't', storage_credential =
'u:PLANTED'

CREATE EXTERNAL TABLE et6 (id int) SETTINGS type = 'mongodb', uri = 'mongodb://u:PLANTED@127.0.0.1:1/d', collection
= 'c'

CREATE DATABASE lake SETTINGS type = 'iceberg', catalog_type = 'rest', catalog_uri = 'http://127.0.0.1:1',
catalog_credential = 'u:PLANTED', warehouse = 's3://b', storage_credential = 'u:PLANTED'

CREATE DICTIONARY d (id int, v string) PRIMARY KEY id SOURCE(POSTGRESQL(HOST '127.0.0.1' PORT 1 USER 'u' PASSWORD
'PLANTED' DB 'd' TABLE 't')) LAYOUT(HASHED()) LIFETIME(MIN 1 MAX 2)

CREATE DICTIONARY d2 (id int, v string) PRIMARY KEY id SOURCE(MYSQL(HOST '127.0.0.1' PORT 1 USER 'u' PASSWORD
'PLANTED' DB 'd' TABLE 't')) LAYOUT(DIRECT())

CREATE DICTIONARY d3 (id int, v string) PRIMARY KEY id SOURCE(CLICKHOUSE(HOST '127.0.0.1' PORT 1 USER 'u' PASSWORD
'PLANTED' DB 'd' TABLE 't')) LAYOUT(CACHE(SIZE_IN_CELLS 5))

CREATE DICTIONARY d4 (id int, v string) PRIMARY KEY id SOURCE(HTTP(URL 'http://127.0.0.1:1/x' FORMAT 'CSV'
CREDENTIALS(USER 'u' PASSWORD 'PLANTED') HEADERS(HEADER(NAME 'API-KEY' VALUE 'PLANTED')))) LAYOUT(FLAT())

CREATE DICTIONARY d5 (id int, v string) PRIMARY KEY id SOURCE(HTTP(URL 'http://u:PLANTED@127.0.0.1:1/x' FORMAT
'CSV')) LAYOUT(FLAT())

CREATE DICTIONARY d6 (id int, v string) PRIMARY KEY id SOURCE(HTTP(URL 'http://127.0.0.1:1/x?token=PLANTED' FORMAT
'CSV')) LAYOUT(FLAT())

CREATE DICTIONARY d7 (id int, v string) PRIMARY KEY id SOURCE(MONGODB(HOST '127.0.0.1' PASSWORD 'PLANTED'))
LAYOUT(FLAT())

SELECT * FROM es; SELECT * FROM et2 WHERE id = 1; SELECT * FROM et3; SELECT dict_get('d', 'v', 1); SELECT
dict_get('d5', 'v', 1)

SELECT dict_get('d6', 'v', 1); SELECT dict_get('d4', 'v', 1); SELECT dict_get('d3', 'v', 1); SELECT * FROM et4;
SELECT * FROM d2

CREATE USER tom IDENTIFIED BY 'PLANTED'

CREATE USER tom IDENTIFIED WITH plaintext_password BY 'PLANTED'

CREATE USER tom PASSWORD 'PLANTED'

SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'PLANTED')
""",
    "sqlstream": """
CREATE SERVER "db" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (URL 'jdbc:postgresql://127.0.0.1:1/d', USER_NAME 'u',
PASSWORD 'PLANTED')

CREATE SERVER "db2" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (URL 'jdbc:mysql://127.0.0.1:1/d?user=u&password=PLANTED')

CREATE SERVER "db3" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (URL 'jdbc:db2://u:PLANTED@127.0.0.1:1/d')

CREATE FOREIGN TABLE "ft" ("id" INTEGER) SERVER "db" OPTIONS (TABLE_NAME 't')

CREATE FOREIGN TABLE "ft2" ("id" INTEGER) SERVER "db2" OPTIONS (TABLE_NAME 't')

CREATE FOREIGN TABLE "ft3" ("id" INTEGER) SERVER "db" OPTIONS (TABLE_NAME 't', PASSWORD 'PLANTED')

CREATE SERVER "k" TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA OPTIONS ("sasl.password" 'PLANTED', SEED_BROKERS
'127.0.0.1:1')

CREATE FOREIGN STREAM "fs" ("id" BIGINT) SERVER "k" OPTIONS (TOPIC 't', PARSER 'JSON')

CREATE FOREIGN STREAM "fs2" ("id" BIGINT) SERVER KAFKA10_SERVER OPTIONS (TOPIC 't', SEED_BROKERS '127.0.0.1:1',
PARSER 'JSON', "sasl.jaas.config" 'x required password="PLANTED";', "ssl.keystore.password" 'PLANTED')

CREATE USER sam IDENTIFIED BY 'PLANTED'

ALTER SERVER "db" OPTIONS (SET PASSWORD 'PLANTED')
""",
    "lenses": """
SET kafka.sasl.password = 'PLANTED'; SHOW kafka.sasl.password; SHOW ALL

SET kafka.schema.registry.password = 'PLANTED'; SHOW kafka.schema.registry.password

SET kafka.bootstrap.servers = '127.0.0.1:1'; CREATE TABLE topic (_key int, item string) FORMAT (INT, AVRO)

CREATE TABLE topic (_key int, item string) FORMAT (INT, AVRO) PROPERTIES (password = 'PLANTED')

CREATE CONNECTION c WITH (type = 'kafka', properties.bootstrap.server = '127.0.0.1:1', properties.sasl.password =
'PLANTED')
""",
}
KINDS = (
    "CONNECTIONS SOURCES SINKS TABLES SECRETS VIEWS JOBS ROLES DICTIONARIES STREAMS SERVERS PARAMETERS ALL TOPICS "
    "SUBSCRIPTIONS"
).split()  # fmt: skip
OF_CATALOG = ("pg_authid", "pg_class", "pg_roles", "pg_settings", "pg_stat_activity", "pg_tables", "pg_views")
MARK = "pl4nt3d"
_NUMBERS = itertools.count(10_000)


def planted(text):
    """The text with a password of its own in each place."""
    while "PLANTED" in text:
        text = text.replace("PLANTED", f"{MARK}{next(_NUMBERS)}", 1)
    return text


def statements(dialect):
    return [" ".join(paragraph.split()) for paragraph in PLACES[dialect].split("\n\n")]


def mistaken(text):
    """A text with the mistakes that people make."""
    yield f"{text} )("
    yield text.replace("WITH (", "WITH (nonsense = 1, ").replace("SETTINGS ", "SETTINGS nonsense = 1, ")
    yield text.replace("'PLANTED'", "'PLANTED' 'more'")
    yield text.replace("PLANTED'", "PLANTED")
    yield text.replace(" = 'PLANTED'", " 'PLANTED'")


def by_python(connection, text):
    """All that programs and people see of a text's results, or of its error."""
    said = []
    try:
        for cursor in connection.execute_script(text):
            said += [str(cursor.fetchmany(100)) if cursor.description else "", *cursor.notices]
    except watersmeet.Error as err:
        logging.getLogger("watersmeet").warning("a statement failed", exc_info=err)
        said += [str(err), repr(err), json.dumps(err.to_json()), *traceback.format_exception(err)]
    return said


def by_wire(connection, text):
    try:
        cursor = connection.execute(text)
        return [str(cursor.fetchmany(100)) if cursor.description else ""]
    except psycopg.Error as err:  # whose text has the statement, from the client itself
        return [str(getattr(err.diag, name)) for name in dir(err.diag) if not name.startswith("_")]


@pytest.fixture
def impatient(monkeypatch):
    """Brokers that are not there are not waited for."""
    monkeypatch.setattr("watersmeet.connectors.kafka.cluster._TIMEOUT_S", 0.2)
    monkeypatch.setattr("watersmeet.connectors.kafka.target._ANSWER_S", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("dialect", mostly_slow(list(PLACES), 2))
def test_a_password_is_nowhere_but_in_private_files(dialect, tmp_path, serving, caplog):
    caplog.set_level(logging.DEBUG)
    served = serving(
        "CREATE TABLE given (id int PRIMARY KEY, v varchar); INSERT INTO given VALUES (1, 'x')",
        http_port=0,
        connecting={"path": tmp_path / "db", "file_permissions": "umask"},
    )
    connection, said = served.python, []
    connection.execute(f"SET dialect = '{dialect}'")
    wire = served.connect(autocommit=True, options=f"-c dialect={dialect}")
    connection.execute("CREATE USER zoe PASSWORD 'x'")
    for text in statements(dialect):
        said += by_python(connection, planted(text))
        wrong = [planted(w) for w in dict.fromkeys(mistaken(text)) if w != text]
        for one in wrong:
            said += by_python(connection, one)
        said += by_wire(wire, wrong[0])
        run = {"text": wrong[0], "dialect": dialect}
        said.append(served.http("/api/run", body=run).body.decode())
    for kind in KINDS:
        said += by_python(connection, f"SHOW {kind}") + by_wire(wire, f"SHOW {kind}")
    for relation in connection._session.catalog.relations.values():
        for ask in ("SHOW CREATE {} {}", "DESCRIBE {1}"):
            said += by_python(connection, ask.format((*relation.words.show_create, "TABLE")[0], relation.name))
        said.append(served.http(f"/api/relations/{relation.shown}").body.decode())
    for table in OF_CATALOG:
        said += by_wire(wire, f"SELECT * FROM pg_catalog.{table}")
    said += [served.http(path).body.decode() for path in ("/api/topology", "/metrics", "/readyz", "/api/session")]
    with pytest.raises(psycopg.OperationalError) as refused:
        served.connect(password=planted("PLANTED"), user="zoe")
    said += [str(refused.value), str(served.http("/api/topology", user=planted("zoe:PLANTED")).body)]
    said += [json.dumps(connection.status(), default=str), caplog.text]
    assert [one for one in said if MARK in one] == []
    files = [f for f in (tmp_path / "db").rglob("*") if f.is_file() and MARK.encode() in f.read_bytes()]
    assert {f.parent.name for f in files} <= {"secrets"}
    assert {f.stat().st_mode & 0o077 for f in files} <= {0}
