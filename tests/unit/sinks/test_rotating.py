"""Files that grow and then get their names: rows are there once, whatever happens when."""

import datetime as dt
import random

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from watersmeet.catalog import ROWTIME, MessageFormat
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset
from watersmeet.connectors.files.rotating import CONNECTOR, RotatingTarget
from watersmeet.errors import Error
from watersmeet.system import process
from watersmeet.values.types import INTEGER, TIMESTAMP, VARCHAR, Field, arrow_schema

COLUMNS = (Field(ROWTIME, TIMESTAMP), Field("id", INTEGER), Field("name", VARCHAR))
START = dt.datetime(2024, 5, 1, 10, 0, 0)
POINTS = (
    "rotating.entered",
    "rotating.fenced",
    "rotating.copied",
    "rotating.written",
    "files.prepared",
    "files.committed",
    "rotating.full",
    "rotating.named",
)


class Killed(BaseException):
    """The process ends here: nothing of the target's code catches it."""


class Clock:
    def __init__(self):
        self.now_us = 0

    def __call__(self):
        return self.now_us


@pytest.fixture(autouse=True)
def no_hook():
    yield
    process.set_hook(None)


def delivery(path, encoding="csv", options=None, parts=None, **connector):
    connector = {"connector": "rotating_file", "path": str(path), "prefix": "o-", "suffix": ".txt", **connector}
    message = MessageFormat("plain", encoding, options=options or {})
    parts = {ROWTIME: "offset"} if parts is None else parts
    return Delivery("s1", "pump p", "v1", COLUMNS, (), connector, message, True, "s1", 1, parts)


def target(path, *args, clock=None, **more):
    return RotatingTarget(delivery(path, *args, **more), "db", clock or Clock())


def batch(commit, *rows):
    """rows: (seconds since START, id, name)."""
    rows = [(START + dt.timedelta(seconds=s), i, n) for s, i, n in rows]
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(COLUMNS)]
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(COLUMNS, positional=False))
    return SinkBatch(SinkOffset(1, commit), table, np.ones(len(rows), np.int64), commit * 1_000_000)


def there(path):
    return {f.name: f.read_text() for f in sorted(path.iterdir()) if f.is_file()}


def test_files_are_of_spans_of_rowtime(tmp_path):
    made = target(tmp_path, seconds="10")
    assert made.open(1) is None
    made.deliver([batch(1, (1, 1, "a"), (9, 2, "b"))])
    assert there(tmp_path) == {}
    made.deliver([batch(2, (9, 3, "c"), (12, 4, "d"), (35, 5, "e")), batch(3, (36, 6, None))])
    first = {"o-2024-05-01-10:00:01.txt": "1,a\n2,b\n3,c\n", "o-2024-05-01-10:00:12.txt": "4,d\n"}
    assert there(tmp_path) == first
    made.close()
    assert there(tmp_path) == first | {"o-2024-05-01-10:00:35.txt": "5,e\n6,\n"}


def test_files_are_of_a_size(tmp_path):
    made = target(tmp_path, bytes="10", date_format="%H%M%S%f")
    made.open(1)
    for n in range(6):
        made.deliver([batch(n + 1, (n, n, "abc"))])
    assert there(tmp_path) == {"o-100000000.txt": "0,abc\n1,abc\n", "o-100002000.txt": "2,abc\n3,abc\n"} | {
        "o-100004000.txt": "4,abc\n5,abc\n"
    }


def test_a_file_gets_its_name_once_it_is_old_enough(tmp_path):
    clock = Clock()
    made = target(tmp_path, seconds="10", clock=clock)
    made.open(1)
    made.deliver([batch(1, (1, 1, "a"))])
    made.rest()
    clock.now_us = 9_999_999
    made.rest()
    assert there(tmp_path) == {}
    clock.now_us = 10_000_000
    made.rest()
    made.rest()
    assert list(there(tmp_path).values()) == ["1,a\n"]
    made.deliver([batch(2, (2, 2, "b"))])
    made.close()
    assert sorted(there(tmp_path)) == ["o-2024-05-01-10:00:01.txt", "o-2024-05-01-10:00:02.txt"]


