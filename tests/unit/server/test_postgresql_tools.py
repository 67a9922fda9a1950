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
