"""Roles: who may run which statement, and what is there for whom."""

from __future__ import annotations

import random
import re

import pytest
from tests.thorough import mostly_slow

import watersmeet
from watersmeet import Error
from watersmeet.catalog.roles import WRITER
from watersmeet.dialects.readers import load_features
from watersmeet.session.handlers import HANDLERS
from watersmeet.system.passwords import Verifier
from watersmeet.system.secretvalues import revealed
from watersmeet.values import DIALECTS

SHOP = """
CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 2);
CREATE TABLE hidden (a int, secret varchar); INSERT INTO hidden VALUES (1, 'x');
CREATE SCHEMA apart; CREATE TABLE apart.t2 (a int);
CREATE MATERIALIZED VIEW v AS SELECT sum(b) AS s FROM t;
CREATE VIEW w AS SELECT a, secret FROM hidden;
CREATE INDEX i ON t (b);
CREATE ROLE analysts; CREATE USER ann PASSWORD 'secret' IN ROLE analysts;
CREATE USER wendy PASSWORD 'secret' IN ROLE writer; CREATE USER rita IN ROLE reader PASSWORD 'secret';
CREATE USER adam PASSWORD 'secret' SUPERUSER;
GRANT SELECT ON v, w TO analysts;
FLUSH;
"""


@pytest.fixture
def connection():
    with watersmeet.connect(runtime="inprocess") as connection:
        for _ in connection.execute_script(SHOP):
            pass
        yield connection


def refused(connection, sql: str) -> str:
    """The name of the error of a statement, empty without one."""
    try:
        cursor = connection.execute(sql)
        if cursor.description:
            cursor.fetchmany(1)
        cursor.close()
    except Error as err:
        return err.condition
    return ""


def acting(connection, role: str, *statements: str) -> list[str]:
    connection.execute(f"SET ROLE {role}")
    try:
        return [refused(connection, sql) for sql in statements]
    finally:
        connection.execute("RESET ROLE")


STATEMENTS = {
    "SELECT * FROM v": "reader",
    "SELECT * FROM w": "reader",
    "SELECT * FROM t": "reader",
    "EXPLAIN SELECT * FROM t": "reader",
    "SHOW JOBS": "reader",
    "SHOW DEAD LETTERS": "reader",
    "COPY t TO '/nowhere/t.csv'": "admin",
    "INSERT INTO t VALUES (7, 7)": "writer",
    "UPDATE t SET b = 8 WHERE a = 7": "writer",
    "DELETE FROM t WHERE a = 7": "writer",
    "CREATE TABLE made (a int)": "writer",
    "ALTER TABLE made ADD COLUMN b int": "writer",
    "CREATE MATERIALIZED VIEW made_view AS SELECT * FROM made": "writer",
    "EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT * FROM t": "writer",
    "DROP TABLE made CASCADE": "writer",
    "CREATE FUNCTION plus(a int) RETURNS int LANGUAGE SQL AS 'SELECT a + 1'": "writer",
    "CREATE SCHEMA s": "writer",
    "SHOW PARAMETERS": "writer",
    "SHOW SECRETS": "writer",
    "CREATE SECRET s WITH (backend = 'meta') AS 'x'": "admin",
    "DROP SECRET s": "admin",
    "CREATE SOURCE src (a int) WITH (connector = 'datagen')": "admin",
    "CREATE TABLE src (a int) WITH (connector = 'datagen')": "admin",
    "CREATE SINK k FROM t WITH (connector = 'kafka')": "admin",
    "CREATE CONNECTION c WITH (type = 'kafka')": "admin",
    "CREATE ROLE r": "admin",
    "ALTER ROLE r LOGIN": "admin",
    "GRANT SELECT ON t TO r": "admin",
    "GRANT reader TO r": "admin",
    "REVOKE SELECT ON t FROM r": "admin",
    "DROP ROLE r": "admin",
    "SELECT 1": "",
    "BEGIN": "",
    "COMMIT": "",
    "FLUSH": "",
    "SHOW TABLES": "",
    "SHOW ROLES": "",
    "SHOW GRANTS": "",
    "SHOW ALL": "",
    "SET application_name = 'x'": "",
    "DESCRIBE v": "reader",
}


