"""What the console and the metrics cost the server: processor seconds with a tab open and a scrape each 15 seconds.

The same server does the same work (transactions at a steady rate, in process, without Spark) with and without them, in
turns of a minute; the difference is their cost. Target: below 2 % of a core. `--browser`: the tab is the console itself
in headless Chromium, which asks for more than its stream; what Chromium takes is not the server's, and is not counted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psycopg
from scripts.browser import Browser, chromium

from benchmarks.processes import cpu_seconds

SCRAPE_S = 15


def script(views: int) -> str:
    """Ten tables, and views of three forms over them and over each other, in one transaction: one plan for all."""
    lines = ["BEGIN;", *(f"CREATE TABLE t{i} (k int, g int, v double precision);" for i in range(10))]
    for i in range(views):
        a, b = i % 10, (i * 7 + 3) % 10
        if i % 3 == 2:
            lines.append(f"CREATE MATERIALIZED VIEW v{i} AS SELECT g, s FROM v{i - 2} WHERE n > 0;")
        elif i % 3:
            lines.append(
                f"CREATE MATERIALIZED VIEW v{i} AS SELECT g, max(v) AS m FROM t{a} WHERE k > {i % 50} GROUP BY g;"
            )
        else:
            join = f"t{a} x JOIN t{b} y ON x.k = y.k AND x.g > {i % 50}"
            lines.append(
                f"CREATE MATERIALIZED VIEW v{i} AS SELECT x.g, count(*) AS n, sum(y.v) AS s FROM {join} GROUP BY x.g;"
            )
    return "\n".join([*lines, "COMMIT;"])


@contextmanager
def served(folder: Path, views: int) -> Iterator[tuple[int, int, int]]:
    """A server: its process, its port of PostgreSQL and its port of HTTP."""
    (folder / "views.sql").write_text(script(views))
    command = [sys.executable, "-m", "watersmeet", "serve", "--path", str(folder / "db"), "--port", "0"]
    command += ["--http-port", "0", "--runtime", "inprocess", str(folder / "views.sql")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            ports: list[int] = []
            while len(ports) < 2:
                line = process.stderr.readline()
                assert line, "the server has ended"
                if found := re.search(r":(\d+)/?$", line.strip()):
                    ports.append(int(found[1]))
            yield process.pid, ports[0], ports[1]
        finally:
            process.terminate()


class Watching:
    """A tab and a scraper, inside a block. snapshots, scrapes: how many there were.

    browser: shows the console; without it the tab is its stream alone.
    """

    def __init__(self, port: int, views: int, browser: Browser | None) -> None:
        self._port, self._views, self._browser = port, views, browser
        self._ended = threading.Event()
        self.snapshots = self.scrapes = 0

    def __enter__(self) -> Self:
        if self._browser is not None:
            self._browser.open(f"http://127.0.0.1:{self._port}/")
            self._threads = [threading.Thread(target=self._scrape, daemon=True)]
            self._threads[0].start()
            return self
        self._stream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        self._stream.request("GET", f"/api/live?session=t{time.time_ns()}")
        self._response = self._stream.getresponse()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._read, self._scrape)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._browser is not None:
            shown = self._browser.driver.execute_script("return document.body.innerText")
            assert f"{self._views + 10} relations" in shown, shown[:500]
            self._browser.driver.get("about:blank")
            self._threads[0].join()
            return
        self._stream.sock.shutdown(2)
        for thread in self._threads:
            thread.join()
        self._stream.close()
        assert self.snapshots > 1, "the tab was told nothing"

    def _read(self) -> None:
        try:
            for line in self._response:
                if line.startswith(b"data: "):
                    found = json.loads(line[6:])
                    assert self.snapshots or len(found["metrics"]) == self._views + 10
                    self.snapshots += 1
        except (OSError, ValueError):
            if not self._ended.is_set():
                raise

    def _scrape(self) -> None:
        while not self._ended.wait(SCRAPE_S if self.scrapes else 1):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            assert len(re.findall(r"^watersmeet_lag_seconds\{", text, re.MULTILINE)) == self._views
            connection.close()
            self.scrapes += 1


def work(port: int, seconds: float, rate: float) -> None:
    """Transactions at a steady rate."""
    with psycopg.connect(host="127.0.0.1", port=port, user="bench", autocommit=True) as client:
        until = time.monotonic() + seconds
        for step in range(10**9):
            due = until - seconds + step / rate if rate else until
            if due >= until:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            client.execute(f"INSERT INTO t{step % 10} VALUES ({step % 50}, {step % 90}, 1.5)")
        time.sleep(max(0.0, until - time.monotonic()))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("console_cost", description=__doc__)
    parser.add_argument("--views", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2, help="transactions a second; 0: none")
    parser.add_argument("--browser", action="store_true", help="show the console in headless Chromium")
    wanted = parser.parse_args(arguments)
    with ExitStack() as stack:
        browser = Browser(stack.enter_context(chromium())) if wanted.browser else None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pid, port, http_port = stack.enter_context(served(Path(folder), wanted.views))
        spent: dict[bool, list[float]] = {False: [], True: []}
        work(port, 5, wanted.rate)
        snapshots = 0
        for _ in range(wanted.rounds):
            for watched in (False, True):
                before = cpu_seconds(pid)
                if watched:
                    with Watching(http_port, wanted.views, browser) as watching:
                        work(port, wanted.seconds, wanted.rate)
                    snapshots += watching.snapshots
                else:
                    work(port, wanted.seconds, wanted.rate)
                spent[watched].append((cpu_seconds(pid) - before) / wanted.seconds * 100)
        shown = {w: ", ".join(f"{s:.2f}" for s in found) for w, found in spent.items()}
        cost = sorted(spent[True])[len(spent[True]) // 2] - sorted(spent[False])[len(spent[False]) // 2]
        print(f"{wanted.views} views, {wanted.rate:g} transactions/s; percent of a core:")
        tab = "Chromium" if wanted.browser else f"{snapshots} snapshots"
        print(f"  without {shown[False]}; with {shown[True]} ({tab}): the console and metrics cost {cost:.2f} %")
    return 0
