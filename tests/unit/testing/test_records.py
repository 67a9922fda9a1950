"""Parsing of text tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.testing import ScriptError, parse_file


def parse(tmp_path: Path, text: str):
    path = tmp_path / "t.slt"
    path.write_text(text)
    return parse_file(path)


def test_rich_form(tmp_path):
    script = parse(
        tmp_path,
        "# name: a test\n# features: RW-01\ndialect risingwave\n\nstatement ok\nCREATE TABLE t\n(a INT);\n\n"
        "insert t\n1 | x\n# between\n2 | y\n\nquery rowsort\nSELECT *\nFROM t;\n---- a | b\n1 | x\n",
    )
    assert script.rich
    assert script.header == {"name": "a test", "features": "RW-01"}
    assert [r.directive for r in script.records] == ["dialect", "statement", "insert", "query"]
    assert script.records[1].sql == "CREATE TABLE t\n(a INT);"
    assert script.records[2].body == ("1 | x", "2 | y")
    assert script.records[3].columns == ("a", "b")
    assert script.records[3].expected == ("1 | x",)
    assert script.records[3].line == 14


def test_query_without_rows_expects_none(tmp_path):
    script = parse(tmp_path, "query I\nSELECT 1\n----\n\nquery I\nSELECT 2\n")
    assert script.records[0].expected == ()
    assert script.records[1].expected is None
    assert not script.rich


def test_loops(tmp_path):
    script = parse(
        tmp_path, "foreach kind LEFT FULL\n\nloop i 0 2\n\nstatement ok\n${kind} ${i}\n\nendloop\n\nendloop\n"
    )
    assert [r.sql for r in script.records] == ["LEFT 0", "LEFT 1", "FULL 0", "FULL 1"]


def test_error_text_of_several_lines(tmp_path):
    script = parse(tmp_path, "statement error\nSELECT x\n----\ndb error\n\nstatement ok\nSELECT 1\n")
    assert script.records[0].expected == ("db error",)
    assert script.records[1].sql == "SELECT 1"


def test_loop_without_end_is_refused(tmp_path):
    with pytest.raises(ScriptError, match="endloop"):
        parse(tmp_path, "loop i 0 2\n\nstatement ok\nx\n")


def test_an_error_text_may_have_blank_lines(tmp_path):
    text = (
        "statement error\nSELECT x\n----\ndb error: Failed\n\nCaused by:\n  x\n\n\n# comment\nstatement ok\nSELECT 1\n"
    )
    script = parse(tmp_path, text)
    assert script.records[0].expected == ("db error: Failed", "", "Caused by:", "  x")
    assert [r.sql for r in script.records] == ["SELECT x", "SELECT 1"]


def test_records_for_others_are_left_out(tmp_path):
    script = parse(
        tmp_path,
        "onlyif duckdb\nstatement ok\n1\n\nskipif watersmeet\nstatement ok\n2\n\nonlyif risingwave\nskipif duckdb\n"
        "statement ok # why\n3\n\nmode skip\n\nstatement ok\n4\n\nmode unskip\n\nstatement ok\n5\n",
    )
    assert [r.sql for r in script.records] == ["3", "5"]
    assert script.records[0].arguments == ("ok",)


def test_included_files_come_in_place(tmp_path):
    (tmp_path / "part.slt").write_text("statement ok\ninner\n")
    script = parse(tmp_path, "statement ok\nbefore\n\ninclude part.slt\n\nstatement ok\nafter\n")
    assert [r.sql for r in script.records] == ["before", "inner", "after"]


@pytest.mark.parametrize("text", ["include nothing.slt\n", "include t.slt\n", "onlyif risingwave\n"])
def test_what_can_not_be_included(tmp_path, text):
    with pytest.raises(ScriptError):
        parse(tmp_path, text)


def test_line_ends_of_windows(tmp_path):
    path = tmp_path / "t.slt"
    path.write_bytes(b"\xef\xbb\xbfquery I\r\nSELECT 1\r\n----\r\n1\r\n\r\nstatement ok\r\nSELECT 2\r\n")
    records = parse_file(path).records
    assert [(r.sql, r.expected) for r in records] == [("SELECT 1", ("1",)), ("SELECT 2", None)]
