"""One statement stops neither the server nor another user's statement: limits, cancels in every phase, memory."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import duckdb
import psycopg
import pyarrow as pa
import pytest
from tests.waiting import until

from watersmeet.database import reading
from watersmeet.errors import Error
from watersmeet.server.clients import Limits
from watersmeet.values.types import INTEGER, Field

TABLE = (
    "CREATE TABLE t (a int PRIMARY KEY, b varchar);"
    "INSERT INTO t SELECT i, 'x' || i FROM generate_series(1, 3000) AS s(i); FLUSH;"
)
JOINED = "t AS t0 " + " ".join(f"JOIN t AS t{i} ON t{i - 1}.a = t{i}.a" for i in range(1, 200))
SLOW = "levenshtein(repeat('a', 2000000), repeat('b', 2000000))"
#: By the phase in which each takes minutes, or more memory than there is.
ENDLESS = {
    "read": "SELECT 1" + "+1" * 100_000,
    "bind and plan": f"SELECT count(*) FROM {JOINED}",
    "plan a view": f"CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM {JOINED}",
    "one value": f"SELECT {SLOW}",
    "one value of a row": f"INSERT INTO t VALUES (-1, {SLOW}::varchar)",
    "one value of RETURNING": f"UPDATE t SET b = 'y' WHERE a = 1 RETURNING {SLOW}",
    "explain": f"EXPLAIN ANALYZE SELECT {SLOW}",
    "a long series": "SELECT count(*) FROM generate_series('0001-01-01'::timestamp, '9999-01-01'::timestamp, "
    "interval '1 microsecond')",
    "rows": "SELECT count(*) FROM t AS x, t AS y, t AS z WHERE x.a + y.a + z.a < 0",
}


@pytest.fixture
def served(serving):
    return serving(TABLE)


@pytest.mark.parametrize("phase", ENDLESS)
def test_a_timeout_ends_each_phase(served, phase):
    with served.connect(autocommit=True) as client:
        client.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            client.execute(ENDLESS[phase])
        client.execute("SET statement_timeout = '0'")
        assert client.execute("SELECT count(*) FROM t").fetchone() == (3000,)


#: Queries that wait within a call of a function, until they are canceled.
WAITING = {
    "pg_sleep": "SELECT pg_sleep(600)",
    "pg_sleep_for": "SELECT a, pg_sleep_for('10 minutes') FROM t",
    "INSERT": "INSERT INTO t SELECT 1, length(pg_sleep(600))",
    "Python": "SELECT waits(a) FROM t",
    "a process of its own": "SELECT waits(1), repeat('x', a) FROM t",
}


@pytest.mark.parametrize("query", WAITING)
@pytest.mark.parametrize("by", ["request", "timeout"])
def test_a_call_of_a_function_is_canceled(monkeypatch, served, query, by):
    monkeypatch.setenv("WATERSMEET_FUNCTION_SECONDS", "600")
    body = "import time\ndef waits(a):\n    time.sleep(600)\n    return a"
    served.python.execute(f"CREATE FUNCTION waits(int) RETURNS int LANGUAGE python AS $${body}$$")
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        if by == "timeout":
            client.execute("SET statement_timeout = '200ms'")
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                client.execute(WAITING[query])
            client.execute("RESET statement_timeout")
        else:

            def cancel() -> None:
                asked = "SELECT state FROM pg_stat_activity WHERE pid = %s"
                until(lambda: other.execute(asked, (client.info.backend_pid,)).fetchone() == ("active",))
                client.cancel_safe()

            canceling = threading.Thread(target=cancel)
            canceling.start()
            with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
                client.execute(WAITING[query])
            canceling.join()
        assert client.execute("SELECT count(*), pg_sleep(0.001) FROM t").fetchone() == (3000, "")


def test_clients_call_a_function_at_the_same_time(served):
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        waiting = threading.Thread(target=tried, args=(client, "SELECT pg_sleep(600)"))
        waiting.start()
        asked = "SELECT state FROM pg_stat_activity WHERE pid = %s"
        until(lambda: other.execute(asked, (client.info.backend_pid,)).fetchone() == ("active",))
        for _ in range(20):
            assert other.execute("SELECT pg_sleep(0)").fetchone() == ("",)
        client.cancel_safe()
        waiting.join()


def tried(client: psycopg.Connection, query: str) -> None:
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        client.execute(query)


@pytest.mark.parametrize("phase", ["read", "one value"])
def test_cancel_and_terminate_end_it(served, phase):
    failures: list[BaseException] = []

    def run(client: psycopg.Connection) -> None:
        try:
            client.execute(ENDLESS[phase])
        except psycopg.Error as err:
            failures.append(err)

    for end in ("pg_cancel_backend", "pg_terminate_backend"):
        with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
            running = threading.Thread(target=run, args=(client,))
            running.start()
            number = client.info.backend_pid
            asked = "SELECT state FROM pg_stat_activity WHERE pid = %s"
            until(lambda: other.execute(asked, (number,)).fetchone() == ("active",))
            other.execute(f"SELECT {end}({number})")
            running.join()
    assert isinstance(failures[0], psycopg.errors.QueryCanceled)
    assert isinstance(failures[1], psycopg.errors.AdminShutdown)


def test_long_texts_are_refused_and_long_values_are_not(serving):
    served = serving(TABLE, limits=Limits(statement_size="10kB"))
    long = "x" * 20_000
    with served.connect(autocommit=True) as client:
        for text, values in (("SELECT '{}'", None), ("SELECT %s, '{}'", (1,))):
            with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too long") as refused:
                client.execute(text.replace("{}", long), values)
            assert "10,240" in refused.value.diag.message_detail
        assert client.execute("SELECT length(%s)", (long,)).fetchone() == (20_000,)
        with client.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write_row((-1, long))
        assert client.execute("DELETE FROM t WHERE a = -1").rowcount == 1
    with served.connect() as client:
        client.execute("SELECT 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            client.execute(f"SELECT '{long}'")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("SELECT 1")


def test_many_words_are_refused_before_they_take_memory(serving):
    served = serving(limits=Limits(statement_memory="64MB"))
    with served.connect(autocommit=True) as client:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many words"):
            client.execute("SELECT " + "1," * 40_000 + "1")
        assert client.execute("SELECT length('" + "x y " * 40_000 + "')").fetchone() == (160_000,)
        assert client.execute("SELECT 1" + " " * 300_000).fetchone() == (1,)


def test_a_statement_beyond_its_memory_fails_alone(serving):
    served = serving(TABLE, limits=Limits(statement_memory="256MB"))
    with served.connect(autocommit=True) as client:
        with pytest.raises(psycopg.errors.OutOfMemory, match="too much memory"):
            client.execute("SELECT sum(length(repeat(b, 1000000))) FROM t")
        assert client.execute("SELECT count(*) FROM t").fetchone() == (3000,)


def test_answers_from_a_process_are_those_of_this_one(serving):
    served = serving(
        """CREATE TABLE k (a int PRIMARY KEY, b varchar, n numeric, j jsonb, d interval, z timestamptz, l int[],
        o bytea); INSERT INTO k VALUES (1, 'kitten', 1.50, '{"a": [1, null]}', interval '1 day', '2024-01-01 00:00:00Z',
        array[1, NULL], '\\x00ff'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL); FLUSH;"""
    )
    query = "SELECT k.*, {} AS e FROM k ORDER BY a"
    with served.connect() as client:
        plain = client.execute(query.format("CASE WHEN b IS NOT NULL THEN 3 END")).fetchall()
        assert client.execute(query.format("levenshtein(b, 'sitting')")).fetchall() == plain
        client.execute("INSERT INTO k (a, b) VALUES (levenshtein('abc', 'xyz'), 'own')")
        assert client.execute("SELECT a, levenshtein(b, '') FROM k WHERE a = 3").fetchone() == (3, 3)
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            client.execute("SELECT levenshtein(b, '') + b::int FROM k WHERE a = 1")


def test_the_catalog_answers_within_limits(served):
    with served.connect(autocommit=True) as client:
        for text in ("repeat(relname, 1000000000)", "lpad(relname, 100000000)", "levenshtein(relname, 'x')"):
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                client.execute(f"SELECT {text} FROM pg_class")
        assert client.execute(
            "SELECT repeat(relname, 2), g FROM pg_class, generate_series(1, 2) AS g WHERE relname = 't' ORDER BY g"
        ).fetchall() == [("tt", 1), ("tt", 2)]
        client.execute("SET max_result_size = '1kB'")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            client.execute("SELECT * FROM pg_attribute, pg_class")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT sum(a) FROM t",
        "INSERT INTO t SELECT a + 5000, b FROM t WHERE a < 9",
        "INSERT INTO t VALUES " + ", ".join(f"({i}, lower('Y'))" for i in range(8)),
        "UPDATE t SET b = 'y' WHERE a < 9",
    ],
)
@pytest.mark.parametrize("failure", [duckdb.OutOfMemoryException, duckdb.InterruptException])
@pytest.mark.parametrize("times", [1, 2])
def test_another_one_s_lack_of_memory_fails_no_statement(served, monkeypatch, statement, failure, times):
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        left = times
        real = reading.rows_of

        def rows_of(connection, sql, most_bytes=0):
            nonlocal left
            left -= 1
            if left >= 0:
                with pytest.raises(duckdb.Error):
                    connection.execute("SELECT 'x'::int")  # ends the transaction, as each error does
                raise failure("odd")
            return real(connection, sql, most_bytes)

        with monkeypatch.context() as patched:
            patched.setattr(reading, "rows_of", rows_of)
            done = client.execute(statement)
        assert done.rowcount == 8 or done.fetchone() == (4_501_500,)
        assert other.execute("SELECT count(*) >= 3000 FROM t").fetchone() == (True,)


def test_an_error_is_not_hidden_by_the_end_of_its_transaction(served):
    content, catalog = served.python.opened.content, served.python.opened.catalog
    rows, columns = pa.table({"n": pa.array([1], pa.int32())}), (Field("n", INTEGER),)
    with (
        content.reader(catalog, ()) as (connection, _),
        pytest.raises(duckdb.ConversionException),
        reading.lent(connection, rows, columns),
    ):
        connection.execute("SELECT 'x'::int")
    with content.reader(catalog, ()) as (connection, _), reading.lent(connection, rows, columns, "r"):
        assert connection.execute("SELECT n FROM r").fetchone() == (1,)


def test_sizes_that_are_none_are_refused():
    for limits in (Limits(statement_size="1B"), Limits(statement_memory="1MB"), Limits(statement_size="many")):
        with pytest.raises(Error) as refused:
            limits.check()
        assert refused.value.condition == "INVALID_PARAMETER"


def test_wait_tells_at_once_which_view_is_paused(served):
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        client.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
        client.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        told = []
        client.add_notice_handler(lambda diag: told.append(diag.message_primary))
        with ThreadPoolExecutor(1) as thread:
            waits = thread.submit(client.execute, "WAIT")
            until(lambda: waits.done() or told)
            other.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = DEFAULT")
            waits.result(60)
        assert [text.partition(":")[0] for text in told] == ['waits for materialized view "v", whose fill is paused']
        assert other.execute("SELECT n FROM v").fetchone() == (3000,)
