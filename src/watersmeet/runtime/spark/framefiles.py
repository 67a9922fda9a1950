"""Frames that wait in files: on one machine, what a stage sends to the next one need not pass through Spark's Java,
which copies it many times.

A task writes its large bodies to one file, in a folder that the driver empties after each epoch, and sends where they
are. A task that runs again writes a file of its own; what Spark has shuffled stays valid.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from watersmeet.kernel.runs.frames import Frame

#: Smaller bodies are sent: Spark brings them faster than the file system.
_LEAST_BYTES: Final = 64 << 10
_ALIGNMENT: Final = 64


class Sent(NamedTuple):
    """A frame as it is sent. file: the path of the file that has the body, at `offset_bytes`; None if it is inside."""

    frame: Frame
    file: str | None = None
    offset_bytes: int = 0
    length_bytes: int = 0


def put_down(frames: Iterable[Frame], folder: str | None) -> Iterator[Sent]:
    """The frames with large bodies in a file in `folder`; None: they are sent as they are."""
    path = None if folder is None else os.path.join(folder, uuid.uuid4().hex)
    end = 0
    handle = -1
    try:
        for frame in frames:
            body = memoryview(frame.body).cast("B")
            if path is None or len(body) < _LEAST_BYTES:
                yield Sent(frame)
                continue
            if handle < 0:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            padding = -end % _ALIGNMENT
            start = end + padding
            end = start
            while end < start + len(body):
                end += os.pwrite(handle, body[end - start :], end)
            yield Sent(replace(frame, body=b""), path, start, len(body))
    finally:
        if handle >= 0:
            os.close(handle)


def picked_up(sent: Iterable[Sent]) -> Iterator[Frame]:
    """The frames with their bodies. OSError if a file is gone."""
    maps: dict[str, pa.Buffer] = {}
    for frame, file, offset, length in sent:
        if file is None:
            yield frame
            continue
        if file not in maps:
            with pa.memory_map(file) as mapped:
                maps[file] = mapped.read_buffer()
        yield replace(frame, body=maps[file].slice(offset, length))


def empty(folder: Path) -> None:
    """Deletes all files in `folder` that an epoch has left."""
    for path in folder.iterdir():
        if not path.name.startswith("."):
            path.unlink(missing_ok=True)
