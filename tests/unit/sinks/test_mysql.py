"""A table of MariaDB as a target: its types, its shape, and keys that its collations hold for equal. A real server."""

import datetime as dt
import decimal

import pytest
from scripts.servers.mariadb import PASSWORD
from tests.unit.sinks.batches import batch
from tests.unit.sinks.databasetargets import (
    KEYED,
    content,
    keep_a_join,
    selected,
    target,
    written_options,
)

import watersmeet
import watersmeet.connectors.mysql.target
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import SinkOffset
from watersmeet.errors import Error
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

pytestmark = pytest.mark.mysql

EVERYTHING = (
    (Field("id", BIGINT), "bigint PRIMARY KEY"),
    (Field("b", BOOLEAN), "boolean"),
    (Field("o", BOOLEAN), "bit(1)"),
    (Field("f", DOUBLE), "double"),
    (Field("e", SqlType("real")), "float"),
    (Field("g", SqlType("real")), "double"),
    (Field("n", SqlType("numeric", 38, 10)), "decimal(40, 10)"),
    (Field("t", VARCHAR), "varchar(100)"),
    (Field("y", BYTEA), "blob"),
    (Field("d", DATE), "date"),
    (Field("c", TIME), "time(6)"),
    (Field("s", TIMESTAMP), "datetime(6)"),
    (Field("z", TIMESTAMPTZ), "timestamp(6) NULL"),
    (Field("v", TIMESTAMPTZ), "datetime(6)"),
    (Field("i", INTERVAL), "text"),
    (Field("j", JSONB), "json"),
    (Field("a", SqlType("array", element=VARCHAR)), "json"),
    (Field("r", SqlType("struct", fields=(("x", INTEGER), ("y", VARCHAR)))), "json"),
    (Field("u", VARCHAR), "uuid"),
    (Field("w", BYTEA), "text"),
)
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
MOMENT = dt.datetime(2024, 1, 1, 0, 0, 0, 1, dt.UTC)
WRITTEN = [
    (
        *(9007199254740993, True, True, 0.1, 0.1, 0.1),
        decimal.Decimal("9999999999999999999999999999.9999999999"),
        "a,'b'\n\t\\'';--é😀 %s",
        b"\x00\xff'\\",
        dt.date(1, 1, 1),
        dt.time(1, 2, 3, 4),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        MOMENT,
        MOMENT,
        dt.timedelta(days=3),
        '{"a":[1,12345678901234567890.12]}',
        ["x", None, "q'\"\\"],
        {"x": 1, "y": "ü"},
        UUID,
        b"\x00",
    ),
    (2, *[None] * 19),
    (3, False, False, 1e300, -1.5e30, 1.0, decimal.Decimal("-0.5"), "", b"", *[None] * 11),
]


def test_all_types_arrive_as_they_are(mysql):
    columns = tuple(field for field, _ in EVERYTHING)
    mysql.execute(f"CREATE TABLE kept ({', '.join(f'{c.name} {kind}' for c, kind in EVERYTHING)})")
    sink = target(mysql, columns)
    sink.open(1)
    sink.deliver([batch(3, *WRITTEN, columns=columns)])
    second, third, first = selected(mysql, "SELECT * FROM kept ORDER BY id")
    utc = MOMENT.replace(tzinfo=None)
    assert first[:14] == (
        *(9007199254740993, 1, b"\x01", 0.1, pytest.approx(0.1, rel=1e-6), 0.10000000149011612),
        *(*WRITTEN[0][6:10], dt.timedelta(hours=1, minutes=2, seconds=3, microseconds=4), WRITTEN[0][11], utc, utc),
    )
    assert first[14:] == (
        "3 days",
        '{"a":[1,12345678901234567890.12]}',
        '["x",null,"q\'\\"\\\\"]',
        '{"x":1,"y":"ü"}',
        UUID,
        "\\x00",
    )
    assert second == WRITTEN[1]
    assert third[:9] == (3, 0, b"\x00", 1e300, pytest.approx(-1.5e30, rel=1e-6), 1.0, *WRITTEN[2][6:9])


