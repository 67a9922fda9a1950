"""`watersmeet serve`: runs scripts, then serves the database until it is stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from watersmeet.cli.consoles import errors_output
from watersmeet.cli.failures import FAILED, print_error
from watersmeet.cli.interrupts import Interrupts
from watersmeet.cli.run import Pump, run_all
from watersmeet.cli.scripts import Script
from watersmeet.errors import Error, error_from_json
from watersmeet.server.service import Endpoint, Server
from watersmeet.session.connections.connection import Connection

#: How often it is looked whether the engine has failed.
_LOOK_S = 0.5


def serve(connection: Connection, scripts: Sequence[Script], endpoint: Endpoint, *, transaction: bool) -> int:
    """Runs scripts, then serves until SIGTERM or SIGINT, or until the engine has failed. The exit code."""
    console = errors_output()
    server = Server(connection.opened, endpoint)
    with Interrupts() as interrupts:
        if scripts:
            run_all(connection, scripts, console, transaction=transaction, as_json=False)
        interrupts.armed = True
        if connection.opened.read_only:
            return asyncio.run(_serve(server, endpoint, connection, interrupts, None))
        with Pump(connection, interrupts.event) as pump:
            return asyncio.run(_serve(server, endpoint, connection, interrupts, pump))


async def _serve(
    server: Server, endpoint: Endpoint, connection: Connection, interrupts: Interrupts, pump: Pump | None
) -> int:
    await server.start()
    sys.stderr.write(f"listening on {endpoint.host}:{server.port}\n")
    if server.http_port is not None:
        scheme = "http" if server.tls is None else "https"
        sys.stderr.write(f"the console is at {scheme}://{endpoint.host}:{server.http_port}/\n")
    sys.stderr.flush()
    failure: Error | None = None
    try:
        while not interrupts.event.is_set() and failure is None:
            await asyncio.sleep(_LOOK_S / 5)
            failure = _failure(connection, pump)
    finally:
        await server.stop()
    if failure is None:
        return 0
    print_error(failure, as_json=False)
    return FAILED


def _failure(connection: Connection, pump: Pump | None) -> Error | None:
    """Why nothing will go on."""
    if pump is None:
        return None
    status = connection.status()
    return error_from_json(status["error"]) if status["state"] == "failed" else pump.failure
