r"""The interactive shell: its line editor (statements of several lines, colors, history, completion), tables, `\d`,
`\timing`, `\i`, `\q`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import PostgresLexer  # type: ignore[import-untyped]
from rich.console import Console

from watersmeet.cli.output import REFUSED, Interrupts, errors_output, output, print_error
from watersmeet.cli.progress import status_of
from watersmeet.cli.results import Follower, follow
from watersmeet.cli.run import Script, print_notices, print_outcome, read_script
from watersmeet.dialects.parsing import split_statements
from watersmeet.errors import Error, error_from_json
from watersmeet.errors.secretnames import concealed
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.cursor import Cursor
from watersmeet.values import DEFAULT_DIALECT, DIALECTS

_WORDS: Final = (
    "AND", "AS", "BEGIN", "BY", "CASE", "CAST", "COMMIT", "CREATE", "CROSS", "DELETE", "DESCRIBE", "DISTINCT", "DROP",
    "ELSE", "END", "EXISTS", "EXPLAIN", "FLUSH", "FROM", "FULL", "GROUP", "HAVING", "IN", "INDEX", "INNER", "INSERT",
    "INTO", "IS", "JOIN", "LEFT", "LIMIT", "MATERIALIZED", "NATURAL", "NOT", "NULL", "ON", "OR", "ORDER", "RIGHT",
    "ROLLBACK", "SELECT", "SET", "SHOW", "SOURCE", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "VIEW",
    "WHEN", "WHERE", "WITH",
)  # fmt: skip

_CONTINUATION: Final = "        ... "


def prompt_session(names: Callable[[], Iterable[str]], dialect: Callable[[], str]) -> PromptSession[str]:
    """An editor in which Enter ends a complete statement and otherwise begins a new line.

    names: completions in addition to SQL's words. dialect: the current one, which decides where statements end.
    """
    return PromptSession(
        history=_history(),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        key_bindings=_bindings(dialect),
        prompt_continuation=_CONTINUATION,
        lexer=PygmentsLexer(PostgresLexer),
        completer=_Names(names),
        complete_while_typing=False,
        enable_history_search=True,
    )


def is_complete(text: str, dialect: str = DEFAULT_DIALECT) -> bool:
    """True if Enter should run the text: nothing, a backslash command, `quit` or `help`, or statements that have
    ended.
    """
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped.lower() in ("quit", "exit", "help"):
        return True
    complete, rest = split_statements(text, dialect)
    return not rest and (bool(complete) or not _is_open(text, dialect))


def _is_open(text: str, dialect: str) -> bool:
    """True if the text, which has no complete statement and no rest, is more than comments: a quote that has no end."""
    return bool(split_statements(text + "\n;", dialect)[1])


class _Names(Completer):
    """Completes the word before the cursor: relations, then SQL's words."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        word = document.get_word_before_cursor()
        if not word:
            return
        for name in [*self._names(), *(w if word.isupper() else w.lower() for w in _WORDS)]:
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))


def _bindings(dialect: Callable[[], str]) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=~completion_is_selected)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text, dialect()):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


class _FileHistory(FileHistory):
    """The history with asterisks instead of passwords."""

    def store_string(self, string: str) -> None:
        super().store_string(concealed(string)[0] or "")


def _history() -> History:
    try:
        path = Path.home() / ".watersmeet_history"
        path.touch(mode=0o600)
        return _FileHistory(str(path))
    except (OSError, RuntimeError):  # A home that can't be written, or none: the session has its history all the same.
        return InMemoryHistory()


HELP: Final = rf"""Statements end with a semicolon and may have several lines.
  \d            list all relations          \d NAME       describe one
  \x            rows as records, or tables  \timing       show how long statements take
  \i FILE       run a script                \q            quit (also Ctrl-D)
SET dialect = '{DIALECTS[-1]}'; and the like change the SQL that is spoken.
Ctrl-C drops the statement that is written, or interrupts the one that runs. Arrow up: earlier statements."""


