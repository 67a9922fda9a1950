"""Consoles on standard output and error, errors with their exit codes, logs as text or JSON, and signals.

The first Ctrl-C lets a command end in order, the second one ends it at once, and a deadline ends it in any case.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self

import typer
from rich.console import Console
from rich.text import Text

from watersmeet.cli import INTERRUPTED, end_at_once
from watersmeet.errors import DataError, Error, error

#: The width of files and pipes, at which no line is folded.
_FILE_WIDTH: Final = 100_000


class _Console(Console):
    """A console that raises an error if its reader has closed the pipe; rich would end the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Standard output, as wide as the terminal; lines of files and pipes are never folded."""
    return _console(stderr=False)


def errors_output() -> Console:
    """Standard error, for notices, errors and progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """A console on a stream. FORCE_COLOR also colors a file, but does not make it a terminal: rich would move the
    cursor, and a file would get only the first rows.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    colours: Literal["auto", "standard"] = "standard" if os.environ.get("FORCE_COLOR") and not terminal else "auto"
    return _Console(
        stderr=stderr,
        width=None if terminal else _FILE_WIDTH,
        highlight=False,
        soft_wrap=False,
        emoji=False,  # `a.sql:100:` is a place, not an emoji
        force_terminal=terminal,
        color_system=colours,
    )


REFUSED: Final = 1

"""A statement was refused, or the database can't be used."""

FAILED: Final = 3

"""Data stopped it: a view or source failed while running, or a value can't be read as its type."""


@contextmanager
def reporting(*, as_json: bool = False) -> Iterator[None]:
    """Inside, an `Error` is printed and ends the command with its exit code. Ctrl-C and SIGTERM also end it without a
    traceback.

    If the reader of the output closes the pipe, the command ends quietly with 0.
    """
    with _noted_interrupt() as interrupted:
        try:
            yield
        except (Exception, KeyboardInterrupt) as err:
            # an interrupted call to the JVM raises a different error
            _end(KeyboardInterrupt() if interrupted.is_set() else err, as_json=as_json)
            raise


def _end(err: BaseException, *, as_json: bool) -> None:
    """Ends the command after Ctrl-C, an `Error`, or the end of the reader of its output."""
    if isinstance(err, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        raise typer.Exit(INTERRUPTED) from None
    if isinstance(err, Error):
        print_error(err, as_json=as_json)
        raise typer.Exit(exit_code(err)) from None
    if isinstance(err, BrokenPipeError):
        # Python flushes the rest at its end and would report an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


@contextmanager
def _noted_interrupt() -> Iterator[threading.Event]:
    """Inside, the event is set when SIGINT or SIGTERM interrupts the code by KeyboardInterrupt."""
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = before[signal.SIGINT] in (signal.default_int_handler, end_at_once)
    if not usual or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.default_int_handler(number, frame)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    """The rendered error with its first line and the caret in red, and the hint in another style."""
    text = Text()
    for i, line in enumerate(str(err).split("\n")):
        style = ""
        if i == 0 or set(line.strip()) == {"^"}:
            style = "bold red"
        elif line.startswith("hint: "):
            style = "cyan"
        text.append(line if i == 0 else "\n" + line, style)
    return text


LEVELS: Final = ("debug", "info", "warning", "error")

#: Additional fields of log records.
_FIELDS: Final = ("epoch", "commit", "view", "relation", "condition", "state", "rows", "duration_us")


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time (UTC), level, logger, message, and additional fields."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                found[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            cause = record.exc_info[1]
            if isinstance(cause, Error):
                found.setdefault("condition", cause.condition)
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def log_as_json(level: str) -> None:
    """Writes the logs of this process to standard error, one JSON object per line. level: the level of Watersmeet's own
    records.

    Raises INVALID_PARAMETER for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise error("INVALID_PARAMETER", f'unknown log level "{level}"', hint=f"The levels are {', '.join(LEVELS)}.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("watersmeet").setLevel(level.upper())
    logging.captureWarnings(capture=True)


#: The deadline in seconds; an orchestrator kills a process that has not ended 30 s after SIGTERM.
_END_S: Final = 25.0


class Interrupts:
    """SIGINT and SIGTERM inside a block.

    Signals interrupt statements (KeyboardInterrupt). Once `armed`, the first signal only sets `event`, so that the
    command can end in order. Threads other than the main thread receive no signals. An ignored signal stays ignored,
    which shells require of background processes.

    ending: called at each signal with the exit code of a command that the signal ends: 0, or 130 if it is interrupted.
    """

    def __init__(self, ending: Callable[[int], None] = lambda _: None) -> None:
        self.event = threading.Event()
        self.armed = False
        self._ending = ending
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.armed and not self.event.is_set():
            self.event.set()
            self._ending(0)
        else:
            # a statement waits for epochs, and closing the database for the current one
            self._ending(INTERRUPTED)
            raise KeyboardInterrupt


class Deadline:
    """Ends the process if it is still inside the block 25 s after the first `begin`.

    A longer epoch is dropped: it has committed nothing, and the next process runs it again.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """Starts the time. code: the exit code at the deadline."""
        if self._timer is not None:
            return
        self._timer = threading.Timer(_END_S, _drop, [code])
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _drop(code: int) -> None:
    sys.stderr.write("the epoch that runs takes too long: it is dropped\n")
    sys.stderr.flush()
    os._exit(code)
