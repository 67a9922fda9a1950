"""What data has stopped stays stopped when a policy starts the process again and again, and no epoch is tried again."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app

STARTS = 3


def epochs(path):
    """The number of the newest epoch, and what it says of views that were stopped."""
    with watersmeet.connect(path, read_only=True) as reader:
        last = reader._session.database.log.last_epoch()
        return last.epoch, last.progress.failed


def start(path, *arguments):
    return CliRunner().invoke(app, ["run", "--path", str(path), "--runtime", "inprocess", "--once", *arguments])


def test_a_view_that_was_stopped_is_a_fact_of_a_commit(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, "timeplus", runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE STREAM l(i int, k string); CREATE STREAM r(j int, k string)")
        connection.execute(
            "CREATE MATERIALIZED VIEW small AS SELECT i, j FROM l JOIN r ON l.k = r.k "
            "SETTINGS join_max_buffered_bytes = 2000"
        )
        connection.execute("CREATE MATERIALIZED VIEW whole AS SELECT count(*) AS n FROM l")
        connection.execute("INSERT INTO l VALUES " + ", ".join(f"({i}, 'key {i}')" for i in range(500)))
        connection.flush()
    before = epochs(path)
    assert [failure["condition"] for failure in before[1].values()] == ["BUFFER_LIMIT"]
    assert start(path, "--dialect", "timeplus").exit_code == 0
    settled = epochs(path)  # with one more epoch at most, which lets go of the state of the view
    assert settled[1] == before[1]
    for _ in range(STARTS):
        assert start(path, "--dialect", "timeplus").exit_code == 0
    assert epochs(path) == settled
    with watersmeet.connect(path, "timeplus", runtime="inprocess") as connection:
        connection.execute("INSERT INTO l VALUES (500, 'key 500'); FLUSH")
        assert connection.execute("SELECT n FROM table(whole)").fetchall() == [(501,)]
        with pytest.raises(watersmeet.Error) as stopped:
            connection.execute("SELECT * FROM table(small)")
        assert stopped.value.condition == "BUFFER_LIMIT"


def test_a_source_that_data_has_stopped_stalls_alone(tmp_path):
    """The exit code says it each time; the other source goes on, and what is bad is read by no further epoch."""
    path = tmp_path / "db"
    script = tmp_path / "script.sql"
    sources = ""
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        where = f"connector = 'file', path = '{tmp_path / name}', format = 'json', settle_ms = 0, on_error = 'stop'"
        sources += f"CREATE SOURCE {name} (a int) WITH ({where}); "
        sources += f"CREATE MATERIALIZED VIEW {name}_rows AS SELECT a FROM {name}; "
    script.write_text(sources)
    (tmp_path / "bad" / "1.json").write_text('{"a": "no number"}\n')
    (tmp_path / "good" / "1.json").write_text('{"a": 1}\n')
    assert start(path, str(script)).exit_code == 3
    number, _ = epochs(path)
    for _ in range(STARTS):
        assert start(path).exit_code == 3
    assert epochs(path)[0] == number
    (tmp_path / "good" / "2.json").write_text('{"a": 2}\n')
    assert start(path).exit_code == 3
    with watersmeet.connect(path, read_only=True) as reader:
        assert reader.execute("SELECT a FROM good_rows ORDER BY a").fetchall() == [(1,), (2,)]
        assert reader.execute("SELECT a FROM bad_rows").fetchall() == []
