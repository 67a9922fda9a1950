"""External tables and dictionaries over the engine of ClickHouse, read and written."""

from __future__ import annotations

import datetime as dt
import random
import socket
import threading
from decimal import Decimal

import pytest
from scripts.servers.clickhouse import PASSWORD, USER

import watersmeet
from watersmeet.catalog import External
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.clickhouse.client import ClickhouseReader, clickhouse_type
from watersmeet.errors import Error
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.system import process

ENGINE = "ENGINE = MergeTree ORDER BY tuple()"


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        yield connection


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    process.set_hook(None)


def table(connection, clickhouse, name="t", columns="", more=""):
    connection.execute(f"CREATE EXTERNAL TABLE {name} {columns} SETTINGS {clickhouse.settings}, table='{name}'{more}")


def rows(connection, query):
    return connection.execute(query).fetchall()


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    assert PASSWORD not in repr(found.value) + str(found.value)
    return found.value


def delivered(connection):
    connection.execute("FLUSH")
    session = connection._session
    for relation in session.catalog.relations.values():
        assert session.database.service(SinkWriters).wait(relation.id, 60)


def source(clickhouse, more):
    where = f"HOST '127.0.0.1' PORT {clickhouse.server.port} USER '{USER}' PASSWORD '{PASSWORD}' DB '{clickhouse.name}'"
    return f"SOURCE(CLICKHOUSE({where} {more}))"


def test_columns_and_values_are_those_of_the_table(opened, clickhouse):
    clickhouse.execute(
        "CREATE TABLE t (i Int32, i8 Int8, u8 UInt8, u16 UInt16, u32 UInt32, u64 UInt64, f Float32, d Float64, "
        "n Decimal(38, 10), s String, ns Nullable(String), lc LowCardinality(Nullable(String)), fs FixedString(4), "
        "u UUID, e Enum8('sad' = -1, 'o,k)' = 2), ip4 IPv4, ip6 IPv6, b Bool, day Date, day32 Date32, "
        "t DateTime('Asia/Tokyo'), t3 DateTime64(3), t6 DateTime64(6, 'Europe/Berlin'), "
        "l Array(Nullable(UInt64)), ls Array(String), m Map(String, Int64), tu Tuple(a Int8, b String), j JSON) "
        + ENGINE
    )
    clickhouse.execute(
        "INSERT INTO t VALUES (1, -128, 255, 65535, 4294967295, 18446744073709551615, 1.2345678, 0.1, "
        "'1234567890123456789012345678.0123456789', 'a \"b\", \\\\c\\n\\'d\\'\\t', NULL, 'x', 'ab', "
        "'00000000-0000-0000-0000-00000000002a', 'o,k)', '1.2.3.4', '::1', true, '2149-06-06', '1900-01-01', "
        "toDateTime('2024-02-29 12:00:00', 'UTC'), toDateTime64('2024-02-29 12:00:00.123', 3, 'UTC'), "
        "toDateTime64('2024-07-01 12:00:00.123456', 6, 'UTC'), [18446744073709551615, NULL], ['x', 'y\"'], {'k': 5}, "
        "(1, 'z'), '{\"a\": {\"b\": [1, 2]}}')"
    )
    clickhouse.execute("INSERT INTO t (i, s, ns) VALUES (2, '', '')")
    table(opened, clickhouse)
    first, second = rows(opened, "SELECT * FROM t ORDER BY i")
    assert first[:6] == (1, -128, 255, 65535, 4294967295, Decimal(18446744073709551615))
    assert first[6:9] == (
        pytest.approx(1.2345678, rel=1e-7),
        0.1,
        Decimal("1234567890123456789012345678.0123456789"),
    )
    assert first[9:13] == ("a \"b\", \\c\n'd'\t", None, "x", "ab")
    assert first[13:18] == ("00000000-0000-0000-0000-00000000002a", "o,k)", "1.2.3.4", "::1", True)
    assert first[18:23] == (
        dt.date(2149, 6, 6),
        dt.date(1900, 1, 1),
        dt.datetime(2024, 2, 29, 12),
        dt.datetime(2024, 2, 29, 12, 0, 0, 123000),
        dt.datetime(2024, 7, 1, 12, 0, 0, 123456),
    )
    assert first[23:] == (
        [Decimal(18446744073709551615), None],
        ["x", 'y"'],
        {"k": 5},
        {"a": 1, "b": "z"},
        {"a": {"b": [1, 2]}},
    )
    assert second[9:13] == ("", "", None, "")


