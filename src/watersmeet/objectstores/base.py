"""The contract of object stores: S3 and compatible stores, Google's and Azure's storage, and HDFS.

Objects can't be renamed, and directories are parts of names. An object always exists completely or not at all.
`Store.create` only succeeds if the name is free: of several attempts, one succeeds. The module `stores` implements the
stores. The durations and failures of this process's requests for files of databases are counted for metrics.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

from watersmeet.errors import Error, error

HDFS: Final = "hdfs"

"""The scheme of URLs of HDFS. Their bucket is the address of a NameNode, or the name of a nameservice."""

WHAT: Final = {"s3": "bucket", "gs": "bucket", "az": "container", HDFS: "HDFS"}

"""The kind of store of each scheme, for messages."""

ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}

"""The environment variables with a non-default server address, by scheme."""


class ObjectStat(NamedTuple):
    """An object. etag: the tag of its content, which changes with every write."""

    size_bytes: int
    modified_ns: int
    etag: str


class StoreProblem(OSError):  # noqa: N818 - a state that passes, or that a user fixes
    """A failed request of a store. passes: a later attempt may succeed without a change by a user."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, passes: bool) -> None:
        super().__init__(message if detail is None else f"{message}: {detail}")
        self.message = message
        self.detail = detail
        self.hint = hint
        self.passes = passes

    def as_error(self) -> Error:
        """The error RUNTIME_UNAVAILABLE if the problem may pass, otherwise CONNECTOR_OPTION."""
        condition = "RUNTIME_UNAVAILABLE" if self.passes else "CONNECTOR_OPTION"
        return error(condition, self.message, detail=self.detail, hint=self.hint)


class ObjectReplacedError(OSError):
    """The object's content differs from the requested one."""


@dataclass(frozen=True)
class Location:
    """A bucket or container. url: `s3://bucket`, `gs://bucket`, `az://container` or `hdfs://namenode:port`.

    settings: those of the library, sorted; values may refer to secrets. Settings are never shown.
    """

    url: str
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """`s3`, `gs`, `az` or `hdfs`."""
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.url.partition("://")[2]

    @property
    def kind(self) -> str:
        """The kind of store, for messages."""
        return WHAT[self.scheme]

    @property
    def shown(self) -> str:
        """The location's name in messages."""
        endpoint = next((v for n, v in self.settings if n == "endpoint"), None)
        where = f" at {endpoint}" if endpoint else ""
        return f'{self.kind} "{self.bucket}"{where}'


class _Names(NamedTuple):
    """The names of options in statements. settings: the library's names, by the names of options. keys: the options
    with credentials; either all or none of them are set.
    """

    bucket: str
    path: str
    settings: dict[str, str]
    keys: tuple[str, ...]


ENVIRONMENT: Final = "enable_config_load"

"""The option that takes credentials from the environment of the process."""

ANONYMOUS: Final = "anonymous"

"""The option that sends no credentials, for public objects."""

#: RisingWave, "Ingest data from S3 buckets", "Google Cloud Storage", "Azure Blob Storage", and the sinks of that name.
_OPTIONS: Final = {
    "s3": _Names(
        "s3.bucket_name",
        "s3.path",
        {
            "s3.region_name": "region",
            "s3.endpoint_url": "endpoint",
            "s3.credentials.access": "access_key_id",
            "s3.credentials.secret": "secret_access_key",
        },
        ("s3.credentials.access", "s3.credentials.secret"),
    ),
    "gs": _Names("gcs.bucket_name", "gcs.path", {"gcs.credential": "service_account_key"}, ("gcs.credential",)),
    "az": _Names(
        "azblob.container_name",
        "azblob.path",
        {
            "azblob.endpoint_url": "endpoint",
            "azblob.credentials.account_name": "account_name",
            "azblob.credentials.account_key": "account_key",
        },
        ("azblob.credentials.account_name", "azblob.credentials.account_key"),
    ),
}

CONNECTORS: Final = {"s3": "s3", "s3_v2": "s3", "gcs": "gs", "azblob": "az"}

"""The scheme of the URLs of each connector."""

CREDENTIALS: Final = tuple(name for names in _OPTIONS.values() for name in names.keys)

"""All options that are credentials."""

_NEEDED: Final = {"az": ("azblob.endpoint_url",)}


