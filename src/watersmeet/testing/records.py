"""Text test files as records.

Two forms are read. A file whose first record is `dialect NAME` is in the rich form (rows written `a | b`, relations fed
by `insert`, continuous results by `expect`). Any other file is a sqllogictest as DuckDB and RisingWave write them
(`query II rowsort`, values divided by tabs or blanks, or one a line).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from watersmeet.values.dialectnames import DEFAULT_DIALECT

_COMMENTED: Final = re.compile(r"^\s*#")
_HEADER: Final = re.compile(r"^# (name|source|features|note): ?(.*)$")
_LOOPS: Final = ("loop", "foreach")
_DIRECTIVES: Final = (
    "at",
    "commit",
    "connection",
    "control",
    "dialect",
    "endloop",
    "expect",
    "explain",
    "external",
    "failed",
    "foreach",
    "halt",
    "hash-threshold",
    "include",
    "insert",
    "loop",
    "mode",
    "onlyif",
    "plan",
    "query",
    "require",
    "schema",
    "skipif",
    "sleep",
    "start",
    "state",
    "statement",
    "stop",
    "subtest",
    "system",
    "watermark",
)
#: What `onlyif` and `skipif` may call us.
_OURSELVES: Final = ("watersmeet", DEFAULT_DIALECT)
_TRAILING_COMMENT: Final = re.compile(r"\s+#.*$")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its directive and arguments, the SQL of its body, the lines after `----`.

    line: number of the directive's line. expected: None where the record has no `----`.
    columns: names after `----` on the same line. body: the lines, for records without SQL.
    """

    line: int
    directive: str
    arguments: tuple[str, ...]
    sql: str = ""
    expected: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    body: tuple[str, ...] = ()

    @property
    def argument_text(self) -> str:
        """The arguments joined by single blanks."""
        return " ".join(self.arguments)


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed file. `rich`: see the module's docstring. `header`: `# name:` and so on, by key."""

    path: Path
    rich: bool
    records: tuple[Record, ...]
    header: dict[str, str] = field(default_factory=dict)


class ScriptError(Exception):
    """A file that is no script: the message has the place."""


def parse_file(path: Path) -> Script:
    """Reads `path`. Raises ScriptError where it can't be understood."""
    text = path.read_text(encoding="utf-8-sig")
    header = {m[1]: m[2] for line in text.split("\n") if (m := _HEADER.match(line))}
    records = list(_unroll(_included(path, text, ()), path))
    rich = bool(records) and records[0].directive == "dialect"
    return Script(path, rich, tuple(_without_skipped(records)), header)


def _included(path: Path, text: str, above: tuple[Path, ...]) -> list[Record]:
    """The records of a text, those of files that it includes in place."""
    if path.resolve() in above:
        raise ScriptError(f"{path}: a file that includes itself")
    records: list[Record] = []
    for record in _records(text.split("\n"), path):
        if record.directive != "include":
            records.append(record)
            continue
        found = sorted(path.parent.glob(record.argument_text)) if record.arguments else []
        if not found:
            raise ScriptError(f"{path}:{record.line}: there is no file {record.argument_text}")
        for other in found:
            records += _included(other, other.read_text(encoding="utf-8-sig"), (*above, path.resolve()))
    return records


def _records(lines: list[str], path: Path) -> list[Record]:
    records: list[Record] = []
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip() == "" and not (block and _goes_on(block, lines[number:])):
            if block and (record := _record(block, path)) is not None:
                records.append(record)
            block = []
        elif not _COMMENTED.match(line):
            block.append((number, line.rstrip("\r")))
    return records


def _goes_on(block: list[tuple[int, str]], following: list[str]) -> bool:
    """True if a blank line belongs to the record: to an error text, unless a directive or nothing follows."""
    first = next((text for _, text in block if not text.startswith(("onlyif", "skipif"))), "")
    if not first.startswith(("statement error", "query error")) or all(text.strip() != "----" for _, text in block):
        return False
    after = next((line for line in following if line.strip()), "")
    return bool(after) and not _COMMENTED.match(after) and after.split()[0] not in _DIRECTIVES


def _record(block: list[tuple[int, str]], path: Path) -> Record | None:
    """The record of a block; None if it is not for us."""
    while block and block[0][1].startswith(("onlyif", "skipif")):
        condition, _, label = block.pop(0)[1].strip().partition(" ")
        if (label.strip() in _OURSELVES) != (condition == "onlyif"):
            return None
    if not block:
        raise ScriptError(f"{path}: a condition without a record")
    line, first = block[0]
    words = (
        first.split()
        if first.startswith(("statement error", "query error"))
        else _TRAILING_COMMENT.sub("", first).split()
    )
    if not words:
        raise ScriptError(f"{path}:{line}: a record without a directive")
    body = [text for _, text in block[1:]]
    while body and not body[-1].strip():
        body.pop()
    split = next((i for i, text in enumerate(body) if text == "----" or text.startswith("---- ")), None)
    if split is None:
        return Record(line, words[0], tuple(words[1:]), sql="\n".join(body), body=tuple(body))
    columns = tuple(c.strip() for c in body[split][4:].split("|") if c.strip())
    return Record(
        line,
        words[0],
        tuple(words[1:]),
        sql="\n".join(body[:split]),
        expected=tuple(body[split + 1 :]),
        columns=columns,
        body=tuple(body[:split]),
    )


def _without_skipped(records: list[Record]) -> Iterator[Record]:
    """The records that are not between `mode skip` and `mode unskip`."""
    skipping = False
    for record in records:
        if record.directive == "mode":
            skipping = record.argument_text == "skip" or (skipping and record.argument_text != "unskip")
        elif not skipping:
            yield record


def _unroll(records: list[Record], path: Path) -> Iterator[Record]:
    """Writes out `loop v from to … endloop` and `foreach v a b … endloop`."""
    position = 0
    while position < len(records):
        record = records[position]
        position += 1
        if record.directive not in _LOOPS:
            yield record
            continue
        depth, start = 1, position
        while depth:
            if position >= len(records):
                raise ScriptError(f"{path}:{record.line}: {record.directive} without endloop")
            depth += (records[position].directive in _LOOPS) - (records[position].directive == "endloop")
            position += 1
        name, *values = record.arguments
        if record.directive == "loop":
            values = [str(i) for i in range(int(values[0]), int(values[1]))]
        for value in values:
            for inner in _unroll(records[start : position - 1], path):
                yield _substituted(inner, name, value)


def _substituted(record: Record, name: str, value: str) -> Record:
    def put(text: str) -> str:
        return text.replace("${" + name + "}", value)

    expected = None if record.expected is None else tuple(map(put, record.expected))
    return replace(
        record,
        arguments=tuple(map(put, record.arguments)),
        sql=put(record.sql),
        body=tuple(map(put, record.body)),
        expected=expected,
    )
