"""The entry point of the command. Ctrl-C ends it without a traceback also while it is loaded, which takes a second."""

from __future__ import annotations

import importlib
import os
import signal
import sys


def main() -> None:
    """Load the commands, and run the one that was asked for."""
    _open_streams()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    commands = importlib.import_module("watersmeet.cli.commands")
    signal.signal(signal.SIGINT, before)
    commands.main()


def _open_streams() -> None:
    """What the process was started without goes nowhere. Else files of the database would get these numbers, and what
    Java prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )


if __name__ == "__main__":
    main()
