"""EXISTS, IN and their negations become semi and anti joins; NOT IN has SQL's rule for NULL."""

from __future__ import annotations

import pytest
from tests.unit.dialects.helpers import Content, bound, catalog_of, multiset, outline, refusal

CATALOG = catalog_of("CREATE TABLE c (id int PRIMARY KEY, k int, x varchar); "
                     "CREATE TABLE o (oid int PRIMARY KEY, cid int, amount bigint NOT NULL)")
C, O = "scan c #1 #2 #3", "scan o #4 #5 #6"


def where(condition):
    """The tree below the select list."""
    lines = outline(bound(f"SELECT id FROM c WHERE {condition}", CATALOG).tree).splitlines()
    return "\n".join(line[2:] for line in lines[1:])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id)", f"join semi on #1 = #5\n  {C}\n  {O}"),
        ("EXISTS (SELECT * FROM o WHERE o.cid = c.id ORDER BY oid LIMIT 3)", f"join semi on #1 = #5\n  {C}\n  {O}"),
        ("NOT EXISTS (SELECT 1 FROM o WHERE o.cid = c.id)", f"join anti on #1 = #5\n  {C}\n  {O}"),
        ("NOT (NOT EXISTS (SELECT 1 FROM o WHERE o.cid = c.id))", f"join semi on #1 = #5\n  {C}\n  {O}"),
        ("id IN (SELECT cid FROM o)", f"join semi on #1 = #5\n  {C}\n  {O}"),
        ("id = ANY (SELECT cid FROM o)", f"join semi on #1 = #5\n  {C}\n  {O}"),
        ("id IN (SELECT amount FROM o)", f"join semi on CAST(#1 AS BIGINT) = #6\n  {C}\n  {O}"),
        ("(id, k) IN (SELECT cid, oid FROM o)", f"join semi on #1 = #5, #2 = #4\n  {C}\n  {O}"),
        ("id NOT IN (SELECT oid FROM o)", f"join anti on #1 = #4\n  {C}\n  {O}"),
        ("id <> ALL (SELECT oid FROM o)", f"join anti on #1 = #4\n  {C}\n  {O}"),
        ("NOT id IN (SELECT oid FROM o)", f"join anti on #1 = #4\n  {C}\n  {O}"),
        # further predicates: of the subquery alone, of both, of the outer query alone
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND amount > 100)", f"join semi on #1 = #5\n  {C}\n  filter #6 > 100\n    {O}"),
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND amount > c.k)", f"join semi on #1 = #5 | #6 > #2\n  {C}\n  {O}"),
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND c.k > 1)", f"join semi on #1 = #5 | #2 > 1\n  {C}\n  {O}"),
        ("id IN (SELECT oid FROM o WHERE o.cid = c.k)", f"join semi on #2 = #5, #1 = #4\n  {C}\n  {O}"),
        ("k > 1 AND id IN (SELECT cid FROM o) AND x = 'a'", f"join semi on #1 = #5\n  filter #2 > 1 AND #3 = 'a'\n    {C}\n  {O}"),
        ("EXISTS (SELECT 1 FROM o WHERE o.amount > c.k)", f"join semi | #6 > #2\n  {C}\n  {O}"),
        ("EXISTS (SELECT 1 FROM o WHERE o.cid IS NOT DISTINCT FROM c.k)", f"join semi on #2 <=> #5\n  {C}\n  {O}"),
        # the subquery may be any query if it does not look out
        ("id IN (SELECT cid FROM o GROUP BY cid HAVING count(*) > 1)",
         f"join semi on #1 = #7\n  {C}\n  project #7\n    filter #8 > 1\n      aggregate by [#5] count(*) -> #7 #8\n        {O}"),
        ("id IN (SELECT oid FROM o UNION ALL SELECT cid FROM o)",
         f"join semi on #1 = #10\n  {C}\n  union\n    project #4\n      {O}\n    project #8\n      scan o #7 #8 #9"),
        ("EXISTS (SELECT 1 FROM o JOIN c AS d ON o.cid = d.id WHERE d.k = c.k)",
         f"join semi on #2 = #8\n  {C}\n  join inner on #5 = #7\n    {O}\n    scan c #7 #8 #9"),
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.id AND oid IN (SELECT id FROM c))",
         f"join semi on #1 = #5\n  {C}\n  join semi on #4 = #7\n    {O}\n    scan c #7 #8 #9"),
    ],
)
def test_joins(condition, expected):
    """RA-26 RA-27 RA-28"""
    assert where(condition) == expected


def test_without_a_correlation_one_row_decides():
    assert where("EXISTS (SELECT 1 FROM o)") == (
        f"join semi broadcast\n  {C}\n  aggregate by [#7] -> #8\n    project 1 as #7\n      {O}")
    assert where("NOT EXISTS (SELECT 1 FROM o)").startswith("join anti broadcast")


