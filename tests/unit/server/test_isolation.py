"""Levels of isolation: transactions that read one moment, and how they and SELECT FOR UPDATE conflict."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

import watersmeet
from watersmeet.store import content

MADE = """
CREATE TABLE a (id int PRIMARY KEY, n int); INSERT INTO a VALUES (1, 0), (2, 0);
CREATE TABLE b (id int PRIMARY KEY, n int); INSERT INTO b VALUES (1, 0);
CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS n FROM a;
FLUSH;
"""
SNAPSHOTS = ("REPEATABLE READ", "REPEATABLE READ READ ONLY", "SERIALIZABLE", "SERIALIZABLE, READ ONLY, DEFERRABLE")


@pytest.fixture
def served(serving):
    return serving(MADE)


@pytest.fixture
def two(served):
    with served.connect(autocommit=True) as one, served.connect(autocommit=True) as other:
        yield one, other


def number(client, relation: str = "a") -> int:
    where = "" if relation == "v" else " WHERE id = 1"
    return client.execute(f"SELECT n FROM {relation}{where}").fetchone()[0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("level", SNAPSHOTS)
def test_all_reads_of_a_transaction_show_one_moment(served, two, level, in_place, monkeypatch):
    if in_place:
        monkeypatch.setattr(content, "_LOADED_ROWS", 0)
    one, other = two
    other.execute("UPDATE a SET n = 1 WHERE id = 1")
    one.execute(f"BEGIN ISOLATION LEVEL {level}")
    other.execute("UPDATE a SET n = 2 WHERE id = 1")
    assert (number(one), number(one, "v")) == (2, 2), "the first statement chooses the moment"
    for i in range(3, 6):
        other.execute(f"UPDATE a SET n = {i} WHERE id = 1; DELETE FROM b; INSERT INTO b VALUES ({i}, 1)")
        served.python.execute("FLUSH")
        assert (number(one), number(one, "v"), number(one, "b")) == (2, 2, 0)
        assert one.execute("SELECT a.n, b.id, v.n FROM a, b, v WHERE a.id = 1").fetchall() == [(2, 1, 2)]
    one.execute("COMMIT")
    assert (number(one, "v"), one.execute("SELECT id FROM b").fetchall()) == (5, [(5,)])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_own_changes_are_read_at_the_moment(two, level):
    one, other = two
    one.execute(f"BEGIN ISOLATION LEVEL {level}; UPDATE a SET n = 7 WHERE id = 1; INSERT INTO a VALUES (3, 3)")
    other.execute("INSERT INTO b VALUES (9, 9)")
    assert one.execute("SELECT id, n FROM a ORDER BY id").fetchall() == [(1, 7), (2, 0), (3, 3)]
    assert one.execute("SELECT id FROM b").fetchall() == [(1,)]
    one.execute("CREATE TABLE own (x int); INSERT INTO own VALUES (1)")
    assert one.execute("SELECT x FROM own").fetchall() == [(1,)]
    if level == "SERIALIZABLE":
        with pytest.raises(psycopg.errors.SerializationFailure, match="could not serialize"):
            one.execute("COMMIT")
        assert number(one) == 0
    else:
        one.execute("COMMIT")
        assert number(one) == 7
    assert one.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_first_to_commit_wins(two, level):
    one, other = two
    one.execute(f"BEGIN ISOLATION LEVEL {level}")
    assert number(one) == 0
    other.execute("UPDATE a SET n = n + 1 WHERE id = 1")
    one.execute("UPDATE a SET n = n + 1 WHERE id = 1")
    with pytest.raises(psycopg.errors.SerializationFailure):
        number(one)
    one.execute("ROLLBACK")
    one.execute(f"BEGIN ISOLATION LEVEL {level}")
    assert number(one) == 1
    one.execute("UPDATE a SET n = n + 1 WHERE id = 1; COMMIT")
    assert number(other, "v") == 2


@pytest.mark.parametrize(("level", "wins"), [("REPEATABLE READ", True), ("SERIALIZABLE", False)])
@pytest.mark.parametrize("read", ["a", "v"])
def test_only_serializable_transactions_have_no_write_skew(two, level, wins, read):
    """The first one reads what the second one changes, or a view of it, and the other way round."""
    one, other = two
    for client in two:
        client.execute(f"BEGIN ISOLATION LEVEL {level}")
    assert (number(one, read), number(other, "b")) == (0, 0)
    one.execute("UPDATE b SET n = 1 WHERE id = 1")
    other.execute("UPDATE a SET n = 1 WHERE id = 1")
    other.execute("COMMIT")
    if wins:
        one.execute("COMMIT")
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.execute("COMMIT")
    assert number(one, "b") == int(wins)


def test_select_for_update_conflicts_with_changes(two):
    one, other = two
    one.execute("BEGIN; SELECT n FROM a WHERE id = 1 FOR UPDATE NOWAIT")
    other.execute("UPDATE a SET n = 5 WHERE id = 1")
    one.execute("UPDATE b SET n = 1 WHERE id = 1")
    with pytest.raises(psycopg.errors.SerializationFailure):
        one.execute("COMMIT")
    one.execute("ROLLBACK; FLUSH")
    rows = one.execute("SELECT n FROM a WHERE id = %s FOR NO KEY UPDATE OF a", [1]).fetchall()
    assert rows == [(5,)], "outside of a transaction it changes nothing"
    one.execute("BEGIN; SELECT n FROM v FOR SHARE; UPDATE b SET n = 2 WHERE id = 1; COMMIT")
    assert number(one, "b") == 2
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="SKIP LOCKED"):
        one.execute("SELECT n FROM a FOR UPDATE SKIP LOCKED")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="FOR UPDATE or FOR SHARE in a view"):
        one.execute("CREATE MATERIALIZED VIEW w AS SELECT n FROM a FOR UPDATE")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        one.execute("BEGIN READ ONLY; SELECT n FROM a FOR UPDATE")


def test_settings_of_levels(served, two):
    one, other = two

    def shown(name="transaction_isolation"):
        return one.execute(f"SHOW {name}").fetchone()[0]

    assert (shown(), shown("default_transaction_isolation")) == ("read committed", "read committed")
    one.execute("BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    assert (shown(), shown("transaction_read_only"), shown("default_transaction_isolation")) == (
        "repeatable read",
        "on",
        "read committed",
    )
    assert number(one) == 0
    with pytest.raises(psycopg.Error, match="must be called before any query"):
        one.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    one.execute("ROLLBACK; SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    one.execute("BEGIN")
    assert shown() == "serializable"
    one.execute("ROLLBACK; SET default_transaction_isolation TO 'repeatable read'; BEGIN")
    assert (shown(), number(one)) == ("repeatable read", 0)
    other.execute("UPDATE a SET n = 1 WHERE id = 1")
    assert number(one) == 0
    one.execute("ROLLBACK; RESET ALL")
    assert shown("default_transaction_isolation") == "read committed"
    with pytest.raises(psycopg.errors.SyntaxError):
        one.execute("BEGIN ISOLATION LEVEL STRICT")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="SET TRANSACTION SNAPSHOT"):
        one.execute("BEGIN; SET TRANSACTION SNAPSHOT '1'")
    one.execute("ROLLBACK")
    with served.connect(options="-c default_transaction_isolation=serializable") as started:
        assert started.execute("SHOW transaction_isolation").fetchone() == ("serializable",)


@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
def test_levels_of_asyncpg(served, level):
    async def main() -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="shop")
        other = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="shop")
        async with client.transaction(isolation=level):
            assert await client.fetchval("SELECT n FROM a WHERE id = $1", 1) == 0
            await other.execute("UPDATE b SET n = 4 WHERE id = 1")
            assert await client.fetchval("SELECT n FROM b WHERE id = 1") == (4 if level == "read_committed" else 0)
        with pytest.raises(asyncpg.SerializationError):
            async with client.transaction(isolation=level):
                await client.fetchval("SELECT n FROM b")
                await client.execute("UPDATE b SET n = n + 1 WHERE id = 1")
                await other.execute("UPDATE b SET n = n + 1 WHERE id = 1")
        await client.execute("FLUSH")
        async with client.transaction(isolation=level, readonly=True):
            assert await client.fetchval("SELECT n FROM b WHERE id = 1") == 5
            with pytest.raises(asyncpg.PostgresError, match="read-only"):
                await client.execute("DELETE FROM b")
        async with client.transaction():
            await client.execute("UPDATE b SET n = 6 WHERE id = 1")
        async with other.transaction():
            assert await other.fetchval("SELECT n FROM b WHERE id = 1") == 6
        await client.close()
        await other.close()

    asyncio.run(main())


def test_a_reader_of_another_process_has_moments(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as writer:
        writer.execute(MADE)
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            assert reader.execute("SELECT n FROM v").fetchall() == [(0,)]
            writer.execute("UPDATE a SET n = 3 WHERE id = 1; FLUSH")
            assert reader.execute("SELECT v.n, a.n FROM v, a WHERE a.id = 1").fetchall() == [(0, 0)]
            assert reader.execute("SHOW transaction_isolation").fetchall() == [("repeatable read",)]
            reader.execute("COMMIT")
            assert reader.execute("SELECT v.n, a.n FROM v, a WHERE a.id = 1").fetchall() == [(3, 3)]


def test_a_relation_that_is_newer_than_the_moment_is_refused(two):
    one, other = two
    one.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT n FROM a")
    other.execute("CREATE MATERIALIZED VIEW w AS SELECT n FROM a")
    with pytest.raises(psycopg.Error, match='"w" was not there yet'):
        one.execute("SELECT n FROM w")


def test_the_statements_of_duckdb_as_it_attaches_the_database(two):
    """As the extension postgres of DuckDB 1.5 sends them."""
    one, _ = two
    one.execute(
        "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ;\nSELECT oid, nspname FROM pg_namespace ORDER BY oid;\n"
    )
    with one.cursor().copy('COPY (SELECT "id", "n" FROM "public"."a" ) TO STDOUT (FORMAT "binary");') as copied:
        assert len(b"".join(copied)) == 19 + 2 + 2 * (2 + 4 + 4 + 4 + 4)
    one.execute("COMMIT")
    one.execute("DISCARD ALL")
    one.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    assert number(one) == 0
    one.execute("ROLLBACK")
