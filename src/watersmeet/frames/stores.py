"""Where the state of a bucket is: in Spark's state store (`SparkStore`) or in files at a path (`PathStore`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import TaskContext

from watersmeet.errors import error
from watersmeet.frames.buckets import PLAN
from watersmeet.objectstores import storage
from watersmeet.system.blobs import BlobRef, Pieces, joined

#: The maximum size of a value in the state store, which is copied several times through a socket and the JVM.
CHUNK_BYTES: Final = 8 << 20

#: The limit of local copies of runs; the oldest are deleted first.
LOCAL_BYTES: Final = 8 << 30


def name_of(buffer: pa.Buffer) -> str:
    """The name of a run, from its content, so that a repeated attempt writes the same run under the same name."""
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


class Values(Protocol):
    """Spark's map state: keys and values are tuples."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 - Spark's name
        """The value of `key`."""
        ...

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        """Stores a value."""
        ...

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        """Removes `key`."""
        ...


class SparkStore:
    """A `Store` that keeps the bucket's state in two of Spark's map states: texts by name, and chunks of runs by run
    and number.

    local: local files with the same runs, which are memory-mapped instead of sent through Spark again; None: no local
    files. Missing runs are read from Spark, for example after a restart or a failure, or on another machine.
    """

    def __init__(self, texts: Values, chunks: Values, local: LocalRuns | None) -> None:
        self._texts = texts
        self._chunks = chunks
        self._local = local

    def text(self, name: str) -> str | None:
        found = self._texts.getValue((name,))
        return None if found is None else str(found[0])

    def keep_text(self, name: str, text: str) -> None:
        self._texts.updateValue((name,), (text,))

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        buffer = joined(blob)
        ref = BlobRef(name_of(buffer), 0, buffer.size, rows)
        for number, start in enumerate(range(0, buffer.size, CHUNK_BYTES)):
            body = buffer.slice(start, min(CHUNK_BYTES, buffer.size - start)).to_pybytes()
            self._chunks.updateValue((ref.file, number), (body,))
        if self._local is not None:
            self._local.put(ref, buffer)
        return ref

    def remove(self, ref: BlobRef) -> None:
        for number in range(-(-ref.length_bytes // CHUNK_BYTES)):
            self._chunks.removeKey((ref.file, number))
        if self._local is not None:
            self._local.remove(ref)

    def read(self, ref: BlobRef) -> pa.Buffer:
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


class LocalRuns:
    """Runs as files of a directory that is deleted with the executor, shared by all its Python workers."""

    def __init__(self, folder: Path, most_bytes: int = LOCAL_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def of_worker() -> LocalRuns | None:
        """The runs in the directory for files of Spark's worker, which is deleted with the executor; None if it is
        unknown.
        """
        folders = [f for f in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if f]
        return LocalRuns(Path(folders[0]) / "watersmeet-runs") if folders else None

    def put(self, ref: BlobRef, buffer: pa.Buffer) -> None:
        """Stores a complete copy of a run, or none."""
        path = self._folder / ref.file
        if path.exists():
            return
        self._make_room(buffer.size)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(buffer)
            os.replace(name, path)
        except OSError:  # for example a full disk; Spark also has the run
            Path(name).unlink(missing_ok=True)

    def get(self, ref: BlobRef) -> pa.Buffer | None:
        """The memory-mapped run, or None. The mapping outlives the file."""
        try:
            with pa.memory_map(str(self._folder / ref.file)) as file:
                return file.read_buffer() if file.size() == ref.length_bytes else None
        except FileNotFoundError:
            return None

    def remove(self, ref: BlobRef) -> None:
        """Deletes the copy."""
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


@dataclass(frozen=True)
class Batch:
    """A micro-batch of a query. query: the id of its checkpoint. run: the id of its start. number: from 0. retained:
    for how many micro-batches Spark keeps what it needs to go back to an earlier one.
    """

    query: str
    run: str
    number: int
    retained: int

    @staticmethod
    def of_task() -> Batch:
        """The micro-batch of this task of Spark. Raises FEATURE_NOT_SUPPORTED if Spark does not tell the task."""
        context = TaskContext.get()
        assert context is not None
        query, run, number = (context.getLocalProperty(name) for name in _PROPERTIES)
        if query is None or run is None or number is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "a join with its state in files, in foreachBatch of Spark Connect",
                detail="A Connect server runs the batch as a query of its own, without the number of the micro-batch.",
                hint='Call join with state="store", or write the stream with another sink.',
            )
        return Batch(query, run, int(number), int(context.getLocalProperty(_RETAINED) or _RETAINED_BATCHES))


#: The local properties of a task with the ids of the query, of its run (the group of its jobs) and of its micro-batch.
_PROPERTIES: Final = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")

#: The setting for how many micro-batches Spark keeps the state, and its default.
_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
_RETAINED_BATCHES: Final = 100


class PathStore:
    """A `Store` in files at a path: the runs, and a manifest with the texts for each bucket and micro-batch.

    path: a folder for this join only, in which each checkpoint has a folder.

    Micro-batch n starts from the state of the last earlier one, and a repetition of n writes the manifest of n again.
    So each micro-batch counts once. A run never changes; its name has the numbers of its bucket and micro-batch and the
    hash of its content. Manifests, and runs that only they name, are deleted when Spark can't go back to their
    micro-batch.
    """

    def __init__(
        self, path: storage.AnyPath, batch: Batch, bucket: int, check: Callable[[str], None], pool: Executor
    ) -> None:
        """Reads the state before `batch`. check: raises an error for the plan of another join. pool: writes runs.

        Raises STATE_MISMATCH if the state is incomplete.
        """
        self._check = check
        self._folder = path / batch.query
        self._batch = batch
        self._bucket = bucket
        self._pool = pool
        self._writes: list[Future[object]] = []
        storage.make_directory(self._folder / _MANIFESTS)
        storage.make_directory(self._folder / _FILES)
        before = self._before()
        self._texts: dict[str, str] = {}
        self._kept: list[int] = []
        self._retired: list[tuple[int, list[str]]] = []
        if before is not None:
            manifest = json.loads(storage.read_file(self._manifest(before)))
            self._texts = manifest["texts"]
            self._kept = [*manifest["kept"], before]
            self._retired = [(number, names) for number, names in manifest["retired"]]
        self._removed: list[str] = []

    def text(self, name: str) -> str | None:
        return self._texts.get(name)

    def keep_text(self, name: str, text: str) -> None:
        self._texts[name] = text

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        buffer = joined(blob)
        ref = BlobRef(f"{self._bucket}-{self._batch.number}-{name_of(buffer)}", 0, buffer.size, rows)
        content = [memoryview(buffer)]
        path = self._folder / _FILES / ref.file
        self._writes.append(self._pool.submit(storage.publish_content, path, content, durable=True))
        return ref

    def remove(self, ref: BlobRef) -> None:
        self._removed.append(ref.file)

    def read(self, ref: BlobRef) -> pa.Buffer:
        try:
            buffer = storage.map_file(self._folder / _FILES / ref.file)
        except FileNotFoundError:
            buffer = None
        if buffer is None or buffer.size != ref.length_bytes:
            raise error(
                "STATE_DAMAGED",
                f"the file {ref.file} of {ref.length_bytes} bytes that the state names is not in {self._folder}",
                hint="Restore the folder, or start the query with a new checkpoint.",
            )
        return buffer

    def commit(self) -> None:
        """Writes the manifest of the micro-batch when all runs are written, and deletes files that no kept micro-batch
        needs.

        Raises STATE_MISMATCH if this run of the query has written another one: the folder has two joins.
        """
        for write in self._writes:
            write.result()
        first = self._batch.number - self._batch.retained
        retired = [*self._retired, (self._batch.number, self._removed)]
        state = {
            "texts": self._texts,
            "kept": [number for number in self._kept if number >= first],
            "retired": [entry for entry in retired if entry[1] and entry[0] > first],
        }
        path = self._manifest(self._batch.number)
        text = json.dumps({"run": self._batch.run, **state}, separators=(",", ":")).encode()
        with contextlib.suppress(FileNotFoundError):
            present = storage.read_file(path)
            if present != text and json.loads(present)["run"] == self._batch.run:
                raise error(
                    "STATE_MISMATCH",
                    f"two joins, or two different results of one join, have the state of micro-batch "
                    f"{self._batch.number} in {self._folder}",
                    hint="Give each join of a query its own state=… path, and don't use rand() or uuid() before it.",
                )
        storage.replace_file(path, text, durable=True)
        storage.remove_files(
            [
                *(self._manifest(number) for number in self._kept if number < first),
                *(self._folder / _FILES / name for number, names in retired if number <= first for name in names),
            ]
        )

    def _before(self) -> int | None:
        """The last earlier micro-batch with a state; None for a new query."""
        number = self._batch.number
        if number == 0:
            return None
        last = self._last(_name(number - 1, 0)[:-1])
        if last is None:
            last = self._last("")
        if last is None:
            raise error(
                "STATE_MISMATCH",
                f"the checkpoint is at micro-batch {number}, and its state is not in {self._folder}",
                detail="The path of state= has changed, or its folder is lost.",
                hint="Call join with the earlier path, or start the query with a new checkpoint.",
            )
        before, buckets = last
        if self._bucket not in buckets:
            other = self._folder / _MANIFESTS / _name(before, min(buckets))
            self._check(json.loads(storage.read_file(other))["texts"][PLAN])
            raise error(
                "STATE_MISMATCH",
                f"micro-batch {before} was evaluated only in part: the state of bucket {self._bucket} is missing",
                detail="head(), take(), limit() and isEmpty() in foreachBatch evaluate a part of a micro-batch.",
                hint="Evaluate each micro-batch in full, as watersmeet.once_per_batch(…) does, with a new checkpoint.",
            )
        return before

    def _last(self, after: str) -> tuple[int, set[int]] | None:
        """The last micro-batch before this one with manifests greater than `after`, and the buckets that have one."""
        buckets: dict[int, set[int]] = {}
        for name in storage.list_names(self._folder / _MANIFESTS, after=after):
            number, bucket = map(int, name.split("-"))
            if number < self._batch.number:
                buckets.setdefault(number, set()).add(bucket)
        if not buckets:
            return None
        last = max(buckets)
        return last, buckets[last]

    def _manifest(self, number: int) -> storage.AnyPath:
        return self._folder / _MANIFESTS / _name(number, self._bucket)


_MANIFESTS: Final = "manifests"
_FILES: Final = "runs"


def _name(number: int, bucket: int) -> str:
    """The name of a manifest: names are in the order of the micro-batches."""
    return f"{number:012}-{bucket:05}"
