"""EXISTS, IN and their negations become semi and anti joins; NOT IN has SQL's rule for NULL."""

from __future__ import annotations

import functools

import pytest
from tests.unit.binder.helpers import Content, bound, catalog_of, multiset, outline, refusal

from watersmeet.algebra.rewrites import rewrite

CATALOG = catalog_of(
    "CREATE TABLE c (id int PRIMARY KEY, k int, x varchar); "
    "CREATE TABLE o (oid int PRIMARY KEY, cid int, amount bigint NOT NULL)"
)
C, O = "scan c #1 #2 #3", "scan o #4 #5 #6"


def plan(sql):
    """The rewritten tree of a query."""
    return outline(rewrite(bound(sql, CATALOG, needs_names=False).tree))


def where(condition):
    """The tree below the select list."""
    lines = plan(f"SELECT id FROM c WHERE {condition}").splitlines()
    return "\n".join(line[2:] for line in lines[1:]) if lines[0] == "project #1" else "\n".join(lines)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id)", "join semi on #1 = #5\n  scan c #1\n  scan o #5"),
        (
            "EXISTS (SELECT * FROM o WHERE o.cid = c.id ORDER BY oid LIMIT 3)",
            "join semi on #1 = #5\n  scan c #1\n  scan o #5",
        ),
        ("NOT EXISTS (SELECT 1 FROM o WHERE o.cid = c.id)", "join anti on #1 = #5\n  scan c #1\n  scan o #5"),
        ("NOT (NOT EXISTS (SELECT 1 FROM o WHERE o.cid = c.id))", "join semi on #1 = #5\n  scan c #1\n  scan o #5"),
        ("id IN (SELECT cid FROM o)", "join semi on #1 = #5\n  scan c #1\n  scan o #5"),
        ("id = ANY (SELECT cid FROM o)", "join semi on #1 = #5\n  scan c #1\n  scan o #5"),
        ("id IN (SELECT amount FROM o)", "join semi on CAST(#1 AS BIGINT) = #6\n  scan c #1\n  scan o #6"),
        (
            "(id, k) IN (SELECT cid, oid FROM o)",
            "join semi on #1 = #5, #2 = #4\n  scan c #1 #2\n  project #5, #4\n    scan o #4 #5",
        ),
        ("id NOT IN (SELECT oid FROM o)", "join anti on #1 = #4\n  scan c #1\n  scan o #4"),
        ("id <> ALL (SELECT oid FROM o)", "join anti on #1 = #4\n  scan c #1\n  scan o #4"),
        ("NOT id IN (SELECT oid FROM o)", "join anti on #1 = #4\n  scan c #1\n  scan o #4"),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND amount > 100)",
            "join semi on #1 = #5\n  scan c #1\n  project #5\n    filter #6 > 100\n      scan o #5 #6",
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND amount > c.k)",
            "join semi on #1 = #5 | #6 > #2\n  scan c #1 #2\n  scan o #5 #6",
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND c.k > 1)",
            "join semi on #1 = #5\n  filter #2 > 1\n    scan c #1 #2\n  scan o #5",
        ),
        (
            "id IN (SELECT oid FROM o WHERE o.cid = c.k)",
            "join semi on #2 = #5, #1 = #4\n  scan c #1 #2\n  scan o #4 #5",
        ),
        (
            "k > 1 AND id IN (SELECT cid FROM o) AND x = 'a'",
            "join semi on #1 = #5\n  filter #2 > 1 AND #3 = 'a'\n    scan c #1 #2 #3\n  scan o #5",
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.amount > c.k)",
            "join inner | #8 > #2\n  scan c #1 #2\n  aggregate by [] max(#6) -> #8\n    scan o #6",
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid IS NOT DISTINCT FROM c.k)",
            "join semi on #2 <=> #5\n  scan c #1 #2\n  scan o #5",
        ),
        (
            "id IN (SELECT cid FROM o GROUP BY cid HAVING count(*) > 1)",
            (
                "join semi on #1 = #7\n  scan c #1\n  project #7\n    filter #8 > 1\n      aggregate by [#5] "
                "count(*) -> #7 #8\n        scan o #5"
            ),
        ),
        (
            "id IN (SELECT oid FROM o UNION ALL SELECT cid FROM o)",
            "join semi on #1 = #10\n  scan c #1\n  union\n    scan o #4\n    scan o #8",
        ),
        (
            "EXISTS (SELECT 1 FROM o JOIN c AS d ON o.cid = d.id WHERE d.k = c.k)",
            (
                "join semi on #2 = #8\n  scan c #1 #2\n  project #8\n    join inner on #5 = #7\n      scan o "
                "#5\n      scan c #7 #8"
            ),
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND oid IN (SELECT id FROM c))",
            (
                "join semi on #1 = #5\n  scan c #1\n  project #5\n    join semi on #4 = #7\n      scan o #4 #5\n "
                "     scan c #7"
            ),
        ),
    ],
)
def test_joins(condition, expected):
    """RA-26 RA-27 RA-28"""
    assert where(condition) == expected