def test_maps_are_maps_or_json(opened, clickhouse):
    columns = "m Map(String, Int64), n Map(UInt8, Array(String)), a Array(Map(String, String))"
    clickhouse.execute(f"CREATE TABLE t ({columns}) {ENGINE}")
    clickhouse.execute("INSERT INTO t VALUES ({'k': 5, 'l': 6}, {1: ['x']}, [{'a': 'b'}])")
    table(opened, clickhouse)
    assert rows(opened, "SELECT m['k'], m['none'], map_keys(m), n[1] FROM t") == [(5, 0, ["k", "l"], ["x"])]
    assert rows(opened, "SELECT a[1]['a'] FROM t") == [("b",)]
    opened.execute("DROP EXTERNAL TABLE t")
    table(opened, clickhouse, columns="(m json)")
    assert rows(opened, "SELECT m FROM t") == [({"k": 5, "l": 6},)]


def test_types_without_an_equivalent_are_named(opened, clickhouse):
    clickhouse.execute(f"CREATE TABLE t (i Int32, big Int256, t DateTime64(9, 'UTC')) {ENGINE}")
    clickhouse.execute(f"INSERT INTO t VALUES (1, {2**200}, '2024-01-01 00:00:00.123456789')")
    found = refused(opened, f"CREATE EXTERNAL TABLE t SETTINGS {clickhouse.settings}")
    assert (found.condition, '"big"' in found.message, "Int256" in found.message) == ("CONNECTOR_OPTION", True, True)
    table(opened, clickhouse, columns="(i int, big string, t string)")
    assert rows(opened, "SELECT * FROM t") == [(1, str(2**200), "2024-01-01 00:00:00.123456789")]


def test_bytes_that_are_no_text_are_an_error(opened, clickhouse):
    clickhouse.execute(f"CREATE TABLE t (s String) {ENGINE}")
    clickhouse.execute("INSERT INTO t SELECT unhex('ff')")
    assert refused(opened, f"CREATE EXTERNAL TABLE t SETTINGS {clickhouse.settings}").condition == "INVALID_VALUE"


def test_a_select_shows_what_was_changed_there_and_reads_again_only_then(opened, clickhouse, monkeypatch):
    reads = []
    plain = ClickhouseReader.read

    def counted(self, *given):
        reads.append(self)
        return plain(self, *given)

    monkeypatch.setattr(ClickhouseReader, "read", counted)
    clickhouse.execute(f"CREATE TABLE t (i Int32, v String) {ENGINE}")
    clickhouse.execute("INSERT INTO t VALUES (1, 'a'), (1, 'a')")
    table(opened, clickhouse)
    assert rows(opened, "SELECT i, v FROM t") == [(1, "a"), (1, "a")]
    assert len(reads) == 1
    for change, content in (
        ("INSERT INTO t VALUES (2, 'b')", [(1, "a"), (1, "a"), (2, "b")]),
        ("ALTER TABLE t UPDATE v = 'c' WHERE i = 2 SETTINGS mutations_sync = 2", [(1, "a"), (1, "a"), (2, "c")]),
        ("DELETE FROM t WHERE i = 1", [(2, "c")]),
        ("TRUNCATE TABLE t", []),
        ("INSERT INTO t VALUES (3, 'd')", [(3, "d")]),
        ("DROP TABLE t SYNC", None),
        (f"CREATE TABLE t (i Int32, v String DEFAULT 'e') {ENGINE}", []),
        ("INSERT INTO t (i) VALUES (3)", [(3, "e")]),
    ):
        clickhouse.execute(change)
        if content is None:
            assert refused(opened, "SELECT * FROM t").condition == "UNDEFINED_OBJECT"
            continue
        before = len(reads)
        assert sorted(rows(opened, "SELECT i, v FROM t")) == content, change
        assert sorted(rows(opened, "SELECT i, v FROM t")) == content
        assert len(reads) == before + 1, change
    clickhouse.execute("CREATE VIEW twice AS SELECT i * 2 AS i FROM t")
    table(opened, clickhouse, "twice")
    before = len(reads)
    assert rows(opened, "SELECT * FROM twice") == rows(opened, "SELECT * FROM twice") == [(6,)]
    assert len(reads) == before + 2  # of a view nothing says whether it changed


