"""The `watersmeet` command: its subcommands and their exit codes.

0: done. 1: an error of the statement or the data, printed on standard error. 2: wrong usage.
3: a view failed while running.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import watersmeet
from watersmeet.cli.render import print_result
from watersmeet.cli.run import run_file
from watersmeet.cli.shell import Shell
from watersmeet.cli.texttests import run_text_tests
from watersmeet.errors import Error

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Streaming SQL joins that follow every insert, update and delete, on Apache Spark.")

PathOption = Annotated[Path | None, typer.Option("--path", help="Directory of a persistent database.")]
DialectOption = Annotated[str, typer.Option("--dialect", help="SQL dialect.")]
ParallelismOption = Annotated[int | None, typer.Option("--parallelism", min=1, help="State buckets (default: cores).")]
RuntimeOption = Annotated[str, typer.Option("--runtime", help="spark, or inprocess for a quick look without Spark.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results and errors as JSON.")]


@app.command()
def run(file: Annotated[Path, typer.Argument(help="A SQL script.", exists=True, dir_okay=False)],
        path: PathOption = None, dialect: DialectOption = "risingwave", parallelism: ParallelismOption = None,
        runtime: RuntimeOption = "spark",
        once: Annotated[bool, typer.Option("--once", help="Stop when all input that is there has been read.")] = False,
        as_json: JsonOption = False) -> None:
    """Run a script; with streaming sources keep running and show progress. Ctrl-C stops cleanly."""
    text = file.read_text(encoding="utf-8")
    with _connect(path, dialect, parallelism, runtime) as connection:
        raise typer.Exit(run_file(connection, text, once=once, as_json=as_json))


@app.command()
def shell(path: PathOption = None, dialect: DialectOption = "risingwave", parallelism: ParallelismOption = None,
          runtime: RuntimeOption = "spark") -> None:
    r"""Open an interactive shell. \? lists its commands."""
    with _connect(path, dialect, parallelism, runtime) as connection:
        Shell(connection, Console()).loop()


@app.command()
def query(sql: Annotated[str, typer.Argument(help="A SELECT, SHOW or DESCRIBE statement.")],
          path: Annotated[Path, typer.Option("--path", help="Directory of the database.")],
          dialect: DialectOption = "risingwave", as_json: JsonOption = False) -> None:
    """Read a database, also while another process runs it. Needs no Spark."""
    with watersmeet.connect(path, dialect=dialect, read_only=True) as connection:
        cursor = connection.cursor()
        cursor.execute(sql)
        print_result(cursor, as_json=as_json)


@app.command()
def explain(file: Annotated[Path, typer.Argument(help="A SQL script.", exists=True, dir_okay=False)],
            dialect: DialectOption = "risingwave", parallelism: ParallelismOption = None) -> None:
    """Print the plan of every view of a script. Runs no query and keeps nothing."""
    with watersmeet.connect(dialect=dialect, parallelism=parallelism, runtime="inprocess") as connection:
        for title, lines in connection.explain_script(file.read_text(encoding="utf-8")):
            typer.echo(f"-- {title}")
            typer.echo("\n".join(lines) + "\n")


@app.command()
def test(files: Annotated[list[Path], typer.Argument(help="sqllogictest files.", exists=True)],
         runtime: RuntimeOption = "inprocess", parallelism: ParallelismOption = None) -> None:
    """Run text tests: sqllogictest files, and the rich form of the project's own tests."""
    raise typer.Exit(run_text_tests(files, runtime=runtime, parallelism=parallelism))


def _connect(path: Path | None, dialect: str, parallelism: int | None, runtime: str) -> Any:
    if runtime == "spark":
        Console(stderr=True).print("[dim]starting Spark …[/dim]")
    return watersmeet.connect(path, dialect=dialect, parallelism=parallelism, runtime=runtime)


def main() -> None:
    """Run the command; print an `Error` as its text (or JSON) and exit with 1."""
    try:
        app()
    except Error as err:
        if "--json" in sys.argv:
            sys.stderr.write(json.dumps(err.to_json()) + "\n")
        else:
            sys.stderr.write(str(err) + "\n")
        sys.exit(3 if err.condition == "VIEW_FAILED" else 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
