"""Every kind of relation: what SHOW, SHOW CREATE, DESCRIBE, DROP and CREATE OR REPLACE do with one, or say of it."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

import watersmeet
from watersmeet import catalog as c
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.statements.sourceclauses import (
    CreateCapturedTable,
    CreateReceivedSource,
    CreateReceivedTable,
    CreateWebhookTable,
)
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree.definitions import CreateMergingPump
from watersmeet.session.features.dictionaries import CreateDictionary
from watersmeet.session.features.external import CreateExternalStream, CreateExternalTable
from watersmeet.session.features.foreign import CreateForeignStream, CreateForeignTable, CreateServer
from watersmeet.session.features.randomstreams import CreateRandomStream
from watersmeet.session.features.sequences import CreateSequence
from watersmeet.session.features.sharedoptions import CreateConnection, CreateFormatSchema, CreateNamedCollection
from watersmeet.session.features.sqlfunctions import CreateFunction
from watersmeet.session.features.subscriptions import CreateSubscription
from watersmeet.session.features.types import CreateDomain, CreateEnum
from watersmeet.values import DIALECTS
from watersmeet.values.types import INTEGER, Field

#: By dialect, what makes a relation of each kind, under the name of its class.
MADE = {
    "risingwave": """
CREATE TABLE "Table" (a int PRIMARY KEY, b varchar);
CREATE TABLE "WebhookTable" (a jsonb) WITH (connector = 'webhook');
CREATE SOURCE "Source" (a int) WITH (connector = 'datagen');
CREATE VIEW "View" AS SELECT a FROM "Table";
CREATE MATERIALIZED VIEW "MaterializedView" AS SELECT a FROM "Table";
CREATE INDEX "Index" ON "Table" (b);
CREATE SINK "Sink" FROM "Table" WITH (connector = 'blackhole');
CREATE CONNECTION "Connection" WITH (type = 'schema_registry', schema.registry = 'http://h:1');
CREATE SUBSCRIPTION "NamedSubscription" FROM "Table" WITH (retention = '1D');
CREATE SEQUENCE "NumberSequence";
CREATE TYPE "EnumType" AS ENUM ('a');
CREATE DOMAIN "DomainType" AS int CHECK (VALUE > 0)""",
    "timeplus": """
CREATE STREAM Stream (a int);
CREATE MUTABLE STREAM below (a int, b string) PRIMARY KEY a;
CREATE EXTERNAL TABLE ExternalTable (a int, b string) SETTINGS type = 'file', path = '{file}', format = 'CSV';
CREATE EXTERNAL TABLE ExternalView SETTINGS type = 'timeplus', table = 'below';
CREATE DICTIONARY DictionaryTable (a int, b string) PRIMARY KEY a
    SOURCE(FILE(path '{file}' format 'CSV')) LAYOUT(FLAT());
CREATE DICTIONARY DictionaryView (a int, b string) PRIMARY KEY a SOURCE(TIMEPLUS(STREAM 'below')) LAYOUT(FLAT());
CREATE FORMAT SCHEMA FormatSchema AS 'message M {}' TYPE Protobuf;
CREATE NAMED COLLECTION NamedCollection AS brokers = 'h:1'""",
    "sqlstream": """
