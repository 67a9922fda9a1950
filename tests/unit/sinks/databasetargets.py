"""What tests of targets in databases share."""

import decimal
import time

import psycopg
from scripts.servers import mariadb, postgres
from tests.unit.sinks.batches import TWO

from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.targets import Delivery
from watersmeet.connectors.registry import connector_of

KEYED = "CREATE TABLE kept (id int PRIMARY KEY, name text)"
#: The named points of a delivery, in their order.
POINTS = (
    "database.entered",
    "database.fenced",
    "database.begun",
    "database.offset_written",
    "database.copied",
    "database.written",
    "database.committed",
)
PASSWORDS = (mariadb.PASSWORD, postgres.PASSWORD)


def options_of(database, /, **more):
    """The options of a sink to the table `kept`; those that are None are left out."""
    port, name = database.server.port, database.name
    if isinstance(database.server, mariadb.MariaDB):
        where = {"connector": "jdbc", "jdbc.url": f"jdbc:mariadb://127.0.0.1:{port}/{name}", "table.name": "kept"}
        user = {"user": mariadb.USER, "password": mariadb.PASSWORD}
    else:
        where = {"connector": "postgres", "host": "127.0.0.1", "port": str(port), "database": name, "table": "kept"}
        user = {"user": postgres.USER, "password": postgres.PASSWORD}
    return {n: v for n, v in {**where, **user, **more}.items() if v is not None}


def written_options(database, /, **more):
    """The same, as SQL."""
    return ", ".join(f"{n} = '{v}'" for n, v in options_of(database, **more).items())


def target(database, columns=TWO, /, *, rows="upsert", key=("id",), generation=1, **more):
    delivery = Delivery(
        *("s1", "sink k", "v1", columns, key if rows == "upsert" else (), options_of(database, **more)),
        *(MessageFormat(rows), False, "s1", generation),
    )
    # Locks of MySQL are the whole server's, which tests of other processes use, too.
    return connector_of(delivery).open(delivery, database.name, lambda: False)


#: By the server's class, the query for how many transactions wait for locks. MariaDB's table of transactions
#: (`innodb_trx`) does not: it stays as it is while somebody reads it more often than every 0.1 s.
WAITING = {
    postgres.Postgres: "SELECT count(*) FROM pg_locks WHERE NOT granted",
    mariadb.MariaDB: "SELECT variable_value + 0 FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}


def wait_for_a_waiting_one(database, is_over):
    """Waits until a transaction waits for a lock. is_over: that it can't any more."""
    deadline = time.monotonic() + 60
    while not selected(database, WAITING[type(database.server)])[0][0]:
        assert not is_over()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def selected(database, query):
    with database.connect() as connection:
        if isinstance(connection, psycopg.Connection):
            return connection.execute(query).fetchall()
        with connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


def content(database, table="kept"):
    return sorted(selected(database, f"SELECT * FROM {table}"), key=repr)


def wait(connection, wanted):
    """Waits until SHOW SINKS shows for the only sink what is wanted."""
    deadline = time.monotonic() + 60
    while True:
        cursor = connection.execute("SHOW SINKS")
        shown = dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True))
        if wanted(shown):
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)


def is_done(shown):
    return shown["state"] == "running" and not shown["commits_behind"]


def keep_a_join(connection, options, found):
    """A sink of a join has the rows of the join, before and after changes. found: the rows of its table."""
    connection.execute(f"""
        CREATE TABLE names (id int PRIMARY KEY, name varchar);
        CREATE TABLE amounts (id int PRIMARY KEY, amount numeric(10, 2));
        CREATE SINK k AS SELECT n.id, name, amount FROM names n LEFT JOIN amounts a ON a.id = n.id
            WITH ({options}, type = 'upsert', primary_key = 'id');
        INSERT INTO names VALUES (1, 'a'), (2, 'b');
        INSERT INTO amounts VALUES (1, 1.5), (3, 7);
        FLUSH
    """)
    wait(connection, is_done)
    assert found() == [(1, "a", decimal.Decimal("1.50")), (2, "b", None)]
    connection.execute("INSERT INTO amounts VALUES (2, 2); DELETE FROM names WHERE id = 1; FLUSH")
    wait(connection, is_done)
    assert found() == [(2, "b", decimal.Decimal("2.00"))]
