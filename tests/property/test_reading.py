"""Relations that are read from their files show the same rows as loaded relations and as a model: under random changes
and compaction, with conditions, within transactions, as of earlier commits, and for a new process.
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

import watersmeet
from tests.memorystore import URL, MemoryStore, use
from tests.thorough import some
from watersmeet.store import changes, content

SETUP = """
CREATE TABLE keyed (k int PRIMARY KEY, v int, name varchar, at timestamp);
CREATE TABLE bag (v int, x double, tags int[]);
CREATE TABLE log (n int, v int, "Name" varchar) APPEND ONLY;
CREATE MATERIALIZED VIEW pairs AS SELECT k.k, k.v, k.name, b.x, b.tags FROM keyed k JOIN bag b ON k.v = b.v;
CREATE MATERIALIZED VIEW sums AS SELECT v, count(*) AS n, sum(n) AS s FROM log GROUP BY v;
"""
NAMES = [None, "", "a", "é", "a long name"]
FLOATS = [None, "1.5", "-0.0", "'NaN'", "'Infinity'"]
TAGS = ["NULL", "ARRAY[1, 2]", "ARRAY[NULL]"]
RELATIONS = ("keyed", "bag", "log", "pairs", "sums")

#: Queries whose conditions are evaluated before columns are decoded, and queries that read some columns, or none.
QUERIES = [
    *(f"SELECT * FROM {name}" for name in RELATIONS),
    *(f"SELECT count(*) FROM {name}" for name in RELATIONS),
    "SELECT name FROM keyed WHERE k = 3",
    "SELECT v, name FROM keyed WHERE k IN (1, 3, 100) AND v <= 2",
    "SELECT k FROM keyed WHERE at >= '2026-01-03' AND at < '2026-01-05'",
    "SELECT k FROM keyed WHERE name = 'a' AND name <> 'b'",
    "SELECT k FROM keyed WHERE name IS NULL AND v = 100000000000",
    "SELECT x, tags FROM bag WHERE v = 1",
    "SELECT v FROM bag WHERE x = 'NaN'",
    'SELECT "Name", n FROM log WHERE n > 3',
    "SELECT a.k, b.k FROM keyed a JOIN keyed b ON a.v = b.v WHERE a.k = 1",
    "SELECT k, (SELECT count(*) FROM bag b WHERE b.v = keyed.v) FROM keyed WHERE k < 3",
    "SELECT v, count(*), min(name) FROM pairs GROUP BY v",
    "WITH w AS (SELECT * FROM pairs) SELECT count(*) FROM w, w AS o WHERE w.k = 1",
    "WITH w AS (SELECT v, count(*) AS n FROM log GROUP BY v) SELECT a.v, b.n FROM w AS a JOIN w AS b ON a.v = b.v",
    "WITH RECURSIVE r AS (SELECT 1 AS k UNION ALL SELECT k.k FROM r JOIN keyed k ON k.k = r.k + 1) SELECT k FROM r",
    "SELECT k FROM keyed WHERE k < 4 UNION ALL SELECT k FROM keyed WHERE v = 1",
    "SELECT k, v FROM keyed WHERE v IN (SELECT v FROM bag) OR k IN (SELECT n FROM log)",
    "SELECT v, name, count(*) FROM keyed GROUP BY GROUPING SETS ((v), (name), ())",
    "SELECT k.k, s.n FROM keyed k, LATERAL (SELECT count(*) AS n FROM bag b WHERE b.v < k.v) s",
    "SELECT count(*) FROM keyed k JOIN log l ON l.n = k.k JOIN sums s ON s.v = l.v",
]


def shown(rows) -> Counter:
    """Rows as text, in which 0.0 is -0.0 and NaN is NaN, as in SQL."""
    return Counter(repr(row).replace("-0.0", "0.0") for row in rows)


class Run:
    """One history: the model is what DuckDB makes of the loaded tables, and the rows that were written."""

    def __init__(self, seed: int, path, patch) -> None:
        self.rng, self.path, self.patch = random.Random(seed), path, patch
        # pieces of two rows, with filters of all numbers and texts
        for name, value in {"_COMPRESSED_BYTES": 1, "_PIECE_ROWS": 2, "_LEAST_PIECE_ROWS": 1, "_DISTINCT": 0}.items():
            patch.setattr(changes, name, value)
        patch.setattr(changes, "_is_spread", lambda lows, highs, rows: True)
        self.connection = self.opened()
        self.connection.execute(SETUP)
        self.keyed: dict[int, int] = {}
        self.written = 0
        self.past: dict[int, dict[str, Counter]] = {}

    def opened(self):
        connection = watersmeet.connect(self.path, runtime="inprocess", parallelism=2)
        connection.show_own_writes()
        return connection

    def step(self) -> None:
        rng, run = self.rng, self.connection.execute
        kind = rng.choice(
            ["upsert", "upsert", "bag", "bag", "log", "update", "delete", "unbag", "compact", "flush", "own"]
        )
        if kind == "upsert":
            for key in rng.sample(range(8), rng.randint(1, 4)):
                self.keyed[key] = rng.randrange(4)
                name = rng.choice(NAMES)
                run(
                    "INSERT INTO keyed VALUES (?, ?, ?, ?)",
                    (key, self.keyed[key], name, f"2026-01-0{rng.randint(1, 6)}"),
                )
        elif kind == "bag":
            for _ in range(rng.randint(1, 3)):
                row = f"({rng.randrange(4)}, {rng.choice(FLOATS) or 'NULL'}, {rng.choice(TAGS)})"
                run(f"INSERT INTO bag VALUES {', '.join([row] * rng.randint(1, 3))}")
        elif kind == "log":
            count = rng.randint(1, 4)
            numbers = f"generate_series({self.written}, {self.written + count - 1}) g(i)"
            run(f"INSERT INTO log SELECT i, i % 3, 'n' || i FROM {numbers}")
            self.written += count
        elif kind == "update":
            key = rng.randrange(8)
            run(f"UPDATE keyed SET v = (v + 1) % 4 WHERE k >= {key}")
            self.keyed = {k: (v + 1) % 4 if k >= key else v for k, v in self.keyed.items()}
        elif kind == "delete":
            key = rng.randrange(8)
            run(f"DELETE FROM keyed WHERE k = {key}")
            self.keyed.pop(key, None)
        elif kind == "unbag":
            run(f"DELETE FROM bag WHERE v = {rng.randrange(4)} AND x IS NOT NULL")
        elif kind == "compact":
            self.connection.flush()
            self.connection.opened._compactor.run()
        elif kind == "own":
            self.own_changes()
        if kind in ("flush", "compact"):
            self.check()

    def own_changes(self) -> None:
        """An open transaction reads its own changes, which are then taken back."""
        run = self.connection.execute
        run("BEGIN")
        run("DELETE FROM keyed WHERE k < 4")
        run("INSERT INTO keyed VALUES (100, 1, 'own', NULL)")
        kept = shown([(k,) for k in self.keyed if k >= 4] + [(100,)])
        for rows in (-1, 1 << 18):
            assert self.read("SELECT k FROM keyed", rows) == kept
        run("ROLLBACK")

    def read(self, query: str, loaded_rows: int) -> Counter:
        """The rows of a query if relations with more rows than `loaded_rows` are not loaded."""
        self.patch.setattr(content, "_LOADED_ROWS", loaded_rows)
        self.patch.setattr(content, "_COPIED_READS", 1 << 30)
        database = self.connection.opened
        if loaded_rows < 0:
            for relation in list(database.content._tables):
                database.content._unload(relation)
        rows = self.connection.execute(query).fetchall()
        if loaded_rows < 0:
            assert not database.content._tables
        return shown(rows)

    def check(self) -> None:
        self.connection.flush()
        head = self.connection.opened.log.head()
        for query in self.rng.sample(QUERIES, 6):
            assert self.read(query, -1) == self.read(query, 1 << 18), query
        assert self.read("SELECT k, v FROM keyed", -1) == shown(self.keyed.items())
        ordered = self.connection.execute("SELECT n FROM log").fetchall()
        assert ordered == [(i,) for i in range(self.written)]
        for number, contents in self.past.items():
            for name in self.rng.sample(RELATIONS, 2):
                query = f"SELECT * FROM {name} FOR SYSTEM_TIME AS OF COMMIT {number}"
                assert self.read(query, -1) == contents[name], (query, head)
        self.past[head] = {name: self.read(f"SELECT * FROM {name}", 1 << 18) for name in RELATIONS}

    def end(self) -> None:
        self.check()
        self.connection.close()
        self.connection = self.opened()
        self.check()
        self.connection.close()


@pytest.mark.parametrize("seed", some(range(12)))
def test_rows_read_from_files_are_those_that_are_loaded(seed, tmp_path, monkeypatch):
    run = Run(seed, tmp_path / "db", monkeypatch)
    for _ in range(16):
        run.step()
    run.end()


@pytest.mark.parametrize("place", ["directory", "store"])
@pytest.mark.parametrize("seed", some(range(6)))
def test_reads_beside_commits_and_clean_up_show_one_moment(seed, place, tmp_path, monkeypatch):
    """Each transaction moves amounts between keys, or to a new key, so that the sum stays the same."""
    rng = random.Random(seed)
    monkeypatch.setattr(content, "_LOADED_ROWS", -1)
    monkeypatch.setattr(content, "_COPIED_READS", 1 << 30)
    monkeypatch.setattr(changes, "_COMPRESSED_BYTES", 1)
    monkeypatch.setattr(changes, "_PIECE_ROWS", 8)
    monkeypatch.setattr(changes, "_LEAST_PIECE_ROWS", 1)
    if place == "store":
        use(monkeypatch, MemoryStore(), tmp_path)
    path = URL if place == "store" else tmp_path / "db"
    failures: list[BaseException] = []
    ended = threading.Event()
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        connection.show_own_writes()
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v bigint)")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k, v, v % 3 AS part FROM t")
        connection.execute("INSERT INTO t SELECT i, 100 FROM generate_series(0, 39) g(i)")
        connection.flush()

        def write() -> None:
            try:
                for number in range(12):
                    one, other, amount = rng.randrange(40), rng.randrange(40), rng.randrange(50)
                    connection.execute("BEGIN")
                    connection.execute("UPDATE t SET v = v - ? WHERE k = ?", (amount, one))
                    if rng.random() < 0.5:
                        connection.execute("UPDATE t SET v = v + ? WHERE k = ?", (amount, other))
                    else:
                        connection.execute("DELETE FROM t WHERE k >= 40")
                        connection.execute("INSERT INTO t SELECT ?, 4000 - sum(v) FROM t", (40 + number,))
                    connection.execute("COMMIT")
                    connection.flush()
                    if rng.random() < 0.5:
                        connection.opened._compactor.run()
            except BaseException as cause:
                failures.append(cause)
            ended.set()

        writer = threading.Thread(target=write)
        with watersmeet.connect(path, read_only=True, runtime="inprocess") as reader:
            writer.start()
            while not ended.is_set():
                for name in ("t", "w"):
                    ((count, keys, total),) = reader.execute(
                        f"SELECT count(*), count(DISTINCT k), sum(v) FROM {name}"
                    ).fetchall()
                    assert (count, total) == (keys, 4_000)
                    assert 40 <= count <= 41
                    key = rng.randrange(40)
                    assert len(reader.execute(f"SELECT v FROM {name} WHERE k = {key}").fetchall()) == 1
                    ((counted,),) = reader.execute(f"SELECT count(*) FROM {name}").fetchall()
                    assert 40 <= counted <= 41
        writer.join()
    assert not failures, failures
