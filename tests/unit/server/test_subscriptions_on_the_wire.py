"""SUBSCRIBE over cursors, COPY and both protocols; subscriptions of RisingWave; running queries read by cursors."""

from __future__ import annotations

import asyncio
import csv
import threading

import asyncpg
import psycopg
import pytest
from tests.waiting import until

from watersmeet.subscribing.updates import Tailer

SHOP = """
CREATE TABLE t (k int PRIMARY KEY, v int, name varchar);
CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v;
INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, NULL);
FLUSH;
"""


@pytest.fixture
def served(serving):
    return serving(SHOP)


@pytest.fixture
def client(served):
    with served.connect(autocommit=True, options="-c statement_timeout=60s") as client:
        yield client


def put(served, *statements):
    """Runs statements; the commit that shows what they did."""
    for statement in statements:
        served.python.execute(statement)
    served.python.flush()
    return head(served)


def head(served):
    return served.python.opened.log.head()


def forget(served):
    """Lets go what nobody needs: the content that was read goes on, and what was before it is cleaned up."""
    for key in (1001, 1002, 1003):
        put(served, f"INSERT INTO t VALUES ({key}, 0, '')")
        served.python.execute("SELECT * FROM t")
        served.python.opened._compactor.run()


def test_a_cursor_gives_content_and_then_changes(served, client):
    first = head(served)
    client.execute("BEGIN")
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE m")
    cursor = client.execute("FETCH ALL FROM c")
    assert [d.name for d in cursor.description] == ["wm_commit", "wm_diff", "v", "n"]
    assert sorted(cursor.fetchall()) == [(first, 1, 1, 2), (first, 1, 2, 1)]
    assert client.execute("FETCH 10 c WITH (timeout = '0s')").fetchall() == []
    second = put(served, "DELETE FROM t WHERE k = 3")
    assert client.execute("FETCH NEXT c").fetchall() == [(second, -1, 2, 1)]
    third = put(served, "DELETE FROM t WHERE k = 2")
    assert client.execute("FETCH 1 c").fetchall() == [(third, -1, 1, 2)]
    assert client.execute("FETCH FORWARD 5 FROM c WITH (timeout = '10ms')").fetchall() == [(third, 1, 1, 1)]
    client.execute("COMMIT")
    with pytest.raises(psycopg.errors.InvalidCursorName):
        client.execute("FETCH c")


def test_a_fetch_waits_for_the_first_row(served, client):
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE m WITH (SNAPSHOT = false)")
    found = []
    fetching = threading.Thread(target=lambda: found.extend(client.execute("FETCH ALL c").fetchall()))
    fetching.start()
    number = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    fetching.join(60)
    assert found == [(number, 1, 4, 1)]


def test_a_fetch_is_cancelled(served, client):
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE m WITH (SNAPSHOT = false)")
    failed = []

    def fetch():
        try:
            client.execute("FETCH c WITH (timeout = '1 hour')")
        except psycopg.Error as err:
            failed.append(err.sqlstate)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    while fetching.is_alive():
        client.cancel_safe()
        fetching.join(0.1)
    assert failed == ["57014"]
    number = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    assert client.execute("FETCH c").fetchall() == [(number, 1, 4, 1)]


def test_progress_and_where_to_go_on(served, client):
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE m WITH (PROGRESS)")
    rows = client.execute("FETCH ALL c").fetchall()
    assert rows[-1] == (head(served), True, None, None, None)
    token = rows[-1][0]
    assert client.execute("FETCH ALL c WITH (timeout = '0s')").fetchall() == []
    client.execute("CLOSE c")
    number = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    client.execute(f"DECLARE c CURSOR FOR SUBSCRIBE m AFTER {token} UP TO {number} WITH (PROGRESS)")
    assert client.execute("FETCH ALL c WITH (timeout = '60s')").fetchall() == [
        (number, False, 1, 4, 1),
        (number, True, None, None, None),
    ]
    assert client.execute("FETCH ALL c").fetchall() == []


def test_errors_name_what_is_gone(served, client):
    served.python.execute("ALTER SYSTEM SET retention = 0")
    token = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    forget(served)
    with pytest.raises(psycopg.Error) as caught:
        client.execute(f"DECLARE c CURSOR FOR SUBSCRIBE m AFTER {token}")
    assert caught.value.sqlstate == "72000"
    assert caught.value.diag.source_function == "HISTORY_GONE"
    assert caught.value.diag.message_detail.startswith("The oldest commit: ")


