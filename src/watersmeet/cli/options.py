"""The options that commands share, and the application to which commands belong.

Each option can also be set by an environment variable: `--http-port` by WATERSMEET_HTTP_PORT.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import watersmeet
from watersmeet.objectstores.base import is_url
from watersmeet.values import CHOICES, DEFAULT_DIALECT

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: A mark that keeps the lines of a paragraph of help unchanged.
_AS_WRITTEN: Final = "\b\n"


class _Command(TyperCommand):
    """A command whose options have environment variables, which its help shows; repeatable options have none."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and not parameter.multiple:  # the variable would be split at spaces
                parameter.envvar = variable_of(parameter.opts)
                parameter.show_envvar = True


def variable_of(spellings: Sequence[str]) -> str:
    """The environment variable of an option, from its long name."""
    return f"WATERSMEET_{max(spellings, key=len).strip('-').upper().replace('-', '_')}"


class _Commands(TyperGroup):
    """The commands, in alphabetical order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx))


class App(typer.Typer):
    """The application. Its commands show examples, and their options have environment variables."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, examples: Sequence[str]
    ) -> Callable[[_Function], _Function]:
        """Adds a command. examples: command lines, which its help and the reference page show."""
        shown = _AS_WRITTEN + "\n".join(["Examples:", *(f"  {line}" for line in examples)])
        return super().command(name, cls=_Command, epilog=shown)


def examples_of(epilog: str | None) -> list[str]:
    """The examples of a command, from the text below its help."""
    return [line.strip() for line in (epilog or "").removeprefix(_AS_WRITTEN).splitlines()[1:]]


class RuntimeName(StrEnum):
    """The engine that runs the views."""

    spark = "spark"
    inprocess = "inprocess"


class PermissionsName(StrEnum):
    """The permissions of the files of a new database."""

    private = "private"
    umask = "umask"


class LogFormat(StrEnum):
    """The format of log records."""

    text = "text"
    json = "json"


def _existing(files: list[str] | None) -> list[str] | None:
    """The arguments, after checking that they exist or are URLs."""
    for file in files or ():
        if not is_url(file) and not Path(file).exists():
            raise typer.BadParameter(f"{file} does not exist")
    return files


ScriptsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="SQL scripts, URLs of scripts, and folders with all their *.sql, in the order of names.",
        callback=_existing,
        metavar="FILE",
    ),
]
PathOption = Annotated[
    str | None,
    typer.Option("--path", help="Directory or URL (s3://bucket/name) of the database. Default: a temporary database."),
]
RequiredPath = Annotated[str, typer.Option("--path", help="Directory or URL of the database.")]
DialectOption = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help=f"First dialect: {', '.join(CHOICES)}. Default: that of the script's folder, else {DEFAULT_DIALECT}.",
        autocompletion=lambda: [*CHOICES],
    ),
]
ParallelismOption = Annotated[
    int | None,
    typer.Option(
        "--parallelism",
        help="New number of state buckets. Default: unchanged; for a new database the number of cores.",
        min=1,
    ),
]
PermissionsOption = Annotated[
    PermissionsName,
    typer.Option("--file-permissions", help="Of a new database: private to this user, or set by the umask."),
]
RuntimeOption = Annotated[
    RuntimeName, typer.Option("--runtime", help="inprocess runs the views in this process, without Spark and Java.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="json: one JSON object per record, with epoch, view and condition.")
]
LogLevelOption = Annotated[
    str,
    typer.Option("--log-level", help="With --log-format json: debug (a record per epoch), info, warning or error."),
]
TelemetryOption = Annotated[
    bool, typer.Option("--telemetry", help="Send traces of epochs by OpenTelemetry (variables OTEL_…).")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--certificate", help="TLS certificate (PEM).", exists=True, dir_okay=False)
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", help="Private key, unless the certificate's file has it.", exists=True, dir_okay=False),
]
RequireTlsOption = Annotated[
    bool, typer.Option("--require-tls", help="Refuse connections without TLS. Always so beyond this machine.")
]
StandbyOption = Annotated[
    bool, typer.Option("--standby", help="While another process writes, only read; take over when it ends.")
]
OtherOption = Annotated[
    str | None,
    typer.Option(
        "--other",
        help="With --standby: the other server, which is lost when it is silent. Needed in object stores.",
        metavar="HOST:PORT",
    ),
]
SilentOption = Annotated[
    float, typer.Option("--silent-seconds", help="Time without an answer after which it is lost.", min=0.1)
]
TransactionOption = Annotated[
    bool,
    typer.Option(
        "--transaction/--no-transaction",
        help="Run each script as one transaction, of which a failure leaves nothing, or commit each statement.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print rows, progress and errors as JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"watersmeet {watersmeet.__version__}")
        raise typer.Exit


app = App(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Streaming SQL joins that follow every insert, update and delete, on Apache Spark.",
    epilog="Each option can be set by an environment variable; `watersmeet COMMAND --help` names them.",
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    del version
