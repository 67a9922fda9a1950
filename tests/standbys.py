"""Servers of one database that take over from each other: processes of `watersmeet serve --standby`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psycopg


class Server:
    """A process of `watersmeet serve --standby`, and the lines that it prints."""

    def __init__(self, path: str, port: int, *arguments: str, runtime: str = "inprocess") -> None:
        self.port = port
        command = [sys.executable, "-m", "watersmeet", "serve", "--path", path, "--port", str(port), "--standby"]
        self.process = subprocess.Popen(
            [*command, "--runtime", runtime, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines: list[str] = []
        self._printed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            with self._printed:
                self.lines.append(line.strip())
                self._printed.notify_all()

    def says(self, words: str, times: int = 1) -> None:
        """Waits until it has printed lines that begin with these words."""
        with self._printed:
            done = self._printed.wait_for(lambda: sum(x.startswith(words) for x in self.lines) >= times, timeout=300)
        assert done, self.lines

    def writes(self, times: int = 1) -> None:
        """Waits until it serves as the writer."""
        self.says("listening on", times)

    def stands_by(self, times: int = 1) -> None:
        """Waits until it serves as the standby."""
        self.says("standing by on", times)

    def kill(self) -> None:
        """Kills the process and those that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and waits for the end. Returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._thread.join()
        self.process.stderr.close()
        return code


def clients_address(*ports: int) -> str:
    """The address by which libpq finds the server that writes."""
    hosts = ",".join("127.0.0.1" for _ in ports)
    return f"host={hosts} port={','.join(map(str, ports))} user=u dbname=d target_session_attrs=read-write"


def connected(*ports: int) -> psycopg.Connection:
    """A client of the server that writes, as soon as there is one."""
    while True:
        try:
            return psycopg.connect(clients_address(*ports), autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.05)
