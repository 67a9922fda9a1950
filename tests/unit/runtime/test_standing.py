"""Tasks of Spark that stay: their two ends, with threads in the place of Spark."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests import waiting

from watersmeet.circuit.epochs import Live
from watersmeet.errors import Error
from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.spark import jobs, standing, worker
from watersmeet.runtime.spark.standing import StandingTasks, run_stages
from watersmeet.runtime.spark.worker import Work
from watersmeet.runtime.workers import Workers


class Spark:
    """Runs tasks in threads, as many at a time as it has slots; a task again when it fails, at most so often.

    begun: the number of jobs. others: the number of jobs of others. tried: the number of attempts. starts: how many
    tasks may still start.
    """

    master = "local[2]"
    defaultParallelism = 2

    def __init__(self, attempts=3):
        self.sparkContext = self
        self.attempts = attempts
        self.begun = 0
        self.running = 0
        self.others = 0
        self.tried = 0
        self.slots = threading.Semaphore(self.defaultParallelism)
        self.starts = threading.Semaphore(1000)

    def setLocalProperty(self, name, value):
        assert name == worker.LINE
        self.path = value

    def statusTracker(self):
        return SimpleNamespace(getActiveJobsIds=lambda: range(self.running + self.others))

    def tasks(self, number):
        def collect():
            self.begun += 1
            self.running += 1
            try:
                with ThreadPoolExecutor(number) as pool:
                    list(pool.map(self.attempt, [self.path] * number))
            finally:
                self.running -= 1

        return SimpleNamespace(collect=collect)

    def attempt(self, path):
        assert self.starts.acquire(timeout=60)
        with self.slots:
            for left in range(self.attempts, 0, -1):
                self.tried += 1
                try:
                    worker._stay(path)
                except OSError:
                    if left == 1:
                        raise
                else:
                    return


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

    monkeypatch.setattr(worker, "_WAIT_S", 600.0)
    monkeypatch.setattr(worker, "run_whole", run_whole)
    monkeypatch.setattr(worker, "_unpacked", unpacked)
    monkeypatch.setattr(worker, "_last_unpacked", unpacked)
    return results


@pytest.fixture
def spark():
    return Spark()


@pytest.fixture
def task(spark):
    task = StandingTasks(spark, spark.tasks)
    yield task
    task.close()


def answer(tasks, job):
    """The channel and the body of the one frame that a job returns."""
    ((sent,),) = tasks.run([Work(job)])
    return sent.frame.channel, sent.frame.body


def test_one_task_runs_several_jobs(spark, task, given):
    given |= {b"%d" % i: [b"answer %d" % i] for i in range(50)}
    for i in range(50):
        assert answer(task, b"%d" % i) == ("receipt", b"answer %d" % i)
    assert spark.begun == 1


def test_what_fails_for_good_is_an_answer(task, given):
    given[b"a"] = [ValueError("no")]
    channel, body = answer(task, b"a")
    assert channel == worker.ERROR
    assert b"ValueError: no" in body


def test_what_may_pass_is_tried_again(spark, task, given):
    given[b"a"] = [OSError("busy"), OSError("busy"), b"done"]
    assert answer(task, b"a") == ("receipt", b"done")
    assert (spark.begun, spark.tried) == (1, 3)


def test_what_never_passes_is_what_spark_says(task, given):
    given[b"a"] = [OSError("busy")]
    with pytest.raises(OSError, match="busy"):
        answer(task, b"a")


@pytest.mark.parametrize(
    "cause", [ConnectionResetError("reset"), BrokenPipeError("gone"), ConnectionRefusedError("no")]
)
def test_a_lost_connection_of_the_work_itself_counts_as_a_failed_attempt(spark, task, given, cause):
    given[b"a"] = [cause]
    with pytest.raises(type(cause)):
        answer(task, b"a")
    assert spark.tried == 3


def test_attempts_of_a_job_before_count_for_that_job(spark, task, given):
    given |= {b"a": [OSError("busy"), OSError("busy"), b"one"], b"b": [OSError("busy"), b"two"]}
    assert answer(task, b"a") == ("receipt", b"one")
    assert answer(task, b"b") == ("receipt", b"two")
    assert spark.begun == 2  # the first was given up at its third failure


def test_it_leaves_when_the_driver_hangs_up_and_is_begun_anew(spark, task, given):
    given |= {b"a": [b"one"], b"b": [b"two"]}
    assert answer(task, b"a") == ("receipt", b"one")
    task.hang_up()
    assert task._job.exception(10) is None
    assert answer(task, b"b") == ("receipt", b"two")
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
            answer(task, b"a")
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


def test_closing_does_not_wait_for_the_first_tasks_to_start(spark, task):
    for _ in range(spark.defaultParallelism):
        spark.slots.acquire()
    task.begin()
    task.close()
    assert not task._job.done()
    for _ in range(spark.defaultParallelism):
        spark.slots.release()
    assert task._job.exception(10) is None  # they end at once


@pytest.fixture
def starting(spark, task, given, monkeypatch):
    """Two tasks of one job: one has called, the other one starts when the test lets it."""
    monkeypatch.setattr(standing, "spare_slots", lambda spark: 2)
    spark.starts = threading.Semaphore(1)
    task.begin()
    waiting.until(lambda: not task.are_starting)
    return task


def test_closing_waits_for_no_task_that_still_starts_while_another_one_is_idle(spark, starting, monkeypatch):
    waited = []
    with monkeypatch.context() as patched:
        patched.setattr(standing, "wait_for", lambda *given: waited.append(given))
        starting.close()
    assert not waited
    assert not starting._job.done()
    spark.starts.release()
    assert starting._job.exception(10) is None  # it ends at once


def test_a_task_that_starts_after_its_engine_has_left_the_slots_ends_at_once(spark, starting):
    other = StandingTasks(spark, spark.tasks)
    waiting.until(other.ask_others_for_room)
    for _ in range(spark.defaultParallelism):
        assert spark.slots.acquire(timeout=10)
    assert not starting._job.done()
    for _ in range(spark.defaultParallelism):
        spark.slots.release()
    spark.starts.release()
    assert starting._job.exception(10) is None
    other.close()


def test_a_task_that_starts_while_another_one_works_leaves_its_slot_if_another_engine_asked(
    spark, starting, given, monkeypatch
):
    entered, leave = threading.Event(), threading.Event()

    def run_whole(job):
        entered.set()
        assert leave.wait(60)
        return [Frame(0, "receipt", 0, b"done")]

    monkeypatch.setattr(worker, "run_whole", run_whole)
    other = StandingTasks(spark, spark.tasks)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, starting, b"a")
        assert entered.wait(10)
        assert not other.ask_others_for_room()
        spark.starts.release()
        waiting.until(lambda: starting._called == 2)
        assert spark.slots.acquire(timeout=10)
        leave.set()
        assert answered.result(10) == ("receipt", b"done")
    assert not starting._job.done()
    spark.slots.release()
    other.close()


def test_tasks_of_one_engine_stay_until_another_one_needs_their_slots(spark, task, given, monkeypatch):
    given[b"a"] = [b"one"]
    other = StandingTasks(spark, spark.tasks)
    assert (task.slots, other.slots) == (1, 1)
    answer(task, b"a")
    monkeypatch.setattr(standing, "_IDLE_S", 600.0)
    assert (task.slots, other.slots) == (1, 0)
    assert task._is_there
    monkeypatch.setattr(standing, "_IDLE_S", 0.0)
    assert other.slots == 1
    assert task._job.exception(10) is None
    answer(other, b"a")
    assert spark.begun == 2
    other.close()


def test_it_leaves_after_a_while(spark, task, given, monkeypatch):
    monkeypatch.setattr(worker, "_WAIT_S", 0.01)
    given |= {b"a": [b"one"], b"b": [b"two"]}
    assert answer(task, b"a") == ("receipt", b"one")
    assert task._job.exception(10) is None
    assert answer(task, b"b") == ("receipt", b"two")


def test_tasks_that_have_left_start_before_the_next_work(spark, task, staged, given, tmp_path):
    given[b"a"] = [b"one"]
    answer(task, b"a")
    task.begin()  # one stands already
    assert (task._size, spark.begun) == (1, 1)
    task.hang_up()
    assert task._job.exception(10) is None
    task.begin()
    task.begin()
    assert task._size == 2
    answer(task, b"a")
    staged_receipts(task, tmp_path)
    assert spark.begun == 2


def test_only_the_epoch_reports_that_its_tasks_cannot_start(spark, monkeypatch):
    def fails(_):
        raise ConnectionRefusedError("Java has ended")

    monkeypatch.setattr(standing, "spare_slots", fails)
    runner = jobs.EpochRunner(spark, None)
    runner.expect()
    with pytest.raises(ConnectionRefusedError):
        runner._standing.begin()
    assert spark.begun == 0
    runner.close()


def test_no_task_starts_in_a_slot_that_another_engine_uses(spark, task, given, monkeypatch):
    given[b"a"] = [b"one"]
    monkeypatch.setattr(standing, "_IDLE_S", 600.0)
    other = StandingTasks(spark, spark.tasks)
    answer(task, b"a")
    answer(other, b"a")
    other.hang_up()
    assert other._job.exception(10) is None
    other.begin()
    assert spark.begun == 2
    monkeypatch.setattr(standing, "_IDLE_S", 0.0)
    other.begin()
    answer(other, b"a")
    assert spark.begun == 3
    other.close()


def test_nothing_stays_on_a_cluster_or_in_the_only_slot(spark, task):
    assert task.slots == 1
    spark.defaultParallelism = 1
    assert task.slots == 0
    spark.defaultParallelism, spark.master = 4, "spark://host:7077"
    assert task.slots == 0


def test_nothing_stays_where_no_socket_can_be(spark, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    task = StandingTasks(spark, spark.tasks)
    assert task.slots == 0
    task.begin()
    task.close()
    assert list(deep.iterdir()) == []


@pytest.fixture
def staged(given, monkeypatch, spark):
    """Two tasks that stand in a session of the engine; the process that ran each bucket, and each task of stage 0."""
    ran = []
    monkeypatch.setattr(standing, "spare_slots", lambda spark: 2)
    process = threading.local()
    ids = iter(range(1, 100))

    def getpid():
        process.id = next(ids)
        return process.id

    def run_sources(job, task):
        ran.append((process.id, 0, task))
        return [Frame(bucket, "rows", task, b"%d" % task) for bucket in range(4)] + [Frame(0, "receipt", task, b"")]

    def run_bucket(job, stage, frames):
        found = list(frames)
        (bucket,) = {f.bucket for f in found}
        assert sorted(bytes(f.body) for f in found) == ([b"0", b"1"] if stage == 1 else [b"next"])
        ran.append((process.id, stage, bucket))
        if job.name == b"fails" and bucket == 2:
            raise ValueError("no")
        passed = [Frame(3 - bucket, "more", 0, b"next")] if stage == 1 else []
        return [*passed, Frame(bucket, "receipt", bucket, b"%d" % stage)]

    monkeypatch.setattr(worker, "os", SimpleNamespace(getpid=getpid, path=os.path))
    monkeypatch.setattr(worker, "run_sources", run_sources)
    monkeypatch.setattr(worker, "run_bucket", run_bucket)
    return ran


def staged_receipts(task, folder, job=b"a", slots=2):
    found = run_stages(task, job, tasks=2, last_stage=2, folder=str(folder), slots=slots)
    return sorted((s.frame.channel, s.frame.bucket, bytes(s.frame.body)) for s in found)


def test_each_stage_receives_the_frames_of_the_one_before(task, staged, tmp_path):
    expected = [("receipt", 0, b""), ("receipt", 0, b"")]
    expected += [("receipt", bucket, b"%d" % stage) for bucket in range(4) for stage in (1, 2)]
    assert staged_receipts(task, tmp_path) == sorted(expected)
    assert sorted((stage, number) for _, stage, number in staged) == sorted(
        [(0, 0), (0, 1), *((stage, bucket) for stage in (1, 2) for bucket in range(4))]
    )


def test_buckets_return_to_the_process_that_has_their_state(spark, task, staged, tmp_path, monkeypatch):
    pair, run_bucket = threading.Barrier(2), worker.run_bucket

    def run_beside_another(job, stage, frames):
        pair.wait(60)  # neither process takes work while the other one is busy
        return run_bucket(job, stage, frames)

    monkeypatch.setattr(worker, "run_bucket", run_beside_another)
    staged_receipts(task, tmp_path)
    before = {bucket: process for process, stage, bucket in staged if stage == 1}
    assert sorted(before.values()) == [1, 1, 2, 2]
    for _ in range(20):
        staged_receipts(task, tmp_path)
    assert spark.begun == 1
    ran = Counter((bucket, process) for process, stage, bucket in staged if stage)
    assert ran == {(bucket, process): 42 for bucket, process in before.items()}


def test_an_error_ends_the_epoch_after_its_stage(task, staged, tmp_path):
    ((channel, _, body),) = [f for f in staged_receipts(task, tmp_path, b"fails") if f[0] == worker.ERROR]
    assert channel == worker.ERROR
    assert b"ValueError: no" in body
    assert max(stage for _, stage, _ in staged) == 1
    assert len(staged_receipts(task, tmp_path)) == 10


def test_more_tasks_are_started_for_an_epoch_with_stages(spark, task, staged, given, tmp_path):
    given[b"a"] = [b"one"]
    answer(task, b"a")
    assert task._size == 1
    staged_receipts(task, tmp_path)
    assert (task._size, spark.begun) == (2, 2)
    answer(task, b"a")
    staged_receipts(task, tmp_path)
    assert (task._size, spark.begun) == (2, 2)


def test_another_engine_that_asks_for_room_finds_a_slot(spark, task, staged, given, tmp_path, monkeypatch):
    given[b"a"] = [b"one"]
    monkeypatch.setattr(standing, "_IDLE_S", 600.0)
    staged_receipts(task, tmp_path)
    while len(task._lines) < 2:  # one of the two may have run everything before the other one called
        task._accept_all()
    other = StandingTasks(spark, spark.tasks)
    assert not other.ask_others_for_room()
    assert (task.slots, len(task._lines)) == (1, 1)
    assert spark.slots.acquire(timeout=10)  # one of two
    staged_receipts(task, tmp_path, slots=1)
    spark.slots.release()
    assert spark.begun == 1
    other.close()


def test_tasks_end_if_spark_has_another_job(spark, task, given, monkeypatch):
    monkeypatch.setattr(standing, "_STAY_S", 0.0)
    given[b"a"] = [b"one"]
    answer(task, b"a")
    answer(task, b"a")
    assert spark.begun == 1
    spark.others = 1
    answer(task, b"a")
    assert spark.begun == 2


def test_work_of_a_process_that_dies_is_repeated(spark, task, staged, tmp_path, monkeypatch):
    pair, run_bucket, deaths = threading.Barrier(2), worker.run_bucket, ["killed"]

    def dies_once(job, stage, frames):
        with contextlib.suppress(IndexError):
            raise OSError(deaths.pop())
        pair.wait(60)  # the stage does not end before Spark has repeated the task
        return run_bucket(job, stage, frames)

    monkeypatch.setattr(worker, "run_bucket", dies_once)
    assert len(staged_receipts(task, tmp_path)) == 10
    assert (spark.begun, spark.tried) == (1, 3)
    assert not deaths


def test_frames_that_wait_in_files_reach_their_stage(task, staged, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_LEAST_BYTES", 1)
    monkeypatch.setattr(worker, "os", os)
    monkeypatch.setattr(worker, "run_sources", lambda job, task: [Frame(0, "rows", task, b"large")])
    monkeypatch.setattr(
        worker,
        "run_bucket",
        lambda job, stage, frames: [Frame(0, "receipt", 0, b"".join(bytes(f.body) for f in frames))],
    )
    (found,) = run_stages(task, b"a", tasks=2, last_stage=1, folder=str(tmp_path), slots=2)
    assert found.file is not None
    assert bytes(next(worker.picked_up([found])).body) == b"largelarge"


def test_files_of_frames_are_deleted_after_a_failed_epoch(spark, monkeypatch):
    """Their bodies may take gigabytes, and the next epoch may be a long time away."""

    def fails(*given):
        *_, folder, _ = given
        made.append(next(worker.put_down([Frame(0, "rows", 0, b"x" * worker._LEAST_BYTES)], folder)).file)
        raise OSError("no space left on device")

    made = []
    monkeypatch.setattr(jobs, "run_stages", fails)
    monkeypatch.setattr(jobs, "job_of", lambda *_: worker.Work(b""))
    monkeypatch.setattr(jobs, "replace", lambda job, **_: job)
    monkeypatch.setattr(jobs, "pack_job", lambda _: "")
    monkeypatch.setattr(StandingTasks, "slots", 2)
    runner = jobs.EpochRunner(spark, None)
    monkeypatch.setattr(runner, "_runs_here", lambda *_: False)
    intent = SimpleNamespace(has_work=True, tasks=(), rows=10**9, bytes=0, mode=Live(), epoch=1)
    with pytest.raises(Error, match="no space left"):
        runner.run(SimpleNamespace(buckets=2, last_stage=1), intent)
    assert len(made) == 1
    assert not os.path.exists(made[0])
    runner.close()
