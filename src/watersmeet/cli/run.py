"""`watersmeet run`: runs a script, then shows how its views do until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from watersmeet.cli.consoles import errors_output, output
from watersmeet.cli.failures import FAILED, print_error
from watersmeet.cli.follow import Follower, drain, follow
from watersmeet.cli.interrupts import Interrupts
from watersmeet.cli.progress import progress_line, progress_table, rows_in, status_of
from watersmeet.cli.render import print_result
from watersmeet.cli.scripts import Script
from watersmeet.errors import Error, error_from_json
from watersmeet.runtime.status import Status
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.services.rates import Rates

#: How often the display is drawn anew, and how often a line is written where there is no terminal.
_DRAW_S: Final = 0.5
_LINE_S: Final = 5.0
_FIRST_LINE_S: Final = 1.0
#: The pause of the in-process runtime between two looks at its sources.
_PUMP_S: Final = 0.2
#: The condition of a full disk, and the pauses between two attempts to write.
FULL: Final = "DISK_FULL"
_FULL_FIRST_S: Final = 1.0
_FULL_LAST_S: Final = 30.0

_LOG: Final = logging.getLogger(__name__)


def run_scripts(
    connection: Connection,
    scripts: Sequence[Script],
    *,
    transaction: bool,
    once: bool,
    as_json: bool,
    ending: Callable[[int], None] = lambda _: None,
) -> int:
    """Runs scripts; then, if there are streaming sources and not `once`, shows progress until Ctrl-C. The exit code.

    ending: as in `Interrupts`.

    transaction: each is one, so that nothing is left of one that fails (see `Connection.execute_script`).
    The first that fails is the last that is run. Settings of one are not those of the next.
    Of a SELECT that runs until it is stopped a script does not wait: its rows are shown behind the last statement,
    instead of the progress. Raises what a statement raises, once the rows of those that run are shown.
    """
    console = errors_output()
    with Interrupts(ending) as interrupts:
        running = run_all(connection, scripts, console, transaction=transaction, as_json=as_json)
        reads = any(s.connector for s in status_of(connection).sources)
        if once or not reads:
            with (
                _drawn(connection, console)
                if reads and console.is_terminal and not as_json
                else contextlib.nullcontext()
            ):
                flushed = connection.execute("FLUSH")
            print_notices(flushed, console)
            drain(running)
            stalled = any(s.health.state == "stalled" for s in status_of(connection).sources)
            return FAILED if stalled else 0
        if running:
            interrupts.armed = True
            follow(running, interrupts.event)
            return 0
        return _watch(connection, console, interrupts, as_json=as_json)


def print_outcome(cursor: Cursor, out: Console, err: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the notices of a statement, and its rows or (where people look on) what it did."""
    print_notices(cursor, err)
    if cursor.description is not None:
        print_result(cursor, out, as_json=as_json, expanded=expanded)
    elif err.is_terminal and not as_json and cursor.statusmessage:
        count = f" {cursor.rowcount:,}" if cursor.rowcount >= 0 else ""
        err.print(cursor.statusmessage + count, style="dim", markup=False)


def print_notices(cursor: Cursor, err: Console) -> None:
    """Prints what a statement had to say."""
    for notice in cursor.notices:
        err.print(f"NOTICE: {notice}", style="yellow", markup=False, soft_wrap=True)


def run_all(
    connection: Connection, scripts: Sequence[Script], console: Console, *, transaction: bool, as_json: bool
) -> list[Follower]:
    """Runs scripts; the queries that still run. Before it raises an error it shows what those gave."""
    out = output()
    running: list[Cursor] = []
    try:
        for script in scripts:
            with script.naming(), connection.settings_kept():
                results = connection.execute_script(script.text, transaction=transaction)
                while True:
                    with console.status("running …") if console.is_terminal else contextlib.nullcontext():
                        cursor = next(results, None)
                    if cursor is None:
                        break
                    if cursor.runs:
                        print_notices(cursor, console)
                        running.append(cursor)
                    else:
                        print_outcome(cursor, out, console, as_json=as_json)
        return _followers(running, out, as_json=as_json)
    except Error:
        with contextlib.suppress(Error):  # the script's own error is the one to tell
            if running and connection.autocommit:
                connection.flush()
            drain(_followers(running, out, as_json=as_json))
        raise


