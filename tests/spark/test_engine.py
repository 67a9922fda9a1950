"""The engine on Spark: the same results as without, through kills, at one bucket and several."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests import waiting
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

import watersmeet
from watersmeet.connectors.files.source import FileSource
from watersmeet.errors import Error, again, error
from watersmeet.planner import compile_view
from watersmeet.runtime import workers
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.memory import processes
from watersmeet.runtime.spark import engine, jobs, session
from watersmeet.runtime.spark.engine import SparkEngine
from watersmeet.runtime.spark.source import ATTEMPTS
from watersmeet.runtime.spark.standing import StandingTasks
from watersmeet.runtime.workers import Budget

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
#: A slow machine may take so long for what this one does in seconds.
PATIENCE_S = 300
#: Other tests run all epochs in workers.
RUNS_HERE = jobs.EpochRunner._runs_here


def small(db):
    return Coordinator(db, budget=Budget(first_rows=64, max_rows=256))


_engines = []
_children = []


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    """What a failed test leaves running would hold Spark, or take the processors from all that come after it. It ends
    before the folder of the test goes.
    """
    yield
    while _children:
        with _children.pop() as child:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    while _engines:
        _engines.pop().stop()


def open_kit(path, buckets, make_coordinator=Coordinator):
    def make(db):
        _engines.append(SparkEngine(db, parallelism=buckets, make_coordinator=make_coordinator))
        return _engines[-1]

    return Kit(path, buckets=buckets, make_engine=make)


class Late:
    """A query that Spark ended because a Python process came too late."""

    isActive = False

    def exception(self):
        return "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"

    def stop(self):
        pass


def end_query(kit):
    """As if Spark had ended the query so: the engine, which looks now and then, sees nothing in between."""
    kit.engine._starter.join()
    with kit.engine._changed:
        ended, kit.engine._query = kit.engine._query, None
    ended.stop()  # without the lock, which its last batch may need
    with kit.engine._changed:
        kit.engine._query = Late()
    return ended


@pytest.mark.slow
def test_a_query_whose_process_came_too_late_is_started_again(tmp_path):
    kit = open_kit(tmp_path / "db", 2)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.flush()
    ended = end_query(kit)
    kit.change(a=[(1, "y", 1), (2, "z", 1)])
    kit.engine.flush()
    kit.check()
    assert kit.engine.status().state == "running"
    assert kit.engine._query.id != ended.id
    kit.close()


def _source_runners():
    return [p for p in processes().workers if "python_streaming_source_runner" in command_of(p)]


@pytest.mark.slow
def test_a_query_whose_process_died_is_started_again(tmp_path):
    """The process that tells Spark of new epochs is killed, as a machine without memory does: again and again."""
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.engine._starter.join()
    for number in range(2):
        ended = kit.engine._query
        waiting.until(lambda: len(_source_runners()) == 1)  # another one may just be on its way
        os.kill(*_source_runners(), signal.SIGKILL)
        kit.change(a=[(number, "x", 1)], b=[(number, 2, 1)])
        kit.engine.flush()
        kit.check()
        assert kit.engine.status().state == "running"
        deadline = time.monotonic() + PATIENCE_S
        while kit.engine._query.id == ended.id:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    kit.close()


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


@pytest.mark.slow
def test_a_query_that_fails_again_and_again_fails_the_engine(tmp_path, monkeypatch):
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    waiting.until(lambda: kit.engine._in_batches)
    monkeypatch.setattr(engine, "start_query", lambda *_: Late())
    end_query(kit)
    with pytest.raises(Error, match="Spark ended the query"):
        kit.view("joined", *JOINED)
    kit.close()


class Preparing:
    """A query whose first micro-batch never begins."""

    id = "preparing"
    isActive = True

    def stop(self):
        pass


def test_the_first_view_does_not_wait_for_the_first_micro_batch(tmp_path, monkeypatch):
    """For it Spark starts two Python processes, after the query has started. Nothing keeps running at the end."""
    monkeypatch.setattr(engine, "start_query", lambda *_: Preparing())
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.change(a=[(1, "y", 1), (2, "z", 1)])
    kit.engine.flush()
    kit.check()
    kit.engine._starter.join()
    threads = kit.engine._threads
    assert [t.is_alive() for t in threads] == [False, True, True]
    kit.close()
    assert [t.is_alive() for t in threads] == [False, False, False]


class Slow:
    """Parts of Spark that start only when the test allows it; and the epochs that ran in the driver."""

    def __init__(self, monkeypatch):
        self.allowed = threading.Event()
        self.here = []
        monkeypatch.setattr(jobs.EpochRunner, "_runs_here", RUNS_HERE)
        stand, start_query, run_here = StandingTasks._stand, engine.start_query, jobs.run_here
        monkeypatch.setattr(StandingTasks, "_stand", lambda *given: (self.allowed.wait(), stand(*given)))
        monkeypatch.setattr(engine, "start_query", lambda *given: (self.allowed.wait(), start_query(*given))[1])
        monkeypatch.setattr(jobs, "run_here", lambda job: (self.here.append(job.intent.epoch), run_here(job))[1])


@pytest.mark.parametrize("buckets", [1, 2])
def test_the_first_epochs_wait_for_nothing_of_spark(tmp_path, monkeypatch, buckets):
    """They run in the driver, and those after Spark's first worker has started run there, with the same state."""
    slow = Slow(monkeypatch)
    kit = open_kit(tmp_path / "db", buckets)
    two_tables(kit)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.change(a=[(1, "y", 1), (2, "z", 1)])
    kit.engine.flush()
    kit.check()
    here = list(slow.here)
    assert here[-1] == kit.log.last_epoch().epoch
    slow.allowed.set()
    waiting.until(lambda: not kit.engine._runner._standing.are_starting, PATIENCE_S)
    kit.view("grouped", *GROUPED)
    kit.change(a=[(1, "y", -1)], b=[(2, 5, 1)])
    kit.engine.flush()
    kit.check()
    assert slow.here == here
    kit.close()


