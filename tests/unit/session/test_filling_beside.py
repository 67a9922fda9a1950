"""CREATE MATERIALIZED VIEW while other sessions insert, delete, and read: no statement waits for its end."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.thorough import mostly_slow
from tests.waiting import until

import watersmeet
from watersmeet.runtime import workers

#: Queries whose plans share operators with the view `joined`, and such that share none.
QUERIES = {
    "join": "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id",
    "left": "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id AND c.id > 2",
    "full": "SELECT o.id, c.name FROM orders o FULL JOIN customers c ON o.customer = c.id",
    "groups": "SELECT c.name, count(*) AS n, sum(o.amount) AS s FROM orders o JOIN customers c ON o.customer = c.id "
    "GROUP BY c.name",
    "over a view": "SELECT name, max(amount) AS m FROM joined GROUP BY name",
    "a view and a table": "SELECT j.id, c.id AS cid FROM joined j JOIN customers c ON j.name = c.name",
    "top": "SELECT * FROM (SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) "
    "AS r FROM orders) AS t WHERE r <= 2",
    "window": "SELECT id, lag(amount) OVER (PARTITION BY customer ORDER BY id) AS before FROM orders",
    "union": "SELECT customer FROM orders UNION ALL SELECT id FROM customers",
    "groups of groups": "SELECT n, count(*) AS times, sum(s) AS s FROM (SELECT customer, amount, count(*) AS n, "
    "sum(amount) AS s FROM orders GROUP BY customer, amount) AS t GROUP BY n",
    "a join of groups": "SELECT c.name, g.n, g.v, g.d FROM customers c LEFT JOIN (SELECT customer, count(*) AS n, "
    "var_pop(amount) AS v, avg(amount::double) AS d FROM orders GROUP BY customer) AS g ON c.id = g.customer",
    "greatest": "SELECT customer, max(amount) AS m, count(DISTINCT amount) AS n FROM orders GROUP BY customer",
    "distinct": "SELECT DISTINCT customer, amount % 3 AS m FROM orders",
    "in": "SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders WHERE customer IS NOT NULL)",
    "whole": "SELECT count(*) AS n, min(amount) AS least FROM orders WHERE amount > (SELECT avg(amount) FROM orders)",
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(workers, "PIECE_ROWS", 400)
    monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 400)
    monkeypatch.setattr(workers, "PIECE_S", 0)


def piece_by_piece(connection):
    """From now on a fill waits after each piece until a flush has ended, as if others always waited."""
    connection.opened.engine._waiting += 1


def changed(connection, random_):
    for _ in range(random_.randrange(1, 3)):
        number = random_.randrange(1, 400)
        new = f"SELECT {number} * 1000 + g, g % 7, g * 5 % 11 FROM generate_series(1, 9) AS t(g)"
        statement = random_.choice(
            [
                f"INSERT INTO orders {new} WHERE {number} * 1000 + g NOT IN (SELECT id FROM orders)",
                f"DELETE FROM orders WHERE id % 40 = {number % 40}",
                f"UPDATE customers SET name = 'c{number % 5}' WHERE id = {number % 8}",
                f"UPDATE orders SET amount = {number % 11} WHERE id % 60 = {number % 60}",
            ]
        )
        connection.execute(statement)


def check(connection, name, query):
    for one, other in ((f"SELECT * FROM {name}", query), (query, f"SELECT * FROM {name}")):
        assert connection.execute(f"({one}) EXCEPT ALL ({other})").fetchall() == [], (name, one)


@pytest.mark.parametrize("seed", mostly_slow(range(36), 3))
def test_views_of_a_running_database(tmp_path, seed):
    random_ = random.Random(seed)
    chosen = random_.sample(sorted(QUERIES), 3)
    with (
        watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=random_.choice([1, 2])) as connection,
        ThreadPoolExecutor(1) as other,
    ):
        connection.execute(
            """
            CREATE TABLE orders (id int PRIMARY KEY, customer int, amount int);
            CREATE TABLE customers (id int PRIMARY KEY, name varchar);
            CREATE MATERIALIZED VIEW joined AS
                SELECT o.id, o.amount, c.name FROM orders o JOIN customers c ON o.customer = c.id;
            INSERT INTO customers SELECT g, 'c' || g % 4 FROM generate_series(0, 9) AS t(g);
            INSERT INTO orders SELECT g, g % 12, g * 7 % 11 FROM generate_series(1, 900) AS t(g);
            FLUSH
            """
        )
        piece_by_piece(connection)
        beside = 0
        for place, which in enumerate(chosen):
            made = other.submit(connection.cursor().execute, f"CREATE MATERIALIZED VIEW v{place} AS {QUERIES[which]}")
            while not made.done():
                changed(connection, random_)
                connection.execute("FLUSH")
                beside += not made.done()
                if beside % 4 == 1:
                    check(connection, "joined", QUERIES["join"].replace("o.id, ", "o.id, o.amount, "))
            made.result()
        connection.execute("FLUSH")
        for place, which in enumerate(chosen):
            check(connection, f"v{place}", QUERIES[which])
        changed(connection, random_)
        connection.execute("FLUSH")
        for place, which in enumerate(chosen):
            check(connection, f"v{place}", QUERIES[which])
        assert beside > 2


def test_a_group_is_output_once(tmp_path):
    """Each piece has rows of all groups. The view gets a group after all of them, and its changes by later rows."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection, ThreadPoolExecutor(1) as other:
        connection.execute(
            """
            CREATE TABLE a (id int PRIMARY KEY, k int);
            CREATE MATERIALIZED VIEW live AS SELECT id FROM a WHERE k < 0;
            INSERT INTO a SELECT g, g % 1000 FROM generate_series(1, 6000) AS t(g);
            FLUSH
            """
        )
        piece_by_piece(connection)
        log, query = connection.opened.log, "SELECT k, count(*) AS n, sum(id) AS s FROM a GROUP BY k"
        began = log.head()
        made = other.submit(connection.cursor().execute, f"CREATE MATERIALIZED VIEW v AS {query}")
        added = 0
        while not made.done():
            added += 1
            connection.execute(f"INSERT INTO a VALUES ({-added}, {added % 7}); FLUSH")
        made.result()
        connection.execute("FLUSH")
        check(connection, "v", query)
        view = next(r.id for r in connection.opened.catalog.relations.values() if r.name == "v")
        changes = [log.read(number).relations.get(view) for number in range(began + 1, log.head() + 1)]
        sizes = [sum(b.rows for b in change.blobs) for change in changes if change is not None]
        assert 1000 <= sum(sizes) <= 1000 + 2 * added
        assert max(sizes) < 600, "the groups are output in pieces"