def test_each_fixed_role_has_the_rights_of_those_below_it(connection):
    order = ["", "reader", "writer", "admin"]
    connection.execute("CREATE USER nobody PASSWORD 'x'")
    for user, level in (("nobody", 0), ("rita", 1), ("wendy", 2), ("adam", 3)):
        found = acting(connection, user, *STATEMENTS)
        for (sql, needed), condition in zip(STATEMENTS.items(), found, strict=True):
            allowed = level >= order.index(needed)
            if level == 0 and needed == "reader":
                assert condition in ("PERMISSION_DENIED", "UNDEFINED_RELATION"), (user, sql)
            elif allowed:
                assert condition not in ("PERMISSION_DENIED", "UNDEFINED_RELATION"), (user, sql, condition)
            elif level:
                assert condition == "PERMISSION_DENIED", (user, sql, condition)
            else:
                assert condition in ("PERMISSION_DENIED", "UNDEFINED_RELATION"), (user, sql, condition)


def test_every_statement_has_a_role_that_may_run_it():
    """A statement that does not say which role it takes takes `writer`: a new statement is looked at here."""
    load_features()
    writers = {kind.__name__ for kind in HANDLERS if kind.takes == WRITER}
    assert writers == {
        "AddConstraint", "DropConstraint", "RenameConstraint",
        "AddColumn", "AlterColumn", "AlterDomain", "AlterEnum", "AlterPump", "AlterQuery", "AlterRetention",
        "AlterSequence",
        "AlterWithoutEffect", "CancelJobs", "CastBetween", "CreateDomain", "CreateEnum", "CreateFunction",
        "Comment", "CreateIndex",
        "CreateMaterializedView",
        "CreateMergingPump", "CreateProcessor", "CreatePump", "CreateRandomStream", "CreateReceivedSource",
        "CreateReceivedTable", "CreateSchema",
        "CreateSequence", "CreateSource", "CreateStream",
        "CreateSubscription",
        "CreateTable", "CreateTopic", "CreateView", "Drop", "DropColumn", "DropFunction", "DropSchema", "Explain",
        "LimitSink", "SetViewOption", "PauseView", "RedefineView",
        "Merge", "Recover", "RefreshSchema", "RefreshView", "RenameColumn", "RenameRelation", "RenameSchema",
        "ResetStream", "Show",
        "SetSchema", "StartProcessor", "StartSink", "StopProcessor", "Subscribe", "SwapNames", "TruncateStream",
        "Unsubscribe",
    }  # fmt: skip


def test_what_is_not_granted_is_not_there(connection):
    connection.execute("SET ROLE ann")
    assert connection.execute("SELECT s FROM v").fetchall() == [(2,)]
    assert connection.execute("SELECT secret FROM w").fetchall() == [("x",)]
    for sql in (
        "SELECT * FROM t",
        "SELECT * FROM hidden",
        "DESCRIBE t",
        "SHOW CREATE TABLE t",
        "INSERT INTO t VALUES (1)",
    ):
        with pytest.raises(Error) as found:
            connection.execute(sql)
        assert found.value.condition == "UNDEFINED_RELATION"
        other = sql.replace(" hidden", " gone").replace(" t", " gone")
        with pytest.raises(Error) as same:
            connection.execute(other)
        assert (
            str(same.value).replace("gone", "X").splitlines()[0]
            == str(found.value).replace('"t"', '"X"').replace('"hidden"', '"X"').splitlines()[0]
        )
    with pytest.raises(Error) as found:
        connection.execute("SELECT * FROM hiden")
    assert found.value.hint is None
    assert {r[0] for r in connection.execute("SHOW RELATIONS").fetchall()} == {"v", "w"}
    assert connection.execute("SHOW TABLES").fetchall() == []
    assert connection.execute("SHOW SCHEMAS").fetchall() == [("public",)]
    assert connection.execute("SHOW ROLES").fetchall() == [
        ("analysts", "false", "", ""),
        ("ann", "true", "analysts", ""),
    ]
    for sql in (
        "SHOW CREATE VIEW w",
        "EXPLAIN SELECT * FROM w",
        "EXPLAIN ANALYZE SELECT * FROM w",
        "EXPLAIN ANALYZE v",
    ):
        with pytest.raises(Error, match="not granted"):
            connection.execute(sql)
    connection.execute("RESET ROLE")
    connection.execute("GRANT SELECT ON hidden TO ann")
    connection.execute("SET ROLE ann")
    assert "hidden" in connection.execute("SHOW CREATE VIEW w").fetchone()[1]
    assert connection.execute("EXPLAIN SELECT * FROM w").fetchall()


