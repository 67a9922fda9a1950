"""The commands that change nothing: query, explain, check, status and topology. They don't need Spark."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import watersmeet
from watersmeet.cli.options import (
    DialectOption,
    JsonOption,
    ParallelismOption,
    PathOption,
    RequiredPath,
    ScriptsArgument,
    app,
)
from watersmeet.cli.output import FAILED, REFUSED, errors_output, output, print_error, reporting
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import is_url
from watersmeet.system.process import block_import, lazy_import
from watersmeet.values import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.cli import progress, results
    from watersmeet.cli import run as runner
    from watersmeet.cli.run import Script
    from watersmeet.database import plans as saved_plans
    from watersmeet.database.sessions import context, variables
    from watersmeet.session.connections import checking
    from watersmeet.session.connections import scripts as again
    from watersmeet.session.connections.checking import Finding
    from watersmeet.session.statements import explain as explaining
else:
    progress = lazy_import("watersmeet.cli.progress")
    runner = lazy_import("watersmeet.cli.run")
    results = lazy_import("watersmeet.cli.results")
    saved_plans = lazy_import("watersmeet.database.plans")
    context = lazy_import("watersmeet.database.sessions.context")
    variables = lazy_import("watersmeet.database.sessions.variables")
    checking = lazy_import("watersmeet.session.connections.checking")
    again = lazy_import("watersmeet.session.connections.scripts")
    explaining = lazy_import("watersmeet.session.statements.explain")


class PictureFormat(StrEnum):
    """The format of a picture."""

    svg = "svg"
    dot = "dot"


OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.", dir_okay=False)
]

#: The argument that means standard input instead of a file or a statement.
_STDIN: Final = "-"

_FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".md": "markdown", ".parquet": "parquet"}


@app.command(
    examples=[
        'watersmeet query "SELECT * FROM totals ORDER BY name" --path shop',
        'watersmeet query "SELECT * FROM totals" --path shop -o totals.csv',
        'echo "SHOW JOBS" | watersmeet query - --path shop --json',
    ]
)
def query(
    context: typer.Context,
    sql: Annotated[
        str, typer.Argument(help="SELECT, SHOW, DESCRIBE or EXPLAIN; - reads standard input.", metavar="SQL")
    ],
    path: RequiredPath,
    dialect: DialectOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print rows as CSV with a line of names.")] = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print rows as a table in Markdown.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write; .csv, .json, .jsonl, .md and .parquet imply the format.",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Print the rows of queries.

    The database is only read, also while another process writes it. Needs no Spark.
    """
    form = _form(context, {"csv": as_csv, "json": as_json, "markdown": as_markdown}, file)
    # DuckDB and PyArrow import pandas if it is installed, which takes longer than the query and is not needed
    block_import("pandas")
    with (
        reporting(as_json=as_json),
        watersmeet.connect(path, dialect=dialect or DEFAULT_DIALECT, read_only=True) as connection,
        _written_to(file),
    ):
        try:
            for number, cursor in enumerate(connection.execute_script(_text(sql))):
                if number and form == "parquet":
                    raise error("INVALID_PARAMETER", "a Parquet file takes the rows of one query")
                if form in ("table", "json"):
                    results.print_result(cursor, output(), as_json=form == "json")
                else:
                    results.write_rows(cursor, form)
        except Error as err:
            if err.condition == "READ_ONLY_SESSION":
                err.hint = (
                    f"watersmeet query only reads. watersmeet shell --path {path} and watersmeet run FILE --path "
                    f"{path} do more."
                )
            raise