class Shell:
    """One session, at a terminal or fed by a pipe. failed: whether a statement was refused."""

    def __init__(self, connection: Connection, out: Console | None = None, err: Console | None = None) -> None:
        self.connection = connection
        connection.show_own_writes()
        self.failed = False
        self._out = out or output()
        self._err = err or errors_output()
        self._timing = False
        self._expanded = False
        self._shown: object = None

    def interact(self) -> None:
        r"""Reads from the terminal until `\q` or Ctrl-D."""
        prompt = prompt_session(self._names, lambda: self.connection.dialect)
        self._out.print(r"Watersmeet. \? for help, \q to quit.", markup=False)
        while True:
            self._tell_failure()
            try:
                text = prompt.prompt(self._prompt())
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not self.enter(text):
                return

    def _prompt(self) -> str:
        """The dialect, unless it is the one that is spoken at first; a star inside a transaction."""
        dialect = "" if self.connection.dialect == DEFAULT_DIALECT else f":{self.connection.dialect}"
        return f"watersmeet{dialect}{'' if self.connection.autocommit else '*'}> "

    def feed(self, lines: Iterable[str]) -> int:
        r"""Runs the lines of a pipe as if typed, also after errors. The exit code: 1 after any error."""
        for text in _entries(lines, lambda: self.connection.dialect):
            if not self.enter(text):
                break
        return REFUSED if self.failed else 0

    def enter(self, text: str) -> bool:
        """Runs what was entered: a backslash command or statements. False if the shell is to end."""
        stripped = text.strip()
        if stripped.startswith("\\"):
            return self._command(stripped)
        word = stripped.rstrip(";").lower()
        if word in ("quit", "exit"):
            return False
        if word == "help":
            return self._command("\\?")
        if stripped:
            self._execute(text)
        return True

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        rest = rest.strip().rstrip(";").strip()
        if name == "\\q":
            return False
        if name == "\\timing":
            self._timing = _switched(self._timing, rest)
            self._out.print(f"Timing is {'on' if self._timing else 'off'}.")
        elif name == "\\x":
            self._expanded = _switched(self._expanded, rest)
            self._out.print(f"Expanded display is {'on' if self._expanded else 'off'}.")
        elif name == "\\d":
            self._execute(f"DESCRIBE {rest}" if rest else "SHOW RELATIONS")
        elif name == "\\i" and rest:
            self._include(Path(rest.strip("'\"")))
        elif name in ("\\?", "\\h", "\\help"):
            self._out.print(HELP, markup=False)
        else:
            self.failed = True
            self._err.print(f"unknown command {line}, \\? lists them", style="red", markup=False)
        return True

    def _include(self, path: Path) -> None:
        try:
            text = read_script(os.path.expanduser(path))
        except Error as err:
            self.failed = True
            print_error(err, console=self._err)
            return
        self._execute(text, Script(str(path), text))

    def _execute(self, sql: str, script: Script | None = None) -> None:
        """Runs statements and prints the result of each, or the error that ended them. script: their file."""
        started_s = time.monotonic()
        try:
            with nullcontext() if script is None else script.naming():
                for cursor in self.connection.execute_script(sql):
                    if cursor.runs:
                        self._follow(cursor)
                    else:
                        print_outcome(cursor, self._out, self._err, expanded=self._expanded)
                    if self._timing:
                        self._out.print(f"Time: {(time.monotonic() - started_s) * 1000:,.1f} ms", style="dim")
                    started_s = time.monotonic()
        except Error as err:
            self.failed = True
            print_error(err, console=self._err)
        except KeyboardInterrupt:
            self._err.print("\ninterrupted" if self._err.is_terminal else "interrupted", style="yellow")

    def _follow(self, cursor: Cursor) -> None:
        """Shows the rows of a query that runs, until its LIMIT or Ctrl-C."""
        print_notices(cursor, self._err)
        with cursor, Interrupts() as interrupts:
            interrupts.armed = True
            if self._err.is_terminal:
                self._err.print("Rows are shown as they come; Ctrl-C ends the query.", style="dim")
            query = Follower(cursor, self._out)
            follow([query], interrupts.event)
            if interrupts.event.is_set() and self._err.is_terminal:
                self._err.print()  # the terminal has written ^C
            self._out.print(f"({query.rows:,} row{'' if query.rows == 1 else 's'})", style="dim")

    def _tell_failure(self) -> None:
        """Says once that the views have stopped, as nothing else would."""
        found = status_of(self.connection).error
        if found is not None and found != self._shown:
            print_error(error_from_json(found), console=self._err)
        self._shown = found

    def _names(self) -> list[str]:
        """Names of relations, for completion."""
        try:
            return [row[0] for row in self.connection.execute("SHOW RELATIONS").fetchall()]
        except Error:
            return []


def run_shell(connection: Connection) -> int:
    """A shell on standard input; its exit code."""
    shell = Shell(connection)
    if not sys.stdin.isatty():
        return shell.feed(sys.stdin)
    shell.interact()
    return 0


def _switched(now: bool, wanted: str) -> bool:
    return {"on": True, "off": False}.get(wanted.lower(), not now)


def _entries(lines: Iterable[str], dialect: Callable[[], str]) -> Iterator[str]:
    """Statements and backslash commands from lines; an unfinished statement is last."""
    pending = ""
    for line in lines:
        if not pending.strip() and line.lstrip().startswith("\\"):
            yield line
            continue
        pending += line
        if ";" in line and not split_statements(pending, dialect())[1]:
            yield pending
            pending = ""
    if pending.strip():
        yield pending
