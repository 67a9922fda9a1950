"""The processor seconds of joins, in process with one bucket, and those of DuckDB's batch join that writes its result
(Parquet, snappy), in turns.

4 M + 4 M rows, 900 k keys; `--shape` has rows of 1 kB, keys of text or 20 columns. A look-up's table comes first, then
its stream. Goals are in docs/BENCHMARKS.md.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import asof_join, dialect_joins, enrichment, interval_join, regular_join, window_join
from benchmarks.data import MORE_COLUMNS
from benchmarks.frame import SOURCES, Measured, Streams, copied, parser, streams
from benchmarks.processes import seconds_by_module, touch_memory
from benchmarks.rounds import ours, parts

_LATENESS_US = 19_000_000

#: This many modules are printed.
_MODULES = 10
_WATERMARK = ", WATERMARK FOR ts AS ts - INTERVAL '20 seconds'"
_VIEW = "CREATE MATERIALIZED VIEW joined AS {query}"
_VERSIONS = (SOURCES.replace("CREATE SOURCE r (k bigint", "CREATE TABLE r (k bigint PRIMARY KEY")).replace(
    "{watermark}", _WATERMARK
)
_OF_VERSIONS = (
    "SELECT l.k, l.ts, l.amount, r.ts AS r_ts, r.note FROM l LEFT JOIN r FOR SYSTEM_TIME AS OF l.ts ON l.k = r.k"
)


@dataclass(frozen=True)
class Case:
    """A join. sources: a script in RisingWave's dialect, with `{l}` and `{r}`. view: a script of `dialect`, which makes
    `joined`. answer: DuckDB's query. shapes: whether the view also joins other shapes of rows.
    """

    sources: str
    view: str
    answer: str
    check: str
    late: bool = False
    dialect: str = "risingwave"
    shown: str = "joined"
    table_first: bool = False
    shapes: bool = False


def _sources(watermark: str = "", script: str = SOURCES) -> str:
    return script.replace("{watermark}", watermark).replace("{left}", "{l}").replace("{right}", "{r}")


def _files(folder: str) -> str:
    return f"read_parquet('{{{folder}}}/*.parquet')"


def _timed(join: interval_join.TimedJoin) -> Case:
    query = join.script("").split("CREATE MATERIALIZED VIEW", 1)[1]
    there = join.over_files(Streams(Path("{l}"), Path("{r}"), 0), "")
    return Case(
        _sources(_WATERMARK), f"CREATE MATERIALIZED VIEW{query}", there, regular_join.CHECK, late=True, shapes=True
    )


_REGULAR, _ASOF = regular_join.QUERY, asof_join.QUERY
_LEFT = _REGULAR.replace(" JOIN ", " LEFT JOIN ")
_LEFT_CHECK = "count(*), CAST(sum((l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"
_NEAREST = "count(*), CAST(sum(amount + coalesce({micros} % 1000003, 7)) AS BIGINT)"
_OUR_NEAREST = _NEAREST.format(micros="(extract(epoch FROM r_ts) * 1000000)::bigint")
_LAST = dialect_joins.LAST.format(source="{r}")
_LOOKED_UP = (
    f"SELECT l.k AS k, l.amount AS amount, r.amount AS r_amount, r.note AS note FROM {_files('l')} l "
    f"LEFT JOIN {_LAST} r ON l.k = r.k"
)


def _looked_up(name: str) -> Case:
    dialect, sources, join = enrichment.JOINS["latest"][name]
    view = enrichment.VIEW.format(join=join)
    return Case(_sources(script=sources), view, _LOOKED_UP, enrichment.CHECK, dialect=dialect, table_first=True)


def _of_dialect(name: str) -> Case:
    case = dialect_joins.PAIRS[name][0]
    given = Streams(Path("{l}"), Path("{r}"), 0)
    return Case(
        _sources(script=case.sources),
        case.view,
        dialect_joins.answer(case, given),
        dialect_joins.CHECK,
        late=True,
        dialect=case.dialect,
        shown=case.shown,
    )


def _cases() -> dict[str, Case]:
    here = {"left": "l", "right": "r"}
    there = {"left": _files("l"), "right": _files("r")}
    return {
        "regular": Case(
            _sources(),
            _VIEW.format(query=_REGULAR.format(**here)),
            _REGULAR.format(**there),
            regular_join.CHECK,
            shapes=True,
        ),
        "left": Case(
            _sources(), _VIEW.format(query=_LEFT.format(**here)), _LEFT.format(**there), _LEFT_CHECK, shapes=True
        ),
        "interval": _timed(interval_join.JOIN),
        "window": _timed(window_join.JOIN),
        "asof": Case(
            _sources(), _VIEW.format(query=_ASOF.format(**here)), _ASOF.format(**there), _NEAREST, shapes=True
        ),
        "versions": Case(
            _sources(script=_VERSIONS), _VIEW.format(query=_OF_VERSIONS), _ASOF.format(**there), _NEAREST, late=True
        ),
        "look-up": _looked_up("risingwave temporal join"),
        "latest": _looked_up("timeplus LATEST"),
        "sqlstream": _of_dialect("sqlstream two windows"),
        "lenses": _of_dialect("lenses table-table"),
    }


def shaped(text: str, shape: str) -> str:
    """A script or a query for rows of a shape."""
    if shape == "text":
        return text.replace("k bigint", "k varchar")
    if shape == "columns":
        declared = ", ".join(f"{name} {kind}" for name, kind in MORE_COLUMNS.items())
        for side in "lr":
            note = f"{side}.note AS {side}_note" if f"{side}.note AS" in text else f"{side}.note"
            more = ", ".join(f"{side}.{name} AS {side}_{name}" for name in MORE_COLUMNS)
            text = text.replace(note, f"{note}, {more}")
        return text.replace("note varchar", f"note varchar, {declared}")
    return text


def measured(
    case: Case, given: Streams, shape: str, profile: cProfile.Profile | None = None
) -> tuple[Measured, Measured]:
    """(Watersmeet, DuckDB). AssertionError if their results differ. profile: of Watersmeet's part."""
    files = {"l": parts(given.left, 1)[0], "r": parts(given.right, 1)[0]}
    touch_memory(10 << 30)  # rows of 1 kB take several gigabytes
    steps: Sequence[dict[str, list[Path]]] = [{"r": files["r"]}, {"l": files["l"]}] if case.table_first else [files]
    peer = copied(
        shaped(case.answer.replace("{l}", str(given.left)).replace("{r}", str(given.right)), shape),
        case.check.format(micros="epoch_us(r_ts)"),
    )
    if profile is not None:
        profile.enable()
    made = ours(
        shaped(case.sources, shape),
        shaped(case.view, shape),
        case.check.format(micros="(extract(epoch FROM r_ts) * 1000000)::bigint"),
        steps,
        1,
        dialect=case.dialect,
        shown=case.shown,
        runtime="inprocess",
    )
    if profile is not None:
        profile.disable()
    assert made.check == peer.check, (made, peer)
    return made, peer


