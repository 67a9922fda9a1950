"""A standalone cluster of two workers: same content, executors need no installation, a killed one loses nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.spark.cluster import cluster

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_executor_is_killed(tmp_path):
    kill_executors(tmp_path / "db")


@pytest.mark.thorough
def test_an_executor_is_killed_over_an_object_store(database_url):
    kill_executors(database_url)


def kill_executors(path):
    with cluster() as made:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "WATERSMEET_MASTER": made.master,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.clustered", str(path), "2"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            lines = []
            for line in child.stdout:
                lines.append(line.strip())
                if line.strip() in ("round 3", "round 7"):
                    time.sleep(0.1)
                    while not (running := made.executors()):  # the killed one is not replaced yet
                        assert child.poll() is None
                        time.sleep(0.1)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(min(running), signal.SIGKILL)
            assert child.wait() == 0
            assert lines[-1] == "done"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
