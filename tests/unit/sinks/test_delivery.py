"""Sinks deliver the content of their relation and then its changes, each once, whatever happens in between."""

from __future__ import annotations

import shutil

import pytest
from tests.unit.sinks.memory import Unavailable
from tests.waiting import until

import watersmeet
from watersmeet.errors import error
from watersmeet.sinkwriters import batches
from watersmeet.sinkwriters import writers as delivery
from watersmeet.sinkwriters.writers import SinkWriters

TABLES = "CREATE TABLE t (k int PRIMARY KEY, v varchar)"


def sink(connection, name="s", source="FROM t", more=""):
    connection.execute(f"CREATE SINK {name} {source} WITH (connector = 'memory'{more})")


def topic_of(memory, connection, name="s"):
    return memory.topic(connection._session.catalog.by_name(name).target_id)


def rows(connection, name="t"):
    return sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)


def test_a_sink_gets_the_content_and_then_the_changes(memory, connect, settle, shown):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    sink(connection)
    settle(connection)
    topic = topic_of(memory, connection)
    assert topic.content == [(1, "a"), (2, "b")]
    connection.execute("UPDATE t SET v = 'c' WHERE k = 1")
    connection.execute("DELETE FROM t WHERE k = 2")
    settle(connection)
    assert topic.changes[2:] == [((1, "a"), -1), ((1, "c"), 1), ((2, "b"), -1)]
    row = shown(connection)["s"]
    assert (row["state"], row["connector"], row["type"], row["commits_behind"]) == ("running", "memory", "upsert", 0)
    assert row["delivered_rows"] == 5


