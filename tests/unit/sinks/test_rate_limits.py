"""sink_rate_limit in statements: WITH, SET and ALTER."""

import pytest
from tests.waiting import until

from watersmeet.errors import Error

FORM = "connector = 'memory', type = 'append-only', force_append_only = true"


def delivered(memory, name):
    """How many rows the target of that id has got."""
    found = [t for (_, target_id), t in memory.topics.items() if target_id == name]
    return sum(p.rows.num_rows for t in found for p in t.batches)


def states(connection):
    return {row[0]: row[3] for row in connection.execute("SHOW SINKS").fetchall()}


def test_a_paused_sink_goes_on_when_told_to(memory, connect):
    connection = connect()
    connection.execute("CREATE TABLE t (v int); INSERT INTO t VALUES (1), (2), (3); SET sink_rate_limit = 0")
    connection.execute(f"CREATE SINK one FROM t WITH ({FORM})")
    connection.execute(f"CREATE SINK other FROM t WITH ({FORM}, sink_rate_limit = default)")
    one, other = "s2", "s3"
    until(lambda: delivered(memory, other) == 3)
    until(lambda: states(connection) == {"one": "paused", "other": "running"})
    assert delivered(memory, one) == 0
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = 1000")
    until(lambda: delivered(memory, one) == 3)
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT TO DEFAULT; INSERT INTO t VALUES (4)")
    until(lambda: delivered(memory, one) == 4)
    until(lambda: states(connection) == {"one": "running", "other": "running"})


def test_a_limit_is_kept_by_the_next_process(memory, connect):
    connect().execute(
        f"CREATE TABLE t (v int); CREATE SINK one FROM t WITH ({FORM}); ALTER SINK one SET SINK_RATE_LIMIT = 0"
    )
    connection = connect()
    connection.execute("INSERT INTO t VALUES (1)")
    until(lambda: states(connection) == {"one": "paused"})
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = DEFAULT")
    until(lambda: delivered(memory, "s2") == 1)


def batches(memory):
    return [p.rows.num_rows for t in memory.topics.values() for p in t.batches]


def test_no_more_rows_go_out_at_once_than_are_allowed_in_a_second(memory, connect):
    connection = connect()
    connection.execute(f"CREATE TABLE t (v int); CREATE SINK one FROM t WITH ({FORM}, sink_rate_limit = 40)")
    connection.execute("INSERT INTO t SELECT * FROM generate_series(1, 100000)")
    until(lambda: len(batches(memory)) >= 2)
    assert batches(memory)[:2] == [40, 40]
    connection.execute("INSERT INTO t VALUES (0); ALTER SINK one SET SINK_RATE_LIMIT = DEFAULT")
    until(lambda: delivered(memory, "s2") == 100001)
    assert max(batches(memory)) == 65536


def test_one_row_goes_out_when_a_paused_sink_goes_on(memory, connect):
    connection = connect()
    connection.execute(f"CREATE TABLE t (v int); CREATE SINK one FROM t WITH ({FORM}, sink_rate_limit = 0)")
    connection.execute("INSERT INTO t SELECT * FROM generate_series(1, 100)")
    until(lambda: states(connection) == {"one": "paused"})
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = 20")
    until(lambda: len(batches(memory)) >= 2)
    assert batches(memory)[:2] == [1, 20]


def test_another_limit_cuts_the_rest_of_a_commit_otherwise(memory, connect):
    """The next process goes on behind the rows that are there, wherever batches ended."""
    connection = connect()
    form = "connector = 'memory', type = 'upsert', primary_key = 'k'"
    connection.execute(f"CREATE TABLE t (k int PRIMARY KEY, v int); CREATE SINK one FROM t WITH ({form})")
    connection.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) AS g(i)")
    until(lambda: delivered(memory, "s2") == 100)
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = 30; UPDATE t SET v = 1")
    until(lambda: len(batches(memory)) >= 2)
    connection = connect()
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = 70")
    connection.execute("ALTER SINK one SET SINK_RATE_LIMIT = DEFAULT")
    until(lambda: sum(batches(memory)[1:]) == 200)
    assert batches(memory)[1] == 30
    assert sorted(memory.topic("s2").content) == [(k, 1) for k in range(1, 101)]


@pytest.mark.parametrize(
    ("statement", "offset"),
    [
        ("ALTER SINK s SET SINK_RATE_LIMIT = fast", "SINK_RATE_LIMIT = fast"),
        ("CREATE SINK x FROM t WITH (connector = 'blackhole', sink_rate_limit = '-2')", "sink_rate_limit = '-2'"),
        ("ALTER SINK inner_one SET SINK_RATE_LIMIT = 1", "SINK_RATE_LIMIT = 1"),
        ("ALTER SINK t SET SINK_RATE_LIMIT = 1", "t"),
        ("ALTER SINK s SET NOTHING = 1", "ALTER SINK s SET"),
    ],
)
def test_wrong_limits_are_refused_at_their_place(connect, statement, offset):
    connection = connect()
    connection.execute("CREATE TABLE t (v int PRIMARY KEY); CREATE TABLE u (v int PRIMARY KEY)")
    connection.execute("CREATE SINK s FROM t WITH (connector = 'blackhole')")
    connection.execute("CREATE SINK inner_one INTO u FROM t; CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
    with pytest.raises(Error) as caught:
        connection.execute(statement)
    assert caught.value.sql[caught.value.span.start : caught.value.span.end] == offset
