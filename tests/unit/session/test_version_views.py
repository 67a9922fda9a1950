"""Event-time temporal joins as views: versions of rows, deletions, restart, late views, refusals, plans."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, k int, ts timestamp);
CREATE TABLE rates (k int PRIMARY KEY, ts timestamp, rate int, WATERMARK FOR ts AS ts - INTERVAL '1 day');
"""
INNER = "SELECT o.id, r.rate FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k"
LEFT = "SELECT o.id, r.rate, r.ts FROM orders o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k"


@pytest.fixture(params=[1, 3])
def connection(request, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=request.param) as found:
        found.execute(SETUP)
        yield found


def rows(connection, name):
    connection.execute("FLUSH")
    return sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=str)


def view(connection, name, sql):
    connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")


def at(hour):
    return f"'2024-01-01 {hour:02}:00:00'"


def test_each_row_meets_the_version_of_its_time(connection):
    view(connection, "v", INNER)
    connection.execute(f"INSERT INTO rates VALUES (1, {at(10)}, 100)")
    connection.execute(f"UPDATE rates SET ts = {at(12)}, rate = 120 WHERE k = 1")
    connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(9)}), (2, 1, {at(10)}), (3, 1, {at(11)}), (4, 1, {at(12)}), (5, 2, {at(12)})")
    assert rows(connection, "v") == [(2, 100), (3, 100), (4, 120)]
    # a version between the two, although it comes last: INSERT replaces the row of the key
    connection.execute(f"INSERT INTO rates VALUES (1, {at(11)}, 110)")
    assert rows(connection, "v") == [(2, 100), (3, 110), (4, 120)]
    # an update that keeps the time replaces the version
    connection.execute("UPDATE rates SET rate = 111 WHERE k = 1")
    assert rows(connection, "v") == [(2, 100), (3, 111), (4, 120)]
    connection.execute(f"UPDATE orders SET ts = {at(23)} WHERE id = 2; DELETE FROM orders WHERE id = 3")
    assert rows(connection, "v") == [(2, 120), (4, 120)]


def test_a_deletion_hides_older_versions(connection):
    view(connection, "v", LEFT.replace(", r.ts", ""))
    connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(10)}), (2, 1, {at(12)}), (3, 1, {at(14)})")
    connection.execute(f"INSERT INTO rates VALUES (1, {at(10)}, 100); INSERT INTO rates VALUES (1, {at(12)}, 120)")
    assert rows(connection, "v") == [(1, 100), (2, 120), (3, 120)]
    connection.execute("DELETE FROM rates")
    assert rows(connection, "v") == [(1, 100), (2, None), (3, None)]
    connection.execute(f"INSERT INTO rates VALUES (1, {at(14)}, 140)")
    assert rows(connection, "v") == [(1, 100), (2, None), (3, 140)]


def test_epochs_and_transactions(connection):
    """However changes are cut into epochs: only within a transaction nothing but its result counts."""
    view(connection, "v", INNER)
    connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(10)}), (2, 1, {at(11)}), (3, 1, {at(12)})")
    connection.execute(f"BEGIN; INSERT INTO rates VALUES (1, {at(10)}, 100); UPDATE rates SET ts = {at(11)}, rate = 110; COMMIT")
    connection.execute(f"DELETE FROM rates; INSERT INTO rates VALUES (1, {at(12)}, 120)")
    assert rows(connection, "v") == [(3, 120)]
    connection.execute(f"BEGIN; DELETE FROM rates; INSERT INTO rates VALUES (1, {at(10)}, 99); COMMIT")
    assert rows(connection, "v") == [(1, 99), (3, 120)]


def test_other_conditions_decide_after_the_version_is_chosen(connection):
    connection.execute("CREATE TABLE prices (a int, b varchar, ts timestamptz, p int, PRIMARY KEY (b, a), WATERMARK FOR ts AS ts)")
    join = "prices FOR SYSTEM_TIME AS OF o.ts::timestamptz + INTERVAL '1 hour' AS q ON q.a = o.k AND o.id::varchar = q.b AND q.p > 5 AND q.p <> o.k"
    view(connection, "v", f"SELECT o.id, q.p FROM orders o JOIN {join}")
    view(connection, "w", f"SELECT o.id, q.p FROM orders o LEFT JOIN {join} WHERE o.id < 3")
    connection.execute(f"INSERT INTO prices VALUES (1, '1', {at(10)}, 50); INSERT INTO prices VALUES (1, '1', {at(11)}, 5)")
    connection.execute(f"INSERT INTO prices VALUES (2, '2', {at(10)}, 20); INSERT INTO orders VALUES (1, 1, {at(10)}), (2, 2, {at(9)}), (3, 1, {at(9)})")
    assert rows(connection, "v") == [(2, 20)]
    assert rows(connection, "w") == [(1, None), (2, 20)]
    connection.execute("UPDATE prices SET p = 6 WHERE b = '1'")
    assert rows(connection, "v") == [(1, 6), (2, 20)]