CREATE SERVER "Server" TYPE 'KAFKA10' FOREIGN DATA WRAPPER ECDA OPTIONS ("TOPIC" 't');
CREATE STREAM "read" ("A" INTEGER);
CREATE STREAM "written" ("A" INTEGER);
CREATE PUMP "Pump" STARTED AS INSERT INTO "written" SELECT STREAM "A" FROM "read";
CREATE PUMP "StoppedPump" STOPPED AS INSERT INTO "written" SELECT STREAM "A" FROM "read\"""",
    "lenses": """
CREATE TABLE TopicTable (_key int, item string) FORMAT (INT, AVRO);
SET defaults.topic.autocreate = true;
INSERT INTO Processor SELECT STREAM * FROM TopicTable""",
}
#: By dialect, statements that replace what is called `name`.
REPLACING = {
    "risingwave": {
        df.CreateTable: "TABLE name (a int)",
        CreateWebhookTable: "TABLE name (a int) WITH (connector = 'webhook')",
        df.CreateSource: "SOURCE name (a int, b int) WITH (connector = 'datagen')",
        df.CreateView: 'VIEW name AS SELECT a, b FROM "Table"',
        df.CreateMaterializedView: 'MATERIALIZED VIEW name AS SELECT b FROM "Table"',
        df.CreateIndex: 'INDEX name ON "Table" (a)',
        df.CreateSink: "SINK name FROM \"Table\" WITH (connector = 'blackhole', type = 'upsert')",
        CreateConnection: "CONNECTION name WITH (type = 'kafka', properties.bootstrap.server = 'h:1')",
        CreateSequence: "SEQUENCE name START 3",
        CreateEnum: "TYPE name AS ENUM ('b')",
        CreateDomain: "DOMAIN name AS varchar",
        CreateSubscription: "SUBSCRIPTION name FROM \"Table\" WITH (retention = '2D')",
    },
    "timeplus": {
        df.CreateStream: "STREAM name (a int)",
        CreateRandomStream: "RANDOM STREAM name (a int) SETTINGS eps = 1",
        CreateExternalStream: "EXTERNAL STREAM name (a int) SETTINGS type = 'file', path = '{file}', format = 'CSV'",
        CreateExternalTable: "EXTERNAL TABLE name SETTINGS type = 'timeplus', table = 'below'",
        CreateDictionary: "DICTIONARY name (a int, b string) PRIMARY KEY a SOURCE(TIMEPLUS(STREAM 'below')) "
        "LAYOUT(FLAT())",
        CreateFormatSchema: "FORMAT SCHEMA name AS 'message N {}' TYPE Protobuf",
        CreateNamedCollection: "NAMED COLLECTION name AS topic = 't'",
    },
    "sqlstream": {
        CreateServer: "SERVER name TYPE 'FILE' FOREIGN DATA WRAPPER ECDA",
        CreateForeignStream: "FOREIGN STREAM name (a INTEGER) SERVER FILE_SERVER "
        "OPTIONS (PARSER 'CSV', DIRECTORY '{file}')",
        df.CreatePump: 'PUMP name STOPPED AS INSERT INTO "written" SELECT STREAM "A" FROM "read" WHERE "A" > 1',
    },
    "lenses": {df.CreateTopic: "TABLE name (_key int, item string) FORMAT (INT, AVRO)"},
}
#: What a word of DROP means in a dialect where it is not what it says.
MEANT = {("timeplus", "view"): "any view", ("lenses", "table"): "topic"}

