"""Four inputs joined by one key: one operator without rows in between, against joins of two inputs each.

Tables of `--rows` rows with 1 or 4 rows a key, of which half of the keys are in all four; loaded in 10 transactions,
then changes of 100 rows of each table. Content is compared with DuckDB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.processes import median

_QUERY = (
    "SELECT a.v AS a, b.v AS b, c.v AS c, d.v AS d FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k JOIN d ON c.k = d.k"
)


def measure(rows: int, fan: int, *, multiway: bool) -> dict[str, float]:
    duck = duckdb.connect(config={"threads": 1})
    with (
        tempfile.TemporaryDirectory() as scratch,
        watersmeet.connect(Path(scratch) / "db", runtime="inprocess", parallelism=1) as connection,
    ):

        def both(sql: str) -> None:
            duck.execute(sql)
            connection.execute(sql)

        connection.execute(f"SET streaming_enable_multiway_join = {str(multiway).lower()}")
        for table in "abcd":
            both(f"CREATE TABLE {table} (k int, v int)")
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {_QUERY}")
        begun = time.perf_counter()
        keys, step = rows // fan, rows // 10
        for part in range(10):
            for n, table in enumerate("abcd"):  # every table lacks an eighth of the keys: half are in all
                both(
                    f"INSERT INTO {table} SELECT (i % {keys}), i FROM generate_series({part * step}, "
                    f"{part * step + step - 1}) "
                    f"AS g(i) WHERE (i % {keys}) % 8 <> {n}"
                )
            connection.execute("FLUSH")
        loaded = time.perf_counter() - begun
        times = []
        for change in range(12):
            table = "abcd"[change % 4]
            both(
                f"INSERT INTO {table} SELECT i * 37 % {keys}, -i FROM generate_series({change * 100}, "
                f"{change * 100 + 99}) AS g(i)"
            )
            begun = time.perf_counter()
            connection.execute("FLUSH")
            times.append(time.perf_counter() - begun)
        sums = "SELECT count(*), sum(a), sum(b), sum(c), sum(d) FROM "
        expected = duck.execute(f"{sums} ({_QUERY})").fetchone()
        assert connection.execute(f"{sums} v").fetchone() == expected, f"expected {expected}"
        kept = [o for o in connection.status()["operators"].values() if o["kind"] == "arrange"]
        return {
            "bytes": sum(o["state_bytes"] for o in kept),
            "loaded": loaded,
            "change": median(times),
            "rows": expected[0],
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="multiway_join", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args(arguments)
    for fan in (1, 4):
        for multiway in (False, True):
            result = measure(options.rows if fan == 1 else options.rows // 8, fan, multiway=multiway)
            print(
                f"{fan} rows a key, {'one operator' if multiway else 'two by two  '}: {result['rows']:9,} "
                f"rows out, loaded in "
                f"{result['loaded']:5.1f} s, state {result['bytes'] / 1e6:6.1f} MB, 100 rows to FLUSH "
                f"{result['change'] * 1000:4.0f} ms"
            )
    return 0