def test_envelopes(served, client):
    client.execute("DECLARE u CURSOR FOR SUBSCRIBE t ENVELOPE UPSERT WITH (SNAPSHOT = false)")
    client.execute("DECLARE d CURSOR FOR SUBSCRIBE t ENVELOPE DEBEZIUM (KEY (k)) WITH (SNAPSHOT = false)")
    client.execute("DECLARE w CURSOR FOR SUBSCRIBE t WITH (snapshot = false, envelope = 'upsert', key = 'v')")
    number = put(
        served, "UPDATE t SET v = 7 WHERE k = 1", "DELETE FROM t WHERE k = 3", "INSERT INTO t VALUES (9, 9, 'x')"
    )
    cursor = client.execute("FETCH ALL u")
    assert [d.name for d in cursor.description] == ["wm_commit", "wm_state", "k", "v", "name"]
    assert sorted(cursor.fetchall()) == [
        (number, "delete", 3, None, None),
        (number, "upsert", 1, 7, "a"),
        (number, "upsert", 9, 9, "x"),
    ]
    cursor = client.execute("FETCH ALL d")
    assert [d.name for d in cursor.description][3:] == ["before_v", "before_name", "after_v", "after_name"]
    assert sorted(cursor.fetchall()) == [
        (number, "delete", 3, 2, None, None, None),
        (number, "insert", 9, None, None, 9, "x"),
        (number, "upsert", 1, 1, "a", 7, "a"),
    ]
    client.execute("FETCH ALL w")
    number = put(served, "INSERT INTO t VALUES (20, 30, 'x'), (21, 30, 'y')")
    assert client.execute("FETCH ALL w").fetchall() == [(number, "key_violation", 30, None, None)]


def test_several_relations_at_one_moment(served, client):
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE t, m WITH (SNAPSHOT = false, PROGRESS)")
    client.execute("FETCH c")
    number = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    rows = client.execute("FETCH ALL c WITH (timeout = '50ms')").fetchall()
    rows = [r for r in rows if r[0] == number]
    assert rows == [
        (number, False, 1, "t", {"k": 4, "v": 4, "name": "d"}),
        (number, False, 1, "m", {"v": 4, "n": 1}),
        (number, True, None, None, None),
    ]


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copy(served, client, form):
    """Each row as it comes, until UP TO."""
    begin = head(served)
    end = begin + 2
    options = {"text": "", "csv": "(FORMAT csv, HEADER)", "binary": "(FORMAT binary)"}[form]
    with client.cursor().copy(f"COPY (SUBSCRIBE m UP TO {end}) TO STDOUT {options}") as out:
        if form == "binary":
            out.set_types(["int8", "int8", "int4", "int8"])
        read = (lambda: next(csv.reader([bytes(out.read()).decode()]))) if form == "csv" else out.read_row
        if form == "csv":
            assert read() == ["wm_commit", "wm_diff", "v", "n"]
        found = [read(), read()]
        assert put(served, "DELETE FROM t WHERE k = 3") == end
        found.append(read())
        assert not out.read() if form == "csv" else out.read_row() is None
    rows = [tuple(map(int, row)) for row in found]
    assert sorted(rows) == sorted([(begin, 1, 1, 2), (begin, 1, 2, 1), (end, -1, 2, 1)])


def test_copy_of_nothing_in_binary(served, client):
    begin = head(served)
    with client.cursor().copy(f"COPY (SUBSCRIBE m AFTER {begin} UP TO {begin}) TO STDOUT (FORMAT binary)") as out:
        assert b"".join(out) == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"


def test_rows_one_by_one_in_the_extended_protocol(served, client):
    """psycopg's stream() binds and executes without a limit."""
    begin = head(served)
    stream = client.cursor().stream(f"SUBSCRIBE m UP TO {begin + 2}", binary=True)
    assert sorted([next(stream), next(stream)]) == [(begin, 1, 1, 2), (begin, 1, 2, 1)]
    put(served, "DELETE FROM t WHERE k = 3")
    assert list(stream) == [(begin + 2, -1, 2, 1)]


def test_the_simple_protocol_until_it_is_cancelled(served):
    """Rows come as they are, and a cancel ends them with an error that leaves the connection usable."""
    with served.connect(autocommit=True) as client:
        rows, failed = [], []

        def stream():
            try:
                rows.extend(client.cursor().stream("SUBSCRIBE m"))
            except psycopg.Error as err:
                failed.append(err.sqlstate)

        streaming = threading.Thread(target=stream)
        streaming.start()
        while streaming.is_alive():
            client.cancel_safe()
            streaming.join(0.1)
        assert failed == ["57014"]
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_portal_gives_some_rows_at_a_time(served):
    """asyncpg's cursors: Execute with a limit, suspended portals."""

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        try:
            async with client.transaction():
                cursor = await client.cursor(f"SUBSCRIBE t UP TO {head(served)}")
                parts = [await cursor.fetch(2), await cursor.fetch(2), await cursor.fetch(2)]
                return [[r["k"] for r in part] for part in parts]
        finally:
            await client.close()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [[1, 2], [3], []]


