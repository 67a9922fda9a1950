"""The rules one by one. Plans are compared as the text that EXPLAIN (LOGICAL) prints."""

from __future__ import annotations

import pytest
from tests.trees import group, join, project, scan, topn, union, values, where, window

from watersmeet.algebra.nodes import Aggregate, Filter, Join, Project, Scan, TemporalJoin, Values
from watersmeet.algebra.rewrites import (
    connect_joins,
    factor_disjunctions,
    fold_constants,
    fold_filters,
    fold_projects,
    prune_columns,
    push_filters,
    recognise_topn,
    remove_duplicate_keys,
    rewrite,
)
from watersmeet.algebra.trees import walk
from watersmeet.planner.logical import logical_tree


def shape(tree):
    """The lines of the plan without columns and outputs."""
    lines = []
    for line in logical_tree(tree).lines():
        short = line.split(", output:")[0].split(", columns:")[0]
        lines.append(short.replace(" }", "").replace("Logical", "").replace("{ ", ""))
    return "\n".join(lines)


a, b, c, d = (scan(n) for n in "abcd")


def ab(kind, residual=None, keys="a.k = b.k"):
    return join(a, b, kind, keys, residual)


def test_filters_fold():
    assert (
        shape(fold_filters(where(where(a, "a.x > 1"), "a.y > 2")))
        == """\
Filter predicate: (a.x > 1:Int32) AND (a.y > 2:Int32)
└─Scan table: a"""
    )


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("(a.x = 1 AND a.y = 2) OR (a.y = 2 AND a.x = 3)", "(a.y = 2:Int32) AND ((a.x = 1:Int32) OR (a.x = 3:Int32))"),
        ("(a.x = 1 AND a.y = 2) OR a.x = 1", "(a.x = 1:Int32)"),
        ("a.x = 1 OR (a.x = 1 OR a.x = 1)", "(a.x = 1:Int32)"),
        (
            "(a.x = 1 AND a.y = 2) OR (a.y = 3 AND a.x = 4)",
            "(((a.x = 1:Int32) AND (a.y = 2:Int32)) OR ((a.y = 3:Int32) AND (a.x = 4:Int32)))",
        ),
    ],
)
def test_what_all_branches_say_comes_out_of_an_or(predicate, expected):
    assert shape(factor_disjunctions(where(a, predicate))) == f"Filter predicate: {expected}\n└─Scan table: a"


def test_equalities_in_all_branches_of_an_or_are_keys():
    tree = where(join(a, b, "inner"), "(a.k = b.k AND a.x = 1 AND b.x = 2) OR (b.x = 4 AND a.x = 3 AND a.k = b.k)")
    assert (
        shape(rewrite(tree))
        == """\
Join type: Inner, on: (a.k = b.k) AND (((a.x = 1:Int32) AND (b.x = 2:Int32)) OR ((b.x = 4:Int32) AND (a.x = 3:Int32)))
├─Filter predicate: ((a.x = 1:Int32) OR (a.x = 3:Int32))
│ └─Scan table: a
└─Filter predicate: ((b.x = 2:Int32) OR (b.x = 4:Int32))
  └─Scan table: b"""
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("left", ("Scan", "Filter")),
        ("right", ("Filter", "Scan")),
        ("full", ("Scan", "Scan")),
        ("anti", ("Scan", "Filter")),
        ("semi", ("Filter", "Filter")),
    ],
)
def test_an_or_in_on_filters_the_sides_whose_rows_need_not_stay(kind, expected):
    tree = push_filters(ab(kind, "(a.x = 1 AND b.x = 2) OR (a.x = 3 AND b.x = 4)"))
    assert (type(tree.left).__name__, type(tree.right).__name__) == expected


