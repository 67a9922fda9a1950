"""A small database for the tests of the store, with a reference for its content."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, MaterializedView, Relation, Table
from watersmeet.store.changes import count_change, encode_change
from watersmeet.store.commits import Commit, CommitLog, Frontier, RelationChange, write_transaction
from watersmeet.store.compaction import Compactor
from watersmeet.store.content import Content
from watersmeet.store.layout import Layout, WriterLock
from watersmeet.store.retention import clean_at_start
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter, epoch_prefix
from watersmeet.values.types import BIGINT, DOUBLE, INTERVAL, VARCHAR, Field, SqlType, arrow_schema

COLUMNS = (Field("k", BIGINT), Field("name", VARCHAR), Field("x", DOUBLE))
NESTED = (
    Field("k", BIGINT),
    Field("span", INTERVAL),
    Field("spans", SqlType("array", element=INTERVAL)),
    Field("pair", SqlType("struct", fields=(("a", DOUBLE), ("b", INTERVAL)))),
)


def catalog(*relations: Relation) -> Catalog:
    found = Catalog(next_number=len(relations) + 1)
    for relation in relations:
        found = found.with_relation(relation)
    return found


ORDERS = Table("t1", "orders", COLUMNS)
EVENTS = Table("t2", "events", COLUMNS, append_only=True)
FED = Table("t3", "fed", COLUMNS, connector={"connector": "file"})
TOTALS = MaterializedView("m4", "totals", COLUMNS, depends_on=("t1",))
CATALOG = catalog(ORDERS, EVENTS, FED, TOTALS)


def rows_table(rows, columns=COLUMNS):
    schema = arrow_schema(columns, positional=False)
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def change(rows, columns=COLUMNS):
    """The (table, diff) of a list of (row, diff)."""
    return rows_table([r for r, _ in rows], columns), np.array([d for _, d in rows], np.int64)


def canonical(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((k, canonical(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(canonical(v) for v in value)
    return value


def counted(table):
    return Counter(
        tuple(canonical(v) for v in row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    )


class Database:
    """The writer's side of a database."""

    def __init__(self, path: Path, relations: Catalog = CATALOG, *, durable: bool = False, **log: int) -> None:
        """log: keyword arguments of the commit log."""
        self.catalog = relations
        self.layout = Layout(path, durable=durable)
        self.lock = WriterLock(self.layout)
        self.log = CommitLog(self.layout, writer=True, **log)
        self.segments = SegmentFiles(self.layout.segments)
        clean_at_start(self.layout, self.log, self.segments)
        self.compactor = Compactor(self.layout, self.log, self.segments, lambda: self.catalog, commits=10)
        self.open: list[Content] = []

    def content(self) -> Content:
        self.open.append(Content(self.layout, self.log, self.segments))
        return self.open[-1]

    def transaction(self, **changes) -> Commit:
        """One transaction: by relation id, a list of (row, diff)."""
        tables = {i: change(rows, self.catalog.relations[i].columns) for i, rows in changes.items()}
        return write_transaction(self.layout, self.log, tables)

    def epoch(self, *, transaction: int, sources=None, state: bytes = b"", **changes) -> Commit:
        """One epoch with the state `state` in one bucket: by relation id, a list of (row, diff)."""
        last = self.log.last_epoch()
        number = 1 if last is None else last.epoch + 1
        writer = SegmentWriter(
            self.layout.segments, epoch_prefix(number, self.log.writer, 0, 0), durable=self.layout.durable
        )
        pending = {}
        for i, rows in changes.items():
            table, diff = change(rows, self.catalog.relations[i].columns)
            # In two blobs, as two buckets would write it.
            half = table.num_rows // 2
            blobs = [
                writer.add([encode_change(table.slice(a, b), diff[a : a + b]).to_pybytes()], b)
                for a, b in ((0, half), (half, table.num_rows - half))
                if b
            ]
            pending[i] = blobs, count_change(diff, table.num_rows)
        run = writer.add([state or b"state of epoch %d" % number], 1)
        segment = writer.finish({"0/0": [run]})
        relations = {
            i: RelationChange(tuple(b.within(segment) for b in blobs), *counts)
            for i, (blobs, counts) in pending.items()
        }
        frontier = Frontier(transaction, sources or {})
        return self.log.append(
            Commit(
                "epoch", epoch=number, frontier=frontier, relations=relations, segments={"0/0": segment}, circuit="c"
            )
        )

    def close(self) -> None:
        for content in self.open:
            content.close()
        self.compactor.stop()
        self.lock.release()


def read(content: Content, relations: Catalog, *ids: str, **options):
    """The content of the relations, as Counters by id."""
    content.refresh(relations, ids, **options)
    newest = options.get("newest", False)
    return {i: counted(content.query(f'SELECT * FROM "{relations.relations[i].name}"', newest=newest)) for i in ids}
