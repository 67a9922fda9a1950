"""`watersmeet serve`: runs scripts, then serves the database until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Final

from watersmeet.cli.interrupts import Interrupts
from watersmeet.cli.output import FAILED, errors_output, print_error
from watersmeet.cli.run import FULL, Pump, run_all
from watersmeet.cli.scripts import Script
from watersmeet.errors import Error
from watersmeet.server.service import Endpoint, Server
from watersmeet.session.connections.connection import Connection

_LOG: Final = logging.getLogger(__name__)

#: How often it is looked whether the engine has failed, or a signal came.
_LOOK_S = 0.1
#: Descriptors of a server apart from those of its clients.
_OWN_DESCRIPTORS: Final = 512


def print_line(text: str) -> None:
    """Tells who started the server."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def log_line(text: str) -> None:
    """Tells the log."""
    _LOG.info("%s", text)


def raise_descriptors(wanted: int) -> None:
    """Lets this process have as many open files and connections, or as many as the system allows, with a warning."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _LOG.warning("the system allows %d descriptors (ulimit -n), and all clients together may need %d", most, wanted)


def serve(
    connection: Connection,
    scripts: Sequence[Script],
    endpoint: Endpoint,
    *,
    transaction: bool,
    say: Callable[[str], None] = print_line,
    ending: Callable[[int], None] = lambda _: None,
) -> int:
    """Runs scripts, then serves until SIGTERM or SIGINT, or until the engine has failed for another reason than a full
    disk. The exit code.

    say: is told where it listens. ending: as in `Interrupts`.
    """
    console = errors_output()
    raise_descriptors(2 * (endpoint.limits.connections + endpoint.limits.starting) + _OWN_DESCRIPTORS)
    server = Server(connection.opened, endpoint)
    with Interrupts(ending) as interrupts:
        if scripts:
            run_all(connection, scripts, console, transaction=transaction, as_json=False)
        interrupts.armed = True
        if connection.opened.read_only:
            return asyncio.run(_serve(server, endpoint, connection, interrupts, None, say))
        with Pump(connection, interrupts.event, resumes=True) as pump:
            return asyncio.run(_serve(server, endpoint, connection, interrupts, pump, say))


async def _serve(
    server: Server,
    endpoint: Endpoint,
    connection: Connection,
    interrupts: Interrupts,
    pump: Pump | None,
    say: Callable[[str], None],
) -> int:
    await server.start()
    say(f"listening on {endpoint.host}:{server.port}")
    if server.http_port is not None:
        scheme = "http" if endpoint.certificate is None else "https"
        say(f"the console is at {scheme}://{endpoint.host}:{server.http_port}/")
    failure: Error | None = None
    try:
        while not interrupts.event.is_set() and failure is None:
            await asyncio.sleep(_LOOK_S)
            failure = _failure(connection, pump)
    finally:
        await server.stop()
    if failure is None:
        return 0
    print_error(failure, as_json=False)
    return FAILED


def _failure(connection: Connection, pump: Pump | None) -> Error | None:
    """Why nothing will go on. Asked ten times a second, in the event loop: it must cost nothing."""
    if pump is None:
        return None
    failure = connection.opened.engine.failure
    if failure is None or failure.condition == FULL:  # the pump resumes after a full disk
        return pump.failure
    return failure
