"""A join fed in rounds: of each round first the files of one side, then those of the other one, so that what is looked
up is there.

Views of any dialect; sources are made in RisingWave's, which all read.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import watersmeet
from benchmarks.frame import Measured
from benchmarks.processes import PeakMemory, cpu_seconds
from watersmeet.session.connections import Runtime

#: Files by the name of a folder: what is offered together and read until FLUSH returns.
Step = Mapping[str, Sequence[Path]]


def offer(files: Sequence[Path], folder: Path) -> None:
    """Lets a source that reads `folder` see the files."""
    for file in files:
        (folder / f".{file.name}").symlink_to(file)
        (folder / f".{file.name}").rename(folder / file.name)


def parts(folder: Path, rounds: int) -> list[list[Path]]:
    """The files of a folder, in order, cut into rounds."""
    files = sorted(f for f in folder.iterdir() if not f.name.startswith("."))
    return [files[len(files) * i // rounds : len(files) * (i + 1) // rounds] for i in range(rounds)]


def ours(
    sources: str,
    view: str,
    check: str,
    steps: Sequence[Step],
    parallelism: int,
    *,
    dialect: str = "risingwave",
    shown: str = "joined",
    runtime: Runtime = "spark",
) -> Measured:
    """Watersmeet, from making the view until it has everything of all steps, the engine's start included.

    sources: a script in RisingWave's dialect; `{name}` stands for the folder of that name. view: a script in `dialect`,
    which makes `joined`.
    shown: what is checked, as RisingWave's dialect reads it.
    """
    with tempfile.TemporaryDirectory() as name:
        folders = {side: Path(name) / side for step in steps for side in step}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        with watersmeet.connect(Path(name) / "db", parallelism=parallelism, runtime="inprocess") as connection:
            connection.execute(sources.format(**folders))
        with watersmeet.connect(Path(name) / "db", dialect, runtime=runtime) as connection:
            with PeakMemory() as memory:
                started, used = time.perf_counter(), cpu_seconds(os.getpid())
                connection.execute(view)
                _take(connection, steps, folders)
                seconds = time.perf_counter() - started
                cpu_s = cpu_seconds(os.getpid()) - used - memory.cpu_s
            state = sum(v["state_bytes"] for v in connection.status()["views"])
        with watersmeet.connect(Path(name) / "db", read_only=True) as connection:
            found = connection.execute(f"SELECT {check} FROM {shown}").fetchone()
    return Measured(seconds, tuple(int(v) for v in found), memory.peak_bytes, state, cpu_s)


def _take(connection: watersmeet.Connection, steps: Sequence[Step], folders: dict[str, Path]) -> None:
    for step in steps:
        for side, files in step.items():
            offer(files, folders[side])
        connection.execute("FLUSH")
