"""Constraints: the rows that a table rejects, the changes that follow foreign keys, ALTER TABLE and SHOW CREATE. Random
histories are compared with PostgreSQL in tests/property/test_constraints.py.
"""

from __future__ import annotations

import pytest

import watersmeet

MADE = """
    CREATE TABLE p (id int PRIMARY KEY, name varchar UNIQUE, n int CONSTRAINT positive CHECK (n > 0));
    CREATE TABLE c (
        id int, p int REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE, q varchar,
        CONSTRAINT by_name FOREIGN KEY (q) REFERENCES p (name) ON DELETE SET NULL
    );
    INSERT INTO p VALUES (1, 'a', 1), (2, 'b', NULL);
    INSERT INTO c VALUES (1, 1, 'a'), (2, 2, NULL), (3, NULL, 'b')"""


def test_a_key_may_have_its_default_name(run, fails):
    run("CREATE TABLE t (id int, n int, CONSTRAINT t_pkey PRIMARY KEY (id), CONSTRAINT t_n_key UNIQUE (n))")
    assert fails("ALTER TABLE t ADD CONSTRAINT t_pkey UNIQUE (n)").condition == "DUPLICATE_CONSTRAINT"
    assert fails("CREATE TABLE u (n int CONSTRAINT a CHECK (n > 0), CONSTRAINT a PRIMARY KEY (n))").condition == (
        "DUPLICATE_CONSTRAINT"
    )


@pytest.fixture
def made(run):
    run(MADE)


@pytest.mark.parametrize(
    ("statement", "condition", "constraint", "detail"),
    [
        ("INSERT INTO p VALUES (3, 'a', 1)", "UNIQUE", "p_name_key", "Key (name)=(a) already exists."),
        ("INSERT INTO p VALUES (3, 'x', 1), (4, 'x', 1)", "UNIQUE", "p_name_key", "Key (name)=(x) already exists."),
        ("UPDATE p SET name = 'a' WHERE id = 2", "UNIQUE", "p_name_key", "Key (name)=(a) already exists."),
        ("INSERT INTO p VALUES (3, 'x', 0)", "CHECK", "positive", "Failing row contains (3, x, 0)."),
        ("UPDATE p SET n = -n WHERE id = 1", "CHECK", "positive", "Failing row contains (1, a, -1)."),
        ("INSERT INTO c VALUES (4, 9, 'a')", "FOREIGN_KEY", "c_p_fkey", 'Key (p)=(9) is not present in table "p".'),
        ("UPDATE c SET q = 'x'", "FOREIGN_KEY", "by_name", 'Key (q)=(x) is not present in table "p".'),
        (
            "UPDATE p SET name = 'z' WHERE id = 1",
            "FOREIGN_KEY",
            "by_name",
            'Key (name)=(a) is still referenced from table "c".',
        ),
    ],
)
def test_a_violation_changes_nothing(run, fails, made, statement, condition, constraint, detail):
    before = [run(f"SELECT * FROM {t} ORDER BY id") for t in "pc"]
    found = fails(statement)
    assert isinstance(found, watersmeet.IntegrityError)
    assert (found.condition, found.constraint, found.detail) == (f"{condition}_VIOLATION", constraint, detail)
    assert [run(f"SELECT * FROM {t} ORDER BY id") for t in "pc"] == before


def test_rows_follow_those_that_they_reference(run, made):
    run("UPDATE p SET id = 7 WHERE id = 1")
    assert run("SELECT * FROM c ORDER BY id") == [(1, 7, "a"), (2, 2, None), (3, None, "b")]
    run("DELETE FROM p WHERE id = 2")
    assert run("SELECT * FROM c ORDER BY id") == [(1, 7, "a"), (3, None, None)]


def test_views_see_what_follows(run, made):
    run(
        "CREATE MATERIALIZED VIEW v AS SELECT p.name, count(c.id) AS n FROM p LEFT JOIN c ON c.p = p.id GROUP BY p.name"
    )
    run("DELETE FROM p WHERE id = 1; FLUSH")
    assert run("SELECT * FROM v") == [("b", 1)]


def test_keys_take_any_number_of_nulls(run, made):
    run("INSERT INTO p VALUES (3, NULL, NULL); INSERT INTO p VALUES (4, NULL, 4)")
    assert run("SELECT count(*) FROM p") == [(4,)]


def test_a_key_of_a_deleted_row_is_free(run, made):
    run("DELETE FROM c; DELETE FROM p WHERE id = 1; INSERT INTO p VALUES (5, 'a', 1)")
    run("BEGIN; DELETE FROM p WHERE id = 5; INSERT INTO p VALUES (6, 'a', 1); COMMIT")
    assert run("SELECT id FROM p ORDER BY id") == [(2,), (6,)]


