"""Object stores: a bucket of S3 or of what speaks its protocol, of Google's storage, or a container of Azure's.

Objects have no rename, and directories are parts of names. An object is there whole or not at all, and it may be made
only if its name is free (`Store.create`): of several that try, one succeeds. The library, obstore, is an extra.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, BinaryIO, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from watersmeet.errors import Error, error
from watersmeet.extras import library
from watersmeet.secretvalues import revealed

#: By the scheme of a URL: the class of the library, and how it calls what the URL names.
_CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_WHAT: Final = {"s3": "bucket", "gs": "bucket", "az": "container"}
#: The variables of the environment with the address of a server, if it is another than usual.
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CLIENT: Final = {"timeout": "30s", "connect_timeout": "5s"}
_RETRIES: Final = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}
#: What the library raises, by name: some are classes of its own, some Python's.
_DENIED: Final = ("PermissionDeniedError", "PermissionError", "UnauthenticatedError")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_SAID: Final = re.compile(r"<Message>([^<]*)</Message>")
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")
_ADDRESS: Final = re.compile(r"https?://\S+")
#: Words of servers for a bucket that is not there, and for keys that they do not know.
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_REFUSED: Final = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "AuthenticationFailed",
    "ExpiredToken",
    "401 Unauthorized",
    "403 Forbidden",
)
#: What the library says where it finds no credentials in the environment.
_NO_CREDENTIALS: Final = ("instance metadata", "credential", "Account must be specified")
#: Where it looks for them then: what a machine of a cloud says of itself. Whatever the answer, there are none.
_OF_MACHINE: Final = ("169.254.169.254", "metadata.google.internal")

BLOCK_BYTES: Final = 8 << 20
"""Objects are read in blocks of so many bytes, which begin at multiples of that."""
_KEPT_BLOCKS: Final = 8


class ObjectStat(NamedTuple):
    """What a store says of an object. etag: of its content; another one whenever it is written again."""

    size_bytes: int
    modified_ns: int
    etag: str


class StoreProblem(OSError):  # noqa: N818 - a state that passes, or that somebody mends
    """Why a store did not do what it was asked for. passes: nobody has to do anything but the server."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, passes: bool) -> None:
        super().__init__(message if detail is None else f"{message}: {detail}")
        self.message = message
        self.detail = detail
        self.hint = hint
        self.passes = passes

    def as_error(self) -> Error:
        """RUNTIME_UNAVAILABLE for what passes, otherwise CONNECTOR_OPTION."""
        condition = "RUNTIME_UNAVAILABLE" if self.passes else "CONNECTOR_OPTION"
        return error(condition, self.message, detail=self.detail, hint=self.hint)


class ObjectReplacedError(OSError):
    """The object has another content than the one that was asked for."""


@dataclass(frozen=True)
class Location:
    """A bucket or container. url: `s3://bucket`, `gs://bucket` or `az://container`.

    settings: how it is reached, by names of the library, sorted; values may refer to secrets. It is never shown.
    """

    url: str
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """`s3`, `gs` or `az`."""
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """Its name."""
        return self.url.partition("://")[2]

    @property
    def shown(self) -> str:
        """What it is, for messages."""
        endpoint = next((v for n, v in self.settings if n == "endpoint"), None)
        where = f" at {endpoint}" if endpoint else ""
        return f'{_WHAT[self.scheme]} "{self.bucket}"{where}'


class _Names(NamedTuple):
    """What options of statements are called. settings: the library's names by those of the options. keys: the options
    that are the credentials, all or none of which are given.
    """

    bucket: str
    path: str
    settings: dict[str, str]
    keys: tuple[str, ...]


ENVIRONMENT: Final = "enable_config_load"
"""The option that takes credentials from the environment of the process."""
ANONYMOUS: Final = "anonymous"
"""The option that sends no credentials: for what everybody may read."""
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
"""By connector: the scheme of its URLs."""
CREDENTIALS: Final = tuple(name for names in _OPTIONS.values() for name in names.keys)
"""All options that are credentials."""
_NEEDED: Final = {"az": ("azblob.endpoint_url",)}


@dataclass(frozen=True)
class ObjectPath:
    """A place in a store. path: of directories, of one object or a pattern; empty: the whole bucket.

    space: what it belongs to, for those that keep copies: the same path may have been something else's before.
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
        """What stands behind the last `/`."""
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its ending."""
        head, dot, tail = self.name.rpartition(".")
        return head if dot else tail

    @property
    def parent(self) -> ObjectPath:
        """The directory that it is in."""
        return replace(self, path=self.path.rpartition("/")[0])


def location_at(url: str) -> Location:
    """A bucket or container that is reached with what the environment says, by the names of the store's own tools."""
    names = _ENDPOINTS.get(url.partition("://")[0], ())
    endpoint = next((value for name in names if (value := os.environ.get(name))), None)
    return Location(url, (("endpoint", endpoint),) if endpoint else ())


def is_url(path: str) -> bool:
    """Whether a path is that of objects."""
    return path.partition("://")[0] in _CLASSES and "://" in path


