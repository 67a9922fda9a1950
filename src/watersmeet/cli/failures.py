"""How an error reaches the user: its text (or JSON) on standard error, and the exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from watersmeet.cli.render import errors_output
from watersmeet.errors import DataError, Error, error

REFUSED: Final = 1
"""A statement was refused, or the database can't be used."""
FAILED: Final = 3
"""The data stopped it: a view or source failed while running, or a value can't be read as its type."""
_INTERRUPTED: Final = 130


@contextmanager
def reporting(*, as_json: bool = False) -> Iterator[None]:
    """Inside, an `Error` is printed and ends the command with its exit code; so does Ctrl-C, without a traceback.

    A reader of the output that goes away ends it quietly, with 0.
    """
    try:
        yield
    except Error as err:
        print_error(err, as_json=as_json)
        raise typer.Exit(exit_code(err)) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        # Python writes what is left when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def exit_code(err: Error) -> int:
    """The exit code of an error that ends a command."""
    return FAILED if isinstance(err, DataError) or err.condition == "VIEW_FAILED" else REFUSED


def print_error(err: Error, *, as_json: bool = False, console: Console | None = None) -> None:
    """Prints an error on standard error."""
    if as_json:
        sys.stderr.write(json.dumps(err.to_json(), ensure_ascii=False) + "\n")
    else:
        (console or errors_output()).print(error_text(err), soft_wrap=True)


def error_text(err: Error) -> Text:
    """The rendered error: its first line and the caret red, the hint apart."""
    text = Text()
    for i, line in enumerate(str(err).split("\n")):
        style = ""
        if i == 0 or set(line.strip()) == {"^"}:
            style = "bold red"
        elif line.startswith("hint: "):
            style = "cyan"
        text.append(line if i == 0 else "\n" + line, style)
    return text


def read_script(path: Path) -> str:
    """The text of a file. INVALID_PARAMETER if it is no text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error("INVALID_PARAMETER", f"{path} is not a text in UTF-8", detail=f"Byte {cause.start} is wrong.") from cause
    except OSError as cause:
        raise error("INVALID_PARAMETER", f"{path} can't be read: {cause.strerror}") from cause


def write_text(path: Path, text: str) -> None:
    """Write a file. INVALID_PARAMETER if that can't be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise error("INVALID_PARAMETER", f"{path} can't be written: {cause.strerror}") from cause
