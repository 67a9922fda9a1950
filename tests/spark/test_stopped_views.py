"""Views over their limit of bytes stop on Spark as they do without; epochs that were planned already show nothing of
them.
"""

from __future__ import annotations

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet import Error

pytestmark = pytest.mark.spark


def test_a_view_over_its_limit_stops_and_the_others_go_on(tmp_path):
    join = "SELECT i, j FROM l JOIN r ON l.k = r.k"
    with watersmeet.connect(tmp_path / "db", "timeplus", parallelism=2) as connection:
        connection.execute("CREATE STREAM l(i int, k string); CREATE STREAM r(j int, k string)")
        connection.execute(
            f"CREATE MATERIALIZED VIEW small AS {join} SETTINGS join_max_buffered_bytes = 20000; "
            f"CREATE MATERIALIZED VIEW large AS {join}; CREATE MATERIALIZED VIEW above AS SELECT count(*) AS "
            f"n FROM small"
        )
        connection.execute("INSERT INTO l VALUES (1, 'a'); INSERT INTO r VALUES (1, 'a'); FLUSH")
        for start in range(0, 5000, 500):  # epochs are planned while others run
            Harness(connection).deliver("l", [[str(i), f"key {i}"] for i in range(start, start + 500)], None)
        connection.execute("INSERT INTO r VALUES (2, 'key 4999'); FLUSH")
        assert connection.execute("SELECT * FROM table(large) ORDER BY i").fetchall() == [(1, 1), (4999, 2)]
        for view, condition in (("small", "BUFFER_LIMIT"), ("above", "VIEW_FAILED")):
            with pytest.raises(Error) as found:
                connection.execute(f"SELECT * FROM table({view})")
            assert found.value.condition == condition
        states = {row[0]: (row[2], row[3]) for row in connection.execute("SHOW JOBS").fetchall()}
        assert states == {"small": ("failed", 1), "large": ("running", 2), "above": ("failed", 1)}
        connection.execute(
            "CREATE MUTABLE STREAM m(k string) PRIMARY KEY k; CREATE MUTABLE STREAM n(k string) PRIMARY KEY k"
        )
        Harness(connection).deliver("m", [[f"key {i}"] for i in range(500)], None)
        connection.execute("FLUSH")  # or the rows may come after the view was made
        with pytest.raises(Error, match="reaches max size: 1000, current total"):
            connection.execute(
                "CREATE MATERIALIZED VIEW v AS SELECT m.k FROM m JOIN n ON m.k = n.k SETTINGS "
                "join_max_buffered_bytes = 1000"
            )
        connection.execute("DROP VIEW above; DROP VIEW small; INSERT INTO r VALUES (3, 'a'); FLUSH")
        assert len(connection.execute("SELECT * FROM table(large)").fetchall()) == 3
