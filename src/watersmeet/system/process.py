"""This process: its cores, memory, environment variables and temporary folders; libraries that are imported at their
first use (those of extras, and slow ones that a command may not need); points at which tests inject failures.

A killed process can't remove its folders. So each folder contains a file that its process keeps locked, and a process
that creates its first folder removes the folders of ended processes. A module that is imported at its first use:

```python
if TYPE_CHECKING:
    from watersmeet import planner
else:
    planner = lazy_import("watersmeet.planner")
```
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import math
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from watersmeet.errors import error

#: The control groups of the machine, and those of this process.
_CGROUPS: Final = Path("/sys/fs/cgroup")

_OWN: Final = Path("/proc/self/cgroup")

#: The first major version of Spark with data sources and state in Python.
_LEAST_SPARK: Final = 4


def cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of the machine, or the limit of the container if that is lower."""
    return container_bytes() or _machine_bytes()


def container_bytes() -> int | None:
    """The least memory limit of the control group (version 1 or 2) of this process and of its parents; None without a
    limit below the memory of the machine.
    """
    least = min(_limits(), default=0)
    return least if 0 < least < _machine_bytes() else None


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits() -> Iterator[int]:
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            top, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = top / group.strip("/")
        # A container may see its own group as the root, although /proc names it by its path on the machine.
        for directory in (place, *(p for p in place.parents if p.is_relative_to(top))):
            try:
                limit = (directory / name).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():  # otherwise "max", which means unlimited
                yield int(limit)


def bytes_of(name: str, *, least: int = 1) -> int | None:
    """The number of bytes of an environment variable; None if it is not set. Raises INVALID_PARAMETER."""
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise error("INVALID_PARAMETER", f'{name} is a number of bytes {_from(least)}, not "{text}"')
    return int(text)


def seconds_of(name: str) -> float | None:
    """The number of seconds, 0 or more, of an environment variable; None if it is not set. Raises INVALID_PARAMETER."""
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise error("INVALID_PARAMETER", f'{name} is a number of seconds {_from(0)}, not "{text}"')
    return seconds


def _from(least: int) -> str:
    return "above 0" if least else "from 0 on"


_PREFIX: Final = "watersmeet-"
_LOCK: Final = ".owner"
_guard: Final = threading.Lock()

#: For each folder, the process that made it, and the file that it keeps locked. Forks have a copy.
_locks: Final[dict[Path, tuple[int, int]]] = {}

#: Directories that were searched for folders of ended processes.
_swept: Final[set[str]] = set()


def make_folder(what: str, inside: Path | None = None) -> Path:
    """Creates an empty temporary folder, which exists until `remove_folder`. what: part of its name. inside: where; by
    default the system's folder for temporary files.
    """
    place = tempfile.gettempdir() if inside is None else str(inside)
    with _guard:
        if place not in _swept:
            _swept.add(place)
            _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{what}-", dir=place))
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # so the folder is never visible without a lock
    with _guard:
        _locks[folder] = os.getpid(), lock
    return folder


def _remove_left() -> None:
    """Delete the folders that an interrupted caller has left."""
    for folder in list(_locks):
        remove_folder(folder)


atexit.register(_remove_left)


def remove_folder(folder: Path) -> None:
    """Deletes a folder of `make_folder` with its content, but not in a fork of the process that made it. Idempotent."""
    own = (os.getpid(), None)
    if _locks.get(folder, own)[0] != os.getpid():
        return
    shutil.rmtree(folder, ignore_errors=True)
    with _guard:
        _, lock = _locks.pop(folder, own)
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def scratch_folder(what: str, inside: Path | None = None) -> Iterator[Path]:
    """A context with a folder of `make_folder`, which is removed at the end."""
    folder = make_folder(what, inside)
    try:
        yield folder
    finally:
        remove_folder(folder)


def _sweep(place: str) -> None:
    """Removes folders of ended processes of this user."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):  # a foreign folder, or its process still runs
                    _remove_abandoned(Path(entry.path))


def _remove_abandoned(folder: Path) -> None:
    """Removes the folder of an ended process. Raises OSError if the process still runs."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


#: For each library, the extra that installs it, and the name of its distribution.
_EXTRAS: Final = {
    "aiohttp": ("serve", "aiohttp"),
    "boto3": ("kinesis", "boto3"),
    "botocore": ("kinesis", "boto3"),
    "confluent_kafka": ("kafka", "confluent-kafka"),
    "cryptography": ("signatures", "cryptography"),
    "deltalake": ("delta", "deltalake"),
    "fastavro": ("kafka", "fastavro"),
    "google": ("kafka", "protobuf"),
    "hdfs_native": ("hdfs", "hdfs-native"),
    "nats": ("nats", "nats-py"),
    "obstore": ("objectstores", "obstore"),
    "opentelemetry": ("telemetry", "opentelemetry-sdk"),
    "paho": ("mqtt", "paho-mqtt"),
    "polars": ("kafka", "polars"),
    "prometheus_client": ("serve", "prometheus-client"),
    "py_mini_racer": ("javascript", "mini-racer"),
    "psycopg": ("postgres", "psycopg"),
    "pyiceberg": ("iceberg", "pyiceberg"),
    "pymysql": ("mysql", "pymysql"),
    "redis": ("redis", "redis"),
}


def library(module: str, user: str) -> ModuleType:
    """A module of an optional library. Raises LIBRARY_MISSING, with the command that installs it.

    user: the feature that needs it, in the plural, for the message.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        extra, name = _EXTRAS[module.partition(".")[0]]
        raise error(
            "LIBRARY_MISSING",
            f"{user} need the library {name}, which is not installed",
            hint=f"In a clone of Watersmeet: pip install '.[{extra}]'",
        ) from cause


def spark_module(name: str) -> ModuleType:
    """A module of this package that needs PySpark. Raises RUNTIME_UNAVAILABLE if PySpark is missing or too old."""
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        spark = sys.modules.get("pyspark")
        version = "" if spark is None else str(spark.__version__)
        if version and int(version.partition(".")[0]) < _LEAST_SPARK:
            raise error(
                "RUNTIME_UNAVAILABLE",
                f"Watersmeet needs Spark {_LEAST_SPARK}.0 or newer, this is Spark {version}",
                hint="Choose a cluster or runtime with Spark 4; AWS Glue 5 and EMR 7 have Spark 3.5.",
            ) from cause
        raise error(
            "RUNTIME_UNAVAILABLE",
            "PySpark can't be imported",
            detail=f"{cause}.",
            hint='Install pyspark, or connect with runtime = "inprocess".',
        ) from cause


def lazy_import(name: str) -> ModuleType:
    """The module `name`, imported when one of its attributes is first read."""
    return sys.modules.get(name) or _Lazy(name)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A context for imports without the garbage collector, which would take a twentieth of their time: what they create
    stays.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def exclude_from_collections() -> None:
    """Excludes the objects that exist now from later garbage collections: in a process that stays, most are those of
    libraries and never die. Each full collection would stop all threads for 0.1 s.
    """
    gc.collect()
    gc.freeze()


def block_import(name: str) -> None:
    """Makes later imports of `name` fail as if it were not installed.

    None in sys.modules would not suffice, because compiled modules use it as the module.
    """
    sys.meta_path.insert(0, _Missing(name))


class _Missing(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


class _Lazy(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value


_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """Calls the hook of a test, if one is set, with the name of a point in the program."""
    if _hook is not None:
        _hook(point)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Sets the hook that `fault` calls; None removes it."""
    global _hook
    _hook = hook