@pytest.mark.parametrize(("kind", "predicate", "expected"), [
    ("inner", "a.x > 1", "Inner left"), ("inner", "b.x > 1", "Inner right"), ("inner", "a.x > b.x", "Inner residual"),
    ("left", "a.x > 1", "LeftOuter left"), ("left", "b.x > 1", "Inner right"), ("left", "b.x IS NULL",
      "LeftOuter above"),
    ("left", "a.x > b.x", "Inner residual"), ("left", "a.x > 1 OR b.x > 1", "LeftOuter above"),
    ("left", "coalesce(b.x, 0) > 1", "LeftOuter above"), ("left", "b.x > 1 OR b.y > 1", "LeftOuter above"),
    ("left", "a.x > 1 OR (b.x > 1 AND b.y > 1)", "LeftOuter above"),
    ("left", "b.x > 1 OR b.x IS NOT NULL", "Inner right"),
    ("right", "b.x > 1", "RightOuter right"), ("right", "a.x > 1", "Inner left"), ("right", "a.x IS NULL",
      "RightOuter above"),
    ("full", "a.x > 1", "LeftOuter left"), ("full", "b.x > 1", "RightOuter right"), ("full", "a.x IS NULL",
      "FullOuter above"),
    ("full", "a.x > b.x", "Inner residual"), ("semi", "a.x > 1", "LeftSemi left"), ("anti", "a.x > 1", "LeftAnti left"),
])  # fmt: skip
def test_where_above_a_join(kind, predicate, expected):
    assert placed(push_filters(where(ab(kind), predicate))) == expected


@pytest.mark.parametrize(("kind", "on", "expected"), [
    ("inner", "a.x > 1", "Inner left"), ("inner", "b.x > 1", "Inner right"), ("left", "a.x > 1", "LeftOuter residual"),
    ("left", "b.x > 1", "LeftOuter right"), ("right", "a.x > 1", "RightOuter left"), ("right", "b.x > 1",
      "RightOuter residual"),
    ("full", "a.x > 1", "FullOuter residual"), ("full", "b.x > 1", "FullOuter residual"),
    ("semi", "a.x > 1", "LeftSemi left"), ("semi", "b.x > 1", "LeftSemi right"), ("anti", "a.x > 1",
      "LeftAnti residual"),
    ("anti", "b.x > 1", "LeftAnti right"), ("anti", "a.x > b.x", "LeftAnti residual"),
])  # fmt: skip
def test_condition_in_on(kind, on, expected):
    assert placed(push_filters(ab(kind, on))) == expected


def placed(tree):
    """The join's type and where the only filter went."""
    above = isinstance(tree, Filter)
    node = tree.input if above else tree
    places = [
        ("above", above),
        ("left", isinstance(node.left, Filter)),
        ("right", isinstance(node.right, Filter)),
        ("residual", node.residual is not None),
    ]
    kind = logical_tree(node).fields[0][1]
    return f"{kind} {' '.join(p for p, there in places if there)}"


def test_conditions_on_the_key_hold_on_both_sides():
    assert (
        shape(push_filters(where(ab("left"), "a.k = 5")))
        == """\
Join type: LeftOuter, on: (a.k = b.k)
├─Filter predicate: (a.k = 5:Int32)
│ └─Scan table: a
└─Filter predicate: (b.k = 5:Int32)
  └─Scan table: b"""
    )
    nothing = push_filters(ab("left", "b.k = 5"))  # left rows of other keys are still in the result
    assert isinstance(nothing.left, Scan)
    floats = join(scan("a", "k double"), scan("b", "k double"), "inner", "a.k = b.k")
    assert not isinstance(push_filters(where(floats, "a.k > 1")).right, Filter)


def test_an_inner_join_above_makes_the_outer_join_below_inner():
    tree = push_filters(join(ab("left"), c, "inner", "b.x = c.x"))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == ["inner", "inner"]
    tree = push_filters(join(ab("left"), c, "left", "b.x = c.x"))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == ["left", "left"]
    tree = push_filters(join(ab("left"), c, "inner", "b.x == c.x"))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == ["inner", "left"]
    tree = push_filters(join(c, ab("full"), "left", "c.x = b.x"))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == ["left", "right"]
    tree = push_filters(join(ab("left"), c, "anti", "b.x = c.x"))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == ["anti", "left"]


