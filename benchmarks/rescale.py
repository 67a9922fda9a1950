"""Another number of buckets: the commit, and what the epochs after it make anew; beside a rebuild in the same run."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Self

import duckdb

import watersmeet

TABLES = """
CREATE TABLE l (k bigint, v bigint);
CREATE TABLE r (k bigint, w bigint);
"""
ROWS = """
INSERT INTO l SELECT g::bigint * 7919 % {keys}, g FROM generate_series(1, {rows}) AS s(g);
INSERT INTO r SELECT g::bigint * 6101 % {keys}, g FROM generate_series(1, {rows}) AS s(g);
"""
JOINED = "SELECT l.k, l.v, r.w FROM l JOIN r ON l.k = r.k"
REPORT = "SELECT v % 100000 AS g, count(*) AS n, max(w) AS m FROM ({joined}) AS j GROUP BY v % 100000"
CHECK = "SELECT count(*), sum(n), sum(g * n % 1000), sum(m) FROM ({report}) AS q"


class Timed:
    """Processor seconds of this process, and seconds, inside."""

    def __enter__(self) -> Self:
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s, self.seconds = time.process_time() - self._began[0], time.perf_counter() - self._began[1]

    def __str__(self) -> str:
        return f"{self.cpu_s * 1000:9,.0f} ms of processor time, {self.seconds * 1000:9,.0f} ms"


def written(path: Path) -> dict[str, int]:
    """By file of state, its bytes."""
    return {p.name: p.stat().st_size for p in (path / "segments").iterdir()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rescale", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows on each side")
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--counts", type=int, nargs="+", default=[4, 3, 8, 2])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, duckdb.connect() as model:
        path = Path(scratch) / "db"
        model.execute(TABLES + ROWS.format(rows=options.rows, keys=options.keys))
        expected = CHECK.format(report=REPORT.format(joined=JOINED))

        def check(connection: watersmeet.Connection) -> None:
            found = connection.execute(CHECK.format(report="SELECT * FROM report")).fetchone()
            assert tuple(map(int, found)) == tuple(map(int, model.execute(expected).fetchone())), found

        with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
            connection.execute(TABLES)
            connection.execute(f"CREATE MATERIALIZED VIEW joined AS {JOINED}")
            connection.execute(f"CREATE MATERIALIZED VIEW report AS {REPORT.format(joined='SELECT * FROM joined')}")
            connection.execute(ROWS.format(rows=options.rows, keys=options.keys))
            with Timed() as timed:
                connection.execute("FLUSH")
            state = sum(v["state_bytes"] for v in connection.status()["views"])
            print(f"filling                      {timed}; state {state / 1e6:.0f} MB")
            check(connection)
            for number, count in enumerate(options.counts):
                before = written(path)
                with Timed() as timed:
                    connection.execute(f"ALTER DATABASE SET parallelism = {count}")
                new = sum(size for name, size in written(path).items() if name not in before)
                print(f"to {count} buckets: the commit     {timed}; {new:,} bytes of state written")
                for epoch in range(3):
                    row = f"({epoch}, {options.rows + 10 * number + epoch})"
                    for database in (connection, model):
                        database.execute(f"INSERT INTO l VALUES {row}")
                    before = written(path)
                    with Timed() as timed:
                        connection.execute("FLUSH")
                    new = sum(size for name, size in written(path).items() if name not in before)
                    print(f"    epoch {epoch + 1} with one row       {timed}; {new:,} bytes of state written")
                check(connection)
        with Timed() as timed, watersmeet.connect(path, runtime="inprocess", parallelism=3, rebuild=True) as connection:
            pass
        print(f"a rebuild for 3 buckets      {timed}")
        with watersmeet.connect(path, read_only=True) as connection:
            check(connection)
    return 0
