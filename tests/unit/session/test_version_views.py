"""Event-time temporal joins as views: versions of rows, deletions, restart, late views, refusals, plans."""

from __future__ import annotations

import random

import pytest
from tests.thorough import mostly_slow

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
    connection.execute(
        f"INSERT INTO orders VALUES (1, 1, {at(9)}), (2, 1, {at(10)}), (3, 1, {at(11)}), (4, 1, {at(12)}), "
        f"(5, 2, {at(12)})"
    )
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
    connection.execute(
        f"BEGIN; INSERT INTO rates VALUES (1, {at(10)}, 100); UPDATE rates SET ts = {at(11)}, rate = 110; COMMIT"
    )
    connection.execute(f"DELETE FROM rates; INSERT INTO rates VALUES (1, {at(12)}, 120)")
    assert rows(connection, "v") == [(3, 120)]
    connection.execute(f"BEGIN; DELETE FROM rates; INSERT INTO rates VALUES (1, {at(10)}, 99); COMMIT")
    assert rows(connection, "v") == [(1, 99), (3, 120)]


def test_other_conditions_decide_after_the_version_is_chosen(connection):
    connection.execute(
        "CREATE TABLE prices (a int, b varchar, ts timestamptz, p int, PRIMARY KEY (b, a), WATERMARK FOR ts AS ts)"
    )
    join = (
        "prices FOR SYSTEM_TIME AS OF o.ts::timestamptz + INTERVAL '1 hour' AS q ON q.a = o.k AND o.id::varchar "
        "= q.b AND q.p > 5 AND q.p <> o.k"
    )
    view(connection, "v", f"SELECT o.id, q.p FROM orders o JOIN {join}")
    view(connection, "w", f"SELECT o.id, q.p FROM orders o LEFT JOIN {join} WHERE o.id < 3")
    connection.execute(
        f"INSERT INTO prices VALUES (1, '1', {at(10)}, 50); INSERT INTO prices VALUES (1, '1', {at(11)}, 5)"
    )
    connection.execute(
        f"INSERT INTO prices VALUES (2, '2', {at(10)}, 20); INSERT INTO orders VALUES (1, 1, {at(10)}), (2, "
        f"2, {at(9)}), (3, 1, {at(9)})"
    )
    assert rows(connection, "v") == [(2, 20)]
    assert rows(connection, "w") == [(1, None), (2, 20)]
    connection.execute("UPDATE prices SET p = 6 WHERE b = '1'")
    assert rows(connection, "v") == [(1, 6), (2, 20)]


def test_views_above_and_names(connection):
    view(
        connection, "v", "SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r (k, since, rate) USING (k)"
    )
    view(connection, "sums", "SELECT k, sum(rate) AS s FROM v GROUP BY k")
    connection.execute(
        f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)})"
    )
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
        connection.execute(
            f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO rates VALUES (1, {at(3)}, 30); FLUSH"
        )
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)})")
        assert rows(connection, "v") == [(1, 10), (2, 30)]
    with pytest.raises(Error) as raised:
        watersmeet.connect(path, runtime="inprocess", parallelism=3, rebuild=True)
    assert raised.value.condition == "FEATURE_NOT_SUPPORTED"


