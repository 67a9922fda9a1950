"""The SPARK_HOME of a Spark that runs on this machine alone: that of the installed PySpark, without its zips.

Spark's Python processes look for pyspark in `$SPARK_HOME/python/lib/pyspark.zip` first, and a module in a zip is
compiled each time it is loaded: 0.5 s of processor time for each process, of which a query starts one. Where this
interpreter has PySpark installed as files, they find it there, compiled.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark


def link_home(directory: Path) -> Path | None:
    """Makes `directory`/home, with links to what Spark's scripts and Java need; it has to stay as long as Spark runs.

    None if SPARK_HOME is set, or PySpark is not installed with its own Spark: then the user's Spark is used as it is.
    """
    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (installed / "jars").is_dir() or not (installed / "bin").is_dir():
        return None
    home = directory / "home"
    home.mkdir()
    for entry in installed.iterdir():
        if entry.is_dir() and entry.name != "python" and not (entry / "__init__.py").exists():
            (home / entry.name).symlink_to(entry)
    return home
