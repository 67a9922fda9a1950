"""Columns that show where rows are from: of INCLUDE file and offset, and of provenance."""

from __future__ import annotations

import gzip
import io
import random
from dataclasses import replace

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sources.helpers import AB, Driver, put, relation

from watersmeet.connectors.registry import open_source
from watersmeet.values import types as t
from watersmeet.values.types import Field

PLACES = {"file": "file", "base": "base", "line": "line", "at": "offset"}
COLUMNS = (*AB, Field("file", t.VARCHAR), Field("base", t.VARCHAR), Field("line", t.BIGINT), Field("at", t.VARCHAR))


def read(root, budget_rows=1 << 40, **options):
    made = replace(relation(COLUMNS, connector="file", path=str(root), **options), message_parts=PLACES)
    driver = Driver(open_source(made), budget_rows)
    found = driver.once(columns=COLUMNS)
    while driver.last.more:
        found += driver.once(columns=COLUMNS)
    return found, driver


def text_of(form, seed):
    """(a file's content; of its rows the values, the line and the offset).

    With empty and bad lines, CRLF, quoted line ends, a BOM.
    """
    rng = random.Random(seed)
    content, expected, line = b"", [], 1
    if rng.random() < 0.5:
        content = b"\xef\xbb\xbf"
    if form == "csv header":
        content, line = content + b"b,a\n", 2
    for number in range(12):
        end = rng.choice(["\n", "\r\n"]) if form != "json" else "\n"
        kind = rng.choice(["row", "row", "row", "empty", "bad"])
        text = rng.choice(["x", "", "ü€", "a,b", 'q"q', "two\nlines" if form != "json" else "one"])
        place = len(content)
        if kind == "empty":
            record = ""
        elif form == "json":
            record = f'{{"b": "{text}", "a": {number}}}'.replace('q"q', 'q\\"q')
            record = "nonsense" if kind == "bad" else record
        else:
            quoted = '"' + text.replace('"', '""') + '"'
            a = "many" if kind == "bad" else str(number)
            record = f"{quoted},{a}" if form == "csv header" else f"{a},{quoted}"
        if kind == "row":
            expected.append((number, text, line, str(place)))
        content += (record + end).encode()
        line += (record + end).count("\n")
    return content, expected


@pytest.mark.parametrize("form", ["csv", "csv header", "json"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_text(tmp_path, form, is_packed):
    (tmp_path / "d").mkdir()
    ending = ".csv.gz" if is_packed else ".csv"
    for seed in range(6):
        content, expected = text_of(form, seed)
        path = put(tmp_path / "d" / f"x{ending}", gzip.compress(content) if is_packed else content)
        named = [(a, b, f"d/x{ending}", f"x{ending}", line, at) for a, b, line, at in expected]
        options = {"header": str(form == "csv header").lower()} if form != "json" else {}
        for rows in (1, 3, 1 << 40):
            found, _ = read(tmp_path, rows, recursive="true", format=form.split()[0], **options)
            assert found == named, (seed, rows)
        path.unlink()


@pytest.mark.parametrize("rows", [1, 1 << 40])
def test_parquet(tmp_path, rows):
    table = pa.table({"a": pa.array(range(9), pa.int32()), "b": [f"r{i}" for i in range(9)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
    found, driver = read(tmp_path, rows, format="parquet")
    assert found == [(i, f"r{i}", "x.parquet", "x.parquet", i + 1, str(i)) for i in range(9)]
    assert len(driver.slices) == (3 if rows == 1 else 1)


def test_avro(tmp_path):
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [{"a": i, "b": f"r{i}"} for i in range(5)], sync_interval=1)
    put(tmp_path / "x.avro", sink.getvalue())
    found, _ = read(tmp_path, format="avro")
    assert found == [(i, f"r{i}", "x.avro", "x.avro", i + 1, str(i)) for i in range(5)]
