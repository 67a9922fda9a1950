"""Times without end and those that no timestamp holds: rows like others, that stop nothing."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ"])
def test_infinite_times_are_rows_like_others(run, kind):
    for table in "ab":
        run(f"CREATE TABLE {table} (k INT, ts {kind}, WATERMARK FOR ts AS ts - INTERVAL '5 days') APPEND ONLY")
    joined = "FROM a LEFT JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '1 day' AND b.ts + INTERVAL '1 day'"
    run(f"CREATE MATERIALIZED VIEW j AS SELECT a.ts, b.ts AS bts {joined}")
    run(f"CREATE MATERIALIZED VIEW f AS SELECT a.ts, b.ts AS bts {joined} EMIT ON WINDOW CLOSE")
    run("CREATE MATERIALIZED VIEW g AS SELECT ts, count(*) AS n FROM a GROUP BY ts EMIT ON WINDOW CLOSE")
    run("CREATE MATERIALIZED VIEW n AS SELECT ts FROM a WHERE ts > now() - INTERVAL '1 day'")
    past, present = "'-infinity'", "'2024-01-01'"
    for ts in (past, past, present, "'infinity'"):
        for table in "ab":
            run(f"INSERT INTO {table} VALUES (1, {ts})")
        run("FLUSH")
        if ts == past:
            assert run("SELECT * FROM g") == run("SELECT * FROM f") == [], "more of them may come"
    texts = "ts::varchar"
    assert run(f"SELECT {texts}, n FROM g") == [("-infinity", 2)]
    assert run(f"SELECT {texts} FROM n") == [("infinity",)]
    assert run(f"SELECT count(*), count(bts) FROM j WHERE {texts} LIKE '2024%'") == [(1, 1)]
    assert run("SELECT count(*) FROM j") == [(6,)], "each of the two finds both"
    assert run("SELECT count(*) FROM f") == [(4,)]


def test_window_functions_that_look_ahead_wait_for_the_rows_of_their_frames(run):
    run("CREATE TABLE a (k INT, ts TIMESTAMP, v INT, WATERMARK FOR ts AS ts - INTERVAL '5 seconds') APPEND ONLY")
    query = "SELECT ts, v, {} OVER (PARTITION BY k ORDER BY ts) AS n FROM a EMIT ON WINDOW CLOSE"
    run(f"CREATE MATERIALIZED VIEW ahead AS {query.format('lag(v, -1)')}")
    run(f"CREATE MATERIALIZED VIEW v AS {query.format('lead(v, -1)')}")
    run("INSERT INTO a VALUES (1, '2024-01-01 00:00:00', 1), (1, '2024-01-01 00:00:10', 2); FLUSH")
    run("INSERT INTO a VALUES (1, '2024-01-01 00:00:06', 3), (1, '2024-01-01 00:00:30', 4); FLUSH")
    assert sorted(r[1:] for r in run("SELECT * FROM v")) == [(1, None), (2, 3), (3, 1)]
    assert sorted(r[1:] for r in run("SELECT * FROM ahead")) == [(1, 3), (3, 2)]
