"""The command line. Ctrl-C ends it without a traceback also during its imports, which take a second."""

from __future__ import annotations

import importlib
import os
import signal
import sys


def main() -> None:
    """Imports the commands and runs one."""
    _open_streams()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    commands = importlib.import_module("watersmeet.cli.commands")
    signal.signal(signal.SIGINT, before)
    commands.main()


def _open_streams() -> None:
    """Opens missing standard streams: otherwise files of the database get their descriptors, and Java's output."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )
