"""Sinks of views that were stopped and refreshed get the difference between the content of then and now."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
from tests.faultysteps import raising
from tests.unit.sinks.test_delivery import rows, sink, topic_of

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