def test_deferred_constraints_are_checked_at_commit(run, fails):
    run("CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE DEFERRABLE)")
    run("CREATE TABLE c (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    run("BEGIN; INSERT INTO c VALUES (1); INSERT INTO p VALUES (1, 1); COMMIT")
    run("BEGIN; INSERT INTO c VALUES (2)")
    assert fails("COMMIT").condition == "FOREIGN_KEY_VIOLATION"
    run("BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO p VALUES (2, 1); UPDATE p SET u = 2 WHERE id = 2; COMMIT")
    run("BEGIN; SET CONSTRAINTS p_u_key DEFERRED; INSERT INTO p VALUES (3, 1)")
    assert fails("SET CONSTRAINTS ALL IMMEDIATE").condition == "UNIQUE_VIOLATION"
    run("ROLLBACK")
    assert run("SELECT * FROM p ORDER BY id") == [(1, 1), (2, 2)]


def test_existing_keys_are_overwritten_or_an_error(run, fails):
    run("CREATE TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1); INSERT INTO t VALUES (1, 2)")
    run("SET primary_key_conflict = 'error'; CREATE TABLE s (k int CONSTRAINT kk PRIMARY KEY, v int)")
    run("INSERT INTO s VALUES (1, 1)")
    found = fails("INSERT INTO s VALUES (1, 2)")
    assert (found.sqlstate, found.constraint) == ("23505", "kk")
    assert run("SELECT * FROM t") == [(1, 2)]
    assert run("SELECT * FROM s") == [(1, 1)]
    assert run("SHOW CREATE TABLE s")[0][1].endswith("ON CONFLICT ERROR")


CONFLICTS = [
    ("ON CONFLICT DO NOTHING", [(3, "c", 3)], [(1, "a", 1), (2, "b", None), (3, "c", 3)]),
    ("ON CONFLICT (id) DO NOTHING", [(3, "c", 3)], [(1, "a", 1), (2, "b", None), (3, "c", 3)]),
    (
        "ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name || p.name, n = EXCLUDED.n",
        [(1, "xa", 5), (3, "c", 3)],
        [(1, "xa", 5), (2, "b", None), (3, "c", 3)],
    ),
    (
        "ON CONFLICT ON CONSTRAINT p_pkey DO UPDATE SET (name, n) = (EXCLUDED.name, 9) WHERE p.n > 1",
        [(3, "c", 3)],
        [(1, "a", 1), (2, "b", None), (3, "c", 3)],
    ),
]


@pytest.mark.parametrize(("clause", "returned", "content"), CONFLICTS)
def test_insert_on_conflict(run, clause, returned, content):
    run(MADE.split(";", maxsplit=1)[0] + "; INSERT INTO p VALUES (1, 'a', 1), (2, 'b', NULL)")
    found = run(f"INSERT INTO p VALUES (1, 'x', 5), (3, 'c', 3) {clause} RETURNING *")
    assert sorted(found) == returned
    assert run("SELECT * FROM p ORDER BY id") == content


@pytest.mark.parametrize(
    ("clause", "condition"),
    [
        ("ON CONFLICT (n) DO NOTHING", "INVALID_COLUMN_REFERENCE"),
        ("ON CONFLICT ON CONSTRAINT other DO NOTHING", "UNDEFINED_OBJECT"),
        ("ON CONFLICT DO UPDATE SET n = 1", "SYNTAX_ERROR"),
        ("ON CONFLICT (id) DO UPDATE SET n = 1 WHERE p.x = 1", "UNDEFINED_COLUMN"),
        ("ON CONFLICT (id) DO UPDATE SET n = (SELECT max(n) FROM p)", "FEATURE_NOT_SUPPORTED"),
        ("ON CONFLICT (id) DO UPDATE SET n = DEFAULT", "FEATURE_NOT_SUPPORTED"),
        ("ON CONFLICT (name) DO UPDATE SET n = 0", "CHECK_VIOLATION"),
    ],
)
def test_wrong_conflict_clauses(fails, made, clause, condition):
    assert fails(f"INSERT INTO p VALUES (1, 'a', 5) {clause}").condition == condition


def test_no_row_is_updated_twice(fails, made):
    found = fails("INSERT INTO p VALUES (1, 'x', 1), (1, 'y', 1) ON CONFLICT (id) DO UPDATE SET n = 2")
    assert (found.condition, found.sqlstate) == ("CARDINALITY_VIOLATION", "21000")


def test_alter_table(run, fails):
    run("CREATE TABLE p (id int, name varchar); INSERT INTO p VALUES (1, 'a'), (1, 'b')")
    assert fails("ALTER TABLE p ADD PRIMARY KEY (id)").detail == "Key (id)=(1) is duplicated."
    run("UPDATE p SET id = 2 WHERE name = 'b'; ALTER TABLE p ADD PRIMARY KEY (id)")
    run("ALTER TABLE ONLY p ADD CONSTRAINT named UNIQUE (name); ALTER TABLE p ADD CHECK (id > 0)")
    run("CREATE TABLE c (p int); INSERT INTO c VALUES (3)")
    assert fails("ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p").condition == "FOREIGN_KEY_VIOLATION"
    assert fails("ALTER TABLE c ADD CHECK (p < 3)").condition == "CHECK_VIOLATION"
    run("DELETE FROM c; ALTER TABLE c ADD CONSTRAINT of_p FOREIGN KEY (p) REFERENCES p ON DELETE CASCADE")
    run("ALTER TABLE c ADD COLUMN n int DEFAULT 1 CHECK (n > 0) REFERENCES p")
    run("ALTER TABLE p RENAME CONSTRAINT named TO other; ALTER TABLE p RENAME COLUMN id TO key")
    assert fails("ALTER TABLE p DROP CONSTRAINT p_pkey").detail == (
        'Constraint "of_p" of table "c" depends on it; constraint "c_n_fkey" of table "c" depends on it.'
    )
    assert fails("ALTER TABLE p DROP COLUMN key").condition == "DEPENDENT_OBJECTS"
    assert fails("DROP TABLE p").condition == "DEPENDENT_OBJECTS"
    assert fails("INSERT INTO c VALUES (9, 1)").detail == 'Key (p)=(9) is not present in table "p".'
    run("ALTER TABLE c DROP CONSTRAINT of_p; ALTER TABLE c DROP CONSTRAINT IF EXISTS of_p")
    assert run("SHOW CREATE TABLE c")[0][1] == ("CREATE TABLE c (p int, n int DEFAULT 1 CHECK (n > 0) REFERENCES p)")
    assert run("SHOW CREATE TABLE p")[0][1] == (
        "CREATE TABLE p (key int, name varchar, PRIMARY KEY (key), CONSTRAINT other UNIQUE (name), CHECK (key > 0))"
    )
    run("ALTER TABLE p DROP CONSTRAINT other; DROP TABLE p CASCADE; INSERT INTO c VALUES (9, 9)")


def test_a_primary_key_that_a_view_reads_stays(run, fails, made):
    run("CREATE MATERIALIZED VIEW v AS SELECT id FROM p")
    assert fails("ALTER TABLE p DROP CONSTRAINT p_pkey CASCADE").condition == "DEPENDENT_OBJECTS"


def test_unique_indexes(run, fails):
    run("CREATE TABLE t (a int, b varchar); INSERT INTO t VALUES (1, 'x'), (1, 'y')")
    assert fails("CREATE UNIQUE INDEX i ON t (a)").condition == "UNIQUE_VIOLATION"
    run("CREATE UNIQUE INDEX IF NOT EXISTS i ON t USING btree (a DESC, b varchar_pattern_ops)")
    run("ALTER INDEX i RENAME TO j")
    assert fails("INSERT INTO t VALUES (1, 'y')").constraint == "j"
    run("INSERT INTO t VALUES (1, 'y') ON CONFLICT (a, b) DO NOTHING; DROP INDEX j; INSERT INTO t VALUES (1, 'y')")
    assert fails("CREATE UNIQUE INDEX k ON t (b) WHERE a > 1").condition == "FEATURE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("item", "condition"),
    [
        ("FOREIGN KEY (a) REFERENCES none (x)", "UNDEFINED_RELATION"),
        ("FOREIGN KEY (a) REFERENCES p (none)", "UNDEFINED_COLUMN"),
        ("FOREIGN KEY (a) REFERENCES p (n)", "INVALID_FOREIGN_KEY"),
        ("FOREIGN KEY (a, b) REFERENCES p (id)", "INVALID_FOREIGN_KEY"),
        ("FOREIGN KEY (b) REFERENCES p (id)", "DATATYPE_MISMATCH"),
        ("FOREIGN KEY (a) REFERENCES p (id) MATCH FULL", "FEATURE_NOT_SUPPORTED"),
        ("UNIQUE NULLS NOT DISTINCT (a)", "FEATURE_NOT_SUPPORTED"),
        ("UNIQUE (a, a)", "DUPLICATE_COLUMN"),
        ("UNIQUE (z)", "UNDEFINED_COLUMN"),
        ("CHECK (a)", "DATATYPE_MISMATCH"),
        ("CHECK (z > 1)", "UNDEFINED_COLUMN"),
        ("CONSTRAINT x CHECK (a > 1), CONSTRAINT x UNIQUE (a)", "DUPLICATE_CONSTRAINT"),
        ("PRIMARY KEY (a) DEFERRABLE", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_wrong_constraints(fails, made, item, condition):
    assert fails(f"CREATE TABLE t (a int, b varchar, {item})").condition == condition


def test_constraints_survive_a_restart(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(MADE)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for statement in (
            "INSERT INTO p VALUES (3, 'a', 1)",
            "INSERT INTO p VALUES (3, 'x', 0)",
            "UPDATE c SET q = 'z'",
        ):
            with pytest.raises(watersmeet.IntegrityError):
                connection.execute(statement)
        connection.execute("DELETE FROM p WHERE id = 1")
        assert connection.execute("SELECT id FROM c ORDER BY id").fetchall() == [(2,), (3,)]
