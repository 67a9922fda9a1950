"""EXPLAIN ROW and EXPLAIN MISSING ROW for clients of PostgreSQL: both protocols, text and binary."""

from __future__ import annotations

import psycopg
import pytest
from tests.unit.server.test_roles_on_the_wire import as_user

SHOP = """
CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR);
CREATE TABLE orders (id INT PRIMARY KEY, customer INT);
CREATE MATERIALIZED VIEW named AS SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id;
INSERT INTO customers VALUES (1, 'Ann');
INSERT INTO orders VALUES (1, 1), (2, 7);
CREATE USER adam PASSWORD 'x' SUPERUSER; CREATE USER ann PASSWORD 'x'; GRANT SELECT ON named TO ann; FLUSH;
"""
ROW = [
    ("materialized view", "named", {"id": 1, "name": "Ann"}, None),
    ("└─ Join", None, None, "orders.customer = customers.id (1)"),
    ("   ├─ table", "orders", {"id": 1, "customer": 1}, None),
    ("   └─ table", "customers", {"id": 1, "name": "Ann"}, None),
]


def test_rows_and_rights(serving):
    served = serving(SHOP)
    with as_user(served, "adam") as client:
        for prepare, binary in ((None, False), (True, False), (True, True)):
            cursor = client.cursor(binary=binary)
            assert cursor.execute("EXPLAIN ROW (SELECT * FROM named)", prepare=prepare).fetchall() == ROW
            assert [d.name for d in cursor.description] == ["step", "relation", "row", "detail"]
        missing = client.execute("EXPLAIN MISSING ROW named WHERE id = 2").fetchall()
        assert missing[-1][0].endswith("no partner")
        assert missing[-1][3] == "no row with customers.id = 7; the nearest customers.id: below 1"
    with as_user(served, "ann") as client, pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("EXPLAIN ROW (SELECT * FROM named)")
