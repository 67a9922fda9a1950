"""The user's Spark session, classic or Spark Connect: its checks, and tasks that carry the package where the session's
workers lack it. Only the public API that both kinds of session have.

Spark's queries of streams can't use the artifacts of a Connect session (Spark 4.1), so the package travels with the
operators. The code that loads it is pickled by value: it is defined inside functions, and imports nothing of the
package. A small query asks the workers what they have.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, cast
from urllib.parse import quote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import watersmeet
from watersmeet.errors import error
from watersmeet.frames.buckets import Plan, compare, identity
from watersmeet.frames.building import check_text, refused
from watersmeet.frames.tasks import Task
from watersmeet.objectstores import storage
from watersmeet.runtime.spark.shipping import in_buckets, is_remote, make_zip
from watersmeet.system.process import remove_folder

MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: The value of `state=` for Spark's state store.
STORE: Final = "store"

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"

#: The largest static side that is sent to a Connect server, which takes messages of 128 MB.
_STATIC_BYTES: Final = 100 << 20

#: The modules that a task imports, and the packages that have them. The last two: only for transformWithState.
_PACKAGES: Final = {
    "pyarrow": "pyarrow",
    "numpy": "numpy",
    "pandas": "pandas",
    "duckdb": "duckdb",
    "cattrs": "cattrs",
    "google.protobuf": "protobuf",
    "google.api": "googleapis-common-protos",
}

#: Whether tasks must carry the package, by session.
_prepared: Final[weakref.WeakKeyDictionary[SparkSession, bool]] = weakref.WeakKeyDictionary()


def check_state(state: Any) -> None:
    """Raises INVALID_PARAMETER unless `state` is "store", an absolute path or a URL of a known store."""
    if state == STORE:
        return
    if not isinstance(state, str) or not ("://" in state or os.path.isabs(state)):
        raise refused(
            "state",
            state,
            'It must be "store", or an absolute path or URL that all workers reach, such as "s3://bucket/state".',
        )
    storage.path_at(state)


def check_store(spark: SparkSession, state: str) -> None:
    """Raises STATE_STORE if Spark's stateful operator can't keep this state in this session."""
    if state != STORE:
        return
    if spark.conf.get(_PROVIDER, "") != _ROCKSDB:
        raise error(
            "STATE_STORE",
            "the session keeps its state in a state store other than RocksDB",
            detail="Spark's transformWithState, which runs the join, needs it.",
            hint=f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}"), or an administrator sets it in the configuration of '
            'the cluster. state="s3://bucket/folder" keeps the state in files, which needs no setting.',
        )
    if spark.conf.get(_FORMAT, "1") == "1" and spark.conf.get("spark.speculation", "false") == "true":
        raise error(
            "STATE_STORE",
            "with speculation, two attempts of a task could write one version of the state",
            hint=f'spark.conf.set("{_FORMAT}", "2")',
        )


def kept_plan(spark: SparkSession, checkpoint: str, name: str | None, plan: Plan, more: Mapping[str, Any]) -> Any:
    """The stored values `more` of the join or query that a checkpoint belongs to; None for a new checkpoint, which gets
    those of `plan`.

    The identity is a file in the folder of the checkpoint, written by Spark, which may be the only one that can reach
    it. Without a committed micro-batch a plan replaces the stored one. Raises STATE_MISMATCH if `plan` differs from the
    stored one, except if `more["definition"]` is the same.
    """
    check_text(checkpoint, "checkpoint")
    folder = f"{checkpoint.rstrip('/')}/watersmeet/{quote(name or plan.what, safe='')}"
    ran = _text(spark, f"{checkpoint.rstrip('/')}/commits") is not None
    text = _text(spark, folder)
    if ran:
        if text is None:
            return None  # of a query that ran before it had `checkpoint=`: the tasks compare
        kept = json.loads(text)
        if "definition" not in more or kept.get("definition") != more["definition"]:
            compare(plan, kept)
        return kept
    text = json.dumps({**identity(plan), **more}, separators=(",", ":"))
    spark.createDataFrame([(text,)], "value string").coalesce(1).write.mode("overwrite").text(folder)
    return None


def _text(spark: SparkSession, path: str) -> str | None:
    """The first line of the text files of a folder; None if there are none."""
    try:
        row = spark.read.text(path, recursiveFileLookup=True).first()
    except AnalysisException as cause:
        if cause.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return None if row is None else str(row[0])


def placed(pieces: DataFrame, buckets: int) -> DataFrame:
    """Pieces in one partition for each task that runs buckets with their state in files.

    A single task also reads the rows: it needs no exchange, which costs more than a small micro-batch.
    """
    tasks = stateful_tasks(pieces.sparkSession, buckets)
    return pieces.coalesce(1) if tasks == 1 else in_buckets(pieces, buckets, tasks)


def stateful_tasks(spark: SparkSession, buckets: int) -> int:
    """The number of tasks that run the buckets of a step with its state in files: as many as cores, if these are known
    and fixed, otherwise one for each bucket.

    A task costs some 20 ms, however few rows its buckets have.
    """

    def number(name: str) -> int:
        text = spark.conf.get(name, "")
        return int(text) if text and text.isdigit() else 0

    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", str(spark.conf.get("spark.master", "")))
    if local:
        cores = (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    elif spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        cores = 0
    else:
        cores = number("spark.executor.instances") * number("spark.executor.cores")
    return min(cores or buckets, buckets)


def check_static(spark: SparkSession, size_bytes: int) -> None:
    """Raises FEATURE_NOT_SUPPORTED if static rows are too large for the session."""
    if is_remote(spark) and size_bytes > _STATIC_BYTES:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"a static side of {size_bytes >> 20} MB with Spark Connect",
            detail=f"A Spark Connect server takes {_STATIC_BYTES >> 20} MB with a query.",
            hint="Select fewer columns and rows, or read that side with spark.readStream.",
        )


def has_watermark(frame: DataFrame) -> bool:
    """Whether Spark defines a watermark anywhere below the frame, also on a column that it no longer has."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain(extended=True)
    analyzed = shown.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return re.search(r"^[^\w\n]*EventTimeWatermark ", analyzed, re.MULTILINE) is not None