def check_endpoint(url: str) -> None:
    """CONNECTOR_OPTION if a text, which may be empty, is not the URL of a server: the libraries panic at some."""
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        is_fine = False
    if url and not is_fine:
        raise error(
            "CONNECTOR_OPTION", "the endpoint of an object store is no URL", hint="Write http://host:port, or https://."
        )


def is_local(place: str) -> bool:
    """Whether a place is one of this machine, or may be: a path, or a name."""
    scheme, _, rest = place.partition("://")
    return not rest or scheme.lower() == "file"


def option_names(options: Mapping[str, str]) -> tuple[str, ...]:
    """The options that say where objects are and how they are reached; none for files."""
    scheme = _scheme(options)
    if scheme is None:
        return ()
    names = _OPTIONS[scheme]
    return (names.bucket, names.path, *names.settings, ENVIRONMENT, ANONYMOUS)


def object_path(options: Mapping[str, str]) -> ObjectPath | None:
    """Where the objects are that the options of a connector name; None for files. CONNECTOR_OPTION.

    A connector of RisingWave's (s3, gcs, azblob) has options for the bucket and the path in it. The connector `file`
    has a URL as its path.
    """
    scheme = _scheme(options)
    if scheme is None:
        return None
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


def check_objects(options: Mapping[str, str]) -> None:
    """Asks a store, if the options name one, whether it lets us in. CONNECTOR_OPTION, RUNTIME_UNAVAILABLE."""
    place = object_path(options)
    if place is not None:
        try:
            next(iter(open_store(place.location).list()), None)
        except StoreProblem as problem:
            raise problem.as_error() from problem


def _scheme(options: Mapping[str, str]) -> str | None:
    path = options.get("path", "")
    return path.partition("://")[0] if is_url(path) else CONNECTORS.get(options.get("connector", "").lower())


class Store(Protocol):
    """Objects by name, `/` within names. Thread-safe. All methods raise StoreProblem."""

    def create(self, name: str, data: bytes) -> bool:
        """Makes an object; False if the name is taken, maybe by this very call, whose first answer was lost."""

    def put(self, name: str, data: bytes) -> None:
        """Makes an object, or replaces it."""

    def get(self, name: str) -> bytes:
        """The content. FileNotFoundError."""

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        """Bytes [begin, end), which must be within the object and not empty. FileNotFoundError; ObjectReplacedError if
        it is not the content with that tag.
        """

    def stat(self, name: str) -> ObjectStat:
        """What there is. FileNotFoundError."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        """The objects whose names begin with the directories `prefix`, in the order of their names; those whose name is
        greater than `after`.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects; those that are not there, too."""


def open_store(location: Location) -> Store:
    """The store of a location. Nothing is connected yet. LIBRARY_MISSING, CONNECTOR_OPTION, UNDEFINED_OBJECT."""
    return _opened(location, tuple((name, revealed(value)) for name, value in location.settings))


@lru_cache(maxsize=64)
def _opened(location: Location, settings: tuple[tuple[str, str], ...]) -> ObjectStore:
    return ObjectStore(location, dict(settings))


class ObjectStore:
    """See `Store`."""

    def __init__(self, location: Location, settings: dict[str, str]) -> None:
        self._library = library("obstore", "object stores")
        make = getattr(library("obstore.store", "object stores"), _CLASSES[location.scheme])
        self._location = location
        endpoint = settings.get("endpoint", "")
        check_endpoint(endpoint)
        plain = endpoint.startswith("http://")
        if "service_account_key" in settings:
            settings = {**settings, "service_account_key": _service_account(settings["service_account_key"])}
        client = {**_CLIENT, "allow_http": True} if plain else _CLIENT
        try:
            self._store: Any = make(location.bucket, client_options=client, retry_config=_RETRIES, **settings)
        except Exception as cause:  # the library's own errors have no common public base; none has a value in it
            if any(word in str(cause) for word in _NO_CREDENTIALS):
                raise _problem(cause, location) from None
            raise error(
                "CONNECTOR_OPTION", f"the options of {location.shown} can't be used", detail=type(cause).__name__
            ) from None

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._mended():
                self._library.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        with self._mended():
            self._library.put(self._store, name, data)

    def get(self, name: str) -> bytes:
        with self._mended():
            return bytes(self._library.get(self._store, name).bytes())

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        options: dict[str, Any] = {"range": (begin, end)}
        if etag is not None:
            options["if_match"] = etag
        try:
            with self._mended():
                return bytes(self._library.get(self._store, name, options=options).bytes())
        except ObjectReplacedError:
            self.stat(name)  # some servers say so of what is gone, too
            raise

    def stat(self, name: str) -> ObjectStat:
        with self._mended():
            return _stat(self._library.head(self._store, name))

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._mended():
            for chunk in self._library.list(self._store, prefix or None, offset=after or None):
                # Not each server knows where to begin: Azure's of older versions, and Azurite, begin at the first.
                yield from ((name, _stat(found)) for found in chunk if (name := found["path"]) > after)

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)
        for begin in range(0, len(wanted), 1000):
            part = wanted[begin : begin + 1000]
            try:
                with self._mended():
                    self._library.delete(self._store, part)
            except FileNotFoundError:  # as Azure says, and not which one, and whether it went on
                for name in part:
                    with contextlib.suppress(FileNotFoundError), self._mended():
                        self._library.delete(self._store, name)

    @contextmanager
    def _mended(self) -> Iterator[None]:
        """Errors of the library as those of `Store`."""
        try:
            yield
        except GeneratorExit:
            raise
        except Exception as cause:
            raise _problem(cause, self._location) from None


def _service_account(given: str) -> str:
    """The key of a service account, which is a JSON document, mostly in base64."""
    if given.lstrip().startswith("{"):
        return given
    try:
        return base64.b64decode(given, validate=False).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise error("CONNECTOR_OPTION", "option gcs.credential is not a JSON document in base64") from None


def _stat(found: dict[str, Any]) -> ObjectStat:
    modified = found["last_modified"]
    return ObjectStat(found["size"], int(modified.timestamp() * 1000) * 1_000_000, found["e_tag"] or "")


def _problem(cause: Exception, location: Location) -> Exception:
    """What an error of the library means. It never has more of the server's answer than its code and message."""
    kind, text = type(cause).__name__, str(cause)
    if any(word in text for word in _NO_BUCKET):
        what = _WHAT[location.scheme]
        return StoreProblem(
            f"there is no {location.shown}", hint=f"Create the {what}, or correct its name.", passes=False
        )
    if isinstance(cause, FileNotFoundError):
        return FileNotFoundError("the object is not there")
    if kind == "AlreadyExistsError" or isinstance(cause, FileExistsError):
        return FileExistsError("the object is there")
    if kind in ("PreconditionError", "NotModifiedError"):
        return ObjectReplacedError("the object was replaced")
    said = _said(text)
    asks_machine = any(address in text for address in _OF_MACHINE)
    if not asks_machine and (kind in _DENIED or any(word in text for word in _REFUSED)):
        return StoreProblem(
            f"access to {location.shown} is refused",
            detail=said,
            hint="Check the credentials, and the rights that they give.",
            passes=False,
        )
    if asks_machine or any(word in text for word in _NO_CREDENTIALS):
        return StoreProblem(
            f"there are no credentials for {location.shown}",
            hint="Give them as options, or in the environment of the process.",
            passes=False,
        )
    return StoreProblem(
        f"{location.shown} can't be reached",
        detail=said,
        hint="Check that the server runs, and its address.",
        passes=True,
    )


