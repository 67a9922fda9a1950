"""Look-ups in what is outside of the database, on Spark: external tables, and dictionaries of files and documents."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from tests.unit.sources.test_http_content import Documents

import watersmeet

pytestmark = pytest.mark.spark


@contextmanager
def documents():
    with Documents() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_maintenance_updates_external_rows_for_rows_that_arrive(tmp_path, postgres):
    file = tmp_path / "f.csv"
    file.write_text("1,file\n")
    postgres.execute("CREATE TABLE p (id int PRIMARY KEY, name text); INSERT INTO p VALUES (1, 'pen')")
    with (
        documents() as server,
        watersmeet.connect(tmp_path / "db", "timeplus", runtime="spark", parallelism=2) as connection,
    ):
        server.documents["/d.csv"] = 200, b"1,web\n"
        connection.execute(f"""
            CREATE EXTERNAL TABLE p SETTINGS {postgres.settings};
            CREATE DICTIONARY f(k int, v string) PRIMARY KEY k SOURCE(FILE(path '{file}' format 'CSV'))
                LAYOUT(DIRECT());
            CREATE DICTIONARY h(k int, v string) PRIMARY KEY k SOURCE(HTTP(URL '{server.url}/d.csv' FORMAT 'CSV'))
                LAYOUT(DIRECT());
            CREATE STREAM s (n int, id int);
            CREATE MATERIALIZED VIEW called AS
                SELECT n, dict_get('f', 'v', id) AS f, dict_get_or_null('h', 'v', id) AS h FROM s;
            CREATE MATERIALIZED VIEW direct AS
                SELECT n, f.v AS v FROM s JOIN f ON s.id = f.k SETTINGS join_algorithm = 'direct';
            SET dialect = 'risingwave';
            CREATE MATERIALIZED VIEW looked AS
                SELECT n, name FROM s LEFT JOIN p FOR SYSTEM_TIME AS OF PROCTIME() ON s.id = p.id
        """)
        come = "INSERT INTO s (n, id, _tp_time) VALUES ({}, 1, now()); FLUSH"
        connection.execute(come.format(0))
        file.write_text("1,FILE\n")
        server.documents["/d.csv"] = 200, b"1,WEB\n"
        postgres.execute("UPDATE p SET name = 'ink'")
        # Each round of maintenance reads all external relations, the document last.
        asked = len(server.asked)
        while len(server.asked) < asked + 4:
            time.sleep(0.05)
        connection.execute("INSERT INTO s (n, id, _tp_time) VALUES (1, 1, now())")
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM called ORDER BY n").fetchall() == [
            (0, "file", "web"),
            (1, "FILE", "WEB"),
        ]
        assert connection.execute("SELECT * FROM direct ORDER BY n").fetchall() == [(0, "file"), (1, "FILE")]
        assert connection.execute("SELECT * FROM looked ORDER BY n").fetchall() == [(0, "pen"), (1, "ink")]
