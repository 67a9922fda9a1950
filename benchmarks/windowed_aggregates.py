"""Windowed aggregates of SQLstream over a stream: one row out for each row in, beside DuckDB's window in one batch.

4 M rows a millisecond apart, 10 k keys, windows of one minute and of twenty rows. The stream is a source with a
watermark, so rows wait until the clock has passed them. Target: 400 k rows/s on two idle cores.
"""

from __future__ import annotations

import watersmeet
from benchmarks.frame import batch, parser, report, streams
from benchmarks.rounds import ours, parts

_SOURCE = """
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar, WATERMARK FOR ts AS ts)
    WITH (connector = 'file', path = '{left}', format = 'parquet');
"""
_CALLS = {
    "total": "SUM(amount) OVER m",
    "number": "COUNT(*) OVER m",
    "least": "MIN(amount) OVER m",
    "greatest": "MAX(amount) OVER m",
    "share": "SUM(CAST(amount AS DOUBLE) / 7) OVER m",
    "before": "LAG(amount, 1, -1) OVER n",
    "mean": "AVG(CAST(amount AS DOUBLE)) OVER n",
}
_CALLED = ", ".join(f'{call} AS "{name}"' for name, call in _CALLS.items())
_VIEW = f"""
CREATE MATERIALIZED VIEW "joined" AS SELECT STREAM l."k" AS "k", l."ts" AS "ts", l."amount" AS "amount", {_CALLED}
FROM l WINDOW m AS (PARTITION BY "k" RANGE INTERVAL '1' MINUTE PRECEDING), n AS (PARTITION BY "k" ROWS 20 PRECEDING)
"""
#: The last row waits for a later one.
_ANSWER = f"""
SELECT * FROM (SELECT k, ts, amount, {_CALLED} FROM read_parquet('{{source}}/*.parquet')
WINDOW m AS (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 1 MINUTE PRECEDING AND CURRENT ROW),
n AS (PARTITION BY k ORDER BY ts ROWS 20 PRECEDING))
WHERE ts < (SELECT max(ts) FROM read_parquet('{{source}}/*.parquet'))
"""
_CHECK = (
    "count(*), CAST(sum((amount + 1) * (total + 3 * number + 5 * least + 7 * greatest + before)) AS BIGINT), "
    "CAST(sum(floor(share * 1000 + 0.31) + floor(mean * 1000 + 0.31)) AS BIGINT)"
)


def main(arguments: list[str]) -> int:
    made = parser("windowed_aggregates", __doc__)
    made.set_defaults(keys=10_000)
    options = made.parse_args(arguments)
    given = streams(options)
    step = {"left": parts(given.left, 1)[0]}
    with watersmeet.connect(parallelism=options.parallelism) as warm:  # Spark runs already, with its workers
        warm.cursor().execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; FLUSH")
        found = ours(_SOURCE, _VIEW, _CHECK, [step], options.parallelism, dialect="sqlstream")
    report(options.rows, found, batch(_ANSWER.format(source=given.left), _CHECK))
    return 0
