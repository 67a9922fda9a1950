"""Sinks of views that were refreshed or got another query receive the difference to the content of then."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
from tests.faultysteps import raising
from tests.unit.sinks.test_delivery import rows, sink, topic_of

from watersmeet.errors import Error
from watersmeet.kernel.operators import STEPS


@pytest.mark.parametrize("source", ["FROM m", "AS SELECT v, n FROM m"])
def test_a_sink_gets_the_difference(memory, connect, settle, shown, source):
    connection = connect()
    connection.execute(
        "CREATE TABLE t (v varchar, x int); CREATE MATERIALIZED VIEW m AS SELECT v, sum(x) AS n FROM t GROUP BY v; "
        "INSERT INTO t VALUES ('a', 1), ('b', 2), ('c', 3); FLUSH"
    )
    sink(connection, source=source, more=", primary_key = 'v'")
    settle(connection)
    topic = topic_of(memory, connection)
    before = len(topic.changes)
    with mock.patch.dict(STEPS, {"aggregate": partial(raising, lambda: KeyError("planted"))}):
        connection.execute("DELETE FROM t WHERE v = 'c'; INSERT INTO t VALUES ('a', 4), ('d', 5)")
        settle(connection)
    assert len(topic.changes) == before
    connection.execute("REFRESH MATERIALIZED VIEW m")
    settle(connection)
    assert sorted(topic.changes[before:]) == [(("a", 1), -1), (("a", 5), 1), (("c", 3), -1), (("d", 5), 1)]
    connection.execute("INSERT INTO t VALUES ('d', 1)")
    settle(connection)
    assert topic.content == rows(connection, "m") == [("a", 5), ("b", 2), ("d", 6)]
    assert shown(connection)["s"]["state"] == "running"


@pytest.mark.parametrize("source", ["FROM m", "AS SELECT v, n FROM m WHERE n <> 2"])
def test_a_sink_gets_the_difference_of_another_query(memory, connect, settle, shown, source):
    connection = connect()
    connection.execute(
        "CREATE TABLE t (v varchar, x int); CREATE MATERIALIZED VIEW m AS SELECT v, sum(x) AS n FROM t GROUP BY v; "
        "INSERT INTO t VALUES ('a', 1), ('b', 3), ('c', 4), ('a', 5); FLUSH"
    )
    sink(connection, source=source, more=", primary_key = 'v'")
    settle(connection)
    topic = topic_of(memory, connection)
    before = len(topic.changes)
    connection.execute("ALTER MATERIALIZED VIEW m AS SELECT v, sum(x) AS n, 1 AS one FROM t WHERE x > 1 GROUP BY v")
    settle(connection)
    assert sorted(topic.changes[before:]) == [(("a", 5), 1), (("a", 6), -1)]
    connection.execute("INSERT INTO t VALUES ('d', 7)")
    settle(connection)
    assert topic.content == [("a", 5), ("b", 3), ("c", 4), ("d", 7)]
    assert shown(connection)["s"]["state"] == "running"


def test_a_query_whose_rows_may_share_the_key_of_a_sink_is_refused(memory, connect, settle):
    connection = connect()
    connection.execute(
        "CREATE TABLE t (v varchar, x bigint); CREATE MATERIALIZED VIEW m AS SELECT v, max(x) AS n FROM t GROUP BY v"
    )
    sink(connection, source="FROM m", more=", primary_key = 'v'")
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW m AS SELECT v, x AS n FROM t")
    assert caught.value.detail == 'Sink "s" relies on the key v, which several rows may now share.'
    settle(connection)
