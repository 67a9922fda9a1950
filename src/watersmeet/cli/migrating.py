"""`watersmeet migrate`: shows what scripts would change in a database, and changes it after a confirmation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from watersmeet.cli.output import errors_output, output, print_error
from watersmeet.cli.results import drain
from watersmeet.cli.run import Script, print_notices, run_all
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.scripts import Step, steps_of

#: The number of shown characters of a new statement.
_WIDTH: Final = 100

_STYLES: Final = {"-": "red", "+": "green"}


def migrate(
    connection: Connection,
    scripts: Sequence[Script],
    *,
    yes: bool,
    transaction: bool,
) -> int:
    """Shows what scripts would change, and changes it after a confirmation, or with `yes`. Returns the exit code."""
    out = output()
    changing = 0
    problems: list[Error] = []
    for script in scripts:
        with script.naming():
            session = Session(connection.opened, Variables(script.dialect))
            steps = [s for s in steps_of(session, script.name, script.text, replaces=True) if s.changes]
        out.print(f"{script.file}: {len(steps) or 'nothing'} to change", style="bold", markup=False)
        for step in steps:
            _print_step(step, out)
            if step.problem is not None:
                step.problem.file = script.file
                problems.append(step.problem)
        changing += len(steps)
    for problem in problems:
        print_error(problem)
    if problems:
        return 1
    if not changing:
        return 0
    if not (yes or (sys.stdin.isatty() and typer.confirm("Change the database?"))):
        errors_output().print("nothing was changed; --yes changes it", style="yellow")
        return 0
    running = run_all(connection, scripts, errors_output(), transaction=transaction, as_json=False, replaces=True)
    print_notices(connection.flush(), errors_output())
    drain(running)
    return 0


def _print_step(step: Step, out: Console) -> None:
    statement = step.statement
    if step.action == "differs":
        out.print(f"  replace {step.title}", markup=False)
        for line in step.difference:
            out.print(Text(f"    {line}", _STYLES.get(line[:1], "")), soft_wrap=True)
        return
    words = " ".join(statement.sql.split())
    place = statement.text.count("\n", 0, statement.span.start) + 1
    out.print(f"  line {place}: {words[:_WIDTH]}{'…' if len(words) > _WIDTH else ''}", markup=False, soft_wrap=True)
