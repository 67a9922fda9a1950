"""A table of Iceberg as a target: rows are there once, whatever happens when."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from tests.lakes import duckdb_with
from tests.unit.sinks.batches import EVERYTHING, TWO, VALUES, batch
from tests.unit.sinks.databasetargets import keep_a_join

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.targets import Delivery, SinkOffset
from watersmeet.connectors.iceberg.target import IcebergTarget
from watersmeet.errors import Error
from watersmeet.values.types import INTEGER, TIMESTAMP, VARCHAR, Field

POINTS = ("iceberg.looked", "iceberg.fenced", "iceberg.begun", "iceberg.committed")


def options(path, **more):
    found = {
        "connector": "iceberg",
        "catalog.type": "jdbc",
        "catalog.uri": f"jdbc:sqlite:{path}/catalog.db",
        "catalog.name": "lake",
        "warehouse.path": f"file://{path}/warehouse",
        "database.name": "marts",
        "table.name": "kept",
        "create_table_if_not_exists": "true",
        **more,
    }
    return {n: v for n, v in found.items() if v is not None}


def target(path, columns=TWO, *, rows="upsert", key=("id",), generation=1, **more):
    delivery = Delivery(
        *("s1", "sink k", "v1", columns, key if rows == "upsert" else (), options(path, **more)),
        *(MessageFormat(rows), False, "s1", generation),
    )
    return IcebergTarget(delivery, "db")


def read(path):
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}/warehouse")
    return catalog.load_table("marts.kept")


def content(path):
    return sorted((tuple(row.values()) for row in read(path).scan().to_arrow().to_pylist()), key=repr)


@pytest.mark.parametrize("form", ["upsert", "plain"])
def test_a_table_with_columns_that_take_no_null(tmp_path, form):
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("marts")
    required = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    catalog.create_table("marts.kept", required)
    sink = target(tmp_path, rows=form)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "b"))])
    sink.deliver([batch(4, (3, "c"))] if form == "plain" else [batch(4, (2, "b"), (2, "c"), diff=[-1, 1])])
    assert content(tmp_path) == [(1, "a"), *([(2, "b"), (3, "c")] if form == "plain" else [(2, "c")])]
    with pytest.raises(Error) as caught:
        sink.deliver([batch(5, (4, None))])
    assert caught.value.condition == "DELIVERY_REFUSED"


def test_a_key_of_several_columns_takes_its_rows_alone(tmp_path):
    columns = (Field("a", INTEGER), Field("b", VARCHAR), Field("n", INTEGER))
    sink = target(tmp_path, columns, key=("b", "a"))
    sink.open(1)
    every = [(a, b, 0) for a in range(4) for b in "wxyz"]
    sink.deliver([batch(3, *every, columns=columns)])
    sink.deliver([batch(4, (1, "x", 0), (1, "x", 7), (2, "y", 0), (9, "x", 1), columns=columns, diff=[-1, 1, -1, 1])])
    wanted = {(a, b): n for a, b, n in every} | {(1, "x"): 7, (9, "x"): 1}
    del wanted[2, "y"]
    assert content(tmp_path) == sorted(((a, b, n) for (a, b), n in wanted.items()), key=repr)


def test_every_type(tmp_path):
    sink = target(tmp_path, EVERYTHING, key=("id",))
    sink.open(1)
    sink.deliver([batch(3, *VALUES, columns=EVERYTHING)])
    names = [c.name for c in EVERYTHING]
    first, *others = sorted(read(tmp_path).scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    wanted = list(VALUES[0])
    wanted[10] = "1 year 1 month 2 days 00:00:01"
    assert [first[n] for n in names] == wanted
    assert [tuple(row[n] for n in names) for row in others] == VALUES[1:]


@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_commits_of_others_do_not_matter(tmp_path, rows):
    sink = target(tmp_path, rows=rows)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    read(tmp_path).append(pa.table({"id": pa.array([9], pa.int32()), "name": ["theirs"]}))
    sink.deliver([batch(4, (2, "b"))])
    assert content(tmp_path) == [(1, "a"), (2, "b"), (9, "theirs")]


def test_an_answer_that_got_lost_is_no_second_commit(tmp_path, monkeypatch):
    sink = target(tmp_path, rows="plain")
    sink.open(1)
    commit = sink._commit

    def lost(offset, write):
        commit(offset, write)
        raise sink._exceptions.CommitFailedException("it seems")

    monkeypatch.setattr(sink, "_commit", lost)
    sink.deliver([batch(3, (1, "a"))])
    assert content(tmp_path) == [(1, "a")]


def test_partitions(tmp_path):
    columns = (Field("id", INTEGER), Field("at", TIMESTAMP), Field("name", VARCHAR))
    sink = target(tmp_path, columns, partition_by="name, month(at)")
    sink.open(1)
    times = [dt.datetime(2024, m, 1) for m in (1, 1, 2)]
    sink.deliver([batch(3, *((i, at, "ab"[i % 2]) for i, at in enumerate(times)), columns=columns)])
    sink.deliver([batch(4, (0, times[0], "a"), diff=[-1], columns=columns)])
    assert [row[0] for row in content(tmp_path)] == [1, 2]
    assert [f.name for f in read(tmp_path).spec().fields] == ["name", "at_month"]


@pytest.mark.parametrize(
    ("changed", "condition", "said"),
    [
        ({"table.name": None}, "CONNECTOR_OPTION", "needs the option table.name"),
        ({"catalog.type": "storage"}, "FEATURE_NOT_SUPPORTED", "type storage"),
        ({"catalog.type": "jbdc"}, "CONNECTOR_OPTION", "jbdc"),
        ({"catalog.uri": "jdbc:mysql://h/d"}, "FEATURE_NOT_SUPPORTED", "mysql"),
        ({"create_table_if_not_exists": "false"}, "UNDEFINED_OBJECT", "there is no Iceberg table"),
        ({"partition_by": "bucket(4, id)"}, "FEATURE_NOT_SUPPORTED", "bucket"),
        ({"partition_by": "nam"}, "CONNECTOR_OPTION", '"nam"'),
        ({"tabel.name": "x"}, "CONNECTOR_OPTION", "tabel.name"),
    ],
)
def test_options_are_checked(tmp_path, changed, condition, said):
    with pytest.raises(Error, match=said) as refused:
        target(tmp_path, **changed).look()
    assert refused.value.condition == condition


def test_a_table_of_another_shape_is_refused(tmp_path):
    target(tmp_path).open(1)
    with pytest.raises(Error) as refused:
        target(tmp_path, (Field("id", VARCHAR), TWO[1])).look()
    assert refused.value.condition == "DATATYPE_MISMATCH"
    with pytest.raises(Error) as refused:
        target(tmp_path, (*TWO, Field("more", INTEGER))).look()
    assert refused.value.condition == "UNDEFINED_COLUMN"


def test_a_join_is_kept_in_a_table_that_duckdb_reads(tmp_path):
    listed = ", ".join(f"{n} = '{v}'" for n, v in options(tmp_path).items())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        keep_a_join(connection, listed, lambda: content(tmp_path))
    metadata = read(tmp_path).metadata_location
    found = duckdb_with("avro", "iceberg").execute(f"SELECT * FROM iceberg_scan('{metadata}')").fetchall()
    assert found == content(tmp_path) == [(2, "b", decimal.Decimal("2.00"))]
    assert Path(tmp_path / "warehouse").exists()


def test_a_catalog_in_postgresql_takes_a_password_with_signs(tmp_path, postgres):
    postgres.execute(f"CREATE ROLE {postgres.name} LOGIN PASSWORD 'p@ss/w:rd'; GRANT CREATE ON SCHEMA public TO PUBLIC")
    try:
        where = f"jdbc:postgresql://127.0.0.1:{postgres.server.port}/{postgres.name}"
        names = {"catalog.jdbc.user": postgres.name, "catalog.jdbc.password": "p@ss/w:rd"}
        sink = target(tmp_path, **{"catalog.uri": where, **names})
        sink.open(1)
        sink.deliver([batch(3, (1, "a"))])
        assert sink.open(1) == SinkOffset(1, 3)
        sink.close()
    finally:
        postgres.execute(f"DROP OWNED BY {postgres.name}; DROP ROLE {postgres.name}")
