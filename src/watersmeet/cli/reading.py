"""The commands that only read: query, explain and topology. None of them needs Spark."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import watersmeet
from watersmeet.cli.options import DialectOption, JsonOption, ParallelismOption, RequiredPath, app
from watersmeet.cli.output import errors_output, output, reporting
from watersmeet.errors import Error, error
from watersmeet.system.process import block_import, lazy_import
from watersmeet.values import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.cli import results
    from watersmeet.cli import run as runner
    from watersmeet.database import plans as saved_plans
    from watersmeet.database.sessions import context, variables
    from watersmeet.session.statements import explain as explaining
else:
    runner = lazy_import("watersmeet.cli.run")
    results = lazy_import("watersmeet.cli.results")
    saved_plans = lazy_import("watersmeet.database.plans")
    context = lazy_import("watersmeet.database.sessions.context")
    variables = lazy_import("watersmeet.database.sessions.variables")
    explaining = lazy_import("watersmeet.session.statements.explain")


class PictureFormat(StrEnum):
    """The format of a picture."""

    svg = "svg"
    dot = "dot"


@app.command(
    examples=[
        'watersmeet query "SELECT * FROM totals ORDER BY name" --path shop',
        'watersmeet query "SHOW JOBS" --path shop --json',
    ]
)
def query(
    sql: Annotated[str, typer.Argument(help="SELECT, SHOW, DESCRIBE or EXPLAIN.", metavar="SQL")],
    path: RequiredPath,
    dialect: DialectOption = DEFAULT_DIALECT,
    as_json: JsonOption = False,
) -> None:
    """Print the rows of queries.

    The database is only read, also while another process writes it. Needs no Spark.
    """
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


@app.command(examples=["watersmeet explain shop.sql"])
def explain(
    file: Annotated[Path, typer.Argument(help="A SQL script.", exists=True, dir_okay=False, metavar="FILE")],
    dialect: DialectOption = DEFAULT_DIALECT,
    parallelism: ParallelismOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the plans of views.

    Also those of pumps, processors and running queries. Nothing is stored.
    """
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


@app.command(examples=["watersmeet topology --path shop -o shop.svg"])
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
    """Draw tables, sources and views.

    The database is only read, also while another process writes it. Needs no Spark.
    """
    with reporting(), watersmeet.connect(path, read_only=True) as connection:
        text = connection.topology(kind.value)
        if file is None:
            typer.echo(text, nl=False)
        else:
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as cause:
                raise error("INVALID_PARAMETER", f"{file} can't be written: {cause.strerror}") from cause
