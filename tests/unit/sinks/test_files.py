"""A directory of files as a target: rows are there once, whatever happens when."""

import datetime as dt
import subprocess
import sys
import textwrap

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sinks.batches import EVERYTHING, TWO, VALUES, Killed, batch

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkOffset
from watersmeet.connectors.files.target import CONNECTOR, FileTarget
from watersmeet.errors import Error
from watersmeet.system import process
from watersmeet.values.types import (
    DATE,
    INTERVAL,
    Field,
    SqlType,
)

POINTS = (
    "files.entered",
    "files.fenced",
    "files.staged",
    "files.prepared",
    "files.committed",
    "files.first published",
    "files.published",
)


@pytest.fixture(autouse=True)
def no_hook():
    yield
    process.set_hook(None)


def delivery(path, columns=TWO, *, rows="plain", encoding="parquet", options=None, target="s1", **connector):
    connector = {"connector": "file", "path": str(path), **connector}
    message = MessageFormat(rows, encoding, options=options or {})
    key = (columns[0].name,) if rows == "upsert" else ()
    return Delivery(target, "sink k", "v1", columns, key, connector, message, False, target, 1)


def target(path, *args, database="db", **more):
    return FileTarget(delivery(path, *args, **more), database)


def seen(path, extension="parquet"):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob(f"*.{extension}"))


def content(path):
    return sorted(
        row for name in seen(path) for row in zip(*pq.read_table(path / name, partitioning=None).to_pydict().values())
    )


def test_rows_of_commits_are_files_in_their_order(tmp_path):
    sink = target(tmp_path / "out")
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"), (2, "b"), diff=[1, 2])])
    sink.deliver([batch(4, (3, "c")), batch(5, (4, "d"), part=0, last=False), batch(5, (5, "e"), part=1)])
    assert content(tmp_path / "out") == [(1, "a"), (2, "b"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    assert seen(tmp_path / "out") == [
        "s1-00000001-000000000003-000000000000-0.parquet",
        "s1-00000001-000000000005-000000000001-0.parquet",
    ]
    sink.close()
    assert target(tmp_path / "out").open(1) == SinkOffset(1, 5, 1, last=True)


def test_a_batch_that_is_there_is_not_written_again(tmp_path):
    sink = target(tmp_path)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    sink.deliver([batch(3, (1, "a")), batch(4, (2, "b"))])
    assert content(tmp_path) == [(1, "a"), (2, "b")]


def test_commits_without_rows_leave_no_file(tmp_path):
    sink = target(tmp_path)
    sink.open(1)
    sink.deliver([batch(3)])
    sink.deliver([batch(4, (1, "a"), diff=[-1])])
    assert seen(tmp_path) == []
    assert target(tmp_path).open(1) == SinkOffset(1, 4)


def test_an_upsert_sink_says_what_became_of_keys(tmp_path):
    sink = target(tmp_path, rows="upsert")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "b"))])
    sink.deliver([batch(4, (2, "b"), (1, "a"), (1, "c"), (3, "d"), diff=[-1, -1, 1, 1])])
    assert content(tmp_path) == [
        (1, "a", 1, 3),
        (1, "c", 3, 4),
        (2, "b", 1, 3),
        (2, "b", 2, 4),
        (3, "d", 1, 4),
    ]


def test_partitions_are_directories(tmp_path):
    columns = (*TWO, Field("day", DATE))
    sink = target(tmp_path, columns, partition_by="day, name")
    sink.open(1)
    day = dt.date(2024, 5, 1)
    sink.deliver([batch(3, (1, "a/b", day), (2, None, day), (3, "a/b", day), (4, "", None), columns=columns)])
    stem = "s1-00000001-000000000003-000000000000"
    assert seen(tmp_path) == [
        f"day=2024-05-01/name=__HIVE_DEFAULT_PARTITION__/{stem}-1.parquet",
        f"day=2024-05-01/name=a%2Fb/{stem}-0.parquet",
        f"day=__HIVE_DEFAULT_PARTITION__/name=/{stem}-2.parquet",
    ]
    found = duckdb.sql(f"SELECT id, name FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true)")
    assert sorted(found.fetchall())[:3] == [(1, "a/b"), (2, None), (3, "a/b")]


def test_files_have_no_more_rows_than_asked_for(tmp_path):
    sink = target(tmp_path, max_row_count="2")
    sink.open(1)
    sink.deliver([batch(3, *((i, "x") for i in range(5)))])
    assert [pq.read_metadata(tmp_path / name).num_rows for name in seen(tmp_path)] == [2, 2, 1]


#: Intervals are text in files.
STORED = [i for i, c in enumerate(EVERYTHING) if c.type != INTERVAL]


