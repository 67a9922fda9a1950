"""The commands describe themselves: help, environment variables, and the reference page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from scripts import cli_page
from typer.main import get_command
from typer.testing import CliRunner

from watersmeet.cli.commands import app
from watersmeet.cli.options import examples_of

COMMANDS = get_command(app).commands


def test_the_reference_page_is_up_to_date():
    """If it is not: python scripts/cli_page.py."""
    assert cli_page.PAGE.read_text(encoding="utf-8") == cli_page.page()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_names_environment_variables(name):
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    words = " ".join(shown.split())  # long lines are folded
    command = COMMANDS[name]
    examples = examples_of(command.epilog)
    assert examples
    assert all(example in shown for example in examples)
    options = [p for p in command.params if p.param_type_name == "option" and not p.multiple]
    assert [p.name for p in options if f"env var: {p.envvar}" not in words] == []


CALLS = [
    shlex.split(re.split(" [|<>] ", part)[0])[1:]
    for command in COMMANDS.values()
    for example in examples_of(command.epilog)
    for part in re.findall(r"(?:^|\| )(watersmeet .*)", example)
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_examples_are_accepted(call, monkeypatch, tmp_path):
    """Their options and arguments are those of the commands. Nothing is run."""
    monkeypatch.chdir(tmp_path)
    for word in call:
        if word.endswith("/"):
            (tmp_path / word).mkdir()
        elif "." in word and " " not in word and "://" not in word:
            (tmp_path / word).parent.mkdir(exist_ok=True)
            (tmp_path / word).touch()
    COMMANDS[call[0]].make_context(call[0], call[1:])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_command(shell):
    script = CliRunner().invoke(app, ["completion", shell]).stdout
    assert f"_WATERSMEET_COMPLETE=complete_{shell}" in script


def test_commands_and_options_are_completed():
    found = subprocess.run(
        [sys.executable, "-m", "watersmeet"],
        env=os.environ
        | {"_WATERSMEET_COMPLETE": "complete_bash", "COMP_WORDS": "watersmeet query --c", "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["--csv"]