def main(arguments: list[str]) -> int:
    cases = _cases()
    made = parser("join_costs", __doc__)
    made.add_argument("--join", choices=tuple(cases), action="append")
    made.add_argument("--shape", choices=("narrow", "wide", "text", "columns"), default="narrow")
    made.add_argument("--turns", type=int, default=1)
    made.add_argument(
        "--profile", action="store_true", help="also print the processor seconds by module, which raises them"
    )
    options = made.parse_args(arguments)
    for name in options.join or cases:
        case = cases[name]
        if options.shape != "narrow" and not case.shapes:
            continue
        given = streams(options, lateness_us=_LATENESS_US if case.late else 0, shape=options.shape)
        for _ in range(options.turns):
            profile = cProfile.Profile(time.thread_time) if options.profile else None
            found, peer = measured(case, given, options.shape, profile)
            print(
                f"{name:10} {options.shape}: {found.cpu_s:6.1f} s of processor time, DuckDB {peer.cpu_s:6.1f} s, "
                f"{found.cpu_s / peer.cpu_s:.1f} times; {found.seconds:.1f} s beside {peer.seconds:.1f} s; "
                f"rows and sums {found.check} equal; memory {found.peak_bytes / 1e9:.1f} GB",
                flush=True,
            )
            for module, seconds in seconds_by_module(profile)[:_MODULES] if profile else ():
                print(f"    {seconds:6.2f} s  {module}", flush=True)
    return 0
