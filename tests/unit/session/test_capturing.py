"""Tables that follow tables of a real PostgreSQL by its changes."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import shutil
import subprocess
import time
from decimal import Decimal

import pytest
from scripts.servers.postgres import PASSWORD, USER
from scripts.servers.process import free_ports
from tests import waiting

import watersmeet
from watersmeet import errors, faults
from watersmeet.clients.databaseservers import Server
from watersmeet.sources.capture.postgres.servers import drop_slot
from watersmeet.sources.capture.postgres.slots import SlotReader

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (i int PRIMARY KEY, b bool, s smallint, l bigint, r real, d double precision, n numeric(12, 2),
    v varchar(10), c char(3), u uuid, y bytea, a date, e time, p timestamp, z timestamptz, j jsonb, m mood,
    x int[], w text[], q numeric(20, 2)[], o interval)"""
ROW = """(1, true, 2, 9007199254740993, 1.5, 0.1, 1234567890.12, 'a "b", c', 'xy',
    '00000000-0000-0000-0000-00000000002a', '\\x00ff', '2024-02-29', '12:34:56.789',
    '2024-02-29 12:34:56.123456', '2024-02-29 12:00:00+02', '{"k": [1, null]}', 'ok', '{1,NULL,3}',
    '{"a,b", "NULL", "", "\\\\ \\"q\\""}', '{99999999999999.99}', '1 day 02:03:04')"""
VALUES = (1, True, 2, 9007199254740993, 1.5, 0.1, Decimal("1234567890.12"), 'a "b", c', "xy",
    "00000000-0000-0000-0000-00000000002a", b"\x00\xff", dt.date(2024, 2, 29), dt.time(12, 34, 56, 789000),
    dt.datetime(2024, 2, 29, 12, 34, 56, 123456), dt.datetime(2024, 2, 29, 10, 0, tzinfo=dt.UTC), {"k": [1, None]},
    "ok", [1, None, 3], ["a,b", "NULL", "", '\\ "q"'], [Decimal("99999999999999.99")])  # fmt: skip


def options(postgres, **more):
    found = {"connector": "postgres-cdc", "hostname": "127.0.0.1", "port": postgres.server.port, "username": USER,
        "password": PASSWORD, "database.name": postgres.name, **more}  # fmt: skip
    return "WITH (" + ", ".join(f"{n} = '{v}'" for n, v in found.items()) + ")"


def source(opened, postgres, **more):
    slot = f"s_{postgres.name}"
    opened.execute(f"CREATE SOURCE pg {options(postgres, **{'slot.name': slot, **more})}")
    return slot


def rows(opened, query, *, stops=False):
    """What a query gives. stops: a table may follow no more."""
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert not [n for n in cursor.notices if "waited for" in n or (not stops and "follows no more" in n)], (
        cursor.notices
    )
    cursor.execute(query)
    return cursor.fetchall()


def ask(postgres, query):
    with postgres.connect() as connection:
        return connection.execute(query).fetchall()


def publication(postgres):
    """The name of the only publication."""
    ((name,),) = ask(postgres, "SELECT pubname FROM pg_publication")
    return name


@pytest.fixture
def opened(tmp_path, postgres):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


def test_every_type_comes_by_the_snapshot_and_by_changes(opened, postgres):
    postgres.execute(f"{TYPES}; INSERT INTO t VALUES {ROW}; INSERT INTO t (i, v) VALUES (2, '')")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 'public.t'")
    before = rows(opened, "SELECT * FROM t ORDER BY i")
    assert before[0][:-1] == VALUES
    assert before[1] == (2, *[None] * 6, "", *[None] * 13)
    postgres.execute(f"DELETE FROM t; INSERT INTO t VALUES {ROW}; INSERT INTO t (i, v) VALUES (2, '')")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == before
    assert str(rows(opened, "SELECT o FROM t WHERE i = 1")[0][0]) == "1 day, 2:03:04"


