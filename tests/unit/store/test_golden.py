"""Databases of earlier formats, made by the releases of their time (`scripts/golden.py`), opened by this one."""

from __future__ import annotations

import json
import tarfile
from contextlib import contextmanager

import duckdb
import pytest
from scripts.golden import ARCHIVES, FILLS, RELATIONS, VIEWS, content, fill_progress
from tests.waiting import until

import watersmeet
from watersmeet.database import opened
from watersmeet.errors import Error
from watersmeet.store import layout
from watersmeet.store.layout import DATABASE_FORMAT_VERSION, OLDEST_FORMAT_VERSION

FORMATS = sorted(int(path.name.partition(".")[0]) for path in ARCHIVES.glob("*.tar.xz"))

CHANGES = (
    "INSERT INTO items VALUES (0, 'zero'), (10, 'ten')",
    "INSERT INTO orders VALUES (100, 10, 9.5, '2026-01-01 00:01:00', ARRAY['x'], '{}'), (7, 3, 12, NULL, NULL, NULL)",
    "DELETE FROM orders WHERE id BETWEEN 20 AND 29",
    "UPDATE orders SET amount = amount + 1 WHERE item = 4",
    "UPDATE items SET name = NULL WHERE item = 5",
    "DELETE FROM items WHERE item = 6",
    """INSERT INTO log SELECT timestamp '2026-01-01 00:07:00' + g * interval '9 seconds', g % 12, -g
    FROM generate_series(1, 40) AS g(g)""",
)


@pytest.fixture(params=FORMATS)
def golden(request, tmp_path):
    """The path of a database of an earlier format, and its content."""
    with tarfile.open(ARCHIVES / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "db", json.loads((tmp_path / "content.json").read_text())


def batch(connection: watersmeet.Connection) -> dict[str, list[list[str]]]:
    """The answer of DuckDB to the query of each view over the tables."""
    compared = duckdb.connect()
    for name in ("items", "orders", "log"):
        compared.register(name, connection.execute(f"SELECT * FROM {name}").fetch_arrow_table())
    found = {}
    for name, query in VIEWS.items():
        sql = query.replace("TUMBLE(log, ts, INTERVAL '1 minute')", "(SELECT *, time_bucket(INTERVAL '1 minute', ts) "
                            "AS window_start FROM log)")  # fmt: skip
        rows = compared.execute(sql.replace("amount DESC", "amount DESC NULLS FIRST")).fetch_arrow_table()
        found[name] = sorted([str(v) for v in row.values()] for row in rows.to_pylist())
        compared.register(name, rows)
    return found


def test_there_is_one_of_each_format():
    assert list(range(OLDEST_FORMAT_VERSION, DATABASE_FORMAT_VERSION + 1)) == FORMATS


def test_it_opens_with_its_content_and_goes_on(golden):
    path, expected = golden
    with watersmeet.connect(path, runtime="inprocess") as connection:
        assert content(connection) == expected
        for text in CHANGES:
            connection.execute(text)
            connection.execute("FLUSH")
        assert {name: rows for name, rows in content(connection).items() if name in VIEWS} == batch(connection)
        connection.execute("CREATE MATERIALIZED VIEW more AS SELECT twice(item) AS item, n FROM windows")
        connection.execute("FLUSH")
        after = content(connection, (*RELATIONS, "more"))
        assert len(after["more"]) == len(after["windows"])
    with watersmeet.connect(path, runtime="inprocess", rebuild=True) as connection:
        connection.execute("FLUSH")
        assert content(connection, (*RELATIONS, "more")) == after
    with watersmeet.connect(path, read_only=True) as connection:
        assert content(connection, (*RELATIONS, "more")) == after
    assert json.loads((path / "FORMAT").read_text())["format"] == DATABASE_FORMAT_VERSION


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("name", "query"), [
    ("join", "SELECT name, count(*) AS n, sum(v) AS v FROM live GROUP BY name"),
    ("look-up", "SELECT v + 1 AS v, name FROM live"),
])  # fmt: skip
def test_a_fill_that_an_earlier_release_began_goes_on(tmp_path, name, query, ends):
    """It has copies of shared operators, where this release has clones. ends: whether a process of this release ends
    during the fill, too.
    """
    with tarfile.open(ARCHIVES / "fills" / "16.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILLS)

    def change(connection, texts):
        for text in texts:
            connection.execute(text)
            connection.execute("FLUSH")

    path = tmp_path / name
    if ends:
        with watersmeet.connect(path, runtime="inprocess") as connection:
            before = fill_progress(connection)
            change(connection, CHANGES[:2])
            connection.execute("ALTER MATERIALIZED VIEW filled SET BACKFILL_RATE_LIMIT = 30")
            until(lambda: fill_progress(connection) > before)
            connection.execute("ALTER MATERIALIZED VIEW filled SET BACKFILL_RATE_LIMIT = 0")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        assert 0 < fill_progress(connection) <= 1
        change(connection, CHANGES[2 * ends : 5])
        connection.execute("ALTER MATERIALIZED VIEW filled SET BACKFILL_RATE_LIMIT = DEFAULT")
        connection.execute("WAIT")
        assert content(connection, ("filled",))["filled"] == rows_of(connection, query)
        change(connection, CHANGES[5:])
        assert content(connection, ("filled",))["filled"] == rows_of(connection, query)


def rows_of(connection: watersmeet.Connection, query: str) -> list[list[str]]:
    """The rows of a query, as in `content`."""
    return sorted([str(v) for v in row] for row in connection.execute(query).fetchall())


def test_an_older_one_is_upgraded_by_a_writer_and_not_by_a_reader(golden):
    path, expected = golden
    before = json.loads((path / "FORMAT").read_text())["format"]
    if before < DATABASE_FORMAT_VERSION:
        with pytest.raises(Error, match=f"has format {before}, older than") as refused:
            watersmeet.connect(path, read_only=True)
        assert refused.value.hint is not None
        assert refused.value.hint.startswith("Open it once for writing, which upgrades it;")
    watersmeet.connect(path, runtime="inprocess").close()
    with watersmeet.connect(path, read_only=True) as connection:
        assert content(connection) == expected


def test_one_with_objects_that_are_not_known_stays_as_it_is(golden):
    """As the numbered columns of a format that counted in the catalog."""
    path, _ = golden
    number = json.loads((path / "FORMAT").read_text())["format"]
    if number == DATABASE_FORMAT_VERSION:
        pytest.skip("such a database is damaged")
    for file in (path / "catalog").iterdir():
        file.write_text(file.read_text().replace('"depends_on"', '"unknown"'))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}
    with pytest.raises(Error) as refused:
        watersmeet.connect(path, runtime="inprocess")
    assert refused.value.condition == "DATABASE_FORMAT"
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"} == before


