"""Equal parts of views are one operator with one state."""

from __future__ import annotations


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
    assert [connection.join_state(n) for n in ("one", "three")] == [{"left": 2, "right": 2}] * 2
    run("DROP MATERIALIZED VIEW one; INSERT INTO b VALUES (2, 200); FLUSH")
    assert run("SELECT count(*) FROM two") == run("SELECT count(*) FROM three") == [(2,)]
