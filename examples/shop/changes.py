"""The shop's own work in PostgreSQL: customers move, come and go, prices are added and corrected.

`python changes.py URL CHANGES PAUSE`. It knows nothing of Watersmeet. After each transaction that is committed it says
what it did, so whoever reads that knows what PostgreSQL has acknowledged.
"""

from __future__ import annotations

import random
import sys
import time

import psycopg

CITIES = ("Athens", "Bergen", "Cork", "Dresden", "Exeter", "Florence", "Ghent", "Hobart")
ITEMS = tuple(f"item {number}" for number in range(40))
CUSTOMERS = 500
#: The day on which all orders are placed.
DAY = "2024-03-01"

TABLES = f"""
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text NOT NULL);
CREATE TABLE prices (item text, valid_from timestamp, price numeric(10, 2) NOT NULL, PRIMARY KEY (item, valid_from));
CREATE TABLE sold (id bigint PRIMARY KEY, ordered_at timestamp, item text, quantity int, price numeric(10, 2),
    total numeric(12, 2), customer text, city text);
INSERT INTO customers SELECT i, 'customer ' || i, ('{{{",".join(CITIES)}}}'::text[])[1 + i % {len(CITIES)}]
    FROM generate_series(1, {CUSTOMERS} * 9 / 10) AS i;
INSERT INTO prices SELECT 'item ' || i, '{DAY}', 5 + i FROM generate_series(0, {len(ITEMS) - 1}) AS i;
"""


def main(url: str, changes: int, pause_s: float) -> None:
    """Makes the changes, one transaction each."""
    r = random.Random(7)
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(changes):
            with connection.transaction():
                said = change(connection, r)
                undone = number % 10 == 9
                if undone:
                    said = "a change that was rolled back"
                    raise psycopg.Rollback
            print(said, flush=True)
            time.sleep(pause_s)


def change(connection: psycopg.Connection, r: random.Random) -> str:
    """One change; says which."""
    customer, item = r.randint(1, CUSTOMERS), r.choice(ITEMS)
    price = r.randint(100, 9900) / 100
    kind = r.randrange(5)
    if kind == 0:
        city = r.choice(CITIES)
        connection.execute(
            "INSERT INTO customers VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET city = EXCLUDED.city",
            (customer, f"customer {customer}", city),
        )
        return f"customer {customer} lives in {city}"
    if kind == 1:
        connection.execute(
            "UPDATE customers SET name = name || ' jr' WHERE id BETWEEN %s AND %s", (customer, customer + 9)
        )
        return f"customers {customer} to {customer + 9} have other names"
    if kind == 2:
        connection.execute("DELETE FROM customers WHERE id = %s", (customer,))
        return f"customer {customer} is gone"
    if kind == 3:
        at = f"{DAY} {r.randrange(24):02}:{r.randrange(60):02}"
        connection.execute(
            "INSERT INTO prices VALUES (%s, %s, %s) "
            "ON CONFLICT (item, valid_from) DO UPDATE SET price = EXCLUDED.price",
            (item, at, price),
        )
        return f"{item} costs {price:.2f} from {at[11:]}"
    connection.execute("UPDATE prices SET price = round(price * 1.1, 2) WHERE item = %s AND price < 100", (item,))
    return f"all prices of {item} were wrong by a tenth"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
