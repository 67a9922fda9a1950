"""Files of HDFS as objects.

HDFS shows a file while it is being written. So an object is written under another name, and gets its own by a rename,
which the NameNode does in one step, and does only if the name is free where that is asked for. The library,
hdfs-native, is an extra and needs no Java. It reads `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, and takes
the user from HADOOP_USER_NAME or from Kerberos' tickets, as Hadoop's own tools do.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.objectstores.base import Location, ObjectReplacedError, ObjectStat, StoreProblem
from watersmeet.system.process import library

#: How the names of files begin that are being written; in `list` they are not there.
_UNFINISHED: Final = ".unfinished-"
#: How often a NameNode that does not answer is tried, each time after a longer pause. Whoever asks
#: has more patience, and says meanwhile what is wrong.
_CONFIG: Final = {"dfs.client.failover.max.attempts": "3"}
#: Words of errors for which there is no class.
_DENIED: Final = ("AccessControlException", "Permission denied", "SASL", "GSSAPI")


class HdfsStore:
    """See `objectstores.Store`. A tag is of a file's time and length: files that are replaced within a millisecond by
    others of the same length keep it.
    """

    def __init__(self, location: Location) -> None:
        self._library = library("hdfs_native", "databases and files in HDFS")
        self._location = location
        try:
            self._client: Any = self._library.Client(location.url, _CONFIG)
        except Exception as cause:  # the library's own errors have no common public base
            raise error("CONNECTOR_OPTION", f"{location.shown} can't be used", detail=_first_line(cause)) from None

    def create(self, name: str, data: bytes) -> bool:
        with self._mended():
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
        with self._mended():
            self._client.rename(self._written(name, b"".join(pieces)), f"/{name}", overwrite=True)

    def get(self, name: str) -> bytes:
        with self._mended():
            found = self._client.read(f"/{name}")
            return bytes(found.read_range(0, len(found)))

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        with self._mended():
            # Opened first: what is read then is of the content with this tag, or of an older one that is gone.
            found = self._client.read(f"/{name}")
            if etag is not None and self.stat(name).etag != etag:
                raise ObjectReplacedError("the object was replaced")
            return bytes(found.read_range(begin, end - begin))

    def stat(self, name: str) -> ObjectStat:
        with self._mended():
            found = self._client.get_file_info(f"/{name}")
            if found.isdir:
                raise FileNotFoundError("the object is not there")
            return _stat(found)

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._mended():
            yield from self._below(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._mended(), contextlib.suppress(FileNotFoundError):
                self._client.delete(f"/{name}", recursive=False)

    def discard_unfinished(self, prefix: str) -> int:
        with self._mended():
            unfinished = [s.path for s in self._inside(prefix) if not s.isdir and _is_unfinished(s.path)]
            for path in unfinished:
                self._client.delete(path, recursive=False)
            return len(unfinished)

    def _below(self, directory: str, after: str) -> Iterator[tuple[str, ObjectStat]]:
        """As `list`, one directory after the other: whoever wants the first names reads no others."""
        statuses = [(s.path.lstrip("/") + "/" * s.isdir, s) for s in self._inside(directory)]
        for name, status in sorted(statuses, key=lambda found: found[0]):
            if not status.isdir:
                if name > after and not _is_unfinished(name):
                    yield name, _stat(status)
            elif name > after or after.startswith(name):
                yield from self._below(name.rstrip("/"), after)

    def _inside(self, directory: str) -> Sequence[Any]:
        """What is in a directory; nothing if there is none, or none any more."""
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
        """The path of a new file in the same directory, with the data on the disks of the DataNodes."""
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
    def _mended(self) -> Iterator[None]:
        """Errors of the library as those of `Store`."""
        try:
            yield
        except (GeneratorExit, StoreProblem, ObjectReplacedError):
            raise
        except Exception as cause:
            raise self._problem(cause) from None

    def _problem(self, cause: Exception) -> Exception:
        """What an error of the library means. Of the server's answer it has the first line at most."""
        if isinstance(cause, FileNotFoundError):
            return FileNotFoundError("the object is not there")
        said = _first_line(cause)
        if isinstance(cause, PermissionError) or any(word in said for word in _DENIED):
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


def _stat(found: Any) -> ObjectStat:
    return ObjectStat(found.length, found.modification_time * 1_000_000, f"{found.modification_time}-{found.length}")


def _first_line(cause: Exception) -> str:
    lines = str(cause).splitlines()
    return lines[0][:200] if lines else type(cause).__name__
