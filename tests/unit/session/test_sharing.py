"""Equal parts of views are one operator with one state."""

from __future__ import annotations

from tests.harness import Harness


def operators(connection, kind):
    return [o for o in connection.status()["operators"].values() if o["kind"] == kind]


def test_the_same_view_twice_is_one_join(connection, run):
    """RA-33: the rows are held once, and stay when one of the views goes."""
    run("CREATE TABLE a (id int, x int); CREATE TABLE b (id int, y int)")
    for name in ("one", "two", "three"):
        run(f"CREATE MATERIALIZED VIEW {name} AS SELECT x, y FROM a JOIN b ON a.id = b.id")
    run("INSERT INTO a VALUES (1, 10), (2, 20); INSERT INTO b VALUES (1, 100), (3, 300); FLUSH")
    assert len(operators(connection, "join")) == 1
    assert [o["state_rows"] for o in operators(connection, "arrange")] == [2, 2]
    assert [Harness(connection).join_state(n) for n in ("one", "three")] == [{"left": 2, "right": 2}] * 2
    run("DROP MATERIALIZED VIEW one; INSERT INTO b VALUES (2, 200); FLUSH")
    assert run("SELECT count(*) FROM two") == run("SELECT count(*) FROM three") == [(2,)]


def arranged(connection):
    return sum(o["state_rows"] for o in operators(connection, "arrange"))


def test_views_of_other_columns_read_one_arrangement(connection, run):
    """RA-33: ten views over one dimension keep its rows twice at most, whoever is dropped."""
    run("CREATE TABLE d (id int PRIMARY KEY, a int, b int, c int, e int); CREATE TABLE f (id int, x int)")
    run(
        "INSERT INTO d SELECT i, i, i, i, i FROM generate_series(1, 100) AS g(i); INSERT INTO f VALUES (1, "
        "1), (2, 2), (200, 3)"
    )
    for number, column in enumerate("abceabceab"):
        run(f"CREATE MATERIALIZED VIEW v{number} AS SELECT x, {column} FROM f JOIN d ON f.id = d.id")
        assert (connection.status()["rows"] == 0) == (number in (2, 3)), "both arrangements are there, the join is new"
    assert arranged(connection) == 2 * 100 + 3, (
        "views that are made later read what is kept, and make no copy for a while"
    )
    run("DROP MATERIALIZED VIEW v0; DROP MATERIALIZED VIEW v4; DROP MATERIALIZED VIEW v8; FLUSH")
    assert arranged(connection) == 100 + 3, "the narrow one went with its last reader, the wide one stays"
    run("INSERT INTO f VALUES (3, 4); FLUSH")
    assert run("SELECT * FROM v9 ORDER BY 1") == [(1, 1), (2, 2), (4, 3)]


def test_an_index_decides_what_is_kept(connection, run):
    """RW-56: the index is used by views made after it, and may be dropped while they are there."""
    run("CREATE TABLE d (id int, a int, b int); CREATE TABLE f (id int, x int); CREATE INDEX i ON d(id)")
    run("CREATE MATERIALIZED VIEW v1 AS SELECT x, a FROM f JOIN d ON f.id = d.id")
    run("CREATE MATERIALIZED VIEW v2 AS SELECT x, b FROM f LEFT JOIN d ON f.id = d.id")
    run("INSERT INTO d VALUES (1, 10, 100); INSERT INTO f VALUES (1, 1); FLUSH")
    assert arranged(connection) == 2
    run("DROP INDEX i; INSERT INTO d VALUES (1, 20, 200); FLUSH")
    assert run("SELECT b FROM v2 ORDER BY b") == [(100,), (200,)]
    run("SET streaming_share_arrangements = false")
    run("CREATE MATERIALIZED VIEW v3 AS SELECT x, a FROM f JOIN d ON f.id = d.id")
    assert arranged(connection) == 3 + 2, "the rows of f are the same whoever reads them, those of d are not"


def test_joins_of_all_kinds_read_one_arrangement(connection, run):
    """RA-33: ASOF and temporal joins find what regular joins keep, and are filled from it; filters below them keep them
    apart.
    """
    run("CREATE TABLE d (id int PRIMARY KEY, a int, b int); CREATE TABLE f (id int, x int)")
    run(
        "INSERT INTO d VALUES (1, 10, 1), (2, 20, 2), (3, 30, 3); INSERT INTO f VALUES (1, 5), (1, 15), (2, "
        "25), (4, 40)"
    )
    run("CREATE MATERIALIZED VIEW regular AS SELECT x, a, b FROM f JOIN d ON f.id = d.id")
    run("CREATE MATERIALIZED VIEW nearest AS SELECT x, b FROM f ASOF LEFT JOIN d ON f.id = d.id AND f.x >= d.a")
    run(
        "CREATE MATERIALIZED VIEW looked_up AS SELECT x, a FROM f LEFT JOIN d FOR SYSTEM_TIME AS OF "
        "PROCTIME() AS e ON f.id = e.id"
    )
    assert arranged(connection) == 4 + 3
    assert run("SELECT * FROM nearest ORDER BY x") == [(5, None), (15, 1), (25, 2), (40, None)]
    assert run("SELECT * FROM looked_up ORDER BY x") == [(5, 10), (15, 10), (25, 20), (40, None)]
    run(
        "CREATE MATERIALIZED VIEW filtered AS SELECT x, b FROM f ASOF LEFT JOIN d ON f.id = d.id AND f.x >= "
        "d.a AND d.b > 1 WHERE x > 5"
    )
    assert arranged(connection) == 4 + 3 + 3 + 2
    run("DROP MATERIALIZED VIEW regular; UPDATE d SET a = 20 WHERE id = 1; INSERT INTO f VALUES (3, 30); FLUSH")
    assert run("SELECT * FROM nearest ORDER BY x") == [(5, None), (15, None), (25, 2), (30, 3), (40, None)]
    assert run("SELECT * FROM looked_up ORDER BY x") == [(5, 10), (15, 10), (25, 20), (30, 30), (40, None)]
    assert run("SELECT * FROM filtered ORDER BY x") == [(15, None), (25, 2), (30, 3), (40, None)]
