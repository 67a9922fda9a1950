"""On a cluster, buckets come back to the executor that ran them last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.property.oracle import rows
from tests.spark.cluster import Cluster, cluster
from tests.spark.test_kill import ROOT, environment

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime.spark.jobs import Executor, pinned
from watersmeet.runtime.spark.session import acquire, release
from watersmeet.runtime.spark.shipping import in_buckets

pytestmark = pytest.mark.spark

SETUP = """
CREATE TABLE a (k int, x int);
CREATE TABLE b (k int, y int);
CREATE MATERIALIZED VIEW v AS SELECT x, count(*) AS n, sum(y) AS y FROM a JOIN b ON a.k = b.k GROUP BY x;
"""
BUCKETS = 6
#: Follows commands: an epoch (small: as one task), or how long tasks wait for an executor. Then it says what it knows.
DRIVER = f"""
import json, sys
import watersmeet
from watersmeet.runtime.spark import jobs
least = jobs.SMALL_ROWS
jobs._STAGE_S = 1e9  # a small epoch is small, however slow the machine
with watersmeet.connect(sys.argv[1], parallelism={BUCKETS}) as connection:
    for _ in connection.execute_script({SETUP!r}):
        pass
    runner = connection._session.database.engine._runner
    conf = runner._spark.sparkContext._jsc.sc().conf()
    number = 0
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "wait":
            conf.set("spark.locality.wait", value)
        else:
            jobs.SMALL_ROWS = least if command == "small" else -1
            values = ", ".join(f"({{(number * 100 + i) % 60}}, {{i % 7}})" for i in range(100))
            number += 1
            connection.execute("BEGIN")
            connection.execute(f"INSERT INTO a VALUES {{values}}")
            connection.execute(f"INSERT INTO b VALUES {{values}}")
            connection.execute("COMMIT")
            connection.execute("FLUSH")
        status = connection.status()
        print(json.dumps({{
            "wait": conf.get("spark.locality.wait"),
            "executors": [e.id for e in runner._affinity.of],
                "local": status["buckets_local"],
            "moved": status["buckets_moved"],
        }}), flush=True)
"""


class Driver:
    """A process that runs epochs when it is told to."""

    def __init__(self, made: Cluster, path: Path, folder: Path) -> None:
        variables = {"WATERSMEET_MASTER": made.master, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder)}
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(path)],
                cwd=ROOT,
                env={**environment(), **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def does(self, command: str) -> dict:
        """What it knows after a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def does_until_even(self, without: str = "") -> dict:
        """Epochs until both executors have as many buckets, and one that is gone has none."""
        for _ in range(200):
            said = self.does("epoch")
            executors = said["executors"]
            if without not in executors and sorted(executors.count(i) for i in set(executors)) == [BUCKETS // 2] * 2:
                return said
        raise AssertionError(f"buckets don't spread: {said}")

    def end(self) -> None:
        """Lets it close the database."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(120) == 0

    def kill(self) -> None:
        """Kills it, if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def assert_local(said: dict) -> None:
    """All buckets of the first stage with state ran where they were, and all those of the second that had a change."""
    assert said["moved"] == 0
    assert BUCKETS < said["local"] <= 2 * BUCKETS


@pytest.mark.slow
def test_buckets_come_back(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.locality.wait 600s\n")
    with cluster(workers=2) as made:
        driver = Driver(made, tmp_path / "db", tmp_path)
        try:
            said = driver.does_until_even()
            assert said["wait"] == "600s", "what the user has set stays"
            for _ in range(5):
                before, said = said, driver.does("epoch")
                assert said["executors"] == before["executors"]
                assert_local(said)
            # An epoch that is one task runs on one of both, and the next one on the same.
            said = driver.does("small")
            assert said["moved"] >= BUCKETS // 2
            said = driver.does("small")
            assert_local(said)
            assert said["executors"] == before["executors"], "those of large epochs stay spread"

            driver.does("wait 200ms")  # for an executor that is gone, too
            driver.does_until_even()
            os.kill(min(made.executors()), signal.SIGKILL)
            known = set(said["executors"])
            for _ in range(200):
                said = driver.does("epoch")
                if len(gone := known - set(said["executors"])) == 1:
                    break
            (lost,) = gone
            said = driver.does_until_even(without=lost)
            driver.does("wait 600s")
            driver.does("epoch")
            said = driver.does("epoch")
            assert_local(said)
            driver.end()
        finally:
            driver.kill()
    with watersmeet.connect(tmp_path / "db", read_only=True) as connection:
        found = connection.execute("SELECT * FROM v").fetchall()
        assert rows(found) == rows(
            connection.execute("SELECT x, count(*) AS n, sum(y) AS y FROM a JOIN b ON a.k = b.k GROUP BY x").fetchall()
        )
        assert len(found) == 7


def test_pinned_frames_have_their_places_and_the_same_rows() -> None:
    """Also one behind another, as stages are; that Spark puts them there, a cluster has to show."""
    executors = [Executor(str(bucket % 2), "nowhere") for bucket in range(4)]
    spark = acquire(None, 2)
    try:
        frames = spark.range(0, 40, 1, 3).selectExpr("cast(id % 4 as int) AS bucket", "id")
        for _ in range(2):
            frames = pinned(in_buckets(frames, 4), executors)
        below = frames._jdf.queryExecution().toRdd()
        places = [spark.sparkContext._jsc.sc().getPreferredLocs(below, b).mkString() for b in range(4)]
        assert places == ["executor_nowhere_0", "executor_nowhere_1"] * 2
        found = frames.selectExpr("spark_partition_id() AS place", "bucket", "id").collect()
        assert sorted((r.place, r.bucket, r.id) for r in found) == sorted((i % 4, i % 4, i) for i in range(40))
        with pytest.raises(Error, match="3 executors"):
            pinned(in_buckets(frames, 4), executors[:3])
    finally:
        release(spark)
