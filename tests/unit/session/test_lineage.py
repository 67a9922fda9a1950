"""EXPLAIN ROW and EXPLAIN MISSING ROW: the tree of steps, rights, the past. What they find: `property/test_lineage`."""

from __future__ import annotations

import sys

import pytest

from watersmeet.errors import Error
from watersmeet.lineage import explaining
from watersmeet.store.readers import low_water_number

SHOP = """
CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR);
CREATE TABLE orders (id INT PRIMARY KEY, customer INT, amount INT);
CREATE MATERIALIZED VIEW named AS SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM named GROUP BY name;
CREATE VIEW plain AS SELECT name FROM customers WHERE id > 1;
INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bo');
INSERT INTO orders VALUES (1, 1, 20), (2, 1, 30), (3, 2, 40);
FLUSH;
"""


@pytest.fixture
def shop(connection):
    for _ in connection.execute_script(SHOP):
        pass
    return connection


def test_steps_are_drawn_as_a_tree(shop):
    cursor = shop.execute("EXPLAIN ROW (SELECT * FROM totals WHERE name = 'Ann')")
    assert [d[0] for d in cursor.description] == ["step", "relation", "row", "detail"]
    ann = {"id": 1, "name": "Ann"}
    assert cursor.fetchall() == [
        ("Filter", None, None, "totals.name = 'Ann'"),
        ("└─ materialized view", "totals", {"name": "Ann", "total": 50}, None),
        ("   └─ Group", None, {"named.name": "Ann", "sum(named.amount)": 50}, "of 2 rows"),
        ("      ├─ materialized view", "named", {"id": 1, "name": "Ann", "amount": 20}, None),
        ("      │  └─ Join", None, None, "orders.customer = customers.id (1)"),
        ("      │     ├─ table", "orders", {"id": 1, "customer": 1, "amount": 20}, None),
        ("      │     └─ table", "customers", ann, None),
        ("      └─ materialized view", "named", {"id": 2, "name": "Ann", "amount": 30}, None),
        ("         └─ Join", None, None, "orders.customer = customers.id (1)"),
        ("            ├─ table", "orders", {"id": 2, "customer": 1, "amount": 30}, None),
        ("            └─ table", "customers", ann, None),
    ]


def test_without_the_plug_in_all_but_explain_row_works(shop, monkeypatch):
    for name in [m for m in sys.modules if m.startswith("watersmeet.lineage")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "watersmeet.lineage", None)
    shop.execute("INSERT INTO orders VALUES (4, 2, 2)")
    shop.flush()
    assert shop.execute("SELECT * FROM totals WHERE name = 'Bo'").fetchall() == [("Bo", 42)]
    assert shop.execute("EXPLAIN SELECT * FROM totals").fetchall()
    with pytest.raises(Error) as caught:
        shop.execute("EXPLAIN ROW SELECT * FROM totals")
    assert caught.value.condition == "LIBRARY_MISSING"
    assert not [m for m in sys.modules if m.startswith("watersmeet.lineage.")]


def test_all_values_come_as_they_are(connection):
    connection.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR, d DOUBLE PRECISION, n NUMERIC, ts TIMESTAMP, tz TIMESTAMPTZ, "
        "day DATE, b BYTEA, j JSONB, a VARCHAR[], w INTERVAL, f BOOLEAN)"
    )
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
    connection.execute(
        "INSERT INTO t VALUES (1, 'it''s \"a\"\n', 0.1, 1.50, '2024-01-01 10:00:00.5', '2024-01-01 10:00:00+00', "
        "'2024-02-29', '\\xff00', '{\"k\": [1]}', ARRAY['x, y', NULL, ''''], INTERVAL '1 day 2 seconds', true), "
        "(2, NULL, 'nan', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v").fetchall()
    assert [(step, relation) for step, relation, _, _ in found] == [("materialized view", "v"), ("└─ table", "t")] * 2
    row, again, empty, _ = (row for _, _, row, _ in found)
    assert row == again
    assert row["s"] == 'it\'s "a"\n'
    assert (row["d"], row["n"], row["f"], row["j"], row["a"]) == (0.1, 1.5, True, {"k": [1]}, ["x, y", None, "'"])
    assert (row["ts"], row["day"]) == ("2024-01-01 10:00:00.5", "2024-02-29")
    assert {v for k, v in empty.items() if k not in ("id", "d")} == {None}
    assert empty["d"] == "nan"


