"""Views on views, connector tables, what operators say about themselves, what is refused. Covers RA-29, RA-30."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest
from tests.algebra_to_sql import to_sql
from tests.circuit_to_sql import run
from tests.trees import e, group, join, project, relation, scan, sink_of, union, values, where

from watersmeet.algebra.nodes import Column, Join, KeyPair, Project
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit.operators import Aggregate, Map, Scan, Sink, Upsert
from watersmeet.errors import Error, Span
from watersmeet.planner import assemble, compile_connector_table, compile_view
from watersmeet.values.types import BIGINT, JSONB, VARCHAR, SqlType

a, b, c = (scan(n) for n in "abc")


def compiled(tree, producers=None, name="v"):
    return compile_view(tree, sink_of(tree, name), producers or {})


def kinds(ops):
    return [o.kind for o in ops]


def test_equal_subplans_are_one_operator_whatever_they_are_called():
    one = compiled(group(join(a, b, "inner", "a.k = b.k"), "a.k", "max(b.x)"), name="v1")
    renamed = join(scan("a", alias="q"), scan("b", alias="r"), "inner", "q.k = r.k")
    other = compiled(project(group(renamed, "q.k", "max(r.x)", "z"), only="z1"), name="v2")
    circuit = assemble([one, other], 3)
    assert kinds(circuit.operators).count("join") == kinds(circuit.operators).count("aggregate") == 1
    assert len(circuit.sinks) == 2
    assert assemble([one, other], 3).fingerprint == circuit.fingerprint


def test_the_order_of_selected_columns_does_not_matter_below():
    one = compiled(project(join(a, b, "inner", "a.k = b.k"), p="a.x", q="b.y"), name="v1")
    other = compiled(project(join(a, b, "inner", "a.k = b.k"), p="b.y", q="a.x"), name="v2")
    assert kinds(assemble([one, other], 3).operators).count("join") == 1


def test_a_view_on_a_view_reads_its_operator():
    base = compiled(group(a, "a.k", "sum(a.x)"), name="m")
    reader = join(scan("m", "o0 int, o1 bigint"), b, "inner", "m.o0 = b.k")
    ops = compiled(reader, producers={"m": base})
    assert [o.relation_id for o in ops if isinstance(o, Sink)] == ["v"]
    circuit = assemble([base, ops], 3)
    assert circuit.last_stage == 1, "the aggregate's rows are where the join needs them"
    assert {o.relation_id for o in circuit.scans} == {"a", "b"}
    narrow = compiled(project(scan("m", "o0 int, o1 bigint"), s=("m.o1", BIGINT)), producers={"m": base}, name="n")
    assert kinds(narrow) == ["scan", "exchange", "aggregate", "map", "sink"]


def test_a_view_that_copies_a_relation_is_not_in_the_way():
    base = compiled(scan("t", "k int, x int, y int"), name="m")
    assert kinds(base) == ["scan", "sink"]
    ops = compiled(project(scan("m", "o0 int, o1 int, o2 int"), s="m.o1"), producers={"m": base})
    assert [(o.relation_id, o.names) for o in ops if isinstance(o, Scan)] == [("t", ("x",))]


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_diamond_gives_the_answer(buckets):
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE TABLE a AS SELECT range % 5 AS k, range AS x, range % 3 AS y FROM range(20)")
    views = {}
    trees = {
        "v1": group(a, "a.k", "sum(a.x)"),
        "v2": group(a, "a.y", "count(a.x)"),
        "v3": join(scan("v1", "o0 int, o1 bigint"), scan("v2", "o0 int, o1 bigint"), "left", "v1.o0 = v2.o0"),
    }
    for name, tree in trees.items():
        views[name] = compile_view(tree, sink_of(tree, name), views)
    circuit = assemble(views.values(), buckets)
    for name in ("v1", "v2"):
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM ({to_sql(trees[name])}) AS t(o0, o1)")
    assert run(circuit, connection, "v3") == sorted(connection.execute(to_sql(trees["v3"])).fetchall(), key=repr)


def test_connector_tables():
    keyed = relation("t", key=("x", "k"), connector={"connector": "file"})
    ops = compile_connector_table(keyed)
    assert kinds(ops) == ["scan", "exchange", "upsert", "sink"]
    raw, sent, upsert, sink = ops
    assert raw.ordered
    assert [f.name for f in raw.schema] == ["k", "x", "y", "_seq"]
    assert sent.keys == upsert.keys == (1, 0)
    assert len(sent.schema) == 4
    assert len(upsert.schema) == 3
    assert not sink.append_only
    plain = compile_connector_table(relation("t", connector={"connector": "file"}))
    assert kinds(plain) == ["scan", "sink"]
    assert plain[-1].append_only
    reader = compile_view(scan("t"), sink_of(scan("t")), {"t": ops})
    assert any(isinstance(o, Upsert) for o in reader)
    grouped = scan("t")
    keyed_reader = compiled(group(grouped, "t.k, t.x, t.y"), producers={"t": ops})
    assert assemble([ops, keyed_reader], 3).last_stage == 1, "the rows of a key are together already"


@pytest.mark.parametrize(("tree", "expected"), [
    (lambda s, t: s, True), (lambda s, t: t, False), (lambda s, t: where(s, "s.x > 1"), True),
    (lambda s, t: join(s, scan("s", alias="z", append_only=True), "inner", "s.k = z.k"), True),
    (lambda s, t: join(s, t, "inner", "s.k = t.k"), False),
    (lambda s, t: join(s, scan("s", alias="z", append_only=True), "left", "s.k = z.k"), False),
    (lambda s, t: join(s, scan("s", alias="z", append_only=True), "semi", "s.k = z.k"), True),
    (lambda s, t: join(s, scan("s", alias="z", append_only=True), "anti", "s.k = z.k"), False),
    (lambda s, t: group(s, "s.k"), False), (lambda s, t: group(s, "s.k", ""), True), (lambda s, t: group(t, "t.k", ""),
      False),
    (lambda s, t: union(s, scan("s", alias="z", append_only=True)), True), (union, False),
    (lambda s, t: values([[1]]), True),
])  # fmt: skip
def test_append_only(tree, expected):
    ops = compiled(tree(scan("s", append_only=True), scan("t")))
    assert ops[-1].append_only == expected


def test_maps_are_one_and_below_the_exchange():
    tree = group(where(project(where(a, "a.x > 1"), z="a.x + 1", k="a.k"), "z > 5"), "k", "sum(z)")
    assert kinds(compiled(tree)) == ["scan", "map", "exchange", "aggregate", "sink"]
    (only,) = [o for o in compiled(tree) if isinstance(o, Map)]
    assert only.exprs == ("c0", "c1 + 1")
    assert only.predicate == "c1 > 1 AND (c1 + 1) > 5"


def test_an_expression_that_is_read_twice_is_computed_once():
    tree = project(project(a, z="a.x * a.y"), p="z + z", q="z")
    assert kinds(compiled(tree)) == ["scan", "map", "map", "sink"]


def test_counting_rows_reads_a_constant():
    ops = compiled(group(where(a, "a.x > 1"), ""))
    assert [o.exprs for o in ops if isinstance(o, Map)] == [("TRUE",)]


def test_equal_calls_are_one_and_keys_may_repeat():
    tree = group(a, "a.k, a.k", "sum(a.x); sum(a.x); count(*)")
    (op,) = [o for o in compiled(tree) if isinstance(o, Aggregate)]
    assert len(op.keys) == 1
    assert len(op.calls) == 2
    assert len(compiled(tree)[-1].schema) == 5


def test_keys_get_one_type():
    n = SqlType("numeric", 10, 2)
    decimal = Join(a, scan("b", "k numeric, x int"), "inner", (KeyPair(e("a.k"), e("b.k", n)),))
    ops = compiled(decimal)
    (op,) = [o for o in ops if o.kind == "join"]
    by_id = {o.id: o for o in ops}
    types = [by_id[i].schema[k[0]].type for i, k in zip(op.inputs, (op.left_keys, op.right_keys))]
    assert types == [SqlType("numeric", 12, 2)] * 2
    with pytest.raises(Error) as caught:
        compiled(Join(a, b, "inner", (KeyPair(e("a.k", VARCHAR), e("b.k")),)))
    assert caught.value.condition == "DATATYPE_MISMATCH"


def test_nested_keys_pass_through():
    kind = SqlType("array", element=SqlType("struct", fields=(("f", JSONB),)))
    left, right = (replace(scan(n, "k int"), outputs=(Column(f"{n}.k", "k", kind),)) for n in "ab")
    ops = compiled(
        Join(left, right, "left", (KeyPair(Scalar(e("a.k").expression, kind), Scalar(e("b.k").expression, kind)),))
    )
    assert ops[-1].schema[0].type == kind


@pytest.mark.parametrize("tree", [
    join(a, b, "inner"), join(a, b, "inner", residual="a.x > b.x"), join(a, b, "left", residual="a.x < b.x"),
    join(a, b, "anti", residual="a.x < b.x"), join(a, b, "full", residual="a.x = b.x OR a.y = b.y"),
    where(join(a, scan("b", "k varchar"), "inner"), "a.k = b.k"), join(a, group(b, ""), "right", residual="a.x > g0"),
])  # fmt: skip
def test_nested_loops_are_refused(tree):
    with pytest.raises(Error) as caught:
        compiled(tree)
    assert caught.value.condition == "JOIN_WITHOUT_EQUALITY"
    assert caught.value.message == "streaming nested-loop join"
    crossed = isinstance(tree, Join) and tree.residual is None
    assert ("join by a constant" if crossed else "dynamic filter") in caught.value.hint


def test_the_place_of_a_nested_loop_is_kept():
    span = Span(7, 9)
    crossed = replace(join(a, b, "inner"), span=span)
    for tree in (crossed, where(crossed, "a.x > b.x"), join(crossed, c, "inner", "b.k = c.k")):
        with pytest.raises(Error) as caught:
            compiled(tree)
        assert caught.value.span == span


@pytest.mark.parametrize("tree", [
    join(a, b, "inner", "a.k = b.k", "a.x > b.x"), join(a, group(b, ""), "inner", residual="a.x > g0"),
    join(group(b, ""), a, "inner", residual="a.x > g0"), join(group(b, ""), a, "right", residual="a.x > g0"),
    join(a, group(b, ""), "left", residual="a.x > g0"), join(a, values([[1]]), "anti", residual="a.x > v0"),
    join(a, project(b, z="b.x"), "inner", broadcast=True), join(a, group(b, ""), "full", broadcast=True),
])  # fmt: skip
def test_an_equality_or_a_single_row_is_enough(tree):
    connection = duckdb.connect(config={"threads": 1})
    for name in "ab":
        connection.execute(f"CREATE TABLE {name} AS SELECT range % 4 AS k, range AS x, range % 3 AS y FROM range(12)")
    circuit = assemble([compiled(tree)], 3)
    assert run(circuit, connection, "v") == sorted(connection.execute(to_sql(tree)).fetchall(), key=repr)


def test_a_view_gets_the_types_of_its_columns():
    tree = Project(a, (Column("w", "w", BIGINT),), (e("a.k", BIGINT),))
    ops = compiled(tree)
    assert [o.exprs for o in ops if isinstance(o, Map)] == [("CAST(c0 AS BIGINT)",)]
    assert ops[-1].schema[0].type == BIGINT
