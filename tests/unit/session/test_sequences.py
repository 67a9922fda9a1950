"""Sequences: their functions, their definitions, and numbers that nobody gets twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import watersmeet
from watersmeet.catalog import Numbering
from watersmeet.errors import Error
from watersmeet.store.backup import copy_database
from watersmeet.store.sequences import Count


def test_functions(run, fails):
    run("CREATE SEQUENCE s START 5 INCREMENT BY 10")
    refused = fails("SELECT currval('s')")
    assert (refused.condition, refused.sqlstate) == ("SEQUENCE_UNUSED", "55000")
    assert fails("SELECT lastval()").sqlstate == "55000"
    assert run("SELECT last_value, is_called FROM s") == [(5, False)]
    assert run("SELECT nextval('s'), nextval('public.s'::regclass)") == [(5, 15)]
    assert run("SELECT currval('s'), lastval()") == [(15, 15)]
    assert run("SELECT setval('s', 100)") == [(100,)]
    assert run("SELECT * FROM s") == [(100, 0, True)]
    assert run("SELECT pg_catalog.setval('s', 7, false)") + run("SELECT nextval('s')") == [(7,), (7,)]
    assert run("SELECT setval('s', NULL)") + run("SELECT nextval('s')") == [(None,), (17,)]


def test_values_of_rows(run):
    run("CREATE SEQUENCE s; CREATE TABLE t (id bigint, n int)")
    run("INSERT INTO t VALUES (nextval('s'), 1), (nextval('s'), 2)")
    run("INSERT INTO t SELECT nextval('s'), n FROM generate_series(3, 3000) AS g(n)")
    assert run("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM t") == [(3000, 3000, 1, 3000)]
    run("UPDATE t SET id = nextval('s') WHERE n <= 2")
    assert run("SELECT id FROM t WHERE n <= 2 ORDER BY id") == [(3001,), (3002,)]
    assert run("SELECT nextval('s') * 10 + 1") == [(30031,)]
    assert run("SELECT setval('s', (SELECT max(id) + 5 FROM t))") == [(3007,)]
    assert sorted(run("SELECT CASE WHEN n > 2 THEN -1 ELSE nextval('s') END FROM t WHERE n < 5")) == [
        (-1,), (-1,), (3008,), (3009,),
    ]  # fmt: skip


def test_in_defaults(run, fails):
    run("CREATE SEQUENCE s; CREATE TABLE t (a varchar DEFAULT 'A' || lpad(nextval('s')::text, 4, '0'), "
        "b bigint DEFAULT nextval('s'), c int)")  # fmt: skip
    run("INSERT INTO t (c) VALUES (1), (2)")
    assert run("SELECT a, b FROM t ORDER BY c") == [("A0001", 3), ("A0002", 4)]
    run("INSERT INTO t VALUES ('x', DEFAULT, 3), (DEFAULT, 9, 4)")
    assert run("SELECT a, b FROM t WHERE c > 2 ORDER BY c") == [("x", 6), ("A0005", 9)]
    assert fails("DROP SEQUENCE s").condition == "DEPENDENT_OBJECTS"
    run("ALTER TABLE t ALTER COLUMN a DROP DEFAULT; ALTER TABLE t ALTER COLUMN b DROP DEFAULT; DROP SEQUENCE s")
    run("CREATE SEQUENCE z START 50; ALTER TABLE t ALTER COLUMN c SET DEFAULT nextval('z')")
    run("INSERT INTO t (a) VALUES ('z')")
    assert run("SELECT c FROM t WHERE a = 'z'") == [(50,)]
    run("DROP SEQUENCE z CASCADE; INSERT INTO t (a) VALUES ('y')")
    assert run("SELECT c FROM t WHERE a = 'y'") == [(None,)]


def test_those_of_serial_columns(run, fails):
    run('CREATE SCHEMA o; CREATE TABLE o.t ("Id" serial, n int); CREATE TABLE t (id serial, n int)')
    assert run("SHOW SEQUENCES FROM o") == [("t_Id_seq",)]
    assert run("SELECT pg_get_serial_sequence('o.t', 'Id')") == [('o."t_Id_seq"',)]
    assert run("SELECT nextval(pg_get_serial_sequence('o.t', 'Id')), nextval('t_id_seq')") == [(1, 1)]
    assert run("SELECT pg_get_serial_sequence('t', 'n')") == [(None,)]
    assert fails("DROP SEQUENCE t_id_seq").condition == "DEPENDENT_OBJECTS"
    run("ALTER TABLE t RENAME COLUMN id TO nr; INSERT INTO t (n) VALUES (1)")
    assert run("SELECT nr, pg_get_serial_sequence('t', 'nr') FROM t") == [(2, "public.t_id_seq")]
    run("ALTER TABLE t DROP COLUMN nr")
    assert fails("SELECT nextval('t_id_seq')").condition == "UNDEFINED_RELATION"
    run("DROP TABLE o.t")
    assert run("SHOW SEQUENCES FROM o") == []


def test_alter(run, fails):
    run("CREATE SEQUENCE s; CREATE TABLE t (id int)")
    assert run("SELECT nextval('s')") == [(1,)]
    run("ALTER SEQUENCE s INCREMENT 3 MAXVALUE 9 RESTART WITH 2 CYCLE")
    assert run("SELECT nextval('s') FROM generate_series(1, 5)") == [(2,), (5,), (8,), (1,), (4,)]
    run("ALTER SEQUENCE s RENAME TO z; ALTER SEQUENCE z RESTART; ALTER SEQUENCE z NO CYCLE")
    assert run("SELECT nextval('z') FROM generate_series(1, 3)") == [(1,), (4,), (7,)]
    assert fails("SELECT nextval('z')").message == 'nextval: reached maximum value of sequence "z" (9)'
    assert fails("ALTER SEQUENCE z RESTART WITH 10").condition == "INVALID_PARAMETER"
    assert fails("ALTER SEQUENCE z").condition == "SYNTAX_ERROR"
    assert fails("ALTER SEQUENCE none RESTART").condition == "UNDEFINED_RELATION"
    run("ALTER SEQUENCE z OWNED BY t.id; ALTER SEQUENCE z OWNED BY NONE; ALTER SEQUENCE z OWNED BY public.t.id")
    run("ALTER SEQUENCE z OWNER TO watersmeet; DROP TABLE t")
    assert run("SHOW SEQUENCES") == []


def test_restart_in_a_transaction_is_rolled_back(run):
    run("CREATE SEQUENCE s; SELECT nextval('s') FROM generate_series(1, 10)")
    run("BEGIN; ALTER SEQUENCE s RESTART")
    assert run("SELECT nextval('s')") == [(1,)]
    run("ROLLBACK")
    assert run("SELECT nextval('s')") == [(11,)]
    run("BEGIN; CREATE SEQUENCE z; SELECT nextval('z'); ROLLBACK; CREATE SEQUENCE other")
    assert run("SELECT nextval('other')") == [(1,)]


def test_refused(run, fails):
    run("CREATE SEQUENCE s; CREATE TABLE t (id int)")
    for sql, condition in {
        "CREATE SEQUENCE s": "DUPLICATE_OBJECT",
        "CREATE SEQUENCE x INCREMENT 0": "INVALID_PARAMETER",
        "CREATE SEQUENCE x AS varchar": "INVALID_PARAMETER",
        "CREATE SEQUENCE x START 0": "INVALID_PARAMETER",
        "CREATE SEQUENCE x OWNED BY t": "SYNTAX_ERROR",
        "CREATE SEQUENCE x OWNED BY t.n": "UNDEFINED_COLUMN",
        "SELECT nextval('x')": "UNDEFINED_RELATION",
        "SELECT nextval('t')": "CATALOG_TYPE_MISMATCH",
        "SELECT nextval('a b')": "INVALID_NAME",
        "SELECT nextval(x) FROM (VALUES ('s')) AS v(x)": "FEATURE_NOT_SUPPORTED",
        "SELECT nextval()": "UNDEFINED_FUNCTION",
        "SELECT setval('s', 0)": "VALUE_OUT_OF_RANGE",
        "CREATE VIEW v AS SELECT nextval('s') AS x": "FEATURE_NOT_SUPPORTED",
        "CREATE MATERIALIZED VIEW v AS SELECT nextval('s') AS x FROM t": "FEATURE_NOT_SUPPORTED",
        "SELECT watersmeet_nextval('s1', 1.0)": "UNDEFINED_FUNCTION",
        "BEGIN READ ONLY; SELECT nextval('s')": "READ_ONLY_SESSION",
    }.items():
        assert fails(sql).condition == condition, sql
        run("ROLLBACK") if "BEGIN" in sql else None


@pytest.mark.parametrize(
    ("numbers", "count", "expected"),
    [
        (Numbering(), 3, [1, 2, 3]),
        (Numbering("smallint", step=-1), 2, [-1, -2]),
        (Numbering(start=2, step=4, least=-1, greatest=7, cycles=True), 5, [2, 6, -1, 3, 7]),
        (Numbering(start=0, step=-4, least=-7, greatest=1, cycles=True), 5, [0, -4, 1, -3, -7]),
        (Numbering(start=2**63 - 2), 2, [2**63 - 2, 2**63 - 1]),
    ],
)
def test_numbers(numbers, count, expected):
    """One by one, and all at once."""
    begin = Count(numbers.first)
    assert list(begin.next(numbers, count)) == expected
    at, found = begin, []
    for _ in range(count):
        found += list(at.next(numbers, 1))
        at = at.advanced(numbers, 1)
    assert (found, at) == (expected, begin.advanced(numbers, count))


_CHILD = """
import sys, watersmeet
with watersmeet.connect(sys.argv[1], runtime="inprocess") as connection:
    while True:
        print(connection.execute("INSERT INTO t (n) VALUES (1) RETURNING id").fetchone()[0], flush=True)
        print(connection.execute("SELECT nextval('t_id_seq')").fetchone()[0], flush=True)
