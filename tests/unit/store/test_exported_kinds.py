"""A database with a relation of every kind has the same catalog and contents after an import, and goes on."""

from __future__ import annotations

import secrets
import shutil
import time

import pytest
from tests.harness import Harness
from tests.memorystore import MemoryStore, use
from tests.unit.session.test_external_topics import produce
from tests.unit.session.test_kinds import _add_captured

import watersmeet
from watersmeet import catalog as c
from watersmeet.database.exporting import export_database
from watersmeet.database.importing import import_database
from watersmeet.server.catalog.definitions import script_of

pytestmark = pytest.mark.kafka

#: By dialect, statements that create relations of all kinds. {place}: a folder with `d.csv` and `ip.csv`, and `in`.
MADE = {
    "risingwave": """
ALTER SYSTEM SET retention = '1 hour'; ALTER SYSTEM SET late_rows_retention = '30 days';
CREATE SECRET token WITH (backend = 'meta') AS 'unseen-token';
CREATE ROLE readers; CREATE USER ann PASSWORD 'unseen-word' IN ROLE readers CONNECTION LIMIT 3;
CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE SEQUENCE numbers INCREMENT 2 START 5; CREATE SCHEMA other;
CREATE TABLE t (a int PRIMARY KEY, b varchar, m mood, p positive, id serial, g int AS a * 2);
CREATE TABLE other.u (k int, f double precision, x numeric(8, 2), i interval, l int[], d jsonb, z timestamptz, r bytea);
CREATE TABLE late (at timestamp, v int, WATERMARK FOR at AS at - INTERVAL '5 seconds') APPEND ONLY;
CREATE TABLE hooked (a jsonb) WITH (connector = 'webhook');
CREATE SOURCE files (id int) WITH (connector = 'file', path = '{place}/in', format = 'json', settle_ms = 0);
CREATE VIEW plain AS SELECT a, b FROM t;
CREATE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS $$ SELECT x * 2 $$;
CREATE FUNCTION thrice(x int) RETURNS int LANGUAGE python AS $$
def thrice(x):
    return x * 3
$$;
CREATE MATERIALIZED VIEW early AS SELECT v FROM late;
CREATE MATERIALIZED VIEW sums WITH (recompute = 'never') AS
    SELECT b, count(*) AS n, sum(twice(a)) AS s FROM t GROUP BY b;
SET backfill_rate_limit = 1000;
CREATE MATERIALIZED VIEW read AS SELECT files.id, count(*) AS n, max(t.b) AS b FROM files LEFT JOIN t ON files.id = t.a
    GROUP BY files.id;
SET backfill_rate_limit = DEFAULT;
CREATE INDEX i ON t (b) INCLUDE (a);
CREATE SINK k FROM sums WITH (connector = 'blackhole', type = 'upsert', primary_key = 'b');
CREATE SINK q AS SELECT b, a FROM t WITH (connector = 'blackhole', type = 'upsert', primary_key = 'b');
CREATE SINK o AS SELECT b, a FROM t
    WITH (connector = 'blackhole', type = 'upsert', primary_key = 'b', on_conflict = 'a DESC');
CREATE CONNECTION registry WITH (type = 'schema_registry', schema.registry = 'http://h:1',
    schema.registry.password = 'unseen');
CREATE SUBSCRIPTION followed FROM sums WITH (retention = '1D');
COMMENT ON TABLE t IS 'it''s'; COMMENT ON COLUMN t.b IS 'text'; GRANT SELECT ON t TO readers""",
    "timeplus": """
CREATE STREAM s (a int, b string);
CREATE MUTABLE STREAM m (a int, b string) PRIMARY KEY a;
CREATE MUTABLE STREAM cache (a int, b string) PRIMARY KEY a;
CREATE MATERIALIZED VIEW w INTO m AS SELECT a, b FROM s;
CREATE EXTERNAL TABLE e (a int, b string) SETTINGS type = 'file', path = '{place}/d.csv', format = 'CSV';
CREATE EXTERNAL TABLE v SETTINGS type = 'timeplus', table = 'm';
CREATE DICTIONARY d (a int, b string) PRIMARY KEY a SOURCE(FILE(path '{place}/d.csv' format 'CSV')) LAYOUT(FLAT());
CREATE DICTIONARY net (n string, b string) PRIMARY KEY n SOURCE(FILE(path '{place}/ip.csv' format 'CSV'))
    LAYOUT(IP_TRIE());
CREATE DICTIONARY mine (a int, b string) PRIMARY KEY a SOURCE(TIMEPLUS(STREAM 'm')) LAYOUT(FLAT());
CREATE DICTIONARY kept (a int, b string) PRIMARY KEY a SOURCE(FILE(path '{place}/d.csv' format 'CSV'))
    LAYOUT(MUTABLE_CACHE(STREAM 'cache' UPDATE_FROM_SOURCE true));
CREATE MATERIALIZED VIEW found AS SELECT s.a, kept.b FROM s JOIN kept ON s.a = kept.a
    SETTINGS join_algorithm = 'direct';
CREATE EXTERNAL STREAM log (id int) SETTINGS type = 'kafka', brokers = '{broker}', topic = '{topic}',
    data_format = 'JSONEachRow', one_message_per_row = true;
CREATE MATERIALIZED VIEW logged AS SELECT id FROM log;
CREATE MATERIALIZED VIEW paused AS SELECT a, count() AS n FROM s GROUP BY a;
CREATE FORMAT SCHEMA form AS 'message M {}' TYPE Protobuf;
CREATE NAMED COLLECTION named AS brokers = 'h:1', sasl_password = 'unseen'""",
    "sqlstream": """
CREATE SERVER "server" TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA OPTIONS ("TOPIC" 't');
CREATE STREAM "read1" ("A" INTEGER); CREATE STREAM "written" ("A" INTEGER);
CREATE PUMP "pump" STARTED AS INSERT INTO "written" SELECT STREAM "A" FROM "read1";
CREATE PUMP "stopped" STOPPED AS INSERT INTO "written" SELECT STREAM "A" + 1 FROM "read1\"""",
    "lenses": """
CREATE TABLE topic (_key int, item string) FORMAT (INT, AVRO);
SET defaults.topic.autocreate = true;
INSERT INTO processed SELECT STREAM * FROM topic;
INSERT INTO shared SELECT STREAM item FROM topic;
INSERT INTO shared SELECT STREAM item FROM processed""",
}

