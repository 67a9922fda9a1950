"""Runs the examples of a page of documentation, in order, as a reader would who copies them.

- A block whose first line is `-- name.sql`, `# name.py` or `# name.slt` is a file of that name.
- In a `console` block a line behind `$ ` is a command, what follows is what it prints; `…` is any words or lines.
- A `python` block without a name is run; `print(x)  # y` prints y.
- A command that ends in ` &` runs until the page ends; `psql` is skipped with the rest of its page where it is missing.
- Commands that set up are not run: they are what makes the tests run. Nor is what a `sh` block lists: its commands,
  options and targets of make have to exist.
- Ports 5433 and 8080 stand for free ports.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app

ROOT = Path(__file__).parents[1]
_SET_UP = ("git ", "make ", "cd ", "python3 -m venv", ".venv/bin/pip ")
_PORTS = ("5433", "8080")
_RUNS = ("run", "shell", "test")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block."""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield found[1], found[2]


class Page:
    """The examples of one page, run in the current directory. runtime: of all commands and connections."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._names: dict[str, Any] = {}
        self._ports = {port: str(free_port()) for port in _PORTS}
        self._running: list[subprocess.Popen[bytes]] = []
        self.examples = 0

    def run(self, text: str) -> None:
        """AssertionError for the first example that gives something else than the page says."""
        try:
            self._run(text)
        finally:
            for process in self._running:
                process.terminate()
                process.wait(60)

    def _run(self, text: str) -> None:
        for language, block in blocks(text):
            named = re.match(r"(?:--|#) ([\w./-]+\.(?:sql|py|slt))\n", block)
            if named:
                Path(named[1]).write_text(block, encoding="utf-8")
            elif language == "console":
                self._console(block)
            elif language == "python":
                self._python(block)
            elif language == "sh":
                for line in block.splitlines():
                    check_command(line)
            else:
                assert language in ("", "text"), f"a block of {language} is neither a file nor run"

    def _console(self, block: str) -> None:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, wanted = part.partition("\n")
            self.examples += 1
            if not command.startswith(_SET_UP):
                found = self._command(command)
                assert fits(found, wanted), f"$ {command}\n{found}"

    def _command(self, command: str) -> str:
        for port, free in self._ports.items():
            command = command.replace(port, free)
        words = shlex.split(command)
        if words[-1] == "&":
            self._start(words[:-1])
            return ""
        if words[0] == "psql" and shutil.which("psql") is None:
            pytest.skip("psql is not installed")
        if words[0] == ".venv/bin/watersmeet":
            more = ["--runtime", self._runtime] if words[1] in _RUNS else []
            result = CliRunner().invoke(app, [*words[1:], *more])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert (result.exit_code == 0) == ("error[" not in result.output), result.output
            return result.output
        if words[0] == ".venv/bin/python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self._exec(Path(words[1]).read_text(encoding="utf-8"), {"__name__": "__main__"})
            return out.getvalue()
        return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout

    def _start(self, words: list[str]) -> None:
        """Starts a server, and returns when it accepts connections."""
        assert words[:2] == [".venv/bin/watersmeet", "serve"], words
        words = [sys.executable, "-m", "watersmeet", *words[1:], "--port", self._ports["5433"]]
        self._running.append(subprocess.Popen(words))
        while True:
            assert self._running[-1].poll() is None, "the server has ended"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self._ports["5433"]))):
                return
            time.sleep(0.1)

    def _python(self, block: str) -> None:
        self.examples += 1
        printed: list[str] = []
        self._names["print"] = lambda *values: printed.append(" ".join(str(v) for v in values))
        self._exec(block, self._names)
        assert printed == re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE), printed

    def _exec(self, text: str, names: dict[str, Any]) -> None:
        connect = functools.partial(watersmeet.connect, runtime=self._runtime)
        with mock.patch.object(watersmeet, "connect", connect):
            exec(compile(text, "a page", "exec"), names)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def check_command(line: str) -> None:
    """AssertionError if a command of ours, an option of it or a target of make does not exist."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), line
        return
    assert words[0] == ".venv/bin/watersmeet", line
    command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    options = {o for p in command.params for o in p.opts}
    assert {w for w in words[2:] if w.startswith("-")} <= options, line


def fits(found: str, wanted: str) -> bool:
    """Whether the lines are those that are wanted, but for white space at their ends."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r" *\n"
        for line in wanted.strip("\n").split("\n")
    )
    return re.fullmatch(pattern, found.strip("\n") + "\n") is not None
