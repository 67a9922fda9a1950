"""However input is cut into slices, each row is given once, in order; dead letters are the same too."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.sources.helpers import T0, Driver, S, file_source, put

from watersmeet import types as t
from watersmeet.sources import cutting
from watersmeet.types import Field

COLUMNS = (Field("n", t.INTEGER), Field("s", t.VARCHAR), Field("u", t.VARCHAR))
#: The letters that matter to the formats, and some that are longer than a byte.
TEXT = st.text(alphabet='ab,;"\n\r\' {}\\é😀\t', max_size=8)
ROWS = st.lists(st.tuples(st.integers(-99, 99), TEXT, TEXT), max_size=30)
BUDGET = st.tuples(st.integers(1, 9), st.integers(1, 60))


def csv_text(rows: list[Any], line_end: str) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=line_end, quoting=csv.QUOTE_NONNUMERIC).writerows([("n", "s", "u"), *rows])
    return out.getvalue()


def drive(text: str | bytes, kind: str, budget: tuple[int, int], columns: Any = COLUMNS) -> Driver:
    with tempfile.TemporaryDirectory() as root:
        put(Path(root) / "a", text)
        driver = Driver(file_source(Path(root), columns, format=kind), *budget)
        driver.rows = driver.all()  # type: ignore[attr-defined]
        driver.again = driver.history(*budget)  # type: ignore[attr-defined]
    return driver


@examples(80)
@given(ROWS, st.sampled_from(["\n", "\r\n"]), BUDGET, st.booleans())
def test_csv_at_any_budget(rows: list[Any], line_end: str, budget: tuple[int, int], ended: bool) -> None:
    text = csv_text(rows, line_end)
    driver = drive(text if ended else text.removesuffix(line_end), "csv", budget)
    assert driver.rows == driver.again == rows  # type: ignore[attr-defined]
    assert driver.dead == []


@examples(60)
@given(ROWS, BUDGET)
def test_json_lines_at_any_budget(rows: list[Any], budget: tuple[int, int]) -> None:
    text = "".join(json.dumps(dict(zip("nsu", row, strict=True))) + "\n" for row in rows)
    driver = drive(text, "json", budget)
    assert driver.rows == driver.again == rows  # type: ignore[attr-defined]
    assert driver.dead == []


@examples(150)
@given(st.binary(max_size=60).map(lambda b: bytes(b'1a,"\n\r\xc3\xa9 '[x % 9] for x in b)), BUDGET, st.integers(1, 3))
def test_rubbish_is_cut_to_the_same_rows_and_dead_letters(text: bytes, budget: tuple[int, int], width: int) -> None:
    names = ["n", "s", "u"][:width]
    header = ",".join(names).encode() + b"\n"
    whole = drive(header + text, "csv", (1000, 10000), COLUMNS[:width])
    cut = drive(header + text, "csv", budget, COLUMNS[:width])
    assert cut.rows == whole.rows  # type: ignore[attr-defined]
    count = len(whole.dead) // 2  # the history sets them aside once more
    assert cut.dead[:count] == whole.dead[:count]


@examples(60)
@given(ROWS, st.lists(st.integers(0, 400), max_size=6))
def test_csv_that_grows_at_any_byte(rows: list[Any], cuts: list[int]) -> None:
    data = csv_text(rows, "\n").encode()
    with tempfile.TemporaryDirectory() as root:
        file = Path(root) / "a.csv"
        driver = Driver(file_source(Path(root), COLUMNS))
        got, now = [], T0
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            put(file, data[begin:end], now, append=True)
            got += driver.all(now)
            now += S // 10
        assert got + driver.all(now + 5 * S) == rows
        assert driver.history() == rows


def test_a_row_longer_than_a_slice(monkeypatch: Any) -> None:
    monkeypatch.setattr(cutting, "SLICE_BYTES", 16)
    rows = [(1, "x" * 1000, "\n" * 500), (2, "y", "z")]
    assert drive(csv_text(rows, "\n"), "csv", (10, 8)).rows == rows  # type: ignore[attr-defined]


def test_a_file_without_any_newline_is_damaged(monkeypatch: Any) -> None:
    monkeypatch.setattr(cutting, "SLICE_BYTES", 16)
    monkeypatch.setattr(cutting, "MAX_LINE_BYTES", 1000)
    driver = drive("n,s,u\n1,a,b\n" + "x" * 5000, "csv", (10, 1000))
    assert driver.rows == [(1, "a", "b")]  # type: ignore[attr-defined]
    assert driver.reasons()[:1] == [("a", None, "damaged")]