def test_views_above_and_names(connection):
    view(connection, "v", "SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r (k, since, rate) USING (k)")
    view(connection, "sums", "SELECT k, sum(rate) AS s FROM v GROUP BY k")
    connection.execute(f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)})")
    assert rows(connection, "sums") == [(1, 20)]
    connection.execute(f"INSERT INTO rates VALUES (1, {at(3)}, 1)")
    assert rows(connection, "sums") == [(1, 11)]
    assert [c[0] for c in connection.execute("SELECT * FROM v").description] == ["k", "id", "ts", "since", "rate"]


def test_a_late_view_knows_what_another_one_keeps_or_what_is_there(connection):
    connection.execute(f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO rates VALUES (1, {at(3)}, 30)")
    connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)}); FLUSH")
    view(connection, "v", LEFT.replace(", r.ts", ""))
    assert rows(connection, "v") == [(1, None), (2, 30)]
    connection.execute(f"INSERT INTO rates VALUES (1, {at(2)}, 20); FLUSH")
    view(connection, "w", INNER)
    assert rows(connection, "w") == [(1, 20), (2, 30)]
    connection.execute("DELETE FROM rates")
    assert rows(connection, "w") == [(2, 30)]
    assert rows(connection, "v") == [(1, None), (2, 30)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_restart_keeps_the_versions(tmp_path, parallelism):
    path = tmp_path / "again"
    with watersmeet.connect(path, runtime="inprocess", parallelism=parallelism) as connection:
        connection.execute(SETUP)
        view(connection, "v", INNER)
        connection.execute(f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO rates VALUES (1, {at(3)}, 30); FLUSH")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)})")
        assert rows(connection, "v") == [(1, 10), (2, 30)]
    with pytest.raises(Error) as raised:
        watersmeet.connect(path, runtime="inprocess", parallelism=3, rebuild=True)
    assert raised.value.condition == "FEATURE_NOT_SUPPORTED"


REFUSED = [
    ("TEMPORAL_KIND", "SELECT 1 AS x FROM orders o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k", "dangling"),
    ("TEMPORAL_KIND", "SELECT 1 AS x FROM rates FOR SYSTEM_TIME AS OF ts", "dangling"),
    ("TEMPORAL_KEY", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.rate", "whole primary key"),
    ("TEMPORAL_KEY", "SELECT 1 AS x FROM orders o, rates FOR SYSTEM_TIME AS OF o.ts r", "whole primary key"),
    ("TEMPORAL_RIGHT_SIDE", "SELECT 1 AS x FROM rates r JOIN orders FOR SYSTEM_TIME AS OF r.ts o ON o.id = r.k", "no versions"),
    ("TEMPORAL_RIGHT_SIDE", "SELECT 1 AS x FROM orders o JOIN totals FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k", "no versions"),
    ("TEMPORAL_RIGHT_SIDE", "SELECT 1 AS x FROM orders o JOIN by_rate FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k", "no versions"),
    ("TEMPORAL_RIGHT_SIDE", "SELECT 1 AS x FROM orders o JOIN plain FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k", "should not be a view"),
    ("TEMPORAL_RIGHT_SIDE", "WITH d AS (SELECT * FROM rates) SELECT 1 AS x FROM orders o JOIN d FOR SYSTEM_TIME AS OF o.ts ON o.k = d.k",
     "CTE"),
    ("DATATYPE_MISMATCH", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.id r ON o.k = r.k", "integer"),
    ("DATATYPE_MISMATCH", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts::timestamptz r ON o.k = r.k", "timestamp"),
    ("DATATYPE_MISMATCH", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k::bigint = r.k", "bigint"),
    ("FEATURE_NOT_SUPPORTED", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF now() r ON o.k = r.k", "PROCTIME"),
    ("UNDEFINED_COLUMN", "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.nope r ON o.k = r.k", "nope"),
]


def test_refused(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute(SETUP)
        connection.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, max(ts) AS ts FROM rates GROUP BY k")
        connection.execute("CREATE VIEW plain AS SELECT * FROM rates; CREATE INDEX by_rate ON rates (rate)")
        for condition, sql, message in REFUSED:
            with pytest.raises(Error, match=message) as raised:
                view(connection, "v", sql)
            assert raised.value.condition == condition
            assert raised.value.span is not None


def test_plans(connection):
    text = "\n".join(r[0] for r in connection.execute(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {LEFT}").fetchall())
    assert "StreamAsOfJoin { type: AsofLeftOuter, predicate: orders.k = rates.k AND (orders.ts >= rates._since) AND rates._live" in text
    assert "StreamVersions { key: [rates.k], time: rates.ts }" in text
    logical = "\n".join(r[0] for r in connection.execute(f"EXPLAIN (logical) CREATE MATERIALIZED VIEW v AS {LEFT}").fetchall())
    assert "LogicalVersions { time: rates.ts }" in logical
