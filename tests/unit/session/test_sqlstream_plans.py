"""What SQLstream's joins are made of: equal spellings are one circuit, outer joins keep each side once, other dialects
read along.
"""

from __future__ import annotations

from collections import Counter

import pytest

import watersmeet

MINUTE = "OVER (RANGE INTERVAL '1' MINUTE PRECEDING)"
FROM = f"FROM orders {MINUTE} AS o"
PRICES = f"prices {MINUTE} AS p"
SPELLINGS = [
    f"{FROM} JOIN {PRICES} ON (o.ticker = p.ticker)",
    f"{FROM} INNER JOIN {PRICES} USING (ticker)",
    f"{FROM} NATURAL JOIN {PRICES}",
    f"{FROM} CROSS JOIN {PRICES} WHERE p.ticker = o.ticker",
    f"{FROM}, {PRICES} WHERE p.ticker = o.ticker",
    (
        "FROM orders OVER w AS o JOIN prices OVER WINDOW w AS p USING (ticker) WINDOW w AS (RANGE INTERVAL '60' "
        "SECOND PRECEDING)"
    ),
    "FROM orders OVER (RANGE BETWEEN INTERVAL '0:01' HOUR TO MINUTE PRECEDING AND CURRENT ROW) AS o JOIN "
    + PRICES
    + " ON o.ticker = p.ticker",
]


@pytest.fixture(params=[1, 3])
def connection(request):
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess", parallelism=request.param) as found:
        found.execute("CREATE STREAM orders (quantity INTEGER, ticker VARCHAR(10))")
        found.execute("CREATE STREAM prices (price INTEGER, ticker VARCHAR(10))")
        yield found


def operators(connection, query):
    running = connection.start(query)
    try:
        return connection._session.database.plans.producers[running.id]
    finally:
        running.close()


def test_equal_spellings_are_one_circuit(connection):
    made = [connection.start(f"SELECT STREAM rowtime, o.ticker, o.quantity, p.price {s}") for s in SPELLINGS]
    plans = [connection._session.database.plans.producers[q.id] for q in made]
    for query in made:
        query.close()
    assert {tuple(o.id for o in p[:-1]) for p in plans} == {tuple(o.id for o in plans[0][:-1])}


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL"])
def test_an_outer_join_keeps_each_side_once(connection, kind):
    found = operators(
        connection, f"SELECT STREAM rowtime, o.ticker, p.price {FROM} {kind} JOIN {PRICES} ON o.ticker = p.ticker"
    )
    kinds = Counter(o.kind for o in found)
    assert (kinds["arrange"], kinds["join"]) == (2, 3 if kind == "FULL" else 2)
    assert all(o.retain for o in found if o.kind == "arrange"), "rows that have left their windows stay"


def test_a_window_of_one_moment_needs_one_join(connection):
    found = operators(
        connection, "SELECT STREAM o.ticker, p.price FROM orders AS o FULL JOIN prices AS p ON o.ticker = p.ticker"
    )
    assert Counter(o.kind for o in found)["join"] == 1


def test_other_dialects_read_streams_and_views_by_any_case(connection):
    connection.execute(
        f"CREATE MATERIALIZED VIEW joined AS SELECT STREAM o.ticker, p.price {FROM} JOIN {PRICES} USING (ticker)"
    )
    connection.execute("SET dialect = 'risingwave'")
    connection.execute(
        "CREATE MATERIALIZED VIEW sums AS SELECT ticker, sum(quantity) AS total FROM orders GROUP BY ticker"
    )
    connection.execute(
        'CREATE MATERIALIZED VIEW latest AS SELECT "TICKER", max(rowtime) AS at FROM "JOINED" GROUP BY "TICKER"'
    )
    connection.execute("INSERT INTO orders (rowtime, quantity, ticker) VALUES ('2019-03-30 05:00:00', 7, 'IBM')")
    connection.execute(
        "INSERT INTO prices (rowtime, price, ticker) VALUES ('2019-03-30 05:00:01', 8, 'IBM'), ('2019-03-30 "
        "05:00:00', 9, 'IBM')"
    )
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM sums").fetchall() == [("IBM", 7)]
    assert connection.execute("SELECT count(*) FROM prices").fetchall() == [(1,)], "rowtimes rise whoever writes"
    connection.execute("SET dialect = 'timeplus'")
    assert connection.execute(
        "SELECT TICKER, total FROM table(sums) JOIN table(ORDERS) ON ORDERS.TICKER = sums.ticker"
    ).fetchall() == [("IBM", 7)]