def test_spans_may_be_of_the_clock(tmp_path):
    made = target(tmp_path, seconds="2", by_rowtime="false", date_format="%M%S")
    made.open(1)
    made.deliver([batch(n, (100 * n, n, "a")) for n in (2, 3, 4)])
    made.close()
    assert there(tmp_path) == {"o-0002.txt": "2,a\n3,a\n", "o-0004.txt": "4,a\n"}


def test_the_last_value_of_a_column_is_part_of_the_name(tmp_path):
    made = target(tmp_path, seconds="10", column="name", date_format="%S")
    made.open(1)
    made.deliver([batch(1, (1, 1, "a"), (2, 2, "x/y"))])
    made.close()
    assert there(tmp_path) == {"o-01_x_y.txt": "1,a\n2,x/y\n"}


def test_files_of_others_are_never_overwritten(tmp_path):
    (tmp_path / "o-01.txt").write_text("of another")
    for commit in (1, 2):
        made = target(tmp_path, seconds="10", date_format="%S")
        made.open(1)
        made.deliver([batch(commit, (1, commit, "a"))])
        made.close()
    assert there(tmp_path) == {"o-01.txt": "of another", "o-01-2.txt": "1,a\n", "o-01-3.txt": "2,a\n"}


def test_formats(tmp_path):
    rows = batch(1, (1, 1, "a<&>\r\x01]]>"), (2, 2, None))

    def written(encoding, **options):
        made = target(tmp_path / encoding, encoding, options, seconds="10", date_format="")
        made.open(1)
        made.deliver([rows])
        made.deliver([batch(2, (3, 3, ""))])
        made.close()
        return (tmp_path / encoding / "o-.txt").read_bytes()

    assert written("csv", without_header="false", delimiter=";").decode() == 'id;name\n1;"a<&>\r\x01]]>"\n2;\n3;""\n'
    assert written("json").decode().splitlines()[1:] == ['{"id":2,"name":null}', '{"id":3,"name":""}']
    options = {"data_elements": "all,rows", "elements.name": "n"}
    assert written("xml", **options).decode() == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<all><rows>\n'
        "<row><id>1</id><n>a&lt;&amp;&gt;&#13;\ufffd]]&gt;</n></row>\n<row><id>2</id></row>\n"
        "<row><id>3</id><n></n></row>\n</rows></all>\n"
    )
    written("avro")
    with (tmp_path / "avro" / "o-.txt").open("rb") as file:
        assert [(r["id"], r["name"]) for r in fastavro.reader(file)] == [(1, "a<&>\r\x01]]>"), (2, None), (3, "")]


def test_the_file_that_grows_may_have_a_name(tmp_path):
    made = target(tmp_path, seconds="10", date_format="%S", growing="pending")
    made.open(1)
    made.deliver([batch(1, (1, 1, "a"))])
    assert there(tmp_path) == {"pending": "1,a\n"}
    made.deliver([batch(2, (2, 2, "b"), (12, 3, "c"))])
    assert there(tmp_path) == {"o-01.txt": "1,a\n2,b\n", "pending": "3,c\n"}
    following = target(tmp_path, seconds="10", date_format="%S", growing="pending")
    following.open(1)  # the one before was killed
    following.deliver([batch(3, (13, 4, "d"))])
    assert there(tmp_path) == {"o-01.txt": "1,a\n2,b\n", "pending": "3,c\n4,d\n"}
    following.close()
    assert there(tmp_path) == {"o-01.txt": "1,a\n2,b\n", "o-12.txt": "3,c\n4,d\n"}


