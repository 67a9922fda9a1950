"""Tasks in Spark's Python workers, as functions of Arrow batches, and frames in files.

The job (one epoch) is a property of the Spark job, so that the functions, and Spark's plan with them, are the same for
every epoch. Batches between stages hold frames.

On one machine, large frames bypass Spark's Java, which would copy them many times: a task writes their bodies to one
file, in a folder that the driver empties after each epoch, and sends their positions. A repeated task writes another
file, so that shuffled frames stay valid.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import traceback
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from watersmeet.errors import Error
from watersmeet.kernel.context import failing_operators
from watersmeet.kernel.runs.frames import Body, Frame, Unwritten
from watersmeet.runtime.failures import is_of_operators, operator_failed
from watersmeet.runtime.memory import IdleTimer, return_freed
from watersmeet.runtime.spark.shipping import spare_repeated_work
from watersmeet.runtime.taskcontract import Job
from watersmeet.runtime.tasks import run_bucket, run_sources, run_whole
from watersmeet.system.blobs import joined
from watersmeet.system.files import write_all
from watersmeet.values.serialization import from_json, to_json

#: Smaller bodies are sent, because Spark transports them faster than the file system.
_LEAST_BYTES: Final = 64 << 10

_ALIGNMENT: Final = 64


class Sent(NamedTuple):
    """A frame in the form in which it is sent. file: the path of the file with the body, at `offset_bytes`; None if the
    frame contains it.
    """

    frame: Frame
    file: str | None = None
    offset_bytes: int = 0
    length_bytes: int = 0


def put_down(frames: Iterable[Frame], folder: str | None) -> Iterator[Sent]:
    """The frames. Large bodies are in a new file in `folder`; without a folder, all frames contain their bodies."""
    path = None if folder is None else os.path.join(folder, uuid.uuid4().hex)
    end = 0
    handle = -1
    last: Sent | None = None
    body: Body = b""
    try:
        for frame in frames:
            if last is not None and frame.body is body:  # buckets share it
                yield last._replace(frame=replace(frame, body=b""))
                continue
            pieces = frame.pieces
            length = sum(map(len, pieces))
            if path is None or length < _LEAST_BYTES:
                yield Sent(replace(frame, body=joined(pieces)) if isinstance(frame.body, Unwritten) else frame)
                continue
            if handle < 0:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            padding = -end % _ALIGNMENT
            write_all(handle, [bytes(padding), *pieces])
            last, body = Sent(replace(frame, body=b""), path, end + padding, length), frame.body
            end += padding + length
            yield last
    finally:
        if handle >= 0:
            os.close(handle)


def picked_up(sent: Iterable[Sent]) -> Iterator[Frame]:
    """The frames with their bodies. Raises OSError if a file is missing."""
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
    """Delete all files of an epoch in `folder`."""
    for path in folder.iterdir():
        if not path.name.startswith("."):
            path.unlink(missing_ok=True)


#: The local property with the job.
JOB: Final = "watersmeet.job"

#: The local property with the path of a socket to the driver.
LINE: Final = "watersmeet.line"

#: The local property with the folder of frames in files, if there is one.
FOLDER: Final = "watersmeet.folder"

#: The channel of frames whose body is the error of a task.
ERROR: Final = "error"

#: Spark's schema of frames.
FRAMES: Final = "bucket int, channel string, seq long, body binary, file string, offset long, length long"

_SCHEMA: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("channel", pa.string()),
        ("seq", pa.int64()),
        ("body", pa.binary()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)

#: The size of a batch of frames. Spark copies whole batches.
_BATCH_BYTES: Final = 16 << 20

#: After an epoch with more input than this, a worker returns memory, …
_MUCH_BYTES: Final = 8 << 20

#: … if no task starts for this long, because a task would need it again.
_idle_timer: Final = IdleTimer(2.0)

#: A standing task ends when the driver sent nothing for this long.
_WAIT_S: Final = 1.0

#: Errors of the machine that another attempt may not have, so Spark repeats the task.
_TRANSIENT_CONDITIONS: Final = ("DATABASE_ACCESS",)


def pack_job(job: Job) -> str:
    """The job as the text of the property."""
    return base64.b85encode(zlib.compress(json.dumps(to_json(job)).encode(), 1)).decode()


def _unpacked(text: str | bytes) -> Job:
    return from_json(Job, json.loads(zlib.decompress(base64.b85decode(text))))


_last_unpacked: Final = lru_cache(maxsize=1)(_unpacked)


def _job() -> Job | None:
    """The job of this task; None in a Spark job that only warms up workers."""
    text = _property(JOB)
    return _unpacked(text) if text else None


def _property(name: str) -> str | None:
    """A property of the Spark job of this task."""
    context = TaskContext.get()
    assert context is not None
    found: str | None = context.getLocalProperty(name)
    return found


def run_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs the whole epoch in one task, every stage in every bucket; or, with a connection to the driver, parts of
    several epochs. Without a job and a connection it only warms up a worker.
    """
    for _ in batches:
        if (job := _job()) is not None:
            yield from _batches(_guarded(job, run_whole))
        elif (path := _property(LINE)) is not None:
            _stay(path)


