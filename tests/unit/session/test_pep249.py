"""The interface of PEP 249, and what Watersmeet adds to it."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import watersmeet
from watersmeet.database.sessions.result import Interval


def test_module_globals():
    assert (watersmeet.apilevel, watersmeet.threadsafety, watersmeet.paramstyle) == ("2.0", 2, "qmark")
    assert issubclass(watersmeet.ProgrammingError, watersmeet.DatabaseError)
    assert issubclass(watersmeet.InterfaceError, watersmeet.Error)
    assert watersmeet.Connection.ProgrammingError is watersmeet.ProgrammingError
    assert set(watersmeet.__all__) == set(dir(watersmeet))
    for name in watersmeet.__all__:
        assert getattr(watersmeet, name) is not None
    with pytest.raises(AttributeError):
        _ = watersmeet.no_such_name


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, watersmeet; print([m for m in ('duckdb', 'sqlglot', 'pyspark', 'pyarrow') if m in sys.modules])"
    root = Path(watersmeet.__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout.strip() == "[]"


def test_constructors():
    assert watersmeet.Date(2024, 1, 2) == dt.date(2024, 1, 2)
    assert watersmeet.DateFromTicks(86_400) == dt.date(1970, 1, 2)
    assert watersmeet.TimeFromTicks(3661) == dt.time(1, 1, 1)
    assert watersmeet.TimestampFromTicks(0) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert watersmeet.Binary(b"x") == b"x"


def test_description_and_type_objects(connection):
    cursor = connection.cursor()
    assert cursor.description is None
    assert cursor.rowcount == -1
    cursor.execute("SELECT 1 AS i, 'a' AS s, 1.25::numeric(6,2) AS n, now() AS t, '\\x00'::bytea AS b")
    assert [d[0] for d in cursor.description] == ["i", "s", "n", "t", "b"]
    codes = [d[1] for d in cursor.description]
    assert codes == [watersmeet.NUMBER, watersmeet.STRING, watersmeet.NUMBER, watersmeet.DATETIME, watersmeet.BINARY]
    assert codes[0] != watersmeet.STRING
    assert codes[0] != watersmeet.ROWID
    assert cursor.description[2] == ("n", codes[2], None, None, 6, 2, True)
    assert codes[2].sql == "numeric(6,2)"
    assert cursor.rowcount == 1


def test_fetching(connection):
    cursor = connection.cursor()
    cursor.execute("SELECT * FROM generate_series(1, 10) AS g(i) ORDER BY i")
    assert cursor.fetchone() == (1,)
    assert cursor.fetchmany() == [(2,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(3,), (4,)]
    assert cursor.fetchmany(3) == [(5,), (6,), (7,)]
    assert next(iter(cursor)) == (8,)
    assert cursor.fetchall() == [(9,), (10,)]
    assert cursor.fetchall() == []
    assert cursor.fetchone() is None
    assert cursor.fetchmany() == []
    assert cursor.arrow().num_rows == 10
    assert [row for row in cursor.execute("VALUES (1), (2)")] == [(1,), (2,)]


def test_many_rows_are_fetched_in_chunks(connection):
    cursor = connection.cursor()
    cursor.execute("SELECT * FROM generate_series(1, 20000) AS g(i) ORDER BY i")
    assert cursor.fetchone() == (1,)
    assert len(cursor.fetchmany(9000)) == 9000
    assert cursor.fetchall()[-1] == (20000,)


def test_fetching_where_there_is_nothing(connection):
    cursor = connection.cursor()
    for fetch in (cursor.fetchone, cursor.fetchall, cursor.fetchmany, cursor.arrow):
        with pytest.raises(watersmeet.ProgrammingError) as found:
            fetch()
        assert found.value.condition == "NO_RESULT"
    cursor.execute("CREATE TABLE t (a int)")
    assert cursor.description is None
    assert cursor.statusmessage == "CREATE TABLE"
    with pytest.raises(watersmeet.ProgrammingError):
        cursor.fetchall()


def test_results_for_notebooks(connection):
    """The names of DuckDB's and ADBC's Python API; each takes the rows that are left."""
    query = "SELECT i, 'x' || i AS t FROM generate_series(1, 5) AS s(i) ORDER BY i"
    cursor = connection.execute(query)
    assert cursor.fetchone() == (1, "x1")
    assert cursor.fetch_arrow_table().to_pydict() == {"i": [2, 3, 4, 5], "t": ["x2", "x3", "x4", "x5"]}
    assert cursor.fetchall() == []
    reader = connection.execute(query).fetch_record_batch_reader(2)
    assert [batch.num_rows for batch in reader] == [2, 2, 1]
    frame = connection.execute(query).fetch_df()
    assert (list(frame.columns), frame["i"].sum()) == (["i", "t"], 15)
    assert connection.execute(query).pl()["t"].to_list() == ["x1", "x2", "x3", "x4", "x5"]
    cursor = connection.execute(query)
    assert duckdb.sql("SELECT sum(i) FROM cursor").fetchall() == [(15,)]
    assert pa.table(connection.execute(query)).num_rows == 5


def test_results_of_a_query_that_runs_are_those_that_came(connection):
    connection.execute("SET dialect = 'timeplus'")
    connection.execute("CREATE STREAM came(i int)")
    cursor = connection.execute("SELECT i FROM came")
    connection.execute("INSERT INTO came(i) VALUES (1), (2), (3)")
    connection.flush()
    assert cursor.fetchone() == (1,)
    assert cursor.fetch_arrow_table()["i"].to_pylist() == [2, 3]
    connection.execute("INSERT INTO came(i) VALUES (4)")
    connection.flush()
    assert cursor.fetch_df()["i"].tolist() == [4]
    assert cursor.fetch_arrow_table().num_rows == 0
    cursor.close()
    connection.execute("DROP STREAM came; SET dialect = 'risingwave'")


def test_polars_that_is_missing_is_named(connection, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(watersmeet.OperationalError, match="pip install polars") as missing:
        connection.execute("SELECT 1").pl()
    assert missing.value.condition == "LIBRARY_MISSING"


def test_arrow_result(connection):
    table = connection.execute("SELECT 1::bigint AS a, 'x' AS a, interval '1 day' AS i").arrow()
    assert table.column_names == ["a", "a", "i"]
    assert table.schema.types == [pa.int64(), pa.string(), pa.month_day_nano_interval()]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("NULL", None),
        ("true", True),
        ("3::smallint", 3),
        ("-7", -7),
        ("9007199254740993", 9007199254740993),
        ("1.50::numeric(5,2)", Decimal("1.50")),
        ("12345678901234567890::numeric", Decimal(12345678901234567890)),
        ("1.5::real", 1.5),
        ("'-Infinity'::double precision", float("-inf")),
        ("'é ☃'", "é ☃"),
        ("''", ""),
        ("'\\x00ff'::bytea", b"\x00\xff"),
        ("date '2024-02-29'", dt.date(2024, 2, 29)),
        ("time '23:59:59.999999'", dt.time(23, 59, 59, 999999)),
        ("timestamp '2024-01-02 03:04:05.000006'", dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
        ("timestamptz '2024-01-02 03:04:05+02:00'", dt.datetime(2024, 1, 2, 1, 4, 5, tzinfo=dt.UTC)),
        ("interval '1 day 2 seconds'", dt.timedelta(days=1, seconds=2)),
        ('\'{"a": [1, null, "x"]}\'::jsonb', {"a": [1, None, "x"]}),
        ("'null'::jsonb", None),
        ("ARRAY[1, NULL, 3]", [1, None, 3]),
        ("ARRAY[ARRAY['a'], NULL]", [["a"], None]),
        ("row(1, 'x')", None),
    ],
)
def test_values_have_their_natural_python_type(connection, sql, value):
    cursor = connection.execute(f"SELECT {sql} AS v")
    found = cursor.fetchone()[0]
    if sql.startswith("row"):
        assert list(found.values()) == [1, "x"]
        return
    assert found == value
    assert isinstance(found, type(value))
    if isinstance(found, dt.datetime):
        assert found.tzinfo == value.tzinfo


def test_intervals_keep_their_months():
    value = Interval(14, 3, 5)
    assert (value.months, value.month_days, value.microseconds_of_day) == (14, 3, 5)
    assert value == dt.timedelta(days=423, microseconds=5)
    assert pickle.loads(pickle.dumps(value)).months == 14
    assert repr(value) == "Interval(months=14, days=3, microseconds=5)"


def test_intervals_go_in_and_out(connection):
    connection.execute("CREATE TABLE t (i interval, a interval[])")
    connection.execute("INSERT INTO t VALUES (?, ARRAY[?])", [Interval(13, 2, 3), dt.timedelta(hours=-1)])
    found, (inner,) = connection.execute("SELECT * FROM t").fetchone()
    assert (found.months, found.month_days, found.microseconds_of_day) == (13, 2, 3)
    assert inner == dt.timedelta(hours=-1)


def test_a_time_outside_of_pythons_years(connection):
    cursor = connection.execute("SELECT 'infinity'::timestamp AS t")
    with pytest.raises(watersmeet.DataError) as found:
        cursor.fetchall()
    assert found.value.condition == "INVALID_VALUE"
    assert "varchar" in found.value.hint


def test_several_statements_give_the_result_of_the_last(run):
    assert run("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2); SELECT sum(a) FROM t;") == [(3,)]
    assert run("") is None
    assert run(" ; -- nothing\n ;") is None


def test_statements_before_an_error_stay(run, fails):
    assert fails("CREATE TABLE t (a int); INSERT INTO t VALUES (1); INSERT INTO nowhere VALUES (1)").condition == (
        "UNDEFINED_RELATION"
    )
    assert run("SELECT * FROM t") == [(1,)]


def test_nothing_runs_of_a_text_that_cannot_be_parsed(run, fails):
    assert fails("CREATE TABLE t (a int); SELEC 1").condition == "SYNTAX_ERROR"
    assert run("SHOW TABLES") == []


def test_script_gives_a_cursor_for_each_statement(connection):
    script = "CREATE TABLE t (a int); INSERT INTO t VALUES (1); SELECT * FROM t; DROP TABLE IF EXISTS x"
    cursors = list(connection.execute_script(script))
    assert [c.statusmessage for c in cursors] == ["CREATE TABLE", "INSERT", "SELECT", "DROP TABLE"]
    assert cursors[2].fetchall() == [(1,)]
    assert cursors[3].notices == ('table "x" does not exist, skipping',)


def test_executemany(connection, run):
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (a int PRIMARY KEY, b varchar, c timestamptz, d double precision)")
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    cursor.executemany(
        "INSERT INTO t VALUES (?, ?, ?, ?)", [(1, "x", noon, 1), (2, None, None, 0.5), (1, "y", noon, 2.0)]
    )
    assert cursor.rowcount == 3
    assert run("SELECT * FROM t ORDER BY a") == [(1, "y", noon, 2.0), (2, None, None, 0.5)]
    cursor.executemany("INSERT INTO t (b, a) VALUES (?, ?)", [("p", 7), ("q", 8)])
    cursor.executemany("UPDATE t SET b = ? WHERE a = ?", [("r", 7), ("s", 8), ("t", 9)])
    assert cursor.rowcount == 2
    assert run("SELECT a, b FROM t WHERE a > 2 ORDER BY a") == [(7, "r"), (8, "s")]
    cursor.executemany("INSERT INTO t (a, b) VALUES (?, upper(?))", [(20, "up")])
    cursor.executemany("INSERT INTO t (a, b, d) VALUES (?, ?, ?)", [("30", 5, "1.5")])  # needs SQL's conversions
    assert run("SELECT a, b, d FROM t WHERE a >= 20 ORDER BY a") == [(20, "UP", None), (30, "5", 1.5)]
    cursor.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [])
    assert cursor.rowcount == 0


def test_executemany_is_one_transaction(connection, run):
    connection.execute("CREATE TABLE t (a int NOT NULL)")
    for sql in ("INSERT INTO t VALUES (?)", "INSERT INTO t SELECT ?::int"):
        with pytest.raises(watersmeet.IntegrityError):
            connection.cursor().executemany(sql, [(1,), (None,)])
        assert run("SELECT * FROM t") == []
    assert connection.autocommit


@pytest.mark.parametrize("values", [[(2**40,)], [("x",)], [(dt.date(2024, 1, 1),)], [(1, 2)], [(1,), (1, 2)]])
def test_executemany_refuses_wrong_values(connection, run, values):
    connection.execute("CREATE TABLE t (a int)")
    with pytest.raises(watersmeet.Error):
        connection.cursor().executemany("INSERT INTO t VALUES (?)", values)
    assert run("SELECT * FROM t") == []


def test_parameters(run, fails):
    assert run("SELECT ? + 1, ?", 41, "it's") == [(42, "it's")]
    run("CREATE TABLE t (a int, b varchar)")
    run("INSERT INTO t VALUES (?, ?)", 1, "x'); DROP TABLE t; --")
    assert run("SELECT b FROM t WHERE a = ? LIMIT ?", 1, 5) == [("x'); DROP TABLE t; --",)]
    documents = "(SELECT ARRAY[7, 8] AS x, '{\"k\": 1}'::jsonb AS j) AS q"
    assert run(f"SELECT x[?], j ? ? FROM {documents}", 1, "k") == [(7, True)]
    assert fails("SELECT ?", 1, 2).condition == "INVALID_PARAMETER"
    assert fails("SELECT ?").condition == "INVALID_PARAMETER"


def test_parameters_must_be_a_sequence(connection):
    for wrong in ("abc", b"abc"):
        with pytest.raises(watersmeet.ProgrammingError) as found:
            connection.cursor().execute("SELECT ?", wrong)
        assert found.value.condition == "INVALID_PARAMETER"
    with pytest.raises(watersmeet.ProgrammingError):
        connection.cursor().execute(17)


def test_closed():
    connection = watersmeet.connect(runtime="inprocess")
    cursor = connection.cursor()
    other = connection.cursor()
    other.close()
    with pytest.raises(watersmeet.InterfaceError) as found:
        other.execute("SELECT 1")
    assert found.value.condition == "CONNECTION_CLOSED"
    connection.close()
    connection.close()
    for call in (
        connection.cursor,
        connection.commit,
        connection.rollback,
        connection.status,
        lambda: cursor.execute("SELECT 1"),
        connection.__enter__,
    ):
        with pytest.raises(watersmeet.InterfaceError) as found:
            call()
        assert found.value.condition == "CONNECTION_CLOSED"


def test_a_temporary_database_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_forgotten_connection_is_closed(tmp_path):
    watersmeet.connect(tmp_path / "db", runtime="inprocess").execute("CREATE TABLE t (a int)")
    gc.collect()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert connection.execute("SHOW TABLES").fetchall() == [("t",)]


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"runtime": "flink"}, "INVALID_PARAMETER"),
        ({"dialect": "risingwav"}, "INVALID_PARAMETER"),
        ({"read_only": True}, "INVALID_PARAMETER"),
        ({"parallelism": 0}, "INVALID_PARAMETER"),
        ({"path": ""}, "INVALID_PARAMETER"),
    ],
)
def test_wrong_options(options, condition):
    with pytest.raises(watersmeet.Error) as found:
        watersmeet.connect(**{"runtime": "inprocess", **options})
    assert found.value.condition == condition


@pytest.mark.slow
def test_threads_share_a_connection(connection):
    """Eight threads insert and read at once; nothing is lost."""
    connection.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
    failures = []

    def work(number):
        try:
            cursor = connection.cursor()
            for i in range(10):
                cursor.execute("INSERT INTO t VALUES (?, ?)", [100 * number + i, number])
                cursor.execute("SELECT * FROM v")
                cursor.fetchall()
                if i == 5:
                    cursor.execute("FLUSH")
        except Exception as err:
            failures.append(err)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert connection.execute("FLUSH; SELECT * FROM v ORDER BY b").fetchall() == [(n, 10) for n in range(8)]
