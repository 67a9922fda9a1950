"""`watersmeet serve` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

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
            assert [reader.wait(120), writer.wait(120)] == [0, 0]
            with pytest.raises(psycopg.OperationalError, match="administrator"):
                client.execute("SELECT 1")
    finally:
        for process in (reader, writer):
            process.kill()
            process.stderr.close()
    writer, _ = started("--path", path, "--runtime", "inprocess")
    writer.terminate()
    assert writer.wait(120) == 0
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
        assert process.wait(120) == 0
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.stderr.close()


#: How often a server under load is killed: `make thorough` kills it 100 times, in ten databases.
DATABASES, KILLS = (10, 10) if thorough.THOROUGH else (1, 3)


CLIENTS = 20


class Acknowledged:
    """Single statements of clients that a server has acknowledged, while it is killed again and again."""

    def __init__(self) -> None:
        self.inserted: set[int] = set()
        self.sent: set[int] = set()
        #: By key, from 1 on, of each client, and 0 of all.
        self.updated: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.lock = threading.Lock()

    def write(self, port: int, client_number: int, first: int) -> None:
        """Writes until the server is gone. Each UPDATE changes two columns, and each second INSERT has two rows."""
        update = "UPDATE counted SET n = n + 1, m = m - 1 WHERE id = "
        key, is_update = 0, False
        try:
            with psycopg.connect(port=port, host="127.0.0.1", user="u", autocommit=True) as client:
                for number in range(first, first + 100_000):
                    key, is_update = number, False
                    with self.lock:
                        self.sent.add(number)
                    client.execute(f"INSERT INTO t VALUES ({number}, 1)")
                    client.execute(f"INSERT INTO logged VALUES ({number}, 1), ({number}, 2)")
                    with self.lock:
                        self.inserted.add(number)
                    for key in (client_number + 1, 0):
                        is_update = True
                        client.execute(f"{update}{key}")
                        with self.lock:
                            self.updated[key] += 1
        except psycopg.Error:
            if is_update:
                with self.lock:
                    self.lost[key] += 1

    @property
    def count(self) -> int:
        with self.lock:
            return self.updated.total()

    def check(self, connection: watersmeet.Connection) -> None:
        """Everything acknowledged is there, what was not is there as a whole or not at all, and the view shows it."""
        for table, rows in (("t", 1), ("logged", 2)):
            found = Counter(row[0] for row in connection.execute(f"SELECT id FROM {table}").fetchall())
            assert self.inserted <= found.keys() <= self.sent
            assert set(found.values()) <= {rows}
        counted = {i: (n, m) for i, n, m in connection.execute("SELECT id, n, m FROM counted").fetchall()}
        for key, (n, m) in counted.items():
            assert n == -m
            assert self.updated[key] <= n <= self.updated[key] + self.lost[key]
        total = connection.execute("SELECT count(*), sum(id) FROM t").fetchone()
        assert connection.execute("SELECT n, ids FROM v").fetchone() == total
        assert connection.execute("SELECT n FROM w").fetchone() == (sum(n for n, _ in counted.values()),)


@pytest.mark.slow
@pytest.mark.parametrize("database", range(DATABASES))
def test_nothing_acknowledged_is_lost_by_kills(tmp_path, database):
    path = str(tmp_path / "db")
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int); CREATE TABLE logged (id bigint, n int);"
        "CREATE TABLE counted (id int PRIMARY KEY, n bigint, m bigint);"
        f"INSERT INTO counted SELECT i, 0, 0 FROM generate_series(0, {CLIENTS}) AS g (i);"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(id) AS ids FROM t;"
        "CREATE MATERIALIZED VIEW w AS SELECT sum(n) AS n FROM counted;"
    )
    acknowledged = Acknowledged()
    for kill in range(KILLS):
        process, port = started("--path", path, "--runtime", "inprocess", *([] if kill else [str(script)]))
        before = acknowledged.count
        threads = [
            threading.Thread(target=acknowledged.write, args=(port, i, (kill * CLIENTS + i) * 100_000))
            for i in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        while acknowledged.count < before + 40 + 7 * kill + database:
            time.sleep(0.001)
            assert any(t.is_alive() for t in threads)
        process.kill()
        for thread in threads:
            thread.join(60)
        process.wait()
        process.stderr.close()
        with watersmeet.connect(path, runtime="inprocess") as connection:
            connection.execute("FLUSH")
            acknowledged.check(connection)


@pytest.mark.slow
def test_a_command_makes_what_stands_in_place_of_a_password():
    command = [sys.executable, "-m", "watersmeet", "password"]
    made = subprocess.run(command, check=True, input="secret\n", text=True, capture_output=True).stdout
    assert Verifier.read(made.strip()).accepts("secret")
    assert subprocess.run(command, check=False, input="\n", text=True, capture_output=True).returncode == 1
