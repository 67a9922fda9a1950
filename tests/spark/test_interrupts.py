"""Ctrl-C while Spark starts: the command ends at once, says so, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: A slow machine may take so long for what this one does in seconds.
PATIENCE_S = 300


def processes_of(session: int) -> list[str]:
    found = subprocess.run(["ps", "-eo", "sess,stat,comm"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in found.splitlines()[1:]]
    return [command for owner, state, command, *_ in rows if owner == str(session) and state[0] != "Z"]


def until(reached, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("moment", ["Java was launched", "Spark has made its directories"])
def test_nothing_stays(tmp_path: Path, moment: str) -> None:
    script = tmp_path / "script.sql"
    script.write_text("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t;")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "watersmeet.cli.main", "run", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as child:
        try:
            if moment == "Java was launched":
                until(lambda: "java" in processes_of(child.pid), moment)
            else:
                until(lambda: any(scratch.glob("watersmeet-spark-*/local/*")), moment)
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=PATIENCE_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    assert (child.returncode, out, err) == (130, "", "interrupted\n")
    until(lambda: not processes_of(child.pid), "no process is left")
    assert not list(scratch.glob("watersmeet-*"))
