"""Connections: options that sources, tables and sinks take over."""

import subprocess
import sys
import textwrap

import pytest
from tests.lakes import rest_catalog, sql_catalog
from tests.unit.sinks.databasetargets import is_done, wait

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


@pytest.fixture(params=["jdbc", "rest"])
def catalog(request, tmp_path):
    """Options of a connection to the catalog of `sql_catalog(tmp_path)`, by either way, with a secret `token`."""
    if request.param == "jdbc":
        yield f"catalog.type = 'jdbc', catalog.uri = 'jdbc:sqlite:{tmp_path}/catalog.db'"
        return
    with rest_catalog(tmp_path, "token-of-rest") as server:
        yield f"catalog.type = 'rest', catalog.uri = '{server.uri}', catalog.token = SECRET token"


def test_a_sink_and_a_source_of_iceberg_take_over_a_catalog(catalog, tmp_path):
    """Also after a restart, and what it keeps is nowhere in plain."""
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE SECRET token WITH (backend = 'meta') AS 'token-of-rest';
            CREATE CONNECTION lake WITH (type = 'iceberg', {catalog}, catalog.name = 'lake',
                warehouse.path = 'file://{tmp_path}/warehouse', s3.region = 'us-east-1');
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            CREATE SINK k FROM t WITH (connector = 'iceberg', connection = lake, database.name = 'marts',
                table.name = 'kept', type = 'upsert', primary_key = 'id', create_table_if_not_exists = 'true')
        """)
        wait(connection, is_done)
        connection.execute("""
            CREATE TABLE back (*, PRIMARY KEY (id)) WITH (connector = 'iceberg', connection = lake,
                database.name = 'marts', table.name = 'kept', on_delete = 'follow')
        """)
        assert sorted(connection.execute("FLUSH; SELECT * FROM back").fetchall()) == [(1, "a"), (2, "b")]
        assert connection.execute("SHOW CONNECTIONS").fetchall() == [("lake", "iceberg")]
        for kind, name in (("CONNECTION", "lake"), ("SINK", "k"), ("TABLE", "back")):
            assert "token-of-rest" not in str(connection.execute(f"SHOW CREATE {kind} {name}").fetchall())
        with pytest.raises(Error) as caught:
            connection.execute("DROP CONNECTION lake")
        assert caught.value.condition == "DEPENDENT_OBJECTS"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("UPDATE t SET name = 'c' WHERE id = 2; DELETE FROM t WHERE id = 1")
        wait(connection, is_done)
        assert connection.execute("FLUSH; SELECT * FROM back").fetchall() == [(2, "c")]
        assert sql_catalog(tmp_path).load_table("marts.kept").scan().to_arrow().to_pylist() == [{"id": 2, "name": "c"}]
        connection.execute("DROP SINK k; DROP TABLE back; DROP CONNECTION lake; DROP SECRET token")
    assert [f for f in path.rglob("*") if f.is_file() and b"token-of-rest" in f.read_bytes()] == []


@pytest.mark.parametrize(
    ("options", "condition", "message"),
    [
        ("catalog.type = 'rest'", "CONNECTOR_OPTION", "needs the option catalog.uri"),
        ("catalog.type = 'rest', catalog.uri = 'http://h:1'", "CONNECTOR_OPTION", "needs the option warehouse.path"),
        ("warehouse.path = 's3://b'", "CONNECTOR_OPTION", 'needs the option "catalog.type"'),
        ("catalog.type = 'glue'", "FEATURE_NOT_SUPPORTED", "catalogs of type glue are not supported"),
        ("catalog.type = 'rast'", "CONNECTOR_OPTION", 'catalog.type can\'t be "rast"'),
        ("hosted_catalog = true", "CONNECTOR_OPTION", 'has no option "hosted_catalog"'),
        ("catalog.type = 'rest', table.name = 't'", "CONNECTOR_OPTION", 'has no option "table.name"'),
    ],
)
def test_what_is_refused_of_a_catalog(fails, options, condition, message):
    found = fails(f"CREATE CONNECTION lake WITH (type = 'iceberg', {options})")
    assert (found.condition, message in found.message) == (condition, True), found
    assert found.span is not None


def test_a_connection_is_of_the_type_that_the_connector_takes(run, fails):
    run("""
        CREATE CONNECTION lake WITH (type = 'iceberg', catalog.type = 'rest', catalog.uri = 'http://h:1',
            warehouse.path = 's3://b');
        CREATE CONNECTION broker WITH (type = 'kafka', properties.bootstrap.server = 'h:1');
        CREATE TABLE t (id int PRIMARY KEY)
    """)
    for text, kind in (
        ("CREATE SOURCE s WITH (connector = 'iceberg', connection = broker, table.name = 't')", "kafka"),
        ("CREATE SOURCE s (a int) WITH (connector = 'deltalake', connection = lake, location = 's3://b')", "iceberg"),
        ("CREATE SINK s FROM t WITH (connector = 'kafka', connection = lake) FORMAT PLAIN ENCODE JSON", "iceberg"),
    ):
        assert f"is of type {kind}" in fails(text).message
    text = "CREATE SINK s FROM t WITH (connector = 'iceberg', connection = lake, catalog.type = 'rest')"
    assert 'option "catalog.type" is given by connection "lake", too' in fails(text).message


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


def test_forked_processes_that_end_leave_the_database_open(tmp_path):
    """For example workers that a server forks after `connect`."""
    script = """
        import os, sys
        import watersmeet
        connection = watersmeet.connect(runtime="inprocess")
        connection.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t")
        for closes in (False, True):
            child = os.fork()
            if child == 0:
                if closes:
                    connection.close()
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
        connection.execute("INSERT INTO t VALUES (1), (2); FLUSH")
        print(connection.execute("SELECT s FROM v").fetchall())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[(3,)]\n", "")
