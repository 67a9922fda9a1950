"""Whatever bytes a file holds: rows read + rows set aside = records in it, each of them by its own line.

The oracles know nothing of the code under test. JSON lines: RFC 8259 and Python's json. CSV: RFC 4180, and the rule
that a record which breaks its rules of quoting is one physical line. A format adds a maker of good files, an oracle and
an entry of `FORMATS`; what damages bytes is shared.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.thorough import FAST, FRESH, THOROUGH, mostly_slow
from tests.unit.sources.helpers import Driver, file_source, put
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

FILES: Final = 7_000 if THOROUGH else 50 if FAST else 240
"""How many files of all formats together are tried; `test_fuzz_parquet` tries 3,000, 10 or 60 more."""
CHUNKS: Final = 20

COLUMNS: Final = (
    Field("id", t.BIGINT),
    Field("name", t.VARCHAR),
    Field("amt", SqlType("numeric", 38, 18)),
    Field("doc", t.JSONB),
    Field("tags", SqlType("array", element=t.VARCHAR)),
)
MEMBERS: Final = ("id", "name", "amt", "doc")
SHORT: Final = 300
TEXTS: Final = tuple(Field(name, t.VARCHAR) for name in ("a", "b", "c"))


@dataclass(frozen=True)
class Record:
    """What a file holds by the rules. good: None where the oracle can't tell."""

    line: int
    good: bool | None


@dataclass(frozen=True)
class Format:
    """make: a good file. records: what bytes hold. values: of the good ones, as `seen` gives them from rows."""

    name: str
    make: Callable[[random.Random], bytes]
    records: Callable[[bytes], list[Record]]
    columns: tuple[Field, ...]
    options: dict[str, str]
    values: Callable[[bytes], list[tuple[Any, ...]]] | None = None
    seen: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None


# --- good files -------------------------------------------------------------------------------------------------------


def make_json(rng: random.Random) -> bytes:
    """JSON lines."""
    lines = []
    for i in range(rng.randint(1, 12)):
        row = {"id": i, "name": rng.choice(["x", "é\u2028", 'q"u', ""]), "amt": rng.choice([1, 0.5, 1.25]), "ok": True}
        row["doc"] = rng.choice([None, {"k": [1, {"l": None}]}, 1.5, "s"])
        row["tags"] = rng.choice([None, [], ["a", None], [1, 2.5]])
        lines.append(json.dumps(row, ensure_ascii=rng.random() < 0.5))
    return ("\n".join(lines) + rng.choice(["", "\n"])).encode()


def make_csv(rng: random.Random) -> bytes:
    """CSV without a header."""
    fields = ["x", "", "12", '"q"', '"a ""b"" c"', '"two\nlines"', '"a,b"', "é\u2028"]
    end = rng.choice(["\n", "\r\n"])
    rows = [",".join(rng.choice(fields) for _ in TEXTS) for _ in range(rng.randint(1, 12))]
    return (end.join(rows) + rng.choice(["", end])).encode()


# --- damage -----------------------------------------------------------------------------------------------------------

PIECES: Final = [
    b'"', b"\\", b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\r\n", b"\xe2\x80\xa8", b"\xc2\x85",
    b"\xed\xa0\x80", b"\\ud800", b"\\udc00", b"\\u0000", b"{", b"}", b"[", b"]", b",", b":", b"1e999", b"-", b"\x0b",
    b"1.234567890123456789012", b"9" * 400, b'"id":7,', b'"\\u0069d":"x",', b"NaN", b",]", b",}", b"/**/", b'""',
    b" ", b"\t", b"true", b"null", b"[" * 1200, b"[" * 1200 + b"]" * 1200,
    b'{"k":' * 600 + b"1" + b"}" * 600, b"\xf0\x9f\x98\x80", b"\xf0\x9f",
]  # fmt: skip
POISON: Final = [
    b'{"id":1,"name":"\\ud800","amt":1.234567890123456}',
    b'{"id":1,"x":' + b"[" * 1000 + b"]" * 1000 + b',"amt":1.234567890123456}',
    b'{"id":1,"id":2,"amt":1.234567890123456}',
    b'"never closed',
]


def damage(rng: random.Random, data: bytes) -> bytes:
    """Some of the ways in which bytes go wrong, one after the other."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        match rng.randint(0, 7):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << rng.randint(0, 7)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[at + rng.randint(1, 20) :]
            case 3:
                data = data[:at] + data[rng.randint(0, len(data)) :][:50] + data[at:]
            case 4:
                lines = data.split(b"\n")
                lines.insert(rng.randint(0, len(lines)), rng.choice(POISON))
                data = b"\n".join(lines)
            case 5:
                data = data.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b"\n"]), rng.randint(1, 3))
            case _:
                data = data[:at] + rng.choice(PIECES) + data[at:]
    return data


# --- what bytes hold, by the rules ------------------------------------------------------------------------------------


def json_records(data: bytes) -> list[Record]:
    """A record is a line that is not blank; it is good if it is the UTF-8 of a JSON object."""
    return [Record(number, is_object(line)) for number, line in json_lines(data)]


def short_json_records(data: bytes) -> list[Record]:
    """As `json_records`, where a line of more than 300 bytes, its end included, is too long."""
    whole = data.removeprefix(b"\xef\xbb\xbf")
    last = whole.count(b"\n") + 1
    return [
        Record(number, is_object(line) if len(line) + (number < last) <= SHORT else False)
        for number, line in json_lines(data)
    ]


def json_lines(data: bytes) -> list[tuple[int, bytes]]:
    """(number, text) of the lines that are not blank."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip(b" \t\r")]