def test_changes_of_rows(opened, postgres):
    postgres.execute("CREATE TABLE t (a int, b text, v text, PRIMARY KEY (b, a)); INSERT INTO t VALUES (1, 'x', 'one')")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (a int, b varchar, v varchar, PRIMARY KEY (a, b)) FROM pg TABLE 'public.t'")
    opened.execute("CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS n, max(v) AS v FROM t")
    assert rows(opened, "SELECT * FROM seen") == [(1, "one")]
    postgres.execute("INSERT INTO t VALUES (2, 'y', 'two'), (3, 'z', NULL)")
    postgres.execute("UPDATE t SET v = 'three' WHERE a = 3; UPDATE t SET a = 4, v = 'four' WHERE a = 2")
    postgres.execute("DELETE FROM t WHERE a = 1; INSERT INTO t VALUES (1, 'x', 'new')")
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(1, "x", "new"), (3, "z", "three"), (4, "y", "four")]
    assert rows(opened, "SELECT * FROM seen") == [(3, "three")]
    postgres.execute("UPDATE t SET a = 7 - a")  # keys change places
    assert rows(opened, "SELECT * FROM t ORDER BY a") == [(3, "y", "four"), (4, "z", "three"), (6, "x", "new")]
    postgres.execute("TRUNCATE t; INSERT INTO t VALUES (9, 'n', 'nine')")
    assert rows(opened, "SELECT * FROM t") == [(9, "n", "nine")]
    postgres.execute("TRUNCATE t")
    assert rows(opened, "SELECT * FROM seen") == [(0, None)]


def test_values_that_a_change_leaves_as_they_were(opened, postgres):
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, 0, repeat(i::text, 9000) FROM generate_series(1, 4) i"
    )
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT count(*) FROM t") == [(4,)]
    postgres.execute("UPDATE t SET n = 1")
    postgres.execute(  # in one batch: chains of changes, also over changes of keys, and a new value between
        "UPDATE t SET n = n + 1 WHERE i < 4; UPDATE t SET i = 11 WHERE i = 1; UPDATE t SET n = 5 WHERE i = 11;"
        "UPDATE t SET i = 12 WHERE i = 11; UPDATE t SET big = repeat('z', 9001) WHERE i = 2; UPDATE t SET n = 7 WHERE "
        "i = 2; DELETE FROM t WHERE i = 3; INSERT INTO t VALUES (3, 1, repeat('y', 9002)); UPDATE t SET n = 8 WHERE i=3"
    )
    assert rows(opened, "SELECT i, n, length(big), left(big, 1) FROM t ORDER BY i") == ask(
        postgres, 'SELECT i, n, length(big), "left"(big, 1) FROM t ORDER BY i'
    )


def test_tables_of_one_transaction_change_at_once(opened, postgres):
    postgres.execute("CREATE TABLE a (i int PRIMARY KEY, v int); CREATE TABLE b (i int PRIMARY KEY, v int)")
    source(opened, postgres)
    opened.execute("CREATE TABLE a (*) FROM pg TABLE 'a'")
    opened.execute("CREATE TABLE b (*) FROM pg TABLE 'b'")
    opened.execute("FLUSH")
    log = opened._session.database.log
    start = log.head()
    for i in range(50):
        postgres.execute(f"INSERT INTO a VALUES ({i}, {i}); INSERT INTO b VALUES ({i}, -{i})")
    opened.execute("FLUSH")
    changed = [c.relations for c in log.transactions(start, log.head()) if c.relations]
    assert changed
    assert all(len(c) == 2 for c in changed)
    assert all(len({r.inserted_rows for r in c.values()}) == 1 for c in changed)