def test_where_becomes_keys():
    tree = push_filters(
        where(
            join(a, scan("b", "k bigint, x int"), "inner"),
            "a.k = b.k AND b.x + 1 = a.x AND a.x IS NOT DISTINCT FROM b.x",
        )
    )
    assert isinstance(tree, Join)
    assert [(k.left.sql(), k.right.sql(), k.left.type.sql, k.null_safe) for k in tree.keys] == [
        ('CAST("a.k" AS BIGINT)', '"b.k"', "bigint", False),
        ('"a.x"', '"b.x" + 1', "integer", False),
        ('"a.x"', '"b.x"', "integer", True),
    ]
    assert tree.residual is None


def test_types_without_a_common_one_stay_a_condition():
    tree = push_filters(where(join(a, scan("b", "k varchar"), "inner"), "a.k = b.k"))
    assert tree.keys == ()
    assert tree.residual is not None


def test_filters_go_through_projects_unions_and_groups():
    tree = where(project(a, z="a.x + 1", k="a.k"), "z > 3")
    assert (
        shape(push_filters(tree))
        == """\
Project exprs: [(a.x + 1:Int32), a.k]
└─Filter predicate: ((a.x + 1:Int32) > 3:Int32)
  └─Scan table: a"""
    )
    tree = push_filters(where(union(project(a, z="a.x"), project(b, q="b.y")), "u0 > 3"))
    assert (
        shape(tree)
        == """\
Union all: true
├─Project exprs: [a.x]
│ └─Filter predicate: (a.x > 3:Int32)
│   └─Scan table: a
└─Project exprs: [b.y]
  └─Filter predicate: (b.y > 3:Int32)
    └─Scan table: b"""
    )
    tree = push_filters(where(group(a, "a.k"), "g0 > 3 AND g1 > 2"))
    assert (
        shape(tree)
        == """\
Filter predicate: (count > 2:Int32)
└─Agg group_key: [a.k], aggs: [count]
  └─Filter predicate: (a.k > 3:Int32)
    └─Scan table: a"""
    )
    whole = where(group(a, ""), "1 = 2")
    assert isinstance(push_filters(whole), Filter), "a global aggregate has its row whatever is below"


def test_volatile_expressions_are_not_copied():
    tree = push_filters(where(project(a, z="random()"), "z > 3"))
    assert isinstance(tree, Filter)
    outer = project(project(a, z="random()"), y="z")
    assert isinstance(fold_projects(outer).input, Project)


def test_constants_fold():
    assert (
        shape(fold_constants(where(a, "TRUE AND a.x > 1 AND 1 = 1")))
        == "Filter predicate: (a.x > 1:Int32)\n└─Scan table: a"
    )
    assert fold_constants(where(a, "a.x > 1 AND NULL")) == Values((), a.columns)
    assert (
        shape(fold_constants(ab("left", "FALSE")))
        == """\
Project exprs: [a.k, a.x, a.y, null:Int32, null:Int32, null:Int32]
└─Scan table: a"""
    )
    assert isinstance(fold_constants(ab("inner", "FALSE")), Values)
    assert fold_constants(ab("anti", "FALSE")) == a
    assert isinstance(fold_constants(group(where(a, "FALSE"), "a.k")), Values)
    assert isinstance(fold_constants(group(where(a, "FALSE"), "")), Aggregate)
    assert shape(fold_constants(union(where(a, "FALSE"), b))) == "Project exprs: [b.k, b.x, b.y]\n└─Scan table: b"
    full = fold_constants(ab("full", "FALSE"))
    assert isinstance(full, Join)


