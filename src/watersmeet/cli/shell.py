r"""The shell, which runs statements and commands such as `\d` from a terminal, a pipe, a file or the command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from rich.console import Console

from watersmeet.catalog import SHOWN_CREATED
from watersmeet.cli.editor import ENDED, Names, is_complete, prompt_session
from watersmeet.cli.output import Interrupts, errors_output, exit_code, output, print_error
from watersmeet.cli.progress import status_of
from watersmeet.cli.results import Follower, follow
from watersmeet.cli.run import Script, dialect_of, print_notices, print_outcome, read_script
from watersmeet.dialects.parsing import split_statements
from watersmeet.errors import Error, did_you_mean, error, error_from_json
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.cursor import Cursor
from watersmeet.values import DEFAULT_DIALECT, DIALECTS

#: The commands with usage and effect. An argument that is not in brackets is required.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "\\d": ("[NAME]", "list all relations, or describe one"),
    "\\dt": ("[PATTERN]", "list tables; * stands for any text"),
    "\\dv": ("[PATTERN]", "list views"),
    "\\dm": ("[PATTERN]", "list materialized views"),
    "\\ds": ("[PATTERN]", "list sources"),
    "\\di": ("[PATTERN]", "list indexes"),
    "\\l": ("", "list databases"),
    "\\sv": ("NAME", "show the statement that created a view or another relation"),
    "\\e": ("[FILE]", "edit the last statement or a file in $VISUAL or $EDITOR, then run it"),
    "\\i": ("FILE", "run a script"),
    "\\copy": ("TABLE FROM FILE", "insert the rows of a file; also TABLE or (QUERY) TO FILE"),
    "\\watch": ("[SECONDS] [c=COUNT]", "repeat the last statement, or the one before it, until Ctrl-C"),
    "\\gx": ("", "run the statement before it, with rows as records"),
    "\\x": ("[on|off]", "show rows as records or as tables"),
    "\\timing": ("[on|off]", "show how long statements take"),
    "\\?": ("", "list the commands"),
    "\\q": ("", "quit; also Ctrl-D"),
}
_LISTS: Final = {
    "\\dt": "TABLES", "\\dv": "VIEWS", "\\dm": "MATERIALIZED VIEWS", "\\ds": "SOURCES", "\\di": "INDEXES",
}  # fmt: skip
_COPY: Final = re.compile(
    r"""(?P<rows>\(.*\)|[^\s(]+(?:\s*\([^)]*\))?)\s+(?P<way>from|to)\s+(?P<file>'(?:[^']|'')*'|\S+)\s*(?P<options>.*)""",
    re.IGNORECASE | re.DOTALL,
)
_COPY_WORDS: Final = re.compile(r"(delimiter|null|quote)\s+(?:as\s+)?('(?:[^']|'')*')|\S+", re.IGNORECASE)
_WATCHED: Final = re.compile(r"(?:i=)?(?P<seconds>\d+(?:\.\d*)?)|c=(?P<count>\d+)")
_WATCH_S: Final = 2.0


def help_text() -> str:
    """The commands of the shell."""
    lines = [f"  {f'{name} {usage}':<28} {effect}" for name, (usage, effect) in COMMANDS.items()]
    return "\n".join(
        [
            "Statements end with a semicolon and may have several lines. Tab completes names and keywords.",
            *lines,
            f"SET dialect = '{DIALECTS[-1]}'; and the like change the dialect.",
            "Ctrl-C drops the statement that is written, or interrupts the one that runs. Arrow up: history.",
        ]
    )


