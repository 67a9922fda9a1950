"""CREATE SINK … INTO a table: what it has is the merge of all changes, once each."""

import random

import pytest

import watersmeet
from watersmeet.errors import Error

SCRIPT = """
CREATE TABLE a (k int PRIMARY KEY, v int);
CREATE TABLE b (k int PRIMARY KEY, v int);
CREATE TABLE t (k int PRIMARY KEY, v int);
CREATE TABLE log (v int);
"""


@pytest.fixture
def path(tmp_path):
    with opened(tmp_path) as connection:
        connection.execute(SCRIPT)
    return tmp_path


def opened(path):
    return watersmeet.connect(path / "db", runtime="inprocess")


def rows(connection, query):
    connection.execute("FLUSH")
    return sorted(connection.execute(query).fetchall())


def test_the_table_is_the_merge_of_all_changes(path):
    chance = random.Random(7)
    of_a = "SELECT k % 3 AS k, max(v) AS v FROM a GROUP BY k % 3"
    tables = {"a": {}, "b": {}}
    before = [{}, {}]
    merged = {}
    for place in range(12):
        with opened(path) as connection:
            if place == 0:
                connection.execute(f"CREATE SINK one INTO t AS {of_a}; CREATE SINK two INTO t FROM b")
            for _ in range(chance.randrange(5)):
                name, key, value = chance.choice("ab"), chance.randrange(6), chance.randrange(100)
                if chance.random() < 0.3:
                    connection.execute(f"DELETE FROM {name} WHERE k = {key}")
                    tables[name].pop(key, None)
                else:
                    connection.execute(f"INSERT INTO {name} VALUES ({key}, {value})")
                    tables[name][key] = value
            own = None
            if chance.random() < 0.4:
                own = chance.randrange(6)
                connection.execute("FLUSH")
            groups = {}
            for key, value in tables["a"].items():
                groups[key % 3] = max(value, groups.get(key % 3, value))
            for old, new in zip(before, (groups, tables["b"]), strict=True):
                for key in old:
                    if old[key] != new.get(key):
                        merged.pop(key, None)
                merged |= {k: v for k, v in new.items() if old.get(k) != v}
            before = [dict(groups), dict(tables["b"])]
            if own is not None:
                connection.execute(f"INSERT INTO t VALUES ({own}, -1)")
                merged[own] = -1
            assert rows(connection, "SELECT * FROM t") == sorted(merged.items())


def test_changes_that_changed_nothing_are_not_merged_again(path):
    with opened(path) as connection:
        connection.execute("INSERT INTO t VALUES (1, 10); CREATE SINK s INTO t FROM a; INSERT INTO a VALUES (1, 10)")
        assert rows(connection, "SELECT * FROM t") == [(1, 10)]
        connection.execute("UPDATE t SET v = 11; INSERT INTO a VALUES (2, 2)")
        connection.execute("FLUSH; DELETE FROM t WHERE k = 2; FLUSH; DELETE FROM a WHERE k = 2; FLUSH")
        connection.execute("INSERT INTO t VALUES (2, 3)")
    with opened(path) as connection:
        assert rows(connection, "SELECT * FROM t") == [(1, 11), (2, 3)]


def test_a_sink_goes_on_after_a_restart(path):
    with opened(path) as connection:
        connection.execute("CREATE SINK s INTO log AS SELECT v FROM b WITH (force_append_only = 'true')")
        connection.execute("INSERT INTO b VALUES (1, 1), (2, 1)")
        assert rows(connection, "SELECT * FROM log") == [(1,), (1,)]
        connection.execute("INSERT INTO b VALUES (3, 3)")
    with opened(path) as connection:
        assert rows(connection, "SELECT * FROM log") == [(1,), (1,), (3,)]
        connection.execute("ALTER SINK s START; DELETE FROM b")
        assert rows(connection, "SELECT * FROM log") == [(1,), (1,), (3,)]