def prepare(spark: SparkSession) -> bool:
    """Whether the tasks must carry the package, because the session's workers don't have it.

    Raises RUNTIME_UNAVAILABLE if the workers lack a package that the tasks import.
    """
    if not is_remote(spark) and str(spark.conf.get("spark.master", "")).startswith("local"):
        _own_python(spark)
        _check(_missing(), "of this process")
        return False
    if spark not in _prepared:
        found = spark.range(1).mapInArrow(_probe(), "version string, missing string").first()
        assert found is not None
        _check(found.missing.split(), "of Spark's workers")
        _prepared[spark] = found.version != watersmeet.__version__
    return _prepared[spark]


def _own_python(spark: SparkSession) -> None:
    """Makes Spark's workers on this machine run this interpreter, unless another one is configured."""
    if not (os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", "")):
        spark.sparkContext.pythonExec = sys.executable


def _probe() -> MapInArrow:
    """A function for `DataFrame.mapInArrow`: the version of this package in the worker, and the packages that it lacks.

    It is sent by value and imports nothing of this package, which the worker may not have.
    """
    packages = dict(_PACKAGES)

    def probe(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util  # noqa: PLC0415 - it runs in the worker

        import pyarrow as pa  # noqa: PLC0415 - Spark's workers have it: they run this function

        def has(module: str) -> bool:
            try:
                return importlib.util.find_spec(module) is not None
            except ModuleNotFoundError:
                return False

        version = __import__("watersmeet").__version__ if has("watersmeet") else None
        missing = " ".join(package for module, package in packages.items() if not has(module))
        yield pa.RecordBatch.from_pydict({"version": [version], "missing": [missing]})

    return probe


def _missing() -> list[str]:
    """The packages that this Python lacks."""
    (found,) = _probe()(())
    return str(found.column(1)[0]).split()


def _check(missing: list[str], whose: str) -> None:
    """Raises RUNTIME_UNAVAILABLE if packages are missing in a Python."""
    if missing:
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"the Python {whose} lacks {', '.join(missing)}",
            detail="The tasks of a join import them.",
            hint=f"pip install {' '.join(missing)}, or in a clone of Watersmeet: pip install '.[frames]'.",
        )


#: The folders and modules of the package that tasks import.
PARTS: Final = (
    "circuit", "errors", "formats/__init__.py", "formats/jsonscan.py", "formats/valuetexts.py", "frames", "kernel",
    "objectstores", "runtime", "system", "values",
)  # fmt: skip


def task(operator: MapInArrow, *, carries: bool) -> MapInArrow:
    """A function for `DataFrame.mapInArrow` that calls `operator`. carries: what `prepare` returned."""
    made = Task(operator)
    return carried(made) if carries else made


def carried(operator: MapInArrow) -> MapInArrow:
    """A function for `DataFrame.mapInArrow` that loads the package before it calls `operator`."""
    load, package, body = _loader(), _package(), pickle.dumps(operator)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from load(package, body)(batches)

    return run


def carried_processor(processor: StatefulProcessor) -> StatefulProcessor:
    """A processor for `transformWithStateInPandas` that loads the package before it calls `processor`."""
    load, package, body = _loader(), _package(), pickle.dumps(processor)

    class Carried(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._processor = load(package, body)
            self._processor.init(handle)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803 - Spark's names
            return self._processor.handleInputRows(key, rows, timerValues)

        def close(self) -> None:
            self._processor.close()

    return cast("StatefulProcessor", Carried())


@cache
def _package() -> tuple[str, str, bytes]:
    """The version, a hash and the zip of the package."""
    archive = make_zip(PARTS)
    try:
        data = archive.read_bytes()
    finally:
        remove_folder(archive.parent)
    return watersmeet.__version__, hashlib.blake2b(data, digest_size=8).hexdigest(), data


def _loader() -> Callable[[tuple[str, str, bytes], bytes], Any]:
    """A function that makes a package importable and unpickles an operator of it."""

    def load(package: tuple[str, str, bytes], body: bytes) -> Any:
        import os  # noqa: PLC0415 - it runs in the worker
        import pickle as pickles  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import tempfile  # noqa: PLC0415

        version, digest, data = package
        if "watersmeet" not in sys.modules:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
            path = os.path.join(folder, f"watersmeet-{version}-{digest}-{os.getuid()}.zip")
            if not os.path.exists(path):
                handle, new = tempfile.mkstemp(dir=folder)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(new, path)  # of several workers each writes the whole file
            sys.path.insert(0, path)
        found = __import__("watersmeet").__version__
        if found != version:
            raise RuntimeError(
                f"Spark's worker has loaded Watersmeet {found}, this query is of {version}: install that version for "
                "the workers, or restart the session"
            )
        return pickles.loads(body)  # noqa: S301 - of this process

    return load
