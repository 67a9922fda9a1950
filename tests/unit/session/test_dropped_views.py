"""What is known of a view goes with it: commits do not grow with all that was ever dropped."""

from __future__ import annotations

import watersmeet
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout


def test_errors_of_dropped_views_are_not_counted_for_ever(tmp_path):
    """A view that is made again begins with none, too: its operators have the ids that they had."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k INT, v TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        connection.execute("CREATE MATERIALIZED VIEW kept AS SELECT k, CAST(v || '0' AS INT) AS x FROM t; FLUSH")
        counted = []
        for i in range(6):
            connection.execute(
                f"CREATE MATERIALIZED VIEW gone AS SELECT k, CAST(v || '{i % 3 + 1}' AS INT) AS x FROM t"
            )
            connection.execute("FLUSH")
            now = {v["name"]: v["expression_errors"] for v in connection.status()["views"]}
            counted.append((now["kept"], now["gone"]))
            connection.execute("DROP MATERIALIZED VIEW gone; FLUSH")
        errors = CommitLog(Layout(tmp_path / "db", create=False)).last_epoch().metrics.errors
    assert counted == [(2, 2)] * 6
    assert sorted(errors.values()) == [2]
