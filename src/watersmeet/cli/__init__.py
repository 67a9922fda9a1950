"""The command line. SIGINT and SIGTERM end it without a traceback, even during its imports, which take a second."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

#: The exit code of a command that SIGINT or SIGTERM interrupts before it finishes.
INTERRUPTED = 130


def main() -> None:
    """Imports the commands and runs one."""
    _open_streams()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, end_at_once)
        importlib.import_module("watersmeet.cli.commands").main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """Ends the process immediately after SIGINT or SIGTERM, as long as no command handles them."""
    del number, frame
    os._exit(INTERRUPTED)


def _open_streams() -> None:
    """Opens missing standard streams: otherwise files of the database would get their descriptors and receive Java's
    output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )
