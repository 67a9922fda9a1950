"""The `watersmeet` command: its subcommands and their exit codes.

0: done. 1: a statement was refused, or a database or test failed. 2: wrong usage.
3: data stopped it: a view or source failed, or a value can't be read. 130: interrupted.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import watersmeet
from watersmeet.cli.output import Deadline, errors_output, log_as_json, output, reporting
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import is_url
from watersmeet.system import passwords
from watersmeet.system.process import block_import, lazy_import
from watersmeet.values import DEFAULT_DIALECT, DIALECTS

# `--help` shall not wait for the engine, and `query` not for Spark's part of it.
if TYPE_CHECKING:
    from watersmeet import testing
    from watersmeet.cli import results
    from watersmeet.cli import run as runner
    from watersmeet.cli import shell as prompt
    from watersmeet.database import plans as saved_plans
    from watersmeet.database.sessions import context, variables
    from watersmeet.dialects import parsing
    from watersmeet.runtime import failures as epochs
    from watersmeet.server import clients, service
    from watersmeet.session.connections.connection import Connection
    from watersmeet.session.statements import explain as explaining
else:
    parsing = lazy_import("watersmeet.dialects.parsing")
    epochs = lazy_import("watersmeet.runtime.failures")
    results = lazy_import("watersmeet.cli.results")
    runner = lazy_import("watersmeet.cli.run")
    prompt = lazy_import("watersmeet.cli.shell")
    testing = lazy_import("watersmeet.testing")
    saved_plans = lazy_import("watersmeet.database.plans")
    clients = lazy_import("watersmeet.server.clients")
    service = lazy_import("watersmeet.server.service")
    context = lazy_import("watersmeet.database.sessions.context")
    variables = lazy_import("watersmeet.database.sessions.variables")
    explaining = lazy_import("watersmeet.session.statements.explain")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Streaming SQL joins that follow every insert, update and delete, on Apache Spark.",
)


class RuntimeName(StrEnum):
    """The engine that runs the views."""

    spark = "spark"
    inprocess = "inprocess"


class PermissionsName(StrEnum):
    """The permissions of the files of a new database."""

    private = "private"
    umask = "umask"


class LogFormat(StrEnum):
    """How log records are written."""

    text = "text"
    json = "json"


class PictureFormat(StrEnum):
    """How a topology is written."""

    svg = "svg"
    dot = "dot"


def _setting(name: str, text: str, **more: Any) -> Any:
    """An option that can also be given in the environment: `--path` as WATERSMEET_PATH."""
    variable = f"WATERSMEET_{name.upper().replace('-', '_')}"
    return typer.Option(f"--{name}", help=text, envvar=variable, show_envvar=False, **more)


PathOption = Annotated[
    str | None,
    _setting(
        "path", "Directory or URL (s3://bucket/name) of a persistent database. Without it the database is temporary."
    ),
]
RequiredPath = Annotated[str, _setting("path", "Directory or URL of the database.")]
DialectOption = Annotated[str, _setting("dialect", f"SQL that is spoken at first: {', '.join(DIALECTS)}.")]
ParallelismOption = Annotated[
    int | None,
    _setting(
        "parallelism", "State buckets from now on (default: as many as there are; cores for a new database).", min=1
    ),
]
PermissionsOption = Annotated[
    PermissionsName,
    typer.Option("--file-permissions", help="Of a new database: only for this user, or by the umask."),
]
RuntimeOption = Annotated[RuntimeName, _setting("runtime", "inprocess needs no Spark; its views follow at FLUSH.")]
LogFormatOption = Annotated[
    LogFormat, _setting("log-format", "json: each log record as a line of JSON, with epoch, view and condition.")
]
LogLevelOption = Annotated[
    str, _setting("log-level", "With --log-format json: debug has a line for each epoch; info, warning, error.")
]
TelemetryOption = Annotated[
    bool, _setting("telemetry", "Send a trace of each epoch by OpenTelemetry, to where the environment (OTEL_…) says.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print rows, progress and errors as JSON.")]
ScriptArgument = Annotated[Path, typer.Argument(help="A SQL script.", exists=True, dir_okay=False)]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"watersmeet {watersmeet.__version__}")
        raise typer.Exit


def _that_exist(files: list[str] | None) -> list[str] | None:
    for file in files or ():
        if not is_url(file) and not Path(file).exists():
            raise typer.BadParameter(f"{file} does not exist")
    return files


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    del version


@app.command()
def run(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="SQL scripts, their URLs, and folders of them (*.sql in the order of their names). None: go on with "
            "the database at --path.",
            callback=_that_exist,
            metavar="FILE",
        ),
    ] = None,
    path: PathOption = None,
    dialect: DialectOption = DEFAULT_DIALECT,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    once: Annotated[bool, typer.Option("--once", help="Stop when all available input has been read.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First plan all views and compute all state again.")
    ] = False,
    transaction: Annotated[
        bool,
        typer.Option(
            "--transaction/--no-transaction",
            help="Each script is one transaction: nothing is left of one that fails. Or each statement by itself.",
        ),
    ] = True,
    permissions: PermissionsOption = PermissionsName.private,
    as_json: JsonOption = False,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = "info",
    telemetry: TelemetryOption = False,
) -> None:
    """Run scripts; with streaming sources keep running and show progress. Ctrl-C stops cleanly."""
    if not files and path is None:
        raise typer.BadParameter("give a script, or --path to resume a database")
    with reporting(as_json=as_json), _watched(log_format, log_level, telemetry=telemetry):
        scripts = runner.read_scripts(files or ())
        for script in scripts:
            with script.naming():
                parsing.parse(script.text, dialect)  # nothing is run if one of them can't be read
        with (
            Deadline() as deadline,
            _connect(path, dialect, parallelism, runtime, permissions, rebuild=rebuild) as connection,
        ):
            try:
                code = runner.run_scripts(
                    connection, scripts, transaction=transaction, once=once, as_json=as_json, ending=deadline.begin
                )
            except Error as err:
                if err.condition == "DUPLICATE_OBJECT" and err.hint is None and path is not None:
                    err.hint = f"To go on with a database: watersmeet run --path {path}"
                raise
    raise typer.Exit(code)


@app.command()
def shell(
    path: PathOption = None,
    dialect: DialectOption = DEFAULT_DIALECT,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    permissions: PermissionsOption = PermissionsName.private,
) -> None:
    r"""Open an interactive shell. \? lists its commands."""
    with reporting(), _connect(path, dialect, parallelism, runtime, permissions) as connection:
        code = prompt.run_shell(connection)
    raise typer.Exit(code)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="SELECT, SHOW, DESCRIBE or EXPLAIN.")],
    path: RequiredPath,
    dialect: DialectOption = DEFAULT_DIALECT,
    as_json: JsonOption = False,
) -> None:
    """Read a database, also while another process runs it. Needs no Spark."""
    # DuckDB and PyArrow import pandas where it is installed, which takes longer than the query; nothing here uses it.
    block_import("pandas")
    with reporting(as_json=as_json), watersmeet.connect(path, dialect=dialect, read_only=True) as connection:
        out = output()
        try:
            for cursor in connection.execute_script(sql):
                results.print_result(cursor, out, as_json=as_json)
        except Error as err:
            if err.condition == "READ_ONLY_SESSION":
                err.hint = (
                    f"watersmeet query only reads. watersmeet shell --path {path} and watersmeet run FILE --path "
                    f"{path} do more."
                )
            raise


@app.command()
def explain(
    file: ScriptArgument,
    dialect: DialectOption = DEFAULT_DIALECT,
    parallelism: ParallelismOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the plans of a script's views, pumps, processors and running queries. Runs no query and keeps nothing."""
    with reporting(as_json=as_json):
        text = runner.read_script(str(file))
        buckets = parallelism or saved_plans.default_parallelism("spark")  # the plan that `run` would make
        with watersmeet.connect(dialect=dialect, parallelism=buckets, runtime="inprocess") as connection:
            session = context.Session(connection.opened, variables.Variables(dialect))
            plans = explaining.explain_script(session, text)
        if as_json:
            results.print_json(("view", "plan"), plans)
            return
        out = output()
        for name, lines in plans:
            out.print(f"-- {name}", style="bold", markup=False, soft_wrap=True)
            out.print("\n".join(lines) + "\n", markup=False, soft_wrap=True)
        if not plans:
            errors_output().print("the script makes no materialized view, and no query of it runs on", style="yellow")


