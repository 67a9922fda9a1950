"""A subscription on Spark goes on in the next process, with its state and with the rows that were not fetched."""

from __future__ import annotations

import pytest

import watersmeet

pytestmark = pytest.mark.spark


def insert(connection, *values):
    connection.execute("INSERT INTO s(i) VALUES " + ", ".join(f"({v})" for v in values) + "; FLUSH")


def test_a_subscription_goes_on_after_a_restart(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", parallelism=2) as connection:
        connection.execute("CREATE STREAM s(i int)")
        tail = connection.execute("SUBSCRIBE TO SELECT i FROM s SETTINGS query_id = 'tail'")
        total = connection.execute(
            "SUBSCRIBE TO SELECT i % 2 AS k, sum(i) AS total FROM s GROUP BY k EMIT ON UPDATE "
            "SETTINGS query_id = 'total'"
        )
        insert(connection, 1, 2, 3)
        assert tail.fetchmany(2) == [(1,), (2,)]
        assert sorted(total.fetchall()) == [(0, 2), (1, 4)]
        connection.execute("KILL QUERY 'total'")
        insert(connection, 4)
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", parallelism=2) as connection:
        insert(connection, 5)
        assert connection.execute("RECOVER FROM 'tail'").fetchall() == [(3,), (4,), (5,)]
        assert connection.execute("RECOVER FROM 'total'").fetchall() == [(0, 6), (1, 9)]
        connection.execute("UNSUBSCRIBE TO 'tail'")
        assert [row[0] for row in connection.execute("SHOW QUERIES").fetchall()] == ["total"]
