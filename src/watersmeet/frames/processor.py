"""The stateful operator of Spark that runs the buckets, and the stores of their state.

Where the state of a bucket is: in memory, or in Spark's state store with a copy in local files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from watersmeet.errors import error
from watersmeet.frames.buckets import Piece, Step, bodies, check_identity, repeated, run_bucket
from watersmeet.frames.shapes import JoinShape
from watersmeet.system.blobs import BlobRef, Pieces, joined
from watersmeet.values.watermarks import Watermark, value

#: A value of the state store is copied several times on its way through a socket and the JVM.
CHUNK_BYTES: Final = 8 << 20

#: Local copies of runs take at most so much disk; the least recently written go first.
LOCAL_BYTES: Final = 8 << 30


def name_of(buffer: pa.Buffer) -> str:
    """The name of a run: of its content, so that a repeated attempt writes the same under the same name."""
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


class MemoryStore:
    """A bucket's state in memory, for tests."""

    def __init__(self) -> None:
        self.runs: dict[str, pa.Buffer] = {}
        self._plan: str | None = None
        self._manifest: str | None = None

    def plan(self) -> str | None:
        """See `buckets.Store`."""
        return self._plan

    def keep_plan(self, text: str) -> None:
        """See `buckets.Store`."""
        self._plan = text

    def manifest(self) -> str | None:
        """See `buckets.Store`."""
        return self._manifest

    def keep_manifest(self, text: str) -> None:
        """See `buckets.Store`."""
        self._manifest = text

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """See `buckets.Store`."""
        buffer = joined(blob)
        ref = BlobRef(name_of(buffer), 0, buffer.size, rows)
        self.runs[ref.file] = buffer
        return ref

    def remove(self, ref: BlobRef) -> None:
        """See `buckets.Store`."""
        del self.runs[ref.file]

    def read(self, ref: BlobRef) -> pa.Buffer:
        """See `kernel.state.BlobStore`."""
        return self.runs[ref.file]


