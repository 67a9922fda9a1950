"""Timeplus' enrichment, ASOF with keep_versions 3 and LATEST, beside the joins of the RisingWave dialect that come next
to them.

2 M + 2 M rows in ten rounds, 200 k keys: of each round first the right rows, then the left ones. DuckDB's batch answer
is the practical limit, and checks all of them. Target: half the rate of the comparable join or more: for ASOF the ASOF
join that is decided on arrival, for LATEST the temporal join.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.frame import SOURCES, Measured, batch, parser, report, streams
from benchmarks.rounds import Step, ours, parts

#: A table that keeps the last row of each key, for the temporal join.
_TABLE = """
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{left}', format = 'parquet');
CREATE TABLE r (k bigint PRIMARY KEY, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{right}', format = 'parquet');
"""
_STREAMS = SOURCES.replace("{watermark}", "")
_COLUMNS = "l.k AS k, l.amount AS amount, r.amount AS r_amount, r.note AS note"
VIEW = f"CREATE MATERIALIZED VIEW joined AS SELECT {_COLUMNS} FROM l {{join}}"
_ASOF = "ON l.k = r.k AND l.ts >= r.ts"
CHECK = "count(*), CAST(sum((amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"

#: By name: dialect, sources, the join. The second of two is the comparable one; it keeps all versions.
JOINS = {
    "asof": {
        "timeplus ASOF, keep_versions 3": (
            "timeplus",
            _STREAMS,
            f"LEFT ASOF JOIN r {_ASOF} SETTINGS keep_versions = 3",
        ),
        "risingwave ASOF, EMIT ON ARRIVAL": ("risingwave", _STREAMS, f"ASOF LEFT JOIN r {_ASOF} EMIT ON ARRIVAL"),
    },
    "latest": {
        "timeplus LATEST": ("timeplus", _STREAMS, "LEFT LATEST JOIN r ON l.k = r.k"),
        "risingwave temporal join": ("risingwave", _TABLE, "LEFT JOIN r FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = r.k"),
    },
}


def over_files(strictness: str, versions: int | None, rounds: list[tuple[list[Path], list[Path]]]) -> str:
    """DuckDB's query: each round's left rows with the right rows of the rounds up to it, of which it keeps so many of
    each key.
    """
    made = []
    for number, (_, left) in enumerate(rounds, 1):
        files = [str(f) for right, _ in rounds[:number] for f in right]
        right = f"(SELECT * FROM read_parquet({files}, filename = true, file_row_number = true))"
        if strictness == "latest":  # the last one that came
            right = (
                f"(SELECT * FROM {right} QUALIFY row_number() OVER (PARTITION BY k ORDER BY filename DESC, "
                f"file_row_number DESC) = 1)"
            )
            join = f"LEFT JOIN {right} r ON l.k = r.k"
        else:
            if versions is not None:
                right = (
                    f"(SELECT * FROM {right} QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) <= {versions})"
                )
            join = f"ASOF LEFT JOIN {right} r {_ASOF}"
        made.append(f"(SELECT {_COLUMNS} FROM read_parquet({[str(f) for f in left]}) l {join})")
    return " UNION ALL ".join(made)


def main(arguments: list[str]) -> int:
    made = parser("enrichment", __doc__)
    made.set_defaults(rows=2_000_000, keys=200_000)
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--strictness", choices=tuple(JOINS), action="append")
    options = made.parse_args(arguments)
    given = streams(options)
    rounds = list(zip(parts(given.right, options.rounds), parts(given.left, options.rounds), strict=True))
    steps: list[Step] = [step for right, left in rounds for step in ({"right": right}, {"left": left})]
    for strictness in options.strictness or JOINS:
        found: dict[str, Measured] = {}
        for name, (dialect, sources, join) in JOINS[strictness].items():
            print(f"--- {name}", flush=True)
            found[name] = ours(sources, VIEW.format(join=join), CHECK, steps, options.parallelism, dialect=dialect)
            versions = 3 if dialect == "timeplus" else None
            report(given.total, found[name], batch(over_files(strictness, versions, rounds), CHECK))
        one, other = found.values()
        print(f"{strictness}: Timeplus' takes {one.seconds / other.seconds:.2f} times as long")
    return 0
