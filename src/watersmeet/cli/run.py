"""`watersmeet run`, which runs scripts, then processes input and shows progress; `watersmeet migrate`, which shows what
scripts would change in a database, and changes it after a confirmation.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.cli.output import FAILED, Interrupts, errors_output, output, print_error
from watersmeet.cli.progress import progress_line, progress_table, rows_in, status_of
from watersmeet.cli.results import Follower, drain, follow, print_result
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.errors import Error, error, error_from_json
from watersmeet.objectstores.base import StoreProblem, is_url, location_at
from watersmeet.objectstores.stores import open_store
from watersmeet.runtime.status import Status
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.connections.scripts import Step, check_definitions, steps_of
from watersmeet.session.status import Rates
from watersmeet.values import CHOICES, DEFAULT_DIALECT


@dataclass(frozen=True, slots=True)
class Script:
    """An SQL text, the name of its file, and the dialect in which it begins."""

    file: str
    text: str
    dialect: str = DEFAULT_DIALECT

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return self.file.rpartition("/")[2]

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Adds the name of the file to errors inside."""
        try:
            yield
        except Error as err:
            if err.sql is None or err.sql == self.text:
                err.file = self.file
            raise


def read_scripts(paths: Iterable[str], dialect: str | None = None) -> list[Script]:
    """The scripts in files, objects at URLs, and folders, whose `*.sql` files are read in the order of their names.
    Raises INVALID_PARAMETER.

    dialect: the dialect of all scripts; None: the name of the folder of each script, if that is a dialect.
    """
    found: list[Script] = []
    for path in paths:
        folder = not is_url(path) and Path(path).is_dir()
        files = sorted(map(str, Path(path).glob("*.sql"))) if folder else [path]
        if not files:
            raise error("INVALID_PARAMETER", f"{path} has no *.sql files")
        found += [Script(file, read_script(file), dialect or dialect_of(file) or DEFAULT_DIALECT) for file in files]
    return found


def dialect_of(path: str) -> str | None:
    """The dialect with the name of a file's folder."""
    folder = path.split("/")[-2] if is_url(path) else Path(path).absolute().parent.name
    return folder if folder in CHOICES else None


def read_script(path: str) -> str:
    """The text of a file, or of an object at a URL. Raises INVALID_PARAMETER if it is not text."""
    try:
        content = _object(path) if is_url(path) else Path(path).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error("INVALID_PARAMETER", f"{path} is not UTF-8 text", detail=f"Byte {cause.start} is wrong.") from cause
    except OSError as cause:
        raise error("INVALID_PARAMETER", f"{path} can't be read: {cause.strerror}") from cause


def _object(url: str) -> bytes:
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    try:
        return open_store(location_at(f"{scheme}://{bucket}")).get(name)
    except FileNotFoundError as cause:
        raise error("INVALID_PARAMETER", f"object {url} does not exist") from cause
    except StoreProblem as problem:
        raise error(
            "INVALID_PARAMETER", f"{url} can't be read: {problem.message}", detail=problem.detail, hint=problem.hint
        ) from problem


#: The interval at which the display is refreshed, and the interval of lines without a terminal.
_DRAW_S: Final = 0.5

_LINE_S: Final = 5.0
_FIRST_LINE_S: Final = 1.0

#: The pause of the in-process runtime between two polls of its sources.
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
    """Runs scripts; then, if there are streaming sources and `once` is not set, shows progress until Ctrl-C. Returns
    the exit code.

    ending: see `Interrupts`.

    transaction: whether each script is a transaction, so that a failed script has no effect (see
    `Connection.execute_script`). The first script that fails is the last that is run. Settings do not extend to the
    next script. A script does not wait for a SELECT that runs until it is stopped: its rows are shown after the last
    statement, instead of the progress. Raises the error of a statement after showing the rows of running queries.
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
                notices = connection.flush(ended=True)
            print_notices(notices, console)
            drain(running)
            stalled = any(s.health.state == "stalled" for s in status_of(connection).sources)
            return FAILED if stalled else 0
        if running:
            interrupts.armed = True
            follow(running, interrupts.event)
            return 0
        return _watch(connection, console, interrupts, as_json=as_json)


def print_outcome(cursor: Cursor, out: Console, err: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the notices of a statement, and its rows or on a terminal a summary such as `INSERT 0 3`."""
    print_notices(cursor.notices, err)
    if cursor.description is not None:
        print_result(cursor, out, as_json=as_json, expanded=expanded)
    elif err.is_terminal and not as_json and cursor.statusmessage:
        count = f" {cursor.rowcount:,}" if cursor.rowcount >= 0 else ""
        err.print(cursor.statusmessage + count, style="dim", markup=False)


def print_notices(notices: Iterable[str], err: Console) -> None:
    """Prints the notices of a statement."""
    for notice in notices:
        err.print(f"NOTICE: {notice}", style="yellow", markup=False, soft_wrap=True)


