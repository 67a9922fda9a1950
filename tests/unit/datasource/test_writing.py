"""What Spark's sink writes, without Spark: the rows of tasks go to a server, or to a database that nobody else writes.

A model of the table is kept in plain Python. A micro-batch may be repeated, in whole or after any of its statements, by
one writer or by two at once.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import watersmeet
from watersmeet.datasource.writing import BatchWriter, Rows, StreamWriter, Target, _Embedded, _Remote
from watersmeet.errors import Error
from watersmeet.server.service import BackgroundServer, Endpoint

INT, TEXT = t.IntegerType(), t.StringType()


def columns(**kinds):
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


SCHEMA = columns(id=INT, v=TEXT, d=INT)
TWO = columns(id=INT, v=TEXT)
WORDS = {1: "insert", -1: "delete"}


class Place:
    """A database with tables, and how a writer reaches it."""

    def __init__(self, folder, *, served: bool):
        self.path = str(folder / "db")
        with watersmeet.connect(self.path, runtime="inprocess") as made:
            made.execute("CREATE TABLE keyed (id int PRIMARY KEY, v varchar)")
            made.execute("CREATE TABLE plain (id int, v varchar)")
            made.execute("CREATE MATERIALIZED VIEW n AS SELECT v, count(*) AS c FROM keyed GROUP BY v")
        self.connection = watersmeet.connect(self.path, runtime="inprocess") if served else None
        self.server = BackgroundServer(self.connection.opened, Endpoint(port=0)) if served else None
        if self.server is not None:
            self.server.__enter__()

    def options(self, **more):
        where = {"database": self.path}
        if self.server is not None:
            where = {"server": f"127.0.0.1:{self.server.port}", "user": "u"}
        return {**where, **more}

    def read(self, sql):
        if self.connection is not None:
            self.connection.flush()
            return self.connection.execute(sql).fetchall()
        with watersmeet.connect(self.path, read_only=True) as connection:
            return connection.execute(sql).fetchall()

    def close(self):
        if self.server is not None:
            self.server.__exit__(None, None, None)
            self.connection.close()


@pytest.fixture(params=[True, False], ids=["server", "database"])
def place(tmp_path, request):
    made = Place(tmp_path, served=request.param)
    yield made
    made.close()


def task(writer, rows, schema=SCHEMA, query="q"):
    """What a task returns that received these rows in two batches."""
    kinds = to_arrow_schema(schema)
    parts = [rows[::2], rows[1::2]]
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(zip(*p, strict=True), kinds, strict=True)], schema=kinds
        )
        for p in parts
        if p
    ]
    return Rows(writer.write(iter(batches)).body, query)


def stream(place, number, rows, tasks=2, schema=SCHEMA, query="q", **options):
    """Writes a micro-batch."""
    writer = StreamWriter(Target.of(place.options(**options)), schema, overwrites=False)
    writer.commit([task(writer, rows[i::tasks], schema, query) for i in range(tasks)], number)


def history(rng, batches):
    """Micro-batches of changes of a table with a key, and its content after each."""
    content: dict[int, str] = {}
    for _ in range(batches):
        rows = []
        for _ in range(rng.randrange(1, 12)):
            key, value = rng.randrange(6), rng.choice("abc")
            if key in content:
                rows.append((key, content.pop(key), -1))
            if rng.random() < 0.7:
                rows.append((key, value, 1))
                content[key] = value
        rng.shuffle(rows)
        yield rows, dict(content)


@pytest.mark.parametrize("words", [False, True])
def test_changes_with_repeated_micro_batches(place, words):
    rng = random.Random(5)
    schema = columns(ID=INT, v=TEXT, d=TEXT) if words else SCHEMA
    for number, (rows, content) in enumerate(history(rng, 12)):
        given = [(k, v, WORDS[d]) for k, v, d in rows] if words else rows
        for _ in range(rng.choice((1, 1, 2))):
            stream(place, number, given, schema=schema, path="keyed", changes="D")
        if number and rng.random() < 0.3:
            stream(place, number - 1, [(99, "old", WORDS[1] if words else 1)], schema=schema, path="keyed", changes="d")
        assert dict(place.read("SELECT id, v FROM keyed")) == content
        assert dict(place.read("SELECT * FROM n")) == Counter(content.values())
    assert place.read("SELECT query, relation, batch FROM watersmeet_spark") == [("q", "keyed", 11)]


class Broken(Exception):
    """The driver is gone."""


@pytest.mark.parametrize("late", [False, True], ids=["not done", "done, but not known"])
@pytest.mark.parametrize("table", ["keyed", "plain"])
def test_a_driver_that_dies_at_any_statement(tmp_path, monkeypatch, table, late):
    """After its death the micro-batch is repeated, and then the next one follows."""
    for kind in (_Remote, _Embedded):
        (tmp_path / kind.__name__).mkdir()
        place = Place(tmp_path / kind.__name__, served=kind is _Remote)
        plain, left = kind.run, [-1]

        def run(self, text, plain=plain, left=left):
            left[0] -= 1
            if left[0] == 0 and not late:
                raise Broken
            found = plain(self, text)
            if left[0] == 0:
                raise Broken
            return found

        monkeypatch.setattr(kind, "run", run)
        expected: Counter = Counter()
        number, died = 0, True
        while died:
            left[0], rows = number + 1, [(number, "a"), (number + 100, "b")]
            try:
                stream(place, number, rows, schema=TWO, path=table)
                died = False
            except Broken:
                left[0] = -1
                stream(place, number, rows, schema=TWO, path=table)
            expected += Counter(rows)
            assert Counter(place.read(f"SELECT id, v FROM {table}")) == expected
            number += 1
        assert number > 8
        place.close()
        monkeypatch.undo()


def test_writers_at_the_same_time(tmp_path):
    """Two drivers of one query, of which Spark believes one to be dead, and a driver of another query."""
    place = Place(tmp_path, served=True)

    def write(query, salt):
        for number in range(8):
            stream(place, number, [(number + salt, "a")], schema=TWO, query=query, path="keyed")

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, *given) for given in (("q", 0), ("q", 0), ("r", 100))]:
            done.result()
    assert sorted(place.read("SELECT id FROM keyed")) == [(n,) for n in (*range(8), *range(100, 108))]
    place.close()


def test_the_words_of_deltas_change_feed_and_a_row_that_comes_back(place):
    schema = columns(id=INT, v=TEXT, _change_type=TEXT)
    stream(place, 0, [(1, "a", "insert"), (2, "b", "insert")], schema=schema, path="keyed", changes="_change_type")
    changes = [(1, "a", "update_preimage"), (1, "c", "update_postimage"), (1, "c", "delete"), (1, "a", "insert")]
    stream(place, 1, [*changes, (2, "b", "delete")], schema=schema, path="keyed", changes="_change_type")
    assert place.read("SELECT id, v FROM keyed") == [(1, "a")]


def test_values_keep_their_types(place):
    texts = ("j jsonb", "u uuid", "z timestamptz", "p timestamp", "n numeric(10,2)", "x bytea", "b boolean", "r double")
    nested = ("a int[]", "s struct<x int, y varchar>", "m struct<x int, y varchar>[]", "e date")
    sql = f"CREATE TABLE typed (id bigint PRIMARY KEY, {', '.join((*texts, *nested))})"
    if place.connection is not None:
        place.connection.execute(sql)
    else:
        with watersmeet.connect(place.path, runtime="inprocess") as made:
            made.execute(sql)
    pair = columns(x=INT, y=TEXT)
    schema = columns(
        id=t.LongType(),
        j=TEXT,
        u=TEXT,
        z=t.TimestampType(),
        p=t.TimestampNTZType(),
        n=t.DecimalType(10, 2),
        x=t.BinaryType(),
        b=t.BooleanType(),
        r=t.DoubleType(),
        a=t.ArrayType(INT),
        s=pair,
        m=t.ArrayType(pair),
        e=t.DateType(),
    )
    moment = pa.scalar(1_700_000_000_123_456, pa.timestamp("us")).as_py()
    one = {"x": 1, "y": 'q, "\n\\.'}
    full = (
        *(1, '{"k": [1]}', "00000000-0000-0000-0000-000000000001", moment, moment, Decimal("1.50"), b"\x00\xff", True),
        *(0.1, [1, None], one, [one, None, {"x": None, "y": "['}"}], moment.date()),
    )
    stream(place, 0, [full, (2, *[None] * (len(full) - 1))], schema=schema, path="typed")
    found = place.read("SELECT id, j->'k'->>0, u::varchar, z, p, n, x, b, r, a, s, m, e FROM typed ORDER BY id")
    assert found[0][1:3] == ("1", full[2])
    assert found[0][3].timestamp() == 1_700_000_000.123456
    assert found[0][4:] == full[4:]
    assert found[1] == (2, *[None] * 12)
    stream(place, 1, [(1, None), (2, "{}")], schema=columns(id=t.LongType(), j=TEXT), path="typed")
    assert [r[0] for r in place.read("SELECT u::varchar FROM typed ORDER BY id")] == [full[2], None]


def test_a_dataframe_once_and_in_place_of_the_content(place):

    def write(rows, overwrites=False, **options):
        writer = BatchWriter(Target.of(place.options(path="plain", **options)), TWO, overwrites=overwrites)
        writer.commit([task(writer, rows, TWO)])

    for number in ("3", "3", "2", "4"):
        write([(1, "a")], txnAppId="load", txnVersion=number)
    assert place.read("SELECT count(*) FROM plain") == [(2,)]
    write([(2, "b")], overwrites=True)
    assert place.read("SELECT id, v FROM plain") == [(2, "b")]
    write([], overwrites=True)
    assert place.read("SELECT id, v FROM plain") == []


def test_rows_of_spark_4_0(place):
    """Its writers of streams get rows, not batches of Arrow."""
    writer = StreamWriter(Target.of(place.options(path="keyed")), TWO, overwrites=False)
    writer.commit([Rows(writer.write(iter([Row(id=1, v="a"), Row(id=2, v=None)])).body, "q"), None], 0)
    assert place.read("SELECT id, v FROM keyed ORDER BY id") == [(1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("options", "names", "says"),
    [
        ({"path": "nix"}, "id v", "nix"),
        ({}, "id v", "the option path is missing"),
        ({"path": "keyed", "schema": "x"}, "id v", 'no option "schema"'),
        ({"path": "keyed", "txnAppId": "a"}, "id v", "txnVersion is missing"),
        ({"path": "keyed"}, "id vv", 'table "keyed" has no column "vv"'),
        ({"path": "keyed", "changes": "c"}, "id v", 'no column "c", which changes names'),
        ({"path": "plain", "changes": "d"}, "id v d", "which has no primary key"),
        ({"path": "keyed", "changes": "d"}, "v d", 'lacks the column "id"'),
        ({"path": "n"}, "v", "n"),
    ],
)
def test_errors_before_the_first_row(place, options, names, says):
    schema = t.StructType(
        [next((f for f in SCHEMA if f.name == n), t.StructField(n, t.StringType())) for n in names.split()]
    )
    with pytest.raises(Error, match=says):
        writer = StreamWriter(Target.of(place.options(**options)), schema, overwrites=False)
        writer.commit([task(writer, [tuple("x" for _ in schema)], schema)], 0)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "a", 1), (1, "b", 1)], "the changes leave two rows with the key"),
        ([(1, "a", None)], "the column of changes has the value None"),
        ([(None, "a", 1)], "null"),
    ],
)
def test_rows_that_the_table_does_not_take(place, rows, says):
    with pytest.raises(Error, match=says):
        stream(place, 0, rows, path="keyed", changes="d")
    assert place.read("SELECT * FROM keyed") == []
    with pytest.raises(Error, match="cannot affect row a second time"):
        stream(place, 0, [(1, "a"), (1, "b")], schema=TWO, path="keyed")


def test_where_a_writer_is_wrong(tmp_path):
    for options, says in (
        ({}, "server or database is missing"),
        ({"server": "h:1", "database": "d"}, "both set"),
        ({"server": "h"}, "not host:port"),
        ({"server": "h:1"}, "user is missing"),
    ):
        with pytest.raises(Error, match=says):
            Target.of({"path": "t", **options})
    with pytest.raises(Error, match="there is no Watersmeet database"):
        StreamWriter(Target.of({"path": "t", "database": str(tmp_path / "gone")}), SCHEMA, overwrites=False)
    assert not (tmp_path / "gone").exists()


def test_a_database_that_a_server_writes(tmp_path):
    place = Place(tmp_path, served=True)
    writer = StreamWriter(Target.of({"path": "keyed", "database": place.path}), TWO, overwrites=False)
    with pytest.raises(Error) as found:
        writer.commit([task(writer, [(1, "a")], TWO)], 0)
    assert found.value.condition == "DATABASE_IN_USE"
    place.close()
