"""Processor time to bind and to compile the queries of TPC-H and Nexmark as views: no rows, no Spark.

python -m benchmarks bind_time [--repeats 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from tests.harness import connect_without_connectors
from tests.nexmark import test_nexmark
from tests.tpch import data

import watersmeet
from watersmeet.dialects.parsing import parse
from watersmeet.maintenance.views import bind_view
from watersmeet.planner import compile_view


def measure(script: str, queries: Mapping[int, str], repeats: int) -> tuple[int, float, float]:
    """How many queries can be views, and the least seconds to bind and to compile all of them."""
    with connect_without_connectors(runtime="inprocess", parallelism=2) as connection:
        connection.execute(script)
        session = connection._session
        statements = []
        for query in queries.values():
            try:
                statement = parse(f"CREATE MATERIALIZED VIEW q AS {query}", "risingwave")[0]
                bind_view(session, statement)
            except watersmeet.Error:
                continue
            statements.append(statement)
        bind_seconds, compile_seconds = [], []
        for _ in range(repeats):
            started = time.process_time()
            bound = [bind_view(session, s) for s in statements]
            bind_seconds.append(time.process_time() - started)
            started = time.process_time()
            for b in bound:
                compile_view(b.tree, b.relation, {})
            compile_seconds.append(time.process_time() - started)
    return len(statements), min(bind_seconds), min(compile_seconds)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bind_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    print("| queries | bind | compile |\n|---|---|---|")
    for name, script, queries in (
        ("TPC-H", data.SCHEMA, data.QUERIES),
        ("Nexmark", test_nexmark.SOURCES, test_nexmark.QUERIES),
    ):
        count, bound, compiled = measure(script, queries, options.repeats)
        print(f"| {name}: {count} | {bound * 1000:.0f} ms | {compiled * 1000:.0f} ms |")
    return 0
