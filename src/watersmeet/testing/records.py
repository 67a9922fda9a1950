"""Text test files as records.

Two forms are read. A file whose first record is `dialect NAME` is in the rich form (rows written
`a | b`, relations fed by `insert`, continuous results by `expect`). Any other file is a
sqllogictest as DuckDB and RisingWave write them (`query II rowsort`, values divided by tabs or
blanks, or one a line).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

_COMMENTED: Final = re.compile(r"^\s*#")
_HEADER: Final = re.compile(r"^# (name|source|features|note): ?(.*)$")
_LOOPS: Final = ("loop", "foreach")


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
    lines = path.read_text(encoding="utf-8").split("\n")
    header = {m[1]: m[2] for line in lines if (m := _HEADER.match(line))}
    records = list(_unroll(_records(lines, path), path))
    rich = bool(records) and records[0].directive == "dialect"
    return Script(path, rich, tuple(records), header)


def _records(lines: list[str], path: Path) -> list[Record]:
    records: list[Record] = []
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip() == "" and not (block and _expects_blank(block)):
            if block:
                records.append(_record(block, path))
                block = []
        elif not _COMMENTED.match(line):
            block.append((number, line.rstrip("\r")))
    return records


def _expects_blank(block: list[tuple[int, str]]) -> bool:
    """A RisingWave error text after `----` may hold blank lines: it ends at the second one in a row."""
    return block[0][1].startswith(("statement error", "query error")) and block[-1][1].strip() == "----"


def _record(block: list[tuple[int, str]], path: Path) -> Record:
    line, first = block[0]
    words = first.split()
    body = tuple(text for _, text in block[1:])
    if not words:
        raise ScriptError(f"{path}:{line}: a record without a directive")
    split = next((i for i, text in enumerate(body) if text == "----" or text.startswith("---- ")), None)
    if split is None:
        return Record(line, words[0], tuple(words[1:]), sql="\n".join(body), body=body)
    columns = tuple(c.strip() for c in body[split][4:].split("|") if c.strip())
    return Record(line, words[0], tuple(words[1:]), sql="\n".join(body[:split]), expected=body[split + 1 :],
                  columns=columns, body=body[:split])


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
    return replace(record, arguments=tuple(map(put, record.arguments)), sql=put(record.sql),
                   body=tuple(map(put, record.body)), expected=expected)