def test_large_epochs_wait_for_the_first_worker(tmp_path, monkeypatch):
    slow = Slow(monkeypatch)
    monkeypatch.setattr(jobs, "SMALL_ROWS", 10)
    run = StandingTasks.run
    monkeypatch.setattr(StandingTasks, "run", lambda *given: (slow.allowed.set(), run(*given))[1])
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.change(a=[(i, "x", 1) for i in range(100)], b=[(i, 2, 1) for i in range(100)])
    kit.view("joined", *JOINED)
    kit.check()
    assert slow.allowed.is_set()
    assert kit.log.last_epoch().epoch not in slow.here
    kit.close()


def test_an_error_of_the_files_in_the_driver_is_not_the_last_word(tmp_path, monkeypatch):
    """As for a task of Spark, which Spark repeats."""
    slow = Slow(monkeypatch)

    def failing(job):
        slow.here.append(job.intent.epoch)
        slow.allowed.set()
        raise OSError(5, "input/output error")

    monkeypatch.setattr(jobs, "run_here", failing)
    kit = open_kit(tmp_path / "db", 2)
    two_tables(kit)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.check()
    assert slow.here
    kit.close()


@pytest.mark.slow
def test_epochs_in_the_driver_and_in_workers_share_one_state(tmp_path, monkeypatch):
    slow = Slow(monkeypatch)
    slow.allowed.set()
    rng = random.Random(4)
    monkeypatch.setattr(StandingTasks, "are_starting", property(lambda _: rng.random() < 0.5))
    kit = open_kit(tmp_path / "db", 2)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("total", *TOTAL)
    rows = []
    for number in range(20):
        rows.append((rng.randrange(5), "x", 1))
        gone = [(k, x, -n) for k, x, n in rows if rng.random() < 0.1]
        rows = [r for r in rows if (r[0], r[1], -1) not in gone]
        kit.change(a=[rows[-1]] if rows else [], b=[(rng.randrange(5), number, 1)])
        kit.engine.flush()
        kit.check()
    assert 0 < len(slow.here) < kit.log.last_epoch().epoch
    kit.close()


