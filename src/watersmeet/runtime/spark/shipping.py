"""Shipping the package to Spark's Python processes, what these need not repeat, and partitions that hold one bucket
each.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
import weakref
import zipfile
import zipimport
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from watersmeet.system.process import exclude_from_collections, make_folder

PACKAGE: Final = Path(__file__).parents[2]
ZIP_NAME: Final = "watersmeet_package.zip"
DAEMON: Final = "watersmeet.runtime.spark.daemon"

#: The environment variable of workers that run the engine's tasks, not only those of joins of DataFrames.
ENGINE: Final = "_WATERSMEET_ENGINE"


def make_zip(parts: Sequence[str] | None = None) -> Path:
    """A zip of the package in a folder of `process.make_folder`, which the caller removes.

    parts: the folders and modules that it contains, besides modules that are in no folder; all by default. It contains
    the source, and the compiled files of this Python: compiling all modules would cost each process 0.5 s of processor
    time. Other versions of Python compile the source.
    """
    path = make_folder("ship") / ZIP_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(PACKAGE.rglob("*.py")):
            within = file.relative_to(PACKAGE)
            if parts is not None and len(within.parts) > 1 and not {within.parts[0], within.as_posix()} & {*parts}:
                continue
            name = Path("watersmeet") / within
            out.write(file, name)
            compiled = Path(importlib.util.cache_from_source(str(file)))
            if compiled.exists():
                out.write(compiled, name.with_suffix(".pyc"))
    return path


def is_remote(spark: object) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def python_path(*, local: bool) -> str:
    """The PYTHONPATH of workers: the package's directory, or the zip in an executor's working directory."""
    first = str(PACKAGE.parent) if local else ZIP_NAME
    inherited = os.environ.get("PYTHONPATH", "") if local else ""
    return os.pathsep.join(p for p in (first, inherited) if p)


@cache
def spare_repeated_work() -> None:
    """Spares this process, and those forked from it, what PySpark repeats for every task in a Python worker.

    PySpark calls `importlib.invalidate_caches()`, for which each finder of a zip reads the whole directory of the zip
    again: from now on only if the file has changed. It also collects garbage after each task: from now on without the
    objects that exist now, most of which belong to libraries. With pyspark.zip this takes 0.2 s a task.
    """
    settled_s = time.time() - SETTLED_S
    for finder in [x for x in sys.path_importer_cache.values() if isinstance(x, zipimport.zipimporter)]:
        found = _file(finder)
        if found is not None and max(found.st_mtime, found.st_ctime) < settled_s:
            _versions[finder] = _version(found)
    zipimport.zipimporter.invalidate_caches = _read_if_changed  # type: ignore[method-assign, assignment]
    importlib.invalidate_caches()
    exclude_from_collections()


#: A zip that did not change for so long has not changed since its finder has read it: PySpark makes all finders read at
#: the start of each task.
SETTLED_S: Final = 3600.0

_read_again: Final = zipimport.zipimporter.invalidate_caches
#: The version of the file that a finder has read.
_versions: Final[weakref.WeakKeyDictionary[zipimport.zipimporter, tuple[int, ...]]] = weakref.WeakKeyDictionary()


def _read_if_changed(finder: zipimport.zipimporter) -> None:
    found = _file(finder)
    if found is None:
        _versions.pop(finder, None)
        _read_again(finder)
    elif _versions.get(finder) != _version(found):
        _read_again(finder)
        _versions[finder] = _version(found)


def _file(finder: zipimport.zipimporter) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.stat(finder.archive)
    return None


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_mtime_ns, found.st_size


_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def in_buckets(frames: DataFrame, buckets: int, partitions: int | None = None) -> DataFrame:
    """`frames` in partitions, by the column `bucket`.

    partitions: at most `buckets`; by default each partition has the frames of one bucket.
    """
    partitions = partitions or buckets
    number = f.col("bucket") if partitions == buckets else f.col("bucket") % partitions
    if hasattr(DataFrame, "repartitionById"):
        return frames.repartitionById(partitions, number)
    # Spark 4.0 can only partition by hashes.
    keys = f.array(*map(f.lit, bucket_keys(partitions)))
    return frames.repartition(partitions, f.element_at(keys, number.cast("int") + 1))


def spark_hash(value: int) -> int:
    """Spark's hash of an int: Murmur3 of 32 bits with seed 42, signed."""
    k = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h = (_rotated(_SEED ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


@cache
def bucket_keys(buckets: int) -> tuple[int, ...]:
    """For each bucket, the least int that Spark puts into the partition with the bucket's number, of `buckets`
    partitions.

    These ints depend only on the number of buckets.
    """
    return _key_of_each(buckets, count())


@cache
def partition_keys(partitions: int) -> tuple[int, ...]:
    """For each partition the greatest negative int that Spark puts into it. No bucket has a negative key. One of them
    is -1.
    """
    return _key_of_each(partitions, count(-1, -1))


def _key_of_each(partitions: int, candidates: Iterable[int]) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for value in candidates:
        found.setdefault(spark_hash(value) % partitions, value)
        if len(found) == partitions:
            break
    return tuple(found[p] for p in range(partitions))


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK
