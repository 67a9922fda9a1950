"""Tables of Iceberg as sources: what is there once, what each snapshot adds, and what can't be read."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType
from scripts.servers.s3 import REGION
from tests.lakes import RestCatalog
from tests.lakes import compact_iceberg as compact

import watersmeet
from watersmeet.errors import Error


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        yield opened


class Lake:
    """A catalog in SQLite with a table."""

    def __init__(self, path: Path, **properties: str) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/w"}
        self.properties |= properties
        self.catalog = load_catalog("lake", **self.properties)
        self.catalog.create_namespace("n")

    @property
    def table(self):
        return self.catalog.load_table("n.t")

    def create(self, schema, **more):
        return self.catalog.create_table("n.t", schema=schema, **more)

    def append(self, first, count):
        rows = numbers(first, count)
        try:
            self.table.append(rows)
        except NoSuchTableError:
            self.create(rows.schema).append(rows)

    def options(self, **more):
        found = {
            "connector": "iceberg",
            "catalog.type": "jdbc",
            "catalog.uri": "jdbc:" + self.properties["uri"].replace("sqlite:///", "sqlite:"),
            "catalog.name": "lake",
            "warehouse.path": self.properties["warehouse"],
            "database.name": "n",
            "table.name": "t",
            **more,
        }
        return ", ".join(f"{name} = '{value}'" for name, value in found.items() if value is not None)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def numbers(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i % 3}" for i in ids]})


def create(connection, lake, columns="", **more):
    more = {name.replace("__", "."): value for name, value in more.items()}
    connection.execute(f"CREATE SOURCE s {columns} WITH ({lake.options(**more)})")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")


def rows(connection, query="SELECT * FROM v ORDER BY 1"):
    return connection.execute(f"FLUSH; {query}").fetchall()


def ids(connection, relation="v"):
    return [i for (i,) in rows(connection, f"SELECT id FROM {relation} ORDER BY 1")]


def state(connection):
    connection.execute("FLUSH")
    return connection.execute("SHOW SOURCES").fetchall()[0][1:3]


def refused(connection, statement):
    with pytest.raises(Error) as found:
        connection.execute(statement)
    assert found.value.span is not None
    return found.value


def test_the_rows_that_are_there_and_those_that_come(connection, lake):
    lake.append(0, 3)
    lake.append(3, 2)
    create(connection, lake)
    assert rows(connection) == [(i, f"n{i % 3}") for i in range(5)]
    lake.append(5, 2)
    assert ids(connection) == list(range(7))
    compact(lake.table)
    lake.append(7, 1)
    assert ids(connection) == list(range(8))
    assert state(connection) == ("running", None)
    # A view that is made later reads what compaction left.
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM s")
    assert ids(connection, "w") == list(range(8))


def test_a_table_that_is_empty_at_first(connection, lake):
    lake.create(numbers(0, 1).schema)
    create(connection, lake)
    assert ids(connection) == []
    lake.append(0, 2)
    lake.append(2, 2)
    assert ids(connection) == [0, 1, 2, 3]


def test_all_types_and_partitions(connection, lake):
    moments = [dt.datetime(2024, 5, 6, 7, 8, 9, i, tzinfo=dt.UTC) for i in range(3)]
    table = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "d": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")], pa.decimal128(12, 2)),
            "f": pa.array([1.5, None, -2.5], pa.float32()),
            "b": pa.array([b"\x00\xff", None, b""], pa.binary()),
            "ts": pa.array([m.replace(tzinfo=None) for m in moments], pa.timestamp("us")),
            "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "r": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
            "clock": pa.array([dt.time(1, 2, 3, 4), None, dt.time()], pa.time64("us")),
            "at": pa.array([*moments[:2], None], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(2024, 1, 2), None, dt.date(1, 1, 1)]),
            "is": pa.array([True, None, False]),
            "word": ["a b/c%ü#?", None, ""],
            "money": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")], pa.decimal128(12, 2)),
        }
    )
    made = lake.create(table.schema)
    with made.update_spec() as spec:
        for name in ("at", "day", "is", "word", "money"):
            spec.add_field(name, "identity", f"{name}_part")
    made.append(table)
    create(connection, lake)
    expected = sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
    assert sorted(rows(connection), key=repr) == expected
    lake.table.append(table)
    assert sorted(rows(connection), key=repr) == sorted(expected * 2, key=repr)
    described = {name: kind for name, kind, *_ in connection.execute("DESCRIBE s").fetchall()}
    assert (described["r"], described["money"]) == ("struct<a bigint, b character varying>", "numeric(12,2)")


@pytest.mark.parametrize(
    ("more", "condition", "part"),
    [
        ({"catalog.type": "hive"}, "FEATURE_NOT_SUPPORTED", "catalogs of type hive"),
        ({"catalog.uri": None}, "CONNECTOR_OPTION", "needs the option catalog.uri"),
        ({"table.name": "x"}, "UNDEFINED_OBJECT", 'there is no Iceberg table "n.x"'),
        ({"database.name": "x"}, "UNDEFINED_OBJECT", 'there is no Iceberg table "x.t"'),
        ({"on_delete": "follow"}, "FEATURE_NOT_SUPPORTED", "but for tables"),
        ({"location": "x"}, "CONNECTOR_OPTION", 'no option "location"'),
        ({"warehouse.path": "s3://x/y"}, "CONNECTOR_OPTION", "is of this machine, and the table is in a store"),
    ],
)
def test_options_that_are_wrong(connection, lake, more, condition, part):
    lake.append(0, 1)
    err = refused(connection, f"CREATE SOURCE s (id bigint) WITH ({lake.options(**more)})")
    assert err.condition == condition
    assert part in err.message


def test_columns_are_given_and_checked(connection, lake):
    lake.append(0, 2)
    err = refused(connection, f"CREATE SOURCE s (id int, nam varchar) WITH ({lake.options()})")
    assert (err.condition, err.hint) == ("UNDEFINED_COLUMN", 'Did you mean "name"?')
    err = refused(connection, f"CREATE SOURCE s (id date) WITH ({lake.options()})")
    assert (err.condition, err.message) == ("DATATYPE_MISMATCH", 'column "id" of Iceberg table "n.t" has type int64')
    create(connection, lake, columns="(*, id int, twice int AS (id * 2))")
    assert rows(connection) == [("n0", 0, 0), ("n1", 1, 2)]


def test_without_a_snapshot_it_begins_behind_one(connection, lake):
    lake.append(0, 2)
    first = lake.table.current_snapshot().snapshot_id
    create(connection, lake, snapshot="false")
    lake.append(2, 2)
    assert ids(connection) == [2, 3]
    connection.execute(
        f"CREATE SOURCE z WITH ({lake.options(snapshot='false', **{'start.version': first})});"
        "CREATE MATERIALIZED VIEW w AS SELECT * FROM z"
    )
    assert ids(connection, "w") == [2, 3]


def test_columns_are_known_by_their_ids(connection, lake):
    lake.append(0, 1)
    create(connection, lake)
    with lake.table.update_schema() as schema:
        schema.rename_column("name", "title")
        schema.add_column("more", LongType())
    with lake.table.update_schema() as schema:
        schema.add_column("name", LongType())  # another one than that which was read
    wider = pa.table({"id": pa.array([1], pa.int64()), "title": ["t"], "more": [7], "name": [8]})
    lake.table.append(wider)
    assert rows(connection) == [(0, "n0"), (1, "t")]
    connection.execute("ALTER SOURCE s REFRESH SCHEMA")
    with lake.table.update_schema() as schema:
        schema.rename_column("more", "most")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT * FROM s")
    assert rows(connection, "SELECT id, name, more FROM w ORDER BY 1") == [(0, "n0", None), (1, "t", 7)]
    connection.execute(f"CREATE SOURCE z WITH ({lake.options()}); CREATE MATERIALIZED VIEW y AS SELECT * FROM z")
    assert rows(connection, "SELECT id, title, name, most FROM y ORDER BY 1") == [(0, "n0", None, None), (1, "t", 8, 7)]
    with lake.table.update_schema() as schema:
        schema.delete_column("title")
    lake.table.append(pa.table({"id": pa.array([2], pa.int64())}))
    now, reason = state(connection)
    assert now == "stalled"
    assert reason.endswith('column "name" is no longer there')


def test_rows_that_are_removed_stop_the_source(connection, lake):
    lake.append(0, 4)
    create(connection, lake)
    assert ids(connection) == [0, 1, 2, 3]
    lake.table.delete("id = 1")
    removing = lake.table.current_snapshot().snapshot_id
    lake.append(4, 1)
    assert ids(connection) == [0, 1, 2, 3]
    command = "ALTER SOURCE s CONNECTOR WITH (on_delete = 'skip')"
    assert state(connection) == ("stalled", f"snapshot {removing} removes rows. To leave out such versions: {command}")
    connection.execute(command)
    assert ids(connection) == [0, 1, 2, 3, 4]


def test_a_table_follows_what_is_deleted(connection, lake):
    lake.append(0, 6)
    connection.execute(f"CREATE TABLE t (*, PRIMARY KEY (id)) WITH ({lake.options(on_delete='follow')})")
    lake.table.delete("id = 1")
    assert ids(connection, "t") == [0, 2, 3, 4, 5]
    lake.append(9, 1)
    compact(lake.table)
    lake.table.upsert(pa.table({"id": pa.array([2, 7], pa.int64()), "name": ["z", "new"]}), ["id"])
    assert rows(connection, "SELECT * FROM t ORDER BY 1") == [
        (0, "n0"),
        (2, "z"),
        (3, "n0"),
        (4, "n1"),
        (5, "n2"),
        (7, "new"),
        (9, "n0"),
    ]
    lake.table.overwrite(numbers(20, 2))
    assert ids(connection, "t") == [20, 21]
    with lake.table.update_schema() as schema:
        schema.rename_column("name", "title")
    connection.execute("ALTER TABLE t RENAME COLUMN name TO label; ALTER TABLE t CONNECTOR WITH (on_error = 'stop')")
    lake.table.append(numbers(30, 1).rename_columns(["id", "title"]))
    assert rows(connection, "SELECT id, label FROM t ORDER BY 1") == [(20, "n2"), (21, "n0"), (30, "n0")]


def test_snapshots_that_have_expired_stall_the_source(connection, lake):
    lake.append(0, 1)
    create(connection, lake)
    assert ids(connection) == [0]
    first = lake.table.current_snapshot().snapshot_id
    lake.append(1, 1)
    lake.table.maintenance.expire_snapshots().by_id(first).commit()
    assert ids(connection) == [0, 1]  # that which follows it is there
    second = lake.table.current_snapshot().snapshot_id
    lake.append(2, 1)
    third = lake.table.current_snapshot().snapshot_id
    lake.append(3, 1)
    lake.table.maintenance.expire_snapshots().by_ids([second, third]).commit()
    assert ids(connection) == [0, 1]
    reason = f'snapshots of Iceberg table "n.t" since snapshot {second} have expired'
    assert state(connection) == ("stalled", reason)


def test_a_table_that_is_made_anew_or_set_back_stalls_the_source(connection, lake):
    lake.append(0, 1)
    first = lake.table.current_snapshot().snapshot_id
    lake.append(1, 1)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    second = lake.table.current_snapshot().snapshot_id
    lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    now, reason = state(connection)
    assert now == "stalled"
    assert reason.endswith(f"was set to another state: snapshot {second} is no longer part of its history")
    lake.catalog.drop_table("n.t")
    assert state(connection) == ("stalled", 'there is no Iceberg table "n.t"')
    lake.append(5, 1)
    reason = f'Iceberg table "n.t" was made anew: snapshot {second} is another one'
    assert state(connection) == ("stalled", reason)


def test_a_data_file_that_is_gone_stalls_the_source(connection, lake):
    lake.append(0, 2)
    create(connection, lake)
    (task,) = lake.table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    content = path.read_bytes()
    path.unlink()
    now, reason = state(connection)
    assert now == "stalled"
    assert "is gone, as VACUUM and the expiry of snapshots remove" in reason
    path.write_bytes(content)
    assert ids(connection) == [0, 1]


def test_what_can_not_be_read_is_refused_by_name(connection, lake, tmp_path):
    rows_ = numbers(0, 2)
    made = lake.create(rows_.schema)
    pa.parquet.write_table(rows_, tmp_path / "x.parquet")
    made.add_files([str(tmp_path / "x.parquet")])
    err = refused(connection, f"CREATE SOURCE s WITH ({lake.options()})")
    assert err.condition == "FEATURE_NOT_SUPPORTED"
    assert "files without field ids" in err.message


def test_fields_within_a_column_that_change_are_refused(connection, lake):
    lake.create(pa.schema([("id", pa.int64()), ("r", pa.struct([("a", pa.int64())]))]))
    lake.table.append(pa.table({"id": pa.array([1], pa.int64()), "r": [{"a": 1}]}))
    create(connection, lake)
    assert rows(connection) == [(1, {"a": 1})]
    with lake.table.update_schema() as schema:
        schema.add_column(("r", "b"), StringType())
    lake.table.append(pa.table({"id": pa.array([2], pa.int64()), "r": [{"a": 2, "b": "x"}]}))
    now, reason = state(connection)
    assert now == "stalled"
    assert reason.endswith('fields within column "r" have been changed, which is not supported')
    connection.execute(
        f"CREATE SOURCE z (id bigint) WITH ({lake.options()}); CREATE MATERIALIZED VIEW w AS SELECT * FROM z"
    )
    assert ids(connection, "w") == [1, 2]
    assert "fields within" in refused(connection, f"CREATE SOURCE y WITH ({lake.options()})").message


def add_file(lake, path, table, **more):
    """Adds a data file as other engines write them."""
    fields = [f.with_metadata({"PARQUET:field_id": str(i)}) for i, f in enumerate(table.schema, 1)]
    pa.parquet.write_table(table.cast(pa.schema(fields)), path)
    made = {
        "content": DataFileContent.DATA,
        "file_path": f"file://{path}",
        "file_format": FileFormat.PARQUET,
        "partition": Record(),
        "record_count": table.num_rows,
        "file_size_in_bytes": path.stat().st_size,
        **more,
    }
    file = DataFile.from_args(**made)
    file.spec_id = lake.table.spec().spec_id
    with lake.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def test_values_of_partitions_that_files_do_not_have(connection, lake, tmp_path):
    """As where tables of Hive were taken over: the value stands in the manifest alone."""
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", StringType(), required=False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    lake.catalog.create_table("n.t", schema=schema, partition_spec=spec)
    lake.table.append(pa.table({"id": pa.array([1], pa.int64()), "p": ["x"]}))
    for i, value in enumerate(["a b/%20", None], 2):
        add_file(lake, tmp_path / f"{i}.parquet", numbers(i, 1).select(["id"]), partition=Record(value))
    create(connection, lake)
    assert rows(connection) == [(1, "x"), (2, "a b/%20"), (3, None)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"file_format": FileFormat.ORC}, "data files of format ORC are not supported"),
        ({"key_metadata": b"x"}, "data files that are encrypted are not supported"),
        ({"content": DataFileContent.POSITION_DELETES}, "removes rows."),
    ],
    ids=["orc", "encrypted", "deletes"],
)
def test_what_can_not_be_read_stalls_the_source(connection, lake, tmp_path, monkeypatch, more, reason):
    lake.append(0, 2)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    if "content" in more:  # pyiceberg writes no files of deletes
        monkeypatch.setattr(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES)
    add_file(lake, tmp_path / "x.parquet", numbers(2, 1), **more)
    now, why = state(connection)
    assert now == "stalled"
    assert reason in why
    assert ids(connection) == [0, 1]
    if "content" in more:
        err = refused(connection, f"CREATE SOURCE z WITH ({lake.options()})")
        assert "delete files, which are not supported" in err.message
        connection.execute("ALTER SOURCE s CONNECTOR WITH (on_delete = 'skip')")
        monkeypatch.undo()
        lake.append(9, 1)
        assert ids(connection) == [0, 1, 9]


def test_a_rest_catalog_and_objects(connection, tmp_path, bucket):
    stores = {"s3.endpoint": bucket.server.url, "s3.access-key-id": bucket.keys[0], "s3.region": REGION}
    stores["s3.secret-access-key"] = bucket.keys[1]
    lake = Lake(tmp_path, warehouse=f"s3://{bucket.name}/w", **stores)
    lake.append(0, 2)
    rest = RestCatalog(lake.catalog, "token-of-rest")
    more = {
        "catalog.type": "rest",
        "catalog.uri": rest.uri,
        "catalog.token": rest.token,
        "s3.endpoint": bucket.server.url,
        "s3.access.key": bucket.keys[0],
        "s3.secret.key": bucket.keys[1],
        "s3.region": REGION,
    }
    try:
        create(connection, lake, **more)
        assert ids(connection) == [0, 1]
        lake.append(2, 2)
        assert ids(connection) == [0, 1, 2, 3]
        shown = str(connection.execute("SHOW CREATE SOURCE s").fetchall())
        assert rest.uri in shown
        assert bucket.keys[1] not in shown
        assert rest.token not in shown
        rest.token = "another one"
        now, reason = state(connection)
        assert now == "stalled"
        assert reason == 'catalog "lake" of Iceberg table "n.t" refuses the user'
    finally:
        rest.stop()


def test_compaction_is_a_replacement(lake):
    """What the tests call compaction is what engines write."""
    lake.append(0, 2)
    lake.append(2, 2)
    compact(lake.table)
    assert lake.table.current_snapshot().summary.operation == Operation.REPLACE
    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert len(list(lake.table.scan().plan_files())) == 1
