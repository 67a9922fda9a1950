"""Dead letters: rows, files and messages that could not be read, each with its place and the reason."""

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
    r"""The name for people, JSON and UTF-8: bytes that are no UTF-8 as `\xe9`.

    Python hands such bytes over as lone surrogates (PEP 383). The name itself stays as it is, so that the file is
    found; only what is shown or set aside takes this form.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def plain_text(text: str) -> str:
    r"""The text with lone surrogates, which UTF-8 can't hold, as `\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()


_NAME: Final = re.compile(r"[0-9].*\.jsonl\Z")
MAX_TEXT: Final = 1000

"""Characters of a record's text that are kept."""

MAX_BYTES: Final = 1 << 20

"""Bytes of a message's key and of its value that are kept."""


#: The fields of a record as they are stored.
_STORED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("file", "topic", "key", "value", "text", "reason")),
        *((name, pa.int64()) for name in ("partition", "offset", "line", "rows")),
    ]
)

#: A record may be as long as a message's key and value in base64, its reason and names.
_BLOCK_BYTES: Final = 8 * MAX_BYTES


class DeadLetterWriter:
    """Collects the dead letters of one slice of one epoch and writes them to a file when closed.

    The file is `<directory>/<epoch>-<slice ordinal>.jsonl`; the same epoch run again writes the same
    file again (or removes it if there is nothing to set aside any more). directory None: counts only. bucket: of what
    is found in a bucket; the file is then `<directory>/<epoch>-bucket-<bucket>.jsonl`.
    A context manager: it closes at the end unless an error passes through.
    """

    def __init__(
        self, directory: AnyPath | None, epoch: int = 0, ordinal: int = 0, *, bucket: int | None = None
    ) -> None:
        self._directory = directory
        self._name = _file_name(epoch, ordinal) if bucket is None else f"{epoch:012d}-bucket-{bucket:05d}.jsonl"
        self._records: list[dict[str, Any]] = []
        self.rows = 0
        """Rows set aside; a whole slice counts the rows it was estimated to have, at least one."""

    @property
    def count(self) -> int:
        """Records set aside."""
        return len(self._records)

    @property
    def first(self) -> dict[str, Any] | None:
        """The first record: file, line, reason, text; of a message: topic, partition, offset, reason, key, value."""
        return self._records[0] if self._records else None

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records, in order."""
        return list(self._records)

    def add(self, file: str, line: int | None, reason: str, text: str = "", rows: int = 1) -> None:
        """Sets one record aside."""
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
        """Sets several rows aside."""
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
        """Sets several messages aside. Their bytes are kept, in base64, up to `MAX_BYTES` each."""
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
        """Counts the messages [begin, end) of a partition that are not there any more."""
        lost = {"topic": topic, "partition": partition, "offset": begin, "reason": reason, "rows": end - begin}
        self._records.append(lost)
        self.rows += max(end - begin, 1)

    def close(self) -> None:
        """Writes the file, atomically."""
        if self._directory is None:
            return
        path = self._directory / self._name
        if not self._records:
            # In an object store it would take a request for each slice; what an epoch has left there that is planned
            # in another way is gone since `forget_dead_letters`.
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
    """All records under `directory`, by epoch and slice."""
    return [record for path in _files_of(directory) for record in _records_of(path)]


def newest_dead_letters(directory: AnyPath, most: int) -> list[dict[str, Any]]:
    """The records that were set aside last, the newest first: as many as that."""
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
    """The records that one slice of one epoch has set aside; none if there is no file."""
    return _records_of(directory / _file_name(epoch, ordinal))


def count_dead_letter_files(directory: AnyPath, epoch: int) -> int:
    """The number of dead-letter files of one epoch."""
    return sum(path.name.startswith(f"{epoch:012d}-") for path in _files_of(directory))


def _files_of(directory: AnyPath) -> list[AnyPath]:
    try:
        names = storage.list_names(directory)
    except FileNotFoundError:  # nothing was set aside yet
        return []
    return [directory / name for name in names if _NAME.match(name)]


def _records_of(path: AnyPath) -> Iterator[dict[str, Any]]:
    """None if there is no file.

    A record ends with a newline and with nothing else that Unicode calls the end of a line: U+2028 stands in texts.
    """
    try:
        text = storage.read_file(path)
    except FileNotFoundError:
        return iter(())
    return map(json.loads, io.BytesIO(text))


def stored_dead_letters(directories: Sequence[tuple[str, AnyPath]]) -> pa.Table:
    """The records of several sources (name, directory): their fields as they are stored (key and value in base64),
    source and epoch.
    """
    tables = [_STORED.append(pa.field("source", pa.string())).append(pa.field("epoch", pa.int64())).empty_table()]
    for source, directory in directories:
        for path in _files_of(directory):
            try:
                text = storage.read_file(path)
            except FileNotFoundError:  # it was the oldest of too many
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
    """(file, line) of a record; of a message (topic/partition, offset)."""
    if "topic" in letter:
        return f"{letter['topic']}/{letter['partition']}", letter["offset"]
    return letter["file"], letter["line"]


def text_of(letter: dict[str, Any]) -> str:
    """The text of a record; of a message its value, with other bytes as escapes."""
    if "topic" in letter:
        return base64.b64decode(letter.get("value", "")).decode("utf-8", "backslashreplace")[:MAX_TEXT]
    text: str = letter["text"]
    return text
