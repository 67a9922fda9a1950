"""CREATE and DROP: columns, keys, options, clauses."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import refusal

from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree import definitions as df
from watersmeet.values.types import Field, SqlType


def one(text):
    (statement,) = parse(text)
    return statement


def column_type(text):
    return one(f"CREATE TABLE t (c {text})").columns[0].type


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("boolean", "boolean"),
        ("bool", "boolean"),
        ("smallint", "smallint"),
        ("int2", "smallint"),
        ("INT", "integer"),
        ("integer", "integer"),
        ("int4", "integer"),
        ("bigint", "bigint"),
        ("int8", "bigint"),
        ("numeric", "numeric"),
        ("decimal", "numeric"),
        ("numeric(10,2)", "numeric(10,2)"),
        ("DECIMAL ( 5 )", "numeric(5,0)"),
        ("real", "real"),
        ("float4", "real"),
        ("double precision", "double precision"),
        ("double", "double precision"),
        ("float8", "double precision"),
        ("float", "double precision"),
        ("varchar", "character varying"),
        ("character varying", "character varying"),
        ("text", "character varying"),
        ("string", "character varying"),
        ("bytea", "bytea"),
        ("date", "date"),
        ("time", "time"),
        ("time without time zone", "time"),
        ("timestamp", "timestamp without time zone"),
        ("timestamp without time zone", "timestamp without time zone"),
        ("timestamptz", "timestamp with time zone"),
        ("timestamp with time zone", "timestamp with time zone"),
        ("interval", "interval"),
        ("jsonb", "jsonb"),
        ("int[]", "integer[]"),
        ("varchar[][]", "character varying[][]"),
        ("struct<a int, b varchar>", "struct<a integer, b character varying>"),
        (
            "struct<a int, s struct<x int[], y numeric(3,1)>>",
            "struct<a integer, s struct<x integer[], y numeric(3,1)>>",
        ),
        ("struct<a int>[]", "struct<a integer>[]"),
    ],
)
def test_types(text, shown):
    assert column_type(text).sql == shown


def test_table_with_inline_key():
    """RA-22"""
    table = one('CREATE table T1 (id int primary key, value INT NOT NULL, "Q" varchar NULL)')
    assert isinstance(table, df.CreateTable)
    assert (table.name, table.primary_key) == ("t1", ("id",))
    integer = SqlType("integer")
    assert table.columns == (
        Field("id", integer, False),
        Field("value", integer, False),
        Field("Q", SqlType("varchar")),
    )


def test_table_with_composite_key_and_append_only():
    table = one("CREATE TABLE IF NOT EXISTS public.t (a int, b int, PRIMARY KEY (a, b)) APPEND ONLY")
    assert (table.name, table.primary_key, table.append_only, table.if_not_exists) == ("t", ("a", "b"), True, True)
    assert [c.nullable for c in table.columns] == [False, False]


def test_options_and_format():
    source = one("""CREATE SOURCE s (a int) WITH (connector = 'file', Path = '/x', fields.a.start = 1, "q.r" = true)
                    FORMAT PLAIN ENCODE CSV (delimiter = ';', without_header = 'true')""")
    assert isinstance(source, df.CreateSource)
    assert source.options == {
        "connector": "file",
        "path": "/x",
        "fields.a.start": "1",
        "q.r": "true",
        "delimiter": ";",
        "without_header": "true",
        "format": "csv",
    }


def test_options_may_have_escapes():
    source = one(
        r"CREATE SOURCE s (a int) WITH (connector = 'file', path = '/x') FORMAT PLAIN ENCODE CSV (delimiter = E'\t')"
    )
    assert source.options["delimiter"] == "\t"


def test_columns_may_be_left_to_the_connector():
    assert one("CREATE TABLE t WITH (connector = 'file', path = 'x')").columns == ()


def test_create_table_as():
    table = one("CREATE TABLE t (a, b) APPEND ONLY AS SELECT 1, 2")
    assert (table.column_names, table.append_only, table.query.sql()) == (("a", "b"), True, "SELECT 1, 2")


def test_views():
    view = one("CREATE VIEW v (a) AS SELECT 1")
    assert (type(view), view.name, view.column_names) == (df.CreateView, "v", ("a",))
    view = one("CREATE MATERIALIZED VIEW IF NOT EXISTS v WITH (x = 'y') AS (SELECT 1) UNION SELECT 2")
    assert (type(view), view.if_not_exists, view.options) == (df.CreateMaterializedView, True, {"x": "y"})


def test_index():
    index = one("CREATE INDEX i ON t (a DESC NULLS LAST, b) INCLUDE (c) DISTRIBUTED BY (a)")
    assert (index.name, index.table.name, index.columns, index.include, index.distributed_by) == (
        "i",
        "t",
        ("a", "b"),
        ("c",),
        ("a",),
    )


@pytest.mark.parametrize("kind", ["table", "source", "view", "materialized view", "index"])
def test_drop(kind):
    drop = one(f"DROP {kind.upper()} IF EXISTS a, public.b CASCADE")
    assert (drop.kind, [n.name for n in drop.names], drop.if_exists, drop.cascade) == (kind, ["a", "b"], True, True)
    assert not one(f"DROP {kind} a RESTRICT").cascade


# Errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "CREATE TABLE t (a money)",
            (
                "error[FEATURE_NOT_SUPPORTED] 0A000: type money is not supported\n"
                "LINE 1: CREATE TABLE t (a money)\n                          ^^^^^\nhint: Use numeric."
            ),
        ),
        (
            "CREATE TABLE t (a varchar(0))",
            (
                "error[INVALID_PARAMETER] 22023: length for type varchar must be between 1 and 10485760\n"
                "LINE 1: CREATE TABLE t (a varchar(0))\n                          ^^^^^^^"
            ),
        ),
        (
            "CREATE TABLE t (a numeric(50))",
            (
                "error[INVALID_PARAMETER] 22023: numeric precision 50 must be between 1 and 38\n"
                "LINE 1: CREATE TABLE t (a numeric(50))\n                          ^^^^^^^"
            ),
        ),
        (
            "CREATE TABLE t (a int, A int)",
            (
                'error[DUPLICATE_COLUMN] 42701: column "a" specified more than once\n'
                "LINE 1: CREATE TABLE t (a int, A int)\n                               ^"
            ),
        ),
        (
            "CREATE TABLE t (a int, PRIMARY KEY (b))",
            (
                'error[UNDEFINED_COLUMN] 42703: column "b" named in key does not exist\n'
                "LINE 1: CREATE TABLE t (a int, PRIMARY KEY (b))\n                               ^^^^^^^^^^^^^^^"
            ),
        ),
        (
            "CREATE TABLE t (a)",
            (
                'error[SYNTAX_ERROR] 42601: column "a" has no type\n'
                "LINE 1: CREATE TABLE t (a)\n                        ^"
            ),
        ),
        (
            "CREATE TABLE t",
            "error[SYNTAX_ERROR] 42601: a table needs columns\nLINE 1: CREATE TABLE t\n                     ^",
        ),
        (
            "CREATE TABLE t (a int b)",
            (
                'error[SYNTAX_ERROR] 42601: syntax error at or near "b"\n'
                "LINE 1: CREATE TABLE t (a int b)\n                              ^"
            ),
        ),
        (
            "CREATE TABLE select (a int)",
            (
                'error[SYNTAX_ERROR] 42601: syntax error at or near "select"\n'
                "LINE 1: CREATE TABLE select (a int)\n                     ^^^^^^\ndetail: A name was expected here."
            ),
        ),
        (
            "CREATE SOURCE s (a int) WITH (a = 1, A = 2)",
            (
                'error[CONNECTOR_OPTION] 22023: option "a" is given twice\n'
                "LINE 1: CREATE SOURCE s (a int) WITH (a = 1, A = 2)\n                                             ^"
            ),
        ),
        (
            "CREATE VIEW v (a, a) AS SELECT 1, 2",
            (
                'error[DUPLICATE_COLUMN] 42701: column "a" specified more than once\n'
                "LINE 1: CREATE VIEW v (a, a) AS SELECT 1, 2\n                          ^"
            ),
        ),
    ],
)
def test_refused(text, error):
    assert refusal(parse, text) == error
