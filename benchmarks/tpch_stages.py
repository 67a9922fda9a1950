"""The stages of TPC-H's 22 queries, and what a micro-batch of one row takes at least: each query alone in a
database.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.tpch.data import QUERIES, SCHEMA, content, generated
from tests.tpch.live import Live

import watersmeet
from benchmarks.processes import median


def measure(number: int, tables: dict, judge, parallelism: int, repeats: int) -> str:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        connection.execute(SCHEMA)
        live = Live(connection, judge)
        live.load(tables)
        live.create([number])
        live.check("loaded")
        catalog, plans = connection._session.catalog, connection._session.database.plans
        own = {o.id for o in plans.producers[catalog.by_name(f"q{number:02d}").id]}
        stages = 1 + max(plans.circuit.stages[i] for i in own)
        joins = sum(o.kind in ("join", "multijoin") for o in plans.circuit.operators if o.id in own)
        exchanges = sum(o.kind == "exchange" for o in plans.circuit.operators if o.id in own)
        arranged = sum(o.kind == "arrange" for o in plans.circuit.operators if o.id in own)
        epochs, rows = [], []
        for repeat in range(repeats):
            # A row of each large table: all of the plan has work.
            statements = "".join(
                f"INSERT INTO {name} SELECT {', '.join(columns)} FROM {name} LIMIT 1;"
                for name, columns in _copies(tables, repeat)
            )
            connection.execute(f"BEGIN; {statements} COMMIT")
            started = time.perf_counter()
            connection.execute("FLUSH")
            rows.append(time.perf_counter() - started)
            epochs.append(connection.status()["duration_us"] / 1e6)
    return (
        f"| Q{number} | {stages} | {exchanges} | {joins} | {arranged} | {median(epochs[2:]) * 1000:.0f} ms | "
        f"{median(rows[2:]) * 1000:.0f} ms |"
    )


def _copies(tables: dict, repeat: int) -> list[tuple[str, list[str]]]:
    """For each large table, its columns with another key."""
    keys = {
        "customer": "c_custkey",
        "orders": "o_orderkey",
        "lineitem": "l_orderkey",
        "part": "p_partkey",
        "partsupp": "ps_partkey",
        "supplier": "s_suppkey",
    }
    return [
        (name, [f"{1_000_000_000 + repeat} AS {c}" if c == key else c for c in tables[name].column_names])
        for name, key in keys.items()
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tpch_stages", description=__doc__)
    parser.add_argument("queries", type=int, nargs="*", default=sorted(QUERIES))
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    judge = generated(options.scale)
    tables = content(judge)
    with watersmeet.connect(parallelism=1):  # Spark stays from one database to the next
        print("| query | stages | exchanges | joins | arrangements | micro-batch | row in to FLUSH |")
        print("|---|---|---|---|---|---|---|")
        for number in options.queries:
            print(measure(number, tables, judge, options.parallelism, options.repeats), flush=True)
    return 0
