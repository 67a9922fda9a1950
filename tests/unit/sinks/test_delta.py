"""A table of Delta Lake as a target: rows are there once, whatever happens when."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from scripts.servers.s3 import REGION
from tests.lakes import duckdb_with
from tests.unit.sinks.batches import EVERYTHING, TWO, VALUES, batch
from tests.unit.sinks.databasetargets import keep_a_join

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.targets import Delivery, SinkOffset
from watersmeet.connectors.delta import DeltaTarget
from watersmeet.connectors.lakes.client import delta_problem
from watersmeet.errors import Error

POINTS = ("delta.looked", "delta.fenced", "delta.begun", "delta.committed")


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


def test_an_append_only_sink_only_adds(tmp_path):
    sink = target(tmp_path, rows="plain", partition_by="name")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, None), diff=[2, 1])])
    sink.deliver([batch(4, (1, "a"), (3, "b"), diff=[-1, 1])])
    assert content(tmp_path) == [(1, "a"), (1, "a"), (2, None), (3, "b")]
    assert DeltaTable(tmp_path).metadata().partition_columns == ["name"]


@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_all_types_arrive_as_they_are(tmp_path, rows):
    sink = target(tmp_path, EVERYTHING, rows=rows)
    sink.open(1)
    sink.deliver([batch(3, *VALUES, columns=EVERYTHING)])
    first, second, third = content(tmp_path)
    wanted = list(VALUES[0])
    wanted[7], wanted[10] = "01:02:03.000004", "1 year 1 month 2 days 00:00:01"
    assert list(first) == wanted
    assert [second, third] == VALUES[1:]


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


def test_a_join_is_kept_in_a_table(tmp_path):
    out = tmp_path / "out"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        options = f"connector = 'deltalake', location = '{out}', create_table_if_not_exists = 'true'"
        keep_a_join(connection, options, lambda: content(out))
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
