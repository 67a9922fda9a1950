"""What was told of a prepared statement stays true: types of its columns, until it is prepared again."""

from __future__ import annotations

import asyncio
import datetime as dt
import io

import asyncpg
import psycopg
import pytest
from sqlglot import exp
from tests.unit.server.test_any_messages import message, spoken, started

SHOP = "CREATE TABLE t (id bigint PRIMARY KEY, s smallint, name varchar); INSERT INTO t VALUES (1, 30, 'a'); FLUSH"


@pytest.mark.parametrize("form", ["%b", "%t"])
@pytest.mark.parametrize(
    ("query", "values", "wanted"),
    [
        ("SELECT {}", (5,), 5),
        ("SELECT -{}", (5,), -5),
        ("SELECT s + {} FROM t", (5,), 35),
        ("SELECT coalesce({}, s) FROM t", (7,), 7),
        ("SELECT max({}) FROM t", (5,), 5),
        ("SELECT mod({}, {})", (7, 3), 1),
        ("SELECT 100000 * {}", (1 << 33,), 100_000 << 33),
        ("SELECT {}", (None,), None),
        ("SELECT substr(name || 'bcd', {}, {}) FROM t LIMIT {}", (2, 2, 1), "bc"),
    ],
)
def test_numbers_have_the_type_that_was_told(serving, form, query, values, wanted):
    with serving(SHOP).connect(autocommit=True) as client:
        text = query.format(*[form] * len(values))
        for binary in (False, True):
            assert client.cursor(binary=binary).execute(text, values).fetchone() == (wanted,)


def test_parameters_whose_type_the_server_infers(serving):
    served = serving(SHOP)

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        assert await client.fetchval("SELECT s + $1 FROM t", 5) == 35
        assert await client.fetchval("SELECT abs($1)", -5) == 5
        await client.execute("INSERT INTO t VALUES (2, 1, 'it''s')")
        await client.execute("FLUSH")
        out = io.BytesIO()  # asyncpg fills the values in by quote_literal
        await client.copy_from_query("SELECT * FROM t WHERE id > $1 AND name = $2", 1, "it's", output=out, format="csv")
        assert out.getvalue() == b"2,1,it's\n"
        # A statement that asyncpg keeps, over a table that has changed: it prepares it again by itself.
        assert len((await client.fetch("SELECT * FROM t WHERE id = 1"))[0]) == 3
        await client.execute("ALTER TABLE t ADD COLUMN more int")
        assert len((await client.fetch("SELECT * FROM t WHERE id = 1"))[0]) == 4
        await client.close()

    asyncio.run(run())


def test_parameters_in_on_conflict_and_merge(serving):
    served = serving("CREATE TABLE u (id int PRIMARY KEY, n int, name varchar); INSERT INTO u VALUES (1, 1, 'a')")
    upsert = "INSERT INTO u VALUES ($1, $2, 'x') ON CONFLICT (id) DO UPDATE SET n = $3, name = $4 WHERE u.n < $5"
    merge = (
        "MERGE INTO u USING (SELECT $1::int AS k) s ON s.k = u.id WHEN MATCHED AND u.n > $2::int THEN UPDATE SET n = $3"
    )

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        assert await client.execute(upsert, 1, 2, 3, "b", 1) == "INSERT 0 0"
        assert await client.execute(upsert, 1, 2, 3, "b", 2) == "INSERT 0 1"
        several = "INSERT INTO u VALUES (3, 1), (1, 1), (2, 1) ON CONFLICT (id) DO UPDATE SET n = u.n + $1 RETURNING *"
        assert [tuple(r) for r in await client.fetch(several, 4)] == [(3, 1, None), (1, 7, "b"), (2, 1, None)]
        assert await client.execute(merge, 1, 5, 9) == "MERGE 1"
        assert [tuple(r) for r in await client.fetch("SELECT id, n FROM u ORDER BY id")] == [(1, 9), (2, 1), (3, 1)]
        await client.close()

    asyncio.run(run())