@app.command()
def topology(
    path: RequiredPath,
    kind: Annotated[
        PictureFormat, typer.Option("--format", help="svg: a picture; dot: for Graphviz.")
    ] = PictureFormat.svg,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write it (default: standard output).", dir_okay=False),
    ] = None,
) -> None:
    """Draw the tables, sources and views of a database, also while another process runs it. Needs no Spark."""
    with reporting(), watersmeet.connect(path, read_only=True) as connection:
        text = connection.topology(kind.value)
        if file is None:
            typer.echo(text, nl=False)
        else:
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as cause:
                raise error("INVALID_PARAMETER", f"{file} can't be written: {cause.strerror}") from cause


@app.command()
def serve(
    path: RequiredPath,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="SQL scripts that are run first, their URLs, and folders of them.",
            callback=_that_exist,
            metavar="FILE",
        ),
    ] = None,
    host: Annotated[str, _setting("host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _setting("port", "Port of PostgreSQL's protocol.", min=0, max=65535)] = 5433,
    http_port: Annotated[
        int | None,
        _setting("http-port", "Port of HTTP: the console, metrics, health. None: it is not served.", min=0, max=65535),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read, also while another process runs the database. No Spark.")
    ] = False,
    certificate: Annotated[
        Path | None, _setting("certificate", "TLS certificate (PEM).", exists=True, dir_okay=False)
    ] = None,
    key: Annotated[
        Path | None, _setting("key", "Its key, if that is another file.", exists=True, dir_okay=False)
    ] = None,
    require_tls: Annotated[
        bool,
        typer.Option("--require-tls", help="Refuse connections without encryption. Always so beyond this machine."),
    ] = False,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Most clients at once.")] = 100,
    max_result_size: Annotated[
        str, typer.Option("--max-result-size", help="Of a result, unless a client sets it. 0: any.")
    ] = "1GB",
    statement_size: Annotated[
        str,
        typer.Option("--statement-size", help="Of the text of a statement, without parameters and rows of COPY."),
    ] = "16MB",
    statement_memory: Annotated[
        str,
        typer.Option("--statement-memory", help="Of a statement that runs in a process of its own, and of its text."),
    ] = "1GB",
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let statements of clients read files of this machine.")
    ] = False,
    dialect: DialectOption = DEFAULT_DIALECT,
    parallelism: ParallelismOption = None,
    runtime: RuntimeOption = RuntimeName.spark,
    transaction: Annotated[
        bool, typer.Option("--transaction/--no-transaction", help="Each script is one transaction.")
    ] = True,
    permissions: PermissionsOption = PermissionsName.private,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = "info",
    telemetry: TelemetryOption = False,
) -> None:
    """Serve a database to clients of PostgreSQL, such as psql, and to browsers. SIGTERM and Ctrl-C stop it cleanly."""
    if read_only and files:
        raise typer.BadParameter("--read-only runs no scripts")
    with reporting(), _watched(log_format, log_level, telemetry=telemetry):
        scripts = runner.read_scripts(files or ())
        endpoint = service.Endpoint(
            host,
            port,
            certificate,
            key,
            dialect,
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
        if read_only:
            opened = watersmeet.connect(path, dialect=dialect, read_only=True)
        else:
            opened = _connect(path, dialect, parallelism, runtime, permissions)
        with Deadline() as deadline, opened as connection:
            said = runner.log_line if log_format == LogFormat.json else runner.print_line
            code = runner.serve(connection, scripts, endpoint, transaction=transaction, say=said, ending=deadline.begin)
    raise typer.Exit(code)


@app.command()
def password() -> None:
    """Print a verifier for CREATE USER … PASSWORD '…', of a password that is asked for or read from standard input."""
    with reporting():
        asked = typer.prompt("Password", hide_input=True, confirmation_prompt=True) if sys.stdin.isatty() else ""
        given = asked or sys.stdin.readline().rstrip("\n")
        if not given:
            raise error("INVALID_PARAMETER", "a password can't be empty")
        typer.echo(str(passwords.Verifier.of(given)))


@app.command("test")
def text_tests(
    files: Annotated[list[Path], typer.Argument(help="sqllogictest files, or folders of them.", exists=True)],
    runtime: RuntimeOption = RuntimeName.inprocess,
    parallelism: ParallelismOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run text tests: sqllogictest files."""
    with reporting(as_json=as_json):
        code = _run_text_tests(files, runtime, parallelism, as_json=as_json)
    raise typer.Exit(code)


def _run_text_tests(paths: list[Path], runtime: RuntimeName, parallelism: int | None, *, as_json: bool) -> int:
    """Runs each file (of a folder: all .slt and .test files in it) in a new database. 0 if all pass, else 1.

    INVALID_PARAMETER without files.
    """
    console = output()
    scripts = [f for path in paths for f in (_below(path) if path.is_dir() else [path])]
    if not scripts:
        raise error("INVALID_PARAMETER", "there are no test files", detail="Files of a folder end in .slt or .test.")

    connect = partial(watersmeet.connect, parallelism=parallelism, runtime=runtime.value)
    failed = 0
    with contextlib.ExitStack() as held:
        if runtime == RuntimeName.spark:
            # Spark ends with its last user: this one keeps it between the files.
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
    """Sets up logs and traces. INVALID_PARAMETER, LIBRARY_MISSING."""
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
    dialect: str,
    parallelism: int | None,
    runtime: RuntimeName,
    permissions: PermissionsName,
    *,
    rebuild: bool = False,
) -> Connection:
    console = errors_output()
    shown = console.is_terminal and runtime == RuntimeName.spark
    with console.status("starting Spark …") if shown else contextlib.nullcontext():
        return watersmeet.connect(
            path,
            dialect=dialect,
            parallelism=parallelism,
            runtime=runtime.value,
            rebuild=rebuild,
            file_permissions=permissions.value,
        )


def main() -> None:
    """Run the command. Standard output and error write characters beyond their encoding as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="watersmeet")
