"""Interval join of two streams whose keys have Zipf's distribution: the share of each bucket, with and without split
keys; DuckDB's batch join.

The key of rank n has n to the power of -1.1 of the rows of the first one, which has an eighth of all and makes two
thirds of the pairs. Epochs are small, as they are of a stream: in a backlog a hot key meets itself too often for any
join. A goal: no bucket of four takes more than 2.5 times the mean.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Self
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet
from benchmarks.data import START_US
from benchmarks.frame import SOURCES, batch
from watersmeet.runtime import inprocess, splitting, tasks
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget

_LATENESS_US = 1_000_000
_WATERMARK = ", WATERMARK FOR ts AS ts - INTERVAL '1500 milliseconds'"
_CONDITION = "l.k = r.k AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '{milliseconds} milliseconds'"
_QUERY = "SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, r.amount AS r_amount FROM {left} l {kind} JOIN {right} r ON "
#: DuckDB's join by the key alone would look at each pair of a key: times are put into buckets, each right row into two.
_BATCH = """
    WITH l AS (SELECT *, epoch_us(ts) // {width} AS b FROM read_parquet('{left}/*.parquet')),
    r AS (SELECT *, epoch_us(ts) // {width} + unnest([0, 1]) AS b FROM read_parquet('{right}/*.parquet'))
"""
_CHECK = "count(*), CAST(sum((l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"


def write_zipf(folder: Path, seed: int, rows: int, keys: int, exponent: float, rows_per_file: int = 10_000) -> None:
    """Writes `rows` rows as Parquet files unless the folder is there already."""
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    weights = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    for i, first in enumerate(range(0, rows, rows_per_file)):
        rng = np.random.default_rng([seed, first])
        count = min(rows_per_file, rows - first)
        k = np.searchsorted(weights, rng.random(count) * weights[-1])
        ts = START_US + np.arange(first, first + count) * 1000 + rng.integers(0, 500, count)
        ts -= rng.integers(0, _LATENESS_US, count)
        amount = rng.integers(0, 1000, count)
        table = pa.table({"k": k, "ts": pa.array(ts, pa.timestamp("us")), "amount": amount, "note": ["-"] * count})
        pq.write_table(table, part / f"{i:05d}.parquet")
    part.rename(folder)


class Shares:
    """What each bucket does: seconds of processor time, rows that come, rows that joins make."""

    def __init__(self) -> None:
        self.seconds, self.came, self.made = Counter[int](), Counter[int](), Counter[int]()

    def __enter__(self) -> Self:
        run_stage = tasks.run_stage

        def measured(circuit, stage, bucket, *rest):
            began = time.process_time()
            result = run_stage(circuit, stage, bucket, *rest)
            if stage:
                self.seconds[bucket] += time.process_time() - began
                for operator_id, metrics in result.metrics.items():
                    kind = circuit.by_id[operator_id].kind
                    self.came[bucket] += metrics.rows_in if kind == "arrange" else 0
                    self.made[bucket] += metrics.made_rows
            return result

        self._patch = mock.patch.object(tasks, "run_stage", measured)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def lines(self) -> list[str]:
        """A line for each measure: the share of each bucket, and the largest one in terms of the mean."""
        found = []
        for name, counts in (("processor time", self.seconds), ("rows received", self.came), ("pairs", self.made)):
            total, each = sum(counts.values()), [counts[b] for b in sorted(counts)]
            shares = "  ".join(f"{n / total:6.1%}" for n in each)
            found.append(f"    {name:15} {shares}   largest: {max(each) * len(each) / total:.2f} times the mean")
        return found


def ours(script: str, parallelism: int, epoch_rows: int, *, splits: bool) -> tuple[tuple[int, ...], Shares, float, int]:
    """The check of the view `joined`, what each bucket did, processor seconds, how many keys were split."""
    least = splitting.LEAST_ROWS if splits else 1 << 62
    budget = Budget(first_rows=epoch_rows, max_rows=epoch_rows)
    engine = partial(InProcessEngine, make_coordinator=partial(Coordinator, budget=budget))
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(splitting, "LEAST_ROWS", least),
        mock.patch.object(inprocess, "InProcessEngine", engine),
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism, runtime="inprocess") as connection,
        Shares() as shares,
    ):
        began = time.process_time()
        connection.execute(script)
        connection.execute("FLUSH")
        cpu_s = time.process_time() - began
        found = connection.execute(f"SELECT {_CHECK} FROM joined").fetchone()
        split = sum(map(len, connection._session.database.log.progress().split.values()))
        return tuple(map(int, found)), shares, cpu_s, split


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="skew", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows on each side")
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--milliseconds", type=int, default=50, help="how long rows wait for each other")
    parser.add_argument("--epoch-rows", type=int, default=20_000)
    parser.add_argument("--kind", choices=("inner", "left"), action="append")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    options = parser.parse_args(arguments)
    name = f"zipf-{options.exponent}-{options.rows}-{options.keys}"
    left, right = options.data / f"{name}-l", options.data / f"{name}-r"
    for seed, folder in ((1, left), (2, right)):
        write_zipf(folder, seed, options.rows, options.keys, options.exponent)
    condition = _CONDITION.format(milliseconds=options.milliseconds)
    sources = SOURCES.replace("{watermark}", _WATERMARK).format(left=left, right=right)
    for kind in options.kind or ("inner", "left"):
        inputs = _BATCH.format(left=left, right=right, width=options.milliseconds * 1000)
        query = _QUERY.format(left="l", right="r", kind=kind)
        model = batch(f"{inputs} {query} {condition} AND l.b = r.b", _CHECK)
        print(f"--- {kind}: {2 * options.rows:,} rows, {model.check[0]:,} in the result, {os.cpu_count()} cores")
        print(f"duckdb's batch join: {model.cpu_s:.1f} s of processor time")
        view = f"CREATE MATERIALIZED VIEW joined AS {query}{condition};"
        for splits in (False, True):
            check, shares, cpu_s, split = ours(sources + view, options.parallelism, options.epoch_rows, splits=splits)
            assert check == model.check, (check, model.check)
            print(f"{f'{split} keys are split' if splits else 'no key is split'}: {cpu_s:.1f} s of processor time")
            print("\n".join(shares.lines()))
    return 0
