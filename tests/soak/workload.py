"""What the soak's database holds: inputs whose rows follow from numbers alone, so that the result can be computed anew.

All content is bounded, or there would be no flat memory to look for: groups of a fixed number of keys, a table whose
old rows are deleted, windows by time.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

KEYS = 97
#: The interval of the self join, and by how much files may be late (the watermark allows more).
WITHIN_S = 2
LATE_S = 3.0
_ALLOWED_S = 20
#: The rows of the table `recent`, and of each transaction that adds to it.
RECENT_ROWS = 2000
ADDED_ROWS = 4

SCHEMA = """
CREATE SOURCE ev (id BIGINT, k INT, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '{allowed} seconds')
    WITH (connector = 'file', path = '{path}', settle_ms = 0) FORMAT PLAIN ENCODE JSON;
CREATE TABLE dim (k INT PRIMARY KEY, factor BIGINT);
CREATE TABLE recent (id BIGINT PRIMARY KEY, k INT, v BIGINT);
CREATE MATERIALIZED VIEW by_key AS SELECT k, count(*) AS n, CAST(sum(v) AS BIGINT) AS total FROM ev GROUP BY k;
CREATE MATERIALIZED VIEW now_joined AS
    SELECT r.id, r.k, r.v * d.factor AS worth FROM recent r JOIN dim d ON r.k = d.k;
CREATE MATERIALIZED VIEW pairs AS
    SELECT a.k, count(*) AS n, CAST(sum(a.v + b.v) AS BIGINT) AS total
    FROM ev a JOIN ev b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '{within} seconds' GROUP BY a.k;
CREATE MATERIALIZED VIEW lately AS
    SELECT e.k, count(*) AS n, sum(e.v * d.factor) AS worth FROM ev e JOIN dim d ON e.k = d.k
    WHERE e.ts > now() - INTERVAL '{window} seconds' GROUP BY e.k;
"""

#: The columns of each view that is compared, and DuckDB's query for it.
CHECKS = {
    "by_key": ("k, n, total", "SELECT k, count(*) n, sum(v)::BIGINT total FROM ev GROUP BY k"),
    "pairs": (
        "k, n, total",
        f"""SELECT a.k, count(*) n, sum(a.v + b.v)::BIGINT total FROM ev a JOIN ev b ON a.k = b.k
        AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '{WITHIN_S} seconds' GROUP BY a.k""",
    ),
    "now_joined": (
        "id, k, worth",
        "SELECT r.id, r.k, r.v * d.factor AS worth FROM recent r JOIN dim d ON r.k = d.k",
    ),
}


def schema(files: Path, window_s: int) -> str:
    """The statements that make the database. files: where the source reads. window_s: of the view of the last rows."""
    return SCHEMA.format(path=files, within=WITHIN_S, allowed=_ALLOWED_S, window=window_s)


@dataclass(frozen=True)
class File:
    """One file of the source: its number, how many rows it has and the time of the first, in microseconds."""

    number: int
    rows: int
    first_us: int

    @property
    def name(self) -> str:
        return f"{self.number:09d}.json"

    def lines(self) -> str:
        """Its content: a row each millisecond."""
        return "".join(
            json.dumps({"id": i, "k": i % KEYS, "v": (i * 7919) % 1000, "ts": _text(self.first_us + n * 1000)}) + "\n"
            for n, i in enumerate(range(self.number * 1000, self.number * 1000 + self.rows))
        )


def write_file(directory: Path, file: File) -> None:
    """Puts the file in place in one step."""
    path = directory / ("." + file.name)
    path.write_text(file.lines())
    path.rename(directory / file.name)


def change_table(step: int) -> list[str]:
    """The statements of one transaction; run again, they change nothing: a killed process may have run them."""
    first = step * ADDED_ROWS
    rows = ", ".join(f"({i}, {i % KEYS}, {(i * 31) % 500})" for i in range(first, first + ADDED_ROWS))
    done = [f"INSERT INTO recent VALUES {rows}"]
    if step % 5 == 0:
        done.append(f"INSERT INTO dim VALUES ({step % KEYS}, {step})")
    if step % 50 == 0:
        done.append(f"DELETE FROM recent WHERE id < {first - RECENT_ROWS}")
    return done


def first_statements() -> str:
    """What fills the table `dim` at the start."""
    return "INSERT INTO dim VALUES " + ", ".join(f"({k}, {k + 1})" for k in range(KEYS))


def expected(files: list[File], steps: int) -> duckdb.DuckDBPyConnection:
    """A DuckDB with the relations `ev`, `dim` and `recent` as they are after these files and transactions."""
    found = duckdb.connect()
    found.execute("CREATE TABLE f (number BIGINT, n BIGINT, first_us BIGINT)")
    if files:
        found.executemany("INSERT INTO f VALUES (?, ?, ?)", [(f.number, f.rows, f.first_us) for f in files])
    found.execute(
        "CREATE TABLE ev AS SELECT id, id % ? AS k, (id * 7919) % 1000 AS v, make_timestamp(first_us + i * 1000) AS ts "
        "FROM (SELECT number * 1000 + i AS id, i, first_us FROM (SELECT *, unnest(range(n)) AS i FROM f))",
        [KEYS],
    )
    found.execute("CREATE TABLE dim AS SELECT k, k + 1 AS factor FROM range(?) t(k)", [KEYS])
    found.execute("CREATE TABLE s AS SELECT range AS step FROM range(?)", [steps])
    found.execute(
        "UPDATE dim SET factor = step FROM (SELECT step % ? AS k, max(step) AS step FROM s WHERE step % 5 = 0 "
        "GROUP BY 1) u WHERE dim.k = u.k",
        [KEYS],
    )
    last_delete = (steps - 1) // 50 * 50 if steps else 0
    found.execute(
        "CREATE TABLE recent AS SELECT id, id % ? AS k, (id * 31) % 500 AS v FROM range(?) t(id) WHERE id >= ?",
        [KEYS, steps * ADDED_ROWS, last_delete * ADDED_ROWS - RECENT_ROWS],
    )
    return found


def _text(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{micros:06d}"