def test_not_in_looks_for_nulls_on_the_sides_that_can_have_them():
    nulls = f"  aggregate by [#7] -> #8\n    project 1 as #7\n      filter #5 IS NULL\n        {O}"
    assert where("id NOT IN (SELECT cid FROM o)") == f"join anti broadcast\n  join anti on #1 = #5\n    {C}\n    {O}\n{nulls}"
    assert where("k NOT IN (SELECT oid FROM o)") == (
        f"join anti | #2 IS NULL broadcast\n  join anti on #2 = #4\n    {C}\n    {O}\n"
        f"  aggregate by [#7] -> #8\n    project 1 as #7\n      {O}")
    assert where("k NOT IN (SELECT cid FROM o)").count("join anti") == 3


def test_correlated_not_in_has_the_nulls_in_its_condition():
    assert where("k NOT IN (SELECT cid FROM o WHERE o.oid = c.id)") == (
        f"join anti on #1 = #4 | (#2 = #5 OR #2 IS NULL OR #5 IS NULL)\n  {C}\n  {O}")
    assert where("id NOT IN (SELECT oid FROM o WHERE o.cid = c.k)") == f"join anti on #2 = #5, #1 = #4\n  {C}\n  {O}"


@pytest.mark.parametrize("inner", ["", "(1, 1, 1)", "(1, NULL, 1)", "(1, 1, 1), (2, NULL, 2)", "(1, 1, 1), (2, 2, 2)"])
@pytest.mark.parametrize(
    "condition",
    ["k NOT IN (SELECT cid FROM o)", "k IN (SELECT cid FROM o)", "k NOT IN (SELECT cid FROM o WHERE o.oid = c.id)",
     "id NOT IN (SELECT cid FROM o)", "k NOT IN (SELECT oid FROM o)", "k <> ALL (SELECT cid FROM o)",
     "NOT EXISTS (SELECT 1 FROM o WHERE cid IS NULL)", "EXISTS (SELECT 1 FROM o WHERE amount > c.k)",
     "k NOT IN (SELECT cid FROM o WHERE amount > c.id)", "NOT (k IN (SELECT cid FROM o))"])
def test_meaning_with_nulls_and_without_rows(condition, inner):
    content = Content(CATALOG)
    content.execute("INSERT INTO c VALUES (1, 1, 'a'), (2, 2, 'b'), (3, NULL, 'c'), (4, 7, NULL)")
    if inner:
        content.execute(f"INSERT INTO o VALUES {inner}")
    sql = f"SELECT id FROM c WHERE {condition}"
    assert multiset(content.view(sql)) == multiset(content.rows(sql)) == multiset(content.batch(sql))


# Errors


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("id IN (SELECT oid, cid FROM o)", ("error[SYNTAX_ERROR] 42601: subquery has too many columns\n"
         "LINE 1: SELECT id FROM c WHERE id IN (SELECT oid, cid FROM o)\n                                             ^^^^^^^^^^^^^^^")),
        ("(id, k) IN (SELECT oid FROM o)", ("error[SYNTAX_ERROR] 42601: subquery has too few columns\n"
         "LINE 1: SELECT id FROM c WHERE (id, k) IN (SELECT oid FROM o)\n                                                  ^^^^^^^^^^")),
        ("x IN (SELECT oid FROM o)", ("error[DATATYPE_MISMATCH] 42804: operator does not exist: character varying = integer\n"
         "LINE 1: SELECT id FROM c WHERE x IN (SELECT oid FROM o)\n                               ^\n"
         "hint: Cast one side, for example: (…)::character varying.")),
        ("EXISTS (SELECT 1 FROM o WHERE o.cid = c.idd)", ("error[UNDEFINED_COLUMN] 42703: column c.idd does not exist\n"
         "LINE 1: SELECT id FROM c WHERE EXISTS (SELECT 1 FROM o WHERE o.cid = c.idd)\n"
         '                                                                     ^^^^^\nhint: Did you mean "id"?')),
    ],
)
def test_refused(condition, error):
    assert refusal(where, condition) == error


@pytest.mark.parametrize(
    ("condition", "feature"),
    [
        ("id IN (SELECT cid FROM o) OR k = 1", "a subquery under OR or inside of an expression"),
        ("NOT (k = 1 OR EXISTS (SELECT 1 FROM o))", "a subquery under OR or inside of an expression"),
        ("CASE WHEN EXISTS (SELECT 1 FROM o) THEN true END", "a subquery under OR or inside of an expression"),
        ("k > (SELECT max(cid) FROM o)", "a scalar subquery"),
        ("k = (SELECT max(cid) FROM o WHERE o.oid = c.id)", "a scalar subquery"),
        ("EXISTS (SELECT 1 FROM (SELECT * FROM o WHERE o.cid = c.id) q)", "a correlated reference here"),
        ("EXISTS (SELECT count(*) FROM o WHERE o.cid = c.id)", "a correlated reference here"),
        ("id IN (SELECT oid FROM o LIMIT 1)", "LIMIT in a view"),
        ("(id, k) NOT IN (SELECT oid, cid FROM o)", "NOT IN of rows that can be NULL"),
        ("EXISTS (SELECT 1 FROM o WHERE EXISTS (SELECT 1 FROM o AS p WHERE p.oid = c.id))",
         "a reference to a query further out than the next one"),
    ],
)
def test_features_to_come_are_named(condition, feature):
    assert refusal(where, condition).splitlines()[0] == f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported"
