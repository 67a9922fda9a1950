"""Users of the server: what each may see and take, and what PostgreSQL's catalog tells of it."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from tests.unit.server.test_access import connected
from tests.unit.server.test_catalog_answers import psql

from watersmeet.server.clients import Limits
from watersmeet.system.passwords import Verifier

SHOP = """
CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 2);
CREATE TABLE hidden (a int); CREATE VIEW w AS SELECT a FROM hidden; CREATE MATERIALIZED VIEW v AS SELECT a FROM t;
CREATE ROLE analysts; CREATE USER ann PASSWORD 'x' IN ROLE analysts; CREATE USER bob PASSWORD 'x' IN ROLE writer;
CREATE USER adam PASSWORD 'x' SUPERUSER; GRANT SELECT ON v, w TO analysts; GRANT SELECT, INSERT ON t TO ann;
CREATE SCHEMA apart; CREATE TABLE apart.u (a int); FLUSH;
"""


def as_user(served, name: str, **options) -> psycopg.Connection:
    return psycopg.connect(served.dsn.replace("someone", name), password="x", autocommit=True, **options)


def test_privileges_as_postgresql_tells_them(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as client:
        one = client.execute(
            "SELECT current_user, session_user, has_table_privilege('t', 'INSERT'), has_table_privilege('t', 'DELETE'),"
            " has_table_privilege('v', 'SELECT'), has_table_privilege('analysts', 'v', 'INSERT, SELECT'),"
            " has_table_privilege('hidden', 'SELECT'), has_schema_privilege('public', 'CREATE'),"
            " pg_has_role('analysts', 'MEMBER'), pg_has_role('admin', 'USAGE')"
        ).fetchone()
        assert one == ("ann", "ann", True, False, True, True, None, False, True, False)
        names = "SELECT relname FROM pg_class c WHERE relkind IN ('r', 'v', 'm') ORDER BY 1"
        assert client.execute(names).fetchall() == [("t",), ("v",), ("w",)]
        assert client.execute("SELECT rolname FROM pg_roles ORDER BY 1").fetchall() == [
            (n,) for n in ("admin", "analysts", "ann", "pg_database_owner", "reader", "watersmeet", "writer")
        ]
        assert client.execute("SELECT nspname FROM pg_namespace WHERE nspname = 'apart'").fetchall() == []
        assert client.execute("SELECT definition FROM pg_views").fetchall() == [(None,)]
        assert client.execute("SELECT relacl FROM pg_class WHERE relname = 't'").fetchone() == (
            ["watersmeet=arwd/watersmeet", "ann=ar/watersmeet"],
        )
        grants = "SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges ORDER BY 1, 2, 3"
        assert client.execute(grants).fetchall() == [
            ("analysts", "v", "SELECT"),
            ("analysts", "w", "SELECT"),
            ("ann", "t", "INSERT"),
            ("ann", "t", "SELECT"),
        ]
        assert client.info.parameter_status("is_superuser") == "off"
    with as_user(served, "bob") as client:
        assert client.execute("SELECT has_table_privilege('hidden', 'DELETE, SELECT')").fetchone() == (True,)
        assert client.execute("SELECT definition FROM pg_views").fetchone()[0].startswith("SELECT")
        client.execute("CREATE TABLE made (a int)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("CREATE ROLE r")
    with as_user(served, "adam") as client:
        assert client.info.parameter_status("is_superuser") == "on"
        client.execute("SET ROLE ann")
        assert client.execute("SELECT current_user, session_user").fetchone() == ("ann", "adam")
        counted = (
            "SELECT current_user, session_user, 'getvariable(''session role'')' FROM (SELECT count(*) FROM t) AS c"
        )
        assert client.execute(counted).fetchone() == ("ann", "adam", "getvariable('session role')")
        assert client.execute("SHOW role").fetchone() == ("ann",)
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT * FROM hidden")
        client.execute("RESET ROLE")
        assert client.execute("SELECT * FROM hidden").fetchall() == []


def test_psql_shows_roles_and_privileges(serving, monkeypatch):
    served = serving(SHOP)
    monkeypatch.setenv("PGPASSWORD", "x")
    listed = psql(served, "\\du", user="adam").splitlines()
    assert "adam|Superuser, Create role, Bypass RLS|{admin}" in listed
    assert "ann||{analysts}" in listed
    privileges = psql(served, "\\dp", user="adam")
    assert "public|t|table|watersmeet=arwd/watersmeet\nann=ar/watersmeet||" in privileges
    verifier = str(Verifier.of("changed"))
    psql(served, f"ALTER USER adam PASSWORD '{verifier}'", user="adam")  # as `\password` sends it
    with psycopg.connect(served.dsn.replace("someone", "adam"), password="changed"):
        pass


def test_rights_that_are_taken_are_gone_at_once(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as client, as_user(served, "adam") as admin:
        assert client.execute("SELECT a FROM v", prepare=True).fetchall() == [(1,)]
        admin.execute("REVOKE SELECT ON v FROM analysts")
        for prepared in (True, False):
            with pytest.raises(psycopg.errors.UndefinedTable):
                client.execute("SELECT a FROM v", prepare=prepared)
        admin.execute("DROP USER ann")
        with pytest.raises(psycopg.errors.AdminShutdown, match='"ann" was dropped'):
            client.execute("SELECT a FROM t")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            as_user(served, "ann")


def test_users_set_their_own_password_alone(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as client:
        client.execute("ALTER USER ann PASSWORD 'new'")  # the connection goes on: it has set the password itself
        for sql in (
            "ALTER USER bob PASSWORD 'new'",
            "ALTER USER ann PASSWORD 'new' SUPERUSER",
            "ALTER USER ann LOGIN",
            "ALTER USER ann SET statement_timeout = 0",
            "ALTER USER ann RESET statement_timeout",
            "ALTER USER ann RESET ALL",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(sql)
        for role in ("bob", "admin", "nobody", "public"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(f"SET ROLE {role}")
        client.execute("SET ROLE analysts")
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT * FROM t")
    with psycopg.connect(served.dsn.replace("someone", "ann"), password="new", options="-c role=analysts") as client:
        assert client.execute("SELECT current_user").fetchone() == ("analysts",)


def test_limits_of_a_user(serving):
    served = serving(
        SHOP + "ALTER USER ann SET statement_timeout = '200ms'; ALTER USER ann SET max_result_size = '1MB';"
        "ALTER USER ann CONNECTION LIMIT 1; ALTER USER ann SET search_path = apart"
    )
    large = "SELECT repeat('x', 1000) FROM generate_series(1, 5000) AS g(i)"
    with as_user(served, "ann") as client:
        assert client.execute("SHOW statement_timeout").fetchone() == ("200ms",)
        assert client.execute("SHOW search_path").fetchone() == ("apart",)
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            client.execute(
                "SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y)"
                " WHERE x + y < 0"
            )
        for value in ("0", "'1min'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(f"SET statement_timeout = {value}")
        client.execute("SET statement_timeout = '100ms'")
        client.execute("RESET ALL")
        assert client.execute("SHOW statement_timeout").fetchone() == ("200ms",)
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too large"):
            client.execute(large)
        too_large = pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too large")
        with too_large, client.cursor().copy(f"COPY ({large}) TO STDOUT") as copy:
            list(copy)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("SET max_result_size = '2MB'")
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            as_user(served, "ann")
    assert connected(lambda: as_user(served, "ann"))
    with as_user(served, "bob") as client:
        client.execute("SET max_result_size = '3MB'")
        few = "SELECT repeat('x', 1000) FROM generate_series(1, 1000) AS g(i)"
        client.execute(f"DECLARE a CURSOR WITH HOLD FOR {few}")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="all together"):
            for name in "bcd":
                client.execute(f"DECLARE {name} CURSOR WITH HOLD FOR {few}")


def test_clients_see_and_end_their_own_connections(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as one, as_user(served, "ann") as two, as_user(served, "adam") as admin:
        pids = [c.execute("SELECT pg_backend_pid()").fetchone()[0] for c in (one, two, admin)]
        seen = "SELECT pid FROM pg_stat_activity WHERE usename = %s ORDER BY pid"
        assert one.execute(seen, ("ann",)).fetchall() == [(pids[0],), (pids[1],)]
        assert one.execute(seen, ("adam",)).fetchall() == []
        assert admin.execute("SELECT count(*) FROM pg_stat_activity").fetchone() == (3,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            one.execute("SELECT pg_terminate_backend(%s)", (pids[2],))
        assert one.execute("SELECT pg_cancel_backend(999999)").fetchone() == (False,)
        failures = []

        def run() -> None:
            try:
                two.execute("SELECT count(*) FROM generate_series(1, 100000) a(x), generate_series(1, 100000) b(y)"
                            " WHERE x + y < 0")  # fmt: skip
            except psycopg.Error as err:
                failures.append(err.sqlstate)

        thread = threading.Thread(target=run)
        thread.start()
        until = time.monotonic() + 30
        while thread.is_alive() and time.monotonic() < until:
            one.execute("SELECT pg_cancel_backend(%s)", (pids[1],))
            time.sleep(0.1)
        thread.join(30)
        assert failures == ["57014"]
        assert admin.execute("SELECT pg_terminate_backend(%s)", (pids[1],)).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            two.execute("SELECT 1")


def test_admins_come_in_when_all_places_are_taken(serving):

    served = serving(SHOP, limits=Limits(connections=1))
    with as_user(served, "ann"):
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            as_user(served, "bob")
        with as_user(served, "adam") as admin:
            assert admin.execute("SELECT 1").fetchone() == (1,)
