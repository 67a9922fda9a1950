"""Whatever bytes a Parquet file holds: its rows are read or set aside, the same for all who read it, however it is cut.

The oracle of the number of rows is the footer as Arrow reads it. Which of them are good nobody else can say of bytes
that are damaged; but it must not depend on the columns that are asked for, on the budget, nor on whether it is new
input or history. A process that ends fails the test too.
"""

from __future__ import annotations

import datetime as dt
import io
import random
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.thorough import FAST, FRESH, THOROUGH, mostly_slow
from tests.unit.sources.helpers import Driver, file_source, put
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.registry import read_slice
from watersmeet.values import types as t
from watersmeet.values.slices import AsideSlice, SourceSlice
from watersmeet.values.types import Field, SqlType

FILES: Final = 3_000 if THOROUGH else 10 if FAST else 60
CHUNKS: Final = 6

COLUMNS: Final = (
    Field("i", t.INTEGER),
    Field("s", t.VARCHAR),
    Field("n", SqlType("numeric", 10, 2)),
    Field("at", t.TIMESTAMP),
    Field("l", SqlType("array", element=t.VARCHAR)),
    Field("o", SqlType("struct", fields=(("x", t.BIGINT), ("y", t.VARCHAR)))),
    Field("j", t.JSONB),
    Field("d", t.TIME),
)

REGRESSIONS: Final = (5324, 5459)
"""Footers with a histogram of levels that is too long: `RowGroupMetaData.column` of pyarrow ends the process."""

# --- files ------------------------------------------------------------------------------------------------------------


def text(rng: random.Random) -> bytes:
    return rng.choice([b"x", b"", "é\u2028".encode(), b"caf\xe9", b"\xed\xa0\x80", b"long " * 9, b"\x00"])


