"""What tests of targets in databases share."""

import time

import numpy as np
import psycopg
import pyarrow as pa
from scripts.servers import mariadb, postgres

from watersmeet.catalog import MessageFormat
from watersmeet.sinks.base import Delivery, Place, Portion
from watersmeet.sinks.targets import connector_of
from watersmeet.types import INTEGER, VARCHAR, Field, arrow_schema

TWO = (Field("id", INTEGER), Field("name", VARCHAR))
KEYED = "CREATE TABLE kept (id int PRIMARY KEY, name text)"
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
    return connector_of(delivery).open(delivery, "db", lambda: False)


def portion(commit, *rows, columns=TWO, diff=None, part=0, last=True, generation=1):
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    return Portion(
        Place(generation, commit, part, last),
        pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False)),
        np.array(diff or [1] * len(rows), np.int64),
        commit * 1_000_000,
    )


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
