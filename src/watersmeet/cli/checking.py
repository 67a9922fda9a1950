"""`watersmeet check`, which shows the statements of scripts that would be refused, without running the scripts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

import watersmeet
from watersmeet.cli.options import DialectOption, JsonOption, PathOption, ScriptsArgument, app
from watersmeet.cli.output import REFUSED, output, print_error, reporting
from watersmeet.errors import Error
from watersmeet.system.process import lazy_import
from watersmeet.values import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.cli import run as runner
    from watersmeet.cli.run import Script
    from watersmeet.session.connections import checking
    from watersmeet.session.connections import scripts as again
    from watersmeet.session.connections.checking import Finding
else:
    runner = lazy_import("watersmeet.cli.run")
    checking = lazy_import("watersmeet.session.connections.checking")
    again = lazy_import("watersmeet.session.connections.scripts")


@app.command(
    examples=[
        "watersmeet check shop.sql",
        "watersmeet check shop.sql --json",
        "watersmeet check more.sql --path shop",
    ]
)
def check(
    files: ScriptsArgument,
    path: PathOption = None,
    dialect: DialectOption = DEFAULT_DIALECT,
    as_json: JsonOption = False,
) -> None:
    """Show every statement of scripts that would be refused.

    With --path, scripts may name relations of that database, and statements that a run would skip are not checked.
    Nothing is run or stored, and no other system is contacted. The exit code is 1 if a statement would be refused.
    """
    with reporting(as_json=as_json):
        scripts = runner.read_scripts(files or (), dialect)
        count, found = findings_of(scripts, path)
        for finding in found:
            finding.error.file = scripts[finding.script].file
        if as_json:
            for finding in found:
                typer.echo(json.dumps(_record(finding, scripts), ensure_ascii=False))
        else:
            for finding in found:
                _print(finding, scripts)
            output().print(summary(count, found), markup=False, soft_wrap=True)
    raise typer.Exit(REFUSED if any(f.checked for f in found) else 0)


def findings_of(scripts: Sequence[Script], path: str | None = None) -> tuple[int, list[Finding]]:
    """The number of statements in scripts, and the statements that would fail in the database at `path`, or in a new
    one.
    """
    opened = contextlib.nullcontext() if path is None else watersmeet.connect(path, read_only=True)
    with opened as connection:
        existing = None if connection is None else connection.opened
        names = [] if existing is None else [script.name for script in scripts]
        with again.scratch_database(existing) as database:
            found: tuple[int, list[Finding]] = checking.check_scripts(
                database, [(s.dialect, s.text) for s in scripts], names=names, objects_of=existing
            )
    return found


def note_others(err: Error, scripts: Sequence[Script]) -> None:
    """Adds the number of other statements that would be refused to the error of a script in a new database."""
    _, found = findings_of(scripts)
    others = [f for f in found if f.checked and (f.error.sql, f.error.span) != (err.sql, err.span)]
    if others:
        names = " ".join(script.file for script in scripts)
        verb = "statement" if len(others) == 1 else "statements"
        told = f"{len(others)} more {verb} would be refused: `watersmeet check {names}` shows them all."
        err.hint = told if err.hint is None else f"{err.hint} {told}"


def summary(count: int, found: Sequence[Finding]) -> str:
    """A sentence such as `12 statements: 3 would be refused (1 because of another one), 1 can't be checked.`"""
    refused = [f for f in found if f.checked]
    following = sum(f.follows is not None for f in refused)
    unknown = len(found) - len(refused)
    because = f" ({following} because of another one)" if following else ""
    parts = [f"{len(refused) or 'none'} would be refused{because}"]
    if unknown:
        parts.append(f"{unknown} can't be checked without a connection to another system")
    return f"{count:,} statement{'' if count == 1 else 's'}: {', '.join(parts)}."


def _print(finding: Finding, scripts: Sequence[Script]) -> None:
    out = output()
    if finding.follows is None:
        print_error(finding.error, console=out)
    else:
        cause = finding.follows
        out.print(
            f"{scripts[finding.script].file}:{finding.line}: {finding.error.message}: "
            f"see {scripts[cause.script].file}:{cause.line}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def _record(finding: Finding, scripts: Sequence[Script]) -> dict[str, Any]:
    """A finding as a JSON object: the error, the text of its statement, and in `follows` the location of its cause."""
    cause = finding.follows
    follows = None if cause is None else {"file": scripts[cause.script].file, "line": cause.line}
    error = {n: v for n, v in finding.error.to_json().items() if n not in ("sql", "span")}
    text = scripts[finding.script].text[finding.statement.start : finding.statement.end]
    return {**error, "statement": text, "checked": finding.checked, "follows": follows}
