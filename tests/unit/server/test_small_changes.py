"""UPDATE and DELETE by key of many clients run together, and do the same as one by one."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest
from tests.thorough import mostly_slow

from watersmeet.database.grouping import KeyChange, commit_changes
from watersmeet.session.statements import small

MADE = """
CREATE TABLE {0} (id bigint PRIMARY KEY, whole int, tiny smallint, name varchar, far double precision, tags int[]);
INSERT INTO {0} SELECT i, i, i, 'n' || i, i / 2.0::double precision, ARRAY[i, 2] FROM generate_series(1, 12) AS g(i);
"""
VALUES = {
    "whole": ["whole + {}", "whole - {}", "{}", "NULL", "2147483640", "'{}'", "whole + 1.5", "whole * 2"],
    "tiny": ["tiny + {}", "{}", "40000", "tiny + 32767"],
    "name": ["'x{}'", "NULL", "upper(name)"],
    "far": ["far + {}", "far - 0.25", "{}.5", "1e300", "far + 1"],
}


def statement(rng: random.Random) -> str:
    """A statement with marks for the table, the key and two numbers."""
    if rng.random() < 0.15:
        return "DELETE FROM {0} WHERE id = {1}"
    if rng.random() < 0.2:
        return "INSERT INTO {0} (id, whole, name) VALUES ({1}, {2}, 'new')"
    columns = rng.sample(sorted(VALUES), rng.randint(1, 2))
    sets = ", ".join(f"{c} = {rng.choice(VALUES[c])}" for c in columns).replace("{}", "{2}")
    return f"UPDATE {{0}} SET {sets} WHERE {rng.choice(['id = {1}', 'id = {1}', '{1} = id', '(id = {1})'])}"


def done(client: psycopg.Connection, text: str) -> str | None:
    try:
        return client.execute(text).statusmessage
    except psycopg.Error as err:
        return err.sqlstate


def rows(served, table: str):
    served.python.execute("BEGIN")
    found = served.python.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
    served.python.execute("ROLLBACK")
    return found


@pytest.mark.parametrize("seed", mostly_slow(range(8), 1, 1))
def test_random_changes_are_those_of_the_usual_way(serving, seed, monkeypatch):
    served = serving(
        MADE.format("small") + MADE.format("usual") + "CREATE MATERIALIZED VIEW v AS SELECT whole FROM small;"
    )
    rng = random.Random(seed)
    statements = [statement(rng) for _ in range(12)]
    ran = []
    change = small.ChangePlan.change
    monkeypatch.setattr(small.ChangePlan, "change", lambda *a: ran.append(a) or change(*a))
    with served.connect(autocommit=True) as client:
        for _ in range(70):
            text, given = rng.choice(statements), (rng.randint(0, 14), rng.randrange(99))
            assert done(client, text.format("small", *given)) == done(client, "/* */" + text.format("usual", *given))
            if rng.random() < 0.05:
                client.execute("FLUSH")
    assert len(ran) > 5
    assert rows(served, "small") == rows(served, "usual")
    served.python.execute("FLUSH")
    wanted = served.python.execute("SELECT whole FROM small ORDER BY 1").fetchall()
    assert served.python.execute("SELECT whole FROM v ORDER BY 1").fetchall() == wanted


def test_changes_of_several_clients_are_all_there(serving):
    served = serving(MADE.format("t") + "CREATE MATERIALIZED VIEW v AS SELECT sum(whole) AS n FROM t; FLUSH;")
    before = served.python.execute("SELECT sum(whole) FROM t").fetchone()[0]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with served.connect(autocommit=True) as client:
                for i in range(30):
                    key = rng.randint(1, 3)
                    if i % 2:
                        found = client.execute("UPDATE t SET whole = whole + %b WHERE id = %b", [1, key])
                    else:
                        found = client.execute(f"UPDATE t SET whole = whole + 1 WHERE id = {key}")
                    assert found.statusmessage == "UPDATE 1"
        except BaseException as cause:
            failures.append(cause)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    served.python.execute("FLUSH")
    assert served.python.execute("SELECT n FROM v").fetchone()[0] == before + 180


def test_statements_of_a_group_are_applied_in_order_in_one_commit(serving):
    served = serving(MADE.format("t") + "CREATE MATERIALIZED VIEW v AS SELECT id FROM t; FLUSH;")
    database, session = served.python.opened, served.python._session
    relation = session.catalog.by_name("t")
    plus = small.ChangePlan(database.catalog, relation, None, ())

    def one(key, *assigned, delete=False):
        return KeyChange(session, plus.catalog, relation, key, None if delete else assigned)

    def add(n):
        return small.Assigned("whole", n, 1, small.assign_to(relation.column("whole").type))

    group = [one(1, add(5)), one(1, add(5)), one(2, delete=True), one(2, add(1)), one(99, add(1)), one(3, add(1 << 40))]
    head = database.log.head()
    commit_changes(database, group)
    assert database.log.head() == head + 1
    assert [(c.rows, c.outdated) for c in group] == [
        (1, False), (1, False), (1, False), (0, False), (0, False), (0, True),
    ]  # fmt: skip
    found = {r[0]: r[1] for r in rows(served, "t")}
    assert (found[1], found[3], 2 in found) == (11, 3, False)
    served.python.execute("INSERT INTO t (id, whole) VALUES (2, 7); UPDATE t SET whole = 8 WHERE id = 1")
    commit_changes(database, [one(1, add(1)), one(2, add(1))])
    found = {r[0]: r[1] for r in rows(served, "t")}
    assert (found[1], found[2]) == (9, 8), "changes of others are seen"


def test_a_plan_ends_with_rights_and_columns(serving):
    served = serving(MADE.format("t") + "FLUSH;")
    with served.connect(autocommit=True) as client:
        for _ in range(4):
            assert done(client, "UPDATE t SET whole = whole + 1 WHERE id = 1") == "UPDATE 1"
        served.python.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 4")
        for _ in range(4):
            assert done(client, "UPDATE t SET whole = whole + 1 WHERE id = 1") == "UPDATE 1"
            assert done(client, "UPDATE t SET more = more + 1 WHERE id = 2") == "UPDATE 1"
        found = {r[0]: (r[1], r[-1]) for r in rows(served, "t")}
        assert (found[1], found[2]) == ((9, 4), (2, 8))
        served.python.execute("DROP TABLE t")
        assert done(client, "UPDATE t SET whole = whole + 1 WHERE id = 1") == "42P01"
