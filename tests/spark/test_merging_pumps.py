"""SQLstream's foreign tables on Spark: joined, and kept up to date by pumps and statements."""

from __future__ import annotations

import pytest
from scripts.servers.postgres import PASSWORD, USER

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


@pytest.mark.slow
def test_a_table_is_joined_and_merged_into(tmp_path, postgres):
    postgres.execute(
        "CREATE TABLE names (id int PRIMARY KEY, name text); INSERT INTO names SELECT i, 'n' || i FROM "
        "generate_series(0, 99) AS g(i); CREATE TABLE counts (id int PRIMARY KEY, n int, name text)"
    )
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="spark", parallelism=2) as connection:
        connection.execute(f"""
            CREATE SERVER "db" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (
                URL 'jdbc:postgresql://127.0.0.1:{postgres.server.port}/{postgres.name}', USER_NAME '{USER}',
                PASSWORD '{PASSWORD}');
            CREATE FOREIGN TABLE "names" SERVER "db";
            CREATE FOREIGN TABLE "counts" SERVER "db";
            UPDATE "names" SET "name" = upper("name") WHERE "id" < 10;
            DELETE FROM "names" WHERE "id" >= 50;
            CREATE STREAM "s" ("id" INTEGER, "n" INTEGER);
            CREATE PUMP "p" STARTED AS MERGE INTO "counts" AS c USING (
                SELECT STREAM s."id", s."n", a."name" FROM "s" s LEFT JOIN "names" a ON s."id" = a."id"
            ) AS x ON c."id" = x."id"
            WHEN MATCHED THEN UPDATE SET "n" = x."n"
            WHEN NOT MATCHED THEN INSERT ("id", "n", "name") VALUES (x."id", x."n", x."name")
        """)
        for step in range(3):
            rows = ", ".join(f"({i}, {i + step})" for i in range(step, 60, step + 1))
            connection.execute(f'INSERT INTO "s" ("id", "n") VALUES {rows}')
        connection.execute("FLUSH")
        session = connection._session
        for relation in session.catalog.relations.values():
            assert session.database.service(SinkWriters).wait(relation.id, 120)
            status = session.database.service(SinkWriters).status(relation.id)
            assert status is None or status.state == "running", status
        names = {i: f"n{i}" if i > 9 else f"N{i}" for i in range(50)}
        wanted = {i: (i, i + step, names.get(i)) for step in range(3) for i in range(step, 60, step + 1)}
        assert connection.execute('SELECT * FROM "counts" ORDER BY "id"').fetchall() == [*map(wanted.get, range(60))]
        with postgres.connect() as there:
            assert there.execute("SELECT count(*), max(id) FROM names").fetchall() == [(50, 49)]
