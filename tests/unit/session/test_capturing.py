"""Tables that follow tables of a real PostgreSQL by its changes: its own rules, besides those of `test_captures`."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import subprocess
import time
from decimal import Decimal

import pytest
from scripts.servers.postgres import PASSWORD, USER
from scripts.servers.process import free_ports
from tests import waiting
from tests.captures import ask, options, rows, source, until

import watersmeet
from watersmeet import errors
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.postgres.capture import drop_slot
from watersmeet.connectors.postgres.replication import SlotReader
from watersmeet.system import process

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


@pytest.fixture
def opened(tmp_path, postgres):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


def test_every_type_comes_by_the_snapshot_and_by_changes(opened, postgres):
    postgres.execute(f"{TYPES}; INSERT INTO t VALUES {ROW}; INSERT INTO t (i, v) VALUES (2, '')")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 'public.t'")
    before = rows(opened, "SELECT * FROM t ORDER BY i")
    assert before[0][:-1] == VALUES
    assert before[1] == (2, *[None] * 6, "", *[None] * 13)
    postgres.execute(f"DELETE FROM t; INSERT INTO t VALUES {ROW}; INSERT INTO t (i, v) VALUES (2, '')")
    assert rows(opened, "SELECT * FROM t ORDER BY i") == before
    assert str(rows(opened, "SELECT o FROM t WHERE i = 1")[0][0]) == "1 day, 2:03:04"


def test_values_that_a_change_leaves_as_they_were(opened, postgres):
    postgres.execute(
        "CREATE TABLE t (i int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, 0, repeat(i::text, 9000) FROM generate_series(1, 4) i"
    )
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
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
            sent = (
                "SELECT bool_or(sent_lsn >= %s) FROM pg_stat_replication "
                "JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = %s"
            )
            waiting.until(lambda: connection.execute(sent, [end, slot]).fetchone()[0])
            batches: list[int] = []
            while sum(batches) < count:
                batch = reader.read(1)
                batches += [len(batch.times_us)] if batch is not None else []
        drop_slot(connection, slot)
    assert len(batches) <= 5, batches


def test_slot_and_publication_go_with_their_source(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY)")
    slot = source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM there TABLE 'u'")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == [(slot,)]
    opened.execute("DROP TABLE u")
    assert ask(postgres, "SELECT tablename FROM pg_publication_tables") == [("t",)]
    with pytest.raises(errors.Error, match="other objects depend on it"):
        opened.execute("DROP SOURCE there")
    opened.execute("DROP SOURCE there CASCADE")
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


def test_without_snapshot_only_changes_come(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) WITH (snapshot = 'false') FROM there TABLE 't'")
    opened.execute("FLUSH")
    postgres.execute("INSERT INTO t VALUES (2)")
    assert rows(opened, "SELECT * FROM t") == [(2,)]


def test_columns_that_are_added_there_are_added_here(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text, out int); INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    postgres.execute("CREATE TABLE u (i int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'one')")
    source(opened, postgres, **{"auto.schema.change": "true"})
    opened.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar) FROM there TABLE 't'")
    opened.execute("CREATE TABLE u (*) FROM there TABLE 'u'")
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


def test_columns_that_are_added_are_left_out_unless_they_are_wanted(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
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


def test_a_slot_that_is_gone_stalls_its_source(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    slot = source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    postgres.execute("INSERT INTO t VALUES (0)")
    assert rows(opened, "SELECT * FROM t") == [(0,)]
    with contextlib.closing(postgres.connect()) as connection:
        drop_slot(connection, slot)
    why = until(opened, "stalled")
    assert "is gone. RESET SOURCE" in why
    opened.execute("CREATE MATERIALIZED VIEW twice AS SELECT i * 2 AS i FROM t")
    postgres.execute("INSERT INTO t VALUES (1); DELETE FROM t WHERE i = 0")  # nobody tells of these
    opened.execute("RESET SOURCE there")
    postgres.execute("INSERT INTO t VALUES (2)")
    assert sorted(rows(opened, "SELECT * FROM t")) == [(1,), (2,)]
    assert sorted(rows(opened, "SELECT * FROM twice")) == [(2,), (4,)]
    assert opened.execute("SHOW SOURCES").fetchall()[0][1] == "running"
    opened.execute("DROP SOURCE there CASCADE")
    assert ask(postgres, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


def test_what_can_not_be_reset(opened, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; CREATE TABLE own (i int)")
    assert rows(opened, "SELECT * FROM t") == [(1, "one")]
    postgres.execute("ALTER TABLE t ALTER v TYPE int USING 1")
    for name, condition, said in (
        ("own", "CATALOG_TYPE_MISMATCH", 'table "own" is not captured'),
        ("none", "UNDEFINED_RELATION", 'relation "none" does not exist'),
        ("there", "DATATYPE_MISMATCH", 'column "v" of table "public.t" has another type now'),
    ):
        with pytest.raises(watersmeet.Error, match=said) as refused:
            opened.execute(f"RESET SOURCE {name}")
        assert refused.value.condition == condition
    opened.execute("BEGIN")
    with pytest.raises(watersmeet.Error, match="RESET SOURCE"):
        opened.execute("RESET SOURCE there")
    opened.execute("ROLLBACK")
    assert opened.execute("SELECT * FROM t").fetchall() == [(1, "one")]  # nothing was done


@pytest.mark.slow
def test_a_server_that_was_restored_from_a_copy_stalls_its_source(opened, own_postgres):
    own_postgres.execute("CREATE TABLE t (i int PRIMARY KEY)")
    source(opened, own_postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
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
    why = until(opened, "stalled")
    assert "an older state of this one. RESET SOURCE" in why
    opened.execute("RESET SOURCE there")
    assert rows(opened, "SELECT * FROM t") == [(-1,)]


def test_a_partitioned_table_is_followed_as_one(opened, postgres):
    postgres.execute(
        "CREATE TABLE t (i int, day date, v text, PRIMARY KEY (i, day)) PARTITION BY RANGE (day);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');"
        "INSERT INTO t VALUES (1, '2024-01-05', 'a'), (2, '2024-02-05', 'b')"
    )
    source(opened, postgres, **{"publication.name": f"p_{postgres.name}"})
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
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
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
    assert rows(opened, "SELECT * FROM t") == []

    def fail(point):
        if point == "capture.commit":
            raise OSError("it failed")

    try:
        if is_pending:
            process.set_hook(fail)
            own_postgres.execute("INSERT INTO t VALUES (0)")
        own_postgres.execute("INSERT INTO other VALUES (1)")
        own_postgres.server.stop()  # raises if it takes a minute
    finally:
        process.set_hook(None)
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
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'")
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
    why = until(opened, "stalled")
    assert said in why
    opened.execute("RESET SOURCE there")
    assert rows(opened, "SELECT * FROM t") == [(-1,)]


def test_a_wrong_password_is_refused_and_not_shown(opened, postgres):
    with pytest.raises(errors.Error) as refused:
        source(opened, postgres, password="not-this-one")
    assert refused.value.condition == "CONNECTOR_OPTION"
    assert f'does not let user "{USER}" in' in refused.value.message
    assert "not-this-one" not in str(refused.value.to_json())


def test_what_a_server_keeps_for_a_source_is_shown(opened, postgres):
    """The bytes of its log that are not here yet, and those that it can't forget before."""
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    source(opened, postgres)
    opened.execute("CREATE TABLE t (*) FROM there TABLE 't'; FLUSH")
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
