"""Scalars: PostgreSQL's types and values, computed by DuckDB; the same in views and in batch queries."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from tests.unit.binder.helpers import Content, bound, catalog_of, refusal

from watersmeet.dialects.parsing import parse
from watersmeet.unparsing import to_duckdb

SCHEMA = """CREATE TABLE q (i int, s smallint, b bigint, n numeric, m numeric(10,2), r real, f double precision,
        t varchar,
    ts timestamp, tz timestamptz, d date, tm time, iv interval, j jsonb, bo boolean, by bytea, a int[],
    st struct<x int, y varchar>, nn int NOT NULL)"""
ROW = """INSERT INTO q VALUES (7, 2, 10000000000, 1.5, 12.34, 0.5, 2.5, 'abc', TIMESTAMP '2024-01-02 03:04:05.678',
    '2024-01-02 03:04:05+00', DATE '2024-01-02', TIME '03:04:05.5', INTERVAL '1 day 2 hours',
    '{"a":{"b":[1,2]},"k":"v","n":null}', true, 'xy', [1, 2, 3], {'x': 1, 'y': 'z'}, 1)"""

CATALOG = catalog_of(SCHEMA)


@pytest.fixture(scope="module")
def content():
    made = Content(CATALOG)
    made.execute(ROW)
    return made


D = Decimal
FULL = "timestamp without time zone"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        # integers: results are as wide as the wider side, division cuts, an error is NULL
        ("i + 1", "integer", 8),
        ("s + s", "smallint", 4),
        ("s + 1", "integer", 3),
        ("i * b", "bigint", 70000000000),
        ("i / 2", "integer", 3),
        ("-7 / 2", "integer", -3),
        ("i % 4", "integer", 3),
        ("b / 3", "bigint", 3333333333),
        ("i / 0", "integer", None),
        ("i % 0", "integer", None),
        ("-i", "integer", -7),
        ("+i", "integer", 7),
        ("i & 3", "integer", 3),
        ("i | 8", "integer", 15),
        ("i # 3", "integer", 4),
        ("i << 2", "integer", 28),
        ("~i", "integer", -8),
        ("mod(i, 4)", "integer", 3),
        ("abs(-i)", "integer", 7),
        ("2147483647", "integer", 2147483647),
        ("2147483648", "bigint", 2147483648),
        ("-2147483648", "integer", -(2**31)),
        ("99999999999999999999", "numeric", D(99999999999999999999)),
        # decimals and floats
        ("n * 2.5", "numeric", D("3.75")),
        ("m * 2", "numeric", D("24.68")),
        ("m / 3", "numeric", D("4.1133333333")),
        ("n / 0", "numeric", None),
        ("10 / 4.0", "numeric", D("2.5")),
        ("i + 2.5", "numeric", D("9.5")),
        ("n + n", "numeric", D(3)),
        ("n % 1", "numeric", D("0.5")),
        ("1e3", "numeric", D(1000)),
        ("1.5e-3", "numeric", D("0.0015")),
        ("f / 2", "double precision", 1.25),
        ("f / 0", "double precision", None),
        ("r + 1", "double precision", 1.5),
        ("r + r", "real", 1.0),
        ("i * f", "double precision", 17.5),
        ("i ^ 2", "double precision", 49.0),
        ("n ^ 2", "numeric", D("2.25")),
        ("sqrt(16)", "double precision", 4.0),
        ("round(n)", "numeric", D(2)),
        ("round(2.345, 2)", "numeric", D("2.35")),
        ("round(2.5::double precision)", "double precision", 2.0),
        ("ceil(n)", "numeric", D(2)),
        ("floor(f)", "double precision", 2.0),
        ("trunc(n)", "numeric", D(1)),
        ("greatest(i, b, 2.5)", "numeric", D(10000000000)),
        ("least(i, NULL, 3)", "integer", 3),
        # comparisons
        ("i = b", "boolean", False),
        ("i = n", "boolean", False),
        ("i = '7'", "boolean", True),
        ("m = 12.34", "boolean", True),
        ("d < ts", "boolean", True),
        ("ts = tz", "boolean", False),
        ("d = '2024-01-02'", "boolean", True),
        ("i BETWEEN 1 AND 7", "boolean", True),
        ("i NOT BETWEEN 1 AND 7", "boolean", False),
        ("i IN (1, 7, 2.5)", "boolean", True),
        ("i NOT IN (1, NULL)", "boolean", None),
        ("i IN ('7')", "boolean", True),
        ("(i, t) = (7, 'abc')", "boolean", True),
        ("(i, t) IN ((1, 'x'), (7, 'abc'))", "boolean", True),
        ("i = ANY(a)", "boolean", False),
        ("2 = ANY(ARRAY[1, 2])", "boolean", True),
        ("i IS DISTINCT FROM NULL", "boolean", True),
        ("NULL IS NOT DISTINCT FROM NULL", "boolean", True),
        ("i IS NULL", "boolean", False),
        ("bo IS NOT TRUE", "boolean", False),
        ("NOT bo", "boolean", False),
        ("bo AND NULL", "boolean", None),
        ("bo OR NULL", "boolean", True),
        # texts
        ("t || i", "character varying", "abc7"),
        ("t || n || f", "character varying", "abc1.52.5"),
        ("t || NULL", "character varying", None),
        ("'it''s' || E'\\n'", "character varying", "it's\n"),
        ("t LIKE 'a%'", "boolean", True),
        ("t LIKE 'a\\%'", "boolean", False),
        ("'a%' LIKE 'a\\%'", "boolean", True),
        ("t NOT ILIKE 'A%'", "boolean", False),
        ("t LIKE 'a!%' ESCAPE '!'", "boolean", False),
        ("t ~ 'b'", "boolean", True),
        ("t !~ '^b'", "boolean", True),
        ("t ~* 'B'", "boolean", True),
        ("t SIMILAR TO '(a|x)%'", "boolean", True),
        ("upper(t)", "character varying", "ABC"),
        ("length(t)", "integer", 3),
        ("char_length(t)", "integer", 3),
        ("octet_length('ä')", "integer", 2),
        ("substr(t, 2)", "character varying", "bc"),
        ("substring(t FROM 2 FOR 1)", "character varying", "b"),
        ("position('b' IN t)", "integer", 2),
        ("trim(BOTH 'a' FROM t)", "character varying", "bc"),
        ("trim(LEADING FROM '  x')", "character varying", "x"),
        ("overlay(t PLACING 'X' FROM 2)", "character varying", "aXc"),
        ("split_part(t, 'b', 1)", "character varying", "a"),
        ("replace(t, 'a', 'z')", "character varying", "zbc"),
        ("lpad(t, 5)", "character varying", "  abc"),
        ("concat(t, i, NULL)", "character varying", "abc7"),
        ("concat_ws(',', t, NULL, i)", "character varying", "abc,7"),
        ("md5(t)", "character varying", "900150983cd24fb0d6963f7d28e17f72"),
        ("encode(by, 'hex')", "character varying", "7879"),
        ("decode('7879', 'hex')", "bytea", b"xy"),
        # dates and times
        ("d - 1", "date", dt.date(2024, 1, 1)),
        ("d - DATE '2024-01-01'", "integer", 1),
        ("d + INTERVAL '1 day'", FULL, dt.datetime(2024, 1, 3)),
        ("ts - INTERVAL '2' DAY", FULL, dt.datetime(2023, 12, 31, 3, 4, 5, 678000)),
        ("ts - TIMESTAMP '2024-01-02 03:04:05'", "interval", dt.timedelta(milliseconds=678)),
        ("ts - '1 day'::interval < ts", "boolean", True),
        ("tm + INTERVAL '1 hour'", "time", dt.time(4, 4, 5, 500000)),
        ("iv * 2", "interval", dt.timedelta(days=2, hours=4)),
        ("iv / 2", "interval", dt.timedelta(hours=13)),
        ("extract(year FROM ts)", "numeric", D(2024)),
        ("extract(second FROM ts)", "numeric", D("5.678")),
        ("extract(epoch FROM ts)", "numeric", D("1704164645.678")),
        ("extract(epoch FROM iv)", "numeric", D(93600)),
        ("date_trunc('hour', ts)", FULL, dt.datetime(2024, 1, 2, 3)),
        ("date_trunc('month', d)", FULL, dt.datetime(2024, 1, 1)),
        ("to_char(ts, 'YYYY-MM-DD HH24:MI:SS.MS')", "character varying", "2024-01-02 03:04:05.678"),
        ("to_date('02.01.2024', 'DD.MM.YYYY')", "date", dt.date(2024, 1, 2)),
        ("tz AT TIME ZONE 'Asia/Tokyo'", FULL, dt.datetime(2024, 1, 2, 12, 4, 5)),
        # casts
        ("cast(f AS int)", "integer", 2),
        ("'12'::int", "integer", 12),
        ("2.5::int", "integer", 3),
        ("bo::int", "integer", 1),
        ("f::varchar", "character varying", "2.5"),
        ("2::double precision::varchar", "character varying", "2"),
        ("n::varchar", "character varying", "1.5"),
        ("m::varchar", "character varying", "12.34"),
        ("(n * 2)::varchar", "character varying", "3"),
        ("by::varchar", "character varying", "\\x7879"),
        ("'\\x00ff'::bytea", "bytea", b"\x00\xff"),
        ("'yes'::boolean", "boolean", True),
        ("'off'::bool", "boolean", False),
        ("'{1,NULL,2}'::int[]", "integer[]", [1, None, 2]),
        ("t::int", "integer", None),
        ("'NaN'::real = 'NaN'::real", "boolean", True),
        ("ts::date", "date", dt.date(2024, 1, 2)),
        ("1.005::numeric(10,2)", "numeric(10,2)", D("1.01")),
        # jsonb, arrays, structs
        ("j -> 'a' -> 'b' -> 0", "jsonb", "1"),
        ("j -> 'a' ->> 'b'", "character varying", "[1, 2]"),
        ("j #>> '{a,b,1}'", "character varying", "2"),
        ("j ->> 'k'", "character varying", "v"),
        ("j ->> 'n'", "character varying", None),
        ("(j -> 'a' -> 'b' ->> 1)::int + 1", "integer", 3),
        ("jsonb_typeof(j -> 'a')", "character varying", "object"),
        ("jsonb_array_length(j -> 'a' -> 'b')", "integer", 2),
        ("'{\"x\":1}'::jsonb", "jsonb", '{"x":1}'),
        ("a[1]", "integer", 1),
        ("a[i - 5]", "integer", 2),
        ("a[9]", "integer", None),
        ("a || 4", "integer[]", [1, 2, 3, 4]),
        ("0 || a", "integer[]", [0, 1, 2, 3]),
        ("array_length(a, 1)", "integer", 3),
        ("cardinality(a)", "integer", 3),
        ("ARRAY[1, 2.5]", "numeric[]", [D(1), D("2.5")]),
        ("(st).x", "integer", 1),
        ("(st).y || '!'", "character varying", "z!"),
        ("row(1, 'a')", "struct<f1 integer, f2 character varying>", {"f1": 1, "f2": "a"}),
        # conditions
        ("CASE WHEN i > 5 THEN 1 ELSE 2.5 END", "numeric", D(1)),
        ("CASE i WHEN 7 THEN 'x' ELSE NULL END", "character varying", "x"),
        ("CASE WHEN false THEN 1 END", "integer", None),
        ("coalesce(NULL, b, i)", "bigint", 10000000000),
        ("nullif(i, 7)", "integer", None),
        ("nullif('a', t)", "character varying", "a"),
    ],
)
def test_value_and_type(content, text, kind, value):
    query = bound(f"SELECT {text} AS x FROM q", CATALOG)
    assert query.columns[0].type.sql == kind
    sql = query.tree.exprs[0].sql().replace('"', "")
    for column, field in zip(query.tree.input.columns, CATALOG.by_name("q").columns, strict=True):
        sql = sql.replace(column.id + " ", field.name + " ")
    batch = to_duckdb(parse(f"SELECT {text} AS x FROM q")[0].query, CATALOG, text)
    assert batch.columns[0].type.sql == kind
    # what fails in DuckDB is NULL in a view (`kernel.expressions`)
    tried = batch.sql.replace("SELECT ", "SELECT TRY(", 1).replace(' AS "x"', ') AS "x"', 1)
    assert content.rows(tried) == [(value,)]
    assert content.connection.sql(batch.sql).types[0] == query.columns[0].type.duckdb.replace('"', "")


@pytest.mark.parametrize(
    ("text", "nullable"),
    [
        ("nn", False),
        ("nn + 1", True),
        ("nn > 1", False),
        ("i > 1", True),
        ("i IS NULL", False),
        ("coalesce(i, nn)", False),
        ("nn::bigint", False),
        ("nn::smallint", True),
        ("'x'", False),
        ("NULL", True),
        ("count(i)", False),
        ("max(nn)", True),
        ("CASE WHEN i > 1 THEN nn END", True),
        ("CASE WHEN i > 1 THEN nn ELSE 0 END", False),
        ("bo AND nn > 1", True),
    ],
)
def test_nullability(text, nullable):
    assert bound(f"SELECT {text} AS x FROM q", CATALOG).columns[0].nullable is nullable


# Errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "i = t",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: integer = character varying\n"
                "LINE 1: SELECT i = t AS x FROM q\n               ^^^^^\nhint: Cast one side, for example: "
                "(…)::integer."
            ),
        ),
        (
            "t > 5",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: character varying > integer\n"
                "LINE 1: SELECT t > 5 AS x FROM q\n               ^^^^^\nhint: Cast one side, for example: "
                "(…)::character varying."
            ),
        ),
        (
            "i > 'abc'",
            (
                'error[INVALID_VALUE] 22P02: invalid input syntax for type integer: "abc"\n'
                "LINE 1: SELECT i > 'abc' AS x FROM q\n               ^^^^^^^^^"
            ),
        ),
        (
            "t + i",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: character varying + integer\n"
                "LINE 1: SELECT t + i AS x FROM q\n               ^^^^^\nhint: Cast one side, for example: "
                "(…)::integer."
            ),
        ),
        (
            "-t",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: - character varying\n"
                "LINE 1: SELECT -t AS x FROM q\n                ^"
            ),
        ),
        (
            "NOT i",
            (
                "error[DATATYPE_MISMATCH] 42804: argument of NOT must be type boolean, not type integer\n"
                "LINE 1: SELECT NOT i AS x FROM q\n                   ^"
            ),
        ),
        (
            "t IN (1, 2)",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: character varying = integer\n"
                "LINE 1: SELECT t IN (1, 2) AS x FROM q\n               ^^^^^^^\nhint: Cast one side, for "
                "example: (…)::character varying."
            ),
        ),
        (
            "CASE WHEN bo THEN 1 ELSE t END",
            (
                "error[DATATYPE_MISMATCH] 42804: CASE types integer and character varying cannot "
                "be matched\nLINE 1: SELECT CASE WHEN bo THEN 1 ELSE t END AS x FROM q\n                     "
                "                   ^"
            ),
        ),
        (
            "i::date",
            (
                "error[DATATYPE_MISMATCH] 42804: cannot cast type integer to date\n"
                "LINE 1: SELECT i::date AS x FROM q\n               ^"
            ),
        ),
        (
            "lower(i)",
            (
                "error[DATATYPE_MISMATCH] 42804: function lower(integer) does not exist\n"
                "LINE 1: SELECT lower(i) AS x FROM q\n               ^^^^^^^^\ndetail: The function exists "
                "as lower(character varying)."
            ),
        ),
        (
            "lenght(t)",
            (
                "error[UNDEFINED_FUNCTION] 42883: function lenght does not exist\n"
                'LINE 1: SELECT lenght(t) AS x FROM q\n               ^^^^^^^^^\nhint: Did you mean "length"?'
            ),
        ),
        (
            "any_ts(t)",  # not "list_sum", nor "tan"
            (
                "error[UNDEFINED_FUNCTION] 42883: function any_ts does not exist\n"
                "LINE 1: SELECT any_ts(t) AS x FROM q\n               ^^^^^^^^^"
            ),
        ),
        (
            "(st).z",
            (
                'error[UNDEFINED_COLUMN] 42703: field "z" not found in struct<x integer, y character varying>\n'
                "LINE 1: SELECT (st).z AS x FROM q\n               ^^^^^^"
            ),
        ),
        (
            "st.x",
            (
                'error[UNDEFINED_RELATION] 42P01: missing FROM-clause entry for table "st"\n'
                "LINE 1: SELECT st.x AS x FROM q\n               ^^^^\nhint: A field of a struct is written (st).x."
            ),
        ),
        (
            "a[t]",
            (
                "error[DATATYPE_MISMATCH] 42804: array subscript must have type integer\n"
                "LINE 1: SELECT a[t] AS x FROM q\n               ^^^"
            ),
        ),
        (
            "DATE '2024-13-01'",
            (
                'error[INVALID_VALUE] 22P02: invalid input syntax for type date: "2024-13-01"\n'
                "LINE 1: SELECT DATE '2024-13-01' AS x FROM q\n                    ^^^^^^^^^^^^"
            ),
        ),
        (
            "date_trunc('dya', ts)",
            (
                'error[INVALID_VALUE] 22P02: unit "dya" not recognized\n'
                "LINE 1: SELECT date_trunc('dya', ts) AS x FROM q\n               "
                '^^^^^^^^^^^^^^^^^^^^^\nhint: Did you mean "day"?'
            ),
        ),
        (
            "extract(foo FROM ts)",
            (
                'error[INVALID_VALUE] 22P02: unit "foo" not recognized for type timestamp without time zone\n'
                "LINE 1: SELECT extract(foo FROM ts) AS x FROM q\n               ^^^^^^^^^^^^^^^^^^^^"
            ),
        ),
    ],
)
def test_type_errors_have_a_place_and_are_the_same_in_views_and_queries(text, error):
    sql = f"SELECT {text} AS x FROM q"
    assert refusal(bound, sql, CATALOG) == error
    assert refusal(lambda: to_duckdb(parse(sql)[0].query, CATALOG, sql)) == error


@pytest.mark.parametrize(
    "text", ["now()", "CURRENT_TIMESTAMP", "CURRENT_DATE", "random()", "gen_random_uuid()", "proctime()"]
)
def test_what_changes_by_itself_is_refused_in_a_view_only(text):
    name = text.removesuffix("()").lower()
    sql = f"SELECT {text} AS x FROM q"
    found = refusal(bound, sql, CATALOG)
    assert any(
        text in found
        for text in (
            f"{name}() is not supported in a view",
            f"`{name.upper()}()` function is only allowed in `WHERE`, `HAVING` and `ON`. Found in clause: SELECT",
            f"Function `{name.upper()}()` is only allowed in CREATE TABLE/SOURCE",
        )
    )
    assert to_duckdb(parse(sql)[0].query, CATALOG, sql).sql


@pytest.mark.parametrize(
    "text",
    [
        "getenv('HOME')",
        "read_text('/etc/passwd')",
        "current_setting('x')",
        "write_log('x')",
        "getvariable('x')",
        "read_csv('x')",
        "query('SELECT 1')",
        "setseed(1)",
    ],
)
def test_functions_that_reach_out_of_the_database_do_not_exist(text):
    sql = f"SELECT {text} AS x FROM q"
    for call in (lambda: bound(sql, CATALOG), lambda: to_duckdb(parse(sql)[0].query, CATALOG, sql)):
        assert "error[UNDEFINED_FUNCTION]" in refusal(call)


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ('t COLLATE "de_DE"', "the collation de_DE"),
        ("INTERVAL '1 2' MINUTE TO SECOND", "the interval '1 2' MINUTE TO SECOND"),
        ("t SIMILAR TO t", "SIMILAR TO with a pattern that is not a constant"),
        ("regexp_match(t, t)", "regexp_match with a pattern that is not a constant"),
        ("t ~ '(a)\\1'", "a back-reference in a regular expression"),
        ("t ~ '(?=a)'", "look-ahead and look-behind in a regular expression"),
        ("to_char(ts, t)", "to_char with a format that is not a constant"),
        ("i::money", "type money"),
        ("corr(d, d)", "the aggregate function corr in a view"),
    ],
)
def test_features_to_come_are_named(text, feature):
    found = refusal(bound, f"SELECT {text} AS x FROM q", CATALOG)
    assert found.startswith(f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported")