def test_rows_of_a_step_are_limited_and_so_are_all_together(shop, monkeypatch):
    shop.execute("INSERT INTO orders SELECT i, 2, 1 FROM generate_series(10, 209) t(i)")
    shop.flush()
    found = shop.execute("EXPLAIN ROW (LIMIT 3) SELECT * FROM totals WHERE name = 'Bo'").fetchall()
    assert [r["id"] for _, name, r, _ in found if name == "orders"] == [3, 10, 11]
    assert found[-1] == ("      └─ …", None, None, "3 of 201 rows are shown")
    real = explaining.origins_of

    def cramped(*parameters):
        origins = real(*parameters)
        origins.room = 8
        return origins

    monkeypatch.setattr(explaining, "origins_of", cramped)
    found = shop.execute("EXPLAIN ROW SELECT * FROM totals WHERE name = 'Bo'").fetchall()
    assert sum(name == "named" for _, name, _, _ in found) < 8
    assert found[-1][3].endswith(" of 201 rows are shown")


def test_an_expression_that_fails_is_null(connection, fails):
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR)")
    connection.execute(
        "CREATE MATERIALIZED VIEW v AS SELECT id, CAST(s AS INT) AS n FROM t WHERE CAST(s AS INT) > 0 OR id < 3"
    )
    connection.execute("INSERT INTO t VALUES (1, '5'), (2, 'x'), (3, 'y')")
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 2").fetchall()
    assert found[1:] == [
        ("└─ materialized view", "v", {"id": 2, "n": None}, None),
        ("   └─ Filter", None, None, "(t.s > 0 OR t.id < 3) (t.id = 2, t.s = 'x')"),
        ("      └─ table", "t", {"id": 2, "s": "x"}, None),
    ]
    (*_, ended) = connection.execute("EXPLAIN MISSING ROW v WHERE id = 3").fetchall()
    assert ended[1:3] == ("t", {"id": 3, "s": "y"})
    error = fails("EXPLAIN ROW SELECT id, CAST(s AS INT) AS n FROM t WHERE id = 2")
    assert error.condition == "FEATURE_NOT_SUPPORTED"
    assert error.message == "the row can't be explained, because an expression fails"
    assert 'invalid input syntax for type integer: "x"' in error.detail.lower()


def test_rows_that_meet_several_times_are_counted_in_their_own_view(connection):
    for sql in (
        "CREATE TABLE a (k INT)",
        "CREATE TABLE b (k INT)",
        "CREATE MATERIALIZED VIEW va AS SELECT k FROM a",
        "CREATE MATERIALIZED VIEW vb AS SELECT k FROM b",
        "CREATE MATERIALIZED VIEW both_of_them AS SELECT va.k FROM va JOIN vb ON va.k = vb.k",
        "INSERT INTO a VALUES (1), (1)",
        "INSERT INTO b VALUES (1), (1), (1)",
    ):
        connection.execute(sql)
    connection.flush()
    for sql in ("EXPLAIN ROW SELECT * FROM both_of_them", "EXPLAIN ROW SELECT * FROM both_of_them LIMIT 2"):
        found = connection.execute(sql).fetchall()
        assert [(name, detail) for _, name, _, detail in found if name in ("a", "b")] == [
            ("a", "2 times"),
            ("b", "3 times"),
        ]


def test_a_row_that_is_there_is_not_missing(shop):
    cursor = shop.execute("EXPLAIN MISSING ROW totals WHERE name = 'Bo'")
    assert cursor.fetchall()[0] == ("materialized view", "totals", {"name": "Bo", "total": 40}, None)
    assert cursor.notices == ("The row is not missing.",)


def test_the_past(shop):
    before = shop.opened.log.head()
    shop.execute("UPDATE orders SET amount = 99 WHERE id = 3")
    shop.flush()
    now = shop.execute("EXPLAIN ROW SELECT * FROM totals WHERE name = 'Bo'").fetchall()
    then = shop.execute(
        f"EXPLAIN ROW SELECT * FROM totals FOR SYSTEM_TIME AS OF COMMIT {before} WHERE name = 'Bo'"
    ).fetchall()
    assert [step for step, *_ in now] == [step for step, *_ in then]
    assert [r["amount"] for _, name, r, _ in now if name == "orders"] == [99]
    assert [r["amount"] for _, name, r, _ in then if name == "orders"] == [40]


