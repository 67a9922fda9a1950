"""The object stores (S3 and compatible ones, Google's, Azure's, HDFS), and objects read as files.

obstore, the library of cloud stores, and hdfs-native are extras. hdfs-native needs no Java, reads `core-site.xml` and
`hdfs-site.xml` in HADOOP_CONF_DIR, and takes the user from HADOOP_USER_NAME or Kerberos tickets, as Hadoop's own tools
do. HDFS shows unfinished files. So an object is written under another name and then renamed. The NameNode renames
atomically and, if requested, only if the name is free.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, BinaryIO, Final

from watersmeet.errors import error
from watersmeet.objectstores.base import (
    ENDPOINTS,
    HDFS,
    Location,
    ObjectReplacedError,
    ObjectStat,
    Store,
    StoreProblem,
    check_endpoint,
    object_path,
)
from watersmeet.system.process import library
from watersmeet.system.secretvalues import revealed

#: An object up to this size takes one request; a larger one is sent in parts, which takes two more, …
_WHOLE_BYTES: Final = 64 << 20

#: … and one for each part of this size.
_PART_BYTES: Final = 16 << 20

#: Environment variable: whether requests to S3 are signed without a hash of their content. The hash takes most of the
#: processor time of sending, and an encrypted connection already detects changes.
_UNSIGNED: Final = "AWS_UNSIGNED_PAYLOAD"

#: obstore's class for each scheme of a URL.
_CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}

#: The prefixes of the environment variables that obstore reads.
_VARIABLES: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}

_CLIENT: Final = {"timeout": "30s", "connect_timeout": "5s"}

_RETRIES: Final = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}

#: The names of exceptions that the library raises: some are its own classes, some Python's.
_DENIED: Final = ("PermissionDeniedError", "PermissionError", "UnauthenticatedError")

_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_SAID: Final = re.compile(r"<Message>([^<]*)</Message>")
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")
_ADDRESS: Final = re.compile(r"https?://\S+")

#: The words of servers for a missing bucket, and for unknown keys.
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")

_REFUSED: Final = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
    "401 Unauthorized",
    "403 Forbidden",
)

#: The words of answers for a bucket in another region.
_ELSEWHERE: Final = (
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraint",
    "without LOCATION",
)

_BAD_REQUEST: Final = "400 Bad Request"

#: The messages of obstore if the environment has no credentials.
_NO_CREDENTIALS: Final = ("instance metadata", "credential", "Account must be specified")

#: The addresses of cloud metadata at which obstore then searches for credentials. If one of these answers, there are
#: none.
_OF_MACHINE: Final = ("169.254.169.254", "metadata.google.internal")


class CloudStore:
    """A `Store` of obstore."""

    def __init__(self, location: Location, settings: dict[str, str]) -> None:
        self._library = library("obstore", "object stores")
        make = getattr(library("obstore.store", "object stores"), _CLASSES[location.scheme])
        self._location = location
        endpoint = settings.get("endpoint", "")
        check_endpoint(endpoint)
        _check_environment(location.scheme, endpoint)
        plain = endpoint.startswith("http://")
        if "service_account_key" in settings:
            settings = {**settings, "service_account_key": _service_account(settings["service_account_key"])}
        client = {**_CLIENT, "allow_http": True} if plain else _CLIENT
        options: dict[str, Any] = {"client_options": client, "retry_config": _RETRIES, **settings}
        if location.scheme == "s3" and not plain and _UNSIGNED not in os.environ:
            options["unsigned_payload"] = True
        try:
            self._store: Any = make(location.bucket, **options)
        except Exception as cause:  # obstore's own errors have no common public base; their texts contain no secret
            if any(word in str(cause) for word in _NO_CREDENTIALS):
                raise _problem(cause, location) from None
            raise error(
                "CONNECTOR_OPTION",
                f"the options of {location.shown} can't be used",
                detail=type(cause).__name__,
                hint=f"Check them, and the variables {_VARIABLES[location.scheme]}… of the environment.",
            ) from None

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._translated(FileExistsError):
                self._library.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        with self._translated():
            whole = sum(map(len, pieces)) <= _WHOLE_BYTES
            # An iterator is sent without being copied into one piece.
            data = pieces[0] if len(pieces) == 1 else iter(pieces)
            self._library.put(self._store, name, data, use_multipart=not whole, chunk_size=_PART_BYTES)

    def get(self, name: str) -> bytes:
        with self._translated(FileNotFoundError):
            return bytes(self._library.get(self._store, name).bytes())

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        options: dict[str, Any] = {"range": (begin, end)}
        if etag is not None:
            options["if_match"] = etag
        try:
            with self._translated(FileNotFoundError, ObjectReplacedError):
                return bytes(self._library.get(self._store, name, options=options).bytes())
        except ObjectReplacedError:
            self.stat(name)  # some servers also give this answer for a deleted object
            raise

    def stat(self, name: str) -> ObjectStat:
        with self._translated(FileNotFoundError):
            return _stat(self._library.head(self._store, name))

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._translated():
            for chunk in self._library.list(self._store, prefix or None, offset=after or None):
                # Older versions of Azure's server, and Azurite, ignore the offset.
                yield from ((name, _stat(found)) for found in chunk if (name := found["path"]) > after)

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)
        for begin in range(0, len(wanted), 1000):
            part = wanted[begin : begin + 1000]
            try:
                with self._translated(FileNotFoundError):
                    self._library.delete(self._store, part)
            except (
                FileNotFoundError
            ):  # Azure does not report which object was missing, or whether the others were deleted
                for name in part:
                    with contextlib.suppress(FileNotFoundError), self._translated(FileNotFoundError):
                        self._library.delete(self._store, name)

    def discard_unfinished(self, prefix: str) -> int:
        del prefix  # an object exists completely or not at all
        return 0

    @contextmanager
    def _translated(self, *expected: type[OSError]) -> Iterator[None]:
        """A context that raises errors of the library as those of `Store`. expected: possible answers about the object;
        after any other answer about it (for example 409 to a replacement), the request is repeated.
        """
        try:
            yield
        except GeneratorExit:
            raise
        except Exception as cause:
            problem = _problem(cause, self._location)
            if not isinstance(problem, (StoreProblem, *expected)):
                problem = _away(self._location, _said(str(cause)))
            raise problem from None


def _check_environment(scheme: str, endpoint: str) -> None:
    """Raises INVALID_PARAMETER for an environment variable at which obstore would panic, or that its error would not
    name.
    """
    empty = [name for name in ENDPOINTS.get(scheme, ()) if os.environ.get(name) == ""]
    if empty and not endpoint:
        raise error("INVALID_PARAMETER", f"{empty[0]} is empty", hint="Write http://host:port, or unset it.")
    unsigned = os.environ.get(_UNSIGNED)
    if scheme == "s3" and unsigned is not None and unsigned.lower() not in ("true", "false"):
        raise error("INVALID_PARAMETER", f'{_UNSIGNED} is true or false, not "{unsigned}"')


def _service_account(given: str) -> str:
    """The key of a service account, a JSON document, usually in base64."""
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
    """The meaning of an error of the library. It only contains the code and the message of the server's answer."""
    kind, text = type(cause).__name__, str(cause)
    if any(word in text for word in _NO_BUCKET):
        return StoreProblem(
            f"there is no {location.shown}", hint=f"Create the {location.kind}, or correct its name.", passes=False
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
            hint="Check the credentials and their rights.",
            passes=False,
        )
    if asks_machine or any(word in text for word in _NO_CREDENTIALS):
        return StoreProblem(
            f"there are no credentials for {location.shown}",
            hint="Give them as options, or in the environment of the process.",
            passes=False,
        )
    if any(word in text for word in _ELSEWHERE):
        return StoreProblem(
            f"{location.shown} is in another region",
            detail=said,
            hint="Name the region of the bucket: AWS_REGION, or the option s3.region_name.",
            passes=False,
        )
    return _away(location, said)