#: Over `VALUES_OF`: what the value of a parameter decides, which is not there yet when the statement is prepared.
CONSTANTS = {
    "date_trunc($1, ts)": ("hour", dt.datetime(2024, 1, 2, 3)),
    "date_part($1, ts)": ("year", 2024.0),
    "to_char(ts, $1)": ("YYYY", "2024"),
    "to_date('2024-03', $1)": ("YYYY-MM", dt.date(2024, 3, 1)),
    "encode('x'::bytea, $1)": ("hex", "78"),
    "format($1, id, name)": ("%s-%2$s", "1-ab"),
    "regexp_replace(name, 'B', 'x', $1)": ("i", "ax"),
    "regexp_match(name, $1)": ("(.)b", ["a"]),
    "name SIMILAR TO $1": ("a%", True),
    "array_length(a, $1)": (1, 3),
    "id = ANY($1)": ([1, 2], True),
    "name <> ALL($1)": (["b"], True),
    "a[$1]": (1, 10),
    "a[$1 + 1]": (1, 20),
    "a[$1::int]": (1, 10),
    "(a[2:$1])[$1]": (3, None),
    "j[$1]": ("k", "[7]"),
    "j -> $1": ("k", "[7]"),
    "j ->> $1": ("k", "[7]"),
    "j ? $1": ("k", True),
    "j #>> $1": (["k", "0"], "7"),
    "lag(id, $1) OVER (ORDER BY id)": (0, 1),
    "ntile($1) OVER (ORDER BY id)": (3, 1),
    "nth_value(id, $1) OVER (ORDER BY id)": (1, 1),
    "sum(id) OVER (ORDER BY id ROWS $1 PRECEDING)": (1, 1),
    "percentile_cont($1) WITHIN GROUP (ORDER BY id)": (0.5, 1.0),
    "generate_series(id, $1)": (1, 1),
    "(SELECT id FROM t FETCH FIRST $1 ROWS ONLY)": (5, 1),
}
VALUES_OF = """
CREATE TABLE t (id int PRIMARY KEY, name varchar, ts timestamp, a int[], j jsonb);
INSERT INTO t VALUES (1, 'ab', '2024-01-02 03:04:05', '{10,20,30}', '{"k": [7]}');
FLUSH
"""


def test_parameters_in_the_place_of_constants(serving):
    served = serving(VALUES_OF)

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        found = {e: await client.fetchval(f"SELECT {e} FROM t", value) for e, (value, _) in CONSTANTS.items()}
        assert found == {e: wanted for e, (_, wanted) in CONSTANTS.items()}
        with pytest.raises(asyncpg.PostgresError, match='unit "eon" not recognized'):
            await client.fetchval("SELECT date_trunc($1, ts) FROM t", "eon")
        with pytest.raises(asyncpg.PostgresError, match="argument of ntile must not be null"):
            await client.fetchval("SELECT ntile($1) OVER (ORDER BY id) FROM t", None)
        with pytest.raises(asyncpg.PostgresError, match="not between 0 and 1"):
            await client.fetchval("SELECT percentile_cont($1) WITHIN GROUP (ORDER BY id) FROM t", 2.0)
        await client.close()

    asyncio.run(run())


def prepared(client: psycopg.Connection, text: str) -> psycopg.pq.abc.PGresult:
    return client.pgconn.prepare(b"p", text.encode())


def failure(found: psycopg.pq.abc.PGresult) -> tuple[str, str]:
    fields = (psycopg.pq.DiagnosticField.SQLSTATE, psycopg.pq.DiagnosticField.SOURCE_FUNCTION)
    return tuple((found.error_field(f) or b"").decode() for f in fields)


#: Drivers look for this routine to prepare a statement again.
CHANGED = ("0A000", "RevalidateCachedQuery")


def test_a_statement_whose_columns_have_changed_is_refused_before_it_runs(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        prepared(client, "INSERT INTO t (id) VALUES (7) RETURNING *")
        client.execute("ALTER TABLE t ADD COLUMN more int")
        assert failure(client.pgconn.exec_prepared(b"p", [])) == CHANGED
        client.execute("FLUSH")
        assert client.execute("SELECT * FROM t WHERE id = 7").fetchall() == []
        client.execute("DEALLOCATE ALL")
        prepared(client, "INSERT INTO t (id) VALUES (7) RETURNING *")
        assert client.pgconn.exec_prepared(b"p", []).ntuples == 1


def test_a_table_that_was_made_anew(serving):
    with serving("CREATE TABLE d (a int)").connect(autocommit=True) as client:
        prepared(client, "SELECT * FROM d")
        client.execute("PREPARE q AS SELECT * FROM d")
        client.execute("DROP TABLE d")
        assert failure(client.pgconn.exec_prepared(b"p", [])) == ("42P01", "UNDEFINED_RELATION")
        client.execute("CREATE TABLE d (a varchar)")
        assert failure(client.pgconn.exec_prepared(b"p", [])) == CHANGED
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="must not change"):
            client.execute("EXECUTE q")
        client.execute("DROP TABLE d; CREATE TABLE d (a int)")
        assert client.pgconn.exec_prepared(b"p", []).fname(0) == b"a"
        client.execute("CREATE SCHEMA s; CREATE TABLE s.d (b varchar); SET search_path = s")
        assert failure(client.pgconn.exec_prepared(b"p", [])) == CHANGED


