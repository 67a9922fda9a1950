"""A standalone cluster of three workers whose executors, workers and drivers die at random: nothing is lost or doubled.

Executors need no installation. Drivers are killed, or sleep until another one has taken over. A reader in another
process looks all the time.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.cluster import Cluster, cluster
from tests.spark.test_kill import check_all, check_one_moment, kill, start, wait_for_more

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.slow
def test_all_parts_of_a_cluster_die(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Deaths(database_url, tmp_path, monkeypatch).come_for(60)


@pytest.mark.thorough
def test_all_parts_of_a_cluster_die_for_ten_minutes(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deaths(database_url, tmp_path, monkeypatch).come_for(600)


@pytest.mark.thorough
def test_all_parts_of_a_cluster_die_for_ten_minutes_over_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deaths(tmp_path / "db", tmp_path, monkeypatch).come_for(600)


class Deaths:
    """What dies next is drawn from a deck, so that all have their turn."""

    def __init__(self, path: Path | str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.folder = path, folder
        self.chance = random.Random(5)
        self.deck: list[Callable[[Cluster], None]] = []
        self.lives = 0
        self.reached = 0
        self._monkeypatch = monkeypatch

    def come_for(self, seconds: float) -> None:
        """For so long, and until each had its turn, something dies as soon as all goes on."""
        faulthandler.dump_traceback_later(10 * 60 + 2 * seconds, exit=True)  # in place of what all tests have
        with cluster(workers=3) as made:
            self._monkeypatch.setenv("WATERSMEET_MASTER", made.master)
            self._monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            # A driver that sleeps keeps its executors: it must not have all.
            (self.folder / "spark-defaults.conf").write_text("spark.cores.max 2\n")
            self._monkeypatch.setenv("SPARK_CONF_DIR", str(self.folder))
            self.driver = self._started()
            try:
                self._goes_on()
                until, rounds = time.monotonic() + seconds, 0
                while time.monotonic() < until or self.deck or not rounds:
                    if not self.deck:
                        rounds += 1
                        self.deck = [self._executor, self._worker, self._driver]
                        if isinstance(self.path, str):
                            self.deck.append(self._sleeper)  # a directory has a lock
                        self.chance.shuffle(self.deck)
                    time.sleep(self.chance.random())
                    self.deck.pop()(made)
                    self._goes_on()
            finally:
                if self.driver.poll() is None:
                    kill(self.driver)
        check_all(self.path, 2, self.reached)

    def _started(self) -> subprocess.Popen:
        """A driver that works. Each second one shuffles all epochs."""
        self.lives += 1
        with (self.folder / f"errors{self.lives}").open("wb") as errors:
            made = start(self.path, 2, 7, errors, shuffles=self.lives % 2 == 0)
        assert made.stdout is not None
        assert made.stdout.readline().strip() == "ready"
        return made

    def _goes_on(self) -> None:
        self.reached = wait_for_more(self.path, self.driver, self.reached)

    def _executor(self, made: Cluster) -> None:
        deadline = time.monotonic() + 120
        while not (running := sorted(made.executors())):  # the one that was killed is not replaced yet
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(self.chance.choice(running), signal.SIGKILL)

    def _worker(self, made: Cluster) -> None:
        made.kill_worker(self.chance.choice(made.workers))
        made.start_worker()

    def _driver(self, made: Cluster) -> None:
        kill(self.driver)
        seen = check_one_moment(self.path)
        assert seen >= self.reached, "a change was lost"
        self.driver = self._started()

    def _sleeper(self, made: Cluster) -> None:
        sleeper, number = self.driver, self.lives
        os.killpg(sleeper.pid, signal.SIGSTOP)
        try:
            self.driver = self._started()
            self._goes_on()
            os.killpg(sleeper.pid, signal.SIGCONT)
            assert sleeper.wait(timeout=300) != 0
        finally:
            if sleeper.poll() is None:
                kill(sleeper)
        said = (self.folder / f"errors{number}").read_text()
        assert "WRITER_FENCED" in said
        assert f"was taken over by process {self.driver.pid} on host" in said