def _away(location: Location, said: str | None) -> StoreProblem:
    """The problem of a server that can't process the request now."""
    if said is not None and _BAD_REQUEST in said:  # an answer to HEAD has no details
        hint = "Check the credentials, the region, the address and the clock of this machine."
        return StoreProblem(f"{location.shown} refuses a request", detail=said, hint=hint, passes=True)
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


#: The prefix of unfinished files, which `list` omits.
_UNFINISHED: Final = ".unfinished-"

#: The number of attempts to reach a NameNode, with growing pauses. Callers retry for longer, and report the problem
#: meanwhile.
_HDFS_CONFIG: Final = {"dfs.client.failover.max.attempts": "3"}

#: The words of errors that have no class.
_HDFS_DENIED: Final = ("AccessControlException", "Permission denied", "SASL", "GSSAPI")


class HdfsStore:
    """A `Store` of HDFS. A tag is a file's time and length, so a replacement within a millisecond with the same length
    has the same tag.
    """

    def __init__(self, location: Location) -> None:
        self._library = library("hdfs_native", "databases and files in HDFS")
        self._location = location
        try:
            self._client: Any = self._library.Client(location.url, _HDFS_CONFIG)
        except Exception as cause:  # the library's own errors have no common public base
            raise error("CONNECTOR_OPTION", f"{location.shown} can't be used", detail=_first_line(cause)) from None

    def create(self, name: str, data: bytes) -> bool:
        with self._translated():
            if self._is_there(name):
                return False
            temporary = self._written(name, data)
            try:
                self._client.rename(temporary, f"/{name}", overwrite=False)
            except FileExistsError:
                self._discard(temporary)
                return False
            return True

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        with self._translated():
            self._client.rename(self._written(name, b"".join(pieces)), f"/{name}", overwrite=True)

    def get(self, name: str) -> bytes:
        with self._translated():
            found = self._client.read(f"/{name}")
            return bytes(found.read_range(0, len(found)))

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        with self._translated():
            # The file is opened first, so that later reads return the content with this tag, or fail.
            found = self._client.read(f"/{name}")
            if etag is not None and self.stat(name).etag != etag:
                raise ObjectReplacedError("the object was replaced")
            return bytes(found.read_range(begin, end - begin))

    def stat(self, name: str) -> ObjectStat:
        with self._translated():
            found = self._client.get_file_info(f"/{name}")
            if found.isdir:
                raise FileNotFoundError("the object is not there")
            return _file_stat(found)

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._translated():
            yield from self._below(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._translated(), contextlib.suppress(FileNotFoundError):
                self._client.delete(f"/{name}", recursive=False)

    def discard_unfinished(self, prefix: str) -> int:
        with self._translated():
            unfinished = [s.path for s in self._inside(prefix) if not s.isdir and _is_unfinished(s.path)]
            for path in unfinished:
                self._client.delete(path, recursive=False)
            return len(unfinished)

    def _below(self, directory: str, after: str) -> Iterator[tuple[str, ObjectStat]]:
        """Like `list`, directory by directory, so that the first names can be read without the others."""
        statuses = [(s.path.lstrip("/") + "/" * s.isdir, s) for s in self._inside(directory)]
        for name, status in sorted(statuses, key=lambda found: found[0]):
            if not status.isdir:
                if name > after and not _is_unfinished(name):
                    yield name, _file_stat(status)
            elif name > after or after.startswith(name):
                yield from self._below(name.rstrip("/"), after)

    def _inside(self, directory: str) -> Sequence[Any]:
        """The entries of a directory; none if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            return [*self._client.list_status(f"/{directory}")]
        return ()

    def _is_there(self, name: str) -> bool:
        try:
            self._client.get_file_info(f"/{name}")
        except FileNotFoundError:
            return False
        return True

    def _written(self, name: str, data: bytes) -> str:
        """Writes a new file in the same directory, with its data on the disks of the DataNodes. Returns its path."""
        directory, _, last = f"/{name}".rpartition("/")
        path = f"{directory}/{_UNFINISHED}{last}-{secrets.token_hex(8)}"
        with self._client.create(path, self._library.WriteOptions(create_parent=True)) as file:
            file.write(data)
            file.hsync()
        return path

    def _discard(self, path: str) -> None:
        with contextlib.suppress(Exception):
            self._client.delete(path, recursive=False)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """A context that raises errors of the library as those of `Store`."""
        try:
            yield
        except (GeneratorExit, StoreProblem, ObjectReplacedError):
            raise
        except Exception as cause:
            raise self._problem(cause) from None

    def _problem(self, cause: Exception) -> Exception:
        """The meaning of an error of the library. It contains at most the first line of the server's answer."""
        if isinstance(cause, FileNotFoundError):
            return FileNotFoundError("the object is not there")
        said = _first_line(cause)
        if isinstance(cause, PermissionError) or any(word in said for word in _HDFS_DENIED):
            return StoreProblem(
                f"access to {self._location.shown} is refused",
                detail=said,
                hint="Check the user (HADOOP_USER_NAME, or Kerberos' ticket), and the rights of the directory.",
                passes=False,
            )
        return StoreProblem(
            f"{self._location.shown} can't be reached",
            detail=said,
            hint="Check that the NameNode and its DataNodes run, and the address.",
            passes=True,
        )


def _is_unfinished(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_UNFINISHED)


def _file_stat(found: Any) -> ObjectStat:
    return ObjectStat(found.length, found.modification_time * 1_000_000, f"{found.modification_time}-{found.length}")


def _first_line(cause: Exception) -> str:
    lines = str(cause).splitlines()
    return lines[0][:200] if lines else type(cause).__name__


BLOCK_BYTES: Final = 8 << 20

"""Objects are read in blocks of this size, at multiples of it."""

_KEPT_BLOCKS: Final = 8


def open_store(location: Location) -> Store:
    """The store of a location; it connects later. Raises LIBRARY_MISSING, CONNECTOR_OPTION, UNDEFINED_OBJECT."""
    return _opened(location, tuple((name, revealed(value)) for name, value in location.settings))


@lru_cache(maxsize=64)
def _opened(location: Location, settings: tuple[tuple[str, str], ...]) -> Store:
    return HdfsStore(location) if location.scheme == HDFS else CloudStore(location, dict(settings))


def check_objects(options: Mapping[str, str]) -> None:
    """Check access to the store that the options name, if any. Raises CONNECTOR_OPTION, RUNTIME_UNAVAILABLE."""
    path = object_path(options)
    if path is not None:
        try:
            next(iter(open_store(path.location).list()), None)
        except StoreProblem as problem:
            raise problem.as_error() from problem


class ObjectFile(io.RawIOBase, BinaryIO):
    """The content of an object as a file for reading. etag: None for an object that never changes. Not thread-safe.

    Reading raises FileNotFoundError, StoreProblem, and ObjectReplacedError after a new write of the object.
    """

    def __init__(self, location: Location, name: str, size_bytes: int, etag: str | None) -> None:
        super().__init__()
        self._location = location
        self._name = name
        self.size_bytes = size_bytes
        self.etag = etag
        self.problem: OSError | None = None
        """The error of a read. Readers of formats may regard it as a damaged file."""
        self._position = 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = max(0, offset + (0, self._position, self.size_bytes)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self._position
        end = self.size_bytes if size is None or size < 0 else min(self.size_bytes, begin + size)
        if begin >= end:
            return b""
        self._position = end
        first, last = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return data[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def check(self) -> None:
        """Raise the last error of reading, if there was one."""
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
    """The last blocks read by this process, because the process that cuts slices often also reads them. Thread-safe."""

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
