"""What spark-submit and containers run: script and database at URLs, settings in the environment, an orderly end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path

import pytest
import yaml
from tests.spark.cluster import HOME, JAVA_OPTIONS, cluster
from tests.spark.test_interrupts import PATIENCE_S, processes_of

import watersmeet
from watersmeet.errors import Error
from watersmeet.objectstores import storage

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = b"""
CREATE TABLE t (k int PRIMARY KEY, name varchar);
INSERT INTO t VALUES (0, 'even'), (1, 'odd');
CREATE SOURCE s (id int) WITH (connector = 'datagen', fields.id.kind = 'sequence', fields.id.start = '0',
    fields.id.end = '1000000', datagen.rows.per.second = '20');
CREATE MATERIALIZED VIEW v AS SELECT s.id, t.name FROM s JOIN t ON s.id % 2 = t.k;
"""


def counted(url):
    try:
        with watersmeet.connect(url, read_only=True) as connection:
            ((rows, ids),) = connection.execute("SELECT count(*), count(DISTINCT id) FROM v").fetchall()
            names = connection.execute("SELECT count(*) FROM t").fetchall()
    except Error:  # it is not there yet
        return 0
    assert rows == ids
    assert names == [(2,)]
    return rows


def until_more_than(rows, url, process):
    deadline = time.monotonic() + PATIENCE_S
    while counted(url) <= rows:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.3)


def started(command, environment, errors=subprocess.DEVNULL):
    return subprocess.Popen(
        command,
        cwd="/",
        env={**{n: v for n, v in os.environ.items() if n != "PYTHONPATH"}, **environment},
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def gone(process):
    """Waits until nothing of a session runs."""
    deadline = time.monotonic() + PATIENCE_S
    while processes_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def environment_archive(folder):
    """An archive of a Python environment, as venv-pack makes one, with the packages of this one."""
    venv.create(folder / "env", symlinks=False)
    (packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
    places = [ROOT / "src", *(p for p in sys.path if p.endswith("site-packages"))]
    (packages / "here.pth").write_text("\n".join(map(str, places)))
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder / "env", ".")
    return archive


def given_arguments(script_url, database_url):
    """The arguments of the main file in the Spark operator's manifest and in YARN's command, with these addresses."""
    spec = yaml.safe_load((ROOT / "deploy/spark-application.yaml").read_text(encoding="utf-8"))["spec"]
    page = (ROOT / "docs/DEPLOYING.md").read_text(encoding="utf-8")
    (on_yarn,) = re.findall(r"^    main\.py (.*)$", page, re.MULTILINE)
    replaced = {"s3://bucket/scripts/shop.sql": script_url, "s3://bucket/shop": database_url, "4": "2", "8": "2"}
    operator, yarn = ([replaced.get(a, a) for a in given] for given in (spec["arguments"], on_yarn.split()))
    assert operator == yarn
    return operator


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("where", ["database_url", pytest.param("hdfs_url", marks=pytest.mark.thorough)])
def test_each_start_with_the_same_command_resumes(where, request):
    """The first start runs the script; after SIGTERM and SIGKILL the same command resumes."""
    database_url = request.getfixturevalue(where)
    script_url = f"{database_url.removesuffix('/some/db')}/scripts/shop.sql"
    storage.replace_file(storage.path_at(script_url), SCRIPT, durable=True)
    kept = 50
    with cluster() as made:
        settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT / "src")}
        main_file = str(ROOT / "src/watersmeet/__main__.py")
        submit = [str(HOME / "bin" / "spark-submit"), "--master", made.master, main_file]
        for ending in (signal.SIGTERM, signal.SIGKILL):
            submitted = started([*submit, *given_arguments(script_url, database_url)], {**settings, **JAVA_OPTIONS})
            try:
                until_more_than(kept, database_url, submitted)
                if ending == signal.SIGTERM:
                    submitted.terminate()  # the process that a container would know: Java, not the driver
                    assert submitted.wait(PATIENCE_S) != 0
            finally:
                if submitted.poll() is None:
                    os.killpg(submitted.pid, signal.SIGKILL)
                    submitted.wait()
            gone(submitted)
            kept = counted(database_url)
        goes_on = started(
            [sys.executable, "-m", "watersmeet", "run"],
            {**settings, "WATERSMEET_PATH": database_url, "WATERSMEET_MASTER": made.master},
            subprocess.PIPE,
        )
        try:
            goes_on.stderr.readline()  # it shows its progress: from now on it ends in order
            until_more_than(kept, database_url, goes_on)
            goes_on.send_signal(signal.SIGTERM)
            assert goes_on.wait(PATIENCE_S) == 0
            gone(goes_on)
        finally:
            goes_on.stderr.close()
            if goes_on.poll() is None:
                os.killpg(goes_on.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.spark
def test_an_archive_without_a_home_in_read_only_folders(tmp_path, database_url):
    """The conventions of EMR Serverless, as near as a standalone cluster comes to them: an archive of the environment,
    a working directory and code that are read-only, no home.
    """
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("folders can't be mounted read-only here")
    archive, code = environment_archive(tmp_path), tmp_path / "code"
    with tarfile.open(archive) as file:
        file.extractall(code / "env", filter="fully_trusted")
    shutil.copy(ROOT / "src/watersmeet/__main__.py", code / "main.py")
    script_url = f"{database_url.removesuffix('/some/db')}/scripts/shop.sql"
    storage.replace_file(storage.path_at(script_url), SCRIPT, durable=True)
    mounted = f"mount --bind {code} {code} && mount -o remount,ro,bind {code} && cd {code} && ! touch x 2>/dev/null"
    python = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": "./env/bin/python"}
    with cluster() as made:
        submit = [str(HOME / "bin" / "spark-submit"), "--master", made.master, "--archives", f"{archive}#env"]
        submit += ["--conf", "spark.executorEnv.PYSPARK_PYTHON=./env/bin/python", "main.py"]
        command = shlex.join([*submit, *given_arguments(script_url, database_url)])
        submitted = started(
            ["env", "-u", "HOME", "unshare", "-m", "sh", "-c", f"{mounted} && exec {command}"],
            {**python, "SPARK_LOCAL_IP": "127.0.0.1", **JAVA_OPTIONS},
        )
        try:
            until_more_than(50, database_url, submitted)
            assert list(made.folder.glob("work*/app-*/*/env/bin/python"))
        finally:
            if submitted.poll() is None:
                os.killpg(submitted.pid, signal.SIGKILL)
                submitted.wait()
        gone(submitted)