def _said(text: str) -> str | None:
    code, said, status = (pattern.search(text) for pattern in (_CODE, _SAID, _STATUS))
    if code is not None:
        return code[1] if said is None else f"{code[1]}: {said[1]}"
    if status is not None:
        return status[1].strip()
    first = text.splitlines()[0] if text else ""
    reasons = ("timed out", "refused", "dns error", "reset")
    return (
        next((reason for reason in reasons if reason in text.lower()), None) or _ADDRESS.sub("…", first)[:200] or None
    )


class ObjectFile(io.RawIOBase, BinaryIO):
    """The content of an object as a file for reading. etag: None for an object that is never written again. Not
    thread-safe.

    Reading raises FileNotFoundError, ObjectReplacedError if the object was written again, StoreProblem.
    """

    def __init__(self, location: Location, name: str, size_bytes: int, etag: str | None) -> None:
        super().__init__()
        self._location = location
        self._name = name
        self.size_bytes = size_bytes
        self.etag = etag
        self.problem: OSError | None = None
        """Why something could not be read. Readers of formats may take that for a damaged file."""
        self._place = 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._place = max(0, offset + (0, self._place, self.size_bytes)[whence])
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self._place
        end = self.size_bytes if size is None or size < 0 else min(self.size_bytes, begin + size)
        if begin >= end:
            return b""
        self._place = end
        first, last = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return data[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def check(self) -> None:
        """Raises why something could not be read, if that is so."""
        if self.problem is not None:
            raise self.problem

    def _block(self, number: int) -> bytes:
        key = (self._location, self._name, self.etag, number)
        found = _BLOCKS.get(key)
        if found is None:
            begin = number * BLOCK_BYTES
            end = min(self.size_bytes, begin + BLOCK_BYTES)
            try:
                found = open_store(self._location).range(self._name, begin, end, self.etag)
            except OSError as problem:
                self.problem = problem
                raise
            _BLOCKS.keep(key, found)
        return found


class _Blocks:
    """The blocks that this process has read last: what is cut into slices is often read here, too. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Location, str, str | None, int], bytes] = OrderedDict()

    def get(self, key: tuple[Location, str, str | None, int]) -> bytes | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: tuple[Location, str, str | None, int], data: bytes) -> None:
        with self._lock:
            self._kept[key] = data
            while len(self._kept) > _KEPT_BLOCKS:
                self._kept.popitem(last=False)


_BLOCKS: Final = _Blocks()
