"""A wrong join condition is fixed in a fork, in which a week is replayed; then the fork is compared and promoted, while
the database continues.
"""

import sys
import tempfile
import threading

import watersmeet

SETUP = """
ALTER SYSTEM SET retention = '7 days';
CREATE TABLE orders (id INT PRIMARY KEY, customer INT, day INT, amount INT);
CREATE TABLE payments (id INT PRIMARY KEY, order_id INT, customer INT, amount INT);
CREATE MATERIALIZED VIEW paid AS
  SELECT o.id, o.day, sum(p.amount)::bigint AS paid
  FROM orders o JOIN payments p ON o.customer = p.customer
  GROUP BY o.id, o.day;
CREATE MATERIALIZED VIEW days AS SELECT day, count(*) AS orders, sum(paid)::bigint AS paid FROM paid GROUP BY day;
"""
FIX = """
CREATE OR REPLACE MATERIALIZED VIEW paid AS
  SELECT o.id, o.day, sum(p.amount)::bigint AS paid
  FROM orders o JOIN payments p ON o.id = p.order_id
  GROUP BY o.id, o.day
"""


def add_day(connection, day):
    """Twenty orders of seven customers, each with one payment."""
    first = day * 20
    connection.execute(
        f"INSERT INTO orders SELECT x, x % 7, {day}, 10 FROM generate_series({first}, {first + 19}) AS t(x);"
        f"INSERT INTO payments SELECT x, x, x % 7, 10 FROM generate_series({first}, {first + 19}) AS t(x); FLUSH"
    )


def newest(connection):
    """The number of the newest commit."""
    return connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]


def show(title, cursor):
    print(title)
    for row in sorted(cursor.fetchall()):
        print("  ", *row)


def main(path):
    with watersmeet.connect(path) as shop:
        for _ in shop.execute_script(SETUP):
            pass
        began, first = newest(shop), 0
        for day in range(1, 8):
            add_day(shop, day)
            first = first or newest(shop)
        show("A week. Each day has 20 orders of 10, but:", shop.execute("SELECT * FROM days WHERE day IN (1, 7)"))

        shop.execute(f"CREATE FORK fix AT COMMIT {began}")
        with watersmeet.connect(f"{path}/forks/fix") as fork:
            fork.execute(FIX)
            show("In the fork, before the week:", fork.execute("SELECT count(*) FROM days"))
            fork.execute(f"REPLAY TO COMMIT {first}")
            show("With the condition o.id = p.order_id, after the first day:", fork.execute("SELECT * FROM days"))
            add_day(shop, 8)  # the database continues
            fork.execute("REPLAY")
            show("After the week:", fork.execute("SELECT * FROM days WHERE day IN (1, 7)"))
            show("Definitions, and rows only in the fork, only in main:", fork.execute("SHOW DIFF"))
            print("Day 8 in both:")
            for row in sorted(fork.execute("DIFF VIEW days BETWEEN fix AND main").fetchall()):
                if row[0] == 8:
                    print("  ", *row)

        # One client follows the view, another one reads it without a pause.
        follower = shop.subscribe("days", snapshot=False)
        reads, ended = [], threading.Event()

        def reading():
            with watersmeet.connect(path, read_only=True) as reader:
                while not ended.is_set():
                    reads.append(tuple(reader.execute("SELECT day, orders, paid FROM days WHERE day = 7").fetchone()))

        client = threading.Thread(target=reading)
        client.start()
        shop.execute("PROMOTE fix")
        ended.set()
        client.join()
        assert {*reads} <= {(7, 20, 4570), (7, 20, 200)}, "each reader sees the old content or the new one"

        show("Promoted:", shop.execute("SELECT * FROM days WHERE day IN (1, 7, 8)"))
        changes = [int(d) for batch in next(follower).batches for d in batch.diffs]
        print(f"A subscriber received one commit: {changes.count(-1)} days deleted, {changes.count(1)} inserted.")
        add_day(shop, 9)
        show("The next day:", shop.execute("SELECT * FROM days WHERE day = 9"))
        show("Forks left:", shop.execute("SHOW FORKS"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/shop")
