"""Large relations, which are read from their files: keys and conditions choose the changes to decode."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

import watersmeet
from watersmeet.database import reading
from watersmeet.store import content
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.unparsing import pushdown

ROWS = 4_000


@pytest.fixture
def connection(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "_LOADED_ROWS", -1)
    monkeypatch.setattr(content, "_COPIED_READS", 1 << 30)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.show_own_writes()
        yield connection


@pytest.fixture
def decoded(monkeypatch):
    """The columns of each blob that is decoded."""
    found: list[object] = []
    read = SegmentFiles.read_change

    def spy(self, ref, columns=None):
        found.append(columns)
        return read(self, ref, columns)

    monkeypatch.setattr(SegmentFiles, "read_change", spy)
    return found


def filled(connection, columns: str, values: str, commits: int = 3) -> None:
    connection.execute(f"CREATE TABLE t ({columns})")
    for n in range(commits):
        connection.execute(
            f"INSERT INTO t SELECT {values} FROM generate_series({n * ROWS}, {n * ROWS + ROWS - 1}) g(i)"
        )


@pytest.mark.parametrize("count", [3, 1_500])
def test_an_upsert_decodes_the_changes_with_its_keys(connection, decoded, count):
    filled(connection, "k int PRIMARY KEY, v int, name varchar", "i, i % 7, 'n' || i")
    connection.execute(f"INSERT INTO t VALUES ({ROWS}, 0, 'first')")
    del decoded[:]
    connection.execute(f"INSERT INTO t SELECT {ROWS} + i, -1, 'new' FROM generate_series(1, {count}) g(i)")
    assert len([columns for columns in decoded if columns is not None and "name" in columns]) <= 2
    rows = connection.execute("SELECT count(*), count(*) FILTER (WHERE v = -1), min(k) FILTER (WHERE v = -1) FROM t")
    assert rows.fetchall() == [(3 * ROWS, count, ROWS + 1)]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("varchar", "'k' || i"),
        ("date", "date '1999-01-01' + i"),
        ("timestamp", "timestamp '1999-01-01' + i * interval '1 second'"),
        ("timestamptz", "timestamptz '1999-01-01 00:00:00+00' + i * interval '1 second'"),
        ("numeric(12, 2)", "i + 0.25"),
        ("double precision", "i + 0.5"),
        ("boolean", "i > 9"),
        ("uuid", "CAST('00000000-0000-0000-0000-' || lpad(CAST(i AS varchar), 12, '0') AS uuid)"),
    ],
)
def test_keys_of_all_types_replace_rows(connection, kind, key, monkeypatch):
    monkeypatch.setattr(pushdown, "_MOST_VALUES", 10)
    connection.execute(f"CREATE TABLE t (k {kind}, part int, v int, PRIMARY KEY (k, part))")
    connection.execute(f"INSERT INTO t SELECT {key}, i, 0 FROM generate_series(0, 20) g(i)")
    connection.execute("ALTER TABLE t RENAME COLUMN k TO renamed")
    connection.execute(f"INSERT INTO t SELECT {key}, i, 1 FROM generate_series(10, 25) g(i)")
    assert connection.execute("SELECT v, count(*) FROM t GROUP BY v ORDER BY v").fetchall() == [(0, 10), (1, 16)]


def test_keys_that_are_cast_are_no_conditions(connection):
    connection.execute("CREATE TABLE t (k varchar, at timestamp, v int, PRIMARY KEY (k, at))")
    connection.execute("INSERT INTO t VALUES ('1', 'infinity', 0), ('2.0', '2026-01-01', 0)")
    relation = next(iter(connection.opened.catalog.relations.values()))
    rows = pa.table({"k": pa.array([2.0, 3.0]), "at": pa.array(["2026-01-01", None])})
    found = reading.rows_with_keys(connection._session, relation, rows)
    assert found.column("k").to_pylist() == ["2.0"]
    connection.execute("INSERT INTO t VALUES ('1', 'infinity', 1)")
    assert connection.execute("SELECT k, v FROM t ORDER BY k").fetchall() == [("1", 1), ("2.0", 0)]


@pytest.mark.parametrize("kind", ["bigint", "numeric", "double precision"])
def test_older_changes_have_the_narrower_type_of_a_column(connection, kind):
    filled(connection, "k int, v int", "i, i", commits=1)
    connection.execute(f"ALTER TABLE t ALTER COLUMN v TYPE {kind}")
    connection.execute("INSERT INTO t VALUES (-1, 10000000000)")
    for condition, keys in [("v = 5", [5]), ("v IN (1, 10000000000)", [-1, 1]), (f"v >= {ROWS - 1}", [-1, ROWS - 1])]:
        rows = connection.execute(f"SELECT k, v FROM t WHERE {condition} ORDER BY k").fetchall()
        assert [k for k, _ in rows] == keys
        assert all(v == Decimal(10_000_000_000 if k < 0 else k) for k, v in rows)


def test_an_open_stream_outlives_its_table(connection):
    filled(connection, "k int PRIMARY KEY, v int", "i, i % 7")
    connection.execute("DELETE FROM t WHERE v = 0")
    database = connection.opened
    relation = next(iter(database.catalog.relations.values()))
    with database.content.reader(database.catalog, [relation.id], newest=True) as (reader, _):
        batches = reader.execute("SELECT k FROM t").to_arrow_reader(1_000)
        keys = batches.read_next_batch().column(0).to_pylist()
        connection.execute("DROP TABLE t")
        connection.flush()
        database._compactor.run()
        keys += [k for batch in batches for k in batch.column(0).to_pylist()]
    assert sorted(keys) == [k for k in range(3 * ROWS) if k % 7]
