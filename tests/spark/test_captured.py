"""Tables that follow PostgreSQL, on Spark."""

from __future__ import annotations

import pytest
from tests.captures import ask, source

import watersmeet


@pytest.mark.slow
def test_an_update_there_corrects_joined_rows_here(tmp_path, postgres):
    postgres.execute(
        "CREATE TABLE planes (tailnum text PRIMARY KEY, model text);"
        "INSERT INTO planes SELECT 'N' || i, 'M' || i % 5 FROM generate_series(1, 500) i"
    )
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        source(connection, postgres)
        connection.execute("CREATE TABLE planes (*) FROM there TABLE 'planes'")
        connection.execute("CREATE TABLE flights (id int PRIMARY KEY, tailnum varchar)")
        connection.execute("INSERT INTO flights SELECT i, 'N' || i % 700 FROM generate_series(1, 2000) AS g(i)")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT f.id, p.model FROM flights f LEFT JOIN planes p USING (tailnum)"
        )
        for change in (
            "UPDATE planes SET model = 'new' WHERE model = 'M3'",
            "BEGIN; DELETE FROM planes WHERE model = 'M1'; INSERT INTO planes VALUES ('N600', 'M6'); COMMIT",
            "UPDATE planes SET tailnum = 'N650' WHERE tailnum = 'N1'",
        ):
            postgres.execute(change)
            connection.execute("FLUSH")
            found = connection.execute("SELECT model, count(*) FROM v GROUP BY model ORDER BY 1 NULLS FIRST").fetchall()
            assert found == ask(
                postgres,
                "SELECT p.model, count(*) FROM (SELECT i AS id, 'N' || i % 700 AS tailnum FROM "
                "generate_series(1, 2000) i) f LEFT JOIN planes p USING (tailnum) GROUP BY 1 ORDER BY 1 NULLS FIRST",
            )