def test_projects_fold_unless_work_is_doubled():
    once = project(project(a, z="a.x * 2"), y="z + 1")
    assert shape(fold_projects(once)) == "Project exprs: [((a.x * 2:Int32) + 1:Int32)]\n└─Scan table: a"
    twice = project(project(a, z="a.x * 2"), y="z + z")
    assert isinstance(fold_projects(twice).input, Project)
    assert fold_projects(project(a, **{"a.k": "a.k", "a.x": "a.x", "a.y": "a.y"})) == a


def test_comma_joins_are_connected():
    tree = where(join(join(a, b, "inner"), c, "inner"), "a.x = c.x AND b.y = c.y")
    assert (
        shape(rewrite(tree))
        == """\
Join type: Inner, on: (a.x = c.x)
├─Scan table: a
└─Join type: Inner, on: (b.y = c.y)
  ├─Scan table: b
  └─Scan table: c"""
    )


def test_two_pairs_are_connected_by_an_equality_over_both():
    tree = where(
        join(join(join(a, b, "inner"), c, "inner"), d, "inner"), "a.x = b.x AND c.y = d.y AND a.k + b.k = c.k + d.k"
    )
    joins = [n for n in walk(rewrite(tree)) if isinstance(n, Join)]
    assert all(j.keys for j in joins)
    assert len(joins) == 3


def test_the_written_order_stays_if_it_is_connected():
    tree = join(join(a, b, "inner", "a.k = b.k"), c, "inner", "b.x = c.x")
    assert connect_joins(tree) == tree


def test_a_row_is_joined_first_where_a_key_needs_it():
    one = group(c, "", "max(c.x)", "m")
    tree = rewrite(where(join(join(a, b, "inner"), one, "inner"), "a.x + m0 = b.x"))
    joins = [n for n in walk(tree) if isinstance(n, Join)]
    assert [len(j.keys) for j in joins] == [1, 0]


def test_duplicate_keys_go():
    tree = remove_duplicate_keys(group(a, "a.k, a.x, a.k"))
    assert isinstance(tree, Project)
    assert len(tree.input.keys) == 2
    assert [e.column for e in tree.exprs] == ["g0", "g1", "g0", "g3"]
    assert len(remove_duplicate_keys(ab("inner", keys="a.k = b.k, a.k = b.k")).keys) == 1


def test_columns_are_pruned_down_to_the_scans():
    tree = project(where(ab("left"), "b.x IS NULL"), o="a.x")
    scans = {n.relation_name: n.source_names for n in walk(prune_columns(tree)) if isinstance(n, Scan)}
    assert scans == {"a": ("k", "x"), "b": ("k", "x")}
    counted = prune_columns(group(scan("a", "s varchar, x int, y bigint"), ""))
    assert [n.source_names for n in walk(counted) if isinstance(n, Scan)] == [("x",)], (
        "rows are counted on the narrowest"
    )
    parts = prune_columns(project(union(project(a, p1="a.k", p2="a.x"), group(b, "b.k, b.x", "", "h")), o="u1"))
    assert [len(n.columns) for n in walk(parts) if isinstance(n, Aggregate)] == [2], "the key of a group is not pruned"
    calls = prune_columns(project(group(a, "a.k", "sum(a.x); count(a.y)"), o="g1"))
    assert [len(n.calls) for n in walk(calls) if isinstance(n, Aggregate)] == [1]
    rows = prune_columns(project(values([[1, 2]]), o="v1"))
    assert [n.outputs[0].id for n in walk(rows) if isinstance(n, Values)] == ["v1"]


