"""A process that has nothing of a database's state on its disk fetches what an epoch needs, and not more."""

from __future__ import annotations

import pytest
from tests.memorystore import URL, MemoryStore, forget_copies, use

import watersmeet
from watersmeet.runtime import stages

ROWS = 10_000
SETUP = f"""
CREATE TABLE a (k bigint, x bigint, t varchar);
CREATE TABLE b (k bigint, y bigint, u varchar);
CREATE MATERIALIZED VIEW joined AS SELECT a.k, x, t, y, u FROM a LEFT JOIN b ON a.k = b.k;
CREATE MATERIALIZED VIEW summed AS SELECT k, count(*) AS n, sum(y) AS s FROM b GROUP BY k;
INSERT INTO a SELECT g, g * 7, repeat('x', 500) || g FROM generate_series(1, {ROWS}) AS s(g);
INSERT INTO b SELECT g, g * 3, repeat('y', 500) || g FROM generate_series(1, {ROWS}) AS s(g);
FLUSH;
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    return use(monkeypatch, MemoryStore(), tmp_path)


def connect():
    return watersmeet.connect(URL, runtime="inprocess", parallelism=1)


def go_elsewhere(store):
    """The next epochs run on another machine."""
    stages._segments_of.cache_clear()
    forget_copies()
    store.requests.clear()
    store.read_bytes = 0


def test_the_first_small_epoch_fetches_few_blocks(store):
    with connect() as connection:
        for _ in connection.execute_script(SETUP):
            pass
        runs = [len(data) for name, data in store.objects.items() if name.endswith(".run")]
        state = sum(v["state_bytes"] for v in connection.status()["views"])
        assert state > 8 << 20
        assert sum(runs) > state // 2
        go_elsewhere(store)
        connection.execute("INSERT INTO b VALUES (500, 1, ''), (5000, 2, NULL), (-1, 3, 'z')")
        connection.flush()
        in_parts = {name for kind, name in store.requests if kind == "range"}
        assert in_parts
        assert not in_parts & {name for kind, name in store.requests if kind == "get"}
        status = connection.status()
        assert status["cache_misses"] > 10
        assert 0 < status["fetched_bytes"] <= store.read_bytes
        assert status["fetched_bytes"] < state // 4
        check(connection)
        connection.execute("INSERT INTO b VALUES (500, 1, 'z')")
        connection.flush()
        assert connection.status()["cache_misses"] < 4
        assert connection.status()["cache_hits"] > 10
        connection.execute("DELETE FROM a WHERE k IN (500, 501)")
        connection.flush()
        check(connection)


def check(connection):
    """Both views are the batch results."""
    for view, query in (
        ("joined", "SELECT a.k, x, t, y, u FROM a LEFT JOIN b ON a.k = b.k"),
        ("summed", "SELECT k, count(*) AS n, sum(y) AS s FROM b GROUP BY k"),
    ):
        found = connection.execute(
            f"(SELECT * FROM {view} EXCEPT ALL {query}) UNION ALL ({query} EXCEPT ALL SELECT * FROM {view})"
        )
        assert found.fetchall() == []