def test_clients_that_go_leave_nothing(served):
    client = served.connect(autocommit=True)
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE m")
    client.execute("FETCH c")
    tailer = served.python.opened.service(Tailer)
    assert len(tailer._listeners) == 1
    client.close()
    until(lambda: not tailer._listeners)


def test_a_client_that_hangs_up_while_rows_come_leaves_nothing(served):
    client = served.connect(autocommit=True)
    stream = client.cursor().stream("SUBSCRIBE m")
    next(stream)
    tailer = served.python.opened.service(Tailer)
    until(lambda: len(tailer._listeners) == 1)
    client.pgconn.finish()
    put(served, "DELETE FROM t WHERE k = 3")
    until(lambda: not tailer._listeners)


def test_cursors_over_streams_that_run(serving):
    """Timeplus' and SQLstream's queries that run until they are stopped."""
    served = serving("SET dialect = 'timeplus'; CREATE STREAM s(i int)")
    with served.connect(autocommit=True, options="-c dialect=timeplus") as client:
        client.execute("DECLARE c CURSOR FOR SELECT i FROM s WHERE i > 1")
        assert client.execute("FETCH 5 c WITH (timeout = '0s')").fetchall() == []
        served.python.execute("INSERT INTO s(i) VALUES (1), (2), (3)")
        assert client.execute("FETCH 1 c WITH (timeout = '60s')").fetchall() == [(2,)]
        assert client.execute("FETCH ALL c WITH (timeout = '0s')").fetchall() == [(3,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute("FETCH PRIOR FROM c")
        client.execute("CLOSE c")
        assert client.execute("SHOW QUERIES").fetchall() == []
        with client.cursor().copy("COPY (SELECT i FROM s LIMIT 1) TO STDOUT") as out:
            served.python.execute("INSERT INTO s(i) VALUES (7)")
            assert list(out.rows()) == [("7",)]
    served.python.execute('SET dialect = \'sqlstream\'; CREATE STREAM "q" ("I" INTEGER)')
    with served.connect(autocommit=True, options="-c dialect=sqlstream") as client:
        client.execute('DECLARE c CURSOR FOR SELECT STREAM "I" FROM "q"')
        served.python.execute('INSERT INTO "q" ("I") VALUES (5)')
        assert client.execute("FETCH 1 c WITH (timeout = '60s')").fetchall() == [(5,)]


def test_subscriptions_of_risingwave(served, client):
    client.execute("CREATE SUBSCRIPTION s FROM t WITH (retention = '1D')")
    client.execute("DECLARE c SUBSCRIPTION CURSOR FOR s FULL")
    cursor = client.execute("FETCH 2 FROM c")
    assert [d.name for d in cursor.description] == ["k", "v", "name", "op", "rw_timestamp"]
    assert cursor.fetchall() == [(1, 1, "a", "Insert", None), (2, 1, "b", "Insert", None)]
    assert client.execute("FETCH NEXT FROM c").fetchall() == [(3, 2, None, "Insert", None)]
    assert client.execute("FETCH NEXT FROM c").fetchall() == []
    put(served, "UPDATE t SET v = 7 WHERE k = 1")
    times = [served.python.opened.log.read(head(served)).time_us // 1000]
    assert client.execute("FETCH NEXT FROM c").fetchall() == [(1, 1, "a", "UpdateDelete", times[0])]
    assert client.execute("FETCH NEXT FROM c").fetchall() == [(1, 7, "a", "UpdateInsert", times[0])]
    assert client.execute("FETCH NEXT FROM c").fetchall() == []
    put(served, "DELETE FROM t WHERE k = 2")
    times.append(served.python.opened.log.read(head(served)).time_us // 1000)
    expected = [
        (1, 1, "a", "UpdateDelete", times[0]),
        (1, 7, "a", "UpdateInsert", times[0]),
        (2, 1, "b", "Delete", times[1]),
    ]
    for since, count in (("begin()", 3), (str(times[0]), 3), (str(times[0] + 1), 1), ("now()", 0), ("proctime()", 0)):
        client.execute(f"DECLARE d SUBSCRIPTION CURSOR FOR s SINCE {since}")
        assert client.execute("FETCH 10 FROM d").fetchall() == expected[3 - count :]
        client.execute("CLOSE d")
    client.execute("DECLARE d SUBSCRIPTION CURSOR FOR s")
    assert client.execute("FETCH 10 FROM d WITH (timeout = '10ms')").fetchall() == []
    put(served, "INSERT INTO t VALUES (8, 8, 'h')")
    assert client.execute("FETCH 1 FROM d WITH (timeout = '60s')").fetchone()[:4] == (8, 8, "h", "Insert")


def test_a_subscription_keeps_what_it_says(served, client):
    served.python.execute("ALTER SYSTEM SET retention = 0")
    before = put(served, "INSERT INTO t VALUES (4, 4, 'd')")
    client.execute("CREATE SUBSCRIPTION s FROM t WITH (retention = '1 hour')")
    numbers = [put(served, f"INSERT INTO t VALUES ({k}, 5, 'e')") for k in range(10, 14)]
    served.python.opened._compactor.run()
    served.python.opened._compactor.run()
    row = client.execute("SHOW SUBSCRIPTIONS").fetchone()
    assert row[:3] == ("s", "t", "1 hour")
    assert before <= row[3] < numbers[0]
    assert row[5] == 4
    client.execute("DECLARE c SUBSCRIPTION CURSOR FOR s SINCE begin()")
    assert [r[0] for r in client.execute("FETCH 10 FROM c").fetchall()] == [10, 11, 12, 13]
    with pytest.raises(psycopg.Error) as caught:
        client.execute("DECLARE d SUBSCRIPTION CURSOR FOR s SINCE 1000")
    assert caught.value.diag.source_function == "HISTORY_GONE"
    client.execute("ALTER SUBSCRIPTION s SET retention = '2D'")
    client.execute("ALTER SUBSCRIPTION s RENAME TO kept")
    assert client.execute("SHOW SUBSCRIPTIONS").fetchone()[:3] == ("kept", "t", "2 days")
    assert "RETENTION" in client.execute("SHOW CREATE SUBSCRIPTION kept").fetchone()[-1].upper()
    with pytest.raises(psycopg.Error, match="kept"):
        served.python.execute("DROP MATERIALIZED VIEW m")
        client.execute("DROP TABLE t")
    client.execute("CLOSE c")
    client.execute("DROP SUBSCRIPTION kept")
    forget(served)
    with pytest.raises(psycopg.Error) as caught:
        client.execute(f"DECLARE c CURSOR FOR SUBSCRIBE t AFTER {numbers[0]}")
    assert caught.value.diag.source_function == "HISTORY_GONE"


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("CREATE SUBSCRIPTION s FROM t", "CONNECTOR_OPTION"),
        ("CREATE SUBSCRIPTION s FROM t WITH (retention = 'long')", "INVALID_PARAMETER"),
        ("CREATE SUBSCRIPTION s FROM t WITH (retention = '1D', other = '1')", "CONNECTOR_OPTION"),
        ("CREATE SUBSCRIPTION s FROM nothing WITH (retention = '1D')", "UNDEFINED_RELATION"),
        ("CREATE SUBSCRIPTION s FROM plain WITH (retention = '1D')", "FEATURE_NOT_SUPPORTED"),
        ("DECLARE c SUBSCRIPTION CURSOR FOR nothing", "UNDEFINED_OBJECT"),
        ("DECLARE c SUBSCRIPTION CURSOR FOR t", "UNDEFINED_OBJECT"),
        ("DECLARE c SUBSCRIPTION CURSOR FOR t SINCE yesterday", "SYNTAX_ERROR"),
        ("ALTER SUBSCRIPTION nothing SET retention = '1D'", "UNDEFINED_OBJECT"),
        ("SELECT * FROM kept", "CATALOG_TYPE_MISMATCH"),
        ("FETCH c WITH (timeout = 'soon')", "INVALID_PARAMETER"),
        ("FETCH c WITH (wait = '1s')", "INVALID_PARAMETER"),
        ("DECLARE c CURSOR FOR INSERT INTO t VALUES (99, 1, 'x')", "NO_TRANSACTION"),
    ],
)
def test_refusals(served, client, statement, condition):
    served.python.execute("CREATE VIEW plain AS SELECT k FROM t")
    served.python.execute("CREATE SUBSCRIPTION kept FROM t WITH (retention = '1D')")
    with pytest.raises(psycopg.Error) as caught:
        client.execute(statement)
    assert caught.value.diag.source_function == condition