def test_without_a_correlation_one_row_decides():
    assert where("EXISTS (SELECT 1 FROM o)") == (
        "join semi broadcast\n  scan c #1\n  aggregate by [#8] -> #9\n    project 1 as #8\n      scan o #4"
    )
    assert where("NOT EXISTS (SELECT 1 FROM o)").startswith("join anti broadcast")
    assert where("5 IN (SELECT cid FROM o)").startswith("join semi broadcast")


def test_not_in_looks_for_nulls_on_the_sides_that_can_have_them():
    assert where("id NOT IN (SELECT cid FROM o)") == (
        "join anti broadcast\n  join anti on #1 = #5\n    scan c #1\n    scan o #5\n"
        "  aggregate by [#7] -> #8\n    project 1 as #7\n      filter #5 IS NULL\n        scan o #5"
    )
    assert where("k NOT IN (SELECT oid FROM o)") == (
        "join anti | #2 IS NULL broadcast\n  join anti on #2 = #4\n    scan c #1 #2\n    scan o #4\n"
        "  aggregate by [#7] -> #8\n    project 1 as #7\n      scan o #4"
    )
    assert where("k NOT IN (SELECT cid FROM o)").count("join anti") == 3


def test_correlated_not_in_has_the_nulls_in_its_condition():
    assert where("k NOT IN (SELECT cid FROM o WHERE o.oid = c.id)") == (
        "join anti on #1 = #4 | #2 = #5 OR #2 IS NULL OR #5 IS NULL\n  scan c #1 #2\n  scan o #4 #5"
    )
    assert where("id NOT IN (SELECT oid FROM o WHERE o.cid = c.k)") == (
        "join anti on #2 = #5, #1 = #4\n  scan c #1 #2\n  scan o #4 #5"
    )


def test_scalar_subqueries_are_joins_with_groups():
    assert plan("SELECT id, (SELECT max(amount) FROM o WHERE o.cid = c.k) AS m FROM c") == (
        "project #1, #7\n  join left on #2 = #8\n    scan c #1 #2\n    aggregate by [#5] max(#6) -> #8 #7\n  "
        "    scan o #5 #6"
    )
    assert where("k > (SELECT avg(amount) FROM o WHERE o.cid = c.id)").startswith("join inner on #1 = ")
    assert where("k = (SELECT min(oid) FROM o WHERE o.cid = c.id)").startswith("join inner on #2 = #7, #1 = #8")


def test_equalities_spare_the_domain():
    """Only conditions that no equality settles are evaluated on the distinct values of the outer columns."""
    count = "SELECT id, (SELECT count(*) FROM o WHERE o.cid = c.k{}) AS n FROM c"
    assert plan(count.format("")).count("scan c") == 1
    assert plan(count.format(" AND o.amount > c.id")).count("scan c") == 2


def test_a_truth_value_under_or_is_an_outer_join():
    assert where("k IN (SELECT cid FROM o) OR x = 'a'").count("join left") == 1
    assert where("NOT (k IN (SELECT cid FROM o) OR x = 'a')").count("join left") == 2
    assert where("NOT (id IN (SELECT oid FROM o) OR x = 'a')").count("join left") == 1


@functools.cache
def filled(inner: str) -> Content:
    content = Content(CATALOG)
    content.execute("INSERT INTO c VALUES (1, 1, 'a'), (2, 2, 'b'), (3, NULL, 'c'), (4, 7, NULL)")
    if inner:
        content.execute(f"INSERT INTO o VALUES {inner}")
    return content


