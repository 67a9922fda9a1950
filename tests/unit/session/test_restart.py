"""A database in a directory: opened again, opened twice, read from elsewhere. RA-04."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import watersmeet
from watersmeet.objectstores import storage
from watersmeet.store import readers
from watersmeet.store.layout import Layout

SETUP = """
CREATE TABLE t (a int PRIMARY KEY, b varchar);
CREATE TABLE u (a int, c double precision);
CREATE MATERIALIZED VIEW joined AS SELECT t.a, t.b, u.c FROM t LEFT JOIN u ON t.a = u.a;
CREATE MATERIALIZED VIEW report AS SELECT b, count(*) AS n, sum(c) AS s FROM joined GROUP BY b;
INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'x');
INSERT INTO u VALUES (1, 0.5), (1, 1.5), (3, 1);
"""


def connect(path, **options):
    return watersmeet.connect(path, runtime="inprocess", **options)


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=str)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("flushed", [True, False])
def test_everything_goes_on(tmp_path, parallelism, flushed):
    path = tmp_path / "new" / "db"
    with connect(path, parallelism=parallelism) as connection:
        connection.execute(SETUP)
        if flushed:
            connection.execute("FLUSH")
    with connect(path) as connection:
        connection.execute(
            "UPDATE t SET b = 'z' WHERE a = 3; INSERT INTO t VALUES (4, 'y'); DELETE FROM u WHERE c = 0.5; FLUSH"
        )
        assert rows(connection, "SELECT * FROM report") == [("x", 1, 1.5), ("y", 2, None), ("z", 1, 1.0)]
        connection.execute(
            "DROP MATERIALIZED VIEW report; CREATE TABLE late (a int); INSERT INTO late VALUES (7); FLUSH"
        )
    with connect(path, parallelism=parallelism) as connection:
        assert rows(connection, "SELECT * FROM joined") == [
            (1, "x", 1.5),
            (2, "y", None),
            (3, "z", 1.0),
            (4, "y", None),
        ]
        assert rows(connection, "SELECT * FROM late") == [(7,)]
        connection.execute("CREATE MATERIALIZED VIEW report AS SELECT count(*) AS n FROM joined")
        assert rows(connection, "SELECT * FROM report") == [(4,)]


def test_saved_plans_are_run_and_not_made_anew(tmp_path, monkeypatch):
    with connect(tmp_path) as connection:
        connection.execute(SETUP + "FLUSH")
        before = connection._session.database.plans.circuit.fingerprint
    monkeypatch.setattr("watersmeet.maintenance.views.compile_view", None)
    monkeypatch.setattr("watersmeet.database.rebuild.bind_query", None)
    with connect(tmp_path) as connection:
        assert connection._session.database.plans.circuit.fingerprint == before
        connection.execute("DELETE FROM t WHERE a = 1; FLUSH")
        assert rows(connection, "SELECT * FROM report") == [("x", 1, 1.0), ("y", 1, None)]


def test_a_missing_plan_is_restored(tmp_path, caplog):
    with connect(tmp_path) as connection:
        connection.execute(SETUP)
        victim = connection._session.catalog.by_name("joined").id
    (tmp_path / "plans" / f"{victim}-1.json").unlink()
    with connect(tmp_path) as connection:
        assert f"the plan of relation {victim} is missing" in caplog.text
        connection.execute("DELETE FROM t WHERE a = 1; FLUSH")
        assert rows(connection, "SELECT * FROM report") == [("x", 1, 1.0), ("y", 1, None)]
    assert (tmp_path / "plans" / f"{victim}-2.json").exists()


def test_a_plan_that_an_overtaken_writer_saved_late_does_not_count(tmp_path):
    """Both have made a relation of the same id: that of the one that was overtaken was refused."""
    connect(tmp_path).close()
    with connect(tmp_path) as connection:
        connection.execute(SETUP)
        before = connection._session.database.plans.circuit.fingerprint
        layout = connection._session.database.layout
    one, other = sorted(layout.plans.glob("m*-2.json"))[:2]
    late = layout.plan(one.stem.removesuffix("-2"), 1)
    late.write_bytes(layout.seal(late, layout.unseal(other)))
    with connect(tmp_path) as connection:
        assert connection._session.database.plans.circuit.fingerprint == before


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_rebuild(tmp_path, before, after):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.json").write_text('{"a": 1}\n{"a": 3}\n')
    source = f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path / 'in'}') FORMAT PLAIN ENCODE JSON;"
    with connect(tmp_path / "db", parallelism=before) as connection:
        connection.execute(
            SETUP + source + "CREATE MATERIALIZED VIEW m AS SELECT s.a, t.b FROM s LEFT JOIN t ON s.a = t.a; FLUSH"
        )
        connection.execute("DELETE FROM u WHERE c = 0.5")
    with connect(tmp_path / "db", parallelism=after, rebuild=True) as connection:
        assert rows(connection, "SELECT * FROM m") == [(1, "x"), (3, "x")]
        connection.execute("UPDATE t SET b = 'q' WHERE a = 3; FLUSH")
        assert rows(connection, "SELECT * FROM report") == [("q", 1, 1.0), ("x", 1, 1.5), ("y", 1, None)]
        assert rows(connection, "SELECT * FROM m") == [(1, "x"), (3, "q")]
    with connect(tmp_path / "db", parallelism=after) as connection:
        connection.execute("DELETE FROM t WHERE a = 1; FLUSH")
        assert rows(connection, "SELECT * FROM report") == [("q", 1, 1.0), ("y", 1, None)]
        assert rows(connection, "SHOW PARAMETERS LIKE 'para%'") == [("parallelism", str(after))]


def test_rebuild_after_all_views_were_dropped(tmp_path):
    with connect(tmp_path / "db", parallelism=2) as connection:
        connection.execute("CREATE TABLE x (a int); CREATE MATERIALIZED VIEW v AS SELECT sum(a) FROM x; FLUSH")
        connection.execute("DROP MATERIALIZED VIEW v")
    with connect(tmp_path / "db", parallelism=3, rebuild=True) as connection:
        connection.execute("INSERT INTO x VALUES (1), (2); CREATE MATERIALIZED VIEW v AS SELECT sum(a) FROM x; FLUSH")
        assert rows(connection, "SELECT * FROM v") == [(3,)]


def test_rebuild_of_nothing(tmp_path):
    connect(tmp_path / "db", parallelism=2, rebuild=True).close()
    connect(tmp_path / "db", parallelism=4, rebuild=True).close()
    connect(tmp_path / "db", parallelism=4).close()


@pytest.mark.slow
def test_one_writer(tmp_path):
    with connect(tmp_path / "db"):
        with pytest.raises(watersmeet.OperationalError) as found:
            connect(tmp_path / "db")
        assert found.value.condition == "DATABASE_IN_USE"
        assert "pid" in found.value.message
        code = (
            "import watersmeet\ntry:\n    watersmeet.connect({!r}, runtime='inprocess')\n"
            "except watersmeet.OperationalError as e:\n    print(e.condition)"
        ).format(str(tmp_path / "db"))
        root = Path(watersmeet.__file__).parents[1]
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
        assert out.stdout.strip() == "DATABASE_IN_USE"
    connect(tmp_path / "db").close()


def test_a_failed_start_lets_go_of_the_database(tmp_path, monkeypatch):
    connect(tmp_path).close()
    with monkeypatch.context() as patch:
        patch.setattr("watersmeet.database.opened.make_engine", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            connect(tmp_path)
    connect(tmp_path).close()


def test_something_else_at_the_path(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "FORMAT").write_text('{"format": 999}')
    for name in ("file", "full", "newer"):
        with pytest.raises(watersmeet.NotSupportedError) as found:
            connect(tmp_path / name)
        assert found.value.condition == "DATABASE_FORMAT"
    assert sorted(p.name for p in (tmp_path / "newer").iterdir()) == ["FORMAT"]


def test_a_view_that_was_being_made_is_finished(tmp_path, monkeypatch):
    with connect(tmp_path) as connection:
        connection.execute(SETUP)
        engine = connection._session.database.engine

        def die(*_):
            raise KeyboardInterrupt

        # A process that is killed while the view is filled leaves its entry in the catalog.
        monkeypatch.setattr(engine, "install", die)
        monkeypatch.setattr("watersmeet.database.filling.undo", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            connection.execute("CREATE MATERIALIZED VIEW unfinished AS SELECT b FROM report")
        with pytest.raises(watersmeet.ProgrammingError):
            connection.execute("SELECT * FROM unfinished")
    monkeypatch.undo()
    with connect(tmp_path) as connection:
        connection.execute("FLUSH")
        assert rows(connection, "SELECT * FROM unfinished") == [("x",), ("y",)]


def test_reading_beside_the_writer(tmp_path):
    with connect(tmp_path) as writer:
        writer.execute(SETUP)
        with connect(tmp_path, read_only=True) as reader:
            assert rows(reader, "SELECT * FROM t") == []
            writer.execute("FLUSH")
            assert rows(reader, "SELECT * FROM report") == [("x", 3, 3.0), ("y", 1, None)]
            writer.execute("DELETE FROM t WHERE a = 3")
            assert rows(reader, "SELECT * FROM t, report WHERE t.b = report.b AND n > 1") == [
                (1, "x", "x", 3, 3.0),
                (3, "x", "x", 3, 3.0),
            ]
            writer.execute(
                "FLUSH; CREATE TABLE later (z int); INSERT INTO later VALUES (1); DROP MATERIALIZED VIEW report"
            )
            assert rows(reader, "SHOW TABLES") == [("later",), ("t",), ("u",)]
            assert rows(reader, "DESCRIBE later")[0] == ("table description", "table", None)
            with pytest.raises(watersmeet.ProgrammingError) as found:
                reader.execute("SELECT * FROM report")
            assert found.value.condition == "UNDEFINED_RELATION"
            assert reader.execute("SHOW JOBS").fetchone()[0] == "joined"
            assert reader.status()["state"] == "running"
            assert reader.execute("EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT a FROM joined").fetchall()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (9, 'q')",
        "UPDATE t SET b = 'q'",
        "DELETE FROM t",
        "CREATE TABLE n (a int)",
        "FLUSH",
        "DROP TABLE u",
        "CREATE MATERIALIZED VIEW n AS SELECT a FROM t",
        "CREATE VIEW n AS SELECT a FROM t",
        "CREATE INDEX n ON t (a)",
        "CREATE TABLE n AS SELECT 1 AS a",
    ],
)
def test_a_reader_changes_nothing(tmp_path, sql):
    with connect(tmp_path) as writer:
        writer.execute(SETUP)
    with connect(tmp_path, read_only=True) as reader:
        with pytest.raises(watersmeet.OperationalError) as found:
            reader.execute(sql)
        assert found.value.condition == "READ_ONLY_SESSION"
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        reader.execute("COMMIT")


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(watersmeet.NotSupportedError) as found:
        connect(tmp_path / "nope", read_only=True)
    assert found.value.condition == "DATABASE_FORMAT"
    assert not (tmp_path / "nope").exists()


@pytest.mark.slow
def test_many_restarts_with_compaction(tmp_path, monkeypatch):
    monkeypatch.setattr("watersmeet.database.opened._INPROCESS_COMPACTION", 3)
    expected = {}
    for round_ in range(6):
        with connect(tmp_path, parallelism=2) as connection:
            if round_ == 0:
                connection.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
                connection.execute("CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
            for i in range(8):
                key, value = (7 * round_ + i) % 11, (round_ + i) % 3
                connection.execute(f"INSERT INTO t VALUES ({key}, {value}); FLUSH")
                expected[key] = value
            counts = {b: list(expected.values()).count(b) for b in set(expected.values())}
            assert dict(connection.execute("SELECT * FROM v").fetchall()) == counts
            if round_ == 3:
                connection.execute("CREATE MATERIALIZED VIEW w AS SELECT sum(b) AS s FROM t")
            if round_ >= 3:
                assert connection.execute("SELECT s FROM w").fetchall() == [(sum(expected.values()),)]


def test_a_database_without_views_holds_no_old_commits(tmp_path):
    """What a view needed goes with it: commits must not pile up until the next restart."""
    with connect(tmp_path / "db") as connection:
        connection.execute(SETUP)
        connection.execute("FLUSH")
        layout = Layout(tmp_path / "db", create=False)
        assert [h for h in readers.read_leases(layout) if h.state == readers.ACTIVE]
        connection.execute("DROP MATERIALIZED VIEW joined CASCADE")
        connection.execute("FLUSH")
        assert not [h for h in readers.read_leases(layout) if h.state == readers.ACTIVE]
        connection.execute("CREATE MATERIALIZED VIEW again AS SELECT count(*) AS n FROM t")
        assert rows(connection, "SELECT * FROM again") == [(3,)]


def test_a_table_is_read_after_epochs_that_were_cleaned_away(tmp_path, monkeypatch):
    """The frontier of a view over files alone stays at the start, while commits above it come and go."""
    monkeypatch.setattr("watersmeet.database.opened._INPROCESS_COMPACTION", 3)
    monkeypatch.setattr("watersmeet.store.retention.IDLE_COMMITS", 3)
    source = f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path / 'in'}') FORMAT PLAIN ENCODE JSON"
    (tmp_path / "in").mkdir()
    monkeypatch.setattr("watersmeet.runtime.coordinator.SAVE_EPOCHS", 2)
    with connect(tmp_path / "db") as connection:
        connection.execute(f"{source}; CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM s")
        for number in range(12):
            (tmp_path / "in" / f"{number}.json").write_text(f'{{"a": {number}}}\n')
            connection.execute("FLUSH")
        assert not Layout(tmp_path / "db", create=False).commit(2).exists()
    with connect(tmp_path / "db") as connection:
        assert connection.execute("SHOW JOBS").fetchall()
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        (tmp_path / "in" / "last.json").write_text('{"a": 100}\n')
        connection.execute("FLUSH")
        assert rows(connection, "SELECT s FROM v") == [(166,)]


def test_an_overlay_outlives_the_commits_below_its_base(tmp_path, monkeypatch):
    """A table's base goes past what lies on top of it where no change of that table lies between."""
    monkeypatch.setattr("watersmeet.database.opened._INPROCESS_COMPACTION", 3)
    monkeypatch.setattr("watersmeet.store.retention.IDLE_COMMITS", 3)
    monkeypatch.setattr("watersmeet.store.commits._CACHE_BYTES", 1)
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE u (b int)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM u")
        connection.execute("INSERT INTO t VALUES (1); FLUSH; DELETE FROM t WHERE a = 5")
        for number in range(12):
            connection.execute(f"INSERT INTO u VALUES ({number}); FLUSH; SELECT * FROM t; SELECT * FROM u")
        connection.execute("DELETE FROM t WHERE a = 1; FLUSH")
        assert rows(connection, "SELECT a FROM t") == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_copy_without_empty_folders(tmp_path, read_only):
    """Object stores and archives have no empty folders."""
    with connect(tmp_path) as connection:
        connection.execute(SETUP + "FLUSH")
    empty = [folder for folder in tmp_path.iterdir() if folder.is_dir() and not any(folder.iterdir())]
    assert tmp_path / "low-water" in empty
    for folder in empty:
        folder.rmdir()
    with connect(tmp_path, read_only=read_only) as connection:
        assert rows(connection, "SELECT * FROM report") == [("x", 3, 3.0), ("y", 1, None)]


def test_a_reader_that_may_not_make_folders(tmp_path, monkeypatch):
    with connect(tmp_path) as connection:
        connection.execute(SETUP)
    (tmp_path / "low-water").rmdir()
    monkeypatch.setattr(storage, "make_directory", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(watersmeet.Error) as found:
        connect(tmp_path, read_only=True)
    assert found.value.condition == "DATABASE_DAMAGED"
    assert found.value.message == f"the database at {tmp_path} lacks the folders low-water"
