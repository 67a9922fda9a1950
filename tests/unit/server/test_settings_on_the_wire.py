"""SET, SET LOCAL, set_config and current_setting, in transactions and outside of them."""

from __future__ import annotations

import psycopg
import pytest

SHOP = "CREATE SCHEMA s; CREATE TABLE s.t (a int)"


def shown(client: psycopg.Connection, name: str) -> str:
    return client.execute(f"SHOW {name}").fetchone()[0]


@pytest.fixture
def client(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "value"), [("search_path", "s"), ("application_name", "x"), ("statement_timeout", "7s")]
)
def test_what_is_local_ends_with_the_transaction(client, name, value):
    before = shown(client, name)
    for statement in (f"SET LOCAL {name} = '{value}'", f"SELECT set_config('{name}', '{value}', true)"):
        for end in ("COMMIT", "ROLLBACK"):
            client.execute("BEGIN")
            client.execute(statement)
            assert shown(client, name) == value
            client.execute(end)
            assert shown(client, name) == before
        client.execute(statement)  # a transaction of its own
        assert shown(client, name) == before
    client.execute(f"BEGIN; SET {name} = '{value}'; COMMIT")
    assert shown(client, name) == value


def test_what_was_set_in_a_transaction_that_was_rolled_back_is_as_before(client):
    client.execute("SET search_path = public; SET statement_timeout = '9s'")
    changes = "SET search_path = s; SET statement_timeout = '1s'; SET dialect = 'timeplus'"
    client.execute("BEGIN")
    client.execute(changes)
    client.execute("ROLLBACK")
    client.execute("BEGIN")
    client.execute(changes)
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("SELECT * FROM nothing")
    assert client.execute("COMMIT").statusmessage == "ROLLBACK"
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("SET search_path = s; SET statement_timeout = '1s'; SELECT * FROM nothing")
    assert [shown(client, n) for n in ("search_path", "statement_timeout", "dialect")] == ["public", "9s", "risingwave"]
    assert client.info.parameter_status("search_path") == "public"
    client.execute(changes.rpartition(";")[0])
    assert shown(client, "search_path") == "s"


def test_set_config_sets(client):
    client.prepare_threshold = 0
    found = client.execute("SELECT set_config(%s,%s,false)", ("application_name", "mine")).fetchone()
    assert found == ("mine",)
    assert shown(client, "application_name") == "mine"
    for name, failure in (
        ("nothing", psycopg.errors.UndefinedObject),
        ("role", psycopg.errors.UndefinedObject),
        ("statement_timeout", psycopg.errors.InvalidParameterValue),
    ):
        with pytest.raises(failure) as found:
            client.execute("SELECT set_config(%s,%s,false)", (name, "nobody"))
        assert found.value.diag.source_function in ("UNDEFINED_OBJECT", "INVALID_PARAMETER")


def test_a_server_that_only_reads_says_so(serving, tmp_path):
    served = serving(SHOP, connecting={"path": tmp_path / "shop"})
    reader = serving(connecting={"path": tmp_path / "shop", "read_only": True})
    for server, told in ((served, "off"), (reader, "on")):
        with server.connect(autocommit=True) as client:
            for name in ("transaction_read_only", "default_transaction_read_only"):
                assert shown(client, name) == told
    with reader.connect(autocommit=True) as client, pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as found:
        client.execute("INSERT INTO s.t VALUES (1)")
    assert "server that writes" in found.value.diag.message_hint


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SET max_result_size = 'x'", 'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".'),
        ("SET statement_timeout = 'x'", 'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".'),
        ("SET DateStyle = 'German'", 'It takes: "iso, mdy", iso, "iso, ymd", "iso, dmy".'),
        ("SELECT * FROM read_csv('x')", "Connect with allow_files = True, or serve with --allow-files."),
        ("REINDEX TABLE t", "REINDEX is not supported"),
        ("LOAD 'x'", "LOAD is not supported"),
        ("CHECKPOINT", "CHECKPOINT is not supported"),
    ],
)
def test_what_is_said_of_what_is_refused(client, statement, told):
    with pytest.raises(psycopg.Error) as found:
        client.execute(statement)
    assert told in (found.value.diag.message_hint, found.value.diag.message_primary)


def test_limits_of_a_user_hold_for_set_config(serving):
    served = serving("CREATE USER adam PASSWORD 'x' SUPERUSER; CREATE USER eve PASSWORD 'x'")
    with psycopg.connect(served.dsn.replace("someone", "adam"), password="x", autocommit=True) as adam:
        adam.execute("ALTER USER eve SET statement_timeout = '2min'")
    with psycopg.connect(served.dsn.replace("someone", "eve"), password="x", autocommit=True) as eve:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            eve.execute("SELECT set_config('statement_timeout', '3min', false)")
        assert shown(eve, "statement_timeout") == "2min"