def test_subscribers_of_live_views_wait_for_no_fill(tmp_path):
    """Each commit of a live view is a change of its own, also between the pieces of another view's history."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection, ThreadPoolExecutor(1) as other:
        connection.execute(
            """
            CREATE TABLE a (k int PRIMARY KEY, n int);
            CREATE MATERIALIZED VIEW live AS SELECT k FROM a WHERE n = 0;
            INSERT INTO a SELECT g, 1 FROM generate_series(1, 2000) AS t(g);
            FLUSH
            """
        )
        piece_by_piece(connection)
        changes = connection.subscribe("live", snapshot=False)
        made = other.submit(
            connection.cursor().execute, "CREATE MATERIALIZED VIEW large AS SELECT n, count(*) AS c FROM a GROUP BY n"
        )
        seen = 0
        while not made.done():
            connection.execute(f"INSERT INTO a VALUES ({-1 - seen}, 0)")
            connection.execute("FLUSH")
            (batch,) = next(changes).batches
            assert batch.rows.column("k").to_pylist() == [-1 - seen]
            seen += 1
        made.result()
        assert seen > 2
        assert connection.execute("SELECT c FROM large WHERE n = 0").fetchall() in ([(seen,)], [(seen - 1,)])


def test_a_fill_right_after_one_that_replayed_waits_for_others(tmp_path):
    with (
        watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="risingwave") as connection,
        ThreadPoolExecutor(1) as other,
    ):
        connection.execute(
            """
            CREATE TABLE a (id int, k int) APPEND ONLY;
            CREATE TABLE d (k int PRIMARY KEY, n int);
            CREATE MATERIALIZED VIEW live AS SELECT count(*) AS n FROM a;
            INSERT INTO d VALUES (1, 1);
            INSERT INTO a SELECT g, 1 FROM generate_series(1, 4000) AS t(g);
            FLUSH
            """
        )
        query = "SELECT a.id + {} AS id, d.n FROM a JOIN d FOR SYSTEM_TIME AS OF PROCTIME() AS d ON a.k = d.k"
        connection.execute(f"CREATE MATERIALIZED VIEW first AS {query.format(0)}")
        piece_by_piece(connection)
        engine = connection.opened.engine
        made = other.submit(connection.cursor().execute, f"CREATE MATERIALIZED VIEW v AS {query.format(1)}")
        until(lambda: made.done() or engine._coordinator.backfill is not None)
        connection.execute("INSERT INTO a VALUES (-1, 1); FLUSH")
        assert not made.done()
        assert connection.execute("SELECT n FROM live").fetchall() == [(4001,)]
        while not made.done():
            connection.execute("FLUSH")
        made.result()
        connection.execute("FLUSH")
        check(connection, "v", "SELECT id + 1, n FROM first")


def test_a_fill_over_a_source_goes_on_after_a_restart(tmp_path):
    """Its history is the input up to the beginning of the fill. Later input is read once, whoever reads it."""
    (tmp_path / "in").mkdir()

    def write(number, rows):
        lines = [f"{number * 1000 + i},{i % 7}\n" for i in range(rows)]
        (tmp_path / "in" / f"{number}.csv").write_text("id,k\n" + "".join(lines))

    def connect():
        return watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="risingwave")

    def progress(connection):
        return connection.execute("SHOW JOBS LIKE 'v'").fetchone()[-1]

    with connect() as connection:
        for name in ("s", "only_new"):
            connection.execute(
                f"CREATE SOURCE {name} (id int, k int) "
                f"WITH (connector = 'file', path = '{tmp_path / 'in'}', format = 'csv')"
            )
        connection.execute("CREATE MATERIALIZED VIEW live AS SELECT k, count(*) AS n FROM s GROUP BY k")
        for number in range(4):
            write(number, 900)
        connection.execute("FLUSH; SET background_ddl = true; SET backfill_rate_limit = 5")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n, sum(id) AS t FROM s GROUP BY k; "
            "CREATE MATERIALIZED VIEW w AS SELECT o.id FROM only_new AS o JOIN s ON o.id = s.id"
        )
        until(lambda: progress(connection))
        write(4, 13)
        connection.execute("FLUSH")
        assert connection.execute("SELECT sum(n) FROM live").fetchall() == [(3613,)]
    with connect() as connection:
        write(5, 13)
        connection.execute("FLUSH")
        assert connection.execute("SELECT sum(n) FROM live").fetchall() == [(3626,)]
        assert progress(connection) < 1
        for view in "vw":
            connection.execute(f"ALTER MATERIALIZED VIEW {view} SET BACKFILL_RATE_LIMIT TO DEFAULT")
        connection.execute("WAIT; FLUSH")
        assert (
            connection.execute("SELECT sum(n), sum(t) FROM v").fetchall()
            == connection.execute("SELECT sum(n), (SELECT sum(id) FROM w) FROM live").fetchall()
        )
        write(6, 13)
        connection.execute("FLUSH")
        assert connection.execute("SELECT sum(n) FROM v").fetchall() == [(3639,)]
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM w").fetchall() == [(3639, 3639)]


def test_views_of_a_background_fill_are_planned_in_the_order_of_the_catalog(tmp_path):
    """Which is the order after a restart: another one would be another circuit, and opening would wait for the fill."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int); INSERT INTO t VALUES (1); FLUSH")
        connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
        connection.execute("; ".join(f"CREATE MATERIALIZED VIEW v{i} AS SELECT k + {i} AS n FROM t" for i in range(7)))
        database = connection._session.database
        planned = [i for i, r in database.catalog.relations.items() if r.has_plan]
        assert len(planned) == 7
        assert list(database.plans.producers) == planned
