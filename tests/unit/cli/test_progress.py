"""What `watersmeet run` prints of sources and views whose rows have times."""

from __future__ import annotations

import io
import json

from rich.console import Console

import watersmeet
from watersmeet.cli.progress import progress_line, progress_table, status_of
from watersmeet.cli.run import _drawn
from watersmeet.runtime.status import SourceStatus, Status, ViewStatus
from watersmeet.store.manifests import Metrics


def test_late_rows_and_watermarks_are_shown():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE a (k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) APPEND ONLY; CREATE TABLE t (k INT)"
        )
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM a; CREATE MATERIALIZED VIEW u AS SELECT * FROM t")
        cursor.execute("INSERT INTO a VALUES (1, '2024-05-01 11:00'), (2, '9999-01-01'); FLUSH")
        cursor.execute("INSERT INTO a VALUES (3, '2024-05-01 10:00'); FLUSH")
        status = status_of(connection)
    line = progress_line(status, {}, as_json=False)
    assert "source a: 3 rows, 0/s, 1 late, 1 ahead | v: in 2," in line
    assert "watermark 2024-05-01 11:00:00 | u: in 0," in line
    assert line.count("watermark") == 1
    source = json.loads(progress_line(status, {}, as_json=True))["sources"]["a"]
    assert source == {
        "rows": 3,
        "rows_per_s": 0,
        "dead": 0,
        "watermark": "2024-05-01 11:00:00",
        "late": 1,
        "ahead": 1,
        "idle": False,
    }
    console = Console(width=160, record=True)
    console.print(progress_table(status, {}, 1.0))
    assert "0 (1 late)" in console.export_text()


def test_the_table_fits_its_terminal():
    source = SourceStatus("s", "orders", rows=123_456_789, dead=1, watermark="2024-05-01 11:00:00")
    many = 123_456_789
    views = tuple(
        ViewStatus(str(i), f"view_{i}", "view", rows_in=many, inserted=many, state_rows=many, state_bytes=10**12)
        for i in range(40)
    )
    status = Status(epoch=12, metrics=Metrics(rows=100, duration_us=1000), sources=(source,), views=views)

    def drawn(width, height):
        console = Console(width=width, height=height, record=True, file=io.StringIO())
        console.print(progress_table(status, {}, 1.0, console.size))
        lines = console.export_text().splitlines()
        head = next(line for line in lines if "content" in line)
        assert "…" not in "".join(line for line in lines if line.startswith("│"))
        return lines, [c.strip() for c in head.strip("│").split("│")]

    assert drawn(130, 100)[1] == [
        "",
        "rows in",
        "rows/s",
        "rows out",
        "content",
        "watermark",
        "state rows",
        "state",
        "errors",
    ]
    assert drawn(80, 100)[1] == ["", "rows/s", "content", "watermark", "errors"]
    assert drawn(40, 100)[1] == ["", "rows/s", "content"]
    lines, _ = drawn(80, 24)
    assert len(lines) < 24
    assert "… and 25 more, SHOW JOBS lists all." in lines[-1]


def test_what_once_reads_is_drawn_meanwhile(tmp_path):
    (tmp_path / "1.json").write_text('{"a": 1}\n{"a": 2}\n')
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system=None)
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute(
            f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}', format = 'json');"
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM s"
        )
        with _drawn(connection, console):
            connection.execute("FLUSH")
    last = console.file.getvalue().rpartition("╭")[2]
    assert "│ source s │       2 │" in last
    assert "Ctrl-C interrupts" in last
