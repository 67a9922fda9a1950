"""Statements that can't be right: an error with its place and a near name; and texts that must stay texts."""

from __future__ import annotations

import datetime as dt
import os

import pytest

import watersmeet


@pytest.fixture
def shop(run, tmp_path):
    run("CREATE TABLE customers (id int PRIMARY KEY, name varchar, born date, balance numeric(10, 2))")
    run("CREATE TABLE orders (order_id bigint, customer_id int)")
    return tmp_path


UNKNOWN = [
    ("SELECT * FROM custmers", "UNDEFINED_RELATION", "custmers", '"customers"'),
    ("CREATE MATERIALIZED VIEW v AS SELECT * FROM custmers", "UNDEFINED_RELATION", "custmers", '"customers"'),
    ("SELECT nam FROM customers", "UNDEFINED_COLUMN", "nam", '"name"'),
    ("CREATE MATERIALIZED VIEW v AS SELECT c.nam FROM customers c", "UNDEFINED_COLUMN", "c.nam", '"name"'),
    ("CREATE MATERIALIZED VIEW v AS SELECT cc.name FROM customers c", "UNDEFINED_RELATION", "cc", '"c"'),
    (
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM customers c JOIN orders o ON c.id = o.custmer_id",
        "UNDEFINED_COLUMN",
        "o.custmer_id",
        '"customer_id"',
    ),
    (
        "CREATE MATERIALIZED VIEW v AS SELECT uper(name) AS u FROM customers",
        "UNDEFINED_FUNCTION",
        "uper(name)",
        '"upper"',
    ),
    ("SELECT uper(name) FROM customers", "UNDEFINED_FUNCTION", "uper(name)", '"upper"'),
    ("CREATE TABLE t (a integr)", "UNDEFINED_OBJECT", "integr", '"integer"'),
    ("SELECT CAST(name AS integr) FROM customers", "UNDEFINED_OBJECT", "name AS integr", '"integer"'),
    ("INSERT INTO customers (id, nme) VALUES (1, 'x')", "UNDEFINED_COLUMN", "nme", '"name"'),
    ("INSERT INTO custmers VALUES (1)", "UNDEFINED_RELATION", "custmers", '"customers"'),
    ("UPDATE customers SET nam = 'x'", "UNDEFINED_COLUMN", "nam", '"name"'),
    ("DELETE FROM customers WHERE nam = 'x'", "UNDEFINED_COLUMN", "nam", '"name"'),
    ("DROP TABLE custmers", "UNDEFINED_RELATION", "custmers", '"customers"'),
    ("DESCRIBE custmers", "UNDEFINED_RELATION", "custmers", '"customers"'),
    ("SET rw_implicit_flsh = true", "UNDEFINED_OBJECT", "SET rw_implicit_flsh = true", '"implicit_flush"'),
    ("SHOW tabels", "UNDEFINED_OBJECT", "tabels", '"tables"'),
    ("CREATE INDEX i ON customers (nam)", "UNDEFINED_COLUMN", "CREATE INDEX i ON customers (nam)", '"name"'),
    ("CRATE TABLE t (a int)", "SYNTAX_ERROR", "CRATE", "CREATE"),
]


@pytest.mark.parametrize(("sql", "condition", "place", "near"), UNKNOWN, ids=[u[0] for u in UNKNOWN])
def test_an_unknown_name_has_a_place_and_a_near_name(fails, shop, sql, condition, place, near):
    text = "-- first line\n" + sql
    err = fails(text)
    assert err.condition == condition
    assert text[err.span.start : err.span.end].removeprefix("CAST(").rstrip(")") == place.rstrip(")")
    assert near in err.hint
    assert f"LINE 2: {sql}" in str(err)


