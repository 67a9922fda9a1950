"""Processes that deliver, and are killed or stopped at a named point: what the tests of all targets do with them.

The database has a table `t` with a column `v`, and at least one sink.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_KILLED = """
import os, signal, sys
import watersmeet
from watersmeet.system import process
from watersmeet.sinkwriters.writers import SinkWriters
path, point, count, statement, table = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:]
signal.alarm(300)  # or who waits for it would wait for ever
def kill(now):
    global count
    if now == point:
        count -= 1
        if not count:
            os.kill(os.getpid(), signal.SIGKILL)
with watersmeet.connect(path, runtime="inprocess") as connection:
    (n,), = connection.execute(f"SELECT max(v) FROM {table}").fetchall()
    for i in range(n + 1, 6):
        connection.execute(statement.format(i))
        process.set_hook(kill)
        connection.flush()
        for relation in connection._session.catalog.relations.values():
            assert connection._session.database.service(SinkWriters).wait(relation.id, 60)
"""

_PAUSED = """
import os, signal, sys, time
import watersmeet
from watersmeet.system import process
from watersmeet.sinkwriters.writers import SinkWriters
path, point, statement = sys.argv[1:]
signal.alarm(300)  # or who waits for it would wait for ever
def pause(now):
    if now == point:
        process.set_hook(None)
        os.kill(os.getpid(), signal.SIGSTOP)
connection = watersmeet.connect(path, runtime="inprocess")
process.set_hook(pause)
try:
    connection.execute(statement.format(1))
    connection.flush()
except watersmeet.Error as error:  # a thread that delivers may stop the process before all is done here
    assert error.condition == "WRITER_FENCED"
deliveries = connection._session.database.service(SinkWriters)
for relation in connection._session.catalog.relations.values():
    deliveries.wait(relation.id, 60)  # it goes on behind the pause, as all of the process does
sink = connection._session.catalog.by_name("s")
try:
    connection.execute(statement.format(-1))
except watersmeet.Error as error:
    print(error.condition)
while deliveries.status(sink.id).state in ("starting", "running", "retrying"):
    time.sleep(0.05)
print(deliveries.status(sink.id).state)
print(deliveries.status(sink.id).problem)
"""

UPDATE = "UPDATE t SET v = {}"


def killed_twice(path: Path, point: str, statement: str = UPDATE, table: str = "t") -> int:
    """Two processes change `v` of the table up to 5, a commit each, unless they come to the point for the first or
    second time. How many did.
    """
    killed = 0
    for count in (1, 2):
        ended = subprocess.run(
            [*_command(_KILLED, path, point), str(count), statement, table], env=_environment(), check=False
        )
        assert ended.returncode in (0, -signal.SIGKILL)
        killed += ended.returncode != 0
    return killed


def overtaken(path: Path, point: str, go_on: Callable[[int], None], statement: str = UPDATE) -> None:
    """A process that delivers `v` = 1 stops at the point. Its lock is lost meanwhile, as with an expired lease, and
    this process delivers 2; then the other one wakes up, and must deliver nothing more; then this one delivers 3.

    go_on: opens the database in this process if need be, and delivers a value.
    """
    command = [*_command(_PAUSED, path, point), statement]
    with subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True) as paused:
        try:
            _, status = os.waitpid(paused.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            (path / "LOCK").unlink()
            for held in (path / "readers").iterdir():
                held.unlink()
            go_on(2)
            paused.send_signal(signal.SIGCONT)
            told = paused.communicate(timeout=120)[0].splitlines()
            go_on(3)
        finally:
            paused.kill()
    assert told[:2] == ["WRITER_FENCED", "fenced"]
    assert told[2].startswith("WRITER_FENCED: ")


def _command(script: str, path: Path, point: str) -> list[str]:
    return [sys.executable, "-c", script, str(path), point]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
