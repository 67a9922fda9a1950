"""Publications of PostgreSQL: who has which one, what is lost when somebody changes it, and what it does not have."""

from __future__ import annotations

import re
import threading

import pytest
from tests.captures import ask, options, rows, source
from tests.waiting import until

import watersmeet
from watersmeet import errors
from watersmeet.capture import capturing
from watersmeet.capture.capturing import Captures
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.postgres.capture import SlotStream


@pytest.fixture
def opened(tmp_path, postgres):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


def tables_of(opened):
    """Of the tables of the first captured database: their states and reasons, by name."""
    (database,) = [r for r in opened._session.catalog.relations.values() if hasattr(r, "connector") and not r.has_rows]
    return opened._session.database.service(Captures).status(database.id).tables


def stopped(opened, table):
    """Why a table follows no more, once that was noticed."""
    until(lambda: tables_of(opened)[table].state == "stalled")
    return tables_of(opened)[table].reason


def test_databases_do_not_take_tables_from_each_other(tmp_path, opened, postgres):
    """Each has a publication of its own unless one is named."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY)")
    with watersmeet.connect(tmp_path / "other", runtime="inprocess") as other:
        other.execute(f"CREATE SOURCE there {options(postgres)}")
        other.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'")
        source(opened, postgres)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'")
        other.execute("DROP TABLE u")
        postgres.execute("INSERT INTO u VALUES (1)")
        assert rows(opened, "SELECT * FROM u") == [(1,)]
        other.execute("DROP SOURCE there CASCADE")
    postgres.execute("INSERT INTO t VALUES (2)")
    assert rows(opened, "SELECT * FROM t") == [(2,)]
    assert ask(postgres, "SELECT count(*) FROM pg_publication") == [(1,)]


def test_a_named_publication_stays_whole_while_other_slots_may_use_it(tmp_path, opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY)")
    named = {"publication.name": "shared"}
    with watersmeet.connect(tmp_path / "other", runtime="inprocess") as other:
        other.execute(f"CREATE SOURCE there {options(postgres, **named)}")  # this one creates it
        other.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'")
        source(opened, postgres, **named)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'")
        cursor = other.cursor()
        cursor.execute("DROP TABLE u")
        assert [*cursor.notices] == [
            f'publication "shared" still has table "public.u": replication slot "s_{postgres.name}" may use it'
        ]
        postgres.execute("INSERT INTO u VALUES (1)")
        assert rows(opened, "SELECT * FROM u") == [(1,)]
        cursor.execute("DROP SOURCE there CASCADE")
        assert [n for n in cursor.notices if 'publication "shared" is left' in n]
    postgres.execute("INSERT INTO t VALUES (2)")
    assert rows(opened, "SELECT * FROM t") == [(2,)]


def test_a_named_publication_goes_with_the_last_slot(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY)")
    source(opened, postgres, **{"publication.name": "named"})
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'; DROP TABLE u")
    assert ask(postgres, "SELECT tablename FROM pg_publication_tables") == [("t",)]
    opened.execute("DROP SOURCE there CASCADE")
    assert ask(postgres, "SELECT pubname FROM pg_publication") == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("ALTER PUBLICATION p DROP TABLE t", 'table "public.t" is not in publication "p" any more'),
        ("ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t", "was taken out of"),
        ("ALTER PUBLICATION p SET TABLE t (i), u", 'does not have column "v"'),
        ("ALTER PUBLICATION p SET TABLE t WHERE (i > 7), u", r"only rows of table .* where \(i > 7\)"),
        ("DROP TABLE t", 'table "public.t" (was dropped|is not in publication)'),
        ("ALTER TABLE t RENAME TO t2", 'table "public.t" was renamed to "public.t2"'),
    ],
)
def test_a_table_whose_changes_are_not_written_any_more_stops_alone(opened, postgres, monkeypatch, change, reason):
    monkeypatch.setattr(capturing, "_CHECK_S", 0.0)
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v int); CREATE TABLE u (i int PRIMARY KEY)")
    source(opened, postgres, **{"publication.name": "p"})
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE u (*) FROM there TABLE 'u'; FLUSH")
    assert {t.state for t in tables_of(opened).values()} == {"running"}
    postgres.execute(change)
    why = stopped(opened, "t")
    assert re.search(reason, why)
    assert "RESET SOURCE t" in why
    postgres.execute("INSERT INTO u VALUES (1)")
    assert rows(opened, "SELECT * FROM u", stops=True) == [(1,)]


def test_a_publication_that_is_gone_is_found_at_a_start(tmp_path, postgres):
    """Whoever dropped it, and created it again: what was committed between is missing."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, postgres, **{"publication.name": "p"})
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; FLUSH")
    postgres.execute("DROP PUBLICATION p")
    postgres.execute("INSERT INTO t VALUES (1)")
    postgres.execute("CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (2)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        assert "was taken out of" in stopped(opened, "t")
        opened.execute("RESET SOURCE t")
        assert sorted(rows(opened, "SELECT * FROM t")) == [(1,), (2,)]
        postgres.execute("INSERT INTO t VALUES (3)")
        assert sorted(rows(opened, "SELECT * FROM t")) == [(1,), (2,), (3,)]


PARTITIONED = """
CREATE TABLE t (i int, v text, PRIMARY KEY (i)) PARTITION BY RANGE (i);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (i);
CREATE TABLE t21 (v text, i int NOT NULL, PRIMARY KEY (i));
ALTER TABLE t2 ATTACH PARTITION t21 FOR VALUES FROM (10) TO (20);
CREATE TABLE t22 PARTITION OF t2 FOR VALUES FROM (20) TO (100);
INSERT INTO t SELECT i, 'v' || i FROM generate_series(0, 40) i
"""


@pytest.mark.parametrize("name", [None, "theirs"])
def test_every_truncation_of_a_partition_is_followed(opened, postgres, monkeypatch, name):
    postgres.execute(PARTITIONED)
    if name is not None:
        postgres.execute("CREATE PUBLICATION theirs FOR ALL TABLES")
    source(opened, postgres, **({} if name is None else {"publication.name": name}))
    opened.execute("CREATE TABLE part (*) FROM there TABLE 't21'; CREATE TABLE t (*) FROM there TABLE 't'")
    opened.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, min(i) AS i FROM t")
    monkeypatch.setattr(capturing, "_CHECK_S", 0.0)
    query, own = "SELECT i, v FROM t ORDER BY i", "SELECT i, v FROM {} ORDER BY i"
    assert rows(opened, query) == ask(postgres, query) != []
    for change in (
        "UPDATE t SET v = 'new' WHERE i % 7 = 0; UPDATE t SET i = 41 WHERE i = 1; DELETE FROM t21 WHERE i = 11",
        "TRUNCATE t1; INSERT INTO t VALUES (2, 'again')",
        "INSERT INTO t VALUES (3, 'lost'); TRUNCATE t2; INSERT INTO t VALUES (12, 'two'), (30, 'three')",
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (100) TO (200); INSERT INTO t VALUES (100, 'later')",
        "TRUNCATE t3, t21",
        "TRUNCATE t; INSERT INTO t VALUES (5, 'five')",
    ):
        postgres.execute(change)
        assert rows(opened, query) == ask(postgres, query), change
        assert rows(opened, own.format("part")) == ask(postgres, own.format("t21")), change
        assert rows(opened, "SELECT * FROM n") == ask(postgres, "SELECT count(*), min(i) FROM t"), change


@pytest.mark.slow
def test_a_partition_whose_rows_come_before_queries_see_it(tmp_path, own_postgres, monkeypatch):
    """A server that waits for a standby writes a commit to its log, and shows it later."""
    postgres, asked = own_postgres, threading.Event()
    lineage = SlotStream.lineage

    def noted(self, version):
        if version.name == "t3":
            asked.set()
        return lineage(self, version)

    monkeypatch.setattr(SlotStream, "lineage", noted)
    postgres.execute(PARTITIONED)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, postgres)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; FLUSH")
        postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        postgres.execute("SELECT pg_reload_conf()")
        until(lambda: ask(postgres, "SHOW synchronous_standby_names") == [("nobody",)])
        made = "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (100) TO (200); INSERT INTO t VALUES (100, 'later')"
        writer = threading.Thread(target=postgres.execute, args=[made])
        writer.start()
        assert asked.wait(60)
        assert ask(postgres, "SELECT relname FROM pg_class WHERE relname = 't3'") == []
        postgres.execute("ALTER SYSTEM RESET synchronous_standby_names")
        postgres.execute("SELECT pg_reload_conf()")
        writer.join()
        assert rows(opened, "SELECT * FROM t WHERE i = 100") == [(100, "later")]