def test_a_view_is_delivered_as_it_changes(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.flush()
    sink(connection, source="FROM m", more=", primary_key = 'v'")
    settle(connection)
    connection.execute("INSERT INTO t VALUES (2, 'a'), (3, 'b')")
    settle(connection)
    assert topic_of(memory, connection).content == [("a", 2), ("b", 1)] == rows(connection, "m")


@pytest.mark.parametrize("source", ["AS SELECT v, k + 1 AS k FROM t", "FROM plain"])
def test_a_query_is_kept_up_to_date_for_its_sink(memory, connect, settle, source):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("CREATE VIEW plain AS SELECT v, k + 1 AS k FROM t")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    sink(connection, source=source, more=", primary_key = 'k'")
    settle(connection)
    connection.execute("INSERT INTO t VALUES (2, 'b')")
    settle(connection)
    assert topic_of(memory, connection).content == [("a", 2), ("b", 3)]
    connection = connect()
    connection.execute("INSERT INTO t VALUES (3, 'c')")
    settle(connection)
    assert topic_of(memory, connection).content == [("a", 2), ("b", 3), ("c", 4)]
    connection.execute("DROP SINK s")
    assert [r.name for r in connection._session.catalog.relations.values()] == ["t", "plain"]


def test_without_snapshot_only_changes_go_out(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    sink(connection, more=", snapshot = 'false'")
    connection.execute("INSERT INTO t VALUES (2, 'b')")
    settle(connection)
    assert topic_of(memory, connection).changes == [((2, "b"), 1)]


def test_it_goes_on_after_a_restart_where_it_was(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    sink(connection)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    settle(connection)
    connection = connect()
    connection.execute("INSERT INTO t VALUES (2, 'b')")
    settle(connection)
    assert topic_of(memory, connection).changes == [((1, "a"), 1), ((2, "b"), 1)]


def test_an_altered_sink_opens_its_target_again_and_goes_on(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("CREATE SECRET key WITH (backend = 'meta') AS 'a'")
    sink(connection, more=", password = SECRET key")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    settle(connection)
    topic = topic_of(memory, connection)
    connection.execute("ALTER SECRET key AS 'b'; INSERT INTO t VALUES (2, 'b')")
    settle(connection)
    connection.execute("ALTER SINK s CONNECTOR WITH (password = 'c'); INSERT INTO t VALUES (3, 'c')")
    settle(connection)
    connection.execute("ALTER SINK s RENAME TO other; INSERT INTO t VALUES (4, 'd')")
    settle(connection)
    assert topic.opened >= 3
    assert topic.changes == [((n, v), 1) for n, v in ((1, "a"), (2, "b"), (3, "c"), (4, "d"))]
    for option in ("topic = 'x'", "nothing = 'x'", "type = 'append-only'"):
        with pytest.raises(watersmeet.Error) as found:
            connection.execute(f"ALTER SINK other CONNECTOR WITH ({option})")
        assert found.value.condition == "CONNECTOR_OPTION"


def test_a_target_that_is_away_holds_nothing_up_and_gets_everything_later(memory, connect, settle, shown, monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(delivery, "_LAST_RETRY_S", 0.001)
    connection = connect()
    connection.execute(TABLES)
    away = True

    def fails(step):
        if away and step != "close":
            raise Unavailable("nobody is there")

    memory.fails = fails
    sink(connection)
    for i in range(5):
        connection.execute(f"INSERT INTO t VALUES ({i}, 'x')")
    connection.flush()
    deliveries = connection._session.database.service(SinkWriters)
    sink_id = connection._session.catalog.by_name("s").id
    while deliveries.status(sink_id).state != "retrying":
        pass
    row = shown(connection)["s"]
    assert row["detail"].startswith("nobody is there (since 20")
    assert (row["commits_behind"], row["rows_behind"]) == (5, 5)
    assert row["bytes_behind"] > 0
    away = False
    settle(connection)
    assert topic_of(memory, connection).content == rows(connection)


def test_a_row_that_is_never_taken_stops_the_sink_until_it_is_started(memory, connect, settle, shown):
    connection = connect()
    connection.execute(TABLES)
    sink(connection)
    settle(connection)
    refuses = True

    def fails(step):
        if refuses and step == "deliver":
            raise error("INVALID_VALUE", "the row is too long")

    memory.fails = fails
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    settle(connection)
    row = shown(connection)["s"]
    assert (row["state"], row["detail"]) == ("stopped", "INVALID_VALUE: the row is too long")
    refuses = False
    connection.execute("ALTER SINK s START")
    while shown(connection)["s"]["state"] == "stopped":
        pass
    settle(connection)
    assert topic_of(memory, connection).content == [(1, "a")]


def test_large_content_and_large_commits_are_cut_with_all_rows_of_a_key_together(memory, connect, settle, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_ROWS", 10)
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 35) AS g(i)")
    sink(connection)
    settle(connection)
    topic = topic_of(memory, connection)
    assert [p.offset.rows for p in topic.batches] == [10, 20, 30, 35]
    assert [p.offset.last for p in topic.batches] == [False, False, False, True]
    connection.execute("UPDATE t SET v = 'b'")
    settle(connection)
    changed = topic.batches[4:]
    assert len(changed) > 6
    for batch in changed:
        assert batch.rows.num_rows <= 10
        keys = batch.rows.column("k").to_pylist()
        assert all(keys.count(k) == 2 for k in keys)
    assert topic.content == rows(connection)


@pytest.mark.parametrize("step", ["open", "opened", "deliver", "delivered", "close"])
def test_a_crash_at_any_step_repeats_nothing_and_loses_nothing(memory, connect, settle, monkeypatch, step):
    """In the middle of the content, and in the middle of changes."""
    monkeypatch.setattr(batches, "BATCH_ROWS", 4)
    monkeypatch.setattr(delivery, "_GROUP_ROWS", 4)
    monkeypatch.setattr(delivery, "_FIRST_RETRY_S", 0.001)
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 20) AS g(i)")
    left = 3

    def fails(now):
        nonlocal left
        if now == step:
            left -= 1
            if left % 2 == 0 and left > -8:
                raise Unavailable("crash")

    memory.fails = fails
    sink(connection)
    settle(connection)
    connection.execute("UPDATE t SET v = 'b' WHERE k > 5")
    connection.execute("DELETE FROM t WHERE k > 15")
    settle(connection)
    connection = connect()
    connection.execute("UPDATE t SET v = 'c' WHERE k < 10")
    settle(connection)
    assert topic_of(memory, connection).content == rows(connection)


def test_or_replace_begins_a_new_generation_with_the_whole_content(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    sink(connection)
    settle(connection)
    connection.execute("UPDATE t SET v = 'b'")
    settle(connection)
    connection.execute("CREATE OR REPLACE SINK s FROM t WITH (connector = 'memory')")
    settle(connection)
    (topic,) = memory.topics.values()
    assert (topic.generation, topic.changes) == (2, [((1, "b"), 1)])


def test_a_target_that_forgot_what_it_had_is_refused(memory, connect, settle, shown):
    connection = connect()
    connection.execute(TABLES)
    sink(connection)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    settle(connection)
    topic_of(memory, connection).batches.clear()
    connection = connect()
    settle(connection)
    row = shown(connection)["s"]
    assert row["state"] == "stopped"
    assert row["detail"].startswith(
        'DELIVERY_MISMATCH: sink "s" can\'t go on: its target has nothing of it, and had ack'
    )
    connection.execute("CREATE OR REPLACE SINK s FROM t WITH (connector = 'memory')")
    settle(connection)
    assert topic_of(memory, connection).content == [(1, "a")]


def copied(connect, settle, path, tmp_path):
    """Makes a database that has delivered a row, and a copy of it."""
    connection = connect()
    connection.execute(TABLES)
    sink(connection)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    settle(connection)
    connection.close()
    shutil.copytree(path, tmp_path / "copy")


def test_an_older_copy_of_the_database_is_refused(memory, connect, settle, shown, path, tmp_path):
    copied(connect, settle, path, tmp_path)
    connection = connect()
    for i in range(2, 9):
        connection.execute(f"INSERT INTO t VALUES ({i}, 'b')")
    settle(connection)
    connection.close()
    with watersmeet.connect(tmp_path / "copy", runtime="inprocess") as copy:
        settle(copy)
        row = shown(copy)["s"]
    assert row["state"] == "stopped"
    assert "the database had" in row["detail"]


def test_an_older_copy_is_refused_however_many_commits_it_has_by_then(memory, connect, settle, shown, path, tmp_path):
    """Its commits have the numbers of those that were delivered, and others' rows in them."""
    copied(connect, settle, path, tmp_path)
    connection = connect()
    connection.execute("INSERT INTO t VALUES (2, 'b'), (3, 'c')")
    settle(connection)
    delivered = topic_of(memory, connection).content
    connection.close()
    for opening in range(3):
        with watersmeet.connect(tmp_path / "copy", runtime="inprocess") as copy:
            for i in range(4, 12):
                copy.execute(f"INSERT INTO t VALUES ({10 * i + opening}, 'of the copy')")
            settle(copy)
            row = shown(copy)["s"]
            assert row["state"] == "stopped", opening
            assert row["detail"].startswith("DELIVERY_MISMATCH")
            assert topic_of(memory, copy).content == delivered
    with watersmeet.connect(tmp_path / "copy", runtime="inprocess") as copy:
        copy.execute("CREATE OR REPLACE SINK s FROM t WITH (connector = 'memory')")
        settle(copy)
        assert topic_of(memory, copy).content == rows(copy)
    with watersmeet.connect(tmp_path / "copy", runtime="inprocess") as copy:
        copy.execute("DELETE FROM t WHERE k > 1")
        settle(copy)
        assert topic_of(memory, copy).content == [(1, "a")]


def test_a_sink_of_a_rolled_back_transaction_never_delivers(memory, connect, settle):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.execute("BEGIN")
    sink(connection)
    connection.execute("ROLLBACK")
    settle(connection)
    assert not memory.topics
    connection.execute("BEGIN")
    sink(connection)
    connection.execute("INSERT INTO t VALUES (2, 'b')")
    connection.execute("COMMIT")
    settle(connection)
    assert topic_of(memory, connection).content == [(1, "a"), (2, "b")]


def test_what_a_sink_has_to_deliver_is_kept_by_the_clean_up(memory, connect, settle, monkeypatch):
    connection = connect()
    connection.execute(TABLES)
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
    sink(connection, source="FROM m", more=", primary_key = 'v'")
    settle(connection)
    away = True

    def fails(step):
        if away and step == "deliver":
            raise error("INVALID_VALUE", "no")

    memory.fails = fails
    for i in range(20):
        connection.execute(f"INSERT INTO t VALUES ({i}, 'x')")
        connection.flush()
        connection._session.database._compactor.run()
    away = False
    connection.execute("ALTER SINK s START")
    sink_id = connection._session.catalog.by_name("s").id
    while connection._session.database.service(SinkWriters).status(sink_id).state == "stopped":
        pass
    settle(connection)
    topic = topic_of(memory, connection)
    assert topic.content == rows(connection, "m") == [("x", 20)]
    assert len(topic.batches) == 20


def test_beyond_the_limit_the_sink_is_lost_and_a_new_one_begins_anew(memory, connect, settle, shown, monkeypatch):
    monkeypatch.setattr("watersmeet.store.retention.DELIVERY_COMMITS", 5)
    connection = connect()
    connection.execute("ALTER SYSTEM SET retention = 0")
    connection.execute(TABLES)
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
    sink(connection, source="FROM m", more=", primary_key = 'v'")
    settle(connection)
    refuses = True

    def fails(step):
        if refuses and step == "deliver":
            raise error("INVALID_VALUE", "no")

    memory.fails = fails
    for i in range(20):
        connection.execute(f"INSERT INTO t VALUES ({i}, 'x')")
        connection.flush()
        connection._session.database._compactor.run()
    connection.execute("ALTER SINK s START")
    until(lambda: shown(connection)["s"]["state"] == "lost")
    assert "no longer kept" in shown(connection)["s"]["detail"]
    refuses = False
    connection.execute("CREATE OR REPLACE SINK s FROM m WITH (connector = 'memory', primary_key = 'v')")
    settle(connection)
    assert topic_of(memory, connection).content == [("x", 20)]


@pytest.mark.parametrize("kind", ["", "LEFT ", "FULL "])
def test_a_row_that_one_bucket_deletes_and_another_one_inserts_is_not_delivered(memory, connect, settle, kind):
    """The key of the join is not in its output, so equal rows are in several buckets."""
    connection = connect()
    connection.execute("CREATE TABLE a (k int PRIMARY KEY, v text); CREATE TABLE b (k int PRIMARY KEY, w text)")
    insert = "INSERT INTO {0} SELECT g, '{0}' FROM generate_series({1}, {2}) AS g(g)"
    connection.execute("; ".join(insert.format(name, 1, 20) for name in "ab"))
    connection.flush()
    form = "connector = 'memory', type = 'append-only', force_append_only = true"
    connection.execute(f"CREATE SINK s AS SELECT a.v, b.w FROM a {kind}JOIN b ON a.k = b.k WITH ({form})")
    settle(connection)
    (topic,) = memory.topics.values()
    assert topic.content == [("a", "b")] * 20
    inserts = "; ".join(insert.format(name, 30, 33) for name in "ab")
    connection.execute(f"BEGIN; DELETE FROM a WHERE k <= 5; {inserts}; COMMIT")
    settle(connection)
    left = [("a", "b")] * 19 + ([(None, "b")] * 5 if kind == "FULL " else [])
    assert topic.content == sorted(left, key=repr)
    for batch in topic.batches:
        signs = [(tuple(row.values()), d > 0) for row, d in zip(batch.rows.to_pylist(), batch.diff, strict=True)]
        assert not {row for row, came in signs if came} & {row for row, came in signs if not came}
