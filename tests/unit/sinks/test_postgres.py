"""A table of PostgreSQL as a target: rows are there once, whatever happens when. A real server."""

import datetime as dt
import decimal
import random
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from scripts.servers.postgres import PASSWORD, USER

import watersmeet
from watersmeet import faults
from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.sinks.base import Delivery, Place, Portion, Unavailable
from watersmeet.sinks.postgres import PostgresTarget, jdbc_server
from watersmeet.types import (
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
    arrow_schema,
)

pytestmark = pytest.mark.postgres
TWO = (Field("id", INTEGER), Field("name", VARCHAR))
POINTS = (
    "postgres.entered",
    "postgres.fenced",
    "postgres.begun",
    "postgres.placed",
    "postgres.copied",
    "postgres.written",
    "postgres.committed",
)


class Killed(BaseException):
    """The process ends here: nothing of the target's code catches it."""


@pytest.fixture(autouse=True)
def no_hook():
    yield
    faults.set_hook(None)


def options_of(server, **more):
    found = {
        "connector": "postgres",
        "host": "127.0.0.1",
        "port": str(server.server.port),
        "user": USER,
        "password": PASSWORD,
        "database": server.name,
        "table": "out",
        **more,
    }
    return {n: v for n, v in found.items() if v is not None}


def target(server, columns=TWO, *, rows="upsert", key=("id",), generation=1, **more):
    delivery = Delivery(
        "s1",
        "sink k",
        "v1",
        columns,
        key if rows == "upsert" else (),
        options_of(server, **more),
        MessageFormat(rows),
        False,
        "s1",
        generation,
    )
    return PostgresTarget(delivery, "db")


def portion(commit, *rows, columns=TWO, diff=None, part=0, last=True, generation=1):
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    return Portion(
        Place(generation, commit, part, last),
        pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False)),
        np.array(diff or [1] * len(rows), np.int64),
        commit * 1_000_000,
    )


def content(database, table="out"):
    with database.connect() as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


KEYED = "CREATE TABLE out (id int PRIMARY KEY, name text)"


def test_rows_are_changed_by_their_keys(postgres):
    postgres.execute(KEYED)
    sink = target(postgres)
    assert sink.open(1) is None
    sink.deliver([portion(3, (1, "a"), (2, "b"), (3, None))])
    sink.deliver([portion(4, (2, "b"), (1, "a"), (1, "c"), (4, 'd,"\\.\n'), diff=[-1, -1, 1, 1])])
    assert content(postgres) == [(1, "c"), (3, None), (4, 'd,"\\.\n')]
    sink.deliver([portion(5, (5, "e"), (1, "c"), diff=[1, -1]), portion(6, (5, "e"), (1, "f"), diff=[-1, 1])])
    assert content(postgres) == [(1, "f"), (3, None), (4, 'd,"\\.\n')]
    sink.close()
    assert target(postgres).open(1) == Place(1, 6)


def test_an_append_only_sink_only_adds(postgres):
    postgres.execute("CREATE TABLE out (name text)")
    columns = (Field("name", VARCHAR),)
    sink = target(postgres, columns, rows="plain")
    sink.open(1)
    sink.deliver([portion(3, ("\\.",), (None,), ("",), ("x",), columns=columns, diff=[1, 1, 1, 2])])
    sink.deliver([portion(4, ("x",), ("y",), columns=columns, diff=[-1, 1])])
    assert content(postgres) == sorted([("\\.",), (None,), ("",), ("x",), ("x",), ("y",)], key=repr)


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
    postgres.execute(f"CREATE TABLE out ({', '.join(f'{c.name} {kind}' for c, kind in EVERYTHING)})")
    sink = target(postgres, columns)
    sink.open(1)
    sink.deliver([portion(3, *VALUES, columns=columns)])
    with postgres.connect() as connection:
        texts = {"n", "i", "j", "k", "r", "u"}
        shown = ", ".join(f"{c.name}::text" if c.name in texts else c.name for c in columns)
        rows = connection.execute(f"SELECT {shown} FROM out ORDER BY id").fetchall()
    first = list(VALUES[0])
    first[3], first[10] = str(first[3]), "1 year 2 mons -3 days +01:02:03.000004"
    first[11], first[14], first[15] = '{"a": [1, 12345678901234567890.12]}', "[1, null]", '{"x": 1, "y": "ü"}'
    first[17] = "-7"
    assert list(rows[0]) == first
    assert list(rows[1]) == list(VALUES[1])
    assert list(rows[2])[:6] == [3, False, float("-inf"), "-0.5000000000", "", b""]
    assert list(rows[2])[12:16] == [[], [], "[]", '{"x": null, "y": null}']


