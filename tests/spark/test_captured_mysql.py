"""Tables that follow MariaDB, on Spark."""

from __future__ import annotations

import pytest
from tests.captures import ask, source

import watersmeet


@pytest.mark.slow
def test_an_update_there_corrects_joined_rows_here(tmp_path, mysql):
    mysql.execute(
        "CREATE TABLE planes (tailnum varchar(9) PRIMARY KEY, model text);"
        "INSERT INTO planes SELECT CONCAT('N', seq), CONCAT('M', seq % 5) FROM seq_1_to_500"
    )
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        source(connection, mysql)
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
            mysql.execute(change)
            connection.execute("FLUSH")
            found = connection.execute("SELECT model, count(*) FROM v GROUP BY model ORDER BY 1 NULLS FIRST").fetchall()
            assert found == ask(
                mysql,
                "SELECT p.model, count(*) FROM (SELECT seq AS id, CONCAT('N', seq % 700) AS tailnum FROM "
                "seq_1_to_2000) f LEFT JOIN planes p USING (tailnum) GROUP BY 1 ORDER BY 1",
            )
