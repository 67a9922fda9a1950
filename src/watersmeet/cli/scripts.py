"""Files of SQL that the command reads, and files that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from watersmeet.errors import Error, error
from watersmeet.objectstores.access import open_store
from watersmeet.objectstores.base import StoreProblem, is_url, location_at


@dataclass(frozen=True, slots=True)
class Script:
    """A text of SQL, and the name of the file that it is from."""

    file: str
    text: str

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors inside say that they are of this file."""
        try:
            yield
        except Error as err:
            if err.sql is None or err.sql == self.text:
                err.file = self.file
            raise


def read_scripts(paths: Iterable[str]) -> list[Script]:
    """The scripts of files and objects at URLs, and of folders, whose `*.sql` count in the order of their names.
    INVALID_PARAMETER.
    """
    found: list[Script] = []
    for path in paths:
        folder = not is_url(path) and Path(path).is_dir()
        files = sorted(map(str, Path(path).glob("*.sql"))) if folder else [path]
        if not files:
            raise error("INVALID_PARAMETER", f"{path} has no *.sql files")
        found += [Script(file, read_script(file)) for file in files]
    return found


def read_script(path: str) -> str:
    """The text of a file, or of an object at a URL. INVALID_PARAMETER if it is no text."""
    try:
        content = _object(path) if is_url(path) else Path(path).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error("INVALID_PARAMETER", f"{path} is not UTF-8 text", detail=f"Byte {cause.start} is wrong.") from cause
    except OSError as cause:
        raise error("INVALID_PARAMETER", f"{path} can't be read: {cause.strerror}") from cause


def _object(url: str) -> bytes:
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    try:
        return open_store(location_at(f"{scheme}://{bucket}")).get(name)
    except FileNotFoundError as cause:
        raise error("INVALID_PARAMETER", f"there is no object {url}") from cause
    except StoreProblem as problem:
        raise error(
            "INVALID_PARAMETER", f"{url} can't be read: {problem.message}", detail=problem.detail, hint=problem.hint
        ) from problem


def write_text(path: Path, text: str) -> None:
    """Write a file. INVALID_PARAMETER if that can't be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise error("INVALID_PARAMETER", f"{path} can't be written: {cause.strerror}") from cause