@dataclass(frozen=True)
class Work:
    """A part of an epoch that a standing task runs.

    job: the packed job. stage: None for all stages in all buckets. number: that of a task of stage 0, or a bucket.
    frames: the frames for a later stage. folder: that for large bodies; if None, the answer contains all bodies.
    """

    job: bytes
    stage: int | None = None
    number: int = 0
    frames: tuple[Sent, ...] = ()
    folder: str | None = None

    def run(self) -> list[Sent]:
        """The frames that the work returns."""
        job = _last_unpacked(self.job)
        if self.stage is None:
            frames = _guarded(job, run_whole)
        elif self.stage == 0:
            frames = _guarded(job, partial(run_sources, task=self.number))
        else:
            frames = _guarded(job, partial(run_bucket, stage=self.stage, frames=picked_up(self.frames)))
        return [s._replace(frame=replace(s.frame, body=s.frame.to_bytes())) for s in put_down(frames, self.folder)]


def _stay(path: str) -> None:
    """Run the works that the driver sends to a socket, and answer each with its frames, until the connection closes or
    nothing arrives. The first message to the driver is the id of this process; a message of None only asks it to stay.
    """
    try:
        line = Client(path, "AF_UNIX")
    except OSError:
        return  # the driver has closed the connection meanwhile
    with line:
        with contextlib.suppress(ConnectionError):
            line.send(os.getpid())
        for work in _arriving(line):
            answer = work.run()  # an error of a connection of its own is one of the task
            with contextlib.suppress(ConnectionError):
                line.send(answer)


def _arriving(line: Connection) -> Iterator[Work]:
    """The works that the driver sends, until the connection closes or nothing arrives."""
    with contextlib.suppress(EOFError, ConnectionError):
        while line.poll(_WAIT_S):
            work: Work | None = line.recv()
            if work is not None:
                yield work


def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run stage 0. Each input row is the number of a task."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield from _batches(_guarded(_job(), partial(run_sources, task=task)), _property(FOLDER))


@dataclass(frozen=True)
class BucketStage:
    """A stage above 0; a partition holds the frames of one bucket."""

    stage: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        frames = list(picked_up(sent for batch in batches for sent in _sent(batch)))
        failed = [f for f in frames if f.channel == ERROR]
        if failed or not frames:
            yield from _batches(failed)
            return
        made = _guarded(_job(), partial(run_bucket, stage=self.stage, frames=frames))
        yield from _batches(made, _property(FOLDER))


def _guarded(job: Job | None, work: Callable[[Job], list[Frame]]) -> Iterator[Frame]:
    """The frames that `work` returns, or a frame with its error."""
    assert job is not None, "a task of Watersmeet runs without its job"
    spare_repeated_work()
    if job.workers.are_small:
        return_freed()
    _idle_timer.end()
    try:
        frames = work(job)
    except Exception as cause:
        if is_transient(cause):
            raise
        frames = [Frame(0, ERROR, 0, json.dumps(describe(cause)).encode())]
    yield from frames
    if job.intent.bytes > _MUCH_BYTES:
        _idle_timer.begin()  # the worker keeps running, possibly with only smaller epochs


def is_transient(cause: Exception) -> bool:
    """Whether another attempt may not have the error."""
    if isinstance(cause, MemoryError):
        return not failing_operators(cause)  # the driver repeats the epoch, then stops the views of the operator
    return isinstance(cause, OSError) or (isinstance(cause, Error) and cause.condition in _TRANSIENT_CONDITIONS)


def describe(cause: Exception) -> dict[str, Any]:
    """JSON from which the driver recreates the error."""
    described: dict[str, Any] = {
        "notes": [str(n) for n in getattr(cause, "__notes__", ())],
        "operators": failing_operators(cause) if is_of_operators(cause) else (),
    }
    if isinstance(cause, Error):
        return described | cause.to_json()
    return described | {
        "condition": None,
        "message": f"{type(cause).__name__}: {cause}",
        "trace": "".join(traceback.format_exception(cause))[-4000:],
        "failed": operator_failed(cause).to_json(),
    }


def _sent(batch: pa.RecordBatch) -> Iterator[Sent]:
    buckets, channels, seqs = (batch.column(i).to_pylist() for i in range(3))
    bodies = batch.column(3)
    files, offsets, lengths = (batch.column(i).to_pylist() for i in range(4, 7))
    for i in range(batch.num_rows):
        yield Sent(Frame(buckets[i], channels[i], seqs[i], bodies[i].as_buffer()), files[i], offsets[i], lengths[i])


def _batches(frames: Iterable[Frame], folder: str | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of frames. folder: that for large bodies; if None, they are sent."""
    group: list[Sent] = []
    size = 0
    for sent in put_down(frames, folder):
        group.append(sent)
        size += sum(map(len, sent.frame.pieces))
        if size >= _BATCH_BYTES:
            yield _batch(group)
            group, size = [], 0
    if group:
        yield _batch(group)


def _batch(sent: list[Sent]) -> pa.RecordBatch:
    frames = [s.frame for s in sent]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f.bucket for f in frames], pa.int32()),
            pa.array([f.channel for f in frames], pa.string()),
            pa.array([f.seq for f in frames], pa.int64()),
            _binary([f.body for f in frames]),
            pa.array([s.file for s in sent], pa.string()),
            pa.array([s.offset_bytes for s in sent], pa.int64()),
            pa.array([s.length_bytes for s in sent], pa.int64()),
        ],
        schema=_SCHEMA,
    )


def _binary(bodies: list[pa.Buffer | bytes]) -> pa.Array:
    """A binary column, with at most one copy of the bodies."""
    views = [memoryview(b).cast("B") for b in bodies]
    offsets = np.zeros(len(views) + 1, np.int32)
    np.cumsum([len(v) for v in views], out=offsets[1:])
    data = pa.py_buffer(bodies[0] if len(bodies) == 1 else b"".join(views))
    return pa.Array.from_buffers(pa.binary(), len(views), [None, pa.py_buffer(offsets), data])
