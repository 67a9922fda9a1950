"""Who may subscribe over the wire, from which servers, and what becomes of a client that is too slow."""

from __future__ import annotations

import re

import psycopg
import pytest

from watersmeet.subscribing import subscriber

SHOP = """
CREATE TABLE t (k int PRIMARY KEY, v int);
CREATE TABLE hidden (a int);
CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v;
INSERT INTO t VALUES (1, 1), (2, 1);
FLUSH;
"""
USERS = """
CREATE USER ann PASSWORD 'secret' SUPERUSER; CREATE USER eve PASSWORD 'secret'; GRANT SELECT ON m TO eve;
"""


def put(served, key: int) -> int:
    """Adds a row; the commit that shows it."""
    served.python.execute(f"INSERT INTO t VALUES ({key}, {key})")
    served.python.flush()
    return served.python.opened.log.head()


def test_who_may_read_may_subscribe(serving):
    served = serving(SHOP + USERS)
    with served.connect(user="eve", password="secret", autocommit=True) as eve:
        eve.execute("DECLARE c CURSOR FOR SUBSCRIBE m")
        assert [row[1:] for row in eve.execute("FETCH 1 FROM c").fetchall()] == [(1, 1, 2)]
        for statement in ("SUBSCRIBE hidden", "SUBSCRIBE m, t", "COPY (SUBSCRIBE t) TO STDOUT"):
            with pytest.raises(psycopg.errors.UndefinedTable, match="does not exist"):
                eve.execute(statement)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            eve.execute("CREATE SUBSCRIPTION s FROM m WITH (retention = '1D')")
        served.python.execute("CREATE SUBSCRIPTION secretive FROM t WITH (retention = '1D')")
        for name in ("secretive", "secretiv"):
            with pytest.raises(psycopg.errors.UndefinedObject) as found:
                eve.execute(f"DECLARE d SUBSCRIPTION CURSOR FOR {name}")
            assert "secretive" not in (found.value.diag.message_hint or "")
        served.python.execute("REVOKE SELECT ON m FROM eve")
        with pytest.raises(psycopg.errors.UndefinedTable):
            eve.execute("SUBSCRIBE m")


def test_a_subscription_ends_with_the_right_to_it(serving):
    served = serving(SHOP + USERS)
    with served.connect(user="eve", password="secret", autocommit=True) as eve:
        eve.execute("SET statement_timeout = '60s'")
        eve.execute("DECLARE c CURSOR FOR SUBSCRIBE m WITH (snapshot = false)")
        rows = []
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege),
            eve.cursor().copy("COPY (SUBSCRIBE m) TO STDOUT") as copy,
        ):
            for row in copy:
                rows.append(bytes(row))
                served.python.execute("REVOKE SELECT ON m FROM eve")
                put(served, 7)
        assert len(rows) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            eve.execute("FETCH 1 FROM c")


def test_a_query_that_runs_ends_with_the_right_to_what_it_reads(serving):
    served = serving("CREATE USER eve PASSWORD 'secret'; SET dialect = 'timeplus'; CREATE STREAM s (a int32)")
    for statement in ("SET dialect = 'risingwave'", "GRANT SELECT ON s TO eve"):
        served.python.execute(statement)
    with served.connect(user="eve", password="secret", autocommit=True) as eve:
        eve.execute("SET statement_timeout = '60s'")
        eve.execute("SET dialect = 'timeplus'")
        eve.execute("DECLARE c CURSOR FOR SELECT a FROM s")
        served.python.execute("INSERT INTO s (a) VALUES (1)")
        assert eve.execute("FETCH 1 FROM c WITH (timeout = '60s')").fetchall() == [(1,)]
        served.python.execute("REVOKE SELECT ON s FROM eve")
        served.python.execute("INSERT INTO s (a) VALUES (2)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            eve.execute("FETCH 1 FROM c")


def test_a_server_that_only_reads_follows_the_writer(serving, tmp_path):
    writer = serving(SHOP, connecting={"path": tmp_path / "shop"})
    reader = serving(connecting={"path": tmp_path / "shop", "read_only": True})
    with reader.connect(autocommit=True, options="-c statement_timeout=60s") as client:
        client.execute("DECLARE c CURSOR FOR SUBSCRIBE m WITH (progress)")
        assert client.execute("FETCH 1 FROM c").fetchone()[2:] == (1, 1, 2)
        commit = put(writer, 7)
        found = []
        while not found or found[-1][:2] != (commit, True):
            found += client.execute("FETCH 10 FROM c WITH (timeout = '1s')").fetchall()
        assert [row[2:] for row in found if not row[1]] == [(1, 7, 1)]


def test_a_slow_client_is_cut_off_and_goes_on_with_its_token(serving, monkeypatch):
    monkeypatch.setattr(subscriber, "BUFFER_BYTES", 10_000)
    served = serving(SHOP)
    with served.connect(autocommit=True, options="-c statement_timeout=60s") as client:
        client.execute("DECLARE c CURSOR FOR SUBSCRIBE t WITH (snapshot = false)")
        client.execute("FETCH 1 FROM c WITH (timeout = '0s')")
        commits = [put(served, key) for key in range(10, 30)]  # the writer waits for nobody
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as cut:
            for _ in range(len(commits) + 1):
                client.execute("FETCH 1 FROM c WITH (timeout = '1s')")
        token = int(re.search(r"Subscribe again after commit (\d+)", cut.value.diag.message_hint)[1])
        rows = client.execute(f"SUBSCRIBE t AFTER {token} UP TO {commits[-1]}").fetchall()
        assert [(row[0], row[2]) for row in rows] == [
            (commit, key) for commit, key in zip(commits, range(10, 30), strict=True) if commit > token
        ]
        assert len(rows) > 10