def test_an_engine_can_stop_while_its_query_starts(tmp_path, monkeypatch):
    began = threading.Event()
    start = engine.start_query
    monkeypatch.setattr(engine, "start_query", lambda *given: (began.set(), start(*given))[1])
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    began.wait()
    starter = kit.engine._starter
    kit.engine.stop()
    assert kit.engine._query is None
    assert not starter.is_alive()
    kit.close()


def test_an_engine_that_ends_spark_does_not_wait_for_its_query_to_start(tmp_path, monkeypatch):
    began, ended, found = threading.Event(), threading.Event(), []

    def start_query(*_):
        began.set()
        found.append(ended.wait(PATIENCE_S))
        raise ConnectionError

    release = engine.release
    monkeypatch.setattr(engine, "_STOP_S", 2 * PATIENCE_S)
    monkeypatch.setattr(engine, "start_query", start_query)
    monkeypatch.setattr(engine, "release", lambda session: (release(session), ended.set()))
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    assert began.wait(PATIENCE_S)
    kit.engine.stop()
    assert found == [True]
    assert kit.engine.failure is None
    kit.close()


def test_a_query_that_has_started_after_the_engine_was_stopped_is_stopped(tmp_path, monkeypatch):
    stopped = []

    class Started(Preparing):
        def stop(self):
            stopped.append(self)

    def start_query(*_):
        waiting.until(lambda: kit.engine._stopping)
        return Started()

    monkeypatch.setattr(engine, "start_query", start_query)
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    began = threading.Event()
    monkeypatch.setattr(engine, "register_source", lambda _: began.set())
    kit.engine.start()
    assert began.wait(PATIENCE_S)
    waiting.until(lambda: kit.engine._notifier is not None)
    kit.engine.stop()
    assert len(stopped) == 1
    assert kit.engine._query is None
    kit.close()


def test_an_error_of_the_start_of_the_query_fails_the_engine(tmp_path, monkeypatch):
    def refused(*_):
        raise error("RUNTIME_UNAVAILABLE", "no query today")

    monkeypatch.setattr(engine, "start_query", refused)
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.engine._starter.join()
    with pytest.raises(Error, match="no query today"):
        kit.engine.flush()
    assert kit.engine.status().state == "failed"
    kit.close()


def test_an_unknown_error_of_the_start_of_the_query_names_the_query(tmp_path, monkeypatch):
    def refused(*_):
        raise ValueError("no port")

    monkeypatch.setattr(engine, "register_source", refused)
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.engine._starter.join()
    with pytest.raises(Error, match="Spark did not start the query") as raised:
        kit.engine.flush()
    assert (raised.value.condition, raised.value.detail) == ("VIEW_FAILED", "no port")
    kit.close()


def cancelled_jobs(kit, monkeypatch, most):
    """Lets the first `most` jobs of epochs run until they are cancelled. Returns the errors of these jobs."""
    run_job, found = jobs.EpochRunner._run_job, []

    def endless(batches):
        while True:
            time.sleep(1)
            yield from ()

    def cancelled(self, job, frames):
        if len(found) == most:
            return run_job(self, job, frames)
        context = self._spark.sparkContext
        ended = threading.Event()

        def cancel():
            while not ended.wait(0.05):
                context.cancelAllJobs()

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            return run_job(self, job, self._spark.range(1).mapInArrow(endless, "a int"))
        except Exception as cause:
            found.append(cause)
            raise
        finally:
            ended.set()
            thread.join()

    monkeypatch.setattr(StandingTasks, "slots", 0)
    monkeypatch.setattr(jobs.EpochRunner, "_run_job", cancelled)
    return found


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_epoch_whose_job_somebody_cancels_is_run_again(tmp_path, monkeypatch, shuffled):
    if shuffled:
        monkeypatch.setattr(jobs, "SMALL_ROWS", -1)
    kit = open_kit(tmp_path / "db", 2)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    found = cancelled_jobs(kit, monkeypatch, 2)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.flush()
    assert len(found) == 2
    kit.check()
    kit.close()