NAMED = [k for k in c.KINDS if k.words.show]
BY_KIND = pytest.mark.parametrize("kind", NAMED, ids=lambda k: k.__name__)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    found = tmp_path_factory.mktemp("kinds") / "outside.csv"
    found.write_text("1,x\n", encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def connection(file):
    with watersmeet.connect(runtime="inprocess", parallelism=2) as made:
        for dialect, text in MADE.items():
            made.execute(f"SET dialect = '{dialect}'")
            made.execute(text.replace("{file}", str(file)))
        _add_captured(made._session)
        yield made


def _add_captured(session):
    """What statements make only where a server is: here nothing answers."""
    server = {
        "connector": "postgres-cdc",
        "hostname": "127.0.0.1",
        "port": "1",
        "username": "u",
        "database.name": "d",
        "slot.name": "s",
    }
    columns = (Field("a", INTEGER, nullable=False),)
    database = c.CapturedDatabase(
        session.catalog.new_id(c.CapturedDatabase), "CapturedDatabase", (), sql="CREATE SOURCE …", connector=server,
        start="0/1",
    )  # fmt: skip
    session.put(database)
    options = {"connector": "mqtt", "url": "tcp://127.0.0.1:1", "topic": "t"}
    for kind in (c.ReceivedTable, c.ReceivedSource):
        relation_id = session.catalog.new_id(kind)
        session.put(kind(relation_id, kind.__name__, columns, sql=f"CREATE {kind.__name__}", options=options))
    captured = c.Captured(database.id, "public", "t", 1, {"a": "23"})
    session.put(
        c.CapturedTable(
            session.catalog.new_id(c.CapturedTable),
            "CapturedTable",
            columns,
            primary_key=("a",),
            captured=captured,
            sql="CREATE TABLE … FROM …",
            depends_on=(database.id,),
        )
    )


@pytest.fixture
def run(connection):
    """Runs a statement of a dialect, and gives its rows or the error."""

    def run(dialect, sql):
        connection.execute(f"SET dialect = '{dialect}'")
        try:
            cursor = connection.cursor().execute(sql)
        except watersmeet.Error as err:
            return err
        return cursor.fetchall() if cursor.description else []

    return run


@contextmanager
def undone(connection):
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def called(kind, dialect):
    return f"`{kind.__name__}`" if dialect == "lenses" else f'"{kind.__name__}"'


def relation_of(connection, kind):
    return connection._session.catalog.by_name(kind.__name__)


def test_there_is_one_of_each_kind_that_statements_name(connection):
    assert [type(relation_of(connection, k)) for k in NAMED] == NAMED


def test_a_hidden_kind_has_no_words_of_statements():
    assert [k.__name__ for k in c.KINDS if k not in NAMED] == [
        "AddressRanges",
        "QuerySource",
        "LateRows",
        "TopicWriter",
        "Query",
        "Subscription",
        "CacheFill",
        "SinkQuery",
        "SinkConflicts",
        "PausedQuery",
    ]
    assert not any(k.words.show_create or k.words.drop for k in c.KINDS if k not in NAMED)


@BY_KIND
def test_show_lists_it_where_its_words_say(kind, run):
    lists = {what for what in c.SHOWN if kind.__name__ in [r[0] for r in run("risingwave", f"SHOW {what}")]}
    assert lists == set(kind.words.show)
    assert (kind.__name__, kind.words.what) in run("risingwave", "SHOW RELATIONS")


@BY_KIND
def test_show_create_shows_it_under_its_words_and_says_them_under_others(kind, connection, run):
    name = called(kind, "risingwave")
    for word in c.SHOWN_CREATED:
        found = run("risingwave", f"SHOW CREATE {word} {name}")
        if word in kind.words.show_create:
            assert found[0] == (kind.__name__, relation_of(connection, kind).sql)
            continue
        assert (found.condition, found.message) == (
            "CATALOG_TYPE_MISMATCH",
            f'"{kind.__name__}" is {c.one(kind.words.what)}, not {c.one(word)}',
        )
        assert found.hint == f"Use SHOW CREATE {kind.words.show_create[0].upper()}."


@pytest.mark.parametrize("dialect", DIALECTS)
@BY_KIND
def test_describe_shows_its_columns_and_its_word(kind, dialect, connection, run):
    rows = run(dialect, f"DESCRIBE {called(kind, dialect)}")
    assert rows[-1] == ("table description", kind.words.what, None)
    fields = [f.name for f in relation_of(connection, kind).columns if f.name[0] != "@"]
    assert set(fields) <= {r[0] for r in rows}


@pytest.mark.parametrize("dialect", DIALECTS)
@BY_KIND
def test_drop_takes_its_words_and_says_them_for_others(kind, dialect, connection, run):
    for word in (*c.FAMILIES, *language_named(dialect).semantics.own_words):
        with undone(connection):
            found = run(dialect, f"DROP {word} {called(kind, dialect)} CASCADE")
            if MEANT.get((dialect, word), word) in kind.words.drop:
                assert not isinstance(found, watersmeet.Error)
                assert relation_of(connection, kind) is None
                continue
        assert found.condition == "CATALOG_TYPE_MISMATCH", word
        assert found.message.startswith(f'"{kind.__name__}" is not ')
        hinted = re.match(r"(?:Use|SET dialect = '(\w+)': that has) (DROP [A-Z ]+)", found.hint)
        with undone(connection):
            followed = run(hinted[1] or dialect, f"{hinted[2]} {called(kind, hinted[1] or dialect)} CASCADE")
            assert not isinstance(followed, watersmeet.Error), found.hint
            assert relation_of(connection, kind) is None


@BY_KIND
def test_create_or_replace_replaces_its_kind_and_refuses_others_by_name(kind, connection, run, file):
    relation = relation_of(connection, kind)
    for dialect, statements in REPLACING.items():
        for statement, text in statements.items():
            made = statement.makes.words.role
            with undone(connection):
                sql = text.replace("name", called(kind, dialect), 1).replace("{file}", str(file.parent))
                found = run(dialect, f"CREATE OR REPLACE {sql}")
                if made != kind.words.role:
                    assert (found.condition, found.message) == (
                        "CATALOG_TYPE_MISMATCH",
                        f"{relation.reader} can't be replaced by {c.one(made)}",
                    )
                elif isinstance(found, watersmeet.Error):
                    assert found.condition == "DEPENDENT_OBJECTS"
                else:
                    assert relation_of(connection, kind).sql == f"CREATE {sql}" != relation.sql


def test_every_statement_that_makes_a_relation_says_of_which_kind():
    def below(base):
        return [base, *(s for b in base.__subclasses__() for s in below(b))]

    abstract = {df.Create, df.CreateRelation, df.CreateOptions}
    silent = {s for s in below(df.Create) if not hasattr(s, "makes")} - abstract
    assert silent == {CreateFunction}
    replaced = {s for statements in REPLACING.values() for s in statements}
    assert {s for s in below(df.Create)} - abstract - silent - replaced == {
        df.CreateProcessor,
        CreateCapturedTable,
        CreateForeignTable,
        CreateMergingPump,
        CreateReceivedSource,
        CreateReceivedTable,
    }


def test_what_is_no_kind_of_relation_is_refused_by_name(run):
    found = run("risingwave", 'SHOW CREATE FUNCTION "Table"')
    assert found.condition == "UNDEFINED_FUNCTION"