def test_dictionaries(opened, clickhouse):
    clickhouse.execute(f"CREATE TABLE t (k UInt64, v String) {ENGINE}")
    clickhouse.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    for name, more in (
        ("d", "TABLE 't'"),
        ("w", "TABLE 't' WHERE 'k < 3'"),
        ("q", "QUERY 'SELECT k, concat(v, v) AS v FROM t' INVALIDATE_QUERY 'SELECT max(k) FROM t'"),
    ):
        opened.execute(
            f"CREATE DICTIONARY {name}(k uint64, v string) PRIMARY KEY k {source(clickhouse, more)} "
            "LAYOUT(HASHED()) LIFETIME(1)"
        )
    assert rows(opened, "SELECT dict_get('d', 'v', 3), dict_get('w', 'v', 3), dict_get('q', 'v', 3)") == [
        ("c", "", "cc")
    ]
    opened.execute("CREATE STREAM s(k uint64)")
    opened.execute("CREATE MATERIALIZED VIEW found AS SELECT s.k AS k, d.v AS v FROM s JOIN d ON s.k = d.k")
    clickhouse.execute("INSERT INTO t VALUES (4, 'd')")
    opened.execute("INSERT INTO s(k) VALUES (1), (4), (5); FLUSH")
    assert sorted(rows(opened, "SELECT k, v FROM table(found)")) == [(1, "a"), (4, "d")]
    ((_, text),) = rows(opened, "SHOW CREATE DICTIONARY d")
    assert PASSWORD not in text + repr(opened._session.catalog.relations)


@pytest.mark.parametrize(
    ("changed", "condition", "words"),
    [
        (("password='", "password='x"), "CONNECTOR_OPTION", "does not let user"),
        (("user='", "user='x"), "CONNECTOR_OPTION", "does not let user"),
        (("database='", "database='x"), "CONNECTOR_OPTION", "there is no database"),
        (("table='", "table='x"), "UNDEFINED_OBJECT", "there is no table"),
        (("database='", "schema='x', database='"), "CONNECTOR_OPTION", '"schema"'),
        (("type=", "secure=true, type="), "CONNECTOR_OPTION", "no TLS connection"),
        (("127.0.0.1:", "127.0.0.1:9000', x='"), "CONNECTOR_OPTION", ""),
        (("user='", "user='a:"), "CONNECTOR_OPTION", "colon"),
    ],
)
def test_what_is_wrong_is_said(opened, clickhouse, changed, condition, words):
    clickhouse.execute(f"CREATE TABLE t (i Int32) {ENGINE}")
    settings = f"{clickhouse.settings}, table='t'".replace(*changed)
    found = refused(opened, f"CREATE EXTERNAL TABLE t SETTINGS {settings}")
    assert (found.condition, words in found.message) == (condition, True), found
    assert rows(opened, "SHOW TABLES") == []


def test_the_port_of_another_protocol_is_named(opened):
    found = refused(opened, "CREATE EXTERNAL TABLE t SETTINGS type='clickhouse', address='127.0.0.1:9440'")
    assert (found.condition, "8443" in found.hint) == ("CONNECTOR_OPTION", True)


def test_a_missing_right_says_which_grant(opened, clickhouse):
    found = refused(
        opened,
        f"CREATE EXTERNAL TABLE t(name string) SETTINGS {clickhouse.settings}, table='users'".replace(
            clickhouse.name, "system"
        ),
    )
    assert (found.condition, "may not do that" in found.message) == ("CONNECTOR_OPTION", True)
    assert found.hint == f"The owner has to give the right: GRANT SHOW USERS ON *.* TO {USER}."


def test_a_server_that_is_away_or_another_one(opened, own_clickhouse):
    own_clickhouse.execute(f"CREATE TABLE t (i Int32) {ENGINE}")
    own_clickhouse.execute("INSERT INTO t VALUES (1)")
    table(opened, own_clickhouse)
    own_clickhouse.server.kill()
    found = refused(opened, "SELECT * FROM t")
    assert (found.condition, "can't be reached" in found.message) == ("RUNTIME_UNAVAILABLE", True)
    own_clickhouse.server.start()
    assert rows(opened, "SELECT * FROM t") == [(1,)]
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            with other.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\nSomething")

        thread = threading.Thread(target=answer)
        thread.start()
        port = other.getsockname()[1]
        found = refused(opened, f"CREATE EXTERNAL TABLE u SETTINGS type='clickhouse', address='127.0.0.1:{port}'")
        thread.join()
    assert (found.detail, "does not answer as" in found.message) == ("Something", True)


