"""Rows per second of the join kernel alone: one bucket, no Spark, no disk.

Two streams, a key of two columns (900 k keys), a timestamp and a short string, in epochs; with
`--updates 10`, 10 % of the rows of an epoch are updates and 2 % deletes of earlier rows. The state goes through its
stored form after every epoch, as in production. The number of result rows and a checksum are compared with DuckDB's
batch join of the same rows.

    python -m benchmarks kernel_join [--rows 4000000] [--epoch-rows 600000] [--keys 900000] [--kind inner] [--updates 0]
    [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Arrange, InputColumn, Join
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import arrange, join
from watersmeet.kernel.runs.delta import Delta, slices_of
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.values.types import BIGINT, INTEGER, TIMESTAMP, VARCHAR, Field

SCHEMA = (Field("k1", BIGINT), Field("k2", INTEGER), Field("ts", TIMESTAMP), Field("name", VARCHAR))


def make_rows(seed: int, rows: int, keys: int) -> pa.Table:
    """Random keys, ascending times, strings of 6 to 12 characters."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, keys, rows)
    names = pa.array([f"name-{i}" for i in range(100_000)])
    return pa.table(
        {
            "c0": pa.array(key * 7919),
            "c1": pa.array((key % 1000).astype(np.int32)),
            "c2": pa.array(np.arange(rows) * 1000 + seed, pa.timestamp("us")),
            "c3": names.take(pa.array(rng.integers(0, 100_000, rows))),
        }
    )


class Stream:
    """A table that arrives in order, with updates and deletes of what arrived before."""

    def __init__(self, table: pa.Table, updates: int, seed: int) -> None:
        self.table = table
        self._times = table.column("c2").combine_chunks().cast(pa.int64()).to_numpy().copy()
        self._alive = np.ones(table.num_rows, bool)
        self._updates = updates
        self._rng = np.random.default_rng(seed)

    def epoch(self, start: int, stop: int) -> Delta:
        """New rows [start, stop), updates of times and deletes."""
        touched = (
            np.unique(self._rng.integers(0, start, (stop - start) * self._updates // 100))
            if start
            else np.zeros(0, np.int64)
        )
        touched = touched[self._alive[touched]]
        kept = touched[self._rng.random(len(touched)) > 0.2]
        before = self._rows(touched)
        self._alive[touched] = False
        self._alive[kept] = True
        self._times[kept] += 1
        pieces = [self._rows(np.arange(start, stop)), before, self._rows(kept)]
        diffs = [np.full(p.num_rows, d, np.int64) for p, d in zip(pieces, (1, -1, 1), strict=True)]
        return Delta(pa.concat_tables(pieces).combine_chunks(), np.concatenate(diffs))

    def content(self) -> pa.Table:
        """What is there at the end."""
        return self._rows(np.flatnonzero(self._alive))

    def _rows(self, rows: np.ndarray) -> pa.Table:
        times = pa.array(self._times[rows], pa.timestamp("us"))
        return self.table.take(pa.array(rows)).set_column(2, "c2", times)


def make_join(kind: str) -> Join:
    right = () if kind in ("semi", "anti") else (2, 3)
    output = (*(InputColumn(0, i) for i in range(4)), *(InputColumn(1, i) for i in right))
    schema = tuple(Field(c.name, SCHEMA[c.column].type) for c in output)
    return Join(("a", "b"), schema, False, kind, (0, 1), (0, 1), (False, False), None, output)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kernel_join", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--epoch-rows", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--kind", default="inner")
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args(arguments)
    streams = [Stream(make_rows(seed, args.rows, args.keys), args.updates, seed) for seed in (1, 2)]
    op = make_join(args.kind)
    arranges = [Arrange((side,), SCHEMA, False, (0, 1), (False, False), 0) for side in ("a", "b")]
    context = StepContext(0, False, Evaluator(), (SCHEMA, SCHEMA))
    blobs, manifest = BlobDict(), None
    half = args.epoch_rows // 2
    profile = cProfile.Profile()
    total, checksum, seconds, slowest, rows_in = 0, 0, 0.0, 0.0, 0
    for at in range(0, args.rows, half):
        deltas = [stream.epoch(at, min(args.rows, at + half)) for stream in streams]
        rows_in += sum(d.num_rows for d in deltas)
        start = time.perf_counter()
        if args.profile:
            profile.enable()
        state = StageState(manifest, blobs)
        arranged = [arrange.step(a, [d], state, context) for a, d in zip(arranges, deltas, strict=True)]
        rows_out = 0
        for out in slices_of(join.step(op, arranged, state, context)):
            rows_out += out.num_rows
            total += int(out.diff.sum())
            times = out.columns.column(2).combine_chunks().cast(pa.int64()).fill_null(0).to_numpy()
            checksum += int((times * out.diff).sum())
        del arranged
        manifest = state.persist(blobs.add)
        for ref in state.retired():
            blobs.remove(ref)
        profile.disable()
        took = time.perf_counter() - start
        seconds, slowest = seconds + took, max(slowest, took)
        trace = state.trace(arranges[0].id, arrange.ROWS)
        print(
            f"{at + half:>9,}  {took:6.2f} s  {rows_out:>10,} rows out  {len(trace.runs)} runs of "
            f"{trace.num_rows:,} rows left"
        )
    rate = rows_in / seconds
    print(
        f"{rate:,.0f} input rows/s ({rows_in:,} rows in), {total:,} rows out, {seconds:.2f} s, slowest epoch "
        f"{slowest:.2f} s"
    )
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    left, right = (stream.content() for stream in streams)
    start = time.perf_counter()
    joins = {"semi": "SEMI", "anti": "ANTI"}
    connection = duckdb.connect(config={"threads": 1})
    expected = (
        connection.register("l", left)
        .register("r", right)
        .execute(
            f"SELECT count(*), sum(epoch_us(l.c2)) FROM l {joins.get(args.kind, args.kind)} JOIN r ON l.c0 = "
            f"r.c0 AND l.c1 = r.c1"
        )
    )
    count, total_us = expected.fetchone()
    print(
        f"DuckDB, one thread, count only: "
        f"{(left.num_rows + right.num_rows) / (time.perf_counter() - start):,.0f} rows/s"
    )
    assert (total, checksum) == (count, int(total_us)), f"expected {count, total_us}, found {total, checksum}"
    return 0
