"""Names, CTEs, subqueries in FROM, UNION, VALUES, views, and the columns of a view."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import bound, catalog_of, outline, refusal

CATALOG = catalog_of("""
    CREATE TABLE t (id int PRIMARY KEY, k int, x varchar, "Mixed" int);
    CREATE SOURCE s (id int, x varchar) WITH (connector = 'datagen');
    CREATE INDEX ti ON t (k);
    CREATE VIEW v (a, b) AS SELECT id, k + 1 FROM t WHERE k > 1;
    CREATE VIEW vv AS SELECT v.b AS c FROM v;
    CREATE MATERIALIZED VIEW m AS SELECT k, count(*) AS n FROM t GROUP BY k""")
T = "scan t #1 #2 #3 #4"


def query(sql, **options):
    return bound(sql, CATALOG, **options)


def tree(sql):
    return outline(query(sql, needs_names=False).tree)


def test_unquoted_names_are_lower_case():
    assert tree('SELECT T.ID, "Mixed", "t"."k" FROM T') == f"project #1, #4, #2\n  {T}"
    assert [c.name for c in query('SELECT ID AS "Id", k AS K FROM t').columns] == ["Id", "k"]


def test_star_and_its_exceptions():
    assert (
        tree("SELECT *, t.* FROM t").splitlines()[0] == "project #1, #2, #3, #4, #1 as #5, #2 as #6, #3 as #7, #4 as #8"
    )
    assert tree('SELECT * EXCEPT (k, "Mixed") FROM t') == f"project #1, #3\n  {T}"


def test_table_aliases_with_columns():
    assert tree("SELECT q.a, b, x FROM t AS q (a, b)") == f"project #1, #2, #3\n  {T}"


def test_ctes_see_those_before_them_and_hide_relations():
    assert tree("WITH a (z) AS (SELECT k FROM t), t AS (SELECT z + 1 AS w FROM a) SELECT w FROM t") == (
        f"project #5\n  project #2 + 1 as #5\n    project #2\n      {T}"
    )


def test_a_cte_is_bound_wherever_it_is_named():
    assert tree("WITH a AS (SELECT id FROM t) SELECT p.id FROM a AS p JOIN a AS q ON p.id = q.id").count("scan t") == 2


def test_a_view_depends_on_what_a_cte_reads_that_nothing_names():
    found = query("WITH a AS (SELECT k FROM t) SELECT id FROM s")
    assert outline(found.tree) == outline(query("SELECT id FROM s").tree)
    assert [CATALOG.relations[i].name for i in found.depends_on] == ["s", "t"]


def test_ctes_in_a_subquery():
    assert tree("SELECT * FROM (WITH a AS (SELECT k FROM t) SELECT * FROM a) AS q") == (
        f"project #2\n  project #2\n    project #2\n      {T}"
    )


def test_select_without_from():
    assert tree("SELECT 1 + 1 AS two, 'x'") == "values (CAST(1 AS INT) + 1, 'x')"


def test_values():
    assert tree("VALUES (1, 'a'), (2, NULL)") == "values (1, 'a') (2, CAST(NULL AS TEXT))"
    found = query("SELECT * FROM (VALUES (1, NULL), (2.5, 'a')) AS q (n)")
    assert [(c.name, c.type.sql) for c in found.columns] == [("n", "numeric"), ("column2", "character varying")]


def test_union_all_takes_names_of_the_first_and_common_types():
    found = query("SELECT id, x FROM t UNION ALL SELECT 5000000000, NULL UNION ALL SELECT 1.5, 'a'")
    assert [(c.name, c.type.sql) for c in found.columns] == [("id", "numeric"), ("x", "character varying")]
    assert outline(found.tree).count("union") == 1


def test_union_is_distinct():
    assert tree("SELECT k FROM t UNION SELECT id FROM t").splitlines()[:2] == ["aggregate by [#9] -> #10", "  union"]


def test_order_by_and_parentheses():
    found = query("(SELECT id FROM t) ORDER BY id")
    assert found.notices == ("ORDER BY without LIMIT has no effect in a view; order the rows when you read it",)


def test_views_are_inlined_under_their_names():
    assert tree("SELECT b FROM v WHERE a > 3") == (
        f"project #5\n  filter #1 > 3\n    project #1, #5\n      project #1, #2 + 1 as #5\n        filter #2 "
        f"> 1\n          {T}"
    )
    assert query("SELECT c FROM vv").depends_on == (CATALOG.by_name("vv").id,)


def test_materialized_views_and_indexes_are_scanned():
    assert tree("SELECT n FROM m") == "project #2\n  scan m #1 #2"
    found = query("SELECT id FROM ti")
    assert outline(found.tree) == f"project #1\n  {T}"
    assert found.depends_on == (CATALOG.by_name("ti").id, CATALOG.by_name("t").id)


def test_scans_know_keys_and_append_only():
    scan = query("SELECT id FROM t").tree.input
    assert (scan.key, scan.append_only, scan.source_names) == (("#1",), False, ("id", "k", "x", "Mixed"))
    assert query("SELECT id FROM s").tree.input.append_only


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("k", "k"),
        ("t.k", "k"),
        ("count(*)", "count"),
        ("lower(x)", "lower"),
        ("k::bigint", "k"),
        ("'1'::int", "int"),
        ("CASE WHEN k > 1 THEN 1 END", "case"),
        ("extract(year FROM now()::date)", None),
        ("coalesce(k, 1)", "coalesce"),
        ("row(1, 2)", "row"),
        ("ARRAY[1]", "array"),
        ("(k)", "k"),
    ],
)
def test_names_that_columns_get_by_themselves(item, name):
    if name is not None:
        assert (
            query(f"SELECT {item} FROM t GROUP BY k, x" if "count" in item else f"SELECT {item} FROM t").columns[0].name
            == name
        )


def test_column_names_of_the_statement_make_up_for_missing_ones():
    assert [c.name for c in query("SELECT k + 1, k FROM t", column_names=("a",)).columns] == ["a", "k"]


# Errors


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "SELECT idd FROM t",
            (
                'error[UNDEFINED_COLUMN] 42703: column "idd" does not exist\n'
                'LINE 1: SELECT idd FROM t\n               ^^^\nhint: Did you mean "id"?'
            ),
        ),
        (
            'SELECT "K" FROM t',
            (
                'error[UNDEFINED_COLUMN] 42703: column "K" does not exist\nLINE 1: SELECT "K" FROM t\n       '
                "        ^^^\n"
                'hint: Did you mean "k"?'
            ),
        ),
        (
            "SELECT zz.id FROM t",
            (
                'error[UNDEFINED_RELATION] 42P01: missing FROM-clause entry for table "zz"\n'
                "LINE 1: SELECT zz.id FROM t\n               ^^"
            ),
        ),
        (
            "SELECT id\nFROM  tt",
            (
                'error[UNDEFINED_RELATION] 42P01: relation "tt" does not exist\n'
                'LINE 2: FROM  tt\n              ^^\nhint: Did you mean "t"?'
            ),
        ),
        (
            "SELECT id FROM x.t",
            (
                'error[UNDEFINED_RELATION] 42P01: relation "x.t" does not exist\n'
                'LINE 1: SELECT id FROM x.t\n                       ^^^\nhint: Did you mean "t"?'
            ),
        ),
        (
            "SELECT k + 1 FROM t",
            (
                "error[EXPRESSION_WITHOUT_NAME] 42P16: An alias must be specified for the 1st expression "
                "(counting from 1) in result relation\nLINE 1: SELECT k + 1 FROM t\n               "
                "^^^^^\nhint: Write expression AS name."
            ),
        ),
        (
            "SELECT id, k AS ID FROM t",
            (
                'error[DUPLICATE_COLUMN] 42701: column "id" specified more than once\n'
                "LINE 1: SELECT id, k AS ID FROM t\n                   ^^^^^^^\nhint: Give one of them an "
                "alias with AS."
            ),
        ),
        (
            "SELECT *",
            (
                "error[SYNTAX_ERROR] 42601: SELECT * with no tables specified is not valid\n"
                "LINE 1: SELECT *\n               ^"
            ),
        ),
        (
            "SELECT id FROM t WHERE k",
            (
                "error[DATATYPE_MISMATCH] 42804: argument of WHERE must be type boolean, not type integer\n"
                "LINE 1: SELECT id FROM t WHERE k\n                               ^"
            ),
        ),
        (
            "SELECT id FROM t UNION SELECT x FROM t",
            (
                "error[DATATYPE_MISMATCH] 42804: UNION types integer and character varying "
                "cannot be matched\nLINE 1: SELECT id FROM t UNION SELECT x FROM t\n                         "
                "             ^^^^^^^^"
            ),
        ),
        (
            "SELECT id FROM t UNION SELECT id, k FROM t",
            (
                "error[SYNTAX_ERROR] 42601: each UNION query must have the same number "
                "of columns\nLINE 1: SELECT id FROM t UNION SELECT id, k FROM t\n                            "
                "          ^^^^^^^^^^^^\n"
                "detail: They have 1 and 2."
            ),
        ),
        (
            "VALUES (1), (1, 2)",
            (
                "error[SYNTAX_ERROR] 42601: VALUES lists must all be the same length\n"
                "LINE 1: VALUES (1), (1, 2)\n                     ^"
            ),
        ),
        (
            "WITH a AS (SELECT 1 AS x), a AS (SELECT 2 AS x) SELECT * FROM a",
            (
                "error[DUPLICATE_OBJECT] 42P07: WITH query name "
                '"a" specified more than once\nLINE 1: WITH a AS (SELECT 1 AS x), a AS (SELECT 2 AS x) '
                "SELECT * FROM a\n"
                "                                   ^"
            ),
        ),
        (
            "WITH a AS (SELECT nope FROM t) SELECT id FROM t",
            (
                'error[UNDEFINED_COLUMN] 42703: column "nope" does not exist\n'
                "LINE 1: WITH a AS (SELECT nope FROM t) SELECT id FROM t\n                          ^^^^"
            ),
        ),
        (
            "WITH a AS (SELECT k FROM t), b (p, q) AS (SELECT k FROM a) SELECT id FROM t",
            (
                'error[SYNTAX_ERROR] 42601: table "b" has 1 columns available but 2 columns specified\n'
                "LINE 1: WITH a AS (SELECT k FROM t), b (p, q) AS (SELECT k FROM a) SELECT id FROM t\n"
                "                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
            ),
        ),
    ],
)
def test_refused(sql, error):
    assert refusal(query, sql) == error


@pytest.mark.parametrize(
    ("sql", "feature"),
    [
        (
            "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a) SELECT * FROM a",
            "WITH RECURSIVE in a view",
        ),
        ("SELECT id FROM t QUALIFY true", "QUALIFY in a view"),
        ("SELECT id FROM t FOR UPDATE", "FOR UPDATE or FOR SHARE in a view"),
    ],
)
def test_features_to_come_are_named(sql, feature):
    assert refusal(query, sql).splitlines()[0] == f"error[FEATURE_NOT_SUPPORTED] 0A000: {feature} is not supported"