def test_types_are_read():
    for text, name, parts, nullable in (
        ("Nullable(Decimal(10, 2))", "Decimal", ("10", "2"), True),
        ("LowCardinality(Nullable(String))", "String", (), True),
        ("SimpleAggregateFunction(sum, UInt64)", "UInt64", (), False),
        ("Enum8('a,(' = 1, 'b\\')' = 2)", "Enum8", ("'a,(' = 1", "'b\\')' = 2"), False),
        ("Map(String, Array(Tuple(a Int8, b Int8)))", "Map", ("String", "Array(Tuple(a Int8, b Int8))"), False),
    ):
        found = clickhouse_type(text)
        assert (found.name, found.parts, found.nullable) == (name, parts, nullable)


WRITTEN = (
    "i int32, l int64, u uint64, n nullable(decimal(20, 5)), f float64, s string, e string, d date, t datetime64(6), "
    "b bool, a array(int32), j json"
)
THERE = (
    "i Int32, l Int64, u UInt64, n Nullable(Decimal(30, 6)), f Float64, s String, e LowCardinality(String), d Date, "
    "t DateTime64(6, 'Asia/Tokyo'), b Bool, a Array(Nullable(Int32)), j JSON, more String DEFAULT 'more'"
)
FIRST = "(1, 9223372036854775807, 18446744073709551615, 123456789012345.12345, 0.1, 'a\"\\t\\n', 'x', '2149-06-06', "
VALUES = (
    f"{FIRST} '2024-02-29 12:00:00.123456', true, [1, 2], '{{\"a\": 1}}')",
    "(2, -1, 0, NULL, -1.5, '', '', '1970-01-01', '1900-01-01 00:00:00', false, [], '{}')",
)


def test_what_is_written_is_there(opened, clickhouse):
    clickhouse.execute(f"CREATE TABLE t ({THERE}) {ENGINE} PARTITION BY i")
    table(opened, clickhouse)
    names = ", ".join(c.split()[0] for c in WRITTEN.replace("(20, 5)", "").split(", "))
    opened.execute(f"CREATE STREAM s({WRITTEN})")
    opened.execute(f"CREATE MATERIALIZED VIEW v INTO t AS SELECT {names} FROM s")
    opened.execute(f"INSERT INTO s({names}) VALUES {', '.join(VALUES)}")
    delivered(opened)
    expected = rows(opened, f"SELECT {names} FROM table(s) ORDER BY i")
    assert rows(opened, f"SELECT {names} FROM t ORDER BY i") == expected
    opened.execute(f"INSERT INTO t({names}) VALUES {VALUES[0]}")
    opened.execute(f"INSERT INTO t({names}) VALUES {VALUES[0]}")
    assert clickhouse.execute("SELECT i, more, count() FROM t GROUP BY i, more ORDER BY i") == [
        ["1", "more", "3"],
        ["2", "more", "1"],
    ]


@pytest.mark.parametrize(
    ("here", "there", "value"),
    [
        ("int32", "Int8", "128"),
        ("int32", "UInt32", "-1"),
        ("int64", "Nullable(UInt16)", "65536"),
        ("date", "Date", "'1969-12-31'"),
        ("date", "Date32", "'2300-01-01'"),
        ("datetime64(6)", "DateTime64(6)", "'1899-12-31 00:00:00'"),
        ("nullable(string)", "String", "NULL"),
    ],
)
def test_a_value_that_would_change_is_refused(opened, clickhouse, here, there, value):
    clickhouse.execute(f"CREATE TABLE t (v {there}) {ENGINE}")
    table(opened, clickhouse, columns=f"(v {here})")
    assert refused(opened, f"INSERT INTO t VALUES ({value})").condition == "DELIVERY_REFUSED"
    assert clickhouse.execute("SELECT count() FROM t") == [["0"]]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("datetime64(6)", "DateTime"),
        ("datetime64(6)", "DateTime64(3)"),
        ("decimal(10, 5)", "Decimal(10, 2)"),
        ("float64", "Float32"),
        ("string", "Int32"),
        ("array(int32)", "Array(Int32)"),
        ("int32", "Int32 ALIAS 5"),
        ("int32", "Int32 MATERIALIZED 5"),
    ],
)
def test_columns_that_do_not_take_all_values_are_refused(opened, clickhouse, here, there):
    clickhouse.execute(f"CREATE TABLE t (v {there}, w Int8) {ENGINE}")
    opened.execute(f"CREATE EXTERNAL TABLE t (v {here}) SETTINGS {clickhouse.settings}")
    opened.execute(f"CREATE STREAM s(v {here})")
    found = refused(opened, "CREATE MATERIALIZED VIEW m INTO t AS SELECT v FROM s")
    assert (found.condition, '"v"' in found.message) == ("DATATYPE_MISMATCH", True)