def test_an_epoch_whose_job_is_always_cancelled_fails_the_engine(tmp_path, monkeypatch):
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    with monkeypatch.context() as patched:
        found = cancelled_jobs(kit, patched, -1)
        kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
        with pytest.raises(Error, match="the Spark job of an epoch was cancelled"):
            kit.engine.flush()
    assert len(found) == ATTEMPTS + 1
    kit.engine.start()
    kit.engine.flush()
    kit.check()
    kit.close()


def test_the_first_epochs_end_with_the_first_micro_batch(tmp_path):
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    *_, first = kit.engine._threads
    waiting.until(lambda: not first.is_alive())
    assert kit.engine._in_batches
    kit.view("joined", *JOINED)
    kit.change(a=[(1, "x", 1)], b=[(1, 2, 1)])
    kit.engine.flush()
    kit.check()
    kit.close()


@pytest.mark.parametrize(
    ("buckets", "shuffled"),
    [(2, True), *(pytest.param(*other, marks=pytest.mark.slow) for other in [(1, False), (2, False), (3, True)])],
)
def test_views_follow_changes(tmp_path, buckets, shuffled, monkeypatch):
    if shuffled:
        monkeypatch.setattr(jobs, "SMALL_ROWS", -1)
    rng = random.Random(buckets)
    kit = open_kit(tmp_path / "db", buckets, small)
    two_tables(kit)
    kit.engine.start()
    kit.change(a=[(rng.randrange(40), str(i % 3), 1) for i in range(300)])
    kit.view("joined", *JOINED)
    kit.check()
    kit.change(b=[(rng.randrange(40), i, 1) for i in range(100)])
    kit.view("grouped", *GROUPED)
    kit.view("total", *TOTAL)
    for _ in range(3):
        kit.change(a=[(rng.randrange(40), "new", 1)], b=[(rng.randrange(40), 7, 1)])
        kit.change(b=[(1, 1, 1), (1, 1, -1), (2, 3, 2)])
        commit = kit.engine.flush()
        assert commit.frontier.transaction == kit.log.read(kit.log.head()).last_transaction
        kit.check()
    status = kit.engine.status()
    assert status.state == "running"
    assert status.behind == 0
    kit.close()
    shutil.rmtree(kit.layout.checkpoint)
    kit = kit.reopen()
    kit.engine.start()
    kit.change(a=[(0, "after", 1)])
    kit.engine.flush()
    kit.check()
    kit.close()


class Held(Coordinator):
    """It plans nothing while it is held."""

    is_held = False

    def plan(self, now_us, **options):
        return None if Held.is_held else super().plan(now_us, **options)


def test_a_failing_task_stops_the_views_that_read_what_is_damaged(tmp_path, monkeypatch):
    kit = open_kit(tmp_path / "db", 2, Held)
    two_tables(kit)
    kit.engine.start()
    joined = kit.view("joined", *JOINED)
    with monkeypatch.context() as patched:
        patched.setattr(Held, "is_held", True)
        commit = kit.change(a=[(1, "x", 1)])
        blob = commit.relations[kit.catalog.by_name("a").id].blobs[0]
        os.truncate(kit.layout.segment(blob.file), 10)
    kit.engine.flush()
    failed = kit.log.progress().failed
    assert {i: f["condition"] for i, f in failed.items()} == {joined.id: "DATABASE_DAMAGED"}
    assert kit.engine.status().state != "failed"
    kit.change(b=[(1, 2, 1)])
    kit.engine.flush()
    kit.close()


