"""Getting the package to Spark's Python processes, so that executors need not have it installed."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Final

from watersmeet.scratch import make_folder

PACKAGE: Final = Path(__file__).parents[2]
ZIP_NAME: Final = "watersmeet_package.zip"
DAEMON: Final = "watersmeet.runtime.spark.daemon"


def make_zip() -> Path:
    """A zip of the package's source in a folder of `scratch.make_folder`, which the caller removes."""
    path = make_folder("ship") / ZIP_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(PACKAGE.rglob("*.py")):
            out.write(file, Path("watersmeet") / file.relative_to(PACKAGE))
    return path


def python_path(*, local: bool) -> str:
    """The PYTHONPATH of workers: where the package lies, or the zip in the directory that an executor works in."""
    first = str(PACKAGE.parent) if local else ZIP_NAME
    inherited = os.environ.get("PYTHONPATH", "") if local else ""
    return os.pathsep.join(p for p in (first, inherited) if p)
