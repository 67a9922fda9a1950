"""`watersmeet run`: runs a script, then shows how its views do until it is stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live

from watersmeet.cli.failures import FAILED, print_error
from watersmeet.cli.progress import Rates, progress_line, progress_table
from watersmeet.cli.render import errors_output, output, print_result
from watersmeet.errors import Error, error_from_json
from watersmeet.session.connection import Connection
from watersmeet.session.cursor import Cursor

#: How often the display is drawn anew, and how often a line is written where there is no terminal.
_DRAW_S: Final = 0.5
_LINE_S: Final = 5.0
_FIRST_LINE_S: Final = 1.0
#: The pause of the in-process runtime between two looks at its sources.
_PUMP_S: Final = 0.2


def run_script(connection: Connection, text: str, *, once: bool, as_json: bool) -> int:
    """Runs `text`; then, if there are streaming sources and not `once`, shows progress until Ctrl-C. The exit code.

    Raises what a statement raises.
    """
    console = errors_output()
    with _Stop() as stop:
        _run_statements(connection, text, console, as_json=as_json)
        if once or not connection.status()["sources"]:
            connection.execute("FLUSH")
            return 0
        return _watch(connection, console, stop, as_json=as_json)


def print_outcome(cursor: Cursor, out: Console, err: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the notices of a statement, and its rows or (where people look on) what it did."""
    for notice in cursor.notices:
        err.print(f"NOTICE: {notice}", style="yellow", markup=False, soft_wrap=True)
    if cursor.description is not None:
        print_result(cursor, out, as_json=as_json, expanded=expanded)
    elif err.is_terminal and not as_json and cursor.statusmessage:
        count = f" {cursor.rowcount:,}" if cursor.rowcount >= 0 else ""
        err.print(cursor.statusmessage + count, style="dim", markup=False)


class _Stop:
    """SIGINT and SIGTERM while a script runs.

    They interrupt statements (KeyboardInterrupt); once `armed`, the first only sets `event`, so that the epoch can end.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.armed = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.armed and not self.event.is_set():
            self.event.set()
        else:
            raise KeyboardInterrupt


def _run_statements(connection: Connection, text: str, console: Console, *, as_json: bool) -> None:
    out = output()
    results = connection.execute_script(text)
    while True:
        with console.status("running …") if console.is_terminal else contextlib.nullcontext():
            cursor = next(results, None)
        if cursor is None:
            return
        print_outcome(cursor, out, console, as_json=as_json)


def _watch(connection: Connection, console: Console, stop: _Stop, *, as_json: bool) -> int:
    """Shows progress until a signal (0) or until the engine has failed (3)."""
    stop.armed = True
    with _Pump(connection, stop.event) as pump:
        if console.is_terminal and not as_json:
            _show(connection, console, stop.event, pump)
        else:
            _log(connection, stop.event, pump, as_json=as_json)
    status = connection.status()
    failure = error_from_json(status["error"]) if status["state"] == "failed" else pump.failure
    if failure is not None:
        print_error(failure, as_json=as_json)
        return FAILED
    console.print("stopping …", style="dim")
    return 0


def _show(connection: Connection, console: Console, stop: threading.Event, pump: _Pump) -> None:
    """Draws the progress table anew until it ends."""
    began_s = time.monotonic()
    rates = Rates()
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            status = connection.status()
            live.update(progress_table(status, rates.update(status), time.monotonic() - began_s), refresh=True)
            if stop.is_set() or pump.has_failed(status):
                return
            stop.wait(_DRAW_S)


def _log(connection: Connection, stop: threading.Event, pump: _Pump, *, as_json: bool) -> None:
    """Writes a line now and then, and a last one at the end."""
    rates = Rates()
    rates.update(connection.status())
    last = None
    while True:
        ended = stop.wait(_LINE_S if last is not None else _FIRST_LINE_S)
        status = connection.status()
        line = progress_line(status, rates.update(status), as_json=as_json)
        if line != last:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
            last = line
        if ended or pump.has_failed(status):
            return


class _Pump:
    """Keeps the in-process runtime working, which does so only in FLUSH. Other runtimes work by themselves.

    failure: the error that ended it.
    """

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        self.failure: Error | None = None
        self._connection = connection
        self._stop = stop
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def has_failed(self, status: dict[str, Any]) -> bool:
        """True if nothing will go on."""
        return self.failure is not None or status["state"] == "failed"

    def __enter__(self) -> Self:
        if self._connection.status()["runtime"] == "inprocess":
            self._thread = threading.Thread(target=self._run, name="watersmeet-pump", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set() and not self._stop.is_set():
            try:
                self._connection.execute("FLUSH")
            except Error as err:
                self.failure = err
                return
            self._stop.wait(_PUMP_S)
