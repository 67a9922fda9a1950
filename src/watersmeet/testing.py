"""Text tests, with which users can test their views: the records of a file, their comparison, and a runner.

A file whose first record is `dialect NAME` is in the rich form (rows written `a | b`, relations fed by `insert`,
continuous results by `expect`). Other files are sqllogictests of DuckDB (values separated by tabs), of RisingWave (by
spaces), or in the oldest form (one value a line), `query II rowsort`; long results may be given as a number of values
and a hash. Rows are compared by value, and as multisets unless an order is required. An expected error is a part of the
error's text, or a regular expression.

A FLUSH follows each statement outside of a transaction, so that the next record sees its effects.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.session.connections.texts import shown
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.types import SqlType

NULL: Final = "NULL"
Row = tuple[str, ...]


def written(value: Any) -> str:
    """The canonical text of a Python value: numbers without trailing zeros, times in ISO form without zone."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal)):
        return _number(Decimal(value))
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return _number(Decimal(repr(value)))
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return _trimmed(moment.isoformat(sep=" "))
    if isinstance(value, dt.time):
        return _trimmed(value.isoformat())
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=written, sort_keys=True)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


def read(text: str, like: Sequence[Any]) -> str:
    """The canonical text of a written value in a column whose actual values are `like`."""
    text = text.strip()
    if text == NULL:
        return NULL
    if text == "''":
        return ""
    example = next((v for v in like if v is not None), None)
    try:
        if isinstance(example, bool):
            return {"t": "true", "f": "false", "1": "true", "0": "false"}.get(text.lower(), text.lower())
        if isinstance(example, float):
            return written(float(text))
        if isinstance(example, (int, Decimal)):
            return _number(Decimal(text))
        if isinstance(example, dt.datetime):
            return written(dt.datetime.fromisoformat(text))
        if isinstance(example, dt.time):
            return written(dt.time.fromisoformat(text))
        if isinstance(example, (list, dict)):
            return json.dumps(json.loads(text), default=written, sort_keys=True)
    except (ValueError, InvalidOperation):
        return text
    return text


def difference(expected: Sequence[Row], actual: Sequence[Row]) -> str | None:
    """A text with the missing and the surplus rows; None if the two are equal as multisets."""
    missing = Counter(expected) - Counter(actual)
    surplus = Counter(actual) - Counter(expected)
    if not missing and not surplus:
        return None
    lines = [f"  missing: {' | '.join(row)}" for row in sorted(missing.elements())]
    lines += [f"  surplus: {' | '.join(row)}" for row in sorted(surplus.elements())]
    return "\n".join(lines)


def _number(value: Decimal) -> str:
    if not value.is_finite():
        return {"Infinity": "Infinity", "-Infinity": "-Infinity"}.get(str(value), "NaN")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


Values = tuple[Any, ...]
_EMPTY: Final = ("(empty)", "(empty string)")
_HASH: Final = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")

#: The words that RisingWave's client and layers add to a message.
_WRAPPING: Final = re.compile(r"db error: ERROR: .*|Caused by.*:|")

_NUMBERED: Final = re.compile(r"\d+: ")

_LAYER: Final = re.compile(
    r"(?:\d+: )?(?:(?:Not supported|Invalid input syntax|Bind error|Catalog error|Item not found|"
    r"Feature is not yet implemented|Scheduler error|Expr error|internal error): )*"
)


def mismatch(
    expected: Sequence[str], rows: Sequence[Values], kinds: Sequence[SqlType], modes: Sequence[str]
) -> str | None:
    """A text with the missing and the surplus rows; None if the rows are the expected ones.

    modes: the words after the types of `query`, of which only rowsort and valuesort have an effect.
    """
    if len(expected) == 1 and (found := _HASH.fullmatch(expected[0].strip())):
        return _hash_mismatch(found, rows, modes)
    lines = _as_rows(list(expected), rows)
    if "valuesort" in modes:
        values = [(value,) for row in rows for value in row]
        flat = [kind for _ in rows for kind in kinds]
        return _difference([c for line in lines for c in line.split("\t")], values, flat, ordered=False)
    return _difference(lines, rows, kinds, ordered="rowsort" not in modes)


def error_matches(pattern: str, text: str) -> bool:
    """True if the error `text` matches `pattern`."""
    if not pattern or pattern in text or _squeezed(pattern) in _squeezed(text):
        return True
    if pattern.startswith("<REGEX>:"):
        return re.search(pattern.removeprefix("<REGEX>:"), text, re.DOTALL) is not None
    if pattern.startswith("db error:"):
        lines = [line.strip() for line in pattern.split("\n") if not _WRAPPING.fullmatch(line.strip())]
        # If causes are numbered, the last one is the original cause.
        begin = max((i for i, line in enumerate(lines) if _NUMBERED.match(line)), default=0)
        lines = [_LAYER.sub("", line).removeprefix("HINT: ") for line in lines[begin:]]
        return bool(lines) and all(_squeezed(line).lower() in _squeezed(text).lower() for line in lines)
    try:
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error:
        return False


