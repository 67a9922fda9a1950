"""What the benchmarks of joins that watermarks bound have in common: their input, kinds, peers, and a run in many
micro-batches.

4 M + 4 M rows, 900 k keys, rows up to 19 s behind others with 20 s of lateness allowed: no row is late, so that all
answers are the same. Targets: 8 times Spark's own join, 300 k input rows/s on two idle cores.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.frame import SOURCES, Streams, batch, copied, in_batches, ours, parser, report, streams
from benchmarks.peers import spark_join

_WATERMARK = ", WATERMARK FOR ts AS ts - INTERVAL '20 seconds'"
_CHECK = "count(*), CAST(sum((l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"
#: Spark gives left rows without partner only once the watermark has passed them, the last ones never.
_PAIRS = "count(r_amount), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"
_LATENESS_US = 19_000_000
_QUERY = """
    SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, r.ts AS r_ts, r.amount AS r_amount,
    r.note AS r_note
    FROM {left} l {kind} JOIN {right} r ON {condition}
"""


@dataclass(frozen=True)
class TimedJoin:
    """name: also of Spark's own join, with the kind behind it.

    here: what is joined, `{source}` being a relation; there: files.
    """

    name: str
    condition: str
    here: str = "{source}"
    there: str = "read_parquet('{source}/*.parquet')"

    def script(self, kind: str) -> str:
        """The sources and the view, `{left}` and `{right}` standing for the folders."""
        query = _QUERY.format(
            left=self.here.format(source="l"), right=self.here.format(source="r"), kind=kind, condition=self.condition
        )
        return f"{SOURCES.replace('{watermark}', _WATERMARK)} CREATE MATERIALIZED VIEW joined AS {query}"

    def over_files(self, given: Streams, kind: str) -> str:
        """DuckDB's query."""
        return _QUERY.format(
            left=self.there.format(source=given.left),
            right=self.there.format(source=given.right),
            kind=kind,
            condition=self.condition,
        )

    def main(self, arguments: list[str], description: str | None) -> int:
        """Measures the kinds that are asked for; `--batches` shows state and memory after each micro-batch instead."""
        made = parser(f"{self.name}_join", description, spark=True)
        made.add_argument("--kind", choices=("inner", "left"), action="append")
        made.add_argument("--batches", type=int, default=0)
        made.add_argument(
            "--spark-rows",
            type=int,
            help="rows on each side for Spark, which takes minutes; default: as for the others",
        )
        options = made.parse_args(arguments)
        if options.batches:
            options.rows_per_file = options.rows // options.batches
        given = streams(options, lateness_us=_LATENESS_US)
        for kind in options.kind or ("inner", "left"):
            print(f"--- {kind}")
            if options.batches:
                in_batches(self.script(kind), given, options.parallelism, options.batches)
                continue
            script = self.script(kind).format(left=given.left, right=given.right)
            found = ours(script, _CHECK, options.parallelism, again=True)
            query = self.over_files(given, kind)
            report(given.total, found, batch(query, _CHECK), copy=copied(query, _CHECK))
            if not options.no_spark:
                self.beside_spark(options, kind, given.total / found.seconds)
        return 0

    def beside_spark(self, options: argparse.Namespace, kind: str, rate: float) -> None:
        """Prints how Spark's own join does; rate: Watersmeet's rows a second. AssertionError if the results differ."""
        given = streams(
            argparse.Namespace(**{**vars(options), "rows": options.spark_rows or options.rows}),
            lateness_us=_LATENESS_US,
        )
        spark = spark_join(given.left, given.right, 3, _PAIRS, f"{self.name}-{kind}")
        assert spark.check == batch(self.over_files(given, kind), _PAIRS).check, spark
        print(
            f"spark's own    {given.total / spark.seconds:>12,.0f} rows/s  {spark.seconds:7.1f} s of "
            f"{given.total:,} rows  "
            f"watersmeet is {rate * spark.seconds / given.total:.1f} times as fast"
        )