def test_a_table_that_changes_in_the_transaction(serving):
    with serving("CREATE TABLE d (a int)").connect(autocommit=True) as client:
        client.execute("BEGIN; CREATE TABLE e (a int)")
        prepared(client, "SELECT * FROM e")
        client.execute("DROP TABLE e; CREATE TABLE e (a int, b int)")
        assert failure(client.pgconn.exec_prepared(b"p", [])) == CHANGED
        client.execute("ROLLBACK")


def test_nothing_is_prepared_in_a_transaction_that_has_failed(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        client.execute("PREPARE before AS SELECT id FROM t")
        client.execute("BEGIN")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            client.execute("SELECT nothing FROM t")
        failed = ("25P02", "FAILED_TRANSACTION")
        assert failure(prepared(client, "SELECT id FROM t")) == failed
        assert failure(client.pgconn.exec_prepared(b"before", [])) == failed
        assert failure(prepared(client, "ROLLBACK")) == ("", "")
        client.pgconn.exec_prepared(b"p", [])
        assert client.pgconn.exec_prepared(b"before", []).get_value(0, 0) == b"1"


def test_behind_an_error_nothing_is_answered_before_sync(serving):
    served = serving()
    with started(served.server.port) as client:
        said = spoken(
            client,
            message(b"P", b"\0SELEC\0\0\0") + message(b"Q", b"SELECT 1\0") + message(b"S", b"") + message(b"X", b""),
        )
    after = said[said.index(b"Z") + 1 :]
    assert after == [b"E", b"Z"]


def test_queries_of_the_catalog_are_described_with_the_names_that_they_have(serving):
    with serving(SHOP).connect() as client:
        query = "SELECT d.oid, d.* FROM pg_catalog.pg_database d WHERE d.datname = %s OR 'x' || %s = 'xy'"
        told = client.execute(query, ("shop", "y"), prepare=True).description
        assert [c.name for c in told][:3] == ["oid", "oid", "datname"]
        assert client.execute("SELECT quote_literal(%b::bigint)", (5,)).fetchone() == ("'5'",)


def test_the_time_to_prepare_grows_with_the_number_of_parameters(serving, monkeypatch):
    """Not with its square: each look for the place of a parameter went through all the others."""
    looks = 0
    walk = exp.Expression.walk

    def counted(node, *arguments, **options):
        nonlocal looks
        for found in walk(node, *arguments, **options):
            looks += 1
            yield found

    monkeypatch.setattr(exp.Expression, "walk", counted)
    counts = []
    with serving(SHOP).connect() as client:
        for number in (50, 200):
            looks = 0
            values = tuple(range(number))
            query = f"SELECT id FROM t WHERE id IN ({', '.join(['%s'] * number)})"
            assert client.execute(query, values).fetchall() == [(1,)]
            counts.append(looks)
    assert counts[1] < 5 * counts[0]


def test_the_value_of_a_parameter_is_wrong_where_it_stands(serving):
    with serving(SHOP).connect() as client, pytest.raises(psycopg.errors.InvalidTextRepresentation) as found:
        client.execute("SELECT id FROM t WHERE name = 'a' AND id = %s", ("x",))
    assert found.value.diag.statement_position == "45"  # in `$1`


def test_parameters_without_spaces_between_them(serving):
    with serving(SHOP).connect() as client:
        query = "SELECT count(*) FROM pg_class WHERE relname IN (%s,%s)"
        assert client.execute(query, ("t", "u"), prepare=True).fetchone() == (1,)


def counted(client: psycopg.Connection) -> tuple[int, int, int]:
    """The numbers of rows of the tables of pipelines, and the sum of the first."""
    query = "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two), (SELECT coalesce(sum(b), 0) FROM one)"
    return client.execute(query).fetchone()


def test_a_pipeline_is_one_transaction(serving):
    """PostgreSQL 17, 55.2.4 "Pipelining": an error undoes all statements since the last Sync."""
    served = serving("CREATE TABLE one (a int PRIMARY KEY, b int); CREATE TABLE two (a int NOT NULL) ;")
    with served.connect(autocommit=True, prepare_threshold=0) as client, served.connect(autocommit=True) as other:
        client.execute("SET rw_implicit_flush = true")
        for number in range(3):  # so that there are plans
            client.execute("INSERT INTO one VALUES (%s, %s)", [number, number])
            client.execute("INSERT INTO two VALUES (%s)", [number])
        assert counted(client) == (3, 3, 3)
        with client.pipeline():
            for number in range(10, 15):
                client.execute("INSERT INTO one VALUES (%s, %s)", [number, 1])
                client.execute("INSERT INTO two VALUES (%s)", [number])
            client.execute("UPDATE one SET b = b + 1 WHERE a = %s", [10])
            shown = client.execute("SELECT b FROM one WHERE a = 10")
        assert (shown.fetchone(), counted(client)) == ((2,), (8, 8, 9))
        for failing in ["INSERT INTO two VALUES (NULL)", "SELECT missing FROM one", "SELEC", "SELECT 1 + %s::int"]:
            with pytest.raises(psycopg.Error), client.pipeline():
                client.execute("DELETE FROM two")
                for number in range(20, 25):
                    client.execute("INSERT INTO one VALUES (%s, %s)", [number, 1])
                client.execute(failing, ["x"] if "%s" in failing else None)
                client.execute("INSERT INTO one VALUES (30, 1)")
            assert counted(client) == (8, 8, 9), failing
        with pytest.raises(psycopg.errors.UniqueViolation), client.pipeline():
            client.execute("SET primary_key_conflict = 'error'")
            client.execute("CREATE TABLE three (a int PRIMARY KEY)")
            client.execute("INSERT INTO two VALUES (90)")
            client.execute("INSERT INTO three VALUES (1)")
            client.execute("INSERT INTO three VALUES (1)")
        assert counted(other) == (8, 8, 9)
        with client.pipeline():  # BEGIN and COMMIT within it end what is before
            client.execute("INSERT INTO two VALUES (40)")
            client.execute("BEGIN")
            client.execute("INSERT INTO two VALUES (41)")
            client.execute("ROLLBACK")
            client.execute("INSERT INTO two VALUES (42)")
            client.execute("FLUSH")
        assert [a for (a,) in client.execute("SELECT a FROM two WHERE a >= 40 ORDER BY a")] == [40, 42]


def test_executemany_of_asyncpg_is_atomic(serving):
    served = serving("CREATE TABLE one (a int PRIMARY KEY, b int)")

    async def run() -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="ann", database="shop")
        sent = "INSERT INTO one VALUES ($1, $2)"
        await client.executemany(sent, [(i, i) for i in range(5)])
        for rows in (
            [(i, 2**31 if i == 7000 else 1) for i in range(9000)],
            [*[(i, 1) for i in range(5, 9000)], (1, "x")],
        ):
            with pytest.raises(asyncpg.DataError):
                await client.executemany(sent, rows)
        assert await client.fetchval("SELECT count(*) FROM one") == 5
        with pytest.raises(asyncpg.NotNullViolationError):
            await client.executemany(sent, [*[(i, 1) for i in range(5, 500)], (None, 1)])
        assert await client.fetchval("SELECT count(*) FROM one") == 5
        await client.executemany(sent, [(i, 1) for i in range(500, 1500)])
        assert await client.fetchval("SELECT count(*) FROM one") == 1005
        await client.close()

    asyncio.run(run())