"""


def test_no_number_is_used_again_after_a_kill(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, n int)")
    found: list[int] = []
    for _ in range(2):
        command = [sys.executable, "-c", _CHILD, str(tmp_path / "db")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        found += [int(child.stdout.readline()) for _ in range(45)]
        os.kill(child.pid, signal.SIGKILL)
        found += [int(line) for line in child.stdout.read().splitlines()]
        child.wait()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        found.append(connection.execute("SELECT nextval('t_id_seq')").fetchone()[0])
        stored = connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone()
    assert len(found) == len({*found})
    assert stored[0] == stored[1]


def test_threads_get_different_numbers(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE SEQUENCE s; CREATE TABLE t (id bigint DEFAULT nextval('s'), n int)")
        found: list[int] = []

        def work(own) -> None:
            for _ in range(20):
                found.extend(i for (i,) in own.execute("SELECT nextval('s') FROM generate_series(1, 7)").fetchall())
                own.execute("INSERT INTO t (n) VALUES (1), (2)")

        threads = [threading.Thread(target=work, args=[connection.cursor()]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found += [i for (i,) in connection.execute("SELECT id FROM t").fetchall()]
    assert sorted(found) == list(range(1, 4 * 20 * 9 + 1))


def test_a_closed_database_skips_no_number(tmp_path):
    for expected in (1, 2, 3):
        with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
            connection.execute("CREATE SEQUENCE IF NOT EXISTS s")
            assert connection.execute("SELECT nextval('s')").fetchone() == (expected,)
    with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
        assert reader.execute("SELECT last_value, is_called FROM s").fetchone() == (3, True)
        with pytest.raises(Error, match="read-only"):
            reader.execute("SELECT nextval('s')")


def test_a_copy_has_the_numbers(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id serial, n int); INSERT INTO t (n) VALUES (1)")
        copy_database(tmp_path / "db", tmp_path / "copy")
    with watersmeet.connect(tmp_path / "copy", runtime="inprocess") as connection:
        (number,) = connection.execute("INSERT INTO t (n) VALUES (2) RETURNING id").fetchone()
    assert number > 1
