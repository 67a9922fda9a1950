"""Simulated executors: tasks run in processes of their own, which die, are slow, and do things twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.simulation.world import Actor, Process, Violation, World
from watersmeet.circuit.circuit import Circuit
from watersmeet.errors import Error, error
from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.committer import job_of
from watersmeet.runtime.engine import Database
from watersmeet.runtime.taskcontract import RECEIPT, Intent, Receipt
from watersmeet.runtime.tasks import run_bucket, run_sources, run_whole
from watersmeet.runtime.workers import workers_elsewhere

Work = Callable[[], list[Frame]]

#: As often as Spark does.
_ATTEMPTS = 4


@dataclass(frozen=True)
class Troubles:
    """How likely a task's process dies, and a second attempt begins beside the first."""

    killed: float = 0.0
    twice: float = 0.0


class Workers:
    """Runs epochs in the place of `inprocess.run_epoch`."""

    def __init__(self, world: World, troubles: Troubles) -> None:
        self.world, self.troubles = world, troubles
        self._random = world.random("workers")
        self._processes: list[Process] = []
        self._started = 0

    def run_epoch(self, db: Database, circuit: Circuit, intent: Intent, failures: Mapping[str, Error]) -> list[Receipt]:
        """The receipts of an epoch."""
        if not intent.has_work:
            return []
        job = job_of(db, circuit, intent, workers_elsewhere(1), failures)
        if self._random.random() < 0.5:
            return _receipts(self._stage([lambda: run_whole(job)]))  # as small epochs are run
        tasks = range(max(1, len(intent.tasks)))
        frames = self._stage([lambda task=task: run_sources(job, task) for task in tasks])
        for stage in range(1, circuit.last_stage + 1):
            by_bucket: dict[int, list[Frame]] = {}
            for frame in frames:
                by_bucket.setdefault(frame.bucket, []).append(frame)
            for bucket in by_bucket.values():
                self._random.shuffle(bucket)  # as Spark's shuffle does
            frames = self._stage(
                [lambda stage=stage, found=found: run_bucket(job, stage, found) for found in by_bucket.values()]
            )
        return _receipts(frames)

    def _stage(self, works: Sequence[Work]) -> list[Frame]:
        """The frames of all tasks of a stage."""
        tasks = [_Task(self, work) for work in works]
        while pending := [task for task in tasks if not task.is_over]:
            for task in pending:
                if not task.is_tried:
                    task.begin()
            self.world.wait(lambda pending=pending: any(task.is_over or not task.is_tried for task in pending))
        return [frame for task in tasks for frame in task.frames()]

    def attempt(self, run: Callable[[], None]) -> Actor:
        """Lets an attempt of a task run in some process, which may be about to die."""
        self._processes = [p for p in self._processes if p.is_alive]
        if len(self._processes) < 2 or self._random.random() < 0.1:
            self._processes.append(self.world.start(f"worker{self._started}"))
        process = self._random.choice(self._processes)
        self._started += 1
        if self._random.random() < self.troubles.killed:
            self.world.later(1 + self._random.randrange(30), process.kill)
        return self.world.run_in(process, f"task{self._started}", run)

    def is_doubled(self) -> bool:
        """Whether another attempt begins beside one."""
        return self._random.random() < self.troubles.twice


class _Task:
    """One task. The first attempt that succeeds counts; others must come to the same, however late."""

    def __init__(self, workers: Workers, work: Work) -> None:
        self._workers, self._work = workers, work
        self._found: list[Frame] | None = None
        self._failures: list[Error] = []
        self._actors: list[Actor] = []

    @property
    def is_over(self) -> bool:
        return self._found is not None or (len(self._actors) >= _ATTEMPTS and not self.is_tried)

    @property
    def is_tried(self) -> bool:
        """Whether an attempt is under way."""
        return any(a.process.is_alive and not a.is_over for a in self._actors)

    def begin(self) -> None:
        """Begins an attempt, and maybe one beside it."""
        self._actors.append(self._workers.attempt(self._run))
        if self._workers.is_doubled():
            self._actors.append(self._workers.attempt(self._run))

    def frames(self) -> list[Frame]:
        """Raises why all attempts failed."""
        if self._found is not None:
            return self._found
        raise self._failures[-1] if self._failures else error("DATABASE_ACCESS", "all attempts of a task were killed")

    def _run(self) -> None:
        try:
            found = self._work()
        except Error as failure:
            self._failures.append(failure)
            return
        if self._found is None:
            self._found = found
        elif told(found) != told(self._found):
            raise Violation(f"a task that ran again came to {told(found)} in place of {told(self._found)}")


def _receipts(frames: Sequence[Frame]) -> list[Receipt]:
    return [Receipt.from_bytes(bytes(f.body)) for f in frames if f.channel == RECEIPT]


def told(frames: Sequence[Frame]) -> list[object]:
    """What frames say, whatever it took to find out."""
    return [
        _untimed(Receipt.from_bytes(bytes(f.body)))
        if f.channel == RECEIPT
        else (f.bucket, f.channel, f.seq, bytes(f.body))
        for f in frames
    ]


def _untimed(receipt: Receipt) -> Receipt:
    operators = {i: counts._replace(took_us=0) for i, counts in receipt.operators.items()}
    found = dict.fromkeys(("requests", "cache_hits", "cache_misses", "fetched_bytes", "began_ns", "took_ns"), 0)
    return replace(receipt, operators=operators, executor="", **found)
