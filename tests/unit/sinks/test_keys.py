"""Keys of upsert sinks, one contract for all targets: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, and an empty
text is not NULL. A target that can't store such a key refuses the row by name.
"""

from __future__ import annotations

import decimal
import itertools
import json
import math

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.unit.sinks import databasetargets, test_clickhouse, test_iceberg, test_redis
from tests.unit.sinks.test_kafka import messages
from tests.unit.sinks.test_kafka import sink_sql as kafka_sql

from watersmeet.connectors.registry import SINKS
from watersmeet.errors import Error

FLOATS = (math.nan, -0.0, math.inf, 1.5, None)
TEXTS = ("", " ", "null", "NaN", None)


class Files:
    def __init__(self, path):
        self._path = path / "files"

    def sql(self, kind):
        del kind
        options = f"connector = 'fs', fs.path = '{self._path}', type = 'upsert', primary_key = 'k'"
        return f"WITH ({options}) FORMAT UPSERT ENCODE PARQUET"

    def rows(self):
        newest = (
            f"SELECT k, v, __op FROM '{self._path}/**/*.parquet' "
            "QUALIFY row_number() OVER (PARTITION BY k ORDER BY __commit DESC) = 1"
        )
        return duckdb.sql(f"SELECT k, v FROM ({newest}) WHERE __op <> 2").fetchall()


class Delta:
    partition = ""

    def __init__(self, path):
        self._path = path / "delta"

    def sql(self, kind):
        del kind
        return (
            f"WITH (connector = 'deltalake', location = '{self._path}', type = 'upsert', primary_key = 'k', "
            f"create_table_if_not_exists = 'true'{self.partition})"
        )

    def rows(self):
        return [(r["k"], r["v"]) for r in pa.table(DeltaTable(str(self._path)).to_pyarrow_table()).to_pylist()]


class Iceberg:
    def __init__(self, path):
        self._path = path

    def sql(self, kind):
        del kind
        listed = ", ".join(f"{n} = '{v}'" for n, v in test_iceberg.options(self._path).items())
        return f"WITH ({listed}, type = 'upsert', primary_key = 'k')"

    def rows(self):
        return test_iceberg.content(self._path)


class Kafka:
    def __init__(self, broker, name):
        self._broker, self._name = broker, name

    def sql(self, kind):
        del kind
        text = kafka_sql(self._broker, self._name, more=", primary_key = 'k'")
        return text[text.index("WITH (") :]

    def rows(self):
        kept = {key: value for _, key, value in messages(self._broker, self._name)}
        keys = [json.loads(key)["k"] for key, value in kept.items() if value is not None]
        values = [json.loads(value)["v"] for value in kept.values() if value is not None]
        return [*zip(keys, values, strict=True)]


class Database:
    """A table with a unique index over a column that may be NULL."""

    def __init__(self, server, floats, texts):
        self._server, self._types = server, {"double precision": floats, "varchar": texts}

    def sql(self, kind):
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE kept (k {self._types[kind]} UNIQUE, v text)")
            connection.commit()
        return f"WITH ({databasetargets.written_options(self._server)}, type = 'upsert', primary_key = 'k')"

    def rows(self):
        return databasetargets.content(self._server)


class Redis:
    def __init__(self, database):
        self._database = database

    def sql(self, kind):
        del kind
        options = f"connector = 'redis', redis.url = '{self._database.url}', type = 'upsert', primary_key = 'k'"
        return f"WITH ({options})"

    def rows(self):
        return [(row["k"], row["v"]) for row in map(json.loads, test_redis.strings(self._database).values())]


class ClickHouse:
    def __init__(self, database):
        self._database = database

    def sql(self, kind):
        del kind
        self._database.execute(
            "CREATE TABLE kept (k String, v String, version UInt64 DEFAULT 1, gone UInt8) "
            "ENGINE = ReplacingMergeTree(version, gone) ORDER BY k"
        )
        listed = ", ".join(f"{n} = '{v}'" for n, v in test_clickhouse.options_of(self._database).items())
        return f"WITH ({listed}, type = 'upsert', primary_key = 'k')"

    def rows(self):
        return [tuple(row) for row in self._database.execute("SELECT k, v FROM kept FINAL WHERE gone = 0")]


