"""A database that works for days gives back what its allocators keep."""

from __future__ import annotations

import watersmeet
from watersmeet.database import opened


def test_memory_is_given_back_with_each_checkpoint(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(opened, "give_back", lambda: given.append(1))
    monkeypatch.setattr(opened, "_INPROCESS_COMPACTION", 3)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        for k in range(8):
            connection.execute(f"INSERT INTO t VALUES ({k}); FLUSH")
    assert given
