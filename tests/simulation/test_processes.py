"""Real processes and real stores, of S3's protocol, of Azure's and HDFS: drivers that are killed, and that sleep while
others take over.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import IO

import pytest

from tests.spark.test_kill import check_all, check_one_moment, environment

SEED = 11


def begin(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.process", url, str(SEED)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "WATERSMEET_READING_SECONDS": "1"},
    )


def acknowledged(output: IO[str], count: int) -> int:
    """The number of the newest of so many further changes."""
    numbers = [int(output.readline()) for _ in range(count)]
    assert numbers == list(range(numbers[0], numbers[0] + count)), "a change was acknowledged twice, or left out"
    return numbers[-1]


@pytest.mark.slow
@pytest.mark.parametrize("lives", [2, pytest.param(60, marks=pytest.mark.thorough)])
def test_drivers_over_s3(database_url: str, lives: int) -> None:
    drivers_over(database_url, lives)


@pytest.mark.slow
def test_drivers_over_azure(azure_url: str) -> None:
    drivers_over(azure_url, 2)


@pytest.mark.slow
def test_drivers_over_hdfs(hdfs_url: str) -> None:
    drivers_over(hdfs_url, 2)


def drivers_over(url: str, lives: int) -> None:
    """Some are killed at a random moment, each second one sleeps until the next one works, and is told then."""
    chance = random.Random(lives)
    asleep: list[subprocess.Popen[str]] = []
    reached = seen = 0
    try:
        for life in range(lives):
            process = begin(url)
            asleep.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            before, reached = reached, acknowledged(process.stdout, chance.randrange(2, 12))
            assert reached >= before, "a change that was acknowledged is lost"
            for sleeper in asleep[:-1]:
                assert told(sleeper) == process.pid
                asleep.remove(sleeper)
            time.sleep(chance.random() * 0.05)
            if life % 2:
                process.kill()
                process.wait()
                asleep.remove(process)
            else:
                process.send_signal(signal.SIGSTOP)
            seen, before = check_one_moment(url), seen
            assert seen >= before, "a change that was there is gone"
    finally:
        for process in asleep:
            process.kill()
            process.wait()
    check_all(url, 2, reached + 1)


def told(sleeper: subprocess.Popen[str]) -> int:
    """Wakes a driver that was overtaken; the process that took over, as it is told."""
    sleeper.send_signal(signal.SIGCONT)
    said, _ = sleeper.communicate(timeout=120)
    last = said.splitlines()[-1]
    assert last.startswith("WRITER_FENCED"), last
    assert sleeper.returncode == 0
    return int(last.partition("taken over by process ")[2].split()[0])
