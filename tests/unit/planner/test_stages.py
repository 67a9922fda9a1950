"""Exchanges stand where the needed distribution is not there, and nowhere else."""

from __future__ import annotations

import pytest
from tests.reference import columns
from tests.trees import group, join, project, scan, sink_of, union, values, where

from watersmeet.circuit.operators import Exchange, Join, Union
from watersmeet.planner import assemble, compile_view

a, b, c, d = (scan(n) for n in "abcd")


def plan(tree, buckets=3):
    return assemble([compile_view(tree, sink_of(tree), {})], buckets)


def exchanges(circuit):
    return [o for o in circuit.operators if isinstance(o, Exchange)]


def chain(kind="inner", first="a.k = b.k", second="a.k = c.k"):
    return join(join(a, b, kind, first), c, kind, second)


@pytest.mark.parametrize(("tree", "stages", "count"), [
    (where(a, "a.x > 1"), 0, 0),
    (union(project(a, p="a.k"), project(b, q="b.k")), 0, 0),
    (group(a, "a.k"), 1, 1),
    (group(a, ""), 1, 1),
    (chain(), 1, 3),
    (group(chain(), "a.k, a.x", "sum(c.x)"), 1, 3),
    (group(chain(), "c.k", "sum(c.x)"), 1, 3),
    (group(chain(second="b.k = c.k"), "c.k"), 1, 3),
    (group(chain("left"), "a.k"), 1, 3),
    (group(chain("left"), "c.k"), 2, 4),  # null-extended rows are where the left key says
    (group(chain("left", second="b.k = c.k"), "a.k"), 1, 3),  # b.k is a.k or NULL, and NULL meets nothing
    (group(chain("left", second="b.k = c.k"), "c.k"), 2, 4),
    (chain("left", second="b.k == c.k"), 2, 4),  # here it meets
    (group(join(join(a, b, "left", "a.k = b.k"), c, "inner", "b.k = c.k"), "b.k"), 1, 3),
    (chain("full"), 1, 3),
    (chain("full", second="b.k = c.k"), 1, 3),
    (chain("right", second="b.k = c.k"), 1, 3),
    (chain(second="a.x = c.x"), 2, 4),
    (group(chain(second="a.x = c.x"), "a.k"), 2, 4),  # first on x, then on k, where the groups are
    (group(join(a, b, "full", "a.k = b.k"), "a.k"), 2, 3),
    (group(project(join(a, b, "full", "a.k = b.k"), k="coalesce(a.k, b.k)"), "k"), 1, 2),
    (join(project(join(a, b, "full", "a.k = b.k"), k="coalesce(a.k, b.k)"), c, "full", "k = c.k"), 1, 3),
    (group(join(a, b, "semi", "a.k = b.k"), "a.k"), 1, 2),
    (group(join(a, b, "right", "a.k = b.k"), "b.k"), 1, 2),
    (group(group(a, "a.k, a.x"), "g0", "count(g1)", "h"), 1, 1),  # both by a.k
    (group(group(group(a, "a.k, a.x, a.y"), "g0, g1", "count(g2)", "h"), "h1", "max(h2)", "i"), 1, 1),
    (group(union(group(a, "a.k, a.x"), group(b, "b.k, b.x", prefix="h")), "u0", "sum(u2)", "i"), 1, 2),
    (group(join(a, b, "inner", "a.k = b.k, a.x = b.x"), "b.x"), 1, 2),
    (group(join(a, b, "left", "a.k = b.k, a.x = b.x"), "a.x"), 1, 2),
    (group(join(a, b, "left", "a.k = b.k, a.x = b.x"), "b.x"), 2, 3),  # NULL where nothing matches
    (group(join(a, b, "full", "a.k = b.k, a.x = b.x"), "a.x"), 2, 3),
    (join(join(a, b, "inner", "a.k = b.k, a.x = b.x"), c, "inner", "b.x = c.x, a.y = c.y"), 1, 3),
    (join(group(a, "a.k, a.x"), group(b, "b.x, b.y", "", "h"), "inner", "g0 = h1, g1 = h0"), 1, 2),
    (group(group(a, "a.k"), "g0, g1", "", "h"), 1, 1),  # rows that agree on more columns agree on the key
    (join(group(a, "a.k"), b, "inner", "g0 = b.k"), 1, 2),
    (join(group(a, "a.k"), b, "inner", "g0 = b.k, g1 = b.x"), 1, 2),  # a part of the join's key is enough
    # the right groups are spread by a part of their key
    (join(group(a, "a.k"), group(b, "b.k, b.x", "", "h"), "inner", "g0 = h0"), 1, 2),
    (join(b, group(a, "a.k"), "inner", "b.k = g0"), 1, 2),
    (group(project(chain(), k="a.k", x="a.x"), "k", "sum(x)"), 1, 3),
    (group(project(chain(), x="a.x"), "x", ""), 2, 4),
    (join(join(a, b, "inner", "a.k + 1 = b.k"), c, "inner", "a.k + 1 = c.k"), 1, 3),
    (union(group(a, "a.k"), group(b, "b.k", prefix="h")), 1, 2),
    (group(union(group(a, "a.k"), group(b, "b.k", prefix="h")), "u0", "sum(u1)", "i"), 1, 2),
    (union(group(a, "a.k"), project(b, p="b.k", q="b.x")), 1, 2),
    (group(union(group(a, "a.k"), project(b, p="b.k", q="b.x")), "u0", "sum(u1)", "i"), 1, 2),
    (group(union(group(a, "a.k"), values([[1, 2]])), "u0", "sum(u1)", "i"), 1, 2),
    (join(a, group(b, ""), "inner", broadcast=True), 2, 3),
    # the row is copied to where a's groups are
    (group(join(a, group(b, ""), "inner", residual="a.x > g0"), "a.k", prefix="h"), 2, 3),
    (group(project(join(a, group(b, ""), "inner", residual="a.x > g0"), z="a.k + 1"), "z", prefix="h"), 2, 3),
    (group(join(join(a, c, "inner", "a.k = c.k"), group(b, ""), "inner", residual="a.x > g0"), "c.y", prefix="h"), 2,
      5),
    (join(join(a, group(b, ""), "inner", residual="a.x > g0"), c, "inner", "a.k = c.k"), 2, 5),  # the row comes last
    (join(group(a, "a.k"), group(b, "", "max(b.x)", "h"), "inner", residual="g1 > h0"), 2, 4),
    (join(group(a, ""), group(b, "", prefix="h"), "inner"), 1, 2),
    (join(group(a, ""), group(b, "", prefix="h"), "full"), 2, 4),
])  # fmt: skip
def test_fewest_stages(tree, stages, count):
    circuit = plan(tree)
    assert (circuit.last_stage, len(exchanges(circuit))) == (stages, count)
    alone = plan(tree, 1)
    assert alone.last_stage == 0
    assert alone.operators == circuit.operators


