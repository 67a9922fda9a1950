"""A table of Delta Lake as a target: rows are there once, whatever happens when."""

import datetime as dt
import decimal
import random
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from scripts.servers.s3 import REGION
from tests.lakes import duckdb_with
from tests.thorough import mostly_slow
from tests.unit.sinks.batches import TWO, batch, history

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.targets import Delivery, SinkOffset
from watersmeet.connectors.delta import DeltaTarget
from watersmeet.connectors.lakes.client import delta_problem
from watersmeet.errors import Error
from watersmeet.system import process
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

POINTS = ("delta.looked", "delta.fenced", "delta.begun", "delta.committed")


class Killed(BaseException):
    """The process ends here: nothing of the target's code catches it."""


@pytest.fixture(autouse=True)
def no_hook():
    yield
    process.set_hook(None)


def target(path, columns=TWO, *, rows="upsert", key=("id",), generation=1, **more):
    delivery = Delivery(
        "s1",
        "sink k",
        "v1",
        columns,
        key if rows == "upsert" else (),
        {"connector": "deltalake", "location": str(path), "create_table_if_not_exists": "true"} | more,
        MessageFormat(rows),
        False,
        "s1",
        generation,
    )
    return DeltaTarget(delivery, "db")


def table(path, **storage):
    """All rows, as one who reads the table finds them."""
    return pa.table(DeltaTable(str(path), storage_options=storage or None).to_pyarrow_table())


def content(path, **storage):
    return sorted((tuple(row.values()) for row in table(path, **storage).to_pylist()), key=repr)


def test_rows_are_changed_by_their_keys(tmp_path):
    sink = target(tmp_path)
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"), (2, "b"), (3, None))])
    sink.deliver([batch(4, (2, "b"), (1, "a"), (1, "c"), (4, "d"), diff=[-1, -1, 1, 1])])
    assert content(tmp_path) == [(1, "c"), (3, None), (4, "d")]
    sink.deliver([batch(5, (5, "e"), (1, "c"), diff=[1, -1]), batch(6, (5, "e"), (1, "f"), diff=[-1, 1])])
    assert content(tmp_path) == [(1, "f"), (3, None), (4, "d")]
    assert target(tmp_path).open(1) == SinkOffset(1, 6)


def test_an_append_only_sink_only_adds(tmp_path):
    sink = target(tmp_path, rows="plain", partition_by="name")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, None), diff=[2, 1])])
    sink.deliver([batch(4, (1, "a"), (3, "b"), diff=[-1, 1])])
    assert content(tmp_path) == [(1, "a"), (1, "a"), (2, None), (3, "b")]
    assert DeltaTable(tmp_path).metadata().partition_columns == ["name"]


EVERYTHING = (
    Field("id", BIGINT),
    Field("b", BOOLEAN),
    Field("f", DOUBLE),
    Field("n", SqlType("numeric", 38, 10)),
    Field("t", VARCHAR),
    Field("y", BYTEA),
    Field("d", DATE),
    Field("c", TIME),
    Field("s", TIMESTAMP),
    Field("z", TIMESTAMPTZ),
    Field("i", INTERVAL),
    Field("j", JSONB),
    Field("a", SqlType("array", element=VARCHAR)),
    Field("r", SqlType("struct", fields=(("x", INTEGER), ("y", SqlType("numeric", 20, 5))))),
)
VALUES = [
    (
        1,
        True,
        0.1,
        decimal.Decimal("9999999999999999999999999999.9999999999"),
        'a,"b"\n\t\\é',
        b"\x00\xff",
        dt.date(2024, 2, 29),
        dt.time(1, 2, 3, 4),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(2024, 1, 1, 0, 0, 0, 1, dt.UTC),
        pa.MonthDayNano([13, 2, 1_000_000_000]),
        '{"a":[1,12345678901234567890.12]}',
        ["x", None, 'q"'],
        {"x": 1, "y": decimal.Decimal("123456789012345.67891")},
    ),
    (2, *[None] * 13),
]