def test_rows_that_the_table_refuses_hold_back_their_sink_alone(path):
    with opened(path) as connection:
        connection.execute("CREATE TABLE strict (k int PRIMARY KEY, v int NOT NULL)")
        connection.execute("CREATE SINK bad INTO strict FROM a; CREATE SINK good INTO strict FROM b")
        connection.execute("INSERT INTO a VALUES (1, NULL); INSERT INTO b VALUES (2, 2)")
        with pytest.raises(Error, match='null value in column "v"'):
            connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM strict").fetchall() == [(2, 2)]
        states = {r[0]: (r[3], r[10]) for r in connection.execute("SHOW SINKS").fetchall()}
        assert states["good"] == ("running", None)
        assert states["bad"][0] == "retrying"
        assert "null value in column" in states["bad"][1]
        connection.execute("INSERT INTO a VALUES (3, 3)")
        with pytest.raises(Error, match='null value in column "v"'):
            connection.execute("FLUSH")
        connection.execute("DROP SINK bad; FLUSH")
        assert rows(connection, "SELECT * FROM strict") == [(2, 2)]


def test_a_sink_goes_on_once_the_row_that_was_refused_is_mended(path):
    with opened(path) as connection:
        connection.execute("CREATE TABLE strict (k int PRIMARY KEY, v int NOT NULL); INSERT INTO strict VALUES (1, 10)")
        connection.execute("CREATE SINK s INTO strict FROM a; INSERT INTO a VALUES (1, NULL), (2, NULL), (3, 3)")
        with pytest.raises(Error, match='null value in column "v"'):
            connection.execute("FLUSH")
    with opened(path) as connection:
        connection.execute("UPDATE a SET v = 1 WHERE k = 1")
        with pytest.raises(Error, match='null value in column "v"'):
            connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM strict").fetchall() == [(1, 10)]
        connection.execute("DELETE FROM a WHERE k = 2")
        assert rows(connection, "SELECT * FROM strict") == [(1, 1), (3, 3)]
        assert [r[3] for r in connection.execute("SHOW SINKS").fetchall()] == ["running"]


def test_rows_that_the_table_refuses_are_set_aside_if_the_sink_says_so(path):
    with opened(path) as connection:
        connection.execute("CREATE TABLE strict (k int PRIMARY KEY, v int NOT NULL); INSERT INTO strict VALUES (1, 10)")
        connection.execute("CREATE SINK s INTO strict FROM a WITH (on_error = 'skip')")
        connection.execute("INSERT INTO a VALUES (1, NULL), (2, 2)")
        assert rows(connection, "SELECT * FROM strict") == [(1, 10), (2, 2)]
        connection.execute("UPDATE a SET v = NULL WHERE k = 2; FLUSH; DELETE FROM a WHERE k = 1")
        assert rows(connection, "SELECT * FROM strict") == [(1, 10)]
        found = "SELECT source, text, reason FROM watersmeet.dead_letters ORDER BY text"
        reason = 'null value in column "v" of relation "strict" violates not-null constraint'
        assert connection.execute(found).fetchall() == [
            ("s", '{"k": 1, "v": null}', reason),
            ("s", '{"k": 2, "v": null}', reason),
        ]
        connection.execute("DROP SINK s")
        assert connection.execute(found).fetchall() == []
        with pytest.raises(Error, match="on_error can't be"):
            connection.execute("CREATE SINK s INTO strict FROM a WITH (on_error = 'maybe')")


def test_a_sink_of_a_transaction_writes_when_that_commits(path):
    with opened(path) as connection:
        connection.execute("INSERT INTO a VALUES (1, 1)")
        connection.execute("BEGIN; CREATE SINK s INTO t FROM a")
        connection.execute("ROLLBACK")
        assert rows(connection, "SELECT * FROM t") == []
        connection.execute("BEGIN; CREATE SINK s INTO t FROM a; COMMIT")
        assert rows(connection, "SELECT * FROM t") == [(1, 1)]
