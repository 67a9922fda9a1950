"""Input files of the benchmarks: deterministic, made with numpy, as Parquet directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

START_US = 1_704_067_200_000_000


#: The columns of streams of 20 columns, besides the usual four, with their types.
MORE_COLUMNS = {f"c{i}": ("bigint", "double", "varchar", "timestamp")[i % 4] for i in range(16)}


def stream_table(seed: int, first: int, rows: int, keys: int, lateness_us: int = 0, shape: str = "narrow") -> pa.Table:
    """Rows `first` … of a stream: k bigint, ts timestamp, amount bigint, note varchar.

    ts: rising by a millisecond a row, less up to `lateness_us` in some rows. shape: `wide` has notes
    of 1 kB, `text` has keys of text, `columns` has also `MORE_COLUMNS`.
    """
    rng = np.random.default_rng([seed, first])
    k = rng.integers(0, keys, rows)
    ts = START_US + (np.arange(first, first + rows) * 1000) + rng.integers(0, 500, rows)
    if lateness_us:
        ts -= rng.integers(0, lateness_us, rows)
    amount = rng.integers(0, 1000, rows)
    words = pa.array([f"note-{i:04d}" for i in range(1000)])
    note = words.take(pa.array(rng.integers(0, 1000, rows)))
    found = {"k": pa.array(k), "ts": pa.array(ts, pa.timestamp("us")), "amount": amount, "note": note}
    if shape == "wide":
        tail = pa.array([f"{i:04d}" * 248 for i in range(1000)])
        found["note"] = pc.binary_join_element_wise(note, tail.take(pa.array(amount)), "")
    if shape == "text":
        found["k"] = pc.binary_join_element_wise("customer-", found["k"].cast(pa.string()), "")
    for number, (name, kind) in enumerate(MORE_COLUMNS.items() if shape == "columns" else ()):
        values = amount * 1000 + (np.arange(rows) + number) % 1000
        found[name] = {
            "bigint": pa.array,
            "double": lambda v: pa.array(v / 8),
            "varchar": lambda v: pa.array(v).cast(pa.string()),
            "timestamp": lambda v: pa.array(START_US + v, pa.timestamp("us")),
        }[kind](values)
    return pa.table(found)


def write_stream(
    folder: Path, seed: int, rows: int, keys: int, rows_per_file: int, lateness_us: int = 0, shape: str = "narrow"
) -> None:
    """Writes `rows` rows as files 00000.parquet … unless the folder is there already."""
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    for i, first in enumerate(range(0, rows, rows_per_file)):
        table = stream_table(seed, first, min(rows_per_file, rows - first), keys, lateness_us, shape)
        pq.write_table(table, part / f"{i:05d}.parquet", row_group_size=100_000)
    part.rename(folder)
