r"""The interactive shell: statements of several lines, history, tables, `\d`, `\timing`, `\q`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console

from watersmeet.cli.render import plan_text, print_result
from watersmeet.errors import Error
from watersmeet.session.connection import Connection

HELP: Final = r"""\d          list relations          \d NAME    describe one
\timing     show how long a statement took
\i FILE     run a script             \q         quit (also Ctrl-D)
Statements end with a semicolon. Ctrl-C drops the line that is being written."""


class Shell:
    """One session at a terminal."""

    def __init__(self, connection: Connection, console: Console) -> None:
        self.connection = connection
        self.console = console
        self.timing = False

    def loop(self) -> None:
        r"""Reads statements until `\q` or the end of input."""
        prompt: PromptSession[str] = PromptSession(history=_history(), auto_suggest=AutoSuggestFromHistory())
        self.console.print(r"Watersmeet. \? for help, \q to quit.")
        pending = ""
        while True:
            try:
                line = prompt.prompt("watersmeet> " if not pending else "        ... ")
            except KeyboardInterrupt:
                pending = ""
                continue
            except EOFError:
                return
            if not pending and line.lstrip().startswith("\\"):
                if not self.command(line.strip()):
                    return
                continue
            pending = f"{pending}\n{line}" if pending else line
            if not pending.strip():
                pending = ""
            elif pending.rstrip().endswith(";"):
                self.execute(pending)
                pending = ""

    def command(self, line: str) -> bool:
        """Runs a backslash command; False if the shell is to end."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "\\q":
            return False
        if name == "\\timing":
            self.timing = not self.timing
            self.console.print(f"Timing is {'on' if self.timing else 'off'}.")
        elif name == "\\d":
            self.execute(f"DESCRIBE {rest}" if rest else "SHOW RELATIONS")
        elif name == "\\i" and rest:
            try:
                self.execute(Path(rest).read_text(encoding="utf-8"))
            except OSError as err:
                self.console.print(f"can't read {rest}: {err.strerror}", style="red")
        else:
            self.console.print(HELP, markup=False, highlight=False)
        return True

    def execute(self, sql: str) -> None:
        """Runs statements and prints the result of the last, or the error."""
        started = time.monotonic()
        cursor = self.connection.cursor()
        try:
            cursor.execute(sql)
            for notice in cursor.notices:
                self.console.print(f"NOTICE: {notice}", style="yellow", markup=False)
            if cursor.description is None:
                self.console.print(f"OK, {cursor.rowcount} rows" if cursor.rowcount >= 0 else "OK")
            elif [d[0] for d in cursor.description] == ["QUERY PLAN"]:
                self.console.print(plan_text(cursor), markup=False, highlight=False)
            else:
                print_result(cursor, console=self.console)
        except Error as err:
            self.console.print(str(err), style="red", markup=False, highlight=False)
        except KeyboardInterrupt:
            self.console.print("interrupted")
        if self.timing:
            self.console.print(f"Time: {(time.monotonic() - started) * 1000:.1f} ms", style="dim")


def _history() -> History:
    try:
        folder = Path.home() / ".watersmeet"
        folder.mkdir(exist_ok=True)
        return FileHistory(str(folder / "history"))
    except OSError:  # a home that can't be written: the session has its history all the same
        return InMemoryHistory()