def test_the_integer_key_is_where_its_bigint_is():
    wide = scan("b", "k bigint, x int")
    tree = join(join(a, wide, "inner", "a.k = b.k"), c, "inner", "a.k = c.k")
    assert plan(tree).last_stage == 1


def test_an_exchange_may_skip_stages():
    circuit = plan(chain(second="a.x = c.x"))
    skipping = [
        o
        for o in exchanges(circuit)
        if circuit.stages[o.id] == 0 and all(circuit.stages[c] == 2 for c in circuit.consumers[o.id])
    ]
    assert len(skipping) == 1


def test_only_needed_columns_travel():
    circuit = plan(project(chain(), o="c.y"))
    assert [len(o.schema) for o in exchanges(circuit)] == [1, 1, 2]
    assert all(len(o.output) == 1 for o in circuit.operators if isinstance(o, Join))


def test_a_union_of_stages_goes_to_the_last():
    circuit = plan(union(group(a, ""), project(b, p="b.x")))
    inputs = [circuit.by_id[i] for o in circuit.operators if isinstance(o, Union) for i in o.inputs]
    assert [o.kind for o in inputs] == ["aggregate", "exchange"]
    assert inputs[1].keys == (0,), "spread over the buckets, not sent to the one row"


def test_a_self_join_reads_and_sends_once():
    circuit = plan(join(a, scan("a", alias="a2"), "inner", "a.k = a2.k"))
    assert [o.kind for o in circuit.operators] == ["scan", "exchange", "arrange", "join", "map", "sink"]
    self_join = circuit.operators[3]
    assert self_join.inputs[0] == self_join.inputs[1]


def test_columns_that_a_join_makes_equal_come_out_once():
    circuit = plan(join(scan("a", "k int"), scan("b", "k int"), "inner", "a.k = b.k"))
    assert [o.output for o in circuit.operators if isinstance(o, Join)] == [columns("l0")]
    floats = plan(join(scan("a", "k double"), scan("b", "k double"), "inner", "a.k = b.k"))
    assert [o.output for o in floats.operators if isinstance(o, Join)] == [columns("l0", "r0")], "0.0 = -0.0"