def json_values(data: bytes) -> list[tuple[Any, ...]]:
    """The members of the good lines, numbers as they are written."""
    rows = [as_written(line.decode()) for _, line in json_lines(data) if is_object(line)]
    return [tuple(row.get(name) for name in MEMBERS) for row in rows]


def as_written(text: str | None) -> Any:
    def number(digits: str) -> tuple[str, str]:
        return "number", digits

    return None if text is None else json.loads(text, parse_float=number, parse_int=number)


def is_object(line: bytes) -> bool | None:
    def refuse(text: str) -> Any:
        raise ValueError(text)

    try:
        value = json.loads(line.decode(), parse_constant=refuse, parse_float=str, parse_int=str)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except ValueError:
        return False
    except RecursionError:
        return None
    return isinstance(value, dict)


def csv_records(data: bytes) -> list[Record]:
    """Rows of three fields, read byte by byte; blank lines are no records."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    found, at, line = [], 0, 1
    while at < len(data):
        end, fields = csv_row(data, at)
        good = fields == len(TEXTS)
        if end is None:
            newline = data.find(b"\n", at)
            end, good = (len(data) if newline < 0 else newline + 1), False
        row = data[at:end]
        try:
            row.decode()
        except ValueError:
            good = False
        if row.removesuffix(b"\n").removesuffix(b"\r"):
            found.append(Record(line, good))
        at, line = end, line + row.count(b"\n")
    return found


def csv_row(data: bytes, at: int) -> tuple[int | None, int]:
    """(end of the row that begins at `at`, or None if it breaks the rules; its fields)."""
    fields = 1
    while True:
        if data[at : at + 1] == b'"':
            at += 1
            while True:
                quote = data.find(b'"', at)
                if quote < 0:
                    return None, 0
                at = quote + 1
                if data[at : at + 1] != b'"':
                    break
                at += 1
        else:
            while at < len(data) and data[at] not in b",\r\n":
                at += 1
        rest = data[at : at + 2]
        if rest[:1] == b",":
            at, fields = at + 1, fields + 1
        elif rest in (b"", b"\r"):
            return len(data), fields
        elif rest[:1] == b"\n":
            return at + 1, fields
        elif rest == b"\r\n":
            return at + 2, fields
        else:
            return None, 0


FORMATS: Final = (
    Format("json", make_json, json_records, COLUMNS, {}),
    Format(
        "json",
        make_json,
        json_records,
        tuple(Field(n, t.JSONB) for n in MEMBERS),
        {},
        json_values,
        lambda row: tuple(map(as_written, row)),
    ),
    Format("json", make_json, short_json_records, COLUMNS, {"max_record_bytes": str(SHORT)}),
    Format("csv", make_csv, csv_records, TEXTS, {"csv__header": "false", "null": "NULL"}),
)


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", mostly_slow(range(CHUNKS), 12, CHUNKS, fresh=False))
def test_rows_read_and_rows_set_aside_are_the_records(chunk: int, tmp_path: Path) -> None:
    for number in range(chunk, FILES, CHUNKS):
        check(number, tmp_path)


def check(number: int, folder: Path) -> None:
    """One file: `number` is its seed, counted from the first fresh one."""
    rng = random.Random(FRESH + number)
    kind = FORMATS[number % len(FORMATS)]
    data = damage(rng, kind.make(rng))
    budget = (rng.randint(1, 6), rng.randint(1, 200)) if rng.random() < 0.5 else ()
    with tempfile.TemporaryDirectory(dir=folder) as root:
        zipped = rng.random() < 0.2
        put(Path(root) / ("a.gz" if zipped else "a"), gzip.compress(data) if zipped else data)
        driver = Driver(
            file_source(Path(root), kind.columns, format=kind.name, incomplete_ms="0", **kind.options), *budget
        )
        rows = driver.all()
    records = kind.records(data)
    case = (FRESH + number, data)
    assert len(rows) + len(driver.dead) == len(records), case
    lines = [letter["line"] for letter in driver.dead]
    assert lines == sorted(set(lines)), case
    assert set(lines) <= {r.line for r in records}, case
    assert set(lines) >= {r.line for r in records if r.good is False}, case
    if all(f.type in (t.VARCHAR, t.JSONB) for f in kind.columns):
        assert set(lines) <= {r.line for r in records if r.good is not True}, case
    if kind.values is not None and kind.seen is not None and all(r.good is not None for r in records):
        assert [kind.seen(row) for row in rows] == kind.values(data), case
