"""Writes docs/CLI.md, the reference of the command line, from the commands and their options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from watersmeet.cli.commands import app
from watersmeet.cli.options import examples_of
from watersmeet.cli.shell import COMMANDS

PAGE = Path(__file__).parent.parent / "docs" / "CLI.md"

HEAD = """# Command line

All commands and options; a **bold** option is required. `scripts/cli_page.py` writes this page from the commands;
`watersmeet COMMAND --help` prints the same. Each option can be set by its environment variable; the command line has
precedence. Switches accept `true` and `false`. [Exit codes](OPERATIONS.md#running) are those of all commands.
"""


def page() -> str:
    """The text of the page."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return HEAD + "".join(line + "\n" for name in sorted(commands) for line in _lines(name, commands[name]))


def _lines(name: str, command: Any) -> Iterator[str]:
    yield from ("", f"## watersmeet {name}", "")
    yield from (*inspect.cleandoc(command.help).splitlines(), "", "```")
    yield from (f"$ {line}" for line in examples_of(command.epilog))
    yield "```"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (_row(f"`{_word(a)}`", a.help) for a in arguments)
    if options:
        yield from ("", "| option | environment variable | default | meaning |", "|---|---|---|---|")
        yield from (_row(_spelling(o), f"`{o.envvar}`" if o.envvar else "", _default(o), o.help) for o in options)
    if name == "shell":
        yield from ("", "| command | effect |", "|---|---|")
        yield from (_row(f"`{word} {usage}`".replace(" `", "`"), effect) for word, (usage, effect) in COMMANDS.items())


def _row(*cells: str) -> str:
    return "|" + "|".join(f" {' '.join(c.split()).replace('|', '/')} " if c else " " for c in cells) + "|"


def _word(argument: Any) -> str:
    return f"{argument.metavar or argument.name.upper()}{' …' if argument.nargs < 0 else ''}"


def _spelling(option: Any) -> str:
    shown = ", ".join(f"`{o}`" for o in (*option.opts, *option.secondary_opts))
    return f"**{shown}**" if option.required else shown


def _default(option: Any) -> str:
    value = option.default
    return "" if value in (None, False, "") else f"`{'true' if value is True else value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