def _made(name, request, tmp_path):
    match name:
        case "redis":
            return Redis(request.getfixturevalue("redis"))
        case "clickhouse":
            return ClickHouse(request.getfixturevalue("clickhouse"))
        case "kafka":
            return Kafka(request.getfixturevalue("broker"), request.getfixturevalue("topic")(1))
        case "postgres":
            return Database(request.getfixturevalue("postgres"), "float8", "text")
        case "mysql":
            return Database(request.getfixturevalue("mysql"), "double", "varchar(10) COLLATE utf8mb4_nopad_bin")
    return {"files": Files, "delta": Delta, "iceberg": Iceberg}[name](tmp_path)


def shown_key(name, key):
    """A key as the target shows it: JSON has no NaN, infinities and one zero."""
    if isinstance(key, float):
        key = key + 0.0
        if name == "kafka" and not math.isfinite(key):
            return {"nan": "NaN", "inf": "Infinity"}[str(key)]
    return key


SERVERS = {
    "kafka": pytest.mark.kafka,
    "postgres": pytest.mark.postgres,
    "mysql": pytest.mark.mysql,
    "files": (),
    "delta": (),
    "iceberg": (),
}
TARGETS = [pytest.param(name, marks=marks) for name, marks in SERVERS.items()]
#: Targets that take no NULL in a key, and types whose special values they lack.
WITHOUT_NULL = ("postgres", "mysql")


#: Connectors that write as another one does: into a store of files, or with a server of databases.
ALIKE = {
    "fs": "files", "file": "files", "posix_fs": "files", "s3": "files", "gcs": "files", "azblob": "files",
    "jdbc": "postgres", "postgresql": "postgres", "deltalake": "delta",
}  # fmt: skip
#: Connectors that only append, or drop all rows.
WITHOUT_KEYS = {"blackhole", "kinesis", "mqtt", "nats", "rotating_file"}
KEYED = [*TARGETS, pytest.param("redis"), pytest.param("clickhouse")]


#: Those of Watersmeet: tests add others later.
CONNECTORS = frozenset(SINKS)


def test_each_connector_is_here():
    """Kinesis, MQTT and NATS have sinks of type append-only, whose keys may repeat."""
    assert {ALIKE.get(name, name) for name in CONNECTORS} - WITHOUT_KEYS == {k.values[0] for k in KEYED}


@pytest.mark.parametrize("name", KEYED)
def test_a_shared_key_is_refused_and_stops_the_sink(name, connect, settle, shown, request, tmp_path):
    """The target never has one of several rows. Sinks INTO tables are in `property/test_sink_keys`."""
    target, connection = _made(name, request, tmp_path), connect()
    connection.execute("CREATE TABLE t (n int PRIMARY KEY, k varchar, v varchar)")
    connection.execute("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'a', 'y'), (3, 'b', 'z')")
    connection.flush()
    create = f"CREATE SINK s AS SELECT k, v FROM t {target.sql('varchar')}"
    with pytest.raises(Error) as refused:
        connection.execute(create)
    assert refused.value.condition == "UNIQUE_VIOLATION"
    assert refused.value.message == '2 rows of sink "s" share its key: (k) = (a)'
    connection.execute("DELETE FROM t WHERE n = 2")
    connection.execute(create)
    settle(connection)
    assert sorted(target.rows()) == [("a", "x"), ("b", "z")]
    connection.execute("INSERT INTO t VALUES (4, 'b', 'w')")
    settle(connection)
    assert shown(connection)["s"]["state"] == "stopped"
    assert '2 rows of sink "s" share its key: (k) = (b)' in shown(connection)["s"]["detail"]
    assert sorted(target.rows()) == [("a", "x"), ("b", "z")]
    connection.execute("DELETE FROM t WHERE n = 3")
    connection.flush()
    connection.execute("ALTER SINK s START")
    settle(connection)
    assert shown(connection)["s"]["state"] == "running"
    assert sorted(target.rows()) == [("a", "x"), ("b", "w")]


