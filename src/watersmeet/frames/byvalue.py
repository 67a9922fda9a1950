"""Tasks that carry the package, for workers that don't have it.

Spark's queries of streams can't use the artifacts of a Connect session (Spark 4.1), so the package travels with the
operators. The code that loads it is pickled by value: it is defined inside functions, and imports nothing of the
package.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import watersmeet
from watersmeet.runtime.spark.shipping import make_zip
from watersmeet.system.process import remove_folder

#: The folders of the package that tasks import.
PARTS: Final = ("circuit", "errors", "frames", "kernel", "objectstores", "runtime", "system", "values")

MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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