def test_a_fork_is_opened_by_this_release_while_its_database_stays(golden, monkeypatch):
    """The upgrade is tried in a fork: the database keeps its format and its files, and goes on with the release that
    wrote it. It becomes the fork once it is upgraded.
    """
    path, expected = golden
    number = json.loads((path / "FORMAT").read_text())["format"]

    @contextmanager
    def release():
        """The database, opened by a release of its format."""
        with monkeypatch.context() as earlier:
            for module in (layout, opened):
                earlier.setattr(module, "DATABASE_FORMAT_VERSION", number)
            with watersmeet.connect(path, runtime="inprocess") as connection:
                yield connection

    with release() as connection:
        connection.execute("CREATE FORK f")
        for text in CHANGES:
            connection.execute(text)
        connection.execute("FLUSH")
        after = content(connection)

    def files():
        there = [p for p in path.rglob("*") if p.is_file() and "forks" not in p.parts and "readers" not in p.parts]
        return {p: p.read_bytes() for p in there}

    before = files()
    with watersmeet.connect(path / "forks/f", runtime="inprocess") as fork:
        assert content(fork) == expected
        fork.execute("REPLAY")
        assert content(fork) == after
        assert {tuple(row[2:]) for row in fork.execute("SHOW DIFF").fetchall() if row[3] is not None} == {
            ("same", 0, 0)
        }
        fork.execute("CREATE OR REPLACE MATERIALIZED VIEW top AS SELECT id, amount FROM orders ORDER BY id LIMIT 2")
        assert len(fork.execute("DIFF VIEW top").fetchall()) > 0
    assert files() == before
    assert json.loads((path / "forks/f/FORMAT").read_text())["format"] == DATABASE_FORMAT_VERSION
    if number < DATABASE_FORMAT_VERSION:
        with release() as connection:
            with pytest.raises(Error) as refused:
                connection.execute("PROMOTE f")
            assert refused.value.condition == "DATABASE_FORMAT"
            assert f"has format {DATABASE_FORMAT_VERSION}, newer than format {number}" in refused.value.message
            assert content(connection) == after
            connection.execute("INSERT INTO items VALUES (11, 'eleven'); FLUSH")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("PROMOTE f")
        assert connection.execute("SELECT count(*) FROM top").fetchall() == [(2,)]
        assert content(connection, ("joined", "sums")) == {name: batch(connection)[name] for name in ("joined", "sums")}