@pytest.mark.slow
def test_epochs_go_on_while_nobody_asks(tmp_path):
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    commit = kit.change(a=[(1, "x", 1)])
    deadline = time.monotonic() + PATIENCE_S
    while kit.log.last_epoch().frontier.transaction < commit.number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kit.check()
    kit.close()


def test_a_micro_batch_runs_epochs_that_are_planned_meanwhile(tmp_path, monkeypatch):
    """Spark's own work for each micro-batch is not in the way of rows that come one after the other."""
    monkeypatch.setattr(engine, "_LINGER_S", PATIENCE_S)
    batches = []
    run = SparkEngine._run_planned
    monkeypatch.setattr(
        SparkEngine, "_run_planned", lambda self, batch, number: (batches.append(number), run(self, batch, number))
    )
    kit = open_kit(tmp_path / "db", 1)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.engine._starter.join()
    kit.change(a=[(5, "x", 1)], b=[(5, 2, 1)])  # the first epoch that the query sees
    kit.engine.flush()
    waiting.until(lambda: batches)
    before = len(batches)
    for i in range(5):
        kit.change(a=[(i, "x", 1)], b=[(i, 2, 1)])
        kit.engine.flush()
    assert len(batches) == before
    kit.check()
    kit.close()


@pytest.mark.slow
def test_two_databases_at_once(tmp_path):
    kits = [open_kit(tmp_path / f"db{i}", 2) for i in range(2)]
    for kit in kits:
        two_tables(kit)
        kit.engine.start()
        kit.view("joined", *JOINED)
    for number in range(3):
        for i, kit in enumerate(kits):
            kit.change(a=[(number, f"of {i}", 1)], b=[(number, i, 1)])
        for kit in kits:
            kit.engine.flush()
            kit.check()
    for kit in kits:
        kit.close()


@pytest.mark.slow
def test_rebuild_for_other_buckets(tmp_path):
    kit = open_kit(tmp_path / "db", 2, small)
    two_tables(kit)
    kit.engine.start()
    kit.change(a=[(i % 11, "x", 1) for i in range(300)], b=[(i % 7, i, 1) for i in range(300)])
    kit.view("joined", *JOINED)
    relation = kit.catalog.by_name("joined")
    kit.buckets = 3
    kit.views = {relation.id: compile_view(JOINED[0](kit), relation, {})}
    kit.engine.rebuild(kit.circuit())
    kit.check()
    kit.change(a=[(1, "y", 1)])
    kit.engine.flush()
    kit.check()
    kit.close()


@pytest.mark.slow
def test_python_workers_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "SMALL_ROWS", -1)
    kit = open_kit(tmp_path / "db", 2)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    rng = random.Random(1)
    for number in range(5):
        kit.change(
            a=[(rng.randrange(9), "x", 1) for _ in range(50)], b=[(rng.randrange(9), number, 1) for _ in range(50)]
        )
        time.sleep(rng.random() * 0.1)
        for line in subprocess.run(
            ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout.splitlines():
            pid, _, command = line.split(None, 2)
            if "watersmeet.runtime.spark.daemon pyspark.worker" in command and os.getpid() in ancestors(int(pid)):
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(int(pid), signal.SIGKILL)
        kit.engine.flush()
        kit.check()
    kit.close()


def ancestors(pid):
    found = []
    while pid > 1:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
        except OSError:
            break
    return found


def run(code, *arguments, variables=None, **options):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **(variables or {})}
    _children.append(
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
    )
    return _children[-1]