def test_privileges_of_changes(connection):
    connection.execute("GRANT INSERT ON t TO ann")
    assert acting(
        connection,
        "ann",
        "INSERT INTO t VALUES (5, 5)",
        "INSERT INTO t VALUES (5, 5) RETURNING a",
        "INSERT INTO t VALUES (6, 6), (5, 7)",
        "SELECT * FROM t",
        "UPDATE t SET b = 1",
        "DELETE FROM t",
    ) == ["", *["PERMISSION_DENIED"] * 5]
    connection.execute("FLUSH")
    assert connection.execute("SELECT b FROM t WHERE a >= 5").fetchall() == [(5,)]
    connection.execute("GRANT UPDATE ON t TO ann")
    assert acting(connection, "ann", "INSERT INTO t VALUES (5, 8)") == [""], "it replaces the row"
    connection.execute("REVOKE UPDATE ON t FROM ann")
    connection.execute("GRANT ALL ON TABLE t TO ann")
    connection.execute("REVOKE INSERT ON t FROM ann")
    assert acting(
        connection, "ann", "INSERT INTO t VALUES (6, 6)", "SELECT * FROM t", "UPDATE t SET b = 1", "DELETE FROM t"
    ) == ["PERMISSION_DENIED", "", "", ""]
    connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA apart TO PUBLIC")
    assert acting(connection, "ann", "SELECT * FROM apart.t2") == [""]
    assert ("public", "apart.t2", "SELECT") in connection.execute("SHOW GRANTS").fetchall()


@pytest.mark.parametrize("key", ["", " PRIMARY KEY (k)"])
def test_rows_of_a_changelog_that_delete_take_the_privilege(connection, key):
    connection.execute("SET dialect = 'timeplus'")
    connection.execute(f"CREATE STREAM c (k int, v int){key} SETTINGS mode = 'changelog{'_kv' if key else ''}'")
    connection.execute("GRANT INSERT ON c TO ann")
    added, deleted = (
        "INSERT INTO c (k, v, _tp_delta) VALUES (1, 1, 1)",
        "INSERT INTO c (k, v, _tp_delta) VALUES (1, 1, -1)",
    )
    assert acting(connection, "ann", added, deleted) == ["", "PERMISSION_DENIED"]
    connection.execute("GRANT UPDATE, DELETE ON c TO ann")
    assert acting(connection, "ann", deleted) == [""]


def test_grants_follow_names_and_replaced_relations_and_go_with_what_is_dropped(connection):
    connection.execute("ALTER MATERIALIZED VIEW v RENAME TO renamed")
    assert acting(connection, "ann", "SELECT * FROM renamed") == [""]
    connection.execute("CREATE OR REPLACE MATERIALIZED VIEW renamed AS SELECT sum(b) + 1 AS s FROM t")
    assert acting(connection, "ann", "SELECT * FROM renamed") == [""]
    connection.execute("DROP MATERIALIZED VIEW renamed")
    connection.execute("CREATE MATERIALIZED VIEW renamed AS SELECT sum(b) AS s FROM t")
    assert acting(connection, "ann", "SELECT * FROM renamed") == ["UNDEFINED_RELATION"]


