"""Signals while a statement runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import watersmeet
from watersmeet.cli.output import Interrupts


def test_a_signal_that_was_ignored_stays_ignored():
    """As in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.event.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_first_signal_sets_the_event_once_armed():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            interrupts.armed = True
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.event.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


LONG = """
import os, sys, time
from watersmeet.cli import main, output
from watersmeet.runtime import inprocess

output._END_S = 0.5
run_epoch = inprocess.run_epoch

def long(db, circuit, intent, failures):
    receipts = run_epoch(db, circuit, intent, failures)
    if intent.slices and os.path.exists("slow"):
        print("in the epoch", flush=True)
        time.sleep(600)
    return receipts

inprocess.run_epoch = long
sys.argv = ["watersmeet", "run", "script.sql", "--path", "db", "--runtime", "inprocess", "--json"]
main()
"""


@pytest.mark.slow
def test_an_epoch_that_takes_too_long_is_dropped(tmp_path):
    """The process ends with 0 all the same, and the next one runs the epoch again."""
    (tmp_path / "in").mkdir()
    (tmp_path / "script.sql").write_text(
        f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}/in', format = 'json', settle_ms = 0);"
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM s;"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", LONG],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        process.stderr.readline()  # it shows its progress: from now on it ends in order
        (tmp_path / "slow").touch()
        (tmp_path / "in" / "1.json").write_text('{"a": 1}\n')
        assert process.stdout.readline() == "in the epoch\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert said.endswith("the epoch that runs takes too long: it is dropped\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert connection.execute("SELECT a FROM v").fetchall() == []
        connection.execute("FLUSH")
        assert connection.execute("SELECT a FROM v").fetchall() == [(1,)]


#: A command that stops where the test sends a signal: while it imports its modules, opens the database, runs a script,
#: or runs.
PAUSED = """
import importlib, sys, time
from watersmeet import cli

def pause(*_, **__):
    print("here", flush=True)
    time.sleep(600)

phase = sys.argv.pop(1)
if phase == "imports":
    importlib.import_module = pause
elif phase == "start":
    import watersmeet
    watersmeet.connect = pause
elif phase == "script":
    execute = importlib.import_module("watersmeet.session.connections.execute")
    execute.execute_statement = pause
else:
    from watersmeet.cli import serving
    say = serving.print_line
    serving.print_line = lambda text: print("here", flush=True)
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("phase", "code"), [("imports", 130), ("start", 130), ("script", 130), ("serving", 0)])
def test_exit_codes_of_signals(tmp_path, phase, code, number):
    """The table of docs/OPERATIONS.md."""
    (tmp_path / "script.sql").write_text("CREATE TABLE t (a int);")
    command = ["serve", "script.sql", "--path", "db", "--port", "0", "--runtime", "inprocess"]
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, phase, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout.readline() == "here\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in said