def test_a_truncated_partition_stops_a_table_without_a_snapshot(opened, postgres):
    postgres.execute(PARTITIONED)
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) WITH (snapshot = 'false') FROM there TABLE 't'; FLUSH")
    postgres.execute("INSERT INTO t VALUES (41, 'x'); TRUNCATE t1")
    assert "a partition of table" in stopped(opened, "t")


def test_a_partition_whose_changes_go_by_its_root_is_refused(opened, postgres):
    postgres.execute(PARTITIONED)
    postgres.execute("CREATE PUBLICATION theirs FOR TABLE t WITH (publish_via_partition_root = true)")
    source(opened, postgres, **{"publication.name": "theirs"})
    with pytest.raises(errors.Error, match="publish_via_partition_root = false"):
        opened.execute("CREATE TABLE t1 (*) FROM there TABLE 't1'")


GENERATED = (
    "CREATE TABLE t (i int PRIMARY KEY, g int GENERATED ALWAYS AS (i * 2) STORED, v int);"
    "INSERT INTO t VALUES (1, DEFAULT, 10)"
)


def test_stored_generated_columns_come_where_the_server_writes_them(opened, postgres):
    postgres.execute(GENERATED)
    source(opened, postgres, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    query = "SELECT * FROM t ORDER BY i"
    assert rows(opened, query) == ask(postgres, query)
    postgres.execute("INSERT INTO t VALUES (2, DEFAULT, 20); UPDATE t SET i = 3 WHERE i = 1")
    assert rows(opened, query) == ask(postgres, query) == [(2, 4, 20), (3, 6, 10)]


def test_columns_that_the_server_does_not_write_are_left_out_and_refused_by_name(opened, postgres):
    postgres.execute(GENERATED)
    postgres.execute(
        "ALTER TABLE t ADD w int GENERATED ALWAYS AS (v + 1) VIRTUAL; CREATE PUBLICATION plain FOR TABLE t"
    )
    postgres.execute("CREATE TABLE u (i int PRIMARY KEY, a int, b int); CREATE PUBLICATION part FOR TABLE u (i, a)")
    source(opened, postgres, **{"auto.schema.change": "true", "publication.name": "plain"})
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    postgres.execute("INSERT INTO t (i, v) VALUES (2, 20); UPDATE t SET i = 3 WHERE i = 1")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == [(2, 20), (3, 10)]
    for column in ("g", "w"):
        with pytest.raises(errors.Error, match=f'column "{column}" of table "public.t" is generated') as refused:
            opened.execute(f"CREATE TABLE x (i int PRIMARY KEY, {column} int) FROM there TABLE 't'")
        assert refused.value.condition == "CONNECTOR_OPTION"
    given = {"publication.name": "part", "table.name": "u"}
    opened.execute(f"CREATE TABLE u (*) {options(postgres, **given)}")
    postgres.execute("INSERT INTO u VALUES (1, 2, 3)")
    assert rows(opened, "SELECT * FROM u") == [(1, 2)]
    with pytest.raises(errors.Error, match=r'column "b" of table "public\.u" is not in publication "part"'):
        opened.execute(f"CREATE TABLE x (i int PRIMARY KEY, b int) {options(postgres, **given)}")


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_keys_that_are_stored_out_of_line(opened, postgres, identity):
    """A change that leaves such a key as it was does not send it again, but with the old row."""
    postgres.execute(
        f"CREATE TABLE t (k text PRIMARY KEY, v int, big text); ALTER TABLE t REPLICA IDENTITY {identity},"
        "ALTER k SET STORAGE EXTERNAL, ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT repeat(i::text, 2400), i, repeat('x', 3000) FROM generate_series(1, 5) i"
    )
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; FLUSH")
    query = "SELECT v, k, big FROM t ORDER BY v"
    for change in (
        "UPDATE t SET v = v + 100",
        "UPDATE t SET k = k || 'a' WHERE v < 103; UPDATE t SET v = v + 10",
        "UPDATE t SET v = -v; DELETE FROM t WHERE v = -115; UPDATE t SET v = v - 1, big = 'y' WHERE v < -113",
    ):
        postgres.execute(change)
        assert rows(opened, query) == ask(postgres, query), change


def test_rows_that_come_back_and_letters_of_a_commit_that_was_not_made(tmp_path, postgres):
    """A value out of line that a change does not send can't be had of a row that was set aside."""
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY, d date, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, '2024-01-01', repeat('x', 3000) FROM generate_series(1, 2) i"
    )
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, postgres)
        opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; FLUSH")
        postgres.execute("UPDATE t SET d = '0044-03-15 BC' WHERE i = 1")
        assert rows(opened, "SELECT i FROM t") == [(2,)]
        postgres.execute("UPDATE t SET d = '2024-01-02' WHERE i = 1")
        assert rows(opened, "SELECT i FROM t") == [(2,)]
        letters = opened.execute("SHOW DEAD LETTERS FROM t").fetchall()
        assert [reason for *_, reason, _ in letters] == [
            'a value of column "d" of table "public.t" is not date: 0044-03-15 BC',
            'a change left column "big" as it was, and table "t" does not have the row',
        ]
        postgres.execute("UPDATE t SET big = 'y' WHERE i = 1")
        assert sorted(rows(opened, "SELECT i, big FROM t WHERE i = 1")) == [(1, "y")]
        database = opened._session.database
        directory = database.layout.dead(opened._session.catalog.by_name("t").id)
        with DeadLetterWriter(directory, database.log.head() + 1) as dead:
            dead.add("public.t", None, "of a process that was killed")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        until(lambda: opened.execute("SHOW DEAD LETTERS FROM t").fetchall() == letters)