@dataclass(frozen=True)
class ObjectPath:
    """The path of a directory, an object or a pattern in a store; an empty path is the whole bucket.

    space: the id of its database, for caches, because an earlier database may have had the same path.
    """

    location: Location
    path: str
    space: str = ""

    def __truediv__(self, name: str) -> ObjectPath:
        return replace(self, path=f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return f"{self.location.url}/{self.path}"

    @property
    def name(self) -> str:
        """The part after the last `/`."""
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its extension."""
        head, dot, tail = self.name.rpartition(".")
        return head if dot else tail

    @property
    def parent(self) -> ObjectPath:
        """The path of its directory."""
        return replace(self, path=self.path.rpartition("/")[0])


def location_at(url: str) -> Location:
    """A bucket or container, with settings from environment variables, which have the names of the store's own tools.

    Raises INVALID_PARAMETER for a variable that is not an address.
    """
    names = ENDPOINTS.get(url.partition("://")[0], ())
    name = next((name for name in names if os.environ.get(name)), None)
    if name is None:
        return Location(url)
    if not _is_endpoint(os.environ[name]):
        raise error(
            "INVALID_PARAMETER", f"{name} is not the URL of a server", hint="Write http://host:port, or https://."
        )
    return Location(url, (("endpoint", os.environ[name]),))


def is_url(path: str) -> bool:
    """Whether a path is the URL of objects."""
    return path.partition("://")[0] in WHAT and "://" in path


def check_endpoint(url: str) -> None:
    """Raises CONNECTOR_OPTION if a non-empty text is not the URL of a server, because the libraries panic at some
    invalid URLs.
    """
    if url and not _is_endpoint(url):
        raise error(
            "CONNECTOR_OPTION", "the endpoint of an object store is no URL", hint="Write http://host:port, or https://."
        )


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False


def is_local(path: str) -> bool:
    """Whether a path is, or may be, on this machine."""
    scheme, _, rest = path.partition("://")
    return not rest or scheme.lower() == "file"


def option_names(options: Mapping[str, str]) -> tuple[str, ...]:
    """The options for the location of objects and access to them; none for files."""
    scheme = _scheme(options)
    if scheme is None or scheme == HDFS:
        return ()
    names = _OPTIONS[scheme]
    return (names.bucket, names.path, *names.settings, ENVIRONMENT, ANONYMOUS)


def object_path(options: Mapping[str, str]) -> ObjectPath | None:
    """The path of the objects in the options of a connector; None for files. Raises CONNECTOR_OPTION.

    RisingWave's connectors (s3, gcs, azblob) have options for the bucket and the path in it. The connector `file` has a
    URL as its path.
    """
    scheme = _scheme(options)
    if scheme is None:
        return None
    if scheme == HDFS:
        address, _, path = options["path"].partition("://")[2].partition("/")
        if not address:
            raise error("CONNECTOR_OPTION", "option path names no NameNode", hint="Write hdfs://namenode:port/path.")
        return ObjectPath(Location(f"{HDFS}://{address}"), path)
    names, connector = _OPTIONS[scheme], options.get("connector", "file")
    if is_url(options.get("path", "")):
        bucket, _, path = options["path"].partition("://")[2].partition("/")
    else:
        bucket, path = options.get(names.bucket, ""), options.get(names.path, "").lstrip("/")
    if not bucket:
        raise error("CONNECTOR_OPTION", f"connector {connector} needs the option {names.bucket}")
    if missing := [n for n in _NEEDED.get(scheme, ()) if not options.get(n)]:
        raise error("CONNECTOR_OPTION", f"connector {connector} needs the option {missing[0]}")
    settings = {known: options[name] for name, known in names.settings.items() if options.get(name)}
    given = [name for name in names.keys if options.get(name)]
    ways = [name for name in (ENVIRONMENT, ANONYMOUS) if options.get(name, "false").lower() == "true"]
    if 0 < len(given) < len(names.keys):
        missing = [name for name in names.keys if name not in given]
        raise error("CONNECTOR_OPTION", f"option {given[0]} needs the option {missing[0]}, too")
    if len(ways) + bool(given) != 1:
        raise error(
            "CONNECTOR_OPTION",
            f"connector {connector} needs credentials, from one place",
            hint=f"Give {' and '.join(names.keys)}, or {ENVIRONMENT} = 'true' for those of the environment, "
            f"or {ANONYMOUS} = 'true' for none.",
        )
    if ways == [ANONYMOUS]:
        settings["skip_signature"] = "true"
    return ObjectPath(Location(f"{scheme}://{bucket}", tuple(sorted(settings.items()))), path)


def _scheme(options: Mapping[str, str]) -> str | None:
    path = options.get("path", "")
    return path.partition("://")[0] if is_url(path) else CONNECTORS.get(options.get("connector", "").lower())


class Store(Protocol):
    """Objects by name, with `/` within names. Thread-safe. All methods raise StoreProblem."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object. False if the name is taken, possibly by an earlier attempt of this call whose answer was
        lost.
        """

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        """Write an object of the joined `pieces`. Memoryviews must be of plain bytes."""

    def get(self, name: str) -> bytes:
        """The content of an object. Raises FileNotFoundError."""

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        """Bytes [begin, end), a non-empty range within the object. Raises FileNotFoundError, and ObjectReplacedError if
        the content has another tag.
        """

    def stat(self, name: str) -> ObjectStat:
        """The object's properties. Raises FileNotFoundError."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        """The objects below the directories `prefix` with names greater than `after`, in the order of their names."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""

    def discard_unfinished(self, prefix: str) -> int:
        """Delete files of crashed writes in the directory `prefix`, and return their number; for the only writer,
        before it starts. 0 for stores in which none remain.
        """


P = ParamSpec("P")
T = TypeVar("T")

#: Upper bounds of the classes of durations, in seconds.
BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Errors that don't count as failed requests, because they only report that a file exists or is missing.
_ANSWERS: Final = (FileNotFoundError, FileExistsError)


@dataclass
class Times:
    """The durations of requests. counts: the number in each class of `BOUNDS_S`, the last for longer requests. seconds:
    their sum.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0
    failures: int = 0


_LOCK: Final = threading.Lock()
_TIMES: Final[dict[str, Times]] = {}


def timed(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Count the calls of a function as requests of that kind, with all attempts of a call."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            began_s = time.perf_counter()
            failed = False
            try:
                return function(*arguments, **options)
            except _ANSWERS:
                raise
            except Exception:
                failed = True
                raise
            finally:
                _count(operation, time.perf_counter() - began_s, failed=failed)

        return call

    return decorated


def request_times() -> dict[str, Times]:
    """The durations so far, by kind of request."""
    with _LOCK:
        return {name: Times([*t.counts], t.seconds, t.failures) for name, t in _TIMES.items()}


def _count(operation: str, seconds: float, *, failed: bool) -> None:
    with _LOCK:
        times = _TIMES.setdefault(operation, Times())
        times.counts[bisect_left(BOUNDS_S, seconds)] += 1
        times.seconds += seconds
        times.failures += failed