def processes_of(group):
    found = subprocess.run(
        ["ps", "-eo", "pid,sess,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in found if line.split(None, 2)[1] == str(group)]


BODY = """
import sys, time
from tests.unit.runtime.kit import *
from watersmeet.runtime.spark.engine import SparkEngine
from watersmeet.connectors.files.source import FileSource
from watersmeet.runtime.spark.jobs import EpochRunner
EpochRunner._runs_here = lambda *_: False  # as in conftest
spark = None
{before}
kit = Kit(sys.argv[1], make_engine=lambda db: SparkEngine(db, spark))
two_tables(kit)
kit.engine.start()
kit.view("joined", *JOINED)
kit.change(a=[(1, "x", 1)])
kit.engine.flush()
kit.check()
print("ready", flush=True)
{after}
"""


@pytest.mark.slow
def test_leaves_no_process_and_no_output_even_when_not_closed(tmp_path):
    scratch = tmp_path / "temporary files"
    scratch.mkdir()
    child = run(BODY.format(before="", after=""), str(tmp_path / "db"), variables={"TMPDIR": str(scratch)})
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out, err) == (0, "ready\n", "")
    deadline = time.monotonic() + PATIENCE_S
    while processes_of(child.pid):
        assert time.monotonic() < deadline, processes_of(child.pid)
        time.sleep(0.1)


@pytest.mark.slow
def test_a_driver_that_is_killed_while_a_task_stands_leaves_no_process(tmp_path):
    before = """
import os, signal
from watersmeet.runtime.spark.standing import StandingTasks
StandingTasks._receive = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
    child = run(BODY.format(before=before, after=""), str(tmp_path / "db"))
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (-signal.SIGKILL, ""), err
    waiting.until(lambda: not processes_of(child.pid), PATIENCE_S)


@pytest.mark.slow
def test_ctrl_c_is_for_the_driver_alone(tmp_path):
    # The line that the test waits for is printed inside the try: a signal may come while print still returns.
    after = """
try:
    print("waiting", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    kit.change(a=[(2, "after", 1)])
    kit.engine.flush()
    kit.check()
    kit.close()
    print("closed")
"""
    child = run(BODY.format(before="", after=after), str(tmp_path / "db"))
    assert child.stdout.readline() == "ready\n"
    assert child.stdout.readline() == "waiting\n"
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    # A machine that is busy may take longer than Spark waits for a process of Python: then the engine warns of it.
    warned = [line for line in err.splitlines() if "failed to connect back" not in line]
    assert (child.returncode, out, warned) == (0, "closed\n", [])


@pytest.mark.slow
def test_a_given_session_is_used_and_not_stopped(tmp_path):
    before = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
"""
    after = """
kit.close()
assert spark.range(3).count() == 3
assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
print("still there")
"""
    child = run(BODY.format(before=before, after=after), str(tmp_path / "db"))
    out, _ = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (0, "ready\nstill there\n")


@pytest.mark.slow
def test_spark_itself_dies(tmp_path):
    after = """
import os, signal, subprocess
import watersmeet
from watersmeet.errors import Error, again, error
for line in subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid,args"], capture_output=True,
text=True).stdout.splitlines():
    if "java" in line:
        os.kill(int(line.split()[0]), signal.SIGKILL)
kit.change(a=[(2, "lost?", 1)])
try:
    kit.engine.flush()
except Error as e:
    print(e.condition)
print(kit.engine.status().state)
kit.close()
kit = kit.reopen()
kit.engine.start()
kit.engine.flush()
kit.check()
kit.close()
print("closed")
"""
    child = run(BODY.format(before="", after=after), str(tmp_path / "db"))
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (0, "ready\nVIEW_FAILED\nfailed\nclosed\n"), err


@pytest.mark.slow
def test_a_session_that_somebody_stopped_is_not_used_again(tmp_path):
    after = """
from pyspark.sql import SparkSession
import watersmeet
from watersmeet.errors import Error, again, error
SparkSession.getActiveSession().stop()
kit.change(a=[(2, "later", 1)])
try:
    kit.engine.flush()
except Error as e:
    print(e.condition)
kit.engine.start()
kit.engine.flush()
kit.check()
kit.close()
print("closed")
"""
    child = run(BODY.format(before="", after=after), str(tmp_path / "db"))
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (0, "ready\nVIEW_FAILED\nclosed\n"), err


def test_the_active_session_does_not_stand_in_the_way_of_another():
    """Spark looks there for the source that the new session registers: that was "data source already exists" for
    good.
    """
    first = session.acquire(None, 2)
    try:
        first.createDataFrame([(1,)], "a int")
        assert SparkSession.getActiveSession()._jsparkSession.equals(first._jsparkSession)
        session.release(session.acquire(None, 2))
        assert SparkSession.getActiveSession()._jsparkSession.equals(first._jsparkSession)
    finally:
        session.release(first)


def test_python_processes_load_pyspark_from_files():
    """A module in a zip is compiled by each process that loads it."""
    spark = session.acquire(None, 1)
    try:
        found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    finally:
        session.release(spark)
    assert found == [pyspark.__file__]


@pytest.mark.slow
def test_a_source_that_cannot_be_read_while_a_view_is_filled_holds_up_no_other_view(tmp_path, monkeypatch):
    """Neither when its history is asked for nor when it is read. CREATE says why, and nothing of the view is left."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("n\n1\n2\n")
    run = jobs.EpochRunner.run
    away = error("SOURCE_UNAVAILABLE", "a source can't be read for now: nobody is there")
    failed = []

    def gives_nothing(self, *arguments):
        failed.append("asked")
        raise again(away)

    def reads_nothing(self, circuit, intent, *failing):
        if intent.mode.reads_history and intent.slices:
            failed.append("read")
            cause = again(away)
            cause.source = next(iter(intent.specs))
            raise cause
        return run(self, circuit, intent, *failing)

    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        connection.execute(
            f"""CREATE SOURCE s (n int) WITH (connector = 'file', path = '{tmp_path / "in"}') FORMAT PLAIN ENCODE CSV;
                CREATE TABLE t (n int); CREATE MATERIALIZED VIEW live AS SELECT s.n FROM s JOIN t ON s.n = t.n;
                INSERT INTO t VALUES (1), (2); FLUSH"""
        )
        engine = connection._session.database.engine
        create = "CREATE MATERIALIZED VIEW new AS SELECT s.n, t.n AS m FROM s LEFT JOIN t ON s.n = t.n"
        for place, name, fails in ((FileSource, "history", gives_nothing), (jobs.EpochRunner, "run", reads_nothing)):
            monkeypatch.setattr(place, name, fails)
            with pytest.raises(Error, match="nobody is there"):
                connection.execute(create)
            assert engine.failure is None
            connection.execute("INSERT INTO t VALUES (1); FLUSH")
            monkeypatch.undo()
        assert failed == ["asked", "read"]
        assert connection.execute("SELECT count(*) FROM live").fetchall() == [(4,)]
        connection.execute(create)
        assert connection.execute("SELECT count(*) FROM new").fetchall() == [(4,)]


@pytest.mark.slow
def test_flushes_return_while_a_view_is_filled(tmp_path, monkeypatch):
    """Live views follow changes between the pieces of history; at the end the new view has them, too."""
    monkeypatch.setattr(workers, "PIECE_ROWS", 50)
    monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 50)
    monkeypatch.setattr(workers, "PIECE_S", 0)
    kit = open_kit(tmp_path / "db", 2, small)
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    for number in range(20):
        kit.change(a=[(i % 50, f"{number} {i}", 1) for i in range(40)], b=[(number, number, 1)])
    kit.engine.flush()
    kit.view("grouped", *GROUPED, install=False)
    with ThreadPoolExecutor(1) as other:
        filled = other.submit(kit.engine.install, kit.circuit(), [i for i in kit.views])
        seen = []
        while not filled.done():
            kit.change(a=[(len(seen) % 50, "new", 1)])
            commit = kit.engine.flush()
            seen.append(commit.frontier.backfill is not None)
            kit.check("joined")
        filled.result()
    kit.mark_ready()
    assert any(seen)
    kit.engine.flush()
    kit.check()
    kit.close()
