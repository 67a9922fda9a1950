"""Several read-only servers of one database on one port, each a process of its own: workers.

The kernel distributes new connections among the processes that listen on the port (SO_REUSEPORT). A request to cancel a
statement may therefore reach another worker than the one that runs it. The process number of a client names its
worker, which receives requests on a socket in a folder that only this user can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from watersmeet.errors import error

#: The time that a worker has to end before it is killed.
_END_S: Final = 30.0


@dataclass(frozen=True)
class Worker:
    """One of `count` workers. number: from 0. folder: contains the sockets of all workers."""

    number: int
    count: int
    folder: Path

    def socket_of(self, number: int) -> str:
        """The path of the socket on which a worker receives the requests of others."""
        return str(self.folder / f"{number}.sock")

    def process(self, client: int) -> int:
        """The process number of a client, which the worker has numbered from 1."""
        return (client * self.count + self.number) & 0x7FFF_FFFF

    async def forward(self, process: int, request: bytes) -> None:
        """Sends a cancel request to the worker of a client, unless that is this one."""
        number = process % self.count
        if number == self.number:
            return
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(self.socket_of(number))
            writer.write(request)
            await writer.drain()
            writer.close()


def end_with_parent() -> None:
    """Ends this process by SIGTERM when its parent has ended."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="watersmeet-parent", daemon=True).start()


def reserved(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for workers, without listening. Raises INVALID_PARAMETER."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise error("INVALID_PARAMETER", "this system can't share a port among workers", hint="Leave --workers out.")
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
    except OSError as cause:
        made.close()
        raise error("INVALID_PARAMETER", f"listening on {host}:{port} is not possible", detail=f"{cause}.") from cause
    return made


class WorkerProcesses:
    """Running workers. run: called in each process with its worker and a function that reports that it listens."""

    def __init__(self, run: Callable[[Worker, Connection], None], workers: Sequence[Worker]) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []
        self._ready: list[Connection] = []
        for worker in workers:
            receives, sends = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(worker, sends), name=f"watersmeet-{worker.number}")
            process.start()
            sends.close()
            self._processes.append(process)
            self._ready.append(receives)

    def begin(self) -> bool:
        """Waits until all workers listen. False if one has ended instead."""
        for receives in self._ready:
            try:
                receives.recv()
            except EOFError:
                return False
        return True

    def has_ended(self, timeout_s: float) -> bool:
        """Waits for the end of a worker; False if none has ended after some time."""
        return bool(wait([p.sentinel for p in self._processes], timeout_s))

    def stop(self) -> None:
        """Ends all workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_END_S)
            process.kill()
            process.join()