def _followers(running: Sequence[Cursor], out: Console, *, as_json: bool) -> list[Follower]:
    return [
        Follower(c, out, as_json=as_json, title=f"query {n}" if len(running) > 1 else None)
        for n, c in enumerate(running, 1)
    ]


def _watch(connection: Connection, console: Console, interrupts: Interrupts, *, as_json: bool) -> int:
    """Shows progress until a signal (0) or until the engine has failed (3)."""
    interrupts.armed = True
    with Pump(connection, interrupts.event) as pump:
        if console.is_terminal and not as_json:
            _show(connection, console, interrupts.event, pump)
        else:
            _log(connection, interrupts.event, pump, as_json=as_json)
    status = status_of(connection)
    failure = error_from_json(status.error) if status.state == "failed" else pump.failure
    if failure is not None:
        print_error(failure, as_json=as_json)
        return FAILED
    if not as_json:
        console.print("stopping …", style="dim")
    return 0


def _drawn(connection: Connection, console: Console) -> Live:
    """Draws the progress table anew, by a thread of its own, as long as the block runs."""
    began_s = time.monotonic()
    rates = Rates()

    def table() -> Table:
        status = status_of(connection)
        return progress_table(
            status, rates.update(rows_in(status)), time.monotonic() - began_s, console.size, ending="Ctrl-C interrupts"
        )

    return Live(console=console, get_renderable=table, refresh_per_second=1 / _DRAW_S, vertical_overflow="visible")


def _show(connection: Connection, console: Console, stop: threading.Event, pump: Pump) -> None:
    """Draws the progress table anew until it ends."""
    began_s = time.monotonic()
    rates = Rates()
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            status = status_of(connection)
            live.update(
                progress_table(status, rates.update(rows_in(status)), time.monotonic() - began_s, console.size),
                refresh=True,
            )
            if stop.is_set() or pump.has_failed(status):
                return
            stop.wait(_DRAW_S)


def _log(connection: Connection, stop: threading.Event, pump: Pump, *, as_json: bool) -> None:
    """Writes a line now and then, and a last one at the end."""
    rates = Rates()
    rates.update(rows_in(status_of(connection)))
    last = None
    while True:
        ended = stop.wait(_LINE_S if last is not None else _FIRST_LINE_S)
        status = status_of(connection)
        line = progress_line(status, rates.update(rows_in(status)), as_json=as_json)
        if line != last:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
            last = line
        if ended or pump.has_failed(status):
            return


class Pump:
    """Keeps the in-process runtime working, which does so only in FLUSH. Spark works by itself.

    resumes: a full disk ends neither runtime. What failed is tried again until there is space.
    failure: the error that ended it.
    """

    def __init__(self, connection: Connection, stop: threading.Event, *, resumes: bool = False) -> None:
        self.failure: Error | None = None
        self._connection = connection
        self._stop = stop
        self._resumes = resumes
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def has_failed(self, status: Status) -> bool:
        """True if nothing will go on."""
        return self.failure is not None or status.state == "failed"

    def __enter__(self) -> Self:
        database = self._connection.opened
        work = None
        if database.runtime == "inprocess":
            work = self._flush
        elif self._resumes:
            work = database.resume
        if work is not None:
            self._thread = threading.Thread(target=self._run, args=(work,), name="watersmeet-pump", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _flush(self) -> None:
        self._connection.execute("FLUSH")

    def _run(self, work: Callable[[], None]) -> None:
        pause_s, is_full = _PUMP_S, False
        while not self._ended.is_set() and not self._stop.is_set():
            try:
                work()
            except Error as err:
                if not self._resumes or err.condition != FULL:
                    self.failure = err
                    return
                if not is_full:
                    _LOG.warning("the disk is full: reads go on, writes and views wait (%s)", err.message)
                pause_s, is_full = min(max(2 * pause_s, _FULL_FIRST_S), _FULL_LAST_S), True
            else:
                if is_full:
                    _LOG.info("the disk has space again: writes and views go on")
                pause_s, is_full = _PUMP_S, False
            self._stop.wait(pause_s)
