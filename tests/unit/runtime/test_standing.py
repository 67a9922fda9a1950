"""A task of Spark that stays: its two ends, with a thread in the place of Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.spark import jobs, worker
from watersmeet.runtime.workers import Workers


class Spark:
    """Runs the task in the thread that asks for it, again when it fails, at most so often. begun: how many jobs."""

    master = "local[2]"
    defaultParallelism = 2

    def __init__(self, attempts=3):
        self.sparkContext = self
        self.attempts = attempts
        self.begun = 0
        self.tried = 0

    def setLocalProperty(self, name, value):
        assert name == worker.LINE
        self.path = value

    def task(self):
        def collect():
            self.begun += 1
            for left in range(self.attempts, 0, -1):
                self.tried += 1
                try:
                    worker._stay(self.path)
                except OSError:
                    if left == 1:
                        raise
                else:
                    return

        return SimpleNamespace(collect=collect)


@pytest.fixture
def given(monkeypatch):
    """What the task gives for each job, in turn: frames, or an error."""
    results = {}

    def unpacked(text):
        return SimpleNamespace(name=text, intent=SimpleNamespace(bytes=0), workers=Workers())

    def run_whole(job):
        found = results[job.name].pop(0) if len(results[job.name]) > 1 else results[job.name][0]
        if isinstance(found, Exception):
            raise found
        return [Frame(0, "receipt", 0, found)]

    for limit in ("_STAY_S", "_WAIT_S"):
        monkeypatch.setattr(worker, limit, 600.0)
    monkeypatch.setattr(worker, "run_whole", run_whole)
    monkeypatch.setattr(worker, "_unpacked", unpacked)
    return results


@pytest.fixture
def spark():
    return Spark()


@pytest.fixture
def task(spark):
    task = jobs.StandingTask(spark, spark.task)
    yield task
    task.close()


def test_one_task_runs_several_jobs(spark, task, given):
    given |= {b"%d" % i: [b"answer %d" % i] for i in range(50)}
    for i in range(50):
        assert task.run(b"%d" % i) == [("receipt", b"answer %d" % i)]
    assert spark.begun == 1


def test_what_fails_for_good_is_an_answer(task, given):
    given[b"a"] = [ValueError("no")]
    ((channel, body),) = task.run(b"a")
    assert channel == worker.ERROR
    assert b"ValueError: no" in body


def test_what_may_pass_is_tried_again(spark, task, given):
    given[b"a"] = [OSError("busy"), OSError("busy"), b"done"]
    assert task.run(b"a") == [("receipt", b"done")]
    assert (spark.begun, spark.tried) == (1, 3)


def test_what_never_passes_is_what_spark_says(task, given):
    given[b"a"] = [OSError("busy")]
    with pytest.raises(OSError, match="busy"):
        task.run(b"a")


def test_attempts_of_a_job_before_count_for_that_job(spark, task, given):
    given |= {b"a": [OSError("busy"), OSError("busy"), b"one"], b"b": [OSError("busy"), b"two"]}
    assert task.run(b"a") == [("receipt", b"one")]
    assert task.run(b"b") == [("receipt", b"two")]
    assert spark.begun == 2  # the first was given up at its third failure


def test_it_leaves_when_the_driver_hangs_up_and_is_begun_anew(spark, task, given):
    given |= {b"a": [b"one"], b"b": [b"two"]}
    assert task.run(b"a") == [("receipt", b"one")]
    task.hang_up()
    assert task._job.exception(10) is None
    assert task.run(b"b") == [("receipt", b"two")]
    assert spark.begun == 2


def test_closing_ends_who_waits_for_an_answer(spark, task, given, monkeypatch):
    entered, leave = threading.Event(), threading.Event()

    def run_whole(job):
        entered.set()
        assert leave.wait(10)
        return []

    monkeypatch.setattr(worker, "run_whole", run_whole)
    failures = []

    def run():
        try:
            task.run(b"a")
        except (EOFError, OSError) as cause:
            failures.append(cause)

    thread, closing = threading.Thread(target=run), threading.Thread(target=task.close)
    thread.start()
    assert entered.wait(10)
    closing.start()
    thread.join(10)
    assert not thread.is_alive()
    assert closing.is_alive()  # until the task has ended
    leave.set()
    closing.join(10)
    assert task._job.done()
    assert len(failures) == 1


def test_only_one_task_of_a_process_stays(spark, task, given):
    given[b"a"] = [b"one"]
    other = jobs.StandingTask(spark, spark.task)
    assert task.can_run
    assert other.can_run
    task.run(b"a")
    assert task.can_run
    assert not other.can_run
    other.close()


def test_it_leaves_after_a_while(spark, task, given, monkeypatch):
    monkeypatch.setattr(worker, "_WAIT_S", 0.01)
    given |= {b"a": [b"one"], b"b": [b"two"]}
    assert task.run(b"a") == [("receipt", b"one")]
    assert task._job.exception(10) is None
    assert task.run(b"b") == [("receipt", b"two")]


def test_nothing_stays_on_a_cluster_or_in_the_only_slot(spark, task):
    assert task.can_run
    spark.defaultParallelism = 1
    assert not task.can_run
    spark.defaultParallelism, spark.master = 4, "spark://host:7077"
    assert not task.can_run


def test_nothing_stays_where_no_socket_can_be(spark, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    task = jobs.StandingTask(spark, spark.task)
    assert not task.can_run
    task.close()
    assert list(deep.iterdir()) == []
