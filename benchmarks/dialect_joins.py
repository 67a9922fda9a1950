"""SQLstream's join over two windows, Lenses' WITHIN join and its join of tables, each beside the comparable join of the
RisingWave dialect.

2 M + 2 M rows, 900 k keys. Streams are up to 19 s out of order with 20 s of lateness allowed and a bound of 30 s either
way; tables keep the last row of each key. DuckDB's batch join is the practical limit, and checks all of them. Target:
half the rate of the comparable join or more.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.frame import SOURCES, Measured, Streams, batch, parser, report, streams
from benchmarks.rounds import ours, parts

_LATENESS_US = 19_000_000
_STREAMS = SOURCES.replace("{watermark}", ", WATERMARK FOR ts AS ts - INTERVAL '20 seconds'")
_TABLES = (
    SOURCES.replace("{watermark}", "")
    .replace("CREATE SOURCE", "CREATE TABLE")
    .replace("k bigint", "k bigint PRIMARY KEY")
)
CHECK = "count(*), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"

_COLUMNS = (
    "l.k AS k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, r.ts AS r_ts, r.amount AS r_amount, r.note "
    "AS r_note"
)
_QUOTED = ", ".join(f'{e} AS "{n}"' for e, n in (item.split(" AS ") for item in _COLUMNS.split(", ")))
_VIEW = f"CREATE MATERIALIZED VIEW joined AS SELECT {_COLUMNS} FROM l JOIN r ON {{on}}"
_AUTOCREATE = "SET defaults.topic.autocreate=true;"
_NEAR = "l.k = r.k AND l.ts BETWEEN r.ts - INTERVAL '30 seconds' AND r.ts + INTERVAL '30 seconds'"


@dataclass(frozen=True)
class Case:
    """A join. dialect, view: what makes `joined`. answer: DuckDB's query, with `{left}` and `{right}`.

    shown: what of `joined` is its content.
    """

    dialect: str
    sources: str
    view: str
    answer: str
    shown: str = "joined"


_OVER_FILES = f"SELECT {_COLUMNS} FROM {{left}} l JOIN {{right}} r ON {_NEAR}"
#: What comes out when the clock, the lower one of both watermarks, has reached the later rowtime.
_BY_CLOCK = (
    f"{_OVER_FILES} WHERE greatest(l.ts, r.ts) <= least((SELECT max(ts) FROM {{left}}), (SELECT max(ts) FROM "
    f"{{right}})) "
    "- INTERVAL '20 seconds'"
)
#: The last row of each key of the files in `{source}`.
LAST = (
    "(SELECT * FROM read_parquet('{source}/*.parquet', filename = true, file_row_number = true) "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY filename DESC, file_row_number DESC) = 1)"
)
_WINDOW = "OVER (RANGE INTERVAL '30' SECOND PRECEDING)"

#: The content of a topic: of each key the last record, unless it says that there is none any more.
_RECORDS = (
    '(SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY "_key" ORDER BY "@offset" DESC) AS place FROM '
    "joined) AS records "
    'WHERE place = 1 AND NOT "@deleted") AS content'
)

#: By name: the join of a dialect, and the comparable one.
PAIRS = {
    "sqlstream two windows": (
        Case(
            "sqlstream",
            _STREAMS,
            f'CREATE MATERIALIZED VIEW "joined" AS SELECT STREAM {_QUOTED} FROM l {_WINDOW} AS l '
            f"JOIN r {_WINDOW} AS r ON l.k = r.k",
            _BY_CLOCK,
        ),
        Case("risingwave", _STREAMS, _VIEW.format(on=_NEAR), _OVER_FILES),
    ),
    "lenses WITHIN": (
        Case(
            "lenses",
            _STREAMS,
            f"{_AUTOCREATE} INSERT INTO joined SELECT STREAM {_COLUMNS} FROM l INNER JOIN r ON l.k = r.k "
            "WITHIN 30s GRACE PERIOD 0s;",
            _OVER_FILES,
        ),
        Case("risingwave", _STREAMS, _VIEW.format(on=_NEAR), _OVER_FILES),
    ),
    "lenses table-table": (
        Case(
            "lenses",
            _TABLES,
            f"{_AUTOCREATE} INSERT INTO joined SELECT TABLE {_COLUMNS} FROM l INNER JOIN r ON l.k = r.k;",
            "{last}",
            _RECORDS,
        ),
        Case("risingwave", _TABLES, _VIEW.format(on="l.k = r.k"), "{last}"),
    ),
}


def answer(case: Case, given: Streams) -> str:
    left, right = (f"read_parquet('{f}/*.parquet')" for f in (given.left, given.right))
    tables = [LAST.format(source=f) for f in (given.left, given.right)]
    last = f"SELECT {_COLUMNS} FROM {tables[0]} l JOIN {tables[1]} r ON l.k = r.k"
    return case.answer.format(left=left, right=right, last=last)


def main(arguments: list[str]) -> int:
    made = parser("dialect_joins", __doc__)
    made.set_defaults(rows=2_000_000)
    made.add_argument("--pair", choices=tuple(PAIRS), action="append")
    options = made.parse_args(arguments)
    given = streams(options, lateness_us=_LATENESS_US)
    step = {"left": parts(given.left, 1)[0], "right": parts(given.right, 1)[0]}
    for name in options.pair or PAIRS:
        found: list[Measured] = []
        for case in PAIRS[name]:
            print(f"--- {name}: {case.dialect}", flush=True)
            found.append(
                ours(
                    case.sources, case.view, CHECK, [step], options.parallelism, dialect=case.dialect, shown=case.shown
                )
            )
            report(given.total, found[-1], batch(answer(case, given), CHECK))
        print(f"{name}: takes {found[0].seconds / found[1].seconds:.2f} times as long as RisingWave's", flush=True)
    return 0
