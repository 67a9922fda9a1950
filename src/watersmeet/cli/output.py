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

#: The width of files and pipes: nothing is folded.
_FILE_WIDTH: Final = 100_000


class _Console(Console):
    """A console that raises if its reader has closed the pipe; rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Standard output, as wide as the terminal; lines of files and pipes are never folded."""
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


REFUSED: Final = 1

"""A statement was refused, or the database can't be used."""

FAILED: Final = 3

"""The data stopped it: a view or source failed while running, or a value can't be read as its type."""


@contextmanager
def reporting(*, as_json: bool = False) -> Iterator[None]:
    """Inside, an `Error` is printed and ends the command with its exit code; so do Ctrl-C and SIGTERM, without a
    traceback.

    A reader of the output that goes away ends it quietly, with 0.
    """
    with _noted_interrupt() as interrupted:
        try:
            yield
        except (Exception, KeyboardInterrupt) as err:
            # A call to the JVM that is interrupted fails with something else.
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
        # Python writes what is left when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


@contextmanager
def _noted_interrupt() -> Iterator[threading.Event]:
    """Inside, the event is set when SIGINT or SIGTERM interrupts what runs, as KeyboardInterrupt."""
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


LEVELS: Final = ("debug", "info", "warning", "error")

#: Further fields of log records.
_FIELDS: Final = ("epoch", "commit", "view", "relation", "condition", "state", "rows", "duration_us")


class JsonLines(logging.Formatter):
    """A record as a JSON object: time (UTC), level, logger, message, and its further fields."""

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
    """Writes what this process logs to standard error, an object a line. level: of Watersmeet's own records.

    INVALID_PARAMETER for a level that there is not.
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


#: An orchestrator kills what has not ended 30 s after SIGTERM.
_END_S: Final = 25.0


class Interrupts:
    """SIGINT and SIGTERM inside a block.

    They interrupt statements (KeyboardInterrupt); once `armed`, the first only sets `event`, so that what runs can end
    well. Outside the main thread there are no signals. A signal that was ignored before stays ignored, as a shell wants
    it of background processes.

    ending: called at each signal, with the exit code of a command that it ends: 0, or 130 for one that is interrupted.
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
            # A statement waits for epochs; closing the database waits for the current one.
            self._ending(INTERRUPTED)
            raise KeyboardInterrupt


class Deadline:
    """Ends the process if it is still inside the block 25 s after the first `begin`.

    A longer epoch is dropped: nothing of it was committed, and the next process runs it again.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """From now on the time runs. code: the exit code at its end."""
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