@pytest.mark.parametrize("seed", range(2))
def test_a_view_writes_each_row_once_where_tokens_are_kept(tmp_path, clickhouse, seed):
    settings = "SETTINGS non_replicated_deduplication_window = 1000"
    clickhouse.execute(f"CREATE TABLE out (i Int32, v String) {ENGINE} PARTITION BY i % 3 {settings}")
    r = random.Random(seed)

    def fail(point):
        if point.startswith(("clickhouse.", "sink.")) and r.random() < 0.08:
            raise Unavailable("it failed")

    def connect():
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=2)

    connection = connect()
    table(connection, clickhouse, "out")
    connection.execute("CREATE STREAM s(i int32)")
    connection.execute("CREATE MATERIALIZED VIEW m INTO out AS SELECT i, 'same' AS v FROM s")
    process.set_hook(fail)
    for i in range(20):
        connection.execute(f"INSERT INTO s (i) VALUES ({i}), ({i + 1})")
        if r.random() < 0.3:
            connection.execute("FLUSH")
        if r.random() < 0.2:
            connection.close()
            connection = connect()
    process.set_hook(None)
    delivered(connection)
    expected = sorted([i for i in range(20)] + [i + 1 for i in range(20)])
    assert [int(i) for (i,) in clickhouse.execute("SELECT i FROM out ORDER BY i")] == expected
    connection.close()


def test_statements_that_change_rows_are_refused(opened, clickhouse):
    clickhouse.execute(f"CREATE TABLE t (i Int32, v String) {ENGINE}")
    table(opened, clickhouse)
    for statement in ("UPDATE t SET v = 'x' WHERE i = 1", "DELETE FROM t WHERE i = 1"):
        assert refused(opened, statement).condition == "FEATURE_NOT_SUPPORTED"


def test_risingwave_sinks(tmp_path, clickhouse):
    clickhouse.execute(f"CREATE TABLE t (i Int32, at DateTime64(6)) {ENGINE}")
    where = (
        f"connector = 'clickhouse', clickhouse.url = '{clickhouse.server.url}', clickhouse.user = '{USER}', "
        f"clickhouse.password = '{PASSWORD}', clickhouse.database = '{clickhouse.name}', clickhouse.table = 't'"
    )
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE s (i int, at timestamptz) APPEND ONLY")
        connection.execute(f"CREATE SINK k FROM s WITH ({where}, type = 'append-only')")
        connection.execute("INSERT INTO s VALUES (1, '2024-01-01 00:00:00+00'), (2, '2024-01-01 00:00:00.5+00')")
        delivered(connection)
        assert clickhouse.execute("SELECT i, toString(at, 'UTC') FROM t ORDER BY i") == [
            ["1", "2024-01-01 00:00:00.000000"],
            ["2", "2024-01-01 00:00:00.500000"],
        ]
        found = refused(connection, f"CREATE SINK u FROM s WITH ({where}, type = 'upsert', primary_key = 'i')")
        assert (found.condition, "which keeps all rows" in found.message) == ("CONNECTOR_OPTION", True)
        ((_, text),) = rows(connection, "SHOW CREATE SINK k")
        assert PASSWORD not in text + repr(connection._session.catalog.relations)


def test_a_reader_needs_no_columns(clickhouse):
    clickhouse.execute(f"CREATE TABLE t (i Int32) {ENGINE}")
    options = {
        "address": f"127.0.0.1:{clickhouse.server.port}",
        "user": USER,
        "password": PASSWORD,
        "database": clickhouse.name,
    }
    assert [c.name for c in ClickhouseReader(External("clickhouse", "t", options)).columns()] == ["i"]
