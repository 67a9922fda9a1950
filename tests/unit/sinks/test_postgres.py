"""A table of PostgreSQL as a target: rows are there once, whatever happens when. A real server."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from scripts.servers.postgres import PASSWORD, USER
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

pytestmark = pytest.mark.postgres
EVERYTHING = (
    (Field("id", BIGINT), "bigint PRIMARY KEY"),
    (Field("b", BOOLEAN), "boolean"),
    (Field("f", DOUBLE), "double precision"),
    (Field("n", SqlType("numeric", 38, 10)), "numeric"),
    (Field("t", VARCHAR), "varchar(100)"),
    (Field("y", BYTEA), "bytea"),
    (Field("d", DATE), "date"),
    (Field("c", TIME), "time"),
    (Field("s", TIMESTAMP), "timestamp"),
    (Field("z", TIMESTAMPTZ), "timestamptz"),
    (Field("i", INTERVAL), "interval"),
    (Field("j", JSONB), "jsonb"),
    (Field("a", SqlType("array", element=VARCHAR)), "text[]"),
    (Field("m", SqlType("array", element=SqlType("array", element=INTEGER))), "int[]"),
    (Field("k", SqlType("array", element=INTEGER)), "jsonb"),
    (Field("r", SqlType("struct", fields=(("x", INTEGER), ("y", VARCHAR)))), "jsonb"),
    (Field("u", VARCHAR), "uuid"),
    (Field("w", BIGINT), "text"),
)
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
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
        pa.MonthDayNano([14, -3, 3_723_000_004_000]),
        '{"a":[1,12345678901234567890.12]}',
        ["x", None, 'q"\\', "", "NULL", "{,}"],
        [[1, None], [3, 4]],
        [1, None],
        {"x": 1, "y": "ü"},
        UUID,
        -7,
    ),
    (2, *[None] * 17),
    (
        3,
        False,
        float("-inf"),
        decimal.Decimal("-0.5"),
        "",
        b"",
        *[None] * 6,
        [],
        [],
        [],
        {"x": None, "y": None},
        *[None] * 2,
    ),
]


def test_all_types_arrive_as_they_are(postgres):
    columns = tuple(field for field, _ in EVERYTHING)
    postgres.execute(f"CREATE TABLE kept ({', '.join(f'{c.name} {kind}' for c, kind in EVERYTHING)})")
    sink = target(postgres, columns)
    sink.open(1)
    sink.deliver([batch(3, *VALUES, columns=columns)])
    texts = {"n", "i", "j", "k", "r", "u"}
    shown = ", ".join(f"{c.name}::text" if c.name in texts else c.name for c in columns)
    rows = selected(postgres, f"SELECT {shown} FROM kept ORDER BY id")
    first = list(VALUES[0])
    first[3], first[10] = str(first[3]), "1 year 2 mons -3 days +01:02:03.000004"
    first[11], first[14], first[15] = '{"a": [1, 12345678901234567890.12]}', "[1, null]", '{"x": 1, "y": "ü"}'
    first[17] = "-7"
    assert list(rows[0]) == first
    assert list(rows[1]) == list(VALUES[1])
    assert list(rows[2])[:6] == [3, False, float("-inf"), "-0.5000000000", "", b""]
    assert list(rows[2])[12:16] == [[], [], "[]", '{"x": null, "y": null}']


@pytest.mark.parametrize(
    ("kind", "there", "refused"),
    [
        (SqlType("numeric", 10, 2), "numeric(6, 1)", True),
        (SqlType("numeric", 10, 2), "numeric(6, 2)", False),  # too many digits are an error of their own
        (SqlType("numeric", 10, 0), "numeric(5, -2)", True),
        (SqlType("numeric"), "numeric(20, 4)", True),
        (SqlType("numeric"), "numeric", False),
        (SqlType("integer"), "numeric(10, 0)", False),
        (SqlType("array", element=SqlType("numeric", 10, 2)), "numeric(9, 1)[]", True),
        (SqlType("timestamp"), "timestamp(3)", True),
        (SqlType("timestamp"), "timestamp(6)", False),
        (SqlType("timestamptz"), "timestamptz(0)", True),
        (SqlType("time"), "time(2)", True),
        (SqlType("interval"), "interval day to second(2)", True),
        (SqlType("interval"), "interval hour to minute", True),
        (SqlType("interval"), "interval(6)", False),
        (VARCHAR, "varchar(3)", False),
        (VARCHAR, "name", True),  # which cuts
    ],
)
def test_a_column_that_would_round_is_refused(postgres, kind, there, refused):
    postgres.execute(f"CREATE TABLE kept (id int PRIMARY KEY, v {there})")
    made = target(postgres, (Field("id", INTEGER), Field("v", kind)))
    if refused:
        with pytest.raises(Error) as found:
            made.look()
        assert found.value.condition == "DATATYPE_MISMATCH"
    else:
        made.look()


@pytest.mark.parametrize(
    ("table", "condition", "said"),
    [
        ("CREATE TABLE other (id int)", "UNDEFINED_OBJECT", 'no table "public.kept"'),
        ("CREATE TABLE kept (id int PRIMARY KEY)", "UNDEFINED_COLUMN", 'no column "name"'),
        ("CREATE TABLE kept (id smallint PRIMARY KEY, name text)", "DATATYPE_MISMATCH", '"id".* has type smallint'),
        ("CREATE TABLE kept (id int PRIMARY KEY, name int)", "DATATYPE_MISMATCH", '"name".* has type integer'),
        (
            "CREATE TABLE kept (id int PRIMARY KEY, name text GENERATED ALWAYS AS ('x') STORED)",
            "DATATYPE_MISMATCH",
            "computes",
        ),
        ("CREATE TABLE kept (id int, name text)", "CONNECTOR_OPTION", r"no primary key or unique index over \(id\)"),
        ("CREATE TABLE kept (id int, name text PRIMARY KEY)", "CONNECTOR_OPTION", "no primary key"),
        (
            "CREATE TABLE kept (id int PRIMARY KEY, name text, x int NOT NULL)",
            "CONNECTOR_OPTION",
            '"x".* must not be NULL',
        ),
    ],
)
def test_a_table_of_another_shape_is_refused(postgres, table, condition, said):
    postgres.execute(table)
    with pytest.raises(Error, match=said) as refused:
        target(postgres).look()
    assert refused.value.condition == condition


def test_rights_that_are_missing_are_named(postgres):
    postgres.execute(
        f"{KEYED}; CREATE ROLE r_{postgres.name} LOGIN PASSWORD 'p'; GRANT CREATE ON SCHEMA public TO PUBLIC"
    )
    try:
        sink = target(postgres, user=f"r_{postgres.name}", password="p")
        with pytest.raises(Error) as refused:
            sink.open(1)
            sink.deliver([batch(3, (1, "a"))])
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON public.kept TO r_{postgres.name}" in refused.value.hint
    finally:
        sink.close()
        postgres.execute(f"DROP OWNED BY r_{postgres.name}; DROP ROLE r_{postgres.name}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": None}, 'needs the option "host"'),
        ({"table": None}, 'needs the option "table"'),
        ({"port": "x"}, 'port can\'t be "x"'),
        ({"ssl_mode": "sure"}, 'ssl_mode can\'t be "sure"'),
        ({"tabel": "kept"}, 'no option "tabel"'),
        ({"password": "wrong"}, "does not let user"),
        ({"database": "nowhere"}, "there is no database"),
        ({"connector": "jdbc", "table": None}, 'no option "host"'),
    ],
)
def test_options_are_checked(postgres, options, said):
    postgres.execute(KEYED)
    with pytest.raises(Error, match=said) as refused:
        target(postgres, **options).look()
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("connector", ["postgres", "jdbc"])
def test_a_join_is_kept_in_a_table(postgres, tmp_path, connector):
    postgres.execute(
        "CREATE SCHEMA marts; CREATE TABLE marts.joined (id int PRIMARY KEY, name text, amount numeric(10, 2))"
    )
    server = postgres.server
    where = (
        f"host = '127.0.0.1', port = '{server.port}', database = '{postgres.name}', schema = 'marts', table = 'joined'"
        if connector == "postgres"
        else f"jdbc.url = 'jdbc:postgresql://127.0.0.1:{server.port}/{postgres.name}', schema.name = 'marts', "
        "table.name = 'joined'"
    )
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"CREATE SECRET pw WITH (backend = 'meta') AS '{PASSWORD}'")
        options = f"connector = '{connector}', {where}, user = '{USER}', password = SECRET pw"
        keep_a_join(connection, options, lambda: content(postgres, "marts.joined"))
        assert PASSWORD not in str(connection.execute("SHOW CREATE SINK k").fetchall())


def test_create_sink_says_where_the_table_is_wrong(postgres, tmp_path):
    postgres.execute("CREATE TABLE joined (id int)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar)")
        options = written_options(postgres, table="joined")
        with pytest.raises(Error, match='has no column "name"'):
            connection.execute(f"CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id')")
        with pytest.raises(Error, match="columns, not messages"):
            connection.execute(f"CREATE SINK k FROM t WITH ({options}, primary_key = 'id') FORMAT DEBEZIUM ENCODE JSON")
