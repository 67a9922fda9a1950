"""The `watersmeet` command: its subcommands and their exit codes.

0: done. 1: a statement was refused, or a database or test failed. 2: wrong usage.
3: stopped by data, because a view or source failed, or a value can't be read. 130: interrupted.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

import watersmeet
from watersmeet.cli import reading
from watersmeet.cli.options import (
    CertificateOption,
    DialectOption,
    JsonOption,
    KeyOption,
    LogFormat,
    LogFormatOption,
    LogLevelOption,
    OtherOption,
    ParallelismOption,
    PathOption,
    PermissionsName,
    PermissionsOption,
    RequiredPath,
    RequireTlsOption,
    RuntimeName,
    RuntimeOption,
    ScriptsArgument,
    SilentOption,
    StandbyOption,
    TelemetryOption,
    TransactionOption,
    app,
)
from watersmeet.cli.output import Deadline, errors_output, log_as_json, output, reporting
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import is_url
from watersmeet.system import passwords
from watersmeet.system.process import lazy_import
from watersmeet.values import DEFAULT_DIALECT

__all__ = ["app", "main", "reading"]

#: The variable by which the scripts of `completion` request completions.
_COMPLETING: Final = "_WATERSMEET_COMPLETE"

# `--help` must not wait for the engine, nor `query` for its Spark part.
if TYPE_CHECKING:
    from watersmeet import testing
    from watersmeet.cli import run as runner
    from watersmeet.cli import serving
    from watersmeet.cli import shell as prompt
    from watersmeet.cli.run import Script
    from watersmeet.database import exporting, importing
    from watersmeet.dialects import parsing
    from watersmeet.runtime import failures as epochs
    from watersmeet.server import clients, service
    from watersmeet.server.catalog import definitions
    from watersmeet.session.connections.connection import Connection
    from watersmeet.store import backup as backups
else:
    backups = lazy_import("watersmeet.store.backup")
    parsing = lazy_import("watersmeet.dialects.parsing")
    definitions = lazy_import("watersmeet.server.catalog.definitions")
    exporting = lazy_import("watersmeet.database.exporting")
    importing = lazy_import("watersmeet.database.importing")
    epochs = lazy_import("watersmeet.runtime.failures")
    runner = lazy_import("watersmeet.cli.run")
    serving = lazy_import("watersmeet.cli.serving")
    prompt = lazy_import("watersmeet.cli.shell")
    testing = lazy_import("watersmeet.testing")
    clients = lazy_import("watersmeet.server.clients")
    service = lazy_import("watersmeet.server.service")


@app.command(
    examples=[
        "watersmeet run shop.sql --path shop",
        "watersmeet run --path shop --once",
        "watersmeet run tables.sql views/ --path s3://bucket/shop --parallelism 8",
    ]
)
def run(
    files: ScriptsArgument = None,
    path: PathOption = None,
    dialect: DialectOption = None,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    once: Annotated[bool, typer.Option("--once", help="End when all available input is processed.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First plan all views again and compute their state again.")
    ] = False,
    transaction: TransactionOption = True,
    permissions: PermissionsOption = PermissionsName.private,
    as_json: JsonOption = False,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = "info",
    telemetry: TelemetryOption = False,
) -> None:
    """Run scripts, then process streaming sources.

    Shows the progress of sources and views. Ctrl-C and SIGTERM end it at the end of an epoch.
    Without a script it resumes the database at --path.
    """
    if not files and path is None:
        raise typer.BadParameter("give a script, or --path to resume a database")
    with reporting(as_json=as_json), _watched(log_format, log_level, telemetry=telemetry):
        scripts = runner.read_scripts(files or (), dialect)
        with _noting_others(scripts, path):
            for script in scripts:
                with script.naming():
                    parsing.parse(script.text, script.dialect)  # nothing is run if one of them can't be read
            with (
                Deadline() as deadline,
                _connect(path, dialect, parallelism, runtime, permissions, rebuild=rebuild) as connection,
            ):
                code = runner.run_scripts(
                    connection, scripts, transaction=transaction, once=once, as_json=as_json, ending=deadline.begin
                )
    raise typer.Exit(code)


@contextlib.contextmanager
def _noting_others(scripts: Sequence[Script], path: str | None) -> Iterator[None]:
    """Adds the number of other statements that would be refused to an error of a script in a new database."""
    is_new = path is None or not (is_url(path) or Path(path).exists())
    try:
        yield
    except Error as err:
        if is_new and any(err.sql == script.text for script in scripts):
            reading.note_others(err, scripts)
        raise


@app.command(
    examples=[
        "watersmeet migrate shop.sql --path shop",
        "watersmeet migrate shop.sql --path shop --yes --runtime inprocess",
    ]
)
def migrate(
    files: ScriptsArgument,
    path: RequiredPath,
    yes: Annotated[bool, typer.Option("--yes", help="Change the database without asking.")] = False,
    dialect: DialectOption = None,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    transaction: TransactionOption = True,
) -> None:
    """Show what scripts would change in a database, and change it.

    Runs new statements, and replaces views, sinks and functions with another definition. Asks before it changes
    anything.
    """
    with reporting(), _connect(path, dialect, parallelism, runtime, PermissionsName.private) as connection:
        code = runner.migrate(connection, runner.read_scripts(files or (), dialect), yes=yes, transaction=transaction)
    raise typer.Exit(code)


DatabaseArgument = Annotated[str, typer.Argument(help="Directory or URL of the database.", metavar="PATH")]
TargetArgument = Annotated[str, typer.Argument(help="A new or empty directory, or an empty URL.", metavar="TARGET")]


@app.command(
    examples=[
        "watersmeet backup shop shop-copy",
        "watersmeet backup s3://bucket/shop s3://bucket/shop-copy",
    ]
)
def backup(
    path: DatabaseArgument,
    target: TargetArgument,
) -> None:
    """Copy a database, also while another process writes it.

    The copy has the content of one commit. An interrupted copy can't be opened.
    """
    with reporting():
        commit = backups.copy_database(path, target)
        typer.echo(f"{target} has commit {commit} of {path}")


@app.command(
    "export",
    examples=[
        "watersmeet export shop shop-export",
        "watersmeet export s3://bucket/shop s3://bucket/shop-export",
    ],
)
def export_(
    path: DatabaseArgument,
    target: TargetArgument,
) -> None:
    """Write a database as SQL, Parquet and JSON, also while another process writes it.

    `watersmeet import` makes a database from it, also in releases with another format. Values of secrets are left out.
    """
    with reporting(), _doing() as say:
        made = exporting.export_database(path, target, definitions.script_of, say)
    typer.echo(f"{target} has commit {made.commit} of {path}: {made.relations} tables and views")
    if made.secrets:
        typer.echo(f"the import needs the secrets {', '.join(made.secrets)}")
    _echo_waiting(made.waiting)
    if made.left_out:
        typer.echo(f"the export lacks {'; '.join(made.left_out)}", err=True)


@app.command(
    "import",
    examples=[
        "watersmeet import shop-export shop",
        "watersmeet import s3://bucket/shop-export shop --secrets secrets.json",
        "watersmeet import shop-export shop --rebuild",
    ],
)
def import_(
    source: Annotated[str, typer.Argument(help="Directory or URL of the export.", metavar="SOURCE")],
    path: Annotated[str, typer.Argument(help="A new or empty directory, or an empty URL.", metavar="PATH")],
    secrets: Annotated[
        Path | None,
        typer.Option("--secrets", help="JSON file with the values of secrets, by name.", exists=True, dir_okay=False),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Plan all views again and compute their state from their inputs.")
    ] = False,
) -> None:
    """Make a database from an export.

    Compares the hashes of all files and contents. An interrupted import leaves no database.
    """
    with reporting(), _doing() as say:
        given = _read_secrets(secrets)
        made = importing.import_database(source, path, given, rebuild=rebuild, say=say)
    typer.echo(f"{path} has commit {made.commit}: {made.relations} tables and views with the exported contents")
    _echo_waiting(made.waiting)


@contextlib.contextmanager
def _doing() -> Iterator[Callable[[str], None]]:
    """A function that shows what a command does, on a terminal."""
    with errors_output().status("…") as status:
        yield status.update


def _read_secrets(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise error("INVALID_PARAMETER", f"{file} can't be read: {cause}") from cause
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise error("INVALID_PARAMETER", f"{file} has no JSON object with a text for each secret")
    return found


def _echo_waiting(names: Sequence[str]) -> None:
    if names:
        typer.echo(
            "changes that these had not received are no longer kept, so they can't resume after an import: "
            f"{', '.join(names)}",
            err=True,
        )


@app.command(
    examples=[
        "watersmeet shell --path shop",
        'watersmeet shell --path shop -c "INSERT INTO t VALUES (1)" -c "SELECT * FROM t"',
        "watersmeet shell --runtime inprocess -f script.sql",
        'echo "SHOW JOBS;" | watersmeet shell --path shop --read-only',
    ]
)
def shell(
    path: PathOption = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", help="Statement or command to run instead of a prompt; repeatable."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Script to run instead of a prompt.", exists=True, dir_okay=False),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read, also while another process writes. Needs no Spark.")
    ] = False,
    dialect: DialectOption = None,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    permissions: PermissionsOption = PermissionsName.private,
) -> None:
    r"""Run statements interactively.

    Or from --command, --file or standard input. Its command \? lists its commands. With --runtime inprocess, queries
    include the rows that the session has written.
    """
    if read_only and path is None:
        raise typer.BadParameter("--read-only needs --path")
    with reporting():
        if read_only:
            opened = watersmeet.connect(path, dialect=dialect or DEFAULT_DIALECT, read_only=True)
        else:
            opened = _connect(path, dialect, parallelism, runtime, permissions)
        with opened as connection:
            code = prompt.run_shell(connection, texts or (), file, folders=dialect is None)
    raise typer.Exit(code)


@app.command(
    examples=[
        "watersmeet serve --path shop",
        "watersmeet serve shop.sql --path shop --runtime inprocess --http-port 8080",
        'psql -h localhost -p 5433 -c "SELECT * FROM totals"',
    ]
)
def serve(
    path: RequiredPath,
    files: ScriptsArgument = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port of the PostgreSQL protocol; 0: any free port.", min=0, max=65535)
    ] = 5433,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", help="Port of the console, metrics and health. Default: none.", min=0, max=65535),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read, also while another process writes. Needs no Spark.")
    ] = False,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    require_tls: RequireTlsOption = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Number of processes that serve the port, with --read-only.")
    ] = 1,
    standby: StandbyOption = False,
    other: OtherOption = None,
    silent_seconds: SilentOption = 1.5,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Maximum number of clients.")] = 100,
    max_result_size: Annotated[
        str, typer.Option("--max-result-size", help="Maximum size of a result, which clients can change. 0: unlimited.")
    ] = "1GB",
    statement_size: Annotated[
        str,
        typer.Option(
            "--statement-size", help="Maximum length of a statement, without its parameters and rows of COPY."
        ),
    ] = "16MB",
    statement_memory: Annotated[
        str,
        typer.Option("--statement-memory", help="Maximum memory of a statement that runs in its own process."),
    ] = "1GB",
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Allow statements of clients to read files of this machine.")
    ] = False,
    dialect: DialectOption = None,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    transaction: TransactionOption = True,
    permissions: PermissionsOption = PermissionsName.private,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = "info",
    telemetry: TelemetryOption = False,
) -> None:
    """Serve a database to clients of PostgreSQL and to browsers.

    Runs scripts first. Ctrl-C and SIGTERM end it at the end of an epoch.
    """
    if read_only and (files or standby):
        raise typer.BadParameter("--read-only runs no scripts and takes nothing over")
    if workers > 1 and (not read_only or http_port is not None):
        raise typer.BadParameter("--workers needs --read-only, and no --http-port: a login counts for one process")
    if other is not None and not standby:
        raise typer.BadParameter("--other needs --standby")
    with reporting(), _watched(log_format, log_level, telemetry=telemetry):
        scripts = runner.read_scripts(files or (), dialect)
        endpoint = service.Endpoint(
            host,
            port,
            certificate,
            key,
            dialect or DEFAULT_DIALECT,
            allow_files,
            clients.Limits(
                connections=connections,
                result_size=max_result_size,
                statement_size=statement_size,
                statement_memory=statement_memory,
            ),
            http_port,
        )
        endpoint = endpoint.hardened(require_tls=require_tls)
        endpoint.check()
        say = serving.log_line if log_format == LogFormat.json else serving.print_line
        reader = partial(watersmeet.connect, path, dialect=dialect or DEFAULT_DIALECT, read_only=True)
        writer = partial(_connect, path, dialect, parallelism, runtime, permissions)
        with Deadline() as deadline:
            task = serving.Task(scripts, endpoint, transaction, say, deadline.begin)
            if standby:
                warm = serving.warm_spark if runtime == RuntimeName.spark else serving.warm_nothing
                beside = None if other is None else service.other_server(other)
                code = serving.stand_by(serving.Openings(reader, writer, warm, beside, silent_seconds), task)
            elif workers > 1:
                code = serving.serve_workers(path, workers, task)
            else:
                with reader() if read_only else writer() as connection:
                    code = serving.serve(connection, task)
    raise typer.Exit(code)


@app.command(
    examples=[
        "watersmeet password",
        "watersmeet password < secret.txt",
    ]
)
def password() -> None:
    """Print the verifier of a password.

    It replaces the password in CREATE USER … PASSWORD '…'.
    The password is read from the terminal or from standard input.
    """
    with reporting():
        asked = typer.prompt("Password", hide_input=True, confirmation_prompt=True) if sys.stdin.isatty() else ""
        given = asked or sys.stdin.readline().rstrip("\n")
        if not given:
            raise error("INVALID_PARAMETER", "a password can't be empty")
        typer.echo(str(passwords.Verifier.of(given)))


class CommandShell(StrEnum):
    """The shells for which completion can be set up."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command(
    examples=[
        "source <(watersmeet completion bash)",
        "watersmeet completion zsh > ~/.zfunc/_watersmeet",
        "watersmeet completion fish > ~/.config/fish/completions/watersmeet.fish",
    ]
)
def completion(shell: Annotated[CommandShell, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")]) -> None:
    """Print a script that completes commands and options.

    Load it where the shell starts, such as in ~/.bashrc.
    """
    typer.echo(get_completion_script(prog_name="watersmeet", complete_var=_COMPLETING, shell=shell.value))


@app.command(
    "test",
    examples=[
        "watersmeet test tests/joins.slt",
        "watersmeet test tests/ --json",
    ],
)
def text_tests(
    files: Annotated[list[Path], typer.Argument(help="sqllogictest files, or folders of them.", exists=True)],
    runtime: RuntimeOption = RuntimeName.inprocess,
    parallelism: ParallelismOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run sqllogictest files, each in a new database."""
    with reporting(as_json=as_json):
        code = _run_text_tests(files, runtime, parallelism, as_json=as_json)
    raise typer.Exit(code)


def _run_text_tests(paths: list[Path], runtime: RuntimeName, parallelism: int | None, *, as_json: bool) -> int:
    """Runs each file, and all .slt and .test files of a folder, in a new database. Returns 0 if all pass, else 1.

    Raises INVALID_PARAMETER without files.
    """
    console = output()
    scripts = [f for path in paths for f in (_below(path) if path.is_dir() else [path])]
    if not scripts:
        raise error("INVALID_PARAMETER", "there are no test files", detail="Files of a folder end in .slt or .test.")

    connect = partial(watersmeet.connect, parallelism=parallelism, runtime=runtime.value)
    failed = 0
    with contextlib.ExitStack() as held:
        if runtime == RuntimeName.spark:
            # Spark ends with its last user; this connection keeps it running between files.
            held.enter_context(connect())
        for file in scripts:
            started = time.monotonic()
            outcome = _run_text_test(file, connect)
            seconds = time.monotonic() - started
            failed += outcome.failure is not None
            if as_json:
                found = {"file": str(file), "records": outcome.records, "seconds": round(seconds, 3)}
                console.print(json.dumps({**found, "failure": outcome.failure}), markup=False, soft_wrap=True)
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


def _run_text_test(file: Path, connect: Callable[[], Connection]) -> testing.Outcome:
    try:
        return testing.run_script(testing.parse_file(file), connect)
    except (testing.ScriptError, OSError, UnicodeDecodeError) as err:
        return testing.Outcome(failure=str(err))


def _below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in (".slt", ".test") and p.is_file())


@contextlib.contextmanager
def _watched(log_format: LogFormat, log_level: str, *, telemetry: bool) -> Iterator[None]:
    """Sets up logs and traces. Raises INVALID_PARAMETER, LIBRARY_MISSING."""
    if log_format == LogFormat.json:
        log_as_json(log_level)
    stop = epochs.start_tracing() if telemetry else None
    try:
        yield
    finally:
        if stop is not None:
            stop()


def _connect(
    path: str | None,
    dialect: str | None,
    parallelism: int | None,
    runtime: RuntimeName,
    permissions: PermissionsName,
    *,
    rebuild: bool = False,
    take_over: bool = False,
) -> Connection:
    console = errors_output()
    shown = console.is_terminal and runtime == RuntimeName.spark
    with console.status("starting Spark …") if shown else contextlib.nullcontext():
        return watersmeet.connect(
            path,
            dialect=dialect or DEFAULT_DIALECT,
            parallelism=parallelism,
            runtime=runtime.value,
            rebuild=rebuild,
            file_permissions=permissions.value,
            take_over=take_over,
        )


def main() -> None:
    """Run the command. Standard output and error write characters beyond their encoding as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if _COMPLETING in os.environ:
        completion_init()
    app(prog_name="watersmeet")