#: By dialect, statements that change the relations. {n} is 1, and then 2.
CHANGES = {
    "risingwave": """
INSERT INTO t (a, b, m, p) VALUES ({n}, 'x{n}', 'glad', {n}), (1{n}, 'y{n}', 'sad', 7);
DELETE FROM t WHERE a = 1{n}; UPDATE t SET b = 'z{n}' WHERE a = 1;
INSERT INTO other.u VALUES ({n}, 'nan', 1.{n}, '1 month {n} days', ARRAY[{n}, NULL],
    '{{"a": {n}}}', '2026-01-0{n} 00:00:00Z', 'r');
INSERT INTO late VALUES ('2026-01-01 0{n}:00:00', {n}); FLUSH;
INSERT INTO late VALUES ('2026-01-01 00:00:0{n}', -{n}); FLUSH;
SELECT nextval('numbers')""",
    "timeplus": "INSERT INTO s (a, b) VALUES ({n}, 'x{n}'); INSERT INTO m (a, b) VALUES (7, 'y{n}')",
    "sqlstream": 'INSERT INTO "read1" VALUES ({n})',
    "lenses": "INSERT INTO topic (_key, item) VALUES ({n}, 'x{n}')",
}

#: Kinds of which a database that nobody uses has none: a running query ends with its session.
PASSING = {c.Query}


def run(connection, texts, **values):
    for dialect, text in texts.items():
        connection.execute(f"SET dialect = '{dialect}'")
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))  # noqa: PLW2901
        connection.execute(text.replace("{{", "{").replace("}}", "}"))
    connection.execute("SET dialect = 'risingwave'; FLUSH")


def change(connection, place, broker, n):
    produce(broker, (place / "topic").read_text(), {"id": n})
    (place / "in" / f"{n}.json").write_text(f'{{"id": {n}}}\n{{"id": 9}}\nbad\n')
    run(connection, CHANGES, n=n)