def history(seed):
    """Portions of commits, and the content behind each commit."""
    r = random.Random(seed)
    now, found = {}, []
    for commit in range(2, 9):
        rows, diff = [], []
        for key in r.sample(range(8), r.randint(1, 5)):
            before, after = now.get(key), r.choice([None, *"abc"])
            if before is not None:
                rows.append((key, before))
                diff.append(-1)
            if after is not None:
                rows.append((key, after))
                diff.append(1)
            now[key] = after
        found.append((portion(commit, *rows, diff=diff), sorted((k, v) for k, v in now.items() if v is not None)))
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_step_and_resumed(postgres, point, seed):
    postgres.execute(KEYED)
    wanted, r = history(seed), random.Random(seed)
    place, deaths = None, 0
    for _ in range(40):
        countdown = 1 if point in POINTS[:2] else r.randint(1, 3)

        def hook(name):
            nonlocal countdown
            if name == point:
                countdown -= 1
                if countdown <= 0:
                    raise Killed

        faults.set_hook(hook if deaths < 8 else None)
        sink = target(postgres)
        try:
            place = sink.open(1)
            rest = [p for p, _ in wanted if place is None or p.place > place]
            while rest:
                size = r.randint(1, 2)
                sink.deliver(rest[:size])
                rest = rest[size:]
            break
        except Killed:
            deaths += 1
            sink._connection = None  # nobody closes it: the server, or the next writer, does
            faults.set_hook(None)
            place = target(postgres).open(1)
            if place is not None:
                assert content(postgres) == next(rows for p, rows in wanted if p.place == place)
    assert deaths
    assert content(postgres) == wanted[-1][1]


def test_a_writer_that_was_overtaken_writes_nothing(postgres):
    postgres.execute(KEYED)
    before, after = target(postgres), target(postgres)
    before.open(1)
    before.deliver([portion(3, (1, "a"))])
    assert after.open(1) == Place(1, 3)
    with pytest.raises((Unavailable, Error)):  # its connection was ended, or its token is another
        before.deliver([portion(4, (2, "b"))])
    after.deliver([portion(4, (2, "c"))])
    assert content(postgres) == [(1, "a"), (2, "c")]
    # One whose connection the later writer could not end:
    before._connection = postgres.connect()
    before._make_changes_table()
    with pytest.raises(Error) as fenced:
        before.deliver([portion(5, (3, "z"))])
    assert fenced.value.condition == "WRITER_FENCED"
    assert content(postgres) == [(1, "a"), (2, "c")]


def test_a_writer_in_the_middle_of_a_transaction_is_shut_out(postgres):
    """It holds the row with its place, and would hold the next one up for ever."""
    postgres.execute(KEYED)
    paused, go_on = threading.Event(), threading.Event()

    def hook(name):
        if name == "postgres.copied" and threading.current_thread() is not threading.main_thread():
            paused.set()
            go_on.wait(60)

    faults.set_hook(hook)
    before = target(postgres)
    before.open(1)
    ended = []

    def deliver():
        try:
            before.deliver([portion(3, (1, "a"))])
        except BaseException as problem:
            ended.append(problem)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert paused.wait(60)
    after = target(postgres)
    assert after.open(1) is None
    after.deliver([portion(3, (1, "b"))])
    go_on.set()
    thread.join(60)
    assert isinstance(ended[0], Unavailable)
    assert content(postgres) == [(1, "b")]


def test_an_older_generation_is_fenced(postgres):
    postgres.execute(KEYED)
    newer = target(postgres, generation=2)
    newer.open(2)
    newer.deliver([portion(3, (1, "a"), generation=2)])
    with pytest.raises(Error) as fenced:
        target(postgres).open(1)
    assert fenced.value.condition == "WRITER_FENCED"
    assert target(postgres, generation=3).open(3) == Place(2, 3)


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
    postgres.execute(f"CREATE TABLE out (id int PRIMARY KEY, v {there})")
    made = target(postgres, (TWO[0], Field("v", kind)))
    if refused:
        with pytest.raises(Error) as found:
            made.look()
        assert found.value.condition == "DATATYPE_MISMATCH"
    else:
        made.look()


