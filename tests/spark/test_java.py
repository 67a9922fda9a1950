"""The JVM of a session: it starts while `connect` prepares the rest, and no JVM is left that no session has taken."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests import conftest, waiting

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime.spark import java, session

_LAUNCHED = []


@pytest.fixture(autouse=True)
def _spark():
    """Instead of the session that tests on Spark share: none."""
    while conftest._kept_spark:
        session.release(conftest._kept_spark.pop())


@pytest.fixture(autouse=True)
def launched(monkeypatch, _spark):
    """The processes that were launched ahead; none of them runs at the end."""
    _LAUNCHED.clear()
    launch = java.Java.launch_ahead

    def recorded(self, home):
        launch(self, home)
        _LAUNCHED.append(self._ahead)

    monkeypatch.setattr(java.Java, "launch_ahead", recorded)
    yield _LAUNCHED
    assert [p for p in _LAUNCHED if p.poll() is None] == []


def test_a_session_takes_the_jvm_that_was_launched_ahead(launched):
    with java.launched_ahead():
        (process,) = launched
        spark = session.acquire(None, 2)
        assert SparkContext._gateway.proc is process
    try:
        folder = session._shared[0].java.directory
        assert spark.range(3).count() == 3
    finally:
        session.release(spark)
    assert process.poll() is not None
    assert not folder.exists()


def test_an_interrupt_right_after_the_start_of_spark_leaves_no_thread():
    class Interrupted:
        def getOrCreate(self):
            SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
            return self

        @property
        def _jvm(self):
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    made = java.Java(is_local=True)
    with pytest.raises(KeyboardInterrupt):
        session._get_or_create(Interrupted(), made)
    made.end()
    assert SparkContext._gateway is None
    waiting.until(lambda: set(threading.enumerate()) <= before)


def test_a_jvm_that_no_session_takes_ends_with_its_folder(launched):
    with pytest.raises(KeyboardInterrupt), java.launched_ahead():
        (process,) = launched
        folder = java._ahead[0].directory
        assert folder.exists()
        raise KeyboardInterrupt
    assert process.poll() is not None
    assert not folder.exists()
    assert java.take() is None


def test_a_jvm_that_died_is_replaced(launched):
    with java.launched_ahead():
        (process,) = launched
        process.kill()
        process.wait()
        spark = session.acquire(None, 1)
    try:
        assert SparkContext._gateway.proc is not process
        assert spark.range(3).count() == 3
    finally:
        session.release(spark)


def test_a_running_session_needs_no_other_jvm(launched):
    first = session.acquire(None, 1)
    try:
        with java.launched_ahead():
            session.release(session.acquire(None, 1))
    finally:
        session.release(first)
    assert launched == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("WATERSMEET_MASTER", "spark://nowhere:7077"), ("PYSPARK_GATEWAY_PORT", "1"), ("SPARK_REMOTE", "sc://nowhere")],
)
def test_other_masters_launch_their_own(launched, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with java.launched_ahead():
        assert launched == []


def test_two_threads_share_one_jvm(launched):
    both = threading.Barrier(2)

    def connected():
        with java.launched_ahead():
            both.wait()
            found = session.acquire(None, 1)
            both.wait()
            return found

    with ThreadPoolExecutor(2) as threads:
        sessions = [f.result() for f in [threads.submit(connected) for _ in range(2)]]
    assert len(launched) == 1
    for found in sessions:
        session.release(found)


def test_a_database_that_can_not_be_opened_leaves_no_jvm(tmp_path, launched):
    (tmp_path / "something.txt").write_text("else")
    with pytest.raises(Error) as raised:
        watersmeet.connect(tmp_path)
    assert raised.value.condition == "DATABASE_FORMAT"
    assert len(launched) == 1


def test_processes_and_readers_without_spark_launch_none(tmp_path, launched):
    watersmeet.connect(tmp_path, runtime="inprocess").close()
    watersmeet.connect(tmp_path, read_only=True).close()
    assert launched == []


@pytest.mark.parametrize("home", ["missing", "old"])
def test_java_is_checked_when_spark_does_not_start(tmp_path, monkeypatch, home):
    if home == "old":
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "java"
        program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2; exit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Error) as raised:
        watersmeet.connect(tmp_path / "db")
    assert raised.value.condition == "RUNTIME_UNAVAILABLE"
    assert "17" in raised.value.hint
    assert ("11" in raised.value.message) == (home == "old")


def test_spark_home_of_the_user_is_used(tmp_path, monkeypatch, launched):
    """As PySpark would: Spark's own scripts find the rest."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "spark-submit"
    script.write_text(f'#!/bin/sh\necho "$SPARK_HOME" "$@" > {tmp_path}/called; exec sleep 600\n')
    script.chmod(0o755)
    os.mkfifo(tmp_path / "called")
    monkeypatch.setenv("SPARK_HOME", str(home))
    with java.launched_ahead():
        assert len(launched) == 1
        called = (tmp_path / "called").read_text()
    assert called.startswith(f"{home} --conf spark.master=local")
    assert called.endswith("pyspark-shell\n")