def test_roles_are_part_of_transactions_and_stay(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
        connection.execute("BEGIN")
        connection.execute("CREATE USER ann PASSWORD 'secret' CONNECTION LIMIT 2")
        connection.execute("CREATE TABLE u (a int)")
        connection.execute("GRANT SELECT ON t, u TO ann")
        assert connection.opened.catalog.roles == {}
        connection.execute("ROLLBACK")
        assert connection.opened.catalog.roles == {}
        connection.execute("BEGIN")
        connection.execute("CREATE USER ann PASSWORD 'secret' CONNECTION LIMIT 2")
        connection.execute("CREATE TABLE u (a int)")
        connection.execute("GRANT SELECT ON t, u TO ann")
        connection.execute("COMMIT")
        connection.execute("ALTER ROLE ann SET statement_timeout = '3s'")
    text = "".join(p.read_text(errors="replace") for p in (tmp_path / "db" / "catalog").iterdir())
    assert "ann" in text
    assert "secret'" not in text
    assert "SCRAM" not in text
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        role = connection.opened.catalog.roles["ann"]
        assert (role.connections, role.settings, len(role.grants)) == (2, {"statement_timeout": "3s"}, 2)
        assert Verifier.read(revealed(role.verifier)).accepts("secret")
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            connection.execute("REVOKE SELECT ON u FROM ann")
            reader.execute("SET ROLE ann")
            assert refused(reader, "SELECT * FROM t") == ""
            assert refused(reader, "SELECT * FROM u") == "UNDEFINED_RELATION"
            assert refused(reader, "INSERT INTO t VALUES (1)") == "READ_ONLY_SESSION"


def test_memberships(connection):
    connection.execute("CREATE ROLE small; CREATE ROLE large; GRANT small TO large; GRANT large TO ann")
    connection.execute("GRANT SELECT ON t TO small")
    assert acting(connection, "ann", "SELECT * FROM t") == [""]
    assert refused(connection, "GRANT ann TO small") == "INVALID_PARAMETER"
    assert refused(connection, "GRANT small TO small") == "INVALID_PARAMETER"
    connection.execute("DROP ROLE large")
    assert acting(connection, "ann", "SELECT * FROM t") == ["UNDEFINED_RELATION"]
    connection.execute("ALTER ROLE ann RENAME TO anna")
    connection.execute("GRANT admin TO anna")
    assert acting(connection, "anna", "SELECT * FROM hidden", "CREATE ROLE x") == ["", ""]


REFUSED = {
    "CREATE USER ann": "DUPLICATE_OBJECT",
    "CREATE ROLE admin": "INVALID_NAME",
    "CREATE ROLE public": "INVALID_NAME",
    "CREATE ROLE watersmeet": "INVALID_NAME",
    "CREATE ROLE r CREATEDB": "FEATURE_NOT_SUPPORTED",
    "CREATE ROLE r VALID UNTIL '2030-01-01'": "FEATURE_NOT_SUPPORTED",
    "CREATE ROLE r PASSWORD 'md5d41d8cd98f00b204e9800998ecf8427e'": "FEATURE_NOT_SUPPORTED",
    "CREATE ROLE r PASSWORD 'SCRAM-SHA-256$1:x'": "INVALID_PARAMETER",
    "CREATE ROLE r SOMETHING": "SYNTAX_ERROR",
    "ALTER ROLE nobody LOGIN": "UNDEFINED_OBJECT",
    "ALTER ROLE admin LOGIN": "INVALID_NAME",
    "ALTER ROLE ann SET statement_timeout = 'x'": "INVALID_PARAMETER",
    "ALTER ROLE ann SET no_such_thing = 1": "UNDEFINED_OBJECT",
    "ALTER ROLE ann IN DATABASE d SET x = 1": "FEATURE_NOT_SUPPORTED",
    "DROP ROLE nobody": "UNDEFINED_OBJECT",
    "DROP ROLE reader": "INVALID_NAME",
    "GRANT SELECT ON nothing TO ann": "UNDEFINED_RELATION",
    "GRANT SELECT ON i TO ann": "CATALOG_TYPE_MISMATCH",
    "GRANT SELECT ON t TO nobody": "UNDEFINED_OBJECT",
    "GRANT SELECT ON t TO admin": "INVALID_NAME",
    "GRANT SELECT (a) ON t TO ann": "FEATURE_NOT_SUPPORTED",
    "GRANT TRUNCATE ON t TO ann": "FEATURE_NOT_SUPPORTED",
    "GRANT INSERT ON SCHEMA public TO ann": "FEATURE_NOT_SUPPORTED",
    "REVOKE ALL ON DATABASE dev FROM ann": "FEATURE_NOT_SUPPORTED",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT ON TABLES FROM ann": "FEATURE_NOT_SUPPORTED",
    "REVOKE USAGE ON SCHEMA public FROM ann": "FEATURE_NOT_SUPPORTED",
    "GRANT SELECT ON t TO ann WITH GRANT OPTION": "FEATURE_NOT_SUPPORTED",
    "GRANT analysts TO ann WITH ADMIN OPTION": "FEATURE_NOT_SUPPORTED",
    "REVOKE GRANT OPTION FOR SELECT ON t FROM ann": "FEATURE_NOT_SUPPORTED",
    "GRANT SELECT ON ALL TABLES IN SCHEMA nowhere TO ann": "UNDEFINED_OBJECT",
    "SET ROLE nobody": "UNDEFINED_OBJECT",
    "SET LOCAL ROLE nobody": "UNDEFINED_OBJECT",
}


def test_what_is_refused(connection):
    assert {sql: refused(connection, sql) for sql in REFUSED} == REFUSED


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_statements_are_the_same_in_every_dialect(connection, dialect):
    connection.execute(f"SET dialect = '{dialect}'")
    connection.execute("CREATE USER Olga WITH ENCRYPTED PASSWORD 'x' NOSUPERUSER INHERIT; GRANT SELECT ON v TO olga")
    upper = "`Upper`" if dialect == "lenses" else '"Upper"'
    connection.execute(f"ALTER USER olga CONNECTION LIMIT 3; CREATE ROLE {upper}; GRANT {upper} TO OLGA")
    assert ("olga", "true", "Upper", "3") in connection.execute("SHOW ROLES").fetchall()
    connection.execute("SET ROLE olga")
    assert connection.execute("SHOW GRANTS").fetchall() == [("olga", "v", "SELECT")]
    connection.execute("RESET ROLE; REVOKE SELECT ON v FROM olga; DROP USER olga; DROP ROLE IF EXISTS olga")


def test_a_local_role_ends_with_the_transaction(connection):
    def who() -> str:
        return connection.execute("SELECT current_user").fetchone()[0]

    before = who()
    for end in ("COMMIT", "ROLLBACK"):
        connection.execute("BEGIN; SET LOCAL ROLE ann")
        assert who() == "ann"
        connection.execute(end)
        assert who() == before
    connection.execute("BEGIN; SET LOCAL ROLE ann; SET LOCAL ROLE NONE; SET LOCAL ROLE ann; COMMIT")
    assert who() == before
    connection.execute("SET LOCAL ROLE ann")  # a transaction of its own
    assert who() == before
    connection.execute("BEGIN; SET LOCAL ROLE ann; SET ROLE ann; COMMIT")
    assert who() == "ann"


def test_rollback_to_a_savepoint_restores_role_and_variables(connection):
    def now() -> tuple[str, ...]:
        found = connection.execute("SELECT current_user").fetchone()
        return (*found, *connection.execute("SHOW statement_timeout").fetchone())

    before = now()
    connection.execute("BEGIN; SET LOCAL ROLE ann; SET statement_timeout = '1s'")
    inside = now()
    assert inside != before
    connection.execute("SAVEPOINT s; RESET ROLE; SET LOCAL statement_timeout = '2s'")
    assert now()[0] == before[0]
    connection.execute("ROLLBACK TO s")
    assert now() == inside
    connection.execute("SET statement_timeout = '3s'; SET ROLE ann; ROLLBACK TO s; COMMIT")
    assert now() == (before[0], inside[1])


def test_subscribers_take_the_privilege_to_read(connection):
    connection.execute("GRANT INSERT ON t TO ann")
    connection.execute("SET ROLE ann")
    with connection.subscribe("v") as subscriber:
        assert next(iter(subscriber)) is not None
    for name, condition in (("t", "PERMISSION_DENIED"), ("hidden", "UNDEFINED_RELATION")):
        with pytest.raises(Error) as found:
            connection.subscribe(name)
        assert found.value.condition == condition


@pytest.mark.parametrize(
    "statement",
    [
        "GRANT USAGE ON SCHEMA public TO ann",
        "GRANT CREATE ON SCHEMA public TO ann WITH GRANT OPTION GRANTED BY current_user",
        "GRANT ALL PRIVILEGES ON DATABASE dev TO ann",
        "GRANT USAGE ON SECRET s TO ann",
        "GRANT SELECT ON ALL SUBSCRIPTIONS IN SCHEMA public TO ann",
        "REVOKE CREATE ON SCHEMA public FROM ann",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO ann",
    ],
)
def test_privileges_on_other_objects_are_taken_with_a_notice(connection, statement):
    cursor = connection.execute(statement)
    assert any("no effect" in notice for notice in cursor.notices)
    assert connection.execute("SHOW GRANTS LIKE 'ann'").fetchall() == []


def test_privileges_on_all_relations_of_a_kind(connection):
    connection.execute("GRANT SELECT ON ALL MATERIALIZED VIEWS IN SCHEMA public TO ann GRANTED BY current_user")
    found = {row[1] for row in connection.execute("SHOW GRANTS LIKE 'ann'").fetchall()}
    shown = {row[0] for row in connection.execute("SHOW MATERIALIZED VIEWS").fetchall()}
    assert found == shown != set()


QUERIES = (
    "SELECT * FROM {}",
    "SELECT count(*) FROM {} x JOIN {} y ON true",
    "DESCRIBE {}",
    "SHOW CREATE TABLE {}",
    "SHOW CREATE VIEW {}",
    "SHOW COLUMNS FROM {}",
    "EXPLAIN SELECT * FROM {}",
    "SHOW TABLES",
    "SHOW VIEWS",
    "SHOW MATERIALIZED VIEWS",
    "SHOW INDEXES",
    "SHOW RELATIONS",
    "SHOW SCHEMAS",
    "SHOW TABLES FROM apart",
    "SELECT * FROM apart.{}",
    "WITH q AS (SELECT * FROM {}) SELECT * FROM q",
    "SELECT (SELECT count(*) FROM {})",
    "INSERT INTO {} SELECT * FROM {}",
    "SELECT x.nothing FROM {} x",
)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 1, 2))
def test_others_relations_change_nothing_that_is_seen(seed):
    """A user sees the same in a database with relations that are not granted as in one without them."""
    rng = random.Random(seed)
    names = [f"r{i}" for i in range(6)]
    granted = set(rng.sample(names, 3))
    schemas = {n: rng.choice(("", "apart.")) for n in names}
    outcomes = []
    for whole in (True, False):
        with watersmeet.connect(runtime="inprocess") as connection:
            connection.execute("CREATE SCHEMA apart; CREATE USER u PASSWORD 'x'")
            for name in [n for n in names if whole or n in granted]:
                place = schemas[name] + name
                connection.execute(f"CREATE TABLE {place} (a int); INSERT INTO {place} VALUES ({len(place)})")
                connection.execute(f"CREATE INDEX i{name} ON {place} (a)")
                if name in granted:
                    connection.execute(f"GRANT SELECT ON {place} TO u")
            connection.execute("FLUSH")
            connection.execute("SET ROLE u")
            draw = random.Random(seed)
            outcomes.append([outcome(connection, draw, [*names, "r9", "R1", "q"]) for _ in range(60)])
    assert outcomes[0] == outcomes[1]


#: DuckDB's plans name tables by their numbers.
TABLE_NUMBER = re.compile(r"(?<=_watersmeet\.t)\d+ *")


def outcome(connection, rng: random.Random, names: list[str]) -> tuple:
    query = rng.choice(QUERIES)
    sql = query.format(*[rng.choice(names) for _ in range(query.count("{}"))])
    try:
        return sql, [TABLE_NUMBER.sub("", repr(row)) for row in sorted(connection.execute(sql).fetchall(), key=repr)]
    except Error as err:
        return sql, str(err)
