"""The entry point of the command. Ctrl-C ends it without a traceback also while it is loaded, which takes a second."""

from __future__ import annotations

import importlib
import signal


def main() -> None:
    """Load the commands, and run the one that was asked for."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    commands = importlib.import_module("watersmeet.cli.commands")
    signal.signal(signal.SIGINT, before)
    commands.main()


if __name__ == "__main__":
    main()
