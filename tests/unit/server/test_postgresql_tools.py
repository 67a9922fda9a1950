"""PostgreSQL's own programs against the server: pgbench, and what psql shows of constraints."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest


def told(served, program: str, *arguments: str) -> str:
    """What a program tells. It must succeed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not available")
    where = ("-h", "127.0.0.1", "-p", str(served.server.port), "-U", "root")
    done = subprocess.run([path, *where, *arguments, "dev"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_pgbench(serving):
    served = serving()
    assert "done in" in told(served, "pgbench", "-i", "--foreign-keys", "-I", "dtpf")
    with served.connect() as client:
        client.execute("INSERT INTO pgbench_branches VALUES (1, 0, NULL)")
        client.execute("INSERT INTO pgbench_tellers SELECT n, 1, 0, NULL FROM generate_series(1, 10) AS g (n)")
        with client.cursor().copy("COPY pgbench_accounts FROM STDIN") as copy:
            for number in range(1, 100_001):
                copy.write(f"{number}\t1\t0\t\n")
    told(served, "pgbench", "-i", "-I", "v")
    assert "actually processed: 3/3" in told(served, "pgbench", "-n", "-t", "3", "-b", "tpcb-like")
    assert "actually processed: 3/3" in told(served, "pgbench", "-n", "-t", "3", "-S", "-M", "prepared")
    with served.connect() as client:
        (moved,) = client.execute("SELECT sum(delta) FROM pgbench_history").fetchone()
        for table, column in (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance")):
            assert client.execute(f"SELECT sum({column}) FROM pgbench_{table}").fetchone() == (moved,)


def test_psql_shows_constraints(serving):
    served = serving("""
        CREATE TABLE p (id int PRIMARY KEY, name varchar(20) CONSTRAINT named UNIQUE, n int CHECK (n > 0));
        CREATE TABLE c (id int, p int REFERENCES p ON DELETE CASCADE DEFERRABLE);
        CREATE UNIQUE INDEX of_id ON c (id);
    """)
    lines = [
        re.sub(" +", " ", line.strip()) for line in told(served, "psql", "-c", r"\d p", "-c", r"\d c").splitlines()
    ]
    for line in (
        '"p_pkey" PRIMARY KEY, btree (id)',
        '"named" UNIQUE CONSTRAINT, btree (name)',
        '"p_n_check" CHECK ((n > 0))',
        'TABLE "c" CONSTRAINT "c_p_fkey" FOREIGN KEY (p) REFERENCES p(id) ON DELETE CASCADE DEFERRABLE',
        '"of_id" UNIQUE, btree (id)',
        '"c_p_fkey" FOREIGN KEY (p) REFERENCES p(id) ON DELETE CASCADE DEFERRABLE',
    ):
        assert line in lines


def test_constraints_in_the_information_schema(serving):
    served = serving("""
        CREATE TABLE p (id int PRIMARY KEY, a int, b int, CONSTRAINT two UNIQUE (b, a));
        CREATE TABLE c (x int, y int, CONSTRAINT pair FOREIGN KEY (x, y) REFERENCES p (a, b) ON UPDATE SET NULL);
        ALTER TABLE p RENAME COLUMN a TO z;
    """)
    with served.connect() as client:
        kinds = client.execute(
            "SELECT constraint_name, constraint_type FROM information_schema.table_constraints ORDER BY 1"
        ).fetchall()
        assert kinds == [("p_pkey", "PRIMARY KEY"), ("pair", "FOREIGN KEY"), ("two", "UNIQUE")]
        columns = client.execute(
            "SELECT column_name, ordinal_position, position_in_unique_constraint "
            "FROM information_schema.key_column_usage WHERE constraint_name = 'pair' ORDER BY 2"
        ).fetchall()
        assert columns == [("x", 1, 2), ("y", 2, 1)]
        rule = client.execute(
            "SELECT unique_constraint_name, update_rule, delete_rule FROM information_schema.referential_constraints"
        ).fetchone()
        assert rule == ("two", "SET NULL", "NO ACTION")
        text = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'pair'"
        assert client.execute(text).fetchone() == ("FOREIGN KEY (x, y) REFERENCES p(z, b) ON UPDATE SET NULL",)
        assert client.execute("SELECT indexname FROM pg_indexes ORDER BY 1").fetchall() == [("p_pkey",), ("two",)]


def test_errors_name_their_constraint(serving):
    served = serving("CREATE TABLE p (id int PRIMARY KEY, a int CONSTRAINT single UNIQUE)")
    with served.connect(autocommit=True) as client:
        for number in range(4):  # the third of a shape has a plan
            client.execute(f"INSERT INTO p VALUES ({number}, {number})")
        try:
            client.execute("INSERT INTO p VALUES (9, 1)")
        except Exception as err:
            assert (err.sqlstate, err.diag.constraint_name, err.diag.table_name) == ("23505", "single", "p")
        else:
            pytest.fail("the row was inserted")
        client.execute("INSERT INTO p VALUES (9, 9)")
        assert client.execute("SELECT count(*) FROM p").fetchone() == (5,)


_OBJECTS = """
    CREATE TABLE people (id int PRIMARY KEY, name varchar(20), n int CHECK (n > 0));
    CREATE VIEW named AS SELECT id, name FROM people;
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN posint AS int CHECK (VALUE > 0);
    CREATE SEQUENCE numbers;
    CREATE FUNCTION twice(a int) RETURNS int LANGUAGE sql AS 'SELECT a * 2';
    COMMENT ON TABLE people IS 'everybody';
    CREATE USER eve;
    GRANT SELECT ON people TO eve;
    INSERT INTO people VALUES (1, 'people', 1), (2, 'named', 2);
"""
#: Commands of psql, and a part of what they show.
_COMMANDS = {
    r"\sv named": "SELECT id, name FROM people", r"\sf twice": "SELECT a * 2", r"\sf+ twice": "twice",
    r"\dO": "collations", r"\dconfig": "configuration parameters", r"\dconfig *timeout*": "statement_timeout",
    r"\dT+": "mood", r"\dD": "CHECK ((VALUE > 0))", r"\dD+": "posint", r"\dn+": "public schema", r"\l+": "UTF8",
    r"\du+": "eve", r"\dp": "eve=r/watersmeet", r"\ddp": "Default", r"\dx": "extensions", r"\df+": "SELECT a * 2",
    r"\d+ people": "people_n_check", r"\d+ named": "View definition", r"\dt+": "everybody", r"\ds+": "numbers",
    r"\di+": "people_pkey", r"\db+": "pg_default", r"\dC": "casts", r"\dd": "descriptions",
    r"\dF": "text search", r"\dL+": "languages", r"\dP": "partitioned", r"\da": "aggregate", r"\do": "operators",
    r"\z": "eve=r/watersmeet", r"\drds": "", r"\dy": "event triggers", r"\dRp": "publications",
}  # fmt: skip


def test_commands_of_psql(serving):
    served = serving(_OBJECTS)
    for command, shown in _COMMANDS.items():
        assert shown in told(served, "psql", "-X", "-c", command), command


#: Functions of the catalog in queries of tables, without FROM, and beside tables of the catalog.
_CATALOG_QUERIES = """
SELECT to_regclass('people') IS NOT NULL, to_regclass('nobody'), count(*) FROM people
SELECT id, format_type(23, NULL), format_type(1043, 14) FROM people ORDER BY id
SELECT obj_description('people'::regclass, 'pg_class'), col_description('people'::regclass, 1), max(id) FROM people
SELECT id FROM people WHERE pg_table_is_visible('people'::regclass) AND has_table_privilege('people', 'select') ORDER BY id
SELECT pg_size_pretty(10::bigint), pg_size_pretty(20480::bigint), pg_size_pretty(123456789::bigint), pg_size_pretty(-123456789012::bigint)
SELECT pg_size_pretty(10239::bigint), pg_size_pretty(10240::bigint), pg_size_pretty(20971519::bigint), pg_size_pretty(9007199254740992::bigint)
SELECT 'people'::regclass::text, 'integer'::regtype::text, id FROM people ORDER BY id
SELECT c.relname, p.id FROM people AS p JOIN pg_class AS c ON c.relname = p.name ORDER BY 2
SELECT id, (SELECT relkind FROM pg_class WHERE relname = people.name) FROM people ORDER BY id
SELECT current_setting('search_path') IS NOT NULL, has_schema_privilege('public', 'usage'), id FROM people ORDER BY id
SELECT row_to_json(q) FROM (SELECT id, name FROM people ORDER BY id) AS q
SELECT people.id, row_to_json(people)->>'name', (SELECT to_json(people)->>'id') FROM people ORDER BY id
SELECT (p).name FROM (SELECT people AS p FROM people) AS q ORDER BY 1
SELECT last_value FROM pg_sequences
SELECT nextval('numbers'), nextval('numbers')
SELECT last_value FROM pg_sequences WHERE sequencename = 'numbers'
SELECT getdatabaseencoding()
"""  # noqa: E501


@pytest.mark.postgres
def test_functions_of_the_catalog_anywhere(serving, postgres):
    script = _OBJECTS.replace("CREATE USER eve;", "").replace("GRANT SELECT ON people TO eve;", "")
    postgres.execute(script)
    with serving(script).connect(autocommit=True) as client, postgres.connect() as other:
        client.execute("SET rw_implicit_flush = true")
        for sql in filter(None, _CATALOG_QUERIES.splitlines()):
            assert client.execute(sql).fetchall() == other.execute(sql).fetchall(), sql
        refused = "SELECT to_regclass(name) FROM people"
        with pytest.raises(Exception, match="to_regclass"):
            client.execute(refused)
        client.execute("PREPARE later AS SELECT to_regclass('later') IS NULL, id FROM people WHERE id = 1")
        assert client.execute("EXECUTE later").fetchall() == [(True, 1)]
        client.execute("CREATE TABLE later (a int)")
        assert client.execute("EXECUTE later").fetchall() == [(False, 1)]
