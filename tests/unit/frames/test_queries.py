"""Queries over DataFrames without Spark: their tasks and buckets, one micro-batch after the other, against a database
with the same rows.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime

import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from tests.unit.frames.query import COLUMNS, MemoryStore, at

import watersmeet
from watersmeet.errors import Error
from watersmeet.frames.buckets import Piece
from watersmeet.frames.building import Given
from watersmeet.frames.tasks import QueryDecoder, Reading, Stage, batches_of, initial_frames, initial_pieces
from watersmeet.framesql import plan
from watersmeet.values.types import INTEGER, VARCHAR, Field, arrow_schema

BUCKETS = 3
NAMES = (Field("k", INTEGER), Field("name", VARCHAR))


class Tasks:
    """A query and its state in every bucket of every stage. content: the sum of all changes."""

    def __init__(self, query: str, sides: dict[str, Given], static: dict[str, list[tuple]]) -> None:
        self.query = query
        self.sides = sides
        self.planned = plan(query, sides, BUCKETS)
        self.static = static
        self.stores: dict[tuple[int, int], MemoryStore] = {}
        self._start()
        fields = [pa.field(c.name, c.type.arrow) for c in self.planned.bound.columns]
        diff = [] if self.planned.shape.appends else [pa.field("diff", pa.int32())]
        self.decoder = QueryDecoder(pa.schema([*fields, *diff]), diff=not self.planned.shape.appends)
        self.content: Counter[tuple] = Counter()
        self.figures: Counter[str] = Counter()

    def restart(self) -> None:
        """Compiles the query again, as another process does; the state stays."""
        self.planned = plan(self.query, self.sides, BUCKETS)
        self._start()

    def _start(self) -> None:
        shape = self.planned.shape
        content = {}
        for name, relation in self.planned.static.items():
            table = rows_of(self.static[name], self.sides[name])
            for scan in shape.circuit.scans:
                if scan.relation_id == relation:
                    content[scan.id] = [table.column(n).combine_chunks() for n in scan.names]
        initial = initial_pieces(shape.circuit, initial_frames(shape.circuit, content)) if shape.steps else {}
        self.stages = [Stage(shape, n, initial if n == 1 else {}) for n in range(1, shape.steps + 1)]
        for place in ((n, b) for n in range(1, shape.steps + 1) for b in range(BUCKETS)):
            self.stores.setdefault(place, MemoryStore())

    def batch(self, rows: dict[str, list[tuple]], rng: random.Random, now: datetime) -> Counter[tuple]:
        """One micro-batch; rng cuts the rows into tasks, and shuffles the pieces between them."""
        shape = self.planned.shape
        made: list[pa.RecordBatch] = []
        for index, name in enumerate(self.planned.streams):
            own = list(rows.get(name, ()))
            rng.shuffle(own)
            cut = rng.randrange(len(own) + 1)
            for part in (own[:cut], own[cut:]):
                table = rows_of(part, self.sides[name], now)
                reading = Reading(shape, index, tuple(range(BUCKETS)), None)
                made += list(reading(table.to_batches()))
        if not shape.steps:
            return self._apply([row for batch in made for row in batch.to_pylist()])
        pieces = [Piece(r["bucket"], r["channel"], r["body"]) for batch in made for r in batch.to_pylist()]
        changes: list[dict] = []
        for stage in self.stages:
            rng.shuffle(pieces)
            sent: list[Piece] = []
            for bucket in range(BUCKETS):
                own = [p for p in pieces if p.bucket == bucket]
                store = self.stores[stage.number, bucket]
                if own or (not store.runs and store.text("manifest") is None):
                    found = list(stage.run(bucket, own, store))
                    sent += [p for p in found if isinstance(p, Piece)]
                    last = [r for r in found if not isinstance(r, Piece)]
                    changes += [r for batch in batches_of(stage, last, range(BUCKETS)) for r in batch.to_pylist()]
            pieces = sent
        return self._apply(changes)

    def _apply(self, changes: list[dict]) -> Counter[tuple]:
        found: Counter[tuple] = Counter()
        self.figures = Counter()
        for change in changes:
            self.figures.update({k: v for k, v in change.items() if k != "frame"})
            if change["frame"] is not None:
                frame = pa.record_batch([pa.array([change["frame"]], pa.binary())], names=["frame"])
                for batch in self.decoder([frame]):
                    for row in batch.to_pylist():
                        values = tuple(row.values())
                        found[values[:-1] if self.decoder.diff else values] += row["diff"] if self.decoder.diff else 1
        assert self.decoder.diff or all(n > 0 for n in found.values())
        self.content.update(found)
        self.content = Counter({r: n for r, n in self.content.items() if n})
        return found


def rows_of(rows: list[tuple], side: Given, now: datetime | None = None) -> pa.Table:
    """Rows as Spark sends them: with the diff of a signed side, and with the time of the micro-batch."""
    schema = arrow_schema(side.columns, positional=False)
    arrays = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)]
    names = list(schema.names)
    if side.signed:
        arrays.append(pa.array([r[-1] for r in rows], pa.int64()))
        names.append("diff")
    if now is not None:
        arrays.append(pa.array([now] * len(rows), pa.timestamp("us")))
        names.append("now")
    return pa.Table.from_arrays(arrays, names=names)


def stream(*, watermark: float | None = None, signed: bool = False) -> Given:
    return Given(COLUMNS, True, None if watermark is None else ("ts", int(watermark * 1e6)), signed)


SIDES = {"l": stream(), "r": stream(), "d": Given(NAMES, False, None)}
TIMED = {"l": stream(watermark=3), "r": stream(watermark=5), "d": Given(NAMES, False, None)}
STATIC = [(0, "zero"), (1, "one"), (1, "uno"), (None, "none")]

#: Queries over l and r (k, ts, v), which are streams, and d (k, name), which is static.
QUERIES = [
    "SELECT l.k, l.v, r.v AS w FROM l JOIN r ON l.k = r.k",
    "SELECT l.v, r.v AS w FROM l LEFT JOIN r ON l.k = r.k AND l.v < r.v",
    "SELECT coalesce(l.k, r.k) AS k, count(*) AS n FROM l FULL JOIN r ON l.k = r.k GROUP BY coalesce(l.k, r.k)",
    "SELECT l.v, l.ts FROM l WHERE l.k NOT IN (SELECT r.k FROM r WHERE r.k IS NOT NULL)",
    "SELECT * FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.ts > l.ts)",
    "SELECT l.k, l.ts, r.v AS w FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.ts >= r.ts",
    "SELECT count(*) AS n, min(v) AS least, max(ts) AS last FROM l",
    "SELECT v, count(*) AS n FROM (SELECT l.k, r.v FROM l JOIN r ON l.k = r.k) GROUP BY v HAVING count(*) > 2",
    "SELECT l.v, x.n FROM l JOIN (SELECT v, count(*) AS n FROM r GROUP BY v) x ON x.v = l.v",
    "SELECT k, v, rank() OVER (PARTITION BY k ORDER BY ts, v) AS place FROM l",
    "SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC, v) AS p FROM l) WHERE p <= 2",
    "SELECT l.v, d.name FROM l JOIN d ON l.k = d.k",
    "SELECT l.v, d.name, r.v AS w FROM l LEFT JOIN d ON l.k = d.k LEFT JOIN r ON r.k = l.k",
    "SELECT k FROM l UNION SELECT k FROM r",
    "SELECT DISTINCT k, v FROM l",
    "SELECT sum(k) FILTER (WHERE v > 'm') AS s, v FROM l GROUP BY v",
    "SELECT window_start, count(*) AS n FROM TUMBLE(l, ts, INTERVAL '10 seconds') GROUP BY window_start",
    "SELECT l.k FROM l, r WHERE l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL '5 seconds' AND l.ts",
    "SELECT a.v, b.v AS w, c.v AS x FROM l a JOIN r b ON a.k = b.k JOIN l c ON b.k = c.k",
    "WITH best AS (SELECT k, max(ts) AS ts FROM r GROUP BY k) SELECT l.v, best.ts FROM l LEFT JOIN best USING (k)",
]

#: Queries without state, which drop no late rows.
STATELESS = [
    "SELECT v FROM l UNION ALL SELECT v FROM r",
    "SELECT upper(v) AS u, k + 1 AS k FROM l WHERE k > 0",
]

#: Queries that output rows when watermarks allow it.
FINAL = [
    "SELECT window_start, count(*) AS n FROM TUMBLE(l, ts, INTERVAL '5s') GROUP BY window_start EMIT ON WINDOW CLOSE",
    "SELECT l.v, r.v AS w FROM l LEFT JOIN r ON l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL '5 seconds' AND l.ts",
    "SELECT l.k, l.ts, r.v AS w FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.ts >= r.ts",
    "SELECT v FROM l WHERE k = 1 UNION ALL SELECT v FROM r EXCEPT SELECT name FROM d",
    "SELECT k, u FROM (SELECT k, unnest(ARRAY[v, 'x']) AS u FROM l) GROUP BY k, u",
    "SELECT k, count(*) AS n FROM (SELECT k, ts FROM l UNION ALL SELECT k, ts FROM r) GROUP BY k",
]

DDL = {"l": "k int, ts timestamp, v varchar", "r": "k int, ts timestamp, v varchar", "d": "k int, name varchar"}


class Database:
    """The same query as a view of a database."""

    def __init__(self, query: str, sides: dict[str, Given], folder) -> None:
        self.connection = watersmeet.connect(str(folder), runtime="inprocess")
        for name, side in sides.items():
            mark = ""
            if side.watermark is not None:
                mark = f", WATERMARK FOR ts AS ts - INTERVAL '{side.watermark[1] // 1_000_000} seconds'"
            grows = "" if side.signed else " APPEND ONLY"
            self.connection.execute(f"CREATE TABLE {name} ({DDL[name]}{mark}){grows}")
        self.insert({"d": STATIC})
        self.connection.execute(f"CREATE MATERIALIZED VIEW q AS {query}")

    def insert(self, rows: dict[str, list[tuple]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for name, own in rows.items():
                if own:
                    marks = ", ".join("?" for _ in own[0])
                    cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", own)
            cursor.execute("COMMIT")
            cursor.execute("FLUSH")

    def content(self) -> Counter[tuple]:
        return Counter(map(tuple, self.connection.execute("SELECT * FROM q").fetchall()))


def random_rows(rng: random.Random, count: int, tag: str, epoch: int) -> list[tuple]:
    return [
        (
            rng.choice([None, 0, 1, 2]),
            rng.choice([None, *(at(epoch * 4 + rng.randrange(-6, 9)) for _ in range(8))]),
            f"{tag}{rng.randrange(5)}",
        )
        for _ in range(count)
    ]


def check(query: str, sides: dict[str, Given], seed: int, folder, batches: int = 4) -> None:
    rng = random.Random(seed)
    tasks = Tasks(query, sides, {"d": STATIC})
    database = Database(query, sides, folder)
    try:
        for epoch in range(batches):
            rows = {name: random_rows(rng, rng.randrange(7), "m" + name, epoch) for name in ("l", "r")}
            rows = {name: own for name, own in rows.items() if name in tasks.planned.streams}
            if rng.random() < 0.3:
                tasks.restart()
            tasks.batch(rows, rng, at(epoch))
            database.insert(rows)
            assert tasks.content == database.content(), f"epoch {epoch}"
    finally:
        database.connection.close()


@pytest.mark.parametrize("query", [*STATELESS, *QUERIES])
def test_queries_equal_those_of_a_database(tmp_path, query):
    check(query, SIDES, 1, tmp_path / "database")


@pytest.mark.parametrize("query", [*FINAL, *QUERIES])
def test_late_rows_are_dropped_as_in_a_database(tmp_path, query):
    check(query, TIMED, 2, tmp_path / "database")


@settings(max_examples=6)
@drawn(st.sampled_from([*FINAL, *QUERIES]), st.booleans(), st.integers(0, 1 << 32))
def test_random_histories_equal_those_of_a_database(tmp_path_factory, query, timed, seed):
    timed = timed or "EMIT" in query
    check(query, TIMED if timed else SIDES, seed, tmp_path_factory.mktemp("history") / "database", 8)


def test_rows_of_a_stream_are_retracted():
    sides = {"l": stream(signed=True), "r": stream()}
    query = "SELECT l.v, count(r.v) AS n FROM l LEFT JOIN r ON l.k = r.k GROUP BY l.v"
    tasks, rng = Tasks(query, sides, {}), random.Random(3)
    tasks.batch({"l": [(1, at(0), "a", 1), (1, at(0), "b", 1)], "r": [(1, at(0), "x")]}, rng, at(0))
    assert tasks.content == {("a", 1): 1, ("b", 1): 1}
    tasks.batch({"l": [(1, at(0), "a", -1)], "r": [(1, at(1), "y"), (2, at(1), "z")]}, rng, at(1))
    assert tasks.content == {("b", 2): 1}
    assert tasks.figures["input_rows"] == 3
    assert not tasks.planned.shape.appends


def test_metrics_count_late_rows_and_state():
    tasks, rng = Tasks("SELECT l.v, r.v AS w FROM l JOIN r USING (k)", TIMED, {"d": STATIC}), random.Random(4)
    tasks.batch({"l": [(1, at(60), "a")]}, rng, at(60))
    tasks.batch({"l": [(1, at(50), "late"), (1, at(57), "in time"), (1, None, "no time")]}, rng, at(61))
    assert tasks.figures["late_rows"] == 1
    assert tasks.figures["input_rows"] == 3
    assert tasks.figures["state_rows"] == 3
    assert tasks.figures["state_bytes"] > 0


def test_a_poisoned_time_does_not_move_the_watermark():
    tasks, rng = Tasks("SELECT k, count(*) AS n FROM l GROUP BY k", TIMED, {"d": STATIC}), random.Random(5)
    tasks.batch({"l": [(1, datetime(9999, 1, 1), "poison")]}, rng, at(0))
    tasks.batch({"l": [(1, at(0), "in time")]}, rng, at(1))
    assert tasks.content == {(1, 2): 1}


def test_filters_by_the_clock_follow_the_micro_batches():
    sides = {"l": stream()}
    tasks, rng = Tasks("SELECT v FROM l WHERE ts > now() - INTERVAL '10 seconds'", sides, {}), random.Random(6)
    tasks.batch({"l": [(1, at(0), "a"), (1, at(5), "b")]}, rng, at(6))
    assert tasks.content == {("a",): 1, ("b",): 1}
    tasks.batch({"l": [(1, at(11), "c")]}, rng, at(12))
    assert tasks.content == {("b",): 1, ("c",): 1}


@pytest.mark.parametrize(
    ("query", "condition", "shown"),
    [
        ("SELECT v FROM l WHERE", "SYNTAX_ERROR", None),
        ("SELECT v FROM l; SELECT v FROM r", "SYNTAX_ERROR", "SELECT v FROM r"),
        ("SELECT w FROM l", "UNDEFINED_COLUMN", "w"),
        ("SELECT v FROM x", "UNDEFINED_RELATION", "x"),
        ("SELECT count(*) AS n FROM d", "FEATURE_NOT_SUPPORTED", None),
        (
            "SELECT l.v, d.name FROM l JOIN d FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = d.k",
            "FEATURE_NOT_SUPPORTED",
            "d FOR SYSTEM_TIME AS OF PROCTIME()",
        ),
        (
            "SELECT 1 AS one FROM l WHERE EXISTS (SELECT 1 FROM r FOR SYSTEM_TIME AS OF l.ts AS q)",
            "FEATURE_NOT_SUPPORTED",
            "r FOR SYSTEM_TIME AS OF l.ts AS q",
        ),
        ("SELECT name FROM d UNION ALL SELECT v FROM l", "FEATURE_NOT_SUPPORTED", None),
    ],
)
def test_errors_show_the_query(query, condition, shown):
    with pytest.raises(Error) as caught:
        plan(query, SIDES, BUCKETS)
    assert caught.value.condition == condition
    if shown is not None:
        assert caught.value.sql == query
        assert caught.value.span is not None
        assert query[caught.value.span.start : caught.value.span.end] == shown
