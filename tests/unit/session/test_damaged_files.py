"""A database opens though files are missing or damaged; what can be made again is, and what can't is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import watersmeet
from watersmeet import Error

QUERIES = {
    "sums": "SELECT k, s FROM sums",
    "top": "SELECT k FROM top",
    "plain": "SELECT y FROM plain",
    "ff": "SELECT a FROM ff",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "in").mkdir()
    (folder / "in/a.json").write_text('{"a": 1}\n')
    with watersmeet.connect(folder / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute(
            "CREATE TABLE t (k int, x int); CREATE TABLE u (k int, y int); "
            "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k; "
            "CREATE MATERIALIZED VIEW top AS SELECT k FROM sums WHERE s > 0; "
            "CREATE MATERIALIZED VIEW plain AS SELECT y FROM u; "
            f"CREATE SOURCE f (a int) WITH (connector = 'file', path = '{folder}/in', format = 'json', settle_ms = 0); "
            "CREATE MATERIALIZED VIEW ff AS SELECT a FROM f; INSERT INTO u VALUES (1, 1); FLUSH; "
            "INSERT INTO t VALUES (2, 5); FLUSH"
        )
    return folder / "db"


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "db"))


def gone(file: Path) -> None:
    file.unlink()


def overwritten(file: Path) -> None:
    data = bytearray(file.read_bytes())
    start = len(data) // 3
    data[start : start + 40] = bytes(b ^ 0x55 for b in data[start : start + 40])
    file.write_bytes(data)


DAMAGES = [gone, overwritten]
Damage = Callable[[Path], None]


def write(connection: watersmeet.Connection) -> None:
    connection.execute("INSERT INTO u VALUES (7, 7); INSERT INTO t VALUES (9, 9); FLUSH")


def check(connection: watersmeet.Connection, *stopped: str) -> None:
    """All views but `stopped` follow what is written."""
    write(connection)
    found: dict[str, Any] = {n: sorted(connection.execute(q)) for n, q in QUERIES.items() if n not in stopped}
    right = {"sums": [(2, 5), (9, 9)], "top": [(2,), (9,)], "plain": [(1,), (7,)], "ff": [(1,)]}
    assert found == {n: rows for n, rows in right.items() if n not in stopped}


@pytest.mark.parametrize("damage", DAMAGES)
def test_all_plans_are_made_again(path: Path, damage: Damage) -> None:
    """Those of views come from the circuit."""
    for file in path.glob("plans/m*.json"):
        damage(file)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)
    assert len(list(path.glob("plans/m*-2.json"))) == len(QUERIES)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_circuit_is_made_again_from_the_plans(path: Path, damage: Damage) -> None:
    for file in path.glob("plans/[!m]*.json"):
        damage(file)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)


def test_plans_and_circuit_are_made_again_from_the_statements(path: Path) -> None:
    for file in path.glob("plans/*.json"):
        gone(file)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)


@pytest.mark.parametrize("damage", DAMAGES)
def test_state_that_is_damaged_stops_its_views_alone(path: Path, damage: Damage) -> None:
    (newest,) = [p for p in path.glob("segments/*.segment") if p.name.startswith(max_epoch(path))]
    damage(newest)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection, "sums", "top")
        for name in ("sums", "top"):
            with pytest.raises(Error, match=newest.name):
                connection.execute(QUERIES[name])
        connection.execute("DROP MATERIALIZED VIEW top; DROP MATERIALIZED VIEW sums")
        connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k")
        assert sorted(connection.execute(QUERIES["sums"])) == [(2, 5), (9, 9)]
    with watersmeet.connect(path, runtime="inprocess") as connection:
        assert sorted(connection.execute(QUERIES["sums"])) == [(2, 5), (9, 9)]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("named", ["sums", "ALL"])
def test_views_whose_state_and_rows_are_damaged_are_refreshed(path: Path, damage: Damage, named: str) -> None:
    (newest,) = [p for p in path.glob("segments/*.segment") if p.name.startswith(max_epoch(path))]
    damage(newest)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection, "sums", "top")
        connection.execute(f"REFRESH MATERIALIZED VIEW {named}")
        assert sorted(connection.execute(QUERIES["sums"])) == [(2, 5), (9, 9)]
        assert sorted(connection.execute(QUERIES["top"])) == [(2,), (9,)]
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (2, 1); FLUSH")
        assert sorted(connection.execute(QUERIES["sums"])) == [(2, 6), (9, 9)]
        assert connection.execute("SHOW ERRORS").fetchall() == []


def test_lost_rows_that_a_sink_has_are_not_guessed(path: Path) -> None:
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute(
            "CREATE SUBSCRIPTION s FROM sums WITH (retention = '1D'); INSERT INTO t VALUES (2, 1); FLUSH"
        )
    (newest,) = [p for p in path.glob("segments/*.segment") if p.name.startswith(max_epoch(path))]
    gone(newest)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (2, 1); FLUSH")
        with pytest.raises(Error, match='cannot refresh materialized view "sums"') as found:
            connection.execute("REFRESH MATERIALIZED VIEW sums")
        assert found.value.condition == "DEPENDENT_OBJECTS"
        connection.execute("DROP SUBSCRIPTION s; REFRESH MATERIALIZED VIEW sums")
        assert sorted(connection.execute(QUERIES["sums"])) == [(2, 7)]


def max_epoch(path: Path) -> str:
    return max(p.name.partition("-")[0] for p in path.glob("segments/0*.segment"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_of_a_table_that_are_gone_are_named(path: Path, damage: Damage) -> None:
    (file,) = sorted(path.glob("segments/t*.segment"), key=lambda p: int(p.name[1:].partition("-")[0]))[-1:]
    damage(file)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)
        with pytest.raises(Error, match=file.name):
            connection.execute("SELECT * FROM t")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["COMMIT", "s6"])
def test_what_sources_remember_is_made_again_from_the_commits(path: Path, damage: Damage, name: str) -> None:
    (file,) = path.glob(f"sources/{name}-*.saved")
    damage(file)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)


def test_a_source_whose_memory_is_lost_waits_alone_and_names_the_file(path: Path) -> None:
    (file,) = path.glob("sources/s6-*.saved")
    gone(file)
    for other in path.glob("sources/COMMIT-*.saved"):
        other.write_text('{"commit": 1000}')  # as if the commits before it were gone
    with watersmeet.connect(path, runtime="inprocess") as connection:
        check(connection)
        assert "sources/s6-*.saved" in str(connection.execute("SHOW ERRORS").fetchall())


def test_newest_commits_that_are_deleted_are_noticed(path: Path) -> None:
    newest = max(path.glob("commits/*.json"))
    gone(newest)
    with pytest.raises(Error, match="the newest commits of the database are missing") as found:
        watersmeet.connect(path, runtime="inprocess")
    assert found.value.condition == "DATABASE_DAMAGED"
    assert newest.name in str(found.value)
    with watersmeet.connect(path, runtime="inprocess", rebuild=True) as connection:
        write(connection)
    watersmeet.connect(path, runtime="inprocess").close()


def test_a_newest_transaction_that_is_deleted_after_a_kill_is_noticed(path: Path) -> None:
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO u VALUES (8, 8)")
        copy = shutil.copytree(path, path.parent / "killed")
    gone(max(copy.glob("commits/*.json")))
    with pytest.raises(Error, match="the newest commits of the database are missing"):
        watersmeet.connect(copy, runtime="inprocess")
