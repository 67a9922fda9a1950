"""Append-only sinks to Delta Lake and to Iceberg, on disk: the content of a table, then as many rows again.

Both are timed from the statement until the sink has delivered all, and the tables there are compared by their number of
rows and a checksum. Peer: the same library writes the same rows, which are ready in Arrow, in one call for each of the
two batches. Target: 500 k rows/s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog

import watersmeet
from benchmarks.kafka_sink import CHECK, FILL, delivered
from benchmarks.processes import cpu_seconds, wait_until

SINK = """
CREATE SINK s FROM t WITH (type = 'append-only', force_append_only = 'true',
    create_table_if_not_exists = 'true', {options})
"""
MORE = "INSERT INTO t SELECT id + {rows}, ts, amount, note FROM t"
NAMESPACE = "bench"


class Delta:
    """A table of Delta Lake in a directory."""

    title = "Delta"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def options(self, name: str) -> str:
        """Those of a sink."""
        return f"connector = 'deltalake', location = '{self._folder / name}'"

    def write(self, name: str, rows: pa.Table) -> None:
        """The library's own way to append."""
        deltalake.write_deltalake(str(self._folder / name), rows, mode="append")

    def read(self, name: str) -> pa.Table:
        """All rows."""
        return deltalake.DeltaTable(str(self._folder / name)).to_pyarrow_table()


class Iceberg:
    """A table of Iceberg in a directory, with a catalog in SQLite."""

    title = "Iceberg"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalog: Any = load_catalog(
            "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        self._catalog.create_namespace(NAMESPACE)

    def options(self, name: str) -> str:
        """Those of a sink."""
        return (
            f"connector = 'iceberg', catalog.type = 'jdbc', catalog.uri = 'jdbc:sqlite:{self._folder}/catalog.db', "
            f"catalog.name = 'lake', warehouse.path = 'file://{self._folder}/warehouse', "
            f"database.name = '{NAMESPACE}', table.name = '{name}'"
        )

    def write(self, name: str, rows: pa.Table) -> None:
        """The library's own way to append."""
        self._catalog.create_table_if_not_exists(f"{NAMESPACE}.{name}", rows.schema).append(rows)

    def read(self, name: str) -> pa.Table:
        """All rows."""
        return self._catalog.load_table(f"{NAMESPACE}.{name}").scan().to_arrow()


def checked(rows: pa.Table) -> tuple[int, int]:
    """What CHECK says of them."""
    with duckdb.connect() as database:
        database.register("t", rows)
        count, total = database.execute(CHECK).fetchall()[0]
    return int(count), int(total)


def timed(name: str, rows: int, act: Callable[[], object]) -> None:
    """Does it, and prints how fast."""
    before, began = cpu_seconds(os.getpid()), time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    used = cpu_seconds(os.getpid()) - before
    print(f"{name:28} {rows / seconds:>10,.0f} rows/s  {seconds:6.1f} s  processor {used:.1f} s")


def compare(lake: Delta | Iceberg, rows: int, parallelism: int) -> None:
    """Prints how fast a sink and the library append. The batches of both have as many rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        connection.execute(FILL.format(last=rows - 1))
        for name, statement in (
            ("content", SINK.format(options=lake.options("ours"))),
            ("more rows", MORE.format(rows=rows)),
        ):
            head = delivered(connection)

            def act(statement: str = statement, head: int | None = head) -> None:
                connection.execute(statement)
                wait_until(lambda: (delivered(connection) or -1) > (head or -1), 300, 0.01)

            timed(f"{lake.title}: sink, {name}", rows, act)
        right = tuple(map(int, connection.execute(CHECK).fetchone()))
    content = lake.read("ours")
    batches = [content.slice(0, rows).combine_chunks(), content.slice(rows).combine_chunks()]
    for name, batch in zip(("content", "more rows"), batches, strict=True):
        timed(f"{lake.title}: library, {name}", rows, lambda: lake.write("peer", batch))  # noqa: B023
    found = checked(content), checked(lake.read("peer"))
    assert found == (right, right), (found, right)
    print(f"rows {right[0]:,}, checksum {right[1]:,}: as the table has it")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("lake_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    for lake in (Delta, Iceberg):
        with tempfile.TemporaryDirectory() as folder:
            compare(lake(Path(folder)), options.rows, options.parallelism)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