@pytest.mark.parametrize(("on", "residual", "predicate", "kinds"), [
    ("a.k = b.k", None, "b.k IS NULL", ["anti"]),
    ("a.k = b.k", None, "b.k IS NULL AND a.x > 1", ["anti"]),
    ("a.k = b.k", "a.x < b.x", "b.x IS NULL", ["anti"]),
    ("a.k = b.k", "coalesce(b.x, 1) = 1", "b.x IS NULL", ["left"]),
    ("a.k = b.k", None, "b.x IS NULL", ["left"]),
    ("a.k == b.k", None, "b.k IS NULL", ["left"]),
    ("a.k = b.k", None, "b.k IS NULL OR a.x > 1", ["left"]),
    ("a.k = b.k", None, "a.k IS NULL", ["left"]),
])  # fmt: skip
def test_null_tests_of_what_matches_have(on, residual, predicate, kinds):
    tree = rewrite(where(join(a, b, "left", on, residual), predicate))
    assert [n.kind for n in walk(tree) if isinstance(n, Join)] == kinds
    assert [c.id for c in tree.columns] == [c.id for c in (*a.columns, *b.columns)]


NUMBERED = window(a, "a.k", "a.x", "row_number()")
RANKED = window(a, "a.k", "a.x", "rank()")


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("w0 <= 3", "limit: 3, offset: 0"),
        ("w0 < 3", "limit: 2, offset: 0"),
        ("w0 = 1", "limit: 1, offset: 0"),
        ("3 >= w0", "limit: 3, offset: 0"),
        ("w0 > 2 AND w0 <= 5", "limit: 3, offset: 2"),
        ("w0 >= 2 AND w0 < 4 AND w0 <= 9", "limit: 2, offset: 1"),
        ("w0 > 3", "limit: ALL, offset: 3"),
        ("CAST(w0 AS BIGINT) <= 2", "limit: 2, offset: 0"),
    ],
)
def test_a_bounded_row_number_that_nobody_reads_is_a_topn(predicate, expected):
    tree = project(where(NUMBERED, predicate), p="a.y")
    assert (
        shape(recognise_topn(tree))
        == f"Project exprs: [a.y]\n└─TopN order: [a.x ASC], {expected}, group_key: [a.k]\n  └─Scan table: a"
    )


@pytest.mark.parametrize("predicate", ["w0 < 1", "w0 = 2 AND w0 = 3", "w0 <= -1"])
def test_numbers_that_no_row_has(predicate):
    assert isinstance(recognise_topn(project(where(NUMBERED, predicate), p="a.y")), Values)


def test_a_row_number_that_is_read_is_computed_over_the_topn():
    assert (
        shape(recognise_topn(where(NUMBERED, "w0 <= 3 AND w0 > 1")))
        == """\
Filter predicate: (row_number <= 3:Int32) AND (row_number > 1:Int32)
└─OverWindow window_functions: [row_number() OVER(PARTITION BY a.k ORDER BY a.x ASC RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)]
  └─TopN order: [a.x ASC], limit: 3, offset: 0, group_key: [a.k]
    └─Scan table: a"""  # noqa: E501
    )


def test_other_conditions_stay_above_the_topn():
    tree = recognise_topn(project(where(NUMBERED, "w0 <= 3 AND a.y > 1"), p="a.y"))
    assert shape(tree).splitlines()[1:] == [
        "└─Filter predicate: (a.y > 1:Int32)",
        "  └─TopN order: [a.x ASC], limit: 3, offset: 0, group_key: [a.k]",
        "    └─Scan table: a",
    ]


def test_rank_keeps_ties_and_has_no_offset():
    assert "limit: 2, offset: 0, with_ties: true" in shape(recognise_topn(project(where(RANKED, "w0 <= 2"), p="a.y")))
    tree = recognise_topn(project(where(RANKED, "w0 <= 2 AND w0 > 1"), p="a.y"))
    assert "with_ties: true" in shape(tree)
    assert "Filter" in shape(tree)


@pytest.mark.parametrize(
    "tree",
    [
        where(window(a, "a.k", "a.x", "dense_rank()"), "w0 <= 2"),
        where(window(a, "a.k", "a.x", "row_number(); sum(a.y)"), "w0 <= 2"),
        where(NUMBERED, "w0 <= 2 OR a.x = 1"),
        where(NUMBERED, "w0 <= a.y"),
        where(NUMBERED, "w0 <> 2"),
        where(NUMBERED, "w0 > 2"),
    ],
)
def test_what_is_no_topn(tree):
    assert recognise_topn(tree) == tree


