"""Getting the package to Spark's Python processes, so that executors need not have it installed."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path
from typing import Final

from watersmeet.scratch import make_folder

PACKAGE: Final = Path(__file__).parents[2]
ZIP_NAME: Final = "watersmeet_package.zip"
DAEMON: Final = "watersmeet.runtime.spark.daemon"


def make_zip() -> Path:
    """A zip of the package in a folder of `scratch.make_folder`, which the caller removes.

    It has the source, and what this Python has compiled of it: a process that compiles all that it loads takes 0.5 s
    of processor time more. Other versions of Python compile the source.
    """
    path = make_folder("ship") / ZIP_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(PACKAGE.rglob("*.py")):
            name = Path("watersmeet") / file.relative_to(PACKAGE)
            out.write(file, name)
            compiled = Path(importlib.util.cache_from_source(str(file)))
            if compiled.exists():
                out.write(compiled, name.with_suffix(".pyc"))
    return path


def python_path(*, local: bool) -> str:
    """The PYTHONPATH of workers: where the package lies, or the zip in the directory that an executor works in."""
    first = str(PACKAGE.parent) if local else ZIP_NAME
    inherited = os.environ.get("PYTHONPATH", "") if local else ""
    return os.pathsep.join(p for p in (first, inherited) if p)
