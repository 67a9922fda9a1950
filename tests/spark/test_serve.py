"""`watersmeet serve` on Spark: it serves while epochs run, and SIGTERM in the middle of things loses nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
import pytest
from scripts.servers.process import free_ports
from tests.standbys import Server, connected

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300
SCRIPT = """
CREATE TABLE orders (id int PRIMARY KEY, item int, amount int);
CREATE TABLE items (item int PRIMARY KEY, name varchar);
INSERT INTO items VALUES (1, 'one'), (2, 'two');
CREATE MATERIALIZED VIEW sums AS SELECT name, count(*) AS n, sum(amount) AS amount
FROM orders JOIN items ON orders.item = items.item GROUP BY name;
"""


class Served:
    """A process of `watersmeet serve`, until the end of the block."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "watersmeet", "serve", "--port", "0", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def __enter__(self) -> Self:
        timer = threading.Timer(PATIENCE_S, self.process.kill)
        timer.start()
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.match(r"listening on 127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                timer.cancel()
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return self
        timer.cancel()
        raise AssertionError("".join(said))

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def connect(self, **options) -> psycopg.Connection:
        return psycopg.connect(host="127.0.0.1", port=self.port, user="u", autocommit=True, **options)


def test_it_serves_and_ends_in_the_middle_of_things(tmp_path):
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    path = str(tmp_path / "db")
    acknowledged: list[int] = []
    tried: list[int] = []
    with Served("--path", path, "--parallelism", "2", str(script)) as served:
        with served.connect() as client, served.connect() as reader:
            client.execute("INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20), (3, 1, 30)")
            client.execute("FLUSH")
            query = "SELECT name, n, amount FROM sums ORDER BY name"
            assert reader.execute(query).fetchall() == [("one", 2, 40), ("two", 1, 20)]
            client.execute("CREATE MATERIALIZED VIEW large AS SELECT * FROM orders WHERE amount > 15")
            assert reader.execute("SELECT count(*) FROM large").fetchone() == (2,)
        begun = threading.Event()

        def write(first: int) -> None:
            with suppress(psycopg.Error), served.connect() as client:
                for number in range(first, first + 10_000, 2):
                    tried.append(number)
                    client.execute(f"INSERT INTO orders VALUES ({number}, {number % 2 + 1}, 1)")
                    acknowledged.append(number)
                    if len(acknowledged) > 20:
                        begun.set()

        def wait_for_views() -> None:
            with suppress(psycopg.Error), served.connect() as client:
                while True:
                    client.execute("FLUSH")

        open_one = served.connect()
        open_one.execute("BEGIN")
        open_one.execute("UPDATE orders SET amount = 1000")
        threads = [threading.Thread(target=write, args=(first,)) for first in (10, 11)]
        threads.append(threading.Thread(target=wait_for_views))
        for thread in threads:
            thread.start()
        assert begun.wait(PATIENCE_S)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE_S) == 0
        for thread in threads:
            thread.join(PATIENCE_S)
        with pytest.raises(psycopg.OperationalError, match=r"administrator|closed"):
            open_one.execute("COMMIT")
    with Served("--path", path, "--runtime", "inprocess") as served, served.connect() as client:
        client.execute("FLUSH")
        found = {number for (number,) in client.execute("SELECT id FROM orders WHERE id >= 10").fetchall()}
        assert set(acknowledged) <= found <= set(tried)
        assert client.execute("SELECT sum(amount)::bigint FROM orders WHERE id < 10").fetchone() == (60,)
        counted = "SELECT name, count(*), sum(amount) FROM orders JOIN items ON orders.item = items.item GROUP BY name"
        assert sorted(client.execute(query).fetchall()) == sorted(client.execute(counted).fetchall())
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE_S) == 0


def test_a_standby_takes_over_on_spark(tmp_path):
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    first, second = free_ports(2)
    one = Server(str(tmp_path / "db"), first, "--parallelism", "2", str(script), runtime="spark")
    two = None
    try:
        one.writes()
        two = Server(str(tmp_path / "db"), second, "--parallelism", "2", str(script), runtime="spark")
        two.stands_by()
        query = "SELECT name, n, amount FROM sums ORDER BY name"
        with connected(first, second) as client:
            client.execute("INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20)")
            client.execute("FLUSH")
            client.execute("INSERT INTO orders VALUES (3, 1, 30)")
        one.kill()
        two.writes()
        with connected(first, second) as client:
            client.execute("INSERT INTO orders VALUES (4, 2, 40)")
            client.execute("FLUSH")
            assert client.execute(query).fetchall() == [("one", 2, 40), ("two", 2, 60)]
        assert two.end() == 0
    finally:
        for server in (one, two):
            if server is not None:
                server.kill()
