"""Dead letters: unreadable rows, files and messages, each with its location and the reason."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.json as pj

from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath


def shown_name(name: str) -> str:
    r"""The printable form of a file name, in which bytes that are not UTF-8 are written as `\xe9`.

    Python represents such bytes by lone surrogates (PEP 383). Files are opened by the original name; only messages and
    dead letters have this form.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def plain_text(text: str) -> str:
    r"""The text with lone surrogates, which UTF-8 can't represent, written as `\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()


_NAME: Final = re.compile(r"[0-9].*\.jsonl\Z")
MAX_TEXT: Final = 1000

"""The maximum number of characters of a record's text that are kept."""

MAX_BYTES: Final = 1 << 20

"""The maximum number of bytes of a message's key, and of its value, that are kept."""


#: The fields of a stored record.
_STORED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("file", "topic", "key", "value", "text", "reason")),
        *((name, pa.int64()) for name in ("partition", "offset", "line", "rows")),
    ]
)

#: The maximum length of a record: a message's key and value in base64, the reason and the names.
_BLOCK_BYTES: Final = 8 * MAX_BYTES


class DeadLetterWriter:
    """Collects the dead letters of one slice of one epoch and writes them to a file when closed.

    The file is `<directory>/<epoch>-<slice ordinal>.jsonl`; running the epoch again replaces the file (or removes it if
    nothing is rejected any more). directory: None if records are only counted. bucket: for records that are found in a
    bucket; the file is then `<directory>/<epoch>-bucket-<bucket>.jsonl`. As a context manager it is closed at the end
    unless an error is raised.
    """

    def __init__(
        self, directory: AnyPath | None, epoch: int = 0, ordinal: int = 0, *, bucket: int | None = None
    ) -> None:
        self._directory = directory
        self._name = _file_name(epoch, ordinal) if bucket is None else f"{epoch:012d}-bucket-{bucket:05d}.jsonl"
        self._records: list[dict[str, Any]] = []
        self.rows = 0
        """The number of rejected rows; a whole slice counts as its estimated number of rows, at least one."""

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._records)

    @property
    def first(self) -> dict[str, Any] | None:
        """The first record: file, line, reason, text; for a message: topic, partition, offset, reason, key, value."""
        return self._records[0] if self._records else None

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records in order."""
        return list(self._records)

    def add(self, file: str, line: int | None, reason: str, text: str = "", rows: int = 1) -> None:
        """Adds one record."""
        record: dict[str, Any] = {
            "file": shown_name(file),
            "line": line,
            "reason": plain_text(reason),
            "text": plain_text(text[:MAX_TEXT]),
        }
        if rows != 1:
            record["rows"] = rows
        self._records.append(record)
        self.rows += max(rows, 1)

    def add_rows(self, file: str, lines: Sequence[int], reasons: Sequence[str], texts: Sequence[str]) -> None:
        """Adds several rejected rows."""
        for line, reason, text in zip(lines, reasons, texts, strict=True):
            self.add(file, int(line), reason, text)

    def add_messages(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        reasons: Sequence[str],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        """Adds several rejected messages. At most `MAX_BYTES` of each key and value are kept, in base64."""
        for offset, reason, key, value in zip(offsets, reasons, keys, values, strict=True):
            record: dict[str, Any] = {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "reason": plain_text(reason),
            }
            for name, part in (("key", key), ("value", value)):
                if part is not None:
                    record[name] = base64.b64encode(part[:MAX_BYTES]).decode()
                    if len(part) > MAX_BYTES:
                        record[f"{name}_bytes"] = len(part)
            self._records.append(record)
            self.rows += 1

    def add_lost(self, topic: str, partition: int, begin: int, end: int, reason: str) -> None:
        """Counts the messages [begin, end) of a partition that were deleted before they were read."""
        lost = {"topic": topic, "partition": partition, "offset": begin, "reason": reason, "rows": end - begin}
        self._records.append(lost)
        self.rows += max(end - begin, 1)

    def close(self) -> None:
        """Writes the file atomically."""
        if self._directory is None:
            return
        path = self._directory / self._name
        if not self._records:
            # No files are deleted in an object store, which would take a request for each slice: `forget_dead_letters`
            # has already deleted those of an epoch that is planned differently.
            if isinstance(path, Path):
                storage.discard(path)
            return
        text = "".join(json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in self._records)
        storage.make_directory(self._directory)
        storage.replace_file(path, text.encode(), durable=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def _file_name(epoch: int, ordinal: int) -> str:
    return f"{epoch:012d}-{ordinal:08d}.jsonl"


def read_dead_letters(directory: AnyPath) -> list[dict[str, Any]]:
    """All records in `directory`, ordered by epoch and slice."""
    return [record for path in _files_of(directory) for record in _records_of(path)]


def newest_dead_letters(directory: AnyPath, most: int) -> list[dict[str, Any]]:
    """The newest records, at most `most` of them, newest first."""
    found: list[dict[str, Any]] = []
    for path in reversed(_files_of(directory)):
        found += reversed([*_records_of(path)])
        if len(found) >= most:
            break
    return found[:most]


def forget_dead_letters(directory: AnyPath, epoch: int) -> None:
    """Deletes the records of the epochs after `epoch`."""
    storage.remove_files(p for p in _files_of(directory) if int(p.name.partition("-")[0]) > epoch)


def letters_of_slice(directory: AnyPath, epoch: int, ordinal: int) -> Iterator[dict[str, Any]]:
    """The records of one slice of one epoch; empty if it has no file."""
    return _records_of(directory / _file_name(epoch, ordinal))


def count_dead_letter_files(directory: AnyPath, epoch: int) -> int:
    """The number of dead-letter files of one epoch."""
    return sum(path.name.startswith(f"{epoch:012d}-") for path in _files_of(directory))


def _files_of(directory: AnyPath) -> list[AnyPath]:
    try:
        names = storage.list_names(directory)
    except FileNotFoundError:  # no dead letters were written yet
        return []
    return [directory / name for name in names if _NAME.match(name)]


def _records_of(path: AnyPath) -> Iterator[dict[str, Any]]:
    """The records in a file; None if there is no file.

    Only a newline ends a record; other line ends of Unicode, such as U+2028, may occur in texts.
    """
    try:
        text = storage.read_file(path)
    except FileNotFoundError:
        return iter(())
    return map(json.loads, io.BytesIO(text))


def stored_dead_letters(directories: Sequence[tuple[str, AnyPath]]) -> pa.Table:
    """The records of several sources (name, directory): their stored fields (key and value in base64), source and
    epoch.
    """
    tables = [_STORED.append(pa.field("source", pa.string())).append(pa.field("epoch", pa.int64())).empty_table()]
    for source, directory in directories:
        for path in _files_of(directory):
            try:
                text = storage.read_file(path)
            except FileNotFoundError:  # it was deleted as the oldest of too many
                continue
            found = pj.read_json(
                pa.BufferReader(text),
                pj.ReadOptions(block_size=_BLOCK_BYTES),
                pj.ParseOptions(explicit_schema=_STORED, unexpected_field_behavior="ignore"),
            ).select(_STORED.names)
            epoch = int(path.name.partition("-")[0])
            found = found.append_column("source", pa.repeat(source, found.num_rows))
            tables.append(found.append_column("epoch", pa.repeat(pa.scalar(epoch, pa.int64()), found.num_rows)))
    return pa.concat_tables(tables)


def place_of(letter: dict[str, Any]) -> tuple[str, int | None]:
    """(file, line) of a record; (topic/partition, offset) of a message."""
    if "topic" in letter:
        return f"{letter['topic']}/{letter['partition']}", letter["offset"]
    return letter["file"], letter["line"]


def text_of(letter: dict[str, Any]) -> str:
    """The text of a record; for a message its value, where bytes that are not text are escaped."""
    if "topic" in letter:
        return base64.b64decode(letter.get("value", "")).decode("utf-8", "backslashreplace")[:MAX_TEXT]
    text: str = letter["text"]
    return text