WRONG = [
    ("INSERT INTO customers VALUES ('abc', 'x', NULL, 1)", "INVALID_VALUE", "'abc'"),
    ("INSERT INTO customers VALUES (1, 'x', 'notadate', 1)", "INVALID_VALUE", "'notadate'"),
    ("UPDATE customers SET balance = 'x'", "INVALID_VALUE", "'x'"),
    (
        "INSERT INTO orders SELECT name, id FROM customers",
        "DATATYPE_MISMATCH",
        "INSERT INTO orders SELECT name, id FROM customers",
    ),
    ("SELECT * FROM customers WHERE name", "DATATYPE_MISMATCH", "name"),
    ("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers WHERE name = 1", "DATATYPE_MISMATCH", "name = 1"),
    (
        "CREATE MATERIALIZED VIEW v AS SELECT c.id FROM customers c JOIN orders o ON c.name = o.customer_id",
        "DATATYPE_MISMATCH",
        "c.name = o.customer_id",
    ),
    ("CREATE MATERIALIZED VIEW v AS SELECT sum(name) AS s FROM customers", "DATATYPE_MISMATCH", "sum(name)"),
    (
        "CREATE MATERIALIZED VIEW v AS SELECT id FROM customers UNION ALL SELECT name FROM customers",
        "DATATYPE_MISMATCH",
        "SELECT name FROM customers",
    ),
    ("CREATE MATERIALIZED VIEW v AS SELECT CASE WHEN id THEN 1 END AS c FROM customers", "DATATYPE_MISMATCH", "id"),
    ("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers c JOIN orders o USING (id)", "UNDEFINED_COLUMN", "id"),
    ("INSERT INTO customers (id) VALUES (1, 2)", "SYNTAX_ERROR", None),
    ("INSERT INTO customers VALUES (NULL, 'x')", "NOT_NULL_VIOLATION", None),
]


@pytest.mark.parametrize(("sql", "condition", "place"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_type_has_a_place(fails, run, shop, sql, condition, place):
    err = fails(sql)
    assert err.condition == condition
    assert err.span is not None
    if place is not None:
        begin = sql.rindex(place)
        assert begin <= err.span.start < err.span.end <= begin + len(place)
    assert run("SELECT count(*) FROM customers") == [(0,)], "nothing is left behind"
    assert run("SHOW MATERIALIZED VIEWS") == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("INSERT INTO customers VALUES (1, 'x', NULL, 12345678901.5)", "is out of range for type numeric(10,2)"),
        ("INSERT INTO customers VALUES (1, 'x', NULL, 1e30)", "value 1e30 is out of range for type numeric(10,2)"),
        ("SELECT '123456'::numeric(5, 2)", "value 123456 is out of range for type numeric(5,2)"),
        ("INSERT INTO orders VALUES (1, 99999999999)", "value 99999999999 is out of range for type integer"),
        ("SELECT name::varchar::int FROM (VALUES ('abc')) AS v(name)", 'invalid input syntax for type integer: "abc"'),
    ],
)
def test_values_out_of_range_are_named_in_the_words_of_sql(fails, shop, sql, message):
    err = fails(sql)
    assert err.condition == "INVALID_VALUE"
    assert message in err.message
    assert "source column" not in err.message


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("connector = 'fil', path = '{0}'", 'there is no connector "fil"', '"file"'),
        ("connector = 'file', pth = '{0}', format = 'csv'", 'has no option "pth"', '"path"'),
        ("connector = 'file', path = '{0}/nothing', format = 'csv'", "does not exist", "Create the directory"),
        ("connector = 'file', path = '{0}', format = 'cvs'", 'format "cvs" is not supported', "csv, json, parquet"),
        ("connector = 'file', path = '{0}', format = 'csv', delimter = ';'", 'has no option "delimter"', '"delimiter"'),
        ("connector = 'file', path = '{0}', format = 'csv', on_error = 'maybe'", "on_error", "skip"),
        ("connector = 'datagen', fields.b.kind = 'random'", 'has no option "fields.b.kind"', "columns are a"),
    ],
)
def test_options_of_connectors(fails, shop, options, message, hint):
    err = fails(f"CREATE SOURCE s (a int) WITH ({options.format(shop)})")
    assert err.condition == "CONNECTOR_OPTION"
    assert message in err.message
    assert hint in err.hint
    assert err.span is not None


CRUEL = (
    "../../x",
    "a'; DROP TABLE customers; --",
    'a"; DROP TABLE customers; --',
    "a\\",
    "a\nb",
    "%s",
    "{0}",
    "$(touch x)",
    "`touch x`",
    "/etc/passwd",
    "..",
    ".",
    "con",
    "main",
    "sqlite_master",
    "_h",
    "☃",
    "x" * 300,
)