def test_changes_of_the_open_transaction_do_not_count(shop):
    shop.execute("BEGIN")
    shop.execute("INSERT INTO orders VALUES (4, 2, 60)")
    cursor = shop.execute("EXPLAIN MISSING ROW named WHERE id = 4")
    assert cursor.fetchall()[-1][:2] == ("└─ table", "orders")
    assert cursor.notices
    shop.execute("ROLLBACK")


def test_only_who_may_read_all_of_it_sees_where_rows_come_from(shop, fails):
    shop.execute("CREATE USER ann PASSWORD 'x'")
    shop.execute("GRANT SELECT ON totals, plain TO ann")
    statements = (
        "EXPLAIN ROW SELECT * FROM totals",
        "EXPLAIN MISSING ROW totals WHERE name = 'Cy'",
        "EXPLAIN ROW SELECT * FROM plain",
        "EXPLAIN MISSING ROW plain WHERE name = 'Ann'",
    )
    shop.execute("SET ROLE ann")
    for sql in statements:
        error = fails(sql)
        assert error.condition == "PERMISSION_DENIED"
        assert not any(secret in str(error) for secret in ("orders", "customers", "named"))
    assert fails("EXPLAIN ROW SELECT * FROM named").condition == "UNDEFINED_RELATION"
    shop.execute("RESET ROLE")
    shop.execute("GRANT SELECT ON named, orders TO ann")
    shop.execute("SET ROLE ann")
    assert fails(statements[0]).condition == "PERMISSION_DENIED"
    shop.execute("RESET ROLE")
    shop.execute("GRANT SELECT ON customers TO ann")
    shop.execute("SET ROLE ann")
    for sql in statements:
        assert shop.execute(sql).fetchall()


def test_an_epoch_that_comes_between_makes_it_begin_again(shop, monkeypatch, fails):
    """The watermarks and the rows are of one epoch: else it looks again, but not for ever."""
    real, calls = explaining.reading, []

    def reading(session, query, **options):
        calls.append(query)
        if len(calls) < 3 or len(calls) > 5:
            shop.execute(f"INSERT INTO orders VALUES ({100 + len(calls)}, 1, 1)")
            shop.flush()
        return real(session, query, **options)

    monkeypatch.setattr(explaining, "reading", reading)
    assert shop.execute("EXPLAIN ROW SELECT * FROM totals WHERE name = 'Bo'").fetchall()
    assert len(calls) == 3
    calls.extend([None] * 3)
    assert fails("EXPLAIN ROW SELECT * FROM totals").condition == "SNAPSHOT_TOO_OLD"


def forget(connection):
    """Deletes the history up to now."""
    database = connection._session.database
    head = database.log.head()
    connection.execute("CREATE TABLE others (i INT)")
    connection.execute("ALTER SYSTEM SET retention = 0")
    for _ in range(2):
        connection.execute("INSERT INTO others VALUES (1)")
        connection.flush()
        connection.execute("SELECT * FROM others").fetchall()  # its own content needs no older commits then
        database._compactor.run()
    assert low_water_number(database.layout) >= head


def look_up(connection, items):
    """A view whose rows look up a row that is there before they come."""
    connection.execute("CREATE TABLE a (id INT, k INT) APPEND ONLY")
    connection.execute("CREATE TABLE b (k INT PRIMARY KEY, x INT)")
    sql = f"SELECT {items} FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k"
    sql += " GROUP BY b.x" if "count" in items else ""
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {sql}")
    connection.execute("INSERT INTO b VALUES (1, 10)")


def test_what_was_looked_up_before_the_history_that_is_kept(connection, fails):
    look_up(connection, "a.id, b.x")
    for number in (1, 2):
        connection.execute("INSERT INTO a VALUES (?, 1)", (number,))
        connection.flush()
        connection.execute(f"UPDATE b SET x = {number} WHERE k = 1")
        connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 1").fetchall()
    assert [row for _, name, row, _ in found if name == "b"] == [{"k": 1, "x": 10}]
    assert "as of commit" in found[2][3]
    forget(connection)
    error = fails("EXPLAIN ROW SELECT * FROM v WHERE id = 1")
    assert error.condition == "HISTORY_GONE"
    assert error.message == 'a row of materialized view "v" can\'t be explained'
    assert "the oldest that is kept" in error.detail
    assert "retention" in error.hint


