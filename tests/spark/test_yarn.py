"""The command for YARN, on YARN: the driver runs in a container, and the next attempt resumes after its loss."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time

import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.yarn import Yarn
from tests.spark.cluster import HOME, JAVA_OPTIONS
from tests.spark.test_submitted import ROOT, SCRIPT, counted, environment_archive

PATIENCE_S = 180
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def yarn(tmp_path):
    try:
        server = Yarn.started(tmp_path / "yarn")
    except ServerUnavailableError as error:
        pytest.skip(f"YARN: {error}")
    yield server
    server.stop()


def command(folder, script, database):
    """The command on the page, with these addresses and small machines."""
    page = (ROOT / "docs/DEPLOYING.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^spark-submit --master yarn (?:.*\\\n)+.*$", page, re.MULTILINE)
    replaced = {
        "spark-submit": str(HOME / "bin" / "spark-submit"),
        "env.tar.gz#env": f"{environment_archive(folder)}#env",
        "main.py": str(ROOT / "src/watersmeet/__main__.py"),
        "s3://bucket/scripts/shop.sql": str(script),
        "s3://bucket/shop": str(database),
        "8": "2",
    }
    words = [replaced.get(word, word) for word in shlex.split(text.replace("\\\n", " "))]
    settings = {
        "spark.yarn.jars": f"local:{HOME}/jars/*",
        "spark.yarn.stagingDir": (folder / "staging").as_uri(),
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.executor.instances": "1",
        "spark.driver.memory": "1g",
        **{f"spark.yarn.appMasterEnv.{n}": v for n, v in {**LOOPBACK, **JAVA_OPTIONS}.items()},
        **{f"spark.executorEnv.{n}": v for n, v in {**LOOPBACK, **JAVA_OPTIONS}.items()},
    }
    return [words[0], *(w for n, v in settings.items() for w in ("--conf", f"{n}={v}")), *words[1:]]


def until(holds, yarn):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        written = "\n".join(p.read_text(errors="replace")[-2000:] for p in sorted(yarn.logs.rglob("stdout")))
        assert time.monotonic() < deadline, written
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.thorough
def test_the_next_attempt_resumes(yarn, tmp_path):
    """Without a home, from a folder that may not be written: the driver's machine is any one."""
    script, database = tmp_path / "shop.sql", tmp_path / "shop"
    script.write_bytes(SCRIPT)
    inherited = {
        n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "HOME") and not n.startswith("PYSPARK_")
    }
    environment = {**inherited, "HADOOP_CONF_DIR": str(yarn.configuration), **LOOPBACK, **JAVA_OPTIONS}
    submitted = subprocess.run(
        command(tmp_path, script, database), cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert submitted.returncode == 0, submitted.stderr
    until(lambda: counted(database) > 50, yarn)
    ((first, group),) = yarn.masters().items()
    os.killpg(group, signal.SIGKILL)
    kept = counted(database)
    until(lambda: yarn.masters().keys() - {first} and counted(database) > kept, yarn)
