"""Input files of the benchmarks: deterministic, made with numpy, as Parquet directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START_US = 1_704_067_200_000_000


def stream_table(seed: int, first: int, rows: int, keys: int, lateness_us: int = 0) -> pa.Table:
    """Rows `first` … of a stream: k bigint, ts timestamp, amount bigint, note varchar.

    ts: rising by a millisecond a row, except that rows are behind that by up to `lateness_us`.
    """
    rng = np.random.default_rng([seed, first])
    k = rng.integers(0, keys, rows)
    ts = START_US + (np.arange(first, first + rows) * 1000) + rng.integers(0, 500, rows)
    if lateness_us:
        ts -= rng.integers(0, lateness_us, rows)
    amount = rng.integers(0, 1000, rows)
    words = pa.array([f"note-{i:04d}" for i in range(1000)])
    note = words.take(pa.array(rng.integers(0, 1000, rows)))
    return pa.table({"k": k, "ts": pa.array(ts, pa.timestamp("us")), "amount": amount, "note": note})


def write_stream(folder: Path, seed: int, rows: int, keys: int, rows_per_file: int, lateness_us: int = 0) -> None:
    """Writes `rows` rows as files 00000.parquet … unless the folder is there already."""
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    for i, first in enumerate(range(0, rows, rows_per_file)):
        table = stream_table(seed, first, min(rows_per_file, rows - first), keys, lateness_us)
        pq.write_table(table, part / f"{i:05d}.parquet", row_group_size=100_000)
    part.rename(folder)