def test_groups_of_what_was_looked_up_before_the_history_that_is_kept(connection, fails):
    look_up(connection, "b.x, count(*)")
    connection.execute("INSERT INTO a VALUES (1, 1)")
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE x = 10").fetchall()
    assert [row["id"] for _, name, row, _ in found if name == "a"] == [1]
    forget(connection)
    connection.execute("INSERT INTO a VALUES (2, 1)")
    connection.flush()
    error = fails("EXPLAIN ROW SELECT * FROM v WHERE x = 10")
    assert error.condition == "HISTORY_GONE"
    assert "the oldest that is kept" in error.detail


def test_only_rows_that_changed_since_the_history_that_is_kept(connection, fails):
    for sql in (
        "CREATE TABLE a (id INT PRIMARY KEY, k INT, note INT)",
        "CREATE TABLE b (k INT PRIMARY KEY, x INT)",
        "CREATE MATERIALIZED VIEW v AS SELECT a.id, b.x FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k",
        "INSERT INTO b VALUES (1, 10), (2, 20)",
        "INSERT INTO a VALUES (1, 1, 0), (2, 1, 0), (3, 1, 0)",
    ):
        connection.execute(sql)
    connection.flush()
    assert connection.execute("EXPLAIN ROW SELECT * FROM v").fetchall()
    forget(connection)
    connection.execute("UPDATE a SET k = 2 WHERE id = 1")
    connection.execute("UPDATE a SET note = 0 WHERE id = 2")
    connection.execute("UPDATE a SET note = 5 WHERE id = 3")
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 1").fetchall()
    assert [row for _, name, row, _ in found if name in ("a", "b")] == [{"id": 1, "k": 2, "note": 0}, {"k": 2, "x": 20}]
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 3").fetchall()  # the view does not read `note`
    assert [row for _, name, row, _ in found if name in ("a", "b")] == [{"id": 3, "k": 1, "note": 5}, {"k": 1, "x": 10}]
    error = fails("EXPLAIN ROW SELECT * FROM v WHERE id = 2")  # it did not change
    assert error.condition == "HISTORY_GONE"
    assert "the oldest that is kept" in error.detail


def test_records_that_came_since_the_history_that_is_kept(connection, fails):
    for sql in (
        "SET dialect = 'lenses'",
        "SET defaults.topic.autocreate=true",
        "CREATE TABLE a (_key int, c int) FORMAT (INT, AVRO)",
        "CREATE TABLE b (_key int, c int) FORMAT (INT, AVRO)",
        "WITH b AS (SELECT TABLE * FROM b); INSERT INTO p SELECT STREAM a.c AS ac, b.c AS bc FROM a LEFT JOIN b",
        "INSERT INTO b VALUES (1, 10)",
        "INSERT INTO b VALUES (1, 11)",
        "INSERT INTO a VALUES (1, 1)",
    ):
        connection.execute(sql)
    connection.flush()
    assert connection.execute("EXPLAIN ROW SELECT * FROM p").fetchall()
    connection.execute("SET dialect = 'risingwave'")
    forget(connection)
    connection.execute("SET dialect = 'lenses'")
    connection.execute("INSERT INTO a VALUES (1, 2)")
    connection.flush()
    connection.execute("INSERT INTO b VALUES (1, 12)")
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM p WHERE ac = 2").fetchall()
    assert [row["c"] for _, name, row, _ in found if name in ("a", "b")] == [2, 11]
    assert fails("EXPLAIN ROW SELECT * FROM p WHERE ac = 1").condition == "HISTORY_GONE"


def test_what_stood_still_before_the_history_that_is_kept(connection, fails):
    for sql in (
        "CREATE TABLE d (k INT PRIMARY KEY, x INT)",
        "INSERT INTO d VALUES (1, 10)",
        "SET dialect = 'sqlstream'",
        "CREATE STREAM s (k INTEGER)",
        'CREATE MATERIALIZED VIEW v AS SELECT STREAM s.k, "d"."x" FROM s JOIN "d" ON s.k = "d"."k"',
        "INSERT INTO s (ROWTIME, k) VALUES (TIMESTAMP '2019-01-01 00:00:00', 1)",
        "SET dialect = 'risingwave'",
        "UPDATE d SET x = 11 WHERE k = 1",
    ):
        connection.execute(sql)
    connection.flush()
    found = connection.execute('EXPLAIN ROW SELECT * FROM "V"').fetchall()
    assert [row for _, name, row, _ in found if name == "d"] == [{"k": 1, "x": 10}]
    forget(connection)
    error = fails('EXPLAIN ROW SELECT * FROM "V"')
    assert error.condition == "HISTORY_GONE"
    assert "when the view began" in error.detail
    assert "retention" in error.hint


