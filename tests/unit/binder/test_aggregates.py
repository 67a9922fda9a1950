"""GROUP BY, HAVING, DISTINCT and aggregate functions of views."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import bound, catalog_of, outline, refusal

CATALOG = catalog_of(
    "CREATE TABLE t (id int PRIMARY KEY, k int, b bigint, n numeric(10,2), r real, f double precision, "
    "x varchar, d date, bo boolean, j jsonb, a int[], s smallint)"
)
SCAN = "scan t #1 #2 #3 #4 #5 #6 #7 #8 #9 #10 #11 #12"


def tree(sql):
    return outline(bound(sql, CATALOG, needs_names=False).tree)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("count(*)", "bigint"),
        ("count(x)", "bigint"),
        ("sum(s)", "bigint"),
        ("sum(k)", "bigint"),
        ("sum(b)", "numeric"),
        ("sum(n)", "numeric(38,2)"),
        ("sum(r)", "real"),
        ("sum(f)", "double precision"),
        ("avg(k)", "numeric"),
        ("avg(n)", "numeric"),
        ("avg(r)", "double precision"),
        ("min(k)", "integer"),
        ("max(n)", "numeric(10,2)"),
        ("min(x)", "character varying"),
        ("max(d)", "date"),
        ("bool_and(bo)", "boolean"),
        ("bool_or(bo)", "boolean"),
        ("every(bo)", "boolean"),
        ("sum(k + 1)", "bigint"),
        ("avg(NULL)", "double precision"),
        ("stddev(k)", "numeric"),
        ("var_pop(r)", "double precision"),
        ("variance(n)", "numeric"),
        ("array_agg(n)", "numeric(10,2)[]"),
        ("array_agg(DISTINCT x ORDER BY x DESC)", "character varying[]"),
        ("array_agg(a)", "integer[][]"),
        ("string_agg(x, ',')", "character varying"),
        ("string_agg(x, x ORDER BY id)", "character varying"),
        ("jsonb_agg(d)", "jsonb"),
        ("jsonb_object_agg(k, x)", "jsonb"),
        ("first_value(n ORDER BY id)", "numeric(10,2)"),
        ("mode() WITHIN GROUP (ORDER BY d)", "date"),
        ("percentile_disc(0.5) WITHIN GROUP (ORDER BY x)", "character varying"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY n)", "double precision"),
        ("bit_or(s)", "smallint"),
        ("bit_xor(b)", "bigint"),
        ("approx_count_distinct(x)", "bigint"),
        ("min(d - d)", "integer"),
        ("sum(k ORDER BY b)", "bigint"),
    ],
)
def test_types_of_results(call, kind):
    assert bound(f"SELECT {call} AS x FROM t", CATALOG).columns[0].type.sql == kind


def test_keys_calls_and_what_is_made_of_them():
    assert tree("SELECT k, count(*), sum(b) / count(*) AS q FROM t GROUP BY k HAVING max(b) > 3") == (
        "project #13, #14, CAST(CAST(#15 AS DOUBLE) / NULLIF(CAST(#14 AS DOUBLE), 0) AS DECIMAL(38, 10)) as #17\n"
        "  filter #16 > 3\n"
        "    aggregate by [#2] count(*), sum(#3), max(#3) -> #13 #14 #15 #16\n"
        f"      {SCAN}"
    )


@pytest.mark.parametrize("group", ["k + 1", "1", "p", "(k + 1)", "k + 1, 1"])
def test_groups_by_expression_position_and_alias(group):
    assert tree(f"SELECT k + 1 AS p, count(x), k + 1 + 2 AS r FROM t GROUP BY {group}") == (
        f"project #13, #14, #13 + 2 as #15\n  aggregate by [#2 + 1] count(#7) -> #13 #14\n    {SCAN}"
    )


def test_a_column_goes_before_an_alias_of_the_same_name():
    assert (
        tree("SELECT k % 2 AS k, count(*) FROM t GROUP BY k").splitlines()[1]
        == "  aggregate by [#2] count(*) -> #13 #14"
    )


def test_without_group_by_there_is_one_group():
    assert (
        tree("SELECT count(*), min(k) + 1 FROM t").splitlines()[1] == "  aggregate by [] count(*), min(#2) -> #13 #14"
    )


def test_the_same_call_is_computed_once():
    assert "count(*), sum(#2) -> #13 #14" in tree("SELECT count(*), sum(k), count(*) + sum(k), count(id) FROM t")


def test_filter_and_distinct():
    assert tree("SELECT count(DISTINCT x) FILTER (WHERE k > 1), max(DISTINCT k), sum(DISTINCT k) FROM t").splitlines()[
        1
    ] == ("  aggregate by [] count(distinct #7) filter #2 > 1, max(#2), sum(distinct #2) -> #13 #14 #15")


def test_select_distinct_is_a_grouping_by_all_columns():
    assert tree("SELECT DISTINCT k, x FROM t") == f"aggregate by [#2, #7] -> #13 #14\n  project #2, #7\n    {SCAN}"


def test_group_by_without_calls():
    assert tree("SELECT k FROM t GROUP BY k, x") == f"project #13\n  aggregate by [#2, #7] -> #13 #14\n    {SCAN}"


def test_star_over_all_groups():
    assert tree("SELECT * FROM (SELECT k, x FROM t) AS q GROUP BY x, k").splitlines()[0] == "project #14, #13"


def test_having_without_calls_in_the_select_list():
    assert tree("SELECT 1 AS one FROM t HAVING count(*) > 1").splitlines()[1:3] == [
        "  filter #13 > 1",
        "    aggregate by [] count(*) -> #13",
    ]


# Errors


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "SELECT x, count(*) FROM t GROUP BY k",
            (
                'error[COLUMN_NOT_GROUPED] 42803: column "x" must appear in the GROUP BY '
                "clause or be used in an aggregate function\nLINE 1: SELECT x, count(*) FROM t GROUP BY k\n  "
                "             ^"
            ),
        ),
        (
            "SELECT t.x, count(*) FROM t",
            (
                'error[COLUMN_NOT_GROUPED] 42803: column "t.x" must appear in the GROUP BY '
                "clause or be used in an aggregate function\nLINE 1: SELECT t.x, count(*) FROM t\n               ^^^"
            ),
        ),
        (
            "SELECT k FROM t GROUP BY k HAVING b > 1",
            (
                'error[COLUMN_NOT_GROUPED] 42803: column "b" must appear in the GROUP BY '
                "clause or be used in an aggregate function\nLINE 1: SELECT k FROM t GROUP BY k HAVING b > 1\n"
                "                                          ^"
            ),
        ),
        (
            "SELECT k FROM t WHERE sum(k) > 1",
            (
                "error[COLUMN_NOT_GROUPED] 42803: aggregate functions are not allowed in WHERE\n"
                "LINE 1: SELECT k FROM t WHERE sum(k) > 1\n                              ^^^^^^"
            ),
        ),
        (
            "SELECT sum(count(*)) FROM t",
            (
                "error[COLUMN_NOT_GROUPED] 42803: aggregate functions are not allowed in the argument "
                "of an aggregate function\nLINE 1: SELECT sum(count(*)) FROM t\n                   ^^^^^^^^"
            ),
        ),
        (
            "SELECT k FROM t GROUP BY count(*)",
            (
                "error[COLUMN_NOT_GROUPED] 42803: aggregate functions are not allowed in "
                "GROUP BY\nLINE 1: SELECT k FROM t GROUP BY count(*)\n                                 ^^^^^^^^"
            ),
        ),
        (
            "SELECT k FROM t GROUP BY 2",
            (
                "error[SYNTAX_ERROR] 42601: GROUP BY position 2 is not in select list\n"
                "LINE 1: SELECT k FROM t GROUP BY 2\n                                 ^"
            ),
        ),
        (
            "SELECT sum(x) FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: function sum(character varying) does not exist\n"
                "LINE 1: SELECT sum(x) FROM t\n               ^^^^^^"
            ),
        ),
        (
            "SELECT min(j) FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: function min(jsonb) does not exist\n"
                "LINE 1: SELECT min(j) FROM t\n               ^^^^^^\n"
                "hint: Values of type jsonb have no order. Cast them to varchar."
            ),
        ),
        (
            "SELECT bool_and(k) FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: function bool_and(integer) does not exist\n"
                "LINE 1: SELECT bool_and(k) FROM t\n               ^^^^^^^^^^^"
            ),
        ),
        (
            "SELECT sum(k, b) FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: sum takes one argument, not 2\n"
                "LINE 1: SELECT sum(k, b) FROM t\n               ^^^^^^^^^"
            ),
        ),
        (
            "SELECT sum() FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: function sum() does not exist\n"
                "LINE 1: SELECT sum() FROM t\n               ^^^^^"
            ),
        ),
        (
            "SELECT sum(*) FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: function sum() does not exist\n"
                "LINE 1: SELECT sum(*) FROM t\n               ^^^^^^"
            ),
        ),
        (
            "SELECT lag(k) FROM t",
            (
                "error[SYNTAX_ERROR] 42601: window function lag requires an OVER clause\n"
                "LINE 1: SELECT lag(k) FROM t\n               ^^^^^^"
            ),
        ),
    ],
)
def test_refused(sql, error):
    assert refusal(tree, sql) == error


@pytest.mark.parametrize(
    ("sql", "feature"),
    [
        ("SELECT corr(f, f) FROM t", "the aggregate function corr in a view"),
        (
            "SELECT percentile_cont(f) WITHIN GROUP (ORDER BY k) FROM t GROUP BY f",
            "percentile_cont with a fraction that is not a constant number",
        ),
        (
            "SELECT count(*) FROM t GROUP BY CUBE (id, k, b, n, r, f, x, d, bo)",
            "GROUP BY with more than 256 grouping sets",
        ),
    ],
)
def test_features_to_come_are_named(sql, feature):
    assert refusal(tree, sql).splitlines()[0] == f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            "array_agg(DISTINCT x ORDER BY k)",
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
        ),
        ("mode(x)", "mode needs WITHIN GROUP (ORDER BY …)"),
        ("sum(k) WITHIN GROUP (ORDER BY k)", "sum takes no WITHIN GROUP"),
        ("percentile_disc(1.5) WITHIN GROUP (ORDER BY k)", "percentile value 1.5 is not between 0 and 1"),
        ("percentile_disc(DISTINCT 0.5) WITHIN GROUP (ORDER BY k)", "cannot use DISTINCT with WITHIN GROUP"),
        (
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)",
            "function percentile_cont(character varying) does not exist",
        ),
        ("string_agg(x)", "function string_agg(character varying) does not exist"),
        ("string_agg(k, ',')", "function string_agg(integer) does not exist"),
        ("bit_and(n)", "function bit_and(numeric(10,2)) does not exist"),
        ("stddev(x)", "function stddev(character varying) does not exist"),
        ("max(bo)", "function max(boolean) does not exist"),
        ("mode() WITHIN GROUP (ORDER BY j)", "function mode(jsonb) does not exist"),
        ("array_agg(sum(k))", "aggregate functions are not allowed in the argument of an aggregate function"),
    ],
)
def test_calls_that_do_not_exist(call, error):
    assert refusal(tree, f"SELECT {call} FROM t").splitlines()[0].endswith(f": {error}")


def test_grouping_sets_are_one_aggregate():
    assert tree("SELECT k, x, grouping(x), sum(b) FROM t GROUP BY GROUPING SETS ((k, x), k)").splitlines()[1:3] == [
        "  aggregate by [#17, #18, #19] sum(#3) -> #13 #14 #15 #16",
        "    expand [[#2, #7], [#2]] -> #17 #18 #19",
    ]
    assert (
        refusal(tree, "SELECT grouping(b) FROM t GROUP BY ROLLUP (k)")
        .splitlines()[0]
        .endswith(": arguments to GROUPING must be grouping expressions of the associated query level")
    )