def test_conditions_on_the_key_go_below_a_window_and_a_topn():
    for node in (NUMBERED, topn(a, "a.k", "a.x", 2)):
        pushed = shape(push_filters(where(node, "a.k > 1 AND a.x > 2"))).splitlines()
        assert pushed[0] == "Filter predicate: (a.x > 2:Int32)"
        assert "Filter predicate: (a.k > 1:Int32)" in pushed[2]


def test_functions_that_nobody_reads_are_not_computed():
    pruned = prune_columns(project(window(a, "a.k", "a.x", "row_number(); sum(a.y)"), p="w0"))
    assert "sum" not in shape(pruned)
    assert [c.name for node in walk(pruned) if isinstance(node, Scan) for c in node.columns] == ["k", "x"]
    assert shape(prune_columns(project(NUMBERED, p="a.y"))) == "Project exprs: [a.y]\n└─Scan table: a"


def looked_up(kind, residual=None, waits=True, by=None):
    joined = join(a, b, "inner", "a.k = b.k", residual)
    return TemporalJoin(a, b, kind, joined.keys, joined.residual, by, waits=waits)


@pytest.mark.parametrize(
    ("kind", "predicate", "waits", "expected"),
    [
        ("left", "a.x > 1", True, "LeftOuter left"),
        ("left", "b.x > 1", True, "Inner above"),
        ("inner", "b.x > 1", True, "Inner above"),
        ("inner", "a.x > b.x", True, "Inner above"),
        ("left", "b.x IS NULL", True, "LeftOuter above"),
        ("inner", "a.x > b.x", False, "Inner residual"),
        ("inner", "b.x > 1", False, "Inner right"),
        ("left", "b.x > 1", False, "Inner right"),
    ],
)
def test_what_is_said_above_a_look_up_is_no_match_for_rows_that_wait(kind, predicate, waits, expected):
    """A row that waits is done with its first match, also if that is filtered out above (LS-24, LS-44)."""
    tree = push_filters(where(looked_up(kind, waits=waits), predicate))
    place = "above" if isinstance(tree, Filter) else "residual"
    node = tree.input if isinstance(tree, Filter) else tree
    place = "left" if isinstance(node.left, Filter) else "right" if isinstance(node.right, Filter) else place
    assert f"{'LeftOuter' if node.kind == 'left' else 'Inner'} {place}" == expected
    assert node.waits == waits


@pytest.mark.parametrize(
    ("kind", "residual", "by", "expected"),
    [
        ("left", "b.x > 1", None, "right"),
        ("inner", "b.x > 1", None, "right"),
        ("left", "a.x > 1", None, "residual"),
        ("inner", "a.x > 1", None, "left"),
        ("left", "a.x > b.x", None, "residual"),
        ("left", "b.x > 1", (("b.k",),), "residual"),
    ],
)
def test_what_on_says_of_one_side_of_a_look_up_goes_below(kind, residual, by, expected):
    """Not where the right side is looked up by a key or index of its own (RW-52), and not where left rows have to
    stay.
    """
    node = push_filters(looked_up(kind, residual, waits=False, by=by))
    assert (
        "left" if isinstance(node.left, Filter) else "right" if isinstance(node.right, Filter) else "residual"
    ) == expected
    assert (node.residual is None) == (expected != "residual")


def test_a_row_that_can_never_match_does_not_wait():
    """LS-26: what ON says of the waiting side alone is part of its key; where it is not true the key is NULL."""
    node = push_filters(looked_up("left", "a.x > 1"))
    assert node.residual is None
    assert "CASE WHEN" in node.keys[0].left.expression.sql()
    assert push_filters(node) == node
