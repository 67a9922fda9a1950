"""Tables of Delta Lake as sources: what is there once, what each version adds, and what can't be read."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from scripts.servers.s3 import REGION

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        yield opened


def numbers(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i % 3}" for i in ids]})


def append(lake: Path, first: int, count: int, **more) -> None:
    write_deltalake(lake, numbers(first, count), mode="append", **more)


def create(connection, lake, more="", columns=""):
    connection.execute(f"CREATE SOURCE s {columns} WITH (connector = 'deltalake', location = '{lake}'{more})")
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
    append(lake, 0, 3)
    append(lake, 3, 2)
    create(connection, lake)
    assert rows(connection) == [(i, f"n{i % 3}") for i in range(5)]
    append(lake, 5, 2)
    assert ids(connection) == list(range(7))
    DeltaTable(lake).optimize.compact()
    append(lake, 7, 1)
    assert ids(connection) == list(range(8))
    assert state(connection) == ("running", None)
    # A view that is made later reads what compaction left, of which alone the files are there.
    DeltaTable(lake).vacuum(0, dry_run=False, enforce_retention_duration=False)
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM s")
    assert ids(connection, "w") == list(range(8))


def test_all_types_and_partitions(connection, lake):
    moments = [dt.datetime(2024, 5, 6, 7, 8, 9, i, tzinfo=dt.UTC) for i in range(3)]
    table = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "s": pa.array([1, 2, None], pa.int16()),
            "t": pa.array([1, 2, None], pa.int8()),
            "d": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")], pa.decimal128(12, 2)),
            "f": pa.array([1.5, None, -2.5], pa.float32()),
            "b": pa.array([b"\x00\xff", None, b""], pa.binary()),
            "ts": pa.array([m.replace(tzinfo=None) for m in moments], pa.timestamp("us")),
            "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "r": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
            "at": pa.array([*moments[:2], None], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(2024, 1, 2), None, dt.date(1, 1, 1)]),
            "is": pa.array([True, None, False]),
            "word": ["a b/c%ü", None, "__HIVE_DEFAULT_PARTITION__"],
            "money": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")], pa.decimal128(12, 2)),
        }
    )
    partitions = ["at", "day", "is", "word", "money"]
    write_deltalake(lake, table, partition_by=partitions)
    create(connection, lake)
    expected = sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
    assert sorted(rows(connection), key=repr) == expected
    write_deltalake(lake, table, mode="append")  # now the log has their values as texts
    assert sorted(rows(connection), key=repr) == sorted(expected * 2, key=repr)
    described = {name: kind for name, kind, *_ in connection.execute("DESCRIBE s").fetchall()}
    assert described["r"] == "struct<a bigint, b character varying>"
    assert described["money"] == "numeric(12,2)"
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT word, count(*) AS n FROM s GROUP BY word")
    assert sorted(rows(connection, "SELECT * FROM w"), key=repr) == sorted(
        ((w, 2) for w in table["word"].to_pylist()), key=repr
    )


def test_columns_are_given_and_checked(connection, lake):
    append(lake, 0, 2, partition_by=["name"])
    err = refused(connection, f"CREATE SOURCE s (id int, nam varchar) WITH (connector = 'delta', location = '{lake}')")
    assert (err.condition, err.hint) == ("UNDEFINED_COLUMN", 'Did you mean "name"?')
    err = refused(connection, f"CREATE SOURCE s (id date) WITH (connector = 'delta', location = '{lake}')")
    assert (err.condition, err.message) == ("DATATYPE_MISMATCH", f'column "id" of Delta table "{lake}" has type int64')
    create(connection, lake, columns="(*, id int, twice int AS (id * 2))")
    assert rows(connection) == [("n0", 0, 0), ("n1", 1, 2)]
    connection.execute(f"CREATE SOURCE p (name varchar) WITH (connector = 'delta', location = '{lake}')")
    connection.execute("CREATE MATERIALIZED VIEW n AS SELECT name FROM p")
    assert rows(connection, "SELECT name FROM n ORDER BY 1") == [("n0",), ("n1",)]
    connection.execute("CREATE MATERIALIZED VIEW c AS SELECT count(*) AS n FROM p")
    assert rows(connection, "SELECT n FROM c") == [(2,)]


@pytest.mark.parametrize(
    ("options", "condition", "part"),
    [
        ("", "CONNECTOR_OPTION", "needs the option location"),
        (", location = 'hdfs://x/y'", "CONNECTOR_OPTION", "location can't be"),
        (", location = '/nowhere/at/all'", "UNDEFINED_OBJECT", 'there is no Delta table "/nowhere/at/all"'),
        (", location = '{lake}', on_delete = 'ignore'", "CONNECTOR_OPTION", "on_delete can't be"),
        (", location = '{lake}', on_delete = 'follow'", "FEATURE_NOT_SUPPORTED", "but for tables"),
        (", location = '{lake}', path = 'x'", "CONNECTOR_OPTION", 'no option "path"'),
        (", location = '{lake}', start.version = 3", "CONNECTOR_OPTION", "needs snapshot = 'false'"),
    ],
)
def test_options_that_are_wrong(connection, lake, options, condition, part):
    append(lake, 0, 1)
    err = refused(connection, f"CREATE SOURCE s (id int) WITH (connector = 'deltalake'{options.format(lake=lake)})")
    assert err.condition == condition
    assert part in err.message


def test_forms_are_refused(connection, lake):
    options = f"WITH (connector = 'deltalake', location = '{lake}')"
    assert "FORMAT PLAIN" in refused(connection, f"CREATE SOURCE s {options} FORMAT PLAIN ENCODE JSON").message
    assert "INCLUDE" in refused(connection, f"CREATE SOURCE s INCLUDE offset {options}").message


def test_without_a_snapshot_it_begins_behind_a_version(connection, lake):
    append(lake, 0, 2)
    create(connection, lake, ", snapshot = 'false'")
    append(lake, 2, 2)
    assert ids(connection) == [2, 3]
    connection.execute(
        f"CREATE SOURCE z WITH (connector = 'delta', location = '{lake}', snapshot = 'false', start.version = 0);"
        "CREATE MATERIALIZED VIEW w AS SELECT * FROM z"
    )
    assert ids(connection, "w") == [2, 3]


def test_it_goes_on_after_a_restart_within_a_version(tmp_path, lake, monkeypatch):
    monkeypatch.setattr(Budget, "rows", property(lambda _: 10))
    for first in range(0, 40, 8):
        write_deltalake(lake, numbers(first, 8), mode="append")
    for round_ in range(4):
        with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
            if not round_:
                create(connection, lake)
            write_deltalake(lake, numbers(40 + 8 * round_, 8), mode="append")
            if round_ % 2:
                assert ids(connection) == list(range(48 + 8 * round_))


@pytest.mark.parametrize("moved", [False, True], ids=["same", "anew"])
def test_a_version_that_was_read_in_part_goes_on_after_a_restart(tmp_path, lake, monkeypatch, moved):
    write_deltalake(lake, numbers(0, 30), writer_properties=WriterProperties(max_row_group_size=10))
    budget = [10]
    monkeypatch.setattr(Budget, "rows", property(lambda _: budget[0]))
    run = InProcessEngine._run

    def run_once(engine, coordinator, intent):
        run(engine, coordinator, intent)
        if intent.slices:
            raise InterruptedError

    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        with monkeypatch.context() as patched, pytest.raises(InterruptedError):
            patched.setattr(InProcessEngine, "_run", run_once)
            create(connection, lake)
            connection.execute("FLUSH")
        assert len(connection.execute("SELECT * FROM v").fetchall()) == 10
    budget[0] = 1000
    if moved:
        shutil.rmtree(lake)
        append(lake, 0, 30)
    append(lake, 30, 1)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert ids(connection) == (list(range(10)) if moved else list(range(31)))
        reason = f'Delta table "{lake}" was made anew: version 0 is another one'
        assert state(connection) == (("stalled", reason) if moved else ("running", None))


def test_objects_are_read(connection, tmp_path, bucket):
    location = f"s3://{bucket.name}/lake/in"
    storage = {
        "AWS_ENDPOINT_URL": bucket.server.url,
        "AWS_ACCESS_KEY_ID": bucket.keys[0],
        "AWS_SECRET_ACCESS_KEY": bucket.keys[1],
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }
    write_deltalake(location, numbers(0, 4), partition_by=["name"], storage_options=storage)
    options = {"s3.endpoint": bucket.server.url, "s3.access.key": bucket.keys[0], "s3.region": REGION}
    texts = "".join(f", {name} = '{value}'" for name, value in options.items())
    create(connection, location, f"{texts}, s3.secret.key = '{bucket.keys[1]}'")
    assert ids(connection) == [0, 1, 2, 3]
    write_deltalake(location, numbers(4, 2), mode="append", storage_options=storage)
    DeltaTable(location, storage_options=storage).optimize.compact()
    assert ids(connection) == list(range(6))
    DeltaTable(location, storage_options=storage).delete("id = 1")
    now, reason = state(connection)
    assert now == "stalled"
    assert "version 3 removes rows" in reason
    shown = str(connection.execute("SHOW CREATE SOURCE s").fetchall())
    assert location in shown
    assert bucket.keys[1] not in shown
    more = f"{texts}, s3.secret.key = '{bucket.keys[1]}'"
    err = refused(connection, f"CREATE SOURCE z WITH (connector = 'delta', location = 's3://nowhere/x'{more})")
    assert bucket.keys[1] not in str(err)


def test_rows_that_are_removed_stop_the_source(connection, lake):
    append(lake, 0, 4)
    create(connection, lake)
    assert ids(connection) == [0, 1, 2, 3]
    DeltaTable(lake).delete("id = 1")
    append(lake, 4, 1)
    assert ids(connection) == [0, 1, 2, 3]
    now, reason = state(connection)
    assert now == "stalled"
    command = "ALTER SOURCE s CONNECTOR WITH (on_delete = 'skip')"
    assert reason == f"version 1 removes rows. To leave out such versions: {command}"
    connection.execute(command)
    assert ids(connection) == [0, 1, 2, 3, 4]
    # What is there is another thing now: compaction changes nothing of what was read.
    DeltaTable(lake).optimize.compact()
    append(lake, 5, 1)
    assert ids(connection) == [0, 1, 2, 3, 4, 5]
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM s")
    assert ids(connection, "w") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("columns", ["(*, PRIMARY KEY (id))", ""], ids=["key", "no-key"])
@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_table_follows_what_is_deleted(connection, lake, feed, columns):
    append(lake, 0, 6, configuration={"delta.enableChangeDataFeed": feed})
    connection.execute(
        f"CREATE TABLE t {columns} WITH (connector = 'delta', location = '{lake}', on_delete = 'follow')"
    )
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, max(id) AS last FROM t")
    table = DeltaTable(lake)
    table.delete("id = 1")
    assert ids(connection, "t") == [0, 2, 3, 4, 5]
    table.update(updates={"name": "'z'"}, predicate="id = 2")
    table.optimize.compact()
    assert rows(connection, "SELECT * FROM t WHERE id < 4 ORDER BY 1") == [(0, "n0"), (2, "z"), (3, "n0")]
    changes = pa.table({"id": pa.array([3, 9], pa.int64()), "name": ["m", "new"]})
    table = DeltaTable(lake)
    merge = table.merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert rows(connection, "SELECT * FROM t ORDER BY 1") == [
        (0, "n0"),
        (2, "z"),
        (3, "m"),
        (4, "n1"),
        (5, "n2"),
        (9, "new"),
    ]
    write_deltalake(lake, numbers(20, 2), mode="overwrite")
    assert ids(connection, "t") == [20, 21]
    assert rows(connection) == [(2, 21)]
    DeltaTable(lake).delete()
    assert ids(connection, "t") == []
    assert rows(connection) == [(0, None)]


def test_a_table_without_a_key_loses_as_many_rows_as_the_table_there(connection, lake):
    old = dt.datetime(2024, 1, 1)
    moments = [old, old, old, dt.datetime(2024, 6, 1)]
    numbers_ = pa.array([1, 1, 2, 3], pa.int64())
    made = pa.table({"id": numbers_, "x": numbers_, "at": pa.array(moments, pa.timestamp("us"))})
    write_deltalake(lake, made)
    where = f"connector = 'delta', location = '{lake}'"
    connection.execute(
        "CREATE TABLE t (id bigint, x bigint, at timestamp, twice bigint AS (x * 2), "
        f"WATERMARK FOR at AS at - INTERVAL '1 day') WITH ({where}); "
        "CREATE MATERIALIZED VIEW v AS SELECT id, sum(twice) AS n FROM t GROUP BY id"
    )
    assert rows(connection) == [(1, 4), (2, 4), (3, 6)]
    DeltaTable(lake).delete("id = 2")
    write_deltalake(lake, made.slice(0, 1), mode="append")  # times far behind the greatest: no row is late
    connection.execute("FLUSH")
    assert "version 1 removes rows" in str(connection.execute("SHOW ERRORS").fetchall())
    connection.execute("ALTER TABLE t RENAME COLUMN id TO number; ALTER TABLE t CONNECTOR WITH (on_delete = 'follow')")
    assert rows(connection) == [(1, 6), (3, 6)]
    assert rows(connection, "SELECT number, twice FROM t ORDER BY 1") == [(1, 2), (1, 2), (1, 2), (3, 6)]
    for create_, why in (
        ("(id bigint, came timestamptz AS PROCTIME())", "time of arrival"),
        ("(id bigint) APPEND ONLY", "but for tables"),
    ):
        err = refused(connection, f"CREATE TABLE u {create_} WITH ({where}, on_delete = 'follow')")
        assert err.condition == "FEATURE_NOT_SUPPORTED"
        assert why in err.message


def test_keys_that_move_between_partitions_are_followed(connection, lake):
    table = pa.table({"id": pa.array(range(8), pa.int64()), "p": [f"p{i % 4}" for i in range(8)]})
    write_deltalake(lake, table, partition_by=["p"], configuration={"delta.enableChangeDataFeed": "true"})
    connection.execute(
        f"CREATE TABLE t (*, PRIMARY KEY (id)) WITH (connector = 'delta', location = '{lake}', on_delete = 'follow')"
    )
    assert ids(connection, "t") == list(range(8))
    DeltaTable(lake).update(updates={"p": "CASE WHEN p = 'p0' THEN 'p3' ELSE 'p0' END"})
    expected = [(i, "p3" if i % 4 == 0 else "p0") for i in range(8)]
    assert rows(connection, "SELECT * FROM t ORDER BY 1") == expected


def test_a_table_that_is_made_anew_stalls_the_source(connection, lake):
    append(lake, 0, 2)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    shutil.rmtree(lake)
    now, reason = state(connection)
    assert (now, reason) == ("stalled", f'there is no Delta table "{lake}"')
    append(lake, 10, 2)
    append(lake, 12, 2)
    assert ids(connection) == [0, 1]
    now, reason = state(connection)
    assert (now, reason) == ("stalled", f'Delta table "{lake}" was made anew: version 0 is another one')


def test_versions_that_are_gone_from_the_log_stall_the_source(connection, lake):
    append(lake, 0, 2)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    for i in range(3):
        append(lake, 2 + i, 1)
    DeltaTable(lake).create_checkpoint()
    for version in range(3):
        (lake / "_delta_log" / f"{version:020}.json").unlink()
    now, reason = state(connection)
    assert (now, reason) == ("stalled", f'versions 1 to 3 of Delta table "{lake}" are not all in its log any more')


def test_a_data_file_that_is_gone_stalls_the_source(connection, lake):
    append(lake, 0, 2)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    append(lake, 2, 1)
    (name,) = [p for p in DeltaTable(lake).file_uris() if Path(p).stat().st_size and _first_id(p) == 2]
    content = Path(name).read_bytes()
    Path(name).unlink()
    now, reason = state(connection)
    assert now == "stalled"
    assert "is gone, as VACUUM and the expiry of snapshots remove those of old versions" in reason
    Path(name).write_bytes(content)
    assert ids(connection) == [0, 1, 2]
    assert state(connection) == ("running", None)
    Path(name).unlink()
    with pytest.raises(Error, match="what a source has read can't be read once more: data file"):
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM s; FLUSH")


def _first_id(path):
    return pa.parquet.read_table(path).column("id")[0].as_py()


def test_new_columns_come_with_refresh_schema(connection, lake):
    append(lake, 0, 1)
    create(connection, lake)
    wider = numbers(1, 1).append_column("more", pa.array(["m"]))
    write_deltalake(lake, wider, mode="append", schema_mode="merge")
    assert rows(connection) == [(0, "n0"), (1, "n1")]
    connection.execute("ALTER SOURCE s REFRESH SCHEMA")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT * FROM s")
    write_deltalake(lake, wider, mode="append")
    assert rows(connection, "SELECT * FROM w ORDER BY 1") == [(0, "n0", None), (1, "n1", "m"), (1, "n1", "m")]
    # Files without any of the columns that are read have rows, too.
    connection.execute(f"CREATE SOURCE m (more varchar) WITH (connector = 'delta', location = '{lake}')")
    connection.execute("CREATE MATERIALIZED VIEW o AS SELECT more FROM m")
    assert rows(connection, "SELECT more FROM o ORDER BY 1 NULLS FIRST") == [(None,), ("m",), ("m",)]


def commit(lake, version, *actions):
    text = "\n".join(json.dumps(action) for action in actions)
    (lake / "_delta_log" / f"{version:020}.json").write_text(text)


VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 1,
}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["variantType"]}},
            "variantType",
        ),
        (
            {
                "metaData": {
                    "id": "x",
                    "schemaString": '{"type":"struct","fields":[]}',
                    "configuration": {"delta.columnMapping.mode": "name"},
                }
            },
            "column mapping",
        ),
        (
            {"metaData": {"id": "x", "schemaString": '{"type":"struct","fields":[]}', "configuration": {}}},
            'column "id" is no longer there',
        ),
        (
            {
                "add": {
                    "path": "x.parquet",
                    "partitionValues": {},
                    "size": 9,
                    "dataChange": True,
                    "deletionVector": VECTOR,
                }
            },
            "deletion vectors",
        ),
    ],
    ids=["feature", "mapping", "column", "vector"],
)
def test_what_can_not_be_read_stalls_the_source(connection, lake, action, reason):
    append(lake, 0, 2)
    create(connection, lake)
    assert ids(connection) == [0, 1]
    commit(lake, 1, {"commitInfo": {}}, action)
    now, why = state(connection)
    assert now == "stalled"
    assert reason in why


def test_features_that_are_lacking_are_refused_by_create(connection, lake):
    append(lake, 0, 2)
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    first = [json.loads(line) for line in (lake / "_delta_log" / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = [a["metaData"] for a in first if "metaData" in a]
    metadata["configuration"] |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    metadata["schemaString"] = json.dumps(schema)
    commit(lake, 1, {"protocol": protocol}, {"metaData": metadata})
    err = refused(connection, f"CREATE SOURCE s WITH (connector = 'delta', location = '{lake}')")
    assert err.condition == "FEATURE_NOT_SUPPORTED"
    assert "column mapping" in err.message


def test_values_that_do_not_fit_are_dead_letters(connection, lake):
    write_deltalake(lake, pa.table({"id": pa.array([1, 1 << 40], pa.int64()), "p": ["1", "x"]}), partition_by=["p"])
    create(connection, lake, columns="(id int, p varchar)")
    assert ids(connection) == [1]
    (letter,) = connection.execute("SHOW DEAD LETTERS").fetchall()
    assert 'column "id"' in str(letter)