def test_numbers_that_are_not_finite_are_refused(mysql):
    columns = (Field("id", INTEGER), Field("f", DOUBLE))
    mysql.execute("CREATE TABLE kept (id int PRIMARY KEY, f double)")
    sink = target(mysql, columns)
    sink.open(1)
    with pytest.raises(Error, match="does not take a row") as refused:
        sink.deliver([batch(3, (1, float("nan")), columns=columns)])
    assert refused.value.condition == "DELIVERY_REFUSED"
    assert content(mysql) == []


def test_nothing_is_cut_in_silence(mysql):
    mysql.execute("CREATE TABLE kept (id int PRIMARY KEY, name varchar(3))")
    sink = target(mysql)
    sink.open(1)
    sink.deliver([batch(3, (1, "abc"))])
    with pytest.raises(Error, match="does not take a row"):
        sink.deliver([batch(4, (2, "abcd"))])
    assert content(mysql) == [(1, "abc")]


KEYS = (Field("id", INTEGER), Field("code", VARCHAR), Field("name", VARCHAR))


def test_keys_of_several_columns_are_compared_byte_by_byte(mysql):
    mysql.execute("CREATE TABLE kept (id int, code varchar(20), name text, PRIMARY KEY (id, code))")
    sink = target(mysql, KEYS, key=("id", "code"))
    sink.open(1)
    sink.deliver([batch(3, (1, "a", "x"), (1, "b", "y"), (2, "a", "z"), columns=KEYS)])
    # "A" goes, which is not "a".
    sink.deliver([batch(4, (1, "A", "x"), (1, "b", "y"), (2, "a", "z"), columns=KEYS, diff=[-1, -1, -1])])
    assert content(mysql) == [(1, "a", "x")]
    sink.deliver([batch(5, (1, "a", "x"), (1, "A", "new"), columns=KEYS, diff=[-1, 1])])
    assert content(mysql) == [(1, "A", "new")]


@pytest.mark.parametrize(("first", "second"), [("a", "A"), ("a", "a "), ("e", "é")])
def test_keys_that_are_one_there_stop_the_sink(mysql, first, second):
    mysql.execute("CREATE TABLE kept (id int, code varchar(20), name text, PRIMARY KEY (id, code))")
    both = (1, first, "x"), (1, second, "y")
    sink = target(mysql, KEYS, key=("id", "code"))
    sink.open(1)
    with pytest.raises(Error, match="does not take a row") as refused:
        sink.deliver([batch(3, *both, columns=KEYS)])
    assert "collation" in refused.value.detail
    sink.deliver([batch(3, both[0], columns=KEYS)])
    with pytest.raises(Error, match="does not take a row"):
        sink.deliver([batch(4, both[1], columns=KEYS)])
    assert content(mysql) == [both[0]]


def test_exact_collations_take_every_key(mysql):
    mysql.execute(
        "CREATE TABLE kept (id int, code varchar(20) COLLATE utf8mb4_nopad_bin, name text, PRIMARY KEY (id, code))"
    )
    rows = [(1, code, "x") for code in ("A", "a", "a ", "e", "é")]
    sink = target(mysql, KEYS, key=("id", "code"))
    sink.open(1)
    sink.deliver([batch(3, *rows, columns=KEYS)])
    assert content(mysql) == sorted(rows, key=repr)


def test_another_unique_index_changes_no_other_row(mysql):
    mysql.execute("CREATE TABLE kept (id int PRIMARY KEY, name varchar(20) UNIQUE)")
    sink = target(mysql)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, "b"))])
    with pytest.raises(Error, match="does not take a row") as refused:
        sink.deliver([batch(4, (3, "a"))])
    assert "unique index" in refused.value.detail
    assert content(mysql) == [(1, "a"), (2, "b")]


def test_a_table_of_keys_alone(mysql):
    columns = (Field("id", INTEGER),)
    mysql.execute("CREATE TABLE kept (id int PRIMARY KEY, more int DEFAULT 5)")
    sink = target(mysql, columns)
    sink.open(1)
    sink.deliver([batch(3, (1,), (2,), columns=columns)])
    sink.deliver([batch(4, (1,), (1,), (2,), columns=columns, diff=[-1, 1, -1])])
    assert content(mysql) == [(1, 5)]