class Shell:
    """A shell session. code: the exit code of the first failed statement or command, else 0.

    folders: whether a script begins in the dialect with the name of its folder.
    """

    def __init__(
        self, connection: Connection, out: Console | None = None, err: Console | None = None, *, folders: bool = True
    ) -> None:
        self.connection = connection
        self._folders = folders
        connection.show_own_writes()
        self.code = 0
        self._out = out or output()
        self._err = err or errors_output()
        self._timing = False
        self._expanded = False
        self._last = ""
        self._draft = ""
        self._shown: object = None

    def interact(self) -> None:
        r"""Reads from the terminal until `\q` or Ctrl-D."""
        prompt = prompt_session(Names(self._relations, lambda: self.connection.dialect, tuple(COMMANDS)))
        self._out.print(r"Watersmeet. \? for help, \q to quit.", markup=False)
        while True:
            self._tell_failure()
            draft, self._draft = self._draft, ""
            try:
                text = prompt.prompt(self._prompt(), default=draft)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not self.enter(text):
                return

    def _prompt(self) -> str:
        """The prompt: the dialect unless it is the initial one, and a star inside a transaction."""
        dialect = "" if self.connection.dialect == DEFAULT_DIALECT else f":{self.connection.dialect}"
        return f"watersmeet{dialect}{'' if self.connection.autocommit else '*'}> "

    def feed(self, lines: Iterable[str]) -> int:
        r"""Runs the lines of a pipe as if they were typed, also after errors. Returns the exit code."""
        for text in _entries(lines, lambda: self.connection.dialect):
            if not self.enter(text):
                break
        return self.code

    def run(self, texts: Sequence[str], file: Path | None) -> int:
        """Runs the texts of the command line until an error. Returns the exit code."""
        for text in texts:
            if not self.enter(text) or self.code:
                return self.code
        if file is not None:
            self._include(str(file))
        return self.code

    def enter(self, text: str) -> bool:
        """Runs an entered command or statements. Returns False if the shell should end."""
        stripped = text.strip()
        word = stripped.rstrip(";").lower()
        if word in ("quit", "exit"):
            return False
        if word == "help":
            stripped = "\\?"
        if re.match(r"\\|\.[a-z]", stripped):
            return self._command(stripped)
        if ended := ENDED.search(text):
            self._last = text[: ended.start()]
            return self._command(ended.group().strip())
        if stripped:
            self._last = text
            self._execute(text)
        return True

    def _command(self, line: str) -> bool:
        """Runs a command. Returns False for the one that ends the shell."""
        name, _, rest = line.partition(" ")
        name, rest = name.rstrip(";"), rest.strip().rstrip(";").strip()
        usage = COMMANDS.get(name, ("", ""))[0]
        if usage and usage[0] != "[" and not rest:
            self._refuse(f"{name} needs an argument", f"Write {name} {usage}.")
        elif name in ("\\timing", "\\x"):
            self._switch(name, rest)
        elif name in _LISTS:
            pattern = rest.replace("'", "''").replace("*", "%").replace("?", "_")
            self._execute(f"SHOW {_LISTS[name]}" + (f" LIKE '{pattern}'" if pattern else ""))
        elif name == "\\d":
            self._execute(f"DESCRIBE {rest}" if rest else "SHOW RELATIONS")
        elif name == "\\l":
            self._execute("SHOW DATABASES")
        elif name == "\\sv":
            self._show_created(rest)
        elif name == "\\e":
            return self._edit(rest)
        elif name == "\\i":
            self._include(rest.strip("'\""))
        elif name == "\\copy":
            self._copy(rest)
        elif name == "\\watch":
            self._watch(rest)
        elif name == "\\gx":
            before, self._expanded = self._expanded, True
            self._execute(self._last)
            self._expanded = before
        elif name in ("\\?", "\\h", "\\help"):
            self._out.print(help_text(), markup=False, soft_wrap=True)
        elif name == "\\q":
            return False
        else:
            self._refuse(f"unknown command {name}", did_you_mean(name, COMMANDS) or "\\? lists the commands.")
        return True

    def _refuse(self, message: str, hint: str) -> None:
        self._report(error("INVALID_PARAMETER", message, hint=hint))

    def _report(self, err: Error) -> None:
        self.code = self.code or exit_code(err)
        print_error(err, console=self._err)

    def _switch(self, name: str, wanted: str) -> None:
        choices = {"on": True, "off": False}
        if wanted and wanted.lower() not in choices:
            self._refuse(f"{name} can't be {wanted}", f"Write {name} on or {name} off.")
        elif name == "\\timing":
            self._timing = choices.get(wanted.lower(), not self._timing)
            self._out.print(f"Timing is {'on' if self._timing else 'off'}.")
        else:
            self._expanded = choices.get(wanted.lower(), not self._expanded)
            self._out.print(f"Expanded display is {'on' if self._expanded else 'off'}.")

    def _show_created(self, name: str) -> None:
        """Prints the statement that created a relation as it was written."""
        try:
            relations = self.connection.execute("SHOW RELATIONS").fetchall()
            kind = {n.lower(): k for n, k in relations}.get(name.replace('"', "").lower(), "view")
            word = kind if kind in SHOWN_CREATED else "table"
            for _, sql in self.connection.execute(f"SHOW CREATE {word} {name}").fetchall():
                self._out.print(sql, markup=False, soft_wrap=True)
        except Error as err:
            self._report(err)

    def _edit(self, file: str) -> bool:
        """Opens an editor. A complete text is run; an incomplete one becomes the input of the next prompt."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(file.strip("'\"")).expanduser() if file else Path(folder) / "statement.sql"
            try:
                if not file:
                    path.write_text(self._last.strip() + "\n", encoding="utf-8")
                with Interrupts() as interrupts:
                    interrupts.armed = True  # Ctrl-C is for the editor
                    done = subprocess.run([*shlex.split(editor), str(path)], check=False)
                text = path.read_text(encoding="utf-8")
            except OSError as cause:
                self._refuse(f"{cause.filename or editor}: {cause.strerror}", "The variable EDITOR names the editor.")
                return True
        if done.returncode:
            self._refuse(f"{editor} ended with exit code {done.returncode}", "Nothing was run.")
        elif is_complete(text, self.connection.dialect):
            if not file:
                self._out.print(text.strip(), style="dim", markup=False, soft_wrap=True)
            return self.enter(text)
        else:
            self._draft = text.strip()
        return True

    def _copy(self, rest: str) -> None:
        """Runs COPY of a file, whose name needs no quotes and whose options may be words: `csv header`."""
        found = _COPY.fullmatch(rest)
        if found is None or found["file"].lower() in ("stdin", "stdout", "pstdin", "pstdout"):
            self._refuse(
                "\\copy copies between a table and a file",
                "Write \\copy TABLE FROM FILE or \\copy (QUERY) TO FILE, for example "
                "\\copy sales TO sales.csv CSV HEADER.",
            )
            return
        file = os.path.expanduser(found["file"].strip("'"))
        options = re.sub(r"^with\b\s*", "", found["options"], flags=re.IGNORECASE)
        if options and not options.startswith("("):
            words = [m.group() for m in _COPY_WORDS.finditer(options)]
            named = [f"FORMAT {w}" if w.lower() in ("csv", "json", "parquet") else w for w in words]
            options = f"({', '.join(named)})"
        self._execute(f"COPY {found['rows']} {found['way']} '{file}' {options}")

    def _watch(self, rest: str) -> None:
        """Repeats the last statement until Ctrl-C, an error, or the maximum number of times."""
        given = [_WATCHED.fullmatch(word) for word in rest.split()]
        if None in given or not self._last.strip():
            wrong = "no statement to repeat" if not self._last.strip() else f"\\watch can't be {rest}"
            self._refuse(wrong, "Write SELECT …; \\watch 2 c=10 for 10 times every 2 seconds.")
            return
        values = {name: v for m in given if m is not None for name, v in m.groupdict().items() if v}
        seconds, left = float(values.get("seconds", _WATCH_S)), int(values.get("count", -1))
        with Interrupts() as interrupts:
            while left:
                if self._out.is_terminal:
                    clock = time.strftime("%H:%M:%S")
                    self._out.print(f"{clock}, every {seconds:g} s; Ctrl-C ends", style="dim")
                if not self._execute(self._last):
                    return
                left -= 1
                interrupts.armed = True
                if left and interrupts.event.wait(seconds):
                    self._err.print()  # the terminal has written ^C
                    return
                interrupts.armed = False

    def _include(self, path: str) -> None:
        """Runs a script until an error. Afterwards a dialect that the script's folder has changed is restored."""
        dialect = dialect_of(path) if self._folders else None
        if dialect is None or dialect == self.connection.dialect:
            self._run_script(path)
            return
        before = self.connection.dialect
        self.connection.execute(f"SET dialect = '{dialect}'")
        self._run_script(path)
        self.connection.execute(f"SET dialect = '{before}'")

    def _run_script(self, path: str) -> None:
        """Runs a script, in which lines that begin with a backslash are commands."""
        try:
            text = read_script(os.path.expanduser(path))
        except Error as err:
            err.hint = err.hint or f"Relative names are relative to {Path.cwd()}."
            self._report(err)
            return
        entries = [text]
        if any(line.lstrip().startswith("\\") for line in text.splitlines()):
            entries = [*_entries(text.splitlines(keepends=True), lambda: self.connection.dialect)]
        line = 0
        for entry in entries:
            if entry.lstrip().startswith("\\"):
                before, self.code = self.code, 0
                goes_on = self._command(entry.strip()) and not self.code
                self.code = before or self.code
            else:
                padded = "\n" * line + entry  # so that errors name lines of the file
                goes_on = self._execute(padded, Script(path, padded))
            line += entry.count("\n")
            if not goes_on:
                return

    def _execute(self, sql: str, script: Script | None = None) -> bool:
        """Runs statements and prints their results. Prints an error and returns False. script: the file of the
        statements.
        """
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
            self._report(err)
            return False
        except KeyboardInterrupt:
            self._err.print("\ninterrupted" if self._err.is_terminal else "interrupted", style="yellow")
            return False
        return True

    def _follow(self, cursor: Cursor) -> None:
        """Shows the rows of a running query until its LIMIT or Ctrl-C."""
        print_notices(cursor.notices, self._err)
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
        """Reports once that the views have stopped, because no statement would report it."""
        found = status_of(self.connection).error
        if found is not None and found != self._shown:
            print_error(error_from_json(found), console=self._err)
        self._shown = found

    def _relations(self) -> Mapping[str, Sequence[str]]:
        """The columns of each relation by its name, for completion."""
        catalog = self.connection._session.catalog
        return {r.shown: [c.name for c in r.columns] for r in catalog.shown if r.is_named}


def run_shell(connection: Connection, texts: Sequence[str], file: Path | None, *, folders: bool) -> int:
    """Runs a shell with texts and a file, if there are any, else with standard input; returns its exit code. folders:
    see `Shell`.
    """
    shell = Shell(connection, folders=folders)
    if texts or file is not None:
        return shell.run(texts, file)
    if not sys.stdin.isatty():
        return shell.feed(sys.stdin)
    shell.interact()
    return 0


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
