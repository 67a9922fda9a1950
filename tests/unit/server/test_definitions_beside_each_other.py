"""CREATE, ALTER and DROP in a transaction, while another client changes definitions: the first to commit wins."""

from __future__ import annotations

import psycopg
import pytest

SHOP = """
CREATE TABLE base (a int); CREATE TABLE r1 (a int);
CREATE FUNCTION known(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1'; CREATE SCHEMA old;
"""


@pytest.fixture
def two(serving):
    served = serving(SHOP)
    with served.connect() as first, served.connect(autocommit=True) as second:
        yield first, second


@pytest.mark.parametrize(
    ("own", "other", "sqlstate"),
    [
        ("CREATE TABLE n (a int); INSERT INTO n VALUES (1)", "CREATE TABLE n (b int)", "42P07"),
        ("CREATE VIEW n AS SELECT a FROM base", "CREATE MATERIALIZED VIEW n AS SELECT a FROM base", "42P07"),
        ("ALTER TABLE r1 RENAME TO n", "CREATE TABLE n (b int)", "42P07"),
        ('CREATE TABLE "Abc" (a int)', "CREATE TABLE abc (b int)", "42P07"),
        ("CREATE USER n", "CREATE ROLE n", "42P07"),
        ("ALTER TABLE base ADD COLUMN d int", "ALTER TABLE base ADD COLUMN d varchar", "40001"),
        ("ALTER TABLE base ADD COLUMN d int", "DROP TABLE base", "40001"),
        (
            "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1'",
            "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1'",
            "42P07",
        ),
        ("DROP TABLE base", "CREATE MATERIALIZED VIEW v AS SELECT a FROM base", "2BP01"),
        ("DROP SCHEMA old", "CREATE TABLE old.t (a int)", "2BP01"),
    ],
)
def test_the_second_to_commit_is_refused_and_nothing_of_it_is_done(two, own, other, sqlstate):
    first, second = two
    for statement in own.split("; "):
        first.execute(statement)
    second.execute(other)
    known = "SELECT relname, relkind, oid FROM pg_class ORDER BY oid"
    before = second.execute(known).fetchall()
    with pytest.raises(psycopg.Error) as found:
        first.commit()
    assert found.value.sqlstate == sqlstate
    assert (
        "Nothing of the transaction was done." in f"{found.value.diag.message_detail} {found.value.diag.message_hint}"
    )
    assert second.execute(known).fetchall() == before
    first.rollback()
    first.execute("CREATE TABLE later (a int)")
    first.commit()


def test_two_processors_of_a_topic_of_kafka_have_two_names(serving, broker, named):
    source, target = named("source"), named("target")
    served = serving(
        f"""
        CREATE TABLE {source} (_key int, n int) FORMAT (INT, JSON);
        CREATE TABLE {target} (_key int, n int) FORMAT (INT, JSON);
        """,
        connecting={"dialect": "lenses", "kafka": {"bootstrap.servers": broker.bootstrap}},
    )
    insert = f"INSERT INTO {target} SELECT STREAM n FROM {source}"
    with served.connect() as first, served.connect(autocommit=True) as second:
        for client in (first, second):
            client.execute("SET dialect = 'lenses'")
        first.commit()
        first.execute(insert)
        second.execute(insert)
        first.commit()
        names = sorted(r[0] for r in second.execute("SHOW PROCESSORS").fetchall())
    assert names == [target, f"{target}_2"]


def test_what_does_not_meet_is_all_there(two):
    first, second = two
    for statement in (
        "CREATE SCHEMA s1",
        "CREATE TABLE s1.t (a int)",
        "CREATE USER u1",
        "ALTER TABLE r1 ADD COLUMN b int",
        "DROP SCHEMA old",
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM base",
    ):
        first.execute(statement)
    for statement in (
        "CREATE SCHEMA s2",
        "CREATE TABLE s2.t (a int)",
        "CREATE USER u2",
        "ALTER TABLE base ADD COLUMN c int",
        "GRANT SELECT ON base TO u2",
        "INSERT INTO base VALUES (1, 2)",
    ):
        second.execute(statement)
    first.commit()
    second.execute("FLUSH")
    assert {name for (name,) in second.execute("SHOW SCHEMAS")} == {"public", "s1", "s2"}
    assert second.execute("SELECT count(*) FROM s1.t, s2.t").fetchone() == (0,)
    assert {row[0] for row in second.execute("SHOW ROLES")} >= {"u1", "u2"}
    assert second.execute("SELECT a FROM v").fetchall() == [(1,)]


def test_a_transaction_may_make_a_name_that_it_has_dropped(two):
    first, second = two
    first.execute("DROP TABLE r1; CREATE TABLE r1 (b int)")
    first.execute("DROP SCHEMA old; CREATE SCHEMA old; CREATE TABLE old.t (a int)")
    first.execute("CREATE OR REPLACE VIEW w AS SELECT b FROM r1")
    first.execute("CREATE OR REPLACE VIEW w AS SELECT b + 1 AS b FROM r1")
    first.commit()
    assert second.execute("SELECT * FROM r1, w").fetchall() == []
    assert second.execute("SELECT * FROM old.t").fetchall() == []


def test_a_savepoint_does_not_undo_rows_of_a_table_that_the_transaction_made(two):
    """They are refused, not left there."""
    first, second = two
    first.execute("CREATE TABLE made (a int); INSERT INTO made VALUES (1); INSERT INTO base VALUES (1)")
    first.execute("SAVEPOINT s")
    first.execute("INSERT INTO base VALUES (2)")
    first.execute("ROLLBACK TO s")
    first.execute("INSERT INTO made VALUES (2)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='table "made"'):
        first.execute("ROLLBACK TO s")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        first.execute("SELECT 1")
    first.rollback()
    assert second.execute("SELECT * FROM base").fetchall() == []
