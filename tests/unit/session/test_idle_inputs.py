"""An input that sends nothing holds back the others, SHOW JOBS says which; after its timeout it no longer does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet.errors import Error

START = datetime(2024, 5, 1, 12, tzinfo=UTC)
TABLES = """
CREATE TABLE a (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE) APPEND ONLY;
CREATE TABLE b (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE) APPEND ONLY
    WITH (watermark_idle_timeout = '10 seconds');
CREATE MATERIALIZED VIEW v AS SELECT a.k, a.ts, b.ts AS bts FROM a JOIN b
    ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '5 minutes' AND b.ts + INTERVAL '5 minutes';
CREATE MATERIALIZED VIEW closed AS SELECT a.k, a.ts FROM a LEFT JOIN b
    ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '5 minutes' AND b.ts + INTERVAL '5 minutes' EMIT ON WINDOW CLOSE;
"""


class Clocked:
    """A connection and its clock, in seconds since START."""

    def __init__(self, path, **options):
        self.connection = watersmeet.connect(path, runtime="inprocess", **options)
        self.pass_to(0)

    def pass_to(self, seconds):
        Harness(self.connection).set_clock(round((START.timestamp() + seconds) * 1e6))

    def run(self, sql):
        return (
            self.connection.cursor().execute(sql).fetchall()
            if sql.startswith(("SELECT", "SHOW"))
            else self.connection.cursor().execute(sql)
        )

    def flush(self, sql=""):
        self.run(f"{sql}; FLUSH" if sql else "FLUSH")

    def job(self, name):
        cursor = self.connection.cursor().execute(f"SHOW JOBS LIKE '{name}'")
        return dict(zip([d[0] for d in cursor.description], cursor.fetchone(), strict=True))

    def commits(self):
        return self.connection._session.database.log.head()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_idle_input_is_lifted_after_its_timeout(tmp_path, parallelism):
    db = Clocked(tmp_path / "db", parallelism=parallelism)
    db.run(TABLES)
    db.flush("INSERT INTO a VALUES (1, '2024-05-01 11:00'), (2, '2024-05-01 12:00')")
    assert (db.job("v")["watermark"], db.job("v")["held_back_by"]) == (None, "b")
    db.flush("INSERT INTO b VALUES (1, '2024-05-01 11:01')")
    assert (db.job("v")["watermark"], db.job("v")["held_back_by"]) == ("2024-05-01 11:00:00", "b")
    assert db.job("a")["watermark"] == "2024-05-01 11:59:00"
    assert db.run("SELECT k FROM closed") == []
    db.pass_to(9)
    db.flush()
    assert db.job("v")["held_back_by"] == "b"
    db.pass_to(10)
    db.flush()
    assert (db.job("v")["watermark"], db.job("b")["watermark"]) == ("2024-05-01 11:59:00", "2024-05-01 11:59:00")
    assert '"idle": true' in db.job("b")["detail"]
    assert db.run("SELECT k FROM closed") == [(1,)]
    # It stays lifted with each row of the others, in the same epoch …
    db.flush("INSERT INTO a VALUES (3, '2024-05-01 13:00')")
    assert db.job("b")["watermark"] == "2024-05-01 12:59:00"
    assert sorted(db.run("SELECT k FROM closed")) == [(1,), (2,)]
    # … what comes late after all is dropped and counted, and then it holds back again.
    db.flush("INSERT INTO b VALUES (3, '2024-05-01 12:58'), (3, '2024-05-01 13:01')")
    assert '"late": 1' in db.job("b")["detail"]
    assert '"idle"' not in db.job("b")["detail"]
    assert db.run("SELECT k, bts FROM v WHERE k = 3") == [(3, datetime(2024, 5, 1, 13, 1))]
    db.flush("INSERT INTO a VALUES (4, '2024-05-01 14:00')")
    assert (db.job("v")["watermark"], db.job("v")["held_back_by"]) == ("2024-05-01 13:00:00", "b")
    db.connection.close()


def test_of_equal_inputs_one_that_is_not_idle_holds_back(tmp_path):
    db = Clocked(tmp_path / "db")
    db.run("""CREATE TABLE still (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) APPEND ONLY
            WITH (watermark_idle_timeout = '10 seconds');
        CREATE TABLE works (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) APPEND ONLY;
        CREATE MATERIALIZED VIEW v AS SELECT s.k, s.ts FROM still s JOIN works w ON s.k = w.k AND s.ts = w.ts""")
    db.flush("INSERT INTO still VALUES (1, '2024-05-01 11:00'); INSERT INTO works VALUES (1, '2024-05-01 11:30')")
    assert (db.job("v")["watermark"], db.job("v")["held_back_by"]) == ("2024-05-01 11:00:00", "still")
    db.pass_to(10)
    db.flush()
    assert (db.job("v")["watermark"], db.job("v")["held_back_by"]) == ("2024-05-01 11:30:00", "works")
    assert [r[0] for r in db.run("SHOW JOBS")] == ["v", "still", "works"]
    db.connection.close()


def test_a_lifted_number_survives_a_restart(tmp_path):
    db = Clocked(tmp_path / "db")
    db.run(TABLES)
    db.flush("INSERT INTO a VALUES (2, '2024-05-01 12:00')")
    db.pass_to(10)
    db.flush()
    db.connection.close()
    db = Clocked(tmp_path / "db")
    assert db.job("b")["watermark"] == "2024-05-01 11:59:00"
    db.flush("INSERT INTO b VALUES (2, '2024-05-01 11:58:59'), (2, '2024-05-01 11:59')")
    assert '"late": 1' in db.job("b")["detail"]
    assert db.run("SELECT bts FROM v") == [(datetime(2024, 5, 1, 11, 59),)]
    db.connection.close()


def test_idle_inputs_without_others_stay_as_they_are(tmp_path):
    db = Clocked(tmp_path / "db")
    db.run(
        "CREATE TABLE b (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) APPEND ONLY WITH "
        "(watermark_idle_timeout = '1 second');"
        "CREATE MATERIALIZED VIEW v AS SELECT k, ts FROM b EMIT ON WINDOW CLOSE"
    )
    db.flush("INSERT INTO b VALUES (1, '2024-05-01 12:00')")
    before = db.commits()
    db.pass_to(3600)
    db.flush()
    assert db.commits() == before
    assert db.job("b")["watermark"] == "2024-05-01 12:00:00"
    db.connection.close()


def test_nothing_ticks_without_now_or_until_a_row_is_due(tmp_path):
    db = Clocked(tmp_path / "db")
    db.run("CREATE TABLE t (k INT, ts TIMESTAMP); CREATE MATERIALIZED VIEW plain AS SELECT k FROM t")
    db.flush("INSERT INTO t VALUES (1, '2024-05-02 00:00'), (2, '2024-05-01 00:00')")
    before = db.commits()
    db.pass_to(3600)
    db.flush()
    assert db.commits() == before
    db.run("CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE ts < now()")
    before = db.commits()
    for hour in range(2, 12):
        db.pass_to(3600 * hour)
        db.flush()
    assert db.commits() == before
    assert db.run("SELECT k FROM v") == [(2,)]
    db.pass_to(3600 * 12 + 1)
    db.flush()
    assert db.commits() == before + 1
    assert sorted(db.run("SELECT k FROM v")) == [(1,), (2,)]
    db.connection.close()


def test_time_only_moves_for_relations_that_have_it(tmp_path):
    db = Clocked(tmp_path / "db")
    db.run("CREATE TABLE t (k INT)")
    for name in ("t", "nobody"):
        with pytest.raises(Error, match="has no WATERMARK FOR"):
            Harness(db.connection).set_watermark(name, 5)
    db.connection.close()


TIMED_OUT = """
CREATE STREAM s (k string, v int); CREATE STREAM busy (v int);
CREATE MATERIALIZED VIEW other AS SELECT v FROM busy;
CREATE MATERIALIZED VIEW whole AS SELECT window_start, count() AS c FROM tumble(s, 10s) GROUP BY window_start
    EMIT AFTER WINDOW CLOSE WITH DELAY 1s AND TIMEOUT 5s;