REFUSED = [
    (
        "TEMPORAL_KIND",
        "SELECT 1 AS x FROM orders o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k",
        "dangling",
    ),
    ("TEMPORAL_KIND", "SELECT 1 AS x FROM rates FOR SYSTEM_TIME AS OF ts", "dangling"),
    (
        "TEMPORAL_KEY",
        "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.rate",
        "whole primary key",
    ),
    ("TEMPORAL_KEY", "SELECT 1 AS x FROM orders o, rates FOR SYSTEM_TIME AS OF o.ts r", "whole primary key"),
    (
        "TEMPORAL_RIGHT_SIDE",
        "SELECT 1 AS x FROM rates r JOIN orders FOR SYSTEM_TIME AS OF r.ts o ON o.id = r.k",
        "no versions",
    ),
    (
        "TEMPORAL_RIGHT_SIDE",
        "SELECT 1 AS x FROM orders o JOIN totals FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k",
        "no versions",
    ),
    (
        "TEMPORAL_RIGHT_SIDE",
        "SELECT 1 AS x FROM orders o JOIN by_rate FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k",
        "no versions",
    ),
    (
        "TEMPORAL_RIGHT_SIDE",
        "SELECT 1 AS x FROM orders o JOIN plain FOR SYSTEM_TIME AS OF o.ts r ON o.k = r.k",
        "should not be a view",
    ),
    (
        "TEMPORAL_RIGHT_SIDE",
        "WITH d AS (SELECT * FROM rates) SELECT 1 AS x FROM orders o JOIN d FOR SYSTEM_TIME AS OF o.ts ON o.k = d.k",
        "CTE",
    ),
    (
        "DATATYPE_MISMATCH",
        "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.id r ON o.k = r.k",
        "type integer can.t be compared with version times",
    ),
    (
        "DATATYPE_MISMATCH",
        "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts::timestamptz r ON o.k = r.k",
        "timestamp",
    ),
    (
        "DATATYPE_MISMATCH",
        "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts r ON o.k::bigint = r.k",
        "bigint",
    ),
    (
        "FEATURE_NOT_SUPPORTED",
        "SELECT 1 AS x FROM orders o JOIN rates FOR SYSTEM_TIME AS OF now() r ON o.k = r.k",
        "PROCTIME",
    ),
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
    assert (
        "StreamAsOfJoin { type: AsofLeftOuter, predicate: orders.k = rates.k AND (orders.ts >= rates._since) "
        "AND rates._live"
    ) in text
    assert "StreamVersions { key: [rates.k], time: rates.ts }" in text
    logical = "\n".join(
        r[0] for r in connection.execute(f"EXPLAIN (logical) CREATE MATERIALIZED VIEW v AS {LEFT}").fetchall()
    )
    assert "LogicalVersions { time: rates.ts }" in logical


TIMED = """
CREATE TABLE events (id int, k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '1 hour') APPEND ONLY;
CREATE TABLE rates (k int PRIMARY KEY, ts timestamp, rate int, WATERMARK FOR ts AS ts - INTERVAL '1 hour');
CREATE TABLE ticks (k int, ts timestamp, rate int, WATERMARK FOR ts AS ts - INTERVAL '1 hour') APPEND ONLY;
CREATE MATERIALIZED VIEW v AS SELECT e.id, r.rate FROM events e LEFT JOIN rates FOR SYSTEM_TIME AS OF e.ts AS r ON e.k =
    r.k;
CREATE MATERIALIZED VIEW a AS SELECT e.id, r.rate FROM events e ASOF LEFT JOIN ticks r ON e.k = r.k AND e.ts >= r.ts;
"""


@pytest.fixture(params=[1, 2])
def timed(request, tmp_path):
    with watersmeet.connect(tmp_path / "timed", runtime="inprocess", parallelism=request.param) as found:
        found.execute(TIMED)
        yield found


def state_rows(connection, name):
    connection.execute("FLUSH")
    (job,) = [j for j in connection.execute("SHOW JOBS").fetchall() if j[0] == name]
    return job[6]


@pytest.mark.slow
def test_state_stays_flat_behind_watermarks(timed):
    """Of 12 keys with a version an hour, both joins keep what the last hours need."""
    sizes = []
    for hour in range(24):
        rates = ", ".join(f"({k}, {at(hour)}, {hour})" for k in range(12))
        timed.execute(
            f"INSERT INTO rates VALUES {rates}; INSERT INTO ticks VALUES {rates}; INSERT INTO events VALUES "
            f"({hour}, 3, {at(hour)})"
        )
        sizes.append((state_rows(timed, "v"), state_rows(timed, "a")))
    assert all(v <= 12 * 3 + 4 and a <= 12 * 3 + 4 for v, a in sizes), sizes
    assert rows(timed, "v") == rows(timed, "a") == sorted([(h, h) for h in range(24)], key=str)
    # after the watermarks have passed everything there is one version of each key, and no event but those of the end
    timed.execute("INSERT INTO rates VALUES (99, '2024-02-01', 0); INSERT INTO ticks VALUES (99, '2024-02-01', 0)")
    timed.execute("INSERT INTO events VALUES (99, 99, '2024-02-01')")
    assert (state_rows(timed, "v"), state_rows(timed, "a")) == (14, 14)


def test_what_is_late_counts_from_the_watermark_on(timed):
    """What is final stays; a row that has long been there may still be deleted, or changed, for what is to come."""
    timed.execute(
        f"INSERT INTO rates VALUES (1, {at(1)}, 10), (2, {at(1)}, 20), (3, {at(1)}, 30), (4, {at(1)}, 40), "
        f"(5, {at(20)}, 50)"
    )
    timed.execute("INSERT INTO events VALUES " + ", ".join(f"({k}, {k}, {at(2)})" for k in range(1, 5)))
    assert rows(timed, "v") == [(1, 10), (2, 20), (3, 30), (4, 40)]
    # the watermark of rates is 19 h
    timed.execute("DELETE FROM rates WHERE k = 1; UPDATE rates SET rate = 21 WHERE k = 2; FLUSH")
    timed.execute(f"UPDATE rates SET ts = {at(20)}, rate = 31 WHERE k = 3; UPDATE rates SET ts = {at(0)} WHERE k = 4")
    timed.execute(
        "INSERT INTO events VALUES " + ", ".join(f"({10 * h + k}, {k}, {at(h)})" for k in range(1, 5) for h in (18, 20))
    )
    assert rows(timed, "v") == sorted(
        [
            (1, 10),
            (2, 20),
            (3, 30),
            (4, 40),
            (181, 10),
            (182, 20),
            (183, 30),
            (184, 40),
            (201, None),
            (202, 21),
            (203, 31),
            (204, 40),
        ],
        key=str,
    )


def test_each_row_comes_once_when_windows_close(timed):
    timed.execute("""CREATE MATERIALIZED VIEW final AS SELECT e.id, e.ts, r.rate FROM events e JOIN rates FOR
            SYSTEM_TIME AS OF e.ts AS r
                     ON e.k = r.k EMIT ON WINDOW CLOSE""")
    timed.execute(
        f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO events VALUES (1, 1, {at(3)}), (2, 1, {at(5)})"
    )
    assert rows(timed, "final") == []
    timed.execute(f"INSERT INTO rates VALUES (1, {at(2)}, 20); INSERT INTO rates VALUES (1, {at(7)}, 70)")
    assert [(i, rate) for i, _, rate in rows(timed, "final")] == [
        (1, 20)
    ]  # events have seen 5 h: none below 4 h may come
    timed.execute(f"INSERT INTO events VALUES (3, 1, {at(5)}), (4, 1, {at(7)})")
    assert [(i, rate) for i, _, rate in rows(timed, "final")] == [(1, 20), (2, 20), (3, 20)]


def test_what_is_decided_on_arrival(timed):
    """Nothing is revised; of right rows that may go, the one before the newest is not forgotten."""
    timed.execute("CREATE TABLE quotes (n int PRIMARY KEY, k int, ts timestamp, rate int)")
    view(
        timed,
        "at_once",
        (
            "SELECT e.id, r.rate FROM events e LEFT JOIN rates FOR SYSTEM_TIME AS OF e.ts AS r ON e.k = r.k EMIT "
            "ON ARRIVAL"
        ),
    )
    view(
        timed,
        "nearest",
        "SELECT e.id, q.rate FROM events e ASOF LEFT JOIN quotes q ON e.k = q.k AND e.ts >= q.ts EMIT ON ARRIVAL",
    )
    timed.execute(
        f"INSERT INTO rates VALUES (1, {at(1)}, 10); INSERT INTO quotes VALUES (1, 1, {at(1)}, 10), (2, 1, "
        f"{at(2)}, 20); FLUSH"
    )
    timed.execute(f"INSERT INTO events VALUES (1, 1, {at(3)}); FLUSH; INSERT INTO rates VALUES (1, {at(2)}, 20); FLUSH")
    timed.execute(
        f"INSERT INTO events VALUES (2, 1, {at(3)}), (3, 2, {at(20)}); FLUSH; DELETE FROM rates; DELETE FROM "
        f"quotes WHERE n = 2; FLUSH"
    )
    timed.execute(f"INSERT INTO events VALUES (4, 1, {at(20)})")
    assert rows(timed, "at_once") == [(1, 10), (2, 20), (3, None), (4, None)]
    assert rows(timed, "nearest") == [(1, 20), (2, 20), (3, None), (4, 10)]


def test_a_table_that_a_connector_feeds(tmp_path):
    """Each record is a version, also of records of one file; a view that comes late knows the last ones."""
    (tmp_path / "rates").mkdir()
    lines = [f'{{"k": 1, "ts": "2024-01-01 {h:02}:00:00", "rate": {h}}}\n' for h in (3, 1, 5)]
    (tmp_path / "rates" / "1.json").write_text("")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE rates (k int PRIMARY KEY, ts timestamp, rate int, WATERMARK FOR ts AS ts - INTERVAL '1 day')
            WITH (connector = 'file', path = '{tmp_path / "rates"}', format = 'json');
            CREATE TABLE orders (id int PRIMARY KEY, k int, ts timestamp);
        """)
        view(connection, "v", INNER)
        connection.execute(f"INSERT INTO orders VALUES (1, 1, {at(2)}), (2, 1, {at(3)}), (3, 1, {at(6)})")
        (tmp_path / "rates" / "2.json").write_text("".join(lines))
        assert rows(connection, "v") == [(1, 1), (2, 3), (3, 5)]
        view(connection, "w", LEFT.replace(", r.ts", ""))
        assert rows(connection, "w") == [(1, 1), (2, 3), (3, 5)]
        connection.execute("DROP MATERIALIZED VIEW w; DROP MATERIALIZED VIEW v")
        view(connection, "v", LEFT.replace(", r.ts", ""))
        assert rows(connection, "v") == [(1, None), (2, None), (3, 5)]


def random_history(rng, connection, *, flush):
    """Random transactions: (left rows, versions {key: {hour: rate or None}}) by the rules alone."""
    orders: dict = {}
    rates: dict = {}
    versions: dict = {}
    for _ in range(rng.randrange(5, 15)):
        statements = []
        touched: dict = {}
        for _ in range(rng.choice([1, 1, 2, 3])):
            key, hour, value = rng.randrange(4), rng.randrange(24), rng.randrange(100)
            what = rng.choice(["order", "order", "put", "put", "update", "delete", "forget"])
            if what == "order":
                statements.append(f"INSERT INTO orders VALUES ({value}, {key}, {at(hour)})")
                orders[value] = (key, hour)
            elif what == "forget":
                statements.append(f"DELETE FROM orders WHERE id = {value}")
                orders.pop(value, None)
            else:
                touched.setdefault(key, rates.get(key))
                if what == "put":
                    statements.append(f"INSERT INTO rates VALUES ({key}, {at(hour)}, {value})")
                    rates[key] = (hour, value)
                elif what == "update":
                    statements.append(f"UPDATE rates SET rate = {value} WHERE k = {key}")
                    rates[key] = rates.get(key) and (rates[key][0], value)
                else:
                    statements.append(f"DELETE FROM rates WHERE k = {key}")
                    rates[key] = None
        for key, old in touched.items():
            now = rates.get(key)
            if now is not None and now != old:
                versions.setdefault(key, {})[now[0]] = now[1]
            elif now is None and old is not None:
                versions.setdefault(key, {})[old[0]] = None
        connection.execute(f"BEGIN; {'; '.join(statements)}; COMMIT")
        if flush(rng):
            connection.execute("FLUSH")
    found = []
    for number, (key, hour) in orders.items():
        valid = [h for h in versions.get(key, {}) if h <= hour]
        found.append((number, versions[key][max(valid)] if valid else None))
    return sorted(found, key=str)


@pytest.mark.parametrize("seed", mostly_slow(range(4), 1))
def test_random_histories(tmp_path, seed):
    """However they are cut into epochs and in however many buckets.

    INSERT of a row that is there already says nothing.
    """
    rng = random.Random(seed)
    for number, flush in enumerate((lambda r: r.random() < 0.3, lambda _: True)):
        with watersmeet.connect(
            tmp_path / f"{number}", runtime="inprocess", parallelism=rng.choice([1, 2, 3])
        ) as connection:
            connection.execute(SETUP)
            view(connection, "v", LEFT.replace(", r.ts", ""))
            view(connection, "w", INNER)
            wanted = random_history(rng, connection, flush=flush)
            assert rows(connection, "v") == wanted
            assert rows(connection, "w") == [r for r in wanted if r[1] is not None]