@pytest.mark.parametrize(
    ("table", "condition", "said"),
    [
        ("CREATE TABLE other (id int)", "UNDEFINED_OBJECT", 'no table "public.out"'),
        ("CREATE TABLE out (id int PRIMARY KEY)", "UNDEFINED_COLUMN", 'no column "name"'),
        ("CREATE TABLE out (id smallint PRIMARY KEY, name text)", "DATATYPE_MISMATCH", '"id".* has type smallint'),
        ("CREATE TABLE out (id int PRIMARY KEY, name int)", "DATATYPE_MISMATCH", '"name".* has type integer'),
        (
            "CREATE TABLE out (id int PRIMARY KEY, name text GENERATED ALWAYS AS ('x') STORED)",
            "DATATYPE_MISMATCH",
            "computes",
        ),
        ("CREATE TABLE out (id int, name text)", "CONNECTOR_OPTION", r"no primary key or unique index over \(id\)"),
        ("CREATE TABLE out (id int, name text PRIMARY KEY)", "CONNECTOR_OPTION", "no primary key"),
        (
            "CREATE TABLE out (id int PRIMARY KEY, name text, x int NOT NULL)",
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


def test_a_unique_index_and_more_columns_do(postgres):
    postgres.execute("CREATE TABLE out (id int, name text, more int DEFAULT 5); CREATE UNIQUE INDEX ON out (id)")
    sink = target(postgres)
    sink.open(1)
    sink.deliver([portion(3, (1, "a"))])
    assert content(postgres) == [(1, "a", 5)]


def test_a_row_that_the_table_refuses_stops_the_sink(postgres):
    postgres.execute("CREATE TABLE out (id int PRIMARY KEY, name text CHECK (name <> 'bad'))")
    sink = target(postgres)
    sink.open(1)
    with pytest.raises(Error, match="does not take a row of sink k") as refused:
        sink.deliver([portion(3, (1, "good"), (2, "bad"))])
    assert refused.value.condition == "DELIVERY_REFUSED"
    assert "check constraint" in refused.value.detail
    assert content(postgres) == []


def test_rights_that_are_missing_are_named(postgres):
    postgres.execute(
        f"{KEYED}; CREATE ROLE r_{postgres.name} LOGIN PASSWORD 'p'; GRANT CREATE ON SCHEMA public TO PUBLIC"
    )
    try:
        sink = target(postgres, user=f"r_{postgres.name}", password="p")
        with pytest.raises(Error) as refused:
            sink.open(1)
            sink.deliver([portion(3, (1, "a"))])
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON public.out TO r_{postgres.name}" in refused.value.hint
    finally:
        sink.close()
        postgres.execute(f"DROP OWNED BY r_{postgres.name}; DROP ROLE r_{postgres.name}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": None}, "needs the option host"),
        ({"table": None}, "needs the option table"),
        ({"port": "x"}, 'port can\'t be "x"'),
        ({"ssl_mode": "sure"}, 'ssl_mode can\'t be "sure"'),
        ({"tabel": "out"}, 'no option "tabel"'),
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


def test_urls_of_jdbc_are_read():
    server, properties = jdbc_server(
        "jdbc:postgresql://h:5433/d%20b?user=u&password=p&sslmode=require&currentSchema=s", None, None
    )
    assert (server.host, server.port, server.database, server.user, server.password) == ("h", 5433, "d b", "u", "p")
    assert (server.ssl_mode, properties["currentSchema"]) == ("require", "s")
    with pytest.raises(Error, match="mysql"):
        jdbc_server("jdbc:mysql://h/d", "u", "p")
    with pytest.raises(Error, match="host, the database and the user"):
        jdbc_server("jdbc:postgresql:d", "u", "p")


def wait(connection, wanted):
    deadline = time.monotonic() + 60
    while True:
        cursor = connection.execute("SHOW SINKS")
        shown = dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True))
        if wanted(shown):
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)


def is_done(shown):
    return shown["state"] == "running" and not shown["commits_behind"]


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
        connection.execute(f"""
            CREATE TABLE names (id int PRIMARY KEY, name varchar);
            CREATE TABLE amounts (id int PRIMARY KEY, amount numeric(10, 2));
            CREATE SECRET pw WITH (backend = 'meta') AS '{PASSWORD}';
            CREATE SINK k AS SELECT n.id, name, amount FROM names n LEFT JOIN amounts a ON a.id = n.id
                WITH (connector = '{connector}', {where}, user = '{USER}', password = SECRET pw, type = 'upsert',
                    primary_key = 'id');
            INSERT INTO names VALUES (1, 'a'), (2, 'b');
            INSERT INTO amounts VALUES (1, 1.5), (3, 7);
            FLUSH
        """)
        wait(connection, is_done)
        assert content(postgres, "marts.joined") == [(1, "a", decimal.Decimal("1.50")), (2, "b", None)]
        connection.execute("INSERT INTO amounts VALUES (2, 2); DELETE FROM names WHERE id = 1; FLUSH")
        wait(connection, is_done)
        assert content(postgres, "marts.joined") == [(2, "b", decimal.Decimal("2.00"))]
        assert PASSWORD not in str(connection.execute("SHOW CREATE SINK k").fetchall())


def test_create_sink_says_where_the_table_is_wrong(postgres, tmp_path):
    postgres.execute("CREATE TABLE joined (id int)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar)")
        options = ", ".join(f"{n} = '{v}'" for n, v in options_of(postgres, table="joined").items())
        with pytest.raises(Error, match='has no column "name"'):
            connection.execute(f"CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id')")
        with pytest.raises(Error, match="columns, not messages"):
            connection.execute(f"CREATE SINK k FROM t WITH ({options}, primary_key = 'id') FORMAT DEBEZIUM ENCODE JSON")


def test_a_server_that_goes_away_holds_nothing_back(own_postgres, tmp_path):
    own_postgres.execute(KEYED)
    options = ", ".join(f"{n} = '{v}'" for n, v in options_of(own_postgres).items())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id');
            INSERT INTO t VALUES (1, 'a')
        """)
        wait(connection, is_done)
        own_postgres.server.stop(signal.SIGQUIT)
        connection.execute("INSERT INTO t VALUES (2, 'b'); UPDATE t SET name = 'c' WHERE id = 1")
        shown = wait(connection, lambda s: s["state"] != "running")
        assert "can't be reached" in shown["detail"]
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        own_postgres.server.start()
        wait(connection, is_done)
        assert content(own_postgres) == [(1, "c"), (2, "b")]
