"""What tools ask PostgreSQL's catalog."""

from __future__ import annotations

import shutil
import subprocess

import psycopg
import pytest
import sqlalchemy as sa

SHOP = """
CREATE TABLE t (id int, k varchar, name varchar NOT NULL, x numeric(10, 2), a int[], at timestamptz,
                PRIMARY KEY (id, k));
CREATE SCHEMA other;
CREATE TABLE other.u (a int);
CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS n FROM t GROUP BY name;
CREATE VIEW w AS SELECT id FROM t;
CREATE INDEX i ON t(name);
CREATE FUNCTION plus(a int, b int) RETURNS int LANGUAGE SQL AS 'SELECT a + b';
"""

PSQL = shutil.which("psql")


def psql(served, *commands, form="-XAt", user="someone"):
    arguments = [part for c in commands for part in ("-c", c)]
    command = [PSQL, form, served.dsn.replace("someone", user), *arguments]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.skipif(PSQL is None, reason="psql is not installed")
def test_psql(serving):
    served = serving(SHOP)
    assert psql(served, "\\d").splitlines() == [
        "public|t|table|watersmeet",
        "public|v|materialized view|watersmeet",
        "public|w|view|watersmeet",
    ]
    assert psql(served, "\\d t").splitlines() == [
        "id|integer||not null|",
        "k|character varying||not null|",
        "name|character varying||not null|",
        "x|numeric(10,2)|||",
        "a|integer[]|||",
        "at|timestamp with time zone|||",
    ]
    footers = 'Indexes:\n    "t_pkey" PRIMARY KEY, btree (id, k)\n    "i" btree (name)'
    assert footers in psql(served, "\\d t", form="-XA")
    assert psql(served, "\\d v", "\\d+ w").splitlines()[:2] == [
        "name|character varying|||",
        "n|bigint|||",
    ]
    assert psql(served, "\\l").startswith("shop|watersmeet|UTF8|")
    assert psql(served, "\\du").splitlines() == [
        "admin|Superuser, Create role, Cannot login, Bypass RLS|{}",
        "reader|Cannot login|{}",
        "someone|Superuser, Create role, Bypass RLS|{}",
        "watersmeet|Superuser, Create role, Cannot login, Bypass RLS|{}",
        "writer|Cannot login|{}",
    ]
    assert psql(served, "\\df") == "public|plus|integer|a integer, b integer|func\n"
    assert psql(served, "\\dm") == "public|v|materialized view|watersmeet\n"
    assert psql(served, "\\dn").split() == ["other|watersmeet", "public|pg_database_owner"]
    assert psql(served, "\\di").splitlines() == ["public|i|index|watersmeet|t", "public|t_pkey|index|watersmeet|t"]
    assert psql(served, "\\sf plus").startswith("CREATE FUNCTION plus")
    for command in ("\\dt *.*", "\\d+ t", "\\dT", "\\dp", "\\dx", "\\des", "\\dew", "\\dC", "\\dRp", "\\dy", "\\db"):
        psql(served, command)


def test_sqlalchemy_reflects_all_relations(serving):
    served = serving(SHOP)
    engine = sa.create_engine(f"postgresql+psycopg://someone@127.0.0.1:{served.server.port}/shop")
    inspector = sa.inspect(engine)
    assert inspector.get_schema_names() == ["information_schema", "other", "public"]
    assert inspector.get_table_names() == ["t"]
    assert inspector.get_table_names(schema="other") == ["u"]
    assert inspector.get_view_names() == ["w"]
    assert inspector.get_materialized_view_names() == ["v"]
    assert inspector.has_table("t")
    assert not inspector.has_table("nothing")
    found = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns("t")}
    assert found == {
        "id": ("INTEGER", False),
        "k": ("VARCHAR", False),
        "name": ("VARCHAR", False),
        "x": ("NUMERIC(10, 2)", True),
        "a": ("ARRAY", True),
        "at": ("TIMESTAMP", True),
    }
    assert inspector.get_pk_constraint("t")["constrained_columns"] == ["id", "k"]
    assert [(x["name"], x["column_names"]) for x in inspector.get_indexes("t")] == [("i", ["name"])]
    assert inspector.get_foreign_keys("t") == inspector.get_check_constraints("t") == inspector.get_enums() == []
    meta = sa.MetaData()
    meta.reflect(engine, views=True)
    assert sorted(meta.tables) == ["t", "v", "w"]
    with engine.begin() as client:
        client.execute(meta.tables["t"].insert().values(id=1, k="a", name="n", a=[1]))
        with client.begin_nested() as nested:
            client.execute(meta.tables["t"].insert().values(id=2, k="a", name="n"))
            nested.rollback()
        assert client.execute(sa.select(meta.tables["t"].c.id)).all() == [(1,)]
    engine.dispose()


