"""Tests hold wherever they are started: a few of each kind, in surroundings in which all that may be missing is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Text tests of times and of the order of results, a signal, and commands in and beside the process.
TESTS = (
    "tests/slt/test_text.py::test_in_process[3-risingwave/time-windows.slt]",
    "tests/slt/test_text.py::test_in_process[3-risingwave/set-operations.slt]",
    "tests/unit/kernel/test_duck.py",
    "tests/unit/cli/test_commands.py::test_a_script_without_sources_runs_to_its_end",
    "tests/unit/cli/test_commands.py::test_a_signal_ends_a_running_script_cleanly",
    "tests/unit/session/test_bad_disk.py::test_a_second_process_that_would_write_is_refused",
)
#: A shell without job control starts what runs in the background so; nor has it a terminal or any input.
IN_THE_BACKGROUND = 'trap "" INT; umask 077; exec "$0" "$@" <&-'


@pytest.mark.slow
@pytest.mark.parametrize(
    "surroundings",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "TZ": "Pacific/Apia", "FORCE_COLOR": "1", "COLUMNS": "40"},
        {"LC_ALL": "C.UTF-8", "TZ": "America/St_Johns", "HOME": "/nonexistent", "NO_COLOR": "1", "CI": "true"},
    ],
    ids=["ascii", "no-home"],
)
def test_tests_hold(tmp_path, surroundings):
    scratch = tmp_path / "temporary files"
    scratch.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "WATERSMEET_FRESH") if name in os.environ}
    # A cache that can't be written, as in a source tree that is read only.
    options = ["-q", "-p", "no:xdist", "-m", "", "-o", "cache_dir=/dev/null/cache", "--color=no"]
    done = subprocess.run(
        ["sh", "-c", IN_THE_BACKGROUND, sys.executable, "-m", "pytest", *options, *TESTS],
        cwd=ROOT,
        env=kept | {"TMPDIR": str(scratch), "PYTHONHASHSEED": "77"} | surroundings,
        start_new_session=True,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), done.stdout
