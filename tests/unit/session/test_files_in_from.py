"""`file('path', 'format', 'structure')` in FROM of Timeplus: rows of files, for connections that may read files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection


@pytest.fixture
def connection() -> Iterator[Connection]:
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as found:
        yield found


def _written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_formats_and_structures(connection: Connection, tmp_path: Path) -> None:
    names = _written(tmp_path, "n.csv", "a,b\n1,x\n2,y\n")
    plain = _written(tmp_path, "p.txt", "1;x\n2;y\n")
    lines = _written(tmp_path, "l.jsonl", '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n')
    rows = [(1, "x"), (2, "y")]
    for source in (f"file('{names}')", f"file('{names}', 'CSVWithNames', 'a int8, b string')", f"file('{lines}')"):
        assert connection.execute(f"SELECT a, b FROM {source} ORDER BY a").fetchall() == rows, source
    text = f"SELECT Sum, b FROM file('{plain}', 'CSV', 'Sum int, b string') SETTINGS format_csv_delimiter = ';'"
    assert connection.execute(text).fetchall() == rows
    connection.execute(f"CREATE STREAM s (a int, b string); INSERT INTO s (a, b) SELECT a, b FROM file('{names}')")
    connection.flush()
    assert connection.execute("SELECT a, b FROM table(s) ORDER BY a").fetchall() == rows


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("SELECT * FROM file('{}', 'CSV')", "FEATURE_NOT_SUPPORTED"),
        ("SELECT * FROM file('{}', 'XML')", "FEATURE_NOT_SUPPORTED"),
        ("SELECT * FROM file(1)", "SYNTAX_ERROR"),
        ("SELECT * FROM file('{}', 'CSV', 'a int')", "INVALID_VALUE"),
        ("SELECT * FROM file('{}.none', 'CSV', 'a int')", "INVALID_VALUE"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM file('{}', 'CSV', 'a string')", "FEATURE_NOT_SUPPORTED"),
        ("SELECT * FROM url('http://localhost/x', 'CSV', 'a int')", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_refusals(connection: Connection, tmp_path: Path, text: str, condition: str) -> None:
    path = _written(tmp_path, "p.txt", "x\n")
    with pytest.raises(Error) as caught:
        connection.execute(text.format(path)).fetchall()
    assert caught.value.condition == condition


def test_a_connection_without_files_reads_none(tmp_path: Path) -> None:
    path = _written(tmp_path, "p.csv", "a\n1\n")
    with watersmeet.connect(runtime="inprocess", dialect="timeplus", allow_files=False) as connection:
        with pytest.raises(Error) as caught:
            connection.execute(f"SELECT * FROM file('{path}')")
        assert caught.value.condition == "FILES_NOT_ALLOWED"
