"""Keys, checks and foreign keys: the same rows and SQLSTATE as PostgreSQL's, and no violation by sessions beside each
other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.pq import TransactionStatus

import watersmeet
from tests.servers import PostgresDatabase
from tests.thorough import mostly_slow
from watersmeet.server.service import BackgroundServer, Endpoint

ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
TIMES = ("", "", " DEFERRABLE", " DEFERRABLE INITIALLY DEFERRED")


def tables(r: random.Random) -> list[str]:
    """Three tables that reference each other and themselves."""

    def reference() -> str:
        return f"ON DELETE {r.choice(ACTIONS)} ON UPDATE {r.choice(ACTIONS)}{r.choice(TIMES)}"

    return [
        (
            "CREATE TABLE p (id int PRIMARY KEY, a int UNIQUE, b varchar(3), CONSTRAINT two UNIQUE (b, a), "
            "CONSTRAINT small CHECK (a < 7 OR b IS NULL))"
        ),
        (
            f"CREATE TABLE c (id int PRIMARY KEY, p int DEFAULT 1 REFERENCES p {reference()}, "
            f"q int DEFAULT 2 REFERENCES p (a) {reference()}, up int DEFAULT 3 REFERENCES c (id) {reference()})"
        ),
        (
            f"CREATE TABLE d (x int NOT NULL, b varchar, a int, FOREIGN KEY (b, a) REFERENCES p (b, a) {reference()}, "
            f"CONSTRAINT single UNIQUE (x){r.choice(TIMES)})"
        ),
    ]


COLUMNS = {"p": ("id", "a", "b"), "c": ("id", "p", "q", "up"), "d": ("x", "b", "a")}


def value(r: random.Random, column: str) -> str:
    if r.random() < 0.2:
        return "NULL"
    return repr(r.choice("xyz")) if column == "b" else str(r.randrange(8))


def statement(r: random.Random, *, upserts: bool = True) -> str:
    """A change of one row: PostgreSQL checks several rows of an UPDATE one by one, Watersmeet all at its end."""
    table = r.choice(("p", "p", "c", "d"))
    columns = COLUMNS[table]
    key = columns[0]
    kind = r.random()
    if kind < 0.55:
        text = f"INSERT INTO {table} VALUES ({', '.join(value(r, c) for c in columns)})"
        if not upserts or r.random() < 0.6:
            return text
        target = r.choice(("", f"({key})", *(["(a)", "(a, b)", "ON CONSTRAINT two"] if table == "p" else [])))
        if not target or r.random() < 0.4:
            return f"{text} ON CONFLICT {target} DO NOTHING"
        set_to = r.choice(columns[1:])
        where = r.choice(("", f" WHERE {table}.{key} < 5", f" WHERE EXCLUDED.{key} > 2"))
        return f"{text} ON CONFLICT {target} DO UPDATE SET {set_to} = EXCLUDED.{set_to}{where}"
    where = f"WHERE {key} = {r.randrange(8)}"
    if kind < 0.8:
        column = r.choice(columns)
        return f"UPDATE {table} SET {column} = {value(r, column)} {where}"
    return f"DELETE FROM {table} {where}"


def history(r: random.Random) -> Iterator[str]:
    """Statements, some in transactions."""
    for _ in range(25):
        if r.random() < 0.7:
            yield statement(r)
            continue
        yield "BEGIN"
        if r.random() < 0.3:
            yield f"SET CONSTRAINTS ALL {r.choice(('DEFERRED', 'IMMEDIATE'))}"
        for _ in range(r.randrange(1, 4)):
            yield statement(r)
        if r.random() < 0.2:
            yield "SET CONSTRAINTS ALL IMMEDIATE"
        yield r.choice(("COMMIT", "COMMIT", "ROLLBACK"))


def outcome(run, text: str) -> tuple[str | None, int]:
    """The SQLSTATE of an error, and the number of changed rows."""
    try:
        return None, run(text)
    except psycopg.Error as err:
        return err.sqlstate, 0
    except watersmeet.Error as err:
        return err.sqlstate, 0


def shown(statements: list[str]) -> str:
    return ";\n".join(statements)


@pytest.mark.parametrize("seed", mostly_slow(range(60), 6))
def test_rows_and_errors_are_those_of_postgresql(seed: int, postgres: PostgresDatabase) -> None:
    r = random.Random(seed)
    with postgres.connect() as theirs, watersmeet.connect(runtime="inprocess") as ours:
        theirs.execute(f"CREATE SCHEMA constraints{seed}; SET search_path = constraints{seed}")
        ours.execute("SET primary_key_conflict = error")
        seen = tables(r)
        for text in seen:
            theirs.execute(text)
            ours.execute(text)

        def here(text: str) -> int:
            return max(0, ours.cursor().execute(text).rowcount)

        def there(text: str) -> int:
            changes = text.split(maxsplit=1)[0] in ("INSERT", "UPDATE", "DELETE")
            changed = theirs.execute(text).rowcount
            return changed if changes else 0

        failed = False
        for text in history(r):
            seen.append(text)
            if failed and text not in ("COMMIT", "ROLLBACK"):
                continue
            if failed:
                text, failed = "ROLLBACK", False  # noqa: PLW2901
            mine, other = outcome(here, text), outcome(there, text)
            assert mine == other, shown(seen)
            failed = mine[0] is not None and ours._session.transaction is not None
            if ours._session.transaction is None:
                for table, columns in COLUMNS.items():
                    query = f"SELECT * FROM {table} ORDER BY {', '.join(columns)}"
                    assert ours.execute(query).fetchall() == theirs.execute(query).fetchall(), shown(seen)


#: Queries that find no row while the constraints hold.
VIOLATIONS = (
    "SELECT id FROM p GROUP BY id HAVING count(*) > 1",
    "SELECT a FROM p WHERE a IS NOT NULL GROUP BY a HAVING count(*) > 1",
    "SELECT id FROM c GROUP BY id HAVING count(*) > 1",
    "SELECT x FROM d GROUP BY x HAVING count(*) > 1",
    "SELECT id FROM p WHERE NOT (a < 7 OR b IS NULL)",
    "SELECT c.id FROM c LEFT JOIN p ON c.p = p.id WHERE c.p IS NOT NULL AND p.id IS NULL",
    "SELECT c.id FROM c LEFT JOIN p ON c.q = p.a WHERE c.q IS NOT NULL AND p.id IS NULL",
    "SELECT c.id FROM c LEFT JOIN c AS o ON c.up = o.id WHERE c.up IS NOT NULL AND o.id IS NULL",
    (
        "SELECT d.x FROM d LEFT JOIN p ON d.b = p.b AND d.a = p.a WHERE d.b IS NOT NULL AND d.a IS NOT NULL "
        "AND p.id IS NULL"
    ),
)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 6))
def test_sessions_beside_each_other_leave_no_violation(seed: int) -> None:
    r = random.Random(seed)
    with (
        watersmeet.connect(runtime="inprocess") as database,
        BackgroundServer(database.opened, Endpoint(port=0)) as server,
        ExitStack() as clients,
    ):
        address = f"host=127.0.0.1 port={server.port} dbname=dev options='-c primary_key_conflict=error'"
        *sessions, reader = (clients.enter_context(psycopg.connect(address, autocommit=True)) for _ in range(5))
        for text in tables(r):
            reader.execute(text)
        committed = 0
        for _ in range(80):
            session = r.choice(sessions)
            state = session.info.transaction_status
            if state == TransactionStatus.INERROR:
                text = "ROLLBACK"
            elif state == TransactionStatus.INTRANS:
                text = r.choice((statement(r), statement(r), "COMMIT"))
            else:
                text = r.choice(("BEGIN", statement(r), statement(r)))
            error, _ = outcome(lambda sql, on=session: on.execute(sql).rowcount, text)
            committed += text == "COMMIT" and error is None
            assert error in (None, "23502", "23503", "23505", "23514", "40001", "21000", "55000"), (text, error)
            if session.info.transaction_status == TransactionStatus.IDLE:
                for query in VIOLATIONS:
                    assert reader.execute(query).fetchall() == [], text
        for session in sessions:
            session.execute("ROLLBACK")
        assert committed
