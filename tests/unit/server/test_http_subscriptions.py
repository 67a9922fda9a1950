"""Subscriptions as server-sent events: each commit once, in order, resumed by the number of a commit."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter

from watersmeet.server.clients import Limits
from watersmeet.server.web import clientsessions
from watersmeet.server.web.clientsessions import written
from watersmeet.subscribing.updates import Update

TABLES = """
CREATE TABLE t (k int PRIMARY KEY, g int, v double precision, s varchar, b boolean, n bigint);
CREATE MATERIALIZED VIEW sums AS SELECT g, sum(v) AS total, count(*) AS n FROM t GROUP BY g;
CREATE MATERIALIZED VIEW large AS SELECT k, v FROM t WHERE v > 50;
FLUSH;
"""


def content(events, held=None):
    """Adds events up to a commit up: by view, how often each row is there."""
    held = {} if held is None else held
    for event in events:
        if event.data.get("begins"):
            held.clear()
        for part in event.data.get("changes", ()):
            rows = held.setdefault(part["view"], Counter())
            for row, diff in zip(part["rows"], part["diffs"], strict=True):
                rows[tuple(row)] += diff
                assert rows[tuple(row)] >= 0, "rows that go are there"
                if not rows[tuple(row)]:
                    del rows[tuple(row)]
        yield event, held


def rows_of(served, view):
    return Counter(tuple(r) for r in served.python.execute(f"SELECT * FROM {view}").fetchall())


def test_content_then_changes_and_resumed_anywhere(serving):
    served = serving(TABLES, http_port=0)
    rng = random.Random(7)
    path = "/subscribe?view=sums&view=large&progress=true"
    last, held, seen = None, None, []
    for _ in range(6):
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        with served.events(path, headers) as events:
            for _ in range(rng.randint(1, 4)):
                k = rng.randrange(12)
                if rng.random() < 0.3:
                    served.python.execute("DELETE FROM t WHERE k = ?", (k,))
                else:
                    served.python.execute("DELETE FROM t WHERE k = ?", (k,))
                    row = (k, rng.choice([None, 1, 2]), rng.choice([None, 51.5, 99.0, 1.0]), 'a"\n', None, 2**60)
                    served.python.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", row)
                served.python.execute("FLUSH")
            head = served.python.opened.log.head()
            for event, now in content(events, held):
                held = now
                assert (event.name == "snapshot") == (last is None)
                if event.id is not None:
                    assert last is None or event.id > last or (event.name == "progress" and event.id == last)
                    last = event.id
                    seen += [event.id] if event.name == "change" else []
                if last is not None and last >= head:
                    break
        for view in ("sums", "large"):
            assert held.get(view, Counter()) == Counter({json_row(r): n for r, n in rows_of(served, view).items()})
    assert seen == sorted(set(seen))


def json_row(row):
    """A row as events have it: what JSON has no exact form for is text."""
    return tuple(v if not isinstance(v, int) or isinstance(v, bool) or abs(v) < 2**31 else str(v) for v in shown(row))


def shown(row):
    return [str(v) if i == len(row) - 1 and len(row) == 3 else v for i, v in enumerate(row)]  # count(*) is bigint


def test_values_beginnings_and_ends(serving):
    served = serving(TABLES, http_port=0)
    rows = "(1, 2, 'NaN', 'é\"', true, 9007199254740993), (2, NULL, 1.5, NULL, NULL, NULL)"
    served.python.execute(f"INSERT INTO t VALUES {rows}")
    served.python.execute("FLUSH")
    with served.events("/subscribe?view=t") as events:
        first = events.next()
    (part,) = first.data["changes"]
    assert first.name == "snapshot" and first.data["begins"] and first.data["complete"]
    assert part["columns"] == ["k", "g", "v", "s", "b", "n"]
    assert sorted(part["rows"]) == [[1, 2, "NaN", 'é"', True, "9007199254740993"], [2, None, "1.5", None, None, None]]
    head = first.id
    served.python.execute("DELETE FROM t WHERE k = 1")
    served.python.execute("FLUSH")
    commit = served.python.opened.log.head()
    with served.events(f"/subscribe?view=t&after={head}&up_to={commit}") as events:
        change, end = events
        assert (change.name, change.id) == ("change", commit) or change.id < commit
        assert change.data["changes"][0]["diffs"] == [-1]
        assert end.name == "end"
    # A browser connects again when the stream has ended, until it is told that nothing is left.
    assert served.http(f"/subscribe?view=t&up_to={commit}", headers={"Last-Event-ID": str(commit)}).status == 204
    with served.events("/subscribe?view=t&snapshot=false") as events:
        served.python.execute("INSERT INTO t VALUES (9, 1, 1, '', false, 1)")
        served.python.execute("FLUSH")
        assert events.next("change").data["changes"][0]["rows"][0][0] == 9
    for query, condition in (
        ("", "INVALID_PARAMETER"),
        ("view=nothing", "UNDEFINED_RELATION"),
        ("view=t&after=x", "INVALID_PARAMETER"),
        ("view=t&after=99999", "INVALID_PARAMETER"),
        ("view=t&view=t", "INVALID_PARAMETER"),
        ("view=t&snapshot=yes", "INVALID_PARAMETER"),
        ("view=t&progress=", "INVALID_PARAMETER"),
        ("view=t&upto=3", "INVALID_PARAMETER"),
    ):
        assert served.http(f"/subscribe?{query}").condition == condition, query


def test_a_relation_that_is_dropped_ends_the_stream_with_its_reason(serving):
    served = serving(TABLES, http_port=0)
    with served.events("/subscribe?view=large") as events:
        events.next("snapshot")
        served.python.execute("DROP MATERIALIZED VIEW large")
        failed = events.next("failed")
        assert failed.data["error"]["condition"] == "UNDEFINED_RELATION"
        assert failed.data["token"] is not None
        assert not list(events)


def test_quiet_streams_say_that_they_go_on(serving, monkeypatch):
    monkeypatch.setattr(clientsessions, "STILL_THERE_S", 0.05)
    monkeypatch.setattr(clientsessions, "ALIVE_S", 0.05)
    served = serving(TABLES, http_port=0)
    with served.events("/subscribe?view=sums") as events:
        events.next()
        while not events.comments:
            line = events.response.readline().decode()
            events.comments += [line] if line.startswith(": still") else []
    with served.events("/api/live?session=a") as events:
        events.next("snapshot")
        assert events.next("alive").data == {}


def test_who_takes_nothing_is_cut_off_and_keeps_nobody_waiting(serving):
    served = serving(TABLES, http_port=0, limits=Limits(slow_client_s=0.3))
    rows = "SELECT i, 1, 1, repeat('x', 100), true, i FROM generate_series(1, 100000) g(i)"
    served.python.execute(f"INSERT INTO t {rows}")
    served.python.execute("FLUSH")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.server.http_port))
        client.sendall(b"GET /subscribe?view=t HTTP/1.1\r\nHost: localhost\r\n\r\n")
        end = time.monotonic() + 30
        while b'{protocol="http"} 1.0' not in served.http("/metrics").body:
            assert time.monotonic() < end
        served.python.execute("DELETE FROM t WHERE k < 10")
        served.python.execute("FLUSH")
        while b'{protocol="http"} 0.0' not in served.http("/metrics").body:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_an_update_is_one_event():
    assert written(Update(7, 1), {}, first=False) == (
        b'event: progress\nid: 7\ndata: {"commit":7,"time_us":1,"complete":true,"changes":[]}\n\n'
    )
    part = written(Update(7, 1, is_snapshot=True, is_complete=False), {}, first=True).decode()
    assert "id:" not in part
    data = {"commit": 7, "time_us": 1, "complete": False, "begins": True, "changes": []}
    assert json.loads(part.split("data: ")[1]) == data