def test_what_a_session_is(serving):
    with serving(SHOP).connect() as client:
        query = "SELECT current_user, current_database(), current_schema(), pg_backend_pid(), version()"
        *who, pid, version = client.execute(query).fetchone()
        assert who == ["someone", "shop", "public"]
        assert pid == client.info.backend_pid
        assert version.startswith("PostgreSQL 15")
        assert client.execute("SELECT current_schemas(true)").fetchone() == (["pg_catalog", "public"],)
        assert client.execute("SELECT current_setting('server_version_num')").fetchone() == ("150000",)
        assert client.execute("SELECT 't'::regclass, 'other.u'::regclass, 23::regtype").fetchone() == (
            "t",
            "other.u",
            "integer",
        )
        assert client.execute("SELECT relname FROM pg_class WHERE oid = %s::regclass", ("t",)).fetchone() == ("t",)
        assert client.execute("SELECT * FROM pg_publication").fetchall() == []


def test_names_of_types_by_their_numbers(serving):
    named = {
        (16, 0): "boolean",
        (1043, 14): "character varying(10)",
        (1043, -1): "character varying",
        (1700, 655366): "numeric(10,2)",
        (1184, 3): "timestamp(3) with time zone",
        (1083, 0): "time(0) without time zone",
        (1015, 9): "character varying(5)[]",
        (0, -1): "-",
        (99999, -1): "???",
    }
    with serving().connect() as client:
        calls = ", ".join(f"format_type({number}, {modifier})" for number, modifier in named)
        assert client.execute(f"SELECT {calls}, format_type(NULL, 1)").fetchone() == (*named.values(), None)


def test_several_arrays_are_unnested_together(serving):
    with serving("CREATE TABLE t (a int, b int, c int); CREATE INDEX i ON t (c, a)").connect() as client:
        query = """
            SELECT relname, key, option, place FROM pg_class, pg_index,
                unnest(indkey, indoption) WITH ORDINALITY k (key, option, place)
            WHERE pg_class.oid = indexrelid AND relname = 'i' ORDER BY place"""
        assert client.execute(query).fetchall() == [("i", 3, 0, 1), ("i", 1, 0, 2)]
        rows = client.execute("SELECT * FROM pg_index, unnest(indkey, indkey) AS k WHERE indexrelid = 'i'::regclass")
        assert sorted(r[-2:] for r in rows.fetchall()) == [(1, 1), (3, 3)]


def test_patterns_and_what_views_depend_on(serving):
    with serving(SHOP + "CREATE TABLE a_b (a int); CREATE TABLE axb (a int)").connect() as client:
        for like in ("LIKE", "OPERATOR(pg_catalog.~~)", "ILIKE"):
            found = client.execute(f"SELECT relname FROM pg_class WHERE relname {like} 'a\\_%'").fetchall()
            assert found == [("a_b",)]
        assert len(client.execute("SELECT 1 FROM pg_class WHERE relname LIKE 'a!_b' ESCAPE '!'").fetchall()) == 1
        query = """
            SELECT v.relname, t.relname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
            JOIN pg_class v ON v.oid = r.ev_class JOIN pg_class t ON t.oid = d.refobjid
            WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
              AND d.deptype = 'n' ORDER BY 1"""
        assert client.execute(query).fetchall() == [("v", "t"), ("w", "t")]


def test_what_cannot_be_answered_is_an_error(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        with pytest.raises(psycopg.errors.UndefinedTable, match="pg_no_such"):
            client.execute("SELECT * FROM pg_catalog.pg_no_such")
        with pytest.raises(psycopg.errors.UndefinedFunction, match="pg_no_such_function"):
            client.execute("SELECT pg_no_such_function(oid) FROM pg_class")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="this query of the catalog"):
            client.execute("SELECT relname + 1 FROM pg_class")