@pytest.mark.parametrize("name", CRUEL)
def test_names_are_names(tmp_path, name):
    """As relation, column and value; on disk they're never used."""
    root = tmp_path / "below" / "db"
    quoted = '"' + name.replace('"', '""') + '"'
    with watersmeet.connect(root, runtime="inprocess") as connection:
        run = connection.execute
        run("CREATE TABLE customers (id int)")
        run(f"CREATE TABLE {quoted} ({quoted} varchar, k int PRIMARY KEY)")
        run(f"INSERT INTO {quoted} VALUES (?, 1), ('x', 2)", (name,))
        view = quoted[:-1] + ' view"'
        run(
            f"CREATE MATERIALIZED VIEW {view} AS SELECT l.{quoted}, r.k FROM {quoted} l JOIN {quoted} r ON "
            f"l.{quoted} = r.{quoted}"
        )
        run(f"UPDATE {quoted} SET {quoted} = 'y' WHERE k = 2; FLUSH")
        assert sorted(run(f"SELECT * FROM {view}").fetchall()) == sorted([(name, 1), ("y", 2)])
        assert run(f"SELECT k FROM {quoted} WHERE {quoted} = ?", (name,)).fetchall() == [(1,)]
        assert [r[0] for r in run("SHOW TABLES").fetchall()] == ["customers", name]
        assert run(f"DESCRIBE {quoted}").fetchone()[0] == name
        assert run(f"EXPLAIN CREATE MATERIALIZED VIEW e AS SELECT {quoted} FROM {quoted}").fetchall()
    with watersmeet.connect(root, runtime="inprocess") as connection:
        connection.execute("FLUSH")
        assert len(connection.execute(f"SELECT * FROM {view}").fetchall()) == 2
        connection.execute(f"DROP MATERIALIZED VIEW {view}; DROP TABLE {quoted}")
    assert sorted(os.listdir(tmp_path)) == ["below"]
    assert sorted(os.listdir(tmp_path / "below")) == ["db"]
    files = [p.relative_to(root) for p in root.rglob("*")]
    assert all(p.name.isascii() and not set(p.name) & set("'\";$ %{") for p in files)


def test_texts_are_never_code(run, shop):
    run("INSERT INTO customers (id, name) VALUES (1, ?)", "'); DROP TABLE customers; --")
    run("INSERT INTO customers (id, name) VALUES (2, '''); DROP TABLE customers; --')")
    run("CREATE MATERIALIZED VIEW v AS SELECT id FROM customers WHERE name = '''); DROP TABLE customers; --'; FLUSH")
    assert sorted(run("SELECT id FROM v")) == [(1,), (2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '{0}/x.db'",
        "EXPORT DATABASE '{0}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET memory_limit = '1GB'",
        "SET threads = 1",
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM '{0}/x.csv'",
        "SELECT * FROM pg_catalog.pg_settings",
        "SELECT current_setting('threads')",
        "SELECT * FROM python_variable",
        "CALL pragma_version()",
        "CHECKPOINT",
        "CREATE MATERIALIZED VIEW v AS SELECT getenv('HOME') AS h",
        "SELECT write_log('x')",
    ],
)
def test_nothing_of_the_engine_below_can_be_reached(fails, shop, sql):
    (shop / "x.csv").write_text("a\n1\n")
    python_variable = [1]  # noqa: F841 - DuckDB would find it if it were let
    err = fails(sql.format(shop))
    assert err.condition in (
        "FEATURE_NOT_SUPPORTED",
        "SYNTAX_ERROR",
        "UNDEFINED_OBJECT",
        "UNDEFINED_FUNCTION",
        "UNDEFINED_RELATION",
    ), err
    assert os.listdir(shop) == ["x.csv"]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ('CREATE TABLE "Customers" (a int)', "DUPLICATE_OBJECT"),
        ("CREATE TABLE CUSTOMERS (a int)", "DUPLICATE_OBJECT"),
        ('CREATE MATERIALIZED VIEW "CUSTOMERS" AS SELECT id FROM customers', "DUPLICATE_OBJECT"),
        ('CREATE VIEW "cusTomers" AS SELECT id FROM customers', "DUPLICATE_OBJECT"),
        ('CREATE TABLE t (a int, "A" int)', "DUPLICATE_COLUMN"),
        ('CREATE MATERIALIZED VIEW v AS SELECT id, id AS "ID" FROM customers', "DUPLICATE_COLUMN"),
        ('CREATE TABLE "" (a int)', "INVALID_NAME"),
    ],
)
def test_names_that_can_not_be_told_apart(fails, shop, sql, condition):
    err = fails(sql)
    assert err.condition == condition
    if '"' in sql and condition.startswith("DUPLICATE"):
        assert "differ only in" in err.detail