def test_who_is_behind_takes_all_that_is_there(postgres):
    """A commit here costs much beside its rows: so a batch has as many transactions as have come."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t SELECT i FROM generate_series(1, 60) i")
    postgres.execute("CREATE PUBLICATION p FOR TABLE t")
    slot, count = f"s_{postgres.name}", 150
    with contextlib.closing(postgres.connect()) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        server = Server("127.0.0.1", postgres.server.port, USER, PASSWORD, postgres.name)
        with contextlib.closing(SlotReader(server, slot, ["p"], 0)) as reader:
            for number in range(count):
                connection.execute(f"UPDATE t SET v = 'changed {number}'")
            (end,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            sent = "SELECT bool_or(sent_lsn >= %s) FROM pg_stat_replication"
            waiting.until(lambda: connection.execute(sent, [end]).fetchone()[0])
            batches: list[int] = []
            while sum(batches) < count:
                batch = reader.read(1)
                batches += [len(batch.times_us)] if batch is not None else []
        drop_slot(connection, slot)
    assert len(batches) <= 5, batches


def test_a_table_of_its_own_slot(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    more = {"table.name": "t", "schema.name": "public", "slot.name": f"own_{postgres.name}"}
    opened.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v varchar) INCLUDE table_name AS t INCLUDE timestamp AS at "
        + options(postgres, **more)
    )
    assert rows(opened, "SELECT i, v, t, at FROM t") == [(1, "one", "t", None)]
    postgres.execute("UPDATE t SET v = 'two'")
    ((i, v, t, at),) = rows(opened, "SELECT i, v, t, at FROM t")
    assert (i, v, t) == (1, "two", "t")
    assert abs(at - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
    opened.execute("DROP TABLE t")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
    assert ask(postgres, "SELECT pubname FROM pg_publication") == []


def test_slot_and_publication_go_with_their_source(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY)")
    slot = source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM pg TABLE 'u'")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == [(slot,)]
    opened.execute("DROP TABLE u")
    assert ask(postgres, "SELECT tablename FROM pg_publication_tables") == [("t",)]
    with pytest.raises(errors.Error, match="other objects depend on it"):
        opened.execute("DROP SOURCE pg")
    opened.execute("DROP SOURCE pg CASCADE")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
    assert ask(postgres, "SELECT pubname FROM pg_publication") == []


def test_what_fails_or_is_rolled_back_leaves_nothing(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    opened.execute("BEGIN")
    source(opened, postgres)
    opened.execute("ROLLBACK")
    with pytest.raises(errors.Error, match="no column"):
        opened.execute(f"CREATE TABLE t (i int PRIMARY KEY, w int) {options(postgres, **{'table.name': 't'})}")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


@pytest.mark.slow
def test_a_snapshot_in_pieces_while_rows_change(opened, postgres):
    postgres.execute(
        "CREATE TABLE t (k text PRIMARY KEY, v int); INSERT INTO t SELECT 'k' || i, 0 FROM generate_series(1, 500) i"
    )
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) WITH (snapshot.batch_size = '20') FROM pg TABLE 't'")
    for i in range(1, 60):
        postgres.execute(
            f"UPDATE t SET v = v + 1 WHERE k LIKE '%{i % 10}'; DELETE FROM t WHERE k = 'k{i * 7}';"
            f"INSERT INTO t VALUES ('k{i}x', {i}); UPDATE t SET k = k || 'y' WHERE k = 'k{i * 8}'"
        )
    assert rows(opened, "SELECT * FROM t ORDER BY k") == ask(postgres, 'SELECT * FROM t ORDER BY k COLLATE "C"')


def test_without_snapshot_only_changes_come(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) WITH (snapshot = 'false') FROM pg TABLE 't'")
    opened.execute("FLUSH")
    postgres.execute("INSERT INTO t VALUES (2)")
    assert rows(opened, "SELECT * FROM t") == [(2,)]


def test_columns_that_are_added_there_are_added_here(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text, out int); INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    postgres.execute("CREATE TABLE u (i int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'one')")
    source(opened, postgres, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM pg TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM pg TABLE 'u'")
    opened.execute("CREATE MATERIALIZED VIEW before AS SELECT * FROM t")
    opened.execute("FLUSH")
    postgres.execute(  # in one batch, with rows of before and after
        "UPDATE t SET v = 'eins' WHERE i = 1; INSERT INTO t VALUES (3, 'three');"
        'ALTER TABLE t ADD COLUMN n numeric(6, 2) DEFAULT 1.5, ADD COLUMN "At" timestamptz, ADD COLUMN ok bool '
        "NOT NULL DEFAULT true; UPDATE t SET n = 2 WHERE i = 2; INSERT INTO t (i, v) VALUES (4, 'four');"
        "ALTER TABLE t ALTER n SET DEFAULT 9; INSERT INTO t (i) VALUES (5); DELETE FROM t WHERE i = 1"
    )
    query = 'SELECT i, v, n, "At", ok FROM t ORDER BY i'
    assert rows(opened, query) == ask(postgres, query)
    opened.execute("CREATE MATERIALIZED VIEW after AS SELECT n, count(*) AS c FROM t GROUP BY n")
    assert rows(opened, "SELECT * FROM after ORDER BY n") == ask(
        postgres, "SELECT n, count(*) FROM t GROUP BY n ORDER BY 1"
    )
    postgres.execute("UPDATE t SET n = n + 1; ALTER TABLE u ADD w int[]; INSERT INTO u VALUES (2, 'two', '{1,2}')")
    assert rows(opened, query) == ask(postgres, query)
    assert rows(opened, "SELECT * FROM after ORDER BY n") == ask(
        postgres, "SELECT n, count(*) FROM t GROUP BY n ORDER BY 1"
    )
    assert rows(opened, "SELECT * FROM before ORDER BY i") == ask(postgres, "SELECT i, v FROM t ORDER BY i")
    assert rows(opened, "SELECT * FROM u ORDER BY i") == [(1, "one", None), (2, "two", [1, 2])]
    ((_, text),) = opened.execute("SHOW CREATE TABLE t").fetchall()
    assert "v varchar, n numeric(6,2)" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("ALTER TABLE t ADD COLUMN r float8 DEFAULT random()", "a value of its own"),
        ("ALTER TABLE t ADD COLUMN p point", "no equivalent"),
        ("ALTER TABLE t DROP COLUMN v", '"v" of table "public.t" is gone'),
        ("ALTER TABLE t RENAME COLUMN v TO w", '"v" of table "public.t" is gone'),
        ("ALTER TABLE t ALTER COLUMN v TYPE int USING 1", "another type"),
        ("ALTER TABLE t RENAME TO renamed; CREATE TABLE t (i int PRIMARY KEY, v text, x int)", "created again"),
    ],
)
def test_other_changes_of_a_table_stop_it_alone(opened, postgres, change, reason):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); CREATE TABLE u (i int PRIMARY KEY)")
    source(opened, postgres, **{"auto.schema.change": "true", "publication.name": "every"})
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM pg TABLE 'u'")
    postgres.execute("INSERT INTO t VALUES (1, '1')")
    assert rows(opened, "SELECT * FROM t") == [(1, "1")]
    postgres.execute(f"{change}; ALTER PUBLICATION every ADD TABLE t" if "CREATE" in change else change)
    postgres.execute("INSERT INTO t (i) VALUES (2); INSERT INTO u VALUES (7)")
    assert rows(opened, "SELECT * FROM u", stops=True) == [(7,)]
    assert rows(opened, "SELECT * FROM t", stops=True) == [(1, "1")]
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert [n for n in cursor.notices if 'table "t" follows no more' in n and reason in n]
    cursor.execute("SHOW SOURCES")
    ((_, state, why, *_),) = cursor.fetchall()
    assert state == "stalled"
    assert reason in why
    if "COLUMN r" not in change and "COLUMN p" not in change:
        assert "RESET SOURCE t reads it anew" in why


def test_columns_that_are_added_are_left_out_unless_they_are_wanted(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    postgres.execute("ALTER TABLE t ADD COLUMN v text; INSERT INTO t VALUES (1, 'one')")
    assert rows(opened, "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize(
    ("rights", "table", "condition", "said"),
    [
        ("", "t", "CONNECTOR_OPTION", "ALTER ROLE .* REPLICATION"),
        ("REPLICATION", "t", "CONNECTOR_OPTION", 'may not read table "public.t"'),
        ("REPLICATION SELECT", "t", "CONNECTOR_OPTION", "GRANT CREATE ON DATABASE"),
        ("REPLICATION CREATE SELECT", "t", "CONNECTOR_OPTION", "does not own table"),
        ("SUPERUSER", "keyless", "CONNECTOR_OPTION", "has no primary key"),
        ("SUPERUSER", "lost", "UNDEFINED_OBJECT", 'no table "public.lost"'),
        ("SUPERUSER", "fleeting", "CONNECTOR_OPTION", "not permanent"),
        ("SUPERUSER", "by_index", "CONNECTOR_OPTION", "REPLICA IDENTITY DEFAULT"),
    ],
)
def test_what_a_server_lacks_is_said_at_create(opened, postgres, rights, table, condition, said):
    user = f"u_{postgres.name}"
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE keyless (i int);"
        "CREATE UNLOGGED TABLE fleeting (i int PRIMARY KEY);"
        "CREATE TABLE by_index (i int PRIMARY KEY, j int NOT NULL UNIQUE);"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_j_key"
    )
    roles = " ".join(r for r in rights.split() if r in ("REPLICATION", "SUPERUSER"))
    postgres.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'p' {roles}")
    if "CREATE" in rights:
        postgres.execute(f"GRANT CREATE ON DATABASE {postgres.name} TO {user}")
    if "SELECT" in rights:
        postgres.execute(f"GRANT SELECT ON t TO {user}")
    try:
        more = {"username": user, "password": "p", "table.name": table, "slot.name": f"own_{postgres.name}"}
        with pytest.raises(errors.Error, match=said) as refused:
            opened.execute(f"CREATE TABLE x (*) {options(postgres, **more)}")
        assert refused.value.condition == condition
        assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
        assert ask(postgres, "SELECT pubname FROM pg_publication") == []
    finally:
        postgres.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_server_without_logical_decoding_is_refused(opened, own_postgres):
    own_postgres.execute("ALTER SYSTEM SET wal_level = replica")
    own_postgres.server.stop()
    own_postgres.server.start()
    with pytest.raises(errors.Error, match="wal_level = replica"):
        source(opened, own_postgres)


def test_a_server_that_is_killed_is_followed_again(opened, own_postgres):
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, own_postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_postgres.server.kill()
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert 'source "pg" was not waited for' in cursor.notices[0]
    own_postgres.server.start()
    own_postgres.execute("INSERT INTO t VALUES (2)")
    deadline = time.monotonic() + 60
    while opened.execute("SELECT count(*) FROM t").fetchall() != [(2,)]:
        assert time.monotonic() < deadline, cursor.notices
        cursor.execute("FLUSH")


def test_a_slot_that_is_gone_stalls_its_source(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    slot = source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    postgres.execute("INSERT INTO t VALUES (0)")
    assert rows(opened, "SELECT * FROM t") == [(0,)]
    with contextlib.closing(postgres.connect()) as connection:
        drop_slot(connection, slot)
    deadline = time.monotonic() + 60
    state = ""
    while state != "stalled":
        assert time.monotonic() < deadline, state
        ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    assert "is gone. RESET SOURCE" in why
    opened.execute("CREATE MATERIALIZED VIEW twice AS SELECT i * 2 AS i FROM t")
    postgres.execute("INSERT INTO t VALUES (1); DELETE FROM t WHERE i = 0")  # nobody tells of these
    opened.execute("RESET SOURCE pg")
    postgres.execute("INSERT INTO t VALUES (2)")
    assert sorted(rows(opened, "SELECT * FROM t")) == [(1,), (2,)]
    assert sorted(rows(opened, "SELECT * FROM twice")) == [(2,), (4,)]
    assert opened.execute("SHOW SOURCES").fetchall()[0][1] == "running"
    opened.execute("DROP SOURCE pg CASCADE")
    assert ask(postgres, "SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_one_statement_lets_a_table_go_on_that_was_made_again_there(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    postgres.execute(
        "DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v text); "
        f"ALTER PUBLICATION {publication(postgres)} ADD TABLE t"
    )
    postgres.execute("INSERT INTO t VALUES (2, 'two')")
    assert rows(opened, "SELECT * FROM t", stops=True) == [(1,)]
    ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    assert (state, "created again" in why) == ("stalled", True)
    opened.execute("CREATE OR REPLACE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == [(2, "two")]
    postgres.execute("UPDATE t SET v = 'zwei'; INSERT INTO t VALUES (3, NULL)")
    assert sorted(rows(opened, "SELECT * FROM t")) == [(2, "zwei"), (3, None)]
    assert opened.execute("SHOW SOURCES").fetchall()[0][1] == "running"


@pytest.mark.parametrize("single", [False, True])
def test_a_table_that_was_made_again_there_goes_on_below_its_views(opened, postgres, single):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    postgres.execute("CREATE TABLE u (i int PRIMARY KEY); INSERT INTO u VALUES (1)")
    if single:
        given = {"slot.name": f"s_{postgres.name}", "schema.name": "public", "table.name": "t"}
        opened.execute(f"CREATE TABLE t (i int PRIMARY KEY, v varchar) {options(postgres, **given)}")
    else:
        source(opened, postgres)
        opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'; CREATE TABLE u (*) FROM pg TABLE 'u'")
    opened.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, max(v) AS v FROM t")
    assert rows(opened, "SELECT * FROM n") == [(2, "two")]
    postgres.execute(
        "DROP TABLE t; CREATE TABLE t (i int PRIMARY KEY, v text, more int); "
        f"ALTER PUBLICATION {publication(postgres)} ADD TABLE t; INSERT INTO t VALUES (2, 'zwei', 7)"
    )
    rows(opened, "SELECT * FROM n", stops=True)
    opened.execute("RESET SOURCE t")
    assert rows(opened, "SELECT * FROM n") == [(1, "zwei")]
    postgres.execute("INSERT INTO t VALUES (3, 'zzz', 8); INSERT INTO u VALUES (2)")
    assert rows(opened, "SELECT * FROM n") == [(2, "zzz")]
    if not single:
        assert sorted(rows(opened, "SELECT * FROM u")) == [(1,), (2,)]


def test_what_can_not_be_reset(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'; CREATE TABLE own (i int)")
    assert rows(opened, "SELECT * FROM t") == [(1, "one")]
    postgres.execute("ALTER TABLE t ALTER v TYPE int USING 1")
    for name, condition, said in (
        ("own", "CATALOG_TYPE_MISMATCH", 'table "own" is not captured'),
        ("none", "UNDEFINED_RELATION", 'relation "none" does not exist'),
        ("pg", "DATATYPE_MISMATCH", 'column "v" of table "public.t" has another type now'),
    ):
        with pytest.raises(watersmeet.Error, match=said) as refused:
            opened.execute(f"RESET SOURCE {name}")
        assert refused.value.condition == condition
    opened.execute("BEGIN")
    with pytest.raises(watersmeet.Error, match="RESET SOURCE"):
        opened.execute("RESET SOURCE pg")
    opened.execute("ROLLBACK")
    assert opened.execute("SELECT * FROM t").fetchall() == [(1, "one")]  # nothing was done


@pytest.mark.slow
def test_a_server_that_was_restored_from_a_copy_stalls_its_source(opened, own_postgres):
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, own_postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []
    server = own_postgres.server
    data, copy = server.folder / "data", server.folder / "copy"
    server.kill()
    subprocess.run(["cp", "-a", data, copy], check=True)
    server.start()
    own_postgres.execute("INSERT INTO t SELECT generate_series(1, 30000)")
    while opened.execute("SELECT count(*) FROM t").fetchall() != [(30000,)]:
        opened.execute("FLUSH")
    server.kill()
    shutil.rmtree(data)
    copy.rename(data)
    server.start()
    own_postgres.execute("INSERT INTO t VALUES (-1)")
    deadline = time.monotonic() + 60
    state = ""
    while state != "stalled":
        assert time.monotonic() < deadline, state
        ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    assert "an older state of this one. RESET SOURCE" in why
    opened.execute("RESET SOURCE pg")
    assert rows(opened, "SELECT * FROM t") == [(-1,)]


def test_a_partitioned_table_is_followed_as_one(opened, postgres):
    postgres.execute(
        "CREATE TABLE t (i int, day date, v text, PRIMARY KEY (i, day)) PARTITION BY RANGE (day);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');"
        "INSERT INTO t VALUES (1, '2024-01-05', 'a'), (2, '2024-02-05', 'b')"
    )
    source(opened, postgres, **{"publication.name": f"p_{postgres.name}"})
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    query = "SELECT i, day, v FROM t ORDER BY i, day"
    assert rows(opened, query) == ask(postgres, query) != []
    postgres.execute(
        "UPDATE t SET day = '2024-02-07' WHERE i = 1; UPDATE t1 SET v = 'never'; DELETE FROM t2 WHERE i = 2"
    )
    postgres.execute(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');"
        "INSERT INTO t VALUES (3, '2024-03-05', 'c'), (4, '2024-01-31', 'd')"
    )
    assert rows(opened, query) == ask(postgres, query)
    postgres.execute("TRUNCATE t")
    assert rows(opened, query) == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            "FOR TABLE t WITH (publish_via_partition_root = true)",
            'no TRUNCATE of single partitions of table "public.t"',
        ),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", "no TRUNCATE of single partitions"),
        ("FOR TABLE t0 WHERE (i > 7)", r"only rows .* where \(i > 7\)"),
        ("FOR TABLE t WITH (publish = 'insert, update, delete')", "every INSERT, UPDATE, DELETE and TRUNCATE"),
    ],
)
def test_publications_that_lack_changes_are_refused(opened, postgres, made, said):
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY) PARTITION BY HASH (i);"
        "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    )
    postgres.execute(f"CREATE PUBLICATION theirs {made}")
    with pytest.raises(errors.Error, match=said) as refused:
        more = {"publication.name": "theirs", "table.name": "t", "slot.name": f"own_{postgres.name}"}
        opened.execute(f"CREATE TABLE x (*) {options(postgres, **more)}")
    assert refused.value.condition == "CONNECTOR_OPTION"
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_server_that_is_followed_can_be_shut_down(opened, own_postgres, is_pending):
    """Also while changes that it sent are not kept here yet: it has them still when it comes back."""
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE other (i int)")
    source(opened, own_postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []

    def fail(point):
        if point == "capture.commit":
            raise OSError("it failed")

    try:
        if is_pending:
            faults.set_hook(fail)
            own_postgres.execute("INSERT INTO t VALUES (0)")
        own_postgres.execute("INSERT INTO other VALUES (1)")
        own_postgres.server.stop()  # raises if it takes a minute
    finally:
        faults.set_hook(None)
    assert opened.execute("SELECT * FROM t").fetchall() == []
    own_postgres.server.start()
    own_postgres.execute("INSERT INTO t VALUES (1)")
    expected = ask(own_postgres, "SELECT * FROM t ORDER BY i")
    assert len(expected) == 1 + is_pending
    deadline = time.monotonic() + 60
    while opened.execute("SELECT * FROM t ORDER BY i").fetchall() != expected:
        assert time.monotonic() < deadline
        opened.execute("FLUSH")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_slot", "more", "said"),
    [
        (False, 0, "is gone. RESET SOURCE"),
        pytest.param(True, 0, "or an older state of", marks=pytest.mark.slow),
        pytest.param(True, 300000, "lacks changes that are here. RESET SOURCE", marks=pytest.mark.slow),
    ],
)
def test_a_failover_to_a_server_that_is_behind_stalls_its_source(opened, own_postgres, has_slot, more, said):
    """A standby that lacks what was read here already is promoted, and takes the place of its primary."""
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    slot = source(opened, own_postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []
    server = own_postgres.server
    data, copy = server.folder / "data", server.folder / "copy"
    server.kill()
    subprocess.run(["cp", "-a", data, copy], check=True)
    if not has_slot:  # pg_basebackup leaves slots out
        shutil.rmtree(copy / "pg_replslot" / slot)
    server.start()
    own_postgres.execute("INSERT INTO t SELECT generate_series(1, 30000)")
    deadline = time.monotonic() + 40
    while opened.execute("SELECT count(*) FROM t").fetchall() != [(30000,)]:
        assert time.monotonic() < deadline
        opened.execute("FLUSH")
    server.kill()
    shutil.rmtree(data)
    copy.rename(data)
    subprocess.run(["cp", "-p", data / "PG_VERSION", data / "standby.signal"], check=True)  # with its owner
    port, server.port = server.port, free_ports(1)[0]  # where nobody follows it yet
    server.start()
    assert ask(own_postgres, "SELECT pg_promote(), timeline_id FROM pg_control_checkpoint()")[0][0]
    own_postgres.execute("CHECKPOINT")
    assert ask(own_postgres, "SELECT timeline_id FROM pg_control_checkpoint()") == [(2,)]
    own_postgres.execute(f"INSERT INTO t VALUES (-1); CREATE TABLE u AS SELECT generate_series(1, {more}) i")
    server.stop()
    server.port = port
    server.start()
    state = why = ""
    while state != "stalled":
        assert time.monotonic() < deadline, (state, why)
        ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    assert said in why
    opened.execute("RESET SOURCE pg")
    assert rows(opened, "SELECT * FROM t") == [(-1,)]


#: CREATE TABLE of another shape than the table there: (columns, condition, what is said).
SHAPES = [
    ("*", "CONNECTOR_OPTION", 'column "p" of table "{0}.t" has type point, wh'),
    ("i int PRIMARY KEY, v int", "DATATYPE_MISMATCH", '"v" of table "{0}.t" has type character varying, not integer'),
    ("i int PRIMARY KEY, w int", "UNDEFINED_COLUMN", 'table "{0}.t" has no column "w"'),
    ("i int, v varchar PRIMARY KEY", "CONNECTOR_OPTION", 'the primary key of table "{0}.t" is (i), not (v)'),
]


@pytest.mark.parametrize(("columns", "condition", "said"), SHAPES)
def test_a_table_of_another_shape_is_refused(opened, postgres, columns, condition, said):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, p point, v text)")
    source(opened, postgres)
    with pytest.raises(errors.Error) as refused:
        opened.execute(f"CREATE TABLE t ({columns}) FROM pg TABLE 't'")
    assert refused.value.condition == condition
    assert said.format("public") in refused.value.message
    postgres.execute("INSERT INTO t VALUES (1, '(1,2)', 'v')")
    opened.execute("CREATE TABLE t (*, p varchar) FROM pg TABLE 't'")  # as the hint of the first one says
    assert rows(opened, "SELECT i, p, v FROM t") == [(1, "(1,2)", "v")]


def test_a_wrong_password_is_refused_and_not_shown(opened, postgres):
    with pytest.raises(errors.Error) as refused:
        source(opened, postgres, password="not-this-one")
    assert refused.value.condition == "CONNECTOR_OPTION"
    assert f'does not let user "{USER}" in' in refused.value.message
    assert "not-this-one" not in str(refused.value.to_json())


def until(opened, state):
    """Waits until the only source has that state; why it has."""
    deadline = time.monotonic() + 60
    while True:
        ((_, found, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
        if found == state:
            return why
        assert time.monotonic() < deadline, (found, why)
        time.sleep(0.02)


@pytest.fixture
def user(postgres):
    """A user who may capture, and owns what is made for that."""
    name = f"u_{postgres.name}"
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'first-secret' REPLICATION")
    postgres.execute(f"GRANT CREATE ON DATABASE {postgres.name} TO {name}; GRANT CREATE ON SCHEMA public TO {name}")
    yield name
    postgres.execute(f"SELECT pg_drop_replication_slot('s_{postgres.name}')")
    postgres.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_a_right_that_is_taken_while_a_table_is_filled_and_given_back(user, opened, postgres):
    postgres.execute(
        f"SET ROLE {user}; CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE b (i int PRIMARY KEY, v text);"
        "INSERT INTO b SELECT i, 'v' || i FROM generate_series(1, 50) i"
    )
    source(opened, postgres, username=user, password="first-secret")
    opened.execute("CREATE TABLE a (*) FROM pg TABLE 'a'")
    assert rows(opened, "SELECT * FROM a") == []
    pieces = []

    def hook(point):
        if point == "capture.chunk":
            pieces.append(point)
            if len(pieces) == 3:
                postgres.execute(f"REVOKE SELECT ON b FROM {user}")

    faults.set_hook(hook)
    try:
        opened.execute("CREATE TABLE b (*) WITH (snapshot.batch_size = '10') FROM pg TABLE 'b'")
        why = until(opened, "waiting")
    finally:
        faults.set_hook(None)
    assert "GRANT SELECT ON public.b TO" in why
    postgres.execute("INSERT INTO a VALUES (1); UPDATE b SET v = 'new' WHERE i IN (1, 50)")
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert ['table "b" was not waited for' in n for n in cursor.notices] == [True]
    assert opened.execute("SELECT * FROM a").fetchall() == [(1,)]  # the other table goes on
    postgres.execute(f"GRANT SELECT ON b TO {user}")
    until(opened, "running")
    assert sorted(rows(opened, "SELECT * FROM b")) == sorted(ask(postgres, "SELECT * FROM b"))


@pytest.mark.parametrize(
    ("taken", "given", "said"),
    [
        ("PASSWORD 'second-secret'", "PASSWORD 'first-secret'", "does not let user"),
        ("NOREPLICATION", "REPLICATION", "may not read changes"),
        ("NOLOGIN", "LOGIN", "does not let user|not permitted to log in|refuses"),
    ],
)
def test_what_is_taken_from_a_user_and_given_back(user, opened, postgres, taken, given, said):
    postgres.execute(f"SET ROLE {user}; CREATE TABLE a (i int PRIMARY KEY); INSERT INTO a VALUES (1)")
    source(opened, postgres, username=user, password="first-secret")
    opened.execute("CREATE TABLE a (*) FROM pg TABLE 'a'")
    assert rows(opened, "SELECT * FROM a") == [(1,)]
    postgres.execute(f"ALTER ROLE {user} {taken}")
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")
    postgres.execute("INSERT INTO a VALUES (2)")
    why = until(opened, "waiting")
    deadline = time.monotonic() + 60
    while not re.search(said, why):  # at first the connection that was ended
        assert time.monotonic() < deadline, why
        why = until(opened, "waiting")
    assert "secret" not in why
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    assert 'source "pg" was not waited for' in cursor.notices[0]
    assert "secret" not in str(cursor.notices)
    assert opened.execute("SELECT * FROM a").fetchall() == [(1,)]
    postgres.execute(f"ALTER ROLE {user} {given}")
    until(opened, "running")
    assert sorted(rows(opened, "SELECT * FROM a")) == [(1,), (2,)]


def test_a_server_that_is_away_is_waited_for(tmp_path, own_postgres):
    """At CREATE it is refused; when the database is opened, its tables are there, and go on when the server is back."""
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        source(opened, own_postgres)
        opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
        assert rows(opened, "SELECT * FROM t") == [(1,)]
    own_postgres.server.kill()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        with pytest.raises(errors.Error, match="can't be reached") as refused:
            opened.execute(f"CREATE SOURCE other {options(own_postgres)}")
        assert refused.value.condition == "RUNTIME_UNAVAILABLE"
        assert opened.execute("SELECT * FROM t").fetchall() == [(1,)]
        deadline = time.monotonic() + 60
        state = why = None
        while state != "waiting":
            assert time.monotonic() < deadline, state
            ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
        assert "can't be reached" in why
        own_postgres.server.start()
        own_postgres.execute("INSERT INTO t VALUES (2)")
        while opened.execute("SELECT count(*) FROM t").fetchall() != [(2,)]:
            assert time.monotonic() < deadline
            opened.execute("FLUSH")


def test_what_a_server_keeps_for_a_source_is_shown(opened, postgres):
    """The bytes of its log that are not here yet, and those that it can't forget before."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM pg TABLE 't'; FLUSH")
    postgres.execute("INSERT INTO t SELECT i, repeat('x', 10000) FROM generate_series(1, 300) i")

    def kept():
        ((*_, behind_bytes, retained_bytes),) = opened.execute("SHOW SOURCES").fetchall()
        return behind_bytes, retained_bytes

    assert rows(opened, "SELECT count(*) FROM t") == [(300,)]
    assert kept()[1] > 3_000_000
    deadline, other_bytes = time.monotonic() + 60, 0
    while not (0 <= kept()[0] < 20_000_000 and 0 < kept()[1] < other_bytes):
        # It is confirmed when it is far enough from what was, behind a place where the server noted who writes.
        postgres.execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 17000000)); CHECKPOINT")
        other_bytes += 17_000_000
        opened.execute("FLUSH")
        assert time.monotonic() < deadline, kept()