def test_the_name_of_the_file_that_grows_is_not_taken_from_others(tmp_path):
    (tmp_path / "pending").write_text("of another")
    made = target(tmp_path, seconds="10", growing="pending")
    made.open(1)
    with pytest.raises(Error, match='there is a file "pending" already'):
        made.deliver([batch(1, (1, 1, "a"))])
    made.close()
    (tmp_path / "pending").unlink()
    made = target(tmp_path, seconds="10", growing="pending")
    assert made.open(1) == SinkOffset(1, 1)
    made.deliver([batch(2, (2, 2, "b"))])
    assert there(tmp_path) == {"o-2024-05-01-10:00:01.txt": "1,a\n", "pending": "2,b\n"}


def test_a_writer_that_was_overtaken_is_shut_out(tmp_path):
    first, second = target(tmp_path, seconds="10"), target(tmp_path, seconds="10")
    first.open(1)
    first.deliver([batch(1, (1, 1, "a"))])
    assert second.open(1) == SinkOffset(1, 1)
    with pytest.raises(Error, match="WRITER_FENCED"):
        first.deliver([batch(2, (2, 2, "old"))])
    first.close()
    second.deliver([batch(2, (2, 2, "b"))])
    second.close()
    assert list(there(tmp_path).values()) == ["1,a\n2,b\n"]


@pytest.mark.parametrize("problem", [Killed, OSError])
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_there_once_whatever_is_killed(tmp_path, seed, problem):
    """Each delivery may end at any point; the next writer goes on from the offset that the target tells."""
    rng = random.Random(seed)
    clock, growing = Clock(), "pending" if seed % 2 else ""
    batches, second = [], 0
    for commit in range(1, 16):
        rows = []
        for _ in range(rng.randrange(4)):
            second += rng.choice((0, 1, 7))
            rows.append((second, len(rows) + 10 * commit, "x" * rng.randrange(9)))
        batches.append(batch(commit, *rows))
    expected = [f"{r['id']},{r['name']}" if r["name"] else f'{r["id"]},""' for p in batches for r in p.rows.to_pylist()]
    made, at = None, 0
    while at < len(batches):
        left = rng.randrange(12)

        def hook(point, left=left, seen=[0]):
            seen[0] += 1
            if seen[0] > left:
                raise problem(point)

        process.set_hook(hook if rng.random() < 0.8 else None)
        try:
            if made is None:
                made = target(tmp_path, seconds="10", bytes="60", clock=clock, growing=growing)
                offset = made.open(1)
                at = 0 if offset is None else offset.commit
            count = rng.randrange(1, 4)
            made.deliver(batches[at : at + count])
            at += count
            clock.now_us += rng.choice((0, 11_000_000))
            made.rest()
        except (Killed, Unavailable):
            if problem is OSError and made is not None:
                made.close()
            made = None
    process.set_hook(None)
    if made is None:
        made = target(tmp_path, seconds="10", clock=clock, growing=growing)
        made.open(1)
    made.close()
    files = there(tmp_path)
    lines = [line for text in files.values() for line in text.splitlines()]
    assert sorted(lines) == sorted(expected)
    for text in files.values():  # in their order within each file
        ids = [int(line.split(",")[0]) for line in text.splitlines()]
        assert ids == sorted(ids)
    assert not [f for f in tmp_path.rglob("*.growing") if f.stat().st_nlink == 1 and ".out" not in str(f)]


def test_points_by_name_exist(tmp_path):
    seen = set()
    process.set_hook(seen.add)
    made = target(tmp_path, seconds="10")
    made.open(1)
    made.deliver([batch(1, (1, 1, "a"))])
    made.close()
    assert seen == set(POINTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"column": "nam"}, "FILE_ROTATION_WATERMARK_COLUMN"), ({"colum": "name"}, "colum")],
)
def test_options_that_are_refused(tmp_path, options, message):
    with pytest.raises(Error, match=message):
        CONNECTOR.check(delivery(tmp_path, **options))


def test_a_directory_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Error, match="can't be written"):
        CONNECTOR.check(delivery(tmp_path / "file" / "below"))


def test_names_that_no_element_has_are_refused(tmp_path):
    with pytest.raises(Error, match='XML can\'t have an element "a b"'):
        CONNECTOR.check(delivery(tmp_path, "xml", {"elements.id": "a b"}))
