"""A database whose epochs fail can be opened, looked at and mended."""

from __future__ import annotations

from pathlib import Path

import pytest

import watersmeet
from watersmeet import Error


def test_a_database_whose_epochs_fail_opens_and_its_views_can_be_dropped(tmp_path: Path) -> None:
    fail_and_mend(tmp_path, "inprocess")


def fail_and_mend(folder: Path, runtime: str) -> None:
    """A source with on_error = 'stop' fails its epochs, until the views that read it are dropped."""
    inbox = folder / "in"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"a": 1}\n')
    strict = f"connector = 'file', path = '{inbox}', format = 'json', on_error = 'stop', settle_ms = 0"
    with watersmeet.connect(folder / "db", runtime=runtime) as connection:
        connection.execute(
            f"CREATE SOURCE s (a int) WITH ({strict}); CREATE TABLE t (a int); "
            "CREATE MATERIALIZED VIEW fails AS SELECT a FROM s; "
            "CREATE MATERIALIZED VIEW too AS SELECT a + 1 AS b FROM s; "
            "CREATE MATERIALIZED VIEW good AS SELECT a FROM t; INSERT INTO t VALUES (1); FLUSH"
        )
        (inbox / "b.json").write_text('{"a": "no number"}\n')
        with pytest.raises(Error, match="can't be read") as found:
            connection.execute("FLUSH")
        assert found.value.condition == "VIEW_FAILED"
    with watersmeet.connect(folder / "db", runtime=runtime) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(Error, match="can't be read"):
            connection.execute("FLUSH")
        assert {row[0]: row[2] for row in connection.execute("SHOW JOBS").fetchall()}["fails"] == "failed"
        assert "b.json" in str(connection.execute("SHOW ERRORS").fetchall())
        assert connection.execute("SELECT * FROM fails").fetchall() == [(1,)]
        connection.execute("DROP MATERIALIZED VIEW too")
        connection.execute("DROP MATERIALIZED VIEW fails; DROP SOURCE s; FLUSH")
        assert connection.execute("SELECT * FROM good ORDER BY a").fetchall() == [(1,), (2,)]
        assert connection.status()["state"] == "running"
        assert connection.execute("SHOW ERRORS").fetchall() == []