def test_names_that_are_none(client):
    for query, failure in (
        ("SELECT current_setting('nothing')", psycopg.errors.UndefinedObject),
        ("SELECT 'nothing'::regclass", psycopg.errors.UndefinedTable),
        ("SELECT relname FROM pg_class WHERE oid = 'nothing'::regclass", psycopg.errors.UndefinedTable),
        ("SELECT 'nothing'::regtype", psycopg.errors.UndefinedObject),
        ("SELECT 'nothing'::regnamespace", psycopg.errors.UndefinedObject),
    ):
        with pytest.raises(failure, match="nothing"):
            client.execute(query)
    for query in ("current_setting('nothing', true)", "to_regclass('nothing')", "to_regtype('nothing')"):
        assert client.execute(f"SELECT {query}").fetchone() == (None,)
    assert client.execute("SELECT 's.t'::regclass, '23'::regtype").fetchone() == ("s.t", "integer")


@pytest.fixture
def postgres(serving):
    """A client of the variant with PostgreSQL's defaults."""
    with serving(SHOP).connect(autocommit=True, options="-c dialect=postgres") as client:
        yield client


def test_the_variant_has_defaults_of_postgresql(client, postgres):
    names = ("dialect", "primary_key_conflict", "rw_implicit_flush")
    assert [shown(client, n) for n in names] == ["risingwave", "overwrite", "false"]
    assert [shown(postgres, n) for n in names] == ["postgres", "error", "true"]
    postgres.execute("CREATE TABLE k (id int PRIMARY KEY); INSERT INTO k VALUES (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres.execute("INSERT INTO k VALUES (1)")
    postgres.execute("SET rw_implicit_flush = false; SET dialect = 'risingwave'; SET dialect = 'postgres'")
    assert shown(postgres, "rw_implicit_flush") == "false"
    postgres.execute("RESET rw_implicit_flush")
    assert shown(postgres, "rw_implicit_flush") == "true"
    client.execute("SET dialect = 'postgres'; CREATE TABLE l (id int PRIMARY KEY); SET dialect = 'risingwave'")
    assert client.execute("SHOW CREATE TABLE l").fetchone()[1].endswith("ON CONFLICT ERROR")


def test_the_variant_has_settings_of_the_clients_own(client, postgres):
    with pytest.raises(psycopg.errors.UndefinedObject):
        client.execute("SET app.tenant = '7'")
    unset = postgres.execute("SELECT current_setting('app.tenant', true)").fetchone()
    assert unset == (None,)
    with pytest.raises(psycopg.errors.UndefinedObject):
        postgres.execute("SELECT current_setting('app.tenant')")
    postgres.execute("SET app.Tenant = '7'")
    assert postgres.execute("SELECT current_setting('APP.tenant')").fetchone() == ("7",)
    assert shown(postgres, "app.tenant") == "7"
    postgres.execute("CREATE TABLE o (tenant varchar); INSERT INTO o VALUES ('7'), ('8')")
    assert postgres.execute("SELECT * FROM o WHERE tenant = current_setting('app.tenant')").fetchall() == [("7",)]
    assert postgres.execute("SELECT set_config('app.tenant', '8', true)").fetchone() == ("8",)
    assert shown(postgres, "app.tenant") == "7"
    with postgres.transaction():
        postgres.execute("SELECT set_config('app.tenant', '8', true), set_config('app.other', 'x', true)")
        assert postgres.execute("SELECT * FROM o WHERE tenant = current_setting('app.tenant')").fetchall() == [("8",)]
    assert [shown(postgres, n) for n in ("app.tenant", "app.other")] == ["7", ""]
    postgres.execute("RESET app.tenant")
    assert shown(postgres, "app.tenant") == ""


def test_set_config_of_a_role_lasts_as_long_as_the_transaction(postgres):
    postgres.execute("CREATE ROLE visitor; GRANT SELECT ON s.t TO visitor")
    with postgres.transaction():
        assert postgres.execute("SELECT set_config('role', 'visitor', true)").fetchone() == ("visitor",)
        assert postgres.execute("SELECT current_user").fetchone() == ("visitor",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), postgres.transaction():
            postgres.execute("INSERT INTO s.t VALUES (1)")
    postgres.execute("INSERT INTO s.t VALUES (1)")
    assert shown(postgres, "role") == "none"