@pytest.mark.parametrize("kind", ["double precision", "varchar"])
@pytest.mark.parametrize("name", TARGETS)
def test_rows_are_replaced_and_deleted_by_every_key(name, kind, connect, settle, shown, request, tmp_path):
    keys = FLOATS if kind == "double precision" else TEXTS
    if name in WITHOUT_NULL:
        keys = keys[:-1]
    if name == "mysql":
        keys = [k for k in keys if not isinstance(k, float) or math.isfinite(k)]
    target, connection = _made(name, request, tmp_path), connect()
    connection.execute(f"CREATE TABLE t (n int PRIMARY KEY, k {kind}, v varchar)")
    for n, key in enumerate(keys):
        connection.execute("INSERT INTO t VALUES ($1, $2, 'a')", (n, key))
    connection.execute(f"CREATE SINK s AS SELECT k, v FROM t {target.sql(kind)}")
    settle(connection)

    def check(wanted):
        settle(connection)
        assert shown(connection)["s"]["state"] == "running", shown(connection)["s"]["detail"]
        found = sorted(((repr(k), v) for k, v in target.rows()))
        assert found == sorted((repr(shown_key(name, k)), v) for k, v in wanted)

    check([(k, "a") for k in keys])
    connection.execute(
        "UPDATE t SET v = 'b', k = CASE WHEN k = 0 THEN 0.0 ELSE k END" if kind != "varchar" else "UPDATE t SET v = 'b'"
    )
    check([(k, "b") for k in keys])
    for n in range(0, len(keys), 2):
        connection.execute("DELETE FROM t WHERE n = $1", (n,))
    check([(k, "b") for k in keys[1::2]])
    connection.execute("DELETE FROM t")
    check([])


@pytest.mark.parametrize("name", [pytest.param(n, marks=SERVERS[n]) for n in WITHOUT_NULL])
def test_databases_refuse_null_in_a_key(name, connect, settle, shown, request, tmp_path):
    target, connection = _made(name, request, tmp_path), connect()
    connection.execute("CREATE TABLE t (n int PRIMARY KEY, k varchar, v varchar)")
    connection.execute(f"CREATE SINK s AS SELECT k, v FROM t {target.sql('varchar')}")
    connection.execute("INSERT INTO t VALUES (1, NULL, 'a')")
    settle(connection)
    assert shown(connection)["s"]["state"] == "stopped"
    assert 'NULL in column "k"' in shown(connection)["s"]["detail"]
    assert target.rows() == []


@pytest.mark.kafka
def test_kafka_refuses_a_message_without_a_key(connect, settle, shown, broker, topic):
    connection, name = connect(), topic(1)
    connection.execute("CREATE TABLE t (n int PRIMARY KEY, k varchar, v varchar)")
    form = kafka_sql(broker, name, source="AS SELECT k, v FROM t", more=", primary_key = 'k'")
    connection.execute(f"{form} KEY ENCODE TEXT")
    connection.execute("INSERT INTO t VALUES (1, '', 'a')")
    settle(connection)
    connection.execute("INSERT INTO t VALUES (2, NULL, 'b')")
    settle(connection)
    assert "a row has NULL as its key" in shown(connection)["s"]["detail"]
    assert [key for _, key, _ in messages(broker, name)] == [b""]


NOT_OF_DELTA = ("numeric(10,1)", "numeric", "real", "double precision", "bytea")
NOT_OF_ICEBERG = ("real", "double precision")


@pytest.mark.parametrize(
    ("target", "kind"), [*itertools.product([Delta], NOT_OF_DELTA), *itertools.product([Iceberg], NOT_OF_ICEBERG)]
)
def test_partition_columns_that_lose_values_are_refused(target, kind, connect, tmp_path):
    connection = connect()
    connection.execute(f"CREATE TABLE t (n int PRIMARY KEY, k {kind}, v varchar)")
    sql = target(tmp_path).sql(kind).removesuffix(")") + ", partition_by = 'k')"
    with pytest.raises(Error, match='can\'t be partitioned by column "k"'):
        connection.execute(f"CREATE SINK s AS SELECT k, v FROM t {sql}")


def test_a_partition_of_negative_decimals_can_be_read(connect, settle, tmp_path):
    target, connection = Delta(tmp_path), connect()
    target.partition = ", partition_by = 'p'"
    connection.execute("CREATE TABLE t (k numeric(10,1) PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t VALUES (-0.5, 'a')")
    connection.execute(f"CREATE SINK s AS SELECT k, v, k::varchar AS p FROM t {target.sql('')}")
    settle(connection)
    assert target.rows() == [(decimal.Decimal("-0.5"), "a")]


def test_an_empty_text_in_a_partition_column_of_delta_is_refused(connect, settle, shown, tmp_path):
    target, connection = Delta(tmp_path), connect()
    target.partition = ", partition_by = 'v'"
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t VALUES (1, NULL)")
    connection.execute(f"CREATE SINK s FROM t {target.sql('')}")
    settle(connection)
    assert target.rows() == [(1, None)]
    connection.execute("INSERT INTO t VALUES (2, '')")
    settle(connection)
    assert "empty text in partition column" in shown(connection)["s"]["detail"]
    assert target.rows() == [(1, None)]