def contents(connection):
    """The number of rows and the hash of the content of each relation with rows, by name and kind."""
    database, found = connection.opened, {}
    for relation in database.catalog.relations.values():
        if relation.is_stored:
            hashed = database.content.content_hash(relation, database.log.head())
            found[relation.id, relation.shown] = (hashed.rows, str(hashed))
    return found


def definitions(connection):
    """The catalog as it is stored, without the number of its version."""
    value = connection.opened.catalog.to_json()
    return {**value, "version": None, "relations": [{**r, "since": None} for r in value["relations"]]}


def shown(connection):
    shows = ("FUNCTIONS", "SEQUENCES", "USERS", "SUBSCRIPTIONS", "SECRETS", "VERIFICATIONS", "SINKS", "SCHEMAS")
    found = {show: connection.execute(f"SHOW {show}").fetchall() for show in shows}
    found["SINKS"] = [row[:2] for row in found["SINKS"]]
    found["SUBSCRIPTIONS"] = [row[:5] for row in found["SUBSCRIPTIONS"]]  # the others are of its history
    found["dead"] = len(connection.execute("SHOW DEAD LETTERS").fetchall())
    found["late"] = sorted(connection.execute("SELECT v FROM late_rows(late)").fetchall())
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory, broker):
    """A folder with the database `db`."""
    made, topic = tmp_path_factory.mktemp("kinds"), f"t_{secrets.token_hex(6)}"
    broker.create_topic(topic, 1)
    (made / "topic").write_text(topic)
    (made / "in").mkdir()
    (made / "d.csv").write_text("1,one\n2,two\n")
    (made / "ip.csv").write_text("10.0.0.0/8,ten\n")
    with watersmeet.connect(made / "db", runtime="inprocess", parallelism=2) as connection:
        run(connection, MADE, place=made, broker=broker.bootstrap, topic=topic)
        _add_captured(connection._session)
        connection.execute("SET dialect = 'timeplus'")
        connection.execute("SUBSCRIBE TO SELECT a, b FROM s SETTINGS query_id = 'tail'").close()
        connection.execute("SYSTEM PAUSE MATERIALIZED VIEW paused")
        change(connection, made, broker, 1)
        connection.execute("CREATE FORK tried; VERIFY VIEW sums")
    return made


def test_there_is_one_of_each_kind(place):
    with watersmeet.connect(place / "db", read_only=True) as connection:
        found = {type(r) for r in connection.opened.catalog.relations.values()}
    assert found == {*c.KINDS} - PASSING


@pytest.mark.parametrize("target", ["directory", "objects"])
def test_it_is_the_same_and_goes_on(place, broker, tmp_path, monkeypatch, target):
    if target == "objects":
        use(monkeypatch, MemoryStore(), tmp_path / "cache")
    shutil.copytree(place / "db", tmp_path / "db", ignore=shutil.ignore_patterns("forks"))
    made = export_database(place / "db", tmp_path / "export", script_of)
    assert made.left_out[0] == 'fork "tried"'
    assert made.left_out[-1].startswith("commits before") and '"followed"' in made.left_out[-1]
    for file in (tmp_path / "export").rglob("*"):
        assert file.is_dir() or b"unseen" not in file.read_bytes()
    path = tmp_path / "imported" if target == "directory" else "s3://memory/db"
    import_database(tmp_path / "export", path, dict.fromkeys(made.secrets, "SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5"))
    begun, ended, later_us = [], [], 10**6 * int(time.time()) + 3_600_000_000
    for number, each in enumerate((tmp_path / "db", path)):
        with watersmeet.connect(each, runtime="inprocess") as connection:
            Harness(connection).set_clock(later_us)  # rows have the time of their arrival
            begun.append((definitions(connection), contents(connection), shown(connection)))
            if not number:
                change(connection, place, broker, 2 + ["directory", "objects"].index(target))
            else:
                run(connection, CHANGES, n=2 + ["directory", "objects"].index(target))
            ended.append((definitions(connection), contents(connection), shown(connection)))
    for before, after in (begun, ended):
        for one, other in zip(before, after, strict=True):
            assert one == other
    assert begun[0] != ended[0]
