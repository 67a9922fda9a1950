"""Signals to commands on Spark: Ctrl-C while it starts ends at once, says so, and leaves nothing behind; SIGTERM in an
epoch that takes too long drops the epoch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import watersmeet

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


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["Java was launched", "Spark has made its directories"])
def test_nothing_stays(tmp_path: Path, moment: str) -> None:
    script = tmp_path / "script.sql"
    script.write_text("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t;")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "watersmeet", "run", str(script)],
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


LONG = """
import os, sys, time
from watersmeet.cli import main, output
from watersmeet.runtime.spark.jobs import EpochRunner

output._END_S = 0.5
run = EpochRunner.run

def long(self, circuit, intent, *failing):
    receipts = run(self, circuit, intent, *failing)
    if intent.slices and os.path.exists("slow"):
        print("in the epoch", flush=True)
        time.sleep(600)
    return receipts

EpochRunner.run = long
sys.argv = ["watersmeet", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("command", "ready", "code"),
    [
        pytest.param(("run", "--json"), "{", 0, id="run"),
        pytest.param(("serve", "--port", "0"), "listening on", 0, id="serve", marks=pytest.mark.thorough),
        pytest.param(("run",), "", 130, id="script"),
    ],
)
def test_an_epoch_that_takes_too_long_is_dropped(
    tmp_path: Path, command: tuple[str, ...], ready: str, code: int
) -> None:
    """Its tasks have written what they had to, but nothing of it is committed; the next process runs it again.

    ready: how the line begins after which it ends in order; "": a statement of the script waits for the epoch.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "script.sql").write_text(
        f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}/in', format = 'json', settle_ms = 0);"
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM s;"
    )
    if not ready:
        (tmp_path / "slow").touch()
        (tmp_path / "in" / "1.json").write_text('{"a": 1}\n')
    with subprocess.Popen(
        [sys.executable, "-c", LONG, *command, "script.sql", "--path", "db", "--parallelism", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            while ready and not process.stderr.readline().startswith(ready):
                assert process.poll() is None
            (tmp_path / "slow").touch()
            (tmp_path / "in" / "1.json").write_text('{"a": 1}\n')
            assert process.stdout.readline() == "in the epoch\n"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code
    assert "the epoch that runs takes too long: it is dropped\n" in said
    until(lambda: not processes_of(process.pid), "no process is left")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        if ready:  # otherwise the next process goes on filling the view
            assert connection.execute("SELECT a FROM v").fetchall() == []
        connection.execute("FLUSH")
        assert connection.execute("SELECT a FROM v").fetchall() == [(1,)]