def _form(context: typer.Context, switches: dict[str, bool], file: Path | None) -> str:
    """The format from the command line, else from the file's name, else from the environment."""
    given = [form for form, is_set in switches.items() if is_set]
    sources = {form: context.get_parameter_source(f"as_{form}") for form in given}
    written = [form for form, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if len(written) > 1:
        raise typer.BadParameter(f"--{' and --'.join(written)} exclude each other")
    implied = [] if file is None or file.suffix not in _FORMATS else [_FORMATS[file.suffix]]
    return [*written, *implied, *given, "table"][0]


def _text(sql: str) -> str:
    return sys.stdin.read() if sql == _STDIN else sql


@contextlib.contextmanager
def _written_to(file: Path | None) -> Iterator[None]:
    """Writes the output inside to a file if the block ends without an error. Raises INVALID_PARAMETER."""
    if file is None:
        yield
        return
    content = io.BytesIO()
    with io.TextIOWrapper(content, encoding="utf-8", newline="") as held:
        with contextlib.redirect_stdout(held):
            yield
        held.flush()
        try:
            file.write_bytes(content.getvalue())
        except OSError as cause:
            raise error("INVALID_PARAMETER", f"{file} can't be written: {cause.strerror}") from cause


@app.command(
    examples=[
        "watersmeet explain shop.sql",
        "watersmeet explain \"SELECT * FROM totals WHERE name = 'Ann'\" --path shop",
        'watersmeet explain "CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM totals" --path shop',
    ]
)
def explain(
    source: Annotated[
        str, typer.Argument(help="A SQL script, its URL, or SQL; - reads standard input.", metavar="SQL")
    ],
    path: PathOption = None,
    dialect: DialectOption = None,
    parallelism: ParallelismOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the plans of views and queries.

    Also those of pumps and processors. With --path, relations of that database can be named. Nothing is stored.
    """
    with reporting(as_json=as_json):
        script = _script(source, dialect)
        buckets = parallelism or saved_plans.default_parallelism("spark")  # the same plan as in `run`
        options: dict[str, Any] = {"read_only": True} if path else {"parallelism": buckets, "runtime": "inprocess"}
        with (
            watersmeet.connect(path, dialect=script.dialect, **options) as connection,
            script.naming() if script.file else contextlib.nullcontext(),
        ):
            session = context.Session(connection.opened, variables.Variables(script.dialect))
            is_query = path is not None or script.file == ""
            plans = explaining.explain_script(session, script.text, batch=is_query)
        if as_json:
            results.print_json(("view", "plan"), plans)
            return
        out = output()
        for name, lines in plans:
            out.print(f"-- {name}", style="bold", markup=False, soft_wrap=True)
            out.print("\n".join(lines) + "\n", markup=False, soft_wrap=True)
        if not plans:
            errors_output().print("the script makes no materialized view, and no query of it runs on", style="yellow")


def _script(source: str, dialect: str | None) -> runner.Script:
    """The script in a file or at a URL, or the text itself as a script without file."""
    if is_url(source) or Path(source).is_file():
        return runner.read_scripts([source], dialect)[0]
    if source != _STDIN and not any(c.isspace() for c in source):
        raise typer.BadParameter(f"{source} is neither a file nor SQL")
    return runner.Script("", _text(source), dialect or DEFAULT_DIALECT)


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
    shown = {n: v for n, v in finding.error.to_json().items() if n not in ("sql", "span")}
    text = scripts[finding.script].text[finding.statement.start : finding.statement.end]
    return {**shown, "statement": text, "checked": finding.checked, "follows": follows}


@app.command(examples=["watersmeet status --path shop", "watersmeet status --path shop --json"])
def status(path: RequiredPath, as_json: JsonOption = False) -> None:
    """Show the state of a database, its sources and views.

    Also while another process writes it. The exit code is 3 if a view or source has stopped.
    """
    with reporting(as_json=as_json), watersmeet.connect(path, read_only=True) as connection:
        found = progress.status_of(connection)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), ensure_ascii=False, default=str))
        else:
            out = output()
            out.print(progress.status_table(found, out.width), soft_wrap=not out.is_terminal)
        stopped = any(v.error for v in found.views) or any(s.health.state == "stalled" for s in found.sources)
    raise typer.Exit(FAILED if stopped else 0)


@app.command(examples=["watersmeet topology --path shop -o shop.svg"])
def topology(
    path: RequiredPath,
    kind: Annotated[
        PictureFormat, typer.Option("--format", help="svg: a picture; dot: for Graphviz.")
    ] = PictureFormat.svg,
    file: OutputOption = None,
) -> None:
    """Draw tables, sources and views.

    The database is only read, also while another process writes it. Needs no Spark.
    """
    with reporting(), watersmeet.connect(path, read_only=True) as connection, _written_to(file):
        typer.echo(connection.topology(kind.value), nl=False)