def words(rng: random.Random, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """Text, some of it no UTF-8: writers don't check it either."""
    values = [None if rng.random() < 0.1 else text(rng) if rng.random() < 0.2 else b"word" for _ in range(count)]
    return pa.array(values, pa.binary()).cast(kind or pa.string(), safe=False)


def numbers(rng: random.Random, count: int, kind: pa.DataType, edge: int) -> pa.Array:
    """Small whole numbers, and some at the edge of the type."""
    values = [rng.choice([edge, -edge - 1]) if rng.random() < 0.05 else rng.randint(0, 99) for _ in range(count)]
    return pa.array(values, pa.int64()).cast(kind, safe=False)


def lists(rng: random.Random, values: pa.Array) -> pa.Array:
    cuts = sorted(rng.randint(0, len(values)) for _ in range(len(values) - 1))
    return pa.ListArray.from_arrays(pa.array([0, *cuts, len(values)], pa.int32()), values)


Maker = Callable[[random.Random, int], pa.Array]

#: By column: arrays of its type, of types that may be read as it, and of others.
ARRAYS: Final[dict[str, Sequence[Maker]]] = {
    "i": (
        lambda r, n: numbers(r, n, pa.int32(), 2**31 - 1),
        lambda r, n: numbers(r, n, pa.int64(), 2**40),
        lambda r, n: numbers(r, n, pa.uint64(), 2**40),
        lambda _, n: pa.nulls(n),
        words,
    ),
    "s": (
        words,
        lambda r, n: words(r, n, pa.large_string()),
        lambda r, n: words(r, n).fill_null("").dictionary_encode(),
        lambda r, n: words(r, n, pa.binary()),
    ),
    "n": (
        lambda r, n: pa.array([Decimal(r.randint(-999, 999)) / 100 for _ in range(n)], pa.decimal128(10, 2)),
        lambda r, n: pa.array([r.choice([Decimal(10) ** 30, Decimal("1.5")]) for _ in range(n)], pa.decimal256(60, 3)),
        lambda r, n: numbers(r, n, pa.int64(), 2**62),
        lambda r, n: pa.array([r.random() for _ in range(n)]),
    ),
    "at": (
        lambda r, n: numbers(r, n, pa.int64(), 2**63 - 1).cast(pa.timestamp("us")),
        lambda r, n: numbers(r, n, pa.int64(), 2**62).cast(pa.timestamp("ms")),
        lambda r, n: numbers(r, n, pa.int64(), 2**62).cast(pa.timestamp("ns")),
        lambda r, n: numbers(r, n, pa.int64(), 2**62).cast(pa.timestamp("us", "UTC")),
        lambda _, n: pa.array([dt.date(2024, 1, 1)] * n),
    ),
    "l": (lambda r, n: lists(r, words(r, n)), lambda _, n: pa.array([[i] for i in range(n)])),
    "o": (
        lambda r, n: pa.StructArray.from_arrays([numbers(r, n, pa.int64(), 2**62), words(r, n)], ["x", "y"]),
        lambda r, n: pa.StructArray.from_arrays([words(r, n)], ["y"]),
    ),
    "j": (
        lambda r, n: pa.array([r.choice(["1", '{"k": [1]}', "null", "bad"]) for _ in range(n)]),
        words,
    ),
    "d": (
        lambda r, n: numbers(r, n, pa.int64(), 2**62).cast(pa.time64("us")),
        lambda r, n: numbers(r, n, pa.int32(), 2**31 - 1).cast(pa.time32("s")),
    ),
}


def make(rng: random.Random) -> bytes:
    """A file as a writer leaves it: mostly of the declared types, sometimes of others."""
    count = rng.randint(1, 40)
    odd = rng.choice(COLUMNS).name if rng.random() < 0.4 else None
    columns = {name: (rng.choice(makers) if name == odd else makers[0])(rng, count) for name, makers in ARRAYS.items()}
    if rng.random() < 0.1:
        del columns[rng.choice(list(columns))]
    out = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        out,
        row_group_size=rng.choice([7, 100]),
        compression=rng.choice(["none", "snappy", "gzip", "zstd"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
        use_dictionary=rng.random() < 0.5,
        write_statistics=rng.random() < 0.5,
        write_page_checksum=rng.random() < 0.5,
        store_schema=rng.random() < 0.7,
    )
    return out.getvalue()


# --- damage -----------------------------------------------------------------------------------------------------------


def footer_start(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes numbers."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def with_number(rng: random.Random, data: bytes) -> bytes:
    """A byte of the footer becomes a number of any size; the footer stays one that can be read."""
    begin = footer_start(data)
    at = rng.randrange(begin, len(data) - 8)
    number = rng.choice([0, 1, 3, 2**20, 2**31, 2**32, 2**40, 2**62, 2**63 + 1, 2**64 - 1])
    footer = data[begin:at] + varint(number) + data[at + 1 : -8]
    return data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def with_page_header(rng: random.Random, data: bytes) -> bytes:
    """A number near the beginning of a column's pages becomes a large or negative one."""
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    column = group.column(rng.randrange(group.num_columns))
    at = (column.dictionary_page_offset or column.data_page_offset) + rng.randint(0, 30)
    number = rng.choice(
        [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01"]
    )
    return data[:at] + number + data[at + len(number) :]


def damage(rng: random.Random, data: bytes) -> bytes:
    """Some of the ways in which bytes go wrong."""
    match rng.randint(0, 7):
        case 0:
            return data
        case 1:
            return with_number(rng, data)
        case 2:
            return with_page_header(rng, data)
        case 3:
            return data[: rng.randint(0, len(data))] + (data[-8:] if rng.random() < 0.5 else b"")
        case kind:
            changed = bytearray(data)
            end = footer_start(data) if kind < 7 else len(data)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(end)
                changed[at] = rng.choice([changed[at] ^ 1 << rng.randint(0, 7), 0, 0x7F, 0x80, 0xFF])
            return bytes(changed)


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", mostly_slow(range(CHUNKS), 6, CHUNKS, fresh=False))
def test_rows_read_and_rows_set_aside_are_the_rows(chunk: int, tmp_path: Path) -> None:
    for number in range(chunk, FILES, CHUNKS):
        check(FRESH + number, tmp_path)


@pytest.mark.parametrize("number", REGRESSIONS)
def test_regressions(number: int, tmp_path: Path) -> None:
    check(number, tmp_path)


def check(number: int, folder: Path) -> None:
    """One file: `number` is its seed."""
    rng = random.Random(number)
    data = damage(rng, make(rng))
    with tempfile.TemporaryDirectory(dir=folder) as root:
        put(Path(root) / "a.parquet", data)
        rows, driver = read(root, COLUMNS)
        aside = sum(letter.get("rows", 1) for letter in driver.dead)
        whole = any(isinstance(piece, AsideSlice) for piece in driver.slices)
        assert (len(rows), aside) == (0, 1) if whole else len(rows) + aside == rows_of(data), number
        letters = [(d["line"], d["reason"]) for d in driver.dead if d["line"] is not None]
        assert letters == sorted(letters), number
        chosen = tuple(f for f in COLUMNS if rng.random() < 0.4)
        for columns, budget in ((chosen, ()), ((), (1,)), (COLUMNS[:1], (rng.randint(1, 9),))):
            again, other = read(root, columns, *budget)
            places = [COLUMNS.index(f) for f in columns]
            assert again == [tuple(row[p] for p in places) for row in rows], number
            if not any("schema" in d["reason"] for d in driver.dead):
                # A file of another schema is set aside slice by slice.
                assert [(d["line"], d["reason"]) for d in other.dead] == [
                    (d["line"], d["reason"]) for d in driver.dead
                ], number
        assert driver.history(budget_rows=3) == rows, number


class Rows(Driver):
    """Reads rows as tuples of texts, also times that Python has not, and rows without columns."""

    def read(self, slices: Sequence[SourceSlice], columns: Sequence[Field] | None = None) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for piece in slices:
            letters = DeadLetterWriter(None)
            got = read_slice(piece, self.source.spec(), COLUMNS if columns is None else columns, letters)
            got.table.validate(full=True)
            plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in got.table.columns]
            texts = [[repr(value) for value in column.to_pylist()] for column in plain]
            rows += zip(*texts, strict=True) if texts else [()] * len(got.ordinals)
            self.dead += letters.records
        return rows


def read(root: str, columns: Sequence[Field], *budget: int) -> tuple[list[tuple[Any, ...]], Driver]:
    driver = Rows(file_source(Path(root), COLUMNS, format="parquet"), *budget)
    rows = driver.once(columns=columns)
    while driver.last.more:
        rows += driver.once(columns=columns)
    return rows, driver


def rows_of(data: bytes) -> int:
    return int(pq.read_metadata(io.BytesIO(data)).num_rows)