@pytest.mark.parametrize("encoding", ["parquet", "json", "csv"])
def test_our_file_source_reads_back_what_was_written(tmp_path, encoding):
    out, fields = tmp_path / "out", [EVERYTHING[i] for i in STORED]
    rows = [tuple(row[i] for i in STORED) for row in VALUES]
    sink = target(out, fields, encoding=encoding)
    sink.open(1)
    sink.deliver([batch(3, *rows[:2], columns=fields)])
    sink.deliver([batch(4, *rows[2:], columns=fields)])
    columns = ", ".join(f"{c.name} {c.type.sql}" for c in fields)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(
            f"CREATE TABLE t ({columns}) WITH (connector = 'file', path = '{out}', match_pattern = '*.{encoding}', "
            f"settle_ms = 0) FORMAT PLAIN ENCODE {encoding.upper()}"
        )
        connection.execute("FLUSH")
        names = ", ".join(c.name for c in fields)
        found = connection.execute(f"SELECT {names} FROM t ORDER BY id").fetch_arrow_table()
    assert found.to_pylist() == batch(3, *rows, columns=fields).rows.to_pylist()


def test_intervals_are_text_in_parquet(tmp_path):
    columns = (Field("i", INTERVAL),)
    sink = target(tmp_path, columns)
    sink.open(1)
    sink.deliver([batch(3, (pa.MonthDayNano([13, 2, 1_000_000_000]),), (None,), columns=columns)])
    assert pq.read_table(tmp_path / seen(tmp_path)[0])["i"].to_pylist() == ["1 year 1 month 2 days 00:00:01", None]
    nested = (Field("a", SqlType("array", element=INTERVAL)),)
    with pytest.raises(Error, match="in Parquet"):
        target(tmp_path, nested)


class Reader:
    """Reads each file once, as soon as it has its name; none ever goes again within a generation."""

    def __init__(self, path):
        self.path, self.names, self.rows = path, set(), []

    def look(self):
        names = {p for p in self.path.rglob("*.parquet")}
        assert names >= self.names
        for name in sorted(names - self.names):
            self.rows += pq.read_table(name, partitioning=None).to_pylist()
        self.names = names


def test_a_new_generation_that_dies_while_it_removes_the_old_one(tmp_path):
    old = target(tmp_path)
    old.open(1)
    for commit in (3, 4, 5):
        old.deliver([batch(commit, (commit, "old"))])

    def hook(name):
        if name == "files.removed":
            raise Killed

    new = target(tmp_path)
    new.open(2)
    process.set_hook(hook)
    with pytest.raises(Killed):
        new.deliver([batch(7, (7, "new"), generation=2)])
    process.set_hook(None)
    assert target(tmp_path).open(2) == SinkOffset(2, 7)
    assert content(tmp_path) == [(7, "new")]


@pytest.mark.slow
def test_kill_9_at_each_step(tmp_path):
    """A process of its own, and no code that cleans up behind it."""
    script = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from tests.unit.sinks.test_files import batch, process, target
        point = sys.argv[1]
        process.set_hook(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None)
        sink = target(Path({str(tmp_path)!r}), partition_by="name")
        offset = sink.open(1)
        for n in range(3, 20):
            if offset is None or n > offset.commit:
                sink.deliver([batch(n, (n, "a"), (n + 100, "b"))])
                offset = batch(n).offset
    """)
    for point in (*POINTS, "none"):
        done = subprocess.run([sys.executable, "-c", script, point], check=False, capture_output=True, text=True)
        assert done.returncode == (0 if point == "none" else -9), done.stderr
    assert [i for i, _ in content(tmp_path)] == [*range(3, 20), *range(103, 120)]


def test_what_the_system_refuses_is_tried_again(tmp_path):
    sink = target(tmp_path)
    sink.open(1)
    (tmp_path / ".watersmeet" / "commits").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        sink.deliver([batch(3, (1, "a"))])
    (tmp_path / "elsewhere").rename(tmp_path / ".watersmeet" / "commits")
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"))])
    assert content(tmp_path) == [(1, "a")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"path": ""}, "needs the option path"),
        ({"pathh": "x"}, 'no option "pathh"'),
        ({"partition_by": "nam"}, 'partition_by names "nam"'),
        ({"max_row_count": "0"}, "option max_row_count can't be 0"),
        ({"encoding": "avro"}, "ENCODE AVRO for files"),
        ({"rows": "debezium"}, "FORMAT DEBEZIUM for files"),
        ({"options": {"compresion": "x"}}, 'has no option "compresion"'),
        ({"options": {"compression": "x"}}, "compression can't be 'x'"),
        ({"path": f"{__file__}/below"}, "can't be written"),
    ],
)
def test_wrong_options_are_refused_when_the_sink_is_made(tmp_path, more, message):
    path = more.pop("path", tmp_path)
    with pytest.raises(Error, match=message):
        CONNECTOR.check(delivery(path, **more))
