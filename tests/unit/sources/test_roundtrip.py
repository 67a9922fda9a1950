"""However input is cut into slices, each row is given once, in order; dead letters are the same too."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.sources.helpers import T0, Driver, S, file_source, put

from watersmeet.connectors.files import cutting, reading
from watersmeet.connectors.files import reading as textrows
from watersmeet.connectors.files import source as files
from watersmeet.connectors.files.cutting import ListedFile
from watersmeet.values import types as t
from watersmeet.values.types import Field

COLUMNS = (Field("n", t.INTEGER), Field("s", t.VARCHAR), Field("u", t.VARCHAR))
#: The letters that matter to the formats, and some that are longer than a byte.
TEXT = st.text(alphabet="ab,;\"\n\r' {}\\é😀\t", max_size=8)
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


@pytest.mark.parametrize("kind", ["csv", "json", "csv.gz", "json.gz"])
@pytest.mark.parametrize("budget", [(1000, 10_000), (1, 10), (3, 100)])
@pytest.mark.parametrize("slice_bytes", [16, 1 << 20])
def test_a_record_that_is_too_long_is_set_aside_alone(
    monkeypatch: Any, tmp_path: Path, kind: str, budget: tuple[int, int], slice_bytes: int
) -> None:
    monkeypatch.setattr(cutting, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(reading, "SLICE_BYTES", slice_bytes)
    if kind.startswith("csv"):
        good, long = [f"{i},a,b\n" for i in range(6)], f"{'x' * 5000},a,b\n"
    else:
        good, long = [f'{{"n": {i}, "s": "a", "u": "b"}}\n' for i in range(6)], f'{{"n": 7, "s": "{"x" * 5000}"}}\n'
    lengths = [len(long), len(long) - 1]
    text = "".join([*good[:3], long, *good[3:], long.rstrip("\n")]).encode()
    put(tmp_path / f"a.{kind}", gzip.compress(text) if kind.endswith("gz") else text)
    options = {"csv__header": "false"} if kind.startswith("csv") else {}
    source = file_source(tmp_path, COLUMNS, format=kind.removesuffix(".gz"), max_record_bytes="100", **options)
    driver = Driver(source, *budget)
    assert driver.all() == [(i, "a", "b") for i in range(6)]
    expected = [(line, f"length: {n} bytes, more than max_record_bytes = 100") for line, n in zip([4, 8], lengths)]
    assert [(d["line"], d["reason"]) for d in driver.dead] == expected
    assert all(len(d["text"]) > 100 and long.startswith(d["text"]) for d in driver.dead)
    driver.dead.clear()
    assert len(driver.history(*budget)) == 6
    assert [(d["line"], d["reason"]) for d in driver.dead] == expected


def test_a_record_that_is_too_long_waits_for_its_end(tmp_path: Path) -> None:
    file = put(tmp_path / "a.json", '{"n": 1}\n' + "x" * 500, T0)
    driver = Driver(file_source(tmp_path, COLUMNS, format="json", max_record_bytes="100"))
    assert driver.all(T0) == [(1, None, None)]
    assert (driver.dead, driver.last.pending) == ([], 1)
    put(file, "y" * 500 + '\n{"n": 2}\n', T0 + S, append=True)
    assert driver.all(T0 + S) == [(2, None, None)]
    assert [(d["line"], d["reason"][:18]) for d in driver.dead] == [(2, "length: 1001 bytes")]


@pytest.mark.parametrize("kind", ["csv", "csv.gz"])
@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_a_file_whose_header_is_too_long_is_damaged(tmp_path: Path, kind: str, limit: int) -> None:
    text = b"n," + b"x" * (1 << 18) + b"\n1,a\n"
    put(tmp_path / f"a.{kind}", gzip.compress(text) if kind.endswith("gz") else text)
    driver = Driver(file_source(tmp_path, COLUMNS, max_record_bytes=str(limit)))
    assert driver.all() == []
    assert driver.reasons() == [(f"a.{kind}", None, "damaged")]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_an_error_that_nobody_thought_of_sets_aside_the_record_that_raises_it(
    monkeypatch: Any, tmp_path: Path, kind: str
) -> None:
    name = "convert" if kind == "csv" else "json_objects"
    real = getattr(textrows, name)

    def fails(texts: Any, *how: Any) -> Any:
        found = texts if isinstance(texts, list) else [texts]
        if any("poison" in str(value) for column in found for value in column):
            raise ZeroDivisionError("of the test")
        return real(texts, *how)

    monkeypatch.setattr(textrows, name, fails)
    words = ["poison" if i in (3, 4, 17) else "fine" for i in range(20)]
    if kind == "csv":
        text = "n,s,u\n" + "".join(f'{i},{word},"a\nb"\n' for i, word in enumerate(words))
    else:
        text = "".join(f'{{"n": {i}, "s": "{word}", "u": "a\\nb"}}\n' for i, word in enumerate(words))
    put(tmp_path / f"a.{kind}", text)
    driver = Driver(file_source(tmp_path, COLUMNS, format=kind))
    assert driver.all() == [(i, "fine", "a\nb") for i in range(20) if i not in (3, 4, 17)]
    lines = [2 + 2 * i if kind == "csv" else 1 + i for i in (3, 4, 17)]
    reason = "unexpected: ZeroDivisionError: of the test"
    assert [(d["line"], d["reason"]) for d in driver.dead] == [(line, reason) for line in lines]


def test_an_error_that_nobody_thought_of_keeps_no_other_file_back(monkeypatch: Any, tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "n,s,u\n1,a,b\n")
    put(tmp_path / "b.csv", "n,s,u\n2,a,b\n")
    real = files.next_cut

    def fails(file: Any, listed: ListedFile, *rest: Any, **how: Any) -> Any:
        if listed.name == "a.csv":
            raise ZeroDivisionError("of the test")
        return real(file, listed, *rest, **how)

    monkeypatch.setattr(files, "next_cut", fails)
    driver = Driver(file_source(tmp_path, COLUMNS))
    assert driver.all() == [(2, "a", "b")]
    status = driver.source.status()
    assert status["unreadable_files"] == 1
    assert "ZeroDivisionError: of the test" in str(status)
    monkeypatch.undo()
    assert driver.all(T0 + 5 * S) == [(1, "a", "b")]
