"""ALTER: what was stored under other names, or without a column, is read for ever."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from tests.thorough import mostly_slow

import watersmeet

SETUP = """
    CREATE TABLE t (a int PRIMARY KEY, b int);
    CREATE TABLE log (x int) APPEND ONLY;
    INSERT INTO t VALUES (1, 10), (2, 20);
    INSERT INTO log VALUES (1), (2);
    CREATE VIEW every AS SELECT * FROM t;
    CREATE MATERIALIZED VIEW m AS SELECT e.*, log.* FROM every e JOIN log ON e.a = log.x;
    FLUSH"""
ALTERED = """
    ALTER TABLE t RENAME TO u;
    ALTER TABLE u RENAME COLUMN b TO c;
    ALTER TABLE u ADD COLUMN b varchar;
    ALTER TABLE log ADD COLUMN y int;
    CREATE TABLE t (a int, b int);
    INSERT INTO t VALUES (100, 100);
    INSERT INTO u VALUES (3, 30, 'new');
    INSERT INTO log VALUES (3, 3);
    DELETE FROM u WHERE a = 1;
    CREATE MATERIALIZED VIEW n AS SELECT u.a, u.c, u.b, log.y FROM u JOIN log ON u.a = log.x;
    FLUSH"""
CONTENT = {
    "u": [(2, 20, None), (3, 30, "new")],
    "t": [(100, 100)],
    "log": [(1, None), (2, None), (3, 3)],
    "every": [(2, 20), (3, 30)],
    "m": [(2, 20, 2), (3, 30, 3)],
    "n": [(2, 20, None, None), (3, 30, "new", 3)],
}


def content(connection):
    return {n: sorted(connection.execute(f"SELECT * FROM {n}").fetchall(), key=str) for n in CONTENT}


def compact(connection):
    connection._session.database._compactor.run()


@pytest.mark.parametrize("compacted", mostly_slow(["never", "both", "before", "after"], 4))
def test_it_is_the_same_after_a_restart_and_a_rebuild(tmp_path, compacted):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(SETUP)
        if compacted in ("before", "both"):
            compact(connection)
        connection.execute(ALTERED)
        assert content(connection) == CONTENT
        if compacted in ("after", "both"):
            compact(connection)
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            assert content(reader) == CONTENT
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=3, rebuild=True) as connection:
        connection.execute("UPDATE u SET c = 31, b = 'set' WHERE a = 3; INSERT INTO log (x) VALUES (2); FLUSH")
        assert sorted(connection.execute("SELECT * FROM m").fetchall()) == [(2, 20, 2), (2, 20, 2), (3, 31, 3)]
        assert (3, 31, "set", 3) in connection.execute("SELECT * FROM n").fetchall()
        compact(connection)
        connection.execute("CREATE MATERIALIZED VIEW late AS SELECT c, b FROM u; FLUSH")
        assert sorted(connection.execute("SELECT * FROM late").fetchall()) == [(20, None), (31, "set")]


def test_a_column_is_added_to_a_source_of_files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"a": 1, "b": "old"}\n')
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(
            f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{folder}') FORMAT PLAIN ENCODE JSON;"
            "CREATE MATERIALIZED VIEW v AS SELECT * FROM s; FLUSH; ALTER SOURCE s ADD COLUMN b varchar"
        )
        (folder / "2.json").write_text('{"a": 2, "b": "new"}\n{"a": 3}\n')
        connection.execute("FLUSH; CREATE MATERIALIZED VIEW w AS SELECT a, b FROM s; FLUSH")
        (folder / "3.json").write_text('{"a": 4, "b": "last"}\n')
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT * FROM v").fetchall()) == [(1,), (2,), (3,), (4,)]
        rows = connection.execute("SELECT * FROM w ORDER BY a").fetchall()
        assert rows == [(1, "old"), (2, "new"), (3, None), (4, "last")]
        assert "b varchar) WITH" in connection.execute("SHOW CREATE SOURCE s").fetchall()[0][1]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        (folder / "4.json").write_text(json.dumps({"a": 5, "b": "again"}) + "\n")
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM w WHERE a = 5").fetchall() == [(5, "again")]


def test_what_can_not_be_altered_is_refused(run, fails, tmp_path):
    options = f"WITH (connector = 'file', path = '{tmp_path}') FORMAT PLAIN ENCODE JSON"
    run(f"CREATE TABLE fed (a int PRIMARY KEY) {options}; CREATE SOURCE s (a int) {options}")
    assert fails("ALTER TABLE fed ADD COLUMN b int").message == (
        "ADD COLUMN of a table with a connector is not supported"
    )
    assert fails("ALTER SOURCE s RENAME COLUMN a TO b").message == (
        "RENAME COLUMN of a source with a connector is not supported"
    )
    run("SET dialect = 'lenses'; CREATE TABLE items (_key int, n int) FORMAT (INT, AVRO)")
    assert fails("ALTER TABLE items RENAME TO x").condition == "FEATURE_NOT_SUPPORTED"
    run("SET dialect = 'risingwave'")
    assert fails("ALTER TABLE items RENAME TO x").message == "ALTER of a topic is not supported"


@pytest.mark.parametrize(
    ("made", "altered", "shown"),
    [
        ("t (a int) APPEND ONLY", 'RENAME TO "T 2"', 'CREATE TABLE "T 2" (a int) APPEND ONLY'),
        ("t AS SELECT 1 AS a", "ADD COLUMN b varchar", "CREATE TABLE t (a integer, b varchar)"),
        (
            "t (date date, b int, PRIMARY KEY (date))",
            "RENAME COLUMN date TO day",
            "CREATE TABLE t (day date, b int, PRIMARY KEY (day))",
        ),
        (
            "t (ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) APPEND ONLY",
            'RENAME ts TO "At"',
            'CREATE TABLE t ("At" timestamp, WATERMARK FOR "At" AS "At" - INTERVAL \'1\' SECOND) APPEND ONLY',
        ),
    ],
)
def test_show_create_shows_what_makes_the_same(connection, run, made, altered, shown):
    run(f"CREATE TABLE {made}; ALTER TABLE t {altered}")
    (relation,) = [r for r in connection._session.catalog.relations.values() if not r.hidden]
    assert run(f'SHOW CREATE TABLE "{relation.name}"') == [(relation.name, shown)]
    run(f'DROP TABLE "{relation.name}"; {shown}')
    (again,) = [r for r in connection._session.catalog.relations.values() if not r.hidden]
    assert (again.name, again.primary_key, again.event_time) == (
        relation.name,
        relation.primary_key,
        relation.event_time,
    )
    assert [(c.name, c.type) for c in again.columns] == [(c.name, c.type) for c in relation.columns]


def test_several_clauses_of_one_alter_take_effect_together():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY, b numeric(10, 2)); INSERT INTO t VALUES (1, 2.5)")
        connection.execute(
            "ALTER TABLE t ADD COLUMN c numeric(10, 2) DEFAULT round(1.25, 1), ADD d varchar, DROP COLUMN b, "
            "ADD COLUMN e struct<x int, y varchar>"
        )
        assert connection.execute("SELECT * FROM t").fetchall() == [(1, Decimal("1.3"), None, None)]
        with pytest.raises(watersmeet.Error, match='column "d" of table "t" already exists'):
            connection.execute("ALTER TABLE t DROP COLUMN c, ADD COLUMN d int")
        assert [d[0] for d in connection.execute("SELECT * FROM t").description] == ["a", "c", "d", "e"]
        connection.execute("ALTER TABLE t ALTER COLUMN d SET DEFAULT 'x, y', DROP COLUMN c")
        connection.execute("INSERT INTO t (a) VALUES (2)")
        assert connection.execute("SELECT a, d FROM t WHERE a = 2").fetchall() == [(2, "x, y")]
