"""The parent: writes inputs, asks, does harm, measures, and at the end compares with DuckDB."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak import workload
from tests.soak.measuring import Processors, Sample, look, middle
from watersmeet import connect
from watersmeet.runtime.memory import family, processes

_ROOT = Path(__file__).parents[2]
#: Files of the source are deleted after so long, if nothing is unread: as who rotates logs does.
_ROTATED_S = 60.0
_ENDS_S = 120.0
#: What the commands of processes have in common that run tasks, and of the one that tells Spark of epochs.
_TASKS = "watersmeet.runtime.spark.daemon pyspark.worker"
_SOURCE = "python_streaming_source_runner"


@dataclass(frozen=True)
class Plan:
    """What a soak does. Times are in seconds, 0: never.

    rate: transactions a second, each of them an epoch if the machine can do it. files_rate, file_rows: the source's.
    kill_worker_s: how often a process that runs tasks is killed. kill_source_s: the one that tells Spark of epochs,
    after which Spark's query is started again. restart_s: all of them.
    """

    seconds: float
    runtime: str = "spark"
    parallelism: int = 2
    rate: float = 20.0
    files_rate: float = 4.0
    file_rows: int = 55
    sample_s: float = 10.0
    select_s: float = 10.0
    late_s: float = 15.0
    kill_worker_s: float = 60.0
    kill_source_s: float = 0.0
    restart_s: float = 0.0
    window_s: int = 30
    seed: int = 1


class Child:
    """The process with the database."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        log = (directory / "child.log").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.served", str(directory / "db"), plan.runtime, str(plan.parallelism)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )
        log.close()
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **what: object) -> dict[str, object]:
        """What the child answers. RuntimeError with its error."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, *statements: str) -> tuple[list[list[object]] | None, float]:
        """(the rows of the last statement, how many seconds they all took)."""
        found = self.ask(sql=statements)
        return found["answer"], found["seconds"]

    def kill(self) -> None:
        """kill -9 of it, and of what it has started: Spark's Java would end by itself, but later."""
        family = processes(self.pid)
        for pid in (self.pid, *family.java, *family.workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        """Lets it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with the database ended: {self._process.wait()}")
        found = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found


class Soak:
    """One soak in `directory`, which must be empty. say: gets a line of text now and then."""

    def __init__(self, directory: Path, plan: Plan, say: Callable[[str], None] = print) -> None:
        self._directory = directory
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)
        self._source = directory / "in"
        self._source.mkdir()
        self.samples: list[Sample] = []
        self.files: list[workload.File] = []
        self.steps = 0
        self.faults: dict[str, int] = {"late file": 0, "worker killed": 0, "source killed": 0, "process killed": 0}
        self._rotated: deque[tuple[float, Path]] = deque()
        self._late: list[tuple[float, workload.File]] = []
        self._life = 1
        self._epoch = 0
        self._processors = Processors()
        self._times: dict[str, list[float]] = {"epoch_ms": [], "flush_ms": [], "select_ms": []}
        self._child = Child(directory, plan)
        for statement in (workload.schema(self._source, plan.window_s), workload.first_statements()):
            self._child.run(statement)
        self._began = time.monotonic()

    def run(self) -> None:
        """Works until the time is over, then lets everything come to its end and compares. AssertionError."""
        plan = self._plan
        chores = [
            _Chore(1 / plan.rate, self._step),
            _Chore(1 / plan.files_rate, self._file),
            _Chore(1.0, self._ask),
            _Chore(plan.select_s, self._select),
            _Chore(plan.late_s, self._late_file),
            _Chore(plan.kill_worker_s, lambda: self._kill("worker", _TASKS)),
            _Chore(plan.kill_source_s, lambda: self._kill("source", _SOURCE)),
            _Chore(plan.restart_s, self._restart),
            _Chore(plan.sample_s, self._sample),
        ]
        try:
            while (now := time.monotonic()) < self._began + plan.seconds:
                due = [c for c in chores if c.is_due(now)]
                for chore in due:
                    chore.run(now)
                if not due:
                    time.sleep(max(0.0, min(c.next_s for c in chores) - now))
            self._settle()
            self._compare()
        finally:
            self._child.close()

    def _step(self) -> None:
        self._child.run("BEGIN", *workload.change_table(self.steps), "COMMIT")
        self.steps += 1
        if self._plan.runtime == "inprocess":
            self._child.run("FLUSH")

    def _file(self) -> None:
        file = workload.File(len(self.files), self._plan.file_rows, time.time_ns() // 1000)
        self.files.append(file)
        self._put(file)
        now = time.monotonic()
        for due, late in [entry for entry in self._late if entry[0] <= now]:
            self._late.remove((due, late))
            self._put(late)
        while self._rotated and self._rotated[0][0] < now - _ROTATED_S:
            self._rotated.popleft()[1].unlink(missing_ok=True)

    def _put(self, file: workload.File) -> None:
        workload.write_file(self._source, file)
        self._rotated.append((time.monotonic(), self._source / file.name))

    def _late_file(self) -> None:
        """A file whose times are of now, but that comes later."""
        file = workload.File(len(self.files), self._plan.file_rows, time.time_ns() // 1000)
        self.files.append(file)
        self._late.append((time.monotonic() + workload.LATE_S, file))
        self.faults["late file"] += 1

    def _ask(self) -> None:
        status = self._child.ask(status=True)["answer"]
        assert status["error"] is None, status["error"]
        self._times["epoch_ms"].append(status["duration_us"] / 1000)

    def _select(self) -> None:
        for view, (columns, _) in workload.CHECKS.items():
            rows, seconds = self._child.run(f"SELECT {columns} FROM {view}")
            assert rows is not None
            self._times["select_ms"].append(seconds * 1000)
        with connect(self._directory / "db", read_only=True) as other:
            other.cursor().execute("SELECT count(*) FROM now_joined").fetchall()
        _, seconds = self._child.run("FLUSH")
        self._times["flush_ms"].append(seconds * 1000)

    def _kill(self, kind: str, command: str) -> None:
        """Kills one of the processes of that command. Not one that others come from: they would live on without
        anybody knowing whose they are.
        """
        found = [pid for pid in processes(self._child.pid).workers if command in _command(pid)]
        found = [pid for pid in found if len(family(pid)) == 1]
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(found), signal.SIGKILL)
            self.faults[f"{kind} killed"] += 1

    def _restart(self) -> None:
        self._child.kill()
        self._child = Child(self._directory, self._plan)
        self._life += 1
        self.faults["process killed"] += 1

    def _sample(self) -> None:
        status = self._child.ask(status=True)["answer"]
        epochs, self._epoch = status["epoch"] - self._epoch, status["epoch"]
        worked = self._processors.look(self._child.pid)
        times = {name: round(middle(values), 2) for name, values in self._times.items()}
        for name, values in self._times.items():
            # What was not asked since the last look is as it was.
            if not values and self.samples:
                times[name] = getattr(self.samples[-1], name)
            values.clear()
        seconds = round(time.monotonic() - self._began, 1)
        found = look(self._child.pid, self._directory / "db") | self._child.ask(kept=True)["answer"]
        each = {f"{kind}_processor_ms": round(worked_ms / max(1, epochs), 2) for kind, worked_ms in worked.items()}
        self.samples.append(Sample(seconds=seconds, life=self._life, epochs=epochs, **each, **times, **found))
        self._say(_line(self.samples[-1]))

    def _settle(self) -> None:
        """Lets late files come, the views reflect all, and the window by time run empty."""
        for _, late in self._late:
            self._put(late)
        ends = time.monotonic() + _ENDS_S
        while True:
            self._child.run("FLUSH")
            rows, _ = self._child.run("SELECT count(*) FROM lately")
            if rows == [[0]]:
                return
            assert time.monotonic() < ends, f"the window by time still has {rows} groups"
            time.sleep(1.0)

    def _compare(self) -> None:
        wanted = workload.expected(self.files, self.steps)
        for view, (columns, query) in workload.CHECKS.items():
            found, _ = self._child.run(f"SELECT {columns} FROM {view} ORDER BY 1")
            right = [list(row) for row in wanted.execute(f"{query} ORDER BY 1").fetchall()]
            assert right, view
            assert found == right, f"{view} differs from DuckDB's result"
        status = self._child.ask(status=True)["answer"]
        (source,) = status["sources"]
        rows = sum(f.rows for f in self.files)
        assert (source["rows"], source["dead"], source["late"]) == (rows, 0, 0), source


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return ""


class _Chore:
    """Something that is done every so many seconds; never, if that is 0."""

    def __init__(self, every_s: float, work: Callable[[], None]) -> None:
        self._every_s = every_s
        self._work = work
        self.next_s = time.monotonic() + every_s if every_s else float("inf")

    def is_due(self, now: float) -> bool:
        return now >= self.next_s

    def run(self, now: float) -> None:
        # What could not be done in time is not made up for.
        self.next_s = max(self.next_s + self._every_s, now)
        self._work()


def _line(s: Sample) -> str:
    return (
        f"{s.seconds:7.0f} s  main {s.main_bytes / 1e6:6.1f} + {s.main_mapped_bytes / 1e6:6.1f} MB  "
        f"workers {s.workers} {s.workers_bytes / 1e6:6.1f} + {s.workers_mapped_bytes / 1e6:6.1f}  "
        f"java {s.java_bytes / 1e6:6.0f}  files {s.files} {s.directory_bytes / 1e6:.1f} MB  fd {s.descriptors}  "
        f"threads {s.threads}  objects {s.objects}  arrow {s.arrow_bytes / 1e6:.1f}  "
        f"malloc {s.malloc_bytes / 1e6:.1f}  "
        f"epochs {s.epochs} of {s.epoch_ms:.0f} ms  processor {s.main_processor_ms:.0f} + {s.workers_processor_ms:.0f} "
        f"+ {s.java_processor_ms:.0f}  flush {s.flush_ms:.0f}  "
        f"select {s.select_ms:.0f}"
    )