def test_a_portal_that_has_not_run_is_moved(serving):
    served = serving()

    async def run() -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="ann", database="shop")
        async with client.transaction():
            cursor = await client.cursor("SELECT i FROM generate_series(0, 100) AS s(i) ORDER BY i")
            assert await cursor.forward(42) == 42
            assert await cursor.fetchrow() == (42,)
        await client.close()

    asyncio.run(run())


def test_parameters_of_functions_of_the_catalog(serving):
    served = serving()

    async def run() -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="ann", database="shop")
        assert await client.fetchval("SELECT current_setting($1)", "server_version_num") == "150000"
        assert await client.fetchval("SELECT pg_terminate_backend($1)", 99999) is False
        await client.execute("PREPARE one (int) AS SELECT $1 + 1")
        prepared = "SELECT name, parameter_types FROM pg_prepared_statements WHERE name = 'one'"
        assert await client.fetch(prepared) == [("one", ["integer"])]
        async with client.transaction():
            await client.execute("DECLARE c CURSOR FOR SELECT 1")
            assert await client.fetch("SELECT name, is_holdable FROM pg_cursors WHERE name = 'c'") == [("c", False)]
        assert await client.fetch("SELECT name FROM pg_cursors WHERE name = 'c'") == []
        await client.close()

    asyncio.run(run())


def test_functions_have_the_schema_of_postgresql(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        query = "SELECT pg_catalog.lower('A'), pg_catalog.count(t), pg_catalog.count(*), max(s) FROM t"
        assert client.execute(query).fetchone() == ("a", 1, 1, 30)