class Values(Protocol):
    """Spark's map state, as it is: keys and values are tuples."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 - Spark's name
        """The value of `key`."""
        ...

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        """Puts a value."""
        ...

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        """Takes `key` away."""
        ...


class SparkStore:
    """The current bucket's state in two of Spark's map states: texts by name, and chunks of runs by run and number.

    local: files of this machine that hold the same runs, so that they are mapped and not sent through Spark again;
    None: there are none. What they lack comes from Spark: after a restart, on another machine, after a failure.
    """

    def __init__(self, texts: Values, chunks: Values, local: LocalRuns | None) -> None:
        self._texts = texts
        self._chunks = chunks
        self._local = local

    def plan(self) -> str | None:
        """See `buckets.Store`."""
        return self._text("plan")

    def keep_plan(self, text: str) -> None:
        """See `buckets.Store`."""
        self._texts.updateValue(("plan",), (text,))

    def manifest(self) -> str | None:
        """See `buckets.Store`."""
        return self._text("manifest")

    def keep_manifest(self, text: str) -> None:
        """See `buckets.Store`."""
        self._texts.updateValue(("manifest",), (text,))

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """See `buckets.Store`."""
        buffer = joined(blob)
        ref = BlobRef(name_of(buffer), 0, buffer.size, rows)
        for number, start in enumerate(range(0, buffer.size, CHUNK_BYTES)):
            body = buffer.slice(start, min(CHUNK_BYTES, buffer.size - start)).to_pybytes()
            self._chunks.updateValue((ref.file, number), (body,))
        if self._local is not None:
            self._local.put(ref, buffer)
        return ref

    def remove(self, ref: BlobRef) -> None:
        """See `buckets.Store`."""
        for number in range(-(-ref.length_bytes // CHUNK_BYTES)):
            self._chunks.removeKey((ref.file, number))
        if self._local is not None:
            self._local.remove(ref)

    def read(self, ref: BlobRef) -> pa.Buffer:
        """See `kernel.state.BlobStore`."""
        if self._local is not None and (buffer := self._local.get(ref)) is not None:
            return buffer
        parts = [self._chunks.getValue((ref.file, n)) for n in range(-(-ref.length_bytes // CHUNK_BYTES))]
        body = b"".join(bytes(p[0]) for p in parts if p is not None)
        buffer = pa.py_buffer(body)
        if len(body) != ref.length_bytes or name_of(buffer) != ref.file:
            raise error(
                "STATE_DAMAGED",
                f"a run of {ref.length_bytes} bytes that the state names is not in the state store",
                detail=f"{ref}.",
                hint="Restore the checkpoint, or start the query with a new one.",
            )
        if self._local is not None:
            self._local.put(ref, buffer)
            return self._local.get(ref) or buffer
        return buffer

    def _text(self, name: str) -> str | None:
        found = self._texts.getValue((name,))
        return None if found is None else str(found[0])


class LocalRuns:
    """Runs as files of a directory that ends with the executor, shared by all its Python workers."""

    def __init__(self, folder: Path, most_bytes: int = LOCAL_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def of_worker() -> LocalRuns | None:
        """Where Spark's worker may keep files: they go when the executor does. None if it doesn't say where."""
        folders = [f for f in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if f]
        return LocalRuns(Path(folders[0]) / "watersmeet-runs") if folders else None

    def put(self, ref: BlobRef, buffer: pa.Buffer) -> None:
        """Keeps a copy; whole or not at all."""
        path = self._folder / ref.file
        if path.exists():
            return
        self._make_room(buffer.size)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(buffer)
            os.replace(name, path)
        except OSError:  # a full disk: Spark has the run
            Path(name).unlink(missing_ok=True)

    def get(self, ref: BlobRef) -> pa.Buffer | None:
        """The mapped run, or None. Its mapping outlives the file."""
        try:
            with pa.memory_map(str(self._folder / ref.file)) as file:
                return file.read_buffer() if file.size() == ref.length_bytes else None
        except FileNotFoundError:
            return None

    def remove(self, ref: BlobRef) -> None:
        """Forgets the copy."""
        (self._folder / ref.file).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        files = []
        for entry in os.scandir(self._folder):
            try:
                found = entry.stat()
            except FileNotFoundError:
                continue
            files.append((found.st_mtime_ns, found.st_size, entry.path))
        total = size + sum(f[1] for f in files)
        for _, length, path in sorted(files):
            if total <= self._most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= length


#: What travels to the stateful operator.
PIECE: Final = "bucket int, channel int, body binary"

#: What it gives: frames of changes, each in a row, and one row of figures (without a frame) for each bucket.
FIGURES: Final = ("left_rows", "right_rows", "late_left_rows", "late_right_rows", "state_rows", "state_bytes")

#: The row of figures also has the watermark of the result, in microseconds.
MARK: Final = "mark"

CHANGES: Final = "frame binary, " + ", ".join(f"{name} bigint" for name in (*FIGURES, MARK))


class Buckets(StatefulProcessor):  # type: ignore[misc]
    """Runs each bucket of `shape` on the pieces that came for it."""

    def __init__(self, shape: JoinShape, ids: tuple[int, ...], mark: Watermark) -> None:
        """ids: the key of each bucket in Spark. mark: the watermark of the result."""
        self._shape = shape
        self._mark = mark
        self._numbers = {key: number for number, key in enumerate(ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._texts = handle.getMapState("texts", "name string", "text string")
        self._chunks = handle.getMapState("chunks", "run string, number int", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
        store = SparkStore(self._texts, self._chunks, LocalRuns.of_worker())
        bucket = self._numbers.get(int(key[0]))
        if bucket is None:  # the key of this partition, before all buckets
            check_identity(self._shape, store)
            return
        pieces = [
            Piece(bucket, int(channel), bytes(body))
            for frame in rows
            for channel, body in zip(frame["channel"], frame["body"], strict=True)
        ]
        yield from frames(run_bucket(self._shape, bucket, pieces, store), self._mark)

    def close(self) -> None:
        pass


def frames(step: Step, mark: Watermark) -> Iterator[pd.DataFrame]:
    """A step as rows of `CHANGES`."""
    names = ["frame", *FIGURES, MARK]
    for body in bodies(repeated(step.delta)):
        yield pd.DataFrame([[body, *(0 for _ in FIGURES), None]], columns=names)
    time_us = value(mark, step.watermarks)
    # Spark takes rows at its watermark for late, ours only those below it.
    last_us = None if time_us is None else time_us - 1
    yield pd.DataFrame([[None, *step.rows, *step.late, *step.state, last_us]], columns=names)