@pytest.mark.parametrize("sql", ["", ";", "-- nothing", "/* nothing */ ;;"])
def test_nothing_is_no_error(run, sql):
    assert run(sql) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'abc",
        'SELECT "abc',
        "SELECT /* abc",
        "SELECT (1 + 2",
        "SELECT 1 +",
        "CREATE TABLE (a int)",
        "CREATE TABLE x (a int,, b int)",
        "SELECT * FROM a JOIN",
        "SELECT $$abc",
        "SELECT $a$abc",
        "SELECT",
        "SELECT (SELECT)",
        "SELECT 1 JOIN t ON true",
        "SELECT 1 LEFT JOIN t ON true",
        "SELECT 1 IN ()",
        "VALUES ()",
        "VALUES (1), ()",
        "\\",
    ],
)
def test_broken_texts_are_syntax_errors_with_a_place(fails, sql):
    err = fails(sql)
    assert err.condition == "SYNTAX_ERROR"
    assert err.span is not None
    assert "^" in str(err)


def test_a_hint_names_a_cast_that_exists(fails, run, shop):
    for sql, hint in (
        ("SELECT id = name FROM customers", "(…)::integer"),
        ("SELECT name + id FROM customers", "(…)::integer"),
        ("SELECT name = id FROM customers", "(…)::character varying"),
        ("SELECT born = id FROM customers", None),
        ("SELECT INTERVAL '1 day' <> ALL (SELECT id FROM customers)", None),
        ("SELECT born + true FROM customers", None),
    ):
        err = fails(sql)
        assert err.condition == "DATATYPE_MISMATCH", sql
        assert err.span is not None, sql
        assert (err.hint is None) == (hint is None), (sql, err.hint)
        assert hint is None or hint in err.hint, (sql, err.hint)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT '2024-01-01 BC'::date",
        "SELECT '2024-01-01x'::date",
        "INSERT INTO customers VALUES (1, 'x', '2024-01-01 xyz', 0)",
        "SELECT TIME '10:00:00 xyz'",
    ],
)
def test_what_follows_a_date_or_a_time_is_not_left_out(fails, shop, sql):
    err = fails(sql)
    assert err.condition == "INVALID_VALUE"
    assert err.span is not None


def test_dates_and_times_may_be_parts_of_longer_ones(run):
    assert run("SELECT '2024-02-03 10:11:12'::date, ' 2024-2-3'::date, '2024-02-03T10:11:12Z'::date") == [
        (dt.date(2024, 2, 3),) * 3
    ]
    assert run("SELECT ' 2024-2-3 '::timestamp, ' 2024-2-3 '::timestamptz = '2024-02-03'") == [
        (dt.datetime(2024, 2, 3), True)
    ]
    assert run("SELECT '10:11'::time, '10:11:12.5+02'::time, 'infinity'::date > '2024/01/01'::date") == [
        (dt.time(10, 11), dt.time(10, 11, 12, 500000), True)
    ]


@pytest.mark.parametrize("text", ["5.5", "5.", "1e3", " .5", "-1E2"])
def test_a_fraction_is_no_integer(fails, text):
    err = fails(f"SELECT '{text}'::int")
    assert err.condition == "INVALID_VALUE"
    assert f'invalid input syntax for type integer: "{text}"' in str(err)
    assert err.span is not None


@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_a_number_that_is_too_large_is_not_infinite(run, fails, kind):
    err = fails(f"SELECT '-1e400'::{kind}")
    assert err.condition == "INVALID_VALUE"
    assert err.span is not None
    assert run(f"SELECT '-Infinity'::{kind} < 0, 'inf'::{kind} > 0") == [(True, True)]


#: Texts as a column has them, and what they are as bigint, date, time and timestamptz.
READ = {
    "5.5": (None, None, None, None),
    "1e3": (None, None, None, None),
    " +7 ": (7, None, None, None),
    "0xE1": (225, None, None, None),
    "2024-02-03 xyz": (None, None, None, None),
    "2024-02-03 (BC)x": (None, None, None, None),
    " 2024-2-3": (None, dt.date(2024, 2, 3), dt.time(0), dt.datetime(2024, 2, 3, tzinfo=dt.UTC)),
    "10:11 xyz": (None, None, None, None),
    "10:11": (None, None, dt.time(10, 11), None),
    "2024-02-03 10:11:12": (
        None,
        dt.date(2024, 2, 3),
        dt.time(10, 11, 12),
        dt.datetime(2024, 2, 3, 10, 11, 12, tzinfo=dt.UTC),
    ),
}


