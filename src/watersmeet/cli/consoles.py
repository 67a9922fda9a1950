"""Standard output and error as rich consoles."""

from __future__ import annotations

import os
import sys
from typing import Final, Literal

from rich.console import Console

#: The width of what is no terminal: wide enough that nothing is folded.
_FILE_WIDTH: Final = 100_000


class _Console(Console):
    """A console that says when its reader went away; rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Standard output: as wide as the terminal; what goes to a file or a pipe is never folded."""
    return _console(stderr=False)


def errors_output() -> Console:
    """Standard error, for notices, errors and progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """FORCE_COLOR colours a file too, but makes no terminal of it: rich would move the cursor there, and a file would
    get the first rows alone.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    colours: Literal["auto", "standard"] = "standard" if os.environ.get("FORCE_COLOR") and not terminal else "auto"
    return _Console(
        stderr=stderr,
        width=None if terminal else _FILE_WIDTH,
        highlight=False,
        soft_wrap=False,
        force_terminal=terminal,
        color_system=colours,
    )
