"""Joins of views: which conditions become keys, what USING and NATURAL give, what is no join."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import bound, catalog_of, outline, refusal

CATALOG = catalog_of("""
    CREATE TABLE l (k int, a varchar); CREATE TABLE r (k int, b varchar); CREATE TABLE w (k bigint, n numeric(10,2),
    c varchar);
    CREATE TABLE e (x int, f double precision, ts timestamp, d date);
    CREATE TABLE p (id int PRIMARY KEY, k int)""")


def tree(sql):
    return outline(bound(sql, CATALOG, needs_names=False).tree)


def names(sql):
    return [c.name for c in bound(sql, CATALOG, needs_names=False).columns]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("JOIN", "inner"),
        ("INNER JOIN", "inner"),
        ("LEFT JOIN", "left"),
        ("LEFT OUTER JOIN", "left"),
        ("RIGHT JOIN", "right"),
        ("RIGHT OUTER JOIN", "right"),
        ("FULL JOIN", "full"),
        ("FULL OUTER JOIN", "full"),
    ],
)
def test_kinds_with_on(text, kind):
    """RW-04 RW-07 RW-08 RW-12 RW-16"""
    assert tree(f"SELECT l.k AS lk, a, r.k AS rk, b FROM l {text} r ON l.k = r.k") == (
        f"project #1, #2, #3, #4\n  join {kind} on #1 = #3\n    scan l #1 #2\n    scan r #3 #4"
    )


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("JOIN", "inner", "#1"),
        ("INNER JOIN", "inner", "#1"),
        ("LEFT JOIN", "left", "#1"),
        ("RIGHT OUTER JOIN", "right", "#3"),
        ("FULL JOIN", "full", "COALESCE(#1, #3) as #5"),
    ],
)
@pytest.mark.parametrize("form", ["{0} r USING (k)", "NATURAL {0} r"])
def test_using_and_natural_give_the_common_column_once(text, kind, key, form):
    """RW-05 RW-06 RW-09 RW-10 RW-13 RW-14 RW-17 RW-18 RW-19"""
    sql = "SELECT * FROM l " + form.format(text)
    assert tree(sql) == f"project {key}, #2, #4\n  join {kind} on #1 = #3\n    scan l #1 #2\n    scan r #3 #4"
    assert names(sql) == ["k", "a", "b"]


def test_merged_and_own_columns_can_both_be_read():
    assert tree("SELECT k, l.k AS lk, r.k AS rk FROM l FULL JOIN r USING (k) WHERE k > 1").splitlines()[:2] == [
        "project COALESCE(#1, #3) as #5, #1, #3",
        "  filter COALESCE(#1, #3) > 1",
    ]


def test_using_of_two_columns_and_in_chains():
    assert tree("SELECT k FROM l JOIN r USING (k) LEFT JOIN w USING (k)").splitlines()[1:3] == [
        "  join left on CAST(#1 AS BIGINT) = #5",
        "    join inner on #1 = #3",
    ]
    assert tree("SELECT * FROM l AS a JOIN l AS b USING (k, a)").splitlines()[:2] == [
        "project #1, #2",
        "  join inner on #1 = #3, #2 = #4",
    ]


def test_natural_without_common_columns_has_no_key():
    assert tree("SELECT a, x FROM l NATURAL JOIN e").splitlines()[1] == "  join inner"


@pytest.mark.parametrize(
    ("condition", "join"),
    [
        ("l.k = w.k", "on CAST(#1 AS BIGINT) = #3"),
        ("w.k = l.k AND w.c = l.a", "on CAST(#1 AS BIGINT) = #3, #2 = #5"),
        ("l.k = w.n", "on CAST(#1 AS DECIMAL(38, 10)) = CAST(#4 AS DECIMAL(38, 10))"),
        ("l.k + 1 = w.k - 1", "on CAST(#1 + 1 AS BIGINT) = #3 - 1"),
        ("lower(l.a) = w.c", "on LOWER(#2) = #5"),
        ("l.k::varchar = w.c", "on CAST(#1 AS TEXT) = #5"),
        ("l.a IS NOT DISTINCT FROM w.c", "on #2 <=> #5"),
        ("l.k = w.k AND l.a IS NOT DISTINCT FROM w.c", "on CAST(#1 AS BIGINT) = #3, #2 <=> #5"),
        ("(l.k, l.a) = (w.k, w.c)", "on CAST(#1 AS BIGINT) = #3, #2 = #5"),
        ("(l.k = w.k AND (l.a = w.c))", "on CAST(#1 AS BIGINT) = #3, #2 = #5"),
        ("l.k = w.k AND l.k > 3", "on CAST(#1 AS BIGINT) = #3 | #1 > 3"),
        ("l.k = w.k AND w.c = 'x' AND l.a < w.c", "on CAST(#1 AS BIGINT) = #3 | #5 = 'x' AND #2 < #5"),
        ("l.k = w.k AND l.k BETWEEN 1 AND w.k", "on CAST(#1 AS BIGINT) = #3 | #1 >= 1 AND #1 <= #3"),
        ("l.k = w.k OR l.a = w.c", "| #1 = #3 OR #2 = #5"),
        ("l.k > w.k", "| #1 > #3"),
        ("l.k = 3", "| #1 = 3"),
        ("l.k + w.k = 3", "| (CAST(#1 AS BIGINT) + #3) = 3"),
        ("l.k = w.k AND true", "on CAST(#1 AS BIGINT) = #3"),
        ("true", ""),
    ],
)
def test_which_parts_of_a_condition_are_keys(condition, join):
    """RA-30"""
    assert tree(f"SELECT a FROM l JOIN w ON {condition}").splitlines()[1] == f"  join inner {join}".rstrip()


@pytest.mark.parametrize(
    ("condition", "join"),
    [("e.x = l.k", "on #1 = #5"), ("e.f = l.k", "on #2 = CAST(#5 AS DOUBLE)"), ("e.f = l.k + 0.5", None)],
)
def test_numbers_of_all_types_can_be_keys(condition, join):
    line = tree(f"SELECT a FROM e JOIN l ON {condition}").splitlines()[1]
    assert join is None or line == f"  join inner {join}"
    assert "on " in line


def test_dates_and_timestamps_are_compared_as_timestamps():
    assert (
        tree("SELECT 1 AS x FROM e JOIN e AS g ON e.ts = g.d").splitlines()[1]
        == "  join inner on #3 = CAST(#8 AS TIMESTAMP)"
    )


def test_comma_and_cross_join_are_joins_without_keys_under_a_filter():
    expected = "project #2, #4\n  filter #1 = #3\n    join inner\n      scan l #1 #2\n      scan r #3 #4"
    assert tree("SELECT a, b FROM l, r WHERE l.k = r.k") == expected
    assert tree("SELECT a, b FROM l CROSS JOIN r WHERE l.k = r.k") == expected


def test_a_join_binds_closer_than_a_comma():
    assert tree("SELECT a FROM l, r RIGHT JOIN w ON r.k = w.k") == (
        "project #2\n  join inner\n    scan l #1 #2\n    join right on CAST(#3 AS BIGINT) = #5\n      scan r #3 #4\n"
        "      scan w #5 #6 #7"
    )
    assert 'missing FROM-clause entry for table "l"' in refusal(tree, "SELECT a FROM l, r JOIN w ON l.k = w.k")


def test_parentheses_keep_their_join_together():
    assert tree("SELECT a FROM l LEFT JOIN (r JOIN w ON r.k = w.k) ON l.k = r.k") == (
        "project #2\n  join left on #1 = #3\n    scan l #1 #2\n    join inner on CAST(#3 AS BIGINT) = #5\n   "
        "   scan r #3 #4\n"
        "      scan w #5 #6 #7"
    )


def test_self_join_and_aliases():
    assert tree("SELECT x.a, y.a AS ya FROM l AS x JOIN l y ON x.k = y.k") == (
        "project #2, #4\n  join inner on #1 = #3\n    scan l #1 #2\n    scan l #3 #4"
    )


@pytest.mark.parametrize(
    ("join", "nullable"),
    [
        ("JOIN", [False, False]),
        ("LEFT JOIN", [False, True]),
        ("RIGHT JOIN", [True, False]),
        ("FULL JOIN", [True, True]),
    ],
)
def test_outer_joins_make_columns_nullable(join, nullable):
    """RW-11 RW-15"""
    query = bound(f"SELECT p.id, q.id AS qid FROM p {join} p AS q ON p.id = q.id", CATALOG)
    assert [c.nullable for c in query.columns] == nullable


@pytest.mark.parametrize("join", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
def test_nullability_of_a_using_column(join):
    query = bound(f"SELECT id FROM p {join} (SELECT id FROM p) AS q USING (id)", CATALOG)
    assert query.columns[0].nullable is (join == "FULL JOIN")


# Errors


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "SELECT * FROM l JOIN x ON l.k = x.k",
            (
                'error[UNDEFINED_RELATION] 42P01: relation "x" does not exist\n'
                "LINE 1: SELECT * FROM l JOIN x ON l.k = x.k\n                             ^"
            ),
        ),
        (
            "SELECT * FROM l JOIN r ON l.kk = r.k",
            (
                "error[UNDEFINED_COLUMN] 42703: column l.kk does not exist\n"
                "LINE 1: SELECT * FROM l JOIN r ON l.kk = r.k\n                                  ^^^^\nhint: "
                'Did you mean "k"?'
            ),
        ),
        (
            "SELECT k FROM l JOIN r ON l.k = r.k",
            (
                'error[AMBIGUOUS_COLUMN] 42702: column reference "k" is ambiguous\n'
                "LINE 1: SELECT k FROM l JOIN r ON l.k = r.k\n               ^\nhint: Write l.k or r.k."
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN r USING (b)",
            (
                'error[UNDEFINED_COLUMN] 42703: column "b" specified in USING clause does '
                "not exist in left table\nLINE 1: SELECT 1 AS x FROM l JOIN r USING (b)\n                    "
                "                       ^"
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN r ON l.k = r.b",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: integer = "
                "character varying\nLINE 1: SELECT 1 AS x FROM l JOIN r ON l.k = r.b\n"
                "                                       ^^^^^^^^^\nhint: Cast one side, for example: (…)::integer."
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN e ON l.a = e.ts",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: character "
                "varying = timestamp without time zone\nLINE 1: SELECT 1 AS x FROM l JOIN e ON l.a = e.ts\n"
                "                                       ^^^^^^^^^^\nhint: Cast one side, for example: "
                "(…)::character varying."
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN l ON true",
            (
                'error[DUPLICATE_OBJECT] 42P07: table name "l" specified more than once\n'
                "LINE 1: SELECT 1 AS x FROM l JOIN l ON true\n                                  ^\nhint: "
                "Give one of them an alias."
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN r ON l.k",
            (
                "error[DATATYPE_MISMATCH] 42804: argument of JOIN/ON must be type boolean, not "
                "type integer\nLINE 1: SELECT 1 AS x FROM l JOIN r ON l.k\n                                       ^^^"
            ),
        ),
        (
            "SELECT 1 AS x FROM l JOIN r ON count(*) = 1",
            (
                "error[COLUMN_NOT_GROUPED] 42803: aggregate functions are not allowed "
                "in JOIN/ON\nLINE 1: SELECT 1 AS x FROM l JOIN r ON count(*) = 1\n                           "
                "            ^^^^^^^^"
            ),
        ),
        (
            "SELECT 1 AS x FROM l AS q (k, a, b)",
            (
                'error[SYNTAX_ERROR] 42601: table "q" has 2 columns available but 3 columns '
                "specified\nLINE 1: SELECT 1 AS x FROM l AS q (k, a, b)\n                           ^^^^^^^^^^^^^^^"
            ),
        ),
    ],
)
def test_refused(sql, error):
    assert refusal(tree, sql) == error


@pytest.mark.parametrize(
    ("sql", "feature"),
    [
        ("SELECT 1 AS x FROM l TABLESAMPLE SYSTEM (10)", "TABLESAMPLE in FROM"),
        (
            "SELECT 1 AS x FROM LATERAL TUMBLE(e, ts, INTERVAL '1' MINUTE)",
            "the time window function TUMBLE in this place",
        ),
        (
            "SELECT 1 AS x FROM ROWS FROM (HOP(e, ts, INTERVAL '1' MINUTE, INTERVAL '2' MINUTE))",
            "the time window function HOP in this place",
        ),
    ],
)
def test_features_to_come_are_named(sql, feature):
    assert refusal(tree, sql).splitlines()[0] == f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported"