def test_many_rows_are_many_statements(mysql):
    mysql.execute(KEYED)
    rows = [(i, "x" * (i % 300)) for i in range(20_000)]
    sink = target(mysql)
    sink.open(1)
    sink.deliver([batch(3, *rows)])
    assert content(mysql) == sorted(rows, key=repr)
    sink.deliver([batch(4, *rows[5:], diff=[-1] * (len(rows) - 5))])
    assert content(mysql) == rows[:5]


def test_a_row_longer_than_a_packet_is_refused(own_mysql):
    own_mysql.execute("CREATE TABLE kept (id int PRIMARY KEY, name longtext); SET GLOBAL max_allowed_packet = 2097152")
    sink = target(own_mysql)
    sink.open(1)
    longest = "x" * 1_900_000
    sink.deliver([batch(3, (1, longest))])
    with pytest.raises(Error, match="does not take a row") as refused:
        sink.deliver([batch(4, (2, "y" * 2_097_152))])
    assert "max_allowed_packet" in refused.value.detail
    assert content(own_mysql) == [(1, longest)]


@pytest.mark.parametrize(
    ("table", "condition", "said"),
    [
        ("CREATE TABLE other (id int)", "UNDEFINED_OBJECT", r'no table "t_.*\.kept"'),
        ("CREATE TABLE kept (id int PRIMARY KEY)", "UNDEFINED_COLUMN", 'no column "name"'),
        ("CREATE TABLE kept (id smallint PRIMARY KEY, name text)", "DATATYPE_MISMATCH", '"id".* has type smallint'),
        ("CREATE TABLE kept (id int unsigned PRIMARY KEY, name text)", "DATATYPE_MISMATCH", "unsigned"),
        ("CREATE TABLE kept (id int PRIMARY KEY, name int)", "DATATYPE_MISMATCH", '"name".* has type int'),
        ("CREATE TABLE kept (id int PRIMARY KEY, name text AS ('x'))", "DATATYPE_MISMATCH", "computes"),
        ("CREATE TABLE kept (id int AUTO_INCREMENT PRIMARY KEY, name text)", "DATATYPE_MISMATCH", "computes"),
        ("CREATE TABLE kept (id int, name text)", "CONNECTOR_OPTION", r"no primary key or unique index over \(id\)"),
        (
            "CREATE TABLE kept (id int, name varchar(9) PRIMARY KEY)",
            "CONNECTOR_OPTION",
            "no primary key or unique index",
        ),
        (
            "CREATE TABLE kept (id int PRIMARY KEY, name text, x int NOT NULL)",
            "CONNECTOR_OPTION",
            '"x".* must not be NULL',
        ),
        (f"{KEYED} ENGINE = MyISAM", "CONNECTOR_OPTION", "engine MyISAM, which has no transactions"),
        ("CREATE VIEW kept AS SELECT 1 AS id, 'a' AS name", "CONNECTOR_OPTION", "is a view"),
    ],
)
def test_a_table_of_another_shape_is_refused(mysql, table, condition, said):
    mysql.execute(table)
    with pytest.raises(Error, match=said) as refused:
        target(mysql).look()
    assert refused.value.condition == condition


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        (SqlType("numeric", 10, 2), "decimal(10)"),
        (SqlType("numeric"), "decimal(38, 2)"),
        (TIMESTAMP, "datetime"),
        (TIMESTAMP, "timestamp(6)"),
        (TIMESTAMPTZ, "timestamp(3)"),
        (TIME, "time"),
        (BYTEA, "binary(10)"),
        (DOUBLE, "float"),
        (INTERVAL, "time(6)"),
    ],
)
def test_types_that_would_round_or_pad_are_refused(mysql, kind, there):
    mysql.execute(f"CREATE TABLE kept (id int PRIMARY KEY, v {there})")
    with pytest.raises(Error, match=r'"v" of table .* has type') as refused:
        target(mysql, (Field("id", INTEGER), Field("v", kind))).look()
    assert refused.value.condition == "DATATYPE_MISMATCH"