@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_all_types_arrive_as_they_are(tmp_path, rows):
    sink = target(tmp_path, EVERYTHING, rows=rows)
    sink.open(1)
    sink.deliver([batch(3, *VALUES, columns=EVERYTHING)])
    first, second = content(tmp_path)
    wanted = list(VALUES[0])
    wanted[7], wanted[10] = "01:02:03.000004", "1 year 1 month 2 days 00:00:01"
    assert list(first) == wanted
    assert list(second) == list(VALUES[1])


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1, 2, fresh=False))
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_step_and_resumed(tmp_path, point, seed):
    wanted, r = history(seed), random.Random(seed)
    offset, deaths = None, 0
    for _ in range(40):
        countdown = 1 if point in POINTS[:2] else r.randint(1, 3)

        def hook(name):
            nonlocal countdown
            if name == point:
                countdown -= 1
                if countdown <= 0:
                    raise Killed

        process.set_hook(hook if deaths < 8 else None)
        sink = target(tmp_path)
        try:
            offset = sink.open(1)
            rest = [p for p, _ in wanted if offset is None or p.offset > offset]
            while rest:
                size = r.randint(1, 2)
                sink.deliver(rest[:size])
                rest = rest[size:]
            break
        except Killed:
            deaths += 1
            process.set_hook(None)
            offset = target(tmp_path).open(1)
            if offset is not None:
                assert content(tmp_path) == next(rows for p, rows in wanted if p.offset == offset)
    assert deaths
    assert content(tmp_path) == wanted[-1][1]


@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_a_writer_that_was_overtaken_writes_nothing(tmp_path, rows):
    before, after = target(tmp_path, rows=rows), target(tmp_path, rows=rows)
    before.open(1)
    before.deliver([batch(3, (1, "a"))])
    assert after.open(1) == SinkOffset(1, 3)
    with pytest.raises(Error) as fenced:
        before.deliver([batch(4, (2, "b"))])
    assert fenced.value.condition == "WRITER_FENCED"
    after.deliver([batch(4, (2, "b"))])
    assert content(tmp_path) == [(1, "a"), (2, "b")]


def test_an_older_generation_is_fenced(tmp_path):
    newer = target(tmp_path, generation=2)
    newer.open(2)
    newer.deliver([batch(3, (1, "a"), generation=2)])
    with pytest.raises(Error) as fenced:
        target(tmp_path).open(1)
    assert fenced.value.condition == "WRITER_FENCED"
    assert target(tmp_path, generation=3).open(3) == SinkOffset(2, 3)


@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_versions_of_others_do_not_matter(tmp_path, rows):
    """Compactions, and rows that somebody else adds."""
    sink = target(tmp_path, rows=rows)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    sink.deliver([batch(4, (2, "b"))])
    DeltaTable(tmp_path).optimize.compact()
    sink.deliver([batch(5, (3, "c"))])
    write_deltalake(tmp_path, table(tmp_path).slice(0, 1).set_column(0, "id", pa.array([9], pa.int32())), mode="append")
    sink.deliver([batch(6, (4, "d"))])
    assert [row[0] for row in content(tmp_path)] == [1, 2, 3, 4, 9]


def test_an_answer_that_got_lost_is_no_second_version(tmp_path, monkeypatch):
    """The version is written, and the library says that it is not: as after a request that was sent twice."""
    sink = target(tmp_path, rows="plain")
    sink.open(1)
    append = sink._append

    def lost(rows, offset):
        append(rows, offset)
        raise sink._exceptions.CommitFailedError("it seems")

    monkeypatch.setattr(sink, "_append", lost)
    sink.deliver([batch(3, (1, "a"))])
    assert content(tmp_path) == [(1, "a")]