def _as_rows(lines: list[str], rows: Sequence[Values]) -> list[str]:
    """The lines as rows; if each line has one value, those of a row are joined by tabs."""
    width = len(rows[0]) if rows else 0
    if width < 2 or len(lines) != len(rows) * width or any("\t" in line for line in lines):
        return lines
    if all(_line_matches(line, row, ()) for line, row in zip(lines, rows, strict=False)):
        return lines
    return ["\t".join(lines[i : i + width]) for i in range(0, len(lines), width)]


def _difference(lines: Sequence[str], rows: Sequence[Values], kinds: Sequence[SqlType], *, ordered: bool) -> str | None:
    if (
        ordered
        and len(lines) == len(rows)
        and all(_line_matches(line, row, kinds) for line, row in zip(lines, rows, strict=True))
    ):
        return None
    left = list(rows)
    missing = []
    for line in lines:
        at = next((i for i, row in enumerate(left) if _line_matches(line, row, kinds)), None)
        if at is None:
            missing.append(line)
        else:
            del left[at]
    if not missing and not left:
        if not ordered:
            return None
        return "  (in this order)\n" + "\n".join(f"  {_row_text(row, kinds)}" for row in rows)
    return "\n".join(
        [*(f"  missing: {line}" for line in missing), *(f"  surplus: {_row_text(row, kinds)}" for row in left)]
    )


def _line_matches(line: str, row: Values, kinds: Sequence[SqlType]) -> bool:
    """True if the line is the row, whichever separator divides its values."""
    types = _types(kinds, len(row))
    if len(row) == 1:
        return _cell_matches(line, row[0], types[0])
    if "\t" in line:
        cells = line.split("\t")
        return len(cells) == len(row) and all(map(_cell_matches, cells, row, types))
    return _tokens_match(line.split(), row, types)


def _tokens_match(tokens: Sequence[str], row: Sequence[Any], kinds: Sequence[SqlType | None]) -> bool:
    """True if the words form the values; a value may have several words."""
    if not row:
        return not tokens
    value, kind = row[0], kinds[0]
    sizes = {1, len(written(value).split()), len(shown(value, kind).split())} - {0}
    return any(
        _cell_matches(" ".join(tokens[:size]), value, kind) and _tokens_match(tokens[size:], row[1:], kinds[1:])
        for size in sizes
        if size <= len(tokens)
    )


def _cell_matches(text: str, value: Any, kind: SqlType | None = None) -> bool:
    if value is None:
        return text.strip() == "NULL"
    if text.strip() in _EMPTY:
        return bool(value == "")
    return read(text, [value]) == written(value) or _squeezed(text) == _squeezed(shown(value, kind))


def _hash_mismatch(found: re.Match[str], rows: Sequence[Values], modes: Sequence[str]) -> str | None:
    texts = [[written(v) or "(empty)" for v in row] for row in rows]
    if "rowsort" in modes:
        texts.sort()
    values = [v for row in texts for v in row]
    if "valuesort" in modes:
        values.sort()
    real = hashlib.md5("".join(v + "\n" for v in values).encode(), usedforsecurity=False).hexdigest()
    if (len(values), real) == (int(found[1]), found[2]):
        return None
    return f"  {len(values)} values hashing to {real}"


def _row_text(row: Values, kinds: Sequence[SqlType]) -> str:
    types = _types(kinds, len(row))
    return "\t".join(shown(v, k) or "(empty)" for v, k in zip(row, types, strict=True))


def _types(kinds: Sequence[SqlType], width: int) -> list[SqlType | None]:
    return [*kinds] if kinds else [None] * width


def _squeezed(text: str) -> str:
    return " ".join(text.split())


_COMMENTED: Final = re.compile(r"^\s*#")
_HEADER: Final = re.compile(r"^# (name|source|features|note): ?(.*)$")
_LOOPS: Final = ("loop", "foreach")

_DIRECTIVES: Final = (
    "at", "commit", "connection", "control", "dialect", "endloop", "expect", "explain", "external", "failed", "foreach",
    "halt", "hash-threshold", "include", "insert", "loop", "mode", "onlyif", "plan", "query", "require", "schema",
    "skipif", "sleep", "start", "state", "statement", "stop", "subtest", "system", "watermark",
)  # fmt: skip

#: Watersmeet's names in `onlyif` and `skipif`.
_OURSELVES: Final = ("watersmeet", DEFAULT_DIALECT)

_TRAILING_COMMENT: Final = re.compile(r"\s+#.*$")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its directive and arguments, the SQL of its body, and the lines after `----`.

    line: the number of the directive's line. expected: None if the record has no `----`. columns: the names after
    `----` on the same line. body: the lines, for records without SQL.
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
    """A parsed file. rich: see the module's docstring. header: by key, the values of comments like `# name:`."""

    path: Path
    rich: bool
    records: tuple[Record, ...]
    header: dict[str, str] = field(default_factory=dict)