@pytest.mark.parametrize("inner", ["", "(1, 1, 1)", "(1, NULL, 1)", "(1, 1, 1), (2, NULL, 2)", "(1, 1, 1), (2, 2, 2)"])
@pytest.mark.parametrize(
    "condition",
    [
        "k NOT IN (SELECT cid FROM o)",
        "k IN (SELECT cid FROM o)",
        "k NOT IN (SELECT cid FROM o WHERE o.oid = c.id)",
        "id NOT IN (SELECT cid FROM o)",
        "k NOT IN (SELECT oid FROM o)",
        "k <> ALL (SELECT cid FROM o)",
        "NOT EXISTS (SELECT 1 FROM o WHERE cid IS NULL)",
        "EXISTS (SELECT 1 FROM o WHERE amount > c.k)",
        "k NOT IN (SELECT cid FROM o WHERE amount > c.id)",
        "NOT (k IN (SELECT cid FROM o))",
        "id IN (SELECT cid FROM o) OR k = 1",
        "NOT (k = 1 OR EXISTS (SELECT 1 FROM o))",
        "CASE WHEN EXISTS (SELECT 1 FROM o) THEN true END",
        "k > (SELECT max(cid) FROM o)",
        "k = (SELECT max(cid) FROM o WHERE o.oid = c.id)",
        "(SELECT count(*) FROM o WHERE o.cid = c.k) = 0",
        "EXISTS (SELECT 1 FROM (SELECT * FROM o WHERE o.cid = c.id) q)",
        "(k IN (SELECT cid FROM o)) IS NULL",
        "EXISTS (SELECT count(*) FROM o WHERE o.cid = c.id)",
        "k NOT IN (SELECT cid FROM o) OR x = 'a'",
        "EXISTS (SELECT 1 FROM o WHERE EXISTS (SELECT 1 FROM o AS p WHERE p.oid = c.id))",
        "(k NOT IN (SELECT cid FROM o WHERE o.oid = c.id)) IS NULL",
        "(SELECT cid FROM o WHERE oid = c.id) IS NULL",
        "(SELECT cid FROM o WHERE oid = 1) = k",
        "k IN (SELECT cid + c.id FROM o) IS NOT FALSE",
        "EXISTS (SELECT max(cid) FROM o WHERE o.oid = c.id HAVING count(*) = 0)",
        *[
            f"(k {op} {q} (SELECT cid FROM o)) {test}"
            for op in ("=", "<>", "<", "<=", ">", ">=")
            for q in ("ANY", "ALL")
            for test in ("IS TRUE", "IS NULL")
        ],
        *[
            f"k {op} {q} (SELECT cid FROM o WHERE o.oid >= c.id)"
            for op in ("=", "<>", "<", ">=")
            for q in ("SOME", "ALL")
        ],
    ],
)
def test_meaning_with_nulls_and_without_rows(condition, inner):
    content = filled(inner)
    sql = f"SELECT id FROM c WHERE {condition}"
    expected = multiset(content.rows(sql))
    tree = bound(sql, CATALOG, needs_names=False).tree
    assert (
        multiset(content.tree(tree))
        == multiset(content.tree(rewrite(tree)))
        == expected
        == multiset(content.batch(sql))
    )


# Errors


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        (
            "id IN (SELECT oid, cid FROM o)",
            (
                "error[SYNTAX_ERROR] 42601: subquery has too many columns\n"
                "LINE 1: SELECT id FROM c WHERE id IN (SELECT oid, cid FROM o)\n                             "
                "                ^^^^^^^^^^^^^^^"
            ),
        ),
        (
            "(id, k) IN (SELECT oid FROM o)",
            (
                "error[SYNTAX_ERROR] 42601: subquery has too few columns\n"
                "LINE 1: SELECT id FROM c WHERE (id, k) IN (SELECT oid FROM o)\n                             "
                "                     ^^^^^^^^^^"
            ),
        ),
        (
            "x IN (SELECT oid FROM o)",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: character varying = integer\n"
                "LINE 1: SELECT id FROM c WHERE x IN (SELECT oid FROM o)\n                               ^\n"
                "hint: Cast one side, for example: (…)::character varying."
            ),
        ),
        (
            "k > (SELECT cid FROM o)",
            (
                "error[SCALAR_SUBQUERY_ROWS] 21000: Scalar subquery might produce more than one row.\n"
                "LINE 1: SELECT id FROM c WHERE k > (SELECT cid FROM o)\n                                    "
                "       ^^^^^^^^^^\n"
                "hint: Aggregate without GROUP BY, or compare a whole key with =."
            ),
        ),
        (
            "k = (SELECT oid, cid FROM o)",
            (
                "error[SYNTAX_ERROR] 42601: subquery must return only one column\n"
                "LINE 1: SELECT id FROM c WHERE k = (SELECT oid, cid FROM o)\n                               "
                "            ^^^^^^^^^^^^^^^"
            ),
        ),
        (
            "EXISTS (SELECT 1 FROM o WHERE o.cid = c.idd)",
            (
                "error[UNDEFINED_COLUMN] 42703: column c.idd does not exist\n"
                "LINE 1: SELECT id FROM c WHERE EXISTS (SELECT 1 FROM o WHERE o.cid = c.idd)\n"
                '                                                                     ^^^^^\nhint: Did you mean "id"?'
            ),
        ),
    ],
)
def test_refused(condition, error):
    assert refusal(where, condition) == error


@pytest.mark.parametrize(
    ("condition", "feature"),
    [
        (
            "(k, k, k, k) NOT IN (SELECT cid, cid, cid, cid FROM o)",
            "NOT IN of rows with more than three columns that can be NULL",
        ),
        (
            "EXISTS (SELECT 1 FROM o HAVING max(c.k) > 1)",
            "an aggregate function that reads only columns of an outer query",
        ),
        ("(id, k) = (SELECT * FROM o WHERE oid = 1)", "* in a subquery that is compared with a row"),
        ("(k = 1) < ANY (SELECT amount > 1 FROM o)", "an ordered comparison with values of type boolean"),
    ],
)
def test_features_to_come_are_named(condition, feature):
    assert (
        refusal(where, condition).splitlines()[0] == f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported"
    )
