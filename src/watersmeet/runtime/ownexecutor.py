"""Which executor of a cluster this process belongs to."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def own_executor() -> str:
    """The id of the executor to which this process belongs; "" outside of one, and where it can't be known.

    An executor does not tell its Python, but was told itself, in its command line.
    """
    process = os.getppid()
    while process > 0:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1]
        except OSError:
            return ""
        if "--executor-id" in words[:-1]:
            return words[words.index("--executor-id") + 1]
        process = int(parent)
    return ""