class ScriptError(Exception):
    """A syntax error in a file: the message has the line."""


def parse_file(path: Path) -> Script:
    """Reads `path`. Raises ScriptError where it can't be understood."""
    text = path.read_text(encoding="utf-8-sig")
    header = {m[1]: m[2] for line in text.split("\n") if (m := _HEADER.match(line))}
    records = list(_unroll(_included(path, text, ()), path))
    rich = bool(records) and records[0].directive == "dialect"
    return Script(path, rich, tuple(_without_skipped(records)), header)


def _included(path: Path, text: str, above: tuple[Path, ...]) -> list[Record]:
    """The records of a text, with `include` replaced by the records of the included file."""
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
    """True if a blank line belongs to the record: it is part of an error text, unless a directive or nothing
    follows.
    """
    first = next((text for _, text in block if not text.startswith(("onlyif", "skipif"))), "")
    if not first.startswith(("statement error", "query error")) or all(text.strip() != "----" for _, text in block):
        return False
    after = next((line for line in following if line.strip()), "")
    return bool(after) and not _COMMENTED.match(after) and after.split()[0] not in _DIRECTIVES


def _record(block: list[tuple[int, str]], path: Path) -> Record | None:
    """The record of a block of lines; None if it is for another system."""
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


#: Directives of other systems, which have no effect.
SILENT: Final = ("dialect", "hash-threshold", "control", "require", "sleep", "subtest")


class Failure(Exception):  # noqa: N818 - it is an outcome of a test, not an error of the program
    """A record with another outcome than expected. The message has the details."""


@dataclass(slots=True)
class Outcome:
    """The result of a script: the number of records that passed, and the text of the first failure."""

    records: int = 0
    failure: str | None = None


def run_script(script: Script, connect: Callable[[], Connection]) -> Outcome:
    """Runs a script of the plain form in the fresh database that `connect` opens. Stops at the first failure."""
    if script.rich:
        return Outcome(failure=f"{script.path}: a file that begins with `dialect` is no sqllogictest")
    with connect() as connection:

        def statement(record: Record) -> None:
            if not succeeds(connection, record):
                expect_error(connection, record)

        def query(record: Record) -> None:
            if record.arguments[:1] == ("error",):
                expect_error(connection, record)
            else:
                _query(connection, record)

        return run_records(script.path, script.records, {"statement": statement, "query": query})


def run_records(path: Path, records: Iterable[Record], handlers: Mapping[str, Callable[[Record], None]]) -> Outcome:
    """Calls the handler for each record's directive, up to `halt` or the first failure."""
    outcome = Outcome()
    for record in records:
        if record.directive == "halt":
            break
        try:
            if record.directive not in SILENT:
                handlers.get(record.directive, _unknown)(record)
        except (Error, Failure) as failure:
            outcome.failure = f"{path}:{record.line}: {failure}"
            return outcome
        except Exception:  # a crash of the engine is a failure of the record
            outcome.failure = f"{path}:{record.line}: {traceback.format_exc()}"
            return outcome
        outcome.records += 1
    return outcome


def _unknown(record: Record) -> None:
    raise Failure(f"unknown directive {record.directive!r}")


def succeeds(connection: Connection, record: Record) -> bool:
    """Executes a `statement` that must succeed; False if it must not."""
    kind = record.arguments[0] if record.arguments else "ok"
    if kind == "error":
        return False
    if kind not in ("ok", "count"):
        raise Failure(f"unknown statement kind {kind!r}")
    cursor = connection.cursor()
    cursor.execute(record.sql)
    if kind == "count" and cursor.rowcount != int(record.arguments[1]):
        raise Failure(f"{cursor.rowcount} rows instead of {record.arguments[1]}")
    flush(connection)
    return True


def expect_error(connection: Connection, record: Record) -> None:
    """Executes a statement that must fail with the error of the record."""
    wanted = " ".join(record.arguments[1:])
    err = refusal(connection, record)
    pattern = wanted or "\n".join(record.expected or ()).strip()
    if not error_matches(pattern, str(err)):
        raise Failure(f"the error does not match {pattern!r}:\n{err}") from err


def refusal(connection: Connection, record: Record) -> Error:
    """The error of a statement that must fail."""
    try:
        connection.cursor().execute(record.sql)
    except Error as err:
        return err
    raise Failure("succeeded, but must be refused")


def _query(connection: Connection, record: Record) -> None:
    cursor = connection.cursor()
    cursor.execute(record.sql)
    rows = cursor.fetchall()
    if record.expected is None:
        return
    kinds = [d[1] for d in cursor.description or ()]
    if (text := mismatch(record.expected, rows, kinds, record.arguments[1:])) is not None:
        raise Failure("the rows differ\n" + text)


def flush(connection: Connection) -> None:
    """Waits until all views reflect all commits. Has no effect within a transaction, whose changes are not visible to
    views.
    """
    if connection.autocommit:
        connection.cursor().execute("FLUSH")
