"""Statements that clients of the server type, which change tables of another database."""

from __future__ import annotations

from scripts.servers.postgres import PASSWORD, USER


def test_tags_have_the_number_of_rows(serving, postgres):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    served = serving(f"""
        SET dialect = 'sqlstream';
        CREATE SERVER "db" FOREIGN DATA WRAPPER SYS_JDBC OPTIONS (
            URL 'jdbc:postgresql://127.0.0.1:{postgres.server.port}/{postgres.name}', USER_NAME '{USER}',
            PASSWORD '{PASSWORD}');
        CREATE FOREIGN TABLE "t" SERVER "db"
    """)
    with served.connect(autocommit=True) as client:
        client.execute("SET dialect = 'sqlstream'")
        tags = [
            client.execute('UPDATE "t" SET "n" = "n" + 10 WHERE "id" < 3').statusmessage,
            client.execute('UPDATE "t" SET "n" = %s WHERE "id" = %s', (7, 3), prepare=True).statusmessage,
            client.execute('DELETE FROM "t" WHERE "id" = 2').statusmessage,
            client.execute(
                'MERGE INTO "t" USING (SELECT * FROM (VALUES (1, 5), (4, 6)) AS v("k", "n")) AS s ON "t"."id" = s."k" '
                'WHEN MATCHED THEN UPDATE SET "n" = s."n" WHEN NOT MATCHED THEN INSERT VALUES (s."k", s."n")'
            ).statusmessage,
        ]
        assert tags == ["UPDATE 2", "UPDATE 1", "DELETE 1", "MERGE 2"]
    with postgres.connect() as there:
        assert there.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, 5), (3, 7), (4, 6)]
