"""`watersmeet test`: runs text tests and reports like a test runner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import watersmeet
from watersmeet.session.connection import Connection
from watersmeet.testing.records import ScriptError, parse_file
from watersmeet.testing.runner import Outcome, run_script


def run_text_tests(files: Sequence[Path], *, runtime: str, parallelism: int | None) -> int:
    """Runs each file (of a folder: every .slt below it) in a fresh database. 0 if all pass, else 1."""
    console = Console(highlight=False)
    scripts = [f for path in files for f in (sorted(path.rglob("*.slt")) if path.is_dir() else [path])]

    def connect(dialect: str) -> Connection:
        return watersmeet.connect(dialect=dialect, parallelism=parallelism, runtime=runtime, replace_connectors=True)

    failed = 0
    for file in scripts:
        started = time.monotonic()
        try:
            outcome = run_script(parse_file(file), connect)
        except ScriptError as err:
            outcome = Outcome(failure=str(err))
        seconds = time.monotonic() - started
        if outcome.failure is None:
            console.print(f"[green]ok[/green]     {file}  {outcome.records} records, {seconds:.1f} s")
        else:
            failed += 1
            console.print(f"[red]FAILED[/red] {file}")
            console.print(outcome.failure, markup=False)
    console.print(f"{len(scripts) - failed} passed, {failed} failed")
    return 1 if failed else 0