def test_relations_of_other_dialects_are_streams_if_they_have_a_watermark(connection):
    connection.execute("SET dialect = 'risingwave'")
    connection.execute(
        "CREATE TABLE clicks (ticker varchar, at timestamptz, WATERMARK FOR at AS at - INTERVAL '5 seconds') "
        "APPEND ONLY"
    )
    connection.execute("SET dialect = 'sqlstream'")
    running = connection.start(
        f"SELECT STREAM rowtime, quantity, c.at FROM orders {MINUTE} AS o LEFT JOIN clicks {MINUTE} AS c ON "
        f"o.ticker = c.ticker"
    )
    connection.execute(
        "INSERT INTO orders (rowtime, quantity, ticker) VALUES (TIMESTAMP '2019-03-30 05:00:00', 7, 'IBM'), "
        "(TIMESTAMP '2019-03-30 05:10:00', 8, 'IBM')"
    )
    connection.execute("INSERT INTO clicks VALUES ('IBM', '2019-03-30 05:00:30+00'), ('X', '2019-03-30 05:10:04+00')")
    connection.execute("FLUSH")
    rows = [tuple(str(v)[:19] for v in r.values()) for r in running.take()[0].to_pylist()]
    assert rows == [("2019-03-30 05:00:00", "7", "None"), ("2019-03-30 05:00:30", "7", "2019-03-30 05:00:30")]
    running.close()


SUBQUERIES = [
    "SELECT STREAM ticker FROM orders WHERE quantity IN (SELECT n FROM t{})",
    "SELECT STREAM ticker FROM orders WHERE quantity NOT IN (SELECT n FROM t{})",
    (
        "SELECT STREAM ticker FROM orders WHERE EXISTS (SELECT 1 FROM t{} AS u WHERE u.k = orders.ticker AND u.n "
        "> orders.quantity)"
    ),
    "SELECT STREAM ticker FROM orders WHERE NOT EXISTS (SELECT 1 FROM t{} AS u WHERE u.k = orders.ticker)",
    "SELECT STREAM ticker FROM orders WHERE EXISTS (SELECT 1 FROM t{})",
    "SELECT STREAM ticker FROM orders WHERE quantity > (SELECT MAX(n) FROM t{})",
    "SELECT STREAM ticker FROM orders WHERE quantity < ANY (SELECT n FROM t{})",
    (
        "SELECT STREAM ticker, quantity IN (SELECT n FROM t{}) AS known, (SELECT SUM(n) FROM t{} AS u WHERE u.k "
        "= orders.ticker) AS s FROM orders"
    ),
]


@pytest.mark.parametrize("query", SUBQUERIES)
@pytest.mark.parametrize("clause", ["", " FOR SYSTEM_TIME AS OF PROCTIME()"])
def test_subqueries_of_tables_keep_nothing_of_a_stream(connection, query, clause):
    connection.execute("CREATE TABLE t (k VARCHAR(10), n INTEGER)")
    found = operators(connection, query.replace("{}", clause))
    by_id = {o.id: o for o in found}
    stream = next(r.id for r in connection._session.catalog.relations.values() if r.name == "ORDERS")

    def reads_the_stream(op):
        return getattr(op, "relation_id", None) == stream or any(reads_the_stream(by_id[i]) for i in op.inputs)

    assert not [
        o.kind for o in found if o.kind in ("arrange", "dynamicfilter", "aggregate", "join") and reads_the_stream(o)
    ]
    assert not any(getattr(o, "memo", False) for o in found)


@pytest.mark.parametrize(
    "query",
    [
        (
            "SELECT STREAM o.ticker, p.price FROM orders OVER (RANGE INTERVAL '1' MONTH PRECEDING) AS o LEFT "
            "JOIN prices AS p ON o.ticker = p.ticker"
        ),
        (
            "SELECT STREAM o.ticker, p.price FROM orders OVER (ORDER BY FLOOR(ROWTIME TO MONTH) RANGE CURRENT "
            "ROW) AS o FULL JOIN prices AS p ON o.ticker = p.ticker"
        ),
        (
            "SELECT STREAM o.ticker, p.price FROM orders OVER (ORDER BY STEP(ROWTIME BY INTERVAL '5' MINUTE) "
            "RANGE CURRENT ROW) AS o JOIN prices AS p USING (ticker)"
        ),
        "SELECT STREAM FLOOR(orders.ROWTIME TO YEAR) AS y, ticker, COUNT(*) AS n FROM orders GROUP BY y, ticker",
    ],
)
def test_windows_and_groups_by_months_are_forgotten(connection, query):
    found = operators(connection, query)
    kept = [o for o in found if o.kind in ("arrange", "aggregate")]
    assert kept
    assert all(o.retain for o in kept)


def test_groups_by_a_time_behind_rowtime_wait_for_it(connection):
    query = connection.start(
        "SELECT STREAM FLOOR(orders.ROWTIME - INTERVAL '10' MINUTE TO HOUR) AS h, COUNT(*) AS n FROM orders GROUP BY h"
    )
    counts = []
    for minute in (119, 120, 129, 130):
        connection.execute(
            f"INSERT INTO orders (ROWTIME) VALUES (TIMESTAMP '2024-01-01 00:00:00' + INTERVAL '{minute}' MINUTE)"
        )
        connection.flush()
        counts.append(query.take()[0].column("N").to_pylist())
    query.close()
    assert counts == [[], [], [], [3]]