@pytest.mark.parametrize(
    ("there", "condition", "said"),
    [
        ({"id": pa.int32()}, "UNDEFINED_COLUMN", 'no column "name"'),
        ({"id": pa.int64(), "name": pa.string()}, "DATATYPE_MISMATCH", '"id".* has type int64'),
    ],
)
def test_a_table_of_another_shape_is_refused(tmp_path, there, condition, said):
    DeltaTable.create(str(tmp_path / "t"), pa.schema(there))
    with pytest.raises(Error, match=said) as refused:
        target(tmp_path / "t").look()
    assert refused.value.condition == condition


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"location": ""}, "needs the option location"),
        ({"create_table_if_not_exists": "false"}, "there is no Delta table"),
        ({"create_table_if_not_exists": "maybe"}, "create_table_if_not_exists can't be"),
        ({"partition_by": "nam"}, 'partition_by names "nam"'),
        ({"locations": "x"}, 'no option "locations"'),
    ],
)
def test_options_are_checked(tmp_path, options, said):
    with pytest.raises(Error, match=said):
        target(**{"path": tmp_path / "t", **options}).look() if "location" not in options else target("").look()


def wait(connection):
    deadline = time.monotonic() + 60
    while True:
        cursor = connection.execute("SHOW SINKS")
        shown = dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True))
        if shown["state"] == "running" and not shown["commits_behind"]:
            return
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)


def test_a_join_is_kept_in_a_table(tmp_path):
    out = tmp_path / "out"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE names (id int PRIMARY KEY, name varchar);
            CREATE TABLE amounts (id int PRIMARY KEY, amount numeric(10, 2));
            CREATE SINK k AS SELECT n.id, name, amount FROM names n LEFT JOIN amounts a ON a.id = n.id
                WITH (connector = 'deltalake', location = '{out}', type = 'upsert', primary_key = 'id',
                    create_table_if_not_exists = 'true');
            INSERT INTO names VALUES (1, 'a'), (2, 'b');
            INSERT INTO amounts VALUES (1, 1.5), (3, 7);
            FLUSH
        """)
        wait(connection)
        assert content(out) == [(1, "a", decimal.Decimal("1.50")), (2, "b", None)]
        connection.execute("INSERT INTO amounts VALUES (2, 2); DELETE FROM names WHERE id = 1; FLUSH")
        wait(connection)
        assert content(out) == [(2, "b", decimal.Decimal("2.00"))]
    assert duckdb_with("delta").execute(f"SELECT * FROM delta_scan('{out}')").fetchall() == content(out)


def test_a_table_on_an_object_store(bucket):
    storage = {
        "AWS_ENDPOINT_URL": bucket.server.url,
        "AWS_ACCESS_KEY_ID": bucket.keys[0],
        "AWS_SECRET_ACCESS_KEY": bucket.keys[1],
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }
    options = {
        "location": f"s3://{bucket.name}/lake/out",
        "s3.endpoint": bucket.server.url,
        "s3.access.key": bucket.keys[0],
        "s3.secret.key": bucket.keys[1],
        "s3.region": REGION,
    }
    before = target("", **options)
    before.open(1)
    before.deliver([batch(3, (1, "a"), (2, "b"))])
    after = target("", **options)
    assert after.open(1) == SinkOffset(1, 3)
    with pytest.raises(Error) as fenced:
        before.deliver([batch(4, (9, "z"))])
    assert fenced.value.condition == "WRITER_FENCED"
    after.deliver([batch(4, (1, "a"), (2, "b"), (2, "c"), diff=[-1, -1, 1])])
    assert content(options["location"], **storage) == [(2, "c")]


def test_lacking_credentials_of_s3_are_named(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    arrow = "\x1b[31m↳\x1b[0m"
    cause = OSError(f"Kernel error -> Operation not supported\n {arrow} an error occurred while loading credentials\n")
    told = delta_problem("s3://b/x", {"AWS_REGION": "r"}, cause)
    assert told.startswith("there are no credentials; set s3.access.key, s3.secret.key, or")
    other = OSError(f"Kernel error -> Generic S3 error\n   {arrow} tcp connect error\n    {arrow} Connection refused\n")
    assert delta_problem("s3://b/x", {}, other) == "Kernel error -> Generic S3 error: Connection refused"
    assert delta_problem("/tmp/x", {}, OSError("one line")) == "one line"
