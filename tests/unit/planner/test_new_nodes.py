"""What CONTRIBUTING says a new node or operator takes: nothing else knows the classes one by one.

No module of the package knows `Sampled`, `Near` (a join) and `Shared` (like a window). Their traits are enough for all
rewrites and analyses; how they are computed and shown is said here, as it would be in `planner.lowering` and
`planner.logical`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests import algebra_to_sql, circuit_to_sql
from tests.trees import e, group, join, p, pairs_of, scan, sink_of, values, where

from watersmeet.algebra import bounded
from watersmeet.algebra.bounded import Named, Recursion
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Binary,
    Column,
    Cut,
    Filter,
    Join,
    KeyedJoin,
    Node,
    Partitioned,
    PassThrough,
    Project,
    Unary,
    Versions,
    Window,
    WindowCall,
    WindowFrame,
)
from watersmeet.algebra.properties import comes_later, constants, is_single_row, revision
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.pushdown import fold_constants, push_filters
from watersmeet.algebra.rewrites.required import prune_columns, spread_for_readers
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import exactly, transform_up, walk
from watersmeet.algebra.watermarks import of_partition, watermarks
from watersmeet.binder.clauses.closing import paddings
from watersmeet.circuit.operators import KINDS, Exchange, Map, PairJoin, Scan, Sink, SlidingWindow
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.errors import NotSupportedError
from watersmeet.kernel.operators import STEPS
from watersmeet.planner import compile_view, logical
from watersmeet.planner.display import PlanTree
from watersmeet.planner.lowering import Lowering
from watersmeet.unparsing.relations import Writer
from watersmeet.values.types import BIGINT, DOUBLE, TIMESTAMP
from watersmeet.values.watermarks import Term


@dataclass(frozen=True)
class Sampled(PassThrough):
    """Some rows of the input: those for which a hash of `by` is even."""

    grows = True
    keeps_times = True
    by: Scalar

    @property
    def scalars(self):
        return (self.by,)

    def changed(self, change):
        return replace(self, by=change(self.by))


@logical._print.register
def _(node: Sampled, names):
    return PlanTree("LogicalSample", (), (logical._print(node.input, names),))


@Lowering.__dict__["lower"].register
def _(self, node: Sampled, needed):
    below = self.lower(node.input, needed | node.by.columns)
    return below.filtered([e(f'hash("{node.by.column}") % 2 = 0')])


@dataclass(frozen=True)
class Near(KeyedJoin):
    """Each left row with the right rows of its key for which `x` differs by at most one."""

    called = "a near join"
    x: tuple[Scalar, Scalar]

    @property
    def scalars(self):
        return (*self.key_scalars, *self.x)

    @property
    def grows_with(self):
        return self.inputs if self.kind == "inner" else None

    @property
    def held(self):
        return self.left.ids

    @property
    def filterable(self):
        return self.left.ids


@logical._print.register
def _(node: Near, names):
    return PlanTree("LogicalNear", (), tuple(logical._print(i, names) for i in node.inputs))


@Lowering.__dict__["lower"].register
def _(self, node: Near, needed):
    one, other = (s.expression.sql() for s in node.x)
    return self.lower(Join(node.left, node.right, node.kind, node.keys, p(f"abs({one} - {other}) <= 1")), needed)


@dataclass(frozen=True)
class Shared(Partitioned):
    """Each row of the input with the number of rows in its partition."""

    number: Column

    @property
    def scalars(self):
        return self.partition

    @property
    def columns(self):
        return (*self.input.columns, self.number)

    @property
    def at_most_one(self):
        return True

    def changed(self, change):
        return replace(self, partition=tuple(map(change, self.partition)))


@logical._print.register
def _(node: Shared, names):
    return PlanTree("LogicalShared", (), (logical._print(node.input, names),))


@Lowering.__dict__["lower"].register
def _(self, node: Shared, needed):
    count = WindowCall("count", (), 1, None, (), WindowFrame("rows", None, None), BIGINT)
    return self.lower(Window(node.input, node.partition, (count,), (node.number,)), needed)


def sampled(node, by):
    return Sampled(node, e(by))


def near(left, right, kind="inner"):
    return Near(left, right, kind, pairs_of(left, right, "a.k = b.k"), (e("a.x"), e("b.x")))


def shared(node, by="a.k"):
    return Shared(node, (e(by),), Column("n", "n", BIGINT))


def timed(name):
    made = replace(scan(name, append_only=True), key=(f"{name}.k",))
    return replace(made, watermarks=((f"{name}.x", (Term(name),)), (f"{name}.k", (Term(name),))))


def found(tree, cls=Sampled):
    return next(n for n in walk(tree) if isinstance(n, cls))


def test_a_new_node_is_walked_and_rebuilt():
    tree = where(sampled(scan("a"), "a.k"), "a.x > 1")
    assert transform_up(tree, lambda n: n) is tree
    changed = transform_up(tree, lambda n: replace(n, relation_name="b") if not n.inputs else n)
    assert found(changed).input.relation_name == "b"


def test_columns_that_it_reads_are_kept_and_others_are_not():
    tree = exactly(sampled(scan("a"), "a.k"), scan("a").columns[1:2])
    assert [c.id for c in found(prune_columns(tree)).input.columns] == ["a.k", "a.x"]


def test_conditions_stay_above_it_and_those_below_go_on():
    below = where(where(scan("a"), "a.k > 2"), "a.x > 1")
    pushed = push_filters(where(sampled(below, "a.k"), "a.y > 1"))
    assert isinstance(pushed, Filter)
    assert pushed.predicate == p("a.y > 1")
    assert found(pushed).input == push_filters(below)


def test_of_no_rows_there_are_none():
    tree = fold_constants(sampled(where(scan("a"), "FALSE"), "a.k"))
    assert not list(tree.inputs)
    assert tree.rows == ()


def test_it_has_no_more_rows_than_its_input_and_the_same_constants():
    assert is_single_row(sampled(values([(1, 2)]), "v0"))
    assert not is_single_row(sampled(scan("a"), "a.k"))
    keyed = where(sampled(replace(scan("a"), key=("a.k",)), "a.x"), "a.k = 7")
    assert is_single_row(keyed)
    assert constants(sampled(where(scan("a"), "a.k = 7"), "a.x")) == {"a.k"}


def test_its_rows_only_come_and_keep_their_watermarks():
    timed = replace(scan("a", append_only=True), watermarks=(("a.x", (Term("a"),)),))
    assert revision(sampled(timed, "a.k")) is None
    assert revision(sampled(scan("a"), "a.k")) == '"a" is not append-only'
    assert watermarks(sampled(timed, "a.k")) == {"a.x": (Term("a"),)}


def test_what_is_read_above_says_where_rows_below_go():
    tree = group(sampled(join(scan("a"), scan("b"), "inner", "a.k = b.k, a.x = b.x"), "a.y"), "a.x")
    pairs = next(n for n in walk(spread_for_readers(tree)) if isinstance(n, Join))
    assert pairs.spread == (1,)


def test_it_may_stand_in_a_subquery_and_read_what_is_around_it():
    inner = sampled(where(scan("b"), "b.k = a.k"), "a.x")
    tree = unnest(Apply(scan("a"), inner, "inner"))
    assert not any(isinstance(n, Apply) for n in walk(tree))
    assert not tree.free
    assert found(tree).by.columns <= found(tree).input.ids


def test_it_is_compiled_and_shown():
    tree = rewrite(group(sampled(scan("a"), "a.k"), "a.x"))
    assert [line.strip("└─ ").split()[0] for line in logical.logical_tree(tree).lines()] == [
        "LogicalAgg",
        "LogicalSample",
        "LogicalScan",
    ]
    ops = compile_view(tree, sink_of(tree), {})
    assert [o.predicate for o in ops if isinstance(o, Map)] == ["HASH(c0) % 2 = 0"]
    assert isinstance(ops[-1], Sink)


def test_a_new_join_has_the_columns_of_its_kind():
    assert [c.nullable for c in near(scan("a"), replace(scan("b"), outputs=scan("b").outputs[:1])).columns] == [
        True
    ] * 4
    solid = replace(scan("b"), outputs=tuple(replace(c, nullable=False) for c in scan("b").outputs))
    assert [c.nullable for c in near(solid, solid, "inner").columns] == [False] * 6
    assert [c.nullable for c in near(solid, solid, "left").columns] == [False] * 3 + [True] * 3
    assert [c.nullable for c in near(solid, solid, "full").columns] == [True] * 6
    assert near(scan("a"), scan("b"), "semi").columns == scan("a").columns


def test_conditions_on_the_side_that_a_new_join_keeps_go_below():
    pushed = push_filters(where(near(scan("a"), scan("b"), "left"), "a.y > 1 AND b.y > 2"))
    assert isinstance(pushed, Filter)
    assert pushed.predicate == p("b.y > 2")
    assert found(pushed, Near).left == where(scan("a"), "a.y > 1")
    assert found(pushed, Near).right == scan("b")


def test_columns_that_a_new_join_reads_are_kept():
    tree = exactly(near(scan("a"), scan("b")), scan("a").columns[2:])
    assert [[c.id for c in i.columns] for i in found(prune_columns(tree), Near).inputs] == [
        ["a.k", "a.x", "a.y"],
        ["b.k", "b.x"],
    ]


def test_what_a_new_join_keeps_decides_about_its_rows():
    none = where(scan("a"), "FALSE")
    for kind in ("inner", "left", "semi"):
        assert fold_constants(near(none, scan("b"), kind)).rows == ()
    assert isinstance(fold_constants(near(scan("a"), where(scan("b"), "FALSE"), "left")), Near)
    fixed = where(scan("a"), "a.k = 7")
    assert constants(near(fixed, scan("b"), "left")) == {"a.k"}
    assert constants(near(fixed, scan("b"), "full")) == set()
    assert is_single_row(near(values([(1, 2)]), scan("b"), "semi"))
    assert not is_single_row(near(values([(1, 2)]), scan("b"), "left"))
    later = Cut(scan("a", append_only=True), "after", 0)
    assert comes_later(near(later, scan("b"), "left"))
    assert not comes_later(near(scan("a"), later, "left"))


def test_what_a_new_join_lacks_is_null_together():
    assert paddings(near(scan("a"), scan("b"), "left")) == {scan("b").ids}
    assert paddings(near(scan("a"), scan("b"), "full")) == {scan("a").ids, scan("b").ids}
    assert paddings(near(scan("a"), scan("b"), "inner")) == {frozenset()}


def test_rows_and_watermarks_of_a_new_join():
    one, other = timed("a"), timed("b")
    assert revision(near(one, other)) is None
    assert revision(near(one, scan("b"))) == '"b" is not append-only'
    assert revision(near(one, other, "left")) == "rows may be taken back"
    assert watermarks(near(one, other)) == dict(one.watermarks)


def test_the_sides_of_a_new_join_are_spread_by_its_keys():
    sides = [join(scan(a), scan(b), "inner", f"{a}.k = {b}.k, {a}.x = {b}.x") for a, b in (("a", "c"), ("b", "d"))]
    spread = found(spread_for_readers(near(*sides)), Near)
    assert [side.spread for side in spread.inputs] == [(0,), (0,)]


def test_a_new_join_in_a_subquery_does_not_read_what_is_around_it():
    inner = near(where(scan("a"), "a.k = c.k"), scan("b"))
    with pytest.raises(NotSupportedError, match="a near join that reads columns of an outer query"):
        unnest(Apply(scan("c"), inner, "inner"))
    tree = unnest(Apply(near(scan("a"), scan("b"), "left"), where(scan("c"), "c.k = a.y"), "inner"))
    assert not any(isinstance(n, Apply) for n in walk(tree))


def test_a_new_join_is_compiled_and_shown():
    tree = rewrite(group(where(near(scan("a"), scan("b")), "a.y > 1"), "a.x"))
    assert [line.strip("├│└─ ").split()[0] for line in logical.logical_tree(tree).lines()] == [
        "LogicalAgg",
        "LogicalNear",
        "LogicalFilter",
        "LogicalScan",
        "LogicalScan",
    ]
    (made,) = [o for o in compile_view(tree, sink_of(tree), {}) if isinstance(o, PairJoin)]
    assert made.residual is not None


def test_conditions_on_the_partition_of_a_new_window_go_below():
    pushed = push_filters(where(shared(scan("a")), "a.k > 1 AND a.y > 2"))
    assert isinstance(pushed, Filter)
    assert pushed.predicate == p("a.y > 2")
    assert found(pushed, Shared).input == where(scan("a"), "a.k > 1")
    approximate = Shared(scan("a"), (replace(e("a.k"), type=DOUBLE),), Column("n", "n", BIGINT))
    assert found(push_filters(where(approximate, "a.k > 1")), Shared).input == scan("a")


def test_what_a_new_window_says_of_its_rows():
    assert is_single_row(shared(values([(1, 2)]), "v0"))
    assert constants(shared(where(scan("a"), "a.x = 7"))) == {"a.x"}
    assert revision(shared(timed("a"))) == "a window function or LIMIT revises rows"
    assert watermarks(shared(timed("a"))) == {"a.k": (Term("a"),)}
    by_time = Shared(timed("a"), (e("a.k", TIMESTAMP),), Column("n", "n", BIGINT))
    assert of_partition(by_time) == (0, (Term("a"),))
    assert [
        c.id for c in found(prune_columns(exactly(shared(scan("a")), [Column("n", "n", BIGINT)])), Shared).columns
    ] == [
        "a.k",
        "n",
    ]


def test_the_rows_of_a_new_window_are_spread_by_its_partition():
    below = join(scan("a"), scan("b"), "inner", "a.k = b.k, a.x = b.x")
    assert found(spread_for_readers(shared(below)), Join).spread == (0,)
    above = join(shared(scan("a")), scan("b"), "inner", "a.k = b.k, a.x = b.x")
    assert found(spread_for_readers(above), Join).spread == (0,)


def test_a_new_window_in_a_subquery_computes_each_outer_row_apart():
    tree = unnest(Apply(scan("a"), shared(where(scan("b"), "b.k = a.k"), "b.x"), "inner"))
    assert not any(isinstance(n, Apply) for n in walk(tree))
    assert [s.column for s in found(tree, Shared).partition] == ["b.k", "b.x"]


def test_a_new_window_is_compiled_and_shown():
    tree = rewrite(group(shared(scan("a")), "n"))
    assert "LogicalShared" in [line.strip("└─ ").split()[0] for line in logical.logical_tree(tree).lines()]
    assert any(o.kind == "window" for o in compile_view(tree, sink_of(tree), {}))


def subclasses(cls):
    for found in cls.__subclasses__():
        yield found
        yield from subclasses(found)


def own(cls):
    """The nodes or operators of the package, without what others are made of."""
    return [c for c in subclasses(cls) if c.__module__.startswith("watersmeet.") and not c.__subclasses__()]


def test_every_node_is_shown_and_lowered_and_its_meaning_is_written_down():
    lower = Lowering.__dict__["lower"].dispatcher
    nodes = [c for c in own(Node) if c.__module__ != bounded.__name__]
    assert {Project, Aggregate, Join} < set(nodes)
    assert not {Unary, PassThrough, Partitioned, Binary, KeyedJoin} & set(nodes)
    for cls in nodes:
        assert logical._print.dispatch(cls) is not logical._print.dispatch(Node), cls
        assert algebra_to_sql._from.dispatch(cls) is not algebra_to_sql._from.dispatch(Node), cls
        if cls not in (Apply, Versions):  # one is gone after `unnest`, the other a part of the ASOF join above it
            assert lower.dispatch(cls) is not lower.dispatch(Node), cls


def test_every_node_of_queries_that_end_is_written():
    select = Writer.__dict__["select"].dispatcher
    nodes = [c for c in own(Node) if c.__module__ == bounded.__name__]
    assert {Named, Recursion} < set(nodes)
    for cls in [*nodes, Project, Aggregate, Join, Apply, Window]:
        assert select.dispatch(cls) is not select.dispatch(Node), cls


def test_every_kind_of_operator_has_its_code_and_its_meaning_is_written_down():
    for kind, cls in KINDS.items():
        assert kind in STEPS or cls in (Scan, Exchange, Sink), "the executor does the others"
        # the models of these are those of `property/test_sliding_windows` and `property/test_timeplus_windows`
        if cls not in (SlidingWindow, SessionWindow):
            assert cls in circuit_to_sql._BODIES or cls in circuit_to_sql._MOMENTS, kind
    assert STEPS.keys() <= KINDS.keys()