def test_relations_of_users_come_before_those_of_the_catalog(serving):
    served = serving("CREATE TABLE pg_class (mine int); INSERT INTO pg_class VALUES (7)")
    with served.connect() as client:
        assert client.execute("SELECT * FROM pg_class").fetchall() == [(7,)]
        assert len(client.execute("SELECT * FROM pg_catalog.pg_class").description) == 33


def test_the_catalog_follows_definitions(serving):
    with serving().connect() as client:
        count = "SELECT count(*) FROM pg_catalog.pg_class WHERE relname = 'made'"
        assert client.execute(count).fetchone() == (0,)
        client.execute("CREATE TABLE made (a int)")
        assert client.execute(count).fetchone() == (1,)
        client.rollback()
        assert client.execute(count).fetchone() == (0,)


def test_comments_are_described(serving):
    served = serving("CREATE TABLE t (a int, b int); COMMENT ON TABLE t IS 'all'; COMMENT ON COLUMN t.b IS 'second'")
    with served.connect() as client:
        described = "SELECT obj_description('t'::regclass, 'pg_class'), col_description('t'::regclass, 2)"
        assert client.execute(described).fetchall() == [("all", "second")]
        assert client.execute(described.replace("2)", "1)")).fetchall() == [("all", None)]
        listed = "SELECT objsubid, description FROM pg_catalog.pg_description WHERE classoid = 'pg_class'::regclass"
        assert sorted(client.execute(listed).fetchall()) == [(0, "all"), (2, "second")]


def test_comments_on_constraints(serving):
    served = serving("""
        CREATE TABLE p (id int PRIMARY KEY, n int CONSTRAINT many UNIQUE, CONSTRAINT high CHECK (n > 0));
        CREATE TABLE c (p int CONSTRAINT of REFERENCES p);
        COMMENT ON CONSTRAINT p_pkey ON p IS 'key';
        COMMENT ON CONSTRAINT many ON p IS 'one each';
        COMMENT ON CONSTRAINT high ON p IS 'was';
        COMMENT ON CONSTRAINT high ON p IS 'above';
        COMMENT ON CONSTRAINT of ON c IS 'parent';
        ALTER TABLE p RENAME CONSTRAINT many TO once;
    """)
    query = """
        SELECT conname, description FROM pg_constraint c LEFT JOIN pg_description d
        ON d.objoid = c.oid AND d.classoid = 'pg_constraint'::regclass ORDER BY conname"""
    with served.connect(autocommit=True) as client:
        found = [("high", "above"), ("of", "parent"), ("once", "one each"), ("p_pkey", "key")]
        assert client.execute(query).fetchall() == found
        for name in ("high", "of", "once", "p_pkey"):
            client.execute(f"COMMENT ON CONSTRAINT {name} ON {'c' if name == 'of' else 'p'} IS NULL")
        assert client.execute(query).fetchall() == [(name, None) for name, _ in found]
        with pytest.raises(psycopg.errors.UndefinedObject, match='constraint "no" for table "p" does not exist'):
            client.execute("COMMENT ON CONSTRAINT no ON p IS ''")


def test_identity_columns_and_included_columns(serving):
    served = serving("""
        CREATE TABLE "t (2)" ("id [x]" int GENERATED ALWAYS AS IDENTITY (START WITH 7) PRIMARY KEY, x int, y int);
        CREATE INDEX i ON "t (2)" (x) INCLUDE (y);
    """)
    engine = sa.create_engine(f"postgresql+psycopg://ann@127.0.0.1:{served.server.port}/shop")
    with engine.connect() as client:
        inspector = sa.inspect(client)
        identity = inspector.get_columns("t (2)")[0]["identity"]
        assert (identity["always"], identity["start"], identity["increment"]) == (True, 7, 1)
        (index,) = inspector.get_indexes("t (2)")
        assert (index["column_names"], index["dialect_options"]["postgresql_include"]) == (["x"], ["y"])
        text = client.exec_driver_sql("SELECT indexdef FROM pg_indexes WHERE indexname = 'i'").scalar()
        assert text == 'CREATE INDEX i ON public."t (2)" USING btree (x) INCLUDE (y)'
    engine.dispose()