def test_texts_of_columns_are_read_as_literals_are(run, fails):
    run("CREATE TABLE t (s varchar)")
    for text in READ:
        run(f"INSERT INTO t VALUES ('{text}')")
    kinds = ("bigint", "date", "time", "timestamptz")
    items = ", ".join(f"s::{kind} AS c{i}" for i, kind in enumerate(kinds))
    run(f"CREATE MATERIALIZED VIEW v AS SELECT s, {items} FROM t")
    run("FLUSH")
    assert {row[0]: row[1:] for row in run("SELECT * FROM v")} == READ
    for text, values in READ.items():
        for kind, value in zip(kinds, values, strict=True):
            sql = f"SELECT s::{kind} FROM t WHERE s = '{text}'"
            if value is None:
                err = fails(sql)
                assert err.condition == "INVALID_VALUE", sql
                assert f'"{text}"' in str(err), sql
            else:
                assert run(sql) == [(value,)], sql


def test_plans_show_casts_of_texts_as_they_are_written(run):
    run("CREATE TABLE t (s varchar, u varchar)")
    kinds = ("smallint", "int", "bigint", "date", "time", "timestamptz")
    items = ", ".join(f"(s || u)::{kind} AS c{i}" for i, kind in enumerate(kinds))
    lines = "\n".join(r[0] for r in run(f"EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT {items} FROM t"))
    for kind in ("Int16", "Int32", "Int64", "Date", "Time", "Timestamptz"):
        assert f"(t.s || t.u)::{kind}" in lines
    assert "REGEXP" not in lines


def test_an_interval_that_python_can_not_hold(run):
    run("CREATE TABLE t (i interval)")
    run("INSERT INTO t VALUES ('178000000 years')")
    run("FLUSH")
    assert run("SELECT i::varchar FROM t WHERE i > INTERVAL '3000000 years'") == [("178000000 years",)]
    with pytest.raises(watersmeet.Error) as caught:
        run("SELECT i FROM t")
    assert caught.value.condition == "INVALID_VALUE"
    assert "Cast the column to varchar" in caught.value.hint


def test_an_unknown_time_zone_has_a_place(fails, run):
    run("CREATE TABLE t (at timestamptz)")
    for sql in (
        "SELECT at AT TIME ZONE 'Nowhere/City' FROM t",
        "CREATE MATERIALIZED VIEW v AS SELECT at AT TIME ZONE 'Nowhere/City' AS x FROM t",
    ):
        err = fails(sql)
        assert err.condition == "INVALID_PARAMETER"
        assert sql[err.span.start : err.span.end] == "'Nowhere/City'"


def test_an_error_names_the_comparison_that_was_written(fails, shop):
    assert "integer > date" in fails("SELECT id > ALL (SELECT born FROM customers) FROM customers").message
    assert "integer <= date" in fails("SELECT id <= ANY (SELECT born FROM customers) FROM customers").message


def test_a_window_of_millions_of_years_is_refused(fails, shop):
    err = fails("SELECT * FROM TUMBLE(customers, born, INTERVAL '3000000 years')")
    assert err.condition == "FEATURE_NOT_SUPPORTED"
    assert err.span is not None


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("UPDATE customers SET name = *", "SYNTAX_ERROR"),
        ("UPDATE customers SET name = customers.*", "SYNTAX_ERROR"),
        ("SELECT id::numeric('x') FROM customers", None),
        ("SELECT CAST(id AS numeric(10, *)) FROM customers", None),
        ("SELECT array_to_string(ARRAY[name, name], name) FROM customers", "FEATURE_NOT_SUPPORTED"),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT array_join(ARRAY[name], name) AS x FROM customers",
            "FEATURE_NOT_SUPPORTED",
        ),
        ("CREATE MATERIALIZED VIEW v AS SELECT list_zip(ARRAY[id], ARRAY[id]) AS x FROM customers", None),
    ],
)
def test_what_can_not_be_is_no_internal_error(fails, run, shop, sql, condition):
    err = fails(sql)
    assert err.condition not in ("INTERNAL_ERROR", "VIEW_FAILED")
    assert condition in (None, err.condition)
    assert err.span is not None
    run("FLUSH")


def test_a_time_zone_of_a_row_that_does_not_exist_is_null(run):
    run("CREATE TABLE t (id int, zone varchar)")
    run("CREATE MATERIALIZED VIEW v AS SELECT id, TIMESTAMP '2024-01-01' AT TIME ZONE zone AS at FROM t")
    run("INSERT INTO t VALUES (1, 'Nowhere/City'), (2, 'Asia/Tokyo'), (3, NULL)")
    run("FLUSH")
    tokyo = dt.datetime(2023, 12, 31, 15, tzinfo=dt.UTC)
    assert run("SELECT * FROM v ORDER BY id") == [(1, None), (2, tokyo), (3, None)]
    run("INSERT INTO t VALUES (4, '')")
    run("FLUSH")
    assert run("SELECT count(*) FROM v") == [(4,)], "the views go on"


