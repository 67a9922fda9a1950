"""A database whose epochs fail can be opened, looked at and mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import watersmeet
from watersmeet import Error
from watersmeet.circuit.circuit import Circuit
from watersmeet.errors import error
from watersmeet.runtime import inprocess
from watersmeet.runtime.committer import commit_epoch
from watersmeet.runtime.engine import Database
from watersmeet.runtime.spark import engine
from watersmeet.runtime.taskcontract import Intent
from watersmeet.store.commits import Commit


def test_a_database_whose_epochs_fail_opens_and_its_views_can_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_mend(tmp_path, "inprocess", monkeypatch)


def fail_and_mend(folder: Path, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs that take rows of a source fail, until the views that read it are dropped."""
    inbox = folder / "in"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"a": 1}\n')
    read = f"connector = 'file', path = '{inbox}', format = 'json', settle_ms = 0"

    def failing(db: Database, circuit: Circuit, intent: Intent, *arguments: Any, **options: Any) -> Commit:
        if any(p.relation == source for p in intent.slices):
            raise error("STATE_MISMATCH", "b.json can't be written")
        return commit_epoch(db, circuit, intent, *arguments, **options)

    with watersmeet.connect(folder / "db", runtime=runtime) as connection:
        connection.execute(
            f"CREATE SOURCE s (a int) WITH ({read}); CREATE TABLE t (a int); "
            "CREATE MATERIALIZED VIEW fails AS SELECT a FROM s; "
            "CREATE MATERIALIZED VIEW too AS SELECT a + 1 AS b FROM s; "
            "CREATE MATERIALIZED VIEW good AS SELECT a FROM t; INSERT INTO t VALUES (1); FLUSH"
        )
        found = connection._session.catalog.by_name("s")
        assert found is not None
        source = found.id
        for module in (inprocess, engine):
            monkeypatch.setattr(module, "commit_epoch", failing)
        (inbox / "b.json").write_text('{"a": 2}\n')
        with pytest.raises(Error, match="can't be written") as caught:
            connection.execute("FLUSH")
        assert caught.value.condition == "STATE_MISMATCH"
    with watersmeet.connect(folder / "db", runtime=runtime) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(Error, match="can't be written"):
            connection.execute("FLUSH")
        assert {row[0]: row[2] for row in connection.execute("SHOW JOBS").fetchall()}["fails"] == "failed"
        assert "b.json" in str(connection.execute("SHOW ERRORS").fetchall())
        assert connection.execute("SELECT * FROM fails").fetchall() == [(1,)]
        connection.execute("DROP MATERIALIZED VIEW too")
        connection.execute("DROP MATERIALIZED VIEW fails; DROP SOURCE s; FLUSH")
        assert connection.execute("SELECT * FROM good ORDER BY a").fetchall() == [(1,), (2,)]
        assert connection.status()["state"] == "running"
        assert connection.execute("SHOW ERRORS").fetchall() == []
