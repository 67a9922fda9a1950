"""Forks of a database on Spark: created, replayed and promoted while epochs run in the background."""

from __future__ import annotations

import pytest

import watersmeet

pytestmark = pytest.mark.spark

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int, w int);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v + w AS t FROM a JOIN b ON a.id = b.id;
CREATE MATERIALIZED VIEW k AS SELECT id, count(*) AS n, sum(t) AS t FROM j GROUP BY id;
INSERT INTO a SELECT x, x FROM generate_series(0, 9) AS t(x);
INSERT INTO b SELECT x % 10, x FROM generate_series(0, 99) AS t(x);
"""


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall())


def test_a_fork_on_spark(tmp_path):
    path = str(tmp_path / "db")
    with watersmeet.connect(path, parallelism=3) as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("FLUSH; CREATE FORK f")
        with watersmeet.connect(f"{path}/forks/f", runtime="inprocess") as fork:
            fork.execute(
                "CREATE OR REPLACE MATERIALIZED VIEW j AS SELECT a.id, v * w AS t FROM a JOIN b ON a.id = b.id"
            )
            main.execute("INSERT INTO b VALUES (1, 1000); FLUSH")
            fork.execute("REPLAY")
            expected = rows(fork, "SELECT * FROM k")
        main.execute("INSERT INTO b VALUES (0, 7); FLUSH")
        follower = main.subscribe("k", snapshot=False)
        main.execute("PROMOTE f")
        found = rows(main, "SELECT * FROM k")
        assert [r for r in found if r[0]] == [r for r in expected if r[0]]
        assert found == rows(main, "SELECT a.id, count(*), sum(v * w) FROM a JOIN b ON a.id = b.id GROUP BY a.id")
        (batch,) = next(follower).batches
        assert {int(d) for d in batch.diffs} == {1, -1}
        main.execute("INSERT INTO b VALUES (2, 5); DELETE FROM b WHERE w = 1000; FLUSH")
        assert rows(main, "SELECT * FROM k") == rows(
            main, "SELECT a.id, count(*), sum(v * w) FROM a JOIN b ON a.id = b.id GROUP BY a.id"
        )
    with watersmeet.connect(path, runtime="inprocess") as main:
        main.execute("INSERT INTO a VALUES (50, 2); INSERT INTO b VALUES (50, 3); FLUSH")
        assert rows(main, "SELECT * FROM k WHERE id = 50") == [(50, 1, 6)]


def test_a_fork_of_an_earlier_commit_on_spark(tmp_path):
    """Its views are filled by Spark, because another view was created since."""
    path = str(tmp_path / "db")
    with watersmeet.connect(path, parallelism=3) as main:
        main.execute("ALTER SYSTEM SET retention = '1 day'")
        for _ in main.execute_script(SETUP):
            pass
        main.execute("FLUSH")
        commit, before = main.execute("SHOW COMMITS LIMIT 1").fetchone()[0], rows(main, "SELECT * FROM k")
        main.execute("INSERT INTO b VALUES (1, 1000); FLUSH")
        main.execute("CREATE MATERIALIZED VIEW l AS SELECT count(*) AS n FROM b")
        main.execute(f"CREATE FORK f AT COMMIT {commit}")
        assert main.execute("SHOW FORKS").fetchone()[4] == "filled"
        with watersmeet.connect(f"{path}/forks/f", runtime="inprocess") as fork:
            assert rows(fork, "SELECT * FROM k") == before
            assert rows(fork, "SELECT * FROM l") == [(100,)]
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW l AS SELECT max(w)::bigint AS n FROM b; REPLAY")
            assert rows(fork, "SELECT * FROM k") == rows(main, "SELECT * FROM k") != before
        main.execute("PROMOTE f; INSERT INTO b VALUES (1, 2000); FLUSH")
        assert rows(main, "SELECT * FROM l") == [(2000,)]


def test_a_view_that_writes_a_stream_on_spark(tmp_path):
    """In the fork it writes at REPLAY and FLUSH; after PROMOTE, the main database continues with the fork's stream."""

    def rows(connection):
        connection.execute("FLUSH")
        return sorted(connection.execute("SELECT id, v FROM table(s)").fetchall())

    with watersmeet.connect(tmp_path / "db", "timeplus", parallelism=2) as main:
        main.execute("CREATE STREAM i (id int, v int); CREATE STREAM s (id int, v int)")
        main.execute("CREATE MATERIALIZED VIEW w INTO s AS SELECT id, v * 2 AS v FROM i")
        main.execute("CREATE MATERIALIZED VIEW t AS SELECT id, max(v) AS v FROM s GROUP BY id")
        main.execute("INSERT INTO i (id, v) VALUES (1, 1)")
        assert rows(main) == [(1, 2)]
        main.execute("CREATE FORK f; CREATE FORK g; INSERT INTO i (id, v) VALUES (2, 2)")
        assert rows(main) == [(1, 2), (2, 4)]
        with watersmeet.connect(tmp_path / "db/forks/g", "timeplus") as same:
            same.execute("REPLAY")
            assert [r[2:] for r in same.execute("SHOW DIFF").fetchall()] == [("same", 0, 0)] * 4
        with watersmeet.connect(tmp_path / "db/forks/f", "timeplus") as fork:
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW w INTO s AS SELECT id, v * 3 AS v FROM i; REPLAY")
            assert rows(fork) == [(1, 2), (2, 6)]
        main.execute("INSERT INTO i (id, v) VALUES (3, 3)")
        assert rows(main) == [(1, 2), (2, 4), (3, 6)]
        main.execute("PROMOTE f")
        assert rows(main) == [(1, 2), (2, 6), (3, 9)]
        main.execute("INSERT INTO i (id, v) VALUES (4, 4)")
        assert rows(main) == [(1, 2), (2, 6), (3, 9), (4, 12)]
        assert sorted(main.execute("SELECT id, v FROM table(t)").fetchall()) == [(1, 2), (2, 6), (3, 9), (4, 12)]