CREATE MATERIALIZED VIEW divided AS SELECT k, window_start, count() AS c FROM tumble(s, 10s) PARTITION BY k
    GROUP BY window_start EMIT TIMEOUT 5s;
CREATE MATERIALIZED VIEW keys AS WITH g AS (SELECT k, count() AS c FROM s GROUP BY k
    EMIT AFTER KEY EXPIRE WITH MAXSPAN 3s AND TIMEOUT 5s) SELECT k, c FROM g;
CREATE MATERIALIZED VIEW long AS SELECT k, count() AS c FROM s GROUP BY k
    EMIT AFTER KEY EXPIRE IDENTIFIED BY _tp_time WITH ONLY MAXSPAN 3s AND TIMEOUT 5s;
"""


def test_windows_and_keys_end_when_their_stream_is_idle(tmp_path):
    db = Clocked(tmp_path / "db", dialect="timeplus", parallelism=2)

    def insert(*rows):
        values = ", ".join(f"('{k}', '2024-05-01 12:00:{second}')" for k, second in rows)
        db.flush(f"INSERT INTO s (k, _tp_time) VALUES {values}")

    def shown():
        rows = [db.run(f"SELECT {c} FROM table({v})") for c, v in CONTENT]
        return [" ".join(sorted("".join(map(str, r)) for r in found)) for found in rows]

    db.run(TIMED_OUT)
    insert(("a", "01"), ("b", "02"), ("a", "03"))
    db.pass_to(3)
    insert(("a", "05"))
    assert shown() == ["", "", "a3", "a3"]
    db.pass_to(5)
    db.flush("INSERT INTO busy (v) VALUES (1)")  # b had no row for 5 seconds, the stream for 2
    assert shown() == ["", "b1", "a3 b1", "a3"]
    db.pass_to(8)
    db.flush("INSERT INTO busy (v) VALUES (2)")
    assert shown() == ["4", "a3 b1", "a3 b1", "a3"]
    insert(("a", "06"), ("c", "12"))  # the first is late for the stream; its substream and its key begin again
    db.pass_to(14)
    db.flush()
    assert shown() == ["1 4", "a1 a3 b1 c1", "a1 a3 b1 c1", "a3"]
    db.connection.close()


CONTENT = (("c", "whole"), ("k, c", "divided"), ("k, c", "keys"), ("k, c", "long"))
