"""`watersmeet serve` as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from tests import thorough

import watersmeet
from watersmeet.system.passwords import Verifier


def started(*arguments: str) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-m", "watersmeet", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.match(r"listening on 127\.0\.0\.1:(\d+)", line):
            return process, int(found[1])
    raise AssertionError(process.wait())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_runs_scripts_serves_and_ends_cleanly(tmp_path, number):
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2);CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t;"
    )
    path = str(tmp_path / "db")
    writer, port = started("--path", path, "--runtime", "inprocess", str(script))
    reader, reading = started("--path", path, "--read-only")
    try:
        with (
            psycopg.connect(port=port, host="127.0.0.1", user="u", autocommit=True) as client,
            psycopg.connect(port=reading, host="127.0.0.1", user="u", autocommit=True) as other,
        ):
            client.execute("INSERT INTO t VALUES (3)")
            client.execute("FLUSH")
            assert client.execute("SELECT s FROM v").fetchone() == (6,)
            assert other.execute("SELECT s FROM v").fetchone() == (6,)
            assert other.info.parameter_status("default_transaction_read_only") == "on"
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                other.execute("INSERT INTO t VALUES (4)")
            for process in (reader, writer):
                process.send_signal(number)
            assert [reader.wait(30), writer.wait(30)] == [0, 0]
            with pytest.raises(psycopg.OperationalError, match="administrator"):
                client.execute("SELECT 1")
    finally:
        for process in (reader, writer):
            process.kill()
            process.stderr.close()
    writer, _ = started("--path", path, "--runtime", "inprocess")
    writer.terminate()
    assert writer.wait(30) == 0
    writer.stderr.close()


@pytest.mark.slow
def test_workers_share_a_port_and_requests_to_cancel(tmp_path):
    path = str(tmp_path / "db")
    with watersmeet.connect(path, runtime="inprocess") as made:
        for text in ("CREATE TABLE t (a int)", "INSERT INTO t SELECT * FROM generate_series(1, 3000)", "FLUSH"):
            made.execute(text)
    process, port = started("--path", path, "--read-only", "--workers", "2")
    clients = []
    try:
        while len({c.info.backend_pid % 2 for c in clients}) < 2:
            clients.append(psycopg.connect(port=port, host="127.0.0.1", user="u", autocommit=True))
            assert clients[-1].execute("SELECT sum(a) FROM t").fetchone() == (4501500,)
            assert len(clients) < 60
        for client in clients:
            canceler = threading.Timer(0.5, lambda: [client.cancel() for _ in range(8)])
            canceler.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                client.execute("SELECT count(*) FROM t a, t b, t c WHERE a.a * b.a * c.a % 7 = 3")
            canceler.join()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.stderr.close()


#: How often a server under load is killed: `make thorough` kills it 100 times, in ten databases.
DATABASES, KILLS = (10, 10) if thorough.THOROUGH else (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("database", range(DATABASES))
def test_nothing_acknowledged_is_lost_by_kills(tmp_path, database):
    path = str(tmp_path / "db")
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int); CREATE TABLE logged (id bigint, n int);"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(id) AS ids FROM t;"
    )
    acknowledged: set[int] = set()
    lock = threading.Lock()

    def write(port: int, first: int) -> None:
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(port=port, host="127.0.0.1", user="u", autocommit=True) as client,
        ):
            for number in range(first, first + 100_000):
                client.execute(f"INSERT INTO t VALUES ({number}, 1)")
                client.execute(f"INSERT INTO logged VALUES ({number}, 1)")
                with lock:
                    acknowledged.add(number)

    for kill in range(KILLS):
        process, port = started("--path", path, "--runtime", "inprocess", *([] if kill else [str(script)]))
        firsts = [(kill * 10 + i) * 100_000 for i in range(8)]
        threads = [threading.Thread(target=write, args=(port, first)) for first in firsts]
        before = len(acknowledged)
        for thread in threads:
            thread.start()
        while len(acknowledged) < before + 40 + 7 * kill + database:
            time.sleep(0.001)
            assert any(t.is_alive() for t in threads)
        process.kill()
        for thread in threads:
            thread.join(60)
        process.wait()
        process.stderr.close()
        with watersmeet.connect(path, runtime="inprocess") as connection:
            connection.execute("FLUSH")
            for table in ("t", "logged"):
                found = [row[0] for row in connection.execute(f"SELECT id FROM {table}").fetchall()]
                assert len(found) == len(set(found))
                assert acknowledged <= set(found)
            kept = connection.execute("SELECT count(*), sum(id) FROM t").fetchone()
            assert connection.execute("SELECT n, ids FROM v").fetchone() == kept


@pytest.mark.slow
def test_a_command_makes_what_stands_in_place_of_a_password():
    command = [sys.executable, "-m", "watersmeet", "password"]
    made = subprocess.run(command, check=True, input="secret\n", text=True, capture_output=True).stdout
    assert Verifier.read(made.strip()).accepts("secret")
    assert subprocess.run(command, check=False, input="\n", text=True, capture_output=True).returncode == 1