def test_texts_that_duckdb_cuts_within_a_character(fails, run):
    run("CREATE TABLE t (id int, s varchar)")
    run("CREATE MATERIALIZED VIEW v AS SELECT id, s::jsonb AS j, decode(s, 'hex') AS h FROM t")
    for place in range(4):  # whichever of the bytes of a character is cut
        run(f"INSERT INTO t VALUES ({place}, '{'x' * place}{'é😀' * 60}')")
    run("INSERT INTO t VALUES (4, '10')")
    run("FLUSH")
    assert run("SELECT id, j IS NULL, h FROM v ORDER BY id") == [
        *((place, True, None) for place in range(4)),
        (4, False, b"\x10"),
    ]
    for place in range(4):
        assert fails(f"SELECT s::jsonb FROM t WHERE id = {place}").condition == "INVALID_VALUE"
        assert fails(f"SELECT decode(s, 'hex') FROM t WHERE id = {place}").condition == "INVALID_VALUE"
        assert fails(f"SELECT '{'x' * place}{'é😀' * 60}'::jsonb").condition == "INVALID_VALUE"


def test_an_interval_of_more_hours_than_are_kept_is_refused(fails, run):
    run("CREATE TABLE t (i interval)")
    run("INSERT INTO t VALUES ('2562047 hours'), ('-2562047 hours')")
    assert sorted(run("SELECT i::varchar FROM t")) == [("-2562047:00:00",), ("2562047:00:00",)]
    for sql in ("INSERT INTO t VALUES ('3000000 hours')", "SELECT INTERVAL '-3000000 hours'"):
        err = fails(sql)
        assert err.condition == "INVALID_VALUE"
        assert err.span is not None


def test_an_escape_of_a_row_that_is_none_stops_no_view(run):
    run("CREATE TABLE t (id int, s varchar, e varchar)")
    run("CREATE MATERIALIZED VIEW v AS SELECT id, like_escape(s, s, e) AS x FROM t")
    run("INSERT INTO t VALUES (1, 'a', 'long'), (2, 'a', '!')")
    run("FLUSH")
    assert run("SELECT * FROM v ORDER BY id") == [(1, None), (2, True)]


def test_nan_has_no_sign_in_its_text(run):
    run("CREATE TABLE t (d double precision)")
    run("INSERT INTO t VALUES ('NaN'), ('-NaN')")
    assert run("SELECT acosh(d)::varchar, d::varchar, (-d)::varchar FROM t") == [("NaN", "NaN", "NaN")] * 2


@pytest.mark.parametrize(
    ("dialect", "sql", "condition"),
    [
        ("lenses", "SELECT STREAM a.x, b.y a JOIN b", "SYNTAX_ERROR"),
        ("lenses", "SELECT STREAM x FROM `a", "SYNTAX_ERROR"),
        ("timeplus", "SELECT i FROM s $1 TIMEOUT 5s", "SYNTAX_ERROR"),
        ("sqlstream", "SELECT STREAM s.k FROM s WHERE s.k = s.k(SELECT STREAM k FROM s)", "UNDEFINED_FUNCTION"),
        ("risingwave", "CREATE TABLE c (a int, b bigint AS ())", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_broken_texts_of_all_dialects_have_a_place(dialect, sql, condition):
    with watersmeet.connect(runtime="inprocess", dialect=dialect) as connection:
        if dialect == "sqlstream":
            connection.execute("CREATE STREAM s (k int)")
        with pytest.raises(watersmeet.Error) as caught:
            connection.execute(sql)
    assert caught.value.condition == condition
    assert "^" in str(caught.value)


def test_a_row_of_a_changelog_that_is_refused_is_shown():
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as connection:
        connection.execute("CREATE STREAM s (k string, v int) PRIMARY KEY k SETTINGS mode = 'changelog_kv'")
        with pytest.raises(watersmeet.Error) as caught:
            connection.execute("INSERT INTO s (k, v) VALUES (NULL, 9)")
    assert caught.value.condition == "NOT_NULL_VIOLATION"
    assert caught.value.detail.startswith("Failing row contains (null, 9, ")
