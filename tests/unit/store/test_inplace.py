"""Large relations, which are read from their files: keys and conditions choose the changes to decode."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from tests.memorystore import URL, MemoryStore, forget_copies, use

import watersmeet
from watersmeet.database import reading
from watersmeet.database.scans import content_hashes, share_rows, shares_of
from watersmeet.errors import Error
from watersmeet.store import changes, compaction, content, inplace
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
    """The columns of each piece that is decoded."""
    found: list[object] = []
    read = SegmentFiles.read_piece

    def spy(self, ref, begin, end, columns=None):
        found.append(columns)
        return read(self, ref, begin, end, columns)

    monkeypatch.setattr(SegmentFiles, "read_piece", spy)
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
    assert 0 < len([columns for columns in decoded if columns is not None and "name" in columns]) <= 2
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


def test_older_changes_lack_a_column_whose_values_were_computed_again(connection):
    filled(connection, "k int, v int", "i, i", commits=1)
    connection.execute("ALTER TABLE t ALTER COLUMN v TYPE varchar USING 'v' || v")
    connection.execute("INSERT INTO t VALUES (-1, 'x'); DELETE FROM t WHERE v = 'v7'")
    for condition, keys in [("v = 'v5'", [5]), ("v IN ('v1', 'v7', 'x')", [-1, 1]), ("k < 2", [-1, 0, 1])]:
        rows = connection.execute(f"SELECT k, v FROM t WHERE {condition} ORDER BY k").fetchall()
        assert rows == [(k, "x" if k < 0 else f"v{k}") for k in keys]
    assert connection.execute("SELECT count(*), count(v) FROM t").fetchall() == [(ROWS, ROWS)]


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


WIDE = """
CREATE TABLE t (k int, name varchar, text varchar, n int) APPEND ONLY;
INSERT INTO t SELECT i, 'name ' || i * 7919 % 100003, {text}, i % 10 FROM generate_series(0, 11999) g(i);
INSERT INTO t SELECT i, 'name ' || i * 7919 % 100003, {text}, i % 10 FROM generate_series(12000, 23999) g(i);
"""
#: 512 characters that no codec makes smaller than 256 bytes.
TEXT = " || ".join(f"md5(i || '{part}')" for part in range(16))


@pytest.mark.parametrize("compacted", [False, True])
def test_only_the_needed_pieces_are_fetched_from_an_object_store(tmp_path, monkeypatch, compacted):
    monkeypatch.setattr(content, "_LOADED_ROWS", -1)
    monkeypatch.setattr(content, "_COPIED_READS", 1 << 30)
    monkeypatch.setattr(changes, "_PIECE_BYTES", 1 << 20)
    store = use(monkeypatch, MemoryStore(), tmp_path)
    with watersmeet.connect(URL, runtime="inprocess") as connection:
        for _ in connection.execute_script(WIDE.format(text=TEXT)):
            pass
        if compacted:
            connection.opened._compactor.run()
    size = sum(len(data) for name, data in store.objects.items() if "/segments/" in name)
    assert size > 6 << 20
    queries = {
        "SELECT * FROM t LIMIT 10": 1 << 20,
        "SELECT count(*) FROM t": 1 << 16,
        "SELECT k, text FROM t WHERE k = 17777": 1 << 20,
        "SELECT k, text FROM t WHERE k BETWEEN 11990 AND 12010": 3 << 20,
        "SELECT count(*), sum(k), min(text), max(name) FROM t": 2 * size,
    }
    for query, most in queries.items():
        forget_copies()
        with watersmeet.connect(URL, read_only=True, runtime="inprocess") as reader:
            before = store.read_bytes
            rows = reader.execute(query).fetchall()
            assert store.read_bytes - before < most, query
            assert not reader.opened.content._tables
            monkeypatch.setattr(content, "_LOADED_ROWS", 1 << 20)
            loaded = reader.execute(query).fetchall()
            assert reader.opened.content._tables or "count(*) FROM" in query
            monkeypatch.setattr(content, "_LOADED_ROWS", -1)
        assert rows == loaded if "LIMIT" not in query else len(rows) == len(loaded)


def test_filters_exclude_pieces_for_keys_of_several_columns(connection, decoded, monkeypatch):
    monkeypatch.setattr(changes, "_PIECE_ROWS", 1_000)
    monkeypatch.setattr(changes, "_SPARSE", 1)
    key = "(i * 7919::bigint % 4001) * 1000003"
    filled(connection, "k bigint, name varchar, v int", f"{key}, 'name ' || i * 7919 % 4001, i", commits=1)
    connection.flush()
    connection.opened._compactor.run()
    where = {
        "k = 17000051": 1,
        "name = 'name 17'": 1,
        "name IN ('name 17', 'name 18')": 2,
        "k = 17000051 AND name = 'name 17'": 1,
        "k = 17000051 AND name = 'name 18'": 0,
        "k = 17000051 AND name = 'none'": 0,
        "k = 18": 0,
    }
    for condition, count in where.items():
        del decoded[:]
        rows = connection.execute(f"SELECT v FROM t WHERE {condition}").fetchall()
        assert len(rows) == count, condition
        assert len([columns for columns in decoded if columns is not None and "v" in columns]) <= count


def test_a_look_up_opens_only_blobs_whose_bounds_in_the_checkpoint_contain_its_key(connection, monkeypatch):
    monkeypatch.setattr(changes, "BLOB_ROWS", 1_000)
    filled(connection, "k int, v bigint, name varchar", "i, -i, 'name ' || i")
    connection.flush()
    connection.opened._compactor.run()
    (snapshot,) = connection.opened._compactor.last.relations.values()
    assert [len(level.blobs) for level in snapshot.levels] == [3 * ROWS // 1_000]
    assert snapshot.levels[0].bounds["k"].lows == tuple(range(0, 3 * ROWS, 1_000))
    opened: list[object] = []
    index = SegmentFiles.index
    monkeypatch.setattr(SegmentFiles, "index", lambda self, ref: (opened.append(ref), index(self, ref))[1])
    where = [("k = 4567", 1, 1), ("k IN (5, 4567)", 2, 2), ("v < -11500", 499, 1), ("k > 2998 AND v > -3001", 2, 2)]
    for condition, expected, most in [*where, ("k = 99999999", 0, 0)]:
        del opened[:]
        rows = connection.execute(f"SELECT count(*) FROM t WHERE {condition}").fetchall()
        assert rows == [(expected,)], condition
        assert len({*opened}) <= most, condition


@pytest.mark.parametrize("seed", range(4))
def test_conditions_on_compacted_relations_have_the_rows_of_a_loaded_copy(connection, monkeypatch, seed):
    monkeypatch.setattr(changes, "BLOB_ROWS", 300)
    monkeypatch.setattr(changes, "_COMPRESSED_BYTES", 1_000)
    monkeypatch.setattr(changes, "_PIECE_ROWS", 100)
    monkeypatch.setattr(changes, "_LEAST_PIECE_ROWS", 50)
    monkeypatch.setattr(compaction, "SMALL_ROWS", 100)
    random = Random(seed)
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int, at timestamp)")
    columns, steps = ["k", "v"], ["insert", "insert", "insert", "delete", "update", "compact", "widen", "add"]
    for _ in range(14):
        step = random.choice(steps)
        first, count = random.randrange(3_000), random.randrange(1, 900)
        if step == "insert":
            connection.execute(
                f"INSERT INTO t (k, v, at) SELECT i, nullif(i % {random.randrange(1, 900)}, 0), "
                f"timestamp '2026-01-01' + i * interval '1 minute' FROM generate_series({first}, {first + count}) g(i)"
            )
        elif step == "delete":
            connection.execute(f"DELETE FROM t WHERE k >= {first} AND k < {first + count}")
        elif step == "update":
            connection.execute(f"UPDATE t SET v = v + {count} WHERE k < {first}")
        elif step == "compact":
            connection.flush()
            connection.opened._compactor.run()
        elif step == "widen":
            connection.execute("ALTER TABLE t ALTER COLUMN v TYPE bigint")
            steps.remove("widen")
        else:
            connection.execute("ALTER TABLE t ADD COLUMN late int DEFAULT 7")
            columns.append("late")
            steps.remove("add")
    queries = [f"SELECT * FROM t WHERE at < '2026-01-01 {random.randrange(10, 24)}:00:00' ORDER BY k"]
    for column in columns:
        for operator in ("=", "<", "<=", ">", ">=", "IN"):
            values = [random.choice([-1, 0, 7, random.randrange(4_000)]) for _ in range(2)]
            value = f"({values[0]}, {values[1]})" if operator == "IN" else str(values[0])
            queries.append(f"SELECT * FROM t WHERE {column} {operator} {value} ORDER BY k")
    found = {query: connection.execute(query).fetchall() for query in queries}
    assert not connection.opened.content._tables
    monkeypatch.setattr(content, "_LOADED_ROWS", 1 << 20)
    loaded = {query: connection.execute(query).fetchall() for query in queries}
    assert connection.opened.content._tables
    assert found == loaded


@pytest.mark.parametrize("seed", range(8))
def test_shares_of_a_commit_are_its_rows(connection, monkeypatch, seed):
    """They are read later than they were made: meanwhile the relations change, and are compacted."""
    monkeypatch.setattr(changes, "BLOB_ROWS", 200)
    monkeypatch.setattr(changes, "_COMPRESSED_BYTES", 500)
    monkeypatch.setattr(changes, "_PIECE_ROWS", 60)
    monkeypatch.setattr(changes, "_LEAST_PIECE_ROWS", 20)
    monkeypatch.setattr(compaction, "SMALL_ROWS", 100)
    random, made = Random(seed), []
    connection.execute("ALTER SYSTEM SET retention = '1 day'")
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int); CREATE TABLE e (k int, v int) APPEND ONLY")
    connection.execute("CREATE TABLE p (k int, v int)")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT v, count(*) AS n FROM t GROUP BY v")
    for _ in range(25):
        first, count, name = random.randrange(600), random.randrange(1, 300), random.choice("tep")
        step = random.choice(("insert", "insert", "delete", "compact"))
        if step == "insert":
            rows = f"SELECT i, i % {random.randrange(1, 40)} FROM generate_series({first}, {first + count}) g(i)"
            connection.execute(f"INSERT INTO {name} {rows}")
        elif step == "delete" and name != "e":
            connection.execute(f"DELETE FROM {name} WHERE k >= {first} AND k < {first + count}")
        elif step == "compact":
            connection.flush()
            connection.opened._compactor.run()
        connection.flush()
        number, catalog = connection.opened.log.head(), connection.opened.catalog
        for relation in catalog.relations.values():
            found = shares_of(connection.opened, relation, number, random.choice((None, 1, 3, 7)))
            made.append((relation, number, found))
    lengths = set()
    for relation, number, shares in made:
        names = [c.name for c in relation.columns][:: random.choice((1, -1))][: random.choice((1, 2))]
        found = []
        for share in shares:
            with share_rows(connection.opened, relation, number, share, names) as rows:
                order = [f"c{i}" for i, c in enumerate(relation.columns) if c.name in names]
                batches = [batch.select(order) for batch in rows.batches()]
                found += [tuple(r.values()) for batch in batches for r in batch.to_pylist()]
                lengths.add((len(shares) > 1, sum(batch.num_rows for batch in batches) > 0))
        listed = ", ".join(c.name for c in relation.columns if c.name in names)
        wanted = connection.execute(f"SELECT {listed} FROM {relation.name} FOR SYSTEM_TIME AS OF COMMIT {number}")
        assert Counter(found) == Counter(wanted.fetchall()), (relation.name, number, shares)
    assert (True, True) in lengths


def test_a_damaged_piece_is_an_error_that_names_its_file(connection):
    filled(connection, "k int, v int", "i, i * 7919 % 100003", commits=1)
    expected = connection.execute("SELECT sum(v) FROM t").fetchall()
    segments = connection.opened.layout.segments
    (path,) = [p for p in segments.iterdir() if p.stat().st_size > 10_000]
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    connection.opened.segments.close()
    with pytest.raises(Error, match=f"{path.name} is damaged") as failed:
        connection.execute("SELECT sum(v) FROM t")
    assert failed.value.condition == "DATABASE_DAMAGED"
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    connection.opened.segments.close()
    assert connection.execute("SELECT sum(v) FROM t").fetchall() == expected


def test_a_look_up_needs_no_library_for_data_frames(tmp_path):
    """Importing pandas takes longer than a look-up; Arrow imports it for its data sets and for each new array."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int, v int, name varchar) APPEND ONLY")
        connection.execute("INSERT INTO t SELECT i, i % 7, 'n' || i FROM generate_series(1, 4000) g(i)")
    program = f"""
import sys
import watersmeet
from watersmeet.store import content
content._LOADED_ROWS, content._COPIED_READS = -1, 9
with watersmeet.connect({str(tmp_path / "db")!r}, read_only=True, runtime="inprocess") as connection:
    for query in ("k = 3", "name = 'n3'", "k IN (3) AND v >= 3", "true LIMIT 1"):
        assert len(connection.execute(f"SELECT * FROM t WHERE {{query}}").fetchall()) == 1, query
    connection.execute("SELECT count(*) FROM t")
print("pandas" in sys.modules, "pyarrow.dataset" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["False", "False"]


KINDS = "k int PRIMARY KEY, n numeric, f double precision, s varchar, a int[], i interval, t timestamp, j jsonb"


def made_row(random: Random, key: int) -> str:
    number = random.choice(["NULL", "'NaN'::double precision", "-0.0", "0.0", str(random.random())])
    text = random.choice(["NULL", "''", "'a'", "'" + "x" * random.randrange(60) + "'"])
    items = random.choice(["NULL", "ARRAY[1, 2]", "ARRAY[NULL, 1]::int[]", "ARRAY[]::int[]"])
    span = random.choice(["NULL", "INTERVAL '1 month'", "INTERVAL '30 days'"])
    return f"({key}, {random.randrange(9)}.5, {number}, {text}, {items}, {span}, '2024-01-01', '{{\"a\": {key}}}')"


@pytest.mark.parametrize("seed", range(6))
def test_hashes_of_content_are_those_of_its_rows_at_every_commit(tmp_path, seed):
    random = Random(seed)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute("ALTER SYSTEM SET retention = '1 day'")
        connection.execute(f"CREATE TABLE t ({KINDS}); CREATE TABLE e (k int, s varchar) APPEND ONLY")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT t.s, count(*) AS n FROM t JOIN e USING (k) GROUP BY t.s"
        )
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT s, i, f FROM t")
        database = connection._session.database
        numbers = []
        for _ in range(12):
            for _ in range(random.randrange(1, 4)):
                key = random.randrange(6)
                connection.execute(
                    random.choice(
                        [
                            f"INSERT INTO t VALUES {made_row(random, key)}, {made_row(random, key + 6)}",
                            f"INSERT INTO e VALUES ({key}, 'a'), ({key}, 'a')",
                            f"DELETE FROM t WHERE k = {key}",
                        ]
                    )
                )
            connection.execute("FLUSH")
            numbers.append(database.log.head())
        connection.execute("ALTER TABLE e ADD COLUMN later int")
        connection.execute("INSERT INTO e VALUES (1, 'b', 2); FLUSH")
        relations = [r for r in connection._session.catalog.relations.values() if r.name in "tevw"]
        assert len(relations) == 4
        for number in [*numbers, None]:
            found = content_hashes(database, relations, number)
            for relation in relations:
                moment = "" if number is None else f" FOR SYSTEM_TIME AS OF COMMIT {number}"
                rows = connection.execute(f"SELECT * FROM {relation.name}{moment}").arrow()
                columns = [c.cast(f.type.arrow) for c, f in zip(rows.columns, relation.columns, strict=True)]
                order = np.random.default_rng(seed).permutation(rows.num_rows)
                shuffled = [c.take(order) for c in columns]
                expected = inplace.content_hash(shuffled, np.ones(rows.num_rows, np.int64))
                assert found[relation.id] == expected, (relation.name, number)


def test_hashes_tell_contents_apart():
    def of(rows, diff=None):
        return inplace.content_hash([pa.array(rows, pa.int64())], np.array(diff or [1] * len(rows)))

    assert of([1, 2, 2]) == of([2, 1, 2]) == of([1, 2, 3, 2], [1, 1, 0, 1]) == of([1]) + of([2], [2])
    assert len({str(of(rows)) for rows in ([], [1], [2], [1, 1], [None], [1, 2], [3])}) == 7