def test_a_row_of_the_past_that_was_looked_up(connection, fails):
    look_up(connection, "a.k, b.x")
    commits = []
    for number in (1, 2):
        connection.execute("INSERT INTO a VALUES (?, 1)", (number,))
        connection.flush()
        commits.append(connection._session.database.log.head())
    past = f"v FOR SYSTEM_TIME AS OF COMMIT {commits[0]}"
    found = connection.execute(f"EXPLAIN ROW SELECT * FROM {past}").fetchall()
    assert [row["id"] for _, name, row, _ in found if name == "a"] == [1]
    found = connection.execute("EXPLAIN ROW SELECT * FROM v").fetchall()
    assert [row["id"] for _, name, row, _ in found if name == "a"] == [1, 2]
    error = fails("EXPLAIN ROW SELECT * FROM v FOR SYSTEM_TIME AS OF TIMESTAMP '2020-01-01 00:00:00+00'")
    assert error.condition in ("HISTORY_GONE", "FEATURE_NOT_SUPPORTED")


VERSIONS = """
CREATE TABLE orders (id int, k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '1 hour') APPEND ONLY;
CREATE TABLE rates (k int PRIMARY KEY, ts timestamp, rate int, WATERMARK FOR ts AS ts - INTERVAL '1 hour');
"""
VERSIONED = "SELECT o.id, r.rate FROM orders o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k"


def at(hour):
    return f"'2024-01-01 {hour:02}:00:00'"


def test_the_version_that_a_row_was_joined_with(connection, fails):
    for _ in connection.execute_script(VERSIONS):
        pass
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {VERSIONED}")
    connection.execute(f"CREATE MATERIALIZED VIEW once AS {VERSIONED} EMIT ON ARRIVAL")
    connection.execute(f"INSERT INTO rates VALUES (1, {at(1)}, 10)")
    connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(0)}), (2, 1, {at(1)}), (3, 1, {at(2)})")
    connection.execute(f"INSERT INTO rates VALUES (1, {at(2)}, 20); DELETE FROM rates")
    connection.flush()
    found = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 2").fetchall()
    times = f"orders.ts >= rates._since: the nearest to {at(1)} is {at(1)}"
    assert found[1:] == [
        ("└─ materialized view", "v", {"id": 2, "rate": 10}, None),
        ("   └─ Asof Join", None, None, f"orders.k = rates.k (1), {times}"),
        ("      ├─ table", "orders", {"id": 2, "k": 1, "ts": "2024-01-01 01:00:00"}, None),
        ("      └─ table", "rates", {"k": 1, "ts": "2024-01-01 01:00:00", "rate": 10}, None),
    ]
    (*_, gone) = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 3").fetchall()
    assert gone[-1] == "the nearest row does not meet rates._live"
    (*_, none) = connection.execute("EXPLAIN ROW SELECT * FROM v WHERE id = 1").fetchall()
    assert none[-1] == f"no rates._since with {at(0)} >= rates._since; the nearest: {at(1)}"
    connection.execute(f"INSERT INTO rates VALUES (2, {at(9)}, 1); INSERT INTO orders VALUES (9, 3, {at(9)})")
    connection.flush()
    for number in (1, 2):
        error = fails(f"EXPLAIN ROW SELECT * FROM v WHERE id = {number}")
        assert error.condition == "HISTORY_GONE"
    ((commit, *_), *_) = connection.execute("SHOW COMMITS").fetchall()
    for sql, why in (
        ("SELECT * FROM once", "which versions there were then is not kept"),
        (f"SELECT * FROM v FOR SYSTEM_TIME AS OF COMMIT {commit}", "which there were then is not kept"),
    ):
        error = fails(f"EXPLAIN ROW {sql}")
        assert error.condition == "FEATURE_NOT_SUPPORTED"
        assert why in error.detail
    assert fails(f"EXPLAIN ROW {VERSIONED}").condition != "INTERNAL_ERROR"