def run_all(
    connection: Connection,
    scripts: Sequence[Script],
    console: Console,
    *,
    transaction: bool,
    as_json: bool,
    replaces: bool = False,
) -> list[Follower]:
    """Runs scripts; returns the queries that are still running. Before raising an error it shows their rows.

    replaces: see `Connection.execute_script`; if not set, nothing runs if a definition differs.
    """
    out = output()
    running: list[Cursor] = []
    try:
        if not replaces:
            check_all_definitions(connection, scripts)
        for script in scripts:
            with script.naming(), connection.settings_kept():
                connection.execute(f"SET dialect = '{script.dialect}'")
                results = connection.execute_script(
                    script.text, transaction=transaction, name=script.name, replaces=replaces
                )
                while True:
                    with console.status("running …") if console.is_terminal else contextlib.nullcontext():
                        cursor = next(results, None)
                    if cursor is None:
                        break
                    if cursor.runs:
                        print_notices(cursor.notices, console)
                        running.append(cursor)
                    else:
                        print_outcome(cursor, out, console, as_json=as_json)
        return _followers(running, out, as_json=as_json)
    except Error:
        with contextlib.suppress(Error):  # only the script's own error is reported
            if running and connection.autocommit:
                connection.flush()
            drain(_followers(running, out, as_json=as_json))
        raise


def check_all_definitions(connection: Connection, scripts: Sequence[Script]) -> None:
    """Raises DUPLICATE_OBJECT if scripts define objects differently than the database does."""
    database = connection.opened
    if database.catalog.relations or database.catalog.functions:
        for script in scripts:
            with script.naming():
                session = Session(database, Variables(script.dialect))
                check_definitions(session, script.name, script.text, script.file, str(database.layout.root))


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
    """Refreshes the progress table in its own thread during the block."""
    began_s = time.monotonic()
    rates = Rates()

    def table() -> Table:
        status = status_of(connection)
        return progress_table(
            status, rates.update(rows_in(status)), time.monotonic() - began_s, console.size, ending="Ctrl-C interrupts"
        )

    return Live(console=console, get_renderable=table, refresh_per_second=1 / _DRAW_S, vertical_overflow="visible")


def _show(connection: Connection, console: Console, stop: threading.Event, pump: Pump) -> None:
    """Refreshes the progress table until the end."""
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
    """Writes a line at intervals, and a last one at the end."""
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
    """Runs the in-process runtime continuously, which otherwise works only in FLUSH. Spark works by itself.

    resumes: whether a full disk does not end the engine, so that failed work is repeated until there is space. failure:
    the error that ended it.
    """

    def __init__(self, connection: Connection, stop: threading.Event, *, resumes: bool = False) -> None:
        self.failure: Error | None = None
        self._connection = connection
        self._stop = stop
        self._resumes = resumes
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def has_failed(self, status: Status) -> bool:
        """True if the engine has failed and will not resume."""
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


#: The number of shown characters of a new statement.
_WIDTH: Final = 100

_STYLES: Final = {"-": "red", "+": "green"}


def migrate(
    connection: Connection,
    scripts: Sequence[Script],
    *,
    yes: bool,
    transaction: bool,
) -> int:
    """Shows what scripts would change, and changes it after a confirmation, or with `yes`. Returns the exit code."""
    out = output()
    changing = 0
    problems: list[Error] = []
    for script in scripts:
        with script.naming():
            session = Session(connection.opened, Variables(script.dialect))
            steps = [s for s in steps_of(session, script.name, script.text, replaces=True) if s.changes]
        out.print(f"{script.file}: {len(steps) or 'nothing'} to change", style="bold", markup=False)
        for step in steps:
            _print_step(step, out)
            if step.problem is not None:
                step.problem.file = script.file
                problems.append(step.problem)
        changing += len(steps)
    for problem in problems:
        print_error(problem)
    if problems:
        return 1
    if not changing:
        return 0
    if not (yes or (sys.stdin.isatty() and typer.confirm("Change the database?"))):
        errors_output().print("nothing was changed; --yes changes it", style="yellow")
        return 0
    running = run_all(connection, scripts, errors_output(), transaction=transaction, as_json=False, replaces=True)
    print_notices(connection.flush(), errors_output())
    drain(running)
    return 0


def _print_step(step: Step, out: Console) -> None:
    statement = step.statement
    if step.action == "differs":
        out.print(f"  replace {step.title}", markup=False)
        for line in step.difference:
            out.print(Text(f"    {line}", _STYLES.get(line[:1], "")), soft_wrap=True)
        return
    words = " ".join(statement.sql.split())
    place = statement.text.count("\n", 0, statement.span.start) + 1
    out.print(f"  line {place}: {words[:_WIDTH]}{'…' if len(words) > _WIDTH else ''}", markup=False, soft_wrap=True)
