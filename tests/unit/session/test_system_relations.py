"""System relations, read by queries that end."""

import json

import pytest

import watersmeet
from watersmeet.errors import Error


@pytest.fixture
def failing(run, tmp_path):
    """Two sources with records that can't be read, and a table of what to do about them."""
    for name, text in {"a": "1,x\ntwo,y\nthree,z\n", "b": "9,ok\nnine,bad\n"}.items():
        directory = tmp_path / name
        directory.mkdir()
        (directory / "in.csv").write_text(text)
        run(
            f"""CREATE SOURCE {name} (n int, t varchar)
                WITH (connector = 'file', path = '{directory}', format = 'csv', header = 'false', settle_ms = 0);
                CREATE MATERIALIZED VIEW v_{name} AS SELECT * FROM {name}"""
        )
    run("CREATE TABLE teams (source varchar PRIMARY KEY, team varchar)")
    run("INSERT INTO teams VALUES ('a', 'red'), ('b', 'blue')")
    run("FLUSH")


def test_records_of_files_are_rows(run, failing):
    assert run('SELECT source, line, text, rows, topic, "offset", key FROM watersmeet.dead_letters ORDER BY 1, 2') == [
        ("a", 2, "two,y", 1, None, None, None),
        ("a", 3, "three,z", 1, None, None, None),
        ("b", 2, "nine,bad", 1, None, None, None),
    ]
    assert run("SELECT source, count(*) FROM watersmeet.dead_letters GROUP BY source HAVING count(*) > 1") == [("a", 2)]
    assert run(
        """SELECT t.team, d.line FROM watersmeet.dead_letters AS d JOIN teams t ON t.source = d.source
           WHERE d.reason LIKE '%integer%' AND t.team = 'blue'"""
    ) == [("blue", 2)]
    run("CREATE TABLE kept AS SELECT source, text FROM watersmeet.dead_letters")
    run("INSERT INTO kept SELECT 'again', text FROM watersmeet.dead_letters WHERE source = 'b'; FLUSH")
    assert run("SELECT count(*) FROM kept") == [(4,)]
    assert run("SELECT sum(rows) FROM watersmeet.dead_letters") == [
        (sum(row[0] == "a" or row[0] == "b" for row in run("SHOW DEAD LETTERS")),)
    ]


@pytest.mark.parametrize("dialect", ["risingwave", "sqlstream", "timeplus", "lenses"])
def test_all_dialects_read_them(connection, run, failing, dialect):
    cursor = connection.cursor()
    cursor.execute(f"SET dialect = '{dialect}'")
    cursor.execute("SELECT count(*) FROM watersmeet.dead_letters")
    assert cursor.fetchall() == [(3,)]
    cursor.execute("SELECT line FROM system.mat_view_dlq WHERE source = 'b'")
    assert cursor.fetchall() == [(2,)]


def test_a_dropped_source_has_none(run, failing):
    run("DROP MATERIALIZED VIEW v_a; DROP SOURCE a")
    assert run("SELECT DISTINCT source FROM watersmeet.dead_letters") == [("b",)]


def test_a_materialized_view_of_them_is_refused(run, failing):
    with pytest.raises(Error, match=r"watersmeet\.dead_letters in a view is not supported") as caught:
        run("CREATE MATERIALIZED VIEW w AS SELECT * FROM watersmeet.dead_letters")
    assert caught.value.condition == "FEATURE_NOT_SUPPORTED"
    assert caught.value.span is not None
    run("CREATE VIEW p AS SELECT source, line FROM watersmeet.dead_letters")  # plain text, for queries that end
    assert run("SELECT line FROM p WHERE source = 'b'") == [(2,)]
    with pytest.raises(Error, match=r"watersmeet\.dead_letters in a view is not supported"):
        run("CREATE MATERIALIZED VIEW w AS SELECT * FROM p")


def test_a_schema_of_the_user_comes_first(run):
    run("CREATE SCHEMA watersmeet; CREATE TABLE watersmeet.dead_letters (mine int)")
    run("INSERT INTO watersmeet.dead_letters VALUES (7)")
    assert run("SELECT * FROM watersmeet.dead_letters") == [(7,)]


def test_messages_have_their_place_and_their_bytes(broker, topic, tmp_path):
    name = topic(partitions=2, retention_ms=-1)
    producer = broker.producer()
    producer.produce(name, json.dumps({"id": 1}).encode(), partition=0)
    producer.produce(name, b"\xff\x00", key=b"k\xff", partition=1)
    producer.produce(name, b"no json", partition=1)
    producer.flush()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"""CREATE SOURCE s (id int) WITH (connector = 'kafka', topic = '{name}',
                properties.bootstrap.server = '{broker.bootstrap}') FORMAT PLAIN ENCODE JSON"""
        )
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")
        cursor.execute("FLUSH")
        cursor.execute(
            """SELECT source, topic, partition, "offset", key, value, text, rows, file FROM watersmeet.dead_letters
               ORDER BY "offset" """
        )
        assert cursor.fetchall() == [
            ("s", name, 1, 0, b"k\xff", b"\xff\x00", None, 1, None),
            ("s", name, 1, 1, None, b"no json", "no json", 1, None),
        ]


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT * FROM rw_catalog.rw_fragments", '"rw_catalog.rw_relations"'),
        ("SELECT * FROM pg_catalog.pg_clas", '"pg_catalog.pg_class"'),
        ("DESCRIBE pg_catalog.pg_class", "SELECT * FROM pg_catalog.pg_class"),
        ("SELECT * FROM nowhere.t", 'There is no schema "nowhere"'),
    ],
)
def test_hints_for_unknown_relations_of_system_schemas(sql, hint):
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        with pytest.raises(watersmeet.Error) as unknown:
            connection.execute(sql)
        assert hint in unknown.value.hint