def test_whole_numbers_go_into_wider_ones_and_decimals(mysql):
    columns = (Field("id", INTEGER), Field("v", BIGINT), Field("s", SqlType("smallint")))
    mysql.execute("CREATE TABLE kept (id bigint PRIMARY KEY, v decimal(20), s mediumint)")
    sink = target(mysql, columns)
    sink.open(1)
    sink.deliver([batch(3, (1, -(1 << 63), -7), columns=columns)])
    assert content(mysql) == [(1, decimal.Decimal(-(1 << 63)), -7)]


def test_rights_that_are_missing_are_named(mysql):
    mysql.execute(
        f"{KEYED}; CREATE USER r_{mysql.name} IDENTIFIED BY 'p'; GRANT SELECT ON {mysql.name}.* TO r_{mysql.name}"
    )
    try:
        sink = target(mysql, user=f"r_{mysql.name}", password="p")
        with pytest.raises(Error) as refused:
            sink.open(1)
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON {mysql.name}.kept TO r_{mysql.name}" in refused.value.hint
        rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE TEMPORARY TABLES"
        mysql.execute(f"GRANT {rights} ON {mysql.name}.* TO r_{mysql.name}")
        before = target(mysql, user=f"r_{mysql.name}", password="p")
        before.open(1)
        before.deliver([batch(3, (1, "a"))])
        assert sink.open(1) == SinkOffset(1, 3)  # it may end the connection of the one before
    finally:
        sink.close()
        mysql.execute(f"DROP USER r_{mysql.name}")


def test_a_writer_of_another_user_is_waited_for(mysql, monkeypatch):
    """Who may not end its connection can only wait until it ends."""
    monkeypatch.setattr(watersmeet.connectors.mysql.target, "_ENDING_S", 1)
    name = f"r_{mysql.name}"
    mysql.execute(f"{KEYED}; CREATE USER {name} IDENTIFIED BY 'p'; GRANT ALL ON {mysql.name}.* TO {name}")
    before, after = target(mysql), target(mysql, user=name, password="p")
    try:
        before.open(1)
        with pytest.raises(Unavailable, match="does not end"):
            after.open(1)
        before.deliver([batch(3, (1, "a"))])
        before.close()
        assert after.open(1) == SinkOffset(1, 3)
    finally:
        after.close()
        mysql.execute(f"DROP USER {name}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jdbc.url": None}, 'needs the option "jdbc.url"'),
        ({"table.name": None}, 'needs the option "table.name"'),
        ({"schema.name": "public"}, "has no schemas"),
        ({"tabel": "kept"}, 'no option "tabel"'),
        ({"password": "wrong"}, "does not let user"),
    ],
)
def test_options_are_checked(mysql, options, said):
    mysql.execute(KEYED)
    with pytest.raises(Error, match=said) as refused:
        target(mysql, **options).look()
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [("nowhere", "there is no database"), ("{name}?sslMode=REQUIRED", "no TLS connection")],
)
def test_urls_are_checked(mysql, change, said):
    mysql.execute(KEYED)
    url = f"jdbc:mysql://127.0.0.1:{mysql.server.port}/{change.format(name=mysql.name)}"
    with pytest.raises(Error, match=said):
        target(mysql, **{"jdbc.url": url}).look()


def test_a_join_is_kept_in_a_table(mysql, tmp_path):
    mysql.execute("CREATE TABLE joined (id int PRIMARY KEY, name text, amount decimal(10, 2))")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"CREATE SECRET pw WITH (backend = 'meta') AS '{PASSWORD}'")
        url = f"jdbc:mysql://127.0.0.1:{mysql.server.port}/{mysql.name}"
        options = written_options(mysql, password=None, **{"jdbc.url": url, "table.name": "joined"})
        keep_a_join(connection, f"{options}, password = SECRET pw", lambda: content(mysql, "joined"))
        assert PASSWORD not in str(connection.execute("SHOW CREATE SINK k").fetchall())


def test_create_sink_says_where_the_table_is_wrong(mysql, tmp_path):
    mysql.execute("CREATE TABLE joined (id int PRIMARY KEY)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar)")
        options = written_options(mysql, **{"table.name": "joined"})
        with pytest.raises(Error, match='has no column "name"'):
            connection.execute(f"CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id')")
