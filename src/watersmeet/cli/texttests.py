"""`watersmeet test`: runs text tests and reports like a test runner."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import watersmeet
from watersmeet.cli.output import output
from watersmeet.errors import error
from watersmeet.session.connections.connection import Connection, Runtime
from watersmeet.testing.records import ScriptError, parse_file
from watersmeet.testing.runner import Outcome, run_script


def run_text_tests(paths: Sequence[Path], *, runtime: Runtime, parallelism: int | None, as_json: bool = False) -> int:
    """Runs each file (of a folder: every .slt and .test below it) in a fresh database. 0 if all pass, else 1.

    INVALID_PARAMETER if there is no file.
    """
    console = output()
    scripts = [f for path in paths for f in (_below(path) if path.is_dir() else [path])]
    if not scripts:
        raise error("INVALID_PARAMETER", "there are no test files", detail="Files of a folder end in .slt or .test.")

    def connect() -> Connection:
        return watersmeet.connect(parallelism=parallelism, runtime=runtime)

    failed = 0
    with contextlib.ExitStack() as held:
        if runtime == "spark":
            # Spark ends with its last user: this one keeps it from being started anew for every file.
            held.enter_context(watersmeet.connect(parallelism=parallelism, runtime=runtime))
        for file in scripts:
            started = time.monotonic()
            outcome = _run(file, connect)
            seconds = time.monotonic() - started
            failed += outcome.failure is not None
            if as_json:
                console.print(
                    json.dumps(
                        {
                            "file": str(file),
                            "records": outcome.records,
                            "seconds": round(seconds, 3),
                            "failure": outcome.failure,
                        }
                    ),
                    markup=False,
                    soft_wrap=True,
                )
            elif outcome.failure is None:
                console.print(
                    f"[green]ok[/green]     {file}  {outcome.records} records, {seconds:.1f} s", soft_wrap=True
                )
            else:
                console.print(f"[bold red]FAILED[/bold red] {file}", soft_wrap=True)
                console.print(outcome.failure, markup=False, soft_wrap=True)
    if not as_json:
        console.print(f"{len(scripts) - failed} passed, {failed} failed", style="red" if failed else "green")
    return 1 if failed else 0


def _run(file: Path, connect: Callable[[], Connection]) -> Outcome:
    try:
        return run_script(parse_file(file), connect)
    except (ScriptError, OSError, UnicodeDecodeError) as err:
        return Outcome(failure=str(err))


def _below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in (".slt", ".test") and p.is_file())
