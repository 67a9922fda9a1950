"""Upsert sinks to ClickHouse: each engine that keeps the newest row of a key, and tables that would not."""

from __future__ import annotations

import pytest
from scripts.servers.clickhouse import PASSWORD, USER
from tests.unit.sinks.batches import TWO, batch, history
from tests.unit.sinks.databasetargets import is_done, wait

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.targets import Delivery
from watersmeet.connectors.registry import connector_of
from watersmeet.errors import Error
from watersmeet.values.types import BIGINT, Field

ENGINES = {
    "ReplacingMergeTree(version, gone)": ("version DEFAULT toUInt64(1), gone UInt8", {}),
    "ReplacingMergeTree": ("gone UInt8", {"clickhouse.delete.column": "gone"}),
    "CollapsingMergeTree(sign)": ("sign Int8", {}),
}
#: What a reader asks for, since old rows go only when parts are merged.
THERE = {"ReplacingMergeTree": "gone = 0", "ReplacingMergeTree(version, gone)": "gone = 0"}


def options_of(database):
    return {
        "connector": "clickhouse",
        "clickhouse.url": database.server.url,
        "clickhouse.user": USER,
        "clickhouse.password": PASSWORD,
        "clickhouse.database": database.name,
        "clickhouse.table": "kept",
    }


def make(database, engine, columns, order="id"):
    database.execute(
        f"CREATE TABLE kept (id Int32, name Nullable(String), {columns}) ENGINE = {engine} ORDER BY {order}"
    )


def target(database, columns=TWO, **more):
    options = {**options_of(database), **more}
    delivery = Delivery("s1", "sink k", "v1", columns, ("id",), options, MessageFormat("upsert"), False, "s1", 1)
    return connector_of(delivery).open(delivery, "db", lambda: False)


def content(database, engine):
    where = THERE.get(engine, "true")
    rows = database.execute(f"SELECT id, name FROM kept FINAL WHERE {where} ORDER BY id")
    return [(int(key), None if name == "\\N" else name) for key, name in rows]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(2))
def test_a_reader_sees_the_newest_row_of_each_key(clickhouse, engine, seed):
    columns, options = ENGINES[engine]
    make(clickhouse, engine, columns)
    sink = target(clickhouse, **options)
    sink.open(1)
    for made, rows in history(seed):
        sink.deliver([made])
        assert content(clickhouse, engine) == rows


def test_versions_of_rows_come_from_the_sink(clickhouse):
    engine = "VersionedCollapsingMergeTree(sign, version)"
    make(clickhouse, engine, "sign Int8, version Int64")
    with pytest.raises(Error, match="orders the rows of a key, and the sink has no such column"):
        target(clickhouse).look()
    columns = (*TWO, Field("version", BIGINT))
    sink = target(clickhouse, columns)
    sink.open(1)
    for version in range(5):
        old, new = (1, f"v{version - 1}", version - 1), (1, f"v{version}", version)
        rows, diff = ([old, new], [-1, 1]) if version else ([new], [1])
        sink.deliver([batch(3 + version, *rows, columns=columns, diff=diff)])
        assert content(clickhouse, engine) == [(1, f"v{version}")]
    sink.deliver([batch(9, new, columns=columns, diff=[-1])])
    assert content(clickhouse, engine) == []


@pytest.mark.parametrize(
    ("engine", "columns", "order", "options", "message"),
    [
        ("MergeTree", "gone UInt8", "id", {}, "has the engine MergeTree, which keeps all rows"),
        ("ReplacingMergeTree", "gone UInt8", "id", {}, "has no column that marks deleted rows"),
        ("ReplacingMergeTree", "v UInt8", "id", {"clickhouse.delete.column": "gone"}, 'has no column "gone"'),
        (
            "ReplacingMergeTree",
            "gone UInt8",
            "(id, gone)",
            {"clickhouse.delete.column": "gone"},
            "is ordered by (id, gone)",
        ),
        ("CollapsingMergeTree(sign)", "sign Int8", "sign", {}, "is ordered by (sign)"),
    ],
)
def test_tables_that_would_keep_old_rows_are_refused(clickhouse, engine, columns, order, options, message):
    make(clickhouse, engine, columns, order)
    with pytest.raises(Error) as refused:
        target(clickhouse, **options).look()
    assert message in refused.value.message


def test_a_sink_of_a_view(clickhouse, tmp_path):
    make(clickhouse, "ReplacingMergeTree(version, gone)", ENGINES["ReplacingMergeTree(version, gone)"][0])
    written = ", ".join(f"{n} = '{v}'" for n, v in options_of(clickhouse).items())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({written}, type = 'upsert', primary_key = 'id');
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            FLUSH
        """)
        wait(connection, is_done)
        connection.execute("UPDATE t SET name = 'c' WHERE id = 1; DELETE FROM t WHERE id = 2; FLUSH")
        wait(connection, is_done)
        assert content(clickhouse, "ReplacingMergeTree(version, gone)") == [(1, "c")]
