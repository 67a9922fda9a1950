"""Projects of the four systems, each in its own SQL, run side by side and compared with DuckDB.

A project is a folder: `data.sql` makes its files and tables in DuckDB, `project.sql` is what a user of that system
brings, and `expected.sql` has DuckDB's query for each result: the line before it names the relation, the call that
reads files, or a subquery with an alias.
`python examples/projects.py [NAME…] [--runtime inprocess]` exits with 1 if a row differs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

import watersmeet
from watersmeet.dialects.parsing import parse_each
from watersmeet.dialects.tree.statements import single

HERE = Path(__file__).parent
PROJECTS = sorted(path.parent.name for path in HERE.glob("*/project.sql"))


@dataclass
class Outcome:
    """results: of each relation its rows, how many of them DuckDB doesn't have, and how many it has besides."""

    project: str
    statements: int
    seconds: float
    results: list[tuple[str, int, int, int]]
    log: str = ""

    @property
    def right(self) -> bool:
        return bool(self.results) and not any(extra or missing for _, _, extra, missing in self.results)


def expectations(project: str) -> list[tuple[str, str]]:
    """Each relation, call, or subquery with an alias that is compared, and DuckDB's query for it."""
    text = (HERE / project / "expected.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- ([^\n:]+(?:\([^\n]*\))?)(?::[^\n]*)?\n", text, flags=re.MULTILINE)[1:]
    return [
        (name.strip(), query.strip().removesuffix(";")) for name, query in zip(parts[::2], parts[1::2], strict=True)
    ]


def run(project: str, scratch: Path, runtime: str) -> Outcome:
    """Makes the data, runs the script once over it, and compares its results."""
    began = time.monotonic()
    (scratch / "data").mkdir(parents=True)
    reference = duckdb.connect()
    reference.execute(f"SET file_search_path = '{scratch}'")
    data = (HERE / project / "data.sql").read_text(encoding="utf-8").replace("TO 'data/", f"TO '{scratch}/data/")
    reference.execute(data)
    script = HERE / project / "project.sql"
    scripts = [str(script), *map(str, (scratch / "data").glob("*.sql"))]
    command = [sys.executable, "-m", "watersmeet", "run", *scripts, "--path", "db", "--once", "--dialect", project]
    done = subprocess.run([*command, "--runtime", runtime], cwd=scratch, capture_output=True, text=True, check=False)
    statements = len(list(single(parse_each(script.read_text(encoding="utf-8"), project))))
    outcome = Outcome(project, statements, 0, [], done.stdout + done.stderr)
    if done.returncode == 0:
        with watersmeet.connect(scratch / "db", dialect="risingwave", read_only=True) as connection:
            outcome.results = [compared(name, query, connection, reference) for name, query in expectations(project)]
    outcome.seconds = time.monotonic() - began
    return outcome


def compared(
    name: str, query: str, connection: watersmeet.Connection, reference: duckdb.DuckDBPyConnection
) -> tuple[str, int, int, int]:
    answer = reference.execute(query)
    columns = ", ".join(f'"{column[0]}"' for column in answer.description or ())
    wanted = Counter(map(plain, answer.fetchall()))
    read = f"SELECT {columns} FROM {name}"
    rows = (reference if name.startswith("read_csv") else connection).execute(read).fetchall()
    found = Counter(map(plain, rows))
    return name, found.total(), (found - wanted).total(), (wanted - found).total()


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers of other scales are equal to nine digits, lists and objects by their values."""
    return tuple(map(_plain, row))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return plain(tuple(value.values()))
    if isinstance(value, (list, tuple)):
        return plain(tuple(value))
    return round(float(value), 9) if isinstance(value, (Decimal, float)) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("projects", nargs="*", choices=[*PROJECTS, []], metavar="NAME", help=", ".join(PROJECTS))
    parser.add_argument("--runtime", choices=["spark", "inprocess"], default="spark")
    parser.add_argument("--keep", type=Path, help="keep the databases and files in this folder")
    options = parser.parse_args()
    console = Console()
    scratch = options.keep or Path(tempfile.mkdtemp(prefix="watersmeet-projects-"))
    names = options.projects or PROJECTS
    table = Table("project", "statements", "result", "rows", "not in DuckDB", "only in DuckDB")
    right = True
    try:
        with console.status(f"running {', '.join(names)} side by side"), ThreadPoolExecutor(len(names)) as pool:
            for outcome in pool.map(lambda name: run(name, scratch / name, options.runtime), names):
                right &= outcome.right
                for place, result in enumerate(outcome.results):
                    first = (outcome.project, str(outcome.statements)) if place == 0 else ("", "")
                    table.add_row(*first, result[0].rpartition(" AS ")[2], *(f"{n:,}" for n in result[1:]))
                if not outcome.results:
                    console.print(f"{outcome.project} has failed:\n{outcome.log}", markup=False)
    finally:
        if not options.keep:
            shutil.rmtree(scratch)
    console.print(table)
    if not right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
