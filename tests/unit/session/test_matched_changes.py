"""UPDATE … FROM, DELETE … USING, MERGE INTO tables, and their RETURNING."""

from __future__ import annotations

import pytest


@pytest.fixture
def tables(run):
    """t has a key; n has none, and equal rows."""
    run("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar DEFAULT 'd'); CREATE TABLE n (x int, y int)")
    run("CREATE TABLE s (id int, a int, b varchar)")
    run("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'); INSERT INTO n VALUES (1, 1), (1, 1), (2, 2)")
    run("INSERT INTO s VALUES (1, 10, 'x'), (2, 20, 'y'), (4, 40, 'z'), (5, 50, 'w')")


@pytest.mark.usefixtures("tables")
def test_update_from(run):
    run("UPDATE t SET a = s.a, b = DEFAULT FROM s WHERE t.id = s.id")
    assert run("SELECT * FROM t ORDER BY id") == [(1, 10, "d"), (2, 20, "d"), (3, 3, "c")]
    run("UPDATE t AS q SET a = w.a + n.c FROM s AS w LEFT JOIN (SELECT x, count(*) AS c FROM n GROUP BY x) AS n "
        "ON n.x = w.id WHERE q.id = w.id")  # fmt: skip
    assert run("SELECT id, a FROM t ORDER BY id") == [(1, 12), (2, 21), (3, 3)]
    run("UPDATE t SET a = (SELECT max(y) FROM n WHERE n.x = s.id) FROM s, (VALUES (1), (3)) AS v(i) "
        "WHERE s.id = v.i AND t.id = v.i")  # fmt: skip
    assert run("SELECT id, a FROM t ORDER BY id") == [(1, 1), (2, 21), (3, 3)]


@pytest.mark.usefixtures("tables")
def test_each_row_is_changed_once(run):
    run("UPDATE n SET y = y + 100 FROM s WHERE s.id >= n.x")
    assert sorted(run("SELECT * FROM n")) == [(1, 101), (1, 101), (2, 102)]
    run("UPDATE t SET a = t.a + 100 FROM s WHERE s.id >= t.id")
    assert run("SELECT id, a FROM t ORDER BY id") == [(1, 101), (2, 102), (3, 103)]
    run("DELETE FROM n USING s WHERE s.id > n.x AND n.x = 1")
    assert run("SELECT * FROM n") == [(2, 102)]


@pytest.mark.usefixtures("tables")
def test_returning_of_other_relations(run, fails):
    found = run("UPDATE t SET a = s.a FROM s WHERE t.id = s.id RETURNING t.id, t.a, s.b AS sb, s.a + t.a AS q")
    assert sorted(found) == [(1, 10, "x", 20), (2, 20, "y", 40)]
    found = run("UPDATE t AS q SET a = w.a + 1 FROM s AS w WHERE q.id = w.id RETURNING *")
    assert sorted(found) == [(1, 11, "a", 1, 10, "x"), (2, 21, "b", 2, 20, "y")]
    found = run(
        "DELETE FROM t USING (SELECT id, a AS z FROM s) AS w, n WHERE t.id = w.id AND n.x = t.id RETURNING w.*, t.*, y"
    )
    assert sorted(found) == [(1, 10, 1, 11, "a", 1), (2, 20, 2, 21, "b", 2)]
    assert run("SELECT id FROM t") == [(3,)]
    assert fails("DELETE FROM t USING s WHERE true RETURNING (SELECT 1)").condition == "FEATURE_NOT_SUPPORTED"


@pytest.mark.usefixtures("tables")
def test_merge(run):
    run("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED AND s.a > 15 THEN UPDATE SET a = s.a * 2, b = DEFAULT "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.id < 5 THEN INSERT (id, a, b) VALUES (s.id, s.a, DEFAULT) "
        "WHEN NOT MATCHED THEN DO NOTHING WHEN NOT MATCHED BY SOURCE THEN UPDATE SET b = 'lost'")  # fmt: skip
    assert run("SELECT * FROM t ORDER BY id") == [(2, 40, "d"), (3, 3, "lost"), (4, 40, "d")]
    run("MERGE INTO t AS q USING (VALUES (2, 'k'), (9, 'l')) AS v(id, b) ON q.id = v.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT VALUES (v.id, 0, v.b)")  # fmt: skip
    assert run("SELECT id FROM t ORDER BY id") == [(3,), (4,), (9,)]
    run(
        "MERGE INTO n USING t ON false WHEN NOT MATCHED BY SOURCE THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT DEFAULT VALUES"
    )
    assert run("SELECT * FROM n") == [(None, None)] * 3


@pytest.mark.usefixtures("tables")
def test_merge_sees_the_content_before_it(run):
    """A deleted row is not inserted again, and an inserted one is not matched."""
    run("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.a, s.b) WHEN NOT MATCHED BY SOURCE THEN DELETE")  # fmt: skip
    assert run("SELECT id FROM t ORDER BY id") == [(4,), (5,)]


@pytest.mark.usefixtures("tables")
def test_merge_of_serial_columns(run):
    run("CREATE TABLE z (id serial PRIMARY KEY, a int)")
    run("MERGE INTO z USING s ON z.a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (s.a)")
    assert sorted(run("SELECT id FROM z")) == [(1,), (2,), (3,), (4,)]
    run("BEGIN; MERGE INTO z USING s ON z.a = s.a WHEN MATCHED THEN DELETE; ROLLBACK")
    assert run("SELECT count(*) FROM z") == [(4,)]


@pytest.mark.usefixtures("tables")
def test_merge_refused(run, fails):
    several = "(VALUES (1, 1), (1, 2)) AS v(id, a)"
    twice = fails(f"MERGE INTO t USING {several} ON t.id = v.id WHEN MATCHED THEN UPDATE SET a = v.a")
    assert (twice.condition, twice.sqlstate) == ("CARDINALITY_VIOLATION", "21000")
    first, second = "WHEN MATCHED AND v.a = 1 THEN DELETE", "WHEN MATCHED THEN UPDATE SET y = 0"
    sql = f"MERGE INTO n USING {several} ON n.x = v.id {first} {second}"
    assert fails(sql).condition == "CARDINALITY_VIOLATION"
    for sql, condition in {
        "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN DELETE": "SYNTAX_ERROR",
        "MERGE INTO none USING s ON true WHEN MATCHED THEN DELETE": "UNDEFINED_RELATION",
        "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = 'x'": "INVALID_VALUE",
        "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE RETURNING (SELECT 1)": "FEATURE_NOT_SUPPORTED",
        "MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (1, 2)": "SYNTAX_ERROR",
    }.items():
        assert fails(sql).condition == condition, sql
    assert run("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
