"""Process-time temporal join: a stream looks rows up in a table that changes meanwhile; DuckDB's batch answer as the
practical limit.

4 M rows in rounds, 900 k keys, in each round a tenth as many updates of the table as rows of the stream; each row meets
the table as it is in its round. Target: 400 k input rows/s on two idle cores.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet
from benchmarks.frame import Measured, batch, parser, report, streams
from benchmarks.processes import PeakMemory
from benchmarks.rounds import offer, parts

SCRIPT = """
CREATE TABLE d (k bigint PRIMARY KEY, price bigint, name varchar)
    WITH (connector = 'file', path = '{table}', format = 'parquet');
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{stream}', format = 'parquet');
CREATE MATERIALIZED VIEW joined AS
    SELECT l.k, l.ts, l.amount, d.price, d.name FROM l LEFT JOIN d FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = d.k;
"""
CHECK = "count(*), CAST(sum((amount + 1) * (coalesce(price, 3) + 7)) AS BIGINT)"


def versions(folder: Path, keys: int, updates: int, rounds: int) -> list[Path]:
    """The table's first content and, for each round, a file of updates."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(rounds + 1):
        files.append(folder / f"{number:05d}-{keys}-{updates}.parquet")
        if not files[-1].exists():
            rng = np.random.default_rng([3, number])
            k = rng.permutation(keys)[: keys if number == 0 else updates]
            price = rng.integers(0, 1000, len(k))
            pq.write_table(pa.table({"k": k, "price": price, "name": [f"name-{p}" for p in price.tolist()]}), files[-1])
    return files


def ours(rows: list[list[Path]], table: list[Path], parallelism: int) -> tuple[Measured, float]:
    """The rounds, and the seconds before them until the table's first content was in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("stream", "table"):
            (folder / part).mkdir()
        with watersmeet.connect(folder / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            started = time.perf_counter()
            offer(table[:1], folder / "table")
            cursor.execute(SCRIPT.format(table=folder / "table", stream=folder / "stream"))
            cursor.execute("FLUSH")
            loaded = time.perf_counter()
            with PeakMemory() as memory:
                for files, update in zip(rows, table[1:], strict=True):
                    offer([update], folder / "table")
                    cursor.execute("FLUSH")
                    offer(files, folder / "stream")
                    cursor.execute("FLUSH")
                seconds = time.perf_counter() - loaded
            status = connection.status()
            found = cursor.execute(f"SELECT {CHECK} FROM joined").fetchone()
    state = sum(v["state_bytes"] for v in status["views"])
    return Measured(seconds, tuple(int(v) for v in found), memory.peak_bytes, state), loaded - started


def over_files(rows: list[list[Path]], table: list[Path]) -> str:
    """The same for DuckDB: of each key the newest version that is not of a later round."""
    stream = " UNION ALL ".join(
        f"SELECT *, {n} AS round FROM read_parquet({[str(f) for f in files]})" for n, files in enumerate(rows, 1)
    )
    versions_of = " UNION ALL ".join(
        f"SELECT *, {n} AS round FROM read_parquet('{file}')" for n, file in enumerate(table)
    )
    return (
        f"SELECT l.k, l.ts, l.amount, d.price, d.name FROM ({stream}) l ASOF LEFT JOIN ({versions_of}) d "
        "ON l.k = d.k AND l.round >= d.round"
    )


def main(arguments: list[str]) -> int:
    options = parser("temporal_join", __doc__)
    options.add_argument("--rounds", type=int, default=10)
    options = options.parse_args(arguments)
    left = streams(options).left
    rounds = min(options.rounds, len(parts(left, 1)[0]))
    rows = parts(left, rounds)
    updates = options.rows // rounds // 10
    table = versions(options.data / "versions", options.keys, updates, rounds)
    made, load_seconds = ours(rows, table, options.parallelism)
    print(
        f"the table's {options.keys:,} rows were in after {load_seconds:.1f} s; {rounds} rounds of "
        f"{options.rows // rounds:,} rows and {updates:,} updates:"
    )
    report(options.rows + rounds * updates, made, batch(over_files(rows, table), CHECK))
    return 0
