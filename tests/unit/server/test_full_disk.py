"""`watersmeet serve` on a full disk: reads go on, `/readyz` says why writes don't, and all goes on with space."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest
from tests.unit.session.test_bad_disk import FullDisk
from tests.waiting import until

import watersmeet
from watersmeet.cli.run import Pump
from watersmeet.errors import error
from watersmeet.system import files

SCRIPT = "CREATE TABLE t (a int, b varchar); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t;"


def ready(port: int) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as found:
        return found.code, json.load(found)


def test_an_engine_without_space_is_resumed(serving, monkeypatch):
    monkeypatch.setattr("watersmeet.cli.run._FULL_FIRST_S", 0.05)
    served = serving(SCRIPT + "INSERT INTO t VALUES (1, 'a'); FLUSH;", http_port=0)
    with served.connect(autocommit=True) as client:
        client.execute("INSERT INTO t VALUES (2, 'b')")
        disk = FullDisk(0)
        monkeypatch.setattr(files, "os", disk)
        with Pump(served.python, threading.Event(), resumes=True) as pump:
            until(lambda: served.python.opened.engine.failure is not None)
            status, said = ready(served.server.http_port)
            assert (status, said["condition"]) == (503, "DISK_FULL")
            assert client.execute("SELECT n FROM v").fetchone() == (1,)
            with pytest.raises(psycopg.errors.DiskFull):
                client.execute("INSERT INTO t VALUES (3, 'c')")
            assert pump.failure is None
            disk.freed = True
            until(lambda: client.execute("SELECT n FROM v").fetchone() == (2,))
            until(lambda: ready(served.server.http_port)[0] == 200)
            client.execute("INSERT INTO t VALUES (3, 'c')")
            until(lambda: client.execute("SELECT n FROM v").fetchone() == (3,))


def test_another_error_still_ends_it(monkeypatch):
    with watersmeet.connect(runtime="inprocess") as connection:

        def failing(text):
            raise error("DATABASE_DAMAGED", "odd")

        monkeypatch.setattr(connection, "execute", failing)
        with Pump(connection, threading.Event(), resumes=True) as pump:
            until(lambda: pump.failure is not None)
        assert pump.failure.condition == "DATABASE_DAMAGED"


def test_a_disk_without_space_is_not_ready(serving, monkeypatch):
    served = serving(SCRIPT, http_port=0)
    assert ready(served.server.http_port)[0] == 200
    usage = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr("shutil.os.statvfs", lambda _: usage)
    status, said = ready(served.server.http_port)
    assert (status, said["condition"]) == (503, "DISK_FULL")


@pytest.fixture
def small_disk(tmp_path):
    """A file system with 24 MB, as root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inprocess", "spark"])
def test_a_server_on_a_small_disk_goes_on(small_disk, tmp_path, runtime):
    script = tmp_path / "a.sql"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "watersmeet", "serve", "--port", "0", "--http-port", "0"]
    options = ["--path", str(small_disk / "db"), "--runtime", runtime, str(script)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ports: list[int] = []
        while len(ports) < 2:
            ports += [int(n) for n in re.findall(r"127\.0\.0\.1:(\d+)", process.stderr.readline())]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        with psycopg.connect(port=ports[0], host="127.0.0.1", user="u", autocommit=True) as client:
            client.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) AS s(i)")
            client.execute("FLUSH")
            rest = small_disk / "rest"
            fill(rest)
            with pytest.raises(psycopg.errors.DiskFull):
                for _ in range(100):
                    client.execute("INSERT INTO t SELECT i, md5(i::varchar) FROM generate_series(1, 10000) AS s(i)")
            assert client.execute("SELECT n >= 1000 FROM v").fetchone() == (True,)
            until(lambda: ready(ports[1])[0] == 503)
            assert process.poll() is None
            rest.unlink()
            until(lambda: ready(ports[1])[0] == 200, 60)
            client.execute("INSERT INTO t VALUES (0, 'last')")
            client.execute("FLUSH")
            (seen,), (rows,) = (
                client.execute("SELECT n FROM v").fetchone(),
                client.execute("SELECT count(*) FROM t").fetchone(),
            )
            assert seen == rows > 1000
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def fill(path: Path) -> None:
    """Lets a file take all space."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
